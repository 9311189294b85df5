"""Train one model in several processes, replicated (DDP) or sharded (FSDP2), through torchrun.

Each process computes its share of every batch; gradients are summed over all. With replicas (Li et
al. 2020) each process holds the whole model. With shards (Zhao et al. 2023) it holds a part of
every tensor, and blocks are gathered when they are needed. Files on disk are whole either way, so a
training may resume with another number of processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hallmark.model.architecture import Transformer
from hallmark.model.batch import Batch
from hallmark.model.config import ParallelMode
from hallmark.model.training.hardware import compile_with_cpp_wrapper_on_cpu
from hallmark.model.training.job import PEER_ENDED_EXIT_CODE

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule


def is_under_torchrun() -> bool:
    """Whether torchrun started this process, as one of several or the only one."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def launch_with_torchrun(
    process_count: int,
    module: str,
    arguments: Sequence[str],
    host_options: Sequence[str] = ("--standalone",),
) -> int:
    """Start ``python -m module arguments`` in ``process_count`` processes on this machine.

    SIGTERM is passed on, and torchrun gives the processes 30 seconds to save and exit.

    Args:
        process_count: Number of processes.
        module: The module.
        arguments: Its arguments.
        host_options: Options of torchrun that say which hosts train together; by default this one
            alone.

    Returns:
        The exit code of the first failed process, or 0; 128 + the signal's number if a signal ended
        it. A process that only stopped because another one had ended counts last.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    core_count = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    )
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (core_count or 1) // process_count)))
    try:
        main([*host_options, f"--nproc-per-node={process_count}", "-m", module, *arguments])
    except SignalException as error:
        return 128 + int(error.sigval)
    except ChildFailedError as error:
        first_failure = min(
            error.failures.values(),
            key=lambda failure: (failure.exitcode == PEER_ENDED_EXIT_CODE, failure.timestamp),
        )
        exit_code = int(first_failure.exitcode)
        return exit_code if exit_code >= 0 else 128 - exit_code
    return 0


class DistributedWorld:
    """The processes that train together, seen by one of them; one process has no overhead."""

    def __init__(self) -> None:
        environment = os.environ if is_under_torchrun() else {}
        self.rank = int(environment.get("RANK", 0))
        self.local_rank = int(environment.get("LOCAL_RANK", 0))
        self.size = int(environment.get("WORLD_SIZE", 1))

    @property
    def is_first(self) -> bool:
        """Whether this process writes and reports for all."""
        return self.rank == 0

    def connect(self, device: torch.device) -> None:
        """Wait for all processes and connect them."""
        if self.size > 1:
            dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")

    def shard_model_and_wrap_loss(
        self,
        model: Transformer,
        parallel_mode: ParallelMode,
        is_compiled: bool,
        z_loss: float,
        has_few_shapes: bool,
    ) -> nn.Module:
        """Return a module whose forward is the loss of a batch.

        With ``parallel_mode`` "fsdp" the model itself is sharded, in place.

        With ``has_few_shapes`` it is compiled for each shape of a batch, else for variable lengths.
        The model itself is not compiled, because validation uses other batches.
        """
        if self.size > 1 and parallel_mode == "fsdp":
            # Imported here, because the import takes a second.
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh(model.embedding.weight.device.type, (self.size,))
            for stack in (model.encoder, model.decoder):
                for block in () if stack is None else stack.blocks:
                    fully_shard(block, mesh=mesh)
            # Parameters outside the blocks stay gathered after the model's forward pass: the loss
            # reads the output layer, which may be the embedding.
            fully_shard(model, mesh=mesh, reshard_after_forward=False)
        loss: nn.Module = BatchLossModule(model, z_loss)
        if is_compiled:
            if not has_few_shapes:  # the loop over chunks would specialise the graph to a length
                model.cross_entropy = torch.compiler.disable(model.cross_entropy)
            device = model.embedding.weight.device
            loss = compile_with_cpp_wrapper_on_cpu(
                loss, device, dynamic=False if has_few_shapes else None
            )
        if self.size > 1 and parallel_mode == "ddp":
            loss = nn.parallel.DistributedDataParallel(loss)
        return loss

    def sum_on_cpu(self, values: Tensor) -> Tensor:
        """Sum over all processes, on the CPU."""
        values = values.detach().cpu()
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def sum_on_device(self, values: Tensor) -> Tensor:
        """Sum over all processes on the values' device, without waiting for a GPU."""
        if self.size > 1:
            values = values.detach().clone()
            dist.all_reduce(values)
        return values

    def unshard_to_first_process(self, tensor: Tensor) -> Tensor | None:
        """Copy a tensor to the first process's host memory, put together if it is sharded.

        All processes must call it; the others get None.
        """
        if self.size > 1 and (shard := _get_local_shard(tensor)) is not None:
            # The last processes may have fewer rows, or none.
            rows_per_process = -(-len(tensor) // self.size)
            padded_shard = shard.new_zeros((rows_per_process, *shard.shape[1:]))
            padded_shard[: len(shard)] = shard
            pieces = None
            if self.is_first:
                pieces = [torch.empty_like(padded_shard) for _ in range(self.size)]
            dist.gather(padded_shard, pieces)
            return torch.cat(pieces)[: len(tensor)].cpu() if pieces else None
        return tensor.detach().to("cpu", copy=True).contiguous() if self.is_first else None

    def gather_from_all(self, values: Tensor) -> list[Tensor]:
        """Return the CPU tensors of all processes, by rank."""
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
    """A model's loss as the forward of a module, which DDP and torch.compile can wrap."""

    def __init__(self, model: Transformer, z_loss: float) -> None:
        super().__init__()
        self.model, self.z_loss = model, z_loss

    def forward(self, batch: Batch) -> Tensor:
        return self.model.compute_loss_sum(batch, self.z_loss)


def defer_gradient_sync(
    loss: nn.Module, model: nn.Module, is_last: bool
) -> AbstractContextManager[Any]:
    """Do not sum gradients over processes in backward passes, unless ``is_last`` of the step."""
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
    """Return this process's rows of a sharded tensor; None if it is not sharded."""
    from torch.distributed.tensor import DTensor, Shard

    if not isinstance(tensor, DTensor):
        return None
    assert tuple(tensor.placements) == (Shard(0),), "fully_shard shards by rows"
    return tensor.to_local().detach()


def gather_full_tensor(tensor: Tensor) -> Tensor:
    """Gather a tensor from its shards; all processes must call it."""
    if dist.is_initialized():
        from torch.distributed.tensor import DTensor

        if isinstance(tensor, DTensor):
            return tensor.full_tensor()
    return tensor


def shard_like(tensor: Tensor, reference: Tensor) -> Tensor:
    """Shard a whole tensor like ``reference``; all processes must call it."""
    if dist.is_initialized():
        from torch.distributed.tensor import DTensor, distribute_tensor

        if isinstance(reference, DTensor):
            return distribute_tensor(
                tensor.to(reference.device), reference.device_mesh, reference.placements
            )
    return tensor
