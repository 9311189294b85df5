"""Pages of the web to text: their encoding, and HTML within bounds of time and memory."""

from __future__ import annotations

import codecs
import re
from collections import Counter

UNDECODABLE = "in none of the encodings that it may be in"
TOO_NESTED = "HTML nested too deeply to be parsed"
TOO_MANY_ATTRIBUTES = "HTML with too many attributes in a tag to be parsed"


class PageError(ValueError):
    """Why a page has no text."""


# Encodings ---------------------------------------------------------------------------------------

_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"),
          (codecs.BOM_UTF16_BE, "utf-16-be"))  # fmt: skip
_META = re.compile(
    rb"""(?i)<meta[^>]{0,500}?charset\s{0,9}+=\s{0,9}+["']?+\s{0,9}+([\w:.-]{1,40})"""
)
#: What browsers read under these names.
_WIDER = {"euc_kr": "cp949", "shift_jis": "cp932", "big5": "big5hkscs", "gbk": "gb18030"}


def decoded(data: bytes, charset: str, html: bool) -> str:
    """A page as text: its byte order mark decides, else the ``charset`` of its HTTP header, else
    what its ``meta`` element says, each only if all of the page is valid in it. A page that says
    nothing is UTF-8 if it is valid, else what a detector takes it for.

    Raises PageError if it is valid in none of these.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return _valid(data[len(mark) :], [encoding])
    named = _known(charset)
    if html and (meta := _META.search(data[:1024])):
        # A page whose ASCII could be read is not in UTF-16.
        named += [n if not n.startswith("utf-16") else "utf-8" for n in _known(meta[1].decode())]
    return _valid(data, named or ["utf-8", *detected(data)])


def _known(name: str) -> list[str]:
    """The Python codec of a name in WHATWG's list: of no other, some of them are no encodings."""
    from resiliparse.parse.encoding import map_encoding_to_html5

    found = map_encoding_to_html5(name, fallback_utf8=False) if name.isascii() and name else None
    return [_WIDER.get(found, found)] if found else []


def detected(data: bytes) -> list[str]:
    """The Python codec of what a detector takes the bytes for, if anything."""
    from resiliparse.parse.encoding import detect_encoding

    found = detect_encoding(data, from_html_meta=False)
    return _known(found) if found else []


def _valid(data: bytes, encodings: list[str]) -> str:
    for encoding in encodings:
        try:
            return data.decode(encoding)
        except (UnicodeDecodeError, LookupError):
            continue
    raise PageError(UNDECODABLE)


# HTML --------------------------------------------------------------------------------------------


def page_text(html: str, main_content: bool) -> str:
    """The visible text with its line breaks. Raises PageError for what would take too long."""
    from resiliparse.extract.html2text import extract_plain_text

    if html.count("<") > FEW_TAGS:
        _check_nesting(html)
    if len(html) > SHORT:
        _check_attributes(html)
    return extract_plain_text(
        html, preserve_formatting=True, main_content=main_content, alt_texts=False
    )


# A parser walks through all open elements at some tags, and opens formatting elements again that
# were left open, so time and memory grow with the sum over all tags of how many are open. Measured:
# 7 s and 800 MB for a page at the limits, where a real one comes to a thousandth of them.
FEW_TAGS = 1000  # cannot come to either limit
OPEN, OPEN_FORMATTING = 20_000_000, 2_000_000
SHORT, ATTRIBUTES = 20_000, 5000

_TAG = re.compile(r"<(/?)([a-zA-Z][^\s/>]{0,30})")
_FORMATTING = {
    "b", "big", "code", "em", "font", "i", "s", "small", "strike", "strong", "tt", "u",
}  # fmt: skip
#: Those that hold nothing, or that end where the next of them begins.
_FLAT = {
    "a", "area", "base", "br", "col", "dd", "dt", "embed", "hr", "img", "input", "li", "link",
    "meta", "nobr", "option", "p", "param", "source", "tbody", "td", "tfoot", "th", "thead", "tr",
    "track", "wbr",
}  # fmt: skip


def _check_nesting(html: str) -> None:
    """An estimate from above of what is open, without a parser: an end tag closes what is open by
    its name."""
    open_here: Counter[str] = Counter()
    depth = formatting = total = total_formatting = 0
    for match in _TAG.finditer(html):
        name = match[2].lower()
        if name not in _FLAT:
            step = 1 if not match[1] else -1 if open_here[name] else 0
            open_here[name] += step
            depth += step
            formatting += step * (name in _FORMATTING)
        total += depth
        total_formatting += formatting
        if total > OPEN or total_formatting > OPEN_FORMATTING:
            raise PageError(TOO_NESTED)


_ATTRIBUTE = r"""[^\s/>][^\s/>=]*+(?:\s*+=\s*+(?:"[^"]*+"|'[^']*+'|[^\s>]*+))?+"""
_WHOLE_TAG = re.compile(rf"<[a-zA-Z][^\s/>]*+(?:[\s/]++(?:{_ATTRIBUTE})?+)*+")
_ONE = re.compile(_ATTRIBUTE)


def _check_attributes(html: str) -> None:
    """Each attribute of a tag is compared with those before it."""
    for match in _WHOLE_TAG.finditer(html):
        start, end = match.span()
        if end - start > 2 * ATTRIBUTES and len(_ONE.findall(html, start, end)) > ATTRIBUTES:
            raise PageError(TOO_MANY_ATTRIBUTES)
