"""Decide what the verdicts of policy rules on single findings say of rules and of the policy.

The ``policy`` stage gives a verdict on each finding. Commands, cards, the index of the site and
Prefect's pages all take the outcome of rules and of the policy from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hallmark.tasks.contract import format_count

#: The verdict of a rule on a finding, of a rule on all its findings, and of a policy.
RuleVerdict = Literal["pass", "fail", "not_shown"]

#: The verdicts in words, the worst first.
VERDICT_NAMES: dict[str, str] = {
    "fail": "failed",
    "not_shown": "not shown",
    "pass": "passed",
}


@dataclass(frozen=True)
class PolicyOutcome:
    """Hold the names of the rules of a policy by verdict; all are empty without a policy.

    Attributes:
        failed_rules: Rules with a finding that violates them.
        not_shown_rules: Other rules with a finding that could not be judged.
        passed_rules: Rules that all their findings pass.
    """

    failed_rules: tuple[str, ...] = ()
    not_shown_rules: tuple[str, ...] = ()
    passed_rules: tuple[str, ...] = ()

    @property
    def verdict(self) -> RuleVerdict | None:
        """The verdict of the whole policy; None without rules."""
        if self.failed_rules:
            return "fail"
        if self.not_shown_rules:
            return "not_shown"
        return "pass" if self.passed_rules else None

    def to_json_fields(self) -> dict[str, Any]:
        """Return the verdict and the rules as the fields of a JSON object."""
        return {
            "policy": self.verdict,
            "failed_rules": [*self.failed_rules],
            "not_shown_rules": [*self.not_shown_rules],
            "passed_rules": [*self.passed_rules],
        }

    def describe(self) -> str:
        """Say in a clause how many rules have which verdict; empty without rules."""
        rule_count = len(self.failed_rules) + len(self.not_shown_rules) + len(self.passed_rules)
        total = format_count(rule_count, "rule")
        if self.verdict == "fail":
            unjudged_text = (
                f", {len(self.not_shown_rules)} could not be judged" if self.not_shown_rules else ""
            )
            return f"policy failed: {len(self.failed_rules)} of {total} failed{unjudged_text}"
        if self.verdict == "not_shown":
            return (
                f"policy not shown to pass: {len(self.not_shown_rules)} of {total} could not be "
                "judged"
            )
        return f"policy passed: {total}" if self.verdict else ""


def judge_policy(verdict_rows: Iterable[Mapping[str, Any]]) -> PolicyOutcome:
    """Group rules by their verdict: a rule has the worst verdict of its findings.

    Args:
        verdict_rows: Rows of VERDICTS, at least the columns rule and verdict.
    """
    verdicts_by_rule: dict[str, set[str]] = {}
    for row in verdict_rows:
        verdicts_by_rule.setdefault(row["rule"], set()).add(row["verdict"])
    worst_by_rule = {
        rule: next(verdict for verdict in VERDICT_NAMES if verdict in verdicts)
        for rule, verdicts in verdicts_by_rule.items()
    }
    failed_rules, not_shown_rules, passed_rules = (
        tuple(rule for rule, worst in worst_by_rule.items() if worst == verdict)
        for verdict in VERDICT_NAMES
    )
    return PolicyOutcome(failed_rules, not_shown_rules, passed_rules)


def describe_distance(distance: float, distance_text: str) -> str:
    """Say on which side of the limit of a rule the judged figure is.

    Args:
        distance: The column of VERDICTS.
        distance_text: Its absolute value, formatted.
    """
    if not distance:
        return "exactly at the limit"
    return f"{distance_text} {'beyond' if distance > 0 else 'within'} the limit"
