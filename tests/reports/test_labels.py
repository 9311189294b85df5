"""Test that labels, which come from data, are masked everywhere like texts."""

from __future__ import annotations

import html
import json

import pytest

from hallmark.reports.datasheet import DatasheetConfig, build_datasheet
from hallmark.reports.model_card import ModelCardConfig, build_model_card
from hallmark.reports.page.document import (
    BulletList,
    Callout,
    Chart,
    Code,
    CodeBlock,
    DataTable,
    DefinitionList,
    Document,
    Link,
    Paragraph,
    Section,
    ShortFigure,
    format_user_statement,
    redact_document,
)
from hallmark.reports.page.evidence_pages import write_card_files
from hallmark.reports.page.figures import FIGURES, FigureBook
from hallmark.reports.page.redaction import Redactor, escape_invisible
from hallmark.tasks.audits.judging.findings import FINDINGS, build_finding
from hallmark.tasks.contract import Artifact, EmptyConfig, StageConfig, StageContext, stage
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


def read_texts_by_file(card):
    """Read the text of all files of a card by file name, Markdown without its escapes."""
    return {
        str(path.relative_to(card.fetch_directory())): html.unescape(path.read_text()).replace(
            "\\", ""
        )
        for path in card.fetch_directory().rglob("*")
        if path.suffix in (".html", ".md", ".svg")
    }


class Labelled(StageConfig):
    label: str


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
        Paragraph([label, rows, ShortFigure(rows), Code(label), Link(label, "#rows")]),
        CodeBlock(label),
        BulletList([[label]]),
        Callout("note", [label, none]),
        DefinitionList([(label, [label, none])]),
        DataTable(label, [label, "b"], [[label, rows], [rows, label]], frozenset({1}), label),
        Chart("drawn", lambda say: f"<svg><text>{say(label)[:40]}</text></svg>", label, label),
    ]
    sections = [Section(label, blocks, [Section(label, blocks)]), Section("Rows")]
    return Document(label, "Datasheet", [Paragraph([label])], sections)


@stage(name="labelled", tables={"figures": FIGURES})
def labelled(documents: Artifact, config: Labelled, context: StageContext) -> None:
    book = FigureBook({"split": documents})
    write_card_files(document_of(config.label, book), book, context, "card", {}, Redactor([PIN]), 9)


@pytest.mark.parametrize(
    "label", [MAIL, ADDRESS, PHONE, PIN, "pin 482-913-057", f"ja\u00adne{MAIL}"]
)
def test_no_file_of_a_card_shows_a_sensitive_label(session, label):
    said = read_texts_by_file(labelled(given(["one"]), Labelled(label=f"of {label}, so")))
    assert {"card.html", "card.md", "charts/drawn.svg"} < said.keys() and len(said) == 5
    for name, text in said.items():
        assert "masked" in text and not [word for word in (*HIDDEN, label) if word in text], name


def test_harmless_label_is_shown_unchanged(session):
    book = FigureBook({"split": given(["one"])})
    made = document_of("town", book)
    assert redact_document(made, escape_invisible).sections[0] == made.sections[0]
    card = labelled(given(["one"]), Labelled(label="town"))
    assert pages.broken_links(card.fetch_directory()) == []
    ids = {i for path in card.fetch_directory().rglob("*.html") for i in pages.read(path).ids}
    assert {"town", "no-town", "town-town"} <= ids


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
    said = read_texts_by_file(card)
    assert not [name for name, text in said.items() if ADDRESS in text or "93-184" in text]
    for name in ("datasheet.html", "datasheet.md"):
        assert "[ip masked]" in said[name] and "host.example" in said[name] and MAIL in said[name]


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
        ModelCardConfig(),
    )
    said = read_texts_by_file(card)
    for name, text in said.items():
        assert not [word for word in HIDDEN if word in text], name
    assert "so says [email masked]" in said["charts/bias.svg"]
    assert "[phone masked]" in said["model_card.md"]
