"""Exact duplicates: one of those stays whose normalised texts are the same."""

import random

import pytest

from tasks.corpus.deduplicate import DeduplicateConfig, deduplicate
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
    assert {r["doc_id"]: r["matched"] for r in ledger} == {
        doc_id: twin for doc_id, twin in matched.items() if doc_id != twin
    }
    assert {(r["reason"], r["score"], r["threshold"]) for r in ledger} == {
        ("exact duplicate", 1.0, 1.0)
    }


def test_a_preferred_source_keeps_its_copy(session):
    texts, sources = ["the same text"] * 3, ["web", "news", "book"]
    for prefer, kept in ((["book"], "book"), (["news", "book"], "news"), (["none", "web"], "web")):
        _, documents, ledger = run(texts, sources, prefer=prefer)
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


def test_alike_is_not_the_same(session):
    words = [f"w{i}" for i in range(60)]
    _, documents, ledger = run([" ".join(words), " ".join(words[1:]), "", "x", "X ", " "])
    assert len(documents) == 4 and len(ledger) == 2


def test_an_empty_table(session):
    assert run([]) == ([], [], [])
