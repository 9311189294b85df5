"""Exact duplicates: one of several documents that a reader sees as equal is kept."""

import json
import random
import time
import tracemalloc
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given as hypothesis_given
from hypothesis import settings
from hypothesis import strategies as st

from hallmark.tasks.contract import ID_TYPE
from hallmark.tasks.corpus import deduplicate_near as near
from hallmark.tasks.corpus.copies.text_equality import (
    STABLE_CHARACTERS,
    fold_invisible_differences,
)
from hallmark.tasks.corpus.deduplicate import (
    SIGNATURES,
    DeduplicateConfig,
    deduplicate,
    find_exact_duplicates,
)
from tests.tasks.corpora import given

#: Soft hyphen, zero-width space, word joiner and byte order mark.
ZERO_WIDTH = "\u00ad\u200b\u2060\ufeff"


def run(texts, sources=None, clusters=None, parts=1, **config):
    documents = given(texts, sources=sources, clusters=clusters, parts=parts)
    result = deduplicate(documents, {}, DeduplicateConfig(**config))
    kept = result["documents"].read().to_pylist()
    return documents["documents"].read().to_pylist(), kept, result["ledger"].read().to_pylist()


def fold_with_python(text):
    """Fold the differences that no reader sees, with Python."""
    text = "".join(c for c in text if c not in ZERO_WIDTH).replace("\u00a0", " ")
    lines = "\n".join(unicodedata.normalize("NFC", text).replace("\r\n", "\n").splitlines())
    lines = [line.rstrip() for line in lines.split("\n")]
    while lines and not lines[0]:
        del lines[0]
    while lines and not lines[-1]:
        del lines[-1]
    return "\n".join(lines)


@pytest.mark.parametrize("parts", [1, 4])
def test_the_longest_copy_is_kept_then_the_one_with_the_smallest_id(session, parts):
    """Compare with plain Python on texts that differ in case, Unicode form and white space."""
    rng = random.Random(7)
    words = ["Copy", "copy", "ﬁne", "fine", "e\u0301", "\u00e9"]
    joints = [" ", "\u00a0", "\n", "\r\n", " \n", "  "]
    texts = [rng.choice(joints).join(rng.choices(words, k=2)) for _ in range(600)]
    rows, kept_rows, ledger = run(texts, parts=parts)
    kept_ids = {}
    for row in sorted(rows, key=lambda r: (-len(r["text"].encode()), r["doc_id"])):
        kept_ids.setdefault(fold_with_python(row["text"]), row["doc_id"])
    assert {d["doc_id"] for d in kept_rows} == set(kept_ids.values())
    assert len(kept_rows) == 5 * 5 * 3
    matched = {r["doc_id"]: kept_ids[fold_with_python(r["text"])] for r in rows}
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
    texts = ["masked is the same", "similar to it", "masked is the same\n", "also similar", "lone"]
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
    _, documents, ledger = run([" ".join(words), " ".join(words[1:]), "", "x", "x ", " "])
    assert len(documents) == 4 and len(ledger) == 2


def fold(*texts):
    return fold_invisible_differences(pa.array(texts, pa.large_string())).to_pylist()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (
            "def f(x):\n    if x:\n        g()\n    h()",
            "def f(x):\n    if x:\n        g()\n        h()",
        ),
        ("  h()", "h()"),
        ("\th()", "    h()"),
        ("\n\n  h()\n", "h()\n"),
        ("an area of 10² metres", "an area of 102 metres"),
        ("US", "us"),
        ("Masse", "Maße"),
        ("ﬁne", "fine"),
        ("x₁", "x1"),
        ("Ａ", "A"),
        ("½ cup", "1⁄2 cup"),
        ("IV", "Ⅳ"),
        ("x = ['a  b']", "x = ['a b']"),
        ("one\ntwo", "one two"),
        ("one\n\ntwo", "one\ntwo"),
        ("می\u200cخواهم", "میخواهم"),  # a zero-width non-joiner changes the shapes of letters
        ("👩\u200d🔬", "👩🔬"),
        ("a" + "\u0301" * 40, "a" + "\u0301" * 41),
        ("a-b", "a\u2010b"),
        ("Α", "A"),
    ],
)
def test_texts_that_a_reader_tells_apart_are_both_kept(session, first, second):
    _, documents, ledger = run([first, second])
    assert {d["text"] for d in documents} == {first, second} and not ledger


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("one\r\ntwo", "one\ntwo\n"),
        ("one\rtwo", "one\ntwo"),
        ("one\u2028two\u2029three\x85four", "one\ntwo\nthree\nfour"),
        ("one\x0ctwo\x0bthree", "one\ntwo\nthree"),
        ("one  \n\u00a0\ntwo\t", "one\n\ntwo"),
        ("one\u3000\ntwo\u2003", "one\ntwo"),
        (" \n\n\t\n  one", "  one"),
        ("\ufeffone", "one"),
        ("caf\u00e9", "cafe\u0301"),
        ("\u212b\u2126", "\u00c5\u03a9"),
        ("한글", unicodedata.normalize("NFD", "한글")),
        ("10\u00a0km", "10 km"),
        ("co\u00adoperate", "cooperate"),
        ("ខ្ញុំ\u200bទៅ", "ខ្ញុំទៅ"),
        ("e\u00ad\u0301\u2060x", "\u00e9x"),
    ],
)
def test_texts_that_look_equal_are_exact_duplicates(session, first, second):
    _, documents, ledger = run([first, second])
    assert len(documents) == 1 and [row["reason"] for row in ledger] == ["exact duplicate"]


def test_the_recorded_case_keeps_every_document(session):
    path = Path(__file__).parents[2] / "cases" / "corpus" / "dedup" / "exact_but_not_same.jsonl"
    texts = [json.loads(line)["text"] for line in path.read_text().splitlines()]
    _, documents, ledger = run(texts)
    assert len(documents) == 4 and not ledger


#: Characters that folding treats in different ways, and ordinary ones.
folded_characters = st.sampled_from(
    [
        *"aA1²é\u0301\u0323 \t\n\r\x0b\x0c\x85\u2028\u2029\u00a0\u3000\u1680",
        *ZERO_WIDTH,
        "\u212b",
        "漢",
    ]
)


@settings(deadline=None)
@hypothesis_given(st.lists(st.text(folded_characters, max_size=15), max_size=4))
def test_folding_equals_plain_python_and_is_a_fixed_point(texts):
    folded = fold(*texts)
    assert folded == [fold_with_python(text) for text in texts]
    assert fold(*folded) == folded
    assert folded == [value for text in texts for value in fold(text)]


#: Python, unlike Unicode's line breaking, takes these for line ends; they are no text.
printable = st.characters(exclude_categories=["Cc", "Cs", "Zs", "Zl", "Zp", "Cn"])


def test_no_text_of_stable_characters_is_changed_by_nfc():
    """None has a decomposition or is reordered, and none is the second of a composed pair."""
    characters = [chr(p) for p in range(0x30000) if not 0xD800 <= p < 0xE000]
    decompositions = [unicodedata.decomposition(c).split() for c in characters]
    second_characters = {
        chr(int(parts[1], 16))
        for parts in decompositions
        if len(parts) == 2 and not parts[0].startswith("<")
    }
    is_stable = pc.match_substring_regex(pa.array(characters), rf"\A[{STABLE_CHARACTERS}]\z")
    stable = pa.array(characters).filter(is_stable).to_pylist()
    assert len(stable) > 30_000 and {*"aéя漢か가，”"} <= {*stable}
    assert all(unicodedata.normalize("NFC", c) == c for c in stable)
    assert not any(unicodedata.combining(c) for c in stable)
    assert not {*stable} & second_characters


@settings(deadline=None)
@hypothesis_given(st.text(printable | st.sampled_from(" \n"), max_size=30), st.data())
def test_any_visible_difference_changes_the_folded_text(text, data):
    """Replace, insert or remove a visible character that has no canonical equivalent."""
    character = data.draw(printable.filter(lambda c: c not in ZERO_WIDTH))
    place = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 1))
    changed = text[:place] + character + text[place + length :]
    same = unicodedata.normalize("NFC", "".join(c for c in text if c not in ZERO_WIDTH))
    other = unicodedata.normalize("NFC", "".join(c for c in changed if c not in ZERO_WIDTH))
    assert (fold(text) == fold(changed)) == (same == other)


@settings(deadline=None)
@hypothesis_given(
    st.lists(
        st.text("abc()=: ", min_size=1, max_size=8).map(lambda t: t.strip() or "x"), min_size=1
    ),
    st.data(),
)
def test_indentation_is_compared_and_blanks_at_line_ends_are_not(lines, data):
    indents = [data.draw(st.sampled_from(["", " ", "    ", "\t"])) for _ in lines]
    code = [indent + line for indent, line in zip(indents, lines, strict=True)]
    number = data.draw(st.integers(0, len(lines) - 1))
    shifted = [
        *code[:number],
        data.draw(st.sampled_from([" ", "\t"])) + code[number],
        *code[number + 1 :],
    ]
    assert fold("\n".join(code)) != fold("\n".join(shifted))
    line_end = data.draw(st.sampled_from(["\n", "\r", "\r\n", "\u2028", "\x85", "\x0c"]))
    blanks = data.draw(st.text(" \t\u00a0\u3000", max_size=3))
    disguised = blanks + line_end + (blanks + line_end).join(code) + blanks + line_end
    assert fold("\n".join(code)) == fold(disguised)


def test_a_text_of_many_marks_is_folded_quickly(session):
    start = time.process_time()
    assert len(set(fold(*("a" + "\u0323\u0301" * n for n in (20_000, 20_001))))) == 2
    assert time.process_time() - start < 1


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
            "folded_text_hash": make_ids(n).take(pa.array(origin)),
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
