"""One token of every row through the model: eagerly, or on a GPU as a CUDA graph.

A step of a decoder is small: on a GPU it takes longer to launch its kernels than to run them, and
a graph launches them all at once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

from model import kernels
from model.architecture import Transformer
from model.batch import Batch
from model.decoding.cache import KeyValueCache, forward_with_cache

#: (ids (n,), positions (n,), cache) -> logits (n, V) float32, which the next step may overwrite.
DecodeStep = Callable[[Tensor, Tensor, KeyValueCache], Tensor]

#: A graph looks at a number of slots that is a multiple of this: one graph for many steps.
GRAPH_SLOTS = 256

#: From this many steps on weights are laid out for them (``kernels.packing``).
MIN_STEPS_TO_PACK = 16


def compute_next_logits(
    model: Transformer, ids: Tensor, positions: Tensor, cache: KeyValueCache
) -> Tensor:
    """Feed the token ids (n,) at ``positions`` (n,); logits (n, V) of the next ones.

    ``cache`` says by ``slots`` and ``length`` where they go and how far attention looks.
    """
    batch = Batch(ids.unsqueeze(1), positions=positions.unsqueeze(1))
    hidden = forward_with_cache(model, batch, cache)
    return model.compute_logits(hidden[:, 0]).float()


def make_decode_step(model: Transformer, step_count: int) -> DecodeStep:
    """How to make so many steps on this model's device, for one cache, whose rows stay as they are,
    and with weights that stay as they are."""
    is_sharded = hasattr(model, "unshard")  # FSDP gathers parts at each step: nothing to capture
    if model.embedding.weight.is_cuda and not is_sharded:
        return CudaGraphStep(model)
    packed_weights: kernels.PackedWeights = {}
    should_pack = (
        step_count >= MIN_STEPS_TO_PACK and not is_sharded
    )  # parts lie where others lay before

    def run_step(ids: Tensor, positions: Tensor, cache: KeyValueCache) -> Tensor:
        with kernels.reuse_packed_weights(packed_weights) if should_pack else nullcontext():
            return compute_next_logits(model, ids, positions, cache)

    return run_step


class CudaGraphStep:
    """A step as a CUDA graph, captured once for every GRAPH_SLOTS slots of the cache.

    The graph reads the ids and positions from tensors of its own, and writes to the cache it was
    captured with.
    """

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.graphs_by_slots: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def __call__(self, ids: Tensor, positions: Tensor, cache: KeyValueCache) -> Tensor:
        capacity = cache.layers[0].keys.shape[2]
        slot_count = min(capacity, -(-cache.filled_length // GRAPH_SLOTS) * GRAPH_SLOTS)
        if not self.graphs_by_slots:
            self.ids, self.positions = ids.clone(), positions.clone()
        self.ids.copy_(ids)
        self.positions.copy_(positions)
        if slot_count not in self.graphs_by_slots:
            self.graphs_by_slots[slot_count] = self._capture_graph(cache, slot_count)
        graph, logits = self.graphs_by_slots[slot_count]
        with torch.cuda.device(self.ids.device):
            graph.replay()
        return logits

    def _capture_graph(
        self, cache: KeyValueCache, slot_count: int
    ) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        cache.slots, cache.filled_length = self.positions, slot_count
        step_inputs = (self.model, self.ids, self.positions, cache)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.ids.device):
            # Once before, on another stream, as capturing asks for; it writes what the graph will.
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                compute_next_logits(*step_inputs)
            torch.cuda.current_stream().wait_stream(stream)
            # Other threads, of the communication between processes, may go on meanwhile.
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                logits = compute_next_logits(*step_inputs)
        return graph, logits
