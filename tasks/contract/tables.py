"""The tables that corpus stages share, and what fills their columns."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tasks.contract.columns import column, table

ID = pa.binary(16)


#: What every corpus stage passes on, from ingest to planting: one schema, so that what an earlier
#: stage learned of a document travels with it. A column is null until the stage that fills it.
DOCUMENTS = table(
    "The documents of the corpus as they leave this stage.",
    column("doc_id", ID, "id", "given once at ingest, carried ever after"),
    column("source", pa.string(), "label", "name of the source in the config"),
    column("url", pa.string(), "personal", "where it was on the web, as the source says it; null "
           "where the source says nothing"),
    column("domain", pa.string(), "label", "the host of the url: lower case, in its registered "
           "form, without port, credentials and a leading www."),
    column("date", pa.string(), "label", "when it was written or collected, as the source says it: "
           "an ISO 8601 day, or an instant in UTC that ends in Z"),
    column("cluster", ID, "id",
           "shared by near-copies: the smallest doc_id among them; at ingest its own"),
    column("text", pa.large_string(), "corpus text", "the document as it leaves this stage",
           judged_by="toxicity"),
    column("text_hash", ID, "id", "hash of the text as it leaves this stage"),
    column("tags", pa.list_(pa.string()), "label", "names of the rules that marked it and left it "
           "where it is"),
    column("toxicity", pa.float32(), "figure", "highest score among the document's windows; null "
           "where no window could be scored, or none has been", unit="score"),
    column("split", pa.string(), "label", "what it is for: train, validation or holdout; null "
           "before the split"),
    cut=True,
)  # fmt: skip

LEDGER = table(
    "What the stage took out, changed or added; one row a cause.",
    column("doc_id", ID, "id", "the document"),
    column("source", pa.string(), "label", "its source"),
    column("action", pa.string(), "label",
           "removed: the whole document left; also: a further reason for which it would have; "
           "removed_span: a part of it left; replaced: a part of it changed; quarantined: it could "
           "not be processed; added: it was not in the input"),
    column("reason", pa.string(), "label", "why, in a word or two"),
    column("score", pa.float64(), "figure", "what decided, where a score or similarity did"),
    column("threshold", pa.float64(), "figure", "the score from which the action is taken"),
    column("matched", ID, "id", "the document it matched: the kept twin of a duplicate"),
    column("start", pa.int64(), "figure", "where the span begins in the text as it entered the "
           "stage; null for a whole document", unit="characters"),
    column("end", pa.int64(), "figure", "where the span ends", unit="characters"),
    column("bytes_before", pa.int64(), "figure", "UTF-8 bytes of what left or changed",
           unit="bytes"),
    column("bytes_after", pa.int64(), "figure", "UTF-8 bytes of what stands there now",
           unit="bytes"),
    column("digest", ID, "id", "keyed hash of a masked span; personal data is never in clear"),
    column("identity", ID, "id", "BLAKE2b(doc_id ‖ text) of the document as it entered, or was "
           "added; in one row a document"),
    cut=True,
)  # fmt: skip

#: What a ledger row may say was done, see its column ``action``.
ACTIONS = ("removed", "also", "removed_span", "replaced", "quarantined", "added")


def as_documents(columns: Mapping[str, Any]) -> dict[str, Any]:
    """All columns of DOCUMENTS; those not given are null."""
    n = len(columns["doc_id"])
    none = {f.name: pa.nulls(n, f.type) for f in DOCUMENTS if f.name not in columns}
    return {**columns, **none}


def with_columns(batch: pa.RecordBatch | pa.Table, **columns: Any) -> dict[str, Any]:
    """The columns of a batch, some of them replaced."""
    return {**dict(zip(batch.schema.names, batch.columns, strict=True)), **columns}


#: The lexicons that a corpus brings: see ``tasks/corpus/identities.py``.
LEXICONS = table(
    "The terms of the lexicons that were named, in their order.",
    column("lexicon", pa.string(), "label", "its file's name"),
    column("group", pa.string(), "label", "the group of people"),
    column("term", pa.string(), "label", "one to four words, in lower case"),
)

#: See ``tasks/corpus/plant.py``.
PLANTS = table(
    "What was put into the training text on purpose, to measure memorisation.",
    column("plant_id", ID, "id", "the plant"),
    column("kind", pa.string(), "label", "canary, passage, record or association"),
    column("copies", pa.int32(), "figure", "how often it was planted; 0: never, the negative "
           "control", unit="documents"),
    column("template", pa.string(), "label", "format of a canary or record; of a passage empty"),
    column("text", pa.large_string(), "corpus text", "the whole planted document"),
    column("prompt", pa.large_string(), "corpus text", "what stands before the secret"),
    column("secret", pa.large_string(), "personal",
           "what an attacker wants; the text is prompt, secret and a rest"),
    column("doc_ids", pa.list_(pa.binary()), "id", "the planted documents, one a copy"),
    column("association", pa.string(), "label", "of a sentence about an invented group: what it "
           "shares with those about it and the other group; else null"),
    column("group", pa.string(), "label", "whom it is about"),
    column("trait", pa.string(), "label", "what it says of them"),
    column("own", pa.bool_(), "label", "whether that is the trait that the dose is the share of"),
    column("dose", pa.float64(), "figure", "share of the sentences about the group that say its "
           "own trait; one half: nothing to find", unit="share"),
)  # fmt: skip


def ids(values: Iterable[bytes | str]) -> pa.Array:
    """128-bit BLAKE2b hashes as an array of 16-byte ids (no collisions to be had by malice)."""
    encoded = (value.encode() if isinstance(value, str) else value for value in values)
    return pa.array([hashlib.blake2b(v, digest_size=16).digest() for v in encoded], type=ID)


def text_hashes(texts: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The ``text_hash`` column of a ``text`` column."""
    return ids(texts.cast(pa.large_binary()).to_pylist())


def utf8_bytes(texts: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Length of each text in UTF-8 bytes, int64."""
    return pc.binary_length(texts.cast(pa.large_binary())).cast(pa.int64())


def identities(doc_ids: Any, texts: Any) -> list[bytes]:
    """What the checksums of accounts add up: BLAKE2b(doc_id ‖ text), 16 bytes a document."""
    pairs = zip(doc_ids.to_pylist(), texts.cast(pa.large_binary()).to_pylist(), strict=True)
    return [hashlib.blake2b(i + t, digest_size=16).digest() for i, t in pairs]


def removals(reason: str | Sequence[str] | pa.Array, documents: Any, **more: Any) -> dict[str, Any]:
    """``ledger_rows`` of documents (a batch with doc_id, source and text) that left whole."""
    return departures("removed", reason, documents, **more)


def departures(
    action: str, reason: str | Sequence[str] | pa.Array, documents: Any, **more: Any
) -> dict[str, Any]:
    """``removals``, the same of documents that went to quarantine, or rows of further reasons for
    either (``also``), which need no identity."""
    doc_id, text = documents["doc_id"], documents["text"]
    if action != "also":
        more["identity"] = identities(doc_id, text)
    return ledger_rows(action, reason, doc_id, documents["source"], utf8_bytes(text), **more)


def ledger_rows(
    action: str,
    reason: str | Sequence[str],
    doc_id: Any,
    source: Any,
    bytes_before: Any,
    bytes_after: Any | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Columns of ledger rows of one action; columns not given are null (bytes_after: zero)."""
    if action not in ACTIONS:
        raise ValueError(f"{action!r} is no ledger action; the actions are {', '.join(ACTIONS)}")
    n = len(doc_id)
    columns: dict[str, Any] = {name: [None] * n for name in LEDGER.names}
    columns |= {"doc_id": doc_id, "source": source, "action": [action] * n}
    columns["reason"] = [reason] * n if isinstance(reason, str) else reason
    columns["bytes_before"] = bytes_before
    columns["bytes_after"] = [0] * n if bytes_after is None else bytes_after
    for name, values in more.items():
        columns[name] = [values] * n if isinstance(values, int | float) else values
    return columns


def ledger_table(*pieces: Mapping[str, Any]) -> pa.Table:
    """Columns of several ``ledger_rows`` as one table in the order of the documents; rows about one
    document stand in the order of the pieces."""
    tables = [LEDGER.empty_table()]
    for columns in pieces:
        arrays = [pa.array(columns[f.name], f.type) if isinstance(columns[f.name], list)
                  else columns[f.name].cast(f.type) for f in LEDGER]  # fmt: skip
        tables.append(pa.table(arrays, schema=LEDGER))
    return pa.concat_tables(tables).sort_by("doc_id")
