"""Which rows a limited table shows, and that it cuts no group of people for its name."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from hallmark.reports.model_card import ModelCardConfig, build_model_card
from hallmark.reports.page.document import DataTable
from hallmark.reports.page.figures import Evidence, Figure, FigureBook
from hallmark.reports.page.redaction import Redactor
from hallmark.reports.sections.audit_charts import build_interval_chart, build_part_labels
from hallmark.reports.sections.corpus_figures import CorpusFigures
from hallmark.reports.sections.curation_effects import (
    build_group_swap_section,
    build_removal_rates_by_rule,
    build_threshold_rates_section,
)
from hallmark.reports.sections.findings import (
    Finding,
    is_about_groups,
    list_measured_groups,
    select_group_and_most_significant_findings,
)
from hallmark.reports.sections.group_metrics import select_groups_with_most_tokens
from hallmark.reports.sections.preprocessing import build_ledger_reasons_section
from hallmark.reports.sections.stage_titles import name_corpus_stage
from hallmark.reports.sections.training_arms import (
    build_heldout_loss_section,
    build_training_arms_section,
)
from hallmark.tasks.audits.judging.findings import FINDINGS, build_finding
from hallmark.tasks.contract import EmptyConfig, StageContext, stage
from hallmark.tasks.corpus.removal_effects import TABLES
from tests.findings import build_titled_table
from tests.reports import artifacts, pages
from tests.reports.artifacts import PARTS
from tests.reports.test_removal_experiment_card import SCHEMAS, RowsConfig, made_proof

GROUPS = [f"group {n:02}" for n in range(45)] + [
    "Jews",
    "Muslims",
    "Hindus",
    "non-religious people",
]


@stage(name="many_findings", tables={"values": PARTS, "findings": FINDINGS})
def many_findings(config: EmptyConfig, context: StageContext) -> None:
    """Of each group a difference; of 60 occupations a share, the last ones far from half."""
    context.get_table_writer("values").write({"sample": [0], "part": ["pair"]})
    where = {"part": "pair"}
    rows = [
        build_finding(
            "counterfactual",
            "toxicity_difference",
            0.01,
            n=9,
            unit="score",
            method="by hand",
            tags={"domain": "religion", "group_name": name},
            evidence_filter=where,
        )
        for name in GROUPS
    ]
    rows += [
        build_finding(
            "counterfactual",
            "women_share",
            0.5 + n / 1000,
            n=9,
            unit="share",
            null_value=0.5,
            method="by hand",
            tags={"occupation": f"trade {n:02}"},
            evidence_filter=where,
        )
        for n in range(60)
    ]
    context.get_table_writer("findings").write(build_titled_table(rows))


@pytest.fixture
def page(session, tmp_path):
    audits = {"counterfactual": many_findings()}
    config = ModelCardConfig(title="Tested", max_table_rows=40)
    checkpoint = artifacts.checkpoint(tmp_path / "x")
    card = build_model_card(
        checkpoint, None, None, audits, {}, None, None, None, None, {}, None, config
    )
    return pages.read_whole_card(pages.write_pages(card) / "model_card.html")


def first_cells(page, start):
    (found,) = [t for t in page.tables if len(t) > 1 and t[1][0].startswith(start)]
    return [row[0] for row in found[1:]]


def test_every_group_has_its_line_however_many_there_are(page):
    shown = first_cells(page, sorted(GROUPS)[0])
    assert shown == sorted(GROUPS)
    factors = page.text.split("Measured groups and conditions")[1]
    assert all(name in factors.split("The audits measured no other")[0] for name in GROUPS)


def test_of_other_parts_those_furthest_from_the_null_value_are_shown_in_their_order(page):
    shown = first_cells(page, "trade ")
    assert shown == [f"trade {n:02}" for n in range(20, 60)]
    said = " ".join(page.text.split())
    assert "40 of 60 findings:" in said and "audit_counterfactual stage's findings table" in said


def finding_of(name, value, p=None, **tags):
    evidence = Evidence("a", None, "values", {})
    figure = Figure(name, "l", value, "share", evidence, "", "finding", low=0.4, high=0.6)
    row = build_finding(
        "bias", "m", value, n=9, unit="share", method="m", tags=tags, null_value=0.5
    )
    return Finding(asdict(row) | {"title": name, "p_corrected": p}, figure)


def test_the_smallest_p_comes_before_the_largest_difference_and_groups_before_both():
    found = [
        finding_of("a", 0.9, k="1"),
        finding_of("b", 0.6, 0.01, k="2"),
        finding_of("c", None, k="3"),
        finding_of("d", 0.7, 0.2, k="4"),
        finding_of("e", 0.5, 1.0, group_name="Jews"),
    ]
    names = [
        [row["title"] for row, _ in select_group_and_most_significant_findings(found, n)]
        for n in range(5)
    ]
    assert names == [["e"], ["b", "e"], ["b", "d", "e"], ["a", "b", "d", "e"], [*"abcde"]]
    assert [is_about_groups(row) for row, _ in found] == [False] * 4 + [True]


def test_groups_of_a_users_word_list_are_listed_where_they_are_a_kind_of_prompt():
    found = [
        finding_of("all", 0.2, prompt_subset="prompted", draw_count="25"),
        finding_of("men", 0.2, prompt_subset="prompted", mentioned_group="men", draw_count="25"),
        finding_of("town", 0.3, prompt_subset="town:Ildriths", draw_count="25"),
    ]
    rows = [row for row, _ in found]
    assert [is_about_groups(row) for row in rows] == [False, True, True]
    assert list_measured_groups(rows) == ["men; town: Ildriths"]
    variant = rows[1] | {"slice": rows[1]["slice"] | {"mentioned_group": "flowers"}}
    assert list_measured_groups([*rows, variant | {"is_variant": True}]) == ["men; town: Ildriths"]
    labels = build_part_labels([row["slice"] for row in rows[1:]])
    assert labels == ["prompted, men", "town: Ildriths"]


@pytest.mark.parametrize(
    "tag", ["category", "bias_type", "group_name", "domain", "mentioned_group"]
)
def test_a_chart_draws_every_group(tag):
    found = [finding_of(f"{n}", 0.5, **{tag: str(n)}) for n in range(45)]
    (chart,) = build_interval_chart("bias", found, "share of pairs", "As drawn.")
    assert chart.caption == "As drawn." and "".join(chart.alt_text).count(" to ") == 45


# The datasheet ---------------------------------------------------------------------------------


@stage(name="taken", tables=TABLES)
def taken(config: EmptyConfig, context: StageContext) -> None:
    """What left, for many groups and sources; and pairs of groups, each with a difference."""
    kinds = [("identity", name) for name in GROUPS]
    kinds += [("source", f"source {n:02}") for n in range(40)]
    for place in ({"stage": "select", "reason": "short"},):
        for number, (dimension, name) in enumerate(kinds):
            row = {
                **place,
                "dimension": dimension,
                "slice": name,
                "documents": 40,
                "removed_documents": 8,
            }
            row |= {
                "clusters": 30,
                "other_documents": 1000,
                "other_removed_documents": 100,
                "removal_rate": 0.2,
            }
            row |= {
                "other_removal_rate": 0.1,
                "rate_ratio": 1.1 + number / 100,
                "low": 1.05,
                "high": None,
            }
            row |= {
                "source_adjusted_ratio": 1.25,
                "source_adjusted_low": 0.9,
                "source_adjusted_high": None,
                "p": 0.01,
                "p_corrected": 0.02,
                "minimum_detectable_ratio": 1.75,
                "verdict": "more",
            }
            context.get_table_writer("removal_rates").write(
                {key: [value] for key, value in row.items()}
            )
            limit = {
                "signal": "word_count",
                "comparison": "le",
                "threshold": 0.5,
                "is_rule_threshold": True,
            }
            if place["stage"]:
                context.get_table_writer("threshold_rates").write(
                    {k: [v] for k, v in (row | limit).items()}
                )
    for number, name in enumerate(GROUPS):
        for other in GROUPS[:2]:
            pair = {
                "origin": "templates",
                "axis": "religion",
                "group_name": name,
                "other_group": other,
            }
            pair |= {
                "sentences": 9,
                "clusters": 9,
                "score_difference": 0.9 - number / 100,
                "low": None,
                "high": None,
            }
            pair |= {
                "p": 0.001,
                "p_corrected": 0.01,
                "raised_share": 0.0,
                "lowered_share": 0.0,
                "threshold": 0.5,
            }
            if name != other:
                context.get_table_writer("swap_differences").write(
                    {k: [v] for k, v in pair.items() if k in SWAPS}
                )


SWAPS = TABLES["swap_differences"].names


@pytest.fixture
def corpus(session):
    made = {"removal_effects": taken()}
    made["removal_effects"].manifest["parts"]["external"] = {
        "scorer": "a scorer",
        "digest": "d" * 16,
    }
    return CorpusFigures(FigureBook(made), made | {"select": made["removal_effects"]}, 30)


def test_by_rule_and_along_thresholds_every_group_has_a_line(corpus):
    _, grid = build_removal_rates_by_rule(corpus).blocks
    shown = {row[0] for row in grid.rows}
    assert {f"mentioning {name}" for name in GROUPS} <= shown and len(shown) == len(GROUPS) + 10
    assert (
        f"{len(shown)} of {len(GROUPS) + 40} rows:" in grid.note
        and "removal_rates table" in grid.note
    )
    [grid] = build_threshold_rates_section(corpus).blocks
    assert {row[0] for row in grid.rows} == {f"mentioning {name}" for name in GROUPS}


def test_swapped_sentences_show_the_largest_pairs_and_one_of_every_group(corpus):
    [grid] = [
        block for block in build_group_swap_section(corpus).blocks if isinstance(block, DataTable)
    ]
    pairs = [row[0].split(" → ") for row in grid.rows]
    assert {name for pair in pairs for name in pair} == set(GROUPS)
    assert len(pairs) < 2 * len(GROUPS) - 2 and "swap_differences table" in grid.note


def test_of_groups_all_are_heavy_enough():
    kinds = ("identity", "source")
    rows = [{"kind": kind, "name": name, "tokens": 1} for kind in kinds for name in GROUPS]
    found, note = select_groups_with_most_tokens(rows, "identity", "validation", 3)
    assert {row["name"] for row in found} == set(GROUPS) and not note
    found, note = select_groups_with_most_tokens(rows, "source", "validation", 3)
    assert len(found) == 3 and f"{len(GROUPS) - 3} more" in note


def test_mentions_name_every_group(made):
    corpus = CorpusFigures(FigureBook(made.corpus | {"profile": made.profile}), made.corpus, 1)
    found, note = corpus.select_heaviest_values_or_all_identities(
        "identities", "group_name", "mentions"
    )
    assert set(found) == {*made.profile["identities"].read()["group_name"].to_pylist()} and not note
    found, note = corpus.select_heaviest_values_or_all_identities("sources", "source", "bytes")
    assert len(found) == 1 and note


def priced(texts, changes):
    """The grid of what held-out text costs, of these texts with these changes, two lines long."""
    rows = {name: [] for name in SCHEMAS}
    arms = ("base", "removed", "random")
    rows["heldout_loss"] = [
        {
            "kind": k,
            "name": n,
            "arm": arm,
            "bytes": 9,
            "bits_per_byte": 2.0,
            "difference_from_base": change,
        }
        for (k, n), change in zip(texts, changes, strict=True)
        for arm in arms
    ]
    book = FigureBook({"compare_arms": made_proof(RowsConfig(tables=json.dumps(rows)))})
    [grid] = build_heldout_loss_section(book, Redactor(), 2).blocks
    return grid


def test_the_price_of_a_removal_is_told_for_every_group_and_the_sources_that_change_most(session):
    sources = [("source", f"source {n}") for n in range(6)]
    groups = [("identity", name) for name in GROUPS]
    changes = [0.0, 0.0, -0.1, 0.01, 0.2, None]
    grid = priced([("all", ""), *sources, *groups], [0.0, *changes, *[0.0] * len(groups)])
    shown = [row[0] for row in grid.rows]
    assert shown[:3] == ["all text", "source source 2", "source source 4"]
    assert shown[3:] == [f"identity {name}" for name in GROUPS]
    assert f"{len(shown)} of {len(GROUPS) + 7} rows: those for all groups and" in grid.note


def test_of_what_was_left_out_the_sources_that_lack_most_are_shown(session):
    rows = {name: [] for name in SCHEMAS}
    rows["sources"] = [
        {"arm": arm, "source": f"source {n}", "documents": n, "bytes": n}
        for arm in ("removed", "random")
        for n in range(6)
    ]
    book = FigureBook({"compare_arms": made_proof(RowsConfig(tables=json.dumps(rows)))})
    grid = build_training_arms_section(book, Redactor(), 2).blocks[-1]
    assert [row[0] for row in grid.rows] == ["source 5", "source 4"]
    assert (
        "The table shows 2 of 6 sources with the most omitted documents; the sources table "
        "lists all of them." in grid.note
    )


def test_reasons_show_the_largest_of_every_stage(made):
    corpus = CorpusFigures(FigureBook(made.corpus | {"profile": made.profile}), made.corpus, 2)
    [grid] = build_ledger_reasons_section(corpus).blocks
    rows = made.profile["ledger_summary"].read().to_pylist()
    assert {row[0] for row in grid.rows} == {name_corpus_stage(row["stage"]) for row in rows}
    assert len(grid.rows) < len({(r["stage"], r["action"], r["reason"]) for r in rows})
    assert (
        "the most frequent reason in every stage; the profile's ledger_summary table lists all"
        in grid.note
    )
