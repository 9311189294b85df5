"""Estimate the language of texts, and leave uncertain cases undetermined."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

UNDETERMINED = "undetermined"

#: Below this probability the language is undetermined. That happens mostly for short texts: in
#: English documentation for about half of those of 20 to 40 bytes and a tenth of 40 to 160.
MIN_CONFIDENCE = 0.5

#: Number of characters that are read, from the beginning of a text.
MAX_CHARACTERS = 1000


class LanguageEstimates(NamedTuple):
    """The most likely languages of n texts."""

    codes: pa.Array
    """(n,) string: ISO 639 codes; "zxx" for no language, such as code."""
    probabilities: pa.Array
    """(n,) float32: probability of the most likely language."""


def estimate_languages(
    texts: pa.Array | pa.ChunkedArray, max_characters: int = MAX_CHARACTERS
) -> LanguageEstimates:
    """Estimate the most likely language of each text by naive Bayes over byte n-grams.

    The classifier knows 140 languages (Lui & Baldwin 2011; py3langid).
    """
    classify = _load_language_identifier().classify
    classifications = [
        classify(text) for text in pc.utf8_slice_codeunits(texts, 0, max_characters).to_pylist()
    ]
    codes = pa.array([code for code, _ in classifications], pa.string())
    probabilities = [float(probability) for _, probability in classifications]
    return LanguageEstimates(codes, pa.array(probabilities, pa.float32()))


def detect_languages(texts: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the ISO 639 code of the language of each text, or UNDETERMINED if it is uncertain."""
    codes, probabilities = estimate_languages(texts)
    return pc.if_else(
        pc.greater_equal(probabilities, pa.scalar(MIN_CONFIDENCE, pa.float32())),
        codes,
        UNDETERMINED,
    )


@cache
def _load_language_identifier() -> LanguageIdentifier:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
