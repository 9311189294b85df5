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

from tasks.contract import Device, HallmarkError, StageConfig
from tasks.measures.heads import HEADS

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
    device: Device = Field(default="auto", description="of the scorer")

    @property
    def heads(self) -> tuple[str, ...]:
        """Those that it may have."""
        return HEADS[:1] if self.kind == "linear" else HEADS


class Scorer(ABC):
    """Scores texts, for toxicity from 0 to 1, else from -1 to 1; NaN where it could not.

    A text without any visible character cannot be scored: it is missing, not harmless. Neither is
    one at which the scorer fails: the texts beside it are scored without it.
    """

    name: str
    digest: str
    columns: tuple[str, ...] = HEADS  # of what ``score_heads`` gives
    heads: tuple[str, ...]  # those of the columns that it has
    failure: str = ""  # why a text was last left without a score
    _told = False

    def score(self, texts: Sequence[str]) -> np.ndarray:
        """Toxicity of each text, (n,) float32."""
        return self.score_heads(texts)[:, HEADS.index("toxicity")]

    def score_heads(self, texts: Sequence[str]) -> np.ndarray:
        """Scores by head, (n, columns) float32; NaN also in heads that it lacks.

        Texts that stand there several times are scored once.
        """
        scores = np.full((len(texts), len(self.columns)), np.nan, np.float32)
        visible = [i for i, text in enumerate(texts) if text.strip()]
        number = {text: n for n, text in enumerate(dict.fromkeys(texts[i] for i in visible))}
        if number:
            scores[visible] = self._score(list(number))[[number[texts[i]] for i in visible]]
        return scores

    @abstractmethod
    def _score(self, texts: list[str]) -> np.ndarray:
        """The same of distinct texts with visible characters, at least one."""

    def _each(
        self, function: Callable[[list[Item]], Sequence[Result] | np.ndarray], items: list[Item]
    ) -> list[Any]:
        """``function(items)``, a result for each; where that fails they go one by one, and those
        that fail alone get None."""
        try:
            return list(function(items))
        except Exception as error:
            if len(items) == 1:
                self.failure = _why(error)
                return [None]
            if not self._told:
                log.warning("%s failed on a batch (%s); its texts are scored one by one, here and "
                            "wherever it fails again", self.name, _why(error))  # fmt: skip
            self._told = True
        return [result for item in items for result in self._each(function, [item])]


def check_some_scored(name: str, scored: int, texts: int, why: str) -> None:
    """Raise HallmarkError where a scorer gave no score for any of its texts.

    Args:
        name: Of the scorer.
        scored: Texts that have a score.
        texts: Texts with visible characters that it was given.
        why: Why it failed, as ``Scorer.failure`` says.
    """
    if texts and not scored:
        raise HallmarkError(
            f"the scorer {name} failed at all {texts:,} texts that it was given "
            f"({why or 'it gives no number'}); use another scorer, or another device or precision"
        )


def _why(error: Exception) -> str:
    """Kind of an error, and torch's message; others may quote the text."""
    said = str(error).strip().splitlines() if isinstance(error, RuntimeError) else []
    return f"{type(error).__name__}{': ' if said else ''}{said[0][:120] if said else ''}"
