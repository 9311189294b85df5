"""Find e-mail addresses and IP addresses."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hallmark.tasks.measures.personal.folding import build_character_class

SpanIterator = Iterator[tuple[int, int]]

#: Characters that cannot be adjacent to a number: digits and letters of scripts that separate words
#: by spaces. Letters of other scripts, such as Chinese and Thai, can; so can an underscore, a mark
#: of Markdown.
WORD_CHARACTER = "[0-9A-Za-z\u00c0-\u04ff]"
#: Code points of scripts that separate words by spaces, and of punctuation.
SPACED_CODE_POINTS = (*range(0x500), *range(0x1E00, 0x2000))


class TooManyCandidatesError(Exception):
    """A text has more candidates than can be checked in reasonable time."""


# E-mail ----------------------------------------------------------------------------------------

# Only commonly used characters are allowed before the "@": with all of RFC 5322, quotation marks
# and a preceding "email=" would belong to the address. The others are allowed inside "<" and ">"
# and after "mailto:", where nothing else can precede, and some between two letters or digits.
# Chinese and Thai text can be adjacent to an address, so no part of an address mixes such scripts
# with scripts that use spaces.


class Script(NamedTuple):
    """Patterns of a character of some scripts."""

    word: str
    """A letter, a digit or an underscore."""
    alphanumeric: str
    """A letter or a digit."""
    letter: str
    """A letter."""


def _exclude_characters(excluded: str) -> Script:
    """Build the patterns of all scripts without the characters of a character class."""
    return Script(rf"[^\W{excluded}]", rf"[^\W_{excluded}]", rf"[^\W_\d{excluded}]")


def _list_characters() -> Script:
    """Build the patterns of the scripts that use spaces.

    They list the characters: Python takes 6 ms to compile a class that excludes all others.
    """
    alphanumeric = [code for code in SPACED_CODE_POINTS if chr(code).isalnum()]
    letters = [code for code in alphanumeric if not chr(code).isdecimal()]
    return Script(
        build_character_class([*alphanumeric, ord("_")]),
        build_character_class(alphanumeric),
        build_character_class(letters),
    )


SPACED_SCRIPT = _list_characters()
_UNSPACED_SCRIPT = _exclude_characters(r"\x00-\u04ff\u1e00-\u1fff")
_UNSPACED_SCRIPT_AND_DIGITS = _exclude_characters(r"\x00-/:-\u04ff\u1e00-\u1fff")
_ANY_SCRIPT = _exclude_characters("")


def _compile_local_part_pattern(*scripts: Script) -> re.Pattern[str]:
    """Compile an expression that matches the local part that ends at the "@".

    Hyphens and underscores before its first letter or digit are not part of the group: they are
    dashes of a sentence or marks of Markdown.
    """
    alternatives = (
        rf"(?<!{script.word})(?<![%+-])(?<!{script.word}[.'])[%+_-]{{0,8}}"
        rf"({script.alphanumeric}(?:{script.word}|[.%+-]|['\u2019!#$~^](?={script.word})){{0,63}})\Z"
        for script in scripts
    )
    return re.compile("|".join(alternatives))


def _domain_labels_pattern(script: Script) -> str:
    first_or_last = script.alphanumeric
    return rf"(?:{first_or_last}(?:(?:{script.word}|-){{0,61}}{first_or_last})?\.){{1,8}}"


def _top_level_domain_pattern(script: Script) -> str:
    """Return the pattern of a top-level domain and of what may follow it.

    An underscore may follow as a mark of Markdown; before a letter it belongs to a name in code,
    such as "a@self.weight_ih", unless the domain is one of the most frequent.
    """
    end = rf"(?!{script.alphanumeric}|\.{script.alphanumeric}|@)"
    return (
        rf"(?:(?i:xn)--[0-9A-Za-z-]{{1,58}}[0-9A-Za-z]{end}"
        rf"|{script.letter}{{2,24}}(?!_+{script.alphanumeric}){end}"
        rf"|{_FREQUENT_TOP_LEVEL_DOMAIN}(?=_))"
    )


#: Domains of organisations, and of countries whose codes are not words in code.
_FREQUENT_TOP_LEVEL_DOMAIN = (
    "(?i:com|org|net|edu|gov|mil|info|example|eu|uk|de|fr|es|nl|pl|ru|se|ch|br|jp|cn|kr|au|ca|us)"
)
_LOCAL_PART = _compile_local_part_pattern(SPACED_SCRIPT, _UNSPACED_SCRIPT)
#: Local parts for domains in other scripts, in which names may contain digits.
_LOCAL_PART_OTHER_SCRIPTS = _compile_local_part_pattern(SPACED_SCRIPT, _UNSPACED_SCRIPT_AND_DIGITS)
#: A local part in quotation marks, and one with any characters of RFC 5322 in brackets.
_QUOTED_LOCAL_PART = re.compile(r'"(?:[^"\\\n]|\\.){1,64}"\Z')
_ENCLOSED_LOCAL_PART = re.compile(
    r"(?:<|mailto:)([A-Za-z0-9](?:[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{0,62}[A-Za-z0-9_])?)\Z"
)
#: The beginning of a local part with a tag that contains "=", as "bounce+ann=x.org@list.example".
_TAGGED_LOCAL_PART = re.compile(
    r"(?<![A-Za-z0-9._'-])[A-Za-z0-9][A-Za-z0-9._'-]{0,40}\+[A-Za-z0-9.+_=-]{0,60}=\Z"
)
#: A URL contains "%40" in place of "@".
_DOMAIN_PATTERN = re.compile(
    rf"(?:@|%40)(?:{_domain_labels_pattern(SPACED_SCRIPT)}{_top_level_domain_pattern(SPACED_SCRIPT)}"
    rf"|(?P<abroad>{_domain_labels_pattern(_ANY_SCRIPT)}"
    rf"(?:{_top_level_domain_pattern(SPACED_SCRIPT)}|{_top_level_domain_pattern(_UNSPACED_SCRIPT)})))"
)
#: Suffixes that are no top-level domains, as in "image@2x.png" and "dot@product.dtype".
_NOT_TOP_LEVEL_DOMAIN = re.compile(
    "(?i:png|jpe?g|gif|svg|webp|pdf|py|js|ts|css|html|json|txt|dtype|shape)"
)


def find_email_addresses(text: str, regions: Sequence[str] = ()) -> SpanIterator:
    previous_end = 0
    for match in _DOMAIN_PATTERN.finditer(text):
        start = _find_start_of_address(text, match, previous_end)
        if start is None:
            continue
        previous_end = match.end()
        top_level_domain = match[0].rpartition(".")[2]
        if text[start : match.start()] != "git" and not _NOT_TOP_LEVEL_DOMAIN.fullmatch(
            top_level_domain
        ):
            yield start, match.end()


def _find_start_of_address(text: str, domain: re.Match[str], previous_end: int) -> int | None:
    """Return the position of the local part before a domain; None if there is none."""
    window = (max(previous_end, domain.start() - 72), domain.start())
    if text[domain.start() - 1 : domain.start()] == '"':
        quoted_part = _QUOTED_LOCAL_PART.search(text, *window)
        return quoted_part.start() if quoted_part else None
    enclosed_part = _ENCLOSED_LOCAL_PART.search(text, *window)
    if enclosed_part:
        return enclosed_part.start(1)
    pattern = _LOCAL_PART_OTHER_SCRIPTS if domain["abroad"] else _LOCAL_PART
    local_part = pattern.search(text, *window)
    if local_part is None:
        return None
    start = local_part.start(local_part.lastindex or 0)
    tagged_part = _TAGGED_LOCAL_PART.search(text, window[0], start)
    return tagged_part.start() if tagged_part else start


# Internet addresses ----------------------------------------------------------------------------

_THREE_MORE_NUMBERS = r"(?:\.\d{1,3}){3}"
#: An address or a range, "93.184.216.34-93.184.216.99". Not after "v", or after a name and "/",
#: "-", "_" or "==", which precede version numbers; "//" precedes a host in a URL. A name after "-"
#: follows a version. A search for an expression that begins with a digit is fast, so its first
#: digit precedes the conditions on what is before it.
_IPV4 = re.compile(
    rf"\d(?=\d{{0,2}}\.\d{{1,3}}\.)(?<!{WORD_CHARACTER}\d)(?<!{WORD_CHARACTER}[.-]\d)"
    rf"(?<![\w\])][=<>~!]=\d)(?<![^/\s]/\d)\d{{0,2}}{_THREE_MORE_NUMBERS}"
    rf"(?:(?P<dash>[-\u2013])\d{{1,3}}{_THREE_MORE_NUMBERS})?"
    rf"(?!{WORD_CHARACTER}|-(?:\d|[A-Za-z]{{2}}|[a-z])|\.\d)"
)
_IPV6 = re.compile(
    rf"[23](?=[0-9A-Fa-f]{{3}}:)(?<!{WORD_CHARACTER}[23])(?<!\d:[23])(?<![0-9A-Fa-f]{{2}}:[23])"
    rf"(?<!::[23])(?<!\d\.[23])[0-9A-Fa-f]{{3}}:"
    rf"[0-9A-Fa-f:]{{2,34}}(?<![0-9A-Fa-f]:)(?!{WORD_CHARACTER}|:[0-9A-Fa-f:])"
)
_VERSION_WORD = re.compile(
    r"(?:(?<![A-Za-z])(?:v|ver|rel|rev|oid|section|sect?|chapter|kap|art|sdk|build|firmware)\.?"
    r"|version|release|revision|版本号?|(?<!出)版|バージョン|버전|เวอร์ชัน)[\"'>)]?[\s:=]{0,3}[\"'(]{0,2}$",
    re.IGNORECASE,
)
#: A word or sign next to an address that a version number does not have.
_HOST_WORD = re.compile(
    r"(?:(?<![A-Za-z])(?:ips?|ipv4|addr(?:ess)?|hosts?|server|client|peer|from|ping|ssh|ns|dns|"
    r"gateway|remote|src|dst|source|destination|for|via|proxy)[\s:=\"'>(]{1,3}|//|@)$",
    re.IGNORECASE,
)
_PORT_OR_NETWORK = re.compile(r":\d{2,5}(?!\d)|/\d{1,2}(?!\d)| - ")


def find_ip_addresses(text: str, regions: Sequence[str] = ()) -> SpanIterator:
    """Yield the spans of global IP addresses.

    Small numbers are far more often parts of a version or a section number: at least two must be 32
    or more, as in 99 of 100 random addresses, or one if a word or sign of a host is adjacent.
    """
    for match in _IPV4.finditer(text):
        addresses = [
            (start, end)
            for start, end in _list_addresses(match)
            if _may_be_address(text[start:end])
        ]
        preceding_text = text[max(0, match.start() - 16) : match.start()]
        if not addresses or _VERSION_WORD.search(preceding_text):
            continue
        is_announced = bool(
            _HOST_WORD.search(preceding_text) or _PORT_OR_NETWORK.match(text, match.end())
        )
        # Versions may be written as a range, too.
        if is_announced or any(_is_unlike_version(text[start:end]) for start, end in addresses):
            yield from addresses
    for match in _IPV6.finditer(text):
        if is_global_ip_address(match[0]):
            yield match.span()


def _list_addresses(match: re.Match[str]) -> list[tuple[int, int]]:
    """Return the spans of an address, or of the first and last address of a range."""
    if match["dash"] is None:
        return [match.span()]
    return [(match.start(), match.start("dash")), (match.end("dash"), match.end())]


def _may_be_address(text: str) -> bool:
    numbers = _list_numbers(text)
    return max(numbers) >= 32 and numbers[1:] != [0, 0, 0] and is_global_ip_address(text)


def _is_unlike_version(text: str) -> bool:
    """Return whether an address without a word or sign of a host has the numbers of an address."""
    numbers = _list_numbers(text)
    return numbers[1] > 0 and sum(number >= 32 for number in numbers) > 1


def _list_numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(".")]


def is_global_ip_address(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return address.is_global and not address.is_multicast
