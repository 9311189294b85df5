"""The page of the closed loop says what went away, what did not, and leads to the rows."""

import json
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from hallmark.flows.commands.prove import render_proof
from hallmark.reports.page.drawing import draw_chart
from hallmark.reports.page.figures import FigureBook
from hallmark.reports.page.redaction import Redactor
from hallmark.reports.removal_experiment_card import (
    RemovalExperimentCardConfig,
    build_removal_experiment_card,
)
from hallmark.reports.sections.removal_experiment import RemovalCase, RemovalReport
from hallmark.tasks.audits.experiments import removal_experiment as tables
from hallmark.tasks.audits.experiments.arm_comparison import (
    CaseUnits,
    build_effect_rows,
    evaluate_criteria,
)
from hallmark.tasks.audits.experiments.removal_experiment import build_unit_rows
from hallmark.tasks.audits.experiments.source_documents import SOURCE_DOCUMENTS
from hallmark.tasks.contract import StageConfig, StageContext, hash_to_ids, stage
from tests.reports import pages
from tests.tasks.audits.experiments.test_arm_comparison import (
    PASSAGES,
    SECRETS,
    associations,
    memorised,
    units,
)

SCHEMAS = {
    "arms": tables.ARMS,
    "sources": tables.SOURCES,
    "cases": tables.CASES,
    "units": tables.UNITS,
    "effects": tables.EFFECTS,
    "criteria": tables.CRITERIA,
    "heldout_loss": tables.HELDOUT_LOSS,
}

HOSTILE = "<script>alert(1)</script>"


class RowsConfig(StageConfig):
    tables: str


@stage(name="made_proof", tables=SCHEMAS)
def made_proof(config: RowsConfig, context: StageContext) -> None:
    for name, rows in json.loads(config.tables).items():
        context.get_table_writer(name).write(pa.Table.from_pylist(rows, schema=SCHEMAS[name]))


@stage(name="made_behind", tables={"source_documents": SOURCE_DOCUMENTS})
def made_behind(config: RowsConfig, context: StageContext) -> None:
    names = json.loads(config.tables)
    keys = [i.as_py() for i in hash_to_ids(f"{n}" for n in range(3))]
    rows = [
        {
            "case_name": name,
            "item_unit": "u",
            "doc_id": key,
            "source": HOSTILE,
            "tokens": 9,
            "stated_trait": "",
            "is_removed": place > 0,
        }
        for name in names
        for place, key in enumerate(keys)
    ]
    context.get_table_writer("source_documents").write(
        pa.Table.from_pylist(rows, schema=SOURCE_DOCUMENTS)
    )


def named(measured, name, **more):
    return replace(measured, case=measured.case.model_copy(update={"name": name, **more}))


def card(cases, why=None, lines_shown=40, sources=None):
    """The page of these cases; ``why``: of a case nothing was removed."""
    rows = {name: [] for name in SCHEMAS}
    for found in cases:
        case = found.case
        made = build_effect_rows(found)
        rows["units"] += build_unit_rows(found)
        rows["effects"] += made
        reason = (why or {}).get(case.name, "")
        rows["criteria"] += [] if reason else evaluate_criteria(case, made)
        rows["cases"].append(
            {
                "case_name": case.name,
                "kind": case.kind,
                "finding": f"a.b[{HOSTILE}]",
                "documents": 3,
                "removed_documents": 2,
                "reason": reason,
            }
        )
    arms = ("base", "removed", "random", "seed 1")
    rows["arms"] = [
        {"arm": a, "step": 9, "checkpoint": "c" * 64, "documents": 2, "bytes": 20} for a in arms
    ]
    rows["sources"] = sources or [
        {"arm": a, "source": source, "documents": 1, "bytes": 10}
        for a in ("removed", "random")
        for source in (HOSTILE, "town")
    ]
    rows["heldout_loss"] = [
        {
            "kind": "identity",
            "name": name,
            "arm": a,
            "bytes": 1234 + n,
            "bits_per_byte": 2 + n / 10,
            "difference_from_base": n / 10,
        }
        for name in (HOSTILE, "women")
        for n, a in enumerate(arms)
    ]
    proof = made_proof(RowsConfig(tables=json.dumps(rows)))
    behind = made_behind(RowsConfig(tables=json.dumps([found.case.name for found in cases])))
    return build_removal_experiment_card(
        proof, behind, {}, RemovalExperimentCardConfig(title="Model", max_table_rows=lines_shown)
    )


@pytest.fixture
def made(session):
    gone, part = memorised(), named(memorised(left=6.0), "in part")
    stays = named(memorised(), "stays")
    stays = replace(
        stays, units_by_arm={**stays.units_by_arm, "removed": stays.units_by_arm["base"]}
    )
    none = named(memorised(), "nothing", kind="other")
    cases = [gone, part, stays, none, associations(1.9)]
    return card(cases, {"nothing": "no training document is behind it"})


def test_it_says_what_went_away_and_what_did_not(made):
    page = pages.read(pages.write_pages(made) / "removal_experiment_card.html")
    for words in (
        "secrets disappeared: before the removal, it was ",
        "in part partly disappeared: before the removal, it was ",
        "stays was not shown to disappear",
        "nothing: nothing was removed, because no training document",
    ):
        assert words in page.text, words
    assert "of 21 criteria are met" in page.text
    assert (
        "Not met: in part, upper end of the confidence interval for the mean after removal minus"
    ) in page.text
    source = (pages.write_pages(made) / "removal_experiment_card.html").read_text()
    assert "alert(1)" in page.text and HOSTILE not in source


def test_what_did_not_fall_did_not_go_away(session):
    """Without other seeds, too, of which nothing is known."""
    grown, stays, weak = (named(associations(0.0), name) for name in ("grown", "stays", "weak"))
    rng = np.random.default_rng(4)

    def moved(units, by):
        return {i: u._replace(value=u.value + by + rng.normal() / 9) for i, u in units.items()}

    def arms(made, removed, base=None):
        base = base or made.units_by_arm["base"]
        return replace(made, units_by_arm={"base": base, "removed": removed, "random": base})

    low = moved(weak.units_by_arm["base"], -3)
    cases = [
        arms(grown, moved(grown.units_by_arm["base"], 3)),
        arms(stays, moved(stays.units_by_arm["base"], 0)),
        arms(weak, moved(low, -2), low),
        arms(named(stays, "alike"), stays.units_by_arm["base"]),
    ]
    text = " ".join(
        pages.read(pages.write_pages(card(cases)) / "removal_experiment_card.html").text.split()
    )
    assert "grown did not disappear: it rose by 3.0" in text
    assert "stays was not shown to disappear: its change of" in text and "may be zero." in text
    assert "weak changed by −2.0" in text
    assert "although, before the removal, it was not above the value for associations" in text
    assert "alike was not shown to disappear: its change of 0.000 (–) has no interval." in text
    assert "−0.000" not in text  # a fall of nothing
    assert "disappeared" not in text


def test_where_nothing_must_be_reached_no_line_is_green(session):
    other = named(memorised(), "other", kind="other")
    units = {arm: other.units_by_arm[arm] for arm in ("base", "removed", "random")}
    alone = replace(other, units_by_arm=units, null_units_by_arm={})
    page = pages.read(pages.write_pages(card([alone])) / "removal_experiment_card.html")
    assert "There are no criteria to check" in page.text
    assert "0 of 0" not in page.text and "other changed by" in page.text


def test_it_does_not_call_those_behind_the_worst_rows_all(session):
    """Of what names no documents only the worst rows are looked at."""
    cases = [memorised(), named(memorised(), "other", kind="other")]
    text = pages.read(pages.write_pages(card(cases)) / "removal_experiment_card.html").text
    assert text.count("Source documents for the finding: 3. Only some were removed: 2.") == 1
    assert (
        "(if none are listed, the source documents of its 100 worst rows) were removed: 2." in text
    )


def test_every_figure_leads_to_its_rows_and_is_computed_from_them(made):
    figures = {row["label"]: row for row in pages.read_figures(made).to_dict("records")}
    base = figures[f"{SECRETS.name}, unit, base"]
    units = list(memorised().units_by_arm["base"].values())
    assert base["value"] == pytest.approx(sum(u.value for u in units) / len(units))
    assert base["row_count"] == len(units) and figures["secrets: documents removed"]["value"] == 2
    change = figures["secrets: change from base, removed"]
    assert change["row_count"] == 2 * len(units)  # both of each pair
    folder = pages.write_pages(made)
    assert all(pages.read_evidence(folder, row["page_path"]).ids for row in figures.values())
    page = pages.read(folder / "removal_experiment_card.html")
    leading = {href for href, _ in page.figures}
    assert len(leading) > 20 and pages.broken_links(folder) == []


@pytest.mark.parametrize(
    ("removed", "random", "said"),
    [
        (
            {"a": 5, "b": 2},
            {"a": 5, "b": 2},
            "omits 7 other documents of similar lengths: the same number from each source. The "
            "arms with other seeds",
        ),
        (
            {"a": 500, "b": 1100},
            {"a": 400, "c": 1200},
            "omits 1,600 other documents of similar lengths: 400 come from the same source as the "
            "documents they replace, and 1,200 from other sources, because the original sources "
            "had no more documents. The arms with other seeds",
        ),
        ({"a": 5}, {}, "over the same units. The arms with other seeds"),
    ],
)
def test_it_counts_how_much_of_the_control_is_of_the_same_sources(session, removed, random, said):
    left = [
        {"arm": arm, "source": source, "documents": n, "bytes": 9 * n}
        for arm, side in (("removed", removed), ("random", random))
        for source, n in side.items()
    ]
    text = pages.read(
        pages.write_pages(card([memorised()], sources=left)) / "removal_experiment_card.html"
    ).text
    assert said in " ".join(text.split())


def test_tables_that_are_cut_say_so(session):
    text = pages.read(
        pages.write_pages(card([memorised()], lines_shown=1)) / "removal_experiment_card.html"
    ).text
    assert (
        "The table shows 1 of 2 sources with the most omitted documents; the sources table "
        "lists all of them." in text
    )
    assert "1,237" in text  # of how many bytes, of the arm with the most
    whole = pages.read(pages.write_pages(card([memorised()])) / "removal_experiment_card.html").text
    assert "lists all of them" not in whole


@pytest.mark.parametrize(("nothing", "lines"), [(None, 0), (0.1, 1)])
def test_a_caption_names_the_line_that_is_drawn(nothing, lines):
    row = {"value": 0.5, "low": 0.4, "high": 0.6, "unit": "share"}
    none = {**row, "value": nothing, "low": None, "high": None}
    found = {("mean", "base"): row, ("null_mean", "removed"): none}
    case = RemovalCase(
        "x: y", "x-y", [{"kind": "memorised", "finding": "f", "reason": ""}], found, []
    )
    chart = RemovalReport(FigureBook({}), Redactor(), "t", 40).build_arm_chart(case)
    assert (
        draw_chart(chart.drawing).count("dasharray: 4")
        == chart.caption.count("The dashed line")
        == lines
    )


def fading(n=20):
    """Passages of whose tokens shares are said, with changes of nearly 80 points."""
    rng = np.random.default_rng(3)
    arms = {"base": 0.9, "removed": 0.1, "random": 0.88, "seed 1": 0.87}
    return CaseUnits(
        PASSAGES,
        {arm: units(mean + rng.random(n) / 20) for arm, mean in arms.items()},
        {arm: units(rng.random(n) / 20, "none") for arm in arms},
    )


def test_differences_of_shares_are_in_percentage_points(session):
    page = pages.read(pages.write_pages(card([fading()])) / "removal_experiment_card.html")
    (levels,) = (table for table in page.tables if table[0][0] == "arm" and "value" in table[0])
    assert all(row[1].endswith(" %") for row in levels[1:])
    (changes,) = (table for table in page.tables if table[0][0] == "change")
    assert all(row[1].endswith(" points") and row[2].endswith(" points") for row in changes[1:])
    lines = {
        row[0]: row[1:3] for table in page.tables for row in table[1:] if table[0][0] == "criterion"
    }
    for line, cells in lines.items():
        level = line.startswith("mean after removal")
        sign = "%" if level else "" if line == "secrets or passages" else "points"
        assert all(cell.endswith(sign) for cell in cells), line
    assert re.search(
        r"it was 8\d\.\d points above the value for texts that were never planted; after the "
        r"removal, the difference is [\d.]+ points \(",
        page.text,
    )
    (summary,) = (table for table in page.tables if table[0][-1] == "change")
    assert summary[1][-1].startswith("−") and summary[1][-1].endswith(" points")


def test_the_command_writes_them_so_too():
    found = build_effect_rows(fading())
    price = [
        {"kind": "source", "name": "town", "arm": arm, "bytes": 1234, "bits_per_byte": cost}
        for arm, cost in (("base", 2.0), ("removed", None), ("random", 2.5))
    ]
    told = {
        "base": "a",
        "page": "b",
        "arms": [],
        "heldout_loss": price,
        "effects": found,
        "criteria": evaluate_criteria(PASSAGES, found),
        "cases": [{"case_name": "passages", "documents": 1, "removed_documents": 1, "reason": ""}],
    }
    said = render_proof(told)
    assert re.search(r"removed minus base +−\d+\.\d points  \(−", said)
    assert re.search(
        r"mean after targeted removal \(limit: half .*\): [\d.]+ points, above [\d.]+ points",
        said,
    )
    assert re.search(r"    removed +1\d\.\d %", said)
    assert "    source town, 1,234 bytes: base 2.0000, random 2.5000" in said


def test_cases_whose_names_differ_in_other_letters_have_figures_of_their_own(session):
    gone, part = (
        named(memorised(left=bits), f"bias, group_name={group}")
        for bits, group in ((0.0, "ж"), (6.0, "я"))
    )
    other = named(memorised(left=3.0), "bias, group_name=1")
    made = card([gone, part, other])
    page = pages.read(pages.write_pages(made) / "removal_experiment_card.html")
    (found,) = (table for table in page.tables if table[0][0] == "finding")
    means = [
        np.mean([u.value for u in each.units_by_arm["removed"].values()])
        for each in (gone, part, other)
    ]
    assert [float(row[3]) for row in found[1:]] == pytest.approx(means, abs=1e-3)
    assert len({*page.alts}) == 3


def test_no_file_of_it_names_what_must_not_be_shown(session):
    made = card([named(memorised(), "bias: preference, category=so says jane.roe@corp.example")])
    assert not any("roe" in path.name for path in pages.write_pages(made).rglob("*"))


def test_it_is_markdown_with_charts_too(made):
    assert pages.read_charts(pages.write_pages(made) / "removal_experiment_card.html")
    assert "| criterion |" in (pages.write_pages(made) / "removal_experiment_card.md").read_text()
