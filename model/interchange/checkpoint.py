"""Checkpoints: model.safetensors, config.json and tokenizer.json in one folder. No pickle."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from model.architecture import Transformer
from model.config import OBJECTIVES, Architecture, ModelConfig, Objective, from_dict, to_dict
from model.interchange.files import atomic_folder, save_tensors
from model.interchange.unset import unset

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MODEL_TYPE = "hallmark"
FORMAT = 1
#: Architectures of several objectives: what to add to a checkpoint that names none.
UNSAID = {
    "decoder": ("causal", "prefix", "a prefix LM"),
    "encoder_decoder": ("span_corruption", "seq2seq", "one that was trained on pairs"),
}
WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"


class CheckpointError(ValueError):
    """A folder is not a checkpoint that can be loaded; the message says which and why."""


def save(
    model: Transformer,
    folder: str | Path,
    *,
    tokenizer: str | Path,
    weights: dict[str, Tensor] | None = None,
) -> None:
    """Write a checkpoint; the folder appears whole, synced to disk, or not at all.

    It says what the model was trained for, ``model.objective`` and ``model.pairs``: they decide how
    a prompt is read. ``tokenizer`` is the path of a tokenizer.json, copied byte for byte.
    Of its step nothing is said: all checkpoints of one training have the same config.json and
    tokenizer.json. ``weights`` are the whole tensors of a model that is cut into shards, or that
    goes on being trained; default its own.
    """
    weights = model.state_dict() if weights is None else weights
    weights = {name: tensor.contiguous() for name, tensor in weights.items()}
    if model.config.tie_embeddings:
        weights.pop("head.weight", None)
    config = {
        "model_type": MODEL_TYPE,
        "format": FORMAT,
        "objective": model.objective,
        "pairs": model.pairs,
        "model": to_dict(model.config),
    }
    with atomic_folder(Path(folder)) as temporary:
        save_tensors(weights, temporary / WEIGHTS)
        (temporary / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        shutil.copyfile(tokenizer, temporary / TOKENIZER)


def read_config(folder: str | Path) -> ModelConfig:
    """The config of a checkpoint, without reading its weights. Raises CheckpointError."""
    path, values = _read(folder)
    model = values.get("model", {})
    if isinstance(model, dict) and model.get("positions") == "sinusoidal":
        model.setdefault("scale_embeddings", False)  # older ones were trained without
    try:
        return from_dict(ModelConfig, model)
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be used: {error}") from error


def read_objective(folder: str | Path, architecture: Architecture) -> Objective | None:
    """What a checkpoint says that its model was trained for. Raises CheckpointError where it names
    none of the architecture's, and where it names none of several: one cannot see whether a decoder
    reads a prompt in one direction or in both, and what an encoder-decoder makes of a source."""
    path, values = _read(folder)
    found = values.get("objective")
    if found is None and values.get("pairs") is True:
        found = {"decoder": "prefix", "encoder_decoder": "seq2seq"}.get(architecture)
    known = [name for name, trained in OBJECTIVES.items() if trained == architecture]
    if found is None and architecture in UNSAID:
        first, other, kind = UNSAID[architecture]
        raise CheckpointError(
            f"{path} does not say what the model was trained for, as older checkpoints do not: add "
            f'"objective": "{first}" to it, or "objective": "{other}" for {kind}.'
        )
    if found is not None and found not in known:
        raise CheckpointError(
            f"{path} has the objective {found!r}; of this architecture there is {', '.join(known)}."
        )
    return found  # type: ignore[no-any-return]


def read_pairs(folder: str | Path) -> bool:
    """Whether a checkpoint's model was trained on pairs: it answers sources with targets. The
    objective seq2seq says so, too, and older ones by it alone. Raises CheckpointError."""
    path, values = _read(folder)
    found = values.get("pairs", False)
    if not isinstance(found, bool):
        raise CheckpointError(f"{path}: pairs must be true or false, not {found!r}.")
    return found or values.get("objective") == "seq2seq"


def _read(folder: str | Path) -> tuple[Path, dict[str, Any]]:
    path = _require(Path(folder), CONFIG)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(values, dict) or values.get("model_type") != MODEL_TYPE:
        found = values.get("model_type") if isinstance(values, dict) else None
        raise CheckpointError(
            f"{path} describes a model of type {found!r}, not {MODEL_TYPE!r}: "
            "load it with transformers."
        )
    if values.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} has format {values.get('format')!r}, this version reads {FORMAT}."
        )
    return path, values


def weights_path(folder: str | Path) -> Path:
    """The file of a checkpoint's weights. Raises CheckpointError where there is none."""
    return _require(Path(folder), WEIGHTS)


def load(
    folder: str | Path, device: str | torch.device = "cpu", *, objective: Objective | None = None
) -> Transformer:
    """The model of a checkpoint, in evaluation mode. Raises CheckpointError, one sentence.

    ``objective``: what it is to be trained for from now on, instead of what the checkpoint says.
    """
    folder = Path(folder)
    config = read_config(folder)
    check_tokenizer(_require(folder, TOKENIZER), config.vocab_size)
    path = _require(folder, WEIGHTS)
    expected = shapes(unset(config).state_dict())
    if config.tie_embeddings:
        del expected["head.weight"]
    try:
        with safe_open(path, framework="pt") as file:
            found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            compare(path, expected, found)
            weights = {name: file.get_tensor(name) for name in found}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is truncated or not a safetensors file: {error}.") from error
    check_floats(path, weights)
    model = unset(config, device)
    if config.tie_embeddings:
        weights["head.weight"] = weights["embedding.weight"]
    model.load_state_dict(weights)
    model.objective = objective or read_objective(folder, config.architecture)
    model.pairs = read_pairs(folder)
    return model.eval()


def blank(folder: str | Path, device: str | torch.device = "cpu", *, seed: int) -> Transformer:
    """The model of a checkpoint before any training: its config, and weights drawn from a seed. The
    checkpoint's own weights are not looked at. Raises CheckpointError, one sentence."""
    config = read_config(folder)
    check_tokenizer(_require(Path(folder), TOKENIZER), config.vocab_size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Transformer(config)
    model.objective = read_objective(folder, config.architecture)
    model.pairs = read_pairs(folder)
    return model.to(device).eval()


def check_tokenizer(path: Path, vocab_size: int) -> Tokenizer:
    """The tokenizer at ``path``; CheckpointError unless it has exactly ``vocab_size`` tokens."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{path} is not a tokenizer: {error}.") from error
    found = tokenizer.get_vocab_size(with_added_tokens=True)
    if found != vocab_size:
        raise CheckpointError(
            f"{path} has {found} tokens, the model's vocab_size is {vocab_size}: "
            "they must be equal; what pads the model's tables is vocab_multiple."
        )
    return tokenizer


def _require(folder: Path, name: str) -> Path:
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder: give the path of a checkpoint.")
    path = folder / name
    if not path.is_file():
        raise CheckpointError(f"{folder} has no {name}: it is not a whole checkpoint.")
    return path


def shapes(tensors: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def check_floats(path: Path, tensors: dict[str, Tensor]) -> None:
    """CheckpointError that names a tensor of another kind."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise CheckpointError(f"{path}: {name} has type {tensor.dtype}, not a float type.")


def compare(
    path: Path, expected: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]]
) -> None:
    """CheckpointError that names the first tensor that does not fit the config."""
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise CheckpointError(
                f"{path} does not fit its config: {name} has shape {found.get(name, 'none')}, "
                f"expected {expected.get(name, 'none')}; is it of another architecture?"
            )
