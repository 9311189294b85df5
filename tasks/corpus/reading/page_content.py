"""Change parsed pages so that the extraction of main content keeps what is content.

Resiliparse leaves out elements whose tag, class or id is usual for navigation, footers, teasers and
notices. But such an element may hold the text of the page: a section about search has the id
``search``. ``protect_content`` recognises content by its text and its links, and changes these
elements so that Resiliparse keeps them.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

from hallmark.tasks.corpus.reading.page_markup import (
    is_next_to_words,
    rename_element,
    select_elements,
)

if TYPE_CHECKING:
    from resiliparse.parse.html import ElementNode, HTMLTree

_PAGE_PARTS = "main, article, [role=main], nav, header, footer, aside, [role=navigation]"
_HEADINGS = "h1, h2, h3, h4, h5, h6"
_HEADING_TAGS = frozenset(_HEADINGS.split(", "))
#: A link to another page. A link to a place on a page is often the anchor of its heading.
_LINK = 'a[href]:not([href*="#"])'
_LINKED_HEADINGS = f":is({_HEADINGS}) {_LINK}, {_LINK} :is({_HEADINGS})"
#: How many times the length of the page the elements in it may be read, one by one.
MAX_READS = 4


def protect_content(tree: HTMLTree, html_length: int) -> None:
    """Change the elements that are content so that Resiliparse does not leave them out.

    Notices of consent tools, which Resiliparse does not know, are removed.
    """
    if tree.body is not None:
        _remove_consent_notices(tree.body)
        _NamedContent(tree, html_length).protect()
        _protect_lists_of_content(tree, html_length)


def _is_in_content(element: ElementNode) -> bool | None:
    """Return whether an element is in main or article, or else None if it is in no page part."""
    page_part = element.closest(_PAGE_PARTS)
    if page_part is None:
        return None
    return page_part.tag in ("main", "article") or page_part.getattr("role") == "main"


def _get_names(element: ElementNode) -> str:
    return f"{element.getattr('class') or ''} {element.getattr('id') or ''}"


def _count_characters(element: ElementNode) -> int:
    """Count the characters of an element without white space."""
    return len("".join((element.text or "").split()))


def _count_inner_characters(element: ElementNode, selector: str) -> Counter[str]:
    """Count the characters, without white space, of the selected elements in an element by tag.

    An element inside another one is not counted.
    """
    counts: Counter[str] = Counter()
    outer = None
    for part in select_elements(element, selector):
        if outer is None or not outer.contains(part):
            outer = part
            counts[part.tag or ""] += _count_characters(part)
    return counts


# Notices of consent tools ------------------------------------------------------------------------

#: Elements that widespread tools add to pages to ask for consent to cookies.
_CONSENT_NOTICES = (
    ":is(div, section, aside, dialog, form):is("
    "#onetrust-consent-sdk, #onetrust-banner-sdk, #CybotCookiebotDialog, #didomi-host, "
    "#cookie-law-info-bar, #truste-consent-track, .truste_overlay, #usercentrics-root, "
    ".qc-cmp2-container, [id^=sp_message_container], #iubenda-cs-banner, #BorlabsCookieBox, "
    ".cmplz-cookiebanner, #moove_gdpr_cookie_info_bar, .klaro, .cc-window, .cc-banner, "
    "#cookieconsent, .cookieconsent, #cookie-notice, #cookiebanner, #cookie-consent, "
    "#cookieConsent, .cookie-consent, #gdpr-banner, .termsfeed-com---nb, #tarteaucitronRoot, "
    "#cmpbox, #cookiescript_injected"
    ")"
)


def _remove_consent_notices(body: ElementNode) -> None:
    """Remove notices of consent tools, except in main and article, which may be about them."""
    for notice in select_elements(body, _CONSENT_NOTICES):
        if _is_in_content(notice) is not True:
            notice.decompose()


# Elements with names of page parts ---------------------------------------------------------------

#: Pieces of names. Only elements with such a class, or with an id, are examined.
_NAME_PIECES = [
    "nav",
    "menu",
    "drop",
    "copyright",
    "cookie",
    "consent",
    "legal",
    "trend",
    "recommended",
    "featured",
    "popular",
    "related",
    "search",
    "sidebar",
    "modal",
    "popup",
    "gallery",
    "carousel",
    "sponsor",
    "promoted",
    "banner",
    "donate",
    "share",
    "newsletter",
    "feedback",
    "subscribe",
    "twitter",
    "facebook",
    "social",
    "sharing",
    "foot",
    "header",
    "link",
    "print",
    "third",
    "login",
    "log-in",
    "signin",
    "sign-in",
    "account",
    "email",
    "follow",
    "like",
    "next",
    "prev",
    "permalink",
    "pagination",
]
_BLOCKS = (
    "div, section, article, p, pre, blockquote, h1, h2, h3, h4, h5, h6, ol, ol > li, dl, dd, dt, "
    "table, caption, tbody, tr, td, form, details, summary, fieldset, address, center"
)
_NAMED_BLOCKS = (
    f":is({_BLOCKS}):is([id], [role], [data-ad], "
    f"{', '.join(f'[class*={p} i]' for p in _NAME_PIECES)})"
)
#: Roles for which Resiliparse leaves out blocks, but which may be content.
_CONTENT_ROLES = frozenset(
    (
        *("alert", "banner", "comment", "complementary", "contentinfo", "dialog", "presentation"),
        *("search", "tab"),
    )
)
#: The names for which Resiliparse leaves out blocks, if they may also name the subject of a text.
_SUBJECT_NAME = r"""
    (?:^|\s)(?:(?:l|m|wp|main|site|page|sub|article|global|sticky)[_-]*)?(?:nav(?:igation|bar)?
      (?:[_-](?:bar|menu|container|wrapper))?|menu(?:[_-]item)?|drop[_-]?down
      |links?[_-]?(?:bar|box|list|container|section|wrapper))(?:$|\s)
    | (?:^|[\s_-])(?:trends|trending|recommended|featured|popular|editors?[_-]picks|related
      |read-next)(?:$|[\s_-])
    | (?:^|\s)search(?:[_-]?(?:bar|facility|box))?(?:$|\s)
    | (?:^|\s)(?:(?:l|wp|right|left|global|sticky)[_-]*)?(?:(?:side|sticky)[_-]?(?:bars?|box)
      |one-third)(?:$|\s)
    | (?:^|\s)(?:gallery|carousel|legal|copyright)(?:$|\s)
    | (?:^|\s)(?:(?:wide)?banner|sponsor(?:ed)?|promoted|paid|donate)(?:$|[\s_-])
    | (?:^|\s)(?:l|m|wp|global|page|site|full|sticky)[_-]*header(?:[_-]?wrap(?:per)?|bar)?(?:$|\s)
    | \s(?:(?:l|wp|global|page|site|full|sticky)[_-]*)?(?:head(?:er)?|right)$"""
#: The names for which Resiliparse leaves out blocks, if they usually name notices and forms.
_NOTICE_NAME = r"""
    (?:^|\s)(?:(?:global|page|site)[_-]?)?(?:foot(?:er)?|copyright|cookie|consent|legal)
      (?:[_-](?:wrap(?:per)?|container|banner|notice|bar|consent))?(?:$|\s)
    | (?:^|\s)(?:wp-|p-|-l)?(?:modal|popup|lightbox)(?:[_-]*(?:window|pane|box))?(?:$|\s)
    | (?:^|\s)print[_-]
    | (?:^|[\s_-])(?:(?:log|sign)[_-]?(?:in|up)|account)(?:$|[\s_-])
    | (?:^|\s)(?:next|prev(?:ious)?|permalink|pagination)(?:$|\s|[_-]?(?:post|article))
    | (?:^|[\s_-])(?:social(?:media|search)?|share(?:daddy)?|newsletter|sharing|feedback|facebook
      |twitter|subscribe|follow|email|likes?)(?:[_-]?(?:post|links?|section|icons?|btn|buttons?|target))?(?:$|[\s_-])"""
_PART_NAME = re.compile(rf"(?ix){_SUBJECT_NAME} | (?P<notice>{_NOTICE_NAME})")
_search_part_name = lru_cache(maxsize=1 << 14)(_PART_NAME.search)
_HIDDEN_NAME = re.compile(
    r"(?i)(?:^|\s)(?:(?:is|visually)[_-])?(?:display-none|hidden|invisible|collapsed|h-0|nocontent"
    r"|expandable)(?:-xs|-sm|-lg|-2?xl)?(?:$|\s)"
)
#: The names for which Resiliparse leaves out elements of any kind.
_INLINE_NAMES = re.compile(
    r"""(?ix) logo(?:$|\s)
    | (?:^|\s)(?:sponsor(?:ed)?|banner|donate)(?:$|[\s_-])
    | (?:^|[\s_-])(?:login|account)(?:$|[\s_-])
    | (?:^|\s)(?:next|prev(?:ious)?|permalink)(?:$|\s|[_-])
    | (?:^|[\s_-])(?:social|share|sharing|follow|email|likes?|feedback|twitter|subscribe)
      (?:[_-]?(?:links?|icons?|btn|buttons?|target))?(?:$|[\s_-])"""
)
_INLINE_TAGS = frozenset(("a", "span", "em", "strong", "b", "i", "code", "abbr", "cite"))
_INLINE_ELEMENTS = (
    f":is(p, dd, td) > :is({', '.join(sorted(_INLINE_TAGS))}):is([class], [itemprop], [rel])"
)
#: A class that Resiliparse takes for the text of the page.
_TEXT_NAME = "text"

_NO_PROSE = "a, script, style, noscript, button, select, textarea, nav"
_FORM_CONTROLS = "input, select, textarea, form"
_SENTENCE_END = re.compile("[.!?…。！？।۔؟]")
#: An element with at least this share of the page's prose, and so many characters, is content.
MAIN_PROSE_SHARE, MIN_MAIN_PROSE = 0.5, 200
#: Another element with fewer characters of prose is content only if its heading contains its id.
MIN_PROSE = 20
#: An element with a larger share of its text in links is not content.
MAX_PROSE_LINK_SHARE = 0.25
#: So many elements with names may contain each other. Those inside them are not examined, because
#: each examination reads all elements inside an element.
MAX_NESTED_NAMES = 8
#: In a notice, a sign of copyright is near the beginning.
COPYRIGHT_CHARACTERS = 200


_EXAMINED_ELEMENTS = f"{_NAMED_BLOCKS}, aside, blockquote footer, {_INLINE_ELEMENTS}"


class _NamedContent:
    """Find the elements of a page that are content although they have names of page parts.

    Code, quotations and headings without links are content. Any other element needs prose, that is
    text outside links and controls. It is content if it has most prose of the page, or if it has no
    form and no headings with links, and

    * its heading contains its id, or
    * it is in main or article, or
    * it is outside of all parts, has a sentence, and its name is not usual for notices.
    """

    def __init__(self, tree: HTMLTree, html_length: int) -> None:
        self.tree = tree
        self.readable_characters = MAX_READS * html_length
        self.page_prose = -1  # not counted yet

    def protect(self) -> None:
        """Remove the names from elements that are content, and keep notes and sources in it."""
        body = self.tree.body
        assert body is not None
        outer_elements: list[ElementNode] = []  # examined ones that contain the element
        for element in select_elements(body, _EXAMINED_ELEMENTS):
            if self.readable_characters <= 0:
                break
            if element.tag in _INLINE_TAGS:
                _protect_words(element)
                continue
            names = _get_names(element)
            name_match = _search_part_name(names)
            has_role = element.getattr("role") in _CONTENT_ROLES or element.hasattr("data-ad")
            if element.tag not in ("aside", "footer") and (
                (name_match is None and not has_role) or _HIDDEN_NAME.search(names)
            ):
                continue
            while outer_elements and not outer_elements[-1].contains(element):
                outer_elements.pop()
            if len(outer_elements) >= MAX_NESTED_NAMES:
                continue
            outer_elements.append(element)
            if element.tag in ("aside", "footer"):
                if element.tag == "footer" or self._is_note(element):
                    outer_elements[-1] = rename_element(self.tree, element, "div")
                continue
            is_notice = has_role or (name_match is not None and name_match["notice"] is not None)
            if self._is_content(element, is_notice=is_notice):
                element.setattr("class", _TEXT_NAME)
                element.delattr("id")
                element.delattr("role")
                element.delattr("data-ad")

    def _is_content(self, element: ElementNode, *, is_notice: bool) -> bool:
        if element.tag in ("pre", "blockquote"):
            return True
        is_in_content = _is_in_content(element)
        if is_in_content is False:
            return False
        if element.tag in _HEADING_TAGS:
            is_text = is_in_content is True or element.hasattr("id")
            return is_text and element.query_selector(_LINK) is None
        prose = self._count_prose(element)
        is_dialog = element.getattr("role") == "dialog"
        if prose <= 0 or (is_dialog and element.query_selector("button, [role=button]")):
            return False
        is_prose = (
            element.query_selector(f"{_FORM_CONTROLS}, {_LINKED_HEADINGS}") is None
            and element.closest("a") is None
        )
        if is_prose and _has_id_of_heading(element):
            return True
        text = element.text or ""
        has_prose = is_prose and prose >= MIN_PROSE and "©" not in text[:COPYRIGHT_CHARACTERS]
        has_sentence = not is_notice and _SENTENCE_END.search(text) is not None
        if has_prose and (is_in_content or has_sentence):
            return True
        return prose >= MIN_MAIN_PROSE and prose >= MAIN_PROSE_SHARE * self._count_page_prose()

    def _is_note(self, aside: ElementNode) -> bool:
        """Return whether an aside in main or article has prose, and neither forms nor teasers."""
        parent = aside.parent_element
        return (
            parent is not None
            and _search_part_name(_get_names(aside)) is None
            and _is_in_content(parent) is True
            and self._count_prose(aside) >= MIN_PROSE
            and aside.query_selector(f"{_FORM_CONTROLS}, {_LINKED_HEADINGS}") is None
            and _SENTENCE_END.search(aside.text or "") is not None
        )

    def _count_prose(self, element: ElementNode) -> int:
        """Count the characters of an element outside links and controls; 0 if it has many links."""
        text_length = _count_characters(element)
        self.readable_characters -= 2 * text_length
        if not text_length:
            return 0
        inner_lengths = _count_inner_characters(element, _NO_PROSE)
        prose = text_length - inner_lengths.total()
        return (
            prose
            if inner_lengths["a"] <= MAX_PROSE_LINK_SHARE * (prose + inner_lengths["a"])
            else 0
        )

    def _count_page_prose(self) -> int:
        if self.page_prose < 0:
            body = self.tree.body
            assert body is not None
            inner_lengths = _count_inner_characters(body, _NO_PROSE)
            self.page_prose = _count_characters(body) - inner_lengths.total()
        return self.page_prose


def _protect_words(element: ElementNode) -> None:
    """Remove the names of page parts from a word or link in a sentence."""
    names = _get_names(element)
    has_relation = element.hasattr("rel") or element.hasattr("itemprop")
    if (
        (has_relation or _INLINE_NAMES.search(names) is not None)
        and _HIDDEN_NAME.search(names) is None
        and is_next_to_words(element)
    ):
        element.setattr("class", _TEXT_NAME)
        for attribute in ("id", "rel", "itemprop"):
            element.delattr(attribute)


_WORD = re.compile(r"[^\W_]+")


def _has_id_of_heading(element: ElementNode) -> bool:
    """Return whether the first heading in an element contains its id, as anchors do."""
    heading = element.query_selector(_HEADINGS)
    id_words = _WORD.findall((element.getattr("id") or "").lower())
    if heading is None or not id_words:
        return False
    heading_words = _WORD.findall((heading.text or "").lower())
    return f" {' '.join(id_words)} " in f" {' '.join(heading_words)} "


# Lists -------------------------------------------------------------------------------------------

# Resiliparse leaves out a ul element that is fewer than so many elements below body, that has a
# class or id of navigation, or that has more than a fifth of its text in links. But such a list may
# be content, too. Then it is changed so that nothing of this is true of it.
NAVIGATION_DEPTH = 3
_NAVIGATION_NAME = re.compile(r"(?i)(?:^|[\s_-])(?:nav(?:bar|igation)?|menu)(?:$|[\s_-])")

#: With a smaller share of its text in links, Resiliparse keeps a list.
KEPT_LINK_SHARE = 0.15

#: A list with a larger share of its text in links is navigation, unless it follows text.
MAX_LINK_SHARE = 0.5
#: A page with a longer text has more than headings.
MAX_HEADINGS_LENGTH = 1000


def _protect_lists_of_content(tree: HTMLTree, html_length: int) -> None:
    """Change the lists that are content so that Resiliparse does not leave them out.

    These are lists, outside of parts for navigation, that have little text in links, or follow a
    heading or paragraph. Lists of headings with links are teasers of other pages.
    """
    assert tree.body is not None
    readable_characters = MAX_READS * html_length
    for element in select_elements(tree.body, "ul"):
        if readable_characters <= 0:
            break
        if _is_in_content(element) is False:
            continue
        text_length, link_length = (
            _count_characters(element),
            _count_inner_characters(element, "a").total(),
        )
        readable_characters -= text_length + link_length
        has_few_links = link_length <= MAX_LINK_SHARE * text_length
        follows_text = _follows_text(element) and not _has_navigation_name(element)
        has_teasers = link_length > 0 and element.query_selector(_LINKED_HEADINGS) is not None
        if (has_few_links or follows_text) and not has_teasers:
            _protect_list(tree, element, has_links=link_length > KEPT_LINK_SHARE * text_length)


def protect_all_lists(tree: HTMLTree) -> bool:
    """Protect all lists without parts and names of navigation; return whether there are any."""
    elements = select_elements(tree.body, "ul") if tree.body else ()
    lists = [
        element
        for element in elements
        if _is_in_content(element) is not False and not _has_navigation_name(element)
    ]
    for element in lists:
        _protect_list(tree, element, has_links=True)
    return bool(lists)


def _has_navigation_name(element: ElementNode) -> bool:
    return bool(_NAVIGATION_NAME.search(_get_names(element)))


def _measure_depth(element: ElementNode) -> int:
    """Return the number of elements between an element and body, at most NAVIGATION_DEPTH."""
    depth, parent = 0, element.parent
    while depth < NAVIGATION_DEPTH and parent is not None and parent.tag != "body":
        depth, parent = depth + 1, parent.parent
    return depth


def _follows_text(element: ElementNode) -> bool:
    previous = element.previous_element_sibling
    return previous is not None and previous.tag in {"p", *_HEADING_TAGS}


def _protect_list(tree: HTMLTree, element: ElementNode, *, has_links: bool) -> None:
    """Move a list away from body, and remove its names of navigation and its links, if any."""
    document = tree.document
    assert document is not None
    for _ in range(NAVIGATION_DEPTH - _measure_depth(element)):
        wrapper = document.create_element("div")
        element.replace_with(wrapper)
        wrapper.append_child(element)
    for item in (element, *element.children[:]):
        for attribute in ("class", "id"):
            names = (item.getattr(attribute) or "").split()
            kept_names = [
                name
                for name in names
                if not (_NAVIGATION_NAME.search(name) or _search_part_name(f"{name} "))
            ]
            if len(kept_names) < len(names):
                item.setattr(attribute, " ".join(kept_names))
    for link in select_elements(element, "a") if has_links else ():
        replacement = document.create_element("span")
        for attribute in link.attribute_names:
            replacement.setattr(attribute, link.getattr(attribute) or "")
        replacement.replace_children(*link.child_nodes[:])
        link.replace_with(replacement)


def has_only_headings(tree: HTMLTree, text: str) -> bool:
    if len(text) > MAX_HEADINGS_LENGTH:
        return False
    headings = select_elements(tree.body, _HEADINGS) if tree.body else ()
    heading_lines = {" ".join((heading.text or "").split()) for heading in headings}
    return {" ".join(line.split()) for line in text.splitlines()} <= heading_lines | {""}
