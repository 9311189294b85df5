"""The exact state of a training run: going on from it gives the same bits as never stopping.

Kept are the weights, the optimizers' tensors, the step (the data position is a function of it),
what the guard against spikes has seen, and the generators training draws from: torch's on the CPU
and, where it trains on one, on the GPU, of each process. Tensors are whole, also where processes
hold shards of them. A state also says under which settings its steps ran (``history``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from model.interchange.files import atomic_folder, save_tensors
from model.training.optimise import SpikeGuard
from model.training.parallel import World, shard_as
from model.training.work import FORMAT, STATES, DamagedState, Header, read_header, step_name

Optimizers = list[torch.optim.Optimizer]
WEIGHTS = "model."


@dataclass(frozen=True)
class Snapshot:
    """A state in host memory, whole, which nothing that is trained on changes."""

    header: Header
    tensors: dict[str, Tensor]

    @property
    def step(self) -> int:
        return int(self.header["step"])

    @property
    def weights(self) -> dict[str, Tensor]:
        """The model's, by their names; of tied ones the embedding."""
        of_model = {n: t for n, t in self.tensors.items() if n.startswith(WEIGHTS)}
        return {name.removeprefix(WEIGHTS): tensor for name, tensor in of_model.items()}

    def write(self, work: Path) -> None:
        """Put it into a work folder. This is a checkpoint's commit point."""
        target = work / STATES / step_name(self.step)
        if target.exists():
            return
        with atomic_folder(target) as temporary:
            save_tensors(self.tensors, temporary / "state.safetensors")
            header = json.dumps(self.header, indent=2)
            (temporary / "state.json").write_text(header, encoding="utf-8")


def snapshot(
    header: Header, model: nn.Module, optimizers: Optimizers, guard: SpikeGuard, world: World
) -> Snapshot | None:
    """The state of a training; ``header`` has its step, identity, config and history.

    All processes call it; the first gets it, the others None.
    """
    tensors: dict[str, Tensor] = {}
    for name, tensor in [*_weights(model), *_optimizer_tensors(optimizers), *_generators(world)]:
        copy = world.to_first(tensor)
        if copy is not None:
            tensors[name] = copy
    if not world.first:
        return None
    more = {"format": FORMAT, "guard": asdict(guard), "tensors": _shapes(tensors)}
    return Snapshot(header | more, tensors)


def _weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters():
        yield f"{WEIGHTS}{name}", parameter


def _optimizer_tensors(optimizers: Optimizers) -> Iterator[tuple[str, Tensor]]:
    for i, optimizer in enumerate(optimizers):
        for index, entries in optimizer.state_dict()["state"].items():
            for key, value in entries.items():
                yield f"optimizer.{i}.{index}.{key}", value


def _generators(world: World) -> Iterator[tuple[str, Tensor]]:
    for rank, state in enumerate(world.stack(torch.get_rng_state())):
        yield f"rng.{rank}.cpu", state
    if torch.cuda.is_initialized():
        for rank, state in enumerate(world.stack(torch.cuda.get_rng_state())):
            yield f"rng.{rank}.cuda", state


def _shapes(tensors: dict[str, Tensor]) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in tensors.items()}


def load_state(
    work: Path, step: int, model: nn.Module, optimizers: Optimizers, world: World
) -> tuple[SpikeGuard, Header]:
    """Restore everything that ``snapshot`` took; DamagedState where that cannot be.

    All processes call it. Returns the guard against spikes as it was, and the header.
    """
    header = read_header(work, step)
    source = work / STATES / step_name(step)
    try:
        tensors, kept = load_file(source / "state.safetensors"), header["guard"]
        if _shapes(tensors) != header["tensors"]:
            raise ValueError("its tensors are not those that were written")
        guard = SpikeGuard(float(kept["mean"]), int(kept["taken"]), int(kept["skipped"]))
        _restore(tensors, model, optimizers, world)
        return guard, header
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError,
            SafetensorError) as error:  # fmt: skip
        raise DamagedState(source, error) from error


def _restore(
    tensors: dict[str, Tensor],
    model: nn.Module,
    optimizers: Optimizers,
    world: World,
) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(shard_as(tensors[f"{WEIGHTS}{name}"], parameter))
    for i, optimizer in enumerate(optimizers):
        state = _optimizer_state(tensors, i, optimizer)
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
    if f"rng.{world.rank}.cpu" in tensors:  # else it goes on with more processes than it had
        torch.set_rng_state(tensors[f"rng.{world.rank}.cpu"])
    if f"rng.{world.rank}.cuda" in tensors and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(tensors[f"rng.{world.rank}.cuda"])


def _optimizer_state(
    tensors: dict[str, Tensor], number: int, optimizer: torch.optim.Optimizer
) -> dict[int, dict[str, Tensor]]:
    """The state of one optimizer by the index of its parameter, each tensor cut as that one is."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith(f"optimizer.{number}."):
            index, key = name.split(".")[2:]
            parameter = parameters[int(index)]
            cut = shard_as(tensor, parameter) if tensor.shape == parameter.shape else tensor
            state.setdefault(int(index), {})[key] = cut
    return state
