"""Test the datasheet of a corpus with an invented town: known and recovered properties."""

from __future__ import annotations

import pytest

from hallmark.reports.datasheet import DatasheetConfig, build_datasheet
from hallmark.reports.page.figures import FigureBook, format_number
from hallmark.reports.sections.corpus_figures import CorpusFigures
from hallmark.reports.sections.curation_evaluation import build_curation_evaluation_sections
from hallmark.reports.sections.personal_data import build_personal_data_section
from hallmark.reports.sections.stage_titles import name_corpus_stage
from hallmark.tasks.corpus.evaluate_curation import CurationEvaluationConfig, evaluate_curation
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from tests.reports import artifacts, pages
from tests.reports.conclusions import text_of_section

CONFIG = IngestConfig(sources=[{"kind": "town", "name": "here", "documents": 90}])


@pytest.fixture(scope="module")
def town(session, made):
    history = artifacts.curated(ingest(CONFIG))
    profile = artifacts.profiled(history)
    history["evaluate_curation"] = evaluate_curation(
        {**history, "profile": profile}, CurationEvaluationConfig()
    )
    return {**history, "profile": profile}


@pytest.fixture(scope="module")
def sheet(town):
    history = {name: artifact for name, artifact in town.items() if name != "profile"}
    card = build_datasheet(town["profile"], history, DatasheetConfig())
    return history["evaluate_curation"], card


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
        head = [name_corpus_stage(row["stage"]), row["target"], row["measure"]]
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
    assert "The documents from “here” are invented" in " ".join(page.text.split())
    assert pages.broken_links(pages.write_pages(card)) == []


ON_TEST_CASES = (
    "For the share found in test cases, which are sentences outside the corpus, see Composition."
)
ON_PLANTED = (
    "For the share of planted personal data found in the documents of this corpus, see Recovery "
    "of known effects."
)


def test_shares_of_personal_data_found_say_what_they_were_measured_on(sheet):
    _, card = sheet
    folder = pages.write_pages(card)
    recovery = " ".join(pages.read(folder / "recovery.html").text.split())
    assert f"of planted personal data that was found. {ON_TEST_CASES}" in recovery
    page = pages.read(folder / "composition.html")
    composition = " ".join(page.text.split())
    assert "Detection accuracy on test cases" in composition and ON_PLANTED in composition
    assert ("recovery.html", "Recovery of known effects") in page.links


@pytest.mark.parametrize("stage_name", ["evaluate_detectors", "evaluate_curation"])
def test_a_measure_of_personal_data_is_not_referred_to_if_it_is_missing(town, stage_name):
    artifacts_by_stage = {name: each for name, each in town.items() if name != stage_name}
    corpus = CorpusFigures(FigureBook(artifacts_by_stage), artifacts_by_stage, 30)
    sections = [build_personal_data_section(corpus), *build_curation_evaluation_sections(corpus)]
    text = " ".join(map(text_of_section, sections))
    assert ON_TEST_CASES not in text and ON_PLANTED not in text
    assert ("Personal-data recall is the share" in text) == (stage_name == "evaluate_detectors")
    assert ("on test cases" in text) == (stage_name == "evaluate_curation")


def test_datasheet_without_a_town_has_no_such_section(cards):
    page = pages.read_whole_card(pages.write_pages(cards["datasheet"]) / "datasheet.html")
    assert "Recovery of known effects" not in page.text
