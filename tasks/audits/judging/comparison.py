"""Findings of audits that asked alike, side by side: what each differs in from another, in pairs
of the units of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from hallmark.tasks.audits.audit_tables import REQUEST_SETTINGS
from hallmark.tasks.audits.judging.comparison_units import (
    CAPABILITY,
    AuditUnits,
    ComparisonUnit,
    collect_heldout_texts,
)
from hallmark.tasks.audits.judging.measures import SHARE_MAXIMUM_BY_UNIT
from hallmark.tasks.contract import Artifact
from hallmark.tasks.measures.estimates import (
    Estimate,
    estimate_mean_difference,
    estimate_mean_or_share,
    scale_estimate,
)
from hallmark.tasks.measures.multiple_testing import adjust_p_values_holm

Row = dict[str, Any]

#: What rounding leaves of equal values is no difference.
ROUNDING_TOLERANCE = 1e-12

#: Fewer members, or others, tell too little of how far off an area is.
MIN_AREA_MEMBERS = 5

#: Settings of a trace that decide no finding.
IGNORED_TRACE_SETTINGS = ("max_spans_per_text",)


class AuditedCheckpoint(Protocol):
    """A checkpoint, and what audits of it left: findings ("audit"), "build_requests", "score"."""

    @property
    def name(self) -> str: ...

    def find_artifact(self, audit: str, stage: str) -> Artifact | None: ...


def format_stage_label(audit: str, stage: str) -> str:
    """What a stage of an audit is called in a run."""
    return f"audit_{audit}" if stage == "audit" else f"{audit}_{stage}"


def explain_incomparability(audit: str, checkpoints: Sequence[AuditedCheckpoint]) -> str:
    """Why an audit of these cannot be compared; empty where it can."""
    for first, second in pairwise(checkpoints):
        first_artifact, second_artifact = (
            checkpoint.find_artifact(audit, "audit") for checkpoint in (first, second)
        )
        if first_artifact is None or second_artifact is None:
            return f"{(second if first_artifact else first).name} has no such audit"
        if differing_settings := list_differing_settings(first_artifact, second_artifact):
            return f"its settings differ: {', '.join(differing_settings)}"
        if audit == CAPABILITY and collect_heldout_texts(first_artifact) != collect_heldout_texts(
            second_artifact
        ):
            return "other held-out texts were measured"
        first_artifact, second_artifact = (
            checkpoint.find_artifact(audit, "build_requests") for checkpoint in (first, second)
        )
        if (
            first_artifact
            and second_artifact
            and first_artifact["items"].digest != second_artifact["items"].digest
        ):
            return "other items were asked about"
        if (
            first_artifact
            and second_artifact
            and collect_request_settings(first_artifact)
            != collect_request_settings(second_artifact)
        ):
            return "texts were drawn otherwise, or with another seed"
        first_artifact, second_artifact = (
            checkpoint.find_artifact(audit, "trace") for checkpoint in (first, second)
        )
        if (
            first_artifact
            and second_artifact
            and (
                differing_settings := list_differing_settings(
                    first_artifact, second_artifact, IGNORED_TRACE_SETTINGS
                )
            )
        ):
            return (
                f"its settings differ: "
                f"{', '.join(f'trace.{setting}' for setting in differing_settings)}"
            )
        first_artifact, second_artifact = (
            checkpoint.find_artifact(audit, "score_with_reference")
            for checkpoint in (first, second)
        )
        if (
            first_artifact
            and second_artifact
            and get_reference_name(first_artifact) != get_reference_name(second_artifact)
        ):
            return (
                f"another model is the reference: {get_reference_name(first_artifact)}, "
                f"{get_reference_name(second_artifact)}"
            )
        first_artifact, second_artifact = (
            checkpoint.find_artifact(audit, "score") for checkpoint in (first, second)
        )
        if first_artifact and second_artifact:
            scorer_names = [
                artifact["scorers"].read()["scorer"].to_pylist()
                for artifact in (first_artifact, second_artifact)
            ]
            if scorer_names[0] != scorer_names[1]:
                return f"scored by {scorer_names[0][0]} and by {scorer_names[1][0]}"
    return ""


def get_reference_name(reference_scores: Artifact) -> str:
    """The model that read what another wrote."""
    return str(reference_scores.manifest["lineage"]["reference"])


def list_differing_settings(
    first: Artifact, second: Artifact, ignored: Sequence[str] = ()
) -> list[str]:
    """Settings that differ, and files that were read to judge. Where files are is none: what was in
    those that are asked about is known by the items."""
    manifest_parts = [artifact.manifest["parts"] for artifact in (first, second)]
    first_config, second_config = (part["config"] for part in manifest_parts)
    # What people said is of a checkpoint's own texts, and differs as these do.
    file_digests = [
        {
            setting: digest
            for setting, digest in part.get("external", {}).items()
            if not setting.startswith("ratings")
        }
        for part in manifest_parts
    ]
    return [
        setting
        for setting in sorted({*first_config, *second_config})
        if setting not in ignored
        and first_config.get(setting) != second_config.get(setting)
        and not any(
            isinstance(config.get(setting), str | list) for config in (first_config, second_config)
        )
    ] + (["what is in the files that judge"] if file_digests[0] != file_digests[1] else [])


def collect_request_settings(request_set: Artifact) -> set[tuple[Any, ...]]:
    requests = request_set["requests"]
    columns = [
        column for column in REQUEST_SETTINGS if column in requests.columns
    ]  # an older run had fewer
    rows = requests.read(columns).group_by(columns).aggregate([])
    return {tuple(row.get(column) for column in REQUEST_SETTINGS) for row in rows.to_pylist()}


@dataclass(frozen=True)
class FindingComparison:
    """A finding that several audits have.

    found    the row of each
    changes  what the second of each pair of audits has more than the first; None where the finding
             is no mean of units
    """

    findings: Sequence[Row]
    changes: Sequence[Row | None]


def compare_findings(
    artifacts: Sequence[Artifact], pairs: Sequence[tuple[int, int]]
) -> list[FindingComparison]:
    """The findings that all have, and what they differ in between ``pairs`` of them, whose p are
    corrected for all that is compared here."""
    first_findings, *other_findings = [read_findings_by_slice(artifact) for artifact in artifacts]
    units = [AuditUnits(artifact) for artifact in artifacts]
    comparisons: list[FindingComparison] = []
    for key in first_findings:
        if all(key in findings for findings in other_findings):
            matching_findings = [
                first_findings[key],
                *(findings[key] for findings in other_findings),
            ]
            unit_maps = [
                unit.build_units(row) for unit, row in zip(units, matching_findings, strict=True)
            ]
            unit = first_findings[key]["unit"]
            comparisons.append(
                FindingComparison(
                    matching_findings,
                    [compute_paired_change(unit_maps[i], unit_maps[j], unit) for i, j in pairs],
                )
            )
    changes_with_p = [
        candidate
        for comparison in comparisons
        for candidate in comparison.changes
        if candidate and candidate["p"] is not None
    ]
    # No test could tell apart what is the same in every pair, as what hangs on no checkpoint: the
    # others need no correction for it (Tarone 1990).
    tested_changes = [change for change in changes_with_p if not change["same"]]
    for change in changes_with_p:
        change["p_corrected"] = change["p"]
    for change, p in zip(
        tested_changes,
        adjust_p_values_holm([candidate["p"] for candidate in tested_changes]),
        strict=True,
    ):
        change["p_corrected"] = p
    return comparisons


def read_findings_by_slice(artifact: Artifact) -> dict[tuple[str, str], Row]:
    """The findings of an audit, without its controls."""
    rows = artifact["findings"].read().to_pylist()
    return {(row["metric"], row["slice"]): row for row in rows if not row["control"]}


def compute_paired_change(
    first_units: Mapping[Any, ComparisonUnit] | None,
    second_units: Mapping[Any, ComparisonUnit] | None,
    unit: str = "",
) -> Row | None:
    """Compute by how much the second is higher than the first, unit by unit.

    Of shares and areas no end of the interval is beyond what a difference of such can be.

    Returns:
        The difference; None where the two have not the same units, or a unit is not the mean of as
        many values in both, does not weigh as much, or has its value among others than there. The
        model's texts then decide which texts count (as where a figure is about toxic continuations
        alone), and a difference over the common ones would contradict the two values.
    """
    if not first_units or not second_units or first_units.keys() != second_units.keys():
        return None
    pairs = [(first_unit, second_units[key]) for key, first_unit in first_units.items()]
    is_comparable = all(
        (first_unit.value_count, first_unit.weight, first_unit.is_member)
        == (second_unit.value_count, second_unit.weight, second_unit.is_member)
        for first_unit, second_unit in pairs
    )
    if not is_comparable:
        return None
    if pairs[0][0].is_member is None:
        change = _estimate_mean_change(pairs, unit)
    else:
        change = _estimate_auc_change(pairs)
    # A p may be as small.
    fields = ("value", "low", "high", "minimum_detectable_effect")
    zeroed_fields: Row = {
        name: 0.0 for name in fields if abs(getattr(change, name)) < ROUNDING_TOLERANCE
    }
    change = replace(change, **zeroed_fields)
    figures = {
        "value": change.value,
        "low": change.low,
        "high": change.high,
        "p": change.p,
        "minimum_detectable_effect": change.minimum_detectable_effect,
    }
    non_nan_figures = {
        name: None if np.isnan(value) else float(value) for name, value in figures.items()
    }
    return non_nan_figures | {
        "p_corrected": None,
        "n": change.n,
        "clusters": change.clusters,
        "missing": change.missing,
        "method": change.method,
        "same": bool(change.n) and not np.nan_to_num(_compute_differences(pairs)).any(),
    }


def _compute_differences(pairs: Sequence[tuple[ComparisonUnit, ComparisonUnit]]) -> np.ndarray:
    """What the second of each has more than the first, (pairs,)."""
    first_values, second_values = np.array(
        [[first_unit.value, second_unit.value] for first_unit, second_unit in pairs]
    ).T
    differences = second_values - first_values
    return np.where(abs(differences) < ROUNDING_TOLERANCE, 0.0, differences)


def _estimate_mean_change(
    pairs: Sequence[tuple[ComparisonUnit, ComparisonUnit]], unit: str
) -> Estimate:
    """By how much the mean of the second is more than that of the first."""
    first_units, differences = [first_unit for first_unit, _ in pairs], _compute_differences(pairs)
    weights = [first_unit.weight for first_unit in first_units]
    cluster_options: dict[str, Any] = {
        "clusters": [first_unit.cluster for first_unit in first_units],
        "unit": "pairs",
    }
    if any(first_unit.crossed_cluster is not None for first_unit in first_units):
        cluster_options["crossed_clusters"] = [
            first_unit.crossed_cluster for first_unit in first_units
        ]
    maximum = SHARE_MAXIMUM_BY_UNIT.get(unit, np.inf)
    values = np.array([[first_unit.value, second_unit.value] for first_unit, second_unit in pairs])
    if not (
        np.isfinite(maximum)
        and np.nanmin(values, initial=0) >= 0
        and np.nanmax(values, initial=0) <= maximum
    ):
        return estimate_mean_or_share(
            differences, null_value=0.0, weights=weights, **cluster_options
        )
    # From -1 to 1: put to where shares lie, and back.
    change = scale_estimate(
        estimate_mean_or_share(
            (differences / maximum + 1) / 2, is_share=True, null_value=0.5, **cluster_options
        ),
        2 * maximum,
    )
    shifted_fields = {
        name: getattr(change, name) - maximum for name in ("value", "low", "high", "null_value")
    }
    return replace(change, **shifted_fields)


def _estimate_auc_change(pairs: Sequence[tuple[ComparisonUnit, ComparisonUnit]]) -> Estimate:
    """By how much the area under the curve of the second is larger than that of the first (DeLong,
    DeLong & Clarke-Pearson 1988): members differ, and others do, of which there may be few (Welch
    1947)."""
    differences, is_member = (
        _compute_differences(pairs),
        np.array([first_unit.is_member for first_unit, _ in pairs]),
    )
    auc_change, smaller_count = (
        differences[is_member].mean(),
        min(is_member.sum(), (~is_member).sum()),
    )
    change = estimate_mean_difference(
        differences[is_member], auc_change - differences[~is_member], unit="pairs"
    )
    if smaller_count < MIN_AREA_MEMBERS:
        return replace(
            change,
            low=np.nan,
            high=np.nan,
            p=np.nan,
            minimum_detectable_effect=np.nan,
            method=f"no interval: of one kind there are fewer than {MIN_AREA_MEMBERS}",
        )
    if np.isnan(change.low) and auc_change:
        return replace(
            change,
            p=2.0 ** (1 - smaller_count),
            minimum_detectable_effect=np.nan,
            method=f"no interval: all moved alike; p of {smaller_count} pairs",
        )
    return replace(
        change,
        low=max(change.low, -1.0),
        high=min(change.high, 1.0),
        minimum_detectable_effect=change.minimum_detectable_effect
        if change.minimum_detectable_effect <= 1
        else np.nan,
    )
