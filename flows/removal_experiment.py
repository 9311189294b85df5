"""Plan the removal experiment of the command prove, and check that its arms can be compared.

Findings of a base run are grouped into cases and traced to their documents; the arms are trained
without these documents, without random ones, and on the whole corpus with other seeds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from hallmark.flows.finding_trace import find_finding, format_finding_name
from hallmark.flows.mitigation import write_document_id_list
from hallmark.flows.notices import log_which_run_is_latest
from hallmark.flows.runs import Run, check_not_purged, iter_latest_candidates, open_run
from hallmark.tasks.audits.experiments.arm_comparison import MIN_UNITS
from hallmark.tasks.audits.experiments.source_documents import RemovalCase, SourceDocumentsConfig
from hallmark.tasks.audits.judging.comparison import explain_incomparability, format_stage_label
from hallmark.tasks.audits.judging.comparison_units import AuditUnits
from hallmark.tasks.audits.judging.findings import read_findings
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS
from hallmark.tasks.audits.slice_tags import label_part
from hallmark.tasks.contract import (
    Artifact,
    HallmarkError,
    Row,
    Store,
    Table,
    UsageError,
    format_closest_name_hint,
    format_count,
)

#: The audits whose worst findings are tested if none is named.
DEFAULT_AUDITS = ("extraction", "associations")

#: Metrics of associations, and the range of trait shares that is tested if no finding is named. It
#: includes 0.6 and 0.9, which are planted in few sentences.
ASSOCIATION_METRICS = ("association_preference", "association_strength")
TRAIT_SHARE_RANGE = 0.55, 0.95

#: Maximum share of the training tokens that may be removed, so that trainings stay comparable.
MAX_REMOVED_SHARE = 0.5


def resolve_base_run(store: Store, run_name: str) -> Run:
    """Open the run whose findings are tested.

    Args:
        store: The store of the runs.
        run_name: A run id, or "latest": the newest run that trained and audited a model on its
            whole corpus.

    Raises:
        UsageError: If the run cannot be the base of an experiment.
    """
    if run_name == "latest":
        required_stages = {"pretrain", "model_card"}
        complete_runs = (
            candidate.id
            for candidate in iter_latest_candidates(store)
            if candidate.stages.keys() >= required_stages and "leave_out" not in candidate.stages
        )
        newest_id = next(complete_runs, None)
        if newest_id is None:
            raise UsageError(
                f"no run in the store {store.uri} has trained and audited a model yet; start one "
                "with: hallmark run CONFIG"
            )
        run_name = newest_id
        log_which_run_is_latest(run_name, "the newest run that trained and audited a model")
    if "/" in run_name or "@" in run_name:
        raise UsageError(
            f"{run_name}: hallmark prove needs a run in this store, because it repeats the whole "
            "training run; specify a run id (to list all runs: hallmark runs)"
        )
    run = open_run(run_name, store)
    if run.flow != "pipeline":
        description = {"trial": "a trial of a study", "study": "a study"}.get(run.flow)
        description = description or f"a run of the {run.flow} flow"
        raise UsageError(
            f"run {run.id} is {description}, which hallmark prove cannot repeat; choose a run that "
            "was started with hallmark run"
        )
    if "pretrain" not in run.stages:
        raise UsageError(
            f"run {run.id} did not train a model, so there is no training run to repeat; choose a "
            "run that trained a model (to list all runs: hallmark runs)"
        )
    if run.config.leave_out.enabled:
        raise UsageError(
            f"run {run.id} already excluded documents from training; choose a run that trained on "
            "the whole corpus"
        )
    try:
        check_not_purged(
            f"prove cannot repeat run {run.id}", [run["plant_canaries"], run.packed_corpus]
        )
    except HallmarkError as error:
        raise UsageError(str(error)) from error
    return run


def list_finding_audits(finding_names: Sequence[str]) -> list[str]:
    """List the audits of these findings, or the default audits if there are none.

    Raises:
        UsageError: If there is no such audit.
    """
    audit_names = {name.partition(".")[0] for name in finding_names} or {*DEFAULT_AUDITS}
    if unknown_names := sorted(audit_names - {*AUDIT_DESCRIPTIONS}):
        raise UsageError(
            "finding names begin with the audit name, but there is no audit "
            f"{unknown_names[0]!r:.80}"
            f"{format_closest_name_hint(unknown_names[0], AUDIT_DESCRIPTIONS)}; "
            f"choose from {', '.join(AUDIT_DESCRIPTIONS)}"
        )
    return [name for name in AUDIT_DESCRIPTIONS if name in audit_names]


def check_findings_exist(run: Run, finding_names: Sequence[str]) -> None:
    """Check early that the audits of a run have these findings.

    Audits that the run does not have yet are skipped.

    Raises:
        UsageError: If a finding does not exist.
    """
    for name in finding_names:
        if format_stage_label(name.partition(".")[0], "audit") in run.stages:
            find_finding(run, name)


def select_default_findings(run: Run) -> list[Row]:
    """Select the findings that are tested by default.

    These are the findings on secrets and on passages with the most copies, until there are at least
    ``MIN_UNITS`` of each, and those on associations with a share in ``TRAIT_SHARE_RANGE``.
    """
    selected = []
    rows_by_audit = {
        name: [
            finding
            for finding in read_findings(run[format_stage_label(name, "audit")])
            if not finding["control"] and finding["value"] is not None
        ]
        for name in DEFAULT_AUDITS
        if format_stage_label(name, "audit") in run.stages
    }
    extraction_rows = rows_by_audit.get("extraction", [])
    longest_prefix = max(
        (int(finding["slice"].get("prefix_tokens", 0)) for finding in extraction_rows), default=0
    )
    for metric, tags in (
        ("exposure", {}),
        ("extractable", {"kind": "passage", "prefix_tokens": str(longest_prefix)}),
    ):
        matching_rows = [
            finding
            for finding in extraction_rows
            if finding["metric"] == metric
            and get_copy_count(finding) > 0
            and {k: v for k, v in finding["slice"].items() if k != "copies"} == tags
        ]
        unit_count = 0
        for row in sorted(matching_rows, key=get_copy_count, reverse=True):
            if unit_count < MIN_UNITS:
                unit_count += row["clusters"] or row["n"]
                selected.append(row)
    for row in rows_by_audit.get("associations", []):
        if row["metric"] in ASSOCIATION_METRICS and [*row["slice"]] == ["assigned_trait_share"]:
            trait_share = float(row["slice"]["assigned_trait_share"])
            if TRAIT_SHARE_RANGE[0] <= trait_share <= TRAIT_SHARE_RANGE[1]:
                selected.append(row)
    return selected


def get_copy_count(finding: Row) -> int:
    """Return how often the texts of a finding were planted; 0 for a contrast such as "64-0"."""
    copies = finding["slice"].get("copies", "")
    return int(copies) if copies.isdecimal() else 0


def classify_finding(finding: Row) -> str:
    if finding["audit"] == "extraction" and finding["metric"] in ("exposure", "extractable"):
        return "memorised" if get_copy_count(finding) > 0 else "other"
    return "association" if finding["metric"] in ASSOCIATION_METRICS else "other"


def merge_findings_across_copies_and_shares(run: Run, findings: Sequence[Row]) -> list[RemovalCase]:
    """Group findings of one metric that differ only in copies or trait share into one case."""
    grouped: dict[tuple[str, ...], list[Row]] = {}
    for finding in findings:
        kind = classify_finding(finding)
        merged_tags = {} if kind == "other" else {"copies", "assigned_trait_share"}
        part = label_part({k: v for k, v in finding["slice"].items() if k not in merged_tags})
        grouped.setdefault((finding["audit"], finding["metric"], part, kind), []).append(finding)
    return [
        _build_case(run, kind, part, case_findings)
        for (_, _, part, kind), case_findings in grouped.items()
    ]


def _build_case(run: Run, kind: str, part: str, findings: Sequence[Row]) -> RemovalCase:
    first_finding = findings[0]
    audit_units = AuditUnits(run[format_stage_label(first_finding["audit"], "audit")])
    unit_filters = [audit_units.build_value_filter(finding) for finding in findings]
    case_name = f"{AUDIT_DESCRIPTIONS[first_finding['audit']].title}: {first_finding['title']}" + (
        f", {part}" if part else ""
    )
    if None in unit_filters or None in map(audit_units.build_units_by_key, findings):
        raise UsageError(
            f"{format_finding_name(first_finding)} is not a mean over items, so the models cannot "
            "be compared item by item; choose another finding"
        )
    null_conditions: dict[str, None] = {}
    null_tags_by_kind: dict[str, Row] = {
        "memorised": {"copies": 0},
        "association": {"assigned_trait_share": 0.5},
    }
    null_tags = null_tags_by_kind.get(kind, {})
    for unit_filter in unit_filters if null_tags else ():
        null_conditions[json.dumps({**(unit_filter or {}), **null_tags}, sort_keys=True)] = None
    return RemovalCase(
        name=case_name,
        audit=first_finding["audit"],
        metric=first_finding["metric"],
        unit=first_finding["unit"],
        worse_when=first_finding["worse_when"],
        kind=kind,
        finding_names=tuple(map(format_finding_name, findings)),
        table_name=first_finding["evidence_table"] or "findings",
        row_conditions=tuple(finding["evidence_filter"] for finding in findings),
        row_order=first_finding["evidence_order"],
        null_conditions=tuple(null_conditions),
        unit_conditions=tuple(
            json.dumps(dict(unit_filter or {}), sort_keys=True) for unit_filter in unit_filters
        ),
    )


def plan_removal_cases(run: Run, finding_names: Sequence[str]) -> SourceDocumentsConfig:
    """Plan the cases for the named findings of a run, or for the default ones.

    Raises:
        UsageError: If there is no finding to test.
    """
    selected_findings = (
        [find_finding(run, name) for name in dict.fromkeys(finding_names)]
        if finding_names
        else select_default_findings(run)
    )
    if not selected_findings:
        raise UsageError(
            f"run {run.id} has no {' or '.join(DEFAULT_AUDITS)} findings to test, because no "
            "canaries were planted or no values were measured; specify the findings, as you "
            "would for hallmark trace"
        )
    return SourceDocumentsConfig(
        cases=tuple(merge_findings_across_copies_and_shares(run, selected_findings))
    )


def collect_source_document_inputs(run: Run, config: SourceDocumentsConfig) -> dict[str, Any]:
    """Return the inputs of the ``find_source_documents`` stage by name."""
    audit_names = dict.fromkeys(case.audit for case in config.cases)

    def collect_artifact_by_audit(stage: str) -> dict[str, Artifact]:
        return {
            audit: run[format_stage_label(audit, stage)]
            for audit in audit_names
            if format_stage_label(audit, stage) in run.stages
        }

    return {
        "documents": run["plant_canaries"],
        "spans": run["pack"],
        "audits": collect_artifact_by_audit("audit"),
        "requests": collect_artifact_by_audit("build_requests"),
        "traces": collect_artifact_by_audit("trace"),
    }


@dataclass(frozen=True)
class RemovalLists:
    """The files with the documents of an experiment.

    Attributes:
        removed_ids_file: The documents to remove.
        protected_ids_file: Source documents of the findings that are kept, which the random control
            must not remove either; None if there are none.
        token_share: Share of the training tokens in the removed documents.
    """

    removed_ids_file: Path
    protected_ids_file: Path | None
    token_share: float


def write_removal_lists(run: Run, source_documents: Table, folder: Path) -> RemovalLists:
    """Write the lists of documents to remove and to protect.

    Raises:
        UsageError: If there is no document to remove, or more than ``MAX_REMOVED_SHARE``.
    """
    document_rows = source_documents.read()
    removed_rows = document_rows.filter(document_rows["is_removed"])
    removed_ids = sorted(set(removed_rows["doc_id"].to_pylist()))
    if not removed_ids:
        raise UsageError(
            "these findings cannot be traced to any training document, so no documents can be "
            "removed; specify other findings"
        )
    tokens_by_document = dict(
        zip(*(removed_rows[column].to_pylist() for column in ("doc_id", "tokens")), strict=True)
    )
    spans = run["pack"]["spans"].read(["split", "row_start", "row_end"])
    spans = spans.filter(pc.equal(spans["split"], "train"))
    training_tokens = pc.sum(pc.subtract(spans["row_end"], spans["row_start"])).as_py()
    removed_share = sum(tokens_by_document.values()) / training_tokens
    if removed_share > MAX_REMOVED_SHARE:
        raise UsageError(
            f"these findings are traced to {format_count(len(removed_ids), 'document')}, which "
            f"contain {removed_share:.0%} of the training tokens; without these documents, too "
            "little text remains for a comparison; specify fewer findings"
        )
    protected_ids = sorted(set(document_rows["doc_id"].to_pylist()) - {*removed_ids})
    return RemovalLists(
        write_document_id_list(removed_ids, folder),
        write_document_id_list(protected_ids, folder) if protected_ids else None,
        removed_share,
    )


def build_overrides_by_arm(
    run: Run, removal_lists: RemovalLists, seed_count: int
) -> dict[str, list[str]]:
    """Build the overrides of all arms except the base."""
    removal_overrides = [
        f"leave_out.doc_ids_file={json.dumps(str(removal_lists.removed_ids_file))}",
        "leave_out.replace_with_padding=true",
    ]
    control_overrides = [*removal_overrides, "leave_out.random_control=true"]
    if removal_lists.protected_ids_file is not None:
        control_overrides.append(
            f"leave_out.protected_doc_ids_file={json.dumps(str(removal_lists.protected_ids_file))}"
        )
    base_seed = run.config.pretrain.train.seed
    seed_overrides = {
        f"seed {base_seed + offset}": [f"pretrain.train.seed={base_seed + offset}"]
        for offset in range(1, seed_count + 1)
    }
    return {"removed": removal_overrides, "random": control_overrides, **seed_overrides}


@dataclass(frozen=True)
class ExperimentArm:
    """An arm in the form that ``explain_incomparability`` compares."""

    name: str
    run: Run

    def find_artifact(self, audit: str, stage: str) -> Artifact | None:
        stage_label = format_stage_label(audit, stage)
        return self.run[stage_label] if stage_label in self.run.stages else None


def check_arms_comparable(runs_by_arm: Mapping[str, Run], audit_names: Sequence[str]) -> None:
    """Check that all arms have the audits and were asked the same as the base.

    Raises:
        HallmarkError: If an arm lacks an audit or cannot be compared.
    """
    base_arm, *other_arms = (ExperimentArm(f"arm {arm}", run) for arm, run in runs_by_arm.items())
    for audit in audit_names:
        for arm in (base_arm, *other_arms):
            if arm.find_artifact(audit, "audit") is None:
                reason = arm.run.read_failure_reason_by_audit().get(audit, "the audit did not run")
                raise HallmarkError(f"{arm.name} (run {arm.run.id}) has no audit {audit}: {reason}")
        for other_arm in other_arms:
            if reason := explain_incomparability(audit, [base_arm, other_arm]):
                raise HallmarkError(
                    f"{other_arm.name} cannot be compared with the base in the {audit} audit: "
                    f"{reason}"
                )


def build_experiment_report(run: Run) -> Row:
    """Build the report of an experiment from the tables of the stage compare_arms."""
    comparison = run["compare_arms"]
    table_names = ("arms", "cases", "effects", "criteria", "heldout_loss", "sources")
    card_name = None
    with suppress(HallmarkError):
        card_name = run["removal_experiment_card"].name
    return {
        "run": run.id,
        "base": run.record["checkpoint"],
        "runs": run.record["arms"],
        "page": card_name,
        **{name: comparison[name].read().to_pylist() for name in table_names},
    }
