"""The tables that corpus stages share, and what fills their columns."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tasks.contract.columns import extend

ID = pa.binary(16)


#: What every corpus stage passes on. Stages append columns of their own behind these.
DOCUMENTS = pa.schema(
    [
        ("doc_id", ID),  # given once at ingest, carried ever after
        ("source", pa.string()),
        ("cluster", ID),  # shared by near-copies: the smallest doc_id; at ingest its own
        ("text", pa.large_string()),
        ("text_hash", ID),  # of the text as it leaves this stage
    ],
    metadata={"cut": "doc_id"},
)

#: What a stage took out, changed or added; one row a cause.
LEDGER = pa.schema(
    [
        ("doc_id", ID),
        ("source", pa.string()),
        ("action", pa.string()),  # one of ACTIONS
        ("reason", pa.string()),
        ("score", pa.float64()),
        ("threshold", pa.float64()),
        ("matched", ID),  # the document it matched: the kept twin of a duplicate
        ("start", pa.int64()),  # characters, in the text as it entered the stage
        ("end", pa.int64()),
        ("bytes_before", pa.int64()),  # UTF-8 bytes of what left or changed
        ("bytes_after", pa.int64()),  # ... and of what stands there now
        ("digest", ID),  # keyed hash of a masked span; personal data is never in clear
        ("identity", ID),  # of the document as it entered, or was added; once a document
    ],
    metadata={"cut": "doc_id"},
)

#: removed: the whole document left. removed_span: a part of it left. replaced: a part of it
#: changed. quarantined: it could not be processed. added: it was not in the input.
ACTIONS = ("removed", "removed_span", "replaced", "quarantined", "added")


#: After the toxicity filter: the highest score among the document's windows.
SCORED = extend(DOCUMENTS, pa.field("toxicity", pa.float32()))

#: After the split: "train", "validation" or "holdout".
SPLIT = extend(SCORED, pa.field("split", pa.string()))

#: What was put into the training text on purpose, see ``tasks/corpus/plant.py``.
PLANTS = pa.schema(
    [
        ("plant_id", ID),
        ("kind", pa.string()),  # canary, passage or record
        ("copies", pa.int32()),  # 0: never planted, the negative control
        ("template", pa.string()),  # canaries and records: which format; passages: ""
        ("text", pa.large_string()),  # the whole planted document
        ("prompt", pa.large_string()),  # what stands before the secret
        ("secret", pa.large_string()),  # what an attacker wants; text = prompt + secret + rest
        ("doc_ids", pa.list_(pa.binary())),  # the planted documents, one a copy
    ]
)


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
    doc_id, text = documents["doc_id"], documents["text"]
    return ledger_rows(
        "removed", reason, doc_id, documents["source"], utf8_bytes(text),
        identity=identities(doc_id, text), **more,
    )  # fmt: skip


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
