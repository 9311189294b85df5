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
from model.config import ParallelMode
from model.training.hardware import compile_function

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule


def is_under_torchrun() -> bool:
    """Whether torchrun has started this process, as one of several or the only one."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def launch_with_torchrun(process_count: int, module: str, arguments: list[str]) -> int:
    """Start ``python -m module arguments`` that many times on this machine; their exit code.

    SIGTERM is passed on, and torchrun gives the processes 30 seconds to save and end; a process
    that a signal killed counts as 128 + its number.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    core_count = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    )
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (core_count or 1) // process_count)))
    try:
        main(["--standalone", f"--nproc-per-node={process_count}", "-m", module, *arguments])
    except SignalException as error:
        return 128 + int(error.sigval)
    except ChildFailedError as error:
        exit_code = int(error.get_first_failure()[1].exitcode)
        return exit_code if exit_code >= 0 else 128 - exit_code
    return 0


class DistributedWorld:
    """The processes that train together, seen by one of them; alone, all of it costs nothing."""

    def __init__(self) -> None:
        environment = os.environ if is_under_torchrun() else {}
        self.rank = int(environment.get("RANK", 0))
        self.local_rank = int(environment.get("LOCAL_RANK", 0))
        self.size = int(environment.get("WORLD_SIZE", 1))

    @property
    def is_first(self) -> bool:
        """Whether this process speaks and writes for all."""
        return self.rank == 0

    def connect(self, device: torch.device) -> None:
        """Wait for all processes, and connect them."""
        if self.size > 1:
            dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")

    def wrap_loss(
        self,
        model: Transformer,
        parallel_mode: ParallelMode,
        is_compiled: bool,
        z_loss: float,
        has_few_shapes: bool,
    ) -> nn.Module:
        """The module whose forward is the loss of a batch; sharding changes the model itself.

        Where batches have ``few_shapes`` it is compiled for each, else lengths are variables of
        it. The model itself is not compiled: it is validated with other batches.
        """
        if self.size > 1 and parallel_mode == "fsdp":
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
        loss: nn.Module = BatchLossModule(model, z_loss)
        if is_compiled:
            if (
                not has_few_shapes
            ):  # the loop over the loss's chunks would tie a graph to one length
                model.cross_entropy = torch.compiler.disable(model.cross_entropy)
            device = model.embedding.weight.device
            loss = compile_function(device, loss, False if has_few_shapes else None)
        if self.size > 1 and parallel_mode == "ddp":
            loss = nn.parallel.DistributedDataParallel(loss)
        return loss

    def sum_on_cpu(self, values: Tensor) -> Tensor:
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

    def gather_to_first_process(self, tensor: Tensor) -> Tensor | None:
        """A copy in the first process's host memory, gathered from its shards where it is cut; None
        in the others. All must ask."""
        if self.size > 1 and (shard := _get_local_shard(tensor)) is not None:
            rows_per_process = -(
                -len(tensor) // self.size
            )  # the last ones may have fewer rows, or none
            padded_shard = shard.new_zeros((rows_per_process, *shard.shape[1:]))
            padded_shard[: len(shard)] = shard
            pieces = (
                [torch.empty_like(padded_shard) for _ in range(self.size)]
                if self.is_first
                else None
            )
            dist.gather(padded_shard, pieces)
            return torch.cat(pieces)[: len(tensor)].cpu() if pieces else None
        return tensor.detach().to("cpu", copy=True).contiguous() if self.is_first else None

    def gather_from_all(self, values: Tensor) -> list[Tensor]:
        """The tensor (on the CPU) of every process, by rank."""
        if self.size == 1:
            return [values]
        tensors_by_rank = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(tensors_by_rank, values)
        return tensors_by_rank

    def wait_for_all(self) -> None:
        if self.size > 1:
            dist.barrier()

    def disconnect(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


class BatchLossModule(nn.Module):
    """A model's loss as the forward of a module: what DDP and torch.compile wrap."""

    def __init__(self, model: Transformer, z_loss: float) -> None:
        super().__init__()
        self.model, self.z_loss = model, z_loss

    def forward(self, batch: Batch) -> Tensor:
        return self.model.compute_loss_sum(batch, self.z_loss)


def defer_gradient_sync(
    loss: nn.Module, model: nn.Module, is_last: bool
) -> AbstractContextManager[Any]:
    """Backward passes in it leave gradients unsummed, unless it is the ``last`` of the step."""
    if isinstance(loss, nn.parallel.DistributedDataParallel):
        return nullcontext() if is_last else loss.no_sync()
    for module in _iter_sharded_modules(model):
        module.set_requires_gradient_sync(is_last, recurse=False)
    return nullcontext()


def _iter_sharded_modules(model: nn.Module) -> Iterator[FSDPModule]:
    if dist.is_initialized():
        from torch.distributed.fsdp import FSDPModule

        yield from (module for module in model.modules() if isinstance(module, FSDPModule))


def _get_local_shard(tensor: Tensor) -> Tensor | None:
    """This process's rows of a tensor that is cut by rows; None of one that is not cut."""
    from torch.distributed.tensor import DTensor, Shard

    if not isinstance(tensor, DTensor):
        return None
    assert tuple(tensor.placements) == (Shard(0),), "fully_shard cuts by rows"
    return tensor.to_local().detach()


def gather_full_tensor(tensor: Tensor) -> Tensor:
    """A tensor gathered from its shards; all processes must ask."""
    if dist.is_initialized():
        from torch.distributed.tensor import DTensor

        if isinstance(tensor, DTensor):
            return tensor.full_tensor()
    return tensor


def shard_like(tensor: Tensor, reference: Tensor) -> Tensor:
    """A whole tensor, cut as ``model`` is; all processes must ask."""
    if dist.is_initialized():
        from torch.distributed.tensor import DTensor, distribute_tensor

        if isinstance(reference, DTensor):
            return distribute_tensor(
                tensor.to(reference.device), reference.device_mesh, reference.placements
            )
    return tensor
