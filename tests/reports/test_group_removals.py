"""The datasheet's removal rates by group: no row is cut, and no sentence contradicts the table."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hallmark.reports.page.document import Chart, DataTable, Link, iterate_sections
from hallmark.reports.page.drawing import draw_chart
from hallmark.reports.page.figures import FigureBook
from hallmark.reports.sections.corpus_figures import CorpusFigures
from hallmark.reports.sections.curation_evaluation import CURATION_EVALUATION
from hallmark.reports.sections.filter_errors import (
    build_filter_error_section,
    summarize_filter_errors,
)
from hallmark.reports.sections.group_removals import (
    REMOVAL_RATES_TITLE,
    build_group_removal_answer,
    build_group_removal_section,
    describe_difference,
    read_group_removals,
    sort_by_difference,
)
from hallmark.tasks.contract import StageConfig, StageContext, stage
from hallmark.tasks.corpus.evaluate_curation import TABLES as EVALUATION_TABLES
from hallmark.tasks.corpus.removal_effects import TABLES
from tests.reports import pages
from tests.reports.artifacts import HOSTILE
from tests.reports.conclusions import quick, text_of_blocks, text_of_parts, text_of_section

GROUPS = [f"group {n:02}" for n in range(45)] + ["Jews", "Muslims", "non-religious people"]


class EffectsConfig(StageConfig):
    """``rows``: rows by table, a JSON object."""

    tables: str
    min_group_documents: int = 20


class StoredScorerConfig(StageConfig):
    scorer: dict[str, str] = {"kind": "linear"}  # noqa: RUF012


class StoredFilterConfig(StageConfig):
    rules: list[dict[str, str]]


@stage(name="stored_effects", tables=TABLES)
def stored_effects(config: EffectsConfig, context: StageContext) -> None:
    for name, rows in json.loads(config.tables).items():
        context.get_table_writer(name).write(pa.Table.from_pylist(rows, schema=TABLES[name]))


@stage(name="stored_evaluation", tables=EVALUATION_TABLES)
def stored_evaluation(config: EffectsConfig, context: StageContext) -> None:
    for name, rows in json.loads(config.tables).items():
        schema = EVALUATION_TABLES[name]
        context.get_table_writer(name).write(pa.Table.from_pylist(rows, schema=schema))


def corpus_of(rows, reasons=(), evaluation=None):
    accuracy = {"group_name": "", "mentions": 9, "detected": 9, "true_positives": 9}
    tables = {
        "group_removals": list(rows),
        "group_removals_by_reason": list(reasons),
        "lexicon_accuracy": [accuracy | {"recall": 1.0, "precision": 1.0}],
    }
    artifacts = {"removal_effects": stored_effects(EffectsConfig(tables=json.dumps(tables)))}
    artifacts["removal_effects"].manifest["parts"]["external"] = {"scorer": "a", "digest": "d" * 16}
    if evaluation is not None:
        config = EffectsConfig(tables=json.dumps({"detection_rates": evaluation}))
        artifacts[CURATION_EVALUATION] = stored_evaluation(config)
    return CorpusFigures(FigureBook(artifacts), artifacts, 2)


def group(name, dimension="identity", documents=100, removed=10, **changes):
    """Build a row of ``group_removals`` that agrees with itself."""
    lost = changes.pop("lost", removed // 2)
    row = {"dimension": dimension, "slice": name, "documents": documents}
    row |= {"kept_documents": documents - removed, "removed_documents": removed}
    row |= {"duplicate_documents": removed - lost, "unique_documents": documents - removed + lost}
    row |= {"lost_documents": lost, "clusters": documents, "unreadable_records": None}
    row |= {"other_documents": 900, "other_removed_documents": 90, "other_lost_documents": 9}
    row |= {"other_removal_rate": 0.1, "other_lost_rate": 0.01, "verdict": "not shown"}
    if documents:
        row |= {"removal_rate": removed / documents, "lost_rate": lost / documents}
        row |= {"removal_rate_low": 0.0, "removal_rate_high": 1.0}
    row |= {"rate_ratio": 1.0, "adjusted_ratio": 1.0, "adjusted_low": 0.5, "adjusted_high": 2.0}
    row |= {"p": 1.0, "q": 1.0, "minimum_detectable_ratio": 1.8, "lost_verdict": "not shown"}
    row |= {"lost_rate_low": 0.0, "lost_rate_high": 1.0, "lost_p": 1.0, "lost_q": 1.0}
    row |= {"lost_adjusted_ratio": 1.0, "lost_adjusted_low": 0.5, "lost_adjusted_high": 2.0}
    return row | changes


EMPTY = {
    "removal_rate": None,
    "adjusted_ratio": None,
    "adjusted_low": None,
    "adjusted_high": None,
    "p": None,
    "q": None,
    "verdict": "not compared",
    "lost_adjusted_ratio": None,
    "lost_adjusted_low": None,
    "lost_p": None,
    "lost_q": None,
    "lost_verdict": "not compared",
}
TOTAL = group("", "", 1000, 100)
MORE = {"adjusted_ratio": 3.0, "adjusted_low": 2.0, "adjusted_high": 4.5, "verdict": "more"}
LESS = {"adjusted_ratio": 0.3, "adjusted_low": 0.1, "adjusted_high": 0.6, "verdict": "less"}


def get_tables(section):
    return [block for block in section.blocks if isinstance(block, DataTable)]


def answer_of(*rows):
    return text_of_blocks(build_group_removal_answer(corpus_of([TOTAL, *rows])))


# Rows --------------------------------------------------------------------------------------------


def test_no_group_and_no_source_is_cut(session):
    """The largest number of rows of other tables is 2 here."""
    rows = [group(name, documents=20 + n) for n, name in enumerate(GROUPS)]
    rows += [group(f"language {n}", "language") for n in range(40)]
    rows += [group(f"source {n}", "source") for n in range(40)]
    section = build_group_removal_section(corpus_of([TOTAL, *rows]))
    people, lost = get_tables(section)
    assert {row[0] for row in people.rows} == {row[0] for row in lost.rows}
    assert {row[0] for row in people.rows} == {f"mentioning {name}" for name in GROUPS}
    by_title = {each.title: each for each in iterate_sections([section])}
    for title in ("Removal rates by language and length", "Removal rates by source"):
        assert [len(table.rows) for table in get_tables(by_title[title])] == [40, 40]
    [chart] = [block for block in section.blocks if isinstance(block, Chart)]
    assert "".join(chart.alt_text).count(" to ") == len(GROUPS)
    svg = draw_chart(chart.drawing)
    assert svg.count("mentioning group") == 45


def test_rows_are_sorted_by_the_end_of_the_interval_nearest_to_one():
    rows = [
        group("wide", adjusted_ratio=9.0, adjusted_low=1.1, adjusted_high=80.0),
        group("unsure", documents=5, p=0.9),
        group("empty", documents=0, removed=0, **EMPTY),
        group("less", **LESS),
        group("none removed", adjusted_ratio=0.0, adjusted_low=0.0, adjusted_high=0.0001),
        group("more", **MORE),
        group("likelier", p=0.06),
        group("infinite", adjusted_ratio=None, adjusted_low=1.9, adjusted_high=None),
    ]
    names = [row["slice"] for row in sort_by_difference(rows)]
    expected = ["none removed", "more", "infinite", "less", "wide", "likelier", "unsure", "empty"]
    assert names == expected
    ties = [group("b"), group("a"), group("c", documents=200)]
    assert [row["slice"] for row in sort_by_difference(ties)] == ["c", "a", "b"]


def test_cells_show_shares_ratios_and_intervals(session):
    rows = [
        group("women", documents=200, removed=40, lost=10, **MORE, q=0.0004),
        group("men", adjusted_ratio=None, adjusted_low=2.0, adjusted_high=None, verdict="more")
        | {"q": 0.02, "lost_adjusted_ratio": None, "lost_adjusted_high": None},
        group("alone", **EMPTY | {"removal_rate": 0.1}),
    ]
    tables = get_tables(build_group_removal_section(corpus_of([TOTAL, *rows])))
    people, lost = (
        {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
        for table in tables
    )
    women, men, alone = (people[f"mentioning {name}"] for name in ("women", "men", "alone"))
    assert [row[0] for row in tables[0].rows] == [
        "mentioning women",
        "mentioning men",
        "mentioning alone",
    ]
    assert women["n"] == "200" and women["removed"].value == 0.2
    assert women["removed (all other documents)"] == "10.0 %"
    assert women["ratio adjusted for source"].value == 3 and women["95 % interval"] == (
        "2.000 to 4.500"
    )
    assert (
        women["compared with others"] == "more often, q < 0.001"
        and women["detectable ratio"] == "1.800"
    )
    assert men["ratio adjusted for source"] == "∞" and men["95 % interval"] == "2.000 to any"
    assert men["compared with others"] == "more often, q = 0.0200"
    assert all(
        "∞ means that the share for all other documents is 0." in table.note for table in tables
    )
    assert alone["ratio adjusted for source"] == "–" == alone["95 % interval"]
    assert alone["compared with others"] == "not compared"
    assert lost["mentioning women"]["no copy remains"].value == 0.05
    assert lost["mentioning women"]["no copy remains (all other documents)"] == "1.0 %"
    assert lost["mentioning men"]["ratio adjusted for source"] == "∞"
    assert lost["mentioning men"]["95 % interval"] == "0.5000 to any"


def test_groups_without_documents_are_named_and_not_in_the_table(session):
    rows = [
        group("women"),
        group("Jews", documents=0, removed=0, **EMPTY),
        group("Hindus, Buddhists and Sikhs", documents=0, removed=0, **EMPTY),
        group("Scottish English", "dialect", documents=0, removed=0, **EMPTY),
    ]
    section = build_group_removal_section(corpus_of([TOTAL, *rows]))
    assert [[row[0] for row in table.rows] for table in get_tables(section)] == [
        ["mentioning women"],
        ["mentioning women"],
    ]
    text = text_of_blocks(section.blocks)
    assert "Groups that no document mentions: Hindus, Buddhists and Sikhs; Jews." in text
    assert "Dialects without markers in any document: Scottish English." in text


def test_removals_by_stage_add_up(session):
    reasons = [
        {"dimension": d, "slice": s, "stage": st_, "reason": r, "action": a, "documents": n}
        | {"other_documents": 0}
        for d, s, st_, r, a, n in (
            ("", "", "deduplicate", "exact duplicate", "removed", 60),
            ("", "", "select", "short", "removed", 30),
            ("", "", "select", "unreadable", "quarantined", 10),
            ("identity", "women", "deduplicate", "exact duplicate", "removed", 6),
            ("identity", "women", "select", "short", "removed", 4),
            ("identity", "women", "select", "unreadable", "quarantined", 0),
        )
    ]
    corpus = corpus_of([TOTAL, group("women")], reasons)
    section = build_group_removal_section(corpus)
    [stages] = [s for s in iterate_sections([section]) if s.title == "Removed documents by stage"]
    [table] = get_tables(stages)
    everything, women = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    duplicates, rules = "exact duplicates (deduplicate)", "filter by rules (select)"
    assert (everything[duplicates], everything[rules]) == ("60 (6.0 %)", "40 (4.0 %)")
    assert everything["removed"].value == 100 and everything["kept"] == "900"
    assert (women[duplicates], women[rules]) == ("6 (6.0 %)", "4 (4.0 %)")
    assert women["removed"].value == 10 and women["read"] == "100"


def test_hostile_names_of_groups_are_drawn_as_text(session):
    rows = [group(name, documents=50 + n, removed=9 + n) for n, name in enumerate(HOSTILE)]
    section = build_group_removal_section(corpus_of([TOTAL, *rows]))
    [chart] = [block for block in section.blocks if isinstance(block, Chart)]
    drawn = xml.etree.ElementTree.fromstring(draw_chart(chart.drawing))
    assert not [element for element in drawn.iter() if element.tag.endswith("script")]


def test_the_page_escapes_hostile_sources(cards, made):
    page = pages.read_whole_card(pages.write_pages(cards["datasheet"]) / "datasheet.html")
    assert "script" not in page.tags
    rows = made.corpus["removal_effects"]["group_removals"].read().to_pylist()
    sources = {row["slice"] for row in rows if row["dimension"] == "source"}
    assert sources == {"books", *HOSTILE}
    for outcome in ("removed", "no copy remains"):
        [table] = [
            table
            for table in page.tables
            if table[0][:3] == ["documents", "n", outcome] and "from books" in str(table)
        ]
        assert len(table) == 1 + len(sources)


# The answer --------------------------------------------------------------------------------------


def test_the_answer_names_significant_groups_with_share_interval_n_and_rate_of_others(session):
    text = answer_of(
        group("women", documents=200, removed=10),
        group("men", documents=100, removed=30, **MORE),
        group("town", "source", documents=500, removed=400, **MORE),
        group("Jews", documents=0, removed=0, **EMPTY),
    )
    assert "Curation removed 100 of 1,000 documents (10.0 %). 50 of these were duplicates" in text
    assert "Of the removed documents, 50 are lost: no copy remains in the corpus." in text
    assert (
        "The removal rates, including duplicates, of 2 identity or dialect groups with at least "
        "20 documents were compared with those of all other documents from the same sources. "
        "Documents were removed significantly more often if they mention men (30.0 % removed, 95 "
        "% interval 0.0 % to 100.0 %, n = 100; all other documents: 10.0 %). 1 other group shows "
        "no significant difference. “Removed” includes duplicates with a remaining copy; “lost” "
        "does not. The share of documents lost does not differ significantly for any group."
    ) in text
    assert "town" not in text and "Jews" not in text


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (group("", "", 0, 0, **EMPTY), "Curation received no documents."),
        (group("", "", 9, 0), "Curation removed none of 9 documents."),
        (
            group("", "", 9, 1, lost=0),
            "Curation removed 1 of 9 documents (11.1 %). 1 of these was a duplicate of other "
            "documents. Of the removed documents, 0 are lost: no copy remains in the corpus.",
        ),
    ],
)
def test_every_branch_of_the_total(session, total, expected):
    assert expected in text_of_blocks(build_group_removal_answer(corpus_of([total])))


def test_missing_rates_are_reported(session):
    nothing = CorpusFigures(FigureBook({}), {}, 30)
    text = text_of_blocks(build_group_removal_answer(nothing))
    assert text == (
        "Removal rates by group are not known, because the removal_effects stage did not run."
    )
    section = build_group_removal_section(nothing)
    assert "did not run" in text_of_section(section)
    assert "were not measured" in text_of_section(section)
    text = text_of_blocks(build_group_removal_answer(corpus_of([])))
    assert text.endswith("the removal_effects stage found no documents.")


NO_GROUP = "No document mentions a group of people from the lexicons or has dialect markers."
STRONG = [
    group(f"group {low}", removed=30, **MORE | {"adjusted_low": low}) for low in (2, 5, 3, 4, 6)
]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], NO_GROUP),
        (
            [group("Jews", documents=0, removed=0, **EMPTY), group("a", "source", **MORE)],
            NO_GROUP,
        ),
        (
            [group("women", **EMPTY)],
            "No group could be compared with all other documents from the same sources.",
        ),
        (
            [group("women"), group("men"), group("Jews", **EMPTY)],
            "The removal rates, including duplicates, of 2 identity or dialect groups with at "
            "least 20 documents were compared with those of all other documents from the same "
            "sources. Over all stages, the removal rate does not differ significantly for any "
            "group. “Removed” includes duplicates with a remaining copy; “lost” does not. The "
            "share of documents lost does "
            "not differ significantly for any group.",
        ),
        (
            [group("men", removed=5, **LESS), group("women"), group("Jews")],
            "same sources. Documents were removed significantly less often if they mention men "
            "(5.0 % removed, 95 % interval 0.0 % to 100.0 %, n = 100; all other documents: "
            "10.0 %). 2 other groups show no significant difference. ",
        ),
        (
            [group("women", removed=5, **MORE)],
            "10.0 %). The comparison within sources can differ from the comparison of overall "
            "shares because a group's documents may be concentrated in sources from which few or "
            "many documents were removed. “Removed” includes",
        ),
        ([group("men", removed=20, **LESS)], "The comparison within sources can differ"),
        (
            [group("women", removed=30, **MORE, removal_rate_low=None, other_removal_rate=None)],
            "if they mention women (30.0 % removed, n = 100; all other documents: –). "
            "“Removed” includes",
        ),
        (
            [group("women", lost_verdict="more"), group("men", lost_verdict="less")],
            "Over all stages, the removal rate does not differ significantly for any group. "
            "“Removed” includes duplicates with a remaining copy; “lost” does not. Documents were "
            "lost significantly "
            "more often if they mention women, and significantly less often if they mention men.",
        ),
        (
            [group(name, lost_verdict="more") for name in "abcde"],
            "more often if they mention a; b; c; d; or e.",
        ),
        (
            [group("Irish English", "dialect", lost_verdict="more")],
            "more often if they have markers of Irish English.",
        ),
        (
            [
                group("women", removed=30, **MORE),
                group("Irish English", "dialect", removed=40, **MORE),
            ],
            "n = 100; all other documents: 10.0 %); or if they have markers of Irish English "
            "(40.0 % removed, 95 % interval 0.0 % to 100.0 %, n = 100; all other documents: "
            "10.0 %). “Removed” includes",
        ),
        (
            [group("women", documents=20), group("Jews", documents=19)],
            "The removal rates, including duplicates, of 1 identity or dialect group with at "
            "least 20 documents, and of 1 smaller group, were compared with those of all other "
            "documents from the same sources.",
        ),
        (
            [group("women", documents=19), group("Jews", documents=18)],
            "No group of people or dialect has at least 20 documents. The removal rates of 2 "
            "smaller groups, including duplicates, were compared with those of all other "
            "documents from the same sources.",
        ),
        (
            [group("women", lost_verdict="not compared")],
            "“lost” does not. The shares of documents lost could not be compared.",
        ),
    ],
)
def test_every_branch_about_differences(session, rows, expected):
    assert expected in answer_of(*rows)


@pytest.mark.parametrize("count", [3, 4, 5])
def test_the_answer_names_all_groups_the_largest_difference_first(session, count):
    text = answer_of(*STRONG[:count])
    [sentence] = re.findall(r"more often if they mention (.*?\))\. ", text)
    lows = sorted((int(row["slice"][-1]) for row in STRONG[:count]), reverse=True)
    assert re.findall(r"group \d", sentence) == [f"group {low}" for low in lows]
    details = (
        "(30.0 % removed, 95 % interval 0.0 % to 100.0 %, n = 100; all other documents: 10.0 %)"
    )
    assert sentence.count(details) == 3
    assert sentence.count("(30.0 %, n = 100)") == count - 3
    assert "The comparison within sources" not in text and "other group" not in text


verdicts = st.sampled_from(["more", "less", "not shown", "not compared"])


@given(
    drawn=st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 40), verdicts, verdicts), max_size=6
    )
)
@quick
def test_the_answer_never_contradicts_the_table(session, drawn):
    rows = []
    for number, (documents, removed, verdict, lost_verdict) in enumerate(drawn):
        if documents == 0:
            rows.append(group(f"group {number}", documents=0, removed=0, **EMPTY))
            continue
        change = {"more": MORE, "less": LESS, "not compared": EMPTY, "not shown": {}}[verdict]
        row = group(f"group {number}", documents=documents, removed=min(removed, documents))
        rate = row["removal_rate"]
        rows.append(row | change | {"removal_rate": rate, "lost_verdict": lost_verdict})
    text = answer_of(*rows)
    mentioned = [row for row in rows if row["documents"]]
    compared = [row for row in mentioned if row["verdict"] != "not compared"]
    counts = dict.fromkeys(("more", "less", "not shown"), 0)
    for row in compared:
        counts[row["verdict"]] += 1
    assert ("No document mentions" in text) == (not mentioned)
    large = [row for row in compared if row["documents"] >= 20]
    counted = re.search(
        r"removal rates, including duplicates, of (\d+) identity or dialect groups?", text
    )
    smaller = re.search(r" of (\d+) smaller groups?", text)
    assert (int(counted[1]) if counted else 0) == len(large)
    assert (int(smaller[1]) if smaller else 0) == len(compared) - len(large)
    assert ("No group could be compared" in text) == (bool(mentioned) and not compared)
    for verdict in ("more", "less"):
        clause = re.search(
            rf"Documents were removed significantly {verdict} often if they mention (.*?\))"
            r"\. ",
            text,
        )
        names = re.findall(r"(group \d) \(", clause[1]) if clause else []
        expected = [row["slice"] for row in sort_by_difference(compared)]
        expected = [
            n for n in expected if n in {r["slice"] for r in compared if r["verdict"] == verdict}
        ]
        assert names == expected
    has_difference = bool(counts["more"] or counts["less"])
    assert ("Over all stages, the removal rate does not differ" in text) == (
        bool(compared) and not has_difference
    )
    others = re.search(r"(\d) other groups? shows? no significant difference", text)
    assert (int(others[1]) if others else 0) == (counts["not shown"] if has_difference else 0)


@pytest.mark.parametrize("prefix", ["", "lost_"])
@pytest.mark.parametrize("verdict", ["more", "less", "not shown", "not compared"])
def test_cells_about_differences_follow_the_verdict(prefix, verdict):
    row = group("women", **{f"{prefix}verdict": verdict, f"{prefix}q": 0.0123})
    text = describe_difference(row, prefix)
    assert text.startswith("no significant difference" if verdict == "not shown" else verdict)
    assert text.endswith("often, q = 0.0123") == (verdict in ("more", "less"))


# Errors of the filter ----------------------------------------------------------------------------


def rate(target, measure, hits, n, stage_="select_scored"):
    row = {"source": "town", "stage": stage_, "target": target, "measure": measure}
    share = {"share": hits / n, "low": 0.1, "high": 0.7} if n else {"share": None}
    return row | {"hits": hits, "n": n, "low": None, "high": None} | share


def test_recall_and_false_alarms_are_next_to_the_rates(session):
    evaluation = [
        rate("exact copies", "recall", 9, 9, "deduplicate"),
        rate("rude speech", "recall", 239, 382),
        rate("no rude speech", "false alarms", 5, 4316),
        rate("no rude speech, dialect", "false alarms", 0, 464),
    ]
    corpus = corpus_of([TOTAL, group("women")], evaluation=evaluation)
    section = build_group_removal_section(corpus).sections[0]
    text = text_of_section(section)
    assert "removed or tagged 62.6 % of the documents with rude speech (recall; 95 %" in text
    assert "n = 382) and 0.12 % of the documents without rude speech (false alarms;" in text
    [table] = get_tables(section)
    assert [row[1] for row in table.rows] == [
        "rude speech",
        "no rude speech",
        "no rude speech, dialect",
    ]


@pytest.mark.parametrize(
    ("evaluation", "expected", "excluded"),
    [
        (
            None,
            "were not measured: no rule uses a toxicity score. The “Controls” page",
            "removed or tagged",
        ),
        ([rate("exact copies", "recall", 9, 9, "deduplicate")], "were not measured", "copies"),
        (
            [rate("rude speech", "recall", 0, 0), rate("no rude speech", "false alarms", 0, 10)],
            "removed or tagged 0.0 % of the documents without rude speech",
            "(recall",
        ),
        (
            [rate("rude speech", "recall", 0, 0), rate("no rude speech", "false alarms", 0, 0)],
            "there are no such cases",
            "In the invented documents",
        ),
    ],
)
def test_every_branch_about_errors_of_the_filter(session, evaluation, expected, excluded):
    corpus = corpus_of([TOTAL], evaluation=evaluation)
    text = text_of_section(build_filter_error_section(corpus))
    assert expected in text and excluded not in text


RUDE = rate("rude speech", "recall", 239, 382)
HARMLESS = rate("no rude speech", "false alarms", 5, 4316)
OTHER_HARMLESS = rate("no rude speech, dialect", "false alarms", 0, 464)


@pytest.mark.parametrize(
    ("evaluation", "expected"),
    [
        (None, "See “Toxicity filter: error rates not measured”."),
        ([], "See “Toxicity filter: error rates not measured”."),
        ([OTHER_HARMLESS], "See “Toxicity filter error rates”."),
        (
            [rate("rude speech", "recall", 0, 0), rate("no rude speech", "false alarms", 0, 0)],
            "See “Toxicity filter: error rates not measured”.",
        ),
        (
            [RUDE, HARMLESS, OTHER_HARMLESS],
            "In the invented documents from the “town” source, the toxicity filter removed or "
            "tagged 62.6 % of the documents with rude speech and 0.12 % of those without rude "
            "speech. See “Toxicity filter error rates”.",
        ),
        (
            [rate("rude speech", "recall", 0, 0), HARMLESS],
            "In the invented documents from the “town” source, the toxicity filter removed or "
            "tagged 0.12 % of the documents without rude speech. "
            "See “Toxicity filter error rates”.",
        ),
        (
            [RUDE, OTHER_HARMLESS, {**HARMLESS, "source": "port"}],
            "In the invented documents from the “town” source, the toxicity filter removed or "
            "tagged 62.6 % of the documents with rude speech. In the invented documents from the "
            "“port” source, the toxicity filter removed or tagged 0.12 % of the documents without "
            "rude speech. See “Toxicity filter error rates”.",
        ),
    ],
)
def test_the_first_screen_names_the_error_rates_of_the_filter(session, evaluation, expected):
    corpus = corpus_of([TOTAL], evaluation=evaluation)
    content = summarize_filter_errors(corpus, REMOVAL_RATES_TITLE)
    assert text_of_parts(content) == expected
    [link] = [part for part in content if isinstance(part, Link)]
    section = build_group_removal_section(corpus)
    [errors] = [part for part in section.sections if part.title == link.text]
    assert link.href == f"#{section.anchor}-{errors.anchor}"


def test_a_group_in_one_list_only_is_explained(session):
    """Removed copies of kept documents hide a group from the first list, not from the second."""
    text = answer_of(group("men", lost_verdict="more", lost_adjusted_low=2.0), group("women"))
    expected = (
        "Over all stages, the removal rate does not differ significantly for any group. “Removed” "
        "includes"
    )
    assert f"{expected} duplicates" in text
    section = build_group_removal_section(corpus_of([TOTAL, group("men"), group("women")]))
    captions = [table.caption for table in get_tables(section)]
    assert captions == [
        "Removed documents (including duplicates), by group",
        "Lost documents (no copy remains), by group",
    ]
    assert (
        "The tables of removed and lost documents can therefore disagree about a group."
        in text_of_section(section)
    )


@stage(name="stored_scores", tables=EVALUATION_TABLES)
def stored_scores(config: StoredScorerConfig, context: StageContext) -> None:
    pass


@stage(name="stored_filter", tables=EVALUATION_TABLES)
def stored_filter(config: StoredFilterConfig, context: StageContext) -> None:
    pass


@pytest.mark.parametrize(
    ("signal", "reason"),
    [
        ("toxicity", "the sources do not specify which documents are toxic"),
        ("word_count", "no rule uses a toxicity score"),
    ],
)
def test_missing_error_rates_have_one_reason(session, signal, reason):
    corpus = corpus_of([TOTAL])
    rule = {"name": "r", "signal": signal, "action": "remove"}
    scores = stored_scores(StoredScorerConfig())
    corpus.stage_artifacts |= {
        "score_toxicity": replace(scores, manifest=scores.manifest | {"stage": "score_toxicity"}),
        "select_scored": stored_filter(StoredFilterConfig(rules=[rule])),
    }
    text = text_of_section(build_filter_error_section(corpus))
    assert (
        f"The toxicity filter's recall and false alarms were not measured: {reason}. The "
        "“Controls” page of a model card lists what an audit's scorer misses and wrongly flags, "
        "at a threshold that may differ from the filter's."
    ) in text


def test_every_figure_of_the_section_recomputes_from_its_rows(cards, made):
    rows = made.corpus["removal_effects"]["group_removals"].read().to_pylist()
    corpus = CorpusFigures(FigureBook(made.corpus), made.corpus, 30)
    build_group_removal_section(corpus)
    by_group = {(row["dimension"], row["slice"]): row for row in rows}
    evidence_by_id = corpus.book.evidence_by_id
    figures = [
        figure
        for figure in corpus.book.figures.values()
        if evidence_by_id[figure.evidence_id].table == "group_removals"
    ]
    assert len(figures) > 10
    for figure in figures:
        conditions = evidence_by_id[figure.evidence_id].conditions
        row = by_group[conditions["dimension"], conditions["slice"]]
        expected = {
            "removed_documents/documents": row["removal_rate"],
            "lost_documents/documents": row["lost_rate"],
            "adjusted_ratio": row["adjusted_ratio"],
            "lost_adjusted_ratio": row["lost_adjusted_ratio"],
        }[figure.value_column]
        assert figure.value == pytest.approx(expected)
    assert read_group_removals(corpus) == rows
