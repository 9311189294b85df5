"""The exact state of a training run: going on from it gives the same bits as never stopping.

Kept are the weights, the optimizers' tensors, the step (the data position is a function of it),
what the guard against spikes has seen, and the generators training draws from: torch's on the CPU
and, where it trains on one, on the GPU, of each process. Tensors are whole, also where processes
hold shards of them.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from model.interchange.files import atomic_folder, remove_unfinished, save_tensors
from model.training.optimise import SpikeGuard
from model.training.parallel import World, full_tensor, shard_as

FORMAT = 4
Optimizers = list[torch.optim.Optimizer]


def step_name(step: int) -> str:
    return f"step-{step:08d}"


def save_state(
    folder: Path,
    step: int,
    identity: dict[str, Any],
    model: nn.Module,
    optimizers: Optimizers,
    guard: SpikeGuard,
    world: World,
) -> None:
    """Write the state of ``step``, then remove older ones. This is a checkpoint's commit point.

    All processes call it; the first writes.
    """
    tensors: dict[str, Tensor] = {}
    for name, tensor in [*_weights(model), *_optimizer_tensors(optimizers), *_generators(world)]:
        gathered = full_tensor(tensor)
        if world.first:
            tensors[name] = gathered.detach().contiguous().cpu()
    if not world.first:
        return
    target = folder / step_name(step)
    if not target.exists():
        with atomic_folder(target) as temporary:
            save_tensors(tensors, temporary / "state.safetensors")
            header = {
                "format": FORMAT, "step": step, "identity": identity, "guard": asdict(guard),
                "tensors": _shapes(tensors),
            }  # fmt: skip
            (temporary / "state.json").write_text(json.dumps(header, indent=2), encoding="utf-8")
    for old in folder.iterdir():
        if old != target:
            shutil.rmtree(old)


def _weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters():
        yield f"model.{name}", parameter


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


def find_state(folder: Path) -> int | None:
    """The step of the newest whole state, or None."""
    steps = [_step_of(path) for path in folder.glob("step-*")]
    return max((step for step in steps if step is not None), default=None)


def _step_of(path: Path) -> int | None:
    """The step of what a trainer has left; None for what is not its own."""
    found = re.fullmatch(r"step-(\d{8})|part-(\d{8})\.parquet", path.name)
    return int(found[1] or found[2]) if found else None


def remove_newer(work: Path, step: int | None) -> None:
    """Remove what a killed training left half done, or made after its last state."""
    remove_unfinished(work / "state")
    for kind in ("checkpoints", "log", "validation", "samples"):
        remove_unfinished(work / kind)
        for path in (work / kind).glob("*-*"):
            made = _step_of(path)
            if made is not None and (step is None or made > step):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def load_state(
    folder: Path,
    step: int,
    identity: dict[str, Any],
    model: nn.Module,
    optimizers: Optimizers,
    world: World,
) -> SpikeGuard:
    """Restore everything ``save_state`` kept; ValueError when it belongs to another run.

    All processes call it. Returns the guard against spikes as it was.
    """
    source = folder / step_name(step)
    try:
        header = json.loads((source / "state.json").read_text(encoding="utf-8"))
        tensors = load_file(source / "state.safetensors")
        found, kept = header["identity"], header["guard"]
        for key in identity:
            if header["format"] != FORMAT or found.get(key) != identity[key]:
                raise AnotherTraining(
                    f"The work folder {folder.parent} belongs to a training with other {key} "
                    "settings: use another work folder, or remove this one."
                )
        if _shapes(tensors) != header["tensors"]:
            raise ValueError("its tensors are not those that were written")
        guard = SpikeGuard(float(kept["mean"]), int(kept["taken"]), int(kept["skipped"]))
        _restore(tensors, model, optimizers, world)
        return guard
    except AnotherTraining:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError,
            SafetensorError) as error:  # fmt: skip
        raise ValueError(
            f"The training state {source} is damaged ({error}): remove the work folder."
        ) from error


class AnotherTraining(ValueError):
    """A state is whole, and another training's."""


def _restore(
    tensors: dict[str, Tensor],
    model: nn.Module,
    optimizers: Optimizers,
    world: World,
) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(shard_as(tensors[f"model.{name}"], parameter))
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
