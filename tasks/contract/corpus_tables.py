"""The tables that corpus stages share, and what fills their columns."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.contract.columns import column, table_schema

ID_TYPE = pa.binary(16)


#: What every corpus stage passes on, from ingest to planting: one schema, so that what an earlier
#: stage learned of a document travels with it. A column is null until the stage that fills it.
DOCUMENTS = table_schema(
    "The documents of the corpus as they leave this stage.",
    column("doc_id", ID_TYPE, "id", "given once at ingest, carried ever after"),
    column("source", pa.string(), "label", "name of the source in the config"),
    column(
        "url",
        pa.string(),
        "personal",
        "where it was on the web, as the source says it; null where the source says nothing",
    ),
    column(
        "domain",
        pa.string(),
        "label",
        "the host of the url: lower case, in its registered "
        "form, without port, credentials and a leading www.",
    ),
    column(
        "date",
        pa.string(),
        "label",
        "when it was written or collected, as the source says it: "
        "an ISO 8601 day, or an instant in UTC that ends in Z",
    ),
    column(
        "cluster",
        ID_TYPE,
        "id",
        "shared by near-copies: the smallest doc_id among them; at ingest its own",
    ),
    column(
        "text",
        pa.large_string(),
        "corpus text",
        "the document as it leaves this stage",
        judged_by="toxicity",
    ),
    column("text_hash", ID_TYPE, "id", "hash of the text as it leaves this stage"),
    column(
        "tags",
        pa.list_(pa.string()),
        "label",
        "names of the rules that marked it and left it where it is",
    ),
    column(
        "toxicity",
        pa.float32(),
        "figure",
        "highest score among the document's windows; null "
        "where no window could be scored, or none has been",
        unit="score",
    ),
    column(
        "split",
        pa.string(),
        "label",
        "what it is for: train, validation or holdout; null before the split",
    ),
    partition_by=True,
)

LEDGER = table_schema(
    "What the stage took out, changed or added; one row a cause.",
    column("doc_id", ID_TYPE, "id", "the document"),
    column("source", pa.string(), "label", "its source"),
    column(
        "action",
        pa.string(),
        "label",
        "removed: the whole document left; additional_reason: a further reason for which it "
        "would have; removed_span: a part of it left; replaced: a part of it changed; "
        "quarantined: it could not be processed; added: it was not in the input",
    ),
    column("reason", pa.string(), "label", "why, in a word or two"),
    column("score", pa.float64(), "figure", "what decided, where a score or similarity did"),
    column("threshold", pa.float64(), "figure", "the score from which the action is taken"),
    column(
        "matched_doc_id", ID_TYPE, "id", "the document it matched: the kept twin of a duplicate"
    ),
    column(
        "char_start",
        pa.int64(),
        "figure",
        "where the span begins in the text as it entered the stage; null for a whole document",
        unit="characters",
    ),
    column("char_end", pa.int64(), "figure", "where the span ends", unit="characters"),
    column(
        "bytes_before", pa.int64(), "figure", "UTF-8 bytes of what left or changed", unit="bytes"
    ),
    column(
        "bytes_after", pa.int64(), "figure", "UTF-8 bytes of what stands there now", unit="bytes"
    ),
    column(
        "span_hash", ID_TYPE, "id", "keyed hash of a masked span; personal data is never in clear"
    ),
    column(
        "document_hash",
        ID_TYPE,
        "id",
        "BLAKE2b(doc_id ‖ text) of the document as it entered, or was added; in one row a document",
    ),
    partition_by=True,
)

#: What a ledger row may say was done, see its column ``action``.
LEDGER_ACTIONS = (
    "removed",
    "additional_reason",
    "removed_span",
    "replaced",
    "quarantined",
    "added",
)


def fill_document_columns(columns: Mapping[str, Any]) -> dict[str, Any]:
    """All columns of DOCUMENTS; those not given are null."""
    row_count = len(columns["doc_id"])
    null_columns = {
        field.name: pa.nulls(row_count, field.type)
        for field in DOCUMENTS
        if field.name not in columns
    }
    return {**columns, **null_columns}


def replace_columns(batch: pa.RecordBatch | pa.Table, **columns: Any) -> dict[str, Any]:
    """The columns of a batch, some of them replaced."""
    return {**dict(zip(batch.schema.names, batch.columns, strict=True)), **columns}


#: The lexicons that a corpus brings: see ``tasks/corpus/identities.py``.
LEXICONS = table_schema(
    "The terms of the lexicons that were named, in their order.",
    column("lexicon", pa.string(), "label", "its file's name"),
    column("group_name", pa.string(), "label", "the group of people"),
    column("term", pa.string(), "label", "one to four words, in lower case"),
)

#: See ``tasks/corpus/plant_canaries.py``.
CANARIES = table_schema(
    "What was put into the training text on purpose, to measure memorisation.",
    column("canary_id", ID_TYPE, "id", "the plant"),
    column("kind", pa.string(), "label", "canary, passage, record or association"),
    column(
        "copies",
        pa.int32(),
        "figure",
        "how often it was planted; 0: never, the negative control",
        unit="documents",
    ),
    column("template", pa.string(), "label", "format of a canary or record; of a passage empty"),
    column("text", pa.large_string(), "corpus text", "the whole planted document"),
    column("prompt", pa.large_string(), "corpus text", "what stands before the secret"),
    column(
        "secret",
        pa.large_string(),
        "personal",
        "what an attacker wants; the text is prompt, secret and a rest",
    ),
    column("doc_ids", pa.list_(pa.binary()), "id", "the planted documents, one a copy"),
    column(
        "association",
        pa.string(),
        "label",
        "of a sentence about an invented group: what it "
        "shares with those about it and the other group; else null",
    ),
    column("group_name", pa.string(), "label", "whom it is about"),
    column("trait", pa.string(), "label", "what it says of them"),
    column(
        "is_assigned_trait",
        pa.bool_(),
        "label",
        "whether that is the trait that the dose is the share of",
    ),
    column(
        "assigned_trait_share",
        pa.float64(),
        "figure",
        "share of the sentences about the group that say its own trait; one half: nothing to find",
        unit="share",
    ),
)


def hash_to_ids(values: Iterable[bytes | str]) -> pa.Array:
    """128-bit BLAKE2b hashes as an array of 16-byte ids (no collisions to be had by malice)."""
    encoded = (value.encode() if isinstance(value, str) else value for value in values)
    return pa.array([hashlib.blake2b(v, digest_size=16).digest() for v in encoded], type=ID_TYPE)


def hash_texts(texts: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The ``text_hash`` column of a ``text`` column."""
    return hash_to_ids(texts.cast(pa.large_binary()).to_pylist())


def count_utf8_bytes(texts: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Length of each text in UTF-8 bytes, int64."""
    return pc.binary_length(texts.cast(pa.large_binary())).cast(pa.int64())


def hash_documents(doc_ids: Any, texts: Any) -> list[bytes]:
    """What the checksums of accounts add up: BLAKE2b(doc_id ‖ text), 16 bytes a document."""
    pairs = zip(doc_ids.to_pylist(), texts.cast(pa.large_binary()).to_pylist(), strict=True)
    return [hashlib.blake2b(doc_id + text, digest_size=16).digest() for doc_id, text in pairs]


def build_removal_columns(
    reason: str | Sequence[str] | pa.Array, documents: Any, **extra_columns: Any
) -> dict[str, Any]:
    """``ledger_rows`` of documents (a batch with doc_id, source and text) that left whole."""
    return build_document_ledger_columns("removed", reason, documents, **extra_columns)


def build_document_ledger_columns(
    action: str, reason: str | Sequence[str] | pa.Array, documents: Any, **extra_columns: Any
) -> dict[str, Any]:
    """``removals``, the same of documents that went to quarantine, or rows of further reasons for
    either (``additional_reason``), which need no identity."""
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
) -> dict[str, Any]:
    """Columns of ledger rows of one action; columns not given are null (bytes_after: zero)."""
    if action not in LEDGER_ACTIONS:
        raise ValueError(
            f"{action!r} is no ledger action; the actions are {', '.join(LEDGER_ACTIONS)}"
        )
    row_count = len(doc_id)
    columns: dict[str, Any] = {name: [None] * row_count for name in LEDGER.names}
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
    """Columns of several ``ledger_rows`` as one table in the order of the documents; rows about one
    document stand in the order of the pieces."""
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
