"""Score texts with Detoxify's transformers, from checkpoints whose SHA-256 is checked."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hallmark.tasks.contract import (
    HallmarkError,
    UsageError,
    explain_relative_path,
    format_count,
    hash_file,
    read_library_versions,
    sha256_hex,
    to_canonical_json,
)
from hallmark.tasks.measures.scorers.base import ScorerSettings, VersionByKey
from hallmark.tasks.measures.scorers.network import TransformerScorer
from hallmark.tasks.measures.toxicity_heads import TOXICITY_HEADS
from hallmark.tasks.measures.transformers_logging import silence_transformers_output

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

#: Our names of heads that checkpoints name differently.
_HEAD_BY_CLASS_NAME = {
    "toxic": "toxicity",
    "severe_toxic": "severe_toxicity",
    "identity_hate": "identity_attack",
}


#: Languages of the comments on which each Detoxify model was trained.
_LANGUAGES_BY_MODEL = {
    "original": ("en",),
    "unbiased": ("en",),
    "multilingual": ("en", "es", "fr", "it", "pt", "ru", "tr"),
    "original-small": ("en",),
    "unbiased-small": ("en",),
}


class DetoxifyScorer(TransformerScorer):
    """Score texts with all heads of a Detoxify checkpoint."""

    kind = "detoxify"
    config_class = ScorerSettings
    summary = "a transformer (Detoxify), configured by the other scorer settings"

    @classmethod
    def from_config(cls, config: ScorerSettings) -> DetoxifyScorer:
        return cls(config)

    @classmethod
    def read_versions(cls, config: ScorerSettings) -> VersionByKey:
        libraries = read_library_versions(["torch", "transformers", "tokenizers"])
        folder = config.base_model_folder
        return {
            "scorer": detoxify_scorer_name(config),
            "digest": checkpoint_sha256(config),
            "base": base_model_digest(folder) if folder else "by name",
            **libraries,
        }

    @classmethod
    def list_languages(cls, config: ScorerSettings) -> tuple[str, ...]:
        return _LANGUAGES_BY_MODEL[config.model]

    @classmethod
    def needs_download(cls, config: ScorerSettings) -> bool:
        return config.checkpoint is None and not _checkpoint_url_and_path(config)[1].exists()

    def __init__(self, config: ScorerSettings) -> None:
        import hallmark.model  # noqa: F401  before torch: sets thread and determinism options

        # isort: split
        import torch

        path = _locate_or_download_checkpoint(config)
        self.name = detoxify_scorer_name(config)
        self.digest = _verify_checkpoint_sha256(path, config.sha256)
        checkpoint = _load_checkpoint(path)
        precision = torch.bfloat16 if config.precision == "bf16" else torch.float32
        self._attach_network(
            *_build_model_and_tokenizer(path, checkpoint, config.base_model_folder),
            config.device,
            config.window_tokens,
            config.batch_tokens,
            precision,
        )
        column_by_head = {name: column for column, name in enumerate(_list_head_names(checkpoint))}
        self.heads = tuple(head for head in TOXICITY_HEADS if head in column_by_head)
        self._logit_columns = [column_by_head[head] for head in self.heads]
        self._score_columns = [TOXICITY_HEADS.index(head) for head in self.heads]

    def _logits_to_score_columns(self, logits: Tensor) -> Tensor:
        return logits[:, self._logit_columns].sigmoid()

    def _aggregate_window_scores(
        self, window_scores: np.ndarray, text_indices: list[int], text_count: int
    ) -> np.ndarray:
        """Return the highest score of each text's windows, ignoring windows that failed."""
        max_scores = np.full((text_count, len(TOXICITY_HEADS)), np.nan, np.float32)
        np.fmax.at(max_scores, text_indices, window_scores)
        return max_scores


def detoxify_scorer_name(config: ScorerSettings) -> str:
    model_name = "own checkpoint" if config.checkpoint else config.model
    return f"detoxify {read_library_versions(['detoxify'])['detoxify']} {model_name}"


def _locate_or_download_checkpoint(config: ScorerSettings) -> Path:
    """Return the path of the checkpoint, downloading it to the user's cache folder if necessary."""
    if config.checkpoint is not None:
        if not config.checkpoint.is_file():
            raise UsageError(
                "scorer.checkpoint "
                f"{str(config.checkpoint)!r}{explain_relative_path(config.checkpoint)} does not "
                "exist; specify the path of a Detoxify checkpoint, or omit the setting to download "
                "one"
            )
        return config.checkpoint
    import torch

    url, path = _checkpoint_url_and_path(config)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        prefix = path.stem.rsplit("-", 1)[-1]  # 8 hex digits: detects damage only.
        try:
            torch.hub.download_url_to_file(url, str(path), hash_prefix=prefix, progress=False)
        except (OSError, RuntimeError) as error:
            raise HallmarkError(
                f"Detoxify's checkpoint could not be downloaded from {url} ({error}); download it "
                f"on another machine and set scorer.checkpoint to its path, or set scorer.kind "
                f"to linear"
            ) from error
    if not _sha256_record_path(path).exists():
        _sha256_record_path(path).write_text(hash_file(path) + "\n")
    return path


def _checkpoint_url_and_path(config: ScorerSettings) -> tuple[str, Path]:
    """Return the URL of a checkpoint and the path of its download."""
    from detoxify.detoxify import MODEL_URLS

    url = MODEL_URLS[config.model]
    return url, _cache_folder() / url.rsplit("/", 1)[-1]


def _cache_folder() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return folder / "hallmark" / "detoxify"


def list_downloaded_checkpoints() -> list[str]:
    """Return the file names of the downloaded checkpoints."""
    return sorted(path.name for path in _cache_folder().glob("*.ckpt"))


def checkpoint_sha256(config: ScorerSettings) -> str:
    """Return the SHA-256 of the checkpoint, downloading it if it is neither present nor pinned."""
    return config.sha256 or _verify_checkpoint_sha256(_locate_or_download_checkpoint(config), None)


def base_model_digest(folder: Path) -> str:
    """Return a hash of all files in the folder of a base model."""
    if not (folder / "config.json").is_file():
        raise UsageError(
            f"scorer.base_model_folder {str(folder)!r} has no config.json; specify the folder "
            "that contains the config and tokenizer of the Detoxify base model"
        )
    files = sorted(p for p in folder.iterdir() if p.is_file())
    return sha256_hex(to_canonical_json({path.name: hash_file(path) for path in files}))


def _sha256_record_path(checkpoint_path: Path) -> Path:
    """Return the path of the file that records a checkpoint's SHA-256 at its first download."""
    return checkpoint_path.with_name(checkpoint_path.name + ".sha256")


def _verify_checkpoint_sha256(path: Path, expected_sha256: str | None) -> str:
    """Return the SHA-256 of the file.

    Raises:
        HallmarkError: The config or the record of the download has another hash.
    """
    actual_sha256 = hash_file(path)
    if expected_sha256 is None and _sha256_record_path(path).exists():
        expected_sha256 = _sha256_record_path(path).read_text().strip()
    if expected_sha256 not in (None, actual_sha256):
        raise HallmarkError(
            f"the checkpoint {str(path)!r} has SHA-256 {actual_sha256}, not the expected "
            f"{expected_sha256}; remove the file to download it again, or correct scorer.sha256 "
            "if you trust the file"
        )
    return actual_sha256


def _load_checkpoint(path: Path) -> dict[str, Any]:
    import torch

    try:
        checkpoint: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        classes = _list_head_names(checkpoint)
        _ = checkpoint["config"]["arch"]["args"]["model_type"], checkpoint["state_dict"].items
    except Exception as error:
        raise UsageError(
            f"{str(path)!r} is not a Detoxify checkpoint that can be loaded without running code "
            f"from it ({str(error).splitlines()[0][:120]}); use a checkpoint that contains config "
            "and state_dict"
        ) from error
    if "toxicity" not in classes:
        raise HallmarkError(
            f"the checkpoint {str(path)!r} has no toxicity class; use another checkpoint"
        )
    return checkpoint


def _list_head_names(checkpoint: dict[str, Any]) -> list[str]:
    """Return the names of the network's first columns; further columns may have no name."""
    return [
        _HEAD_BY_CLASS_NAME.get(name, name)
        for name in checkpoint["config"]["dataset"]["args"]["classes"]
    ]


def _build_model_and_tokenizer(
    path: Path, checkpoint: dict[str, Any], base_folder: Path | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from detoxify.detoxify import get_model_and_tokenizer

    arguments = dict(checkpoint["config"]["arch"]["args"])
    if base_folder is not None:
        # Detoxify reads the config and the number of classes by `model_type` even if it is given
        # a folder, so the folder is passed as `model_type`.
        base_model_digest(base_folder)
        arguments["model_type"] = str(base_folder)
    try:
        with silence_transformers_output():
            model, tokenizer = get_model_and_tokenizer(
                **arguments, state_dict=checkpoint["state_dict"]
            )
    except Exception as error:
        raise HallmarkError(
            f"the base model {arguments['model_type']!r} of the checkpoint {str(path)!r} could not "
            f"be opened ({str(error).splitlines()[0][:200]}); set scorer.base_model_folder to a "
            f"folder with its config.json and tokenizer"
        ) from error
    # transformers initialises missing weights at random, which would give random scores.
    weights = checkpoint["state_dict"]
    model_state = model.state_dict().items()
    mismatched_names = [
        name
        for name, model_tensor in model_state
        if name not in weights or not _has_equal_weights(weights[name], model_tensor)
    ]
    if mismatched_names:
        raise HallmarkError(
            f"the checkpoint {str(path)!r} lacks {format_count(len(mismatched_names), 'weight')} "
            f"of its model, for example {mismatched_names[0]!r}; it is damaged or was made for "
            "another base model"
        )
    return model, tokenizer


def _has_equal_weights(checkpoint_tensor: Tensor, model_tensor: Tensor) -> bool:
    import torch

    return checkpoint_tensor.shape == model_tensor.shape and torch.equal(
        checkpoint_tensor.to(model_tensor.dtype), model_tensor
    )
