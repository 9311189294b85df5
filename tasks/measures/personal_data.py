"""Personal data and secrets in text: where they stand, by type.

Every detector is a regular expression that finds candidates and, where the type has one, a
check by a library: check digits (python-stdnum), address ranges (ipaddress), numbering plans
(phonenumbers). The expressions start only where a run of their characters starts and repeat a
bounded number of times, so that the work grows with the length of the text and no faster.

What is deliberately left alone: addresses that belong to nobody (127.0.0.1, 10.0.0.0/8, the
documentation ranges), four-part version numbers, and digits that no plan or checksum confirms.
"""

from __future__ import annotations

import ipaddress
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

import pyarrow as pa
import pyarrow.compute as pc

Type = Literal["SECRET", "EMAIL", "IBAN", "CARD", "SSN", "PHONE", "IP"]
TYPES: tuple[Type, ...] = get_args(Type)

#: Countries whose national telephone numbers are looked for unless a config names others.
REGIONS = ("US",)


class Span(NamedTuple):
    """Characters ``start`` to ``end`` of a text, which are of this type."""

    type: Type
    start: int
    end: int


Found = Iterator[tuple[int, int]]


# E-mail ----------------------------------------------------------------------------------------

# Of the characters that RFC 5322 allows before the "@", those in use: with all of them quotation
# marks and "email=" in front would belong to the address.
_EMAIL = re.compile(
    r"(?<![\w%+-])(?<!\w[.'])"
    r"\w(?:[\w.%+-]|'(?=\w)){0,63}"
    r"@(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.){1,8}([^\W\d_]{2,24})(?![\w-]|\.\w|@)"
)
#: "image@2x.png", "dot@product.dtype": what stands behind the last dot is a name, no domain.
_NO_DOMAIN = re.compile("(?i:png|jpe?g|gif|svg|webp|pdf|py|js|ts|css|html|json|txt|dtype|shape)")


def find_emails(text: str, regions: Sequence[str] = ()) -> Found:
    for match in _EMAIL.finditer(text):
        if not _NO_DOMAIN.fullmatch(match[1]) and not match[0].startswith("git@"):
            yield match.span()


# Internet addresses ----------------------------------------------------------------------------

# Not behind "v", "/", "-" or "==": those are version numbers; "//" begins an address in a URL.
_IPV4 = re.compile(r"(?<![\w.-])(?<![=<>~!]=)(?<![^/]/)(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])[23][0-9A-Fa-f]{3}:[0-9A-Fa-f:]{2,34}(?![\w:])")
_VERSION = re.compile(r"(?:version|release|rev|section|v)[\s:=]{0,3}$", re.IGNORECASE)


def find_ips(text: str, regions: Sequence[str] = ()) -> Found:
    """Addresses that route to somebody: global ones.

    Small numbers in all four places are far more often a version or a section than an address:
    at least one must be 32 or more, as in all but 1 of 4,096 random addresses.
    """
    for match in _IPV4.finditer(text):
        if max(map(int, match[0].split("."))) < 32 or match[0].endswith(".0.0.0"):
            continue
        if _is_global(match[0]) and not _VERSION.search(
            text[max(0, match.start() - 12) : match.start()]
        ):
            yield match.span()
    for match in _IPV6.finditer(text):
        if _is_global(match[0]):
            yield match.span()


def _is_global(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return address.is_global and not address.is_multicast


# Cards, bank accounts, social security ---------------------------------------------------------

#: The groups in which the digits are printed; otherwise they must stand without a separator.
_CARD = re.compile(
    r"(?<![\w.+-])(?:"
    r"\d{4}([ -])\d{4}\1\d{4}\1\d{4}(?:\1\d{3})?|\d{4}([ -])\d{6}\2\d{4,5}|\d{13,19}"
    r")(?![\w-]|\.\d)"
)
#: First digits and lengths by issuer (ISO/IEC 7812 ranges as the issuers publish them): Visa,
#: Mastercard, American Express, Discover, Diners Club, JCB, UnionPay.
_ISSUERS = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})"
    r"|(?:5[1-5]\d{2}|222[1-9]|22[3-9]\d|2[3-6]\d{2}|27[01]\d|2720)\d{12}"
    r"|3[47]\d{13}"
    r"|(?:6011|64[4-9]\d|65\d{2})\d{12}"
    r"|3(?:0[0-5]|[68]\d)\d{11}"
    r"|35(?:2[89]|[3-8]\d)\d{12}"
    r"|62\d{14,17}"
)


def find_cards(text: str, regions: Sequence[str] = ()) -> Found:
    from stdnum import luhn

    for match in _CARD.finditer(text):
        digits = match[0].replace(" ", "").replace("-", "")
        # "4111 1111 1111 1111" has structure; "0000..." and powers of ten have none.
        if _ISSUERS.fullmatch(digits) and luhn.is_valid(digits) and len(set(digits)) > 1:
            yield match.span()


_IBAN = re.compile(
    r"(?<![A-Za-z0-9])[A-Z]{2}\d{2}"
    r"(?:[A-Z0-9]{11,30}|(?: [A-Z0-9]{4}){2,7}(?: [A-Z0-9]{1,4})?)(?![A-Za-z0-9])"
)


def find_ibans(text: str, regions: Sequence[str] = ()) -> Found:
    from stdnum import iban

    for match in _IBAN.finditer(text):
        words = match[0].split(" ")
        while len("".join(words)) >= 15:  # words in capitals may follow the number
            if iban.is_valid("".join(words)):
                yield match.start(), match.start() + len(" ".join(words))
                break
            words.pop()


_SSN = re.compile(r"(?<![\w.+-])\d{3}-\d{2}-\d{4}(?![\w-]|\.\d)")


def find_ssns(text: str, regions: Sequence[str] = ()) -> Found:
    from stdnum.us import ssn

    for match in _SSN.finditer(text):
        if ssn.is_valid(match[0]):
            yield match.span()


# Telephone numbers -----------------------------------------------------------------------------

# PhoneNumberMatcher reads about 0.1 MB a second. It is shown candidates only: an international
# number, or groups of digits with the marks of a national one (see _looks_national).
_INTERNATIONAL = re.compile(r"(?<![\w+.])\+[1-9](?:[ ().-]{0,2}\d){6,14}(?!\w|\.\d)")
_NATIONAL = re.compile(
    r"(?<![\w.+/-])(?<!\d )(?:\(\d{2,5}\)[ -]?|\d{2,5}[-. ])"
    r"\d{2,4}(?:[-. ]\d{2,4}){1,3}(?![\w/-]|\.\d| \d)"
)


def find_phones(text: str, regions: Sequence[str] = ()) -> Found:
    from phonenumbers import Leniency, PhoneNumberMatcher

    for match in _INTERNATIONAL.finditer(text):
        if match[0].count(".") == 1:  # a decimal number with its sign
            continue
        for found in PhoneNumberMatcher(match[0], None, Leniency.VALID):
            yield match.start() + found.start, match.start() + found.end
    for match in _NATIONAL.finditer(text):
        if not _looks_national(match[0]):
            continue
        for region in regions:
            # Strict grouping: the digits stand in the groups in which the country writes them.
            hits = PhoneNumberMatcher(match[0], region, Leniency.STRICT_GROUPING)
            spans = [(match.start() + hit.start, match.start() + hit.end) for hit in hits]
            yield from spans
            if spans:
                break


def _looks_national(text: str) -> bool:
    """An area code in parentheses, two hyphens, two dots, or a leading zero between spaces."""
    if text[0] == "(" or text.count("-") >= 2 or text.count(".") == 2:
        return True
    return text[0] == "0" and text[1] != "0" and " " in text


# Secrets ---------------------------------------------------------------------------------------

#: Credentials whose vendors gave them a prefix, so that they can be told from other text.
#: Random-looking strings without one are hashes and digests far more often than secrets.
_SECRETS = tuple(
    re.compile(r"(?<![A-Za-z0-9_-])" + pattern + r"(?![A-Za-z0-9_])")
    for pattern in (
        r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}",  # Amazon Web Services
        r"gh[pousr]_[A-Za-z0-9]{36}",  # GitHub
        r"github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}",
        r"gl(?:pat|dt|ft|soat|rt)-[A-Za-z0-9_-]{20,50}",  # GitLab
        r"xox[abeoprs]-(?:\d{1,16}-){1,4}[A-Za-z0-9]{10,64}",  # Slack
        r"(?:sk|rk)_live_[A-Za-z0-9]{24,99}",  # Stripe
        r"sk-[A-Za-z0-9_-]{16,90}T3BlbkFJ[A-Za-z0-9_-]{16,90}",  # OpenAI
        r"AIza[A-Za-z0-9_-]{35}",  # Google
        r"hf_[A-Za-z]{34}",  # Hugging Face
        r"npm_[A-Za-z0-9]{36}",
        r"pypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{50,1000}",
        r"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}",  # SendGrid
        r"eyJ[A-Za-z0-9_-]{10,2000}\.eyJ[A-Za-z0-9_-]{10,4000}\.[A-Za-z0-9_-]{10,2000}",  # JWT
    )
)
_KEY_MARK = re.compile(r"-----(BEGIN|END) (?:[A-Z]{2,16} ){0,3}PRIVATE KEY(?: BLOCK)?-----")
_KEY_BODY = re.compile(r"[A-Za-z0-9+/=]{40}")


def find_secrets(text: str, regions: Sequence[str] = ()) -> Found:
    for pattern in _SECRETS:
        for match in pattern.finditer(text):
            yield match.span()
    for begin, end in pairwise(_KEY_MARK.finditer(text)):
        # A key has a body: "-----BEGIN ... -----END" in documentation is about keys.
        pair = begin[1] == "BEGIN" and end[1] == "END"
        if pair and _KEY_BODY.search(text, begin.end(), end.start()):
            yield begin.start(), end.end()


# All together ----------------------------------------------------------------------------------

#: Detector and prefilter of each type. The prefilter is a linear-time expression (RE2) that
#: reads whole columns; texts without it are not looked at again.
_DETECTORS: dict[Type, tuple[Callable[[str, Sequence[str]], Found], str]] = {
    "SECRET": (
        find_secrets,
        r"A[KSBC][IC]A[A-Z0-9]{16}|gh[pousr]_[A-Za-z0-9]{36}|github_pat_|gl(?:pat|dt|ft|soat|rt)-"
        r"|xox[abeoprs]-|[sr]k_live_|T3BlbkFJ|AIza|hf_[A-Za-z]{34}|npm_[A-Za-z0-9]{36}"
        r"|pypi-AgEI|SG\.|eyJ[A-Za-z0-9_-]{10}|PRIVATE KEY",
    ),
    "EMAIL": (find_emails, r"[^\s@]@[^\s@]+\."),
    "IBAN": (find_ibans, r"[A-Z]{2}\d{2} ?[A-Z0-9]{4} ?[A-Z0-9]{4}"),
    "CARD": (find_cards, r"\d{4}[ -]?\d{4,6}[ -]?\d{4,5}"),
    "SSN": (find_ssns, r"\d{3}-\d{2}-\d{4}"),
    "PHONE": (find_phones, r"\+[1-9][ ().-]{0,2}\d|\(\d{2,5}\)|\d{2,5}[-. ]\d{2,4}[-. ]\d{2,4}"),
    "IP": (find_ips, r"\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}|[23][0-9A-Fa-f]{3}:[0-9A-Fa-f]*:"),
}  # fmt: skip


def find(text: str, types: Sequence[Type] = TYPES, regions: Sequence[str] = REGIONS) -> list[Span]:
    """The spans of a text, in order, none of which overlap."""
    spans = [
        Span(kind, start, end)
        for kind in types
        for start, end in _DETECTORS[kind][0](text, regions)
    ]
    return resolve(spans)


def find_all(
    texts: pa.Array, types: Sequence[Type] = TYPES, regions: Sequence[str] = REGIONS
) -> dict[int, list[Span]]:
    """The spans of each text of a column that has any, by its row."""
    found: dict[int, list[Span]] = {}
    for kind in types:
        detect, prefilter = _DETECTORS[kind]
        rows = pc.indices_nonzero(pc.match_substring_regex(texts, prefilter))
        for row in rows.to_pylist():
            spans = [Span(kind, *span) for span in detect(texts[row].as_py(), regions)]
            if spans:
                found.setdefault(row, []).extend(spans)
    return {row: resolve(found[row]) for row in sorted(found)}


def resolve(spans: Sequence[Span]) -> list[Span]:
    """Of spans that overlap the longest stays, of equally long ones the type first in TYPES."""
    kept: list[Span] = []
    chain: list[Span] = []  # spans each of which overlaps one before it
    reach = 0
    for span in sorted(spans, key=lambda span: span.start):
        if span.start >= reach:
            kept += _longest(chain)
            chain = []
        chain.append(span)
        reach = max(reach, span.end)
    return kept + _longest(chain)


def _longest(chain: list[Span]) -> list[Span]:
    if len(chain) == 1:
        return chain
    kept: list[Span] = []  # by start; disjoint, so by end as well
    for span in sorted(chain, key=lambda s: (s.start - s.end, TYPES.index(s.type), s.start)):
        place = bisect_left(kept, span.start, key=lambda other: other.start)
        before_ends = place == 0 or kept[place - 1].end <= span.start
        after_starts = place == len(kept) or kept[place].start >= span.end
        if before_ends and after_starts:
            kept.insert(place, span)
    return kept
