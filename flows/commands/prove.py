"""Test whether findings disappear when their documents are removed and the model is retrained."""

from __future__ import annotations

from contextlib import chdir
from typing import Any

from hallmark.flows.commands.flow_execution import (
    call_flow_and_get_run,
    check_requests,
    run_request,
    start_prefect_and_progress,
)
from hallmark.flows.commands.options import JsonOption, StoreOption, WholeNumber, print_result
from hallmark.flows.mitigation import get_removal_list_folder
from hallmark.flows.removal_experiment import (
    build_experiment_report,
    build_overrides_by_arm,
    check_arms_comparable,
    check_findings_exist,
    collect_source_document_inputs,
    list_finding_audits,
    plan_removal_cases,
    resolve_base_run,
    write_removal_lists,
)
from hallmark.flows.runs import Run, open_store
from hallmark.reports.page.figures import format_number
from hallmark.reports.page.redaction import escape_invisible
from hallmark.reports.sections.removal_experiment import replace_unit_of_share_difference
from hallmark.tasks.audits.experiments.arm_comparison import BASE
from hallmark.tasks.audits.experiments.source_documents import SourceDocumentsConfig
from hallmark.tasks.contract import Artifact, Table, UsageError, format_count

Report = dict[str, Any]


def prove(
    run: str,
    *findings: str,
    extra_seeds: WholeNumber = 3,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Test whether findings disappear when the documents to which they were traced are removed;
    random removals and retraining with other seeds serve as controls.

    All models are trained again and audited in the same way.

    Parameters
    ----------
    run
        A run that trained and audited a model, or "latest": the newest run that did.
    findings
        Findings, specified as for the command trace; by default those on the planted secrets and
        passages with the most copies (at least 16 secrets and 16 passages), and on the planted
        associations in which 55 to 95 % of the sentences about a group state its own trait.
    extra_seeds
        Number of retrainings on the whole corpus with other seeds; an effect counts only if it is
        larger than the differences between these retrained models.
    """
    opened_store = open_store(store, create=False)
    base_run = resolve_base_run(opened_store, run)
    audit_names = list_finding_audits(findings)
    check_findings_exist(base_run, findings)
    if extra_seeds < 0:
        raise UsageError(f"--extra-seeds is {extra_seeds}; it must be 0 or more")
    absolute_uri = (
        opened_store.uri
        if opened_store.root_folder is None
        else str(opened_store.root_folder.resolve())
    )
    base_config = base_run.record["config"] | {"store": absolute_uri}
    from hallmark.flows.run_request import RunRequest

    base_request = RunRequest(
        flow="pipeline",
        config=base_config,
        start=base_run.record["checkpoint"],
        store=absolute_uri,
        until=f"audit_{audit_names[-1]}",
        audits=tuple(audit_names),
        experiment_arm="base arm of prove",
    )
    list_folder = get_removal_list_folder(opened_store).resolve()

    with (
        start_prefect_and_progress(lambda: check_requests(base_request)),
        chdir(base_run.working_folder),
    ):
        from hallmark.flows import removal_flow

        def train_arm(arm: str, overrides: list[str]) -> Run:
            """Train and audit with these overrides; stages in the store are reused."""
            return run_request(
                base_request.with_changes(overrides=overrides, experiment_arm=f"{arm} arm of prove")
            )

        runs_by_arm = {BASE: train_arm(BASE, [])}
        check_arms_comparable(runs_by_arm, audit_names)
        cases = plan_removal_cases(runs_by_arm[BASE], findings)
        removal = write_removal_lists(
            runs_by_arm[BASE], find_case_source_documents(runs_by_arm[BASE], cases), list_folder
        )
        for arm, overrides in build_overrides_by_arm(base_run, removal, extra_seeds).items():
            runs_by_arm[arm] = train_arm(arm, overrides)
        check_arms_comparable(runs_by_arm, audit_names)
        run_ids_by_arm = {arm: arm_run.id for arm, arm_run in runs_by_arm.items()}
        case_config = cases.model_dump(mode="json")
        proof_run = call_flow_and_get_run(
            lambda: removal_flow.prove(base_config, run_ids_by_arm, case_config, store=absolute_uri)
        )
    report = build_experiment_report(proof_run)
    if proof_run.page:
        report["page"] = str(
            proof_run.page.parent / "removal_experiment_card" / "removal_experiment_card.html"
        )
    print_result(report, as_json, render_proof)


def find_case_source_documents(base_run: Run, cases: SourceDocumentsConfig) -> Table:
    """Find the source documents of the cases, before the arms that exclude them run."""
    from hallmark.flows.run_recording import frontend
    from hallmark.tasks.audits.experiments.source_documents import find_source_documents
    from hallmark.tasks.contract import Session, make_mapper, open_session

    mapper = make_mapper(base_run.config.mapper, base_run.config.workers)
    with open_session(Session(base_run.store, mapper, frontend.on_event)):
        source_documents: Artifact = find_source_documents(
            **collect_source_document_inputs(base_run, cases), config=cases
        )
    return source_documents["source_documents"]


#: Labels of the rows of the table effects.
EFFECT_LABELS = {
    "mean": "{arm}",
    "null_mean": "{arm}, without planted text",
    "null_region": "99 % null region",
    "effect_before": "effect before removal",
    "effect_after": "effect after removal",
    "change_from_base": "{arm} minus base",
    "random_minus_removed": "random minus removed",
}


def render_proof(report: Report) -> str:
    """Format the report for a terminal: arms, effects and criteria of each case, held-out loss."""
    lines = [f"effect of the removals on the findings of {report['base']}"]
    for arm in report["arms"]:
        lines.append(
            f"    {arm['arm']}: run {report['runs'][arm['arm']]}, without "
            f"{format_count(arm['documents'], 'document')} ({format_count(arm['bytes'], 'byte')})"
        )
    for case in dict.fromkeys(row["case_name"] for row in report["cases"]):
        case_rows = [row for row in report["cases"] if row["case_name"] == case]
        description = (
            f"{format_count(case_rows[0]['documents'], 'source document')}, "
            f"{case_rows[0]['removed_documents']:,} removed"
        )
        reason = f"; {case_rows[0]['reason']}" if case_rows[0]["reason"] else ""
        lines += ["", f"{escape_invisible(case)}: {description}{reason}"]
        for row in (
            replace_unit_of_share_difference(row)
            for row in report["effects"]
            if row["case_name"] == case
        ):
            value, low, high = (
                "–" if row[column] is None else format_number(row[column], row["unit"])
                for column in ("value", "low", "high")
            )
            label = EFFECT_LABELS[row["effect"]].format(arm=row["arm"])
            verdict_suffix = f"  {row['verdict']}" * bool(row["verdict"])
            interval = "no interval" if row["low"] is None else f"{low} to {high}"
            lines.append(
                f"    {label:<44} {value:>9}  ({interval}), n = {row['n']}{verdict_suffix}"
            )
        for row in (
            replace_unit_of_share_difference(row)
            for row in report["criteria"]
            if row["case_name"] == case
        ):
            value, bound = (
                "–" if row[column] is None else format_number(row[column], row["unit"])
                for column in ("value", "bound")
            )
            verdict = row["verdict"] or "unknown"
            lines.append(
                f"    {verdict:<9} {row['criterion']}: {value}, {row['comparison']} {bound}"
            )
    lines += ["", "bits per byte of held-out text"]
    for kind, label in dict.fromkeys((row["kind"], row["name"]) for row in report["heldout_loss"]):
        rows_by_arm = {
            loss_row["arm"]: loss_row
            for loss_row in report["heldout_loss"]
            if (loss_row["kind"], loss_row["name"]) == (kind, label)
        }
        description = ", ".join(
            f"{arm} {loss_row['bits_per_byte']:.4f}"
            for arm, loss_row in rows_by_arm.items()
            if loss_row["bits_per_byte"] is not None
        )
        byte_count = max(loss_row["bytes"] for loss_row in rows_by_arm.values())
        lines.append(
            f"    {escape_invisible(f'{kind} {label}')}, {format_count(byte_count, 'byte')}: "
            f"{description or 'not measured, because there is too little text'}"
        )
    return "\n".join([*lines, "", f"page: {report['page']}"])
