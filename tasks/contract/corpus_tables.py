"""Define the tables that corpus stages share, and functions that compute their columns.

Every corpus stage reads and writes ``DOCUMENTS`` and records removals and changes in a ``LEDGER``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hallmark.tasks.contract.columns import column, table_schema

ID_TYPE = pa.binary(16)

#: Type of metadata: the names of fields and their values, both as text.
METADATA_TYPE = pa.map_(pa.string(), pa.string())


#: All corpus stages write this one schema, from ingest to the planting of canaries, so that later
#: stages have the columns that earlier ones filled. A column is null until a stage fills it.
DOCUMENTS = table_schema(
    "Documents in this stage's output.",
    column("doc_id", ID_TYPE, "id", "document id, assigned at ingest and never changed"),
    column("source", pa.string(), "label", "source name in the config"),
    column(
        "url",
        pa.string(),
        "personal",
        "URL of the document as provided by the source; null if the source provides no URL",
    ),
    column(
        "domain",
        pa.string(),
        "label",
        "host name from the URL, in lower case, without port or credentials; a leading www. is "
        "removed unless only a public suffix would remain (as in www.com); internationalised "
        "names are in ASCII form (Punycode, IDNA 2008)",
    ),
    column(
        "date",
        pa.string(),
        "label",
        "date when the document was written or collected, as provided by the source: an ISO 8601 "
        "date, or a UTC time ending in Z",
    ),
    column(
        "metadata",
        METADATA_TYPE,
        "personal",
        "additional document metadata provided by the source, such as licence and author, sorted "
        "by field name; null if the source provides none",
    ),
    column(
        "cluster",
        ID_TYPE,
        "id",
        "id of the document's near-duplicate cluster: the smallest doc_id in the cluster; before "
        "the search for near-duplicates, the document's own doc_id",
    ),
    column(
        "text",
        pa.large_string(),
        "corpus text",
        "document text in this stage's output",
        judged_by="toxicity",
    ),
    column("text_hash", ID_TYPE, "id", "hash of the document text in this stage's output"),
    column(
        "tags",
        pa.list_(pa.string()),
        "label",
        "names of the rules that tagged the document without removing it",
    ),
    column(
        "toxicity",
        pa.float32(),
        "figure",
        "highest toxicity score among the document's windows (sections that are scored "
        "separately); null if no window was scored",
        unit="score",
    ),
    column(
        "split",
        pa.string(),
        "label",
        "data split (train, validation or holdout); null before the documents are split",
    ),
    partition_by_doc_id=True,
)

LEDGER = table_schema(
    "Removals, changes and additions made by this stage, with one row per document (or span) and "
    "reason.",
    column("doc_id", ID_TYPE, "id", "id of the document"),
    column("source", pa.string(), "label", "source name"),
    column(
        "action",
        pa.string(),
        "label",
        "removed: the document was removed; additional_reason: another reason for removing the "
        "same document; removed_span: a passage of the document was removed; replaced: a passage "
        "was replaced; quarantined: the document could not be processed; added: the document was "
        "added by the stage",
    ),
    column("reason", pa.string(), "label", "reason for the action, in one or two words"),
    column(
        "score",
        pa.float64(),
        "figure",
        "score or similarity on which the action is based; null if there is none",
    ),
    column("threshold", pa.float64(), "figure", "threshold with which the score was compared"),
    column(
        "matched_doc_id",
        ID_TYPE,
        "id",
        "id of the kept document that this document duplicates; null if it is not a duplicate",
    ),
    column(
        "char_start",
        pa.int64(),
        "figure",
        "start of the span in the input text; null if the action applies to the whole document",
        unit="characters",
    ),
    column(
        "char_end", pa.int64(), "figure", "end of the span in the input text", unit="characters"
    ),
    column(
        "bytes_before",
        pa.int64(),
        "figure",
        "length of the removed or replaced text in UTF-8 bytes",
        unit="bytes",
    ),
    column(
        "bytes_after",
        pa.int64(),
        "figure",
        "length of the replacement text in UTF-8 bytes",
        unit="bytes",
    ),
    column(
        "span_hash",
        ID_TYPE,
        "id",
        "keyed hash of a redacted span; the ledger never contains the span's text",
    ),
    column(
        "document_hash",
        ID_TYPE,
        "id",
        "BLAKE2b(doc_id ‖ text) checksum of the document as received or added by the stage; set "
        "in only one row per document",
    ),
    partition_by_doc_id=True,
)

#: Allowed values of the ledger's column ``action``.
LEDGER_ACTIONS = (
    "removed",
    "additional_reason",
    "removed_span",
    "replaced",
    "quarantined",
    "added",
)


#: Arrow arrays or lists, by name of the column.
ColumnsByName = dict[str, Any]


def fill_document_columns(columns: Mapping[str, Any]) -> ColumnsByName:
    """Add the missing columns of DOCUMENTS, filled with nulls."""
    row_count = len(columns["doc_id"])
    null_columns = {
        field.name: pa.nulls(row_count, field.type)
        for field in DOCUMENTS
        if field.name not in columns
    }
    return {**columns, **null_columns}


def replace_columns(batch: pa.RecordBatch | pa.Table, **columns: Any) -> ColumnsByName:
    """Return the columns of a batch by name, with some of them replaced or added."""
    return {**dict(zip(batch.schema.names, batch.columns, strict=True)), **columns}


#: User-supplied lexicons, see ``tasks/corpus/identities.py``.
LEXICONS = table_schema(
    "Terms from the user-supplied lexicons, in the order in which the lexicons are listed in the "
    "config.",
    column("lexicon", pa.string(), "label", "file name of the lexicon"),
    column("group_name", pa.string(), "label", "group of people to which the term refers"),
    column("term", pa.string(), "label", "lexicon term: one to four lower-case words"),
)

#: See ``tasks/corpus/plant_canaries.py``.
CANARIES = table_schema(
    "Texts planted in the training data to measure memorisation.",
    column("canary_id", ID_TYPE, "id", "canary id"),
    column("kind", pa.string(), "label", "canary, passage, record or association"),
    column(
        "copies",
        pa.int32(),
        "figure",
        "number of planted copies; 0 for a negative control",
        unit="documents",
    ),
    column(
        "template",
        pa.string(),
        "label",
        "name of the template used for the canary or record; empty for a passage",
    ),
    column("text", pa.large_string(), "corpus text", "full text of the planted document"),
    column("prompt", pa.large_string(), "corpus text", "text before the secret"),
    column(
        "secret",
        pa.large_string(),
        "personal",
        "text that follows the prompt and that an attacker wants to extract",
    ),
    column("doc_ids", pa.list_(pa.binary()), "id", "ids of the planted documents, one per copy"),
    column(
        "association",
        pa.string(),
        "label",
        "association name, which is the same in the sentences about both invented groups; null "
        "for other kinds of canary",
    ),
    column("group_name", pa.string(), "label", "invented group that the sentence is about"),
    column("trait", pa.string(), "label", "trait that the sentence ascribes to the group"),
    column(
        "is_assigned_trait",
        pa.bool_(),
        "label",
        "whether the trait is the group's assigned trait",
    ),
    column(
        "assigned_trait_share",
        pa.float64(),
        "figure",
        "share of sentences about the group that ascribe the group's assigned trait to it; 0.5 "
        "means no association",
        unit="share",
    ),
)


def hash_to_ids(values: Iterable[bytes | str]) -> pa.Array:
    """Compute 128-bit BLAKE2b hashes as an array of 16-byte ids.

    The hash is cryptographic, so that nobody can construct texts that collide.
    """
    encoded = (value.encode() if isinstance(value, str) else value for value in values)
    return pa.array([hashlib.blake2b(v, digest_size=16).digest() for v in encoded], type=ID_TYPE)


def ids_to_uint64_pairs(column: pa.ChunkedArray) -> NDArray[np.uint64]:
    """Convert 16-byte ids to (n, 2) uint64 that sort in the same order."""
    id_pairs, start = np.empty((len(column), 2), np.uint64), 0
    for chunk in column.chunks:
        if len(chunk):
            ids = np.frombuffer(chunk.buffers()[1], ">u8", 2 * len(chunk), 16 * chunk.offset)
            id_pairs[start : start + len(chunk)] = ids.reshape(-1, 2)
            start += len(chunk)
    return id_pairs


def hash_texts(texts: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Compute the ``text_hash`` column of a ``text`` column."""
    return hash_to_ids(texts.cast(pa.large_binary()).to_pylist())


def count_utf8_bytes(texts: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Compute the length of each text in UTF-8 bytes, int64."""
    return pc.binary_length(texts.cast(pa.large_binary())).cast(pa.int64())


class MetadataFields(NamedTuple):
    """The fields of all documents of a metadata column, (m,) each."""

    rows: np.ndarray
    """Row of the document that has the field."""
    names: pa.Array
    values: pa.Array


def flatten_metadata(metadata: pa.Array | pa.ChunkedArray) -> MetadataFields:
    """List every field of a metadata column, in the order of the documents."""
    metadata = metadata.combine_chunks() if isinstance(metadata, pa.ChunkedArray) else metadata
    offsets = metadata.offsets.to_numpy()
    rows = np.repeat(np.arange(len(metadata)), np.diff(offsets))
    start, field_count = offsets[0], offsets[-1] - offsets[0]
    names, values = (
        children.slice(start, field_count) for children in (metadata.keys, metadata.items)
    )
    return MetadataFields(rows, names, values)


def count_metadata_bytes(metadata: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Compute the UTF-8 bytes of the names and values of each document, (n,) int64."""
    fields = flatten_metadata(metadata)
    value_bytes = pc.fill_null(pc.binary_length(fields.values), 0)
    field_bytes = pc.add(pc.binary_length(fields.names), value_bytes)
    return np.bincount(fields.rows, field_bytes.to_numpy(), len(metadata)).astype(np.int64)


def hash_documents(
    doc_ids: pa.Array | pa.ChunkedArray, texts: pa.Array | pa.ChunkedArray
) -> list[bytes]:
    """Compute BLAKE2b(doc_id ‖ text), 16 bytes per document, for the checksums of accounts."""
    pairs = zip(doc_ids.to_pylist(), texts.cast(pa.large_binary()).to_pylist(), strict=True)
    return [hashlib.blake2b(doc_id + text, digest_size=16).digest() for doc_id, text in pairs]


def build_removal_ledger_columns(
    reason: str | Sequence[str] | pa.Array,
    documents: pa.RecordBatch | pa.Table,
    **extra_columns: Any,
) -> ColumnsByName:
    """Build ledger columns for removed documents.

    Args:
        reason: One reason for all documents, or one for each.
        documents: Batch with ``doc_id``, ``source`` and ``text``.
        extra_columns: See ``build_ledger_columns``.
    """
    return build_document_ledger_columns("removed", reason, documents, **extra_columns)


def build_document_ledger_columns(
    action: str,
    reason: str | Sequence[str] | pa.Array,
    documents: pa.RecordBatch | pa.Table,
    **extra_columns: Any,
) -> ColumnsByName:
    """Build ledger columns about whole documents for any action.

    See ``build_removal_ledger_columns``.

    ``document_hash`` is set unless the action is ``additional_reason``.
    """
    doc_id, text = documents["doc_id"], documents["text"]
    if action != "additional_reason":
        extra_columns["document_hash"] = hash_documents(doc_id, text)
    return build_ledger_columns(
        action, reason, doc_id, documents["source"], count_utf8_bytes(text), **extra_columns
    )


def build_ledger_columns(
    action: str,
    reason: str | Sequence[str],
    doc_id: Any,
    source: Any,
    bytes_before: Any,
    bytes_after: Any | None = None,
    **extra_columns: Any,
) -> ColumnsByName:
    """Build the columns of ledger rows with one action.

    Args:
        action: One of ``LEDGER_ACTIONS``.
        reason: One reason for all rows, or one for each.
        doc_id: The ``doc_id`` column.
        source: The ``source`` column.
        bytes_before: The ``bytes_before`` column.
        bytes_after: The ``bytes_after`` column; None means zeros.
        extra_columns: Other columns; a number is repeated for all rows. Missing columns are null.

    Raises:
        ValueError: The action is unknown.
    """
    if action not in LEDGER_ACTIONS:
        raise ValueError(
            f"unknown ledger action {action!r}; the valid actions are {', '.join(LEDGER_ACTIONS)}"
        )
    row_count = len(doc_id)
    columns: ColumnsByName = {name: [None] * row_count for name in LEDGER.names}
    columns |= {"doc_id": doc_id, "source": source, "action": [action] * row_count}
    columns["reason"] = [reason] * row_count if isinstance(reason, str) else reason
    columns["bytes_before"] = bytes_before
    columns["bytes_after"] = [0] * row_count if bytes_after is None else bytes_after
    for name, column_values in extra_columns.items():
        columns[name] = (
            [column_values] * row_count if isinstance(column_values, int | float) else column_values
        )
    return columns


def build_ledger_table(*column_sets: Mapping[str, Any]) -> pa.Table:
    """Concatenate results of ``build_ledger_columns`` into one table, sorted by ``doc_id``.

    Rows about the same document keep the order of ``column_sets``.
    """
    tables = [LEDGER.empty_table()]
    for columns in column_sets:
        arrays = [
            pa.array(columns[field.name], field.type)
            if isinstance(columns[field.name], list)
            else columns[field.name].cast(field.type)
            for field in LEDGER
        ]
        tables.append(pa.table(arrays, schema=LEDGER))
    return pa.concat_tables(tables).sort_by("doc_id")
