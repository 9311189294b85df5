"""Format a forecast (``hallmark run --dry-run``) for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from hallmark.flows.audit_selection import ALL_AUDITS
from hallmark.flows.console import format_duration
from hallmark.reports.page.figures import format_number
from hallmark.tasks.contract import format_count

Report = dict[str, Any]

#: How the time basis of a stage begins if an earlier artifact was timed, see ``run_forecast``.
EARLIER_ARTIFACT_BASIS = "estimate: time taken to compute "

#: Number of stages without an estimated time that are named.
MAX_LISTED_STAGES = 4

STATE_LABELS = {
    "store": "cached",
    "run": "would run",
    "unknown": "unknown",
    "fails": "FAILS",
    "blocked": "blocked",
}


def render_forecast(report: Report) -> str:
    """Format the report of ``forecast_run``: stages, corpus, training, notes and warnings."""
    blocks = [
        _render_stages(report),
        _render_corpus(report),
        _render_training(report),
        _render_notes_and_warnings(report),
    ]
    heading = f"dry run of {report['config']}: nothing was written\nstore {report['store']}"
    return "\n\n".join([heading, *(block for block in blocks if block)])


def _render_stages(report: Report) -> str:
    width = max(len(row["label"]) for row in _merge_rows_without_estimate(report["stages"]))
    lines = []
    blocked_rows = [row for row in report["stages"] if row["state"] == "blocked"]
    summarizes_blocked = len(blocked_rows) > 1
    for row in _merge_rows_without_estimate(report["stages"]):
        if summarizes_blocked and row["state"] == "blocked":
            continue
        duration = format_duration(row["seconds"]) if row["seconds"] is not None else ""
        duration = "not estimated" if not duration and row["state"] == "run" else duration
        artifact_or_reason = row["artifact"] or row["reason"]
        state_label = STATE_LABELS.get(row["state"], row["state"])
        lines.append(
            f"{row['label']:<{width}}  {state_label:<9}  {duration:<13}  {artifact_or_reason}"
        )
    if summarizes_blocked:
        reasons = "; ".join(dict.fromkeys(row["reason"] for row in blocked_rows))
        lines.append(f"{len(blocked_rows)} later stages {reasons}")
    total = report["seconds"]
    time_bases = sorted({row["time_basis"] for row in report["stages"] if row["time_basis"]})
    time_bases = [base for base in time_bases if not base.startswith(EARLIER_ARTIFACT_BASIS)]
    if any(row["time_basis"].startswith(EARLIER_ARTIFACT_BASIS) for row in report["stages"]):
        time_bases.append(f"{EARLIER_ARTIFACT_BASIS}the newest artifact of the same stage")
    if total["value"]:
        lower_bound_prefix = "at least " if total["stages_without_estimate"] else ""
        lines.append(f"total time: {lower_bound_prefix}about {format_duration(total['value'])}")
    elif total["stages_without_estimate"]:
        lines.append("total time: not estimated")
    lines += [f"  {base}" for base in time_bases]
    if total["value"] and total["stages_without_estimate"]:
        lines.append(
            f"  not included: {_list_first_names(total['stages_without_estimate'])}; neither the "
            "sample nor an earlier run in this store shows how long they take"
        )
    return "\n".join(lines)


def _merge_rows_without_estimate(rows: Sequence[Report]) -> list[Report]:
    """Merge the rows of a step of several audits if they would run and have no estimate."""
    merged_rows: list[Report] = []
    for step, group in groupby(rows, key=_get_audit_step):
        group_rows = list(group)
        if step and len(group_rows) > 1:
            label = f"{step} of {len(group_rows)} audits"
            merged_rows.append(group_rows[0] | {"label": label, "reason": ""})
        else:
            merged_rows += group_rows
    return merged_rows


def _get_audit_step(row: Report) -> str:
    """Return the step of an audit that a row without an estimate stands for, or ""."""
    if row["state"] != "run" or row["seconds"] is not None:
        return ""
    label = row["label"]
    if label.removeprefix("audit_") in ALL_AUDITS:
        return "compute_findings"
    # The longest name: that of one audit may begin with that of another one.
    audit = max((name for name in ALL_AUDITS if label.startswith(f"{name}_")), key=len, default="")
    return label.removeprefix(f"{audit}_") if audit else ""


def _list_first_names(stage_names: Sequence[str]) -> str:
    shown_names = ", ".join(stage_names[:MAX_LISTED_STAGES])
    if len(stage_names) <= MAX_LISTED_STAGES:
        return shown_names
    hidden_count = len(stage_names) - MAX_LISTED_STAGES
    return f"{len(stage_names)} stages ({shown_names} and {hidden_count} more)"


def _render_corpus(report: Report) -> str:
    lines = [f"sources: {_describe_estimate_basis(report)}"]
    for source in report["sources"]:
        document_count, byte_size = (
            _format_count(source["documents"], "document"),
            _format_byte_estimate(source["bytes"]),
        )
        read_share = source["share_read"]
        share_note = (
            ""
            if read_share is None or read_share == 1
            else f"  ({format_number(read_share, 'share')} was read)"
        )
        if read_share is None:
            document_count, byte_size = "an unknown number of documents", "unknown size"
        lines.append(f"  {source['source']}: {document_count}, {byte_size}{share_note}")
        if source["quarantined"]:
            lines.append(
                f"    unreadable records that the run will quarantine: {source['quarantined']:,} "
                f"(first: {source['first_quarantined']})"
            )
        is_reported = any(source.get("problem", "") in row["reason"] for row in report["stages"])
        if source.get("problem") and not is_reported:
            lines.append(f"    {source['problem']}")
    corpus = report["corpus"]
    lines.append(_render_curated_corpus(corpus))
    if corpus["tokens"]["value"] is not None:
        lines.append(
            f"packed ({_name_exact_or_estimate(corpus['tokens'])}): "
            f"{_format_count(corpus['tokens'], 'training token')}, "
            f"{_format_count(corpus['train_rows'], 'training row')}, "
            f"{_format_count(corpus['validation_rows'], 'validation row')}"
        )
    return "\n".join(lines)


def _render_curated_corpus(corpus: Report) -> str:
    if corpus["documents"]["value"] is None:
        return "after curation: unknown"
    splits = {name: corpus[name] for name in ("train", "validation", "holdout")}
    canary_count = corpus["documents"]["value"] - sum(split["value"] for split in splits.values())
    formatted_counts = [
        f"{name} {_format_estimated_value(split)}" for name, split in splits.items()
    ]
    formatted_counts += [f"canaries {canary_count:,.0f}"] if canary_count >= 1 else []
    return (
        f"after curation ({_name_exact_or_estimate(corpus['documents'])}): "
        f"{_format_count(corpus['documents'], 'document')}, "
        f"{_format_byte_estimate(corpus['bytes'])}\n  {', '.join(formatted_counts)}"
    )


def _describe_estimate_basis(report: Report) -> str:
    sample = report["sample"]
    if sample is None:
        is_exact = report["sources"] and report["sources"][0]["documents"]["is_exact"]
        return "exact values from the store" if is_exact else "unknown"
    sample_size = (
        f"{format_count(sample['documents'], 'document')}, {format_byte_count(sample['bytes'])}"
    )
    if sample["is_complete"]:
        return f"exact, because all documents were read ({sample_size})"
    if not sample["documents"]:
        return "no documents could be read"
    return (
        f"estimated from a sample of {sample_size} and scaled in proportion to size in bytes; "
        "duplicates of documents outside the sample could not be found"
    )


def _render_training(report: Report) -> str:
    training = report["training"]
    if training is None:
        return ""
    parameters, memory, step = training["parameters"], training["memory"], training["step"]
    upper_bound_prefix = "" if parameters["is_exact"] else "at most "
    epochs = training["epochs"]
    epochs_text = "unknown number of epochs"
    if epochs["value"] is not None:
        epochs_text = f"{epochs['value']:.2f} epochs ({_name_exact_or_estimate(epochs)})"
    lines = [
        f"model: {upper_bound_prefix}{format_count(parameters['value'], 'parameter')} "
        + (
            "(exact)"
            if parameters["is_exact"]
            else "(exact if the tokenizer reaches the configured vocabulary size)"
        ),
        f"training: {format_count(training['tokens_seen'], 'token')} in "
        f"{format_count(training['steps'], 'step')}, {epochs_text}",
        f"memory: weights {format_byte_count(memory['weights'])}, gradients "
        f"{format_byte_count(memory['gradients'])}, optimizer "
        f"{format_byte_count(memory['optimizer'])}; {format_byte_count(memory['total'])} in total "
        "(computed); activations require additional memory",
    ]
    if step:
        lines.append(
            f"  measured on {step['device']} in {format_count(step['step_count'], 'step')}: "
            f"{step['seconds_per_step']:.2f} s per step, so about "
            f"{format_duration(step['training_seconds'])} for all steps; peak memory of the "
            f"training process {format_byte_count(step['peak_bytes'])}, including libraries and "
            "activations"
        )
    return "\n".join(lines)


def _render_notes_and_warnings(report: Report) -> str:
    lines = [f"note: {note}" for note in report["notes"]]
    for warning in report["warnings"]:
        lines.append(f"{'WILL FAIL' if warning['is_certain'] else 'warning'}: {warning['message']}")
    if not report["warnings"]:
        lines.append("no problems found")
    return "\n".join(lines)


def _name_exact_or_estimate(estimate: Report) -> str:
    return "exact" if estimate["is_exact"] else "estimate"


def _format_estimated_value(estimate: Report) -> str:
    value = estimate["value"]
    return "unknown" if value is None else f"{_format_about_prefix(estimate)}{value:,.0f}"


def _format_count(estimate: Report, singular: str) -> str:
    is_one = _format_estimated_value(estimate).removeprefix("about ") == "1"
    return f"{_format_estimated_value(estimate)} {singular if is_one else f'{singular}s'}"


def _format_byte_estimate(estimate: Report) -> str:
    value = estimate["value"]
    return (
        "unknown size"
        if value is None
        else f"{_format_about_prefix(estimate)}{format_byte_count(value)}"
    )


def _format_about_prefix(estimate: Report) -> str:
    return "" if estimate["is_exact"] else "about "


def format_byte_count(byte_count: float) -> str:
    """Format a size in bytes with the largest unit that gives at least 1."""
    for unit, unit_bytes in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if byte_count >= unit_bytes:
            return f"{byte_count / unit_bytes:.1f} {unit}"
    return f"{byte_count:.0f} bytes"
