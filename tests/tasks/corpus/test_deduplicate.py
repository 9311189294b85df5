"""Exact duplicates: one of those stays whose normalised texts are the same."""

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
    entered = given(texts, sources=sources, clusters=clusters, parts=parts)
    made = deduplicate(entered, {}, DeduplicateConfig(**config))
    documents = made["documents"].read().to_pylist()
    return entered["documents"].read().to_pylist(), documents, made["ledger"].read().to_pylist()


@pytest.mark.parametrize("parts", [1, 4])
def test_one_of_each_text_stays_the_longest_then_of_the_smallest_id(session, parts):
    """Against plain Python over texts that differ in letters, forms and white space."""
    chance = random.Random(7)
    words = ["Copy", "copy", "ﬁne", "fine", "e\u0301", "\u00e9", "last", "Last"]
    texts = [chance.choice([" ", "\n", "  "]).join(chance.choices(words, k=2)) for _ in range(300)]
    entered, documents, ledger = run(texts, parts=parts)
    kept = {}
    for row in sorted(entered, key=lambda r: (-len(r["text"].encode()), r["doc_id"])):
        kept.setdefault(plain(row["text"]), row["doc_id"])
    assert {d["doc_id"] for d in documents} == set(kept.values())
    assert 1 < len(documents) < 60
    matched = {r["doc_id"]: kept[plain(r["text"])] for r in entered}
    assert {r["doc_id"]: r["matched_doc_id"] for r in ledger} == {
        doc_id: twin for doc_id, twin in matched.items() if doc_id != twin
    }
    assert {(r["reason"], r["score"], r["threshold"]) for r in ledger} == {
        ("exact duplicate", 1.0, 1.0)
    }


def test_a_preferred_source_keeps_its_copy(session):
    texts, sources = ["the same text"] * 3, ["web", "news", "book"]
    for prefer, kept in ((["book"], "book"), (["news", "book"], "news"), (["none", "web"], "web")):
        _, documents, ledger = run(texts, sources, preferred_sources=prefer)
        assert [d["source"] for d in documents] == [kept]
        assert {r["source"] for r in ledger} == set(sources) - {kept}


def test_clusters_that_come_in_are_carried_on_and_joined(session):
    """After masking: an exact copy links the cluster it leaves with that of its twin."""
    texts = ["masked is the same", "kin of the first", "masked is  the same", "kin of it", "lone"]
    _, documents, _ = run(texts, clusters=["p", "p", "q", "q", "r"])
    labels = {d["text"]: d["cluster"] for d in documents}
    assert [t for t in texts if t not in labels] == ["masked is the same"]
    joined = [labels[text] for text in texts[1:4]]
    assert joined == [min(d["doc_id"] for d in documents if d["text"] != "lone")] * 3
    (lone,) = (d for d in documents if d["text"] == "lone")
    assert lone["cluster"] == lone["doc_id"]  # named anew after a kept member


def test_what_joins_clusters_that_are_apart_is_counted(session):
    """After masking: kin of one earlier document, and one of them has another's text."""
    texts = ["masked", "a text", "another"]
    earlier = deduplicate(given(texts, clusters=[*"pqr"]), {}, DeduplicateConfig())
    texts += ["kin of a text", "more kin", "kin of another", "lone"]
    for clusters, bridges in (("qqrqqrs", 2), ("pqrqqrs", 0)):
        made = deduplicate(
            given(texts, clusters=[*clusters]), {"earlier": earlier}, DeduplicateConfig()
        )
        assert made["documents"].row_count == 4
        assert made["search_summary"].read().to_pylist() == [
            {"documents": 7, "earlier_documents": 3, "bridging_documents": bridges}
        ]
    (before,) = earlier["search_summary"].read().to_pylist()
    assert before == {"documents": 3, "earlier_documents": 0, "bridging_documents": 0}


def test_alike_is_not_the_same(session):
    words = [f"w{i}" for i in range(60)]
    _, documents, ledger = run([" ".join(words), " ".join(words[1:]), "", "x", "X ", " "])
    assert len(documents) == 4 and len(ledger) == 2


def test_an_empty_table(session):
    assert run([]) == ([], [], [])


# Memory ------------------------------------------------------------------------------------------


def sketched(n, bands=14):
    """SKETCHES of both stages for n documents, of which three in ten are copies of others, in
    batches as they are spilled; and the shingles of the near copies' stage."""
    chance = np.random.default_rng(n)
    origin = np.arange(n)
    origin[7 * n // 10 :] = chance.integers(0, 7 * n // 10, n - 7 * n // 10)

    def some_ids(count):
        return pa.Array.from_buffers(ID_TYPE, count, [None, pa.py_buffer(chance.bytes(16 * count))])

    def lists(values):
        offsets = np.arange(n + 1, dtype=np.int32) * values.shape[1]
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values[origin].ravel()))

    doc_id = some_ids(n)
    known = pa.table(
        {
            "doc_id": doc_id,
            "cluster": doc_id,
            "preference": np.zeros(n, np.int32),
            "bytes": chance.integers(1, 1000, n),
            "normalised_text_hash": some_ids(n).take(pa.array(origin)),
            "band_hashes": lists(chance.integers(0, 1 << 32, (n, bands), dtype=np.uint32)),
        }
    )
    shingles = pa.chunked_array([lists(chance.integers(0, 1 << 63, (n, 4), dtype=np.uint64))])
    return pa.Table.from_batches(known.to_batches(max_chunksize=4096)), shingles


def traced(n, judge_them):
    """The most that numpy held, in bytes; what Arrow holds is not seen."""
    judge_them(*sketched(10))  # imports count, too
    given = sketched(n)
    tracemalloc.start()
    twin = judge_them(*given)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (twin >= 0).sum() == n - 7 * n // 10  # the copies
    return peak


def judged_exactly(known, _):
    return find_exact_duplicates(known, SIGNATURES.empty_table()).duplicate_of


def judged_nearly(known, shingles):
    config = near.DeduplicateNearConfig(bands=14, rows_per_band=8)
    found = near.find_near_duplicates(
        known, near.SIGNATURES.empty_table(), near.ShingleStore(shingles), config
    )
    return found[0].duplicate_of


@pytest.mark.parametrize("of, most", [(judged_exactly, 150), (judged_nearly, 200)])
def test_memory_a_document_to_judge_them_together(of, most):
    small, large = traced(20_000, of), traced(60_000, of)
    assert (large - small) / 40_000 < most
