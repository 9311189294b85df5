"""Change the markup of web pages so that Resiliparse extracts their text as browsers show it.

Resiliparse parses every page as HTML, leaves out the text of some elements, and does not know some
attributes. ``repair_markup`` changes the source of a page before it is parsed, ``format_tree`` the
parsed page, and ``clean_text`` removes the marks of both from the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape, unescape
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resiliparse.parse.html import ElementNode, HTMLTree, Node

#: A mark that prevents Resiliparse from leaving out a character, or that stands before a number.
#: It is not a character of any text.
_MARK = "\ufdd0"


def repair_markup(html: str, main_content: bool, *, is_xhtml: bool = False) -> str:
    """Change the source of a page so that parsing it as HTML loses no text.

    Args:
        html: The page.
        main_content: Whether only the main content is extracted. It has no captions of figures.
        is_xhtml: Whether the page is served as XHTML. A page may also declare it.
    """
    if is_xhtml or _XHTML_DECLARATION.search(html, 0, 2000):
        if prefix := _XHTML_PREFIX.search(html, 0, 2000):
            html = re.sub(rf"<(/?){re.escape(prefix[1])}:", r"<\1", html)
        html = _XML_MARKUP.sub(_convert_xml_markup, html)
    if not main_content:
        return _DROPPED_ELEMENT.sub(_rename_dropped_element, html)
    html = _DROPPED_MAIN_ELEMENT.sub(_rename_dropped_element, html)
    return _SINGLE_CHARACTER.sub(_mark_single_character, html)


def list_skipped_selectors(html: str) -> list[str]:
    """Return CSS selectors of elements whose text repeats or annotates other text of the page."""
    selectors = []
    if _RUBY_START.search(html):
        # Readings in small letters above a word; in a line with it, they would be part of the word.
        selectors += ["rt", "rp"]
    if "<annotation" in html:  # the source of a formula, which MathML contains after the formula
        selectors += ["annotation", "annotation-xml", ".katex-html"]
    return selectors


def format_tree(tree: HTMLTree) -> None:
    """Keep the text of buttons in sentences, the numbers of lists and the indentation of code."""
    if tree.body is None:
        return
    for element in select_elements(tree.body, _FORMATTED_ELEMENTS):
        if element.tag in ("button", "label"):
            if _is_in_text(element):
                rename_element(tree, element, "span")
        elif element.tag == "ol":
            _number_items(tree, element)
        elif element.tag == "math":  # hidden, because an image shows the same formula
            assert element.parent_element is not None
            element.parent_element.delattr("style")
        else:
            _indent_code(element)


def clean_text(text: str) -> str:
    """Remove marks, and the numbers of items that another number follows, from extracted text."""
    return _REPLACED_NUMBER.sub("", text).replace(_MARK, "") if _MARK in text else text


def select_elements(element: ElementNode, selector: str) -> list[ElementNode]:
    """Return the elements that match a CSS selector, in the order of the page."""
    # Iterating over the library's own list takes time that grows with the square of its length.
    return list(element.query_selector_all(selector)[:])


def rename_element(tree: HTMLTree, element: ElementNode, tag: str) -> ElementNode:
    """Replace an element by one with another tag, without attributes, and return that one."""
    assert tree.document is not None
    renamed = tree.document.create_element(tag)
    renamed.replace_children(*element.child_nodes[:])
    element.replace_with(renamed)
    return renamed


# XHTML -------------------------------------------------------------------------------------------

_XHTML_DECLARATION = re.compile(
    r"""(?ai)\A\s*+<\?xml\s|<!DOCTYPE\s[^>]{0,99}//DTD\ XHTML"""
    r"""|<[\w:]*html\s[^>]{0,999}?xmlns(?::\w+)?\s?=\s?["']http://www\.w3\.org/1999/xhtml["']"""
)
_ATTRIBUTES = r"""(?:[^<>"'/]++|"[^"]*+"|'[^']*+'|/(?!>))*+"""
#: Comments, scripts, CDATA sections, instructions, document types with an internal subset, tags
#: that close their own element, and end tags of br. A search to the end of the page takes all of
#: it, so that the time is linear.
_XML_MARKUP = re.compile(
    rf"""(?aisx) <!--(?:.*?-->|.*+)
    | <(?:script|style)(?=[\s>]){_ATTRIBUTES}>(?:.*?</(?:script|style)|.*+)
    | <!\[CDATA\[(?:(?P<text>.*?)\]\]>|.*+)
    | <(?P<instruction>\?)(?:.*?\?>|.*+)
    | <!DOCTYPE\s[^<>\[]*+(?:(?P<subset>\[.*?\]\s*+>)|\[.*+)
    | <(?P<tag>[a-z][^\s/<>]*+)(?P<attributes>{_ATTRIBUTES}(?<=["'\s]))?/>
    | </br\s*+>"""
)
_XHTML_PREFIX = re.compile(r"""xmlns:(\w+)\s?=\s?["']http://www\.w3\.org/1999/xhtml["']""")
_VOID_TAGS = frozenset(
    [
        "area",
        "base",
        "basefont",
        "bgsound",
        "br",
        "col",
        "embed",
        "frame",
        "hr",
        "img",
        "input",
        "keygen",
        "link",
        "meta",
        "param",
        "source",
        "track",
        "wbr",
    ]
)


def _convert_xml_markup(match: re.Match[str]) -> str:
    """Return what HTML has in place of a CDATA section, or of a tag that closes its element."""
    tag, text = match["tag"], match["text"]
    if text is not None:
        return escape(text, quote=False)
    if tag is not None and tag.lower() not in _VOID_TAGS:
        return f"<{tag}{match['attributes'] or ''}></{tag}>"
    if match["subset"] is not None:
        return match[0].removesuffix(match["subset"]) + ">"
    return "" if match["instruction"] or match[0].startswith("</") else match[0]


# Elements of text that Resiliparse leaves out ----------------------------------------------------

#: A table, code or a quotation is often in a figure element, and a date in a sentence in a time
#: element. Resiliparse leaves out both.
_DROPPED_MAIN_ELEMENT = re.compile(r"(?ai)<(/?)(figure|time)(?=[\s/>])")
_DROPPED_ELEMENT = re.compile(r"(?ai)<(/?)(figure|figcaption|time)(?=[\s/>])")
_RUBY_START = re.compile("(?ai)<rt[^a-z]")


def _rename_dropped_element(match: re.Match[str]) -> str:
    return f"<{match[1]}{'span' if match[2].lower() == 'time' else 'div'}"


# Resiliparse takes a character of three bytes in UTF-8 that stands alone between two tags for a
# separator and leaves it out. A mark next to it prevents it.
_SINGLE_CHARACTER = re.compile(r">(\s*+)([\u0800-\uffff]|&#?\w{2,32}+;)(?=\s*+<)")
_SEPARATORS = frozenset("•‣∙●○■□▪▫◆◇►▶▸›‹→←⇒│┃❘–—―⋅∣")


def _mark_single_character(match: re.Match[str]) -> str:
    character = unescape(match[2])
    is_text = character.isprintable() and character not in _SEPARATORS
    return match[0] + _MARK if is_text else match[0]


# Buttons, numbers and code -----------------------------------------------------------------------

_FORMATTED_ELEMENTS = (
    "button, label, ol[start], ol[type], ol[reversed], ol:has(> li[value]), li pre, "
    "span[style] > math"
)
_TITLES = ("h1", "h2", "h3", "h4", "h5", "h6", "summary", "dt")


def _is_in_text(element: ElementNode) -> bool:
    """Return whether a button or label is in a heading or sentence, or a label outside a form."""
    parent = element.parent_element
    if is_next_to_words(element) or (parent is not None and parent.tag in _TITLES):
        return True
    if element.tag == "button":
        return False
    place = element.closest("form, main, article")
    return place is not None and place.tag != "form"


def is_next_to_words(element: ElementNode) -> bool:
    """Return whether there are letters directly before or after an element."""
    for neighbour in (element.previous_sibling, element.next_sibling):
        if neighbour is not None and neighbour.tag == "#text":
            text = neighbour.value or ""
            if not text.isspace() and any(map(str.isalpha, text)):
                return True
    return False


_REPLACED_NUMBER = re.compile(rf"(?<!\S)\d+\. {_MARK}(?=\S+\. )")
_INTEGER = re.compile(r"\s*+([+-]?\d{1,9})")
#: How many nodes of an item are searched for its first text.
MAX_SEARCHED_NODES = 20


def _number_items(tree: HTMLTree, ordered_list: ElementNode) -> None:
    """Write the numbers of a list that does not count from 1 before the texts of its items."""
    items = [child for child in ordered_list.children[:] if child.tag == "li"]
    is_reversed = ordered_list.hasattr("reversed")
    number = _parse_integer(ordered_list.getattr("start"), len(items) if is_reversed else 1)
    for item in items:
        number = _parse_integer(item.getattr("value"), number)
        nodes = islice(item, MAX_SEARCHED_NODES)
        text_node = next((node for node in nodes if _is_text(node)), None)
        if text_node is not None:
            label = _format_number(number, ordered_list.getattr("type") or "1")
            text_node.value = f"{_MARK}{label}. {(text_node.value or '').lstrip()}"
        number += -1 if is_reversed else 1


def _is_text(node: Node) -> bool:
    return node.tag == "#text" and bool((node.value or "").strip())


def _parse_integer(value: str | None, default: int) -> int:
    match = _INTEGER.match(value or "")
    return int(match[1]) if match else default


_ROMAN_NUMERALS = (
    *((1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l")),
    *((40, "xl"), (10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i")),
)


def _format_number(number: int, list_type: str) -> str:
    """Format the number of an item as the ``type`` of its list says: 1, a, A, i or I."""
    label = ""
    if list_type in ("a", "A"):
        while number > 0:
            number, letter_index = divmod(number - 1, 26)
            label = chr(ord("a") + letter_index) + label
    elif list_type in ("i", "I") and 0 < number < 4000:
        for value, numeral in _ROMAN_NUMERALS:
            label += numeral * (number // value)
            number %= value
    return (label.upper() if list_type.isupper() else label) or str(number)


#: How many elements around code are searched for lists.
MAX_COUNTED_PARENTS = 200
_LINE_START = re.compile(r"(?m)^(?=[^\n])")


def _indent_code(code: ElementNode) -> None:
    """Indent all lines of code in a list like its first line, which Resiliparse indents."""
    parent = code.parent_element
    if parent is None or parent.closest("pre") is not None:
        return
    parents = islice(_iterate_parents(code), MAX_COUNTED_PARENTS)
    depth = sum(parent.tag in ("ul", "ol") for parent in parents)
    indentation = "  " * (max(depth, 1) + 1)
    is_line_start = False
    for node in list(code):
        if node.tag == "#text":
            text = node.value or ""
            indented = _LINE_START.sub(indentation, text)
            if not is_line_start and not text.startswith("\n"):
                indented = indented.removeprefix(indentation)
            node.value, is_line_start = indented, text.endswith("\n")
        elif node.tag in ("br", "div", "p"):  # Resiliparse indents what follows
            is_line_start = False


def _iterate_parents(element: ElementNode) -> Iterator[Node]:
    parent = element.parent
    while parent is not None:
        yield parent
        parent = parent.parent
