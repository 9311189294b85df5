"""Compute one decoding step of all rows: eagerly, or on a GPU as a CUDA graph.

A decoding step is small: on a GPU launching its kernels takes longer than running them, and a graph
launches them all at once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from hallmark.model import kernels
from hallmark.model.architecture import Transformer
from hallmark.model.batch import Batch
from hallmark.model.decoding.cache import KeyValueCache, compute_hidden_states_with_cache

#: (ids (n,), positions (n,), cache) -> logits (n, V) float32; the next step may overwrite them.
DecodeStep = Callable[[Tensor, Tensor, KeyValueCache], Tensor]

#: A graph attends to a multiple of this many slots, so that it serves many steps.
GRAPH_SLOTS = 256

#: Weights are packed for at least this many steps (``kernels.reuse_packed_weights``).
MIN_STEPS_TO_PACK = 16


def compute_next_logits(
    model: Transformer, ids: Tensor, positions: Tensor, cache: KeyValueCache
) -> Tensor:
    """Feed the token ids (n,) at ``positions`` (n,); return the logits (n, V) of the next tokens.

    ``cache.slots`` says where the tokens are written, ``cache.filled_length`` how far attention
    looks.
    """
    batch = Batch(ids.unsqueeze(1), positions=positions.unsqueeze(1))
    hidden = compute_hidden_states_with_cache(model, batch, cache)
    return model.compute_logits(hidden[:, 0]).float()


def make_decode_step(model: Transformer, step_count: int) -> DecodeStep:
    """Return the function that computes a step, for ``step_count`` steps with one cache.

    The rows of the cache and the weights must not change in the meantime.
    """
    is_sharded = hasattr(model, "unshard")  # FSDP gathers weights at each step: no graph possible
    if model.embedding.weight.is_cuda and not is_sharded:
        return CudaGraphStep(model)
    packed_weights: kernels.PackedWeights = {}
    # Gathered weights reuse memory, so they cannot be recognised by their address.
    should_pack = step_count >= MIN_STEPS_TO_PACK and not is_sharded

    def run_step(ids: Tensor, positions: Tensor, cache: KeyValueCache) -> Tensor:
        with kernels.reuse_packed_weights(packed_weights) if should_pack else nullcontext():
            return compute_next_logits(model, ids, positions, cache)

    return run_step


class CapturedStep(NamedTuple):
    """A captured decoding step.

    Attributes:
        graph: the graph to replay.
        logits: tensor (n, V) to which each replay writes the logits.
    """

    graph: torch.cuda.CUDAGraph
    logits: Tensor


class CudaGraphStep:
    """A step as a CUDA graph, captured once for every GRAPH_SLOTS slots of the cache.

    The graph reads ids and positions from its own tensors, and writes to the cache that it was
    captured with.
    """

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.steps_by_slot_count: dict[int, CapturedStep] = {}

    def __call__(self, ids: Tensor, positions: Tensor, cache: KeyValueCache) -> Tensor:
        capacity = cache.layers[0].keys.shape[2]
        slot_count = min(capacity, -(-cache.filled_length // GRAPH_SLOTS) * GRAPH_SLOTS)
        if not self.steps_by_slot_count:
            self.ids, self.positions = ids.clone(), positions.clone()
        self.ids.copy_(ids)
        self.positions.copy_(positions)
        if slot_count not in self.steps_by_slot_count:
            self.steps_by_slot_count[slot_count] = self._capture_step(cache, slot_count)
        captured_step = self.steps_by_slot_count[slot_count]
        with torch.cuda.device(self.ids.device):
            captured_step.graph.replay()
        return captured_step.logits

    def _capture_step(self, cache: KeyValueCache, slot_count: int) -> CapturedStep:
        cache.slots, cache.filled_length = self.positions, slot_count
        step_inputs = (self.model, self.ids, self.positions, cache)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.ids.device):
            # Capturing requires a first run on another stream; it writes the same as the graph.
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                compute_next_logits(*step_inputs)
            torch.cuda.current_stream().wait_stream(stream)
            # Threads that communicate between processes may continue in the meantime.
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                logits = compute_next_logits(*step_inputs)
        return CapturedStep(graph, logits)
