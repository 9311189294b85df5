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
from model.config import (
    ARCHITECTURE_BY_OBJECTIVE,
    Architecture,
    ModelConfig,
    Objective,
    config_from_dict,
    config_to_dict,
)
from model.interchange.atomic_files import write_folder_atomically, write_safetensors
from model.interchange.uninitialised import make_uninitialised_model

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MODEL_TYPE = "hallmark"
CHECKPOINT_FORMAT = 1
#: Architectures of several objectives: what to add to a checkpoint that names none.
OBJECTIVE_SUGGESTIONS = {
    "decoder": ("causal", "prefix", "a prefix LM"),
    "encoder_decoder": ("span_corruption", "seq2seq", "one that was trained on pairs"),
}
WEIGHTS_FILE, CONFIG_FILE, TOKENIZER_FILE = "model.safetensors", "config.json", "tokenizer.json"


class CheckpointError(ValueError):
    """A folder is not a checkpoint that can be loaded; the message says which and why."""


def save_checkpoint(
    model: Transformer,
    folder: str | Path,
    *,
    tokenizer_path: str | Path,
    weights: dict[str, Tensor] | None = None,
) -> None:
    """Write a checkpoint; the folder appears whole, synced to disk, or not at all.

    It says what the model was trained for, ``model.objective`` and ``model.is_trained_on_pairs``:
    they decide how a prompt is read. ``tokenizer_path`` is a tokenizer.json, copied byte for byte.
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
        "format": CHECKPOINT_FORMAT,
        "objective": model.objective,
        "pairs": model.is_trained_on_pairs,
        "model": config_to_dict(model.config),
    }
    with write_folder_atomically(Path(folder)) as temporary:
        write_safetensors(weights, temporary / WEIGHTS_FILE)
        (temporary / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        shutil.copyfile(tokenizer_path, temporary / TOKENIZER_FILE)


def read_model_config(folder: str | Path) -> ModelConfig:
    """The config of a checkpoint, without reading its weights. Raises CheckpointError."""
    path, settings = _read_config_file(folder)
    model_settings = settings.get("model", {})
    if isinstance(model_settings, dict) and model_settings.get("positions") == "sinusoidal":
        model_settings.setdefault("scale_embeddings", False)  # older ones were trained without
    try:
        return config_from_dict(ModelConfig, model_settings)
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be used: {error}") from error


def read_training_objective(folder: str | Path, architecture: Architecture) -> Objective | None:
    """What a checkpoint says that its model was trained for. Raises CheckpointError where it names
    none of the architecture's, and where it names none of several: one cannot see whether a decoder
    reads a prompt in one direction or in both, and what an encoder-decoder makes of a source."""
    path, settings = _read_config_file(folder)
    objective = settings.get("objective")
    if objective is None and settings.get("pairs") is True:
        objective = {"decoder": "prefix", "encoder_decoder": "seq2seq"}.get(architecture)
    valid_objectives = [
        name
        for name, trained_architecture in ARCHITECTURE_BY_OBJECTIVE.items()
        if trained_architecture == architecture
    ]
    if objective is None and architecture in OBJECTIVE_SUGGESTIONS:
        default_objective, alternative, alternative_name = OBJECTIVE_SUGGESTIONS[architecture]
        raise CheckpointError(
            f"{path} does not say what the model was trained for, as older checkpoints do not: add "
            f'"objective": "{default_objective}" to it, or "objective": "{alternative}" for '
            f"{alternative_name}."
        )
    if objective is not None and objective not in valid_objectives:
        raise CheckpointError(
            f"{path} has the objective {objective!r}; of this architecture there is "
            f"{', '.join(valid_objectives)}."
        )
    return objective  # type: ignore[no-any-return]


def was_trained_on_pairs(folder: str | Path) -> bool:
    """Whether a checkpoint's model was trained on pairs: it answers sources with targets. The
    objective seq2seq says so, too, and older ones by it alone. Raises CheckpointError."""
    path, settings = _read_config_file(folder)
    pairs_flag = settings.get("pairs", False)
    if not isinstance(pairs_flag, bool):
        raise CheckpointError(f"{path}: pairs must be true or false, not {pairs_flag!r}.")
    return pairs_flag or settings.get("objective") == "seq2seq"


def _read_config_file(folder: str | Path) -> tuple[Path, dict[str, Any]]:
    path = _require_file(Path(folder), CONFIG_FILE)
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(settings, dict) or settings.get("model_type") != MODEL_TYPE:
        model_type = settings.get("model_type") if isinstance(settings, dict) else None
        raise CheckpointError(
            f"{path} describes a model of type {model_type!r}, not {MODEL_TYPE!r}: "
            "load it with transformers."
        )
    if settings.get("format") != CHECKPOINT_FORMAT:
        raise CheckpointError(
            f"{path} has format {settings.get('format')!r}, this version reads {CHECKPOINT_FORMAT}."
        )
    return path, settings


def find_weights_file(folder: str | Path) -> Path:
    """The file of a checkpoint's weights. Raises CheckpointError where there is none."""
    return _require_file(Path(folder), WEIGHTS_FILE)


def load_checkpoint(
    folder: str | Path, device: str | torch.device = "cpu", *, objective: Objective | None = None
) -> Transformer:
    """The model of a checkpoint, in evaluation mode. Raises CheckpointError, one sentence.

    ``objective``: what it is to be trained for from now on, instead of what the checkpoint says.
    """
    folder = Path(folder)
    config = read_model_config(folder)
    load_matching_tokenizer(_require_file(folder, TOKENIZER_FILE), config.vocab_size)
    path = _require_file(folder, WEIGHTS_FILE)
    expected_shapes = get_tensor_shapes(make_uninitialised_model(config).state_dict())
    if config.tie_embeddings:
        del expected_shapes["head.weight"]
    try:
        with safe_open(path, framework="pt") as file:
            actual_shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            check_shapes_match(path, expected_shapes, actual_shapes)
            weights = {name: file.get_tensor(name) for name in actual_shapes}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is truncated or not a safetensors file: {error}.") from error
    check_all_float(path, weights)
    model = make_uninitialised_model(config, device)
    if config.tie_embeddings:
        weights["head.weight"] = weights["embedding.weight"]
    model.load_state_dict(weights)
    model.objective = objective or read_training_objective(folder, config.architecture)
    model.is_trained_on_pairs = was_trained_on_pairs(folder)
    return model.eval()


def load_untrained(
    folder: str | Path, device: str | torch.device = "cpu", *, seed: int
) -> Transformer:
    """The model of a checkpoint before any training: its config, and weights drawn from a seed. The
    checkpoint's own weights are not looked at. Raises CheckpointError, one sentence."""
    config = read_model_config(folder)
    load_matching_tokenizer(_require_file(Path(folder), TOKENIZER_FILE), config.vocab_size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Transformer(config)
    model.objective = read_training_objective(folder, config.architecture)
    model.is_trained_on_pairs = was_trained_on_pairs(folder)
    return model.to(device).eval()


def load_matching_tokenizer(path: Path, vocab_size: int) -> Tokenizer:
    """The tokenizer at ``path``; CheckpointError unless it has exactly ``vocab_size`` tokens."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{path} is not a tokenizer: {error}.") from error
    token_count = tokenizer.get_vocab_size(with_added_tokens=True)
    if token_count != vocab_size:
        raise CheckpointError(
            f"{path} has {token_count} tokens, the model's vocab_size is {vocab_size}: "
            "they must be equal; what pads the model's tables is vocab_multiple."
        )
    return tokenizer


def _require_file(folder: Path, file_name: str) -> Path:
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder: give the path of a checkpoint.")
    path = folder / file_name
    if not path.is_file():
        raise CheckpointError(f"{folder} has no {file_name}: it is not a whole checkpoint.")
    return path


def get_tensor_shapes(tensors: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def check_all_float(path: Path, tensors: dict[str, Tensor]) -> None:
    """CheckpointError that names a tensor of another kind."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise CheckpointError(f"{path}: {name} has type {tensor.dtype}, not a float type.")


def check_shapes_match(
    path: Path, expected: dict[str, tuple[int, ...]], actual: dict[str, tuple[int, ...]]
) -> None:
    """CheckpointError that names the first tensor that does not fit the config."""
    for name in sorted(expected.keys() | actual.keys()):
        if expected.get(name) != actual.get(name):
            raise CheckpointError(
                f"{path} does not fit its config: {name} has shape {actual.get(name, 'none')}, "
                f"expected {expected.get(name, 'none')}; is it of another architecture?"
            )
