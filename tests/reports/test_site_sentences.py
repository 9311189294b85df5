"""Sentences of the site follow from the records, verdicts and pairs that they are about."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from hallmark.reports.page.rendering import get_template_environment
from hallmark.reports.purge_notices import format_purge_notice
from hallmark.reports.run_summary import (
    ControlSummary,
    KeyFigure,
    ModelSummary,
    RunSummary,
    _summarize_controls,
)
from hallmark.reports.site import IndexedRun, RunStage, StageSummary
from hallmark.reports.trajectory import _build_harm_sort_key, _compute_pair_change
from hallmark.tasks.audits.judging.policy_outcome import PolicyOutcome

# Template helpers --------------------------------------------------------------------------------


def render(template, **values):
    html = get_template_environment().get_template(template).render(**values)
    html = re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", html).replace("&nbsp;", " ").split())


RECORD = {
    "run": "r1",
    "flow": "pipeline",
    "config_name": "demo",
    "started": "2026-01-01T10:00:00+00:00",
    "ended": "2026-01-01T10:01:00+00:00",
    "status": "completed",
    "stages": [],
}


def index_of(runs=None, **changes):
    summary = {
        "policy": PolicyOutcome(),
        "model": ModelSummary(),
        "controls": ControlSummary(0, 0, ()),
        "figures": [KeyFigure("bits per byte")],
    }
    summary |= {name: changes.pop(name) for name in summary.keys() & changes.keys()}
    run = {
        "record": RECORD | {"stages": [1, 2, 3]},
        "computed_count": 1,
        "purged_count": 0,
        "training_arm": "",
        "cards": {},
    }
    return render(
        "site_index.html",
        runs=[IndexedRun(**run | changes, summary=RunSummary(**summary))] if runs is None else runs,
        key_figures=["bits per byte"],
    )


def run_page_of(record=None, stages=(), **changes):
    values = {
        "purged": "",
        "checkpoint": "",
        "policy": PolicyOutcome(),
        "error": "",
        "cards": {},
        "config": "",
        "terms": [],
    }
    return render("site_run.html", run=RECORD | (record or {}), stages=stages, **values | changes)


# The index ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("failed", [[], ["polite"]])
@pytest.mark.parametrize("not_shown", [[], ["fair", "safe"]])
@pytest.mark.parametrize("passed", [[], ["kind"]])
def test_the_index_and_the_run_name_the_outcome_of_the_policy(failed, not_shown, passed):
    policy = PolicyOutcome(tuple(failed), tuple(not_shown), tuple(passed))
    for text in (index_of(policy=policy), run_page_of(policy=policy)):
        assert ("policy failed polite" in text) == bool(failed)
        assert ("policy not shown to pass fair, safe" in text) == bool(not_shown)
        assert ("policy passed" in text) == bool(passed and not failed and not not_shown)


class Findings:
    """Stands for an audit with these verdicts of its controls, and a finding of the model."""

    def __init__(self, *verdicts):
        self.rows = [
            {"control": f"c{n}", "control_target": "model", "verdict": each}
            for n, each in enumerate(verdicts)
        ]

    def __getitem__(self, table):
        return self

    def read(self, columns):
        return self

    def to_pylist(self):
        return [*self.rows, {"control": "", "control_target": "", "verdict": ""}]


class ScorerFindings(Findings):
    """Stands for an audit whose scorer has controls with these verdicts."""

    def __init__(self, *verdicts):
        super().__init__(*verdicts)
        for row in self.rows:
            row |= {"control_target": "scorer", "scorer": "words 1.0 (ab)"}


@pytest.mark.parametrize(
    ("audits", "expected"),
    [
        ({}, "–"),
        ({"bias": Findings()}, "–"),
        ({"bias": Findings("pass")}, "none of 1"),
        ({"bias": Findings("pass", "fail"), "toxicity": Findings("pass")}, "1 of 3 bias"),
        (
            {"bias": Findings("fail", "fail"), "toxicity": Findings("fail"), "weat": None},
            "3 of 3 bias, toxicity",
        ),
        (
            {"bias": ScorerFindings("pass", "fail", "fail"), "toxicity": ScorerFindings("pass")},
            "1 of 1 scorer words 1.0",
        ),
        ({"bias": ScorerFindings("pass"), "toxicity": Findings("pass")}, "none of 2"),
    ],
)
def test_failed_controls_are_counted_by_their_verdicts(audits, expected):
    summary = _summarize_controls({f"audit_{name}": each for name, each in audits.items()})
    text = index_of(controls=summary, model=ModelSummary("m", None, 7))
    assert f" m 7 {expected} – – " in text


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (ModelSummary(), "1 of 3 stages computed – – "),
        (ModelSummary("A model"), "1 of 3 stages computed A model – "),
        (ModelSummary(None, 1234), "1 of 3 stages computed 1,234 parameters – "),
        (ModelSummary("A model", 1234, 0), "1 of 3 stages computed A model 1,234 parameters 0 "),
    ],
)
def test_the_index_says_of_a_model_what_is_known(model, expected):
    assert expected in index_of(model=model)


@pytest.mark.parametrize("purged", [0, 1, 1234])
def test_the_index_explains_purged_documents_where_there_are_any(purged):
    text = index_of(purged_count=purged)
    assert (f"documents purged: {purged:,}" in text) == bool(purged)
    assert ("The texts of purged documents were deleted" in text) == bool(purged)


@pytest.mark.parametrize("repeats", [[], ["r2"], ["r2", "r3"]])
def test_repeated_runs_are_listed_under_the_first(repeats):
    text = index_of(repeats=[RECORD | {"run": name} for name in repeats])
    listed = "repeated run, fully cached: " + " , ".join(repeats)
    assert ("repeated run, fully cached" in text) == bool(repeats)
    assert not repeats or listed in text


def test_an_index_without_runs_says_so():
    text = index_of([])
    assert "The store has no run yet." in text and "Key figures are taken from" not in text
    assert "has no run yet" not in index_of() and "Key figures are taken from" in index_of()


# The page of a run -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flow", "label"),
    [
        ("audit", "Audited"),
        ("finetune", "Fine-tuned"),
        ("prove", "Findings of"),
        ("pipeline", "Starts from"),
    ],
)
def test_what_a_run_did_with_its_checkpoint_follows_from_its_flow(flow, label):
    """A proof trains from the beginning: it does not start from the checkpoint."""
    text = run_page_of({"flow": flow}, checkpoint="r0@9")
    assert f"Config demo {label} r0@9 Status" in text
    assert "Config demo Status" in run_page_of({"flow": flow})


@pytest.mark.parametrize("found", [True, False])
@pytest.mark.parametrize("cached", [True, False])
def test_a_stage_says_whether_it_ran_and_whether_its_artifact_can_be_read(found, cached):
    entry = {
        "label": "pack",
        "artifact": "pack/0",
        "content": "c" * 64,
        "cached": cached,
        "seconds": 1.26,
    }
    summary = StageSummary(found, {}, {}, {})
    text = run_page_of(stages=[RunStage(entry, summary)])
    assert ("no longer in the store, or damaged" in text) == (not found)
    assert ("cached" in text) == cached and ("1.3" in text) == (not cached)
    heading = "Document and byte counts per stage"
    assert heading not in text
    counted = replace(summary, account_terms_by_unit={"rows": [3]})
    assert heading in run_page_of(stages=[RunStage(entry, counted)], terms=["in"])


def test_a_run_page_shows_only_what_its_record_has():
    bare = run_page_of({"ended": None, "status": "running"})
    assert "Ended – Cards none" in bare and "Error" not in bare and "{" not in bare
    full = run_page_of(
        error="it broke",
        cards={"a.html": "Datasheet", "b.html": "Removal experiment"},
        config='{"n": 1}',
    )
    assert "Error it broke" in full and "Cards Datasheet , Removal experiment" in full
    assert "Config {&#34;n&#34;: 1}" in full


# Purged documents --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("doc_ids", "start", "pronoun"),
    [
        ([], "", ""),
        (["a"], "1 document of the corpus was purged: its text is no longer", "count it,"),
        (["a", "a"], "1 document of the corpus was purged: its text is no longer", "count it,"),
        (["a", "b"], "2 documents of the corpus were purged: their texts are no longer", "them,"),
        ([str(n) for n in range(1234)], "1,234 documents of the corpus were purged", "them,"),
    ],
)
def test_the_notice_counts_each_purged_document_once(doc_ids, start, pronoun):
    notice = format_purge_notice(doc_ids)
    assert notice.startswith(start) and pronoun in notice and bool(notice) == bool(doc_ids)


# Pairs behind a change ---------------------------------------------------------------------------


def pairs_of(*changes):
    """Pairs whose second value is by so much higher than the first."""
    return [
        (
            {"item": f"i{n}", "value": 1.0},
            {"item": f"i{n}", "value": None if change is None else 1.0 + change},
        )
        for n, change in enumerate(changes)
    ]


@pytest.mark.parametrize(
    ("worse_when", "expected"),
    [
        ("up", [0.5, 0.25, -0.75, None]),
        ("down", [-0.75, 0.25, 0.5, None]),
        ("away_from_null", [-0.75, 0.5, 0.25, None]),
        ("", [-0.75, 0.5, 0.25, None]),
    ],
)
def test_pairs_are_in_the_order_that_their_page_names(worse_when, expected):
    pairs = sorted(
        pairs_of(None, 0.25, -0.75, 0.5), key=lambda pair: _build_harm_sort_key(worse_when, *pair)
    )
    assert [_compute_pair_change(*pair) for pair in pairs] == expected


@pytest.mark.parametrize("worse", [True, False])
@pytest.mark.parametrize(("shown", "total"), [(1, 1), (2, 2), (2, 3), (100, 1234)])
def test_a_page_of_pairs_names_their_order_and_how_many_it_shows(worse, shown, total):
    """Nothing says that those shown changed for the worse: perhaps none did."""
    rows = SimpleNamespace(
        stage="s", artifact=SimpleNamespace(content_digest="d"), table="t", sha256="", row_count=3
    )
    text = render(
        "site_pairs.html",
        title="t",
        said="s",
        how="h",
        sides=[(f"step {n}", rows, "", "") for n in range(2)],
        columns=[],
        rows=[],
        shown=shown,
        total=total,
        worse=worse,
    )
    assert ("Ordered from the worst change to the best." in text) == worse
    assert ("Ordered by the size of the change, the largest first." in text) == (not worse)
    assert (f"The first {shown} of {total:,} are shown." in text) == (shown < total)
