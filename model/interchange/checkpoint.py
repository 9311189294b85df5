"""Save and load checkpoints: a folder with model.safetensors, config.json and tokenizer.json.

Nothing is pickled.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hallmark.model.architecture import Transformer
from hallmark.model.config import (
    ARCHITECTURE_BY_OBJECTIVE,
    Architecture,
    ModelConfig,
    Objective,
    config_from_dict,
    config_to_dict,
)
from hallmark.model.interchange.atomic_files import write_folder_atomically, write_safetensors
from hallmark.model.interchange.uninitialised import make_uninitialised_model

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MODEL_TYPE = "hallmark"
CHECKPOINT_FORMAT = 1
#: For architectures with several objectives: what to add to a checkpoint that names none.
OBJECTIVE_SUGGESTIONS = {
    "decoder": ("causal", "prefix", "is a prefix LM"),
    "encoder_decoder": ("span_corruption", "seq2seq", "was trained on pairs"),
}
WEIGHTS_FILE, CONFIG_FILE, TOKENIZER_FILE = "model.safetensors", "config.json", "tokenizer.json"


#: First bytes of the small text files that Git LFS keeps in place of large files.
LFS_POINTER_START = b"version https://git-lfs.github.com/spec/"

#: Number of characters of the message of an error.
MAX_MESSAGE_CHARACTERS = 1000


class CheckpointError(ValueError):
    """A folder cannot be loaded as a checkpoint; the message says which and why.

    A message that repeats a long value of a file is cut in the middle.
    """

    def __init__(self, message: str) -> None:
        if len(message) > MAX_MESSAGE_CHARACTERS:
            half = MAX_MESSAGE_CHARACTERS // 2
            message = f"{message[:half]} … {message[-half:]}"
        super().__init__(message)


def check_no_lfs_pointer(path: Path) -> None:
    """Raise CheckpointError if a file is a pointer of Git LFS instead of the content."""
    with path.open("rb") as file:
        start = file.read(len(LFS_POINTER_START))
    if start == LFS_POINTER_START:
        raise CheckpointError(
            f"{path} is a Git LFS pointer, not the actual file: run `git lfs pull` in its "
            "repository, or download the file again."
        )


class _ConfigFile(NamedTuple):
    """The config.json of a checkpoint.

    Attributes:
        path: path of the file.
        settings: its content, with the model's own settings under "model".
    """

    path: Path
    settings: dict[str, Any]


def save_checkpoint(
    model: Transformer,
    folder: str | Path,
    *,
    tokenizer_path: str | Path,
    weights: dict[str, Tensor] | None = None,
) -> None:
    """Write a checkpoint; the folder appears complete and synced to disk, or not at all.

    It records ``model.objective`` and ``model.is_trained_on_pairs``, which determine how a prompt
    is read. It does not record the step: all checkpoints of a training have the same config.json
    and tokenizer.json.

    Args:
        model: the model to save.
        folder: a new or empty folder.
        tokenizer_path: a tokenizer.json, copied byte for byte.
        weights: whole tensors, if the model is sharded or still being trained; default its own.
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
    """Read the config of a checkpoint, without its weights.

    Raises:
        CheckpointError: The config is missing or invalid.
    """
    path, settings = _read_config_file(folder)
    model_settings = settings.get("model", {})
    if isinstance(model_settings, dict) and model_settings.get("positions") == "sinusoidal":
        model_settings.setdefault("scale_embeddings", False)  # as in older versions
    try:
        return config_from_dict(ModelConfig, model_settings)
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be used: {error}") from error


def read_training_objective(folder: str | Path, architecture: Architecture) -> Objective | None:
    """Read the objective that a checkpoint's model was trained for; None for an old encoder.

    Raises:
        CheckpointError: The objective does not fit the architecture, or is missing although the
            architecture has several. The weights do not show whether a decoder reads a prompt in
            both directions, or what an encoder-decoder does with a source.
    """
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
        default_objective, alternative, alternative_case = OBJECTIVE_SUGGESTIONS[architecture]
        raise CheckpointError(
            f"{path} does not specify the model's training objective: add "
            f'"objective": "{default_objective}" to the file, or "objective": "{alternative}" if '
            f"the model {alternative_case}."
        )
    if objective is not None and objective not in valid_objectives:
        raise CheckpointError(
            f"{path} has the objective {objective!r}, but the {architecture} architecture "
            f"requires {' or '.join(valid_objectives)}."
        )
    return objective


def was_trained_on_pairs(folder: str | Path) -> bool:
    """Whether a checkpoint's model was trained on pairs, and so maps sources to targets.

    The objective seq2seq also implies it; older checkpoints have nothing else.

    Raises:
        CheckpointError: The config is missing or invalid.
    """
    path, settings = _read_config_file(folder)
    pairs_flag = settings.get("pairs", False)
    if not isinstance(pairs_flag, bool):
        raise CheckpointError(
            f"{path}: the 'pairs' setting must be true or false, not {pairs_flag!r}."
        )
    return pairs_flag or settings.get("objective") == "seq2seq"


def _read_config_file(folder: str | Path) -> _ConfigFile:
    path = _require_file(Path(folder), CONFIG_FILE)
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(settings, dict) or settings.get("model_type") != MODEL_TYPE:
        model_type = settings.get("model_type") if isinstance(settings, dict) else None
        raise CheckpointError(
            f"{path} describes a model of type {model_type!r}, not {MODEL_TYPE!r}: load it with "
            "the transformers library."
        )
    if settings.get("format") != CHECKPOINT_FORMAT:
        raise CheckpointError(
            f"{path} has format {settings.get('format')!r}, but this version of Hallmark can read "
            f"only format {CHECKPOINT_FORMAT}."
        )
    return _ConfigFile(path, settings)


def find_weights_file(folder: str | Path) -> Path:
    """Return the path of a checkpoint's weights; raise CheckpointError if it does not exist."""
    return _require_file(Path(folder), WEIGHTS_FILE)


def load_checkpoint(
    folder: str | Path, device: str | torch.device = "cpu", *, objective: Objective | None = None
) -> Transformer:
    """Load the model of a checkpoint, in evaluation mode.

    Args:
        folder: the checkpoint.
        device: where to load the model.
        objective: objective of the following training, instead of the checkpoint's own.

    Raises:
        CheckpointError: The checkpoint cannot be loaded; the message is one sentence.
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
        reason = str(error).encode("unicode_escape").decode()  # it may repeat a part of the file
        raise CheckpointError(
            f"{path} is truncated or not a safetensors file: {reason[:300]}."
        ) from error
    check_all_float(path, weights)
    model = make_uninitialised_model(config, device)
    if config.tie_embeddings:
        weights["head.weight"] = weights["embedding.weight"]
    model.load_state_dict(weights)
    model.objective = objective or read_training_objective(folder, config.architecture)
    model.is_trained_on_pairs = was_trained_on_pairs(folder)
    return model.eval()


def load_untrained(
    folder: str | Path,
    device: str | torch.device = "cpu",
    *,
    seed: int,
    config: ModelConfig | None = None,
) -> Transformer:
    """Build the untrained model of a checkpoint: its config, and weights drawn by ``seed``.

    The checkpoint's weights are not read. Another ``config`` may give the model other sizes.

    Raises:
        CheckpointError: The config or the tokenizer cannot be used.
    """
    config = config or read_model_config(folder)
    load_matching_tokenizer(_require_file(Path(folder), TOKENIZER_FILE), config.vocab_size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Transformer(config)
    model.objective = read_training_objective(folder, config.architecture)
    model.is_trained_on_pairs = was_trained_on_pairs(folder)
    return model.to(device).eval()


def load_matching_tokenizer(tokenizer_file: Path, vocab_size: int) -> Tokenizer:
    """Load the tokenizer of a file; CheckpointError unless it has ``vocab_size`` tokens."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(tokenizer_file))
    except Exception as error:  # the library raises bare Exception
        message = " ".join(str(error).split())  # it quotes tokens, which may contain line breaks
        raise CheckpointError(f"{tokenizer_file} is not a tokenizer: {message}.") from error
    token_count = tokenizer.get_vocab_size(with_added_tokens=True)
    if token_count != vocab_size:
        raise CheckpointError(
            f"The tokenizer {tokenizer_file} has {token_count} tokens, but the model's "
            f"vocab_size is {vocab_size}. The two numbers must be equal. To pad the model's "
            "tables, set vocab_multiple."
        )
    return tokenizer


def _require_file(folder: Path, file_name: str) -> Path:
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder: specify the folder of a checkpoint.")
    path = folder / file_name
    if not path.is_file():
        raise CheckpointError(f"{folder} has no {file_name}: the checkpoint is incomplete.")
    check_no_lfs_pointer(path)
    return path


def get_tensor_shapes(tensors: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def check_all_float(path: Path, tensors: dict[str, Tensor]) -> None:
    """Raise CheckpointError if a tensor does not have a float type."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise CheckpointError(
                f"{path}: the tensor {name} has type {tensor.dtype}, but weights must be "
                "floating-point numbers."
            )


def check_shapes_match(
    path: Path, expected: dict[str, tuple[int, ...]], actual: dict[str, tuple[int, ...]]
) -> None:
    """Raise CheckpointError for the first tensor whose shape does not fit the config."""
    for name in sorted(expected.keys() | actual.keys()):
        if expected.get(name) != actual.get(name):
            in_file = f"has shape {actual[name]}" if name in actual else "is missing"
            required = (
                f"requires shape {expected[name]}" if name in expected else "has no such tensor"
            )
            raise CheckpointError(
                f"{path} does not match its config.json: the tensor {name} {in_file} in the file, "
                f"but the config {required}. Is the config from another model?"
            )
