"""Sentences of the site follow from the records, verdicts and pairs that they are about."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from hallmark.flows import curation
from hallmark.flows.audit_execution import map_step_labels_to_stage_names
from hallmark.flows.config import Config
from hallmark.flows.flow_registry import register_all_stages
from hallmark.reports.page.card_tables import SECTIONS
from hallmark.reports.page.rendering import get_template_environment
from hallmark.reports.purge_notices import format_purge_notice
from hallmark.reports.run_page import (
    describe_duration,
    describe_stage_counts,
    find_stage_title,
    group_stages,
)
from hallmark.reports.run_summary import (
    ControlSummary,
    DecisionStatus,
    KeyFigure,
    ModelSummary,
    RunSummary,
    _summarize_controls,
    read_decision_status,
)
from hallmark.reports.sections.findings import get_audit_title
from hallmark.reports.site import IndexedRun, RunStage, StageSummary
from hallmark.reports.trajectory import _build_harm_sort_key, _compute_pair_change
from hallmark.tasks.audits.judging.findings import FINDINGS, build_finding
from hallmark.tasks.audits.judging.policy_outcome import PolicyOutcome
from hallmark.tasks.audits.registry import PROBES
from hallmark.tasks.contract import STAGES, Stage, StageConfig, StageContext, stage
from tests.findings import build_titled_table


class ControlValues(StageConfig):
    target: str
    verdict: str


class ControlConfig(StageConfig):
    controls: tuple[ControlValues, ...]


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
    fields = {"policy", "model", "controls", "figures", "decision"}
    summary = build_summary(**{name: changes.pop(name) for name in fields & changes.keys()})
    run = {
        "record": RECORD | {"stages": [1, 2, 3]},
        "computed_count": 1,
        "purged_count": 0,
        "training_arm": "",
        "cards": {},
    }
    return render(
        "site_index.html",
        runs=[IndexedRun(**run | changes, summary=summary)] if runs is None else runs,
        key_figures=["bits per byte"],
    )


def run_page_of(record=None, stages=(), **changes):
    values = {
        "purged": "",
        "checkpoint": "",
        "summary": build_summary(),
        "error": "",
        "cards": {},
        "config": "",
        "terms": [],
        "duration": "",
        "groups": group_stages(stages, lambda stage: stage.entry),
    }
    return render("site_run.html", run=RECORD | (record or {}), stages=stages, **values | changes)


def build_summary(**changes):
    values = {
        "policy": PolicyOutcome(),
        "model": ModelSummary(),
        "controls": ControlSummary(),
        "figures": [KeyFigure("bits per byte")],
    }
    return RunSummary(**values | changes)


# The index ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("failed", [[], ["polite"]])
@pytest.mark.parametrize("not_shown", [[], ["fair", "safe"]])
@pytest.mark.parametrize("passed", [[], ["kind"]])
def test_the_index_and_the_run_name_the_outcome_of_the_policy(failed, not_shown, passed):
    policy = PolicyOutcome(tuple(failed), tuple(not_shown), tuple(passed))
    decision = DecisionStatus("Pass with gaps", "note", "1 of 17 audits produced no result.")
    for card_status in (None, decision):
        summary = build_summary(policy=policy, decision=card_status)
        for text in (
            index_of(policy=policy, decision=card_status),
            run_page_of(summary=summary),
        ):
            assert ("policy failed: polite" in text) == bool(failed)
            assert ("policy not shown to pass: fair, safe" in text) == bool(not_shown)
            has_passed = passed and not failed and not not_shown and card_status is None
            assert ("policy passed" in text) == bool(has_passed)
            status = "Pass with gaps. 1 of 17 audits produced no result."
            assert (status in text) == (card_status is not None)


@stage(name="control_findings", tables={"findings": FINDINGS})
def control_findings(config: ControlConfig, context: StageContext) -> None:
    """Write a finding of the model, and a control for each verdict."""
    options: dict[str, Any] = {"unit": "share", "n": 9, "method": "counted", "evidence_filter": {}}
    rows = [build_finding("bias", "preference", 0.5, **options)]
    for control in config.controls:
        finding = build_finding(
            "bias",
            "preference",
            0.5,
            **options,
            control="positive",
            passed=True,
            control_target=control.target,
            scorer="words 1.0 (ab)" if control.target == "scorer" else "",
            tags={"text_kind": control.verdict},
        )
        rows.append(replace(finding, verdict=control.verdict))
    context.get_table_writer("findings").write(build_titled_table(rows))


def controls_of(*controls):
    """Return an audit with these controls, each with its target and verdict."""
    values = [{"target": target, "verdict": verdict} for target, verdict in controls]
    return control_findings(ControlConfig(controls=values))


EXPECTED_RESULTS = "controls with the expected result: "


def test_controls_are_counted_as_on_the_card(session):
    model_pass = controls_of(("model", "pass"))
    scorer_fail = controls_of(("scorer", "fail"), ("scorer", "not_shown"))
    instrument_fail = controls_of(("instrument", "fail"), ("instrument", "pass"))
    failed_text = "controls failed in these audits: "
    cases = [
        ({}, "–"),
        ({"bias": None}, "–"),
        ({"bias": controls_of()}, "–"),
        ({"bias": model_pass}, f"{EXPECTED_RESULTS}this model 1 of 1"),
        (
            {"toxicity": scorer_fail, "regard": scorer_fail},
            f"{EXPECTED_RESULTS}scorers 0 of 2 (1 failed, 1 without a clear result)",
        ),
        (
            {"bias": instrument_fail, "weat": model_pass},
            f"{EXPECTED_RESULTS}audits 1 of 2 (1 failed), this model 1 of 1; {failed_text}"
            f"{get_audit_title('bias')}",
        ),
    ]
    for audits, expected in cases:
        summary = _summarize_controls({f"audit_{name}": each for name, each in audits.items()})
        text = index_of(controls=summary, model=ModelSummary("m", None, 7))
        assert f" m 7 {expected} – " in text


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (ModelSummary(), "1 of 3 stages computed – – – "),
        (ModelSummary("A model"), "1 of 3 stages computed – A model – "),
        (ModelSummary(None, 1234), "1 of 3 stages computed – 1,234 parameters – "),
        (ModelSummary("A model", 1234, 0), "1 of 3 stages computed – A model, 1,234 parameters 0 "),
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
    assert "The store has no runs yet." in text and "Key figures are taken from" not in text
    assert "has no runs yet" not in index_of() and "Key figures are taken from" in index_of()


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
    assert f"Config demo {label} r0@9 Stages" in text
    assert "Config demo Stages" in run_page_of({"flow": flow})


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
    assert (
        "Cards none Run running" in bare
        and "Duration –" in bare
        and "Error" not in bare
        and "{" not in bare
    )
    full = run_page_of(
        {"status": "failed"},
        error="it broke",
        cards={"a.html": "Datasheet", "b.html": "Removal experiment"},
        config='{"n": 1}',
    )
    assert (
        "Run failed Error it broke Started 2026-01-01 10:00:00 UTC" in full
        and "Cards Datasheet , Removal experiment" in full
    )
    cancelled = run_page_of({"status": "cancelled"}, error="stopped by SIGTERM")
    assert "Run cancelled Reason stopped by SIGTERM Started" in cancelled
    assert "Config Show the config with all settings {&#34;n&#34;: 1}" in full


def test_the_page_of_a_run_starts_with_the_status_of_its_model():
    decision = DecisionStatus("Fail", "bad", "1 of 2 rules of the policy failed.")
    summary = build_summary(decision=decision, model=ModelSummary("A model", 1234, 450))
    text = run_page_of(summary=summary, duration="9.0 seconds")
    assert (
        "Run r1 Fail. 1 of 2 rules of the policy failed. Cards none Model A model, 1,234 "
        "parameters, step 450 Run completed Started 2026-01-01 10:00:00 UTC Duration 9.0 seconds "
        "Flow pipeline Config demo Stages"
    ) in text
    assert "Cards none Run completed" in run_page_of()


class Sections:
    """Stands for a model card whose table ``sections`` has these rows."""

    def __init__(self, *rows):
        self.rows = rows

    def __getitem__(self, table):
        return self

    def read(self, columns):
        return pa.Table.from_pylist([*self.rows], schema=SECTIONS)


SHEET = {"status": "Fail", "look": "bad", "explanation": ["1 rule ", {"figure": "f"}, "failed."]}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], None),
        ([{"kind": "Paragraph", "content": "{}"}], None),
        ([{"kind": "DecisionSheet", "content": None}], None),
        (
            [
                {"kind": "Paragraph", "content": "{}"},
                {"kind": "DecisionSheet", "content": json.dumps(SHEET)},
            ],
            DecisionStatus("Fail", "bad", "1 rule failed."),
        ),
    ],
)
def test_the_status_of_a_run_is_that_of_its_decision_sheet(rows, expected):
    assert read_decision_status(Sections(*rows)) == expected
    assert read_decision_status(None) is None


# Stages of a run ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "group", "title"),
    [
        ("ingest", "Corpus", "source reading"),
        ("pretrain", "Training", "model training"),
        ("model_card", "Cards", "model card"),
        ("policy", "Audits", "policy verdicts"),
        ("audit_bias", "Audits", "Bias: findings"),
        ("bias_respond", "Audits", "Bias: model responses"),
        (
            "extraction_attack_trace",
            "Audits",
            "Training text in generated text: training text search",
        ),
        ("bias_unknown", "Other stages", ""),
        ("other", "Other stages", ""),
    ],
)
def test_every_stage_has_a_group_and_a_title_where_one_is_known(label, group, title):
    entry = {"label": label, "cached": True, "seconds": None}
    (found,) = group_stages([entry], lambda each: each)
    assert (found.title, found.stages[0].title) == (group, title)


def test_groups_have_a_fixed_order():
    labels = ["datasheet", "other", "audit_bias", "pretrain", "ingest", "model_card"]
    entries = [{"label": label, "cached": True, "seconds": None} for label in labels]
    groups = group_stages(entries, lambda entry: entry)
    titles = [group.title for group in groups]
    assert titles == ["Corpus", "Training", "Audits", "Cards", "Other stages"]
    cards = [titled.stage["label"] for titled in groups[3].stages]
    assert cards == ["datasheet", "model_card"]


def test_key_figures_are_linked_only_to_pages_that_were_written():
    figure = KeyFigure("bits per byte", "0.9", evidence_id="capability")
    for cards in ({}, {"model_card/model_card.html": "Model card"}):
        run = IndexedRun(RECORD, cards, 0, 0, "", build_summary(figures=[figure]))
        html = (
            get_template_environment()
            .get_template("site_index.html")
            .render(runs=[run], key_figures=["bits per byte"])
        )
        assert ("runs/r1/model_card/rows" in html) == bool(cards)


def test_every_stage_of_a_pipeline_has_a_title():
    register_all_stages()
    steps = {"respond", "score", "trace"}  # their label begins with the name of the audit
    labels = {name for name in Config.model_fields if name in STAGES} - steps
    labels |= {use.label for use in vars(curation).values() if isinstance(use, Stage) and use.label}
    labels |= {
        "evaluate_detectors",
        "evaluate_near_duplicates",
        "model_card",
        *map_step_labels_to_stage_names(PROBES),
    }
    assert {label for label in labels if not find_stage_title(label)} == set()


@pytest.mark.parametrize(
    ("cached", "expected"),
    [
        ([True], "1 stage, cached"),
        ([True, True], "2 stages, all cached"),
        ([False], "1 stage, 1 computed in 1.5 seconds"),
        ([False, True, False], "3 stages, 2 computed in 3.0 seconds"),
    ],
)
def test_stages_are_counted_with_the_time_of_those_computed(cached, expected):
    entries = [{"cached": each, "seconds": 1.5} for each in cached]
    assert describe_stage_counts(entries) == expected


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        ("2026-01-01T10:00:09+00:00", "9.0 seconds"),
        ("2026-01-01T10:00:59+00:00", "59 seconds"),
        ("2026-01-01T10:01:01+00:00", "1 minute 1 second"),
        ("2026-01-02T12:01:00+00:00", "26 hours 1 minute"),
        (None, ""),
        ("soon", ""),
        ("2026-01-01T10:00:09", ""),
    ],
)
def test_the_duration_of_a_run_is_in_words(ended, expected):
    assert describe_duration(RECORD | {"ended": ended}) == expected


# Purged documents --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("doc_ids", "start", "pronoun"),
    [
        ([], "", ""),
        (["a"], "1 document from the corpus was purged: its text is no longer", "include it,"),
        (["a", "a"], "1 document from the corpus was purged: its text is no longer", "include it,"),
        (["a", "b"], "2 documents from the corpus were purged: their texts are no longer", "them,"),
        ([str(n) for n in range(1234)], "1,234 documents from the corpus were purged", "them,"),
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
