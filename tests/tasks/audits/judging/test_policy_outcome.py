"""Test how verdicts on findings become verdicts on rules and on the policy, and their words."""

import pytest

from hallmark.tasks.audits.judging.policy_outcome import PolicyOutcome, judge_policy


def judge(*verdicts):
    return judge_policy({"rule": rule, "verdict": verdict} for rule, verdict in verdicts)


@pytest.mark.parametrize(
    ("verdicts", "failed", "not_shown", "passed", "policy"),
    [
        ([], (), (), (), None),
        ([("a", "pass")], (), (), ("a",), "pass"),
        ([("a", "fail")], ("a",), (), (), "fail"),
        ([("a", "not_shown")], (), ("a",), (), "not_shown"),
        # One finding is enough.
        ([("a", "not_shown"), ("a", "fail"), ("a", "pass")], ("a",), (), (), "fail"),
        ([("a", "pass"), ("a", "not_shown")], (), ("a",), (), "not_shown"),
        ([("a", "pass"), ("a", "pass")], (), (), ("a",), "pass"),
        # A rule that could not be judged does not hide one that failed.
        ([("b", "fail"), ("a", "not_shown"), ("b", "fail")], ("b",), ("a",), (), "fail"),
        ([("b", "pass"), ("a", "not_shown")], (), ("a",), ("b",), "not_shown"),
    ],
)
def test_a_rule_and_a_policy_have_the_worst_verdict(verdicts, failed, not_shown, passed, policy):
    outcome = judge(*verdicts)
    assert outcome == PolicyOutcome(failed, not_shown, passed)
    assert outcome.verdict == policy
    assert outcome.to_json_fields() == {
        "policy": policy,
        "failed_rules": [*failed],
        "not_shown_rules": [*not_shown],
        "passed_rules": [*passed],
    }


@pytest.mark.parametrize(
    ("verdicts", "text"),
    [
        ("", ""),
        ("p", "policy passed: 1 rule"),
        ("ppp", "policy passed: 3 rules"),
        ("f", "policy failed: 1 of 1 rule failed"),
        ("ffp", "policy failed: 2 of 3 rules failed"),
        ("fnnp", "policy failed: 1 of 4 rules failed, 2 could not be judged"),
        ("npn", "policy not shown to pass: 2 of 3 rules could not be judged"),
        ("n", "policy not shown to pass: 1 of 1 rule could not be judged"),
    ],
)
def test_the_three_outcomes_are_counted_in_words(verdicts, text):
    names = {"p": "pass", "f": "fail", "n": "not_shown"}
    assert judge(*((str(i), names[v]) for i, v in enumerate(verdicts))).describe() == text
