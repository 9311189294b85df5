"""Toxicity scorers behind one interface, each named with the hash of its weights.

``linear``    alt-profanity-check, a linear model inside its wheel. It counts words and knows
              English profanity, not meaning; the embedded default because it needs no download.
``detoxify``  Detoxify (Hanu et al. 2020), a transformer. Its checkpoint is loaded without
              running code from it (``weights_only``), after its full SHA-256 was checked.

Use: ``open_scorer(config).score(texts)``, and ``scorer_digest(config)`` in a stage's
``external``, so that other weights mean another fingerprint.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from pydantic import Field

from tasks.contract import (
    Device,
    HallmarkError,
    StageConfig,
    canonical,
    file_digest,
    library_versions,
    sha256,
    torch_device,
)
from tasks.measures.quiet import quiet_transformers


class ScorerConfig(StageConfig):
    """Which scorer, and where its weights are."""

    kind: Literal["linear", "detoxify"] = Field(
        default="linear",
        description="linear: alt-profanity-check; detoxify: a transformer (see the rest)",
    )
    model: Literal["original", "unbiased", "multilingual"] = Field(
        default="unbiased",
        description="which of Detoxify's models is downloaded without a checkpoint",
    )
    checkpoint: Path | None = Field(
        default=None, description="a Detoxify checkpoint on this machine"
    )
    base: Path | None = Field(
        default=None,
        description="folder with config.json and tokenizer of its base model, for offline use",
    )
    sha256: str | None = Field(
        default=None,
        pattern="^[0-9a-f]{64}$",
        description="what the checkpoint must have; without it, recorded at the first download",
    )
    window_tokens: int = Field(
        default=512,
        ge=8,
        le=512,
        description="tokens scored together; of several windows the highest",
    )
    batch: int = Field(default=32, ge=1, description="windows scored at a time")
    device: Device = Field(default="auto", description="of the scorer")


class Scorer(Protocol):
    """``score`` gives one float32 in [0, 1] a text, NaN where it could not be scored.

    A text without any visible character cannot be scored: it is missing, not harmless.
    """

    name: str
    digest: str

    def score(self, texts: Sequence[str]) -> np.ndarray: ...


def open_scorer(config: ScorerConfig) -> Scorer:
    """The scorer, loaded once in a process."""
    return _open(config)


def scorer_digest(config: ScorerConfig, secret_id: str = "") -> dict[str, str]:
    """Name, hash of the weights and library versions, for ``@stage(external=...)``.

    Detoxify's weights are downloaded here if they are neither present nor pinned by ``sha256``:
    without their hash the fingerprint of the stage is not known.
    """
    if config.kind == "linear":
        libraries = library_versions(["scikit-learn", "scipy"])
        return {"scorer": _linear_name(), "digest": _linear_digest(), **libraries}
    libraries = library_versions(["torch", "transformers", "tokenizers"])
    digest = config.sha256 or _checked_digest(_checkpoint(config), None)
    base = _folder_digest(config.base) if config.base else "by name"
    return {"scorer": _detoxify_name(config), "digest": digest, "base": base, **libraries}


#: Of Detoxify's models: the languages of the comments that they were trained on.
_LANGUAGES = {
    "original": ("en",),
    "unbiased": ("en",),
    "multilingual": ("en", "es", "fr", "it", "pt", "ru", "tr"),
}


def scorer_languages(config: ScorerConfig) -> tuple[str, ...]:
    """ISO 639 codes of the languages that a scorer was made for."""
    return ("en",) if config.kind == "linear" else _LANGUAGES[config.model]


@cache
def _open(config: ScorerConfig) -> Scorer:
    return Linear() if config.kind == "linear" else DetoxifyScorer(config)


# alt-profanity-check ---------------------------------------------------------------------------


class Linear:
    """alt-profanity-check: word counts into a calibrated linear SVM."""

    def __init__(self) -> None:
        self.name, self.digest = _linear_name(), _linear_digest()
        with warnings.catch_warnings():  # saved with an older scikit-learn, which it tells
            warnings.simplefilter("ignore")
            # Unpickles the model of its own wheel at import: installed code, like the library.
            from profanity_check.profanity_check import model, vectorizer
        self._model, self._vectorizer = model, vectorizer

    def score(self, texts: Sequence[str]) -> np.ndarray:
        scores = np.full(len(texts), np.nan, np.float32)
        known = [i for i, text in enumerate(texts) if text.strip()]
        if known:
            features = self._vectorizer.transform([texts[i] for i in known])
            scores[known] = self._model.predict_proba(features)[:, 1]
        return scores


@cache
def _linear_name() -> str:
    return f"alt-profanity-check {library_versions(['alt-profanity-check'])['alt-profanity-check']}"


@cache
def _linear_digest() -> str:
    spec = importlib.util.find_spec("profanity_check")  # finds the package without running it
    if spec is None or spec.origin is None:
        raise HallmarkError(
            "the scorer alt-profanity-check is not installed; install alt-profanity-check or "
            "set scorer.kind to detoxify"
        )
    data = Path(spec.origin).parent / "data"
    return _files_digest([data / "model.joblib", data / "vectorizer.joblib"])


def _files_digest(paths: Sequence[Path]) -> str:
    return sha256(canonical({path.name: file_digest(path) for path in paths}))


def _folder_digest(folder: Path) -> str:
    if not (folder / "config.json").is_file():
        raise HallmarkError(
            f"scorer.base {str(folder)!r} holds no config.json; give the folder with the config "
            f"and tokenizer of Detoxify's base model"
        )
    return _files_digest(sorted(p for p in folder.iterdir() if p.is_file()))


# Detoxify --------------------------------------------------------------------------------------


class DetoxifyScorer:
    """Detoxify's ``toxicity`` head over batches of windows of similar length."""

    def __init__(self, config: ScorerConfig) -> None:
        path = _checkpoint(config)
        self.name, self.digest = _detoxify_name(config), _checked_digest(path, config.sha256)
        self.batch = config.batch
        device = torch_device(config.device)
        loaded = _load(path)
        self._model, self._tokenizer = _build(path, loaded, config.base)
        self._model.eval().to(device)
        classes = loaded["config"]["dataset"]["args"]["classes"]
        self._column = next(i for i, name in enumerate(classes) if name in ("toxicity", "toxic"))
        positions = getattr(self._model.config, "max_position_embeddings", 512)
        # RoBERTa-like models keep two positions for themselves.
        positions -= 2 if "roberta" in self._model.config.model_type else 0
        self._length = min(config.window_tokens, positions)

    def score(self, texts: Sequence[str]) -> np.ndarray:
        scores = np.full(len(texts), np.nan, np.float32)
        known = [i for i, text in enumerate(texts) if text.strip()]
        windows = self._windows([texts[i] for i in known])
        windows.sort(key=lambda window: len(window[1]))  # little padding; stable
        for start in range(0, len(windows), self.batch):
            part = windows[start : start + self.batch]
            owners = [known[text] for text, _ in part]
            # fmax passes over NaN: a window that failed does not hide the others.
            np.fmax.at(scores, owners, self._forward([ids for _, ids in part]))
        return scores

    def _windows(self, texts: list[str]) -> list[tuple[int, list[int]]]:
        """(position of the text, token ids) of windows that overlap by a quarter."""
        if not texts:
            return []
        special = self._tokenizer.num_special_tokens_to_add()
        encoded = self._tokenizer(
            texts,
            truncation=True,
            max_length=self._length,
            stride=(self._length - special) // 4,
            return_overflowing_tokens=True,
        )
        owners = encoded["overflow_to_sample_mapping"]
        pairs = zip(owners, encoded["input_ids"], strict=True)
        return [(owner, ids) for owner, ids in pairs if len(ids) > special]

    def _forward(self, windows: list[list[int]]) -> np.ndarray:
        import torch

        inputs = self._tokenizer.pad({"input_ids": windows}, return_tensors="pt")
        with torch.inference_mode():
            logits = self._model(**inputs.to(self._model.device))[0]  # (windows, classes)
        scores = torch.sigmoid(logits[:, self._column]).float().cpu().numpy()
        return np.where(np.isfinite(scores), scores, np.nan)


def _detoxify_name(config: ScorerConfig) -> str:
    model = "own checkpoint" if config.checkpoint else config.model
    return f"detoxify {library_versions(['detoxify'])['detoxify']} {model}"


def _checkpoint(config: ScorerConfig) -> Path:
    """The checkpoint file, downloaded to the user's cache folder the first time."""
    if config.checkpoint is not None:
        if not config.checkpoint.is_file():
            raise HallmarkError(
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
    cache_folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return url, cache_folder / "hallmark" / "detoxify" / url.rsplit("/", 1)[-1]


def needs_download(config: ScorerConfig) -> bool:
    """Whether opening the scorer would first download its weights."""
    if config.kind == "linear" or config.checkpoint is not None:
        return False
    return not _download(config)[1].exists()


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
        classes = set(loaded["config"]["dataset"]["args"]["classes"])
        _ = loaded["config"]["arch"]["args"]["model_type"], loaded["state_dict"].items
    except Exception as error:
        raise HallmarkError(
            f"{str(path)!r} is no Detoxify checkpoint that can be loaded without running code "
            f"from it ({str(error).splitlines()[0][:120]}); give one with config and state_dict"
        ) from error
    if not {"toxicity", "toxic"} & classes:
        raise HallmarkError(f"the checkpoint {str(path)!r} has no class for toxicity; use another")
    return loaded


def _build(path: Path, loaded: dict[str, Any], base: Path | None) -> tuple[Any, Any]:
    from detoxify.detoxify import get_model_and_tokenizer

    arguments = dict(loaded["config"]["arch"]["args"])
    if base is not None:
        # Detoxify reads the config by ``model_type`` even when it is given a folder, and takes
        # the number of classes from there only; a folder as ``model_type`` serves both offline.
        _folder_digest(base)
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
