"""Detoxify's transformers as scorers: checkpoints that are checked."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from tasks.contract import (
    HallmarkError,
    UsageError,
    canonical,
    file_digest,
    library_versions,
    sha256,
)
from tasks.measures.heads import HEADS
from tasks.measures.quiet import quiet_transformers
from tasks.measures.scorers.base import ScorerConfig
from tasks.measures.scorers.network import Network

#: What checkpoints call some of the heads.
_NAMES = {
    "toxic": "toxicity",
    "severe_toxic": "severe_toxicity",
    "identity_hate": "identity_attack",
}


class DetoxifyScorer(Network):
    """All heads of a checkpoint."""

    def __init__(self, config: ScorerConfig) -> None:
        import model  # noqa: F401  before torch: it says how threads wait, and that sums repeat

        # isort: split
        import torch

        path = _checkpoint(config)
        self.name, self.digest = detoxify_name(config), _checked_digest(path, config.sha256)
        loaded = _load(path)
        precision = torch.bfloat16 if config.precision == "bf16" else torch.float32
        self._begin(*_build(path, loaded, config.base), config.device, config.window_tokens,
                    config.batch_tokens, precision)  # fmt: skip
        found = {name: column for column, name in enumerate(_classes(loaded))}
        self.heads = tuple(head for head in HEADS if head in found)
        self._columns = [found[head] for head in self.heads]
        self._places = [HEADS.index(head) for head in self.heads]

    def _scores(self, logits: Any) -> Any:
        return logits[:, self._columns].sigmoid()

    def _of_windows(self, scores: np.ndarray, owner: list[int], count: int) -> np.ndarray:
        """The highest; a window that failed does not hide the others."""
        highest = np.full((count, len(HEADS)), np.nan, np.float32)
        np.fmax.at(highest, owner, scores)
        return highest


def detoxify_name(config: ScorerConfig) -> str:
    model = "own checkpoint" if config.checkpoint else config.model
    return f"detoxify {library_versions(['detoxify'])['detoxify']} {model}"


def _checkpoint(config: ScorerConfig) -> Path:
    """The checkpoint file, downloaded to the user's cache folder the first time."""
    if config.checkpoint is not None:
        if not config.checkpoint.is_file():
            raise UsageError(
                f"scorer.checkpoint {str(config.checkpoint)!r} does not exist; give the path of a "
                f"Detoxify checkpoint, or leave it out to download one"
            )
        return config.checkpoint
    import torch

    url, path = _download(config)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        prefix = path.stem.rsplit("-", 1)[-1]  # 8 hex digits: damage, not proof
        try:
            torch.hub.download_url_to_file(url, str(path), hash_prefix=prefix, progress=False)
        except (OSError, RuntimeError) as error:
            raise HallmarkError(
                f"Detoxify's checkpoint could not be downloaded from {url} ({error}); download "
                f"it elsewhere and give its path in scorer.checkpoint, or set scorer.kind to linear"
            ) from error
    if not _record(path).exists():
        _record(path).write_text(file_digest(path) + "\n")
    return path


def _download(config: ScorerConfig) -> tuple[str, Path]:
    """Where a checkpoint is downloaded from, and where it is kept."""
    from detoxify.detoxify import MODEL_URLS

    url = MODEL_URLS[config.model]
    return url, _cache() / url.rsplit("/", 1)[-1]


def _cache() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return folder / "hallmark" / "detoxify"


def downloaded() -> list[str]:
    """Names of the checkpoints that have been downloaded."""
    return sorted(path.name for path in _cache().glob("*.ckpt"))


def needs_download(config: ScorerConfig) -> bool:
    """Whether opening the scorer would first download its weights."""
    if config.kind == "linear" or config.checkpoint is not None:
        return False
    return not _download(config)[1].exists()


def checkpoint_digest(config: ScorerConfig) -> str:
    """SHA-256 of the checkpoint, downloaded if it must be; see ``scorer_digest``."""
    return config.sha256 or _checked_digest(_checkpoint(config), None)


def folder_digest(folder: Path) -> str:
    if not (folder / "config.json").is_file():
        raise UsageError(
            f"scorer.base {str(folder)!r} holds no config.json; give the folder with the config "
            f"and tokenizer of Detoxify's base model"
        )
    files = sorted(p for p in folder.iterdir() if p.is_file())
    return sha256(canonical({path.name: file_digest(path) for path in files}))


def _record(path: Path) -> Path:
    """Where the SHA-256 of a downloaded checkpoint was written down at its first download."""
    return path.with_name(path.name + ".sha256")


def _checked_digest(path: Path, expected: str | None) -> str:
    """SHA-256 of the file; HallmarkError if the config or the record says otherwise."""
    found = file_digest(path)
    if expected is None and _record(path).exists():
        expected = _record(path).read_text().strip()
    if expected not in (None, found):
        raise HallmarkError(
            f"the checkpoint {str(path)!r} has SHA-256 {found}, not the expected {expected}; "
            f"remove it to download it again, or correct scorer.sha256 if you trust this file"
        )
    return found


def _load(path: Path) -> dict[str, Any]:
    import torch

    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
        classes = _classes(loaded)
        _ = loaded["config"]["arch"]["args"]["model_type"], loaded["state_dict"].items
    except Exception as error:
        raise UsageError(
            f"{str(path)!r} is no Detoxify checkpoint that can be loaded without running code "
            f"from it ({str(error).splitlines()[0][:120]}); give one with config and state_dict"
        ) from error
    if "toxicity" not in classes:
        raise HallmarkError(f"the checkpoint {str(path)!r} has no class for toxicity; use another")
    return loaded


def _classes(loaded: dict[str, Any]) -> list[str]:
    """The network's first columns by name; behind them it may have some without."""
    return [_NAMES.get(name, name) for name in loaded["config"]["dataset"]["args"]["classes"]]


def _build(path: Path, loaded: dict[str, Any], base: Path | None) -> tuple[Any, Any]:
    from detoxify.detoxify import get_model_and_tokenizer

    arguments = dict(loaded["config"]["arch"]["args"])
    if base is not None:
        # Detoxify reads the config by ``model_type`` even when it is given a folder, and takes
        # the number of classes from there only; a folder as ``model_type`` serves both offline.
        folder_digest(base)
        arguments["model_type"] = str(base)
    try:
        with quiet_transformers():
            model, tokenizer = get_model_and_tokenizer(**arguments, state_dict=loaded["state_dict"])
    except Exception as error:
        raise HallmarkError(
            f"the base model {arguments['model_type']!r} of the checkpoint {str(path)!r} could not "
            f"be opened ({str(error).splitlines()[0][:200]}); give a folder with its config.json "
            f"and tokenizer in scorer.base"
        ) from error
    # transformers fills in what is missing with random numbers; a scorer must not.
    weights = loaded["state_dict"]
    state = model.state_dict().items()
    wrong = [name for name, w in state if name not in weights or not _same(weights[name], w)]
    if wrong:
        raise HallmarkError(
            f"the checkpoint {str(path)!r} lacks {len(wrong)} weights of its model, among them "
            f"{wrong[0]!r}; it is damaged or belongs to another base model"
        )
    return model, tokenizer


def _same(given: Any, loaded: Any) -> bool:
    import torch

    return given.shape == loaded.shape and torch.equal(given.to(loaded.dtype), loaded)
