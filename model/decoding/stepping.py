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
from model.decoding.cache import Cache, read

#: (ids (n,), positions (n,), cache) -> logits (n, V) float32, which the next step may overwrite.
Step = Callable[[Tensor, Tensor, Cache], Tensor]

#: A graph looks at a number of slots that is a multiple of this: one graph for many steps.
GRAPH_SLOTS = 256

#: From this many steps on weights are laid out for them (``kernels.packing``).
WORTH_PACKING = 16


def next_logits(model: Transformer, ids: Tensor, positions: Tensor, cache: Cache) -> Tensor:
    """Feed the token ids (n,) at ``positions`` (n,); logits (n, V) of the next ones.

    ``cache`` says by ``slots`` and ``length`` where they go and how far attention looks.
    """
    batch = Batch(ids.unsqueeze(1), positions=positions.unsqueeze(1))
    hidden = read(model, batch, cache)
    return model.logits(hidden[:, 0]).float()


def make_step(model: Transformer, steps: int) -> Step:
    """How to make so many steps on this model's device, for one cache, whose rows stay as they are,
    and with weights that stay as they are."""
    sharded = hasattr(model, "unshard")  # FSDP gathers parts at each step: nothing to capture
    if model.embedding.weight.is_cuda and not sharded:
        return GraphedStep(model)
    packed: kernels.Packed = {}
    packs = steps >= WORTH_PACKING and not sharded  # parts lie where others lay before

    def step(ids: Tensor, positions: Tensor, cache: Cache) -> Tensor:
        with kernels.packing(packed) if packs else nullcontext():
            return next_logits(model, ids, positions, cache)

    return step


class GraphedStep:
    """A step as a CUDA graph, captured once for every GRAPH_SLOTS slots of the cache.

    The graph reads the ids and positions from tensors of its own, and writes to the cache it was
    captured with.
    """

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def __call__(self, ids: Tensor, positions: Tensor, cache: Cache) -> Tensor:
        capacity = cache.layers[0].keys.shape[2]
        slots = min(capacity, -(-cache.length // GRAPH_SLOTS) * GRAPH_SLOTS)
        if not self.graphs:
            self.ids, self.positions = ids.clone(), positions.clone()
        self.ids.copy_(ids)
        self.positions.copy_(positions)
        if slots not in self.graphs:
            self.graphs[slots] = self._capture(cache, slots)
        graph, logits = self.graphs[slots]
        with torch.cuda.device(self.ids.device):
            graph.replay()
        return logits

    def _capture(self, cache: Cache, slots: int) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        cache.slots, cache.length = self.positions, slots
        run = (self.model, self.ids, self.positions, cache)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.ids.device):
            # Once before, on another stream, as capturing asks for; it writes what the graph will.
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                next_logits(*run)
            torch.cuda.current_stream().wait_stream(stream)
            # Other threads, of the communication between processes, may go on meanwhile.
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                logits = next_logits(*run)
        return graph, logits
