"""The datasheet's tables of metadata: fields, values and licences, escaped and redacted."""

from __future__ import annotations

import json

import pytest

from hallmark.reports.datasheet import DatasheetConfig, build_datasheet
from hallmark.reports.page.figures import FigureBook
from hallmark.reports.sections import composition
from hallmark.reports.sections.corpus_figures import CorpusFigures
from hallmark.reports.sections.metadata import build_metadata_section
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from tests.reports import artifacts, pages
from tests.reports.conclusions import text_of_parts, text_of_section

MARKUP, EMAIL, LONG = "<b>CC0</b>", "jane.roe@mail.example", "y" * 200


@pytest.fixture(scope="module")
def sheet(session, tmp_path_factory):
    """Sixty documents: twenty in each of three sections, most with a licence, all with a number."""
    path = tmp_path_factory.mktemp("web") / "web.jsonl"
    sections = [f"by {EMAIL}", LONG, "letters\u202e"]
    rows = [
        {
            "text": f"Letter {i * 7919} about the boats that came home late in the evening.",
            "license": [MARKUP, "MIT", "MIT", None][i % 4],
            "section": sections[i % 3],
            "number": i,
        }
        for i in range(60)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    source = {
        "kind": "jsonl",
        "name": "web",
        "path": str(path),
        "licence": "declared",
        "metadata_fields": {"licence": "license", "section": "section", "number": "number"},
    }
    history = artifacts.curated(ingest(IngestConfig(sources=[source])))
    profile = artifacts.profiled(history)
    card = build_datasheet(profile, history, DatasheetConfig())
    source_text = pages.read_card_source(pages.write_pages(card) / "datasheet.html")
    carried = [
        dict(metadata)
        for metadata in history["plant_canaries"]["documents"].read()["metadata"].to_pylist()
        if metadata
    ]
    return card, source_text, pages.Page(source_text), carried


def find_table(page, *columns):
    (table,) = (table for table in page.tables if table[0] == list(columns))
    return table[1:]


def test_fields_are_listed_with_the_documents_that_have_them(sheet):
    card, _, page, carried = sheet
    counts = {name: sum(name in m for m in carried) for name in ("licence", "number", "section")}
    rows = {row[0]: row[1:] for row in find_table(page, "field", "documents", "distinct values")}
    assert rows == {
        "licence": [str(counts["licence"]), "2"],
        "number": [str(counts["number"]), str(counts["number"])],
        "section": [str(counts["section"]), "3"],
    }
    assert counts["section"] > counts["licence"] > 30
    assert pages.broken_links(pages.write_pages(card)) == []


def test_frequent_values_are_listed_escaped_redacted_and_shortened(sheet):
    _, source_text, page, carried = sheet
    rows = find_table(page, "field", "value", "documents")
    values = {row[1]: int(row[2]) for row in rows if row[0] == "section"}
    assert len(values) == 3 and all(EMAIL not in value for value in values)
    assert values["by [email masked]"] == sum(m["section"].startswith("by") for m in carried)
    assert any(value.startswith("letters‹U+202E›") for value in values)
    assert any(value.startswith("y" * 100 + "…") for value in values)
    assert LONG not in source_text and EMAIL not in source_text and MARKUP not in source_text
    assert "&lt;b&gt;CC0&lt;/b&gt;" in source_text
    assert [row for row in rows if row[0] == "number"] == []  # each document has its own


def test_the_licences_of_documents_come_first(sheet):
    _, _, page, carried = sheet
    licences = [m.get("licence") for m in carried]
    planted = int(page.text.partition("documents specify no licence")[0].split()[-1])
    text = " ".join(page.text.split())
    assert (
        f"specify their own licence: MIT ({licences.count('MIT')} documents), {MARKUP} "
        f"({licences.count(MARKUP)} documents). {planted} documents specify no licence. Declared "
        "by the sources: declared (web)."
    ) in text
    assert planted >= licences.count(None) > 5
    composition = find_table(page, "by", "value", "documents", "share of bytes")
    shown = {row[1]: row[2] for row in composition if row[0] == "licence"}
    assert shown["MIT"] == str(licences.count("MIT"))
    assert shown["declared"] == str(licences.count(None))


def test_a_corpus_without_metadata_says_so(cards):
    page = pages.read_whole_card(pages.write_pages(cards["datasheet"]) / "datasheet.html")
    text = " ".join(page.text.split())
    assert "The documents have no metadata of their own except web addresses and dates." in text
    assert "their own licence" not in text


@pytest.mark.parametrize("has_declared_licences", [True, False])
def test_licences_that_the_config_states_are_named_where_documents_have_none(
    session, has_declared_licences
):
    history = artifacts.history()
    made = {"profile": artifacts.profiled(history), **history}
    section = build_metadata_section(
        CorpusFigures(FigureBook(made), made, 30), has_declared_licences=has_declared_licences
    )
    assert ("The config specifies licences for the sources" in text_of_section(section)) == (
        has_declared_licences
    )


@pytest.mark.parametrize(
    ("document_licences", "source_licence", "stated_licence", "expected"),
    [
        ([], "", "CC0 1.0", "CC0 1.0"),
        ([], "", None, "Not stated."),
        ([], "MIT", None, "Declared by the sources: MIT (web)."),
        (["2 none. "], "", "CC0 1.0", "2 none. Licences according to the config: CC0 1.0"),
        (["2 none. "], "", None, "2 none. Licences according to the config: Not stated."),
        (["2 none. "], "MIT", None, "2 none. Declared by the sources: MIT (web)."),
    ],
)
def test_each_statement_of_a_licence_says_whose_it_is(
    monkeypatch, document_licences, source_licence, stated_licence, expected
):
    rows = [{"source": "web", "licence": source_licence}]
    monkeypatch.setattr(composition, "describe_document_licences", lambda corpus: document_licences)
    monkeypatch.setattr(composition, "_read_source_declarations", lambda corpus: rows)
    assert text_of_parts(composition.describe_licences(None, stated_licence)) == expected
