"""Estimate the language of texts, and leave uncertain cases undetermined."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.measures.lookalikes import fold_lookalikes, join_spaced_letters

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

UNDETERMINED = "undetermined"

#: Code of text without a language, such as program code.
NO_LANGUAGE = "zxx"

#: Below this probability the language is undetermined. That happens mostly for short texts: in
#: English documentation for about half of those of 20 to 40 bytes and a tenth of 40 to 160.
MIN_CONFIDENCE = 0.5

#: Number of characters of a text that are read.
MAX_CHARACTERS = 1000

#: Largest number of segments of a text; an odd number, so that a majority exists.
MAX_SEGMENTS = 5

#: Least number of characters per segment, unless the text has fewer.
MIN_SEGMENT_CHARACTERS = 200

#: Scripts of languages that are not written in Latin letters, by their names in RE2. A language may
#: have several.
LANGUAGES_BY_SCRIPT = {
    "Arabic": "ar ary arz fa kk ps sd ug ur",
    "Armenian": "hy",
    "Bengali": "as bn",
    "Cyrillic": "ab be bg ce crh cv kk ky mk mn os ru sr tg tt uk uz uzs",
    "Devanagari": "gom hi mr ne sa",
    "Ethiopic": "am ti",
    "Georgian": "ka",
    "Greek": "el grc",
    "Gujarati": "gu",
    "Gurmukhi": "pa",
    "Han": "ja lzh wuu yue zh",
    "Hangul": "ko",
    "Hebrew": "hbo he yi",
    "Hiragana": "ja",
    "Kannada": "kn",
    "Katakana": "ja",
    "Khmer": "km",
    "Lao": "lo",
    "Latin": "crh kk sr tt uz",
    "Malayalam": "ml",
    "Myanmar": "my",
    "Oriya": "or",
    "Sinhala": "si",
    "Tamil": "ta",
    "Telugu": "te",
    "Thai": "th",
    "Tibetan": "bo dz",
}

#: Addresses, which say nothing about the language of the text around them. They have ASCII
#: characters only, because no space separates them from Chinese or Japanese text.
_ADDRESS = re.compile(r"(?:https?://|www\.)[!-~]*|(?<![!-~])[!-?A-~]++@[!-~]*")

#: Strings of letters and digits that are no words, such as hashes, identifiers, times and Base64:
#: eight ASCII characters or more with a digit, and four hexadecimal numbers or more in a row. A
#: text without digits is not searched.
_DIGIT = re.compile("[0-9]")
_CODE = re.compile(
    r"(?<![0-9A-Za-z])(?=[A-Za-z+/=_:.%-]{0,80}[0-9])[0-9A-Za-z+/=_:.%-]{8,}+(?![0-9A-Za-z])"
    r"|(?<![0-9A-Za-z])(?:(?:0x)?(?:[0-9A-Fa-f]{2}){1,4}(?:[^0-9A-Za-z]{1,4}|\Z)){4,}+"
)


class LanguageEstimates(NamedTuple):
    """The most likely languages of n texts."""

    codes: pa.Array
    """(n,) string: ISO 639 codes; "zxx" for no language, such as code."""
    probabilities: pa.Array
    """(n,) float32: probability of the most likely language."""


class LanguageEstimate(NamedTuple):
    """The most likely language of a text."""

    code: str
    probability: float


def estimate_languages(
    texts: pa.Array | pa.ChunkedArray, max_characters: int = MAX_CHARACTERS
) -> LanguageEstimates:
    """Estimate the most likely language of each text by naive Bayes over byte n-grams.

    The classifier knows 140 languages (Lui & Baldwin 2011; py3langid).
    """
    estimates = [_estimate_language(text.as_py(), max_characters) for text in texts]
    codes = pa.array([estimate.code for estimate in estimates], pa.string())
    probabilities = pa.array([estimate.probability for estimate in estimates], pa.float32())
    return LanguageEstimates(codes, probabilities)


def _estimate_language(text: str, max_characters: int) -> LanguageEstimate:
    """Estimate the language in which most segments of a text are written.

    A menu or a list at the beginning is one segment of several. Segments of an undetermined
    language do not count; if all are such, the language is estimated from all segments together.
    The probability is the share of the language among the segments that count, times the mean
    probability of its segments. Reading stops if more than half of all segments are in one
    language.
    """
    segments = _list_segments(text, max_characters)
    if len(segments) == 1:
        return _classify(segments[0])
    segment_counts: Counter[str] = Counter()
    total_probabilities: defaultdict[str, float] = defaultdict(float)
    for segment in segments:
        code, probability = _classify(segment)
        if probability < MIN_CONFIDENCE:
            continue
        segment_counts[code] += 1
        total_probabilities[code] += probability
        if 2 * segment_counts[code] > len(segments):
            break
    if not segment_counts:
        return _classify(" ".join(segments))
    code, total_probability = max(total_probabilities.items(), key=lambda pair: pair[1])
    return LanguageEstimate(code, total_probability / segment_counts.total())


def _list_segments(text: str, max_characters: int) -> list[str]:
    """Return segments that are spread evenly over a text, those in the middle first."""
    character_count = min(len(text), max_characters)
    segment_count = min(character_count // MIN_SEGMENT_CHARACTERS, MAX_SEGMENTS)
    segment_count = max(segment_count - 1 + segment_count % 2, 1)  # an odd number
    size = -(-character_count // segment_count)
    middle = segment_count // 2
    numbers = sorted(range(segment_count), key=lambda number: (abs(number - middle), -number))
    last_start = len(text) - size
    starts = [
        last_start * number // (segment_count - 1) if segment_count > 1 else last_start // 2
        for number in numbers
    ]
    return [text[start : start + size] for start in starts]


def _classify(text: str) -> LanguageEstimate:
    """Estimate the language of a segment from its words, without addresses and codes."""
    text = fold_lookalikes(text)
    if "://" in text or "www." in text or "@" in text:
        text = _ADDRESS.sub(" ", text)
    if _DIGIT.search(text):
        text = _CODE.sub(" ", text)
    text = join_spaced_letters(text)
    code, probability = _load_language_identifier().classify(text)
    return LanguageEstimate(code, float(probability))


def detect_languages(texts: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the ISO 639 code of the language of each text, or UNDETERMINED if it is uncertain."""
    codes, probabilities = estimate_languages(texts)
    return pc.if_else(
        pc.greater_equal(probabilities, pa.scalar(MIN_CONFIDENCE, pa.float32())),
        codes,
        UNDETERMINED,
    )


def mark_texts_in_scripts_of(languages: tuple[str, ...], texts: pa.Array) -> pa.Array:
    """Return which texts have at least half of their letters in the scripts of languages.

    Look-alikes of Latin letters count as these. A text without letters is marked.

    Returns:
        (n,) bool.
    """
    folded_texts = pa.array([fold_lookalikes(text) for text in texts.to_pylist()], texts.type)
    scripts = "".join(rf"\p{{{script}}}" for script in _list_scripts(languages))
    return pc.greater_equal(
        pc.multiply(pc.count_substring_regex(folded_texts, f"[{scripts}]"), 2),
        pc.count_substring_regex(folded_texts, r"\pL"),
    )


def _list_scripts(languages: tuple[str, ...]) -> list[str]:
    scripts = set()
    for language in languages:
        scripts |= {
            script for script, codes in LANGUAGES_BY_SCRIPT.items() if language in codes.split()
        } or {"Latin"}
    return sorted(scripts)


@cache
def _load_language_identifier() -> LanguageIdentifier:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
