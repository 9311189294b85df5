"""Follow a document through the stages of a run, or a finding or a text to training documents.

For a document: its text at every stage, where it was removed, and which training steps read it.
For a finding: its worst rows and the training documents that contain the same text.
For a text: its spans that occur in the training text, and the documents that contain them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cyclopts import Parameter

from hallmark.flows.checkpoint_comparison import open_audit_run
from hallmark.flows.checkpoint_resolution import (
    find_checkpoint_in_folder,
    resolve_checkpoint,
)
from hallmark.flows.commands.options import JsonOption, StoreOption, WholeNumber, print_result
from hallmark.flows.corpus_additions import (
    collect_artifacts_for_redaction_by_label,
    list_corpus_runs,
)
from hallmark.flows.finding_trace import (
    DEFAULT_ROWS,
    format_finding_name,
    parse_finding_audit,
    trace_finding,
)
from hallmark.flows.runs import Run, open_run, open_store
from hallmark.flows.text_trace import (
    DEFAULT_SPANS,
    MAX_TRACED_CHARACTERS,
    TextTracer,
    check_traceable,
)
from hallmark.model.training.packed_rows import select_batch_rows
from hallmark.reports.page.redaction import (
    NO_NEIGHBOURS,
    OFFENSIVE_TOXICITY,
    Redactor,
    TextNeighbours,
    escape_invisible,
    find_prompt_column_by_response_column,
    get_shown_neighbours,
)
from hallmark.reports.sections.corpus_figures import build_corpus_redactor
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS
from hallmark.tasks.contract import ID_TYPE, Artifact, Column, Table, UsageError, format_count

Report = dict[str, Any]

#: Number of characters of a text, of characters of a field in a line, of rows or steps, and of
#: documents of a row that a terminal shows.
MAX_TEXT_CHARACTERS, MAX_FIELD_CHARACTERS = 2000, 120
MAX_LISTED_ITEMS, MAX_DOCUMENTS = 12, 8

#: Number of training sequences that are searched at once.
SEQUENCES_PER_CHUNK = 1 << 22

#: Tables that the report shows separately, or that add nothing to the table of documents.
SEPARATELY_REPORTED_TABLES = ("documents", "ledger", "spans", "checksums", "signatures")


def trace(
    run: str | None = None,
    document_or_finding: str | None = None,
    *,
    text: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    text_file: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    rows: WholeNumber | None = None,
    redact: Annotated[bool, Parameter(negative="")] = False,
    attribute: Annotated[bool, Parameter(negative="")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Follow a document through all stages of a run, trace a finding to its worst rows and to
    training documents with the same text, or trace any text to training documents that contain
    spans of it.

    Parameters
    ----------
    run
        A run id, or "latest": the newest run that produced a corpus, or, for a finding, the newest
        that ran its audit on the newest trained model. For a text, a checkpoint: RUN, RUN@STEP or
        checkpoint/…; by default "latest", the last checkpoint of the newest trained model.
    document_or_finding
        The id of a document (32 hexadecimal digits, as in the column doc_id of the tables), or a
        finding as audit.metric[slice], such as bias.stereotype_preference or
        "toxicity.toxicity_probability[prompted, draw_count=25]".
    text
        Instead of a document or finding: a text, such as one that a model generated. Its longest
        spans that occur word for word in the training text are shown, the rarest first.
    text_file
        Like --text, but the text is read from this file, or from standard input if it is "-".
    rows
        For a finding, how many of its worst rows are shown; for a text, how many of its spans; by
        default 10.
    redact
        Hide personal data, planted secrets and offensive texts, as the pages do.
    attribute
        For a finding about likelihoods, also estimate which training documents make the text of
        each row more likely. The estimate uses shared rare words and phrases and reads all training
        documents; the command study measures its precision.
    """
    if rows is not None and rows < 1:
        raise UsageError(f"--rows is {rows}; it must be at least 1")
    if text is not None and text_file is not None:
        raise UsageError("--text and --text-file cannot be combined; use only one")
    traced_text = text if text_file is None else read_text_file(text_file)
    if traced_text is not None:
        if document_or_finding is not None:
            raise UsageError(
                f"{document_or_finding!r:.80} was specified in addition to a text; specify only "
                "one of the two"
            )
        if attribute:
            raise UsageError("--attribute requires a finding, such as bias.stereotype_preference")
        check_traceable(traced_text)  # a wrong text is reported before a missing checkpoint
        checkpoint_name = "latest" if run is None else run
        resolved = find_checkpoint_in_folder(checkpoint_name) or resolve_checkpoint(
            open_store(store, create=False), checkpoint_name
        )
        tracer = TextTracer.from_checkpoint(resolved, redact=redact)
        print_result(
            tracer.trace_text(traced_text, rows or DEFAULT_SPANS), as_json, render_text_trace
        )
        return
    if run is None or document_or_finding is None:
        raise UsageError(
            "nothing to trace; specify a run and a document or finding (hallmark trace latest "
            'bias.stereotype_preference), or a text (hallmark trace --text "TEXT")'
        )
    if "." in document_or_finding or document_or_finding in AUDIT_DESCRIPTIONS:
        finding_name = document_or_finding
        audit = parse_finding_audit(finding_name)
        audit_run = open_audit_run(open_store(store, create=False), run, audit)
        print_result(
            trace_finding(audit_run, finding_name, redact, attribute, rows or DEFAULT_ROWS),
            as_json,
            render_finding_trace,
        )
        return
    for option, is_given in (("--attribute", attribute), ("--rows", rows is not None)):
        if is_given:
            raise UsageError(
                f"{option} needs a finding, such as bias.stereotype_preference, not a document"
            )
    parse_doc_id(document_or_finding)  # a wrong id is reported before a missing run
    print_result(
        trace_document(open_run(run, store, stage="ingest"), document_or_finding, redact),
        as_json,
        render_document_trace,
    )


def read_text_file(file_name: str) -> str:
    """Read a text from a UTF-8 file, or from standard input if its name is "-".

    Raises:
        UsageError: If the file cannot be read, or is not UTF-8.
    """
    max_bytes = 4 * MAX_TRACED_CHARACTERS + 4  # one character more than a text may have
    try:
        if file_name == "-":
            content = sys.stdin.buffer.read(max_bytes)
        else:
            with Path(file_name).expanduser().open("rb") as file:
                content = file.read(max_bytes)
    except (OSError, RuntimeError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise UsageError(
            f"--text-file {file_name}: the file cannot be read ({reason.lower()}); specify a text "
            "file, or - for standard input"
        ) from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if len(content) == max_bytes and error.start >= max_bytes - 4:
            return content.decode("utf-8-sig", errors="ignore")  # cut off within a character
        raise UsageError(
            f"--text-file {file_name}: byte {error.start + 1} is not valid UTF-8; convert the "
            "file to UTF-8"
        ) from error


def trace_document(run: Run, doc_id: str, redact: bool = False) -> Report:
    """Trace a document through the stages of a run and its training.

    Args:
        run: A run that produced a corpus.
        doc_id: 32 hexadecimal digits.
        redact: Whether to redact all texts as the pages do.

    Returns:
        The ``stages`` that contain the document, those of earlier runs whose corpus this run
        extends first; its packed ``spans`` and the training ``steps`` that read it.

    Raises:
        UsageError: If the id is malformed or no stage contains the document.
    """
    id_bytes = parse_doc_id(doc_id)
    redactor = (
        build_corpus_redactor(collect_artifacts_for_redaction_by_label(run), OFFENSIVE_TOXICITY)
        if redact
        else None
    )
    stages = []
    previous: Report | None = None
    for labelled_artifact in _iter_artifacts_to_search(run):
        entry = _find_document_in_artifact(labelled_artifact.artifact, id_bytes, redactor)
        if entry is None:
            continue
        text = entry.pop("text", None)
        if text is not None:
            entry["text_changed"] = (
                previous is not None and previous["text_hash"] != entry["text_hash"]
            )
            if previous is None or entry["text_changed"]:
                entry["text"] = _redact_document_text(text, entry, redactor)
            previous = entry
        stages.append(
            {
                "stage": labelled_artifact.label,
                "run": labelled_artifact.run.id,
                "artifact": labelled_artifact.artifact.name,
                **entry,
            }
        )
    if not stages:
        raise UsageError(
            f"document {doc_id} is not in any stage of run {run.id}; document ids are in the "
            "doc_id columns of the run's tables"
        )
    spans = _find_packed_spans(run, id_bytes)
    return {
        "run": run.id,
        "doc_id": id_bytes.hex(),
        "stages": stages,
        "is_packed": "pack" in run.stages and run.packed_corpus["spans"].row_count > 0,
        "spans": spans,
        "steps": find_steps_reading_sequences(
            run, {span["sequence"] for span in spans if span["split"] == "train"}
        ),
    }


class LabelledArtifact(NamedTuple):
    """Hold an artifact with its run and its label in the run."""

    run: Run
    label: str
    artifact: Artifact


def _iter_artifacts_to_search(run: Run) -> Iterator[LabelledArtifact]:
    """Yield the artifacts that may contain a document; of earlier runs only those of the corpus."""
    *earlier_runs, last_run = list_corpus_runs(run)
    for earlier_run in earlier_runs:
        labels = list(earlier_run.stages)
        for label in labels[: labels.index("plant_canaries") + 1]:
            yield LabelledArtifact(earlier_run, label, earlier_run[label])
    for label, artifact in last_run.artifacts.items():
        yield LabelledArtifact(last_run, label, artifact)


def parse_doc_id(doc_id: str) -> bytes:
    """Convert the hexadecimal id of a document to bytes, or raise UsageError."""
    try:
        id_bytes = bytes.fromhex(doc_id)
    except ValueError:
        id_bytes = b""
    if len(id_bytes) != ID_TYPE.byte_width:
        raise UsageError(
            f"{doc_id!r:.80} is neither a doc_id (32 hexadecimal digits, as in the doc_id column) "
            "nor a finding (audit.metric, such as bias.stereotype_preference)"
        )
    return id_bytes


def _find_document_in_artifact(
    artifact: Artifact, doc_id: bytes, redactor: Redactor | None
) -> Report | None:
    """Collect what one artifact records about a document, or return None if nothing.

    All values are redacted except ``text``, which the caller redacts.
    """
    tables = artifact.tables

    def read_redacted_rows(table: Table) -> list[Report]:
        return [
            _redact_row(row, table, redactor) for row in _find_rows_naming_document(table, doc_id)
        ]

    entry: Report = {}
    if "documents" in tables:
        rows = _find_rows_naming_document(tables["documents"], doc_id)
        entry["state"] = "present" if rows else "absent"
        if rows:
            entry |= _redact_row(rows[0], tables["documents"], redactor)
            entry |= {"text": rows[0]["text"], "toxicity": rows[0]["toxicity"]}
    if "ledger" in tables:
        entry["ledger"] = read_redacted_rows(tables["ledger"])
    other_tables = {
        table_name: read_redacted_rows(table)
        for table_name, table in tables.items()
        if table_name not in SEPARATELY_REPORTED_TABLES
    }
    entry["tables"] = {table_name: rows for table_name, rows in other_tables.items() if rows}
    if purge_time := artifact.purge_time_by_doc_id.get(doc_id.hex()):
        entry["purged"] = purge_time
    is_known = entry.get("state") == "present" or entry.get("ledger") or entry["tables"]
    return entry if is_known else None


def _find_rows_naming_document(table: Table, doc_id: bytes) -> list[Report]:
    """Return the rows of a table that name the document in any id column."""
    if table.name in ("documents", "ledger"):
        return list(table.find_document_rows([doc_id]).to_pylist())
    id_columns = [
        column.name
        for column in table.columns.values()
        if column.kind == "id" and column.type == str(ID_TYPE)
    ]
    if not id_columns:
        return []
    conditions = [pc.field(name) == pa.scalar(doc_id, ID_TYPE) for name in id_columns]
    return list(table.filter_rows(reduce(or_, conditions)).to_pylist())


def _redact_row(row: Report, table: Table, redactor: Redactor | None) -> Report:
    """Redact a row of a table, and drop empty values, ``doc_id`` and ``text``."""
    columns = table.columns
    prompt_columns = find_prompt_column_by_response_column(
        column for name, column in columns.items() if name in row
    )
    return {
        name: _redact_value(
            value, columns[name], row, redactor, get_shown_neighbours(name, row, prompt_columns)
        )
        for name, value in row.items()
        if value is not None and name not in ("doc_id", "text")
    }


def _redact_value(
    value: Any,
    column: Column,
    row: Report,
    redactor: Redactor | None,
    shown_neighbours: TextNeighbours = NO_NEIGHBOURS,
) -> Any:
    """Return a value of a row, redacted as on pages if there is a redactor.

    ``shown_neighbours`` are the texts that the row shows directly before and after the value.
    """
    if isinstance(value, list):
        return [_redact_value(item, column, row, redactor) for item in value]
    if redactor and column.kind == "personal":
        return redactor.redact_by_kind(str(value), column.kind)
    if isinstance(value, bytes):
        return value.hex()
    if redactor and isinstance(value, str):
        return redactor.redact_by_kind(
            value, column.kind, row.get(column.judged_by), shown_neighbours=shown_neighbours
        )
    return value


def _redact_document_text(text: str, document: Report, redactor: Redactor | None) -> str:
    if redactor is None:
        return text
    return redactor.redact_by_kind(
        text, "corpus text", document["toxicity"], max_characters=len(text) + 1
    )


def _find_packed_spans(run: Run, doc_id: bytes) -> list[Report]:
    """Find the spans of a document in the packed sequences."""
    if "pack" not in run.stages:
        return []
    matches = run.packed_corpus["spans"].filter_rows(pc.field("doc_id") == doc_id)
    rows = matches.drop_columns("doc_id").to_pylist()
    return sorted(rows, key=lambda r: (r["split"], r["sequence"], r["row_start"]))


def find_steps_reading_sequences(run: Run, sequence_numbers: set[int]) -> list[int]:
    """Return the training steps, counted from 1, that read any of these sequences."""
    if "pretrain" not in run.stages or not sequence_numbers:
        return []
    train_config, row_count = run.config.pretrain.train, run.packed_corpus["train"].row_count
    wanted_sequences = pa.array(sorted(sequence_numbers))
    # The rows of consecutive steps are those of one larger batch.
    steps_per_chunk = min(
        train_config.steps, max(1, SEQUENCES_PER_CHUNK // train_config.batch_size)
    )
    steps: set[int] = set()
    for chunk_index in range(-(-train_config.steps // steps_per_chunk)):
        sequences_read = select_batch_rows(
            train_config.seed, chunk_index + 1, steps_per_chunk * train_config.batch_size, row_count
        )
        read_positions = np.flatnonzero(
            pc.is_in(pa.array(sequences_read), value_set=wanted_sequences).to_numpy(False)
        )
        steps.update(
            (chunk_index * steps_per_chunk + read_positions // train_config.batch_size + 1).tolist()
        )
    return sorted(step for step in steps if step <= train_config.steps)


def render_document_trace(report: Report) -> str:
    lines = [f"document {report['doc_id']} in run {report['run']}"]
    for stage in report["stages"]:
        run_note = "" if stage["run"] == report["run"] else f" (run {stage['run']})"
        lines += ["", f"{stage['stage']:<19} {_format_document_state(stage)}{run_note}"]
        lines += [f"    {line}" for line in _iter_ledger_and_table_lines(stage)]
        if "text" in stage:
            lines += _quote_text_lines(stage["text"])
    lines += ["", *_render_training_use(report)]
    return "\n".join(lines)


def _format_document_state(stage_entry: Report) -> str:
    if "state" not in stage_entry:
        return ""
    if stage_entry["state"] == "absent":
        return "absent"
    if "purged" in stage_entry:
        return f"present, {stage_entry['source']}, purged on {stage_entry['purged'][:10]}"
    return f"present, {stage_entry['source']}" + (
        ", text changed" if stage_entry["text_changed"] else ""
    )


def _iter_ledger_and_table_lines(stage_entry: Report) -> Iterator[str]:
    for row in stage_entry.get("ledger", []):
        yield (
            f"{row['action']}: "
            f"{escape_invisible(row['reason'])}{_format_row_fields(row, SHOWN_LEDGER_COLUMNS)}"
        )
    for table_name, rows in stage_entry["tables"].items():
        if table_name == "document_reads":
            yield from map(_format_document_reads, rows)
            continue
        if table_name == "matched_spans":
            yield _format_matched_spans(rows)
            continue
        yield from (
            f"{table_name}:{_format_row_fields(row, tuple(row))}" for row in rows[:MAX_LISTED_ITEMS]
        )
        if len(rows) > MAX_LISTED_ITEMS:
            hidden_count = len(rows) - MAX_LISTED_ITEMS
            yield f"{table_name}: and {format_count(hidden_count, 'more row')}"


def _format_document_reads(row: Report) -> str:
    """Format what training read of the document between two checkpoints."""
    return (
        f"up to the checkpoint at step {row['step']}: {row['tokens_read']} of "
        f"{format_count(row['document_tokens'], 'token')} read since the previous checkpoint, from "
        f"step {row['first_step']} to step {row['last_step']}; read completely "
        f"{format_count(row['times_read'], 'time')} so far"
    )


def _format_matched_spans(rows: list[Report]) -> str:
    """Format how many texts of an audit share consecutive tokens with the document."""
    text_count = len({row["text_hash"] for row in rows})
    subject = (
        "1 text in the audit shares"
        if text_count == 1
        else f"{text_count:,} texts in the audit share"
    )
    longest = format_count(max(row["run_tokens"] for row in rows), "token")
    return (
        f"{subject} consecutive tokens with the document (at most {longest}); --json lists the "
        "positions"
    )


#: Columns of a ledger row that a terminal shows.
SHOWN_LEDGER_COLUMNS = ("score", "threshold", "matched_doc_id", "char_start", "char_end")


def _format_row_fields(row: Report, column_names: tuple[str, ...]) -> str:
    fields = {
        column_name: row[column_name]
        for column_name in column_names
        if isinstance(row.get(column_name), str | int | float | list)
    }
    return "".join(
        f" {column_name}={_format_short_value(value)}" for column_name, value in fields.items()
    )


def _format_short_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = _to_single_line(str(value))
    return text if len(text) <= MAX_FIELD_CHARACTERS else f"{text[: MAX_FIELD_CHARACTERS - 1]}…"


def _to_single_line(text: str) -> str:
    return escape_invisible(" ".join(text.split()))


def _quote_text_lines(text: str) -> list[str]:
    lines = [f"    | {escape_invisible(line)}" for line in text[:MAX_TEXT_CHARACTERS].splitlines()]
    if len(text) > MAX_TEXT_CHARACTERS:
        lines.append(
            f"    | … and {format_count(len(text) - MAX_TEXT_CHARACTERS, 'more character')}; "
            "--json shows the full text"
        )
    return lines


def _render_training_use(report: Report) -> list[str]:
    if not report["is_packed"]:
        return ["the run packed no corpus"]
    if not report["spans"]:
        return ["no packed sequence contains tokens of the document"]
    lines = [
        f"{span['split']} sequence {span['sequence']}: tokens {span['row_start']} to "
        f"{span['row_end'] - 1}, characters {span['char_start']} to {span['char_end'] - 1}"
        for span in report["spans"][:MAX_LISTED_ITEMS]
    ]
    if (hidden_count := len(report["spans"]) - MAX_LISTED_ITEMS) > 0:
        lines.append(f"and {format_count(hidden_count, 'more span')}")
    steps = report["steps"]
    formatted_steps = ", ".join(map(str, steps[:MAX_LISTED_ITEMS])) + (
        " …" if len(steps) > MAX_LISTED_ITEMS else ""
    )
    lines.append(
        f"read in {format_count(len(steps), 'training step')}: {formatted_steps}"
        if steps
        else "not read in any training step"
    )
    return lines


def render_finding_trace(report: Report) -> str:
    row = report["finding"]
    value_text = "not measured" if row["value"] is None else f"{row['value']:.4g} {row['unit']}"
    if row["low"] is not None and row["high"] is not None:
        value_text += f", interval {row['low']:.4g} to {row['high']:.4g}"
    if row["null_value"] is not None:
        value_text += f", null value {row['null_value']:.4g}"
    shown_count, row_count = len(report["worst_rows"]), report["row_count"]
    shown_rows_text = (
        f"the first {shown_count} of {row_count:,} rows"
        if row_count > shown_count
        else format_count(row_count, "row")
    )
    lines = [
        escape_invisible(format_finding_name(row)),
        f"    {row['title']}: {value_text}, n = {row['n']}; {escape_invisible(row['method'])}",
        f"    checkpoint {escape_invisible(report['checkpoint'])}",
        f"    {shown_rows_text} of {report['evidence_table']} in {report['artifact']}"
        f"{_format_evidence_row_order(report)}"
        + (
            "; the corpus was not searched for the model's text"
            if report["is_overlap_unknown"]
            else ""
        ),
    ]
    for number, entry in enumerate(report["worst_rows"], start=1):
        lines += ["", f"row {number}:{_format_row_fields(entry['row'], tuple(entry['row']))}"]
        for document in entry["documents"][:MAX_DOCUMENTS]:
            lines += _render_training_document(document)
        if report["min_span_tokens"] and not entry["documents"]:
            lines.append(
                f"    no span of {report['min_span_tokens']} consecutive tokens in the model's "
                "text occurs in the training text"
            )
        if (hidden_count := len(entry["documents"]) - MAX_DOCUMENTS) > 0:
            lines.append(f"    and {format_count(hidden_count, 'more document')}; --json lists all")
        if "attributions" in entry:
            lines.append(
                "    attributed documents (estimate), with the weighted share of this row's rare "
                "words that each document contains; a low share is usually due to chance:"
                if entry["attributions"]
                else "    attributed documents: none; no training document contains rare words of "
                "this row"
            )
        for document in entry.get("attributions", ()):
            lines += _render_training_document(document)
    return "\n".join(lines)


def render_text_trace(report: Report) -> str:
    """Format the spans of a text that occur in the training text, for a terminal."""
    shown_count, span_count = len(report["spans"]), report["span_count"]
    lines = [
        f"checkpoint {escape_invisible(report['checkpoint'])}: "
        f"{format_count(report['training_documents'], 'training document')}, "
        f"{format_count(report['training_bytes'], 'byte')} of text"
    ]
    minimum = f"of at least {report['min_span_characters']} characters"
    if not span_count:
        lines.append(f"the text contains no span {minimum} that occurs in the training text")
    else:
        lines.append(
            f"the text contains {format_count(span_count, 'span')} {minimum} that "
            f"{'occurs' if span_count == 1 else 'occur'} in the training text"
            + (f"; the {shown_count} rarest:" if shown_count < span_count else ", rarest first:")
        )
    for span in report["spans"]:
        lines += [
            "",
            f"characters {span['char_start']} to {span['char_end'] - 1}: "
            f"{format_count(span['occurrences'], 'occurrence')}",
        ]
        for document in span["documents"]:
            lines.append(
                f"    {document['doc_id']} {escape_invisible(document['source'])}"
                f"{_format_licence_note(document)}, characters {document['char_start']} to "
                f"{document['char_end'] - 1}{_format_reading_note(document)}"
            )
            excerpt = f"{document['text_before']}»{document['text']}«{document['text_after']}"
            lines += [f"    {line}" for line in _quote_text_lines(excerpt)]
    return "\n".join(lines)


def _format_licence_note(document: Report) -> str:
    return f", {escape_invisible(document['licence'])}" if document["licence"] else ""


def _format_reading_note(document: Report) -> str:
    """Format how often and when training read a document, as far as that is known."""
    if document["times_read"] is None:
        return ""
    if document["times_read"] == 0:
        return ", not yet read completely"
    read_note = ", read " + (
        "once" if document["times_read"] == 1 else f"{document['times_read']} times"
    )
    return read_note + (
        "" if document["first_step"] is None else f", first in step {document['first_step']}"
    )


def _format_evidence_row_order(report: Report) -> str:
    order = report["row_order"]
    if report["row_count"] < 2:
        return ""
    if not order:
        return ", in table order"
    direction = "largest" if order.startswith("-") else "smallest"
    return f", ordered by {order.removeprefix('-')}, {direction} first"


def _render_training_document(document: Report) -> list[str]:
    read_count, step = document["times_read"], document["first_step"]
    training_note = " of the previous training run" if document.get("training_index") else ""
    first_step_note = "" if step is None else f", first in step {step}{training_note}"
    read_note = {None: "", 0: ", not read yet", 1: ", read once"}.get(
        read_count, f", read {read_count} times"
    )
    if read_count == 0 and step is not None and "sequence" in document:
        # The sequence is first read after this checkpoint.
        first_step_note = f": first read in step {step}{training_note}"
    elif read_count == 0 and step is not None:
        read_note = ", not yet read completely"
    elif document["split"] != "train":
        read_note = f", held out ({document['split']}), never trained on"
    size_note = (
        f", {format_count(document['run_tokens'], 'token')}" if "run_tokens" in document else ""
    )
    score_note = f", {document['score']:.0%}" if "score" in document else ""
    notes = f"{_format_licence_note(document)}{size_note}{score_note}{read_note}{first_step_note}"
    return [
        f"    {document['doc_id']} {escape_invisible(document['source'])}{notes}",
        *(f"    {line}" for line in _quote_text_lines(document["text"])),
    ]
