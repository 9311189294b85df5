"""Summarize a run for the index of the site: its model, its controls and its key figures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hallmark.reports.page.document import DecisionSheet
from hallmark.reports.page.figures import format_number, get_evidence_place
from hallmark.reports.page.redaction import RedactFunction
from hallmark.reports.sections.card_summary import count_control_results, list_failed_self_checks
from hallmark.reports.sections.training_coverage import describe_training_arm
from hallmark.tasks.audits.judging.findings import AuditControl
from hallmark.tasks.audits.judging.policy_outcome import PolicyOutcome, judge_policy
from hallmark.tasks.audits.judging.scorer_controls import remove_repeated_scorer_controls
from hallmark.tasks.contract import (
    Artifact,
    HallmarkError,
    Row,
    get_artifact_store,
    table_to_rows,
)

#: Labels of the model card figures that the index shows, by the prefix of their ids.
KEY_FIGURE_LABELS = {
    "capability-bits-per-byte-model": "bits per byte",
    "bias-stereotype-preference": "stereotype preferred",
    "extraction-exposure-difference": "exposure difference",
}


def summarize_run(artifacts: Mapping[str, Artifact | None], redact: RedactFunction) -> RunSummary:
    """Return the summary of a run; it is empty where an artifact cannot be read."""
    try:
        for label in ("model_card", "task_card", "policy"):
            if (artifact := artifacts.get(label)) is not None:
                artifact.verify_tables()
        return RunSummary(
            _summarize_model(artifacts, redact),
            _summarize_controls(artifacts),
            _read_key_figures_or_blanks(artifacts.get("model_card")),
            _read_policy_outcome(artifacts, redact),
            read_decision_status(artifacts.get("model_card")),
        )
    except (HallmarkError, LookupError, TypeError, ValueError, AttributeError):
        return RunSummary(
            ModelSummary(),
            ControlSummary(),
            _read_key_figures_or_blanks(None),
            PolicyOutcome(),
        )


def describe_training_arm_of_run(record: Mapping[str, Any]) -> str:
    """Return which documents a run trained a model without; empty for other runs."""
    config = record.get("config")
    exclusion_config = config.get("leave_out") if isinstance(config, Mapping) else None
    if record["flow"] != "pipeline" or not isinstance(exclusion_config, Mapping):
        return ""
    return describe_training_arm(exclusion_config)


def _read_policy_outcome(
    artifacts: Mapping[str, Artifact | None], redact: RedactFunction
) -> PolicyOutcome:
    policy_verdicts = artifacts.get("policy")
    if policy_verdicts is None:
        return PolicyOutcome()
    verdict_rows = policy_verdicts["verdicts"].read(["rule", "verdict"]).to_pylist()
    return judge_policy({**row, "rule": redact(row["rule"])} for row in verdict_rows)


@dataclass(frozen=True)
class DecisionStatus:
    """The status on the decision sheet of a model card.

    Attributes:
        status: The status in one to three words.
        look: How it is coloured: "good", "bad" or "note".
        explanation: One sentence that explains the status.
    """

    status: str
    look: str
    explanation: str


def read_decision_status(card: Artifact | None) -> DecisionStatus | None:
    """Return the status on a model card, whose text is redacted; None if there is none."""
    if card is None:
        return None
    rows = card["sections"].read(["kind", "content"])
    sheets = rows.filter(pc.equal(rows["kind"], DecisionSheet.__name__))["content"].to_pylist()
    if not sheets or not sheets[0]:  # a purge empties the content
        return None
    sheet = json.loads(sheets[0])
    explanation = "".join(part for part in sheet["explanation"] if isinstance(part, str))
    return DecisionStatus(sheet["status"], sheet["look"], explanation)


@dataclass(frozen=True)
class ModelSummary:
    """The model of a run, as far as it is known.

    Attributes:
        title: The title on the card; None without a card.
        parameters: The number of parameters.
        step: The training step of the checkpoint.
    """

    title: str | None = None
    parameters: int | None = None
    step: int | None = None


def _summarize_model(
    artifacts: Mapping[str, Artifact | None], redact: RedactFunction
) -> ModelSummary:
    card = artifacts.get("model_card") or artifacts.get("task_card")
    training_run = artifacts.get("pretrain")
    if card is not None:
        figures = card["figures"].read(["id", "value"])
        is_parameter_count = pc.starts_with(figures["id"], "parameters-")
        parameter_counts = figures.filter(is_parameter_count)["value"].to_pylist()
        title = card.manifest["parts"]["config"].get("title")
        return ModelSummary(
            title="untitled" if title is None else redact(title),
            parameters=int(sum(parameter_counts)) if parameter_counts else None,
            step=read_checkpoint_step(card),
        )
    if training_run is not None:
        return ModelSummary(step=pc.max(training_run["checkpoints"].read(["step"])["step"]).as_py())
    return ModelSummary()


def read_checkpoint_step(card: Artifact) -> int | None:
    """Return the training step of the checkpoint of a card; None for one from another store."""
    try:
        stage, _, digest = card.get_input_name("checkpoint").partition("/")
        store = get_artifact_store(card)
        checkpoint = store.find_artifact(stage, digest) if store else None
        return None if checkpoint is None else checkpoint.training_step
    except HallmarkError:
        return None


@dataclass(frozen=True)
class ControlSummary:
    """The controls of a run, counted as on its card.

    Attributes:
        counts: How many controls gave the expected result, by what they test; empty without one.
        failed_audits: The titles of the audits in which a control of the audit itself or of its
            baseline failed.
    """

    counts: str = ""
    failed_audits: tuple[str, ...] = ()


def _summarize_controls(artifacts: Mapping[str, Artifact | None]) -> ControlSummary:
    columns = ["control", "control_target", "verdict", "scorer", "slice", "value", "method"]
    rows_by_audit: dict[str, list[Row]] = {}
    for label, artifact in artifacts.items():
        if label.startswith("audit_") and artifact is not None:
            findings = artifact["findings"].read(columns)
            control_table = findings.filter(pc.not_equal(findings["control"], ""))
            rows_by_audit[label.removeprefix("audit_")] = table_to_rows(control_table)
    controls = [
        AuditControl(audit, row)
        for audit, rows in remove_repeated_scorer_controls(rows_by_audit).items()
        for row in rows
    ]
    if not controls:
        return ControlSummary()
    return ControlSummary(count_control_results(controls), tuple(list_failed_self_checks(controls)))


@dataclass(frozen=True)
class KeyFigure:
    """A figure of a model card, as the index shows it.

    Attributes:
        name: The label of its column.
        value: The formatted value; a dash if it is missing.
        details: Its interval, n and scorer, where it has them.
        evidence_id: The id of its rows; empty if it is missing.
    """

    name: str
    value: str = "–"
    details: tuple[str, ...] = ()
    evidence_id: str = ""

    @property
    def page_path(self) -> str:
        """The place of its rows in the site, from the folder of the run; empty without rows."""
        return f"model_card/{get_evidence_place(self.evidence_id)}" if self.evidence_id else ""


@dataclass(frozen=True)
class RunSummary:
    """What the index of the site shows of a run.

    Attributes:
        model: Its model.
        controls: Its controls.
        figures: The key figures of its model card.
        policy: The rules of its policy by verdict, with redacted names.
        decision: The status on its model card; None without one.
    """

    model: ModelSummary
    controls: ControlSummary
    figures: Sequence[KeyFigure]
    policy: PolicyOutcome
    decision: DecisionStatus | None = None


def _read_key_figures_or_blanks(card: Artifact | None) -> list[KeyFigure]:
    figures_table = None if card is None else card["figures"].read()
    return [
        read_key_figure(figures_table, id_prefix, label)
        for id_prefix, label in KEY_FIGURE_LABELS.items()
    ]


def read_key_figure(figures_table: pa.Table | None, id_prefix: str, label: str) -> KeyFigure:
    """Return the figure whose id is ``id_prefix``, else the one for numbers of copies."""
    if figures_table is None:
        return KeyFigure(label)
    # "bias-stereotype-preference" alone, but "extraction-exposure-difference-copies-64-0".
    matching_rows = figures_table.filter(pc.equal(figures_table["id"], id_prefix))
    if not len(matching_rows):
        matching_rows = figures_table.filter(
            pc.starts_with(figures_table["id"], id_prefix + "-copies")
        )
    row = next(iter(matching_rows.slice(0, 1).to_pylist()), None)
    if row is None or row["value"] is None:
        return KeyFigure(label)
    unit = row["unit"]
    # Cards of earlier versions do not have this column.
    details = ["no conclusion"] if row.get("inconclusive_reason") else []
    if row["low"] is not None and row["high"] is not None:
        level = row["confidence_level"]
        level_text = "interval" if level is None else f"{100 * level:g} %:"
        details.append(
            f"{level_text} {format_number(row['low'], unit)} to {format_number(row['high'], unit)}"
        )
    if row["n"] is not None:
        details.append(f"n = {row['n']:,}")
    if row["scorer"]:
        details.append(f"scorer {row['scorer']}")
    return KeyFigure(
        label,
        format_number(row["value"], unit),
        tuple(details),
        row["evidence_id"],
    )
