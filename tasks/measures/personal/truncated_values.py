"""Find parts of personal data and secrets that are cut off at the ends of a text.

The detectors of `personal_data` need complete values: check digits, numbering plans, whole
addresses. A text that a model generated up to its token limit, or a window of a document, may
contain only the first or last part of a value. A part cannot be verified, so these expressions use
only its shape, at the very end or beginning of a text; a few characters such as a quote may follow
the part of a secret. A vendor's prefix identifies a key anywhere, even a truncated one. Use these
expressions to redact text that people would see, not to count: they have false positives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hallmark.tasks.measures.personal.contact_details import WORD_CHARACTER
from hallmark.tasks.measures.personal.folding import fold_digits_and_separators
from hallmark.tasks.measures.personal.national_ids import CONTEXT_CHARS_BEFORE, NATIONAL_ID_FORMATS
from hallmark.tasks.measures.personal.secrets import CREDENTIAL_NAMES_IN_OTHER_LANGUAGES
from hallmark.tasks.measures.personal.types import PersonalDataType, Span, country_of_type
from hallmark.tasks.measures.personal.vendor_keys import VENDOR_KEY_FORMATS

#: Number of characters searched at each end of a text; only a private key may be longer.
SEARCHED_CHARACTERS = 400

_LOCAL_PART = r"[\w.%+'-]{1,64}"
#: Characters of keys, tokens and passwords.
_CREDENTIAL_CHARACTER = r"[A-Za-z0-9+/=_.~!@#$%^&*?-]"
#: A word that announces a secret; "key" must not be the end of a word such as "turkey".
_OTHER_CREDENTIAL_WORDS = (
    r"token|secret|passw(?:or)?d|pwd|passphrase|credentials?"
    rf"|{'|'.join(CREDENTIAL_NAMES_IN_OTHER_LANGUAGES)}"
)
_CREDENTIAL_WORD = (
    rf"(?i:(?:(?<![a-z])|(?<=api)|(?<=secret)|(?<=access))key|{_OTHER_CREDENTIAL_WORDS})"
)
#: What may follow it: the rest of a name, closing quotes and brackets, and marks of Markdown.
_END_OF_NAME = r"(?:[_-][A-Za-z0-9]{1,12}){0,3}[\"'`\])*]{0,4}[ \t]{0,3}"

#: Characters allowed between the part of a secret and the end of the text, which close a quotation,
#: a list or a sentence.
_CLOSING_PUNCTUATION = r"[\"'`)\]}>.,;…*]{0,4}"

#: Quick checks: shapes are tried only if the end of a text has their cue, and most texts have none.
_CUE_PATTERNS = {
    "address": r"@|(?i:mail)",
    "digit": r"\d[^\d]{0,7}\Z",
    "token": r"[A-Za-z0-9]{2}[-_.:]|A[KSBC][IC]A|AIza|eyJ|dapi|:AA|SK[0-9a-f]|EAA|LTAI|ATATT3",
    "connection": r"://[^\s:/]{0,64}:",
    # The words are many and slow to search for; most texts have no sign that may follow them.
    "assignment": rf"(?s:\A(?=[^=:]*[=:]).*?{_CREDENTIAL_WORD})",
    "iban": r"(?i:iban)",
}
#: Maximum distance of the start of a value from the end of the text, by cue.
_MAX_CHARACTERS = {
    "address": 260,
    "digit": 80,
    "token": SEARCHED_CHARACTERS,
    "connection": 240,
    "assignment": 240,
    "iban": 60,
}


@dataclass(frozen=True)
class TruncatedShape:
    """The shape of a value that is cut off at the end of a text."""

    type: PersonalDataType
    cue: str
    """Name in `_CUE_PATTERNS` of the check that must match first."""
    pattern: str
    """Matches up to the end; the span is the group "value", or the whole match without one."""

    @cached_property
    def compiled_pattern(self) -> re.Pattern[str]:
        closers = _CLOSING_PUNCTUATION if self.type == "SECRET" else ""
        return re.compile(rf"(?:{self.pattern})(?P<closers>{closers})\Z")

    def find_span(self, text: str) -> tuple[int, int] | None:
        """Return the span of the value in a text without trailing white space, or None."""
        match = self.compiled_pattern.search(text, max(0, len(text) - _MAX_CHARACTERS[self.cue]))
        if match is None:
            return None
        if "value" in self.compiled_pattern.groupindex:
            return match.span("value")
        return match.start(), match.start("closers")


#: A prefix must not start inside a word.
_NOT_WITHIN_WORD = r"(?<![A-Za-z0-9_-])"

#: Digits without a context word or a typical format count from the seventh on: the first six digits
#: of a card number identify its issuer, and PCI DSS allows showing them.
_END_SHAPES = (
    TruncatedShape("EMAIL", "address", rf"(?<![\w.%+'-]){_LOCAL_PART}@[\w.-]{{0,190}}"),
    TruncatedShape(
        "EMAIL",
        "address",
        r"(?:(?i:e-?mail|mailto)(?: address)?(?: is)?|@) ?[:=<(]{1,2} ?[\"'<(]?"
        rf"(?P<value>{_LOCAL_PART})",
    ),
    TruncatedShape(
        "PHONE",
        "digit",
        rf"(?<!{WORD_CHARACTER})(?<![+.])\+[1-9](?:[ ().-]{{0,2}}\d){{2,14}}[ ().-]{{0,2}}",
    ),
    TruncatedShape(
        "PHONE",
        "digit",
        rf"(?<!{WORD_CHARACTER})\((?:0\d{{1,4}}|\d{{3}})\)[ -]?\d{{1,4}}(?:[-. ]\d{{0,4}}){{0,3}}",
    ),
    TruncatedShape(
        "PHONE", "digit", rf"(?<!{WORD_CHARACTER})(?:1-)?\d{{3}}([-.])\d{{3}}\1\d{{0,3}}"
    ),
    TruncatedShape(
        "PHONE",
        "digit",
        rf"(?<!{WORD_CHARACTER})(?<!\d )0[1-9]\d{{0,3}} \d{{2,4}}(?:[ -]\d{{0,4}}){{0,3}}",
    ),
    TruncatedShape(
        "PHONE",
        "digit",
        r"(?<![A-Za-z])(?i:tel|phone|telephone|call|fax|mobile|cell|dial|whatsapp|sms|telefon)"
        r"(?: number| no)?[.:]{0,2} ?"
        # Three separated digits are not a phone number: "Please call 2 10".
        r"(?P<value>(?=[+(0]|\d{3}|(?:\d[ ().-]{0,3}){4})[+(]?\d[\d ().-]{2,20})",
    ),
    TruncatedShape(
        "CARD",
        "digit",
        rf"(?<!{WORD_CHARACTER})(?<![.+-])(?:[3-6]\d|2[2-7])\d\d([ "
        rf"-]?)\d{{3,6}}(?:\1\d{{1,6}}){{0,3}}\1?",
    ),
    TruncatedShape(
        "CARD",
        "digit",
        r"(?i:card|visa|mastercard|amex|american express)(?i: number| no)?\W{1,3}"
        r"(?:(?i:is|ends in|ending in)\W)?(?P<value>\d[\d -]{2,22})",
    ),
    TruncatedShape(
        "IBAN",
        "digit",
        r"(?<![A-Za-z0-9])[A-Z]{2}\d{2}([ -]?)[A-Z0-9]{4}(?:\1[A-Z0-9]{4}){0,7}"
        r"(?:\1[A-Z0-9]{1,3})?(?:\1)?",
    ),
    TruncatedShape(
        "IBAN",
        "iban",
        r"(?i:iban)\W{0,3}"
        r"(?P<value>[A-Z]{2}\d{0,2}[A-Z0-9 -]{0,36}|[a-z]{2}\d{2}[a-z0-9 -]{0,36})",
    ),
    TruncatedShape("SSN", "digit", rf"(?<!{WORD_CHARACTER})(?<![.+-])\d{{3}}-\d{{2}}-\d{{0,3}}"),
    TruncatedShape(
        "IP",
        "digit",
        rf"(?<!{WORD_CHARACTER})(?<![.-])(?<![=<>~!]=)(?<![^/]/)(?!10\.|127\.|192\.168\.)"
        r"(?=[\d.]*(?:3[2-9]|[4-9]\d|\d{3}))(?:\d{1,3}\.){3}\d{0,2}",
    ),
    TruncatedShape(
        "IP",
        "digit",
        rf"(?<!{WORD_CHARACTER})(?<![:.])[23][0-9A-Fa-f]{{3}}:[0-9A-Fa-f]{{1,4}}:[0-9A-Fa-f:]{{0,32}}",
    ),
    TruncatedShape(
        "SECRET",
        "token",
        rf"{_NOT_WITHIN_WORD}(?:{'|'.join(f.truncated_pattern for f in VENDOR_KEY_FORMATS)})",
    ),
    TruncatedShape(
        "SECRET",
        "connection",
        # A port or its placeholder is not a password: "localhost:8080", "localhost:{port}".
        r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s:/@\"'<>\[]{0,64}:"
        r"(?!\d{1,5}_{0,2}(?!\w)|[$%{<]|(?i:port)(?!\w))[^\s/@\"'<>]{1,128}",
    ),
    TruncatedShape(
        "SECRET",
        "assignment",
        rf"{_CREDENTIAL_WORD}{_END_OF_NAME}(?:=>?[ \t]{{0,3}}[\"'`]?|:[ \t]{{0,3}}[\"'`])"
        rf"(?P<value>(?![$%{{<*]){_CREDENTIAL_CHARACTER}{{2,200}})",
    ),
    # A lower-case word after a colon is prose: "The secret: patience".
    TruncatedShape(
        "SECRET",
        "assignment",
        rf"{_CREDENTIAL_WORD}{_END_OF_NAME}:\*{{0,2}}[ \t]{{0,3}}"
        rf"(?P<value>(?=[a-z]*[A-Z0-9_/+~!@#$^&-])(?![$%{{<*]){_CREDENTIAL_CHARACTER}{{4,200}})",
    ),
)

#: Values that are cut off at the beginning of a text.
_START_PATTERNS: tuple[tuple[PersonalDataType, str], ...] = (
    ("EMAIL", r"@[^\W_][\w-]{0,62}(?:\.[\w-]{1,63}){1,8}"),
    ("PHONE", r"[\d() -]{0,12}\d{3}[ -]\d{4}(?![\w-])"),
    ("CARD", r"\d{0,6}(?:[ -]\d{4,6}){2,4}(?![\w-]|\.\d)"),
    ("CARD", r"\d{9,18}(?![\w-]|\.\d)"),
    (
        "IBAN",
        r"(?=(?:[A-Z ]{0,8}\d){8})[A-Z0-9]{0,4}(?: [A-Z0-9]{4}){1,7}(?: [A-Z0-9]{1,4})?(?![\w-])",
    ),
    ("IBAN", r"(?=(?:[A-Z]{0,8}\d){8})[A-Z0-9]{9,32}(?![\w-])"),
)

_START_CUE = re.compile(r"@|[A-Z0-9() -]{0,9}\d")
_VENDOR_KEY_ANYWHERE = re.compile(
    rf"{_NOT_WITHIN_WORD}(?:{'|'.join(f.anywhere_pattern for f in VENDOR_KEY_FORMATS)})"
)
#: RE2 expressions, of which each text with a part of a value matches one: it has a cue at one of
#: its ends, or the prefix of a key. They read folded texts without white space at the ends.
_PREFILTERS = (
    r"@|\A[A-Z0-9() -]{0,9}[0-9]|[0-9][^0-9]{0,7}\z|://[^\s:/]{0,64}:|PRIVATE KEY|(?i:mail|iban)",
    "|".join(f"{f.prefix}{f.characters}{{{f.min_characters_at_end}}}" for f in VENDOR_KEY_FORMATS),
    rf"(?i:key|{_OTHER_CREDENTIAL_WORDS})[A-Za-z0-9_\]\"'`)* \t-]*[=:]",
    # Python, but not RE2, takes these for the letter i, whatever its case.
    "[\u0130\u0131]",
)
_NUMBER_AT_END = re.compile(rf"(?<!{WORD_CHARACTER})\d[\d ./-]{{2,24}}\Z")
_PRIVATE_KEY_BOUNDARY = re.compile(
    r"-----(BEGIN|END) (?:[A-Z]{2,16} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
)


def find_truncated_values(text: str, regions: Sequence[str] = ()) -> Iterator[Span]:
    """Find parts of values that may be cut off at the ends of a text, and keys anywhere.

    Args:
        text: The text as it is shown.
        regions: Countries whose national numbers are expected after a context word.

    Yields:
        Spans, which may overlap.
    """
    folded = fold_digits_and_separators(text)
    for key in _VENDOR_KEY_ANYWHERE.finditer(folded):
        yield Span("SECRET", *key.span())
    end = folded.rstrip()[-SEARCHED_CHARACTERS:]
    start = len(folded.rstrip()) - len(end)
    cues = {name for name, pattern in _compile_pattern_by_cue().items() if pattern.search(end)}
    for shape in _END_SHAPES if cues else ():
        if shape.cue in cues and (span := shape.find_span(end)):
            yield Span(shape.type, start + span[0], start + span[1])
    number = _NUMBER_AT_END.search(end) if "digit" in cues else None
    if number:
        preceding_text = end[max(0, number.start() - CONTEXT_CHARS_BEFORE) : number.start()]
        for data_type, context_pattern in _compile_national_id_announcements(tuple(regions)):
            if context_pattern.search(preceding_text):
                yield Span(data_type, start + number.start(), start + number.end())
    leading_blanks = len(folded) - len(folded.lstrip())
    # Every start pattern begins with "@" or has a digit among its first characters.
    start_cue = _START_CUE.match(folded, leading_blanks)
    for data_type, pattern in _compile_start_patterns() if start_cue else ():
        if match := pattern.match(folded, leading_blanks, leading_blanks + SEARCHED_CHARACTERS):
            yield Span(data_type, *match.span())
    key_boundaries = list(_PRIVATE_KEY_BOUNDARY.finditer(folded)) if "PRIVATE KEY" in folded else []
    if key_boundaries and key_boundaries[-1][1] == "BEGIN":
        yield Span("SECRET", key_boundaries[-1].start(), len(text))
    if key_boundaries and key_boundaries[0][1] == "END":
        yield Span("SECRET", 0, key_boundaries[0].end())


def may_have_truncated_values(texts: Sequence[str]) -> NDArray[np.bool_]:
    """Return for each text whether `find_truncated_values` may find a part of a value in it.

    Searching a column for what all such texts contain is much faster than searching each text.
    """
    column = pa.array([fold_digits_and_separators(text).strip() for text in texts], pa.string())
    is_candidate = np.zeros(len(texts), bool)
    for prefilter in _PREFILTERS:
        is_candidate |= pc.match_substring_regex(column, prefilter).to_numpy(zero_copy_only=False)
    return is_candidate


@cache
def _compile_pattern_by_cue() -> dict[str, re.Pattern[str]]:
    return {name: re.compile(pattern) for name, pattern in _CUE_PATTERNS.items()}


class _TypedPattern(NamedTuple):
    """A pattern that indicates a type of personal data."""

    type: PersonalDataType
    pattern: re.Pattern[str]


@cache
def _compile_start_patterns() -> list[_TypedPattern]:
    return [_TypedPattern(data_type, re.compile(pattern)) for data_type, pattern in _START_PATTERNS]


@cache
def _compile_national_id_announcements(countries: tuple[str, ...]) -> list[_TypedPattern]:
    """Compile the words that announce a national number of these countries."""
    return [
        _TypedPattern(
            id_format.type,
            re.compile(rf"(?i)(?<![A-Za-z\u00c0-\u04ff])(?:{id_format.context_words})\W"),
        )
        for id_format in NATIONAL_ID_FORMATS
        if id_format.context_words and country_of_type(id_format.type) in countries
    ]
