"""Judge a checkpoint's findings by the rules of a policy: pass, fail or not shown.

A rule uses the end of the interval that speaks against the checkpoint: the upper end if the value
must stay below a bound, the lower end if it must reach one. A rule is not shown to hold by a
finding without a value or an interval, with too few clusters, or about which no conclusion may be
drawn. Counts of skipped items (SKIPPED_COUNT_METRICS) and of items in the training text are exact
and are judged by their value. Counts and maxima over texts that a model wrote are estimates,
because more texts may contain more.

A rule may also refer to the previous release: it passes if the interval of the paired difference
(``previous_comparison.py``) excludes that the finding is worse by the given margin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

import pyarrow as pa
from pydantic import Field, field_validator, model_validator

from hallmark.tasks.audits.audit_descriptions import ITEMS_IN_TRAINING_TEXT
from hallmark.tasks.audits.judging.conclusions import (
    SHARE_UNITS,
    explain_unjudgeable_interval,
    extract_interval_reason,
)
from hallmark.tasks.audits.judging.discoveries import read_card_findings
from hallmark.tasks.audits.judging.policy_outcome import RuleVerdict, describe_distance
from hallmark.tasks.audits.registry import (
    AUDIT_DESCRIPTIONS,
    SKIPPED_COUNT_METRICS,
    compute_descriptions_digest,
)
from hallmark.tasks.audits.slice_tags import SLICE_TYPE, format_slice_as_toml, tags_to_slice
from hallmark.tasks.contract import (
    Artifact,
    ExternalMarker,
    PathSafeName,
    StageConfig,
    StageContext,
    UsageError,
    column,
    format_closest_name_hint,
    format_count,
    rows_to_table,
    stage,
    table_schema,
    table_to_rows,
)
from hallmark.tasks.measures.estimates import find_min_clusters

#: Number of characters of an unknown name that an error repeats.
MAX_VALUE_CHARACTERS = 80

#: The columns of the ends of an interval.
INTERVAL_ENDS = ("low", "high")

#: The kinds of bounds, and the signs that show them.
BOUND_SIGNS = {"lt": "<", "le": "≤", "gt": ">", "ge": "≥"}

#: How the reasons of verdicts that are not shown end.
NOT_SHOWN = "the rule is not shown to hold"

VERDICTS = table_schema(
    "Verdict of each policy rule for each applicable finding.",
    column("rule", pa.string(), "label", "the rule"),
    column("audit", pa.string(), "label", "the audit"),
    column("metric", pa.string(), "label", "the metric"),
    column(
        "slice",
        SLICE_TYPE,
        "label",
        "subset of the units (slice) to which the rule applies, as name-value pairs; empty for all "
        "units",
    ),
    column(
        "bound",
        pa.string(),
        "label",
        "the bound of the rule; 'worse by < x' limits the difference from the previous run",
    ),
    column("value", pa.float64(), "figure", "finding value"),
    column(
        "previous_run",
        pa.string(),
        "label",
        "run that the finding is compared with; empty if there is none",
    ),
    column(
        "previous_value",
        pa.float64(),
        "figure",
        "finding value in the previous run; null if it was not measured or not compared",
    ),
    column(
        "interval_end",
        pa.float64(),
        "figure",
        "end of the confidence interval that was compared with the bound, or the value of a count; "
        "for a rule that compares runs, the largest change in the harmful direction within the "
        "interval for the difference; null if no interval end was compared",
    ),
    column(
        "distance",
        pa.float64(),
        "figure",
        "signed distance between the compared interval end and the bound, positive if the bound is "
        "violated; null if the verdict is not_shown",
    ),
    column(
        "verdict",
        pa.string(),
        "label",
        "pass, fail, or not_shown (the finding shows neither that the rule holds nor that it is "
        "broken)",
    ),
    column("reason", pa.string(), "project text", "reason for the verdict"),
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


#: The setting of a rule that compares the finding with the previous release.
PREVIOUS_BOUND = "not_worse_than_previous_by"


#: A number, but no text or truth value that pydantic would convert to one.
StrictNumber = Annotated[float, Field(strict=True, allow_inf_nan=False)]


class PolicyRule(StageConfig):
    """Bound for the findings of a metric; without rules there is no verdict."""

    audit: str = Field(description="audit name, as passed to hallmark audit --only")
    metric: str = Field(description="metric to which the rule applies")
    slice: dict[str, str] | None = Field(
        None,
        description="slice (subset of the units) to whose findings the rule applies, as names "
        "and values; {} for the finding about all units; if not set, the rule applies to "
        "every slice except those of a baseline",
    )
    lt: StrictNumber | None = Field(
        None,
        description="upper bound: the rule passes if the finding is less than this value",
    )
    le: StrictNumber | None = Field(
        None,
        description="upper bound: the rule passes if the finding is at most this value",
    )
    gt: StrictNumber | None = Field(
        None,
        description="lower bound: the rule passes if the finding is greater than this value",
    )
    ge: StrictNumber | None = Field(
        None,
        description="lower bound: the rule passes if the finding is at least this value",
    )
    not_worse_than_previous_by: StrictNumber | None = Field(
        None,
        gt=0,
        description="margin: the rule passes if the interval for the paired difference from the "
        "run specified in policy.previous excludes a worsening of this size or larger",
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
            'must be an object that maps names to values, such as {group_name = "women"}, '
            "or {} for all units"
        )

    @model_validator(mode="after")
    def _check_single_bound(self) -> PolicyRule:
        names = (*BOUND_SIGNS, PREVIOUS_BOUND)
        bounds = [name for name in names if getattr(self, name) is not None]
        if len(bounds) != 1:
            present_bounds = f"; it has {' and '.join(bounds)}" if bounds else ""
            raise ValueError(f"needs exactly one of the bounds {', '.join(names)}{present_bounds}")
        return self

    @property
    def is_about_previous(self) -> bool:
        """Whether it compares the finding with the previous release."""
        return self.not_worse_than_previous_by is not None

    @property
    def bound(self) -> RuleBound:
        if self.not_worse_than_previous_by is not None:
            return RuleBound("lt", self.not_worse_than_previous_by)
        return next(RuleBound(n, v) for n in BOUND_SIGNS if (v := getattr(self, n)) is not None)

    @property
    def bound_text(self) -> str:
        """The bound as in VERDICTS."""
        comparison, limit = self.bound
        prefix = "worse by " if self.is_about_previous else ""
        return f"{prefix}{BOUND_SIGNS[comparison]} {limit:g}"


class PolicyRulesConfig(StageConfig):
    """Rules for the findings of a checkpoint."""

    rules: dict[PathSafeName, PolicyRule] = Field(
        {}, description="policy rules, each in its own section [policy.rules.NAME]"
    )


class PolicyConfig(PolicyRulesConfig):
    """Rules for the findings of a checkpoint, a file of them, and the previous release."""

    file: Annotated[str, ExternalMarker(("example",), recursive=False)] | None = Field(
        None,
        min_length=1,
        description="a TOML file with [policy.rules.NAME] sections, or 'example' for Hallmark's "
        "example policy; rules in the config override rules with the same name in the file",
    )
    previous: str | None = Field(
        None,
        min_length=1,
        description=f"run that audited the previous release, for rules with {PREVIOUS_BOUND}: a "
        "run id, the first characters of a run id, or latest (the newest run that audited the "
        "newest trained model)",
    )
    stop_training: bool = Field(
        False,
        description="whether to stop a training run if a rule fails for a checkpoint audited "
        "during training",
    )

    @property
    def rules_config(self) -> PolicyRulesConfig:
        """The settings of the ``policy`` stage, whose input names the previous run."""
        return PolicyRulesConfig(rules=self.rules)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One row of VERDICTS."""

    rule: str
    audit: str
    metric: str
    slice: Mapping[str, str]
    bound: str
    value: float | None = None
    previous_run: str = ""
    previous_value: float | None = None
    interval_end: float | None = None
    distance: float | None = None
    verdict: RuleVerdict
    reason: str


def evaluate_rule(
    rule_name: str,
    rule: PolicyRule,
    finding: Mapping[str, Any] | None,
    change: Mapping[str, Any] | None = None,
) -> Verdict:
    """Judge a finding by a rule.

    Args:
        rule_name: Name of the rule.
        rule: The rule.
        finding: A row of FINDINGS; None if the audit produced no result.
        change: For a rule about the previous release, the row of CHANGES; None if the config names
            no previous run.
    """
    is_exact = is_exact_count(rule.audit, rule.metric)
    build_verdict = partial(
        Verdict,
        rule=rule_name,
        audit=rule.audit,
        metric=rule.metric,
        slice=finding["slice"] if finding else rule.slice or {},
        bound=rule.bound_text,
        value=None if finding is None or _is_missing(finding["value"]) else finding["value"],
    )
    if reason := _explain_unjudged_finding(finding, is_exact=is_exact):
        return build_verdict(verdict="not_shown", reason=reason)
    assert finding is not None
    if rule.is_about_previous:
        return _evaluate_change(rule, change, build_verdict)
    comparison, limit = rule.bound
    is_upper = comparison in ("lt", "le")
    end_name = "upper" if is_upper else "lower"
    interval_end, end_description = finding["value"], "the value, an exact count,"
    if not any(_is_missing(finding[end]) for end in INTERVAL_ENDS):
        interval_end = finding["high" if is_upper else "low"]
        end_description = f"the {end_name} end of the interval"
    elif not is_exact:
        return build_verdict(
            verdict="not_shown", reason=_explain_missing_interval(rule.metric, finding["method"])
        )
    if math.isinf(interval_end):
        return build_verdict(
            verdict="not_shown", reason=f"the interval has no {end_name} limit, so {NOT_SHOWN}"
        )
    distance = interval_end - limit if is_upper else limit - interval_end
    passed = distance < 0 or (distance == 0 and comparison in ("le", "ge"))
    return build_verdict(
        interval_end=interval_end,
        distance=distance,
        verdict="pass" if passed else "fail",
        reason=f"{end_description} is {interval_end:.4g} and must be "
        f"{rule.bound_text} "
        f"({describe_distance(distance, f'{abs(distance):.4g}')})",
    )


def _evaluate_change(
    rule: PolicyRule, change: Mapping[str, Any] | None, build_verdict: Callable[..., Verdict]
) -> Verdict:
    """Judge the change of a finding from the previous run, a row of CHANGES."""
    if change is None:
        return build_verdict(
            verdict="not_shown",
            reason="no previous run is specified, and no earlier release with this name is "
            "known; set policy.previous to a run that audited the previous release "
            "(to list all runs: hallmark runs)",
        )
    previous_run, worsening = change["previous_run"], change["largest_worsening"]
    previous_fields = {"previous_run": previous_run, "previous_value": change["previous_value"]}
    if _is_missing(worsening):
        return build_verdict(
            **previous_fields,
            verdict="not_shown",
            reason=f"not comparable with run {previous_run}: {change['reason']}",
        )
    if math.isinf(worsening):
        return build_verdict(
            **previous_fields,
            verdict="not_shown",
            reason=f"no interval: the difference from run {previous_run} could be of any size, so "
            f"{NOT_SHOWN}",
        )
    distance = worsening - rule.bound.limit
    pair_text = format_count(change["n"], "pair")
    if change["clusters"] != change["n"]:
        pair_text += f" in {format_count(change['clusters'], 'cluster')}"
    return build_verdict(
        **previous_fields,
        interval_end=worsening,
        distance=distance,
        verdict="pass" if distance < 0 else "fail",
        reason=f"the value in run {previous_run} was {change['previous_value']:.4g}; the "
        f"confidence interval for the difference, computed from {pair_text}, shows that the value "
        f"is now {describe_worsening(worsening, f'{abs(worsening):.4g}')}; the rule allows a "
        f"worsening of less than {rule.bound.limit:g} "
        f"({describe_distance(distance, f'{abs(distance):.4g}')})",
    )


def describe_worsening(worsening: float, worsening_text: str) -> str:
    """Say by how much a finding may be worse, from the largest worsening and its size as text."""
    return (
        f"worse by at most {worsening_text}"
        if worsening >= 0
        else f"better by at least {worsening_text}"
    )


def _is_missing(number: float | None) -> bool:
    return number is None or math.isnan(number)


def _explain_unjudged_finding(finding: Mapping[str, Any] | None, *, is_exact: bool) -> str:
    """Say why no rule can judge a finding, whatever its interval is; empty if rules can.

    Args:
        finding: A row of FINDINGS; None if the audit produced no result.
        is_exact: Whether the value is an exact count.
    """
    if finding is None:
        return "not measured: the audit produced no result"
    if _is_missing(finding["value"]):
        return f"not measured: {extract_missing_reason(finding['method'])}"
    if is_exact:
        return ""
    if inconclusive_reason := explain_unjudgeable_interval(finding):
        return f"inconclusive: {inconclusive_reason}"
    clusters = finding.get("clusters")
    has_interval = not any(_is_missing(finding[end]) for end in INTERVAL_ENDS)
    min_clusters = find_min_clusters(is_share=finding.get("unit") in SHARE_UNITS)
    if has_interval and clusters is not None and clusters < min_clusters:
        cluster_text = format_count(clusters, "independent cluster")
        return (
            f"too few clusters: the interval is based on {cluster_text}, but at least "
            f"{min_clusters} are needed, so {NOT_SHOWN}"
        )
    return ""


def is_exact_count(audit: str, metric: str) -> bool:
    """Return whether a metric counts items, so that its value is exact and has no interval."""
    return metric in (*SKIPPED_COUNT_METRICS.get(audit, ()), ITEMS_IN_TRAINING_TEXT)


def _explain_missing_interval(metric: str, method: str | None) -> str:
    """Say in one sentence why a finding without an interval passes no rule."""
    reason = extract_interval_reason(method) or f"the audit computes no interval for {metric}"
    return f"no interval: {reason}, so {NOT_SHOWN}"


@stage(
    name="policy",
    tables={"verdicts": VERDICTS},
    external_digests=compute_descriptions_digest,
    reads={"audits": ("findings",), "previous_comparison": ("changes",)},
)
def write_rule_verdicts(
    audits: dict[str, Artifact],
    previous_comparison: Artifact | None,
    config: PolicyRulesConfig,
    context: StageContext,
) -> None:
    """Write the verdict of each rule on each finding that it applies to.

    Args:
        audits: The audits by name.
        previous_comparison: The output of ``compare_with_previous``; None if the config names no
            previous run, or no rule is about it.
        config: The rules.
        context: The context of the stage.

    Raises:
        UsageError: A rule names a metric or slice that its audit does not have, or compares a
            finding without a harmful direction with the previous release.
    """
    verdicts: list[Verdict] = []
    changes = (
        {}
        if previous_comparison is None
        else {row["finding"]: row for row in table_to_rows(previous_comparison["changes"].read())}
    )
    # Those of a card, because an audit of planted associations can close other audits.
    findings_by_audit = read_card_findings(audits)
    for rule_name, rule in config.rules.items():
        if rule.audit not in audits:
            verdicts.append(evaluate_rule(rule_name, rule, None))
            continue
        findings = [row for row in findings_by_audit[rule.audit] if not row["control"]]
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
        if rule.is_about_previous:
            _check_direction(rule_name, rule, rule_findings)
        verdicts += [
            evaluate_rule(rule_name, rule, row, changes.get(row.get("finding", b"")))
            for row in rule_findings
        ]
    context.get_table_writer("verdicts").write(rows_to_table(verdicts, VERDICTS))


def _check_direction(
    rule_name: str, rule: PolicyRule, findings: Sequence[Mapping[str, Any]]
) -> None:
    """Raise UsageError if a finding has no harmful direction; those without a value may have."""
    for row in findings:
        if row["value"] is not None and not row["worse_when"]:
            raise UsageError(
                f"policy.rules.{rule_name}.{PREVIOUS_BOUND}: {rule.metric} has no harmful "
                f"direction for the slice {format_slice_as_toml(row['slice'])}; specify another "
                f"slice, or use one of {', '.join(BOUND_SIGNS)}"
            )


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
            f"{rule.metric} has no slice {format_slice_as_toml(rule.slice):.200}; it has only the "
            "slice {}, which means all units",
        )
    if rule.metric not in metrics:
        return UnmatchedSetting(
            "metric",
            f"the {rule.audit} audit does not measure {rule.metric[:MAX_VALUE_CHARACTERS]!r}; it "
            f"measures {', '.join(metrics)}",
        )
    slices = [
        format_slice_as_toml(row["slice"]) for row in findings if row["metric"] == rule.metric
    ]
    return UnmatchedSetting(
        "slice",
        f"{rule.metric} has no slice {format_slice_as_toml(rule.slice or {}):.200}; it has "
        f"{', '.join(slices[:20])}",
    )


def extract_missing_reason(method: str) -> str:
    """Return why a finding has no value: what its method says after "not measured: ", or all."""
    return method.rpartition("not measured: ")[2]
