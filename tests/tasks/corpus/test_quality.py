"""Test quality figures against values computed by hand and by brute force."""

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
    compute_quality_table,
    measure_quality,
    split_into_blocks,
)
from hallmark.tasks.corpus.quality_signals import gopher
from hallmark.tasks.corpus.quality_signals.text_batch import TextBatch, TextSpans
from tests.tasks.corpora import given
from tests.tasks.corpus.quality_oracle import compute_expected_signals

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
short_passages = st.sampled_from(
    ["a b", "a b c d e", "one two three four five six", "a\n", "b.\n\n"]
)
#: Without characters that are unassigned in Python but letters in Arrow's newer tables.
assigned_characters = st.characters(exclude_categories=("Cs", "Cn"))
TEXTS = st.one_of(
    st.text(assigned_characters, max_size=40),
    st.lists(st.tuples(st.sampled_from(PIECES), st.sampled_from(SPACES)), max_size=40).map(
        lambda pairs: "".join(a + b for a, b in pairs)
    ),
    # Few words, so that n-grams repeat, overlap and are skipped.
    st.lists(st.sampled_from("ab"), max_size=60).map(" ".join),
    st.lists(st.sampled_from("abc"), min_size=20, max_size=120).map(" ".join),
    st.lists(short_passages, max_size=20).map(" ".join),
    st.lists(st.sampled_from(["one line.", "two lines", "", " ", "end.", "\r"]), max_size=20).map(
        "\n".join
    ),
)


def compute_rows(texts):
    signals = compute_quality_table(pa.array(texts, pa.large_string()), QualityConfig())
    assert signals.schema.names == SIGNALS.names[1:]
    return signals.to_pylist()


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
def test_every_figure_equals_brute_force(texts):
    assert compute_rows(texts) == [compute_expected_signals(text) for text in texts]


def test_figures_computed_by_hand():
    text = "The cat sat. The cat ran...\n- and # of\n\nThe cat sat. The cat ran...\n"
    [row] = compute_rows([text])
    assert row["word_count"] == 14  # two of the 16 are signs
    assert row["mean_word_length"] == (22 + 5 + 22) / 14
    assert (row["hash_signs_per_word"], row["ellipses_per_word"]) == (1 / 16, 2 / 16)
    assert (row["bullet_lines"], row["ellipsis_lines"]) == (1 / 4, 2 / 4)
    assert (row["alphabetic_words"], row["stop_word_count"]) == (14 / 16, 2)
    # The empty text after the last line feed is a line; one of the four lines is repeated.
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


def test_c4_figures_of_a_page():
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
    [row] = compute_rows(["\n".join(page)])
    rule_by_line = {line.replace("[1]", ""): rule for line, rule in page.items()}
    total_characters = sum(map(len, rule_by_line))
    for rule in {rule for rule in page.values() if rule}:
        assert row[rule] == pytest.approx(
            sum(len(x) for x in rule_by_line if rule_by_line[x] == rule) / total_characters
        )
    assert row["c4_removed_characters"] == pytest.approx(
        sum(len(x) for x in rule_by_line if rule_by_line[x]) / total_characters
    )
    assert row["c4_sentences"] == 3
    assert (row["c4_lorem_ipsum"], row["c4_curly_brackets"]) == (0, 0)
    [row] = compute_rows(
        ["Lorem Ipsum is no text.\nA {curly} bracket is in javascript.\nOne { is not here"]
    )
    assert (row["c4_lorem_ipsum"], row["c4_curly_brackets"]) == (1, 0)


def test_equal_spans_have_equal_hashes():
    rng = np.random.default_rng(3)
    alphabets = ["ab", "abcdefgh", "αβγ", "中文字", "😀👍"]
    texts = [
        " ".join(
            "".join(rng.choice(list(alphabet), rng.integers(1, 8)))
            for _ in range(rng.integers(900))
        )
        for alphabet in alphabets * 8
    ]
    batch = TextBatch.from_column(pa.array(texts))
    words = [word for text in texts for word in text.split()]
    hashes = batch.word_hashes.tolist()
    assert len(hashes) == len(words)
    assert len(set(zip(words, hashes, strict=True))) == len(set(words)) == len(set(hashes))
    assert batch.hash_word(words[5]) == hashes[5]


def test_a_word_repeated_many_times_is_processed():
    [row] = compute_rows(["word " * 200_000])
    assert row["word_count"] == 200_000 and row["top_2gram"] == pytest.approx(
        199_999 * 9 / 1_000_000
    )
    assert row["duplicate_10grams"] == pytest.approx(0.8, abs=1e-4)


def test_the_most_frequent_ngram_may_occur_ten_million_times():
    occurrences = 10_000_000
    starts = np.arange(0, 2 * occurrences + 2, 2)  # in "a a a ..."
    words = TextSpans(starts, starts + 1, np.array([0, occurrences + 1]))
    cumulative_lengths, group_starts = np.arange(occurrences + 2), np.zeros(1, np.int64)
    assert gopher._count_top_ngram_characters(
        words, cumulative_lengths, 2, np.arange(occurrences), group_starts
    ).tolist() == [3 * occurrences]


def test_signals_do_not_depend_on_partitions(session):
    rng = np.random.default_rng(5)
    texts = [
        " ".join(rng.choice(["the", "cat", "sat.", "\n", "on", "#"], rng.integers(200)))
        for _ in range(80)
    ]
    all_signals = measure_quality(given(texts), QualityConfig())["signals"].read().sort_by("doc_id")
    partitioned = measure_quality(given(texts, parts=8), QualityConfig())["signals"]
    assert len(partitioned.parts) == 8
    assert partitioned.read() == all_signals
    single_rows = [compute_rows([text])[0] for text in texts]
    ids = given(texts)["documents"].read()["doc_id"].to_pylist()
    assert all_signals.to_pylist() == sorted(
        ({"doc_id": doc_id, **row} for doc_id, row in zip(ids, single_rows, strict=True)),
        key=lambda row: row["doc_id"],
    )


@pytest.mark.parametrize("max_bytes", [1, 40, 1000])
def test_blocks_have_at_most_so_many_bytes_or_one_text(monkeypatch, max_bytes):
    monkeypatch.setattr("hallmark.tasks.corpus.quality.BLOCK_BYTES", max_bytes)
    rng = np.random.default_rng(7)
    texts = pa.array(["é" * int(n) for n in rng.integers(0, 30, 50)], pa.large_string())
    blocks = list(split_into_blocks(texts[3:]))
    assert pa.concat_arrays(blocks).equals(texts[3:])
    sizes = [[len(text.encode()) for text in block.to_pylist()] for block in blocks]
    assert all(len(block_sizes) == 1 or sum(block_sizes) <= max_bytes for block_sizes in sizes)
    assert all(
        sum(block_sizes) + next_sizes[0] > max_bytes for block_sizes, next_sizes in pairwise(sizes)
    )
    assert list(split_into_blocks(texts[:0])) == []
    single_bytes = pa.array(["x"] * (max_bytes + 1), pa.large_string())
    assert [len(block) for block in split_into_blocks(single_bytes)] == [max_bytes, 1]


def test_stop_words_and_short_lines_are_settings(session):
    texts = ["der die das\n" + "x" * 40, "the and\nof"]
    config = QualityConfig(stop_words=("der", "das", "ein"), short_line_characters=45)
    signals = measure_quality(given(texts), config)["signals"].read()
    assert signals["stop_word_count"].to_pylist() == [2, 0]
    assert signals["short_lines"].to_pylist() == [1, 1]
    signals = measure_quality(given(["a\n" + "x" * 30 + "\n" + "x" * 31]), QualityConfig())[
        "signals"
    ].read()
    assert signals["short_lines"].to_pylist() == [2 / 3]
    signals = measure_quality(given(["a\nb"]), QualityConfig(short_line_characters=0))[
        "signals"
    ].read()
    assert signals["short_lines"].to_pylist() == [0]


def test_a_document_that_needs_too_much_memory_fails_alone(session, monkeypatch, caplog):
    monkeypatch.setattr("hallmark.tasks.corpus.quality.total_memory_bytes", lambda: 70_000_000)
    texts = ["one and two", "word " * 150_000, "three of four"]
    artifact = measure_quality(given(texts), QualityConfig())
    word_counts = artifact["signals"].read()["word_count"].to_pylist()
    assert sorted(word_counts, key=lambda n: n or 0) == [None, 3, 3]
    (message,) = [record.getMessage() for record in caplog.records]
    assert "failed on 1 of 3 documents" in message
    assert "too little memory: computing the quality signals of this document (750,000" in message
    assert "characters) needs 0.1 GB" in message
    assert "lower ingest.max_document_bytes" in message
    assert artifact.manifest["determinism"] == "machine"
    assert measure_quality(given(texts[:1]), QualityConfig()).manifest["determinism"] == "exact"


STATUS = Path("/proc/self/status")

MEASURING_PROGRAM = """
from pathlib import Path
import pyarrow as pa
from hallmark.tasks.corpus.quality import QualityConfig, compute_quality_table

def peak():  # of this program; getrusage would include the parent process
    (line,) = [l for l in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in l]
    return int(line.split()[1]) * 1024

def column(lines):
    return pa.array(["a\\n" * lines], pa.large_string())

compute_quality_table(column(1000), QualityConfig())
text = column(2_500_000)
before = peak()
compute_quality_table(text, QualityConfig())
print((peak() - before) / 5_000_000)
"""


@pytest.mark.skipif(
    not STATUS.exists(), reason="needs Linux, which reports the memory of a process"
)
@pytest.mark.slow
def test_the_stated_memory_holds_for_one_letter_per_line():
    """Of all texts that were tried, this one needs the most memory."""
    process = subprocess.run(
        [sys.executable, "-c", MEASURING_PROGRAM], capture_output=True, text=True
    )
    assert MEMORY_BYTES_PER_CHARACTER / 2 < float(process.stdout) <= MEMORY_BYTES_PER_CHARACTER, (
        process
    )
