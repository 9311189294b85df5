"""Repeated passages are cut from all documents but the first that contains them."""

import random

import pytest

from hallmark.tasks.contract import HallmarkError, ProcessMapper, Session, Store, open_session
from hallmark.tasks.corpus.deduplicate import DeduplicateConfig, deduplicate
from hallmark.tasks.corpus.find_repeats import RepeatsConfig, check_memory, find_repeats
from hallmark.tasks.corpus.redact_spans import RedactSpansConfig, redact_spans
from tests.tasks.corpora import given

CUT = RedactSpansConfig(action="keep", actions_by_type={"REPEAT": "cut"})


def random_words(rng, count):
    return " ".join(f"{rng.randrange(10**6):x}" for _ in range(count))


def make_corpus(seed=1):
    """Make texts, many of which share a paragraph with others; some letters have two bytes."""
    rng = random.Random(seed)
    shared = [
        random_words(rng, 20),
        " ".join(f"ä{i}ö" for i in range(30)),
        random_words(rng, 40) + "€",
    ]
    texts = []
    for number in range(60):
        middle = rng.choice(shared) if number % 3 else random_words(rng, 15)
        texts.append(f"{random_words(rng, 10)}\n{middle}\n{random_words(rng, rng.randrange(30))}")
    return texts, shared


def cut_repeats(texts, parts=1, sources=None, clusters=None, **config):
    documents = given(texts, parts=parts, sources=sources, clusters=clusters)
    spans = find_repeats(documents, {}, RepeatsConfig(enabled=True, **config))
    result = redact_spans.with_label("cut_repeats")(documents, {"find_repeats": spans}, CUT)
    return documents, spans, result


def text_by_id(result):
    return {r["doc_id"]: r["text"] for r in result["documents"].read().to_pylist()}


@pytest.mark.parametrize("parts", [1, 4])
def test_a_shared_passage_is_kept_only_in_the_first_document(session, parts):
    texts, shared = make_corpus()
    documents, _, result = cut_repeats(texts, parts, min_bytes=64)
    before, after = text_by_id(documents), text_by_id(result)
    ranked_ids = sorted(before, key=lambda i: (-len(before[i].encode()), i))
    for passage in shared:
        holders = [i for i in ranked_ids if passage in before[i]]
        assert len(holders) > 5
        assert [i for i in ranked_ids if passage in after[i]] == holders[:1]
        for doc_id in holders[1:]:
            head, tail = before[doc_id].split(passage)
            cut_bytes = len(before[doc_id].encode()) - len(after[doc_id].encode())
            # Letters next to the passage may agree with those of other documents.
            extra_bytes = cut_bytes - len(passage.encode())
            assert 0 <= extra_bytes <= 8
            assert after[doc_id].startswith(head[:-8]) and after[doc_id].endswith(tail[8:])
    untouched = [i for i in before if not any(passage in before[i] for passage in shared)]
    assert all(after[i] == before[i] for i in untouched) and untouched
    rows = result["ledger"].read().to_pylist()
    assert {(r["action"], r["reason"], r["bytes_after"]) for r in rows} == {
        ("removed_span", "REPEAT", 0)
    }
    total_cut_bytes = sum(len(before[i].encode()) - len(after[i].encode()) for i in before)
    assert sum(r["bytes_before"] for r in rows) == total_cut_bytes


def test_a_preferred_source_keeps_the_shared_passage(session):
    passage = random_words(random.Random(2), 30)
    texts, sources = [f"{passage} and much more after it", passage], ["web", "book"]
    for preferred, expected in (((), 0), (("book",), 1)):
        documents, _, result = cut_repeats(
            texts, sources=sources, preferred_sources=preferred, min_bytes=64
        )
        after = text_by_id(result)
        assert [passage in after.get(i, "") for i in text_by_id(documents)] == [
            expected == 0,
            expected == 1,
        ]


def test_spans_do_not_depend_on_partitions_or_workers(tmp_path):
    texts, _ = make_corpus()
    results = []
    for number, (parts, workers) in enumerate(((2, 0), (8, 0), (8, 2))):
        with open_session(Session(Store(tmp_path / f"{number}"))) as session:
            if workers:
                with ProcessMapper(workers) as session.mapper:
                    _, spans, _ = cut_repeats(texts, parts, min_bytes=64)
            else:
                _, spans, _ = cut_repeats(texts, parts, min_bytes=64)
            results.append(spans["spans"].read().to_pylist())
    assert results[0] and results[0] == results[1] == results[2]


def test_texts_without_repeats_have_no_spans(session):
    for texts in ([], ["", ""], ["alone"]):
        _, spans, result = cut_repeats(texts)
        assert spans["spans"].row_count == 0
        assert result["documents"].row_count == len(texts)


def test_a_completely_cut_document_is_removed_and_joins_no_clusters(session):
    """Two documents repeat other texts completely; empty texts would be duplicates."""
    rng = random.Random(6)
    first, second = random_words(rng, 60), random_words(rng, 60)
    texts = [f"{first} and an end", f"{second} and a tail", first, f" {second}\n", "lone words"]
    documents, _, result = cut_repeats(texts, clusters=["p", "q", "p", "q", "r"], min_bytes=64)
    doc_ids = list(text_by_id(documents))
    assert set(text_by_id(result)) == {doc_ids[0], doc_ids[1], doc_ids[4]}
    assert [
        (r["doc_id"], r["action"], r["reason"], r["bytes_before"], r["char_start"])
        for r in result["ledger"].read().to_pylist()
    ] == [
        (doc_id, "removed", "empty after cut", len(texts[row].encode()), None)
        for row, doc_id in enumerate(doc_ids)
        if row in (2, 3)
    ]
    deduplicated = deduplicate(result, {}, DeduplicateConfig())["documents"].read().to_pylist()
    assert len({row["cluster"] for row in deduplicated}) == len(deduplicated) == 3


def test_a_text_that_needs_too_much_memory_is_rejected_before_it_is_read():
    check_memory(1_000_000, 7_000_000)
    with pytest.raises(
        HallmarkError,
        match=r"searching 3\.0 GB of text for repeated passages needs 33\.0 GB of memory, but this",
    ):
        check_memory(3_000_000_000, 32_000_000_000)


def test_a_passage_of_an_earlier_corpus_is_cut_from_the_new_one(session):
    """The result is the same as for one corpus in which the earlier source is preferred."""
    texts, _ = make_corpus()
    old = texts[:25]
    new = list({len(text.encode()): text for text in texts[25:]}.values())  # ranks by length alone
    config = RepeatsConfig(enabled=True, min_bytes=64, preferred_sources=("old",))
    sources = ["old"] * len(old) + ["new"] * len(new)
    together = given([*old, *new], sources=sources, parts=4)
    earlier = {"1": given(old[:10], parts=2), "2": given(old[10:])}
    additions = given(new, parts=4)
    own_spans = list_spans(additions, find_repeats(additions, {}, config))
    all_spans = list_spans(additions, find_repeats(additions, earlier, config))
    assert all_spans == [
        span for span in list_spans(together, find_repeats(together, {}, config)) if span[0] in new
    ]
    assert len(all_spans) > len(own_spans) > 0


def list_spans(documents, result):
    texts = text_by_id({"documents": documents["documents"]})
    rows = result["spans"].read().to_pylist()
    return sorted((texts[row["doc_id"]], row["byte_start"], row["byte_end"]) for row in rows)
