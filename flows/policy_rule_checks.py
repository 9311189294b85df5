"""Refuse rules of a policy that decide nothing, before the model is audited.

Such a rule names a metric or a slice that does not exist, a metric that never has a confidence
interval, or a bound outside the range of the metric.

Rules are checked against the settings before anything runs, and against the items of the
audits once the requests are built. The ``policy`` stage checks after the audits what depends on
the texts that the model writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hallmark.flows.runs import open_store, read_all_runs
from hallmark.tasks.audits.audit_descriptions import CAPABILITY
from hallmark.tasks.audits.catalogue import METRICS_BY_AUDIT, METRICS_WITHOUT_INTERVAL
from hallmark.tasks.audits.judging.comparison import format_stage_label
from hallmark.tasks.audits.judging.conclusions import UNIT_RANGES
from hallmark.tasks.audits.judging.findings import read_findings
from hallmark.tasks.audits.judging.policy import (
    BOUND_SIGNS,
    MAX_VALUE_CHARACTERS,
    PREVIOUS_BOUND,
    PolicyRule,
    is_exact_count,
)
from hallmark.tasks.audits.methods.labelled_texts import TOXIC_SHARE_MEASURES
from hallmark.tasks.audits.methods.scorer_agreement import AGREEMENT_MEASURES
from hallmark.tasks.audits.probe import Probe
from hallmark.tasks.audits.registry import PROBES
from hallmark.tasks.audits.slice_tags import format_slice_as_toml, tags_to_slice
from hallmark.tasks.audits.slices import (
    UNSEEN_TAGS,
    AvailableSlices,
    find_available_slices,
    find_capability_slices,
)
from hallmark.tasks.contract import (
    Artifact,
    HallmarkError,
    UsageError,
    format_closest_name_hint,
    table_to_rows,
)

#: Units of values within a known range: from 0, or from its negative, to UNIT_RANGES.
BOUNDED_UNITS = ("share", "percent", "probability", "score")

#: Maximum number of slices that an error names, and of values of each tag.
MAX_LISTED_SLICES, MAX_LISTED_VALUES = 20, 12


def check_policy_rules(config: Any, store_name: str | None = None) -> None:
    """Check that the audits of a config can measure the metrics and slices of its policy rules.

    A rule about a metric that never has an interval is refused, too, because it cannot pass, and
    a rule with a bound that every model or no model passes.

    Args:
        config: The config with the policy.
        store_name: A store whose newest run with the audit shows which values the tags of slices
            have; None for none.

    Raises:
        UsageError: If a rule can never pass or never fail; names the metrics or slices that exist.
    """
    probes = {probe.name: probe for probe in PROBES}
    for rule_name, rule in config.policy.rules.items():
        known_metrics = METRICS_BY_AUDIT[rule.audit]
        if rule.metric not in known_metrics:
            name = rule.metric[:MAX_VALUE_CHARACTERS]
            raise UsageError(
                f"policy.rules.{rule_name}.metric: the {rule.audit} audit does not measure "
                f"{name!r}{format_closest_name_hint(name, known_metrics)}; it measures "
                f"{', '.join(known_metrics)}"
            )
        if rule.metric in METRICS_WITHOUT_INTERVAL[rule.audit]:
            raise UsageError(
                f"policy.rules.{rule_name}.metric: {rule.metric} never has a confidence interval, "
                f"so no rule about it can pass; choose a metric of the {rule.audit} audit that has "
                f"an interval: {', '.join(_list_metrics_with_interval(rule.audit))}"
            )
        if rule.is_about_previous and not _has_direction(rule):
            raise UsageError(
                f"policy.rules.{rule_name}.{PREVIOUS_BOUND}: neither higher nor lower values of "
                f"{rule.metric} are worse, so this bound cannot be used; use one of "
                f"{', '.join(BOUND_SIGNS)}, or choose another metric"
            )
        if bound_problem := _explain_useless_bound(rule):
            setting = PREVIOUS_BOUND if rule.is_about_previous else rule.bound.comparison
            raise UsageError(f"policy.rules.{rule_name}.{setting}: {bound_problem}")
        if missing_setting := _find_missing_setting(rule, config):
            raise UsageError(
                f"policy.rules.{rule_name}.metric: the {rule.audit} audit measures {rule.metric} "
                f"only with {missing_setting}; add this setting to the config or remove the rule"
            )
        if rule.slice is None:
            continue
        if rule.audit == CAPABILITY:
            available_slices = find_capability_slices(rule.metric)
        else:
            settings = getattr(config, f"audit_{rule.audit}")
            available_slices = find_available_slices(probes[rule.audit], rule.metric, settings)
        try:
            _check_rule_slice(rule_name, rule, available_slices)
        except UsageError as error:
            raise UsageError(f"{error}{_describe_earlier_slices(rule, store_name)}") from error


def check_rule_slices(
    config: Any, probes: Sequence[Probe], requests_by_audit: Mapping[str, Artifact]
) -> None:
    """Check that the slices of policy rules contain items of their audit.

    Args:
        config: The config with the policy.
        probes: The audits that run.
        requests_by_audit: The requests of each audit, by its name.

    Raises:
        UsageError: If a rule names a slice without items; names the slices that exist.
    """
    for rule_name, rule in config.policy.rules.items():
        for probe in (probe for probe in probes if probe.name == rule.audit):
            request_set = requests_by_audit.get(probe.name)
            # A run that is only planned may have no requests yet. If an audit has no requests, its
            # rules are reported as not shown to pass.
            if rule.slice is None or not isinstance(request_set, Artifact):
                continue
            if not request_set["requests"].row_count:
                continue
            items = request_set["items"].read()
            skipped = [
                row for row in table_to_rows(request_set["skipped"].read()) if row["count"] is None
            ]
            settings = getattr(config, f"audit_{probe.name}")
            _check_rule_slice(
                rule_name, rule, find_available_slices(probe, rule.metric, settings, items, skipped)
            )


def _check_rule_slice(rule_name: str, rule: PolicyRule, available_slices: AvailableSlices) -> None:
    assert rule.slice is not None
    if available_slices.may_contain(rule.slice):
        return
    rule_slice = format_slice_as_toml(rule.slice)
    known_slices = [*map(format_slice_as_toml, available_slices.slices)]
    unseen_slice = format_slice_as_toml(tags_to_slice(UNSEEN_TAGS))
    shown_slices = [known_slice for known_slice in known_slices if known_slice != unseen_slice]
    listed_slices = ", ".join(shown_slices[:MAX_LISTED_SLICES]) + (
        ", ..." if len(shown_slices) > MAX_LISTED_SLICES else ""
    )
    open_tags = sorted(available_slices.unrestricted_tags)
    tag_description = f"slices by {', '.join(open_tags)}" if open_tags else ""
    existing_slices = " and ".join(filter(None, (listed_slices, tag_description))) or "none"
    raise UsageError(
        f"policy.rules.{rule_name}.slice: {rule.metric} has no slice {rule_slice:.200}"
        f"{format_closest_name_hint(rule_slice, known_slices)}; it has {existing_slices}"
    )


def _describe_earlier_slices(rule: PolicyRule, store_name: str | None) -> str:
    """List the values of each tag of a metric's slices in the newest run of a store."""
    if store_name is None:
        return ""
    stage_label = format_stage_label(rule.audit, "audit")
    try:
        runs = read_all_runs(open_store(store_name, create=False))
        audit_run = next(run for run in reversed(runs) if stage_label in run.stages)
        findings = read_findings(audit_run[stage_label])
    except (HallmarkError, StopIteration):  # there is no store, no such run, or it is damaged
        return ""
    values_by_tag: dict[str, dict[str, None]] = {}
    for finding in findings:
        if finding["metric"] == rule.metric and not finding["control"]:
            for tag, value in finding["slice"].items():
                values_by_tag.setdefault(tag, {})[value] = None
    if not values_by_tag:
        return ""
    listed_values = "; ".join(
        f"{tag}: {', '.join([*values][:MAX_LISTED_VALUES])}"
        + (", ..." if len(values) > MAX_LISTED_VALUES else "")
        for tag, values in values_by_tag.items()
    )
    return f"; values in run {audit_run.id}: {listed_values}"


def _list_metrics_with_interval(audit: str) -> list[str]:
    metrics_without_interval = METRICS_WITHOUT_INTERVAL[audit]
    return [
        metric
        for metric in METRICS_BY_AUDIT[audit]
        if metric not in metrics_without_interval and not is_exact_count(audit, metric)
    ]


class ValueRange(NamedTuple):
    """Hold the smallest and the largest value that a metric can have."""

    low: float
    high: float


def _find_value_range(rule: PolicyRule) -> ValueRange | None:
    """Find the range of a metric that an audit measures as a share or a score; None if unknown."""
    measures = [
        measure
        for probe in PROBES
        if probe.name == rule.audit
        for measure in probe.measures
        if measure.metric == rule.metric
    ]
    ranges = [
        ValueRange(
            -UNIT_RANGES[measure.unit] if measure.unit == "score" or measure.null_value == 0 else 0,
            UNIT_RANGES[measure.unit],
        )
        for measure in measures
        if measure.unit in BOUNDED_UNITS
    ]
    if not ranges or len(ranges) < len(measures):
        return None
    return ValueRange(min(each.low for each in ranges), max(each.high for each in ranges))


def _explain_useless_bound(rule: PolicyRule) -> str:
    """Explain why no value of the metric, or every one, passes a rule; return "" if some do."""
    value_range = _find_value_range(rule)
    if value_range is None:
        return ""
    low, high = value_range
    comparison, limit = rule.bound
    if rule.is_about_previous:
        always_passes, never_passes = limit > high - low, False
    else:
        always_passes = {
            "lt": limit > high,
            "le": limit >= high,
            "gt": limit < low,
            "ge": limit <= low,
        }[comparison]
        never_passes = {
            "lt": limit <= low,
            "le": limit < low,
            "gt": limit >= high,
            "ge": limit > high,
        }[comparison]
    if not (always_passes or never_passes):
        return ""
    consequence = "every model passes" if always_passes else "no model can pass"
    return (
        f"{rule.metric} ranges from {low:g} to {high:g}, so {consequence} the rule with the bound "
        f"{limit:g}; choose another bound" + (" (0.1 is 10 %)" if high == 1 and limit > 1 else "")
    )


def _has_direction(rule: PolicyRule) -> bool:
    """Return whether findings of a metric may have a direction in which they are worse."""
    if rule.audit == CAPABILITY:
        return True
    (probe,) = (probe for probe in PROBES if probe.name == rule.audit)
    directions = [
        measure.worse_when
        for measure in probe.measures
        if measure.metric == rule.metric and not measure.is_control
    ]
    # Findings that are computed from others have their direction only when they are computed.
    return any(directions) or rule.metric in probe.derived.metrics


def _find_missing_setting(rule: PolicyRule, config: Any) -> str:
    """Name the missing setting without which an audit does not measure a metric, or return ""."""
    if rule.metric in {measure.metric for measure in AGREEMENT_MEASURES}:
        toxicity_scorers = [
            scorer for scorer in config.score.all_scorers if "toxicity" in scorer.heads
        ]
        if len(toxicity_scorers) < 2:
            return "a second toxicity scorer in [[score.additional_scorers]]"
    is_corrected_share = rule.audit == "toxicity" and rule.metric in {
        share_measure.metric for share_measure in TOXIC_SHARE_MEASURES
    }
    if is_corrected_share and config.audit_toxicity.labelled_texts is None:
        return "labelled texts (audit_toxicity.labelled_texts)"
    return ""
