"""Pages of the web to text: their encoding, and HTML within bounds of time and memory."""

from __future__ import annotations

import codecs
import re

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

    if html.count("<") > FEW_TAGS or len(html) > SHORT:
        _Bounds(html).check()
    return extract_plain_text(
        html, preserve_formatting=True, main_content=main_content, alt_texts=False
    )


# A parser walks through all open elements at some tags, and opens formatting elements again that
# were left open, so time and memory grow with the sum over all tags of how many are open. It
# compares each attribute of a tag with those before it, of html and body with those of all such
# tags. Measured: 7 s and 800 MB for a page at the limits, where a real one comes to a thousandth.
FEW_TAGS, SHORT = 1000, 20_000  # tags and characters of a page that cannot come to a limit
OPEN, OPEN_FORMATTING = 20_000_000, 2_000_000
COMPARISONS = 100_000_000
LOOKED = 8  # times the length of a page that may be looked at for the ends of its tags

_FORMATTING = {
    "b", "big", "code", "em", "font", "i", "s", "small", "strike", "strong", "tt", "u",
}  # fmt: skip
#: Those that end where the next of them begins, or are there once, but keep others open.
_WITHIN = {
    "dd", "dt", "form", "li", "p", "tbody", "td", "tfoot", "th", "thead", "tr",
}  # fmt: skip
#: Those that hold nothing, that end where the next of them begins, or that are there once.
_FLAT = _WITHIN | {
    "a", "area", "base", "body", "br", "col", "embed", "head", "hr", "html", "img", "input",
    "link", "meta", "nobr", "option", "param", "source", "track", "wbr",
}  # fmt: skip
#: Those whose end tag closes what of ``_WITHIN`` is open in them.
_BLOCKS = {
    "address", "article", "aside", "blockquote", "button", "caption", "center", "details", "dialog",
    "dir", "div", "dl", "fieldset", "figcaption", "figure", "footer", "h1", "h2", "h3", "h4", "h5",
    "h6", "header", "hgroup", "listing", "main", "menu", "nav", "object", "ol", "pre", "section",
    "select", "summary", "table", "template", "ul",
}  # fmt: skip
#: Those in which tags are text.
_RAW = {
    "iframe", "noembed", "noframes", "plaintext", "script", "style", "textarea", "title", "xmp",
}  # fmt: skip
#: Those in which what is text, and what is open, is another matter.
_STRANGE = {"frameset", "math", "select", "svg", "template"}
#: Those that end SVG and MathML, or hold HTML in them.
_NOT_FOREIGN = _FLAT | _FORMATTING | _BLOCKS | _RAW | {
    "annotation-xml", "desc", "foreignobject", "mi", "mn", "mo", "ms", "mtext", "ruby", "span",
    "sub", "sup", "var", *_STRANGE,
}  # fmt: skip

_SPACE = r"\t\n\f\r "  # HTML's, of which Python has more
_ATTRIBUTE = (
    rf"[^{_SPACE}/>][^{_SPACE}/>=]*+"
    rf"""(?:[{_SPACE}]*+=[{_SPACE}]*+(?:"[^"]*+"|'[^']*+'|[^{_SPACE}>]*+))?+"""
)
_ONE = re.compile(_ATTRIBUTE)
_ATTRIBUTES = re.compile(rf"(?:[{_SPACE}/]++|{_ATTRIBUTE})*+")
_BEGINNING = re.compile(rf"<(?:(?=(/?)([a-zA-Z][^{_SPACE}/>]{{0,60}}+))|(!--|!\[CDATA\[|[!?/]))")
_SCRIPT = re.compile("(?ai)<script")
_ENDS = {"!--": "-->", "![CDATA[": "]]>"}


class _Bounds:
    """How many elements are open and attributes compared in a page, estimated from above.

    What is a tag depends on what is open. While that makes no difference, tags are read as a parser
    reads them. From where it may, every beginning of a tag counts, in a comment, script or
    attribute too, and an end tag only where it is in none of them, whichever of these beginnings is
    true. An end tag closes the element that was opened last, if that is its own, and no other.
    """

    def __init__(self, html: str) -> None:
        self.html = html
        self.found: dict[str, tuple[int, int, int]] = {}
        self.hidden = self.script = 0  # up to where an end tag, or the end of a script, may be text
        self.sure, self.strange = True, 0  # how many of _STRANGE are open
        self.looked = self.compared = self.merged = 0
        self.names: list[str] = []  # of what is open
        self.within: list[set[str]] = [set()]  # what of _WITHIN is open in each, and outside of all
        self.foreign = 0  # of names: those of SVG or MathML alone are behind; 0 if there are none
        self.formatting = 0

    def check(self) -> None:
        """Raises PageError."""
        total = total_formatting = 0
        for match in _BEGINNING.finditer(self.html):
            start = match.start()
            visible = start >= self.hidden
            if self.sure and not visible:
                continue
            if match[3]:
                self._hide(start, match.end(), match[3])
                continue
            name = match[2].lower() if match[2].isascii() and len(match[2]) < 60 else "?"
            end = self._attributes(name, start, match.end(2))
            if not match[1]:
                self._open(name, match.end(2), end)
            elif visible:
                self._close(name)
            total += len(self.names)
            total_formatting += self.formatting
            if total > OPEN or total_formatting > OPEN_FORMATTING:
                raise PageError(TOO_NESTED)

    def _open(self, name: str, behind: int, end: int) -> None:
        if name in _RAW:
            self._raw(name, end)
        if name in _NOT_FOREIGN and not (name in _RAW and self.sure):  # of the title only text
            self.foreign = 0
        if self.foreign and self._alone(behind, end):
            return
        if name in _WITHIN:
            self.within[-1].add(name)
        elif name not in _FLAT:
            self.names.append(name)
            self.within.append(set())
            self.formatting += name in _FORMATTING
            self.strange += name in _STRANGE
            if name in ("svg", "math") and self.sure and "select" not in self.names:
                self.foreign = len(self.names)

    def _close(self, name: str) -> None:
        if name == "?":
            return
        if self.foreign and name in self.names[self.foreign - 1 :]:
            while self.names[-1] != name:
                self._pop()
        elif self.foreign:
            self.foreign = 0
        if name in _FLAT:
            self.within[-1].discard(name)
        elif self.names[-1:] == [name] and (name in _BLOCKS or self.foreign or not self.within[-1]):
            self._pop()

    def _pop(self) -> None:
        name = self.names.pop()
        self.formatting -= name in _FORMATTING
        self.strange -= name in _STRANGE
        self.within.pop()
        if self.foreign > len(self.names):
            self.foreign = 0

    def _behind(self, mark: str, start: int) -> tuple[int, int]:
        """Where the first ``mark`` from ``start`` on begins and ends; the end of the page without
        one."""
        asked, at, end = self.found.get(mark, (0, -1, -1))
        if not asked <= start <= at:
            name = rf"(?=[{_SPACE}/>])" if mark.startswith("</") else ""  # and no longer one
            found = re.compile(f"(?ai){re.escape(mark)}{name}").search(self.html, start)
            at, end = found.span() if found else (len(self.html), len(self.html))
            self.found[mark] = start, at, end
        return at, end

    def _hide(self, start: int, behind: int, kind: str) -> None:
        """What is in a comment is no tag."""
        end = self._behind(_ENDS.get(kind, ">"), behind)[1]
        odd = kind == "!--" and self.html.startswith((">", "->"), behind)
        if self.sure and (odd or kind == "![CDATA[" or "--!>" in self.html[behind:end]):
            self.sure = False
        if start < self.script:  # a script does not end in what looks like a comment there
            end = self.script = max(self.script, self._behind("</script", end)[0])
        self.hidden = max(self.hidden, end)

    def _attributes(self, name: str, start: int, behind: int) -> int:
        """Look at the attributes, and hide what is in them. Returns where they end."""
        end = _ATTRIBUTES.match(self.html, behind).end()  # type: ignore[union-attr]
        self.hidden = max(self.hidden, end)
        self.looked += end - start
        once = name in ("html", "body")
        if once or end - start > 200:
            self.looked += end - start
            count = len(_ONE.findall(self.html, behind, end))
            self.merged += count if once else 0
            self.compared += count * max(count, self.merged if once else 0)
        if self.compared > COMPARISONS or self.looked > LOOKED * len(self.html) + SHORT:
            raise PageError(TOO_MANY_ATTRIBUTES)
        return end

    def _alone(self, behind: int, end: int) -> bool:
        """Whether a tag ends in a slash that is not the end of an attribute."""
        if self.html[end - 1] != "/":
            return False
        self.looked += end - behind
        last = behind
        for found in _ONE.finditer(self.html, behind, end):
            last = found.end()
        return last < end

    def _raw(self, name: str, start: int) -> None:
        """Tags are text up to the end of the element."""
        end = len(self.html) if name == "plaintext" else self._behind(f"</{name}", start)[0]
        if self.sure:  # then no two of these overlap, and time is linear
            text = self.html[start:end]
            again = name == "script" and "<!--" in text and _SCRIPT.search(text)
            self.sure = not (again or (self.strange and "<" in text))
        if name == "script":
            self.script = max(self.script, end)
        self.hidden = max(self.hidden, end)
