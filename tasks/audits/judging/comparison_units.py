"""Split findings into units, the values that they are means of, so that audits can be compared."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.audits.audit_tables import HELD_OUT_TEXT
from hallmark.tasks.audits.judging.evidence_filters import RowConditions
from hallmark.tasks.audits.judging.findings import select_evidence
from hallmark.tasks.contract import Artifact, Row
from hallmark.tasks.measures.roc import compute_roc_placement_values

#: What names a unit: the id of its item, or the values of its key columns.
UnitKey = Any

#: The unit of a finding that is the area under the ROC curve of members and others.
AREA_UNIT = "probability"

#: For each of these tables: the columns that name a unit, its cluster column and its value column.
CAPABILITY_COLUMNS = {
    "samples": (("doc_id", "prompt"), "doc_id", "is_correct"),
    "pairs": (("pair_id",), "cluster", "preference_score"),
}


class ComparisonUnit(NamedTuple):
    """Hold one unit of a finding.

    Attributes:
        cluster: Units of one cluster are not independent.
        value: The value.
        crossed_cluster: A second cluster, if units have two.
        value_count: Number of values that ``value`` is the mean of.
        weight: Weight in the mean, such as bytes for bits per byte.
        is_member: For an area under the curve, whether it is a member; None for other findings.
    """

    cluster: str
    value: float
    crossed_cluster: str | None = None
    value_count: int = 1
    weight: float = 1.0
    is_member: bool | None = None


class HeldOutDocument(NamedTuple):
    """Identify a held-out document; text of another size may have the same user-given id."""

    doc_id: bytes
    byte_count: int


class AuditUnits:
    """Give the units of the findings of one audit."""

    def __init__(self, artifact: Artifact) -> None:
        self.values = artifact["values"].read() if "values" in artifact.tables else None
        self.capability_tables = {
            name: artifact[name].read() for name in CAPABILITY_COLUMNS if name in artifact.tables
        }

    def build_value_filter(self, finding: Row) -> RowConditions | None:
        """Return the filter of the values whose mean a finding is; None if it is no such mean."""
        if (
            self.values is None
            or finding["evidence_table"] != "values"
            or finding["unit"] == AREA_UNIT
        ):
            return None
        return {**json.loads(finding["evidence_filter"]), "measure": finding["metric"]}

    def build_units_by_key(self, finding: Row) -> dict[UnitKey, ComparisonUnit] | None:
        """Build the units of a finding; None if the finding is not their mean."""
        value_filter, value = self.build_value_filter(finding), finding["value"]
        if self.values is None and finding["evidence_table"] in self.capability_tables:
            rows = select_evidence(
                self.capability_tables[finding["evidence_table"]], finding["evidence_filter"]
            )
            # A finding without a direction describes a baseline or the text, not the model.
            units = (
                build_capability_units(rows, finding["evidence_table"])
                if finding["worse_when"]
                else {}
            )
            means = [_compute_weighted_mean(units)]
        elif self.values is not None and finding["unit"] == AREA_UNIT:
            units = build_auc_units(select_evidence(self.values, finding["evidence_filter"]))
            means = [
                _compute_weighted_mean(
                    {name: unit for name, unit in units.items() if unit.is_member}
                )
            ]
        elif self.values is None or value_filter is None:
            return None
        else:
            rows = select_evidence(self.values, value_filter)
            units, means = (
                build_item_units(rows),
                [_compute_mean(rows), _compute_mean(average_values_by_item(rows))],
            )
        # Figures computed in another way, such as ratios, differ from the mean.
        is_mean = (
            mean is not None
            and value is not None
            and math.isclose(mean, value, rel_tol=1e-9, abs_tol=1e-9)
            for mean in means
        )
        return units if any(is_mean) else None


def _compute_mean(rows: pa.Table) -> float | None:
    return pc.mean(rows["value"]).as_py()  # type: ignore[no-any-return]


def build_item_units(values: pa.Table) -> dict[UnitKey, ComparisonUnit]:
    """Build a unit for each item in rows of values."""
    value_counts = Counter(values["item"].to_pylist())
    rows = average_values_by_item(values)
    items, clusters = (rows[name].to_pylist() for name in ("item", "cluster"))
    item_values = pc.fill_null(rows["value"], float("nan")).to_pylist()
    has_crossed = "crossed_cluster" in rows.column_names
    crossed_clusters = rows["crossed_cluster"].to_pylist() if has_crossed else [None] * len(rows)
    item_counts = [value_counts[item] for item in items]
    return dict(
        zip(
            items,
            map(ComparisonUnit, clusters, item_values, crossed_clusters, item_counts),
            strict=True,
        )
    )


def average_values_by_item(values: pa.Table) -> pa.Table:
    """Return the first row of each item, with the mean of the item's values."""
    numbered = values.append_column("at", pa.array(np.arange(len(values))))
    means = numbered.group_by("item", use_threads=False).aggregate(
        [("at", "min"), ("value", "mean")]
    )
    value_index = values.schema.get_field_index("value")
    rows = values.take(means["at_min"])
    return rows.set_column(value_index, values.schema.field(value_index), means["value_mean"])


def build_capability_units(rows: pa.Table, table_name: str) -> dict[UnitKey, ComparisonUnit]:
    """Build units of the capability audit.

    A document has its bits per byte, weighted by its bytes; a passage or a sentence pair has 1 or
    0.
    """
    key_columns, cluster_column, value_column = CAPABILITY_COLUMNS[table_name]
    unit_values, unit_weights = rows[value_column].cast(pa.float64()), pa.array(np.ones(len(rows)))
    if table_name == "samples":
        sizes = rows["bytes"].cast(pa.float64())
        unit_values = pc.coalesce(unit_values, pc.divide(rows["model_bits"], sizes))
        unit_weights = pc.coalesce(sizes, unit_weights)
    unit_values = pc.fill_null(unit_values, math.nan)
    unit_fields = zip(
        *(column.to_pylist() for column in (rows[cluster_column], unit_values, unit_weights)),
        strict=True,
    )
    units = [
        ComparisonUnit(unit_cluster, unit_value, weight=unit_weight)
        for unit_cluster, unit_value, unit_weight in unit_fields
    ]
    return dict(zip(_build_row_keys(rows, key_columns), units, strict=True))


def build_auc_units(values: pa.Table) -> dict[UnitKey, ComparisonUnit]:
    """Build units for members and others: the share of the other kind that each one outranks.

    The mean over either kind is the area under the curve.
    """
    rows = values.filter(pc.is_finite(values["value"]))
    is_member = rows["is_member"].to_numpy(zero_copy_only=False).astype(bool)
    if is_member.all() or not is_member.any():
        return {}
    scores = rows["value"].to_numpy().astype(np.float64)
    curve_shares = np.empty(len(rows))
    curve_shares[is_member], curve_shares[~is_member] = compute_roc_placement_values(
        scores[is_member], scores[~is_member]
    )
    items, clusters = (rows[name].to_pylist() for name in ("item", "cluster"))
    unit_fields = zip(clusters, curve_shares.tolist(), is_member.tolist(), strict=True)
    units = (
        ComparisonUnit(cluster, share, is_member=member_flag)
        for cluster, share, member_flag in unit_fields
    )
    return dict(zip(items, units, strict=True))


def read_heldout_documents(capability_audit: Artifact) -> set[HeldOutDocument]:
    """Read the held-out documents of a capability audit."""
    rows = capability_audit["samples"].read(["text_kind", "doc_id", "bytes"])
    held_out_rows = rows.filter(pc.equal(rows["text_kind"], HELD_OUT_TEXT))
    return {
        HeldOutDocument(*row_key) for row_key in _build_row_keys(held_out_rows, ("doc_id", "bytes"))
    }


def _build_row_keys(rows: pa.Table, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the values of the columns in each row."""
    return [*zip(*(rows[column].to_pylist() for column in columns), strict=True)]


def _compute_weighted_mean(units: Mapping[UnitKey, ComparisonUnit]) -> float | None:
    total_weight = sum(unit.weight for unit in units.values())
    return (
        sum(unit.weight * unit.value for unit in units.values()) / total_weight
        if total_weight
        else None
    )
