"""alt-profanity-check, a linear model inside its wheel, as a scorer."""

from __future__ import annotations

import importlib.util
import warnings
from functools import cache
from pathlib import Path

import numpy as np

from tasks.contract import HallmarkError, canonical, file_digest, library_versions, sha256
from tasks.measures.heads import HEADS
from tasks.measures.scorers.base import Scorer


class Linear(Scorer):
    """Word counts into a calibrated linear SVM. It has one head."""

    heads = ("toxicity",)

    def __init__(self) -> None:
        self.name, self.digest = linear_name(), linear_digest()
        with warnings.catch_warnings():  # saved with an older scikit-learn, which it tells
            warnings.simplefilter("ignore")
            # Unpickles the model of its own wheel at import: installed code, like the library.
            from profanity_check.profanity_check import model, vectorizer
        self._model, self._vectorizer = model, vectorizer

    def _score(self, texts: list[str]) -> np.ndarray:
        scores = np.full((len(texts), len(HEADS)), np.nan, np.float32)
        found = self._each(self._probabilities, texts)
        scores[:, HEADS.index("toxicity")] = [np.nan if one is None else one for one in found]
        return scores

    def _probabilities(self, texts: list[str]) -> np.ndarray:
        return self._model.predict_proba(self._vectorizer.transform(texts))[:, 1]


@cache
def linear_name() -> str:
    return f"alt-profanity-check {library_versions(['alt-profanity-check'])['alt-profanity-check']}"


@cache
def linear_digest() -> str:
    spec = importlib.util.find_spec("profanity_check")  # finds the package without running it
    if spec is None or spec.origin is None:
        raise HallmarkError(
            "the scorer alt-profanity-check is not installed; install alt-profanity-check or "
            "set scorer.kind to detoxify"
        )
    data = Path(spec.origin).parent / "data"
    files = [data / "model.joblib", data / "vectorizer.joblib"]
    return sha256(canonical({path.name: file_digest(path) for path in files}))
