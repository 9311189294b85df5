"""Compare findings of audits with equal requests: estimate differences from pairs of units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol, TypedDict

import numpy as np

from hallmark.tasks.audits.audit_descriptions import CAPABILITY
from hallmark.tasks.audits.audit_tables import REQUEST_SETTINGS
from hallmark.tasks.audits.judging.comparison_units import (
    AuditUnits,
    ComparisonUnit,
    UnitKey,
    read_heldout_documents,
)
from hallmark.tasks.audits.judging.findings import read_findings
from hallmark.tasks.audits.judging.measures import SHARE_MAXIMUM_BY_UNIT
from hallmark.tasks.contract import Artifact, Row
from hallmark.tasks.measures.estimates import (
    Estimate,
    estimate_mean_difference,
    estimate_mean_or_share,
    scale_estimate,
)
from hallmark.tasks.measures.multiple_testing import adjust_p_values_holm

#: Values of the columns REQUEST_SETTINGS, in their order; None for a missing column.
RequestSettings = tuple[Any, ...]

#: Differences below this are rounding errors.
ROUNDING_TOLERANCE = 1e-12

#: With fewer members, or fewer others, the interval of an area is unreliable.
MIN_AREA_MEMBERS = 5

#: Number of pairs that are added in each direction to estimate the interval of a change of pairs
#: that are 0 or 1 and share clusters, and the largest factor for large clusters. Without them, up
#: to 6 % of the upper ends are too low if few clusters change, nearly all in one direction.
ADDED_PAIRS, ADDED_CLUSTER_FACTOR = 1.5, 2.0

#: Settings of the ``trace`` stage that no finding depends on.
IGNORED_TRACE_SETTINGS = ("max_spans_per_text",)


#: The stages that run a reference model, and the input that is the model. The toxicity of all
#: findings is compared with the texts of "respond_reference"; "score_with_reference" adds findings.
REFERENCE_STAGES = {"score_with_reference": "reference_model", "respond_reference": "checkpoint"}


class AuditedCheckpoint(Protocol):
    """A checkpoint with artifacts of its audits, by the stages "audit", "build_requests", ..."""

    @property
    def name(self) -> str: ...

    def find_artifact(self, audit: str, stage: str) -> Artifact | None: ...


def format_stage_label(audit: str, stage: str) -> str:
    """Return the name of a stage of an audit in a run."""
    return f"audit_{audit}" if stage == "audit" else f"{audit}_{stage}"


def explain_incomparability(audit: str, checkpoints: Sequence[AuditedCheckpoint]) -> str:
    """Explain why an audit of these checkpoints cannot be compared; empty if it can."""
    for first, second in pairwise(checkpoints):
        first_artifact, second_artifact = (
            checkpoint.find_artifact(audit, "audit") for checkpoint in (first, second)
        )
        if first_artifact is None or second_artifact is None:
            return (
                f"{(second if first_artifact else first).name} has no results for the {audit} audit"
            )
        if differing_settings := list_differing_settings(first_artifact, second_artifact):
            return f"the settings differ: {', '.join(differing_settings)}"
        first_precision, second_precision = map(read_precision, (first_artifact, second_artifact))
        if first_precision != second_precision:
            return (
                f"the models ran at different precisions (respond.dtype): {first_precision} and "
                f"{second_precision}"
            )
        if audit == CAPABILITY and read_heldout_documents(first_artifact) != read_heldout_documents(
            second_artifact
        ):
            return "the held-out texts differ"
        first_artifact, second_artifact = (
            checkpoint.find_artifact(audit, "build_requests") for checkpoint in (first, second)
        )
        if (
            first_artifact
            and second_artifact
            and first_artifact["items"].digest != second_artifact["items"].digest
        ):
            return "the items differ"
        if (
            first_artifact
            and second_artifact
            and collect_distinct_request_settings(first_artifact)
            != collect_distinct_request_settings(second_artifact)
        ):
            return "the sampling settings or request seeds differ"
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
            trace_settings = ", ".join(f"trace.{setting}" for setting in differing_settings)
            return f"the settings differ: {trace_settings}"
        if reason := _explain_differing_references(audit, first, second):
            return reason
        first_artifact, second_artifact = (
            checkpoint.find_artifact(audit, "score") for checkpoint in (first, second)
        )
        if first_artifact and second_artifact:
            scorer_names = [
                artifact["scorers"].read()["scorer"].to_pylist()
                for artifact in (first_artifact, second_artifact)
            ]
            if scorer_names[0] != scorer_names[1]:
                return f"the scorers differ: {scorer_names[0][0]} and {scorer_names[1][0]}"
    return ""


def read_precision(audit_artifact: Artifact) -> str:
    """Read the precision in which the model of an audit was run."""
    precisions = audit_artifact["findings"].read(["precision"])["precision"].unique().to_pylist()
    return ", ".join(sorted(precisions))


def _explain_differing_references(
    audit: str, first: AuditedCheckpoint, second: AuditedCheckpoint
) -> str:
    """Explain how the reference models of an audit differ; empty if they do not."""
    for stage, lineage_input in REFERENCE_STAGES.items():
        artifacts = [checkpoint.find_artifact(audit, stage) for checkpoint in (first, second)]
        names = [
            None if artifact is None else artifact.find_input_name(lineage_input)
            for artifact in artifacts
        ]
        if None not in names and names[0] != names[1]:
            return f"the reference models differ: {names[0]} and {names[1]}"
        if stage != "respond_reference":
            continue
        if names[0] != names[1]:
            with_reference, without = (second, first) if names[0] is None else (first, second)
            return (
                f"{with_reference.name} is compared with a reference model, but {without.name} "
                f"is not (audit_{audit}.reference_model_folder)"
            )
        precisions = [
            ", ".join(
                f"{row['dtype']}/{row['precision']}" for row in artifact["model"].read().to_pylist()
            )
            for artifact in artifacts
            if artifact
        ]
        if len({*precisions}) > 1:
            return (
                "the reference models ran at different precisions (respond.dtype): "
                f"{' and '.join(precisions)}"
            )
    return ""


def list_differing_settings(
    first: Artifact, second: Artifact, ignored_settings: Sequence[str] = ()
) -> list[str]:
    """List the settings that differ, and whether the files read for the findings differ.

    Paths do not count: the items show the content of the files that requests are built from.
    """
    manifest_parts = [artifact.manifest["parts"] for artifact in (first, second)]
    first_config, second_config = (part["config"] for part in manifest_parts)
    # Ratings are about a checkpoint's own texts, so they always differ.
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
        if setting not in ignored_settings
        and first_config.get(setting) != second_config.get(setting)
        and not any(
            isinstance(config.get(setting), str | list) for config in (first_config, second_config)
        )
    ] + (
        ["the content of the files used to judge responses"]
        if file_digests[0] != file_digests[1]
        else []
    )


def collect_distinct_request_settings(request_set: Artifact) -> set[RequestSettings]:
    """Return the distinct combinations of the settings of requests."""
    requests = request_set["requests"]
    # Older runs have fewer columns.
    columns = [column for column in REQUEST_SETTINGS if column in requests.columns]
    rows = requests.read(columns).group_by(columns).aggregate([])
    return {tuple(row.get(column) for column in REQUEST_SETTINGS) for row in rows.to_pylist()}


class PairedChange(TypedDict):
    """Describe by how much a second value is higher than the first, from pairs of units.

    Figures that could not be estimated are None.

    Attributes:
        value: Second minus first.
        low: Lower end of its interval.
        high: Upper end of its interval.
        p: Uncorrected p.
        p_corrected: p, corrected for all tests of a comparison; None before ``compare_findings``.
        minimum_detectable_effect: Smallest detectable difference from 0.
        n: Number of pairs.
        clusters: Number of independent clusters of pairs.
        missing: Number of pairs without a value.
        method: The method, in a phrase.
        same: Whether there are pairs and none of them differs.
    """

    value: float | None
    low: float | None
    high: float | None
    p: float | None
    p_corrected: float | None
    minimum_detectable_effect: float | None
    n: int
    clusters: int
    missing: int
    method: str
    same: bool


@dataclass(frozen=True)
class FindingComparison:
    """Hold a finding that several audits have.

    Attributes:
        findings: Its row in each audit.
        changes: For each pair of audits, the second minus the first; None where the finding is not
            a mean of equal units.
    """

    findings: Sequence[Row]
    changes: Sequence[PairedChange | None]


def compare_findings(
    audits: Sequence[Artifact], audit_index_pairs: Sequence[tuple[int, int]]
) -> list[FindingComparison]:
    """Compare the findings that all audits have, between pairs of them.

    Args:
        audits: The artifacts of one audit, of several checkpoints.
        audit_index_pairs: Indices of the first and the second audit of each pair.

    Returns:
        Each common finding with its changes; p is corrected for all tests of this comparison.
    """
    first_findings, *other_findings = [read_findings_by_id(artifact) for artifact in audits]
    units_by_audit = [AuditUnits(artifact) for artifact in audits]
    comparisons: list[FindingComparison] = []
    for key in first_findings:
        if all(key in findings for findings in other_findings):
            matching_findings = [
                first_findings[key],
                *(findings[key] for findings in other_findings),
            ]
            unit_maps = [
                audit_units.build_units_by_key(row)
                for audit_units, row in zip(units_by_audit, matching_findings, strict=True)
            ]
            unit = first_findings[key]["unit"]
            comparisons.append(
                FindingComparison(
                    matching_findings,
                    [
                        compute_paired_change(unit_maps[i], unit_maps[j], unit)
                        for i, j in audit_index_pairs
                    ],
                )
            )
    p_values: list[float] = []
    tested_changes: list[PairedChange] = []
    for change in (change for comparison in comparisons for change in comparison.changes):
        if change is None or change["p"] is None:
            continue
        change["p_corrected"] = change["p"]
        # A change without any difference in its pairs, such as of a baseline, could never be
        # significant, so the other tests need no correction for it (Tarone 1990).
        if not change["same"]:
            p_values.append(change["p"])
            tested_changes.append(change)
    for change, p in zip(tested_changes, adjust_p_values_holm(p_values), strict=True):
        change["p_corrected"] = p
    return comparisons


def read_findings_by_id(artifact: Artifact) -> dict[bytes, Row]:
    """Read the findings of an audit by their ids, without its controls."""
    return {row["finding"]: row for row in read_findings(artifact) if not row["control"]}


def compute_paired_change(
    first_units: Mapping[UnitKey, ComparisonUnit] | None,
    second_units: Mapping[UnitKey, ComparisonUnit] | None,
    value_unit: str = "",
) -> PairedChange | None:
    """Estimate by how much the second is higher than the first, from pairs of units.

    The interval of a change of shares or areas is limited to the possible range.

    Returns:
        The difference; None where the two have different units, or where a unit differs in its
        number of values, its weight or its membership. In these cases the model's texts decide
        which texts count (such as only toxic continuations), and a difference over the common ones
        would contradict the two values.
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
        change = _estimate_mean_change(pairs, value_unit)
    else:
        change = _estimate_auc_change(pairs)
    # p is not rounded: it may be this small.
    fields = ("value", "low", "high", "minimum_detectable_effect")
    zeroed_fields: dict[str, Any] = {
        name: 0.0 for name in fields if abs(getattr(change, name)) < ROUNDING_TOLERANCE
    }
    change = replace(change, **zeroed_fields)
    return {
        "value": _nan_to_none(change.value),
        "low": _nan_to_none(change.low),
        "high": _nan_to_none(change.high),
        "p": _nan_to_none(change.p),
        "minimum_detectable_effect": _nan_to_none(change.minimum_detectable_effect),
        "p_corrected": None,
        "n": change.n,
        "clusters": change.clusters,
        "missing": change.missing,
        "method": change.method,
        "same": bool(change.n) and not np.nan_to_num(_compute_differences(pairs)).any(),
    }


def _nan_to_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _compute_differences(pairs: Sequence[tuple[ComparisonUnit, ComparisonUnit]]) -> np.ndarray:
    """Return the second minus the first value of each pair, (pairs,)."""
    first_values, second_values = np.array(
        [[first_unit.value, second_unit.value] for first_unit, second_unit in pairs]
    ).T
    differences = second_values - first_values
    return np.where(abs(differences) < ROUNDING_TOLERANCE, 0.0, differences)


def _estimate_mean_change(
    pairs: Sequence[tuple[ComparisonUnit, ComparisonUnit]], value_unit: str
) -> Estimate:
    """Estimate the mean of the second minus the mean of the first."""
    first_units, differences = [first_unit for first_unit, _ in pairs], _compute_differences(pairs)
    weights = [first_unit.weight for first_unit in first_units]
    clusters = [first_unit.cluster for first_unit in first_units]
    cluster_options: dict[str, Any] = {
        "clusters": clusters,
        "unit": "pairs" if len({*clusters}) == len(clusters) else "clusters of pairs",
    }
    if any(first_unit.crossed_cluster is not None for first_unit in first_units):
        cluster_options["crossed_clusters"] = [
            first_unit.crossed_cluster for first_unit in first_units
        ]
    maximum = SHARE_MAXIMUM_BY_UNIT.get(value_unit, np.inf)
    values = np.array([[first_unit.value, second_unit.value] for first_unit, second_unit in pairs])
    if not (
        np.isfinite(maximum)
        and np.nanmin(values, initial=0) >= 0
        and np.nanmax(values, initial=0) <= maximum
    ):
        return estimate_mean_or_share(
            differences, null_value=0.0, weights=weights, **cluster_options
        )
    # A difference of shares lies in [-1, 1]: map it to [0, 1] and the estimate back.
    change = scale_estimate(
        estimate_mean_or_share(
            (differences / maximum + 1) / 2, is_share=True, null_value=0.5, **cluster_options
        ),
        2 * maximum,
    )
    shifted_fields = {
        name: getattr(change, name) - maximum for name in ("value", "low", "high", "null_value")
    }
    change = replace(change, **shifted_fields)
    known_differences = differences[~np.isnan(differences)]
    if (
        np.isnan(change.low)
        or change.clusters == change.n  # the widening for skewness is enough
        or not np.isin(known_differences, (-maximum, 0.0, maximum)).all()
    ):
        return change
    return _add_pairs_in_each_direction(change, differences, cluster_options, maximum)


def _add_pairs_in_each_direction(
    change: Estimate, differences: np.ndarray, cluster_options: Mapping[str, Any], maximum: float
) -> Estimate:
    """Replace interval, p and minimum detectable effect of a change of clusters of 0 and 1.

    They come from the differences and ADDED_PAIRS pairs in each direction, after Bonett & Price
    (2012), who add one. An added pair is a cluster of its own. If too few clusters differ for such
    an interval, the estimate stays as it is.

    Args:
        change: The estimate of the mean difference.
        differences: (n,) differences: 0, plus or minus the maximum, or NaN.
        cluster_options: The clusters, as ``estimate_mean_or_share`` takes them.
        maximum: The largest difference that is possible.
    """
    is_known = ~np.isnan(differences)
    cluster_count = len({*np.array(cluster_options["clusters"], object)[is_known]})
    added_weight = ADDED_PAIRS * min(ADDED_CLUSTER_FACTOR, change.n / cluster_count)
    added_names = [object(), object()]
    extended_options: dict[str, Any] = {
        name: option if name == "unit" else [*option, *added_names]
        for name, option in cluster_options.items()
    }
    extended = scale_estimate(
        estimate_mean_or_share(
            [*differences / maximum, 1.0, -1.0],
            weights=[*np.ones(len(differences)), added_weight, added_weight],
            null_value=0.0,
            **extended_options,
        ),
        maximum,
    )
    if np.isnan(extended.low):
        return change
    name, _, _ = extended.method.partition(" based on ")
    _, _, clusters = change.method.partition(" based on ")
    return replace(
        change,
        low=max(min(extended.low, change.value), -maximum),
        high=min(max(extended.high, change.value), maximum),
        p=extended.p,
        minimum_detectable_effect=extended.minimum_detectable_effect,
        method=f"{name} based on {clusters}, with {ADDED_PAIRS:g} pairs added in each direction "
        "(after Bonett & Price 2012)",
    )


def _estimate_auc_change(pairs: Sequence[tuple[ComparisonUnit, ComparisonUnit]]) -> Estimate:
    """Estimate the change of the area under the curve (DeLong, DeLong & Clarke-Pearson 1988).

    The variances of members and of others add up; either kind may be few (Welch 1947).
    """
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
            method=f"no interval: there are fewer than {MIN_AREA_MEMBERS} members or fewer than "
            f"{MIN_AREA_MEMBERS} non-members",
        )
    if np.isnan(change.low) and auc_change:
        return replace(
            change,
            p=2.0 ** (1 - smaller_count),
            minimum_detectable_effect=np.nan,
            method="no interval: all pairs changed by the same amount; p-value: probability that "
            f"all {smaller_count} pairs change in the same direction by chance",
        )
    return replace(
        change,
        low=max(change.low, -1.0),
        high=min(change.high, 1.0),
        minimum_detectable_effect=change.minimum_detectable_effect
        if change.minimum_detectable_effect <= 1
        else np.nan,
    )
