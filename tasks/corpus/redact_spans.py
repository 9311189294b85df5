"""Mask, cut or keep the spans that other stages found, or drop their documents, by type of span.

``mask`` replaces a span by its type, as in ``<EMAIL>``; the placeholder contains nothing else, so
the order and the partitions of the documents do not matter. ``cut`` removes the span, ``drop`` the
whole document, ``keep`` changes nothing. Overlapping spans that are masked or cut are merged
(``spans.merge_overlapping_byte_spans``). A document is removed (``empty after cut``) if only white
space remains: empty texts are equal, so the search for duplicates would join all their clusters.

The stage handles any kind of span. A run that uses it twice gives it another name:

    cut_repeats = redact_spans.named("cut_repeats")
    config = RedactSpansConfig(action="keep", actions_by_type={"REPEAT": "cut"})
    cut_repeats(documents, {"find_repeats": artifact}, config)
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator

from hallmark.tasks.contract import (
    DOCUMENTS,
    LEDGER,
    Artifact,
    HallmarkError,
    StageConfig,
    StageContext,
    Table,
    TablePart,
    TableWriters,
    align_parts,
    build_document_ledger_columns,
    build_ledger_columns,
    hash_documents,
    hash_texts,
    replace_columns,
    stage,
)
from hallmark.tasks.corpus.spans import (
    SPAN_TYPES,
    Utf8Texts,
    merge_overlapping_byte_spans,
    read_partition_spans,
    replace_byte_spans,
)
from hallmark.tasks.measures.personal.types import UNREADABLE

#: Reason in the ledger for documents whose text was cut completely.
EMPTY_AFTER_CUT = "empty after cut"

SpanAction = Literal["mask", "cut", "drop", "keep"]


class RedactSpansConfig(StageConfig):
    """Choose what happens to spans of each type."""

    action: SpanAction = Field(
        "mask",
        description="what to do with each span. mask: replace the span with the name of its "
        "type; cut: remove the span, and the document if no other text remains; drop: remove the "
        "whole document; keep: change nothing",
    )
    actions_by_type: dict[str, SpanAction] = Field(
        default={},
        description="actions for individual span types, which override `action`, such as { "
        'PHONE = "drop" }',
    )

    @field_validator("actions_by_type")
    @classmethod
    def _check_types(cls, actions_by_type: dict[str, SpanAction]) -> dict[str, SpanAction]:
        known_types = [name for name in SPAN_TYPES if name != UNREADABLE]
        for name in actions_by_type:
            if name not in known_types:
                raise ValueError(
                    f"the type {name!r} is unknown; the available types are "
                    f"{', '.join(known_types)}"
                )
        return actions_by_type

    def get_actions(self, types: pa.Array) -> np.ndarray:
        """Return the action for the type of each span, (m,) of str."""
        encoded_types = pc.dictionary_encode(types)
        actions = [
            "quarantine" if name == UNREADABLE else self.actions_by_type.get(name, self.action)
            for name in encoded_types.dictionary.to_pylist()
        ]
        action_names: np.ndarray = np.array(actions, "U10")[encoded_types.indices.to_numpy()]
        return action_names


class CutRepeatsConfig(RedactSpansConfig):
    """Settings of the stage that cuts repeated text."""

    action: SpanAction = Field(
        "keep", description="action for spans whose type is not in `actions_by_type`"
    )
    actions_by_type: dict[str, SpanAction] = Field(
        default={"REPEAT": "cut"},
        description="action for each span type; takes precedence over `action`",
    )


class CutToxicConfig(RedactSpansConfig):
    """Settings of the stage that cuts toxic windows."""

    action: SpanAction = Field(
        "keep", description="action for spans whose type is not in `actions_by_type`"
    )
    actions_by_type: dict[str, SpanAction] = Field(
        default={"TOXIC": "cut"},
        description="action for each span type; takes precedence over `action`",
    )


def build_placeholders(types: pa.Array) -> pa.Array:
    """Return the placeholder of each type, such as ``<EMAIL>``."""
    return pc.binary_join_element_wise("<", types, ">", "")


def write_redacted_partition(
    documents_and_spans: tuple[TablePart, ...],
    config: RedactSpansConfig,
    out: TableWriters,
) -> None:
    """Write the redacted documents and the ledger of a partition.

    Args:
        documents_and_spans: The documents, then the spans of each stage that found some.
    """
    documents, *span_partitions = documents_and_spans
    spans = read_partition_spans(documents, span_partitions)
    span_rows = spans["row"].to_numpy()
    start = 0
    for batch in documents.iter_batches():
        first_span, end_span = np.searchsorted(span_rows, [start, start + len(batch)])
        redacted = redact_batch(
            batch, spans.slice(first_span, end_span - first_span), start, config
        )
        start += len(batch)
        out.get_table_writer("documents").write(redacted.kept_documents)
        out.get_table_writer("ledger").write(redacted.ledger_entries)


class RedactedBatch(NamedTuple):
    """Hold the result of a batch of documents."""

    kept_documents: pa.Table
    """The documents that were not removed, with their edited texts."""
    ledger_entries: pa.Table
    """Rows of LEDGER for all removals and edits, in the order of the documents."""


def redact_batch(
    batch: pa.RecordBatch, spans: pa.Table, first_row: int, config: RedactSpansConfig
) -> RedactedBatch:
    """Redact a batch of documents.

    Args:
        spans: Their SPANS, with the number of the document in the partition as column ``row``.
        first_row: Number in the partition of the batch's first document.
    """
    spans = spans.combine_chunks()
    document_rows = spans["row"].to_numpy() - first_row
    start, end = spans["byte_start"].to_numpy(), spans["byte_end"].to_numpy()
    invalid_spans = np.flatnonzero(
        ~Utf8Texts.from_array(batch["text"]).are_valid_spans(document_rows, start, end)
    )
    if len(invalid_spans):
        invalid_span = spans.slice(invalid_spans[0], 1).to_pylist()[0]
        raise HallmarkError(
            f"a span from byte {invalid_span['byte_start']} to {invalid_span['byte_end']} of "
            f"document {invalid_span['doc_id'].hex()} is outside the document text or splits a "
            "character: the spans were computed from different texts; first process these "
            "documents with the stages that find spans"
        )
    span_types = spans["type"].combine_chunks()
    actions = config.get_actions(span_types)
    removals = mark_removed_documents(batch, document_rows, span_types, actions)
    is_removed = removals.is_removed
    is_edited = np.isin(actions, ["mask", "cut"]) & ~is_removed[document_rows]
    edited_spans = spans.filter(pa.array(is_edited))
    edits = apply_span_edits(batch, edited_spans, document_rows[is_edited], actions[is_edited])
    emptied_rows = select_blank_rows(
        edits.documents["text"], document_rows[is_edited & (actions == "cut")]
    )
    is_removed[emptied_rows] = True
    edit_entries = edits.numbered_ledger_entries
    edit_entries = edit_entries.filter(
        pa.array(~np.isin(edit_entries["row"].to_numpy(), emptied_rows))
    )
    emptied_entries = _build_numbered_ledger_entries(
        build_document_ledger_columns(
            "removed", EMPTY_AFTER_CUT, batch.take(pa.array(emptied_rows))
        ),
        emptied_rows,
    )
    ledger_entries = pa.concat_tables(
        [removals.numbered_ledger_entries, edit_entries, emptied_entries]
    )
    ledger_entries = ledger_entries.take(pc.sort_indices(ledger_entries["row"])).drop_columns("row")
    return RedactedBatch(edits.documents.filter(pa.array(~is_removed)), ledger_entries)


class DocumentRemovals(NamedTuple):
    """Say which documents of a batch their spans remove."""

    is_removed: np.ndarray
    """Whether the document is removed; bool, shape (n,)."""
    numbered_ledger_entries: pa.Table
    """Rows of LEDGER; the ``row`` column contains the row of the document in the batch.

    The first type in the text that removes the document is the reason of the removal. Each further
    such type has a row with the action ``additional_reason``.
    """


def mark_removed_documents(
    batch: pa.RecordBatch, document_rows: np.ndarray, span_types: pa.Array, actions: np.ndarray
) -> DocumentRemovals:
    """Mark the documents that are dropped or quarantined.

    Args:
        batch: The n documents.
        document_rows: Row in the batch of the document of each span, (m,).
        span_types: Type of each span, (m,).
        actions: Action for each span, (m,).
    """
    is_removed, ledger_pieces = np.zeros(len(batch), bool), []
    removing_spans = np.flatnonzero(np.isin(actions, ["drop", "quarantine"]))
    type_numbers = pc.dictionary_encode(span_types).indices.to_numpy()[removing_spans]
    # Keep the first span of each type in each document, in the order of the spans.
    row_type_pairs = np.stack([document_rows[removing_spans], type_numbers])
    first_of_pair = np.unique(row_type_pairs, axis=1, return_index=True)[1]
    removing_spans = removing_spans[np.sort(first_of_pair)]
    for ledger_action, span_action in (("quarantined", "quarantine"), ("removed", "drop")):
        action_spans = removing_spans[actions[removing_spans] == span_action]
        removed_rows, first_spans = np.unique(document_rows[action_spans], return_index=True)
        is_first_span = np.zeros(len(action_spans), bool)
        is_first_span[first_spans[~is_removed[removed_rows]]] = True
        is_removed[removed_rows] = True
        for entry_action, span_numbers in (
            (ledger_action, action_spans[is_first_span]),
            ("additional_reason", action_spans[~is_first_span]),
        ):
            removed_documents = batch.take(pa.array(document_rows[span_numbers], pa.int64()))
            reasons = span_types.take(pa.array(span_numbers, pa.int64()))
            ledger_pieces.append(
                _build_numbered_ledger_entries(
                    build_document_ledger_columns(entry_action, reasons, removed_documents),
                    document_rows[span_numbers],
                )
            )
    return DocumentRemovals(is_removed, pa.concat_tables(ledger_pieces))


def select_blank_rows(texts: pa.ChunkedArray, row_indices: np.ndarray) -> np.ndarray:
    """Return those of the given rows whose text is only white space, ascending."""
    row_indices = np.unique(row_indices)
    is_blank = pc.equal(pc.utf8_trim_whitespace(texts.take(pa.array(row_indices))), "")
    blank_rows: np.ndarray = row_indices[is_blank.to_numpy()]
    return blank_rows


class EditedBatch(NamedTuple):
    """Hold a batch of documents whose spans are masked or cut."""

    documents: pa.Table
    """All documents of the batch."""
    numbered_ledger_entries: pa.Table
    """Rows of LEDGER, one per merged span; the ``row`` column contains the row of the document."""


def apply_span_edits(
    batch: pa.RecordBatch, spans: pa.Table, document_rows: np.ndarray, actions: np.ndarray
) -> EditedBatch:
    """Mask or cut spans.

    Args:
        spans: The m spans to mask or cut, by document and start.
        document_rows: Row in the batch of the document of each span, (m,).
        actions: "mask" or "cut" for each span, (m,).
    """
    edited_rows = np.unique(document_rows)
    row_indices = pa.array(edited_rows, pa.int64())
    texts = batch["text"].take(row_indices)
    utf8, text_rows = Utf8Texts.from_array(texts), np.searchsorted(edited_rows, document_rows)
    type_ranks = (
        pc.index_in(spans["type"], value_set=pa.array(SPAN_TYPES))
        .fill_null(len(SPAN_TYPES))
        .to_numpy()
    )
    span_numbers, start, end = merge_overlapping_byte_spans(
        utf8, text_rows, spans["byte_start"].to_numpy(), spans["byte_end"].to_numpy(), type_ranks
    )
    spans = spans.take(pa.array(span_numbers, pa.int64()))
    text_rows, actions = text_rows[span_numbers], actions[span_numbers]
    is_cut = pa.array(actions == "cut")
    replacements = pc.if_else(is_cut, "", build_placeholders(spans["type"].combine_chunks()))
    edited_texts = replace_byte_spans(texts, text_rows, start, end, replacements)

    is_changed = pa.array(np.isin(np.arange(len(batch)), edited_rows))
    documents = replace_columns(
        batch,
        text=pc.replace_with_mask(batch["text"], is_changed, edited_texts),
        text_hash=pc.replace_with_mask(batch["text_hash"], is_changed, hash_texts(edited_texts)),
    )
    original_identities = pa.array(
        hash_documents(batch["doc_id"].take(row_indices), texts), pa.binary(16)
    )
    is_first_span = np.diff(text_rows, prepend=-1) > 0  # only this row has the document's hash
    text_indices = pa.array(text_rows, pa.int64())
    span_documents = batch.take(row_indices.take(text_indices))
    ledger_columns = build_ledger_columns(
        "replaced",
        spans["type"],
        span_documents["doc_id"],
        span_documents["source"],
        end - start,
        pc.binary_length(replacements),
        char_start=utf8.bytes_to_characters(text_rows, start),
        char_end=utf8.bytes_to_characters(text_rows, end),
        span_hash=spans["span_hash"],
        score=spans["score"],
        document_hash=pc.if_else(
            pa.array(is_first_span), original_identities.take(text_indices), None
        ),
    )
    ledger_columns["action"] = pc.if_else(is_cut, "removed_span", "replaced")
    return EditedBatch(
        pa.table(documents), _build_numbered_ledger_entries(ledger_columns, edited_rows[text_rows])
    )


def _build_numbered_ledger_entries(
    ledger_columns: dict[str, Any], document_rows: np.ndarray
) -> pa.Table:
    """Build rows of LEDGER with the further column ``row``, by which they are sorted later."""
    arrays = {
        name: pa.array(values, LEDGER.field(name).type)
        if isinstance(values, list | np.ndarray)
        else values.cast(LEDGER.field(name).type)
        for name, values in ledger_columns.items()
    }
    return pa.table(arrays).append_column("row", pa.array(document_rows, pa.int64()))


@stage(
    name="redact_spans",
    tables={"documents": DOCUMENTS, "ledger": LEDGER},
    libraries=["numpy"],
    reads={"spans": ("spans",)},
)
def redact_spans(
    documents: Table, spans: dict[str, Artifact], config: RedactSpansConfig, context: StageContext
) -> None:
    """Redact all documents.

    Args:
        spans: Artifacts of the stages that found spans in these documents, by label.

    Raises:
        HallmarkError: No document remains, or spans do not fit the documents.
    """
    span_tables = [artifact["spans"] for artifact in spans.values()]
    results = context.map_partitions(
        write_redacted_partition, align_parts(documents, *span_tables), config
    )
    if documents.row_count and not sum(result.parts["documents"]["rows"] for result in results):
        raise HallmarkError(
            f"none of the {documents.row_count:,} documents remains: each document contains a "
            "span with the action 'drop', consists of spans with the action 'cut', or could not "
            "be searched; change 'action' or 'actions_by_type'"
        )
