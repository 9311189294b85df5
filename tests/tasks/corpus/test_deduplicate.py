"""Exact duplicates: one of several documents with the same normalised text is kept."""

import random
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from hallmark.tasks.contract import ID_TYPE
from hallmark.tasks.corpus import deduplicate_near as near
from hallmark.tasks.corpus.deduplicate import (
    SIGNATURES,
    DeduplicateConfig,
    deduplicate,
    find_exact_duplicates,
)
from tests.tasks.corpora import given
from tests.tasks.corpus.test_sketches import plain


def run(texts, sources=None, clusters=None, parts=1, **config):
    documents = given(texts, sources=sources, clusters=clusters, parts=parts)
    result = deduplicate(documents, {}, DeduplicateConfig(**config))
    kept = result["documents"].read().to_pylist()
    return documents["documents"].read().to_pylist(), kept, result["ledger"].read().to_pylist()


@pytest.mark.parametrize("parts", [1, 4])
def test_the_longest_copy_is_kept_then_the_one_with_the_smallest_id(session, parts):
    """Compare with plain Python on texts that differ in case, Unicode form and white space."""
    rng = random.Random(7)
    words = ["Copy", "copy", "ﬁne", "fine", "e\u0301", "\u00e9", "last", "Last"]
    texts = [rng.choice([" ", "\n", "  "]).join(rng.choices(words, k=2)) for _ in range(300)]
    rows, kept_rows, ledger = run(texts, parts=parts)
    kept_ids = {}
    for row in sorted(rows, key=lambda r: (-len(r["text"].encode()), r["doc_id"])):
        kept_ids.setdefault(plain(row["text"]), row["doc_id"])
    assert {d["doc_id"] for d in kept_rows} == set(kept_ids.values())
    assert 1 < len(kept_rows) < 60
    matched = {r["doc_id"]: kept_ids[plain(r["text"])] for r in rows}
    assert {r["doc_id"]: r["matched_doc_id"] for r in ledger} == {
        doc_id: kept_id for doc_id, kept_id in matched.items() if doc_id != kept_id
    }
    assert {(r["reason"], r["score"], r["threshold"]) for r in ledger} == {
        ("exact duplicate", 1.0, 1.0)
    }


def test_a_preferred_source_keeps_its_copy(session):
    texts, sources = ["the same text"] * 3, ["web", "news", "book"]
    for preferred, expected in (
        (["book"], "book"),
        (["news", "book"], "news"),
        (["none", "web"], "web"),
    ):
        _, documents, ledger = run(texts, sources, preferred_sources=preferred)
        assert [d["source"] for d in documents] == [expected]
        assert {r["source"] for r in ledger} == set(sources) - {expected}


def test_incoming_clusters_are_kept_and_joined(session):
    """After masking, the clusters of two equal texts become one."""
    texts = ["masked is the same", "similar to it", "masked is  the same", "also similar", "lone"]
    _, documents, _ = run(texts, clusters=["p", "p", "q", "q", "r"])
    clusters_by_text = {d["text"]: d["cluster"] for d in documents}
    assert [t for t in texts if t not in clusters_by_text] == ["masked is the same"]
    joined_clusters = [clusters_by_text[text] for text in texts[1:4]]
    assert joined_clusters == [min(d["doc_id"] for d in documents if d["text"] != "lone")] * 3
    (lone,) = (d for d in documents if d["text"] == "lone")
    assert lone["cluster"] == lone["doc_id"]  # clusters are renamed after a kept member


def test_documents_that_join_separate_clusters_are_counted(session):
    """Masking may give a document of one earlier cluster the text of another earlier document."""
    texts = ["masked", "a text", "another"]
    earlier = deduplicate(given(texts, clusters=[*"pqr"]), {}, DeduplicateConfig())
    texts += ["like a text", "also like it", "like another", "lone"]
    for clusters, bridges in (("qqrqqrs", 2), ("pqrqqrs", 0)):
        result = deduplicate(
            given(texts, clusters=[*clusters]), {"earlier": earlier}, DeduplicateConfig()
        )
        assert result["documents"].row_count == 4
        assert result["search_summary"].read().to_pylist() == [
            {"documents": 7, "earlier_documents": 3, "bridging_documents": bridges}
        ]
    (earlier_row,) = earlier["search_summary"].read().to_pylist()
    assert earlier_row == {"documents": 3, "earlier_documents": 0, "bridging_documents": 0}


def test_similar_texts_are_not_exact_duplicates(session):
    words = [f"w{i}" for i in range(60)]
    _, documents, ledger = run([" ".join(words), " ".join(words[1:]), "", "x", "X ", " "])
    assert len(documents) == 4 and len(ledger) == 2


def test_an_empty_table_gives_empty_tables(session):
    assert run([]) == ([], [], [])


# Memory ------------------------------------------------------------------------------------------


def make_sketches(n, bands=14):
    """Make SKETCHES of both stages in batches, and shingles; 3 of 10 documents are copies."""
    rng = np.random.default_rng(n)
    origin = np.arange(n)
    origin[7 * n // 10 :] = rng.integers(0, 7 * n // 10, n - 7 * n // 10)

    def make_ids(count):
        return pa.Array.from_buffers(ID_TYPE, count, [None, pa.py_buffer(rng.bytes(16 * count))])

    def make_lists(values):
        offsets = np.arange(n + 1, dtype=np.int32) * values.shape[1]
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values[origin].ravel()))

    doc_id = make_ids(n)
    sketches = pa.table(
        {
            "doc_id": doc_id,
            "cluster": doc_id,
            "preference": np.zeros(n, np.int32),
            "bytes": rng.integers(1, 1000, n),
            "normalised_text_hash": make_ids(n).take(pa.array(origin)),
            "band_hashes": make_lists(rng.integers(0, 1 << 32, (n, bands), dtype=np.uint32)),
        }
    )
    shingles = pa.chunked_array([make_lists(rng.integers(0, 1 << 63, (n, 4), dtype=np.uint64))])
    return pa.Table.from_batches(sketches.to_batches(max_chunksize=4096)), shingles


def measure_peak(n, find_duplicates):
    """Measure the peak memory of numpy arrays, in bytes; Arrow's memory is not traced."""
    find_duplicates(*make_sketches(10))  # imports need memory, too
    tables = make_sketches(n)
    tracemalloc.start()
    duplicate_of = find_duplicates(*tables)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (duplicate_of >= 0).sum() == n - 7 * n // 10  # the copies
    return peak


def find_exact(sketches, _):
    return find_exact_duplicates(sketches, SIGNATURES.empty_table()).duplicate_of


def find_near(sketches, shingles):
    config = near.DeduplicateNearConfig(bands=14, rows_per_band=8)
    results = near.find_near_duplicates(
        sketches, near.SIGNATURES.empty_table(), near.ShingleStore(shingles), config
    )
    return results[0].duplicate_of


@pytest.mark.parametrize("find_duplicates, max_bytes", [(find_exact, 150), (find_near, 200)])
def test_the_comparison_needs_a_bounded_number_of_bytes_per_document(find_duplicates, max_bytes):
    small, large = measure_peak(20_000, find_duplicates), measure_peak(60_000, find_duplicates)
    assert (large - small) / 40_000 < max_bytes
