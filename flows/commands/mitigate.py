"""Train a model without the documents that findings lead to, and a control, and compare them."""

from __future__ import annotations

from contextlib import chdir
from typing import Annotated, Any

from cyclopts import Parameter

from hallmark.flows.checkpoint_comparison import find_checkpoint_audits
from hallmark.flows.commands.compare import NOT_MEASURED, render_comparison
from hallmark.flows.commands.flow_execution import (
    check_requests,
    run_request,
    start_prefect_and_progress,
)
from hallmark.flows.commands.options import (
    JsonOption,
    OverridesOption,
    StoreOption,
    WholeNumber,
    print_result,
)
from hallmark.flows.config import load_config
from hallmark.flows.console import format_duration
from hallmark.flows.mitigation import (
    IS_CONTROL_BY_ARM,
    build_arm_overrides,
    build_mitigation_report,
    describe_removed_documents,
    estimate_arm_seconds,
    find_source_document_ids,
    get_removal_list_folder,
    resolve_trained_checkpoint,
    write_document_id_list,
)
from hallmark.flows.runs import open_store
from hallmark.reports.page.figures import format_number
from hallmark.reports.page.redaction import escape_invisible
from hallmark.reports.sections.checkpoint_comparison import describe_change
from hallmark.tasks.contract import UsageError, format_count

Report = dict[str, Any]


def mitigate(
    checkpoint: str,
    *findings: str,
    toxicity_threshold: float | None = None,
    rows: WholeNumber = 100,
    steps: WholeNumber | None = None,
    from_scratch: Annotated[bool, Parameter(negative="")] = False,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    overrides: OverridesOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train a model without toxic documents or documents to which findings were traced, and compare
    it with a control model trained without an equal number of randomly chosen documents.

    Both models are audited in the same way.

    Parameters
    ----------
    checkpoint
        A checkpoint from a run in this store, named as for the command audit; relative paths,
        including those in --set, are resolved relative to the folder in which that run was started.
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
    dry_run
        Train and write nothing; list the documents that would be removed, and estimate the time.
    """
    opened_store = open_store(store, create=False)
    resolved_checkpoint = resolve_trained_checkpoint(opened_store, checkpoint)
    if not findings and toxicity_threshold is None:
        raise UsageError("nothing to remove; specify findings, --toxicity-threshold or both")
    if rows < 1:
        raise UsageError(f"--rows is {rows}; it must be at least 1")
    source_run = resolved_checkpoint.source_run
    assert source_run is not None
    source_document_ids = (
        find_source_document_ids(opened_store, checkpoint, findings, rows) if findings else []
    )
    if dry_run:
        assert resolved_checkpoint.corpus is not None
        arm_overrides = build_arm_overrides("treatment", None, toxicity_threshold, steps)
        arm_config = load_config(source_run.record["config"], [*(overrides or []), *arm_overrides])
        documents = describe_removed_documents(
            resolved_checkpoint.corpus, source_document_ids, toxicity_threshold
        )
        dry_run_report = {
            "run": source_run.id,
            "documents": documents,
            "seconds_per_arm": estimate_arm_seconds(source_run, arm_config.pretrain.train.steps),
        }
        print_result(dry_run_report, as_json, render_dry_run)
        return
    documents_file = (
        write_document_id_list(source_document_ids, get_removal_list_folder(opened_store))
        if findings
        else None
    )
    start_audits = None if from_scratch else find_checkpoint_audits(opened_store, checkpoint)
    absolute_uri = (
        opened_store.uri
        if opened_store.root_folder is None
        else str(opened_store.root_folder.resolve())
    )
    from hallmark.flows.run_request import RunRequest

    requests_by_arm = {
        arm: RunRequest(
            flow="pipeline",
            config=source_run.record["config"] | {"store": absolute_uri},
            overrides=(
                *(overrides or ()),
                *build_arm_overrides(arm, documents_file, toxicity_threshold, steps),
            ),
            start=None if from_scratch else resolved_checkpoint.name,
            store=absolute_uri,
            experiment_arm=f"{arm} arm of mitigate",
        )
        for arm in IS_CONTROL_BY_ARM
    }
    with (
        chdir(source_run.working_folder),
        start_prefect_and_progress(lambda: check_requests(*requests_by_arm.values())),
    ):
        from hallmark.flows.console import stderr

        runs = []
        for number, (arm, request) in enumerate(requests_by_arm.items(), start=1):
            stderr.print(f"{arm} arm ({number} of {len(requests_by_arm)})", markup=False)
            runs.append(run_request(request))
    report = build_mitigation_report(runs, start_audits, findings) | {
        "documents_file": str(documents_file) if documents_file else None
    }
    print_result(report, as_json, render_mitigation)


def render_dry_run(report: Report) -> str:
    """Format the report of a dry run: the documents, a line each, and the time."""
    documents = report["documents"]
    lines = [f"dry run of hallmark mitigate on run {report['run']}: nothing was trained or written"]
    for document in documents:
        toxicity = document["toxicity"]
        toxicity_note = "" if toxicity is None else f", toxicity {toxicity:.2f}"
        text = escape_invisible(" ".join(document["text"].split()))
        lines += [
            f"{document['doc_id']} {escape_invisible(document['source'])}, "
            f"{format_count(document['bytes'], 'byte')}{toxicity_note}",
            f"    | {text}",
        ]
    size = format_count(sum(document["bytes"] for document in documents), "byte")
    seconds = report["seconds_per_arm"]
    return "\n".join(
        [
            *lines,
            "the treatment arm would be trained without "
            f"{format_count(len(documents), 'document')} "
            f"({size}), and the control arm without an equal number of randomly chosen documents",
            f"estimated time: about {format_duration(2 * sum(seconds.values()))} for two arms, "
            f"each with {format_duration(seconds['training'])} of training and "
            f"{format_duration(seconds['audits'])} of audits; the estimate is based on the stages "
            f"of run {report['run']}",
            f"hallmark trace {report['run']} DOC_ID shows a document's full text",
        ]
    )


def render_mitigation(report: Report) -> str:
    """Format the comparison of the arms, and at its end what the removal changed."""
    control, treatment = report["arms"]
    lines = ["bits per byte of held-out text: control arm, treatment arm, difference"]
    for row in report["heldout_loss"]:
        if None not in row["values"]:
            text_name = escape_invisible(f"{row['kind']} {row['name']}".strip())
            lines.append(
                f"    {text_name}  {_format_loss_pair(row)}, {format_count(row['bytes'], 'byte')}"
            )
    # The comparison is long, so the answer comes last, where it is read.
    lines += ["", "effect of the removal, compared with the control arm"]
    for name, finding in report["findings"].items():
        lines += _render_finding_effect(name, finding, report["incomparable"])
    lines += [
        f"removal cost in bits per byte of all held-out text: {_format_loss_pair(row)}, no interval"
        for row in report["heldout_loss"]
        if row["kind"] == "all" and None not in row["values"]
    ]
    control_count, removed_count = control["removed_documents"], treatment["removed_documents"]
    lines.append(
        f"removed: {format_count(removed_count, 'document')}; removed at random for the control: "
        f"{format_count(control_count, 'document')}"
    )
    if control_count < removed_count:
        lines.append("fewer documents were removed at random because no more were available")
    if report["documents_file"]:
        lines.append(
            "the documents to which the findings were traced are listed in "
            f"{report['documents_file']}"
        )
    lines += [f"{arm['arm']} arm: {arm['page'] or arm['run']}" for arm in report["arms"]]
    return "\n".join([render_comparison(report), "", *lines])


def _format_loss_pair(row: Report) -> str:
    """Format the losses of both arms and their difference."""
    control_value, treatment_value = row["values"]
    return f"{control_value:.4f}  {treatment_value:.4f}  ({treatment_value - control_value:+.4f})"


def _render_finding_effect(
    name: str, finding: Report | None, refusal_reasons: dict[str, str]
) -> list[str]:
    """Format how a finding differs between the arms, or why it was not compared."""
    if finding is None:
        reason = refusal_reasons.get(name.partition(".")[0], "one arm lacks this finding")
        return [f"{escape_invisible(name)} was not compared: {escape_invisible(reason)}"]
    lines = [f"{escape_invisible(name)} ({finding['title']})"]
    arm_labels = ("control arm", "treatment arm", "checkpoint before")
    for label, value, (low, high) in zip(
        arm_labels, finding["values"], finding["ends"], strict=False
    ):
        if value is None:
            text = NOT_MEASURED
        else:
            text = format_number(value, finding["unit"])
            if low is not None and high is not None:
                interval = f"{format_number(low, finding['unit'])} to "
                text += f" ({interval}{format_number(high, finding['unit'])})"
        lines.append(f"    {label:<17}  {text}")
    difference = finding["differences"][0]
    if difference:
        lines.append(f"    treatment minus control: {describe_change(difference, finding['unit'])}")
    return lines
