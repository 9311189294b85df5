"""The exact state of a training run: going on from it gives the same bits as never stopping.

Kept are the weights, the optimizers' tensors, the step (the data position is a function of it),
what the guard against spikes has seen, and the generators training draws from: torch's on the CPU
and on each CUDA device.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from model.files import remove_unfinished, whole_folder

FORMAT = 2


def step_name(step: int) -> str:
    return f"step-{step:08d}"


def save_state(
    folder: Path,
    step: int,
    identity: dict[str, Any],
    model: nn.Module,
    optimizers: list[torch.optim.Optimizer],
    guard: dict[str, Any],
) -> None:
    """Write the state of ``step``, then remove older ones. This is a checkpoint's commit point."""
    tensors: dict[str, Tensor] = {f"model.{name}": p for name, p in model.named_parameters()}
    for i, optimizer in enumerate(optimizers):
        for index, entries in optimizer.state_dict()["state"].items():
            for key, value in entries.items():
                tensors[f"optimizer.{i}.{index}.{key}"] = value
    tensors["rng.cpu"] = torch.get_rng_state()
    for i in range(torch.cuda.device_count()):
        tensors[f"rng.cuda.{i}"] = torch.cuda.get_rng_state(i)
    target = folder / step_name(step)
    if not target.exists():
        with whole_folder(target) as temporary:
            contiguous = {name: t.detach().contiguous() for name, t in tensors.items()}
            save_file(contiguous, temporary / "state.safetensors")
            header = {"format": FORMAT, "step": step, "identity": identity, "guard": guard}
            (temporary / "state.json").write_text(json.dumps(header, indent=2), encoding="utf-8")
    for old in folder.iterdir():
        if old != target:
            shutil.rmtree(old)


def find_state(folder: Path) -> int | None:
    """The step of the newest whole state, or None."""
    remove_unfinished(folder)
    steps = [int(path.name.removeprefix("step-")) for path in folder.glob("step-*")]
    return max(steps, default=None)


def load_state(
    folder: Path,
    step: int,
    identity: dict[str, Any],
    model: nn.Module,
    optimizers: list[torch.optim.Optimizer],
) -> dict[str, Any]:
    """Restore everything ``save_state`` kept; ValueError when it belongs to another run.

    Returns what it kept of the SpikeGuard.
    """
    source = folder / step_name(step)
    try:
        header = json.loads((source / "state.json").read_text(encoding="utf-8"))
        tensors = load_file(source / "state.safetensors")
    except (OSError, json.JSONDecodeError, SafetensorError) as error:
        raise ValueError(
            f"The training state {source} cannot be read ({error}): remove the work folder."
        ) from error
    found = header.get("identity", {})
    for key in identity:
        if header.get("format") != FORMAT or found.get(key) != identity[key]:
            raise ValueError(
                f"The work folder {folder.parent} belongs to a training with other {key} settings: "
                "use another work folder, or remove this one."
            )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[f"model.{name}"])
    for i, optimizer in enumerate(optimizers):
        optimizer.load_state_dict(
            {
                "state": _optimizer_state(tensors, f"optimizer.{i}."),
                "param_groups": optimizer.state_dict()["param_groups"],
            }
        )
    torch.set_rng_state(tensors["rng.cpu"])
    for i in range(torch.cuda.device_count()):
        if f"rng.cuda.{i}" in tensors:
            torch.cuda.set_rng_state(tensors[f"rng.cuda.{i}"], i)
    guard: dict[str, Any] = header["guard"]
    return guard


def _optimizer_state(tensors: dict[str, Tensor], prefix: str) -> dict[int, dict[str, Tensor]]:
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith(prefix):
            index, key = name.removeprefix(prefix).split(".", 1)
            state.setdefault(int(index), {})[key] = tensor
    return state
