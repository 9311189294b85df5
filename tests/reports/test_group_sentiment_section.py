"""The section on sentiment of sentences about groups: its sentences agree with its table."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hallmark.reports.datasheet import DatasheetConfig, build_datasheet
from hallmark.reports.page.figures import FigureBook
from hallmark.reports.sections.corpus_figures import PROFILE, CorpusFigures
from hallmark.reports.sections.group_sentiment import build_group_sentiment_section
from hallmark.tasks.contract import StageConfig, StageContext, stage
from hallmark.tasks.corpus.profiles.group_sentiment import NO_OTHER_GROUP, TOO_FEW_CLUSTERS
from hallmark.tasks.corpus.profiles.tables import TABLES
from tests.reports import artifacts, pages
from tests.reports.conclusions import quick, text_of_section
from tests.tasks.corpora import given as given_documents
from tests.tasks.corpus.test_group_sentiment import compose_opinions


class RowsConfig(StageConfig):
    """``rows``: rows of ``group_sentiment``, a JSON array."""

    rows: str


@stage(
    name="sentiment_profile",
    tables=TABLES,
    external_digests=lambda config, secret_id: {"scorer": "VADER 3", "digest": "f" * 64},
)
def sentiment_profile(config: RowsConfig, context: StageContext) -> None:
    rows = pa.Table.from_pylist(json.loads(config.rows), schema=TABLES["group_sentiment"])
    context.get_table_writer("group_sentiment").write(rows)


def build_section(rows):
    profile = sentiment_profile(RowsConfig(rows=json.dumps(rows)))
    return build_group_sentiment_section(CorpusFigures(FigureBook({PROFILE: profile}), {}, 30))


SENTENCE = (
    "Sentences about {} are more negative than those about the other groups of the “{}” kind."
)
NOT_SHOWN = "No group's sentences were shown to be more negative than those of the other groups"
TOO_FEW = "Too few sentences mention groups of people for a comparison"
NOT_COMPARED = "No group could be compared with others"


def make_row(group, axis="town", reason="", difference=-0.1, half_width=0.05, q=0.01):
    row = {"axis": axis, "group_name": group, "sentences": 40, "missing_sentences": 0}
    row |= {"clusters": 30, "mean_sentiment": -0.05, "difference": difference, "method": "t"}
    if reason:
        return row | {"method": reason, "difference": None if reason == NO_OTHER_GROUP else 0.1}
    ends = {"low": difference - half_width, "high": difference + half_width}
    return row | ends | {"p": q / 2, "q": q, "minimum_detectable_difference": 0.07}


REASONS = (
    NO_OTHER_GROUP,
    TOO_FEW_CLUSTERS.format("the group"),
    TOO_FEW_CLUSTERS.format("other groups of the same kind"),
    "no interval: the values do not vary",
)

sentiment_rows = st.lists(
    st.builds(
        make_row,
        st.sampled_from(["Reds", "Blues", "Greens"]),
        st.sampled_from(["town", "gender"]),
        st.sampled_from(["", "", *REASONS]),
        st.sampled_from([-0.4, -0.06, -0.04, 0.0, 0.2]),
        st.just(0.05),
        st.sampled_from([1e-9, 0.0499, 0.05, 0.7]),
    ),
    unique_by=lambda row: (row["axis"], row["group_name"]),
    max_size=4,
)


@given(rows=sentiment_rows)
@quick
def test_every_sentence_agrees_with_the_table(session, rows):
    section = build_section(rows)
    text = text_of_section(section)
    named = {
        (row["axis"], row["group_name"])
        for row in rows
        if row.get("q") is not None and row["q"] < 0.05 and row["high"] < 0
    }
    for row in rows:
        sentence = SENTENCE.format(row["group_name"], row["axis"])
        assert (sentence in text) == ((row["axis"], row["group_name"]) in named)
    tested = [row for row in rows if row.get("q") is not None]
    assert (NOT_SHOWN in text) == bool(tested and not named)
    few = {*REASONS[:3]}
    has_few_only = bool(rows) and not tested and {row["method"] for row in rows} <= few
    assert (TOO_FEW in text) == has_few_only
    assert (NOT_COMPARED in text) == (bool(rows) and not tested and not has_few_only)
    assert ("Groups were not compared because the search found no suitable sentence" in text) == (
        not rows
    )
    if tested and not named:
        assert f"(tested: {len(tested)} of {len(rows)} group" in text
    shown = [(r[0], r[1]) for block in section.blocks for r in getattr(block, "rows", ())]
    assert sorted(shown) == sorted((row["axis"], row["group_name"]) for row in rows)
    for reason in {row["method"] for row in rows} & {*REASONS}:
        assert reason.removeprefix("no interval: ") in text
    assert ("Scorer: VADER 3 (ffffffffffff)." in text) == bool(rows)
    assert ("judges words rather than their meaning" in text) == bool(rows)


def test_differences_are_sorted_and_sentences_without_a_score_are_named(session):
    rows = [
        make_row("Reds", difference=0.2, q=1.0),
        make_row("Blues") | {"missing_sentences": 1},
        make_row("Greens", reason=NO_OTHER_GROUP),
    ]
    section = build_section(rows)
    table = next(block for block in section.blocks if hasattr(block, "rows"))
    assert [row[1] for row in table.rows] == ["Blues", "Reds", "Greens"]
    assert "The scorer failed for 1 sentence (not counted)." in table.note
    assert "No interval for Greens: none of the scored sentences" in table.note


def test_groups_of_the_same_name_are_distinguished_by_their_kind(session):
    rows = [make_row("Easterners", axis=axis, reason=NO_OTHER_GROUP) for axis in ("origin", "race")]
    rows.append(make_row("Greens", reason=NO_OTHER_GROUP))
    table = next(block for block in build_section(rows).blocks if hasattr(block, "rows"))
    assert "No interval for Easterners (origin); Easterners (race); Greens: none of" in table.note


@pytest.fixture(scope="module")
def sheet(session):
    texts = compose_opinions(["women", "men"], {"women": 0.9, "men": 0.2}, 60)
    history = artifacts.curated(given_documents(texts), rules={"toxicity": {"lt": 1.1}})
    profile = artifacts.profiled(history)
    return profile, build_datasheet(profile, history, DatasheetConfig())


def test_each_row_leads_to_the_documents_of_its_sentences(sheet):
    profile, card = sheet
    folder = pages.write_pages(card)
    text = pages.read_whole_card(folder / "datasheet.html").text
    assert SENTENCE.format("women", "gender") in text
    assert SENTENCE.format("men", "gender") not in text
    counts = {
        json.loads(row["evidence_filter"])["group_name"]: row
        for row in pages.read_figures(card).to_dict("records")
        if row["evidence_table"] == "group_sentences"
    }
    sentences = profile["group_sentences"].read().to_pylist()
    for group, row in counts.items():
        group_rows = [each for each in sentences if each["group_name"] == group]
        assert row["value"] == len(group_rows) > 30
        page = pages.read_evidence(folder, row["page_path"]).text
        assert group_rows[0]["doc_id"].hex() in page and f"of the {group} was" in page
    assert counts.keys() == {"women", "men"}
    # The most negative sentences come first.
    women = [each["sentiment"] for each in sentences if each["group_name"] == "women"]
    assert women == sorted(women)


def test_a_corpus_about_one_group_says_that_it_was_not_compared(session):
    history = artifacts.history()
    card = build_datasheet(artifacts.profiled(history), history, DatasheetConfig())
    assert TOO_FEW in pages.read_whole_card(pages.write_pages(card) / "datasheet.html").text
