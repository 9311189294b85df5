"""Repeated stretches are cut from all but the first document that has them."""

import random

import pytest

from hallmark.tasks.contract import HallmarkError, ProcessMapper, Session, Store, open_session
from hallmark.tasks.corpus.deduplicate import DeduplicateConfig, deduplicate
from hallmark.tasks.corpus.find_repeats import RepeatsConfig, check_memory, find_repeats
from hallmark.tasks.corpus.redact_spans import RedactSpansConfig, redact_spans
from tests.tasks.corpora import given

CUT = RedactSpansConfig(action="keep", actions_by_type={"REPEAT": "cut"})


def words(chance, count):
    return " ".join(f"{chance.randrange(10**6):x}" for _ in range(count))


def corpus(seed=1):
    """Texts of which many share a paragraph with others, some of it in letters of two bytes."""
    chance = random.Random(seed)
    shared = [words(chance, 20), " ".join(f"ä{i}ö" for i in range(30)), words(chance, 40) + "€"]
    texts = []
    for number in range(60):
        middle = chance.choice(shared) if number % 3 else words(chance, 15)
        texts.append(f"{words(chance, 10)}\n{middle}\n{words(chance, chance.randrange(30))}")
    return texts, shared


def cut(texts, parts=1, sources=None, clusters=None, **config):
    documents = given(texts, parts=parts, sources=sources, clusters=clusters)
    found = find_repeats(documents, {}, RepeatsConfig(enabled=True, **config))
    made = redact_spans.with_label("cut_repeats")(documents, {"find_repeats": found}, CUT)
    return documents, found, made


def after(made):
    return {r["doc_id"]: r["text"] for r in made["documents"].read().to_pylist()}


@pytest.mark.parametrize("parts", [1, 4])
def test_each_shared_stretch_stays_once_in_the_document_that_comes_first(session, parts):
    texts, shared = corpus()
    documents, _, made = cut(texts, parts, min_bytes=64)
    before, left = after(documents), after(made)
    rank = sorted(before, key=lambda i: (-len(before[i].encode()), i))
    for stretch in shared:
        holders = [i for i in rank if stretch in before[i]]
        assert len(holders) > 5
        assert [i for i in rank if stretch in left[i]] == holders[:1]
        for doc_id in holders[1:]:
            head, tail = before[doc_id].split(stretch)
            lost = len(before[doc_id].encode()) - len(left[doc_id].encode())
            by_chance = lost - len(stretch.encode())  # letters beside it that agree with others'
            assert 0 <= by_chance <= 8
            assert left[doc_id].startswith(head[:-8]) and left[doc_id].endswith(tail[8:])
    untouched = [i for i in before if not any(s in before[i] for s in shared)]
    assert all(left[i] == before[i] for i in untouched) and untouched
    rows = made["ledger"].read().to_pylist()
    assert {(r["action"], r["reason"], r["bytes_after"]) for r in rows} == {
        ("removed_span", "REPEAT", 0)
    }
    gone = sum(len(before[i].encode()) - len(left[i].encode()) for i in before)
    assert sum(r["bytes_before"] for r in rows) == gone


def test_a_preferred_source_keeps_the_stretch(session):
    stretch = words(random.Random(2), 30)
    texts, sources = [f"{stretch} and much more behind it", stretch], ["web", "book"]
    for prefer, kept in (((), 0), (("book",), 1)):
        documents, _, made = cut(texts, sources=sources, preferred_sources=prefer, min_bytes=64)
        left = after(made)
        assert [stretch in left.get(i, "") for i in after(documents)] == [kept == 0, kept == 1]


def test_spans_do_not_depend_on_parts_workers_or_order(tmp_path):
    texts, _ = corpus()
    found = []
    for number, (parts, workers) in enumerate(((2, 0), (8, 0), (8, 2))):
        with open_session(Session(Store(tmp_path / f"{number}"))) as session:
            if workers:
                with ProcessMapper(workers) as session.mapper:
                    _, spans, _ = cut(texts, parts, min_bytes=64)
            else:
                _, spans, _ = cut(texts, parts, min_bytes=64)
            found.append(spans["spans"].read().to_pylist())
    assert found[0] and found[0] == found[1] == found[2]


def test_nothing_repeats_in_nothing(session):
    for texts in ([], ["", ""], ["alone"]):
        _, found, made = cut(texts)
        assert found["spans"].row_count == 0
        assert made["documents"].row_count == len(texts)


def test_a_document_that_is_cut_whole_leaves_and_joins_no_clusters(session):
    """Two repeats of one text each; before, what was left of them was equal, and empty."""
    chance = random.Random(6)
    first, second = words(chance, 60), words(chance, 60)
    texts = [f"{first} and an end", f"{second} and a tail", first, f" {second}\n", "lone words"]
    documents, _, made = cut(texts, clusters=["p", "q", "p", "q", "r"], min_bytes=64)
    entered = list(after(documents))
    assert set(after(made)) == {entered[0], entered[1], entered[4]}
    assert [
        (r["doc_id"], r["action"], r["reason"], r["bytes_before"], r["char_start"])
        for r in made["ledger"].read().to_pylist()
    ] == [
        (doc_id, "removed", "empty after cut", len(texts[row].encode()), None)
        for row, doc_id in enumerate(entered)
        if row in (2, 3)
    ]
    apart = deduplicate(made, {}, DeduplicateConfig())["documents"].read().to_pylist()
    assert len({row["cluster"] for row in apart}) == len(apart) == 3


def test_a_text_that_memory_does_not_hold_is_refused_before_it_is_read():
    check_memory(1_000_000, 7_000_000)
    with pytest.raises(
        HallmarkError, match=r"in 3\.0 GB of text takes 33\.0 GB of memory, and this"
    ):
        check_memory(3_000_000_000, 32_000_000_000)


def test_a_stretch_of_an_earlier_corpus_is_cut_from_the_new_one(session):
    """As if all were there at once and the source of the earlier ones came first."""
    texts, _ = corpus()
    old = texts[:25]
    new = list({len(text.encode()): text for text in texts[25:]}.values())  # ranks by length alone
    config = RepeatsConfig(enabled=True, min_bytes=64, preferred_sources=("old",))
    sources = ["old"] * len(old) + ["new"] * len(new)
    once = given([*old, *new], sources=sources, parts=4)
    earlier = {"1": given(old[:10], parts=2), "2": given(old[10:])}
    added = given(new, parts=4)
    alone = spans_of(added, find_repeats(added, {}, config))
    grown = spans_of(added, find_repeats(added, earlier, config))
    assert grown == [s for s in spans_of(once, find_repeats(once, {}, config)) if s[0] in new]
    assert len(grown) > len(alone) > 0


def spans_of(documents, found):
    texts = after({"documents": documents["documents"]})
    rows = found["spans"].read().to_pylist()
    return sorted((texts[row["doc_id"]], row["byte_start"], row["byte_end"]) for row in rows)
