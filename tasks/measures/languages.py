"""The language that a text is written in: an estimate, with its uncertain cases left open."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

UNDETERMINED = "undetermined"

#: Below this probability a text counts as undetermined. Short texts mostly stay below: of English
#: documentation about half the texts of 20 to 40 bytes do, a tenth of those of 40 to 160.
MIN_CONFIDENCE = 0.5

#: Characters of a text that are looked at, from its beginning.
MAX_CHARACTERS = 1000


def estimate_languages(
    texts: pa.Array | pa.ChunkedArray, max_characters: int = MAX_CHARACTERS
) -> tuple[Any, Any]:
    """The most likely language of each text and its probability: (n,) string and (n,) float32.

    ISO 639 codes; "zxx" is no language, as code. By naive Bayes over byte n-grams, trained on 140
    languages (Lui & Baldwin 2011; py3langid).
    """
    classify = _load_language_identifier().classify
    classifications = [
        classify(text) for text in pc.utf8_slice_codeunits(texts, 0, max_characters).to_pylist()
    ]
    codes = pa.array([code for code, _ in classifications], pa.string())
    return codes, pa.array([float(probability) for _, probability in classifications], pa.float32())


def detect_languages(texts: pa.Array | pa.ChunkedArray) -> pa.Array:
    """ISO 639 code of the language of each text, see ``estimate``, or UNDETERMINED."""
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
