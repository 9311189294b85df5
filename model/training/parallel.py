"""Several processes that train one model: replicated (DDP) or sharded (FSDP2), through torchrun.

Each process computes its share of every batch; gradients are summed over all. Replicas (Li et al.
2020) hold the whole model each; shards (Zhao et al. 2023) a part of every tensor each, gathered
block by block when it is needed. What is written to disk is whole either way, so a training may go
on with other processes than it began with.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from model.architecture import Transformer
from model.batch import Batch
from model.config import Parallel
from model.training.machine import compile_for

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule


def launched() -> bool:
    """Whether torchrun has started this process, as one of several or the only one."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def launch(processes: int, module: str, arguments: list[str]) -> int:
    """Start ``python -m module arguments`` that many times on this machine; their exit code.

    SIGTERM is passed on, and torchrun gives the processes 30 seconds to save and end; a process
    that a signal killed counts as 128 + its number.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (cores or 1) // processes)))
    try:
        main(["--standalone", f"--nproc-per-node={processes}", "-m", module, *arguments])
    except SignalException as error:
        return 128 + int(error.sigval)
    except ChildFailedError as error:
        code = int(error.get_first_failure()[1].exitcode)
        return code if code >= 0 else 128 - code
    return 0


class World:
    """The processes that train together, seen by one of them; alone, all of it costs nothing."""

    def __init__(self) -> None:
        environment = os.environ if launched() else {}
        self.rank = int(environment.get("RANK", 0))
        self.local_rank = int(environment.get("LOCAL_RANK", 0))
        self.size = int(environment.get("WORLD_SIZE", 1))

    @property
    def first(self) -> bool:
        """Whether this process speaks and writes for all."""
        return self.rank == 0

    def join(self, device: torch.device) -> None:
        """Wait for all processes, and connect them."""
        if self.size > 1:
            dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")

    def wrap(
        self, model: Transformer, kind: Parallel, compiled: bool, z_loss: float, few_shapes: bool
    ) -> nn.Module:
        """The module whose forward is the loss of a batch; sharding changes the model itself.

        Where batches have ``few_shapes`` it is compiled for each, else lengths are variables of
        it. The model itself is not compiled: it is validated with other batches.
        """
        if self.size > 1 and kind == "fsdp":
            # Imported where it is needed: a second more for everybody else.
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh(model.embedding.weight.device.type, (self.size,))
            for stack in (model.encoder, model.decoder):
                for block in () if stack is None else stack.blocks:
                    fully_shard(block, mesh=mesh)
            # What belongs to no block stays gathered behind the model's forward: the loss reads the
            # output layer, which may be the embedding.
            fully_shard(model, mesh=mesh, reshard_after_forward=False)
        loss: nn.Module = BatchLoss(model, z_loss)
        if compiled:
            if not few_shapes:  # the loop over the loss's chunks would tie a graph to one length
                model.cross_entropy = torch.compiler.disable(model.cross_entropy)
            device = model.embedding.weight.device
            loss = compile_for(device, loss, False if few_shapes else None)
        if self.size > 1 and kind == "ddp":
            loss = nn.parallel.DistributedDataParallel(loss)
        return loss

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, on the CPU."""
        values = values.detach().cpu()
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def sum_on_device(self, values: Tensor) -> Tensor:
        """The sum over all processes, on the values' own device; a GPU is not waited for."""
        if self.size > 1:
            values = values.detach().clone()
            dist.all_reduce(values)
        return values

    def to_first(self, tensor: Tensor) -> Tensor | None:
        """A copy in the first process's host memory, gathered from its shards where it is cut; None
        in the others. All must ask."""
        if self.size > 1 and (cut := _shard(tensor)) is not None:
            each = -(-len(tensor) // self.size)  # the last ones may have fewer rows, or none
            padded = cut.new_zeros((each, *cut.shape[1:]))
            padded[: len(cut)] = cut
            pieces = [torch.empty_like(padded) for _ in range(self.size)] if self.first else None
            dist.gather(padded, pieces)
            return torch.cat(pieces)[: len(tensor)].cpu() if pieces else None
        return tensor.detach().to("cpu", copy=True).contiguous() if self.first else None

    def stack(self, values: Tensor) -> list[Tensor]:
        """The tensor (on the CPU) of every process, by rank."""
        if self.size == 1:
            return [values]
        found = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(found, values)
        return found

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()

    def leave(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


class BatchLoss(nn.Module):
    """A model's loss as the forward of a module: what DDP and torch.compile wrap."""

    def __init__(self, model: Transformer, z_loss: float) -> None:
        super().__init__()
        self.model, self.z_loss = model, z_loss

    def forward(self, batch: Batch) -> Tensor:
        return self.model.loss(batch, self.z_loss)


def without_sync(loss: nn.Module, model: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Backward passes in it leave gradients unsummed, unless it is the ``last`` of the step."""
    if isinstance(loss, nn.parallel.DistributedDataParallel):
        return nullcontext() if last else loss.no_sync()
    for module in _sharded(model):
        module.set_requires_gradient_sync(last, recurse=False)
    return nullcontext()


def _sharded(model: nn.Module) -> Iterator[FSDPModule]:
    if dist.is_initialized():
        from torch.distributed.fsdp import FSDPModule

        yield from (module for module in model.modules() if isinstance(module, FSDPModule))


def _shard(tensor: Tensor) -> Tensor | None:
    """This process's rows of a tensor that is cut by rows; None of one that is not cut."""
    from torch.distributed.tensor import DTensor, Shard

    if not isinstance(tensor, DTensor):
        return None
    assert tuple(tensor.placements) == (Shard(0),), "fully_shard cuts by rows"
    return tensor.to_local().detach()


def full_tensor(tensor: Tensor) -> Tensor:
    """A tensor gathered from its shards; all processes must ask."""
    if dist.is_initialized():
        from torch.distributed.tensor import DTensor

        if isinstance(tensor, DTensor):
            return tensor.full_tensor()
    return tensor


def shard_as(tensor: Tensor, model: Tensor) -> Tensor:
    """A whole tensor, cut as ``model`` is; all processes must ask."""
    if dist.is_initialized():
        from torch.distributed.tensor import DTensor, distribute_tensor

        if isinstance(model, DTensor):
            return distribute_tensor(tensor.to(model.device), model.device_mesh, model.placements)
    return tensor
