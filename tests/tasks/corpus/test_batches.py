"""What is read together, and the sorted runs in which records become documents."""

import hashlib
import json
from collections import Counter

import pytest

from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading import inputs, records
from hallmark.tasks.corpus.reading.inputs import IngestConfig, list_input_batches


def written(folder, sizes):
    """A text file of so many bytes each."""
    folder.mkdir()
    for number, size in enumerate(sizes):
        (folder / f"{number:02d}.txt").write_bytes(b"x" * size)
    return {"kind": "text", "name": folder.name, "path": str(folder)}


def test_small_files_of_a_source_are_read_together(tmp_path, monkeypatch):
    """Up to 100 bytes and three files here."""
    monkeypatch.setattr(inputs, "MAX_BATCH_BYTES", 100)
    monkeypatch.setattr(inputs, "MAX_BATCH_FILES", 3)
    one = written(tmp_path / "one", [40, 60, 1, 200, 10, 10, 10, 10])
    town = {"kind": "town", "name": "two", "documents": 1001}
    three = written(tmp_path / "three", [0, 100, 0, 1])
    made = list_input_batches(IngestConfig(sources=[one, town, three]))
    assert [[part.size_bytes for part in batch.inputs] for batch in made] == [
        [40, 60],
        [1],
        [200],
        [10, 10, 10],
        [10],
        [0],
        [0],
        [0],
        [0, 100, 0],
        [1],
    ]
    assert [str(batch) for batch in made[2:4]] == [
        "source one, 03.txt",
        "source one, 04.txt and 2 more",
    ]
    assert [str(batch) for batch in made[5:8]] == [
        f"source two, documents {n}" for n in ("1 to 500", "501 to 1000", "1001 to 1001")
    ]
    assert [
        part.file_name for batch in made for part in batch.inputs if part.source == "three"
    ] == [
        "00.txt",
        "01.txt",
        "02.txt",
        "03.txt",
    ]


def blake2b(*pieces):
    return hashlib.blake2b(b"".join(pieces), digest_size=16).digest()


@pytest.mark.parametrize("run_bytes", [1, 9000, 1 << 20])
def test_ids_order_and_parts_do_not_depend_on_the_runs(tmp_path, session, monkeypatch, run_bytes):
    """Records in batches of 1,024, and copies of a text in several runs, against ids by hand."""
    monkeypatch.setattr(records, "MAX_RUN_BYTES", run_bytes)
    texts = [f"text {i % 900}" if i % 3 else f"only {i}" for i in range(2600)]
    lines = [json.dumps({"text": text}) for text in texts]
    (tmp_path / "a.jsonl").write_text("\n".join(lines[:1500]))
    (tmp_path / "b.jsonl").write_text("\n".join(lines[1500:]))
    source = {"kind": "jsonl", "name": "s", "path": str(tmp_path)}
    made = ingest(IngestConfig(sources=[source], partition_bytes=5000))
    seen, expected = Counter(), {}
    for text in texts:
        own = blake2b(b"s\0text\0", text.encode())
        doc_id = blake2b(own, seen[text].to_bytes(8, "big")) if seen[text] else own
        expected[doc_id] = text
        seen[text] += 1
    rows = made["documents"].read().to_pylist()
    assert {row["doc_id"]: row["text"] for row in rows} == expected
    assert [row["doc_id"] for row in rows] == sorted(expected)
    assert [row["doc_id"] for row in made["origins"].read().to_pylist()] == sorted(expected)
    size = sum(map(len, texts))
    assert 5000 * 2 < size <= 5000 * 8
    parts = made["documents"].parts
    assert len(parts) == (4 if size <= 5000 * 4 else 8)
    for number, part in enumerate(parts):
        first = {i[0] * len(parts) // 256 for i in part.read(["doc_id"])["doc_id"].to_pylist()}
        assert first == {number}


@pytest.mark.parametrize(("sizes", "parts"), [([1000], 1), ([1000, 1], 2), ([900, 1100], 2)])
def test_text_that_fills_the_parts_needs_no_more_of_them(tmp_path, session, sizes, parts):
    source = written(tmp_path / "s", sizes)
    made = ingest(IngestConfig(sources=[source], partition_bytes=1000))
    assert len(made["documents"].parts) == parts and made["documents"].row_count == len(sizes)
