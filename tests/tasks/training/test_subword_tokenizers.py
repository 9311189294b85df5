"""Compare the three kinds of tokenizers with plain Python matchers and fresh processes."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from hallmark.tasks.contract import PROJECT_ROOT
from hallmark.tasks.training.subword_tokenizers import (
    CONTINUATION_PREFIX,
    MAX_WORD_BYTES,
    list_byte_letters,
    train_bpe_tokenizer,
    train_unigram_tokenizer,
    train_wordpiece_tokenizer,
)
from tests.tasks.small_corpus import sentences

SPECIAL = ["<|endoftext|>", "<|pad|>", "<|mask|>"]
ODDITIES = [
    "\x00\x01\x7f\x80\x9f\xa0\xad",
    "\ufeff\u2028\u2029\u200d\u2060\ufffd\ufffe\U0010ffff",
    "▁ ▁▁ _ ⁇ <unk> [UNK] ##s </w> Ġ Ċ",
    "<|endoftext|><|pad|> <|mask|>",
    "e\u0301 é Å Å ﬁ ｆｕｌｌ",
    " \t\n\r\n   x  \u3000\n",
    "naïveté 日本語 हिन्दी עברית 👩‍👩‍👧‍👦 \U0001d4d7",
    "x" * 1000 + "日" * 300,
    "".join(map(chr, range(0x250))),
]
text = st.text(st.characters(codec="utf-8")) | st.sampled_from(ODDITIES)


def train_by_kind(kind: str, texts: list[str], size: int = 0) -> Tokenizer:
    """Train a tokenizer on batches of `size` texts; 0 for one batch."""
    size = size or max(len(texts), 1)
    batches = iter([texts[start : start + size] for start in range(0, len(texts), size)])
    if kind == "bpe":
        return train_bpe_tokenizer(batches, 400, 2, SPECIAL)
    if kind == "wordpiece":
        return train_wordpiece_tokenizer(batches, 700, 2, SPECIAL)
    return train_unigram_tokenizer(batches, 330, SPECIAL)


KINDS = ("bpe", "wordpiece", "unigram")
TEXTS = sentences(200)


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return reload(train_by_kind(request.param, TEXTS))


def reload(tokenizer: Tokenizer) -> Tokenizer:
    """Read the tokenizer as another process would read its file."""
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.encode_special_tokens = True
    return tokenizer


@settings(max_examples=300, deadline=None)
@given(text)
def test_every_text_decodes_to_itself(tokenizer, text: str) -> None:
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert min(ids, default=len(SPECIAL)) >= len(SPECIAL)


@pytest.mark.parametrize("texts", [[], [""], ["a"], ["ok ok"], ["日" * 5000], ["ab" * 3000]])
@pytest.mark.parametrize("kind", KINDS)
def test_unusual_training_texts_give_a_tokenizer_for_all_texts(kind: str, texts: list[str]) -> None:
    tokenizer = reload(train_by_kind(kind, texts))
    assert len(tokenizer.get_vocab()) <= 700
    for odd in ODDITIES:
        ids = tokenizer.encode(odd).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == odd and min(ids) >= 3


def test_a_word_of_200_kilobytes_is_encoded(tokenizer: Tokenizer) -> None:
    for character in ("x", "日"):  # WordPiece would fail without a limit on words.
        hostile = character * (200_000 // len(character.encode()))
        ids = tokenizer.encode(hostile).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == hostile
        assert min(ids) >= len(SPECIAL)


@pytest.mark.parametrize("kind", KINDS)
def test_all_letters_are_tokens(kind: str) -> None:
    vocabulary = train_by_kind(kind, TEXTS).get_vocab()
    assert len(list_byte_letters()) == 256 and CONTINUATION_PREFIX not in list_byte_letters()
    assert vocabulary.keys() >= set(list_byte_letters())
    if kind == "wordpiece":
        assert vocabulary.keys() >= {CONTINUATION_PREFIX + letter for letter in list_byte_letters()}
    assert [vocabulary[token] for token in SPECIAL] == [0, 1, 2]


# Determinism ---------------------------------------------------------------------------------

IN_ANOTHER_PROCESS = """
import hashlib, json, sys
from tests.tasks.training.test_subword_tokenizers import KINDS, train_by_kind
job = json.load(sys.stdin)
for kind in KINDS:
    tokenizer = train_by_kind(kind, job["texts"], job["size"])
    print(hashlib.sha256(tokenizer.to_str().encode()).hexdigest())
"""


def test_the_tokenizer_does_not_depend_on_order_or_batches() -> None:
    texts = [*TEXTS, *ODDITIES, "a word that occurs once", "and another"]
    digests = set()
    for seed, size, step in (("0", 0, 1), ("1", 1, -1), ("2", 7, 3), ("3", 50, -1)):
        if step == 3:
            texts = [*texts[0::3], *texts[1::3], *texts[2::3]]
        job = json.dumps({"texts": texts[:: -1 if step < 0 else 1], "size": size})
        parallel = "true" if seed in "02" else "false"
        environment = os.environ | {"PYTHONHASHSEED": seed, "TOKENIZERS_PARALLELISM": parallel}
        completed = subprocess.run(
            [sys.executable, "-c", IN_ANOTHER_PROCESS],
            cwd=PROJECT_ROOT,
            input=job,
            env=environment,
            text=True,
            capture_output=True,
        )
        assert completed.returncode == 0, completed.stderr
        digests.add(completed.stdout)
    (digest,) = digests
    assert len(set(digest.split())) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_weighted_by_their_counts(kind: str) -> None:
    """The counts matter, not the number of distinct words."""
    rare, often = ["zq" + letter for letter in "abcdefgh"], ["xj"] * 100
    vocabulary = train_by_kind(kind, [*rare, *often]).get_vocab()
    assert "xj" in vocabulary
    assert kind == "unigram" or vocabulary["xj"] < vocabulary["zq"]


# Oracles -------------------------------------------------------------------------------------


def split_words(text: str) -> list[str]:
    """Split a text into GPT-2's words, long ones into parts."""
    whole = [word for word, _ in ByteLevel(add_prefix_space=False).pre_tokenize_str(text)]
    starts = [(word, start) for word in whole for start in range(0, len(word), MAX_WORD_BYTES)]
    return [word[start : start + MAX_WORD_BYTES] for word, start in starts]


@pytest.fixture(scope="module")
def wordpiece() -> Tokenizer:
    return reload(train_by_kind("wordpiece", TEXTS))


@settings(max_examples=200, deadline=None)
@given(text | st.sampled_from(TEXTS))
def test_wordpiece_takes_the_longest_token_first(wordpiece: Tokenizer, text: str) -> None:
    vocabulary = wordpiece.get_vocab()
    expected = []
    for word in split_words(text):
        rest, mark = word, ""
        while rest:
            size = max(n for n in range(1, len(rest) + 1) if mark + rest[:n] in vocabulary)
            expected.append(mark + rest[:size])
            rest, mark = rest[size:], CONTINUATION_PREFIX
    assert wordpiece.encode(text).tokens == expected


@pytest.fixture(scope="module")
def unigram() -> Tokenizer:
    return reload(train_by_kind("unigram", TEXTS))


@settings(max_examples=200, deadline=None)
@given(text | st.sampled_from(TEXTS))
def test_unigram_splits_words_in_the_most_likely_way(unigram: Tokenizer, text: str) -> None:
    score = dict(json.loads(unigram.to_str())["model"]["vocab"])
    tokens = unigram.encode(text).tokens
    text_words = split_words(text)
    assert "".join(tokens) == "".join(text_words)
    expected = 0.0
    for word in text_words:  # best[n]: the highest score of a way to spell the first n letters
        best = [0.0, *[-math.inf] * len(word)]
        for end in range(1, len(word) + 1):
            best[end] = max(
                best[start] + score.get(word[start:end], -math.inf) for start in range(end)
            )
        expected += best[-1]
    assert math.fsum(score[token] for token in tokens) == pytest.approx(expected, rel=1e-9)


def test_unigram_scores_are_log_probabilities(unigram: Tokenizer) -> None:
    vocabulary = json.loads(unigram.to_str())["model"]["vocab"]
    tokens = [token for token, _ in vocabulary]
    assert tokens[: len(SPECIAL)] == SPECIAL and tokens[3:259] == list_byte_letters()
    longer = [score for _, score in vocabulary[259:]]
    assert all(one >= two for one, two in pairwise(longer)) and len(longer) > 20
    seen = {letter for text in TEXTS for word in split_words(text) for letter in word}
    known = [score for token, score in vocabulary[3:] if len(token) > 1 or token in seen]
    assert 0.9 < sum(map(math.exp, known)) < 1.1
    unseen = [score for token, score in vocabulary[3:259] if token not in seen]
    assert all(-40 < score < min(known) for score in unseen)


@pytest.mark.parametrize("kind", KINDS)
def test_a_word_of_half_a_megabyte_is_trained_in_time(kind):
    """Quadratic time would take minutes."""
    tokenizer = train_by_kind(kind, ["ab" * 250_000, "a few words"])
    assert tokenizer.decode(tokenizer.encode("abab").ids) == "abab"
