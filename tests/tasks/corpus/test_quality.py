"""Figures of quality against a reckoning by hand and one by brute force."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, settings
from hypothesis import given as given_values
from hypothesis import strategies as st

from hallmark.tasks.corpus.quality import (
    MEMORY_BYTES_PER_CHARACTER,
    SIGNALS,
    QualityConfig,
    compute_quality_signals,
    measure_quality,
    split_into_blocks,
)
from hallmark.tasks.corpus.quality_signals import gopher
from hallmark.tasks.corpus.quality_signals.text_batch import TextBatch, TextSpans
from tests.tasks.corpora import given
from tests.tasks.corpus.quality_oracle import expected

PIECES = [
    "the",
    "of",
    "and",
    "a",
    "be",
    "Ada",
    "ada",
    "word",
    "words.",
    "end.",
    "why?",
    'so!"',
    "(no.)",
    "...",
    "....",
    "…",
    "wait...",
    "#",
    "##tag",
    "•",
    "-",
    "- item",
    "--",
    "42",
    "3.14",
    "{",
    "}",
    "javascript",
    "JavaScript",
    "Lorem ipsum",
    "lorem ipsum dolor",
    "uses cookies",
    "Privacy Policy",
    "[1]",
    "[edit]",
    "[citation needed]",
    "[12",
    "x" * 1000,
    "y" * 1001,
    "😀",
    "👍🏽",
    "é",
    "e\u0301",
    "Ωμέγα",
    "中文。",
    "日本語",
    "हिन्दी।",
    "سلام؟",
    "\u200b",
    "\x00",
    "\ufeff",
    "\U0001f9d1\u200d",
    "１",
]
SPACES = [
    " ",
    " ",
    " ",
    "  ",
    "\n",
    "\n",
    "\n\n",
    "\n\n\n",
    "\r\n",
    "\r\n\r\n",
    "\r",
    "\n \n",
    "\t",
    "\x0b",
    "\x0c",
    "\x1c",
    "\x85",
    "\u2028",
    "\u3000",
    "\u00a0",
    "",
]
few = st.sampled_from(["a b", "a b c d e", "one two three four five six", "a\n", "b.\n\n"])
#: Not those that Python's tables do not know yet, and Arrow's newer ones call letters.
known = st.characters(exclude_categories=("Cs", "Cn"))
TEXTS = st.one_of(
    st.text(known, max_size=40),
    st.lists(st.tuples(st.sampled_from(PIECES), st.sampled_from(SPACES)), max_size=40).map(
        lambda pairs: "".join(a + b for a, b in pairs)
    ),
    # Few words, so that n-grams repeat, overlap and are leapt over.
    st.lists(st.sampled_from("ab"), max_size=60).map(" ".join),
    st.lists(st.sampled_from("abc"), min_size=20, max_size=120).map(" ".join),
    st.lists(few, max_size=20).map(" ".join),
    st.lists(st.sampled_from(["one line.", "two lines", "", " ", "end.", "\r"]), max_size=20).map(
        "\n".join
    ),
)


def rows(texts):
    made = compute_quality_signals(pa.array(texts, pa.large_string()), QualityConfig())
    assert made.schema.names == SIGNALS.names[1:]
    return made.to_pylist()


@settings(max_examples=200, deadline=None)
@given_values(st.lists(TEXTS, max_size=6))
@example([])
@example([""])
@example(["", " ", "\n", "\r", "\r\n", "", "\n\n \n\n", "a"])
@example(["a\r", "b\r", "\n"])
@example([".", "..", "...", "a.", "...... #", "# " * 30])
@example(["word " * 300, "word", "word word", "a b " * 70 + "\n" + "a b " * 70])
@example(["So it is. Yes.", "Is it? So it is.", "It is so"])
@example(["x" * 70_000 + " " + "y " * 5_000 + "."])
@example(["Foo is [1] here. And 'there.' Was it? [edit]\nlorem {", "It says: use cookies now."])
def test_every_figure_is_that_of_brute_force(texts):
    assert rows(texts) == [expected(text) for text in texts]


def test_figures_that_were_worked_out_by_hand():
    text = "The cat sat. The cat ran...\n- and # of\n\nThe cat sat. The cat ran...\n"
    [row] = rows([text])
    assert row["word_count"] == 14  # of 16 parts two are signs
    assert row["mean_word_length"] == (22 + 5 + 22) / 14
    assert (row["hash_signs_per_word"], row["ellipses_per_word"]) == (1 / 16, 2 / 16)
    assert (row["bullet_lines"], row["ellipsis_lines"]) == (1 / 4, 2 / 4)
    assert (row["alphabetic_words"], row["stop_word_count"]) == (14 / 16, 2)
    # "", behind the last line feed, is a line; that one sentence is again there of four.
    assert row["duplicate_lines"] == 1 / 4
    assert row["duplicate_lines_characters"] == 27 / len(text)
    assert (row["duplicate_paragraphs"], row["duplicate_paragraphs_characters"]) == (0, 0)
    assert row["top_2gram"] == 4 * len("The cat") / len(text)
    assert row["top_3gram"] == 2 * len("The cat sat.") / len(text)
    assert row["duplicate_5grams"] == len("Thecatsat.Thecat") / len(text)
    assert row["duplicate_6grams"] == len("Thecatsat.Thecatran...") / len(text)
    assert row["duplicate_7grams"] == 0
    assert row["terminal_lines"] == 2 / 3 and row["short_lines"] == 1
    assert row["duplicate_characters"] == 27 / (len(text) - 4)
    assert row["line_feeds_per_word"] == 4 / 16
    assert (row["c4_no_terminal_mark"], row["c4_sentences"]) == (1, 0)


def test_what_c4_would_take_of_a_page():
    page = {
        "This line is good. It has two sentences!": None,
        "So is this one.[1]": None,
        "Home | About | Contact": "c4_no_terminal_mark",
        "And so on...": "c4_no_terminal_mark",
        "Read more.": "c4_few_words",
        "Please enable Javascript to see this.": "c4_javascript",
        "This site uses cookies for its visitors.": "c4_policy",
        "A word " + "w" * 1001 + " is long.": "c4_long_words",
    }
    [row] = rows(["\n".join(page)])
    plain = {line.replace("[1]", ""): rule for line, rule in page.items()}
    whole = sum(map(len, plain))
    for rule in {rule for rule in page.values() if rule}:
        assert row[rule] == pytest.approx(sum(len(x) for x in plain if plain[x] == rule) / whole)
    assert row["c4_removed_characters"] == pytest.approx(
        sum(len(x) for x in plain if plain[x]) / whole
    )
    assert row["c4_sentences"] == 3
    assert (row["c4_lorem_ipsum"], row["c4_curly_brackets"]) == (0, 0)
    [row] = rows(
        ["Lorem Ipsum is no text.\nA {curly} bracket is in javascript.\nOne { is not here"]
    )
    assert (row["c4_lorem_ipsum"], row["c4_curly_brackets"]) == (1, 0)


def test_hashes_of_spans_are_equal_where_the_spans_are():
    draw = np.random.default_rng(3)
    alphabets = ["ab", "abcdefgh", "αβγ", "中文字", "😀👍"]
    texts = [
        " ".join(
            "".join(draw.choice(list(alphabet), draw.integers(1, 8)))
            for _ in range(draw.integers(900))
        )
        for alphabet in alphabets * 8
    ]
    made = TextBatch.from_column(pa.array(texts))
    words = [word for text in texts for word in text.split()]
    hashes = made.word_hashes.tolist()
    assert len(hashes) == len(words)
    assert len(set(zip(words, hashes, strict=True))) == len(set(words)) == len(set(hashes))
    assert made.hash_word(words[5]) == hashes[5]


def test_one_text_of_a_word_many_times_is_no_trouble():
    [row] = rows(["word " * 200_000])
    assert row["word_count"] == 200_000 and row["top_2gram"] == pytest.approx(
        199_999 * 9 / 1_000_000
    )
    assert row["duplicate_10grams"] == pytest.approx(0.8, abs=1e-4)


def test_the_most_frequent_ngram_may_occur_ten_million_times():
    many = 10_000_000
    letters = np.arange(0, 2 * many + 2, 2)  # in "a a a ..."
    words = TextSpans(letters, letters + 1, np.array([0, many + 1]))
    before, first = np.arange(many + 2), np.zeros(1, np.int64)
    assert gopher._count_top_ngram_characters(
        words, before, 2, np.arange(many), first
    ).tolist() == [3 * many]


def test_signals_are_the_same_however_the_corpus_is_cut(session):
    draw = np.random.default_rng(5)
    texts = [
        " ".join(draw.choice(["the", "cat", "sat.", "\n", "on", "#"], draw.integers(200)))
        for _ in range(80)
    ]
    whole = measure_quality(given(texts), QualityConfig())["signals"].read().sort_by("doc_id")
    parts = measure_quality(given(texts, parts=8), QualityConfig())["signals"]
    assert len(parts.parts) == 8
    assert parts.read() == whole
    alone = [rows([text])[0] for text in texts]
    ids = given(texts)["documents"].read()["doc_id"].to_pylist()
    assert whole.to_pylist() == sorted(
        ({"doc_id": doc_id, **row} for doc_id, row in zip(ids, alone, strict=True)),
        key=lambda row: row["doc_id"],
    )


@pytest.mark.parametrize("most", [1, 40, 1000])
def test_a_column_is_worked_on_in_pieces_of_so_many_bytes_or_of_one_text(monkeypatch, most):
    monkeypatch.setattr("hallmark.tasks.corpus.quality.BLOCK_BYTES", most)
    draw = np.random.default_rng(7)
    texts = pa.array(["é" * int(n) for n in draw.integers(0, 30, 50)], pa.large_string())
    pieces = list(split_into_blocks(texts[3:]))
    assert pa.concat_arrays(pieces).equals(texts[3:])
    sizes = [[len(text.encode()) for text in piece.to_pylist()] for piece in pieces]
    assert all(len(here) == 1 or sum(here) <= most for here in sizes)
    assert all(sum(here) + behind[0] > most for here, behind in pairwise(sizes))
    assert list(split_into_blocks(texts[:0])) == []
    ones = pa.array(["x"] * (most + 1), pa.large_string())
    assert [len(piece) for piece in split_into_blocks(ones)] == [most, 1]


def test_stop_words_and_short_lines_are_settings(session):
    texts = ["der die das\n" + "x" * 40, "the and\nof"]
    config = QualityConfig(stop_words=("der", "das", "ein"), short_line_characters=45)
    made = measure_quality(given(texts), config)["signals"].read()
    assert made["stop_word_count"].to_pylist() == [2, 0]
    assert made["short_lines"].to_pylist() == [1, 1]
    made = measure_quality(given(["a\n" + "x" * 30 + "\n" + "x" * 31]), QualityConfig())[
        "signals"
    ].read()
    assert made["short_lines"].to_pylist() == [2 / 3]
    made = measure_quality(given(["a\nb"]), QualityConfig(short_line_characters=0))[
        "signals"
    ].read()
    assert made["short_lines"].to_pylist() == [0]


def test_a_document_for_which_memory_is_too_little_costs_only_itself(session, monkeypatch, caplog):
    monkeypatch.setattr("hallmark.tasks.corpus.quality.total_memory_bytes", lambda: 70_000_000)
    texts = ["one and two", "word " * 150_000, "three of four"]
    made = measure_quality(given(texts), QualityConfig())
    words = made["signals"].read()["word_count"].to_pylist()
    assert sorted(words, key=lambda n: n or 0) == [None, 3, 3]
    (told,) = [record.getMessage() for record in caplog.records]
    assert "failed on 1 of 3 documents" in told
    assert "too little memory: the figures of its 750,000 characters take 0.1 GB" in told
    assert "lower ingest.max_document_bytes" in told
    assert made.manifest["determinism"] == "machine"
    assert measure_quality(given(texts[:1]), QualityConfig()).manifest["determinism"] == "exact"


STATUS = Path("/proc/self/status")

MEASURED = """
from pathlib import Path
import pyarrow as pa
from hallmark.tasks.corpus.quality import QualityConfig, compute_quality_signals

def peak():  # of this program; what getrusage says begins with that of the process before it
    (line,) = [l for l in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in l]
    return int(line.split()[1]) * 1024

def column(lines):
    return pa.array(["a\\n" * lines], pa.large_string())

compute_quality_signals(column(1000), QualityConfig())
text = column(2_500_000)
before = peak()
compute_quality_signals(text, QualityConfig())
print((peak() - before) / 5_000_000)
"""


@pytest.mark.skipif(not STATUS.exists(), reason="needs Linux, which says what a process holds")
def test_what_is_said_of_its_memory_holds_for_a_letter_a_line():
    """Which takes the most of all texts that were tried."""
    done = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True)
    assert MEMORY_BYTES_PER_CHARACTER / 2 < float(done.stdout) <= MEMORY_BYTES_PER_CHARACTER, done
