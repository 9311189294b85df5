"""Train a model without the documents that findings lead to, and a control, and compare them."""

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
from hallmark.reports.page.redaction import escape_invisible
from hallmark.tasks.contract import UsageError, format_count

Report = dict[str, Any]


def mitigate(
    checkpoint: str,
    *findings: str,
    toxicity_threshold: float | None = None,
    rows: WholeNumber = 100,
    steps: WholeNumber | None = None,
    from_scratch: Annotated[bool, Parameter(negative="")] = False,
    overrides: OverridesOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train without the documents to which findings were traced, or without toxic documents, and
    compare with a control trained without the same number of random documents.

    Both models get the same audits.

    Parameters
    ----------
    checkpoint
        A checkpoint of a run of this store, named as for the command audit; relative paths, also
        those in --set, start from the folder in which that run was started.
    findings
        Findings, named as for the command trace; the training documents of their worst rows are
        removed, with their near-duplicates.
    toxicity_threshold
        Also remove documents to which the scorer of the corpus gave at least this toxicity score.
    rows
        How many of the worst rows of each finding are traced to documents.
    steps
        Training steps of each model; by default those of the checkpoint's run.
    from_scratch
        Train from random weights instead of continuing from the checkpoint.
    """
    opened_store = open_store(store, create=False)
    resolved_checkpoint = resolve_trained_checkpoint(opened_store, checkpoint)
    if not findings and toxicity_threshold is None:
        raise UsageError(
            "there is nothing to remove: name findings, or set --toxicity-threshold, or both"
        )
    if rows < 1:
        raise UsageError(f"--rows is {rows}; it must be at least 1")
    assert resolved_checkpoint.source_run is not None
    documents_file = (
        write_document_id_list(
            find_source_document_ids(opened_store, checkpoint, findings, rows),
            get_removal_list_folder(opened_store),
        )
        if findings
        else None
    )
    # Look these up first: after the two trainings, "latest" names one of them.
    start_audits = None if from_scratch else find_checkpoint_audits(opened_store, checkpoint)
    absolute_uri = (
        opened_store.uri
        if opened_store.root_folder is None
        else str(opened_store.root_folder.resolve())
    )
    shared_parameters: dict[str, Any] = {
        "config": resolved_checkpoint.source_run.record["config"] | {"store": absolute_uri},
        "start": None if from_scratch else resolved_checkpoint.name,
        "store": absolute_uri,
    }
    arm_overrides = [
        [*(overrides or []), *build_arm_overrides(arm, documents_file, toxicity_threshold, steps)]
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
    lines = [
        "bits per byte of held-out text: control model, model trained without the removed "
        "documents, difference"
    ]
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
        f"removed: {format_count(removed_count, 'document')}; removed at random for the control: "
        f"{format_count(control_count, 'document')}",
    ]
    if control_count < removed_count:
        lines.append("fewer documents were removed at random, because no more were available")
    if report["documents_file"]:
        lines.append(
            "the documents to which the findings were traced are listed in "
            f"{report['documents_file']}"
        )
    # The comparison is long, so the costs and the removals come last, where they are read.
    return "\n".join([render_comparison(report), "", *lines])
