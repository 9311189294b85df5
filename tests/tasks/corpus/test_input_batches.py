"""Test which inputs are read together, and the sorted runs from which documents are made."""

import hashlib
import json
from collections import Counter

import pytest

from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading import inputs, records
from hallmark.tasks.corpus.reading.inputs import IngestConfig, list_input_batches, list_inputs


def write_text_files(folder, sizes):
    """Write text files of these sizes in bytes."""
    folder.mkdir()
    for number, size in enumerate(sizes):
        (folder / f"{number:02d}.txt").write_bytes(b"x" * size)
    return {"kind": "text", "name": folder.name, "path": str(folder)}


def test_small_files_of_a_source_are_read_together(tmp_path, monkeypatch):
    """A batch has at most 100 bytes and three files here."""
    monkeypatch.setattr(inputs, "MAX_BATCH_BYTES", 100)
    monkeypatch.setattr(inputs, "MAX_BATCH_FILES", 3)
    first_source = write_text_files(tmp_path / "one", [40, 60, 1, 200, 10, 10, 10, 10])
    town = {"kind": "town", "name": "two", "documents": 1001}
    third_source = write_text_files(tmp_path / "three", [0, 100, 0, 1])
    config = IngestConfig(sources=[first_source, town, third_source])
    batches = list_input_batches(config, list_inputs(config))
    assert [[batch_input.size_bytes for batch_input in batch.inputs] for batch in batches] == [
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
    assert [str(batch) for batch in batches[2:4]] == [
        "source one, 03.txt",
        "source one, 04.txt and 2 more",
    ]
    assert [str(batch) for batch in batches[5:8]] == [
        f"source two, documents {n}" for n in ("1 to 500", "501 to 1000", "1001 to 1001")
    ]
    assert [
        batch_input.file_name
        for batch in batches
        for batch_input in batch.inputs
        if batch_input.source == "three"
    ] == [
        "00.txt",
        "01.txt",
        "02.txt",
        "03.txt",
    ]


def blake2b(*pieces):
    return hashlib.blake2b(b"".join(pieces), digest_size=16).digest()


@pytest.mark.parametrize("run_bytes", [1, 9000, 1 << 20])
def test_ids_order_and_partitions_do_not_depend_on_the_runs(
    tmp_path, session, monkeypatch, run_bytes
):
    """Compare with ids computed here; copies of a text are in several batches and runs."""
    monkeypatch.setattr(records, "MAX_RUN_BYTES", run_bytes)
    texts = [f"text {i % 900}" if i % 3 else f"only {i}" for i in range(2600)]
    lines = [json.dumps({"text": text}) for text in texts]
    (tmp_path / "a.jsonl").write_text("\n".join(lines[:1500]))
    (tmp_path / "b.jsonl").write_text("\n".join(lines[1500:]))
    source = {"kind": "jsonl", "name": "s", "path": str(tmp_path)}
    artifact = ingest(IngestConfig(sources=[source], partition_bytes=5000))
    copy_counts, expected = Counter(), {}
    for text in texts:
        first_id = blake2b(b"s\0text\0", text.encode())
        doc_id = (
            blake2b(first_id, copy_counts[text].to_bytes(8, "big"))
            if copy_counts[text]
            else first_id
        )
        expected[doc_id] = text
        copy_counts[text] += 1
    rows = artifact["documents"].read().to_pylist()
    assert {row["doc_id"]: row["text"] for row in rows} == expected
    assert [row["doc_id"] for row in rows] == sorted(expected)
    assert [row["doc_id"] for row in artifact["origins"].read().to_pylist()] == sorted(expected)
    size = sum(map(len, texts))
    assert 5000 * 2 < size <= 5000 * 8
    parts = artifact["documents"].parts
    assert len(parts) == (4 if size <= 5000 * 4 else 8)
    for number, part in enumerate(parts):
        range_numbers = {
            i[0] * len(parts) // 256 for i in part.read(["doc_id"])["doc_id"].to_pylist()
        }
        assert range_numbers == {number}


@pytest.mark.parametrize(("sizes", "parts"), [([1000], 1), ([1000, 1], 2), ([900, 1100], 2)])
def test_text_that_fills_the_partitions_needs_no_more_partitions(tmp_path, session, sizes, parts):
    source = write_text_files(tmp_path / "s", sizes)
    artifact = ingest(IngestConfig(sources=[source], partition_bytes=1000))
    assert len(artifact["documents"].parts) == parts and artifact["documents"].row_count == len(
        sizes
    )
