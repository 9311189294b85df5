"""Render the pages of a card: its main page, those of its sections, and those of its evidence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from hallmark.reports.page.card_tables import CardContent
from hallmark.reports.page.document import (
    Callout,
    Document,
    Section,
    list_document_texts,
    redact_document,
)
from hallmark.reports.page.evidence_pages import iterate_evidence_pages
from hallmark.reports.page.rendering import (
    FigureLinker,
    get_evidence_path,
    render_html,
    render_markdown,
    render_section_html,
    render_section_markdown,
)
from hallmark.tasks.contract import HallmarkError


class PageFile(NamedTuple):
    """A file of a card's pages.

    Attributes:
        path: Its path in the folder of the card.
        text: Its content.
    """

    path: str
    text: str


def render_card_page(
    content: CardContent, page: str = "", link_figure: FigureLinker = get_evidence_path
) -> str:
    """Render one page of a card as HTML, without rendering the others.

    Args:
        content: The card.
        page: The name of the section's page; empty for the page of the card itself.
        link_figure: Returns where the link of a figure leads.

    Raises:
        HallmarkError: If the card has no page of that name.
    """
    document = redact_card_page(content, page)
    if not page:
        return render_html(document, link_figure)
    return render_section_html(document, document.sections[0], f"{content.name}.html", link_figure)


def redact_card_page(content: CardContent, page: str = "") -> Document:
    """Return the redacted document of a card, or of one of its pages: only the section of it.

    Raises:
        HallmarkError: If the card has no page of that name.
    """
    if not page:
        return _redact(content)
    sections = [section for section in content.document.list_pages() if section.page == page]
    if not sections:
        raise HallmarkError(f"the {content.document.kind.lower()} has no page {page!r:.80}")
    return _redact(content, sections[0])


def iterate_card_pages(
    content: CardContent,
    link_figure: FigureLinker = get_evidence_path,
    *,
    has_markdown: bool = True,
) -> Iterator[PageFile]:
    """Yield the pages of a card as HTML and Markdown, without those of its evidence."""
    document = _redact(content)
    yield PageFile(f"{content.name}.html", render_html(document, link_figure))
    if has_markdown:
        yield PageFile(f"{content.name}.md", render_markdown(document))
    page_document = replace(document, lead=_build_page_lead(content))
    for section in document.list_pages():
        html = render_section_html(page_document, section, f"{content.name}.html", link_figure)
        yield PageFile(f"{section.page}.html", html)
        if has_markdown:
            markdown = render_section_markdown(page_document, section, f"{content.name}.md")
            yield PageFile(f"{section.page}.md", markdown)


def write_card_pages(
    content: CardContent,
    folder: Path,
    link_figure: FigureLinker = get_evidence_path,
    *,
    has_markdown: bool = True,
) -> list[str]:
    """Write the pages of a card and of its evidence into a folder.

    Args:
        content: The card.
        folder: The folder.
        link_figure: Returns where the link of a figure leads.
        has_markdown: Whether the pages of the card are also written as Markdown.

    Returns:
        Why some rows that are in the store are not shown, each reason once.
    """
    evidence_pages = [*iterate_evidence_pages(content)]
    for path, text in (
        *iterate_card_pages(content, link_figure, has_markdown=has_markdown),
        *((page.path, page.text) for page in evidence_pages),
    ):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    problems = [problem for page in evidence_pages for problem in page.problems]
    return [*dict.fromkeys([*content.damaged_evidence.values(), *problems])]


def _redact(content: CardContent, section: Section | None = None) -> Document:
    """Return the redacted document; only one section of it, without the lead, if one is given."""
    document = content.document
    if section is not None:
        document = replace(document, lead=[], sections=[section])
    content.redactor.search_full_texts(list_document_texts(document))
    document = redact_document(document, content.redactor.redact_full_text)
    document.lead = [*_build_page_lead(content), *document.lead]
    return document


def _build_page_lead(content: CardContent) -> list[Callout]:
    """Return the notice that every page of the card begins with, if the redactor has one."""
    notice = content.redactor.notice
    return [Callout("bad", [notice])] if notice else []
