"""Convert web pages to text: decode them, extract their text, limit the cost of parsing."""

from __future__ import annotations

import codecs
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from hallmark.tasks.corpus.reading.charsets import find_contradicting_encoding
from hallmark.tasks.corpus.reading.http_bodies import has_binary_bytes
from hallmark.tasks.corpus.reading.page_content import (
    has_only_headings,
    protect_all_lists,
    protect_content,
)
from hallmark.tasks.corpus.reading.page_markup import (
    clean_text,
    format_tree,
    list_skipped_selectors,
    repair_markup,
)
from hallmark.tasks.corpus.reading.readers import NOT_UTF8

UNDECODABLE = "the page is not valid text in any of the encodings that were tried"
TOO_NESTED = "the HTML cannot be parsed: elements are nested too deeply"
TOO_MANY_ATTRIBUTES = "the HTML cannot be parsed: a tag has too many attributes"


class PageError(ValueError):
    """Signal that a page has no text; the message says why."""


class NotTextError(ValueError):
    """Signal that a page is a file of another kind, such as a PDF or an image."""


# Files of other kinds ----------------------------------------------------------------------------

#: The beginning of files that may contain few binary bytes.
_OTHER_FILE_START = re.compile(
    rb"(?s)\s*(?:%PDF-\d|%!PS-Adobe|\{\\rtf\d|GIF8[79]a|\x89PNG\r|\xff\xd8\xff|PK\x03\x04"
    rb"|RIFF....WEBP)"
)
_SVG_START = re.compile(
    rb"(?is)\s*(?:<\?xml[^>]*+>\s*+|<!--.*?-->\s*+|<!DOCTYPE svg[^>]*+>\s*+)*+<svg\s[^>]*?xmlns"
)


def check_is_text(data: bytes) -> None:
    """Raise NotTextError if a page is a file of another kind than text, or an image in SVG."""
    is_svg = _SVG_START.match(data[:4096]) and data.rstrip().endswith(b"</svg>")
    if is_svg or _OTHER_FILE_START.match(data[:1024]) or has_binary_bytes(data):
        raise NotTextError


# Encodings ---------------------------------------------------------------------------------------

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_UTF16_TAG_STARTS = ((b"<\0", "utf-16-le"), (b"\0<", "utf-16-be"))
_META_CHARSET = re.compile(
    rb"""(?i)<meta[^>]{0,500}?charset\s{0,9}+=\s{0,9}+["']?+\s{0,9}+([\w:.-]{1,40})"""
)
_XML_ENCODING = re.compile(rb"""\s*+<\?xml[^>]{0,200}?encoding\s*+=\s*+["']([\w:.-]{1,40})""")
#: The encodings that browsers use for these names.
_BROWSER_ENCODINGS = {
    "euc_kr": "cp949",
    "shift_jis": "cp932",
    "big5": "big5hkscs",
    "gbk": "gb18030",
    "iso8859-11": "cp874",
}
#: In these encodings, a letter may be valid UTF-8 by chance.
_MULTIBYTE_ENCODINGS = {"big5hkscs", "cp932", "cp949", "euc_jp", "gb18030", "iso2022_jp"}
#: A detector guessed wrong if its encoding gives such characters: no page contains them.
_CONTROL_CHARACTER = re.compile("[\x80-\x84\x86-\x9f]")
#: In other encodings, at most this share of the characters may be lost, or one character.
MAX_LOST_SHARE = 0.01


@dataclass(frozen=True)
class DecodedText:
    """Hold the text of a page."""

    text: str
    lost_characters: int = 0
    """Number of characters that are missing because their bytes are not valid."""


def decode_page(
    data: bytes, charset: str, *, is_html: bool, is_truncated: bool = False
) -> DecodedText:
    """Decode a page; characters whose bytes are not valid are left out and counted.

    A byte order mark decides. Otherwise a page with letters outside ASCII is in UTF-8, whatever it
    declares, if at least as many of them are valid in UTF-8 as are not. Any other page is in the
    encoding that the HTTP header, the ``meta`` element or the XML declaration names. A page that is
    not valid in these, whose words contradict the first one (``charsets``), or that declares
    nothing, is in the encoding that a detector reports.

    Known limit: in another encoding, a page with very few letters outside ASCII may be valid UTF-8
    by chance.

    Args:
        charset: The encoding that the HTTP header names, or "".
        is_truncated: Whether the end of the page is missing, perhaps within a character.

    Raises:
        NotTextError: if the page is a file of another kind.
        PageError: if the page is valid in none of these encodings.
    """
    for byte_order_mark, encoding in _BYTE_ORDER_MARKS:
        if data.startswith(byte_order_mark):
            return _check_losses(_decode_with_losses(data[len(byte_order_mark) :], encoding))
    declared_encodings = _list_declared_encodings(data, charset, is_html)
    wide_encodings = [name for name in declared_encodings[:1] if name.startswith("utf-16")]
    wide_encodings += [name for start, name in _UTF16_TAG_STARTS if data.startswith(start)]
    if wide_encodings and b"\0" in data:
        return _check_losses(_decode_with_losses(data, wide_encodings[0]))
    check_is_text(data)
    utf8_text = _decode_with_losses(data, "utf-8")
    is_ascii, lost_characters = data.isascii(), utf8_text.lost_characters
    if not lost_characters and not (is_ascii and b"\x1b" in data):  # ISO-2022-JP is ASCII
        return utf8_text
    letter_count = len(utf8_text.text) - len(utf8_text.text.encode("ascii", "ignore"))
    may_be_multibyte = not declared_encodings or _MULTIBYTE_ENCODINGS & {*declared_encodings}
    if letter_count and letter_count >= lost_characters * (2 if may_be_multibyte else 1):
        return utf8_text
    if is_truncated and lost_characters == 1 and data[:-3].isascii():
        return utf8_text
    if declared_encodings:
        contradicting = find_contradicting_encoding(data, declared_encodings[0], detect_encodings)
        declared_encodings = [contradicting] * bool(contradicting) + declared_encodings
    for encoding in declared_encodings:
        with suppress(UnicodeDecodeError):
            return DecodedText(data.decode(encoding))
    if "utf-8" in declared_encodings and lost_characters == 1:
        return utf8_text
    for encoding in declared_encodings:
        if encoding != "utf-8":
            with suppress(PageError):
                return _check_losses(_decode_with_losses(data, encoding))
    for encoding in detect_encodings(data):
        decoded = _decode_with_losses(data, encoding)
        if encoding != "utf-8" and not _CONTROL_CHARACTER.search(decoded.text):
            with suppress(PageError):
                return _check_losses(decoded)
    if not lost_characters:
        return utf8_text
    raise PageError(UNDECODABLE)


def decode_utf8(data: bytes) -> DecodedText:
    """Decode a text in UTF-8; characters whose bytes are not valid are left out and counted.

    Raises:
        PageError: if more characters than one, and than the valid ones outside ASCII, are lost.
    """
    decoded = _decode_with_losses(data, "utf-8")
    letter_count = len(decoded.text) - len(decoded.text.encode("ascii", "ignore"))
    if decoded.lost_characters > max(1, letter_count):
        raise PageError(NOT_UTF8)
    return decoded


def _list_declared_encodings(data: bytes, charset: str, is_html: bool) -> list[str]:
    declared_encodings = _resolve_encoding_name(charset)
    if is_html:
        beginning = data[:1024]
        for match in (_META_CHARSET.search(beginning), _XML_ENCODING.match(beginning)):
            # A page whose declaration is readable as ASCII is not in UTF-16.
            declared_encodings += [
                "utf-8" if name.startswith("utf-16") else name
                for name in _resolve_encoding_name(match[1].decode() if match else "")
            ]
    return declared_encodings


def _resolve_encoding_name(encoding_name: str) -> list[str]:
    """Return the Python codec of a name in WHATWG's list; [] for other names.

    Some other names known to Python are not text encodings.
    """
    from resiliparse.parse.encoding import map_encoding_to_html5

    html5_name = (
        map_encoding_to_html5(encoding_name, fallback_utf8=False)
        if encoding_name.isascii() and encoding_name
        else None
    )
    return [_BROWSER_ENCODINGS.get(html5_name, html5_name)] if html5_name else []


def detect_encodings(data: bytes) -> list[str]:
    """Return the Python codec that a detector reports for the bytes; [] if none."""
    from resiliparse.parse.encoding import detect_encoding

    detected_name = detect_encoding(data, from_html_meta=False, html5_compatible=False)
    # WHATWG's list does not contain this name of its euc-kr.
    return _resolve_encoding_name("euc-kr" if detected_name == "cp949" else detected_name or "")


def _decode_with_losses(data: bytes, encoding: str) -> DecodedText:
    """Decode data without the characters whose bytes are not valid."""
    try:
        return DecodedText(data.decode(encoding))
    except UnicodeDecodeError:
        text = data.decode(encoding, "ignore")
        text_with_marks = data.decode(encoding, "replace")
        return DecodedText(text, text_with_marks.count("\ufffd") - text.count("\ufffd"))


def _check_losses(decoded: DecodedText) -> DecodedText:
    """Return the text, or raise PageError if too many characters are lost."""
    if decoded.lost_characters > max(1, MAX_LOST_SHARE * len(decoded.text)):
        raise PageError(UNDECODABLE)
    return decoded


# HTML --------------------------------------------------------------------------------------------


_CUT_MARKUP = re.compile(r"(?:<|&#?\w{0,30})\Z")
#: Lines in nested lists are indented by two spaces per list. Without a limit, the text of a page of
#: 30 kB can have 36 MB.
_DEEP_INDENTATION = re.compile("(?m)^( {100}) ++")


def extract_page_text(
    html: str, main_content: bool, *, is_truncated: bool = False, is_xhtml: bool = False
) -> str:
    """Extract the visible text with its line breaks.

    Args:
        main_content: Whether to leave out navigation, footers, captions and similar parts.
        is_truncated: Whether the end of the page is missing, perhaps within a tag or an entity.
        is_xhtml: Whether the page is served as XHTML; a page may also declare it itself.

    Raises:
        PageError: if parsing would take too long.
    """
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    if is_truncated:
        html = _CUT_MARKUP.sub("", html)
    html = repair_markup(html, main_content, is_xhtml=is_xhtml)
    must_check = html.count("<") > UNCHECKED_TAGS or len(html) > UNCHECKED_CHARACTERS
    is_deep = must_check and _ParserCostEstimator(html).check_limits() > MAX_EXAMINED_DEPTH
    tree = HTMLTree.parse(html)
    if not is_deep:
        format_tree(tree)
    if main_content and not is_deep:
        protect_content(tree, len(html))
    extract_text = partial(
        extract_plain_text,
        tree,
        preserve_formatting=True,
        main_content=main_content,
        alt_texts=False,
        skip_elements=list_skipped_selectors(html) or None,
    )
    text = extract_text()
    if main_content and not is_deep and has_only_headings(tree, text) and protect_all_lists(tree):
        text = extract_text()
    text = clean_text(text)
    return _DEEP_INDENTATION.sub(r"\1", text) if len(text) > len(html) else text


# Cost of parsing ---------------------------------------------------------------------------------

# At some tags a parser walks through all open elements, and reopens formatting elements that were
# not closed. So time and memory grow with the sum over all tags of the number of open elements. It
# compares each attribute of a tag with the earlier ones; for html and body, with those of all such
# tags. Measured: 7 s and 800 MB for a page at the limits; real pages reach a thousandth of them.
# A page with at most this many tags and characters cannot reach a limit.
UNCHECKED_TAGS, UNCHECKED_CHARACTERS = 1000, 20_000
MAX_OPEN_SUM, MAX_OPEN_FORMATTING_SUM = 20_000_000, 2_000_000
# Resiliparse reads the text of every list and of every deep div. Measured: 1 s at the limit.
MAX_OPEN_CHARACTER_SUM = 500_000_000
# The elements around an element are searched for parts of the page, which takes time. If more
# elements than this are open at a tag on average, Resiliparse alone decides what is content.
# Measured: 2 to 8 in 37 pages of Common Crawl; 1 s for 6,000 nested elements.
MAX_EXAMINED_DEPTH = 100
MAX_COMPARISONS = 100_000_000
MAX_SCAN_FACTOR = 8  # how often, on average, a character may be scanned to find the ends of tags

_FORMATTING_TAGS = {
    "b",
    "big",
    "code",
    "em",
    "font",
    "i",
    "s",
    "small",
    "strike",
    "strong",
    "tt",
    "u",
}
#: Closed implicitly by the next such tag, or allowed once, but other elements in them stay open.
_IMPLICITLY_CLOSED_TAGS = {
    "dd",
    "dt",
    "form",
    "li",
    "p",
    "tbody",
    "td",
    "tfoot",
    "th",
    "thead",
    "tr",
}
#: Empty, closed implicitly by the next such tag, or allowed once.
_NON_NESTING_TAGS = _IMPLICITLY_CLOSED_TAGS | {
    "a",
    "area",
    "base",
    "body",
    "br",
    "col",
    "embed",
    "head",
    "hr",
    "html",
    "img",
    "input",
    "link",
    "meta",
    "nobr",
    "option",
    "param",
    "source",
    "track",
    "wbr",
}
#: Their end tag closes the _IMPLICITLY_CLOSED_TAGS that are open in them.
_BLOCK_TAGS = {
    "address",
    "article",
    "aside",
    "blockquote",
    "button",
    "caption",
    "center",
    "details",
    "dialog",
    "dir",
    "div",
    "dl",
    "fieldset",
    "figcaption",
    "figure",
    "footer",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "header",
    "hgroup",
    "listing",
    "main",
    "menu",
    "nav",
    "object",
    "ol",
    "pre",
    "section",
    "select",
    "summary",
    "table",
    "template",
    "ul",
}
#: Tags inside these are text.
_RAW_TEXT_TAGS = {
    "iframe",
    "noembed",
    "noframes",
    "plaintext",
    "script",
    "style",
    "textarea",
    "title",
    "xmp",
}
#: Other rules apply inside these for what is text and what is open.
_SPECIAL_CONTENT_TAGS = {"frameset", "math", "select", "svg", "template"}
#: These end SVG and MathML, or hold HTML inside them.
_HTML_TAGS = (
    _NON_NESTING_TAGS
    | _FORMATTING_TAGS
    | _BLOCK_TAGS
    | _RAW_TEXT_TAGS
    | {
        "annotation-xml",
        "desc",
        "foreignobject",
        "mi",
        "mn",
        "mo",
        "ms",
        "mtext",
        "ruby",
        "span",
        "sub",
        "sup",
        "var",
        *_SPECIAL_CONTENT_TAGS,
    }
)

_HTML_SPACE = r"\t\n\f\r "  # fewer characters than Python's \s
_ATTRIBUTE_PATTERN = (
    rf"[^{_HTML_SPACE}/>][^{_HTML_SPACE}/>=]*+"
    rf"""(?:[{_HTML_SPACE}]*+=[{_HTML_SPACE}]*+(?:"[^"]*+"|'[^']*+'|[^{_HTML_SPACE}>]*+))?+"""
)
_ONE_ATTRIBUTE = re.compile(_ATTRIBUTE_PATTERN)
_ATTRIBUTES = re.compile(rf"(?:[{_HTML_SPACE}/]++|{_ATTRIBUTE_PATTERN})*+")
_TAG_START = re.compile(
    rf"<(?:(?=(/?)([a-zA-Z][^{_HTML_SPACE}/>]{{0,60}}+))|(!--|!\[CDATA\[|[!?/]))"
)
_SCRIPT_START = re.compile("(?ai)<script")
_COMMENT_ENDS = {"!--": "-->", "![CDATA[": "]]>"}


class _ParserCostEstimator:
    """Estimate upper bounds of the open elements and attribute comparisons of a page.

    Which text is a tag depends on the open elements. As long as that makes no difference
    (``is_certain``), tags are read as a parser reads them. After that, every start of a tag counts,
    even in a comment, script or attribute, and an end tag counts only outside all of these,
    whichever start is the true one. An end tag closes only the innermost open element, and only if
    the names match.
    """

    def __init__(self, html: str) -> None:
        self.html = html
        self.mark_positions: dict[str, tuple[int, int, int]] = {}
        # Before these positions an end tag, or the end of a script, may be text.
        self.hidden_until = self.script_until = 0
        self.is_certain, self.open_special = True, 0  # number of open _SPECIAL_CONTENT_TAGS
        self.scanned_characters = self.comparisons = self.merged_attributes = 0
        self.max_scanned_characters = MAX_SCAN_FACTOR * len(html) + UNCHECKED_CHARACTERS
        self.open_tags: list[str] = []
        # The _IMPLICITLY_CLOSED_TAGS that are open outside all open_tags, then in each of them.
        self.open_implicit_tags: list[set[str]] = [set()]
        # Depth in open_tags of an svg or math element that holds no HTML; 0 without one.
        self.foreign_depth = 0
        self.open_formatting = 0

    def check_limits(self) -> float:
        """Return the average number of open elements at a tag.

        Raises:
            PageError: if the page is too costly to parse.
        """
        open_sum = open_formatting_sum = open_character_sum = previous_start = tag_count = 0
        html, open_tags = self.html, self.open_tags
        tag_names: dict[str, str] = {}
        for match in _TAG_START.finditer(html):
            start = match.start()
            open_character_sum += (start - previous_start) * len(open_tags)
            previous_start = start
            is_visible = start >= self.hidden_until
            if not is_visible and self.is_certain:
                continue
            slash, name, comment_kind = match.groups()
            if comment_kind:
                self._skip_comment(start, match.end(), comment_kind)
                continue
            tag_name = tag_names.get(name)
            if tag_name is None:
                tag_name = name.lower() if name.isascii() and len(name) < 60 else "?"
                tag_names[name] = tag_name
            name_end = attributes_end = match.end(2)
            if not html.startswith(">", attributes_end):
                attributes_end = self._scan_attributes(tag_name, start, name_end)
            if not slash:
                self._open_element(tag_name, name_end, attributes_end)
            elif is_visible:
                self._close_element(tag_name)
            tag_count += 1
            open_sum += len(open_tags)
            open_formatting_sum += self.open_formatting
            if open_sum > MAX_OPEN_SUM or open_formatting_sum > MAX_OPEN_FORMATTING_SUM:
                raise PageError(TOO_NESTED)
        open_character_sum += (len(html) - previous_start) * len(open_tags)
        if open_character_sum > MAX_OPEN_CHARACTER_SUM:
            raise PageError(TOO_NESTED)
        return open_sum / max(1, tag_count)

    def _open_element(self, tag_name: str, name_end: int, attributes_end: int) -> None:
        if tag_name in _RAW_TEXT_TAGS:
            self._skip_raw_text(tag_name, attributes_end)
        # If certain, a raw text element such as svg's title holds only text, and svg continues.
        if self.foreign_depth:
            if tag_name in _HTML_TAGS and not (tag_name in _RAW_TEXT_TAGS and self.is_certain):
                self.foreign_depth = 0
            elif self._ends_with_closing_slash(name_end, attributes_end):
                return
        if tag_name in _IMPLICITLY_CLOSED_TAGS:
            self.open_implicit_tags[-1].add(tag_name)
        elif tag_name not in _NON_NESTING_TAGS:
            self.open_tags.append(tag_name)
            self.open_implicit_tags.append(set())
            self.open_formatting += tag_name in _FORMATTING_TAGS
            self.open_special += tag_name in _SPECIAL_CONTENT_TAGS
            if tag_name in ("svg", "math") and self.is_certain and "select" not in self.open_tags:
                self.foreign_depth = len(self.open_tags)

    def _close_element(self, tag_name: str) -> None:
        if tag_name == "?":
            return
        if self.foreign_depth and tag_name in self.open_tags[self.foreign_depth - 1 :]:
            while self.open_tags[-1] != tag_name:
                self._close_innermost_element()
        elif self.foreign_depth:
            self.foreign_depth = 0
        if tag_name in _NON_NESTING_TAGS:
            self.open_implicit_tags[-1].discard(tag_name)
        elif self.open_tags[-1:] == [tag_name] and (
            tag_name in _BLOCK_TAGS or self.foreign_depth or not self.open_implicit_tags[-1]
        ):
            self._close_innermost_element()

    def _close_innermost_element(self) -> None:
        tag_name = self.open_tags.pop()
        self.open_formatting -= tag_name in _FORMATTING_TAGS
        self.open_special -= tag_name in _SPECIAL_CONTENT_TAGS
        self.open_implicit_tags.pop()
        if self.foreign_depth > len(self.open_tags):
            self.foreign_depth = 0

    def _find_mark_span(self, mark: str, start: int) -> tuple[int, int]:
        """Return the span of the first ``mark`` from ``start`` on, or the end of the page twice."""
        searched_from, mark_start, mark_end = self.mark_positions.get(mark, (0, -1, -1))
        if not searched_from <= start <= mark_start:
            # The name of an end tag must end here.
            boundary = rf"(?=[{_HTML_SPACE}/>])" if mark.startswith("</") else ""
            match = re.compile(f"(?ai){re.escape(mark)}{boundary}").search(self.html, start)
            mark_start, mark_end = match.span() if match else (len(self.html), len(self.html))
            self.mark_positions[mark] = start, mark_start, mark_end
        return mark_start, mark_end

    def _skip_comment(self, start: int, content_start: int, kind: str) -> None:
        """Hide the tags inside a comment."""
        comment_end = self._find_mark_span(_COMMENT_ENDS.get(kind, ">"), content_start)[1]
        is_malformed = kind == "!--" and self.html.startswith((">", "->"), content_start)
        if self.is_certain and (
            is_malformed or kind == "![CDATA[" or "--!>" in self.html[content_start:comment_end]
        ):
            self.is_certain = False
        if start < self.script_until:  # inside a script, a comment may hide the end of the script
            comment_end = self.script_until = max(
                self.script_until, self._find_mark_span("</script", comment_end)[0]
            )
        self.hidden_until = max(self.hidden_until, comment_end)

    def _scan_attributes(self, tag_name: str, tag_start: int, name_end: int) -> int:
        """Count the attributes of a tag, and hide tags inside them; return where they end."""
        attributes_end = _ATTRIBUTES.match(self.html, name_end).end()  # type: ignore[union-attr]
        self.hidden_until = max(self.hidden_until, attributes_end)
        self.scanned_characters += attributes_end - tag_start
        is_merged = tag_name in ("html", "body")
        if is_merged or attributes_end - tag_start > 200:
            self.scanned_characters += attributes_end - tag_start
            attribute_count = len(_ONE_ATTRIBUTE.findall(self.html, name_end, attributes_end))
            self.merged_attributes += attribute_count if is_merged else 0
            self.comparisons += attribute_count * max(
                attribute_count, self.merged_attributes if is_merged else 0
            )
        if (
            self.comparisons > MAX_COMPARISONS
            or self.scanned_characters > self.max_scanned_characters
        ):
            raise PageError(TOO_MANY_ATTRIBUTES)
        return attributes_end

    def _ends_with_closing_slash(self, name_end: int, attributes_end: int) -> bool:
        """Return whether a tag ends with a slash that is not part of an attribute."""
        if self.html[attributes_end - 1] != "/":
            return False
        self.scanned_characters += attributes_end - name_end
        last_attribute_end = name_end
        for match in _ONE_ATTRIBUTE.finditer(self.html, name_end, attributes_end):
            last_attribute_end = match.end()
        return last_attribute_end < attributes_end

    def _skip_raw_text(self, tag_name: str, content_start: int) -> None:
        """Hide the tags up to the end of a raw text element."""
        content_end = (
            len(self.html)
            if tag_name == "plaintext"
            else self._find_mark_span(f"</{tag_name}", content_start)[0]
        )
        if self.is_certain:  # then these elements do not overlap, and time is linear
            text = self.html[content_start:content_end]
            has_nested_script = (
                tag_name == "script" and "<!--" in text and _SCRIPT_START.search(text)
            )
            self.is_certain = not (has_nested_script or (self.open_special and "<" in text))
        if tag_name == "script":
            self.script_until = max(self.script_until, content_end)
        self.hidden_until = max(self.hidden_until, content_end)
