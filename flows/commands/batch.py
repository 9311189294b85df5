"""Show the documents, and the characters within them, that a training step read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

import pyarrow as pa
import pyarrow.compute as pc
from cyclopts import Parameter

from hallmark.flows.commands.options import JsonOption, StoreOption, WholeNumber, print_result
from hallmark.flows.corpus_additions import (
    collect_artifacts_for_redaction_by_label,
    open_corpus_documents,
)
from hallmark.flows.runs import Run, open_run
from hallmark.model.training.packed_rows import select_batch_rows
from hallmark.reports.page.redaction import OFFENSIVE_TOXICITY, Redactor, escape_invisible
from hallmark.reports.sections.corpus_figures import build_corpus_redactor
from hallmark.tasks.contract import UsageError, format_count


class BatchSpan(TypedDict):
    """The part of a document that a sequence contains."""

    row_start: int
    """First token in the sequence."""
    row_end: int
    char_start: int
    """First character in the document."""
    char_end: int
    doc_id: str
    source: str
    text: str
    """The characters of the span, redacted on demand."""


class BatchSequence(TypedDict):
    """A sequence of packed documents."""

    sequence: int
    spans: list[BatchSpan]


class TrainingBatch(TypedDict):
    """What a training step read."""

    run: str
    step: int
    pretrain: str
    packed_artifact: str
    sequences: list[BatchSequence]
    """In the order of the batch."""


#: Number of characters of a span that a terminal shows.
MAX_SHOWN_CHARACTERS = 60


def batch(
    run: str = "latest",
    *,
    step: WholeNumber | None = None,
    redact: Annotated[bool, Parameter(negative="")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the documents, and the characters within them, that a training step read.

    Parameters
    ----------
    run
        A run that trained a model, or "latest": the newest run that did.
    step
        The optimizer step, counted from 1; required.
    redact
        Hide personal data, planted secrets and offensive texts, as the pages do.
    """
    print_result(
        describe_training_batch(open_run(run, store, stage="pretrain"), step, redact),
        as_json,
        render_batch,
    )


def describe_training_batch(run: Run, step: int | None, redact: bool = False) -> TrainingBatch:
    """Describe the batch of a training step.

    Batches are a function of seed and step, so the training need not log them.

    Args:
        run: A run that trained a model.
        step: The optimizer step, counted from 1.
        redact: Whether to redact the texts as the pages do.

    Raises:
        UsageError: If ``step`` is None or no step of the training.
    """
    pretrained, packed = run["pretrain"], run.packed_corpus
    train_config = run.config.pretrain.train
    if step is None or not 1 <= step <= train_config.steps:
        problem = "--step is missing" if step is None else f"there is no step {step}"
        raise UsageError(
            f"{problem}: run {run.id} has training steps 1 to {train_config.steps}; choose one "
            "with --step"
        )
    sequence_numbers = select_batch_rows(
        train_config.seed, step, train_config.batch_size, packed["train"].row_count
    )
    is_in_batch = (pc.field("split") == "train") & pc.field("sequence").isin(
        pa.array(sequence_numbers)
    )
    spans = packed["spans"].filter_rows(is_in_batch).to_pylist()
    documents_by_id = _read_documents_by_id(run, {span["doc_id"] for span in spans})
    redactor = (
        build_corpus_redactor(collect_artifacts_for_redaction_by_label(run), OFFENSIVE_TOXICITY)
        if redact
        else None
    )
    spans_by_sequence: dict[int, list[BatchSpan]] = {}
    for span in sorted(spans, key=lambda s: (s["sequence"], s["row_start"])):
        document = documents_by_id[span["doc_id"]]
        spans_by_sequence.setdefault(span["sequence"], []).append(
            {
                "row_start": span["row_start"],
                "row_end": span["row_end"],
                "char_start": span["char_start"],
                "char_end": span["char_end"],
                "doc_id": span["doc_id"].hex(),
                "source": document["source"],
                "text": _extract_span_text(
                    document, span["char_start"], span["char_end"], redactor
                ),
            }
        )
    return {
        "run": run.id,
        "step": step,
        "pretrain": pretrained.name,
        "packed_artifact": packed.name,
        "sequences": [
            {"sequence": sequence_number, "spans": spans_by_sequence.get(sequence_number, [])}
            for sequence_number in sequence_numbers.tolist()
        ],
    }


def _read_documents_by_id(run: Run, doc_ids: set[bytes]) -> dict[bytes, dict[str, Any]]:
    rows = open_corpus_documents(run).find_document_rows(
        sorted(doc_ids), ["doc_id", "source", "text", "toxicity"]
    )
    return {row["doc_id"]: row for row in rows.to_pylist()}


def _extract_span_text(
    document: Mapping[str, Any], start: int, end: int, redactor: Redactor | None
) -> str:
    span_text: str = document["text"][start:end]
    if redactor is None:
        return span_text
    # The span may cut a match in two; the detectors see it only in the whole document.
    if redactor.find_sensitive_spans(document["text"]) != redactor.find_sensitive_spans(span_text):
        length = format_count(len(span_text), "character")
        return f"[not shown: contains or adjoins redacted text, {length}]"
    return redactor.redact_by_kind(
        span_text, "corpus text", document["toxicity"], max_characters=len(span_text) + 1
    )


def render_batch(batch: TrainingBatch) -> str:
    """Format the batch for a terminal: the location of each span and the beginning of its text."""
    sequence_count = format_count(len(batch["sequences"]), "sequence")
    lines = [f"run {batch['run']}, step {batch['step']}: {sequence_count}"]
    for number, sequence in enumerate(batch["sequences"]):
        lines += ["", f"{number}: sequence {sequence['sequence']} of {batch['packed_artifact']}"]
        for span in sequence["spans"]:
            tokens = f"tokens {span['row_start']} to {span['row_end'] - 1}"
            characters = f"characters {span['char_start']} to {span['char_end'] - 1}"
            lines.append(f"   {tokens:<20} {span['doc_id']}  {characters:<28} {span['source']}")
            excerpt = escape_invisible(" ".join(span["text"][: 2 * MAX_SHOWN_CHARACTERS].split()))
            if len(excerpt) > MAX_SHOWN_CHARACTERS:
                excerpt = excerpt[: MAX_SHOWN_CHARACTERS - 1] + "…"
            lines.append(f"   {excerpt}")
    return "\n".join(lines)
