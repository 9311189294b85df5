"""Find out whether a page is in another encoding of bytes than it declares.

A page in windows-1251 that declares iso-8859-1 can be decoded, but its text is meaningless
("Ñîâåò"). What a detector reports replaces the declared encoding only if the text shows that the
declared one is wrong: its words are of another script than the encoding is for, or capitals follow
small letters as in "сОВЕТ". Otherwise the detector would too often be wrong, above all about short
pages.

Known limits: encodings of the same script are not distinguished (iso-8859-2 that declares
iso-8859-1), nor are two other scripts (Hebrew that declares windows-1251), and texts that are too
short or without capitals.
"""

from __future__ import annotations

import re
from collections.abc import Callable

#: Codecs of Python for languages in the Latin script.
LATIN_ENCODINGS = frozenset(
    {"cp1250", "cp1252", "cp1254", "cp1257", "cp1258", "mac-roman"}
    | {f"iso8859-{number}" for number in (2, 3, 4, 10, 13, 14, 15, 16)}
)
#: Codecs of single bytes for other scripts.
OTHER_ENCODINGS = frozenset(
    {"cp1251", "cp1253", "cp1255", "cp1256", "cp866", "cp874", "koi8-r", "koi8-u"}
    | {f"iso8859-{number}" for number in (5, 6, 7, 8)}
)

#: Bytes of a page that are examined.
EXAMINED_BYTES = 100_000
#: In a language of another script, words have no letters of ASCII. A word in the Latin script has
#: seldom more than half of its letters outside ASCII.
MIN_OTHER_SHARE, MAX_LATIN_SHARE = 0.8, 0.5
#: Fewer bytes outside ASCII show nothing.
MIN_HIGH_BYTES = 20

# Without the assertion, letters in front of no high byte would take quadratic time.
_WORD_WITH_HIGH_BYTES = re.compile(rb"(?<![A-Za-z])[A-Za-z]*[\x80-\xff][A-Za-z\x80-\xff]*")
_WORD = re.compile(r"[^\W\d_]{2,}")
_CONTROL_CHARACTER = re.compile("[\x80-\x84\x86-\x9f]")


def find_contradicting_encoding(
    data: bytes, declared: str, detect_encodings: Callable[[bytes], list[str]]
) -> str:
    """Return the detected encoding if the declared one is certainly wrong, otherwise "".

    Args:
        declared: The Python codec that the page declares.
        detect_encodings: Returns the codecs that a detector reports for bytes.
    """
    words = _WORD_WITH_HIGH_BYTES.findall(data[:EXAMINED_BYTES])
    high_bytes = sum(len(word.translate(None, bytes(range(128)))) for word in words)
    if high_bytes < MIN_HIGH_BYTES:
        return ""
    share = high_bytes / sum(map(len, words))
    if declared in LATIN_ENCODINGS:
        is_wrong = share >= MIN_OTHER_SHARE
    elif declared in OTHER_ENCODINGS:
        is_wrong = share <= MAX_LATIN_SHARE or _has_inverted_case(data, declared)
    else:
        return ""
    for detected in detect_encodings(data) if is_wrong else []:
        expects_latin = declared in OTHER_ENCODINGS and share <= MAX_LATIN_SHARE
        if (detected in LATIN_ENCODINGS) == expects_latin and _can_decode(data, detected):
            return detected
    return ""


def _has_inverted_case(data: bytes, encoding: str) -> bool:
    """Return whether words begin with a small letter before capitals, and none the other way.

    Text in KOI8-R that is decoded as windows-1251, or the other way round, is like that.
    """
    words = _WORD.findall(data[:EXAMINED_BYTES].decode(encoding, "ignore"))
    other_words = [word for word in words if not word.isascii()]
    inverted_count = sum(word[0].islower() and word[1:].isupper() for word in other_words)
    usual_count = sum(word[0].isupper() and word[1:].islower() for word in other_words)
    return bool(inverted_count > usual_count)


def _can_decode(data: bytes, encoding: str) -> bool:
    """Return whether data are valid in an encoding, and no control characters are in the text."""
    try:
        return not _CONTROL_CHARACTER.search(data.decode(encoding))
    except UnicodeDecodeError:
        return False
