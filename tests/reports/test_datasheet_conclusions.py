"""Sentences of a datasheet follow from the rows of its tables, in every branch."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hallmark.reports.datasheet import DatasheetConfig, build_datasheet
from hallmark.reports.page.document import DataTable
from hallmark.reports.page.figures import FigureBook
from hallmark.reports.sections.composition import (
    build_canary_callout,
    build_identity_mentions_section,
    build_toxicity_section,
)
from hallmark.reports.sections.corpus_breakdown import (
    UNKNOWN_VALUE,
    build_breakdown_section,
    build_occupations_section,
    describe_planted_mentions,
)
from hallmark.reports.sections.corpus_figures import PROFILE, CorpusFigures
from hallmark.reports.sections.curation_effects import (
    build_group_swap_section,
    build_removal_rates_by_rule,
    build_removed_examples_section,
    describe_largest_swap_difference,
)
from hallmark.reports.sections.datasheet_answers import DatasheetMeasurements
from hallmark.reports.sections.preprocessing import (
    NEAR_DUPLICATE_EVALUATION,
    build_near_duplicates_section,
)
from hallmark.tasks.contract import StageConfig, StageContext, format_count, stage
from hallmark.tasks.corpus.copies.script_examples import CHANGES, SCRIPTS
from hallmark.tasks.corpus.deduplicate_near import DeduplicateNearConfig, deduplicate_near
from hallmark.tasks.corpus.evaluate_near_duplicates import evaluate_near_duplicates
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.plant_canaries import PlantCanariesConfig, plant_canaries
from hallmark.tasks.corpus.profile import OCCUPATION_COUNTS, build_occupation_rows
from hallmark.tasks.corpus.profiles.tables import TABLES
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.corpus.removal_effects import TABLES as EFFECTS
from tests.reports import artifacts
from tests.reports.conclusions import quick, text_of_parts, text_of_section
from tests.reports.pages import text_of


class RowsConfig(StageConfig):
    """``tables``: rows by table, a JSON object."""

    tables: str


@stage(name="made_profile", tables=TABLES)
def made_profile(config: RowsConfig, context: StageContext) -> None:
    for name, rows in json.loads(config.tables).items():
        context.get_table_writer(name).write(pa.Table.from_pylist(rows, schema=TABLES[name]))


@stage(name="made_effects", tables=EFFECTS)
def made_effects(config: RowsConfig, context: StageContext) -> None:
    for name, rows in json.loads(config.tables).items():
        context.get_table_writer(name).write(pa.Table.from_pylist(rows, schema=EFFECTS[name]))


def corpus_of(history=None, **tables):
    """The figures of a corpus whose profile has these rows."""
    profile = made_profile(RowsConfig(tables=json.dumps(tables)))
    history = history or {}
    return CorpusFigures(FigureBook({**history, PROFILE: profile}), history, 30)


DIMENSIONS = ("licence", "domain", "language", "length", "year")

# Licences, domains, years ------------------------------------------------------------------------


def composed(dimension, value):
    return {
        "dimension": dimension,
        "value": value,
        "split": "",
        "documents": 3,
        "bytes": 9,
        "share": 0.5,
    }


@given(
    known=st.lists(
        st.tuples(st.sampled_from(DIMENSIONS), st.sampled_from([UNKNOWN_VALUE, "CC0"])),
        unique=True,
        max_size=8,
    ),
    stated=st.sampled_from([None, " ", "MIT"]),
)
@quick
def test_nothing_is_known_of_a_dimension_only_where_no_line_names_a_value(session, known, stated):
    corpus = corpus_of(composition=[composed(*pair) for pair in known])
    section = build_breakdown_section(corpus, stated)
    lines = [row for block in section.blocks if hasattr(block, "rows") for row in block.rows]
    said = text_of_section(section)
    sentence = said.partition("No document has a known ")[2].partition(".")[0]
    for dimension in DIMENSIONS:
        values = {value for name, value in known if name == dimension}
        unknown = values == {UNKNOWN_VALUE}
        is_stated = dimension == "licence" and stated == "MIT"
        assert (dimension in sentence) == (unknown and not is_stated)
        assert any(row[0] == dimension for row in lines) == bool(values - {UNKNOWN_VALUE})
        if unknown and is_stated:
            assert (
                "No source declares a licence; this page shows the licence for the whole corpus"
                in said
            )


@pytest.mark.parametrize("said", ["by the person", "by a source"])
def test_a_licence_that_stands_on_the_page_is_not_called_unknown(session, tmp_path, said):
    """Whether a person stated one of all texts, or a source declares one of its own."""
    history = artifacts.history()
    profiled = artifacts.profiled(history)
    config = DatasheetConfig(licence="CC0" if said == "by the person" else None)
    (tmp_path / "a.txt").write_text("one letter")
    source = {"kind": "text", "path": str(tmp_path / "a.txt"), "name": "letters"}
    if said == "by a source":
        source["licence"] = "CC0"
    read = ingest(IngestConfig(sources=[source]))
    text = text_of(build_datasheet(profiled, {**history, "ingest": read}, config), "datasheet")
    assert "CC0" in text and "No document has a known licence" not in text
    assert "document's licence" not in text.partition("No document has a known")[2][:60]


@pytest.mark.parametrize("unknown_documents", [0, 7])
def test_documents_of_unknown_language_have_a_row_however_many_languages(
    session, unknown_documents
):
    languages = [composed("language", f"l{n}") for n in range(9)]
    if unknown_documents:
        languages.append(composed("language", UNKNOWN_VALUE) | {"documents": unknown_documents})
    section = build_breakdown_section(corpus_of(composition=languages))
    [table] = [block for block in section.blocks if hasattr(block, "rows")]
    documents = {row[1]: row[2].value for row in table.rows}
    assert documents.get(UNKNOWN_VALUE, 0) == unknown_documents
    assert documents["3 other values"] == 9 and len(table.rows) == 7 + bool(unknown_documents)
    assert sum(documents.values()) == 27 + unknown_documents
    assert table.note.startswith("Languages are shown as ISO 639 codes")
    section = build_breakdown_section(
        corpus_of(composition=[*languages, composed("language", "other") | {"documents": 80}])
    )
    rows = section.blocks[0].rows
    assert [row[2].value for row in rows if row[1] == "other values"] == [89]
    section = build_breakdown_section(corpus_of(composition=[composed("licence", "CC0")]))
    assert [block.note for block in section.blocks] == [""]


# What was planted --------------------------------------------------------------------------------


@pytest.mark.parametrize("copies", [(0,), (0, 2)])
def test_what_was_never_planted_makes_no_corpus_unfit(session, copies):
    history = artifacts.history()
    planting = PlantCanariesConfig(
        enabled=True,
        copy_counts=copies,
        secrets_per_count=3,
        passages_per_count=0,
        records_per_count=0,
        associations_per_share=0,
    )
    history["plant_canaries"] = plant_canaries(history["split"], planting)
    profiled = artifacts.profiled(history)
    text = text_of(
        build_datasheet(profiled, history, DatasheetConfig(title=f"{copies}")), "datasheet"
    )
    documents = sum(profiled["canaries"].read(["documents"])["documents"].to_pylist())
    planted = documents > 0
    assert planted == (copies == (0, 2)) and "0 documents that are synthetic" not in text
    assert ("deliberately planted" in text) == planted
    assert ("Nothing was planted in this corpus." in text) == (not planted)
    assert ("Until the planted documents are removed, the corpus is unsuitable" in text) == planted


def test_the_callout_counts_the_documents_of_all_kinds(session):
    rows = [
        {"kind": kind, "copies": copies, "canaries": 2, "documents": 2 * copies, "bytes": 9}
        for kind, copies in (("canary", 0), ("record", 4))
    ]
    assert "8 documents" in text_of_parts(build_canary_callout(corpus_of(canaries=rows)).content)
    none = text_of_parts(build_canary_callout(corpus_of(canaries=rows[:1])).content)
    assert none == "Nothing was planted in this corpus."


@pytest.mark.parametrize(
    ("withheld_count", "clause", "answer"),
    [
        (0, "memorisation. Remove", "copies. It added 8 planted documents."),
        (1, "; 1 document was withheld for planting. Remove", "It withheld 1 document for"),
        (80, "; 80 documents were withheld for planting. Remove", "It withheld 80 documents for"),
    ],
)
def test_the_numbers_of_documents_add_up(session, withheld_count, clause, answer):
    """Documents in the corpus: those read, minus removed and withheld ones, plus planted ones."""
    ledger = {"stage": "plant_canaries", "action": "removed", "source": "web", "bytes": 9}
    ledger |= {"reason": "withheld for planting", "rows": withheld_count}
    other = ledger | {"stage": "deduplicate", "reason": "exact duplicate", "rows": 5}
    canaries = [{"kind": "record", "copies": 4, "canaries": 2, "documents": 8, "bytes": 9}]
    accounts = [
        {"stage": stage, "unit": "rows", "source": "web", "input": 200}
        | {"added": 8 if stage == "plant_canaries" else 0, "removed_rows": removed_count}
        for stage, removed_count in (
            ("ingest", 0),
            ("deduplicate", 5),
            ("plant_canaries", withheld_count),
        )
    ]
    corpus = corpus_of(
        canaries=canaries,
        ledger_summary=[ledger, other] if withheld_count else [other],
        stage_accounts=accounts,
    )
    assert clause in text_of_parts(build_canary_callout(corpus).content)
    text = text_of_parts(DatasheetMeasurements(corpus).describe_selection())
    assert "read 200 records and removed 5 of them, either by rules or as copies. " in text
    assert answer in text
    sampling = text_of_parts(DatasheetMeasurements(corpus).describe_sampling())
    assert "Documents removed, by stage: deduplicate 5." in sampling
    assert (f"at random for planting: {withheld_count} document" in sampling) == (
        withheld_count > 0
    )
    steps = text_of_parts(DatasheetMeasurements(corpus).describe_steps())
    assert steps.startswith("Yes. Documents removed, by stage: deduplicate 5. ")
    assert "planted" not in text_of_parts(
        DatasheetMeasurements(corpus_of(stage_accounts=accounts[:2])).describe_selection()
    )


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"town": 91}, ""),
        (
            {"town": 91, "planted/passage": 1},
            " 1 counted mention is in planted documents, counting",
        ),
        (
            {"town": 91, "planted/passage": 64, "planted/record": 2},
            " 66 counted mentions are in planted documents, counting every copy.",
        ),
    ],
)
def test_mentions_in_planted_documents_are_named(session, counts, expected):
    mentions = [{"source": source, "mentions": count} for source, count in counts.items()]
    assert describe_planted_mentions(mentions).startswith(expected)
    assert bool(describe_planted_mentions(mentions)) == bool(expected)
    identities = [{"group_name": "women", "term": "she", "documents": 1, **row} for row in mentions]
    section = build_identity_mentions_section(corpus_of(identities=identities))
    assert expected in text_of_section(section)
    occupations = [
        {"source": source, "occupation": occupation, "mentions": count}
        | {"women_words": count, "men_words": 0, "women_mentions": count, "men_mentions": 0}
        | {"women_share": 1.0, "low": 0.9, "high": 1.0}
        for source, count in {"": sum(counts.values()), **counts}.items()
        for occupation in ("", "lockkeeper")
    ]
    section = build_occupations_section(corpus_of(occupations=occupations))
    assert expected in text_of_section(section)


# What was looked for -----------------------------------------------------------------------------


def test_near_copies_are_not_called_missing_where_nobody_looked(session):
    history = artifacts.history()
    said = text_of_section(build_near_duplicates_section(corpus_of(history, duplicates=[])))
    assert "The corpus was not searched for near-duplicates." in said and "No pair" not in said
    near = deduplicate_near(history["deduplicate"], {}, DeduplicateNearConfig())
    looked = {**history, "deduplicate_near": near}
    said = text_of_section(build_near_duplicates_section(corpus_of(looked, duplicates=[])))
    assert "No near-duplicates were found." in said and "was not searched for" not in said
    config = DeduplicateNearConfig()
    assert (
        "removed each document whose similarity to a kept document is "
        f"{config.similarity_threshold:g} or higher. Pairs with a lower similarity, "
        f"down to {config.cluster_threshold:g}, caused no removals"
    ) in said
    assert "Recall on planted near-duplicates" not in said


def test_the_recall_of_the_search_is_shown_by_script(session):
    evaluation = evaluate_near_duplicates(DeduplicateNearConfig())
    history = {**artifacts.history(), NEAR_DUPLICATE_EVALUATION: evaluation}
    corpus = corpus_of(history, duplicates=[])
    section = build_near_duplicates_section(corpus)
    (table,) = (block for block in section.blocks if isinstance(block, DataTable))
    assert table.columns == [
        "script",
        *(part for change in CHANGES for part in (change, "95 % interval")),
    ]
    assert [row[0] for row in table.rows] == list(SCRIPTS)
    tibetan = next(row for row in table.rows if row[0] == "Tibetan")
    assert (tibetan[1].value, tibetan[1].n, tibetan[2]) == (1.0, 40, "91.2 % to 100.0 %")
    assert table.note.endswith("as duplicates of each other: 0.")


def reason(stage_, action, rows=1):
    return {
        "stage": stage_,
        "action": action,
        "reason": "r",
        "source": "s",
        "rows": rows,
        "bytes": rows,
    }


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("unread", [False, True])
def test_the_quarantine_is_empty_only_where_no_stage_put_anything_there(session, later, unread):
    history = artifacts.history()
    real = artifacts.profiled(history)
    tables = {
        name: real[name].read().to_pylist() for name in TABLES if not name.startswith("group_sent")
    }
    tables["ledger_summary"] = [reason("redact_spans", "quarantined")] * later + [
        reason("redact_spans", "removed")
    ]
    tables["errors"] = [
        {
            name: "e" if kind == pa.string() else 1
            for name, kind in zip(TABLES["errors"].names, TABLES["errors"].types, strict=True)
        }
    ] * unread
    made = made_profile(RowsConfig(tables=json.dumps(tables)))
    text = text_of(build_datasheet(made, history, DatasheetConfig()), "datasheet")
    assert ("the quarantine is empty" in text) == (not later and not unread)
    assert ("Every record could be read" in text) == (not unread)
    assert ("Later stages also quarantined documents" in text) == later


def test_toxicity_that_is_not_known_is_told_apart_from_what_nobody_measured(session):
    statuses = [
        {"source": "s", "status": status, "reason": "", "documents": 4}
        for status in ("other language", "undetermined language")
    ]
    corpus = corpus_of(artifacts.history(), toxicity=[], toxicity_status=statuses)
    said = text_of_section(build_toxicity_section(corpus))
    assert "No document has a toxicity score." in said and "Nothing was measured." not in said
    assert "in languages that the scorer does not support" in said
    assert "in an undetermined language and a script that the scorer does not support" in said


# Occupations -------------------------------------------------------------------------------------

counted = st.tuples(
    st.sampled_from(["nurse", "judge", "chef"]),
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(0, 9),
)


@given(rows=st.lists(counted, unique_by=lambda row: row[0], max_size=3))
@quick
def test_occupations_are_named_or_not_by_their_own_intervals(session, rows):
    """Mentions beside as many words of either gender count for neither."""
    counts = pa.Table.from_pylist(
        [
            {
                "source": "s",
                "occupation": name,
                "mentions": women + men + even,
                "women_words": women + even,
                "men_words": men + even,
                "women_mentions": women,
                "men_mentions": men,
            }
            for name, women, men, even in rows
        ],
        schema=OCCUPATION_COUNTS,
    )
    table = build_occupation_rows(counts)
    section = build_occupations_section(corpus_of(occupations=table))
    said = text_of_section(section)
    total = sum(women + men for _, women, men, _ in rows)
    none = "No mention of a listed occupation has more words for one gender than for the other"
    assert (none in said) == (total == 0) and "stands beside a gendered word" not in said
    grids = [block for block in section.blocks if hasattr(block, "rows")]
    named = {row[0]: row[2] for grid in grids for row in grid.rows}
    if total:
        share = sum(women for _, women, _, _ in rows) / total
        outside = {
            row["occupation"]
            for row in table
            if row["source"] == ""
            and row["occupation"]
            and row["women_share"] is not None
            and not row["low"] <= share <= row["high"]
        }
        assert {*named} == outside
        inside = sum(women + men > 0 for _, women, men, _ in rows) - len(outside)
        assert f"because the interval contains the share of all occupations: {inside}." in said


# What curation took ------------------------------------------------------------------------------


def rate(verdict, number=0):
    row = {"stage": "select", "reason": "words", "dimension": "identity", "slice": f"g{number}"}
    row |= {
        "documents": 40,
        "removed_documents": 8,
        "clusters": 30,
        "other_documents": 1000,
        "other_removed_documents": 100,
    }
    row |= {
        "removal_rate": 0.2,
        "other_removal_rate": 0.1,
        "rate_ratio": 2.0,
        "low": 0.9,
        "high": 4.0,
        "source_adjusted_ratio": 1.25,
    }
    return row | {
        "p": 0.06,
        "p_corrected": 0.06,
        "minimum_detectable_ratio": 1.75,
        "verdict": verdict,
    }


@given(verdicts=st.lists(st.sampled_from(["more", "less", "not shown"]), max_size=4))
@quick
def test_a_difference_that_is_not_shown_is_not_called_none(session, verdicts):
    rows = [rate(verdict, number) for number, verdict in enumerate(verdicts)]
    made = {
        "removal_effects": made_effects(RowsConfig(tables=json.dumps({"removal_rates": rows}))),
        "select": artifacts.history()["select_scored"],
    }
    said = text_of_section(build_removal_rates_by_rule(CorpusFigures(FigureBook(made), made, 30)))
    shown = [verdict for verdict in verdicts if verdict != "not shown"]
    assert "no difference between" not in said
    assert ("no significant difference was found" in said.lower()) == (len(shown) < len(verdicts))
    assert ("No rule removed enough documents from any group for a comparison." in said) == (
        not verdicts
    )
    assert "No rule took a document." not in said


def test_without_examples_it_is_not_said_that_no_rule_took_anything(session):
    rates = {"removal_rates": [rate("more")], "removed_examples": []}
    made = {"removal_effects": made_effects(RowsConfig(tables=json.dumps(rates)))}
    said = text_of_section(
        build_removed_examples_section(CorpusFigures(FigureBook(made), made, 30))
    )
    assert "No rule took a document." not in said
    assert "No example documents were stored." in said


def swap(origin, corrected, difference):
    return {
        "origin": origin,
        "axis": "a",
        "group_name": "g",
        "other_group": f"o{difference}",
        "score_difference": difference,
        "sentences": 9,
        "low": difference - 0.1,
        "high": difference + 0.1,
        "p_corrected": corrected,
        "p": corrected,
        "raised_share": 0.1,
        "lowered_share": 0.1,
        "threshold": 0.5,
    }


@pytest.mark.parametrize("has_interval", [True, False])
def test_both_intervals_of_the_largest_swap_difference_are_explained(session, has_interval):
    columns = EFFECTS["swap_differences"].names
    swaps = [swap("templates", 0.01, 0.25), swap("templates", 0.01, -0.5)]
    changes = {"clusters": 9} | ({} if has_interval else {"low": None, "high": None})
    rows = [
        {name: value for name, value in {**row, **changes}.items() if name in columns}
        for row in swaps
    ]
    scored = artifacts.history()["score_toxicity"]
    made = {
        "removal_effects": made_effects(RowsConfig(tables=json.dumps({"swap_differences": rows})))
    }
    made["removal_effects"].manifest["parts"]["external"] = scored.manifest["parts"]["external"]
    corpus = CorpusFigures(FigureBook(made), made, 30)
    said = text_of_section(build_group_swap_section(corpus))
    [sentence] = describe_largest_swap_difference(corpus)
    datasheet = "".join(map(str, sentence))
    corrected = re.search(r"interval (\S+ to \S+), corrected for the choice", datasheet)
    assert (corrected is not None) == has_interval
    if corrected:
        assert "the interval of −0.5000 is corrected for choosing" in said
        assert f"difference among 2 pairs of groups: {corrected[1]}. " in said
    else:
        assert "is corrected for choosing" not in said


@given(
    pairs=st.lists(
        st.tuples(
            st.sampled_from(["templates", "corpus"]),
            st.sampled_from([None, 0.01, 0.0499, 0.05, 0.9]),
            st.sampled_from([-0.5, 0.25, 0.75]),
        ),
        unique=True,
        max_size=5,
    )
)
@quick
def test_swaps_that_are_beyond_chance_are_shown_and_others_counted(session, pairs):
    names = EFFECTS["swap_differences"].names
    rows = [{name: value for name, value in swap(*pair).items() if name in names} for pair in pairs]
    scored = artifacts.history()["score_toxicity"]
    made = {
        "removal_effects": made_effects(RowsConfig(tables=json.dumps({"swap_differences": rows})))
    }
    made["removal_effects"].manifest["parts"]["external"] = scored.manifest["parts"]["external"]
    section = build_group_swap_section(CorpusFigures(FigureBook(made), made, 30))
    said = text_of_section(section)
    for origin, words in (
        ("templates", "Hallmark's own sentences"),
        ("corpus", "sentences from the corpus"),
    ):
        own = [pair for pair in pairs if pair[0] == origin]
        shown = [p for _, p, _ in own if p is not None and p < 0.05]
        assert (f"In {words}, no pair of groups was compared." in said) == (not own)
        pair_count = format_count(len(own), "pair")
        none = f"In {words}, no significant difference was found for {pair_count} of groups."
        assert (none in said) == (bool(own) and not shown)
        untested = sum(p is None for _, p, _ in own)
        phrase = f"{format_count(untested, 'pair')} could not be tested"
        own_text = said.partition(f"In {words}")[2] if not shown else said
        assert not untested or phrase in own_text
        caption = f"Toxicity scorer bias, measured on {words}"
        assert (caption in said) == bool(shown)
        if origin == "templates":
            assert ("The scored sentences are not part of the corpus" in said) == bool(shown)
    if not any(p is None for _, p, _ in pairs):
        assert "could not be tested" not in said
