"""Where somebody is reached: e-mail addresses, internet addresses, telephone numbers."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

Found = Iterator[tuple[int, int]]

#: What no number touches: digits and the letters of scripts that set words apart by spaces. Others,
#: such as Chinese and Thai, stand right beside it.
WORD = "[0-9A-Za-z_\u00c0-\u04ff]"
#: In a negated class, letters and digits of these scripts: what they are not.
NEAR = r"\W\u0500-\u1dff\u2000-\U0010ffff"


class TooMuch(Exception):
    """A text has more candidates than can be checked in reasonable time."""


# E-mail ----------------------------------------------------------------------------------------

# Of the characters that RFC 5322 allows before the "@", those in use: with all of them quotation
# marks and "email=" in front would belong to the address.
# Chinese and Thai stand right beside an address: no part of one mixes them with letters of scripts
# that set words apart. In a negated class, as NEAR: the others; all.
_FAR = r"\W\x00-\u04ff\u1e00-\u1fff"
_NONE = r"\W"


def _local(*classes: str) -> re.Pattern[str]:
    """Read backwards from the "@", which is rare where letters are not."""
    parts = (
        rf"(?<![^{no}])(?<![%+-])(?<![^{no}][.'])[^{no}](?:[^{no}]|[.%+-]|'(?=[^{no}])){{0,63}}\Z"
        for no in classes
    )
    return re.compile("|".join(parts))


def _labels(no: str) -> str:
    return rf"(?:[^_{no}](?:(?:[^{no}]|-){{0,61}}[^_{no}])?\.){{1,8}}"


def _top(no: str) -> str:
    return rf"[^\d_{no}]{{2,24}}(?![^{no}]|-|\.[^{no}]|@)"


_LOCAL = _local(NEAR, _FAR)
#: At a domain of other scripts their names may hold digits.
_LOCAL_ABROAD = _local(NEAR, r"\W\x00-/:-\u04ff\u1e00-\u1fff")
_DOMAIN = re.compile(
    rf"@(?:{_labels(NEAR)}{_top(NEAR)}"
    rf"|(?P<abroad>{_labels(_NONE)}(?:{_top(NEAR)}|{_top(_FAR)})))"
)
#: "image@2x.png", "dot@product.dtype": what stands behind the last dot is a name, no domain.
_NO_DOMAIN = re.compile("(?i:png|jpe?g|gif|svg|webp|pdf|py|js|ts|css|html|json|txt|dtype|shape)")


def find_emails(text: str, regions: Sequence[str] = ()) -> Found:
    last = 0
    for match in _DOMAIN.finditer(text):
        pattern = _LOCAL_ABROAD if match["abroad"] else _LOCAL
        local = pattern.search(text, max(last, match.start() - 64), match.start())
        if local:
            last = match.end()
            top = match[0].rpartition(".")[2]
            if local[0] != "git" and not _NO_DOMAIN.fullmatch(top):
                yield local.start(), match.end()


# Internet addresses ----------------------------------------------------------------------------

# Not behind "v", "/", "-" or "==": those are version numbers; "//" begins an address in a URL.
_IPV4 = re.compile(
    rf"(?<!{WORD})(?<![.-])(?<![=<>~!]=)(?<![^/]/)(?:\d{{1,3}}\.){{3}}\d{{1,3}}(?!{WORD}|-|\.\d)"
)
_IPV6 = re.compile(rf"(?<!{WORD})(?<![:.])[23][0-9A-Fa-f]{{3}}:[0-9A-Fa-f:]{{2,34}}(?!{WORD}|:)")
_VERSION = re.compile(
    r"(?:version|release|rev|section|v|版本号?|版|バージョン|버전|เวอร์ชัน)[\s:=]{0,3}$",
    re.IGNORECASE,
)


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


# Telephone numbers -----------------------------------------------------------------------------

# PhoneNumberMatcher reads about 0.1 MB a second. It is shown candidates only: an international
# number, or groups of digits with the marks of a national one (see _looks_national).
_INTERNATIONAL = re.compile(
    rf"(?<!{WORD})(?<![+.])\+[1-9](?:[ ().-]{{0,2}}\d){{6,14}}(?!{WORD}|\.\d)"
)
_NATIONAL = re.compile(
    rf"(?<!{WORD})(?<![.+/-])(?<!\d )(?:\(\d{{2,5}}\)[ -]?|(?:1-)?\d{{2,5}}[-. ])"
    rf"\d{{2,4}}(?:[-. ]\d{{2,4}}){{1,3}}(?!{WORD}|[/-]|\.\d| \d)"
)


#: Candidates of a text that are checked at most: each takes about 0.1 ms, for each region.
CANDIDATES = 20_000


def find_phones(text: str, regions: Sequence[str] = ()) -> Found:
    """Raises TooMuch for a text with more than CANDIDATES of them."""
    checked = 0
    for pattern, check in ((_INTERNATIONAL, _international), (_NATIONAL, _national)):
        for match in pattern.finditer(text):
            near = text[max(0, match.start() - 40) : match.start()]
            if check is _national and not _looks_national(match[0], near):
                continue
            checked += 1
            if checked > CANDIDATES:
                raise TooMuch
            for start, end in check(match[0], tuple(regions)):
                yield match.start() + start, match.start() + end


@lru_cache(maxsize=4096)
def _international(text: str, regions: tuple[str, ...]) -> list[tuple[int, int]]:
    from phonenumbers import Leniency, PhoneNumberMatcher

    if text.count(".") == 1:  # a decimal number with its sign
        return []
    return [(hit.start, hit.end) for hit in PhoneNumberMatcher(text, None, Leniency.VALID)]


@lru_cache(maxsize=4096)
def _national(text: str, regions: tuple[str, ...]) -> list[tuple[int, int]]:
    from phonenumbers import Leniency, PhoneNumberMatcher

    for region in regions:
        # Strict grouping: the digits stand in the groups in which the country writes them.
        hits = list(PhoneNumberMatcher(text, region, Leniency.STRICT_GROUPING))
        if hits:
            return [(hit.start, hit.end) for hit in hits]
    return []


#: What stands before a telephone number, in some languages.
_CALLED = re.compile(
    r"(?i)(?<![a-z])(?:tel|t[eé]l|tlf|(?:tele)?phone|call|fax|mob|mobile|cell|dial|whatsapp|sms|"
    r"telefon\w*|t[eé]l[eé]phone|tel[eé]fono|telefone|m[oó]vil|handy|puhelin|τηλ\w*|тел\w*|"
    r"電話|电话|전화|هاتف|फ़ोन|โทร)(?![a-z])"
)


def _looks_national(text: str, near: str) -> bool:
    """An area code in parentheses; three, three and four digits between hyphens or dots; a leading
    zero between spaces; or a word for it near by."""
    if text[0] == "(" or re.fullmatch(r"(?:1-)?\d{3}([-.])\d{3}\1\d{4}", text):
        return True
    return (text[0] == "0" and text[1] != "0" and " " in text) or bool(_CALLED.search(near))
