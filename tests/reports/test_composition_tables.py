"""Test the datasheet's tables of the composition of a corpus, and of occupations by gender."""

from __future__ import annotations

import json

import pytest

from hallmark.reports.datasheet import DatasheetConfig, build_datasheet
from hallmark.reports.page.figures import format_number
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from tests.reports import artifacts, pages

TEXT = (
    "The boats came home late, number {} of the year, and nobody had seen the light that evening."
)
SAID = [
    "The plumber lost her hat.",
    "A nurse said he slept.",
    "The judge left.",
    "The chef gave his coat to her.",
    "A baker and {} bread.",
]


@pytest.fixture(scope="module")
def sheet(session, tmp_path_factory):
    """Build the datasheet of fifty documents with domains and years.

    Plumbers always occur with women, nurses with men, bakers with women half the time, judges with
    nobody, chefs with both.
    """
    path = tmp_path_factory.mktemp("web") / "web.jsonl"
    rows = []
    for i in range(50):
        said = SAID[i % 5].format("her" if i % 2 else "his")
        rows.append(
            {
                "text": f"{TEXT.format(i * 7919)} {said}",
                "date": f"{2001 + i % 9}-05-06",
                "url": f"https://host{i % 9}.example/",
            }
        )
    path.write_text("\n".join(map(json.dumps, rows)))
    web = {
        "kind": "jsonl",
        "name": "web",
        "path": str(path),
        "url_field": "url",
        "date_field": "date",
    }
    history = artifacts.curated(ingest(IngestConfig(sources=[web])))
    profile = artifacts.profiled(history)
    card = build_datasheet(profile, history, DatasheetConfig(max_table_rows=20))
    return profile, card, pages.read_whole_card(pages.write_pages(card) / "datasheet.html")


def test_rows_of_each_dimension_add_up_to_all_documents(sheet):
    profile, card, page = sheet
    rows = [r for r in profile["composition"].read().to_pylist() if r["split"] == ""]
    lines = [line for table in page.tables for line in table]
    smaller_counts = []
    for dimension in ("domain", "language", "length", "year"):
        found = [r for r in rows if r["dimension"] == dimension]
        found.sort(key=lambda r: (r["value"] == "unknown", -r["bytes"]))
        shown = [r for i, r in enumerate(found) if i < 4 or r["value"] == "unknown"]
        expected = [
            [r["value"], str(r["documents"]), format_number(r["byte_share"], "share")]
            for r in shown
        ]
        if smaller := [r for r in found if r not in shown]:
            smaller_counts.append(len(smaller))
            expected.append(
                [
                    f"{len(smaller)} other value{'s' * (len(smaller) > 1)}",
                    str(sum(r["documents"] for r in smaller)),
                    format_number(sum(r["byte_share"] for r in smaller), "share"),
                ]
            )
        shown_lines = [line[1:] for line in lines if line[0] == dimension]
        assert shown_lines == expected
        documents = sum(r["documents"] for r in rows if r["dimension"] == "source")
        assert sum(int(line[1]) for line in shown_lines) == documents
    assert sum(smaller_counts) > 5
    assert "The profile's composition table lists the other values." in page.text
    assert "zxx means text without a language" in page.text
    assert "No document has a known licence." in page.text
    assert pages.broken_links(pages.write_pages(card)) == []


def test_occupations_that_differ_are_shown_with_n_and_others_in_a_sentence(sheet):
    profile, card, page = sheet
    rows = {
        r["occupation"]: r for r in profile["occupations"].read().to_pylist() if r["source"] == ""
    }
    jobs = ("plumber", "nurse", "baker", "judge", "chef")
    assert [rows[job]["women_share"] for job in jobs] == [1, 0, 0.5, None, None]
    assert rows[""]["women_share"] == 0.5
    expected = []
    for job in ("nurse", "plumber"):  # both ends are as far from a half: by name
        row = rows[job]
        ends = f"{format_number(row['low'], 'share')} to {format_number(row['high'], 'share')}"
        expected.append([job, format_number(row["women_share"], "share"), ends, "10"])
    lines = [line for table in page.tables for line in table]
    assert [line for line in lines if line[0] in rows] == expected
    silent = sum(row["women_share"] is None for row in rows.values())
    text = " ".join(page.text.split())
    assert "because the interval contains the share of all occupations: 1." in text
    assert f"have more words for one gender than for the other nearby: {silent}." in text
    assert pages.broken_links(pages.write_pages(card)) == []


def test_no_occupation_near_gender_words_is_reported(cards):
    page = pages.read_whole_card(pages.write_pages(cards["datasheet"]) / "datasheet.html")
    none = "No mention of a listed occupation has more words for one gender than for the other"
    assert none in " ".join(page.text.split())
