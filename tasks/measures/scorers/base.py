"""Define the interface and registry of scorers, settings of toxicity scorers, and failures."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hallmark.tasks.contract import DeviceName, HallmarkError, StageConfig, format_all
from hallmark.tasks.measures.toxicity_heads import TOXICITY_HEADS

log = logging.getLogger("hallmark")

Item = TypeVar("Item")
Result = TypeVar("Result")


class ScorerSettings(StageConfig):
    """Settings that all kinds of toxicity scorers share."""

    kind: str
    model: Literal["original", "unbiased", "multilingual", "original-small", "unbiased-small"] = (
        Field(
            default="unbiased",
            description="Detoxify model to download if no checkpoint is specified; also determines "
            "which languages a specified checkpoint is assumed to support",
        )
    )
    checkpoint: Path | None = Field(
        default=None, description="path to a Detoxify checkpoint on this machine"
    )
    base_model_folder: Path | None = Field(
        default=None,
        description="folder with the config.json file and the tokenizer of the checkpoint's base "
        "model, for offline use",
    )
    sha256: str | None = Field(
        default=None,
        pattern="^[0-9a-f]{64}$",
        description="expected SHA-256 of the checkpoint; by default, the hash recorded when the "
        "checkpoint was first downloaded",
    )
    window_tokens: int = Field(
        default=512,
        ge=8,
        le=512,
        description="maximum number of tokens per window; longer texts are scored in several "
        "windows and receive the highest window score",
    )
    batch_tokens: int | None = Field(
        default=None,
        ge=1,
        description="maximum number of tokens per batch, including padding. Each batch contains "
        "windows of similar length; a longer window forms its own batch. Default: 1,024, or "
        "16,384 on a GPU",
    )
    precision: Literal["fp32", "bf16"] = Field(
        default="fp32",
        description="number format for weights and arithmetic; bf16 is faster if the hardware "
        "supports it, but changes scores by up to 0.01",
    )
    device: DeviceName = Field(default="auto", description="device that runs the scorer")


#: ``scorer``: the scorer's name; ``digest``: that of its weights; and the version of each library.
VersionByKey = dict[str, str]

#: A score may be outside its range by this much, because of rounding.
RANGE_TOLERANCE = 1e-4

#: Scores, (texts, ``Scorer.columns``) float32.
TextsByColumns = NDArray[np.float32]

#: The classes of scorers by their kind. A class registers itself when its module is imported.
SCORER_CLASSES: dict[str, type[Scorer]] = {}


class Scorer(ABC):
    """Score texts, from 0 to 1 for toxicity, otherwise from -1 to 1; NaN if there is no score.

    A text without visible characters has no score: it is missing, not harmless. A text on which the
    scorer fails has none either; the other texts of its batch are scored without it.

    A class with a ``kind`` registers itself. Attributes of such a class:
        kind: The value of ``kind`` in a config.
        config_class: The class of its config; ``ScorerSettings`` for a toxicity scorer.
        summary: What it is, in a few words, for the settings.
        possible_heads: Heads that a toxicity scorer of this kind can have.
        uses_device: Whether it runs a network on the device that its config names.

    Attributes:
        name: Name and version, for reports.
        digest: Hash of the weights.
        columns: Heads in the columns of `score_by_head`.
        heads: The columns that this scorer fills.
        failure_reason: Why a text last got no score; empty if none failed.
        has_invalid_scores: Whether a score was outside its range, so that it is probably a logit;
            such scores are missing.
    """

    kind: ClassVar[str]
    config_class: ClassVar[type[StageConfig]]
    summary: ClassVar[str] = ""
    possible_heads: ClassVar[tuple[str, ...]] = TOXICITY_HEADS
    uses_device: ClassVar[bool] = False

    name: str
    digest: str
    columns: tuple[str, ...] = TOXICITY_HEADS
    heads: tuple[str, ...]
    failure_reason: str = ""
    has_invalid_scores = False
    _batch_failure_logged = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Register a class that declares its kind.

        Raises:
            HallmarkError: Another class has the same kind.
        """
        super().__init_subclass__(**kwargs)
        if "kind" in cls.__dict__:
            other = SCORER_CLASSES.setdefault(cls.kind, cls)
            if (other.__module__, other.__name__) != (cls.__module__, cls.__name__):
                raise HallmarkError(
                    f"two scorers declare the kind {cls.kind!r}: "
                    f"{other.__module__}.{other.__name__} and {cls.__module__}.{cls.__name__}; "
                    "rename one of the kinds"
                )

    @classmethod
    def from_config(cls, config: Any) -> Scorer:
        """Load the scorer that a config describes."""
        raise NotImplementedError(
            f"the scorer class {cls.__name__} declares a kind, but does not define from_config"
        )

    @classmethod
    def read_versions(cls, config: Any) -> VersionByKey:
        """Return ``scorer``: its name, ``digest``: of its weights, and versions of libraries.

        The weights must not be loaded.
        """
        raise NotImplementedError(
            f"the scorer class {cls.__name__} declares a kind, but does not define read_versions"
        )

    @classmethod
    def list_languages(cls, config: Any) -> tuple[str, ...]:
        """Return the ISO 639 codes of the languages that a toxicity scorer supports."""
        return ("en",)

    @classmethod
    def needs_download(cls, config: Any) -> bool:
        """Return whether opening the scorer would download its weights first."""
        return False

    @classmethod
    def check_files(cls, config: Any) -> None:
        """Read the user's files that are not weights, so that errors in them are found early.

        Raises:
            UsageError: One of them cannot be used.
        """
        return None

    def score_toxicity(self, texts: Sequence[str]) -> np.ndarray:
        """Return the toxicity of each text, (n,) float32."""
        return self.score_by_head(texts)[:, TOXICITY_HEADS.index("toxicity")]

    def score_by_head(self, texts: Sequence[str]) -> TextsByColumns:
        """Return scores by head, (n, columns) float32; NaN also for heads that the scorer lacks.

        Repeated texts are scored once.
        """
        scores = np.full((len(texts), len(self.columns)), np.nan, np.float32)
        visible = [i for i, text in enumerate(texts) if text.strip()]
        row_by_text = {
            text: row for row, text in enumerate(dict.fromkeys(texts[i] for i in visible))
        }
        if row_by_text:
            missing_row = np.full(len(self.columns), np.nan, np.float32)
            distinct_scores = np.stack(
                [
                    missing_row if row is None else row
                    for row in self._apply_isolating_failures(
                        self._score_distinct_texts, list(row_by_text)
                    )
                ]
            )
            scores[visible] = self._drop_invalid_scores(distinct_scores)[
                [row_by_text[texts[i]] for i in visible]
            ]
        return scores

    def _drop_invalid_scores(self, scores: TextsByColumns) -> TextsByColumns:
        """Replace scores outside their range with NaN and record why."""
        lowest = np.array([0.0 if name in TOXICITY_HEADS else -1.0 for name in self.columns])
        is_invalid = (scores < lowest - RANGE_TOLERANCE) | (scores > 1 + RANGE_TOLERANCE)
        if is_invalid.any():
            self.has_invalid_scores = True
            column = int(np.argmax(is_invalid.any(0)))
            self.failure_reason = (
                f"it returned scores outside the range from {lowest[column]:g} to 1, such as "
                f"{scores[is_invalid[:, column], column][0]:.3g}, which may be logits"
            )
        return np.where(is_invalid, np.float32(np.nan), scores)

    @abstractmethod
    def _score_distinct_texts(self, texts: list[str]) -> TextsByColumns:
        """Score distinct texts that have visible characters; there is at least one."""

    def _apply_isolating_failures(
        self, function: Callable[[list[Item]], Sequence[Result] | np.ndarray], items: list[Item]
    ) -> list[Result | None]:
        """Return `function(items)`, one result per item.

        If the function fails on all items together, it is applied to each separately; an item on
        which it fails alone gets None.
        """
        try:
            return list(function(items))
        except Exception as error:
            if len(items) == 1:
                self.failure_reason = _describe_error(error)
                return [None]
            if not self._batch_failure_logged:
                log.warning(
                    "%s failed on a batch (%s); scoring the texts in this batch, and in any later "
                    "batch that fails, one at a time",
                    self.name,
                    _describe_error(error),
                )
            self._batch_failure_logged = True
        return [
            result for item in items for result in self._apply_isolating_failures(function, [item])
        ]


def check_any_text_scored(
    scorer_name: str, scored_count: int, text_count: int, failure_reason: str
) -> None:
    """Raise HallmarkError if a scorer gave no score for any of its texts.

    Args:
        scorer_name: Name of the scorer.
        scored_count: Number of texts with a score.
        text_count: Number of texts with visible characters that were given to the scorer.
        failure_reason: Why scoring failed, from `Scorer.failure_reason`; may be empty.
    """
    if text_count and not scored_count:
        raise HallmarkError(
            f"the scorer {scorer_name} failed on {format_all(text_count, 'text')} "
            f"({failure_reason or 'it returned NaN'}); use another scorer, device or precision"
        )


def _describe_error(error: Exception) -> str:
    """Return the type of an error, and torch's message; other messages may quote the text."""
    message_lines = str(error).strip().splitlines() if isinstance(error, RuntimeError) else []
    name = type(error).__name__
    return f"{name}: {message_lines[0][:120]}" if message_lines else name
