"""Save and restore the exact state of a training, so that resuming gives the same bits.

A state has the weights, the optimizers' tensors, the step (which determines the position in the
data), the spike guard, and each process's random generators: torch's on the CPU and, if it trains
on a GPU, there. Tensors are stored whole even if processes hold shards of them. The header records
the settings of all steps so far (``history``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from hallmark.model.interchange.atomic_files import write_folder_atomically, write_safetensors
from hallmark.model.training.optimizers import SpikeGuard
from hallmark.model.training.parallel import DistributedWorld, shard_like
from hallmark.model.training.work_folder import (
    STATE_FORMAT,
    STATES_FOLDER,
    DamagedStateError,
    StateHeader,
    format_step_name,
    read_state_header,
)

Optimizers = list[torch.optim.Optimizer]
WEIGHT_PREFIX = "model."


@dataclass(frozen=True)
class TrainingSnapshot:
    """A complete state in host memory, which later steps do not change."""

    header: StateHeader
    tensors: dict[str, Tensor]

    @property
    def step(self) -> int:
        return int(self.header["step"])

    @property
    def model_weights(self) -> dict[str, Tensor]:
        """The model's weights by name; tied weights appear once, as the embedding."""
        prefixed_weights = {
            name: tensor for name, tensor in self.tensors.items() if name.startswith(WEIGHT_PREFIX)
        }
        return {
            name.removeprefix(WEIGHT_PREFIX): tensor for name, tensor in prefixed_weights.items()
        }

    def write_state(self, work_folder: Path) -> None:
        """Write the state to a work folder, unless it exists; this commits the checkpoint."""
        target = work_folder / STATES_FOLDER / format_step_name(self.step)
        if target.exists():
            return
        with write_folder_atomically(target) as temporary:
            write_safetensors(self.tensors, temporary / "state.safetensors")
            header = json.dumps(self.header, indent=2)
            (temporary / "state.json").write_text(header, encoding="utf-8")


def take_snapshot(
    header: StateHeader,
    model: nn.Module,
    optimizers: Optimizers,
    guard: SpikeGuard,
    world: DistributedWorld,
) -> TrainingSnapshot | None:
    """Copy the state of a training; ``header`` has its step, identity, config and history.

    All processes must call it. The first gets the snapshot, the others None.
    """
    tensors: dict[str, Tensor] = {}
    for name, tensor in [
        *_iter_named_weights(model),
        *_iter_named_optimizer_tensors(optimizers),
        *_iter_named_generator_states(world),
    ]:
        copy = world.unshard_to_first_process(tensor)
        if copy is not None:
            tensors[name] = copy
    if not world.is_first:
        return None
    extra_fields = {
        "format": STATE_FORMAT,
        "guard": asdict(guard),
        "tensors": _get_tensor_shapes(tensors),
    }
    return TrainingSnapshot(header | extra_fields, tensors)


def _iter_named_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters():
        yield f"{WEIGHT_PREFIX}{name}", parameter


def _iter_named_optimizer_tensors(optimizers: Optimizers) -> Iterator[tuple[str, Tensor]]:
    for i, optimizer in enumerate(optimizers):
        for index, entries in optimizer.state_dict()["state"].items():
            for key, value in entries.items():
                yield f"optimizer.{i}.{index}.{key}", value


def _iter_named_generator_states(world: DistributedWorld) -> Iterator[tuple[str, Tensor]]:
    for rank, rng_state in enumerate(world.gather_from_all(torch.get_rng_state())):
        yield f"rng.{rank}.cpu", rng_state
    if torch.cuda.is_initialized():
        for rank, rng_state in enumerate(world.gather_from_all(torch.cuda.get_rng_state())):
            yield f"rng.{rank}.cuda", rng_state


def _get_tensor_shapes(tensors: dict[str, Tensor]) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in tensors.items()}


class RestoredState(NamedTuple):
    """The parts of a state that are not restored in place.

    Attributes:
        spike_guard: guard with the running mean of the gradient norm.
        header: header of the state.
    """

    spike_guard: SpikeGuard
    header: StateHeader


def restore_training_state(
    work_folder: Path, step: int, model: nn.Module, optimizers: Optimizers, world: DistributedWorld
) -> RestoredState:
    """Restore model, optimizers and random generators in place, and return the rest of the state.

    All processes must call it.

    Raises:
        DamagedStateError: The state cannot be restored.
        OtherTrainingError: Another version of this program wrote the state.
    """
    header = read_state_header(work_folder, step)
    state_folder = work_folder / STATES_FOLDER / format_step_name(step)
    try:
        tensors, guard_fields = load_file(state_folder / "state.safetensors"), header["guard"]
        if _get_tensor_shapes(tensors) != header["tensors"]:
            raise ValueError("the tensors in the state differ from those listed in its header")
        guard = SpikeGuard(
            float(guard_fields["mean_norm"]),
            int(guard_fields["normal_steps"]),
            int(guard_fields["divergent_steps"]),
        )
        _restore_tensors(tensors, model, optimizers, world)
        return RestoredState(guard, header)
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RuntimeError,
        SafetensorError,
    ) as error:
        raise DamagedStateError(state_folder, error) from error


def _restore_tensors(
    tensors: dict[str, Tensor],
    model: nn.Module,
    optimizers: Optimizers,
    world: DistributedWorld,
) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(shard_like(tensors[f"{WEIGHT_PREFIX}{name}"], parameter))
    for i, optimizer in enumerate(optimizers):
        optimizer_state = _extract_optimizer_state_by_parameter(tensors, i, optimizer)
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": optimizer_state, "param_groups": groups})
    if f"rng.{world.rank}.cpu" in tensors:  # absent if there are now more processes
        torch.set_rng_state(tensors[f"rng.{world.rank}.cpu"])
    if f"rng.{world.rank}.cuda" in tensors and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(tensors[f"rng.{world.rank}.cuda"])


def _extract_optimizer_state_by_parameter(
    tensors: dict[str, Tensor], optimizer_index: int, optimizer: torch.optim.Optimizer
) -> dict[int, dict[str, Tensor]]:
    """Return one optimizer's state by parameter index, each tensor sharded like its parameter."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    tensors_by_parameter: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith(f"optimizer.{optimizer_index}."):
            index, key = name.split(".")[2:]
            parameter = parameters[int(index)]
            sharded_tensor = (
                shard_like(tensor, parameter) if tensor.shape == parameter.shape else tensor
            )
            tensors_by_parameter.setdefault(int(index), {})[key] = sharded_tensor
    return tensors_by_parameter
