"""Test the datasheet of a corpus with an invented town: known and recovered properties."""

from __future__ import annotations

import pytest

from hallmark.reports.datasheet import DatasheetConfig, build_datasheet
from hallmark.reports.page.figures import format_number
from hallmark.tasks.corpus.evaluate_curation import CurationEvaluationConfig, evaluate_curation
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from tests.reports import artifacts, pages

CONFIG = IngestConfig(sources=[{"kind": "town", "name": "here", "documents": 90}])


@pytest.fixture(scope="module")
def sheet(session, made):
    history = artifacts.curated(ingest(CONFIG))
    profile = artifacts.profiled(history)
    history["evaluate_curation"] = evaluate_curation(
        {**history, "profile": profile}, CurationEvaluationConfig()
    )
    return history["evaluate_curation"], build_datasheet(profile, history, DatasheetConfig())


def test_datasheet_shows_each_share_with_interval_and_n(sheet):
    recovered, card = sheet
    page = pages.read_whole_card(pages.write_pages(card) / "datasheet.html")
    lines = [line for table in page.tables for line in table]
    rows = recovered["detection_rates"].read().to_pylist()
    assert len(rows) > 20
    for row in rows:
        share, ends = "not measured", "–"
        if row["share"] is not None:
            share, low, high = (
                format_number(row[end], "share") for end in ("share", "low", "high")
            )
            ends = f"{low} to {high}"
        head = [row["stage"], row["target"], row["measure"]]
        [line] = [line for line in lines if line[:3] == head]
        assert line[3].startswith(share) and line[4:] == [ends, f"{row['n']:,}"], row
    for row in recovered["property_shares"].read().to_pylist():
        head = [row["property_name"], row["population"], f"{100 * row['configured_share']:g} %"]
        assert sum(line[:3] == head for line in lines) == 1
    for row in recovered["occupation_shares"].read().to_pylist():
        line = [row["occupation"], f"{100 * row['configured_share']:g} %"]
        assert (
            sum(cells[:2] == line and cells[4] == str(row["n"]) for cells in lines if cells[4:])
            == 1
        )
    assert "The documents of here are invented" in " ".join(page.text.split())
    assert pages.broken_links(pages.write_pages(card)) == []


def test_datasheet_without_a_town_has_no_such_section(cards):
    page = pages.read_whole_card(pages.write_pages(cards["datasheet"]) / "datasheet.html")
    assert "Recovery of known effects" not in page.text
