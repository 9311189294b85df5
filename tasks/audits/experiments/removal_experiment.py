"""Run the removal experiment: do findings disappear if their source documents are removed?

``source_documents.py`` finds the documents, ``arm_comparison.py`` compares the retrained models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.audits.experiments.arm_comparison import (
    BASE,
    CaseUnits,
    build_effect_rows,
    evaluate_criteria,
)
from hallmark.tasks.audits.experiments.source_documents import RemovalCase, SourceDocumentsConfig
from hallmark.tasks.audits.judging.comparison_units import (
    ComparisonUnit,
    UnitKey,
    build_item_units,
)
from hallmark.tasks.audits.judging.findings import select_evidence
from hallmark.tasks.contract import Artifact, Row, StageContext, Table, column, stage, table_schema

_CASE_COLUMN = column("case_name", pa.string(), "label", "case (a group of findings)")
_ARM_COLUMN = column(
    "arm",
    pa.string(),
    "label",
    "arm of the experiment (one training run): base, removed, random, or another seed",
)

ARMS = table_schema(
    "Compared training runs.",
    _ARM_COLUMN,
    column("step", pa.int64(), "figure", "optimizer step of the arm's last checkpoint"),
    column("checkpoint", pa.string(), "id", "content digest of the arm's last checkpoint"),
    column(
        "documents", pa.int64(), "figure", "number of removed training documents", unit="documents"
    ),
    column(
        "bytes", pa.int64(), "figure", "length of the removed text in UTF-8 bytes", unit="bytes"
    ),
)
SOURCES = table_schema(
    "Removed documents, by source.",
    _ARM_COLUMN,
    column("source", pa.string(), "label", "the source"),
    column(
        "documents", pa.int64(), "figure", "number of removed training documents", unit="documents"
    ),
    column(
        "bytes", pa.int64(), "figure", "length of the removed text in UTF-8 bytes", unit="bytes"
    ),
)
CASES = table_schema(
    "Traced findings.",
    _CASE_COLUMN,
    column("kind", pa.string(), "label", "case type: memorised, association or other"),
    column(
        "finding",
        pa.string(),
        "label",
        "reference to a finding, in the form that hallmark trace accepts",
    ),
    column(
        "documents",
        pa.int64(),
        "figure",
        "number of source documents for the case",
        unit="documents",
    ),
    column(
        "removed_documents",
        pa.int64(),
        "figure",
        "number of source documents that were removed",
        unit="documents",
    ),
    column(
        "reason",
        pa.string(),
        "project text",
        "reason why no documents were removed; empty if documents were removed",
    ),
)
UNITS = table_schema(
    "Measured values for each arm (one training run in the experiment), one row per unit.",
    _CASE_COLUMN,
    column(
        "role",
        pa.string(),
        "label",
        "unit (a unit of the findings) or null_unit (a unit without an effect, for comparison)",
    ),
    _ARM_COLUMN,
    column("item", pa.string(), "id", "unit id; units with the same id in two arms form a pair"),
    column(
        "cluster",
        pa.string(),
        "label",
        "cluster of the unit; units in the same cluster are not independent",
    ),
    column(
        "value",
        pa.float64(),
        "figure",
        "measured value for the unit; null if the model returned no number",
    ),
)
EFFECTS = table_schema(
    "Effects computed from the unit values.",
    _CASE_COLUMN,
    column(
        "effect",
        pa.string(),
        "label",
        "mean (mean of the units), null_mean (mean of the units without an effect), null_region "
        "(range that contains the mean with probability 0.99 if there is no effect), effect_before "
        "or effect_after (mean of the units minus mean of the units without an effect, in the base "
        "arm or after removal), change_from_base (arm minus base, over pairs of units) or "
        "random_minus_removed (random arm minus removed arm, over pairs of units)",
    ),
    _ARM_COLUMN,
    column("value", pa.float64(), "figure", "measured value; null if it could not be measured"),
    column("low", pa.float64(), "figure", "lower end of the interval for the measured value"),
    column("high", pa.float64(), "figure", "upper end of the interval for the measured value"),
    column("confidence_level", pa.float64(), "figure", "level of the interval", unit="share"),
    column("n", pa.int64(), "figure", "number of units or unit pairs"),
    column("clusters", pa.int64(), "figure", "number of independent clusters of units"),
    column("unit", pa.string(), "label", "unit of the measured value"),
    column("method", pa.string(), "project text", "how the value was measured"),
    column(
        "seed_noise",
        pa.float64(),
        "figure",
        "noise: largest difference between the base and a training run with another seed; null if "
        "there is no such run or the row is for such a run",
    ),
    column(
        "verdict",
        pa.string(),
        "label",
        "beyond noise if the whole interval is farther from 0 than the noise; within noise "
        "otherwise; empty if the interval and the noise were not compared",
    ),
)
CRITERIA = table_schema(
    "Criteria for the removal experiment.",
    _CASE_COLUMN,
    column("criterion", pa.string(), "label", "what is compared"),
    column("value", pa.float64(), "figure", "measured value; null if it could not be measured"),
    column(
        "comparison",
        pa.string(),
        "label",
        "required relation between the value and the bound: at least, at most, above or below",
    ),
    column(
        "bound",
        pa.float64(),
        "figure",
        "bound on the value; null if it is unknown",
    ),
    column("unit", pa.string(), "label", "unit of the value and the bound"),
    column(
        "verdict",
        pa.string(),
        "label",
        "outcome: pass or fail; empty if the value or the bound is unknown",
    ),
)
HELDOUT_LOSS = table_schema(
    "Held-out loss of each arm's last checkpoint.",
    column("kind", pa.string(), "label", "type of breakdown: all, source or identity"),
    column("name", pa.string(), "label", "document source, or group mentioned in the documents"),
    _ARM_COLUMN,
    column("bytes", pa.int64(), "figure", "number of predicted bytes", unit="bytes"),
    column(
        "bits_per_byte",
        pa.float64(),
        "figure",
        "held-out loss; null if there were no tokens to predict",
        unit="bits per byte",
    ),
    column(
        "difference_from_base",
        pa.float64(),
        "figure",
        "loss in the arm minus loss in the base arm",
        unit="bits per byte",
    ),
)

#: Separates the arm from the audit in the names of the stage's inputs.
ARM_SEPARATOR = "/"


def build_units_by_item(
    audit: Artifact, alternative_json_conditions: Sequence[str]
) -> dict[str, ComparisonUnit]:
    """Build the units of the values that any of the conditions selects, by item.

    Each condition is a JSON object, as ``select_evidence`` takes it.
    """
    if not alternative_json_conditions:
        return {}
    values = audit["values"].read()
    units = build_item_units(
        pa.concat_tables(
            [select_evidence(values, condition) for condition in alternative_json_conditions]
        )
    )
    return {
        _key_to_string(item): unit._replace(cluster=_key_to_string(unit.cluster))
        for item, unit in units.items()
    }


def _key_to_string(key: UnitKey) -> str:
    return key.hex() if isinstance(key, bytes) else str(key)


def merge_units_by_cluster(units: Mapping[str, ComparisonUnit]) -> dict[str, ComparisonUnit]:
    """Merge the units of each cluster into one unit with the mean of their known values."""
    values_by_cluster: dict[str, list[float]] = {}
    for unit in units.values():
        values_by_cluster.setdefault(unit.cluster, []).append(unit.value)
    known_values = {
        cluster: [v for v in values if not np.isnan(v)]
        for cluster, values in values_by_cluster.items()
    }
    return {
        cluster: ComparisonUnit(cluster, float(np.mean(values)) if values else float("nan"))
        for cluster, values in known_values.items()
    }


def collect_units_and_null_units_by_arm(
    case: RemovalCase, audit_by_arm: Mapping[str, Artifact], *, later_draws_seed: int
) -> CaseUnits:
    """Collect the units of a case and its units without an effect in every arm of the experiment.

    A unit of memorised text is a secret or a passage: all attempts at it are merged.

    Args:
        case: The case.
        audit_by_arm: The artifact of the case's audit in each arm.
        later_draws_seed: Seed of the draws that later give the null region; none are drawn here.
    """
    merge_units = merge_units_by_cluster if case.kind == "memorised" else dict
    units = {
        arm: merge_units(build_units_by_item(audit, case.unit_conditions))
        for arm, audit in audit_by_arm.items()
    }
    null_units = {
        arm: merge_units(build_units_by_item(audit, case.null_conditions))
        for arm, audit in audit_by_arm.items()
    }
    reference_count = 0
    values = audit_by_arm[BASE]["values"]
    if case.metric == "exposure" and "reference_count" in values.columns:
        reference_counts = values.read(["reference_count"])["reference_count"]
        reference_count = int(pc.max(reference_counts).as_py() or 0)
    return CaseUnits(case, units, null_units, reference_count, later_draws_seed)


def build_unit_rows(case_units: CaseUnits) -> list[Row]:
    """Build the rows of UNITS of a case."""
    return [
        {
            "case_name": case_units.case.name,
            "role": role,
            "arm": arm,
            "item": item,
            "cluster": unit.cluster,
            "value": None if np.isnan(unit.value) else unit.value,
        }
        for role, units_by_arm in (
            ("unit", case_units.units_by_arm),
            ("null_unit", case_units.null_units_by_arm),
        )
        for arm, units in units_by_arm.items()
        for item, unit in units.items()
    ]


def build_case_rows(case: RemovalCase, source_documents: pa.Table) -> list[Row]:
    """Build rows of CASES, one row per finding."""
    case_documents = source_documents.filter(pc.equal(source_documents["case_name"], case.name))
    removed_documents = case_documents.filter(case_documents["is_removed"])
    counts = [
        pc.count_distinct(documents["doc_id"]).as_py()
        for documents in (case_documents, removed_documents)
    ]
    reason = ""
    if not counts[1]:
        trait_counts = Counter(
            zip(
                case_documents["item_unit"].to_pylist(),
                case_documents["stated_trait"].to_pylist(),
                strict=True,
            )
        )
        if not counts[0]:
            reason = "the case has no source documents in the training text"
        elif all(
            trait_counts[unit, "assigned"] == trait_counts[unit, "other"]
            for unit, _ in [*trait_counts]
        ):
            reason = (
                "the two traits occur in the same number of documents, so there is nothing to "
                "remove"
            )
        else:
            reason = (
                "the training text contains no documents whose removal would balance the traits"
            )
    return [
        {
            "case_name": case.name,
            "kind": case.kind,
            "finding": finding_name,
            "documents": counts[0],
            "removed_documents": counts[1],
            "reason": reason,
        }
        for finding_name in case.finding_names
    ]


def count_removed_documents_by_source(arm: str, removal_ledger: Artifact | None) -> list[Row]:
    """Build the rows of SOURCES of an arm; none without a ledger of removals."""
    if removal_ledger is None:
        return []
    ledger_rows = removal_ledger["ledger"].read(["source", "bytes_before"])
    source_sums = ledger_rows.group_by("source").aggregate(
        [("bytes_before", "count"), ("bytes_before", "sum")]
    )
    return [
        {
            "arm": arm,
            "source": row["source"],
            "documents": row["bytes_before_count"],
            "bytes": row["bytes_before_sum"],
        }
        for row in source_sums.sort_by("source").to_pylist()
    ]


def read_last_validation_by_kind_and_name(training: Artifact) -> dict[tuple[str, str], Row]:
    """Read the rows of the last validation of a training, by kind and name."""
    rows = training["validation"].read().to_pylist()
    last_step = max((row["step"] for row in rows), default=0)
    return {(row["kind"], row["name"]): row for row in rows if row["step"] == last_step}


def build_heldout_loss_rows(training_by_arm: Mapping[str, Artifact]) -> list[Row]:
    """Build the rows of HELDOUT_LOSS."""
    loss_by_arm = {
        arm: read_last_validation_by_kind_and_name(artifact)
        for arm, artifact in training_by_arm.items()
    }
    loss_rows = []
    for (kind, name), base_row in loss_by_arm[BASE].items():
        for arm, arm_rows in loss_by_arm.items():
            arm_row = arm_rows.get((kind, name), {})
            base_loss, arm_loss = base_row["bits_per_byte"], arm_row.get("bits_per_byte")
            difference = None if base_loss is None or arm_loss is None else arm_loss - base_loss
            loss_rows.append(
                {
                    "kind": kind,
                    "name": name,
                    "arm": arm,
                    "bytes": arm_row.get("bytes", 0),
                    "bits_per_byte": arm_loss,
                    "difference_from_base": difference,
                }
            )
    return loss_rows


@stage(
    name="compare_arms",
    tables={
        "arms": ARMS,
        "sources": SOURCES,
        "cases": CASES,
        "units": UNITS,
        "effects": EFFECTS,
        "criteria": CRITERIA,
        "heldout_loss": HELDOUT_LOSS,
    },
    libraries=["numpy", "scipy"],
    reads={
        "audits": ("values",),
        "trainings": ("validation", "checkpoints"),
        "removals": ("ledger",),
    },
)
def compare_arms(
    audits: dict[str, Artifact],
    trainings: dict[str, Artifact],
    removals: dict[str, Artifact],
    source_documents: Table,
    config: SourceDocumentsConfig,
    context: StageContext,
) -> None:
    """Compare the arms of a removal experiment.

    Args:
        audits: Audits, by arm and audit ("removed/extraction").
        trainings: Trainings, by arm.
        removals: Ledgers of the removed documents, by arm.
        source_documents: Rows of SOURCE_DOCUMENTS.
        config: The cases.
        context: Context of the stage.
    """
    document_rows = source_documents.read()
    case_rows = [row for case in config.cases for row in build_case_rows(case, document_rows)]
    cases_with_removals = {row["case_name"] for row in case_rows if row["removed_documents"]}
    tables: dict[str, list[Row]] = {name: [] for name in ("units", "effects", "criteria")}
    for case in config.cases:
        audit_by_arm = {
            name.split(ARM_SEPARATOR)[0]: audit
            for name, audit in audits.items()
            if name.split(ARM_SEPARATOR)[1] == case.audit
        }
        case_units = collect_units_and_null_units_by_arm(
            case, audit_by_arm, later_draws_seed=config.seed
        )
        tables["units"] += build_unit_rows(case_units)
        effect_rows = build_effect_rows(case_units)
        tables["effects"] += effect_rows
        if case.name in cases_with_removals:
            tables["criteria"] += evaluate_criteria(case, effect_rows)
    tables["cases"], tables["heldout_loss"] = case_rows, build_heldout_loss_rows(trainings)
    tables["sources"] = [
        row
        for arm in trainings
        for row in count_removed_documents_by_source(arm, removals.get(arm))
    ]
    for arm, artifact in trainings.items():
        last_checkpoint = (
            artifact["checkpoints"].read(["step", "content_digest"]).sort_by("step").to_pylist()[-1]
        )
        removed_rows = [row for row in tables["sources"] if row["arm"] == arm]
        tables.setdefault("arms", []).append(
            {
                "arm": arm,
                "step": last_checkpoint["step"],
                "checkpoint": last_checkpoint["content_digest"],
                "documents": sum(row["documents"] for row in removed_rows),
                "bytes": sum(row["bytes"] for row in removed_rows),
            }
        )
    for name, rows in tables.items():
        context.get_table_writer(name).write(
            pa.Table.from_pylist(rows, schema=context.schemas[name])
        )
