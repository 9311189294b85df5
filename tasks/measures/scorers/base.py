"""What every scorer is, its heads, and what it does where it fails; and the config of those of
toxicity."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import Field

from hallmark.tasks.contract import DeviceName, HallmarkError, StageConfig
from hallmark.tasks.measures.toxicity_heads import TOXICITY_HEADS

log = logging.getLogger("hallmark")

Item = TypeVar("Item")
Result = TypeVar("Result")


class ScorerConfig(StageConfig):
    """Which scorer, and where its weights are."""

    kind: Literal["linear", "detoxify"] = Field(
        default="linear",
        description="linear: alt-profanity-check; detoxify: a transformer (see the rest)",
    )
    model: Literal["original", "unbiased", "multilingual", "original-small", "unbiased-small"] = (
        Field(
            default="unbiased",
            description="which of Detoxify's models is downloaded without a checkpoint, and the "
            "languages of a checkpoint: those of this model",
        )
    )
    checkpoint: Path | None = Field(
        default=None, description="a Detoxify checkpoint on this machine"
    )
    base_model_folder: Path | None = Field(
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
    batch_tokens: int | None = Field(
        default=None,
        ge=1,
        description="tokens that the network sees at a time, padding counted, but always a whole "
        "window; windows of like length go together. Left out: 1,024, and 16,384 on a GPU",
    )
    precision: Literal["fp32", "bf16"] = Field(
        default="fp32",
        description="of the network's weights and arithmetic; bf16 is faster where the processor "
        "or the GPU computes in it, and moves scores by up to a hundredth",
    )
    device: DeviceName = Field(default="auto", description="of the scorer")

    @property
    def heads(self) -> tuple[str, ...]:
        """Those that it may have."""
        return TOXICITY_HEADS[:1] if self.kind == "linear" else TOXICITY_HEADS


class Scorer(ABC):
    """Scores texts, for toxicity from 0 to 1, else from -1 to 1; NaN where it could not.

    A text without any visible character cannot be scored: it is missing, not harmless. Neither is
    one at which the scorer fails: the texts beside it are scored without it.
    """

    name: str
    digest: str
    columns: tuple[str, ...] = TOXICITY_HEADS  # of what ``score_heads`` gives
    heads: tuple[str, ...]  # those of the columns that it has
    failure_reason: str = ""  # why a text was last left without a score
    _batch_failure_logged = False

    def score_toxicity(self, texts: Sequence[str]) -> np.ndarray:
        """Toxicity of each text, (n,) float32."""
        return self.score_by_head(texts)[:, TOXICITY_HEADS.index("toxicity")]

    def score_by_head(self, texts: Sequence[str]) -> np.ndarray:
        """Scores by head, (n, columns) float32; NaN also in heads that it lacks.

        Texts that stand there several times are scored once.
        """
        scores = np.full((len(texts), len(self.columns)), np.nan, np.float32)
        visible = [i for i, text in enumerate(texts) if text.strip()]
        row_by_text = {
            text: row for row, text in enumerate(dict.fromkeys(texts[i] for i in visible))
        }
        if row_by_text:
            scores[visible] = self._score_distinct(list(row_by_text))[
                [row_by_text[texts[i]] for i in visible]
            ]
        return scores

    @abstractmethod
    def _score_distinct(self, texts: list[str]) -> np.ndarray:
        """The same of distinct texts with visible characters, at least one."""

    def _apply_isolating_failures(
        self, function: Callable[[list[Item]], Sequence[Result] | np.ndarray], items: list[Item]
    ) -> list[Any]:
        """``function(items)``, a result for each; where that fails they go one by one, and those
        that fail alone get None."""
        try:
            return list(function(items))
        except Exception as error:
            if len(items) == 1:
                self.failure_reason = _describe_error(error)
                return [None]
            if not self._batch_failure_logged:
                log.warning(
                    "%s failed on a batch (%s); its texts are scored one by one, here and "
                    "wherever it fails again",
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
    """Raise HallmarkError where a scorer gave no score for any of its texts.

    Args:
        name: Of the scorer.
        scored: Texts that have a score.
        texts: Texts with visible characters that it was given.
        why: Why it failed, as ``Scorer.failure`` says.
    """
    if text_count and not scored_count:
        raise HallmarkError(
            f"the scorer {scorer_name} failed at all {text_count:,} texts that it was given "
            f"({failure_reason or 'it gives no number'}); use another scorer, or another "
            f"device or precision"
        )


def _describe_error(error: Exception) -> str:
    """Kind of an error, and torch's message; others may quote the text."""
    message_lines = str(error).strip().splitlines() if isinstance(error, RuntimeError) else []
    name = type(error).__name__
    return f"{name}: {message_lines[0][:120]}" if message_lines else name
