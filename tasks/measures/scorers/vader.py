"""Score sentiment with VADER (Hutto & Gilbert 2014), from -1 to 1, as the package implements it.

The package `vaderSentiment` holds a list of words with valences and rules for negation, emphasis
and punctuation. It needs no download. A text without any of the words scores 0.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

from hallmark.tasks.contract import (
    HallmarkError,
    StageConfig,
    hash_file,
    read_library_versions,
    sha256_hex,
    to_canonical_json,
)
from hallmark.tasks.measures.scorers.base import Scorer, TextsByColumns, VersionByKey

PACKAGE = "vaderSentiment"


class VaderConfig(StageConfig):
    """Choose VADER; it has no settings."""

    kind: Literal["vader"]

    @property
    def heads(self) -> tuple[str, ...]:
        return ("sentiment",)


class VaderScorer(Scorer):
    """Score texts by VADER's compound score."""

    kind = "vader"
    config_class = VaderConfig
    columns = heads = ("sentiment",)

    @classmethod
    def from_config(cls, config: VaderConfig) -> VaderScorer:
        return cls()

    @classmethod
    def read_versions(cls, config: VaderConfig) -> VersionByKey:
        return {"scorer": vader_scorer_name(), "digest": vader_scorer_digest()}

    def __init__(self) -> None:
        self.name, self.digest = vader_scorer_name(), vader_scorer_digest()
        from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

        self._analyzer = SentimentIntensityAnalyzer()

    def _score_distinct_texts(self, texts: list[str]) -> TextsByColumns:
        scores = self._apply_isolating_failures(self._compute_compound_scores, texts)
        return np.array(
            [[np.nan if score is None else score] for score in scores], dtype=np.float32
        )

    def _compute_compound_scores(self, texts: list[str]) -> list[float]:
        return [self._analyzer.polarity_scores(text)["compound"] for text in texts]


@cache
def vader_scorer_name() -> str:
    return f"VADER {read_library_versions([PACKAGE])[PACKAGE]}"


@cache
def vader_scorer_digest() -> str:
    spec = importlib.util.find_spec(PACKAGE)  # Does not import the package.
    if spec is None or spec.origin is None:
        raise HallmarkError(
            f"the VADER scorer is not installed; install {PACKAGE}, or specify other scorers in "
            "score.additional_scorers"
        )
    folder = Path(spec.origin).parent
    names = ("vader_lexicon.txt", "emoji_utf8_lexicon.txt", "vaderSentiment.py")
    return sha256_hex(to_canonical_json({name: hash_file(folder / name) for name in names}))
