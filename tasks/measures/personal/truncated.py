"""Parts of personal data and secrets, which the ends of a text cut off.

The detectors of ``tasks.measures.personal_data`` look for complete values: check digits, numbering
plans, whole addresses. A text that a model wrote up to its token limit, or a window of a document,
may hold the first or the last part of one. Such a part cannot be verified, so these expressions go
by its shape alone, and only at the very end or beginning of a text; a few characters may close the
part of a secret, as a quote does. The prefix of a vendor tells a secret anywhere, also one that is
shorter than complete ones. They are for hiding text that people would otherwise see, not for
counting: they find more than there is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from tasks.measures.personal.contact import WORD
from tasks.measures.personal.folding import fold
from tasks.measures.personal.national import BEFORE, NUMBERS
from tasks.measures.personal.types import Type, country

#: Characters at each end of a text that are searched; only a private key may be longer.
REACH = 400

_LOCAL = r"[\w.%+'-]{1,64}"
#: Characters of keys, tokens and passwords.
_VALUE = r"[A-Za-z0-9+/=_.~!@#$%^&*?-]"
#: A word that says that a secret follows; "key" is not the end of another word, such as "turkey".
_CREDENTIAL = (
    r"(?i:(?:(?<![a-z])|(?<=api)|(?<=secret)|(?<=access))key"
    r"|token|secret|passw(?:or)?d|pwd|passphrase|credentials?)"
)

#: What may stand between the part of a secret and the end of the text: it closes a quotation, a
#: list or a sentence.
_CLOSERS = r"[\"'`)\]}>.,;…*]{0,4}"

#: What the end of a text must hold before its shapes are tried: most texts have none of it.
_CUES = {
    "address": r"@|(?i:mail)",
    "digit": r"\d[^\d]{0,7}\Z",
    "token": r"[A-Za-z0-9]{2}[-_.:]|A[KSBC][IC]A|AIza|eyJ|dapi|:AA",
    "connection": r"://[^\s:/]{0,64}:",
    "assignment": _CREDENTIAL,
    "iban": r"(?i:iban)",
}


@dataclass(frozen=True)
class Shape:
    """What a value that the end of a text cuts off looks like."""

    type: Type
    cue: str
    """The entry of ``_CUES`` without which it is not tried."""
    reach: int
    """Characters from the end in which it must begin."""
    pattern: str
    """Matched up to the end; the group "value", where there is one, is what is hidden."""

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        closers = _CLOSERS if self.type == "SECRET" else ""
        return re.compile(rf"(?:{self.pattern})(?P<closers>{closers})\Z")

    def search(self, text: str) -> tuple[int, int] | None:
        """Return the span of the value in a text that ends with the last character that counts."""
        match = self.compiled.search(text, max(0, len(text) - self.reach))
        if match is None:
            return None
        if "value" in self.compiled.groupindex:
            return match.span("value")
        return match.start(), match.start("closers")


@dataclass(frozen=True)
class Vendor:
    """The prefix by which a vendor's keys are told, and what follows it."""

    prefix: str
    characters: str
    """The class of characters that follow the prefix."""
    most: int
    """How many of them a complete key has at most."""
    least: int = 0
    """How many must be there at the end of a text."""
    told_by: str = r"\d"
    """What the first characters must hold within a text, so that they are no word."""

    @property
    def at_end(self) -> str:
        return rf"{self.prefix}{self.characters}{{{self.least},{self.most}}}"

    @property
    def anywhere(self) -> str:
        """Any key that is long enough to be no chance; one that is complete is found as well."""
        holds = rf"(?={self.characters}{{0,40}}?{self.told_by})"
        return rf"{self.prefix}{holds}{self.characters}{{8,400}}"


_DIGIT_AND_CAPITAL = r"(?:\d[\w-]{0,40}?[A-Z]|[A-Z][\w-]{0,40}?\d)"

#: What a prefix does not follow: it would be within a word.
_NO_VENDOR_BEFORE = r"(?<![A-Za-z0-9_-])"

#: Those of ``tasks.measures.personal.secrets``.
_VENDORS = (
    # Alone they are words, as is "ASIANS".
    Vendor(r"(?:AKIA|ASIA(?!NS?(?![A-Z0-9]))|ABIA|ACCA)", "[A-Z0-9]", 16, least=1),
    Vendor(r"gh[pousr]_", "[A-Za-z0-9]", 36),
    Vendor(r"github_pat_", "[A-Za-z0-9_]", 82),
    Vendor(r"gl(?:pat|dt|ft|soat|rt)-", "[A-Za-z0-9_-]", 50),
    Vendor(r"xox[abeoprs]-", "[A-Za-z0-9-]", 140),
    Vendor(r"(?:sk|rk)_live_", "[A-Za-z0-9]", 99),
    Vendor(r"sk-ant-", "[A-Za-z0-9_-]", 120),
    # Style sheets have classes such as "sk-fading-circle12".
    Vendor(r"sk-", "[A-Za-z0-9_-]", 190, least=8, told_by=_DIGIT_AND_CAPITAL),
    Vendor(r"AIza", "[A-Za-z0-9_-]", 35),
    # These hold letters alone.
    Vendor(r"hf_", "[A-Za-z]", 34, told_by=r"[A-Z]{2}"),
    Vendor(r"npm_", "[A-Za-z0-9]", 36),
    Vendor(r"pypi-AgE", "[A-Za-z0-9_-]", 390),
    Vendor(r"SG\.", "[A-Za-z0-9_.-]", 66, least=4, told_by=_DIGIT_AND_CAPITAL),
    Vendor(r"GOCSPX-", "[A-Za-z0-9_-]", 28),
    Vendor(r"dop_v1_", "[0-9a-f]", 64),
    Vendor(r"shp(?:at|ca|pa|ss)_", "[0-9a-f]", 32),
    Vendor(r"dapi", "[0-9a-f]", 32, least=4),
    Vendor(r"\d{8,10}:AA", "[A-Za-z0-9_-]", 33),
    Vendor(r"eyJ", "[A-Za-z0-9_.-]", 390, least=4),
)

#: Digits that no word and no form announces are hidden from the seventh on: the first six of a
#: card number name its issuer, and PCI DSS allows them to be shown.
_AT_END = (
    Shape("EMAIL", "address", 260, rf"(?<![\w.%+'-]){_LOCAL}@[\w.-]{{0,190}}"),
    Shape(
        "EMAIL",
        "address",
        100,
        r"(?:(?i:e-?mail|mailto)(?: address)?(?: is)?|@) ?[:=<(]{1,2} ?[\"'<(]?"
        rf"(?P<value>{_LOCAL})",
    ),
    Shape(
        "PHONE",
        "digit",
        50,
        rf"(?<!{WORD})(?<![+.])\+[1-9](?:[ ().-]{{0,2}}\d){{2,14}}[ ().-]{{0,2}}",
    ),
    Shape(
        "PHONE",
        "digit",
        40,
        rf"(?<!{WORD})\((?:0\d{{1,4}}|\d{{3}})\)[ -]?\d{{1,4}}(?:[-. ]\d{{0,4}}){{0,3}}",
    ),
    Shape("PHONE", "digit", 20, rf"(?<!{WORD})(?:1-)?\d{{3}}([-.])\d{{3}}\1\d{{0,3}}"),
    Shape(
        "PHONE",
        "digit",
        30,
        rf"(?<!{WORD})(?<!\d )0[1-9]\d{{0,3}} \d{{2,4}}(?:[ -]\d{{0,4}}){{0,3}}",
    ),
    Shape(
        "PHONE",
        "digit",
        60,
        r"(?<![A-Za-z])(?i:tel|phone|telephone|call|fax|mobile|cell|dial|whatsapp|sms|telefon)"
        r"(?: number| no)?[.:]{0,2} ?"
        # Three digits of which no three stand together are none: "Please call 2 10".
        r"(?P<value>(?=[+(0]|\d{3}|(?:\d[ ().-]{0,3}){4})[+(]?\d[\d ().-]{2,20})",
    ),
    Shape(
        "CARD",
        "digit",
        30,
        rf"(?<!{WORD})(?<![.+-])(?:[3-6]\d|2[2-7])\d\d([ -]?)\d{{3,6}}(?:\1\d{{1,6}}){{0,3}}\1?",
    ),
    Shape(
        "CARD",
        "digit",
        80,
        r"(?i:card|visa|mastercard|amex|american express)(?i: number| no)?\W{1,3}"
        r"(?:(?i:is|ends in|ending in)\W)?(?P<value>\d[\d -]{2,22})",
    ),
    Shape(
        "IBAN",
        "digit",
        50,
        r"(?<![A-Za-z0-9])[A-Z]{2}\d{2} ?[A-Z0-9]{4}(?: ?[A-Z0-9]{4}){0,7}(?: ?[A-Z0-9]{1,3})? ?",
    ),
    Shape("IBAN", "iban", 60, r"(?i:iban)\W{0,3}(?P<value>[A-Z]{2}\d{0,2}[A-Z0-9 ]{0,36})"),
    Shape("SSN", "digit", 20, rf"(?<!{WORD})(?<![.+-])\d{{3}}-\d{{2}}-\d{{0,3}}"),
    Shape(
        "IP",
        "digit",
        20,
        rf"(?<!{WORD})(?<![.-])(?<![=<>~!]=)(?<![^/]/)(?!10\.|127\.|192\.168\.)"
        r"(?=[\d.]*(?:3[2-9]|[4-9]\d|\d{3}))(?:\d{1,3}\.){3}\d{0,2}",
    ),
    Shape(
        "IP",
        "digit",
        50,
        rf"(?<!{WORD})(?<![:.])[23][0-9A-Fa-f]{{3}}:[0-9A-Fa-f]{{1,4}}:[0-9A-Fa-f:]{{0,32}}",
    ),
    Shape(
        "SECRET",
        "token",
        REACH,
        rf"{_NO_VENDOR_BEFORE}(?:{'|'.join(vendor.at_end for vendor in _VENDORS)})",
    ),
    Shape(
        "SECRET",
        "connection",
        240,
        # A port is no password, nor is what stands for one: "localhost:8080", "localhost:{port}".
        r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s:/@\"'<>\[]{0,64}:"
        r"(?!\d{1,5}_{0,2}(?!\w)|[$%{<]|(?i:port)(?!\w))[^\s/@\"'<>]{1,128}",
    ),
    Shape(
        "SECRET",
        "assignment",
        240,
        rf"{_CREDENTIAL}[\"'`]?[ \t]{{0,3}}(?:=>?[ \t]{{0,3}}[\"'`]?|:[ \t]{{0,3}}[\"'`])"
        rf"(?P<value>(?![$%{{<*]){_VALUE}{{2,200}})",
    ),
    # A word in small letters after a colon is prose: "The secret: patience".
    Shape(
        "SECRET",
        "assignment",
        240,
        rf"{_CREDENTIAL}[ \t]{{0,3}}:[ \t]{{0,3}}"
        rf"(?P<value>(?=[a-z]*[A-Z0-9_/+~!@#$^&-])(?![$%{{<*]){_VALUE}{{4,200}})",
    ),
)

#: Values that the beginning of a text cuts off.
_AT_START: tuple[tuple[Type, str], ...] = (
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
_WITH_VENDOR = re.compile(
    rf"{_NO_VENDOR_BEFORE}(?:{'|'.join(vendor.anywhere for vendor in _VENDORS)})"
)
_NUMBER_AT_END = re.compile(rf"(?<!{WORD})\d[\d ./-]{{2,24}}\Z")
_KEY_MARK = re.compile(r"-----(BEGIN|END) (?:[A-Z]{2,16} ){0,3}PRIVATE KEY(?: BLOCK)?-----")


def find_truncated(text: str, regions: Sequence[str] = ()) -> Iterator[tuple[Type, int, int]]:
    """Find the parts of values that the ends of a text may have cut off, and of keys anywhere.

    Args:
        text: The text as it is shown; its ends are where something may be missing.
        regions: Countries whose national numbers are expected where a word announces them.

    Yields:
        The type, the first character and the one after the last; parts may overlap.
    """
    folded = fold(text)
    for key in _WITH_VENDOR.finditer(folded):
        yield "SECRET", *key.span()
    end = folded.rstrip()[-REACH:]
    start = len(folded.rstrip()) - len(end)
    cues = {name for name, cue in _compiled_cues() if cue.search(end)}
    for shape in _AT_END if cues else ():
        if shape.cue in cues and (span := shape.search(end)):
            yield shape.type, start + span[0], start + span[1]
    number = _NUMBER_AT_END.search(end, max(0, len(end) - 30)) if "digit" in cues else None
    if number:
        near = end[max(0, number.start() - BEFORE) : number.start()]
        for kind, words in _announcing_words(tuple(regions)):
            if words.search(near):
                yield kind, start + number.start(), start + number.end()
    blank = len(folded) - len(folded.lstrip())
    # Each of them begins with "@" or has a digit among its first characters.
    starts = _START_CUE.match(folded, blank)
    for kind, pattern in _compiled_starts() if starts else ():
        if match := pattern.match(folded, blank, blank + REACH):
            yield kind, *match.span()
    marks = list(_KEY_MARK.finditer(folded)) if "PRIVATE KEY" in folded else []
    if marks and marks[-1][1] == "BEGIN":
        yield "SECRET", marks[-1].start(), len(text)
    if marks and marks[0][1] == "END":
        yield "SECRET", 0, marks[0].end()


@cache
def _compiled_cues() -> list[tuple[str, re.Pattern[str]]]:
    return [(name, re.compile(pattern)) for name, pattern in _CUES.items()]


@cache
def _compiled_starts() -> list[tuple[Type, re.Pattern[str]]]:
    return [(kind, re.compile(pattern)) for kind, pattern in _AT_START]


@cache
def _announcing_words(regions: tuple[str, ...]) -> list[tuple[Type, re.Pattern[str]]]:
    """The words that announce a number of these countries, by its type."""
    return [
        (number.type, re.compile(rf"(?i)(?<![A-Za-z\u00c0-\u04ff])(?:{number.words})\W"))
        for number in NUMBERS
        if number.words and country(number.type) in regions
    ]
