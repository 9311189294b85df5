"""Judge a checkpoint's findings by the rules of a policy.

A rule uses the end of the interval that speaks against the checkpoint: the upper end if the value
must stay below a bound, the lower end if it must reach one. A finding without an interval, or
without a value, passes no rule: the rule is not shown to hold. Counts of skipped items
(SKIPPED_COUNT_METRICS) and of items in the training text are exact and are judged by their value.
Counts and maxima over texts that a model wrote are estimates, because more texts may contain more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import pyarrow as pa
from pydantic import Field, field_validator, model_validator

from hallmark.tasks.audits.audit_descriptions import ITEMS_IN_TRAINING_TEXT
from hallmark.tasks.audits.judging.findings import read_findings
from hallmark.tasks.audits.registry import (
    AUDIT_DESCRIPTIONS,
    SKIPPED_COUNT_METRICS,
    compute_descriptions_digest,
)
from hallmark.tasks.audits.slice_tags import SLICE_TYPE, format_slice_as_toml, tags_to_slice
from hallmark.tasks.contract import (
    Artifact,
    PathSafeName,
    StageConfig,
    StageContext,
    UsageError,
    column,
    format_closest_name_hint,
    rows_to_table,
    stage,
    table_schema,
)

#: The columns of the ends of an interval.
INTERVAL_ENDS = ("low", "high")

#: The kinds of bounds, and the signs that show them.
BOUND_SIGNS = {"lt": "<", "le": "≤", "gt": ">", "ge": "≥"}

VERDICTS = table_schema(
    "Verdict of each policy rule on each finding that it applies to.",
    column("rule", pa.string(), "label", "the rule"),
    column("audit", pa.string(), "label", "the audit"),
    column("metric", pa.string(), "label", "the metric"),
    column(
        "slice",
        SLICE_TYPE,
        "label",
        "subset of the units (slice) that the rule applies to: names and values; empty: all units",
    ),
    column("bound", pa.string(), "label", "the bound of the rule"),
    column("value", pa.float64(), "figure", "the value of the finding"),
    column(
        "interval_end",
        pa.float64(),
        "figure",
        "end of the confidence interval that was compared with the bound, or the value "
        "of a count; null: there is none",
    ),
    column(
        "distance",
        pa.float64(),
        "figure",
        "distance by which the compared end of the interval violates the bound; above 0: the "
        "bound is violated; null: there is no interval to compare",
    ),
    column("verdict", pa.string(), "label", "pass or fail"),
    column("reason", pa.string(), "project text", "the reason in words"),
)


class RuleBound(NamedTuple):
    """Hold the bound of a rule.

    Attributes:
        comparison: How the finding must compare with the limit: a key of BOUND_SIGNS.
        limit: The limit.
    """

    comparison: str
    limit: float


class UnmatchedSetting(NamedTuple):
    """Say why a rule applies to no finding.

    Attributes:
        setting: The setting of the rule that matches no finding: "metric" or "slice".
        reason: The reason, in a clause.
    """

    setting: str
    reason: str


class UnpassedRules(NamedTuple):
    """Name the rules of a policy that did not pass.

    Attributes:
        failed: Rules with a finding that violates the bound.
        not_shown: Other rules with a finding that could not be compared with the bound.
    """

    failed: list[str]
    not_shown: list[str]


class PolicyRule(StageConfig):
    """Bound for the findings of a metric; without rules there is no verdict."""

    audit: str = Field(description="name of the audit, as in hallmark audit --only")
    metric: str = Field(description="the metric of the findings")
    slice: dict[str, str] | None = Field(
        None,
        description="slice (subset of the units) whose findings the rule applies to: names and "
        "values; {}: the finding about all units; not set: every slice except those of "
        "a baseline",
    )
    lt: float | None = Field(
        None,
        allow_inf_nan=False,
        description="upper bound: the rule passes if the finding is less than this value",
    )
    le: float | None = Field(
        None,
        allow_inf_nan=False,
        description="upper bound: the rule passes if the finding is at most this value",
    )
    gt: float | None = Field(
        None,
        allow_inf_nan=False,
        description="lower bound: the rule passes if the finding is greater than this value",
    )
    ge: float | None = Field(
        None,
        allow_inf_nan=False,
        description="lower bound: the rule passes if the finding is at least this value",
    )

    @field_validator("audit")
    @classmethod
    def _check_audit(cls, audit: str) -> str:
        if audit not in AUDIT_DESCRIPTIONS:
            raise ValueError(
                f"must be one of {', '.join(AUDIT_DESCRIPTIONS)}"
                f"{format_closest_name_hint(audit, AUDIT_DESCRIPTIONS)}"
            )
        return audit

    @field_validator("slice", mode="before")
    @classmethod
    def _convert_slice_tags(cls, tags: object) -> object:
        if not isinstance(tags, str):
            return tags_to_slice(tags) if isinstance(tags, Mapping) else tags
        raise ValueError(
            'must be an object of names and values, such as {group_name = "women"}, '
            "or {} for all units"
        )

    @model_validator(mode="after")
    def _check_single_bound(self) -> PolicyRule:
        bounds = [name for name in BOUND_SIGNS if getattr(self, name) is not None]
        if len(bounds) != 1:
            present_bounds = f"; it has {' and '.join(bounds)}" if bounds else ""
            raise ValueError(
                f"needs exactly one of the bounds {', '.join(BOUND_SIGNS)}{present_bounds}"
            )
        return self

    @property
    def bound(self) -> RuleBound:
        return next(RuleBound(n, v) for n in BOUND_SIGNS if (v := getattr(self, n)) is not None)


class PolicyConfig(StageConfig):
    """Rules for the findings of a checkpoint."""

    rules: dict[PathSafeName, PolicyRule] = Field(
        {}, description="rules of the policy; each has its own section [policy.rules.NAME]"
    )


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One row of VERDICTS."""

    rule: str
    audit: str
    metric: str
    slice: Mapping[str, str]
    bound: str
    value: float | None = None
    interval_end: float | None = None
    distance: float | None = None
    verdict: Literal["pass", "fail"] = "fail"
    reason: str


def evaluate_rule(rule_name: str, rule: PolicyRule, finding: Mapping[str, Any] | None) -> Verdict:
    """Judge a finding by a rule; without a finding the audit did not run."""
    comparison, limit = rule.bound
    bound = f"{BOUND_SIGNS[comparison]} {limit:g}"
    build_verdict = partial(
        Verdict,
        rule=rule_name,
        audit=rule.audit,
        metric=rule.metric,
        slice=finding["slice"] if finding else rule.slice or {},
        bound=bound,
    )
    value = None if finding is None else finding["value"]
    if finding is None or _is_missing(value):
        reason = (
            "the audit did not run"
            if finding is None
            else extract_missing_reason(finding["method"])
        )
        return build_verdict(reason=f"not measured: {reason}")
    is_upper = comparison in ("lt", "le")
    interval_end = finding["high" if is_upper else "low"]
    end_description = f"the {'upper' if is_upper else 'lower'} end of the interval"
    if any(_is_missing(finding[end_name]) for end_name in INTERVAL_ENDS):
        if not is_exact_count(rule.audit, rule.metric):
            return build_verdict(value=value, reason=_explain_missing_interval(rule, finding))
        interval_end, end_description = value, "the value, an exact count,"
    distance = interval_end - limit if is_upper else limit - interval_end
    passed = distance < 0 or (distance == 0 and comparison in ("le", "ge"))
    return build_verdict(
        value=value,
        interval_end=interval_end,
        distance=distance,
        verdict="pass" if passed else "fail",
        reason=f"{end_description} is {interval_end:.4g} and must be {bound}",
    )


def _is_missing(number: float | None) -> bool:
    return number is None or math.isnan(number)


def is_exact_count(audit: str, metric: str) -> bool:
    """Return whether a metric counts items, so that its value is exact and has no interval."""
    return metric in (*SKIPPED_COUNT_METRICS.get(audit, ()), ITEMS_IN_TRAINING_TEXT)


def _explain_missing_interval(rule: PolicyRule, finding: Mapping[str, Any]) -> str:
    """Say in one sentence why a finding without an interval passes no rule."""
    reasons = re.findall(r"no interval: ([^;]+)", finding.get("method") or "")
    reason = reasons[-1].strip() if reasons else f"the audit computes no interval for {rule.metric}"
    return f"no interval: {reason}, so the rule is not shown to hold"


@stage(
    name="policy",
    tables={"verdicts": VERDICTS},
    external_digests=compute_descriptions_digest,
    reads={"audits": ("findings",)},
)
def write_rule_verdicts(
    audits: dict[str, Artifact], config: PolicyConfig, context: StageContext
) -> None:
    """Write the verdict of each rule on each finding that it applies to.

    Raises:
        UsageError: A rule names a metric or slice that its audit does not have.
    """
    verdicts: list[Verdict] = []
    for rule_name, rule in config.rules.items():
        if rule.audit not in audits:
            verdicts.append(evaluate_rule(rule_name, rule, None))
            continue
        findings = [row for row in read_findings(audits[rule.audit]) if not row["control"]]
        metric_findings = [row for row in findings if row["metric"] == rule.metric]
        # Findings about baselines have no direction; a rule without a slice ignores them.
        directed_findings = [row for row in metric_findings if row["worse_when"]] or metric_findings
        rule_findings = (
            directed_findings
            if rule.slice is None
            else [r for r in metric_findings if r["slice"] == rule.slice]
        )
        if not rule_findings:
            unmatched = explain_unmatched_rule(rule, findings)
            count_metrics = SKIPPED_COUNT_METRICS.get(rule.audit, ())
            measured_findings = [row for row in findings if row["value"] is not None]
            has_measurements = any(row["metric"] not in count_metrics for row in measured_findings)
            if (
                has_measurements
                and not metric_findings
                and rule.metric in count_metrics
                and not rule.slice
            ):
                verdicts.append(
                    evaluate_rule(
                        rule_name, rule, {"slice": {}, "value": 0.0} | dict.fromkeys(INTERVAL_ENDS)
                    )
                )
                continue
            # If the audit could not measure everything, the missing slice may depend on that.
            if all(row["value"] is not None for row in findings):
                raise UsageError(
                    f"policy.rules.{rule_name}.{unmatched.setting}: {unmatched.reason}"
                )
            rule_findings = [{"slice": rule.slice or {}, "value": None, "method": unmatched.reason}]
        verdicts += [evaluate_rule(rule_name, rule, row) for row in rule_findings]
    context.get_table_writer("verdicts").write(rows_to_table(verdicts, VERDICTS))


def explain_unmatched_rule(
    rule: PolicyRule, findings: Sequence[Mapping[str, Any]]
) -> UnmatchedSetting:
    """Explain by which setting a rule matches no finding of its audit."""
    metrics = list(dict.fromkeys(row["metric"] for row in findings))
    if (
        rule.metric not in metrics
        and rule.slice
        and rule.metric in SKIPPED_COUNT_METRICS.get(rule.audit, ())
    ):
        return UnmatchedSetting(
            "slice",
            f"{rule.metric} has no slice {format_slice_as_toml(rule.slice)}; it has only the "
            "slice {}, which means all units",
        )
    if rule.metric not in metrics:
        return UnmatchedSetting(
            "metric",
            f"the audit {rule.audit} does not measure {rule.metric!r}; it measures "
            f"{', '.join(metrics)}",
        )
    slices = [
        format_slice_as_toml(row["slice"]) for row in findings if row["metric"] == rule.metric
    ]
    return UnmatchedSetting(
        "slice",
        f"{rule.metric} has no slice {format_slice_as_toml(rule.slice or {})}; it has "
        f"{', '.join(slices[:20])}",
    )


def extract_missing_reason(method: str) -> str:
    """Return why a finding has no value: what its method says after "not measured: ", or all."""
    return method.rpartition("not measured: ")[2]


def group_unpassed_rules(verdict_rows: Iterable[Mapping[str, Any]]) -> UnpassedRules:
    """Group the rules that did not pass by whether a finding violates their bound.

    A failed verdict violates the bound if it has a distance from it.
    """
    failed_rows = [row for row in verdict_rows if row["verdict"] != "pass"]
    failed_rules = dict.fromkeys(row["rule"] for row in failed_rows if row["distance"] is not None)
    all_rules = dict.fromkeys(row["rule"] for row in failed_rows)
    return UnpassedRules(
        failed=[*failed_rules],
        not_shown=[rule for rule in all_rules if rule not in failed_rules],
    )
