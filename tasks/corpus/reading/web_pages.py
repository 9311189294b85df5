"""Convert web pages to text: detect their encoding, and limit the cost of parsing HTML."""

from __future__ import annotations

import codecs
import re

UNDECODABLE = "the page is not valid text in any of the encodings that were tried"
TOO_NESTED = "the HTML cannot be parsed: elements are nested too deeply"
TOO_MANY_ATTRIBUTES = "the HTML cannot be parsed: a tag has too many attributes"


class PageError(ValueError):
    """Signal that a page has no text; the message says why."""


# Encodings ---------------------------------------------------------------------------------------

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_META_CHARSET = re.compile(
    rb"""(?i)<meta[^>]{0,500}?charset\s{0,9}+=\s{0,9}+["']?+\s{0,9}+([\w:.-]{1,40})"""
)
#: The encodings that browsers use for these names.
_BROWSER_ENCODINGS = {
    "euc_kr": "cp949",
    "shift_jis": "cp932",
    "big5": "big5hkscs",
    "gbk": "gb18030",
}


def decode_page(data: bytes, charset: str, is_html: bool) -> str:
    """Decode a page.

    A byte order mark decides. Otherwise the ``charset`` of the HTTP header is tried, then the one
    of the ``meta`` element; each is used only if the whole page is valid in it. A page that
    declares nothing is UTF-8 if it is valid, otherwise it is in the encoding that a detector
    reports.

    Raises:
        PageError: if the page is valid in none of these encodings.
    """
    for byte_order_mark, encoding in _BYTE_ORDER_MARKS:
        if data.startswith(byte_order_mark):
            return _decode_strictly_with_first_valid(data[len(byte_order_mark) :], [encoding])
    candidate_encodings = _resolve_encoding_name(charset)
    if is_html and (meta_match := _META_CHARSET.search(data[:1024])):
        # A page whose meta element is readable as ASCII is not in UTF-16.
        candidate_encodings += [
            encoding_name if not encoding_name.startswith("utf-16") else "utf-8"
            for encoding_name in _resolve_encoding_name(meta_match[1].decode())
        ]
    return _decode_strictly_with_first_valid(
        data, candidate_encodings or ["utf-8", *detect_encodings(data)]
    )


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

    detected_name = detect_encoding(data, from_html_meta=False)
    return _resolve_encoding_name(detected_name) if detected_name else []


def _decode_strictly_with_first_valid(data: bytes, encodings: list[str]) -> str:
    for encoding in encodings:
        try:
            return data.decode(encoding)
        except (UnicodeDecodeError, LookupError):
            continue
    raise PageError(UNDECODABLE)


# HTML --------------------------------------------------------------------------------------------


def extract_page_text(html: str, main_content: bool) -> str:
    """Extract the visible text with its line breaks.

    Raises:
        PageError: if parsing would take too long.
    """
    from resiliparse.extract.html2text import extract_plain_text

    if html.count("<") > UNCHECKED_TAGS or len(html) > UNCHECKED_CHARACTERS:
        _ParserCostEstimator(html).check_limits()
    return extract_plain_text(
        html, preserve_formatting=True, main_content=main_content, alt_texts=False
    )


# At some tags a parser walks through all open elements, and reopens formatting elements that were
# not closed. So time and memory grow with the sum over all tags of the number of open elements. It
# compares each attribute of a tag with the earlier ones; for html and body, with those of all such
# tags. Measured: 7 s and 800 MB for a page at the limits; real pages reach a thousandth of them.
# A page with at most this many tags and characters cannot reach a limit.
UNCHECKED_TAGS, UNCHECKED_CHARACTERS = 1000, 20_000
MAX_OPEN_SUM, MAX_OPEN_FORMATTING_SUM = 20_000_000, 2_000_000
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
        self.open_tags: list[str] = []
        # The _IMPLICITLY_CLOSED_TAGS that are open outside all open_tags, then in each of them.
        self.open_implicit_tags: list[set[str]] = [set()]
        # Depth in open_tags of an svg or math element that holds no HTML; 0 without one.
        self.foreign_depth = 0
        self.open_formatting = 0

    def check_limits(self) -> None:
        """Raise PageError if the page is too costly to parse."""
        open_sum = open_formatting_sum = 0
        for match in _TAG_START.finditer(self.html):
            start = match.start()
            is_visible = start >= self.hidden_until
            if self.is_certain and not is_visible:
                continue
            if match[3]:
                self._skip_comment(start, match.end(), match[3])
                continue
            tag_name = match[2].lower() if match[2].isascii() and len(match[2]) < 60 else "?"
            attributes_end = self._scan_attributes(tag_name, start, match.end(2))
            if not match[1]:
                self._open_element(tag_name, match.end(2), attributes_end)
            elif is_visible:
                self._close_element(tag_name)
            open_sum += len(self.open_tags)
            open_formatting_sum += self.open_formatting
            if open_sum > MAX_OPEN_SUM or open_formatting_sum > MAX_OPEN_FORMATTING_SUM:
                raise PageError(TOO_NESTED)

    def _open_element(self, tag_name: str, name_end: int, attributes_end: int) -> None:
        if tag_name in _RAW_TEXT_TAGS:
            self._skip_raw_text(tag_name, attributes_end)
        # If certain, a raw text element such as svg's title holds only text, and svg continues.
        if tag_name in _HTML_TAGS and not (tag_name in _RAW_TEXT_TAGS and self.is_certain):
            self.foreign_depth = 0
        if self.foreign_depth and self._ends_with_closing_slash(name_end, attributes_end):
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
            or self.scanned_characters > MAX_SCAN_FACTOR * len(self.html) + UNCHECKED_CHARACTERS
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
