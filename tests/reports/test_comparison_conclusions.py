"""Sentences on changes, comparisons and error rates follow from the rows of their tables."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hallmark.flows import checkpoint_comparison
from hallmark.reports.page.document import Paragraph
from hallmark.reports.page.figures import Evidence, Figure, FigureBook
from hallmark.reports.page.redaction import Redactor
from hallmark.reports.sections.checkpoint_comparison import (
    build_exclusions_table,
    describe_change,
    explain_part_selection,
)
from hallmark.reports.sections.error_rates import ERROR_RATES, ErrorRates
from hallmark.reports.sections.removal_experiment import RemovalCase, RemovalReport
from hallmark.reports.sections.task_scores import compare_with_baseline
from hallmark.reports.sections.training_arms import describe_random_arm
from hallmark.reports.study_card import StudyCardBuilder, StudyCardConfig
from hallmark.reports.trajectory import SUMMARY_NOTE
from hallmark.tasks.audits.experiments.removal_experiment import build_case_rows
from hallmark.tasks.audits.experiments.source_documents import SOURCE_DOCUMENTS
from hallmark.tasks.audits.experiments.source_documents import RemovalCase as TracedCase
from hallmark.tasks.audits.judging.audit_comparison import (
    judge_change,
)
from hallmark.tasks.audits.judging.comparison import FindingComparison
from hallmark.tasks.contract import HallmarkError, hash_to_ids
from tests.reports.conclusions import (
    estimates,
    findings_of,
    quick,
    text_of_blocks,
    text_of_parts,
    text_of_section,
)
from tests.reports.finetuning_artifacts import card_of, tune
from tests.reports.test_card_error_rates import said_of
from tests.reports.test_checkpoint_comparison import row as finding_row
from tests.reports.test_removal_experiment_card import SCHEMAS, RowsConfig, made_behind, made_proof
from tests.reports.test_task_card import page_of
from tests.tasks.audits.experiments.test_error_rates import candidate, rates_of_trials

# The closed loop ---------------------------------------------------------------------------------


def loop(**tables):
    empty = {name: [] for name in SCHEMAS} | tables
    proof = made_proof(RowsConfig(tables=json.dumps(empty)))
    behind = made_behind(RowsConfig(tables=json.dumps(["x"])))
    return RemovalReport(
        FigureBook({"compare_arms": proof, "find_source_documents": behind}), Redactor(), "t", 40
    )


def effect(what, estimate, noise=None, verdict=""):
    ends = {name: estimate[name] for name in ("value", "low", "high")}
    return {
        "effect": what,
        "arm": "base" if what == "effect_before" else "removed",
        **ends,
        "confidence_level": 0.95,
        "n": 9,
        "clusters": 9,
        "method": "m",
        "unit": "bits",
        "seed_noise": noise,
        "verdict": verdict,
    }


@given(
    change=estimates(),
    left=st.one_of(st.none(), estimates()),
    before=estimates(),
    beyond=st.sampled_from(["", "beyond noise", "within noise"]),
    lines=st.lists(st.sampled_from(["pass", "fail", ""]), max_size=3),
)
@quick
def test_a_finding_went_away_only_where_its_rows_say_so(
    session, change, left, before, beyond, lines
):
    """What is left must be nothing, less than before, and all that must be reached be reached."""
    rows = [effect("change_from_base", change, 0.1, beyond), effect("effect_before", before)]
    rows += [effect("effect_after", left)] if left else []
    made = [{"verdict": each, "criterion": "l", "value": 1.0, "unit": "bits"} for each in lines]
    case = RemovalCase(
        "x",
        "x",
        [{"kind": "memorised", "reason": "", "finding": "f"}],
        {(r["effect"], r["arm"]): r for r in rows},
        made,
    )
    text = text_of_parts(loop().describe_case_verdict(case))
    gone = re.search(r"(?<!partly )disappeared", text) and "did not" not in text
    known = bool(left and left["value"] is not None)
    fell = change["value"] is not None and change["high"] is not None and change["high"] < 0
    if gone:
        assert fell and known and beyond != "within noise"
        assert left["low"] is not None and left["low"] <= 0
        assert left["high"] < before["value"] and {*lines} <= {"pass"}
    if "partly disappeared" in text:
        assert fell and left["low"] > 0
    if "the remaining effect may be zero" in text:
        assert left["low"] <= 0 <= left["high"]
    if "it is below the value for" in text:
        assert left["high"] < 0
    if " changed by " in text or " fell" in text or "rose by" in text:
        assert change["low"] > 0 or change["high"] < 0
    if "was not shown to change" in text:
        assert not known and (change["low"] is None or change["low"] <= 0 <= change["high"])


@pytest.mark.parametrize("seeds", [0, 1])
@pytest.mark.parametrize("compared", [False, True])
def test_other_seeds_are_spoken_of_where_there_are_any(session, seeds, compared):
    arms = [
        {"arm": arm, "step": 9, "checkpoint": "c" * 64, "documents": 2, "bytes": 20}
        for arm in ("base", "removed", "random", *["seed 1"][:seeds])
    ]
    page = loop(arms=arms)
    noise = 0.1 if seeds and compared else None
    known = {"value": -1.0, "low": -2.0, "high": -0.5}
    case = RemovalCase(
        "x",
        "x",
        [{"kind": "memorised", "reason": "", "finding": "f"}],
        {("change_from_base", "removed"): effect("change_from_base", known, noise)},
        [],
    )
    note = page.build_changes_table(case).note
    assert ("No arm was trained with another seed" in note) == (not seeds)
    assert ("Noise: training runs with different seeds differ by at most" in note) == bool(
        seeds and compared
    )
    assert ("No arm with another seed could be compared with the base" in note) == bool(
        seeds and not compared
    )
    about = text_of_blocks(page.build_verdict_blocks([case], []))
    assert ("The arms with other seeds use all documents" in about) == bool(seeds)


@pytest.mark.parametrize(("random", "lacking"), [({"a": 5}, 0), ({"a": 3}, 2), ({}, 0)])
def test_a_control_that_lacks_fewer_documents_says_so(session, random, lacking):
    left = [
        {"arm": arm, "source": source, "documents": n, "bytes": 9}
        for arm, side in (("removed", {"a": 5}), ("random", random))
        for source, n in side.items()
    ]
    text = describe_random_arm(loop(sources=left).book)
    assert (f"{lacking} fewer than were removed" in text) == bool(lacking)
    assert ("the same number from each source" in text) == (random == {"a": 5})


@pytest.mark.parametrize(
    ("kind", "rows", "why"),
    [
        ("memorised", [], "the case has no source documents in the training text"),
        ("association", [], "the case has no source documents in the training text"),
        (
            "association",
            [("assigned", False), ("other", False)],
            "the two traits occur in the same number of documents",
        ),
        (
            "association",
            [("assigned", False), ("assigned", False)],
            "the training text contains no documents whose removal would balance the traits",
        ),
        ("association", [("assigned", True)], ""),
    ],
)
def test_why_nothing_was_removed_follows_from_the_documents(kind, rows, why):
    names = hash_to_ids(map(str, range(len(rows) or 1)))
    table = pa.Table.from_pylist(
        [
            {
                "case_name": "x",
                "item_unit": "u",
                "doc_id": names[n].as_py(),
                "source": "s",
                "tokens": 1,
                "stated_trait": holds,
                "is_removed": removed,
            }
            for n, (holds, removed) in enumerate(rows)
        ],
        schema=SOURCE_DOCUMENTS,
    )
    case = TracedCase(name="x", audit="a", metric="m", finding_names=("f",), unit="nats", kind=kind)
    assert (
        build_case_rows(case, table)[0]["reason"].startswith(why)
        if why
        else (build_case_rows(case, table)[0]["reason"] == "")
    )


# Trajectories and comparisons --------------------------------------------------------------------


@given(
    first=estimates(0, 1),
    last=estimates(0, 1),
    moved=st.sampled_from([-0.2, 0.0, 0.2]),
    p=st.sampled_from([None, 0.01, 0.0499, 0.05, 0.9]),
    worse=st.sampled_from(["up", "down", "away_from_null", ""]),
)
@quick
def test_a_change_is_worse_or_better_as_its_own_figures_say(first, last, moved, p, worse):
    ends = [finding_row("a", each["value"], worse=worse, null=0.5) for each in (first, last)]
    each = FindingComparison(ends, [{"value": moved, "p_corrected": p}])
    word = judge_change(each.findings[0], each.findings[-1], each.changes[0])
    assert (word == "not tested") == (p is None)
    assert (word == "no change shown") == (p is not None and p >= 0.05)
    if word in ("worse", "better") and worse == "away_from_null":
        distances = [abs(row["value"] - 0.5) for row in ends]
        assert (word == "worse") == (distances[1] > distances[0])
        assert (ends[1]["value"] - ends[0]["value"]) * moved > 0
    elif word in ("worse", "better"):
        assert (word == "worse") == ((moved > 0) == (worse == "up"))
    assert "there are no paired units, or too few of them for a test" in SUMMARY_NOTE


def test_a_change_without_a_value_is_not_said_in_figures():
    none = {"value": None, "low": None, "high": None, "p_corrected": None, "n": 3, "clusters": 3}
    assert describe_change(none, "share") == "no pair has two measured values"


@pytest.mark.parametrize(("value", "expected"), [(0.5, True), (None, False)])
def test_no_part_is_the_worst_of_those_that_were_not_measured(value, expected):
    parts = [FindingComparison([finding_row("a", value, name)] * 2, [None]) for name in "xy"]
    text = explain_part_selection(parts[0], parts, "step 9")
    assert ("the most harmful of 2 findings of this metric at step 9" in text) == expected
    assert (
        explain_part_selection(parts[0], parts[:1], "step 9") == ""
    )  # a whole has no parts beside it


def test_the_interval_of_the_worst_part_is_corrected_for_the_choice():
    """Widened by Bonferroni, and named with the checkpoint; without an interval, not spoken of."""
    parts = [FindingComparison([finding_row("a", 0.5, name)] * 2, [None]) for name in "xyz"]
    assert "At step 9, its 95 % interval, corrected for this choice, is " in explain_part_selection(
        parts[0], parts, "step 9"
    )
    bare = [
        FindingComparison([{**part.findings[0], "low": None, "high": None}] * 2, [None])
        for part in parts
    ]
    assert "corrected for this choice" not in explain_part_selection(bare[0], bare, "step 9")


def test_without_audits_nothing_is_said_to_be_compared():
    assert build_exclusions_table([], str) == Paragraph(
        ["The store contains no audits of these checkpoints."]
    )


def test_audits_that_have_no_finding_in_common_did_run(session):
    made = [
        next(iter(findings_of(bias=[{"metric": name, "value": 0.5}]).audit_artifacts.values()))
        for name in ("one", "other")
    ]
    subjects = [
        SimpleNamespace(
            name=f"c{n}",
            audit_run=SimpleNamespace(id="r"),
            find_artifact=lambda audit, stage, n=n: (
                made[n] if (audit, stage) == ("bias", "audit") else None
            ),
        )
        for n in range(2)
    ]
    with pytest.raises(HallmarkError, match="bias: the checkpoints have no findings in common"):
        checkpoint_comparison.compare_checkpoints(subjects)
    run = SimpleNamespace(id="r")
    subject = SimpleNamespace(name="c", audit_run=run, find_artifact=lambda audit, stage: None)
    nobody = [subject, subject]
    with pytest.raises(HallmarkError, match="no audit ran on any of these checkpoints"):
        checkpoint_comparison.compare_checkpoints(nobody)


# Baselines ---------------------------------------------------------------------------------------


# Tasks -------------------------------------------------------------------------------------------


def score(estimate):
    evidence = Evidence("finetune", None, "scores", {})
    ends = {name: estimate[name] for name in ("low", "high")}
    return Figure("i", "l", estimate["value"], "share", evidence, "value", "last", **ends)


@given(ours=estimates(0, 1), other=estimates(0, 1), apart=st.one_of(st.none(), estimates(-1, 1)))
def test_a_model_is_ahead_or_behind_as_the_intervals_say(ours, other, apart):
    found = compare_with_baseline(score(ours), score(other), score(apart) if apart else None)
    if ours["value"] is None or other["value"] is None:
        assert found == "not measured"
    elif apart and apart["low"] is not None:
        above, below = apart["low"] > 0, apart["high"] < 0
        assert (found == "better") == above and (found == "worse") == below
    elif ours["low"] is None or other["low"] is None:
        assert found == "no interval"
    else:
        assert (found == "better") == (ours["low"] > other["high"])
        assert (found == "worse") == (ours["high"] < other["low"])


def test_rows_in_quarantine_are_counted_by_their_table(session, tmp_path):
    none = page_of(card_of(tune(tmp_path / "none", bad=0)))
    assert "Every row could be used; the quarantine is empty." in none.text
    some = page_of(card_of(tune(tmp_path / "some", bad=1)))
    assert "Every row could be used" not in some.text and "Quarantine" in some.text


# Error rates -------------------------------------------------------------------------------------


def test_a_smaller_amount_that_is_found_is_not_called_none(session):
    """The largest amount is missed, a smaller one found."""
    rows = [
        candidate("canary", "c", 64, p=0.9),
        candidate("canary", "b", 8, p=0.01),
        candidate("canary", "n", 0, p=0.5),
    ]
    text = said_of(*[rows] * 12)
    assert "smallest amount at and above which at least 80 % of candidates are found" in text
    assert "smallest amount found in at least 80 % of cases\n" not in text
    assert "Planted secrets at 64 (copies): found in 0.0 %" in text


def test_a_kind_without_effects_has_no_smallest_amount_and_is_no_audit_that_finds(session):
    some = [candidate("canary", "c", 64, p=0.01), candidate("association", "y", 0.5, p=0.6)]
    made = rates_of_trials({str(n): some for n in range(12)})
    book = FigureBook({ERROR_RATES: made})
    card = StudyCardBuilder(book, ErrorRates(book, made), StudyCardConfig())
    lines = {row[0]: row for row in card.build_summary_table().rows}
    assert lines["Planted secrets"][3] == "64"
    assert lines["Associations between groups and traits"][3] == "–"
    detection = text_of_parts(card.build_detection_callout().content)
    assert "every audit with a planted effect detects its largest effect" in detection


def test_figures_with_one_ended_intervals_are_not_said_to_have_none(session):
    rows = [
        candidate("canary", "c", 64, p=0.01, high=None),
        candidate("canary", "n", 0, p=0.5, high=None),
    ]
    text = said_of(*[rows] * 3)
    assert "have no interval that could be wrong" not in text
    assert "None of this audit's intervals can be compared with a true value." in text


def test_trials_that_were_not_made_do_not_all_count(session):
    made = rates_of_trials({})
    book = FigureBook({ERROR_RATES: made})
    text = text_of_section(
        StudyCardBuilder(
            book, ErrorRates(book, made), StudyCardConfig()
        ).build_excluded_trials_section()
    )
    assert "Every trial counts." not in text and "No trial was created." in text
