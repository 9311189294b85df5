"""Write the pages of a card: its text as HTML and Markdown, its charts, and its evidence."""

from __future__ import annotations

from pathlib import Path

from hallmark.reports.page.card_tables import CardContent
from hallmark.reports.page.document import Callout, redact_document
from hallmark.reports.page.drawing import draw_chart
from hallmark.reports.page.evidence_pages import iterate_evidence_pages
from hallmark.reports.page.rendering import render_html, render_markdown


def write_card_pages(content: CardContent, folder: Path) -> None:
    """Write the pages of a card into a folder: HTML, Markdown, charts, and pages of rows."""
    redactor = content.redactor
    document = redact_document(content.document, redactor.redact_full_text)
    if redactor.notice:
        document.lead = [Callout("bad", [redactor.notice]), *document.lead]
    texts_by_path = {
        f"{content.name}.html": render_html(document),
        f"{content.name}.md": render_markdown(document),
    }
    texts_by_path |= {chart.path: draw_chart(chart.drawing) for chart in document.list_charts()}
    for path, text in (*texts_by_path.items(), *iterate_evidence_pages(content)):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
