"""Test quotas per document: those whose ids have the lowest second halves are kept."""

import hashlib
import json
from collections import Counter

import pytest

from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading.inputs import IngestConfig

KEYS = [f"key {n}" for n in range(300)]
EMPTY = [f"empty {n}" for n in range(20)]


def second_half(source, key):
    """Return the second eight bytes of the id of the document with this key."""
    hashed_text = f"{source}\0key\0{key}".encode()
    return int.from_bytes(hashlib.blake2b(hashed_text, digest_size=16).digest()[8:], "big")


def make_doc_id(source, key):
    return hashlib.blake2b(f"{source}\0key\0{key}".encode(), digest_size=16).digest()


def make_source(folder, name, **limits):
    rows = [{"text": f"the text of {key}", "id": key} for key in KEYS]
    rows += [{"text": "", "id": key} for key in EMPTY]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"kind": "jsonl", "name": name, "path": str(folder), "key_field": "id", **limits}


@pytest.mark.parametrize(
    ("share", "cap", "blocked"),
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
def test_the_ids_decide_which_documents_are_kept(tmp_path, session, share, cap, blocked):
    """Blocked and empty documents do not count towards max_documents."""
    ordered = sorted(KEYS, key=lambda key: second_half("some", key))
    blocked_keys = ordered[:blocked]
    over_share = [key for key in ordered if second_half("some", key) >= share * 2**64]
    candidates = [key for key in ordered if key not in {*blocked_keys, *over_share}]
    over_cap = candidates[cap:] if cap else []
    sources = [
        make_source(tmp_path, "some", document_share=share, max_documents=cap),
        make_source(tmp_path, "all"),
    ]
    block = {"doc_ids": [make_doc_id("some", key).hex() for key in blocked_keys]}
    artifact = ingest(IngestConfig(sources=sources, partition_bytes=1000, block=block))
    kept_texts = {key: f"the text of {key}" for key in candidates if key not in over_cap}
    rows = artifact["documents"].read(["source", "text"]).to_pylist()
    assert {row["text"] for row in rows if row["source"] == "some"} == {*kept_texts.values()}
    assert sum(row["source"] == "all" for row in rows) == len(KEYS)
    ledger = [r for r in artifact["ledger"].read().to_pylist() if r["action"] == "removed"]
    reasons = Counter(row["reason"] for row in ledger if row["source"] == "some")
    assert reasons == +Counter(
        {
            "excluded by document_share": len(
                [key for key in over_share if key not in blocked_keys]
            ),
            "excluded by max_documents": len(over_cap),
            "blocked document": len(blocked_keys),
            "empty": len(EMPTY),
        }
    )
    size = sum(map(len, kept_texts.values())) + sum(len(f"the text of {key}") for key in KEYS)
    partition_count = len(artifact["documents"].parts)
    assert partition_count / 2 * 1000 < size <= partition_count * 1000
