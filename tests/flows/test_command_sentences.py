"""The text that a command prints agrees with the report that it formats."""

from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console

from hallmark.flows.commands import study
from hallmark.flows.commands.batch import render_batch
from hallmark.flows.commands.compare import render_comparison
from hallmark.flows.commands.doctor import render_check_results
from hallmark.flows.commands.du import render_usage
from hallmark.flows.commands.finetune import render_scores
from hallmark.flows.commands.flow_execution import print_run_summary
from hallmark.flows.commands.forecast_text import _render_stages, render_forecast
from hallmark.flows.commands.gc import render_garbage
from hallmark.flows.commands.generate import render_generation
from hallmark.flows.commands.mitigate import render_mitigation
from hallmark.flows.commands.options import format_single_line
from hallmark.flows.commands.prove import render_proof
from hallmark.flows.commands.purge import render_purge
from hallmark.flows.commands.push import render_copy
from hallmark.flows.commands.removal_summary import _rank_overrepresented_groups, render_removals
from hallmark.flows.commands.replay import render_replay
from hallmark.flows.commands.runs import render_run_list
from hallmark.flows.commands.status import render_status
from hallmark.flows.commands.trace import render_document_trace, render_finding_trace
from hallmark.flows.commands.verify import describe_read_failure, render_verification
from hallmark.flows.run_outcome import check_audits_and_policy
from hallmark.flows.study import TrialOutcome
from hallmark.tasks.audits.judging.findings import AuditControl
from hallmark.tasks.contract import HallmarkError, PolicyViolationError


@pytest.fixture
def stderr(monkeypatch):
    """Capture what a command prints to stderr."""
    printed = StringIO()
    monkeypatch.setattr("hallmark.flows.console.stderr", Console(file=printed, width=300))
    return printed


RUN = {
    "run": "r1",
    "flow": "pipeline",
    "config_name": "demo",
    "checkpoint": None,
    "started": "2026-01-01T10:00:00+00:00",
    "ended": "2026-01-01T10:01:00+00:00",
    "error": None,
    "status": "completed",
    "stages": 3,
    "computed_stages": 1,
    "failed_rules": [],
    "policy": None,
    "not_shown_rules": [],
    "passed_rules": [],
    "failed_audits": [],
    "current_stage": "",
    "training_arm": "",
}


@pytest.mark.parametrize(
    ("passed", "failed", "outcome"),
    [
        (["polite", "fair"], [], "completed, policy passed: polite, fair"),
        (["polite"], ["fair"], "completed, policy failed: fair"),
    ],
)
def test_a_listed_run_names_the_rules_that_passed_if_all_did(passed, failed, outcome):
    row = RUN | {"passed_rules": passed, "failed_rules": failed}
    row["policy"] = "fail" if failed else "pass"
    assert render_run_list([row]).splitlines()[1].endswith(f"1 of 3           {outcome}")


@pytest.mark.parametrize(
    ("failed", "not_shown", "outcome"),
    [
        ([], [], "completed"),
        (None, None, "completed"),  # the verdicts cannot be read
        (["polite"], [], "completed, policy failed: polite"),
        ([], ["fair", "safe"], "completed, policy not shown to pass: fair, safe"),
        (["polite"], ["fair"], "completed, policy failed: polite, policy not shown to pass: fair"),
    ],
)
def test_a_listed_run_separates_the_three_outcomes(failed, not_shown, outcome):
    line = render_run_list(
        [RUN | {"failed_rules": failed, "not_shown_rules": not_shown}]
    ).splitlines()[1]
    assert line.endswith(f"1 of 3           {outcome}")


def test_a_listed_run_names_its_current_stage():
    row = RUN | {"status": "running", "current_stage": "pretrain, 40 of 450"}
    assert render_run_list([row]).splitlines()[1].endswith("running: pretrain, 40 of 450")


@pytest.mark.parametrize(
    ("failed_audits", "failed_rules", "outcome"),
    [
        (["bias"], [], "completed, failed audits: bias"),
        (["bias", "bold"], ["fair"], "completed, failed audits: bias, bold, policy failed: fair"),
        (None, [], "completed"),  # the artifact cannot be read
    ],
)
def test_a_listed_run_names_the_audits_that_failed(failed_audits, failed_rules, outcome):
    row = RUN | {"failed_audits": failed_audits, "failed_rules": failed_rules}
    assert render_run_list([row]).splitlines()[1].endswith(f"1 of 3           {outcome}")


@pytest.mark.parametrize(
    ("status", "error", "outcome"),
    [
        ("failed", "no space left", "failed: no space left"),
        ("cancelled", "stopped by SIGTERM", "cancelled: stopped by SIGTERM"),
        ("interrupted", "no sign of life", "interrupted: no sign of life"),
        ("running", None, "running"),
    ],
)
def test_a_listed_run_shows_why_it_did_not_complete(status, error, outcome):
    line = render_run_list([RUN | {"status": status, "error": error}]).splitlines()[1]
    assert line.endswith(f"1 of 3           {outcome}")


@pytest.mark.parametrize(
    ("checkpoint", "arm", "description"),
    [
        (None, "", "pipeline  "),
        ("r0@9", "", "pipeline of r0@9  "),
        ("r0@9", "control", "pipeline of r0@9, control  "),
        (None, "documents", "pipeline, documents removed  "),
    ],
)
def test_a_listed_run_shows_its_flow_checkpoint_and_arm(checkpoint, arm, description):
    line = render_run_list([RUN | {"checkpoint": checkpoint, "training_arm": arm}]).splitlines()[1]
    assert line.startswith(f"r1   {description}")


@pytest.mark.parametrize(
    ("started", "ended", "expected"),
    [
        ("2026-01-01T10:00:00+00:00", "2026-01-01T11:00:00+00:00", "2026-01-01 10:00  3,600 s"),
        ("2026-01-01T10:00:00+00:00", "2026-01-01T11:00:00", "2026-01-01 10:00        "),
        ("2026-01-01T10:00:00+00:00", None, "2026-01-01 10:00        "),
        (None, "2026-01-01T11:00:00+00:00", "demo             "),
    ],
)
def test_a_listed_run_shows_its_duration_if_both_times_are_known(started, ended, expected):
    line = render_run_list([RUN | {"started": started, "ended": ended}]).splitlines()[1]
    assert expected in line and (" s " in line) == ("3,600" in expected)


RULE = {"stage": "select", "rule": "short", "action": "removed", "documents": 1, "total": 10_000}
GROUP = {
    "group": "they",
    "is_invented": False,
    "documents": 8,
    "total": 25,
    "other_documents": 1,
    "other_total": 90,
    "other_share": 1 / 90,
    "ratio": 28.8,
    "low": 5.0,
    "high": 60.0,
    "q": None,
    "is_significant": True,
}


NO_REMOVALS = {"documents": 0, "total": 90, "duplicates": 0, "lost": 0, "stages": []}


def removals(**changes):
    report = {
        "total": NO_REMOVALS,
        "rules": [RULE],
        "actions": [],
        "unscored": {"documents": 0, "total": 90, "by_status": {}},
        "groups": [],
        "tagged_groups": [],
        "groups_compared": 3,
        "min_group_documents": 20,
    }
    return render_removals(report | changes)


@pytest.mark.parametrize("report", [{}, {"rules": [], "total": NO_REMOVALS}])
def test_nothing_is_printed_if_no_rule_matched(report):
    assert render_removals(report) == []


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({}, "select: short removed 1 of 10,000 documents (0.01 %)"),
        ({"documents": 9_999}, "select: short removed 9,999 of 10,000 documents (99.99 %)"),
        ({"documents": 10_000}, "select: short removed 10,000 of 10,000 documents (100.0 %)"),
        ({"total": 1}, "select: short removed 1 of 1 document (100.0 %)"),
        (
            {"action": "tagged", "total": 2},
            "select: short tagged 1 of 2 documents (50.0 %) and kept them",
        ),
        (
            {"stage": "select_scored", "rule": "toxicity", "total": 2},
            "select_scored: toxicity removed 1 of 2 documents (50.0 %); as configured",
        ),
        (
            {"stage": "select_scored", "rule": "toxicity unknown", "total": 2},
            "select_scored: toxicity unknown removed 1 of 2 documents (50.0 %); as configured",
        ),
        (  # the same name in a stage without scores
            {"rule": "toxicity", "total": 2},
            "select: toxicity removed 1 of 2 documents (50.0 %)",
        ),
    ],
)
def test_a_rule_line_shows_action_share_and_reason(rule, expected):
    actions = [{"rule": "toxicity", "reason": "as configured"}]
    assert removals(rules=[RULE | rule], actions=actions) == [expected]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (2, None),
        (3, "1 more rule removed or tagged documents; the datasheet lists all rules"),
        (4, "2 more rules removed or tagged documents; the datasheet lists all rules"),
    ],
)
def test_hidden_rules_are_counted(rules, expected):
    lines = removals(rules=[RULE] * rules)
    assert lines[2:] == ([expected] if expected else [])
    assert len(lines) == min(rules, 2) + bool(expected)


def test_the_total_of_removals_comes_first():
    stages = [{"stage": "deduplicate", "documents": 6}, {"stage": "select", "documents": 4}]
    total = {"documents": 10, "total": 90, "duplicates": 7, "lost": 3, "stages": stages}
    assert removals(total=total)[0] == (
        "removed 10 of 90 documents (11.1 %): 6 by deduplicate, 4 by select, including 7 "
        "duplicates of other documents; no copy of the text remains for 3 documents"
    )
    assert len(removals(total=total, rules=[])) == 1


@pytest.mark.parametrize(
    ("unscored", "expected"),
    [
        ({"documents": 0, "total": 0, "by_status": {}}, []),
        (
            {"documents": 1, "total": 1, "by_status": {"failed": 1, "empty": 0}},
            ["1 of 1 document (100.0 %) has no toxicity score: 1 failed"],
        ),
        (
            {"documents": 3, "total": 90, "by_status": {"other language": 2, "odd": 1}},
            [
                "3 of 90 documents (3.3 %) have no toxicity score: 2 in a language that the scorer "
                "does not support, 1 odd"
            ],
        ),
        (
            {"documents": 4, "total": 90, "by_status": {"undetermined language": 4}},
            [
                "4 of 90 documents (4.4 %) have no toxicity score: 4 in an undetermined language "
                "and a script that the scorer does not support"
            ],
        ),
    ],
)
def test_documents_without_a_score_are_reported_with_the_reason(unscored, expected):
    assert removals(unscored=unscored)[1:] == expected


@pytest.mark.parametrize("removed", [0, 5])
@pytest.mark.parametrize("compared", [0, 1])
@pytest.mark.parametrize("min_documents", [1, 20])
def test_removals_are_not_compared_if_no_group_is_large_enough(removed, compared, min_documents):
    lines = removals(
        total=NO_REMOVALS | {"documents": removed},
        rules=[RULE],
        groups_compared=compared,
        min_group_documents=min_documents,
    )
    size = "1 document" if min_documents == 1 else "20 documents"
    expected = (
        "removal rates of identity groups are not compared, because there are no groups with at "
        f"least {size}"
    )
    assert lines[1 + bool(removed) :] == ([expected] if removed and not compared else [])


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ({}, "; 28.8 times as often (95 % CI 5.00–60.0)"),
        ({"q": 0.0064}, "; 28.8 times as often (95 % CI 5.00–60.0, q = 0.0064)"),
        ({"q": 0.0004, "low": None}, "; 28.8 times as often (q < 0.001)"),
        ({"q": 0.0004, "ratio": None}, "; q < 0.001"),
        ({"high": None}, "; 28.8 times as often (95 % CI 5.00–∞)"),
        ({"low": None, "high": None}, "; 28.8 times as often"),
        ({"ratio": None}, ""),
        (
            {"is_significant": False, "ratio": None},
            "; not statistically significant (near-duplicates are counted once)",
        ),
        (
            {"is_significant": False, "q": 0.2},
            "; 28.8 times as often (95 % CI 5.00–60.0, q = 0.2000); not statistically significant "
            "(near-duplicates are counted once)",
        ),
    ],
)
@pytest.mark.parametrize(
    ("key", "verb", "note"),
    [
        (
            "groups",
            "removed",
            "removals by all stages are counted, including those of duplicates; q is the p-value "
            "adjusted for the false discovery rate",
        ),
        ("tagged_groups", "tagged", "intervals corrected for the selection of these groups"),
    ],
)
def test_a_group_is_compared_with_all_other_documents(key, verb, note, changes, end):
    heading, line = removals(**{key: [GROUP | changes]})[1:]
    assert heading == (
        f"documents that mention these groups of people were {verb} most often (groups with at "
        f"least 20 documents; ratios adjusted for source; {note}):"
    )
    others = "all other documents: 1 of 90 (1.1 %)"
    assert line == f"  they: 8 of 25 documents (32.0 %); {others}{end}"
    *_, line = removals(**{key: [GROUP | changes | {"is_invented": True}]})
    assert line == f"  they (invented): 8 of 25 documents (32.0 %); {others}{end}"


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [("adjusted", (1.5, 0.006, True)), ("source_adjusted", (None, None, False))],
)
def test_only_intervals_of_tagged_groups_are_corrected_for_the_choice(prefix, expected):
    rows = [
        {"slice": f"group {n}", "documents": 50, "removed_documents": 9, "removal_rate": 0.18}
        | {"other_documents": 90, "other_removed_documents": 3, "other_removal_rate": 1 / 30}
        | {f"{prefix}_ratio": 5.0 - n / 10, f"{prefix}_low": 1.5, f"{prefix}_high": 30.0}
        | {"q": 0.006, "verdict": "more"}
        for n in range(30)
    ]
    first = _rank_overrepresented_groups(rows, prefix, ())[0]
    low, q, is_significant = expected
    assert first["group"] == "group 0"
    assert (first["q"], first["is_significant"]) == (q, is_significant)
    assert first["low"] == low if low else first["low"] < 1


def control(audit, control_target, verdict="pass"):
    row = {"control": "positive", "control_target": control_target, "verdict": verdict}
    is_of_scorer = control_target == "scorer"
    row |= {"scorer": "words 1.0 (ab)" if is_of_scorer else "", "value": 0.02}
    row |= {"low": 0.0, "high": 0.2, "n": 60, "missing": 0}
    return AuditControl(audit, row | {"slice": {"text_kind": "threats"} if is_of_scorer else {}})


def ended_run(flow="pipeline", *, stages=(), controls=(), checkpoint="r0@9", verdicts=()):
    record = {"stages": [{"cached": cached} for cached in stages], "checkpoint": checkpoint}
    return SimpleNamespace(
        flow=flow,
        id="r1",
        record=record,
        stages={},
        page=None,
        list_controls=lambda: controls,
        list_verdicts=lambda: verdicts,
    )


@pytest.mark.parametrize(
    ("flow", "expected"),
    [("audit", "audited: r0@9"), ("finetune", "fine-tuned: r0@9"), ("pipeline", None)],
)
@pytest.mark.parametrize(("stages", "computed"), [((), 0), ((True, True), 0), ((False, True), 1)])
def test_a_run_summary_counts_computed_and_cached_stages(
    stderr, capsys, flow, expected, stages, computed
):
    print_run_summary(ended_run(flow, stages=stages))
    last = (
        f"run r1: {computed} {'stage' if computed == 1 else 'stages'} computed, "
        f"{len(stages) - computed} cached"
    )
    assert stderr.getvalue().splitlines() == ([expected] if expected else []) + [last]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("controls", "expected"),
    [
        ([], ""),
        ([control("bias", "instrument"), control("bias", "model")], ""),
        (
            [control("bias", "model", "fail")],
            "controls with the expected result: this model 0 of 1 (1 failed); no control tests "
            "the audits themselves; this model is too weak for these audits: Bias\n",
        ),
        (
            [control("bias", "instrument"), control("bias", "model", "fail")],
            "controls with the expected result: audits 1 of 1, this model 0 of 1 (1 failed); this "
            "model is too weak for these audits: Bias\n",
        ),
        (
            [control("bias", "scorer", "fail"), control("bias", "instrument", "fail")],
            "controls with the expected result: audits 0 of 1 (1 failed), scorers 0 of 1 (1 "
            "failed); controls failed in these audits: Bias; the scorer words 1.0 often misses "
            "threats\n",
        ),
    ],
)
def test_failed_controls_are_reported_as_on_the_card(stderr, controls, expected):
    print_run_summary(ended_run(controls=controls))
    text = stderr.getvalue().replace("\n", " ")
    assert expected.replace("\n", " ") in text
    assert ("controls with the expected result" in text) == bool(expected)


def test_a_run_summary_says_what_the_scorer_often_misses(stderr):
    controls = [control("bias", "instrument"), *[control("bold", "scorer", "fail")] * 2]
    print_run_summary(ended_run(controls=controls))
    assert stderr.getvalue().splitlines()[-1] == (
        "controls with the expected result: audits 1 of 1, scorers 0 of 2 (2 failed); the scorer "
        "words 1.0 often misses threats"
    )


def test_a_run_summary_says_that_tests_of_a_scorer_are_not_shown_to_pass(stderr):
    print_run_summary(ended_run(controls=[control("bold", "scorer", "not_shown")]))
    assert stderr.getvalue().splitlines()[-1] == (
        "controls with the expected result: scorers 0 of 1 (1 without a clear result); no control "
        "tests the audits themselves; the scorer words 1.0 has not been shown to pass "
        "all of its tests"
    )


def test_a_run_summary_names_the_rules_that_passed_and_their_nearest_findings(stderr):
    rule = {"audit": "bias", "metric": "preference", "slice": {}, "verdict": "pass"}
    verdicts = [
        rule | {"rule": "fair", "distance": -0.2, "reason": "far"},
        rule | {"rule": "fair", "distance": -0.1, "reason": "near", "slice": {"a": "b"}},
        rule | {"rule": "polite", "distance": -0.3, "reason": "well"},
        rule | {"rule": "safe", "distance": -0.3, "reason": "in part"},
        rule | {"rule": "safe", "distance": None, "reason": "none", "verdict": "not_shown"},
    ]
    print_run_summary(ended_run(verdicts=verdicts))
    assert stderr.getvalue().splitlines()[1:] == [
        "policy rule fair passed for 2 findings (closest to failing: bias.preference[a=b]): near",
        "policy rule polite passed for bias.preference: well",
    ]


def unpassed_rule(rule, distance, value=0.5, metric="preference", **more):
    row = {"rule": rule, "audit": "bias", "metric": metric, "slice": {}, "reason": "w"}
    verdict = "not_shown" if distance is None else "fail"
    return row | {"distance": distance, "value": value, "verdict": verdict} | more


def judged_run(*rules, failures=None):
    return SimpleNamespace(
        id="r1",
        store=SimpleNamespace(uri="./runs"),
        read_failure_reason_by_audit=lambda: failures or {},
        list_verdicts=lambda: [*rules],
    )


PASSED = unpassed_rule("p", -0.5, verdict="pass")


@pytest.mark.parametrize(
    ("rules", "present", "absent"),
    [
        (
            [unpassed_rule("a", 0.5), PASSED],
            "policy failed: 1 of 2 rules failed; failed: a (bias.preference: w); hallmark",
            "not shown",
        ),
        ([unpassed_rule("a", 0.0)], "; failed: a (bias.preference: w); ", "not shown"),
        (
            [unpassed_rule("a", None), PASSED],
            "policy not shown to pass: 1 of 2 rules could not be judged; not shown: a "
            "(bias.preference: w); ",
            "failed",
        ),
        (
            [unpassed_rule("a", None), unpassed_rule("b", 0.5)],
            "policy failed: 1 of 2 rules failed, 1 could not be judged; failed: b "
            "(bias.preference: w); not shown: a (",
            "more",
        ),
        # A rule that failed is not listed again for a finding that was not measured.
        ([unpassed_rule("a", None), unpassed_rule("a", 0.5)], "failed: a (bias", "not shown"),
        ([unpassed_rule(n, 0.5) for n in "abc"], "c (bias.preference: w); hallmark", "more"),
        ([unpassed_rule(n, 0.5) for n in "abcd"], "c (bias.preference: w), and 1 more; ", "d ("),
        ([unpassed_rule("a", 0.5)], "hallmark trace r1 bias.preference", "nothing"),
        ([unpassed_rule("a", None, None)], "all verdicts are on", "hallmark trace"),
    ],
)
def test_the_error_separates_rules_that_failed_from_those_not_shown(rules, present, absent):
    with pytest.raises(PolicyViolationError) as raised:
        check_audits_and_policy(judged_run(*rules))
    assert present in str(raised.value) and absent not in str(raised.value)


def test_a_passed_policy_raises_nothing():
    check_audits_and_policy(judged_run())
    check_audits_and_policy(judged_run(PASSED))


@pytest.mark.parametrize(
    ("rules", "error_type"),
    [
        ([unpassed_rule("a", 0.5)], PolicyViolationError),
        ([unpassed_rule("a", None)], PolicyViolationError),
        ([PASSED], HallmarkError),
        ([], HallmarkError),
    ],
)
def test_a_failed_audit_is_named_and_an_unmet_policy_decides_the_exit_code(rules, error_type):
    with pytest.raises(HallmarkError) as raised:
        check_audits_and_policy(judged_run(*rules, failures={"bias": "why"}))
    assert type(raised.value) is error_type
    assert "bias failed: why; all other results were written" in str(raised.value)
    assert ("policy " in str(raised.value)) == (error_type is PolicyViolationError)


@pytest.mark.parametrize(
    ("failures", "sentence"),
    [
        (
            {"bias": "why", "bold": "how"},
            "bias failed: why; bold failed: how; all other results were written, and the model "
            "card lists these audits; fix the cause, then run the command again to repeat "
            "these audits",
        ),
        ({"bias": "why", "bold": "why"}, "bias, bold failed: why; all other"),
    ],
)
def test_all_failed_audits_are_named(failures, sentence):
    with pytest.raises(HallmarkError) as raised:
        check_audits_and_policy(judged_run(failures=failures))
    assert sentence in str(raised.value)


def estimate(value, exact=True):
    return {"value": value, "is_exact": exact}


SOURCE = {
    "source": "a",
    "documents": estimate(10),
    "bytes": estimate(2e6),
    "share_read": 1,
    "quarantined": 0,
    "first_quarantined": "",
}
CORPUS_NAMES = ("documents", "bytes", "train", "validation", "holdout", "tokens")
CORPUS = {name: estimate(None, False) for name in (*CORPUS_NAMES, "train_rows", "validation_rows")}
STAGE = {
    "label": "ingest",
    "state": "run",
    "reason": "not in the store",
    "artifact": None,
    "seconds": 40.0,
    "time_basis": "measured",
}
TRAINING = {
    "parameters": estimate(1000),
    "memory": {"weights": 1e6, "gradients": 1e6, "optimizer": 2e6, "total": 4e6},
    "steps": 1,
    "tokens_seen": 64,
    "epochs": estimate(0.5),
    "step": None,
}


def forecast(**changes):
    report = {
        "config": "demo",
        "store": "s",
        "stages": [STAGE],
        "seconds": {"value": 40.0, "stages_without_estimate": []},
        "sources": [SOURCE],
        "sample": None,
        "corpus": CORPUS,
        "training": None,
        "notes": [],
        "warnings": [],
    }
    return render_forecast(report | changes)


@pytest.mark.parametrize(
    ("sample", "sources", "expected"),
    [
        (None, [SOURCE], "sources: exact values from the store"),
        (None, [SOURCE | {"documents": estimate(None, False)}], "sources: unknown"),
        (None, [], "sources: unknown"),
        (
            {"documents": 1, "bytes": 900, "is_complete": True},
            [SOURCE],
            "sources: exact, because all documents were read (1 document, 900 bytes)",
        ),
        (
            {"documents": 0, "bytes": 0, "is_complete": False},
            [SOURCE],
            "sources: no documents could be read",
        ),
        (
            {"documents": 1234, "bytes": 1e6, "is_complete": False},
            [SOURCE],
            (
                "sources: estimated from a sample of 1,234 documents, 1.0 MB and scaled in "
                "proportion to size in bytes; "
            ),
        ),
    ],
)
def test_a_forecast_states_the_basis_of_its_figures(sample, sources, expected):
    assert expected in forecast(sample=sample, sources=sources)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({}, "  a: 10 documents, 2.0 MB\n"),
        ({"documents": estimate(1)}, "  a: 1 document, 2.0 MB\n"),
        (
            {"documents": estimate(10, False), "bytes": estimate(2e6, False), "share_read": 0.25},
            "  a: about 10 documents, about 2.0 MB  (25.0 % was read)\n",
        ),
        ({"share_read": 0.9999}, "  (99.99 % was read)\n"),
        ({"share_read": 0.0001}, "  (0.01 % was read)\n"),
        ({"share_read": None}, "  a: an unknown number of documents, unknown size\n"),
        ({"bytes": estimate(None)}, "  a: 10 documents, unknown size\n"),
    ],
)
def test_a_source_is_shown_with_the_share_that_was_read(source, expected):
    assert expected in forecast(sources=[SOURCE | source])


@pytest.mark.parametrize("quarantined", [0, 2])
@pytest.mark.parametrize(
    ("problem", "reason", "is_shown"), [("", "", False), ("p", "", True), ("p", "stage: p", False)]
)
def test_a_problem_of_a_source_is_shown_once(quarantined, problem, reason, is_shown):
    source = SOURCE | {"quarantined": quarantined, "first_quarantined": "f", "problem": problem}
    text = forecast(sources=[source], stages=[STAGE | {"reason": reason}])
    assert ("unreadable records that the run will quarantine: 2 (first: f)" in text) == bool(
        quarantined
    )
    assert ("\n    p\n" in text) == is_shown


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, "after curation: unknown"),
        (
            {"documents": 10, "train": 8, "validation": 1, "holdout": 1, "bytes": 2e6},
            "after curation (exact): 10 documents, 2.0 MB\n  train 8, validation 1, holdout 1\n",
        ),
        (
            {"documents": 11, "train": 8, "validation": 1, "holdout": 1, "bytes": 2e6},
            "holdout 1, canaries 1\n",
        ),
    ],
)
@pytest.mark.parametrize("tokens", [None, 1234])
def test_a_curated_corpus_counts_its_canaries(values, expected, tokens):
    known = {name: estimate(value) for name, value in values.items()}
    packed = {"tokens": tokens, "train_rows": 9, "validation_rows": None}
    corpus = CORPUS | known | {name: estimate(value) for name, value in packed.items()}
    text = forecast(corpus=corpus)
    assert expected.rstrip("\n") in text and ("canaries" in text) == ("canaries" in expected)
    line = "packed (exact): 1,234 training tokens, 9 training rows, unknown validation rows"
    assert (line in text) == (tokens is not None) and ("packed (" in text) == (tokens is not None)


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        ({}, "model: 1,000 parameters (exact)\ntraining: 64 tokens in 1 step, 0.50 epochs (exact)"),
        (
            {"parameters": estimate(1000, False)},
            "model: at most 1,000 parameters (exact if the tokenizer reaches the configured "
            "vocabulary size)",
        ),
        ({"steps": 1200, "epochs": estimate(None)}, "in 1,200 steps, unknown number of epochs"),
        ({"epochs": estimate(2.0, False)}, "2.00 epochs (estimate)"),
    ],
)
def test_the_training_is_described_as_far_as_it_is_known(training, expected):
    text = forecast(training=TRAINING | training)
    assert expected in text and "measured on" not in text
    step = {"device": "cpu", "step_count": 3, "seconds_per_step": 0.5}
    step |= {"training_seconds": 600.0, "peak_bytes": 2e9}
    text = forecast(training=TRAINING | training | {"step": step})
    assert "measured on cpu in 3 steps: 0.50 s per step, so about 10.0 min for all" in text
    assert "model:" not in forecast()


STEP_LABELS = (
    "toxicity_build_requests",
    "extraction_attack_build_requests",
    "extraction_attack_respond",
    "capability_baselines",
    "audit_toxicity",
    "audit_bias",
    "model_card",
)


def test_a_forecast_summarizes_blocked_stages_and_those_without_an_estimate():
    labels = ["a", "b", "c", "d", "e", "f"]
    reason = "cannot start because ingest fails"
    rows = [STAGE | {"state": "fails", "seconds": None, "reason": "stage ingest: why"}]
    blocked = [STAGE | {"label": label, "state": "blocked", "reason": reason} for label in labels]
    seconds = {"value": 40.0, "stages_without_estimate": labels}
    text = _render_stages({"stages": rows + blocked, "seconds": seconds})
    assert f"\n6 later stages {reason}\n" in text and text.count("cannot start") == 1
    planned = [STAGE | {"label": label, "state": "run", "seconds": None} for label in STEP_LABELS]
    text = _render_stages({"stages": [STAGE, *planned], "seconds": seconds})
    assert [line.split("  ")[0] for line in text.splitlines()[1:6]] == [
        "build_requests of 2 audits",
        "extraction_attack_respond",
        "capability_baselines",
        "compute_findings of 2 audits",
        "model_card",
    ]
    assert (
        "not included: 6 stages (a, b, c, d and 2 more); neither the sample nor an earlier run"
        in text
    )


@pytest.mark.parametrize(
    ("warnings", "expected"),
    [
        ([], "no problems found"),
        ([{"is_certain": False, "message": "w"}], "warning: w"),
        ([{"is_certain": True, "message": "w"}], "WILL FAIL: w"),
    ],
)
def test_a_forecast_ends_with_its_warnings(warnings, expected):
    text = forecast(warnings=warnings, notes=["n"])
    assert text.endswith(f"note: n\n{expected}")


@pytest.mark.parametrize(
    ("rows", "seconds", "present", "absent"),
    [
        ([STAGE], (40.0, []), "total time: about 40.0 s\n  measured", "at least"),
        (
            [STAGE, STAGE | {"label": "x", "seconds": None, "time_basis": ""}],
            (40.0, ["x"]),
            "total time: at least about 40.0 s",
            "total time: about",
        ),
        (
            [STAGE | {"seconds": None, "time_basis": ""}],
            (0, ["ingest"]),
            "total time: not estimated",
            "about",
        ),
        (
            [STAGE | {"state": "store", "artifact": "ingest/0", "seconds": None, "time_basis": ""}],
            (0, []),
            "ingest  cached                    ingest/0",
            "total time",
        ),
        ([STAGE | {"state": "unknown"}], (40.0, []), "unknown    40.0 s", "would run"),
        ([STAGE | {"state": "fails", "seconds": None}], (0, []), "FAILS", "not estimated"),
        ([STAGE | {"state": "blocked", "seconds": None}], (0, []), "blocked", "not estimated"),
        ([STAGE | {"seconds": 7200.0}], (7200.0, []), "about 2.0 h", "min"),
        ([STAGE | {"seconds": 119.9}], (119.9, []), "about 119.9 s", "min"),
        ([STAGE | {"seconds": 172_800}], (172_800, []), "about 2.0 days", " h"),
        (
            [
                STAGE | {"time_basis": f"estimate: time taken to compute ingest/{n}"}
                for n in range(2)
            ],
            (80.0, []),
            "\n  estimate: time taken to compute the newest artifact of the same stage",
            "ingest/0",
        ),
    ],
)
def test_the_stages_of_a_forecast_show_their_expected_time(rows, seconds, present, absent):
    report = {
        "stages": rows,
        "seconds": dict(zip(("value", "stages_without_estimate"), seconds, strict=True)),
    }
    text = _render_stages(report)
    assert present in text and absent not in text


DIFFERENCE = {
    "value": 0.25,
    "low": None,
    "high": None,
    "p_corrected": None,
    "n": 9,
    "clusters": 9,
}


def comparison(values=(0.5, 0.75), differences=(DIFFERENCE,), refused=None, part=(), **more):
    row = {"audit": "bias", "metric": "preference", "title": "P", "slice": part, "unit": "share"}
    verdicts = ["worse" if difference else "not tested" for difference in differences]
    judged = {"verdicts": verdicts, "is_main": True, "is_unchanged": False}
    rows = [row | {"values": values, "differences": differences} | judged]
    names = [{"name": f"c{n}"} for n in range(len(values))]
    return {"checkpoints": names, "incomparable": refused or {}, "rows": rows} | more


@pytest.mark.parametrize(
    ("report", "lines"),
    [
        (
            comparison(),
            [
                "what changed",
                "    bias.preference (P)  50.0 %  75.0 %",
                "        difference 25.0 points, 9 pairs: worse",
            ],
        ),
        (comparison(part={"a": "b"}), ["    bias.preference[a=b] (P)  50.0 %  75.0 %"]),
        (comparison((None, 0.0)), ["    bias.preference (P)  not measured  0.0 %"]),
        (
            comparison(differences=[None]),
            ["other findings", "    bias.preference (P)  50.0 %  75.0 %"],
        ),
        (
            comparison(differences=[DIFFERENCE | {"value": None}]),
            ["        no pair has two measured values"],
        ),
        (
            comparison((0.5, 0.75, 0.25), [None, DIFFERENCE]),
            ["        c2: difference 25.0 points, 9 pairs: worse"],
        ),
        (
            comparison(refused={"weat": "why"}),
            [
                "compared with c0:",
                "    c1",
                "weat was not compared: why",
                "of 1 main finding, 1 got worse",
                "",
                "what changed",
            ],
        ),
    ],
)
def test_a_comparison_shows_the_values_and_differences_that_exist(report, lines):
    text = render_comparison(report)
    assert "\n".join(lines) in text
    known_differences = [each for each in report["rows"][0]["differences"] if each]
    assert text.count(" pairs") == sum(each["value"] is not None for each in known_differences)
    assert ("not compared" in text) == bool(report["incomparable"])


@pytest.mark.parametrize(
    ("removed", "expected", "has_fewer"),
    [
        ([0, 0], "removed: 0 documents; removed at random for the control: 0 documents", False),
        ([1, 1], "removed: 1 document; removed at random for the control: 1 document", False),
        (
            [1, 1234],
            "removed: 1,234 documents; removed at random for the control: 1 document",
            True,
        ),
        ([5, 5], "removed: 5 documents; removed at random for the control: 5 documents", False),
    ],
)
@pytest.mark.parametrize("documents", [None, "ids.txt"])
def test_a_mitigation_counts_the_removed_documents(removed, expected, has_fewer, documents):
    text = render_mitigation(mitigation(removed, documents_file=documents))
    assert expected in text and ("fewer documents were removed at random" in text) == has_fewer
    assert ("are listed in ids.txt" in text) == bool(documents)


def mitigation(removed=(1, 1), **changes):
    arms = [
        {"arm": arm, "run": f"r{n}", "page": f"p{n}", "removed_documents": removed[n]}
        for n, arm in enumerate(("control", "treatment"))
    ]
    report = comparison(arms=arms, findings={}, documents_file=None, heldout_loss=[])
    return report | changes


FINDING = {
    "title": "Extracted",
    "unit": "share",
    "values": [0.5, 0.25, 0.75],
    "ends": [(0.4, 0.6), (None, None), (0.7, 0.8)],
    "differences": [DIFFERENCE | {"value": -0.25, "low": -0.3, "high": -0.2}, DIFFERENCE],
}


@pytest.mark.parametrize(
    ("finding", "refused", "expected"),
    [
        (
            FINDING,
            {},
            [
                "a.m (Extracted)",
                "    control arm        50.0 % (40.0 % to 60.0 %)",
                "    treatment arm      25.0 %",
                "    checkpoint before  75.0 % (70.0 % to 80.0 %)",
                "    treatment minus control: −25.0 points (−30.0 to −20.0), 9 pairs",
            ],
        ),
        (
            FINDING | {"values": [None, 0.25], "ends": [(None, None)] * 2, "differences": [None]},
            {},
            [
                "a.m (Extracted)",
                "    control arm        not measured",
                "    treatment arm      25.0 %",
            ],
        ),
        (None, {"a": "its seed differs"}, ["a.m was not compared: its seed differs"]),
        (None, {}, ["a.m was not compared: one arm lacks this finding"]),
    ],
)
def test_a_mitigation_ends_with_its_effect_cost_and_cards(finding, refused, expected):
    losses = [{"kind": "all", "name": "all", "bytes": 9, "values": [1.5, 1.25]}]
    report = mitigation(findings={"a.m": finding}, heldout_loss=losses, incomparable=refused)
    assert render_mitigation(report).split("\n\n")[-1].splitlines() == [
        "effect of the removal, compared with the control arm",
        *expected,
        "removal cost in bits per byte of all held-out text: 1.5000  1.2500  (-0.2500), no "
        "interval",
        "removed: 1 document; removed at random for the control: 1 document",
        "control arm: p0",
        "treatment arm: p1",
    ]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((2.0, 2.5), "    source town  2.0000  2.5000  (+0.5000), 1 byte\n"),
        ((2.5, 2.0), "    source town  2.5000  2.0000  (-0.5000), 1 byte\n"),
        ((2.0, 2.0), "    source town  2.0000  2.0000  (+0.0000), 1 byte\n"),
        ((None, 2.0), None),
        ((2.0, None), None),
    ],
)
def test_the_heldout_loss_of_a_mitigation_has_both_values_or_no_line(values, expected):
    losses = [{"kind": "source", "name": "town", "bytes": 1, "values": values}]
    text = render_mitigation(mitigation(heldout_loss=losses))
    assert (expected in text) if expected else ("source town" not in text)


EFFECT = {
    "case_name": "x",
    "effect": "change_from_base",
    "arm": "removed",
    "value": -0.5,
    "low": -0.6,
    "high": -0.4,
    "n": 9,
    "unit": "bits",
    "verdict": "",
}


CASE = {"case_name": "x", "documents": 3, "removed_documents": 2, "reason": ""}


def proof(**changes):
    report = {
        "base": "r0",
        "page": "p",
        "arms": [],
        "runs": {"base": "r0"},
        "cases": [CASE],
        "effects": [],
        "criteria": [],
        "heldout_loss": [],
    }
    return render_proof(report | changes)


@pytest.mark.parametrize(
    ("documents", "size", "expected"),
    [
        (0, 0, "    base: run r0, without 0 documents (0 bytes)"),
        (1, 1, "    base: run r0, without 1 document (1 byte)"),
        (1234, 5678, "    base: run r0, without 1,234 documents (5,678 bytes)"),
    ],
)
def test_an_arm_of_a_proof_shows_what_was_removed(documents, size, expected):
    assert expected in proof(arms=[{"arm": "base", "documents": documents, "bytes": size}])


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ({}, "x: 3 source documents, 2 removed\n"),
        ({"documents": 1, "removed_documents": 1}, "x: 1 source document, 1 removed\n"),
        (
            {"documents": 0, "removed_documents": 0, "reason": "nothing was found"},
            "x: 0 source documents, 0 removed; nothing was found\n",
        ),
    ],
)
def test_a_case_of_a_proof_counts_its_documents(case, expected):
    assert expected in proof(cases=[CASE | case])


@pytest.mark.parametrize(
    ("effect", "expected"),
    [
        (
            {},
            "removed minus base                             −0.5000  (−0.6000 to −0.4000), n = 9\n",
        ),
        ({"verdict": "within noise"}, "(−0.6000 to −0.4000), n = 9  within noise\n"),
        ({"low": None, "high": None}, "−0.5000  (no interval), n = 9\n"),
        ({"value": None, "low": None, "high": None}, "      –  (no interval), n = 9\n"),
        ({"unit": "share"}, "−50.0 points  (−60.0 points to −40.0 points), n = 9\n"),
        ({"effect": "mean", "unit": "share"}, "    removed  "),
        ({"effect": "null_mean"}, "    removed, without planted text  "),
        ({"effect": "null_region"}, "    99 % null region  "),
        ({"effect": "effect_before"}, "    effect before removal  "),
        ({"effect": "effect_after"}, "    effect after removal  "),
        ({"effect": "random_minus_removed"}, "    random minus removed  "),
    ],
)
def test_an_effect_of_a_proof_shows_its_interval_if_known(effect, expected):
    assert expected in proof(effects=[EFFECT | effect])


@pytest.mark.parametrize(
    ("criterion", "expected"),
    [
        ({"verdict": "pass"}, "    pass      l: 0.5000, above 0.2500\n"),
        ({"verdict": "fail"}, "    fail      l: 0.5000, above 0.2500\n"),
        ({"verdict": "", "value": None}, "    unknown   l: –, above 0.2500\n"),
        ({"verdict": "", "bound": None}, "    unknown   l: 0.5000, above –\n"),
    ],
)
def test_a_criterion_of_a_proof_passes_fails_or_is_unknown(criterion, expected):
    row = {"case_name": "x", "criterion": "l", "value": 0.5, "unit": "bits"}
    row |= {"comparison": "above", "bound": 0.25}
    assert expected in proof(criteria=[row | criterion])


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ({"base": 2.0, "removed": 2.5}, "    source town, 9 bytes: base 2.0000, removed 2.5000\n"),
        ({"base": 2.0, "removed": None}, "    source town, 9 bytes: base 2.0000\n"),
        (
            {"base": None},
            "    source town, 9 bytes: not measured, because there is too little text\n",
        ),
    ],
)
def test_the_heldout_loss_of_a_proof_names_the_arms_that_have_one(losses, expected):
    row = {"kind": "source", "name": "town", "bytes": 9}
    rows = [row | {"arm": arm, "bits_per_byte": loss} for arm, loss in losses.items()]
    assert expected in proof(heldout_loss=rows)


def studied(**changes):
    names = ("trials", "detection_rates", "false_alarm_rates", "interval_coverage")
    names += ("smallest_detected", "attribution_precision", "removal_reductions")
    return study.render_study({name: [] for name in names} | changes)


def trial(is_counted, reason=""):
    return {"trial": "w", "is_counted": is_counted, "reason": reason}


@pytest.mark.parametrize(
    ("trials", "expected"),
    [
        ([], "trials included in the results: 0 of 0\n"),
        ([trial(True)], "trials included in the results: 1 of 1\n"),
        ([trial(False, "gone")], "trials included in the results: 0 of 1\n    w: gone\n"),
        (
            [trial(True), trial(False, "gone")],
            "trials included in the results: 1 of 2\n    w: gone\n",
        ),
    ],
)
def test_a_study_counts_its_trials(trials, expected):
    assert studied(trials=trials).startswith(expected)


RATE = {"kind": "canary", "value": 0.5, "low": 0.25, "high": 0.75, "n": 1234}


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        ({}, "50.0 % (25.0 % to 75.0 %), n = 1,234"),
        ({"low": None, "high": None}, "50.0 %, n = 1,234"),
        ({"value": 0.0, "low": None}, "0.0 %, n = 1,234"),
        ({"value": 0.9999, "low": None}, "99.99 %, n = 1,234"),
        ({"value": 0.0001, "low": None}, "0.01 %, n = 1,234"),
        ({"value": None}, "not measured, n = 1,234"),
    ],
)
def test_a_rate_of_a_study_is_not_rounded_to_all_or_none(rate, expected):
    text = studied(false_alarm_rates=[RATE | rate])
    assert f"    canary             {expected}\n" in text


@pytest.mark.parametrize(
    ("removed", "decrease"),
    [
        ([], ""),
        (
            [{"unit": "bits", "value": 12.5, "low": 10.0, "high": 15.0}],
            "12.50 (10.00 to 15.00) bits",
        ),
        ([{"unit": "share"}], "50.0 points (25.0 points to 75.0 points)"),
        ([{"unit": "nats", "value": None}], "not measured"),
    ],
)
def test_a_study_reports_retrained_models_if_there_are_any(removed, decrease):
    text = studied(removal_reductions=[RATE | {"arm": "random"} | row for row in removed])
    assert (
        "decrease in detected effects after retraining a model without the documents" in text
    ) == bool(removed)
    assert (f"    canary random         {decrease}, n = " in text) == bool(removed)


@pytest.mark.parametrize(
    ("effects", "level", "expected"),
    [
        ([True], 64.0, "64"),
        ([True], 0.25, "0.25"),
        ([True], None, "none"),
        ([False, True], None, "none"),
        ([False], None, "no trial contains this effect"),
        ([None], None, "no trial contains this effect"),  # a negative control
        ([], None, "no trial contains this effect"),
    ],
)
def test_the_smallest_level_is_none_only_if_there_was_an_effect(effects, level, expected):
    detection = [RATE | {"effect_level": 64.0, "has_effect": effect} for effect in effects]
    text = studied(
        detection_rates=detection, smallest_detected=[{"kind": "canary", "effect_level": level}]
    )
    assert text.endswith(f"    canary             {expected}")
    assert text.count("canary 64 ") == len(effects)


@pytest.mark.parametrize(
    ("trials", "expected"), [(1, "running 1 trial ("), (3, "running 3 trials (")]
)
def test_a_study_announces_its_number_of_trials(stderr, trials, expected):
    study.print_study_start(
        SimpleNamespace(trials_with_effects=trials, trials_without_effects=0, parallel_trials=2)
    )
    assert stderr.getvalue().startswith(expected)


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [(TrialOutcome("r7", ""), "run r7"), (TrialOutcome(None, "no text"), "failed: no text")],
)
def test_the_line_of_a_trial_names_its_run_or_its_error(outcome, expected):
    assert study.format_trial_outcome("trial 3", outcome) == f"trial 3: {expected}"


STATUS_STAGE = {
    "label": "pack",
    "stage": "pack",
    "artifact": "pack/0",
    "cached": False,
    "seconds": 1.25,
    "tables": {"train": 1234},
    "files": [],
    "accounts_total": {},
    "balanced": True,
    "purged": [],
    "stale_reasons": [],
}


@pytest.mark.parametrize(
    ("steps", "changes", "line"),
    [
        ([0], {}, "checkpoint at step 0; audit one with: hallmark audit r1@0"),
        (
            [0, 20],
            {"store_must_be_named": True, "store": "my store"},
            "checkpoints at steps 0, 20; audit one with: hallmark audit r1@20 --store 'my store'",
        ),
        (
            [*range(10)],
            {},
            "10 checkpoints, the last 8 at steps 2, 3, 4, 5, 6, 7, 8, 9; audit one with: "
            "hallmark audit r1@9",
        ),
    ],
)
def test_status_lists_the_checkpoints_of_a_training(steps, changes, line):
    checkpoints = [{"step": step, "artifact": f"checkpoint/{step:016x}"} for step in steps]
    assert line in status_of(checkpoints=checkpoints, **changes).splitlines()


def status_of(stage=None, **changes):
    report = {
        "run": "r1",
        "flow": "pipeline",
        "config_name": "demo",
        "config_problem": None,
        "request": {"format": 1, "flow": "pipeline", "config": "demo"},
        "checkpoint": None,
        "findings": None,
        "seeds": None,
        "error": None,
        "equivalent_versions": [],
        "failed_audits": [],
        "checkpoints": [],
        "current_stage": "",
        "failed_rules": [],
        "not_shown_rules": [],
        "passed_rules": [],
        "policy": None,
        "status": "completed",
        "store": "s",
        "store_must_be_named": False,
        "current_folder": "/h",
        "folder": "/h",
        "base_folder": "/h",
        "stages": [STATUS_STAGE | (stage or {})],
    }
    return render_status(report | changes)


@pytest.mark.parametrize(
    ("stage", "changes", "last"),
    [
        ({}, {}, "all stages are up to date"),
        ({"stale_reasons": ["code: a"]}, {}, "rerun stale stages with: hallmark run demo"),
        ({}, {"status": "running"}, "still running"),
        ({"stale_reasons": ["code: a"]}, {"status": "running"}, "still running"),
        ({}, {"status": "failed"}, "continue with: hallmark run demo"),
        ({}, {"status": "interrupted"}, "continue with: hallmark run demo"),
        (
            {"stale_reasons": ["code: a"]},
            {"config_problem": "why"},
            "the run's config can no longer be read (why), so changed settings are not reported",
        ),
        ({}, {"stages": []}, "all stages are up to date"),
    ],
)
def test_the_next_step_follows_from_the_status_and_stale_stages(stage, changes, last):
    text = status_of(stage, **changes)
    assert text.splitlines()[-1] == last
    assert ("stale: code: a" in text) == bool(stage)


@pytest.mark.parametrize(
    ("stage", "present", "absent"),
    [
        ({}, "pack     1.2 s  pack/0", "cached"),
        ({"cached": True}, "pack    cached  pack/0", "1.2 s"),
        (
            {"accounts_total": {"rows": {"in": 3, "kept": 3}}},
            "rows: in 3, kept 3 (balanced)",
            "NOT",
        ),
        (
            {"accounts_total": {"rows": {"in": 3, "removed_rows": 2}}, "balanced": False},
            "rows: in 3, removed rows 2 (NOT BALANCED)",
            "(balanced)",
        ),
        ({"accounts_total": {"rows": {"in": 0}}}, "rows: nothing (balanced)", "in 0"),
        (
            {"stage": "ingest", "accounts_total": {"bytes": {"in": 3}}},
            "raw bytes: in 3",
            "  bytes",
        ),
        ({"accounts_total": {"bytes": {"in": 3}}}, "  bytes: in 3", "raw"),
        ({"purged": ["a", "b"]}, "purged: a, b", "more"),
        ({"purged": ["a", "b", "c"]}, "purged: a, b, and 1 more", "c,"),
        ({"files": list("abcdefg")}, "train 1,234, a, b, c, d, e, f, g", "more"),
        ({"files": list("abcdefgh")}, "train 1,234, a, b, c, d, e, f, g, and 1 more", "h,"),
    ],
)
def test_a_stage_shows_its_tables_files_and_accounts(stage, present, absent):
    text = status_of(stage)
    assert present in text and absent not in text


@pytest.mark.parametrize(
    ("changes", "present"),
    [
        ({}, "run r1  pipeline of config demo: completed\nstore s"),
        (
            {"equivalent_versions": ["pyarrow 2.0.1 is treated as 2.0.0"]},
            "\nequal versions: pyarrow 2.0.1 is treated as 2.0.0\n",
        ),
        ({"error": "why", "status": "failed"}, "config demo: failed: why\n"),
        ({"flow": "audit", "checkpoint": "r0@9"}, "audit of r0@9, config demo"),
        ({"flow": "pipeline", "checkpoint": "r0@9"}, "pipeline of config demo"),
        (
            {"base_folder": "/r", "folder": "/r"},
            "relative paths are resolved against /r, where the run was",
        ),
        (
            {"folder": "/f"},
            "resolved against the current folder, /h, because /f, where the run was",
        ),
    ],
)
def test_the_heading_of_a_status_follows_from_the_record(changes, present):
    text = status_of(**changes)
    assert present in text
    assert ("relative paths" in text) == ("resolved against" in present)


def verification(damaged=0, artifacts=1, files=1, run=None, missing=()):
    report = {"store": "s", "run": run, "artifact_count": artifacts, "file_count": files}
    report |= {"byte_count": 2e6, "missing_inputs": [*missing]}
    damage_messages = [f"file {n}" for n in range(damaged)]
    return render_verification(report | {"damage_messages": damage_messages})


@pytest.mark.parametrize(
    ("report", "first"),
    [
        ({}, "store s: 1 artifact, 1 file, 2.0 MB read"),
        ({"artifacts": 0, "files": 0}, "store s: 0 artifacts, 0 files, 2.0 MB read"),
        ({"artifacts": 1234, "run": "r"}, "run r: 1,234 artifacts, 1 file, 2.0 MB read"),
    ],
)
def test_a_verification_counts_what_it_read(report, first):
    assert verification(**report) == f"{first}\nno damage found"


@pytest.mark.parametrize(("damaged", "hidden"), [(0, 0), (1, 0), (20, 0), (21, 1), (22, 2)])
@pytest.mark.parametrize("missing", [(), ("a/0", "b/0")])
def test_damage_is_counted_and_missing_inputs_are_named(damaged, hidden, missing):
    text = verification(damaged, missing=missing)
    last = f"{damaged} damaged" if damaged else "no damage found"
    assert text.splitlines()[-1] == last
    assert (f"and {hidden} more; --json lists all" in text) == bool(hidden)
    assert ("not read, because they are not in this store: a/0, b/0" in text) == bool(missing)
    assert sum(line.startswith("file ") for line in text.splitlines()) == min(damaged, 20)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (HallmarkError("why"), "why"),
        (OSError(5, "broken", "f"), "f cannot be read (broken)"),
        (OSError("odd"), "a record cannot be read (odd)"),
    ],
)
def test_an_unreadable_file_is_named(error, expected):
    assert describe_read_failure(error, "a record") == expected


def replay_of(*verdicts, passed=True, store=None):
    stages = [
        {
            "label": f"s{n}",
            "determinism": "exact",
            "verdict": verdict,
            "differences": ["table t"] * n,
        }
        for n, verdict in enumerate(verdicts)
    ]
    return render_replay({"run": "r1", "stages": stages, "passed": passed, "store": store})


@pytest.mark.parametrize(
    ("verdicts", "passed", "last"),
    [
        (
            ["equal"],
            True,
            "passed: every stage is as reproducible as its determinism class requires",
        ),
        (
            ["equal", "within intervals"],
            True,
            "passed: every stage is as reproducible as its determinism class requires",
        ),
        (
            ["equal", "other machine", "other inputs"],
            True,
            "passed: every stage is as reproducible as its determinism class requires; not judged: "
            "s1, s2",
        ),
        (
            ["equal", "differs"],
            False,
            "FAILED: some stages are missing or have results that differ from the original run",
        ),
        (
            ["missing", "other inputs"],
            False,
            "FAILED: some stages are missing or have results that differ from the original run",
        ),
    ],
)
def test_a_replay_passes_or_fails_and_names_unjudged_stages(verdicts, passed, last):
    text = replay_of(*verdicts, passed=passed)
    assert text.splitlines()[-1] == last
    assert text.count("(table t") == max(0, len(verdicts) - 1)
    assert replay_of(*verdicts, store="f").endswith("replay store: f")


@pytest.mark.parametrize(("is_ok", "mark"), [(True, "ok  disk"), (False, "BAD disk")])
def test_a_check_of_the_machine_is_ok_or_bad(is_ok, mark):
    assert render_check_results([{"is_ok": is_ok, "check": "disk", "message": "s"}]).startswith(
        mark
    )


def purged(**changes):
    report = {
        "store": "s",
        "dry_run": False,
        "documents": ["d"],
        "copies": [],
        "copies_purged": False,
        "related_documents": [],
        "artifacts": {"ingest/0": ["documents"]},
        "runs": [],
        "checkpoints": [],
        "tokenizers": [],
        "work_areas": [],
        "pages": [],
        "unredacted_pages": [],
        "unreadable_records": {},
    }
    return render_purge(report | changes)


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_purge_reports_what_changed_or_would_change(dry_run):
    text = purged(dry_run=dry_run, work_areas=["w"])
    would = "would be " if dry_run else ""
    assert f"ingest/0: {would}rewritten: documents\n" in text
    assert f"folders of unfinished work {would}removed: w\n" in text
    assert text.endswith("nothing was changed") == dry_run
    assert ("ingest skips the document" in text) == (not dry_run)


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("artifacts", [{}, {"ingest/0": ["documents"]}])
def test_runs_are_named_that_contain_or_contained_a_document(dry_run, artifacts):
    """After an earlier purge no artifact contains it, but a dry run still names its runs."""
    text = purged(dry_run=dry_run, artifacts=artifacts, runs=["r1"])
    assert ("no artifact contains the document" in text) == (not artifacts)
    title = (
        "runs that contain or contained the document: r1"
        if dry_run
        else "runs that contained the document: r1"
    )
    assert (
        title in text
        and "runs" not in purged(artifacts=artifacts).split("runs that contained it")[0]
    )


@pytest.mark.parametrize(
    ("purged_too", "expected"),
    [(True, "exact copies, also purged: c"), (False, "not purged (--include-copies")],
)
def test_copies_are_reported_as_purged_or_not(purged_too, expected):
    assert expected in purged(copies=["c"], copies_purged=purged_too)
    assert "exact copies" not in purged(copies_purged=purged_too)


@pytest.mark.parametrize(
    ("checkpoints", "expected"),
    [
        ([], "no checkpoint was trained on the document"),
        ([{"steps": [3], "start_checkpoint": None}], "    c, step 9: read in step 3\n"),
        (
            [{"steps": list(range(13)), "start_checkpoint": None}],
            "    c, step 9: read in steps 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 1 more\n",
        ),
        ([{"steps": None, "start_checkpoint": "d"}], "    c, step 9: continues from d\n"),
        ([{"steps": None, "start_checkpoint": None}], "    c, step 9: steps unknown\n"),
    ],
)
def test_a_checkpoint_shows_when_it_read_a_document(checkpoints, expected):
    rows = [{"checkpoint": "c", "step": 9} | row for row in checkpoints]
    text = purged(checkpoints=rows)
    assert text.index(expected) < text.index("ingest/0: rewritten")
    assert ("a purge cannot change what they have learned" in text) == bool(checkpoints)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("tokenizers", ["t"], "tokenizers that were trained on the document (not changed): t"),
        (
            "related_documents",
            ["n"],
            "other documents that a table lists as matches for this document; check them manually: "
            "n",
        ),
        ("pages", ["p"], "pages: p"),
        (
            "unredacted_pages",
            ["b"],
            "unredacted pages outside the store; delete them manually: b",
        ),
        (
            "unreadable_records",
            {"ingest/0": 2},
            "that are not valid UTF-8 and were searched using a guessed encoding: 2 of ingest/0",
        ),
    ],
)
def test_a_purge_names_only_what_exists(key, value, expected):
    assert expected in purged(**{key: value}) and expected.split(":")[0] not in purged()


def document_trace(**changes):
    report = {"doc_id": "d", "run": "r1", "stages": [], "is_packed": True, "spans": [], "steps": []}
    return render_document_trace(report | changes)


SPAN = {
    "split": "train",
    "sequence": 3,
    "row_start": 0,
    "row_end": 9,
    "char_start": 0,
    "char_end": 40,
}


@pytest.mark.parametrize(
    ("changes", "last"),
    [
        ({"is_packed": False}, "the run packed no corpus"),
        ({}, "no packed sequence contains tokens of the document"),
        ({"spans": [SPAN]}, "not read in any training step"),
        ({"spans": [SPAN], "steps": [4]}, "read in 1 training step: 4"),
        ({"spans": [SPAN], "steps": [4, 5]}, "read in 2 training steps: 4, 5"),
    ],
)
def test_a_traced_document_shows_whether_training_read_it(changes, last):
    assert document_trace(**changes).splitlines()[-1] == last


def test_long_lists_of_a_trace_count_hidden_entries():
    from hallmark.flows.commands.trace import MAX_LISTED_ITEMS, MAX_TEXT_CHARACTERS

    for more, spans, rows, characters in (
        (0, "", "", ""),
        (1, "and 1 more span\n", "t: and 1 more row", "and 1 more character;"),
        (2, "and 2 more spans\n", "t: and 2 more rows", "and 2 more characters;"),
    ):
        count = MAX_LISTED_ITEMS + more
        stage = {
            "stage": "ingest",
            "run": "r1",
            "tables": {"t": [{"a": 1}] * count},
            "text": "a" * (MAX_TEXT_CHARACTERS + more),
        }
        text = document_trace(stages=[stage], spans=[SPAN] * count, steps=list(range(count)))
        for expected in (spans, rows, characters):
            assert expected in text
        assert ("more" in text) == bool(more) and (" …\n" in f"{text}\n") == bool(more)


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ({}, "ingest              "),
        ({"state": "absent"}, "ingest              absent"),
        (
            {"state": "present", "source": "s", "text_changed": False},
            "ingest              present, s",
        ),
        (
            {"state": "present", "source": "s", "text_changed": True},
            "ingest              present, s, text changed",
        ),
        (
            {"state": "present", "source": "s", "purged": "2026-01-02T10:00"},
            "ingest              present, s, purged on 2026-01-02",
        ),
        ({"state": "absent", "run": "r0"}, "ingest              absent (run r0)"),
    ],
)
def test_a_stage_shows_the_state_of_a_document(stage, expected):
    lines = document_trace(stages=[{"stage": "ingest", "run": "r1", "tables": {}} | stage])
    assert lines.splitlines()[2] == expected


FINDING = {
    "audit": "bias",
    "metric": "preference",
    "title": "Preference",
    "slice": {},
    "value": 0.5,
    "unit": "share",
    "low": None,
    "high": None,
    "null_value": None,
    "n": 9,
    "method": "m",
}


def finding_trace(finding=None, **changes):
    report = {
        "finding": FINDING | (finding or {}),
        "checkpoint": "c",
        "evidence_table": "values",
        "artifact": "a/0",
        "row_count": 0,
        "row_order": "",
        "worst_rows": [],
        "is_overlap_unknown": False,
        "min_span_tokens": None,
    }
    return render_finding_trace(report | changes)


@pytest.mark.parametrize(
    ("finding", "expected"),
    [
        ({}, "    Preference: 0.5 share, n = 9; m\n"),
        ({"value": None}, "    Preference: not measured, n = 9; m\n"),
        ({"value": 0.0}, "    Preference: 0 share, n = 9; m\n"),
        ({"low": 0.0, "high": 1.0}, "    Preference: 0.5 share, interval 0 to 1, n = 9; m\n"),
        ({"low": 0.0}, "    Preference: 0.5 share, n = 9; m\n"),  # only one bound
        ({"null_value": 0.0}, "    Preference: 0.5 share, null value 0, n = 9; m\n"),
        ({"slice": {"a": "b"}}, "bias.preference[a=b]\n"),
    ],
)
def test_a_traced_finding_shows_value_interval_and_null(finding, expected):
    assert expected in finding_trace(finding)


ROW = {"row": {"a": 1}, "documents": []}


@pytest.mark.parametrize(
    ("rows", "shown", "expected"),
    [
        (0, 0, "    0 rows of values in a/0"),
        (1, 1, "    1 row of values in a/0"),
        (2, 2, "    2 rows of values in a/0"),
        (1234, 2, "    the first 2 of 1,234 rows of values in a/0"),
    ],
)
@pytest.mark.parametrize("unknown", [True, False])
def test_a_traced_finding_counts_its_rows(rows, shown, expected, unknown):
    text = finding_trace(row_count=rows, worst_rows=[ROW] * shown, is_overlap_unknown=unknown)
    assert expected in text and text.count("row 1:") == min(shown, 1)
    assert ("the corpus was not searched for the model's text" in text) == unknown


@pytest.mark.parametrize(
    ("rows", "order", "expected"),
    [
        (1, "-value", "    1 row of values in a/0\n"),
        (2, "-toxicity", "    2 rows of values in a/0, ordered by toxicity, largest first\n"),
        (2, "value", "    2 rows of values in a/0, ordered by value, smallest first\n"),
        (2, "", "    2 rows of values in a/0, in table order\n"),
    ],
)
def test_a_traced_finding_states_the_order_of_its_rows(rows, order, expected):
    text = finding_trace(row_count=rows, worst_rows=[ROW] * rows, row_order=order)
    assert expected in text


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        (
            {
                "document_reads": [
                    {
                        "step": 300,
                        "document_tokens": 64,
                        "tokens_read": 60,
                        "first_step": 197,
                        "last_step": 199,
                        "times_read": 1,
                    }
                ]
            },
            "    up to the checkpoint at step 300: 60 of 64 tokens read since the previous "
            "checkpoint, from step 197 to step 199; read completely 1 time so far\n",
        ),
        (
            {"matched_spans": [{"text_hash": text, "run_tokens": 9} for text in "aab"]},
            "    2 texts in the audit share consecutive tokens with the document (at most 9 "
            "tokens); --json lists the positions\n",
        ),
        (
            {"matched_spans": [{"text_hash": "a", "run_tokens": 9}]},
            "    1 text in the audit shares consecutive tokens with the document (at most 9 "
            "tokens); --json lists the positions\n",
        ),
    ],
)
def test_a_document_trace_says_what_was_read_and_what_shares_its_tokens(tables, expected):
    stage = {"stage": "deduplicate_redacted", "run": "r1", "tables": tables, "state": "absent"}
    lines = document_trace(stages=[stage])
    assert "deduplicate_redacted absent\n" in lines and expected in lines


DOCUMENT = {
    "doc_id": "d",
    "source": "s",
    "licence": "",
    "split": "train",
    "times_read": None,
    "first_step": None,
    "text": "t",
}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({}, "    d s\n"),
        ({"licence": "CC0", "run_tokens": 1, "score": 0.5}, "    d s, CC0, 1 token, 50%\n"),
        ({"run_tokens": 12}, "    d s, 12 tokens\n"),
        ({"times_read": 0}, "    d s, not read yet\n"),
        ({"times_read": 1, "first_step": 5}, "    d s, read once, first in step 5\n"),
        ({"times_read": 3, "first_step": 5}, "    d s, read 3 times, first in step 5\n"),
        (
            {"times_read": 3, "first_step": 5, "training_index": 1},
            "    d s, read 3 times, first in step 5 of the previous training run\n",
        ),
        (
            {"times_read": 0, "first_step": 5, "sequence": 3},
            "    d s, not read yet: first read in step 5\n",
        ),
        ({"times_read": 0, "first_step": 5}, "    d s, not yet read completely, first in step 5\n"),
        ({"split": "holdout"}, "    d s, held out (holdout), never trained on\n"),
    ],
)
def test_a_document_of_a_row_shows_when_it_was_read(document, expected):
    row = ROW | {"documents": [DOCUMENT | document]}
    assert expected in finding_trace(row_count=1, worst_rows=[row])


@pytest.mark.parametrize(
    ("row", "min_tokens", "expected"),
    [
        ({}, 8, "no span of 8 consecutive tokens in the model's text occurs in the training text"),
        ({"documents": [DOCUMENT]}, 8, None),
        ({}, None, None),
        ({"documents": [DOCUMENT] * 9}, None, "    and 1 more document; --json lists all"),
        ({"documents": [DOCUMENT] * 10}, None, "    and 2 more documents; --json lists"),
        (
            {"attributions": []},
            None,
            "    attributed documents: none; no training document contains rare words of this row",
        ),
        (
            {"attributions": [DOCUMENT]},
            None,
            "    attributed documents (estimate), with the weighted share",
        ),
    ],
)
def test_a_row_of_a_finding_shows_its_documents(row, min_tokens, expected):
    text = finding_trace(row_count=1, worst_rows=[ROW | row], min_span_tokens=min_tokens)
    for words in ("consecutive tokens", "more document", "attributed"):
        assert (words in text) == bool(expected and words in expected)
    assert expected is None or expected in text


@pytest.mark.parametrize(
    ("count", "expected"), [(0, "0 sequences"), (1, "1 sequence"), (2, "2 sequences")]
)
def test_a_batch_counts_its_sequences(count, expected):
    sequences = [{"sequence": n, "spans": []} for n in range(count)]
    text = render_batch({"run": "r1", "step": 3, "packed_artifact": "p/0", "sequences": sequences})
    assert text.splitlines()[0] == f"run r1, step 3: {expected}"


@pytest.mark.parametrize(
    ("length", "shown"), [(59, "a" * 59), (60, "a" * 60), (61, "a" * 59 + "…")]
)
def test_a_long_span_of_a_batch_is_truncated(length, shown):
    span = SPAN | {"doc_id": "d", "source": "s", "text": "a" * length}
    sequences = [{"sequence": 0, "spans": [span]}]
    text = render_batch({"run": "r1", "step": 3, "packed_artifact": "p/0", "sequences": sequences})
    assert text.endswith(f"\n   {shown}") and "tokens 0 to 8 " in text and "0 to 39" in text


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        ({}, "Accuracy           model 0.500, n = 1,234"),
        ({"low": 0.25, "high": 0.75}, "Accuracy           model 0.500 (0.250 to 0.750), n = 1,234"),
        ({"value": None}, "Accuracy           model unknown, n = 1,234"),
        ({"value": 0.0}, "Accuracy           model 0.000, n = 1,234"),
        ({"unit": "points"}, "Accuracy           model 0.500 points, n = 1,234"),
    ],
)
def test_a_score_shows_value_interval_and_unit(score, expected):
    row = {"title": "Accuracy", "system": "model", "value": 0.5, "low": None, "high": None}
    row |= {"unit": "share", "n": 1234, "slice": ""}
    assert render_scores([row | score, row | {"slice": "a label"}]) == expected


@pytest.mark.parametrize(
    ("tokens", "reached_end", "expected"),
    [
        (1, True, "1 token, reached the end-of-text token"),
        (1, False, "1 token"),
        (2, False, "2 tokens"),
    ],
)
def test_an_output_shows_whether_it_reached_the_end(tokens, reached_end, expected):
    output = {
        "method": "greedy",
        "settings": {"width": 1},
        "log_prob": -1.0,
        "log_prob_per_token": -1.0 / tokens,
        "token_count": tokens,
        "reached_end_token": reached_end,
        "text": "",
    }
    report = {
        "checkpoint": "c",
        "prompt": "p",
        "prompt_tokens": tokens,
        "seed": 0,
        "precision": "fp32",
        "outputs": [output],
    }
    lines = render_generation(report).splitlines()
    count = "1 prompt token" if tokens == 1 else "2 prompt tokens"
    assert lines[1] == f"{count}, seed 0, fp32; log p in nats"
    assert lines[3].endswith(f"per token, {expected}") and lines[4] == "    | "


COPY = {"source": "a", "target": "b", "runs": ["r1"], "copied_artifacts": 1}
COPY |= {"present_artifacts": 2, "copied_files": 1, "copied_bytes": 1_500_000, "reviews": 1}
COPY |= {"purged_documents": [], "missing_inputs": [], "equivalent_versions": []}
COPY |= {"has_other_secret": False}


def test_a_copy_says_what_was_sent_and_what_was_there():
    assert render_copy(COPY).splitlines() == [
        "1 run copied from a to b: r1",
        "1 artifact copied, 2 already present; 1 file sent, 1.5 MB; 1 review",
    ]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"purged_documents": ["ab"]},
            "now also recorded as purged in b: ab; if other runs there might contain these "
            "documents, complete the purge with: hallmark purge DOC_ID --store b",
        ),
        (
            {"missing_inputs": [f"folder/{number}" for number in range(14)]},
            "not copied, because they are missing from a: "
            f"{', '.join(f'folder/{number}' for number in range(12))} and 2 more",
        ),
        (
            {"equivalent_versions": ["pyarrow 2.0.1 is treated as 2.0.0"]},
            "now also treated as equivalent in b: pyarrow 2.0.1 is treated as 2.0.0",
        ),
        (
            {"has_other_secret": True},
            "b and a have different secrets, so runs in b recompute the stages whose ledgers "
            "contain hashes of personal data",
        ),
    ],
)
def test_a_copy_says_what_differs(fields, sentence):
    assert render_copy(COPY | fields).splitlines()[2:] == [sentence]


ORPHAN = {"kind": "artifact", "name": "pack/0", "files": 2, "bytes": 1_500_000}
GARBAGE = {"store": "s", "is_deleted": False, "in_use_by": None, "problems": []}
GARBAGE |= {"files": 2, "bytes": 1_500_000, "garbage": [ORPHAN]}
NO_GARBAGE = GARBAGE | {"files": 0, "bytes": 0, "garbage": []}


@pytest.mark.parametrize(
    ("fields", "lines"),
    [
        (
            GARBAGE,
            [
                "         1.5 MB  artifacts that no run, review or release needs: 1 (2 files)",
                "2 files, 1.5 MB can be removed from s; nothing was changed; use --delete to "
                "remove them or --json to list them",
            ],
        ),
        (
            GARBAGE | {"is_deleted": True},
            [
                "         1.5 MB  artifacts that no run, review or release needs: 1 (2 files)",
                "2 files, 1.5 MB removed from s",
            ],
        ),
        (NO_GARBAGE, ["nothing can be removed from s"]),
        (NO_GARBAGE | {"is_deleted": True}, ["0 files, 0.0 MB removed from s"]),
        (
            NO_GARBAGE | {"in_use_by": "run r1 on h"},
            [
                "nothing can be removed from s",
                "run r1 on h is using the store, so all committed artifacts and caches are kept",
            ],
        ),
        (
            NO_GARBAGE | {"problems": [str(number) for number in range(22)]},
            [
                "nothing can be removed from s",
                "all committed artifacts are kept, because damaged runs and artifacts may still "
                "need them:",
                *map(str, range(20)),
                "and 2 more; --json lists all",
            ],
        ),
    ],
)
def test_a_collection_says_what_it_removes_and_why_it_keeps_the_rest(fields, lines):
    assert render_garbage(fields).splitlines() == lines


def test_the_usage_of_a_store_says_what_was_not_counted():
    fields = {"store": "s", "files": 3, "bytes": 2_000_000, "shared_bytes": 0, "problems": []}
    fields |= {"stages": [{"stage": "pack", "artifacts": 1, "files": 2, "bytes": 1_500_000}]}
    fields |= {"folders": [{"name": "site", "files": 1, "bytes": 500_000}]}
    fields |= {"runs": [{"run": "r1", "bytes": 1_500_000, "own_bytes": 0}]}
    lines = render_usage(fields | {"reclaimable_bytes": 0}).splitlines()
    assert lines[0] == "store s: 3 files, 2.0 MB"
    assert [line.split() for line in lines if line.endswith(("files", "1 file", "other runs"))] == [
        ["1.5", "MB", "pack", "1", "artifact,", "2", "files"],
        ["0.5", "MB", "site", "1", "file"],
        ["1.5", "MB", "r1", "0.0", "MB", "not", "used", "by", "other", "runs"],
    ]
    assert lines[-1].endswith("0.0 MB  can be removed with: hallmark gc")
    damaged = render_usage(fields | {"reclaimable_bytes": 0, "problems": ["x", "y"]})
    assert damaged.endswith(
        "2 damaged runs or artifacts not counted; for details, run: hallmark gc"
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a \r\n\t b\u2028", "a b "),
        ("a  b", "a  b"),
        (" " * 9_999 + "x", " " * 9_999 + "x"),
        (" " * 9_998 + "\nx", " x"),
        ("x" * 10_001, "x" * 9_999 + "…"),
    ],
)
def test_a_text_of_several_lines_is_shown_in_one(text, line):
    assert format_single_line(text, 10_000) == line
