"""Score toxicity with alt-profanity-check, a linear model shipped in its wheel."""

from __future__ import annotations

import importlib.util
import warnings
from functools import cache
from pathlib import Path

import numpy as np

from hallmark.tasks.contract import (
    HallmarkError,
    hash_file,
    read_library_versions,
    sha256_hex,
    to_canonical_json,
)
from hallmark.tasks.measures.scorers.base import (
    Scorer,
    ScorerSettings,
    TextsByColumns,
    VersionByKey,
)
from hallmark.tasks.measures.toxicity_heads import TOXICITY_HEADS


class LinearScorer(Scorer):
    """A calibrated linear SVM over word counts, with the toxicity head only."""

    kind = "linear"
    config_class = ScorerSettings
    summary = "alt-profanity-check, which often misses threats and veiled hate"
    possible_heads = heads = ("toxicity",)

    @classmethod
    def from_config(cls, config: ScorerSettings) -> LinearScorer:
        return cls()

    @classmethod
    def read_versions(cls, config: ScorerSettings) -> VersionByKey:
        libraries = read_library_versions(["scikit-learn", "scipy"])
        return {"scorer": linear_scorer_name(), "digest": linear_scorer_digest(), **libraries}

    def __init__(self) -> None:
        self.name, self.digest = linear_scorer_name(), linear_scorer_digest()
        with warnings.catch_warnings():  # The model was saved with an older scikit-learn.
            warnings.simplefilter("ignore")
            # The import unpickles a model from the wheel, which is trusted like installed code.
            from profanity_check.profanity_check import model, vectorizer
        self._model, self._vectorizer = model, vectorizer

    def _score_distinct_texts(self, texts: list[str]) -> TextsByColumns:
        scores = np.full((len(texts), len(TOXICITY_HEADS)), np.nan, np.float32)
        toxicity_scores = self._apply_isolating_failures(self._predict_probabilities, texts)
        scores[:, TOXICITY_HEADS.index("toxicity")] = [
            np.nan if score is None else score for score in toxicity_scores
        ]
        return scores

    def _predict_probabilities(self, texts: list[str]) -> np.ndarray:
        probabilities: np.ndarray = self._model.predict_proba(self._vectorizer.transform(texts))[
            :, 1
        ]
        return probabilities


@cache
def linear_scorer_name() -> str:
    library = "alt-profanity-check"
    return f"{library} {read_library_versions([library])[library]}"


@cache
def linear_scorer_digest() -> str:
    spec = importlib.util.find_spec("profanity_check")  # Does not import the package.
    if spec is None or spec.origin is None:
        raise HallmarkError(
            "the alt-profanity-check scorer is not installed; install alt-profanity-check or set "
            "scorer.kind to detoxify"
        )
    data = Path(spec.origin).parent / "data"
    files = [data / "model.joblib", data / "vectorizer.joblib"]
    return sha256_hex(to_canonical_json({path.name: hash_file(path) for path in files}))
