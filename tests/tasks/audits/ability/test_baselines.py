"""Test the n-gram models against a plain Python implementation of the paper's equations."""

from __future__ import annotations

import gzip
import random
import subprocess
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hallmark.tasks.audits.ability.baselines import (
    FALLBACK_DISCOUNTS,
    NgramModel,
    count_gzip_bits,
    estimate_gzip_bits_per_byte,
    estimate_kneser_ney_discounts,
)

documents = st.lists(st.lists(st.integers(0, 3), max_size=8), min_size=1, max_size=12)


class PlainKneserNey:
    """Interpolated modified Kneser-Ney with dictionaries, n-gram by n-gram."""

    def __init__(self, texts: Sequence[Sequence[int]], order: int, vocab_size: int) -> None:
        self.order, self.events = order, [*range(vocab_size), "end"]
        raw: dict[int, Counter] = defaultdict(Counter)
        for text in texts:
            line = ["begin", *text, "end"]
            for k in range(1, order + 1):
                for i in range(len(line) - k + 1):
                    raw[k][tuple(line[i : i + k])] += 1
        self.counts: dict[int, dict[tuple, int]] = {}
        for k in range(1, order + 1):
            adjusted: dict[tuple, int] = {}
            for gram in raw[k]:
                if gram == ("begin",):
                    continue
                if k == order or gram[0] == "begin":
                    adjusted[gram] = raw[k][gram]
                else:
                    adjusted[gram] = sum(longer[1:] == gram for longer in raw[k + 1])
            self.counts[k] = adjusted
        self.discounts = {
            k: (0.0, *estimate_kneser_ney_discounts(np.array(list(c.values()) or [0])))
            for k, c in self.counts.items()
        }

    def p(self, event: int | str, context: tuple) -> float:
        context = context[max(0, len(context) - self.order + 1) :]
        k = len(context) + 1
        shorter = self.p(event, context[1:]) if context else 1 / len(self.events)
        counts_after_context = {g: c for g, c in self.counts[k].items() if g[:-1] == context}
        total = sum(counts_after_context.values())
        if not total:
            return shorter
        cut = {g: self.discounts[k][min(c, 3)] for g, c in counts_after_context.items()}
        gram = (*context, event)
        own_share = (
            (counts_after_context[gram] - cut[gram]) / total
            if gram in counts_after_context
            else 0.0
        )
        return own_share + sum(cut.values()) / total * shorter


def random_texts(count: int, seed: int, vocabulary: int = 4) -> list[list[int]]:
    draw = random.Random(seed)
    return [
        [
            min(draw.randrange(vocabulary), draw.randrange(vocabulary))
            for _ in range(draw.randrange(9))
        ]
        for _ in range(count)
    ]


@settings(max_examples=80, deadline=None)
@example([[]], 4, [[]])  # no n-gram of this order
@example([[]], 5, [[1, 2, 3, 0, 1]])
@given(documents, st.integers(1, 5), documents)
def test_probabilities_equal_the_equations(
    train: list[list[int]], order: int, test: list[list[int]]
) -> None:
    model, plain = NgramModel(train, order, 4), PlainKneserNey(train, order, 4)
    probabilities = model.compute_token_probs(test, with_end=True)
    expected = [
        plain.p(event, ("begin", *text[:i]))
        for text in test
        for i, event in enumerate([*text, "end"])
    ]
    assert probabilities == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [1, 3, 40, 400])
def test_probabilities_sum_to_one_after_every_context(order: int, count: int) -> None:
    """By brute force over all contexts of up to four tokens and all events."""
    model = NgramModel(random_texts(count, seed=count), order, 4)
    for length in range(5):
        for context in product(range(4), repeat=length):
            tokens = [model.compute_token_probs([[*context, w]])[-1] for w in range(4)]
            end = model.compute_token_probs([list(context)], with_end=True)[-1]
            assert min(*tokens, end) > 0
            assert sum(tokens) + end == pytest.approx(1, abs=1e-9)


def test_discounts_come_from_the_counts_of_counts() -> None:
    counts = np.array([1] * 40 + [2] * 20 + [3] * 10 + [4] * 5 + [9])
    # Y = 40 / (40 + 2 * 20) = 0.5
    assert estimate_kneser_ney_discounts(counts) == pytest.approx(
        (1 - 0.5, 2 - 3 * 0.5 * 0.5, 3 - 4 * 0.5 * 0.5)
    )
    assert estimate_kneser_ney_discounts(np.array([1, 1, 1])) == FALLBACK_DISCOUNTS


def test_estimated_discounts_are_used() -> None:
    """The corpus is large enough for all three discounts."""
    train = random_texts(300, seed=5, vocabulary=12)
    model, plain = NgramModel(train, 3, 12), PlainKneserNey(train, 3, 12)
    assert (
        plain.discounts[3][1:] != FALLBACK_DISCOUNTS
        and plain.discounts[2][1:] != FALLBACK_DISCOUNTS
    )
    test = random_texts(20, seed=6, vocabulary=12)
    expected = [plain.p(w, ("begin", *t[:i])) for t in test for i, w in enumerate(t)]
    assert model.compute_token_probs(test) == pytest.approx(expected, rel=1e-9)


def test_a_higher_order_predicts_a_cycle_better() -> None:
    """In a cycle of three, one token determines the next, so a bigram costs almost nothing."""
    text = [0, 1, 2] * 200
    unigram = NgramModel([text], 1, 3).compute_document_bits([text])[0] / len(text)
    bigram = NgramModel([text], 2, 3).compute_document_bits([text])[0] / len(text)
    assert unigram == pytest.approx(np.log2(3), abs=0.02)
    assert bigram < 0.05


def test_bits_are_summed_by_document() -> None:
    model = NgramModel(random_texts(50, seed=1), 3, 4)
    texts = [[0, 1], [], [2, 2, 0]]
    costs = -np.log2(model.compute_token_probs(texts))
    assert model.compute_document_bits(texts) == pytest.approx(
        [costs[:2].sum(), 0, costs[2:].sum()]
    )


def test_keys_do_not_collide_in_a_large_vocabulary() -> None:
    """Five tokens of 250,000 do not fit into 64 bits as digits, but as n-gram numbers they do."""
    size = 250_000
    train = [[size - 1, size - 2, size - 3, size - 4, size - 5], [0, 1, 2, 3, 4]] * 3
    model = NgramModel(train, 5, size)
    seen_prob = model.compute_token_probs([train[0]])[-1]
    unseen_prob = model.compute_token_probs([[0, 1, 2, 3, size - 5]])[-1]
    assert seen_prob > 0.4 and unseen_prob < 0.1


def test_gzip_bits_equal_the_output_of_the_program() -> None:
    texts = [random.Random(i).randbytes(50) + b"and the same again " * 9 for i in range(30)]
    program = subprocess.run(
        ["gzip", "-9", "-n", "-c"], input=b"".join(texts), capture_output=True, check=True
    )
    assert count_gzip_bits(texts) == 8 * len(program.stdout)
    assert gzip.decompress(program.stdout) == b"".join(texts)


def test_the_jackknife_error_of_incompressible_text_is_that_of_a_mean() -> None:
    """Random bytes cost the same everywhere, so there is no error; mixed groups have one."""
    flat = [random.Random(i).randbytes(2000) for i in range(40)]
    value, error, groups = estimate_gzip_bits_per_byte(flat)
    assert groups == 20 and value == pytest.approx(8, abs=0.02) and error < 0.01
    mixed = [text if i % 2 else b"a" * 2000 for i, text in enumerate(flat)]
    value, error, _ = estimate_gzip_bits_per_byte(mixed, group_count=40)
    # Half of the texts cost 8 and half about 0: the error of the mean is 4 / sqrt(40), about 0.63.
    assert error == pytest.approx(4 / np.sqrt(40), rel=0.1)
    assert np.isnan(estimate_gzip_bits_per_byte([b"only one"]).standard_error)
