"""Train a model without the documents behind a harm, beside a control."""

from __future__ import annotations

from contextlib import chdir
from functools import partial
from typing import Annotated, Any

from cyclopts import Parameter

from hallmark.flows.checkpoint_comparison import find_checkpoint_audits
from hallmark.flows.commands.compare import render_comparison
from hallmark.flows.commands.flow_execution import call_flow_and_get_run, start_prefect_and_progress
from hallmark.flows.commands.options import (
    JsonOption,
    OverridesOption,
    StoreOption,
    WholeNumber,
    print_result,
)
from hallmark.flows.mitigation import (
    IS_CONTROL_BY_ARM,
    build_arm_overrides,
    build_mitigation_report,
    find_source_document_ids,
    get_removal_list_folder,
    resolve_trained_checkpoint,
    write_document_id_list,
)
from hallmark.flows.runs import open_store
from hallmark.reports.page.figures import format_count
from hallmark.reports.page.redaction import escape_invisible
from hallmark.tasks.contract import UsageError

Report = dict[str, Any]


def mitigate(
    checkpoint: str,
    *findings: str,
    toxicity: float | None = None,
    rows: WholeNumber = 100,
    steps: WholeNumber | None = None,
    anew: Annotated[bool, Parameter(negative="")] = False,
    overrides: OverridesOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train without the documents behind findings, or without toxic ones, beside a control that
    lacks as many others; audit both alike and compare them.

    Parameters
    ----------
    checkpoint
        A checkpoint of a run of this store, as the command audit takes it. Relative paths, those
        of --set too, start where that run was started.
    findings
        As the command trace takes them: the documents behind their worst rows are left out, with
        their near copies.
    toxicity
        Leave out documents that the corpus's scorer gave at least this score, too.
    rows
        How many of the worst rows of each finding.
    steps
        Of the training of each arm; by default those of the checkpoint's run.
    anew
        Train from the beginning, not on from the checkpoint.
    """
    opened_store = open_store(store, create=False)
    resolved_checkpoint = resolve_trained_checkpoint(opened_store, checkpoint)
    if not findings and toxicity is None:
        raise UsageError("nothing says what to leave out: name findings, or give --toxicity")
    if rows < 1:
        raise UsageError(f"--rows is {rows}: of a finding at least its worst row is needed")
    assert resolved_checkpoint.source_run is not None
    documents_file = (
        write_document_id_list(
            find_source_document_ids(opened_store, checkpoint, findings, rows),
            get_removal_list_folder(opened_store),
        )
        if findings
        else None
    )
    # Before the arms: "latest" is one of them, then.
    start_audits = None if anew else find_checkpoint_audits(opened_store, checkpoint)
    absolute_uri = (
        opened_store.uri
        if opened_store.root_folder is None
        else str(opened_store.root_folder.resolve())
    )
    shared_parameters: dict[str, Any] = {
        "config": resolved_checkpoint.source_run.record["config"] | {"store": absolute_uri},
        "start": None if anew else resolved_checkpoint.name,
        "store": absolute_uri,
    }
    arm_overrides = [
        [*(overrides or []), *build_arm_overrides(arm, documents_file, toxicity, steps)]
        for arm in IS_CONTROL_BY_ARM
    ]
    from hallmark.flows.run_recording import resolve_flow_arguments

    with (
        chdir(resolved_checkpoint.source_run.working_folder),
        start_prefect_and_progress(
            lambda: [
                resolve_flow_arguments(overrides=arm, **shared_parameters) for arm in arm_overrides
            ]
        ),
    ):
        from hallmark.flows import pipeline

        runs = [
            call_flow_and_get_run(partial(pipeline.pipeline, overrides=arm, **shared_parameters))
            for arm in arm_overrides
        ]
    report = build_mitigation_report(runs, start_audits) | {
        "documents_file": str(documents_file) if documents_file else None
    }
    print_result(report, as_json, render_mitigation)


def render_mitigation(report: Report) -> str:
    control_count, removed_count = report["removed_documents"]
    lines = ["bits per byte of held-out text: control, without"]
    for row in report["heldout_loss"]:
        control_value, treated_value = row["values"]
        if None not in (control_value, treated_value):
            text_name = escape_invisible(f"{row['kind']} {row['name']}".strip())
            lines.append(
                f"    {text_name}  {control_value:.4f}  {treated_value:.4f}  "
                f"({treated_value - control_value:+.4f}), "
                f"{format_count(row['bytes'], 'byte')}"
            )
    lines += [
        "",
        f"left out: {format_count(removed_count, 'document')}; of the control "
        f"{format_count(control_count, 'other')}",
    ]
    if control_count < removed_count:
        lines.append("the control lacks fewer: no more others were left")
    if report["documents_file"]:
        lines.append(f"those behind findings are listed in {report['documents_file']}")
    # What it was all about is read last: the comparison is long.
    return "\n".join([render_comparison(report), "", *lines])
