"""Trace a finding of an audit to its worst rows, and these to training documents.

For each document the trace shows the matching text and the training step that first read it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hallmark.flows.checkpoint_resolution import (
    ResolvedCheckpoint,
    TrainingHistory,
    resolve_checkpoint,
    trace_training_history,
)
from hallmark.flows.corpus_additions import collect_artifacts_for_redaction_by_label
from hallmark.flows.runs import Run
from hallmark.reports.page.document_lookup import (
    find_document_licence,
    read_licences_by_source,
)
from hallmark.reports.page.redaction import (
    OFFENSIVE_TOXICITY,
    Redactor,
    TextNeighbours,
    find_prompt_column_by_response_column,
    get_shown_neighbours,
)
from hallmark.reports.sections.corpus_figures import build_corpus_redactor
from hallmark.tasks.audits.experiments.attribution import find_influential_documents
from hallmark.tasks.audits.experiments.source_documents import find_documents_by_row
from hallmark.tasks.audits.judging.discoveries import compute_scaled_distance_beyond_null
from hallmark.tasks.audits.judging.evidence_filters import locate_evidence, sort_worst_first
from hallmark.tasks.audits.judging.findings import read_findings, select_evidence
from hallmark.tasks.audits.judging.training_exposure import TrainingExposure
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS
from hallmark.tasks.audits.slice_tags import name_slice
from hallmark.tasks.contract import Column, Table, UsageError, format_closest_name_hint

Report = dict[str, Any]

#: Number of rows of a finding by default, of characters before and after a matching text, and
#: maximum number of documents that an estimate attributes to a row.
DEFAULT_ROWS, CONTEXT_CHARACTERS, MAX_ATTRIBUTED_DOCUMENTS = 10, 60, 4


def parse_finding_audit(finding_name: str) -> str:
    """Return the audit of a finding ``audit.metric``.

    Raises:
        UsageError: If the name has no metric or there is no such audit.
    """
    audit = finding_name.partition(".")[0]
    if audit not in AUDIT_DESCRIPTIONS or "." not in finding_name:
        raise UsageError(
            f"{finding_name!r:.120} is not a finding such as bias.stereotype_preference: there is "
            f"no audit {audit!r:.40}{format_closest_name_hint(audit, AUDIT_DESCRIPTIONS)}; "
            f"choose from {', '.join(AUDIT_DESCRIPTIONS)}"
            if audit not in AUDIT_DESCRIPTIONS
            else f"{finding_name!r:.120} is an audit, not a finding; specify one of its findings, "
            "in the form audit.metric, such as bias.stereotype_preference"
        )
    return audit


def format_finding_name(finding: Mapping[str, Any]) -> str:
    """Format the name of a finding as the command trace takes it: audit.metric[slice]."""
    slice_name = name_slice(finding["slice"])
    return f"{finding['audit']}.{finding['metric']}" + (f"[{slice_name}]" if slice_name else "")


def find_finding(run: Run, finding_name: str) -> Report:
    """Find the finding ``audit.metric`` or ``audit.metric[slice]`` of a run.

    Raises:
        UsageError: If the run has no such finding; names those that exist.
    """
    metric_path, _, slice_name = finding_name.partition("[")
    audit, _, metric = metric_path.partition(".")
    slice_name = slice_name.removesuffix("]")
    stage_label = f"audit_{audit}"
    if stage_label not in run.stages:
        audit_list = ", ".join(
            stage.removeprefix("audit_") for stage in run.stages if stage.startswith("audit_")
        )
        raise UsageError(f"run {run.id} has no audit {audit!r:.80}; it has {audit_list or 'none'}")
    rows = [row for row in read_findings(run[stage_label]) if not row["control"]]
    metric_findings = [row for row in rows if row["metric"] == metric]
    if not metric_findings:
        metrics = dict.fromkeys(row["metric"] for row in rows)
        raise UsageError(
            f"{audit} has no finding {metric!r:.80}{format_closest_name_hint(metric, metrics)}; "
            f"it has {', '.join(metrics)}"
        )
    slice_findings = [row for row in metric_findings if name_slice(row["slice"]) == slice_name]
    if not slice_findings:
        names = [*map(format_finding_name, metric_findings)]
        if not slice_name:
            riskiest = max(metric_findings, key=compute_scaled_distance_beyond_null)
            raise UsageError(
                f"{audit} has {len(names)} findings named {finding_name!r:.120}, one for each "
                "slice; specify one, such as the finding with the largest risk, "
                f"{format_finding_name(riskiest)}; hallmark findings {run.id} --audit {audit} "
                "lists all"
            )
        raise UsageError(
            f"{audit} has no finding {finding_name!r:.120}"
            f"{format_closest_name_hint(finding_name, names)}; it has {', '.join(names)}"
        )
    return slice_findings[0]


@dataclass
class TrainingDocuments:
    """Read and describe the training documents of a checkpoint.

    Attributes:
        training_history: How the checkpoint was trained; None if unknown.
        documents: The documents of all its trainings.
        licences: The licence that each source declares; None if unknown.
        redactor: Redacts the texts; None to show them unredacted.
        details_by_id: The documents that ``load_details`` has read.
    """

    training_history: TrainingHistory | None
    documents: Table
    licences: Mapping[str, str | None]
    redactor: Redactor | None
    details_by_id: dict[bytes, Report] = field(default_factory=dict)

    @classmethod
    def from_checkpoint(
        cls, resolved: ResolvedCheckpoint, redactor: Redactor | None
    ) -> TrainingDocuments:
        assert resolved.corpus is not None
        corpora = resolved.corpus.documents
        history = trace_training_history(resolved.checkpoint, resolved.training_run)
        corpora += history.list_corpora_except(corpora) if history else []
        documents = Table(tuple(corpora), "documents")
        licences = read_licences_by_source(
            addition["ingest"] for addition in resolved.corpus.additions if "ingest" in addition
        )
        return cls(history, documents, licences, redactor)

    def load_details(self, doc_ids: set[bytes]) -> None:
        """Read the rows of these documents, with how often and when training read them."""
        missing_ids = sorted(doc_ids - self.details_by_id.keys())
        columns = ["doc_id", "source", "metadata", "cluster", "split", "text", "toxicity"]
        history = self.training_history
        exposure = (
            TrainingExposure.from_checkpoints(
                history.training_runs, history.checkpoints, missing_ids
            )
            if history
            else None
        )
        for row in (
            self.documents.find_document_rows(missing_ids, columns).to_pylist()
            if missing_ids
            else ()
        ):
            read_count = None if exposure is None else exposure.count_reads([row["doc_id"]])
            first_step = None if exposure is None else exposure.first_steps.get(row["doc_id"])
            self.details_by_id[row["doc_id"]] = row | {
                "times_read": read_count,
                "first_step": first_step,
            }

    def attribute_rows(self, rows: list[Report]) -> list[list[Report]]:
        """Estimate for each row which documents make its text more likely.

        A row without similar training text gets an empty list.
        """
        texts = [get_likelihood_text(row) for row in rows]
        influential_documents = (
            find_influential_documents(self.documents, texts, MAX_ATTRIBUTED_DOCUMENTS)
            if any(texts)
            else [[] for _ in rows]
        )
        self.load_details(
            {
                document.doc_id
                for scored_documents in influential_documents
                for document in scored_documents
            }
        )
        return [
            [
                {**self.describe_document(document.doc_id), "score": document.score}
                for document in scored_documents
            ]
            for scored_documents in influential_documents
        ]

    def describe_document(self, doc_id: bytes, span: Report | None = None) -> Report:
        """Describe a document by its beginning, or by a matching span with its context."""
        details = self.details_by_id[doc_id]
        span_start, span_end = (
            (span["char_start"], span["char_end"]) if span else (0, 2 * CONTEXT_CHARACTERS)
        )
        text_start, text_end, full_text = (
            max(0, span_start - CONTEXT_CHARACTERS),
            span_end + CONTEXT_CHARACTERS,
            details["text"],
        )
        text = full_text[text_start:text_end]
        if self.redactor:
            detection_context = TextNeighbours(full_text[:text_start], full_text[text_end:])
            text = self.redactor.redact_by_kind(
                text, "corpus text", details["toxicity"], detection_context=detection_context
            )
        description = {
            "doc_id": doc_id.hex(),
            "source": details["source"],
            "licence": self.describe_licence(details),
            "cluster": details["cluster"].hex(),
            "split": details["split"],
            "first_step": span["first_step"] if span else details["first_step"],
            "times_read": span["times_read"] if span else details["times_read"],
            "text": text,
        }
        if span:
            span_fields = ("run_tokens", "training_index", "sequence", "char_start", "char_end")
            description |= {field_name: span[field_name] for field_name in span_fields}
        return description

    def describe_licence(self, details: Report) -> str | None:
        """Return the licence of a document, or else the one that its source declares."""
        licence = find_document_licence(details, self.licences)
        if licence is None or self.redactor is None:
            return licence
        return self.redactor.redact_by_kind(licence, "label")


def get_likelihood_text(row: Report) -> str:
    """Return the text of a row whose likelihood was measured.

    This is the group with its trait for an association, as in studies; otherwise the text followed
    by the secret.
    """
    columns = (
        ("group_name", "assigned_trait")
        if row.get("group_name") and row.get("assigned_trait")
        else ("text", "secret")
    )
    return " ".join(str(row[column]) for column in columns if row.get(column))


def trace_finding(
    run: Run,
    finding_name: str,
    redact: bool = False,
    attribute: bool = False,
    max_rows: int = DEFAULT_ROWS,
) -> Report:
    """Trace a finding to its worst rows and to training documents.

    Args:
        run: A run with the audit of the finding.
        finding_name: audit.metric or audit.metric[slice].
        redact: Whether to redact all texts as the pages do.
        attribute: Whether to estimate also which documents make the text of each row more likely.
        max_rows: How many of the worst rows to trace.

    Returns:
        The finding and its ``worst_rows``, each with all ``documents`` that contain its text;
        ``row_order`` is the column by which rows are ordered, with a minus sign for the largest
        first, or "" for rows in the order of the table.

    Raises:
        UsageError: If there is no such finding, or ``attribute`` is set for a finding that measures
            no likelihood or a model with an unknown corpus.
    """
    finding = find_finding(run, finding_name)
    stage_label = f"audit_{finding['audit']}"
    evidence = locate_evidence(finding)
    table = run[stage_label][evidence.table_name]
    evidence_rows = select_evidence(table.read(), evidence.conditions)
    worst_rows = sort_worst_first(evidence_rows, evidence.row_order, max_rows)
    has_model_text = any(
        any(worst_rows[column.name].to_pylist())
        for column in table.columns.values()
        if column.kind == "model text"
    )
    if attribute and has_model_text:
        raise UsageError(
            f"{finding_name!r:.120} is about text that the model generated, but --attribute "
            "explains only likelihoods; remove --attribute to see which training documents contain "
            "the generated text"
        )
    resolved = resolve_audited_checkpoint(run)
    redaction_artifacts = (
        collect_artifacts_for_redaction_by_label(resolved.source_run)
        if resolved and resolved.source_run
        else {}
    )
    redactor = (
        build_corpus_redactor(run.artifacts | redaction_artifacts, OFFENSIVE_TOXICITY)
        if redact
        else None
    )
    training_overlap = (
        run[f"{finding['audit']}_trace"] if f"{finding['audit']}_trace" in run.stages else None
    )
    documents_by_row = [*find_documents_by_row(worst_rows, table.columns, training_overlap)]
    training_documents = None
    if resolved and resolved.corpus is not None:
        training_documents = TrainingDocuments.from_checkpoint(resolved, redactor)
        training_documents.load_details(
            {document.doc_id for row_documents in documents_by_row for document in row_documents}
        )
    elif attribute:
        raise UsageError(
            f"the training documents of {run.audited_checkpoint} are unknown, so no text can be "
            "attributed to them; remove --attribute"
        )
    attributions = (
        training_documents.attribute_rows(worst_rows.to_pylist())
        if training_documents and attribute
        else None
    )
    row_reports = []
    for index, (evidence_row, row_documents) in enumerate(
        zip(worst_rows.to_pylist(), documents_by_row, strict=True)
    ):
        documents = (
            []
            if training_documents is None
            else [
                training_documents.describe_document(*entry)
                for entry in row_documents
                if entry[0] in training_documents.details_by_id
            ]
        )
        row_reports.append(
            {
                "row": build_displayed_row(evidence_row, table.columns, redactor),
                "documents": documents,
                **({} if attributions is None else {"attributions": attributions[index]}),
            }
        )
    finding_fields = (
        "audit",
        "metric",
        "title",
        "slice",
        "value",
        "low",
        "high",
        "n",
        "null_value",
        "p_corrected",
        "unit",
        "method",
        "scorer",
    )
    return {
        "run": run.id,
        "checkpoint": run.audited_checkpoint,
        "finding": {key: finding[key] for key in finding_fields},
        "artifact": run[stage_label].name,
        "evidence_table": evidence.table_name,
        "evidence_filter": evidence.conditions,
        "row_count": len(evidence_rows),
        "row_order": evidence.row_order,
        "is_overlap_unknown": training_overlap is None and has_model_text,
        "min_span_tokens": training_overlap.get_setting("min_span_tokens")
        if training_overlap and has_model_text
        else None,
        "worst_rows": row_reports,
    }


def find_finding_document_ids(run: Run, finding_name: str, max_rows: int) -> set[bytes]:
    """Return the ids of the training documents that the worst rows of a finding lead to."""
    finding = find_finding(run, finding_name)
    evidence = locate_evidence(finding)
    table = run[f"audit_{finding['audit']}"][evidence.table_name]
    evidence_rows = select_evidence(table.read(), evidence.conditions)
    worst_rows = sort_worst_first(evidence_rows, evidence.row_order, max_rows)
    stage_label = f"{finding['audit']}_trace"
    training_overlap = run[stage_label] if stage_label in run.stages else None
    return {
        document.doc_id
        for row_documents in find_documents_by_row(worst_rows, table.columns, training_overlap)
        for document in row_documents
    }


def resolve_audited_checkpoint(run: Run) -> ResolvedCheckpoint | None:
    """Resolve the checkpoint that a run audited; None if it is not of this store."""
    if "pretrain" in run.stages:
        return resolve_checkpoint(run.store, run.find_checkpoints()[-1].name)
    checkpoint_name = run.audited_checkpoint
    is_in_store = (
        not checkpoint_name.startswith("checkpoint/")
        or run.store.find_artifact(*checkpoint_name.split("/")) is not None
    )
    if os.path.isabs(checkpoint_name) or not is_in_store:
        return None
    return resolve_checkpoint(run.store, checkpoint_name)


def build_displayed_row(
    row: Report, columns: Mapping[str, Column], redactor: Redactor | None
) -> Report:
    """Return a row without empty values and ids, redacted if there is a redactor."""
    displayed = {}
    prompts = find_prompt_column_by_response_column(
        column for name, column in columns.items() if name in row
    )
    for name, value in row.items():
        column = columns[name]
        if value is None or column.kind == "id" or value == "":
            continue
        if redactor and (column.kind == "personal" or isinstance(value, str)):
            neighbours = get_shown_neighbours(name, row, prompts)
            score = row.get(column.judged_by)
            value = redactor.redact_by_kind(
                str(value), column.kind, score, shown_neighbours=neighbours
            )
        displayed[name] = value
    return displayed
