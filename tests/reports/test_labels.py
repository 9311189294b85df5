"""Test that labels, which come from data, are masked everywhere like texts."""

from __future__ import annotations

import html
import json

import pytest

from hallmark.reports.datasheet import DatasheetConfig, build_datasheet
from hallmark.reports.model_card import ModelCardConfig, build_model_card
from hallmark.reports.page.card_pages import write_card_pages
from hallmark.reports.page.card_tables import CardContent, build_sections_table, read_document
from hallmark.reports.page.charts import (
    BarChart,
    Curve,
    IntervalChart,
    LineChart,
    ShadedRow,
    ShadedText,
    TrajectoryChart,
)
from hallmark.reports.page.document import (
    BulletList,
    Callout,
    Chart,
    Code,
    CodeBlock,
    DataTable,
    DecisionSheet,
    DefinitionList,
    Details,
    Document,
    Link,
    Paragraph,
    RiskLine,
    Section,
    ShortFigure,
    UserStatement,
    format_user_statement,
    redact_document,
)
from hallmark.reports.page.drawing import draw_chart
from hallmark.reports.page.figures import FigureBook
from hallmark.reports.page.redaction import Redactor, escape_invisible
from hallmark.reports.page.rendering import render_html, render_markdown, render_section_html
from hallmark.tasks.audits.judging.findings import FINDINGS, build_finding
from hallmark.tasks.contract import EmptyConfig, StageContext, stage
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from tests.findings import build_titled_table
from tests.reports import artifacts, pages
from tests.tasks.corpora import given

MAIL, ADDRESS, PHONE, PIN = (
    "jane.roe@corp.example",
    "93.184.216.34",
    "+44 20 7946 0018",
    "482 913 057",
)
HIDDEN = (MAIL, ADDRESS, PHONE, PIN, "jane.roe", "7946", "jane-roe", "93-184-216-34")


def read_texts_by_file(folder):
    """Read the text of all pages of a card by file name, Markdown without its escapes."""
    return {
        str(path.relative_to(folder)): html.unescape(path.read_text()).replace("\\", "")
        for path in folder.rglob("*")
        if path.suffix in (".html", ".md")
    }


def document_of(label: str, book: FigureBook) -> Document:
    """Build a document with the label in every place that a card may show."""
    rows = book.add_computed_figure(
        label,
        label,
        "documents",
        ("split", "documents"),
        aggregate="count",
        scorer=label,
        method=label,
    )
    none = book.add_computed_figure(
        f"no {label}",
        label,
        "",
        ("split", "documents"),
        {"source": label},
        aggregate="max",
        value_column="doc_id",
        missing_reason=label,
    )
    blocks = [
        Paragraph([label, rows, ShortFigure(rows), Code(label), Link(label, "card.html#rows")]),
        CodeBlock(label),
        BulletList([[label]]),
        Callout("note", [label, none]),
        DefinitionList([(label, [label, none])]),
        DataTable(label, [label, "b"], [[label, rows], [rows, label]], frozenset({1}), label),
        Chart("drawn", BarChart([label], [1.0], "documents"), label, label),
        DecisionSheet(
            "Not judged",
            "note",
            [label, rows],
            [("Owner", [label]), ("Licence", [])],
            [RiskLine(label, "unknown", [label, ShortFigure(rows)])],
            [(label, [label, none])],
        ),
    ]
    blocks.append(Details(label, [Paragraph([label, rows]), *blocks[:6]]))
    sections = [
        Section(label, blocks, [Section(label, blocks[:5])]),
        Section("Rows"),
        Section(label, blocks, [Section(label, blocks[:5])], "own", [label, rows]),
    ]
    return Document(label, "Datasheet", [Paragraph([label])], sections)


def content_of(label: str) -> CardContent:
    """Build the content of a card with the label in every place."""
    book = FigureBook({"split": given(["one"])})
    return CardContent("card", document_of(label, book), book, {}, Redactor([PIN]))


@pytest.mark.parametrize(
    "label", [MAIL, ADDRESS, PHONE, PIN, "pin 482-913-057", f"ja\u00adne{MAIL}"]
)
def test_no_page_of_a_card_shows_a_sensitive_label(session, tmp_path, label):
    write_card_pages(content_of(f"of {label}, so"), tmp_path)
    said = read_texts_by_file(tmp_path)
    assert {"card.html", "card.md", "own.html", "own.md"} < said.keys() and len(said) == 5
    for name, text in said.items():
        assert "masked" in text and not [word for word in (*HIDDEN, label) if word in text], name


def test_harmless_label_is_shown_unchanged(session, tmp_path):
    content = content_of("town")
    made = content.document
    made.sections.append(Section("Metrics", [], [Section("Order of risks")], "metrics"))
    assert redact_document(made, escape_invisible).sections[0] == made.sections[0]
    write_card_pages(content, tmp_path)
    assert pages.broken_links(tmp_path) == []
    ids = {i for path in tmp_path.rglob("*.html") for i in pages.read(path).ids}
    assert {"town", "no-town", "town-town"} <= ids


@pytest.mark.parametrize("label", ["town", "<b>&\u202e", "7", ""])
def test_a_document_is_the_same_after_it_was_stored_in_tables(session, label):
    content = content_of(label)
    document = content.document
    document.lead = [*document.lead, DefinitionList([("Contact", [UserStatement(MAIL)])])]
    drawings = [
        LineChart([Curve("a", [1, 2], [0.5, 1.0])], "step", "loss"),
        IntervalChart(["a", "b"], [0.1, 0.2], [(0.0, 0.3), None], "share", 0.5),
        TrajectoryChart([0, 5], [0.1, None], [(0.0, 0.2), None], [None, 0.5], "t", True),
        ShadedText(["a", " b"], 1, [ShadedRow("layer 1", [None, 0.5])]),
    ]
    charts = [Chart(f"c{i}", drawing, ["a", "b"], "c") for i, drawing in enumerate(drawings)]
    document.sections[0].sections[0].sections = [Section("Deep", charts), Section("Empty")]
    rows = build_sections_table(document).to_pylist()
    again = read_document(rows, content.book.figures)
    assert build_sections_table(again).to_pylist() == rows
    assert render_html(again) == render_html(document)
    assert render_markdown(again) == render_markdown(document)
    own_pages = [
        render_section_html(made, made.list_pages()[0], "card.html") for made in (again, document)
    ]
    assert own_pages[0] == own_pages[1]
    stored = [draw_chart(chart.drawing) for chart in again.list_charts()]
    assert stored == [draw_chart(chart.drawing) for chart in document.list_charts()]


def test_statements_of_the_config_are_shown_unchanged():
    made = Document(
        "A title",
        "Datasheet",
        [DefinitionList([("Contact", format_user_statement(f" {MAIL} "))])],
        [],
    )
    assert redact_document(made, Redactor().redact_full_text) == made


def test_domains_are_masked_on_the_datasheet(session, tmp_path):
    path = tmp_path / "web.jsonl"
    said = "The boats came home late, number {} of the year, and nobody had seen it."
    hosts = (ADDRESS, "host.example") * 9
    rows = [{"text": said.format(i), "url": f"https://{h}/"} for i, h in enumerate(hosts)]
    path.write_text("\n".join(map(json.dumps, rows)))
    web = {"kind": "jsonl", "name": "web", "path": str(path), "url_field": "url"}
    history = artifacts.curated(ingest(IngestConfig(sources=[web])))
    config = DatasheetConfig(contact=MAIL)
    card = build_datasheet(artifacts.profiled(history), history, config)
    said = read_texts_by_file(pages.write_pages(card))
    assert not [name for name, text in said.items() if ADDRESS in text or "93-184" in text]
    for suffix in ("html", "md"):
        composition = said[f"composition.{suffix}"]
        assert "[ip masked]" in composition and "host.example" in composition
        assert MAIL in said[f"datasheet.{suffix}"]


@stage(name="of_parts", tables={"findings": FINDINGS})
def of_parts(config: EmptyConfig, context: StageContext) -> None:
    rows = [
        build_finding(
            "bias",
            "stereotype_preference",
            0.5,
            low=0.4,
            high=0.6,
            n=9,
            unit="share",
            evidence_table="",
            method="by hand",
            tags={"category": part},
        )
        for part in ("age", f"so says {MAIL}", f"{'a' * 14} {PHONE}")
    ]
    context.get_table_writer("findings").write(build_titled_table(rows))


def test_parts_of_an_audit_are_masked_in_tables_and_charts(session, tmp_path):
    checkpoint = artifacts.checkpoint(tmp_path / "model")
    card = build_model_card(
        checkpoint,
        None,
        None,
        {"bias": of_parts()},
        {},
        None,
        None,
        None,
        None,
        {},
        None,
        ModelCardConfig(),
    )
    folder = pages.write_pages(card)
    said = read_texts_by_file(folder)
    for name, text in said.items():
        assert not [word for word in HIDDEN if word in text], name
    assert "so says [email masked]" in "".join(pages.read_charts(folder / "audit-bias.html"))
    assert "[phone masked]" in said["audit-bias.md"]
