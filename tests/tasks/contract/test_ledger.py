"""Test rows of ledgers and columns of documents against plain Python."""

import hashlib

import pyarrow as pa
import pytest

from hallmark.tasks.contract import (
    DOCUMENTS,
    LEDGER,
    build_document_ledger_columns,
    build_ledger_columns,
    build_ledger_table,
    build_removal_ledger_columns,
    count_utf8_bytes,
    fill_document_columns,
    hash_documents,
    hash_texts,
    hash_to_ids,
    replace_columns,
)

TEXTS = ["plain", "", "wörd \U0001f3f0"]
KEYS = hash_to_ids(["b", "a", "c"])
BATCH = pa.record_batch(
    {"doc_id": KEYS, "source": ["s", "t", "s"], "text": pa.array(TEXTS, pa.large_string())}
)


def blake(data):
    return hashlib.blake2b(data, digest_size=16).digest()


def test_hashes_and_sizes_are_computed_from_utf8_bytes():
    texts = BATCH["text"]
    assert hash_texts(texts).to_pylist() == [blake(t.encode()) for t in TEXTS]
    assert count_utf8_bytes(texts).to_pylist() == [5, 0, 10]
    pairs = zip(KEYS.to_pylist(), TEXTS, strict=True)
    assert hash_documents(KEYS, texts) == [blake(key + text.encode()) for key, text in pairs]
    assert hash_to_ids([b"a", "a", "ä"]).to_pylist() == [
        blake(b"a"),
        blake(b"a"),
        blake("ä".encode()),
    ]
    with pytest.raises(ValueError, match="longer than"):
        hash_documents(KEYS[:2], texts)


def test_ledger_rows_of_removed_documents_have_size_and_identity():
    gone = build_removal_ledger_columns(
        "too long", BATCH, score=pa.array([1.0, 2.0, 3.0]), threshold=0.5
    )
    rows = build_ledger_table(gone).to_pylist()
    assert [row["doc_id"] for row in rows] == sorted(KEYS.to_pylist())
    by_id = {row["doc_id"]: row for row in rows}
    for place, (key, text) in enumerate(zip(KEYS.to_pylist(), TEXTS, strict=True)):
        assert by_id[key] == dict.fromkeys(LEDGER.names) | {
            "doc_id": key,
            "source": BATCH["source"][place].as_py(),
            "action": "removed",
            "reason": "too long",
            "score": place + 1.0,
            "threshold": 0.5,
            "bytes_before": len(text.encode()),
            "bytes_after": 0,
            "document_hash": blake(key + text.encode()),
        }


def test_quarantined_documents_have_identity_but_additional_reasons_do_not():
    also, kept_apart = (
        build_document_ledger_columns(action, ["x", "y", "z"], BATCH)
        for action in ("additional_reason", "quarantined")
    )
    rows = build_ledger_table(also).to_pylist()
    assert {row["document_hash"] for row in rows} == {None} and {r["action"] for r in rows} == {
        "additional_reason"
    }
    assert [row["reason"] for row in sorted(rows, key=lambda r: r["doc_id"])] == [
        reason for _, reason in sorted(zip(KEYS.to_pylist(), "xyz", strict=True))
    ]
    assert kept_apart["document_hash"] == hash_documents(KEYS, BATCH["text"])


def test_rows_of_one_document_are_in_order_of_spans():
    first = build_ledger_columns("removed", "first", KEYS, BATCH["source"], [1, 2, 3])
    other = build_ledger_columns(
        "additional_reason", "second", KEYS[:1], ["s"], [1], char_start=[0], char_end=[1]
    )
    found = build_ledger_table(first, other)
    assert found.schema == LEDGER
    mine = [row for row in found.to_pylist() if row["doc_id"] == KEYS[0].as_py()]
    assert [(row["reason"], row["char_start"], row["char_end"]) for row in mine] == [
        ("first", None, None),
        ("second", 0, 1),
    ]
    assert [row["doc_id"] for row in found.to_pylist()] == sorted(
        [*KEYS.to_pylist(), KEYS[0].as_py()]
    )
    assert build_ledger_table().equals(LEDGER.empty_table())


def test_bytes_after_are_given_or_zero():
    rows = build_ledger_columns("replaced", "mask", KEYS, ["s"] * 3, [5, 6, 7], [1, 2, 3])
    assert (rows["bytes_before"], rows["bytes_after"]) == ([5, 6, 7], [1, 2, 3])
    assert build_ledger_columns("removed", "x", KEYS, ["s"] * 3, [5, 6, 7])["bytes_after"] == [
        0,
        0,
        0,
    ]


def test_missing_columns_are_null_and_replaced_columns_are_new():
    made = pa.table(
        fill_document_columns({name: BATCH[name] for name in BATCH.schema.names})
    ).to_pylist()
    assert set(made[0]) == set(DOCUMENTS.names)
    assert [row["text"] for row in made] == TEXTS
    assert {row[name] for row in made for name in ("toxicity", "split", "url")} == {None}
    changed = replace_columns(BATCH, source=["u", "v", "w"], more=[1, 2, 3])
    assert changed["source"] == ["u", "v", "w"] and changed["more"] == [1, 2, 3]
    assert changed["doc_id"].equals(KEYS) and list(changed) == ["doc_id", "source", "text", "more"]
