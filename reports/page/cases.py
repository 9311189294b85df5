"""Read rows of evidence as cases: a text of a model, next to the training document it came from.

The role of a column follows from its declared kind and type: a text of a model follows the prompt,
a personal text follows it, too, and may stand in a document that the row names. A text is shown if
a scorer found it harmless, or if a document that the row names contains it and may be shown.
Planted secrets are invented: each text that has one also has a version that shows it. The SHA-256
of each file that cases are read from is compared with its manifest first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from hallmark.reports.artifact_lookup import find_artifact_by_name, find_training_trace
from hallmark.reports.page.card_tables import CardContent
from hallmark.reports.page.document_lookup import DocumentLookup, ShownDocument
from hallmark.reports.page.figures import Evidence, format_unit_suffix
from hallmark.reports.page.redaction import (
    DISPLAYABLE_KINDS,
    MASK_ENDING,
    NO_NEIGHBOURS,
    PARTLY_SHARED_MASK_ENDING,
    SCORE_GATED_KINDS,
    MarkedPart,
    Redactor,
    TextNeighbours,
    TextRange,
    find_prompt_column_by_response_column,
)
from hallmark.reports.page.table_cells import value_to_text
from hallmark.tasks.audits.audit_descriptions import GENERATED_PERSONAL_TEXT, UNPROMPTED_METRICS
from hallmark.tasks.audits.experiments.source_documents import (
    RowDocument,
    find_documents_by_row,
    list_document_id_columns,
    to_doc_id_list,
)
from hallmark.tasks.audits.judging.training_exposure import EXPOSURE_TABLES, TrainingExposure
from hallmark.tasks.contract import Artifact, Column, Row, format_count, get_artifact_store

#: Number of cases that ``read_cases`` returns by default, and of documents of each.
DEFAULT_CASES, DOCUMENTS_PER_CASE = 20, 3

#: Number of characters of a text of a row, and of the text before and after a span in a document.
MAX_TEXT_CHARACTERS, CONTEXT_CHARACTERS = 1200, 300

#: Number of documents of a row that are read, so that copies of one text are shown once.
_MAX_LOADED_DOCUMENTS = 8

#: Units that the value of one row has if the metric has them; a share, for example, is of all rows.
ROW_UNITS = ("tokens", "bytes", "characters", "bits", "nats", "identifiers")

#: What a reader calls a column whose name alone is not clear next to a document.
_COLUMN_LABELS = {
    "times_read": "number of times the model read this text during training, summed over all copies"
}

TEXT_KINDS = (*SCORE_GATED_KINDS, "audit text")


@dataclass(frozen=True)
class CaseText:
    """A text of a case as it may be shown.

    Attributes:
        title: What the text is, such as "Prompt".
        parts: The redacted text in parts; the highlighted ones are shared with another text.
        is_hidden: Whether the parts say why the text is not shown, instead of showing it.
        revealed_parts: The text with its planted secrets, to be shown after a click; empty if it
            has none.
    """

    title: str
    parts: Sequence[MarkedPart]
    is_hidden: bool = False
    revealed_parts: Sequence[MarkedPart] = ()


@dataclass(frozen=True)
class CaseDocument:
    """A document of a case.

    Attributes:
        id: The id in hexadecimal digits.
        source: The redacted name of its source.
        licence: Its licence, or the one of its source, redacted; empty if neither is known.
        stage: The last stage that contains it.
        split: Its split, such as train; empty if it has none yet.
        score: The toxicity score, formatted; empty if it has none.
        first_step: The first training step that read any of it; None if none did or that is
            unknown.
        times_read: How often training read this document, without its copies, completely; None
            if that is unknown.
        text: Its text around the highlighted span, or its beginning.
    """

    id: str
    source: str
    licence: str
    stage: str
    split: str
    score: str
    first_step: int | None
    times_read: int | None
    text: CaseText


@dataclass(frozen=True)
class CaseFact:
    """A value of a row.

    Attributes:
        name: What the value is, redacted.
        text: The value as it may be shown.
        is_id: Whether it is an id.
    """

    name: str
    text: str
    is_id: bool = False


@dataclass(frozen=True)
class Case:
    """A row of evidence as a page shows it; no text is escaped.

    Attributes:
        number: The position of the row among the rows of the selection, from 1.
        facts: The measured value, scores, and labels.
        texts: The texts of the row: the prompt first, then what follows it.
        documents: The first documents that contain the text or that the row names.
        document_count: How many documents there are.
        details: The remaining values.
        shares_spans: Whether every document is there because it shares a span with a text.
    """

    number: int
    facts: Sequence[CaseFact]
    texts: Sequence[CaseText]
    documents: Sequence[CaseDocument]
    document_count: int
    details: Sequence[CaseFact]
    shares_spans: bool = False


class SelectedRows(NamedTuple):
    """Some rows of a selection.

    Attributes:
        evidence: The selection.
        rows: The rows.
        offset: The number of rows of the selection before them.
    """

    evidence: Evidence
    rows: pa.Table
    offset: int = 0


class MeasureLabel(NamedTuple):
    """What the values of a measure are.

    Attributes:
        title: The title of the measure.
        unit: The unit of a value; empty if it has none.
    """

    title: str
    unit: str


#: The label of values without a measure.
UNKNOWN_MEASURE = MeasureLabel("value", "")


def label_measures(artifact: Artifact, names: Iterable[str]) -> dict[str, MeasureLabel]:
    """Return what the values of measures are, by their names.

    The title of a measure is that of the metric of the same name, if the artifact has findings of
    it. Otherwise it is the name in words, without a unit at its end.
    """
    columns = ("metric", "title", "unit")
    metric_rows: list[dict[str, Any]] = []
    if "findings" in artifact.tables and {*columns} <= {*artifact["findings"].columns}:
        metric_rows = artifact["findings"].read(columns).to_pylist()
    row_by_metric = {row["metric"]: row for row in metric_rows if row["title"]}
    labels: dict[str, MeasureLabel] = {}
    for name in names:
        if name in row_by_metric:
            title, unit = row_by_metric[name]["title"], row_by_metric[name]["unit"]
        else:
            stem, _, unit = name.rpartition("_")
            title = _humanize(stem if stem and unit in ROW_UNITS else name)
        labels[name] = MeasureLabel(title, unit if unit in ROW_UNITS else "")
    return labels


def _label_measures_of_rows(artifact: Artifact, rows: pa.Table) -> dict[str, MeasureLabel]:
    if not {"measure", "value"} <= {*rows.column_names}:
        return {}
    names = [str(name) for name in pc.unique(rows["measure"]).to_pylist() if name]
    if "findings" in artifact.tables:
        artifact["findings"].verify()
    return label_measures(artifact, names)


def has_cases(columns: Mapping[str, Column]) -> bool:
    """Return whether rows with these columns are shown as cases: they have a text or a document."""
    return any(_is_text_column(column) for column in columns.values()) or any(
        name in ("doc_id", "doc_ids") for name in list_document_id_columns(columns)
    )


def read_cases(
    content: CardContent, evidence_id: str, offset: int = 0, limit: int = DEFAULT_CASES
) -> list[Case]:
    """Read rows of a selection as cases, in the order of the selection.

    Args:
        content: The card.
        evidence_id: The id of the selection.
        offset: How many rows are skipped.
        limit: How many rows are read at most.

    Raises:
        HallmarkError: If a file that the cases are read from is missing or damaged.
    """
    evidence = content.book.evidence_by_id[evidence_id]
    rows = evidence.read_first_rows(offset + limit)[offset:]
    return build_cases(content, [SelectedRows(evidence, rows, offset)])[0]


def build_cases(
    content: CardContent,
    selections: Sequence[SelectedRows],
    max_documents: int = DOCUMENTS_PER_CASE,
) -> list[list[Case]]:
    """Build the cases of several selections, reading all of their documents together.

    Args:
        content: The card.
        selections: The rows; the table of each has cases.
        max_documents: How many documents of each row are shown.

    Raises:
        HallmarkError: If a file that the cases are read from is missing or damaged.
    """
    pending = _find_documents_of_selections(selections)
    lookup = DocumentLookup(content.corpus_artifacts, content.redactor)
    shown_by_id = lookup.read_documents(
        {
            document.doc_id
            for entry in pending
            for documents in entry.documents_by_row
            for document in documents[:_MAX_LOADED_DOCUMENTS]
        }
        | {i for entry in pending for ids in entry.related_ids_by_row for i in ids}
    )
    return [
        _CaseBuilder(content.redactor, lookup, shown_by_id, entry, max_documents).build()
        for entry in pending
    ]


@dataclass
class _TracedSelection:
    """Rows with the documents of each, and what training read of these.

    Attributes:
        selected: The rows.
        documents_by_row: The documents that each row names, and those with its text.
        related_ids_by_row: What other columns of each row name, maybe documents.
        copied_span_by_row: What is known of the longest copied span of each row, in words; empty
            where none was found.
        exposure: How often training read the documents; None if that is not known.
        measure_by_name: What the values of the rows are, by the name of their measure.
    """

    selected: SelectedRows
    documents_by_row: list[list[RowDocument]]
    related_ids_by_row: list[list[bytes]]
    copied_span_by_row: list[str]
    exposure: TrainingExposure | None
    measure_by_name: Mapping[str, MeasureLabel]


def _find_documents_of_selections(
    selections: Sequence[SelectedRows],
) -> list[_TracedSelection]:
    """Find the documents of all rows; selections of one table are searched together."""
    numbers_by_table: dict[tuple[str, str], list[int]] = {}
    for number, (evidence, _, _) in enumerate(selections):
        numbers_by_table.setdefault((evidence.stage, evidence.table), []).append(number)
    traced: dict[int, _TracedSelection] = {}
    for numbers in numbers_by_table.values():
        evidence = selections[numbers[0]].evidence
        trace = find_training_trace(evidence.artifact)
        all_rows = pa.concat_tables([selections[number].rows for number in numbers])
        all_documents_by_row = [*find_documents_by_row(all_rows, evidence.columns_by_name, trace)]
        documents_by_row = [*map(_remove_repeated_documents, all_documents_by_row)]
        span_limit = 0 if trace is None else _read_span_limit(trace)
        copied_span_by_row = [
            describe_copied_span([d.matched_span for d in documents if d.matched_span], span_limit)
            for documents in all_documents_by_row
        ]
        related_ids_by_row = _list_related_ids(all_rows, evidence.columns_by_name)
        doc_ids = {
            document.doc_id
            for documents in documents_by_row
            for document in documents[:_MAX_LOADED_DOCUMENTS]
        }
        exposure = _read_training_exposure(trace or evidence.artifact, doc_ids)
        measure_by_name = _label_measures_of_rows(evidence.artifact, all_rows)
        start = 0
        for number in numbers:
            end = start + len(selections[number].rows)
            traced[number] = _TracedSelection(
                selections[number],
                documents_by_row[start:end],
                related_ids_by_row[start:end],
                copied_span_by_row[start:end],
                exposure,
                measure_by_name,
            )
            start = end
    return [traced[number] for number in range(len(selections))]


def list_case_inputs(artifact: Artifact) -> list[str]:
    """Return the names of further artifacts that the cases of an artifact's rows are built from."""
    lineage: Mapping[str, Any] = artifact.lineage
    names: list[str] = []
    for input_name in ("training_overlap", "training_runs", "checkpoints"):
        value = lineage.get(input_name)
        values = value.values() if isinstance(value, Mapping) else [value]
        names += [name for name in values if isinstance(name, str)]
    return names


def _read_training_exposure(
    artifact: Artifact, doc_ids: Collection[bytes]
) -> TrainingExposure | None:
    """Read how often the trainings in the lineage of an artifact had read documents.

    Returns:
        None if the artifact names no training, or one of its artifacts is missing.
    """
    store, lineage = get_artifact_store(artifact), artifact.lineage
    artifacts: dict[str, dict[str, Artifact]] = {"training_runs": {}, "checkpoints": {}}
    for input_name, artifact_by_name in artifacts.items():
        names = lineage.get(input_name)
        for key, name in names.items() if isinstance(names, Mapping) else ():
            found = None if store is None else find_artifact_by_name(store, name)
            if found is None:
                return None
            artifact_by_name[key] = found
    for training_run in artifacts["training_runs"].values():
        if {*EXPOSURE_TABLES} <= {*training_run.tables}:
            training_run["checkpoints"].verify()
    return TrainingExposure.from_checkpoints(
        artifacts["training_runs"], artifacts["checkpoints"], doc_ids
    )


def _read_span_limit(trace: Artifact) -> int:
    """Return how many spans of a text a search recorded at most; 0 if that is not known."""
    config = trace.manifest.get("parts", {}).get("config", {})
    return int(config.get("max_spans_per_text", 0))


def describe_copied_span(spans: Sequence[Row], span_limit: int) -> str:
    """Say in how many training documents the longest copied span of a row occurs.

    A span in many documents is rather a stock phrase than a memorised text. Of each text, only the
    longest spans are recorded. The count is a lower bound if all recorded spans are this one.

    Args:
        spans: Rows of the table matched_spans, the longest first.
        span_limit: How many spans of a text are recorded at most; 0 if that is not known.
    """
    if not spans:
        return ""
    longest = spans[0]
    spans_of_text = [span for span in spans if span["text_hash"] == longest["text_hash"]]
    keys = ("run_tokens", "text_start")
    equal_spans = [span for span in spans_of_text if all(span[k] == longest[k] for k in keys)]
    is_complete = (
        spans_of_text[-1]["run_tokens"] < longest["run_tokens"] or len(spans_of_text) < span_limit
    )
    document_count = len({span["doc_id"] for span in equal_spans})
    bound = "" if is_complete else "at least "
    return (
        f"{format_count(longest['run_tokens'], 'token')}, in {bound}"
        f"{format_count(document_count, 'training document')}"
    )


def _remove_repeated_documents(documents: Iterable[RowDocument]) -> list[RowDocument]:
    """Return documents once each; one with a span comes before those without."""
    by_id: dict[bytes, RowDocument] = {}
    for document in sorted(documents, key=lambda d: d.matched_span is None):
        by_id.setdefault(document.doc_id, document)
    return [*by_id.values()]


def _list_related_ids(rows: pa.Table, columns: Mapping[str, Column]) -> list[list[bytes]]:
    """Return for each row what other id columns name, such as the original of a removed copy."""
    id_columns = [
        name for name in list_document_id_columns(columns) if name not in ("doc_id", "doc_ids")
    ]
    if not id_columns:
        return [[] for _ in range(len(rows))]
    return [
        [i for value in row.values() for i in to_doc_id_list(value)[:_MAX_LOADED_DOCUMENTS]]
        for row in rows.select(id_columns).to_pylist()
    ]


def _is_text_column(column: Column) -> bool:
    """Return whether a column holds texts; names and addresses are not of this type."""
    return column.kind in TEXT_KINDS or (
        column.kind == "personal" and column.type == str(pa.large_string())
    )


@dataclass(frozen=True)
class _TextRights:
    """Whether a text may be shown: as a kind of text, with a toxicity score."""

    kind: str
    toxicity: float | None


@dataclass
class _CaseBuilder:
    """Builds the cases of one selection."""

    redactor: Redactor
    lookup: DocumentLookup
    shown_by_id: Mapping[bytes, ShownDocument]
    traced: _TracedSelection
    max_documents: int
    columns: list[Column] = field(init=False)

    def __post_init__(self) -> None:
        evidence, rows, _ = self.traced.selected
        self.columns = [evidence.get_column_description(name) for name in rows.column_names]

    def build(self) -> list[Case]:
        """Build the cases in the order of the rows."""
        _, rows, offset = self.traced.selected
        return [
            self._build_case(row, index, offset + index + 1)
            for index, row in enumerate(rows.to_pylist())
        ]

    @cached_property
    def text_columns(self) -> list[Column]:
        """The text columns, the prompt first."""
        prompts = set(self.prompt_by_follower.values())
        texts = [column for column in self.columns if _is_text_column(column)]
        return sorted(texts, key=lambda column: column.name not in prompts)

    @cached_property
    def prompt_by_follower(self) -> dict[str, str]:
        """The prompt of each column whose text follows one."""
        prompts = find_prompt_column_by_response_column(self.columns)
        names = {column.name for column in self.columns if _is_text_column(column)}
        prompt = next((name for name in ("prompt", "text") if name in names), None)
        if prompt is not None:
            prompts |= {
                column.name: prompt
                for column in self.columns
                if column.kind == "personal" and column.name in names - {prompt}
            }
        return prompts

    def _build_case(
        self,
        row: Mapping[str, Any],
        index: int,
        number: int,
    ) -> Case:
        row_documents = self.traced.documents_by_row[index]
        related_ids = self.traced.related_ids_by_row[index]
        shown_by_id = self.shown_by_id
        named_ids = {document.doc_id for document in row_documents}
        related = [
            RowDocument(i, None)
            for i in dict.fromkeys(related_ids)
            if i in shown_by_id and i not in named_ids
        ]
        found = [
            (document, shown_by_id[document.doc_id])
            for document in (*row_documents[:_MAX_LOADED_DOCUMENTS], *related)
            if document.doc_id in shown_by_id
        ]
        texts = {
            column.name: str(row[column.name])
            for column in self.text_columns
            if row[column.name] not in (None, "")
        }
        marks: dict[str, list[TextRange]] = {name: [] for name in texts}
        documents = []
        distinct = {shown.text: (document, shown) for document, shown in reversed(found)}
        for document, shown in [*reversed(distinct.values())][: self.max_documents]:
            document_marks = self._mark_shared_text(document, shown, texts, marks)
            documents.append(self._build_document(document, shown, document_marks))
        sources = [
            *(shown for _, shown in found),
            *self.lookup.list_invented_texts(_list_row_ids(row, self.columns)),
        ]
        case_texts = [
            self._build_text(column, row, texts, marks[column.name], sources)
            for column in self.text_columns
            if column.name in texts
        ]
        facts, details = self._build_facts(row)
        if copied_span := self.traced.copied_span_by_row[index]:
            facts.append(CaseFact("longest copied span", copied_span))
        document_count = len(row_documents) + len(related) if found else 0
        shares_spans = not related and all(d.matched_span for d in row_documents)
        return Case(number, facts, case_texts, documents, document_count, details, shares_spans)

    # Texts -----------------------------------------------------------------------------------

    def _mark_shared_text(
        self,
        document: RowDocument,
        shown: ShownDocument,
        texts: Mapping[str, str],
        marks: dict[str, list[TextRange]],
    ) -> list[TextRange]:
        """Mark what the texts of a row share with a document; return its marks in the document."""
        if span := document.matched_span:
            document_range = (span["char_start"], span["char_end"])
            span_text = shown.text[slice(*document_range)]
            for name in texts:
                if name not in self.prompt_by_follower.values():
                    _add_mark(marks[name], texts[name], span_text)
            return [document_range] if span_text else []
        for name, prompt_name in self.prompt_by_follower.items():
            prompt, text = texts.get(prompt_name, ""), texts.get(name, "")
            start = shown.text.find(prompt + text) if text else -1
            if start >= 0:
                marks[name].append((0, len(text)))
                return [(start + len(prompt), start + len(prompt) + len(text))]
        for text in texts.values():
            start = shown.text.find(text.strip()) if text.strip() else -1
            if start >= 0 and len(text) < len(shown.text):
                return [(start, start + len(text.strip()))]
        return []

    def _build_text(
        self,
        column: Column,
        row: Mapping[str, Any],
        texts: Mapping[str, str],
        marks: Sequence[TextRange],
        sources: Sequence[ShownDocument],
    ) -> CaseText:
        text = texts[column.name]
        rights = self._find_rights(column, row, texts, sources)
        neighbours = self._find_neighbours(column.name, texts)
        shown_range = _choose_range(text, marks[:1], MAX_TEXT_CHARACTERS // 2)
        return _redact_text(
            self.redactor,
            _describe_text(column, row, self.prompt_by_follower),
            text,
            rights,
            shown_range,
            marks,
            neighbours,
        )

    def _find_rights(
        self,
        column: Column,
        row: Mapping[str, Any],
        texts: Mapping[str, str],
        sources: Sequence[ShownDocument],
    ) -> _TextRights:
        """Find out whether a text may be shown.

        A text without a score may be shown like a document that the row names and that contains it.
        """
        score = row.get(column.judged_by)
        if column.kind in DISPLAYABLE_KINDS or score is not None:
            return _TextRights(column.kind, score)
        if column.kind != "model text":
            text = texts[column.name]
            prompt = texts.get(self.prompt_by_follower.get(column.name, ""), "")
            for source in sources:
                if text.strip() in source.text and prompt + text in source.text:
                    return _TextRights(source.kind, source.toxicity)
        return _TextRights(column.kind, None)

    def _find_neighbours(self, name: str, texts: Mapping[str, str]) -> TextNeighbours:
        """Return the texts that the case shows directly before and after a text."""
        if name in self.prompt_by_follower:
            return TextNeighbours(before=texts.get(self.prompt_by_follower[name], ""))
        followers = [
            texts[follower]
            for follower, prompt in self.prompt_by_follower.items()
            if prompt == name and follower in texts
        ]
        return TextNeighbours(after=followers[0]) if followers else NO_NEIGHBOURS

    def _build_document(
        self, document: RowDocument, shown: ShownDocument, marks: Sequence[TextRange]
    ) -> CaseDocument:
        exposure, span = self.traced.exposure, document.matched_span
        if span is not None:
            first_step, times_read = span["first_step"], span["times_read"]
        elif exposure is not None:
            first_step = exposure.first_steps.get(document.doc_id)
            times_read = exposure.count_reads([document.doc_id])
        else:
            first_step, times_read = None, None
        text = _redact_text(
            self.redactor,
            "Document",
            shown.text,
            _TextRights(shown.kind, shown.toxicity),
            _choose_range(shown.text, marks[:1], CONTEXT_CHARACTERS),
            marks,
        )
        score = "" if shown.toxicity is None else f"{shown.toxicity:.3f}"
        return CaseDocument(
            document.doc_id.hex(),
            shown.source,
            shown.licence,
            shown.stage,
            shown.split,
            score,
            first_step,
            times_read,
            text,
        )

    # Values ----------------------------------------------------------------------------------

    def _build_facts(self, row: Mapping[str, Any]) -> tuple[list[CaseFact], list[CaseFact]]:
        """Return the values of a row that a reader needs first, and all others.

        Labels that the conditions of the selection fix are omitted.
        """
        evidence = self.traced.selected.evidence
        ordering_column = evidence.row_order.lstrip("-")
        facts: list[CaseFact] = []
        details: list[CaseFact] = []
        measure = self.traced.measure_by_name.get(str(row.get("measure")), UNKNOWN_MEASURE)
        for column in self.columns:
            value = row[column.name]
            if value in (None, "", []) or _is_text_column(column):
                continue
            if column.kind == "label" and evidence.conditions.get(column.name) == value:
                continue
            if column.name == "measure" and "value" in row:
                continue  # it is the name of the value
            name = _COLUMN_LABELS.get(column.name, _humanize(column.name))
            text = value_to_text(column, value, row.get(column.judged_by), self.redactor)
            if column.name == "value":
                name = measure.title
                text += format_unit_suffix(measure.unit, value)
            fact = CaseFact(
                name,
                text,
                column.kind == "id" or column.name == "cluster",
            )
            is_label = (
                column.kind == "label" and column.name != "cluster" and isinstance(value, str)
            )
            is_first = column.name in ("value", ordering_column) or column.unit == "score"
            (facts if is_label or is_first else details).append(fact)
        return facts, details


def _list_row_ids(row: Mapping[str, Any], columns: Sequence[Column]) -> list[bytes]:
    return [
        row[column.name]
        for column in columns
        if column.kind == "id" and isinstance(row[column.name], bytes)
    ]


def _add_mark(marks: list[TextRange], text: str, span_text: str) -> None:
    """Mark the first occurrence of a span in a text; tokens may add spaces at its ends."""
    for candidate in (span_text, span_text.strip()):
        start = text.find(candidate) if candidate else -1
        if start >= 0:
            marks.append((start, start + len(candidate)))
            return


def _choose_range(text: str, marks: Sequence[TextRange], context: int) -> TextRange:
    """Choose which part of a long text is shown: around the first mark, else the beginning."""
    if len(text) <= 2 * context or not marks:
        return 0, min(len(text), 2 * context)
    start, end = marks[0]
    return max(0, start - context), min(len(text), end + context)


def _redact_text(
    redactor: Redactor,
    title: str,
    text: str,
    rights: _TextRights,
    shown_range: TextRange,
    marks: Sequence[TextRange],
    neighbours: TextNeighbours = NO_NEIGHBOURS,
) -> CaseText:
    """Redact a text and then cut it."""
    if reason := redactor.explain_hidden(text, rights.kind, rights.toxicity):
        return CaseText(title, [MarkedPart(reason, False)], is_hidden=True)
    start, end = shown_range
    before, after = ("… " if start > 0 else ""), (" …" if end < len(text) else "")

    def redact(*, shows_planted_secrets: bool) -> list[MarkedPart]:
        parts = redactor.redact_range(
            text,
            shown_range,
            marks,
            neighbours,
            shows_planted_secrets=shows_planted_secrets,
        )
        ends = [MarkedPart(before, False)] * bool(before), [MarkedPart(after, False)] * bool(after)
        return [*ends[0], *parts, *ends[1]]

    parts = redact(shows_planted_secrets=False)
    revealed_parts: list[MarkedPart] = []
    endings = (MASK_ENDING, PARTLY_SHARED_MASK_ENDING)
    if any(ending in part.text for part in parts for ending in endings):
        revealed_parts = redact(shows_planted_secrets=True)
    return CaseText(title, parts, False, revealed_parts if revealed_parts != parts else ())


def _describe_text(
    column: Column, row: Mapping[str, Any], prompt_by_follower: Mapping[str, str]
) -> str:
    """Return the title of a text."""
    is_unprompted = row.get("measure") in UNPROMPTED_METRICS
    if column.name in prompt_by_follower.values():
        return "Preceding document text, not given to the model" if is_unprompted else "Prompt"
    if column.kind == "model text" or column.name == GENERATED_PERSONAL_TEXT:
        return "Generated text"
    if column.name not in prompt_by_follower:
        return _humanize(column.name).capitalize()
    if is_unprompted or not row.get(prompt_by_follower[column.name]):
        return "Document text"
    correct, wanted = row.get("leading_correct_tokens"), row.get("target_tokens")
    if correct is None or not wanted:
        return "Document text after the prompt"
    if correct == wanted:
        return "Generated text, identical to the document text"
    return f"Document text after the prompt; the model reproduces {correct} of {wanted} tokens"


def _humanize(name: str) -> str:
    return name.replace("_", " ")
