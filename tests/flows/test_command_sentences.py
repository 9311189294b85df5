"""What commands print follows from the report that they print it of."""

from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console

from hallmark.flows.commands import study
from hallmark.flows.commands.batch import render_batch
from hallmark.flows.commands.compare import render_comparison
from hallmark.flows.commands.doctor import render_check_results
from hallmark.flows.commands.finetune import render_scores
from hallmark.flows.commands.flow_execution import check_audits_and_policy, print_run_summary
from hallmark.flows.commands.forecast_text import _render_stages, render_forecast
from hallmark.flows.commands.generate import render_generation
from hallmark.flows.commands.mitigate import render_mitigation
from hallmark.flows.commands.prove import render_proof
from hallmark.flows.commands.purge import render_purge
from hallmark.flows.commands.removal_summary import render_removals
from hallmark.flows.commands.replay import render_replay
from hallmark.flows.commands.runs import render_run_list
from hallmark.flows.commands.status import render_status
from hallmark.flows.commands.trace import render_document_trace, render_finding_trace
from hallmark.flows.commands.verify import describe_read_failure, render_verification
from hallmark.tasks.contract import HallmarkError, PolicyViolationError


@pytest.fixture
def stderr(monkeypatch):
    """What a command prints beside its result."""
    printed = StringIO()
    monkeypatch.setattr("hallmark.flows.console.stderr", Console(file=printed, width=300))
    return printed


# runs --------------------------------------------------------------------------------------------

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
    "made": 1,
    "broken": [],
    "undecided": [],
    "left_out": "",
}


@pytest.mark.parametrize(
    ("broken", "undecided", "outcome"),
    [
        ([], [], "completed"),
        (None, None, "completed"),  # the verdicts cannot be read
        (["polite"], [], "completed, policy broken: polite"),
        ([], ["fair", "safe"], "completed, policy not shown to hold: fair, safe"),
        (["polite"], ["fair"], "completed, policy broken: polite, policy not shown to hold: fair"),
    ],
)
def test_a_listed_run_tells_broken_rules_from_those_not_shown_to_hold(broken, undecided, outcome):
    line = render_run_list([RUN | {"broken": broken, "undecided": undecided}]).splitlines()[1]
    assert line.endswith(f"1 of 3       {outcome}")


@pytest.mark.parametrize(
    ("checkpoint", "left_out", "description"),
    [
        (None, "", "pipeline  "),
        ("r0@9", "", "pipeline of r0@9  "),
        ("r0@9", "control", "pipeline of r0@9, control  "),
        (None, "documents", "pipeline, documents left out  "),
    ],
)
def test_a_listed_run_says_what_it_is_about(checkpoint, left_out, description):
    line = render_run_list([RUN | {"checkpoint": checkpoint, "left_out": left_out}]).splitlines()[1]
    assert line.startswith(f"r1   {description}")


@pytest.mark.parametrize(
    ("started", "ended", "said"),
    [
        ("2026-01-01T10:00:00+00:00", "2026-01-01T11:00:00+00:00", "2026-01-01 10:00  3,600 s"),
        ("2026-01-01T10:00:00+00:00", "2026-01-01T11:00:00", "2026-01-01 10:00        "),
        ("2026-01-01T10:00:00+00:00", None, "2026-01-01 10:00        "),
        (None, "2026-01-01T11:00:00+00:00", "demo             "),
    ],
)
def test_a_listed_run_says_how_long_it_took_where_both_times_are_known(started, ended, said):
    line = render_run_list([RUN | {"started": started, "ended": ended}]).splitlines()[1]
    assert said in line and (" s " in line) == ("3,600" in said)


# run: what was removed ---------------------------------------------------------------------------

RULE = {"stage": "select", "rule": "short", "action": "removed", "documents": 1, "of": 10_000}
GROUP = {
    "group": "they",
    "documents": 8,
    "of": 25,
    "other_documents": 1,
    "other_of": 90,
    "other_share": 1 / 90,
    "ratio": 28.8,
    "low": 5.0,
    "high": 60.0,
    "shown": True,
}


def removals(**changes):
    report = {
        "rules": [RULE],
        "actions": [],
        "unscored": {"documents": 0, "of": 90, "by_status": {}},
        "groups": [],
        "tagged_groups": [],
        "groups_compared": 3,
        "least_documents": 20,
    }
    return render_removals(report | changes)


@pytest.mark.parametrize("report", [{}, {"rules": []}])
def test_where_no_rule_did_anything_nothing_is_printed(report):
    assert render_removals(report) == []


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({}, "select: short removed 1 of 10,000 documents (0.01 %)"),
        ({"documents": 9_999}, "select: short removed 9,999 of 10,000 documents (99.99 %)"),
        ({"documents": 10_000}, "select: short removed 10,000 of 10,000 documents (100.0 %)"),
        ({"of": 1}, "select: short removed 1 of 1 document (100.0 %)"),
        (
            {"action": "tagged", "of": 2},
            "select: short tagged 1 of 2 documents (50.0 %) and kept them",
        ),
        (
            {"stage": "select_scored", "rule": "toxicity", "of": 2},
            "select_scored: toxicity removed 1 of 2 documents (50.0 %); as was asked",
        ),
        (
            {"stage": "select_scored", "rule": "toxicity unknown", "of": 2},
            "select_scored: toxicity unknown removed 1 of 2 documents (50.0 %); as was asked",
        ),
        (  # the same name in a stage that judges by no score
            {"rule": "toxicity", "of": 2},
            "select: toxicity removed 1 of 2 documents (50.0 %)",
        ),
    ],
)
def test_a_rule_says_what_it_did_to_how_many_and_why(rule, said):
    actions = [{"rule": "toxicity", "why": "as was asked"}]
    assert removals(rules=[RULE | rule], actions=actions) == [said]


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (3, None),
        (4, "1 more rule removed or tagged documents; the datasheet lists all"),
        (5, "2 more rules removed or tagged documents; the datasheet lists all"),
    ],
)
def test_rules_that_are_not_shown_are_counted(rules, said):
    lines = removals(rules=[RULE] * rules)
    assert lines[3:] == ([said] if said else []) and len(lines) == min(rules, 3) + bool(said)


@pytest.mark.parametrize(
    ("unscored", "said"),
    [
        ({"documents": 0, "of": 0, "by_status": {}}, []),
        (
            {"documents": 1, "of": 1, "by_status": {"failed": 1, "empty": 0}},
            ["1 of 1 document (100.0 %) has no toxicity score: failed 1"],
        ),
        (
            {"documents": 3, "of": 90, "by_status": {"other language": 2, "odd": 1}},
            [
                "3 of 90 documents (3.3 %) have no toxicity score: in a language that the scorer "
                "was not made for, or an undetermined one 2, odd 1"
            ],
        ),
    ],
)
def test_documents_without_a_score_are_told_with_the_reason(unscored, said):
    assert removals(unscored=unscored)[1:] == said


@pytest.mark.parametrize("action", ["removed", "tagged"])
@pytest.mark.parametrize("compared", [0, 1])
@pytest.mark.parametrize("least", [1, 20])
def test_removals_are_not_compared_where_no_group_is_large_enough(action, compared, least):
    lines = removals(
        rules=[RULE | {"action": action}], groups_compared=compared, least_documents=least
    )
    size = "1 document" if least == 1 else "20 documents"
    said = "removals by identity group are not compared: there are no groups with at least " + size
    assert lines[1:] == ([said] if action == "removed" and not compared else [])


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ({}, "; 28.8 times as often (95 % CI 5.0–60.0)"),
        ({"high": None}, "; 28.8 times as often (95 % CI 5.0–∞)"),
        ({"low": None, "high": None}, "; 28.8 times as often"),
        ({"ratio": None}, ""),
        ({"shown": False, "ratio": None}, "; may be due to chance (near copies count once)"),
    ],
)
@pytest.mark.parametrize(
    ("key", "verb"),
    [("groups", "removed (as duplicates not counted)"), ("tagged_groups", "tagged")],
)
def test_a_group_is_told_beside_all_others(key, verb, changes, end):
    heading, line = removals(**{key: [GROUP | changes]})[1:]
    assert heading == (
        f"documents that mention these people were {verb} most often, groups with at least 20 "
        "documents:"
    )
    others = "all other documents: 1 of 90 (1.1 %)"
    assert line == f"  they: 8 of 25 documents (32.0 %); {others}{end}"


# run: how it ended -------------------------------------------------------------------------------


def ended_run(*, stages=(), controls=(0, []), site=None, checkpoint="r0@9"):
    record = {"stages": [{"cached": cached} for cached in stages], "checkpoint": checkpoint}
    return SimpleNamespace(
        id="r1", record=record, stages={}, site_index=site, summarize_controls=lambda: controls
    )


@pytest.mark.parametrize(
    ("flow", "said"),
    [("audit", "audited: r0@9"), ("finetune", "fine-tuned: r0@9"), ("pipeline", None)],
)
@pytest.mark.parametrize(("stages", "made"), [((), 0), ((True, True), 0), ((False, True), 1)])
def test_a_run_says_how_many_stages_it_made(stderr, capsys, flow, said, stages, made):
    print_run_summary(flow, ended_run(stages=stages))
    last = f"run r1: stages made: {made}, from the store: {len(stages) - made}"
    assert stderr.getvalue().splitlines() == ([said] if said else []) + [last]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("controls", "said"),
    [
        ((0, []), ""),
        ((5, []), ""),
        ((1, ["audit_bias"]), "1 of 1 control failed (audit_bias): the model card says"),
        (
            (5, ["audit_bias", "audit_bias", "audit_weat"]),
            "3 of 5 controls failed (audit_bias, audit_weat): the model card says",
        ),
    ],
)
def test_failed_controls_are_told_with_their_audits(stderr, controls, said):
    print_run_summary("pipeline", ended_run(controls=controls))
    text = stderr.getvalue()
    assert (said in text) and (
        ("controls failed" in text or "control failed" in text) == bool(said)
    )


def failed_rule(rule, distance, value=0.5, metric="preference", **more):
    row = {"rule": rule, "audit": "bias", "metric": metric, "slice": "", "why": "w"}
    return row | {"distance": distance, "value": value} | more


def judged_run(*rules, failures=None):
    return SimpleNamespace(
        id="r1",
        store=SimpleNamespace(uri="./runs"),
        read_audit_failures=lambda: failures or {},
        list_unpassed_verdicts=lambda: [*rules],
    )


@pytest.mark.parametrize(
    ("rules", "present", "absent"),
    [
        ([failed_rule("a", 0.5)], "the policy is broken: a (bias.preference: w); ", "not shown"),
        ([failed_rule("a", 0.0)], "the policy is broken: a (bias.preference: w); ", "not shown"),
        (
            [failed_rule("a", None)],
            "the policy is not shown to hold: a (bias.preference: w); ",
            "is broken",
        ),
        (
            [failed_rule("a", None), failed_rule("b", 0.5)],
            "the policy is broken: b (bias.preference: w); the policy is not shown to hold: a (",
            "more",
        ),
        ([failed_rule(n, 0.5) for n in "abc"], "c (bias.preference: w); hallmark", "more"),
        ([failed_rule(n, 0.5) for n in "abcd"], "c (bias.preference: w), and 1 more; ", "d ("),
        ([failed_rule("a", 0.5)], "hallmark trace r1 bias.preference", "nothing"),
        ([failed_rule("a", None, None)], "every verdict stands on", "hallmark trace"),
    ],
)
def test_a_policy_is_broken_or_not_shown_to_hold(rules, present, absent):
    with pytest.raises(PolicyViolationError) as raised:
        check_audits_and_policy(judged_run(*rules))
    assert present in str(raised.value) and absent not in str(raised.value)


def test_a_policy_that_holds_raises_nothing_and_an_audit_that_failed_is_worse():
    check_audits_and_policy(judged_run())
    with pytest.raises(HallmarkError, match="bias failed, all else is there") as raised:
        check_audits_and_policy(judged_run(failed_rule("a", 0.5), failures={"bias": "why"}))
    assert not isinstance(raised.value, PolicyViolationError)


# run --dry-run -----------------------------------------------------------------------------------


def estimate(value, exact=True):
    return {"value": value, "exact": exact}


SOURCE = {
    "source": "a",
    "documents": estimate(10),
    "bytes": estimate(2e6),
    "read": 1,
    "quarantined": 0,
    "first_quarantined": "",
}
CORPUS_NAMES = ("documents", "bytes", "train", "validation", "holdout", "tokens")
CORPUS = {name: estimate(None, False) for name in (*CORPUS_NAMES, "train_rows", "validation_rows")}
STAGE = {
    "label": "ingest",
    "state": "run",
    "why": "not in the store",
    "artifact": None,
    "seconds": 40.0,
    "rests_on": "measured",
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
        "seconds": {"value": 40.0, "without": []},
        "sources": [SOURCE],
        "sample": None,
        "corpus": CORPUS,
        "training": None,
        "notes": [],
        "warnings": [],
    }
    return render_forecast(report | changes)


@pytest.mark.parametrize(
    ("sample", "sources", "said"),
    [
        (None, [SOURCE], "sources: exact, from the store"),
        (None, [SOURCE | {"documents": estimate(None, False)}], "sources: not known"),
        (None, [], "sources: not known"),
        (
            {"documents": 1, "bytes": 900, "whole": True},
            [SOURCE],
            "sources: exact, all of it was read (1 document, 900 bytes)",
        ),
        ({"documents": 0, "bytes": 0, "whole": False}, [SOURCE], "sources: nothing could be read"),
        (
            {"documents": 1234, "bytes": 1e6, "whole": False},
            [SOURCE],
            "sources: estimates from a sample of 1,234 documents, 1.0 MB, scaled by bytes; ",
        ),
    ],
)
def test_a_forecast_says_what_its_figures_rest_on(sample, sources, said):
    assert said in forecast(sample=sample, sources=sources)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({}, "  a: 10 documents, 2.0 MB\n"),
        ({"documents": estimate(1)}, "  a: 1 document, 2.0 MB\n"),
        (
            {"documents": estimate(10, False), "bytes": estimate(2e6, False), "read": 0.25},
            "  a: about 10 documents, about 2.0 MB  (25.0 % of it was read)\n",
        ),
        ({"read": 0.9999}, "  (99.99 % of it was read)\n"),
        ({"read": 0.0001}, "  (0.01 % of it was read)\n"),
        ({"read": None}, "  a: an unknown number of documents, of unknown size\n"),
        ({"bytes": estimate(None)}, "  a: 10 documents, of unknown size\n"),
    ],
)
def test_a_source_is_told_with_the_share_that_was_read(source, said):
    assert said in forecast(sources=[SOURCE | source])


@pytest.mark.parametrize("quarantined", [0, 2])
@pytest.mark.parametrize(
    ("problem", "why", "told"), [("", "", False), ("p", "", True), ("p", "stage: p", False)]
)
def test_what_is_wrong_with_a_source_is_told_once(quarantined, problem, why, told):
    source = SOURCE | {"quarantined": quarantined, "first_quarantined": "f", "problem": problem}
    text = forecast(sources=[source], stages=[STAGE | {"why": why}])
    assert ("as they cannot be read: 2; the first: f" in text) == bool(quarantined)
    assert ("\n    p\n" in text) == told


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "after curation: not known"),
        (
            {"documents": 10, "train": 8, "validation": 1, "holdout": 1, "bytes": 2e6},
            "after curation (exact): 10 documents, 2.0 MB\n  train 8, validation 1, holdout 1\n",
        ),
        (
            {"documents": 11, "train": 8, "validation": 1, "holdout": 1, "bytes": 2e6},
            "holdout 1, planted in train 1\n",
        ),
    ],
)
@pytest.mark.parametrize("tokens", [None, 1234])
def test_a_curated_corpus_says_what_is_planted_in_it(values, said, tokens):
    known = {name: estimate(value) for name, value in values.items()}
    packed = {"tokens": tokens, "train_rows": 9, "validation_rows": None}
    corpus = CORPUS | known | {name: estimate(value) for name, value in packed.items()}
    text = forecast(corpus=corpus)
    assert said.rstrip("\n") in text and ("planted in train" in text) == ("planted" in said)
    line = "packed (exact): 1,234 tokens to train on, rows to train on 9, to validate on unknown"
    assert (line in text) == (tokens is not None) and ("packed (" in text) == (tokens is not None)


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ({}, "model: 1,000 parameters (exact)\ntraining: 64 tokens in 1 step, 0.50 epochs (exact)"),
        (
            {"parameters": estimate(1000, False)},
            "model: at most 1,000 parameters (exact if the corpus fills the vocabulary)",
        ),
        ({"steps": 1200, "epochs": estimate(None)}, "in 1,200 steps, epochs not known"),
        ({"epochs": estimate(2.0, False)}, "2.00 epochs (estimate)"),
    ],
)
def test_the_training_is_told_as_far_as_it_is_known(training, said):
    text = forecast(training=TRAINING | training)
    assert said in text and "measured on" not in text
    step = {"device": "cpu", "count": 3, "seconds": 0.5, "training_seconds": 600.0, "peak": 2e9}
    text = forecast(training=TRAINING | training | {"step": step})
    assert "measured on cpu in 3 steps: 0.50 s a step, so about 10.0 min for all" in text
    assert "model:" not in forecast()


@pytest.mark.parametrize(
    ("warnings", "said"),
    [
        ([], "nothing was found that would fail"),
        ([{"sure": False, "says": "w"}], "warning: w"),
        ([{"sure": True, "says": "w"}], "WILL FAIL: w"),
    ],
)
def test_a_forecast_ends_with_what_would_fail(warnings, said):
    text = forecast(warnings=warnings, notes=["n"])
    assert text.endswith(f"note: n\n{said}")


@pytest.mark.parametrize(
    ("rows", "seconds", "present", "absent"),
    [
        ([STAGE], (40.0, []), "time in all: about 40.0 s\n  measured", "at least"),
        (
            [STAGE, STAGE | {"label": "x", "seconds": None, "rests_on": ""}],
            (40.0, ["x"]),
            "time in all: at least about 40.0 s",
            "time in all: about",
        ),
        (
            [STAGE | {"seconds": None, "rests_on": ""}],
            (0, ["ingest"]),
            "time in all: not estimated",
            "about",
        ),
        (
            [STAGE | {"state": "store", "artifact": "ingest/0", "seconds": None, "rests_on": ""}],
            (0, []),
            "ingest  store                     ingest/0",
            "time in all",
        ),
        ([STAGE | {"state": "unknown"}], (40.0, []), "not known  40.0 s", "would run"),
        ([STAGE | {"state": "fails", "seconds": None}], (0, []), "FAILS", "not estimated"),
        ([STAGE | {"state": "waits", "seconds": None}], (0, []), "waits", "not estimated"),
        ([STAGE | {"seconds": 7200.0}], (7200.0, []), "about 2.0 h", "min"),
        ([STAGE | {"seconds": 119.9}], (119.9, []), "about 119.9 s", "min"),
        ([STAGE | {"seconds": 172_800}], (172_800, []), "about 2.0 days", " h"),
        (
            [STAGE | {"rests_on": f"estimate: as ingest/{n} took"} for n in range(2)],
            (80.0, []),
            "\n  estimate: as the newest artifact of the stage took",
            "ingest/0",
        ),
    ],
)
def test_the_stages_of_a_forecast_say_what_is_known_of_their_time(rows, seconds, present, absent):
    report = {"stages": rows, "seconds": dict(zip(("value", "without"), seconds, strict=True))}
    text = _render_stages(report)
    assert present in text and absent not in text


# compare, mitigate -------------------------------------------------------------------------------

DIFFERENCE = {
    "value": 0.25,
    "low": None,
    "high": None,
    "p_corrected": None,
    "n": 9,
    "clusters": 9,
}


def comparison(values=(0.5, 0.75), differences=(DIFFERENCE,), refused=None, part="", **more):
    row = {"audit": "bias", "metric": "preference", "slice": part, "unit": "share"}
    rows = [row | {"values": values, "differences": differences}]
    names = [{"name": f"c{n}"} for n in range(len(values))]
    return {"subjects": names, "refused": refused or {}, "rows": rows} | more


@pytest.mark.parametrize(
    ("report", "lines"),
    [
        (
            comparison(),
            ["    preference  50.0 %  75.0 %", "        difference 25.0 points, 9 pairs"],
        ),
        (comparison(part="a=b"), ["    preference[a=b]  50.0 %  75.0 %"]),
        (comparison((None, 0.0)), ["    preference  not measured  0.0 %"]),
        (comparison(differences=[None]), ["    preference  50.0 %  75.0 %"]),
        (
            comparison(differences=[DIFFERENCE | {"value": None}]),
            ["        no pair has both values"],
        ),
        (
            comparison((0.5, 0.75, 0.25), [None, DIFFERENCE]),
            ["        c2: difference 25.0 points, 9 pairs"],
        ),
        (comparison(refused={"weat": "why"}), ["not compared: weat: why", "", "bias"]),
    ],
)
def test_a_comparison_names_values_and_differences_that_there_are(report, lines):
    text = render_comparison(report)
    assert "\n".join(lines) in text
    known = [each for each in report["rows"][0]["differences"] if each]
    assert text.count(" pairs") == sum(each["value"] is not None for each in known)
    assert ("not compared" in text) == bool(report["refused"])


@pytest.mark.parametrize(
    ("left_out", "said", "fewer"),
    [
        ([0, 0], "left out: 0 documents; of the control 0 others", False),
        ([1, 1], "left out: 1 document; of the control 1 other", False),
        ([1, 1234], "left out: 1,234 documents; of the control 1 other", True),
        ([5, 5], "left out: 5 documents; of the control 5 others", False),
    ],
)
@pytest.mark.parametrize("documents", [None, "ids.txt"])
def test_a_mitigation_says_what_was_left_out(left_out, said, fewer, documents):
    report = comparison(left_out=left_out, documents=documents, price=[])
    text = render_mitigation(report)
    assert said in text and ("the control lacks fewer" in text) == fewer
    assert text.endswith("are listed in ids.txt") == bool(documents)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((2.0, 2.5), "    source town  2.0000  2.5000  (+0.5000), 1 byte\n"),
        ((2.5, 2.0), "    source town  2.5000  2.0000  (-0.5000), 1 byte\n"),
        ((2.0, 2.0), "    source town  2.0000  2.0000  (+0.0000), 1 byte\n"),
        ((None, 2.0), None),
        ((2.0, None), None),
    ],
)
def test_the_price_of_a_mitigation_has_both_values_or_no_line(values, said):
    price = [{"kind": "source", "name": "town", "bytes": 1, "values": values}]
    text = render_mitigation(comparison(left_out=[1, 1], documents=None, price=price))
    assert (said in text) if said else ("source town" not in text)


# prove -------------------------------------------------------------------------------------------

EFFECT = {
    "case": "x",
    "what": "change",
    "arm": "removed",
    "value": -0.5,
    "low": -0.6,
    "high": -0.4,
    "n": 9,
    "unit": "bits",
    "verdict": "",
}


def proof(**changes):
    report = {
        "base": "r0",
        "page": "p",
        "arms": [],
        "runs": {"base": "r0"},
        "cases": [{"case": "x", "documents": 3, "removed": 2, "why": ""}],
        "effects": [],
        "lines": [],
        "price": [],
    }
    return render_proof(report | changes)


@pytest.mark.parametrize(
    ("documents", "size", "said"),
    [
        (0, 0, "    base: run r0, without 0 documents, 0 bytes"),
        (1, 1, "    base: run r0, without 1 document, 1 byte"),
        (1234, 5678, "    base: run r0, without 1,234 documents, 5,678 bytes"),
    ],
)
def test_an_arm_of_a_proof_says_what_it_lacks(documents, size, said):
    assert said in proof(arms=[{"arm": "base", "documents": documents, "bytes": size}])


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ({}, "x: 3 documents behind it, 2 removed\n"),
        ({"documents": 1, "removed": 1}, "x: 1 document behind it, 1 removed\n"),
        (
            {"documents": 0, "removed": 0, "why": "no training document is behind it"},
            "x: 0 documents behind it, 0 removed; no training document is behind it\n",
        ),
    ],
)
def test_a_case_of_a_proof_counts_its_documents(case, said):
    assert said in proof(cases=[{"case": "x", "documents": 3, "removed": 2, "why": ""} | case])


@pytest.mark.parametrize(
    ("effect", "said"),
    [
        (
            {},
            "removed less base                              −0.5000  (−0.6000 to −0.4000), n = 9\n",
        ),
        ({"verdict": "within noise"}, "(−0.6000 to −0.4000), n = 9  within noise\n"),
        ({"low": None, "high": None}, "−0.5000  (no interval), n = 9\n"),
        ({"value": None, "low": None, "high": None}, "      –  (no interval), n = 9\n"),
        ({"unit": "share"}, "−50.0 points  (−60.0 points to −40.0 points), n = 9\n"),
        ({"what": "value", "unit": "share"}, "    removed  "),
        ({"what": "nothing"}, "    removed, where there is nothing to find  "),
        ({"what": "region"}, "    99 % null region  "),
        ({"what": "before"}, "    effect before  "),
        ({"what": "left"}, "    left after removal  "),
        ({"what": "against"}, "    random less removed  "),
        ({"what": "explained"}, "    share explained  "),
    ],
)
def test_an_effect_of_a_proof_has_the_interval_that_is_known(effect, said):
    assert said in proof(effects=[EFFECT | effect])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"verdict": "pass"}, "    pass      l: 0.5000, above 0.2500\n"),
        ({"verdict": "fail"}, "    fail      l: 0.5000, above 0.2500\n"),
        ({"verdict": "", "value": None}, "    not known l: –, above 0.2500\n"),
        ({"verdict": "", "bound": None}, "    not known l: 0.5000, above –\n"),
    ],
)
def test_a_line_of_a_proof_is_reached_or_not_or_not_known(line, said):
    row = {"case": "x", "line": "l", "value": 0.5, "must": "above", "bound": 0.25, "unit": "bits"}
    assert said in proof(lines=[row | line])


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ({"base": 2.0, "removed": 2.5}, "    source town, 9 bytes: base 2.0000, removed 2.5000\n"),
        ({"base": 2.0, "removed": None}, "    source town, 9 bytes: base 2.0000\n"),
        ({"base": None}, "    source town, 9 bytes: nothing was predicted\n"),
    ],
)
def test_the_price_of_a_proof_names_the_arms_that_have_one(losses, said):
    row = {"kind": "source", "name": "town", "bytes": 9}
    rows = [row | {"arm": arm, "bits_per_byte": loss} for arm, loss in losses.items()]
    assert said in proof(price=rows)


# study -------------------------------------------------------------------------------------------


def studied(**changes):
    names = ("worlds", "detection", "alarms", "calibration", "smallest", "precision", "removed")
    return study.render_study({name: [] for name in names} | changes)


def world(counts, why=""):
    return {"world": "w", "counts": counts, "why": why}


@pytest.mark.parametrize(
    ("worlds", "said"),
    [
        ([], "0 of 0 worlds count\n"),
        ([world(True)], "1 of 1 world counts\n"),
        ([world(False, "gone")], "0 of 1 world counts\n    w: gone\n"),
        ([world(True), world(False, "gone")], "1 of 2 worlds count\n    w: gone\n"),
    ],
)
def test_a_study_counts_its_worlds(worlds, said):
    assert studied(worlds=worlds).startswith(said)


RATE = {"kind": "canary", "value": 0.5, "low": 0.25, "high": 0.75, "n": 1234}


@pytest.mark.parametrize(
    ("rate", "said"),
    [
        ({}, "50.0 % (25.0 % to 75.0 %), n 1,234"),
        ({"low": None, "high": None}, "50.0 %, n 1,234"),
        ({"value": 0.0, "low": None}, "0.0 %, n 1,234"),
        ({"value": 0.9999, "low": None}, "99.99 %, n 1,234"),
        ({"value": 0.0001, "low": None}, "0.01 %, n 1,234"),
        ({"value": None}, "not measured, n 1,234"),
    ],
)
def test_a_rate_of_a_study_never_lets_almost_all_pass_for_all(rate, said):
    text = studied(alarms=[RATE | rate])
    assert f"    canary             {said}\n" in text


@pytest.mark.parametrize("removed", [[], [RATE | {"arm": "random"}]])
def test_a_study_tells_of_models_without_documents_where_there_are_any(removed):
    text = studied(removed=removed)
    assert ("by how much figures fall without the documents" in text) == bool(removed)
    assert ("    canary random         50.0 %" in text) == bool(removed)


@pytest.mark.parametrize(
    ("effects", "dose", "said"),
    [
        ([True], 64.0, "64"),
        ([True], 0.25, "0.25"),
        ([True], None, "none"),
        ([False, True], None, "none"),
        ([False], None, "there was no effect to find"),
        ([None], None, "there was no effect to find"),  # less than of others
        ([], None, "there was no effect to find"),
    ],
)
def test_the_smallest_dose_is_none_only_where_there_was_one_to_find(effects, dose, said):
    detection = [RATE | {"dose": 64.0, "effect": effect} for effect in effects]
    text = studied(detection=detection, smallest=[{"kind": "canary", "dose": dose}])
    assert text.endswith(f"    canary             {said}")
    assert text.count("canary 64 ") == len(effects)


@pytest.mark.parametrize(("worlds", "said"), [(1, "1 world, 2 at a time"), (3, "3 worlds, 2 at")])
def test_a_study_says_how_many_worlds_are_to_come(stderr, worlds, said):
    study.print_study_start(SimpleNamespace(worlds=worlds, without=0, at_once=2))
    assert stderr.getvalue().startswith(said)


# status ------------------------------------------------------------------------------------------

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
    "stale": [],
}


def status_of(stage=None, **changes):
    report = {
        "run": "r1",
        "flow": "pipeline",
        "config_name": "demo",
        "config_file": None,
        "config_problem": None,
        "overrides": [],
        "checkpoint": None,
        "until": None,
        "only": None,
        "findings": None,
        "seeds": None,
        "error": None,
        "status": "completed",
        "store": "s",
        "store_must_be_named": False,
        "here": "/h",
        "folder": "/h",
        "read_from": "/h",
        "stages": [STATUS_STAGE | (stage or {})],
    }
    return render_status(report | changes)


@pytest.mark.parametrize(
    ("stage", "changes", "last"),
    [
        ({}, {}, "nothing is stale"),
        ({"stale": ["code: a"]}, {}, "stale stages run again with: hallmark run demo"),
        ({}, {"status": "running"}, "still running"),
        ({"stale": ["code: a"]}, {"status": "running"}, "still running"),
        ({}, {"status": "failed"}, "it goes on with: hallmark run demo"),
        ({}, {"status": "interrupted"}, "it goes on with: hallmark run demo"),
        (
            {"stale": ["code: a"]},
            {"config_problem": "why"},
            "its config can no longer be read (why), so changed settings are not seen",
        ),
        ({}, {"stages": []}, "nothing is stale"),
    ],
)
def test_what_to_do_next_follows_from_the_status_and_what_is_stale(stage, changes, last):
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
def test_a_stage_says_what_it_left(stage, present, absent):
    text = status_of(stage)
    assert present in text and absent not in text


@pytest.mark.parametrize(
    ("changes", "present"),
    [
        ({}, "run r1  pipeline of config demo: completed\nstore s"),
        ({"error": "why", "status": "failed"}, "config demo: failed (why)\n"),
        ({"flow": "audit", "checkpoint": "r0@9"}, "audit of r0@9, config demo"),
        ({"flow": "pipeline", "checkpoint": "r0@9"}, "pipeline of config demo"),
        ({"read_from": "/r", "folder": "/r"}, "relative paths start from /r, where the run was"),
        ({"folder": "/f"}, "relative paths start from here, /h: /f, where the run was started, is"),
    ],
)
def test_the_head_of_a_status_follows_from_the_record(changes, present):
    text = status_of(**changes)
    assert present in text
    assert ("relative paths" in text) == ("relative paths" in present)


# verify, replay, doctor --------------------------------------------------------------------------


def verification(damaged=0, artifacts=1, files=1, run=None, not_stored=()):
    damage = [f"file {n}" for n in range(damaged)]
    report = {"store": "s", "run": run, "artifacts": artifacts, "files": files, "bytes": 2e6}
    return render_verification(report | {"not_stored": [*not_stored], "damaged": damage})


@pytest.mark.parametrize(
    ("report", "first"),
    [
        ({}, "store s: 1 artifact, 1 file, 2.0 MB read"),
        ({"artifacts": 0, "files": 0}, "store s: 0 artifacts, 0 files, 2.0 MB read"),
        ({"artifacts": 1234, "run": "r"}, "run r: 1,234 artifacts, 1 file, 2.0 MB read"),
    ],
)
def test_a_verification_counts_what_it_read(report, first):
    assert verification(**report) == f"{first}\nnothing is damaged"


@pytest.mark.parametrize(("damaged", "hidden"), [(0, 0), (1, 0), (20, 0), (21, 1), (22, 2)])
@pytest.mark.parametrize("not_stored", [(), ("a/0", "b/0")])
def test_damage_is_counted_and_what_was_not_read_is_named(damaged, hidden, not_stored):
    text = verification(damaged, not_stored=not_stored)
    last = f"{damaged} damaged" if damaged else "nothing is damaged"
    assert text.splitlines()[-1] == last
    assert (f"and {hidden} more; --json lists all" in text) == bool(hidden)
    assert ("not in this store, so not read: a/0, b/0" in text) == bool(not_stored)
    assert sum(line.startswith("file ") for line in text.splitlines()) == min(damaged, 20)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (HallmarkError("why"), "why"),
        (OSError(5, "broken", "f"), "f cannot be read (broken)"),
        (OSError("odd"), "a record cannot be read (odd)"),
    ],
)
def test_what_cannot_be_read_is_named(error, said):
    assert describe_read_failure(error, "a record") == said


def replay_of(*verdicts, green=True, store=None):
    stages = [
        {"label": f"s{n}", "determinism": "exact", "verdict": verdict, "differs": ["table t"] * n}
        for n, verdict in enumerate(verdicts)
    ]
    return render_replay({"run": "r1", "stages": stages, "green": green, "store": store})


@pytest.mark.parametrize(
    ("verdicts", "green", "last"),
    [
        (["equal"], True, "green: every stage holds its class"),
        (["equal", "within intervals"], True, "green: every stage holds its class"),
        (
            ["equal", "other machine", "other inputs"],
            True,
            "green: every stage that was judged holds its class; not s1, s2",
        ),
        (["equal", "differs"], False, "NOT green"),
        (["missing", "other inputs"], False, "NOT green"),
    ],
)
def test_a_replay_is_green_and_names_what_was_not_judged(verdicts, green, last):
    text = replay_of(*verdicts, green=green)
    assert text.splitlines()[-1] == last
    assert text.count("(table t") == max(0, len(verdicts) - 1)
    assert replay_of(*verdicts, store="f").endswith("store of the replay: f")


@pytest.mark.parametrize(("ok", "mark"), [(True, "ok  disk"), (False, "BAD disk")])
def test_a_check_of_the_machine_is_ok_or_bad(ok, mark):
    assert render_check_results([{"ok": ok, "what": "disk", "says": "s"}]).startswith(mark)


# purge -------------------------------------------------------------------------------------------


def purged(**changes):
    report = {
        "store": "s",
        "dry_run": False,
        "documents": ["d"],
        "copies": [],
        "copies_purged": False,
        "near": [],
        "artifacts": {"ingest/0": ["documents"]},
        "runs": [],
        "weights": [],
        "tokenizers": [],
        "scratch": [],
        "pages": [],
        "beyond": [],
        "unread": {},
    }
    return render_purge(report | changes)


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_purge_says_what_was_done_or_would_be(dry_run):
    text = purged(dry_run=dry_run, scratch=["w"])
    would = "would be " if dry_run else ""
    assert f"ingest/0: {would}rewritten: documents\n" in text
    assert f"work areas {would}removed: w\n" in text
    assert text.endswith("nothing has been changed") == dry_run
    assert ("ingest takes it no more" in text) == (not dry_run)


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("artifacts", [{}, {"ingest/0": ["documents"]}])
def test_a_run_that_held_a_document_is_not_said_to_hold_it(dry_run, artifacts):
    """After an earlier purge no artifact holds anything of it, and a dry run names its runs."""
    text = purged(dry_run=dry_run, artifacts=artifacts, runs=["r1"])
    assert ("no artifact holds anything of it" in text) == (not artifacts)
    title = "runs that hold it, or held it: r1" if dry_run else "runs that held it: r1"
    assert title in text and "runs" not in purged(artifacts=artifacts).split("its runs")[0]


@pytest.mark.parametrize(
    ("purged_too", "said"), [(True, "exact copies, purged too: c"), (False, "which stay (--copies")]
)
def test_copies_stay_where_they_are_not_purged(purged_too, said):
    assert said in purged(copies=["c"], copies_purged=purged_too)
    assert "exact copies" not in purged(copies_purged=purged_too)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([], "no checkpoint read it"),
        ([{"steps": [3], "start": None}], "    c, step 9: read in step 3\n"),
        (
            [{"steps": list(range(13)), "start": None}],
            "    c, step 9: read in steps 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 1 more\n",
        ),
        ([{"steps": None, "start": "d"}], "    c, step 9: goes on from d\n"),
        ([{"steps": None, "start": None}], "    c, step 9: steps not known\n"),
    ],
)
def test_a_checkpoint_says_how_it_read_a_document(weights, said):
    rows = [{"checkpoint": "c", "step": 9} | row for row in weights]
    text = purged(weights=rows)
    assert said in text and ("which nothing can clean" in text) == bool(weights)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("tokenizers", ["t"], "tokenizers trained on it, as they were: t"),
        ("near", ["n"], "documents that matched it, to be looked at: n"),
        ("pages", ["p"], "pages: p"),
        ("beyond", ["b"], "unmasked pages out of the store, to be removed by hand: b"),
        ("unread", {"ingest/0": 2}, "guess at their encoding: 2 of ingest/0"),
    ],
)
def test_a_purge_names_only_what_there_is(key, value, said):
    assert said in purged(**{key: value}) and said.split(":")[0] not in purged()


# trace, batch ------------------------------------------------------------------------------------


def document_trace(**changes):
    report = {"doc_id": "d", "run": "r1", "stages": [], "packed": True, "spans": [], "steps": []}
    return render_document_trace(report | changes)


SPAN = {
    "split": "train",
    "sequence": 3,
    "start": 0,
    "end": 9,
    "char_start": 0,
    "char_end": 40,
}


@pytest.mark.parametrize(
    ("changes", "last"),
    [
        ({"packed": False}, "the run packed nothing"),
        ({}, "its tokens stand in no packed sequence"),
        ({"spans": [SPAN]}, "read in no step"),
        ({"spans": [SPAN], "steps": [4]}, "read in 1 training step: 4"),
        ({"spans": [SPAN], "steps": [4, 5]}, "read in 2 training steps: 4, 5"),
    ],
)
def test_a_document_says_whether_training_read_it(changes, last):
    assert document_trace(**changes).splitlines()[-1] == last


def test_long_lists_of_a_trace_say_how_much_they_leave_out():
    from hallmark.flows.commands.trace import MAX_LISTED_ITEMS, MAX_TEXT_CHARACTERS

    for more, stretches, rows, characters in (
        (0, "", "", ""),
        (1, "and 1 more stretch\n", "t: and 1 more row", "and 1 more character;"),
        (2, "and 2 more stretches\n", "t: and 2 more rows", "and 2 more characters;"),
    ):
        count = MAX_LISTED_ITEMS + more
        stage = {
            "stage": "ingest",
            "run": "r1",
            "tables": {"t": [{"a": 1}] * count},
            "text": "a" * (MAX_TEXT_CHARACTERS + more),
        }
        text = document_trace(stages=[stage], spans=[SPAN] * count, steps=list(range(count)))
        for said in (stretches, rows, characters):
            assert said in text
        assert ("more" in text) == bool(more) and (" …\n" in f"{text}\n") == bool(more)


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ({}, "ingest              "),
        ({"state": "out"}, "ingest              out"),
        ({"state": "in", "source": "s", "changed": False}, "ingest              in, s"),
        (
            {"state": "in", "source": "s", "changed": True},
            "ingest              in, s, text changed",
        ),
        (
            {"state": "in", "source": "s", "purged": "2026-01-02T10:00"},
            "ingest              in, s, purged on 2026-01-02",
        ),
        ({"state": "out", "run": "r0"}, "ingest              out (run r0)"),
    ],
)
def test_a_stage_says_what_became_of_a_document(stage, said):
    lines = document_trace(stages=[{"stage": "ingest", "run": "r1", "tables": {}} | stage])
    assert lines.splitlines()[2] == said


FINDING = {
    "audit": "bias",
    "metric": "preference",
    "slice": "",
    "value": 0.5,
    "unit": "share",
    "low": None,
    "high": None,
    "null": None,
    "n": 9,
    "method": "m",
}


def finding_trace(finding=None, **changes):
    report = {
        "finding": FINDING | (finding or {}),
        "checkpoint": "c",
        "table": "values",
        "artifact": "a/0",
        "rows": 0,
        "worst": [],
        "unknown": False,
        "least": None,
    }
    return render_finding_trace(report | changes)


@pytest.mark.parametrize(
    ("finding", "said"),
    [
        ({}, "    0.5 share, n = 9; m\n"),
        ({"value": None}, "    not measured, n = 9; m\n"),
        ({"value": 0.0}, "    0 share, n = 9; m\n"),
        ({"low": 0.0, "high": 1.0}, "    0.5 share, interval 0 to 1, n = 9; m\n"),
        ({"low": 0.0}, "    0.5 share, n = 9; m\n"),  # of one end
        ({"null": 0.0}, "    0.5 share, null 0, n = 9; m\n"),
        ({"slice": "a=b"}, "bias.preference[a=b]\n"),
    ],
)
def test_a_traced_finding_says_what_is_known_of_it(finding, said):
    assert said in finding_trace(finding)


ROW = {"row": {"a": 1}, "documents": [], "more": 0}


@pytest.mark.parametrize(
    ("rows", "shown", "said"),
    [
        (0, 0, "    0 rows of values in a/0"),
        (1, 1, "    1 row of values in a/0"),
        (2, 2, "    2 rows of values in a/0"),
        (1234, 2, "    the first 2 of 1,234 rows of values in a/0"),
    ],
)
@pytest.mark.parametrize("unknown", [True, False])
def test_a_traced_finding_says_how_many_rows_it_shows(rows, shown, said, unknown):
    text = finding_trace(rows=rows, worst=[ROW] * shown, unknown=unknown)
    assert said in text and text.count("row 1:") == min(shown, 1)
    assert ("what was written was not looked for in the corpus" in text) == unknown


DOCUMENT = {
    "doc_id": "d",
    "source": "s",
    "licence": "",
    "split": "train",
    "read": None,
    "first_step": None,
    "text": "t",
}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, "    d s\n"),
        ({"licence": "CC0", "size": 1, "score": 0.5}, "    d s, CC0, 1 token, 50%\n"),
        ({"size": 12}, "    d s, 12 tokens\n"),
        ({"read": 0}, "    d s, not read yet\n"),
        ({"read": 1, "first_step": 5}, "    d s, read once, first in step 5\n"),
        ({"read": 3, "first_step": 5}, "    d s, read 3 times, first in step 5\n"),
        (
            {"read": 3, "first_step": 5, "training": "p/0"},
            "    d s, read 3 times, first in step 5 of the training before\n",
        ),
        (
            {"read": 0, "first_step": 5, "sequence": 3},
            "    d s, not read yet: first in step 5\n",
        ),
        ({"read": 0, "first_step": 5}, "    d s, not read whole yet, first in step 5\n"),
        ({"split": "holdout"}, "    d s, held out (holdout): nobody trains on it\n"),
    ],
)
def test_a_document_behind_a_row_says_when_it_was_read(document, said):
    row = ROW | {"documents": [DOCUMENT | document]}
    assert said in finding_trace(rows=1, worst=[row])


@pytest.mark.parametrize(
    ("row", "least", "said"),
    [
        ({}, 8, "no run of 8 tokens of what was written stands in the training text"),
        ({"documents": [DOCUMENT]}, 8, None),
        ({}, None, None),
        ({"more": 1}, None, "    and 1 more document"),
        ({"more": 2}, None, "    and 2 more documents"),
        ({"attributed": []}, None, "    attributed: none shares its words"),
        ({"attributed": [DOCUMENT]}, None, "    attributed, an estimate: share of the weight of"),
    ],
)
def test_a_row_of_a_finding_says_what_is_behind_it(row, least, said):
    text = finding_trace(rows=1, worst=[ROW | row], least=least)
    for words in ("no run of", "more document", "attributed"):
        assert (words in text) == bool(said and words in said)
    assert said is None or said in text


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 sequences"), (1, "1 sequence"), (2, "2 sequences")]
)
def test_a_batch_counts_its_sequences(count, said):
    sequences = [{"sequence": n, "spans": []} for n in range(count)]
    text = render_batch({"run": "r1", "step": 3, "packed": "p/0", "sequences": sequences})
    assert text.splitlines()[0] == f"run r1, step 3: {said}"


@pytest.mark.parametrize(
    ("length", "shown"), [(59, "a" * 59), (60, "a" * 60), (61, "a" * 59 + "…")]
)
def test_a_stretch_of_a_batch_is_cut_where_it_is_long(length, shown):
    span = SPAN | {"doc_id": "d", "source": "s", "text": "a" * length}
    sequences = [{"sequence": 0, "spans": [span]}]
    text = render_batch({"run": "r1", "step": 3, "packed": "p/0", "sequences": sequences})
    assert text.endswith(f"\n   {shown}") and "tokens 0 to 8 " in text and "0 to 39" in text


# finetune, generate ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("score", "said"),
    [
        ({}, "accuracy     model 0.500, n = 1,234"),
        ({"low": 0.25, "high": 0.75}, "accuracy     model 0.500 (0.250 to 0.750), n = 1,234"),
        ({"value": None}, "accuracy     model unknown, n = 1,234"),
        ({"value": 0.0}, "accuracy     model 0.000, n = 1,234"),
        ({"unit": "points"}, "accuracy     model 0.500 points, n = 1,234"),
    ],
)
def test_a_score_says_what_is_known_of_it(score, said):
    row = {"metric": "accuracy", "system": "model", "value": 0.5, "low": None, "high": None}
    row |= {"unit": "share", "n": 1234, "slice": ""}
    assert render_scores([row | score, row | {"slice": "a label"}]) == said


@pytest.mark.parametrize(
    ("tokens", "ended", "said"),
    [(1, True, "1 token, ended"), (1, False, "1 token"), (2, False, "2 tokens")],
)
def test_what_was_written_says_whether_it_ended(tokens, ended, said):
    output = {
        "method": "greedy",
        "settings": {"width": 1},
        "log_prob": -1.0,
        "log_prob_per_token": -1.0 / tokens,
        "tokens": tokens,
        "ended": ended,
        "text": "",
    }
    report = {
        "checkpoint": "c",
        "prompt": "p",
        "prompt_tokens": tokens,
        "seed": 0,
        "precision": "fp32",
        "written": [output],
    }
    lines = render_generation(report).splitlines()
    count = "1 token" if tokens == 1 else "2 tokens"
    assert lines[1] == f"{count} read, seed 0, fp32; log p in nats"
    assert lines[3].endswith(f"per token, {said}") and lines[4] == "    | "
