"""Weights and caps, document by document: those whose ids have the lowest second halves stay."""

import hashlib
import json
from collections import Counter

import pytest

from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading.inputs import IngestConfig

KEYS = [f"key {n}" for n in range(300)]
EMPTY = [f"empty {n}" for n in range(20)]


def half(source, key):
    """The second eight bytes of the id of the document with this key."""
    named = f"{source}\0key\0{key}".encode()
    return int.from_bytes(hashlib.blake2b(named, digest_size=16).digest()[8:], "big")


def doc_id(source, key):
    return hashlib.blake2b(f"{source}\0key\0{key}".encode(), digest_size=16).digest()


def source(folder, name, **limits):
    rows = [{"text": f"the text of {key}", "id": key} for key in KEYS]
    rows += [{"text": "", "id": key} for key in EMPTY]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"kind": "jsonl", "name": name, "path": str(folder), "key_field": "id", **limits}


@pytest.mark.parametrize(
    ("weight", "cap", "blocked"),
    [
        (1, None, 0),
        (0.3, None, 0),
        (1, 40, 0),
        (0.5, 40, 5),
        (0.1, 300, 0),
        (1, 300, 0),
        (1, 299, 0),
        (1, None, 7),
        (0.4, None, 7),
        (1, 1, 0),
    ],
)
def test_what_stays_is_what_the_ids_say(tmp_path, session, weight, cap, blocked):
    """Blocked documents and empty ones are none of those that a cap counts."""
    ordered = sorted(KEYS, key=lambda key: half("some", key))
    gone = ordered[:blocked]
    light = [key for key in ordered if half("some", key) >= weight * 2**64]
    left = [key for key in ordered if key not in {*gone, *light}]
    over = left[cap:] if cap else []
    sources = [
        source(tmp_path, "some", document_share=weight, max_documents=cap),
        source(tmp_path, "all"),
    ]
    block = {"doc_ids": [doc_id("some", key).hex() for key in gone]}
    made = ingest(IngestConfig(sources=sources, partition_bytes=1000, block=block))
    kept = {key: f"the text of {key}" for key in left if key not in over}
    rows = made["documents"].read(["source", "text"]).to_pylist()
    assert {row["text"] for row in rows if row["source"] == "some"} == {*kept.values()}
    assert sum(row["source"] == "all" for row in rows) == len(KEYS)
    ledger = [r for r in made["ledger"].read().to_pylist() if r["action"] == "removed"]
    reasons = Counter(row["reason"] for row in ledger if row["source"] == "some")
    assert reasons == +Counter(
        {
            "left out by weight": len([key for key in light if key not in gone]),
            "left out by cap": len(over),
            "blocked document": len(gone),
            "empty": len(EMPTY),
        }
    )
    size = sum(map(len, kept.values())) + sum(len(f"the text of {key}") for key in KEYS)
    parts = len(made["documents"].parts)
    assert parts / 2 * 1000 < size <= parts * 1000
