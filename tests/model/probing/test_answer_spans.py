"""Answer spans: selection against trying all spans, training, and refused input."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from hallmark.model.probing.answer_spans import (
    AnswerSpanModel,
    find_answer_spans,
    select_best_spans,
    train_span_model,
)
from tests.model.oracles import tiny


@pytest.mark.parametrize("longest", [1, 3, 8, 100])
def test_the_best_span_equals_trying_all_spans(longest):
    generator = torch.Generator().manual_seed(longest)
    begins, ends = torch.randn(2, 200, 8, generator=generator)
    allowed = torch.rand(200, 8, generator=generator) < 0.7
    allowed[:, 3] |= ~allowed.any(1)
    for row, span in enumerate(select_best_spans(begins, ends, allowed, longest)):
        scores = {
            (i, j): float(begins[row, i] + ends[row, j])
            for i, j in itertools.product(range(8), repeat=2)
            if i <= j < i + longest and allowed[row, i] and allowed[row, j]
        }
        assert (span.begin, span.end) == max(scores, key=scores.get)
        assert span.score == pytest.approx(max(scores.values()))


def test_ties_select_the_shortest_then_the_first_span():
    ones = torch.ones(1, 4)
    (span,) = select_best_spans(ones, ones, torch.tensor([[False, True, True, True]]), 4)
    assert (span.begin, span.end, span.score) == (1, 1, 2.0)


def test_scores_without_an_allowed_span_are_refused():
    ones = torch.ones(2, 4)
    with pytest.raises(ValueError, match="no token at which an answer can begin or end"):
        select_best_spans(ones, ones, torch.tensor([[True] * 4, [False] * 4]), 2)
    with pytest.raises(ValueError, match="max_length must be at least 1, not 0"):
        select_best_spans(ones, ones, ones > 0, 0)


def make_questions(n, seed):
    """Make texts whose answer is between a 7 and an 8, after a question token and a 5."""
    random = np.random.default_rng(seed)
    texts, spans = [], []
    for _ in range(n):
        before, inside, after = (random.integers(10, 60, k) for k in random.integers(1, 4, 3))
        texts.append([4, 5, *before, 7, *inside, 8, *after])
        begin = 2 + len(before) + 1
        spans.append((begin, begin + len(inside) - 1))
    return texts, spans


def test_a_span_model_learns_to_find_answers_in_any_batch():
    reader = AnswerSpanModel(tiny(architecture="encoder", positions="rope"))
    texts, spans = make_questions(300, 0)
    losses = train_span_model(reader, texts, spans, steps=100, learning_rate=3e-3)
    assert len(losses) == 100 and np.mean(losses[-10:]) < 0.3 * np.mean(losses[:10])
    new_texts, expected_spans = make_questions(60, 1)
    allowed = [[i > 1 for i in range(len(text))] for text in new_texts]
    predicted_spans = find_answer_spans(reader, new_texts, allowed)
    assert (
        np.mean(
            [(s.begin, s.end) == w for s, w in zip(predicted_spans, expected_spans, strict=True)]
        )
        > 0.8
    )
    alone = find_answer_spans(reader, new_texts, allowed, batch_tokens=1)
    assert [(s.begin, s.end) for s in predicted_spans] == [(s.begin, s.end) for s in alone]
    for text, span in zip(new_texts[:5], predicted_spans, strict=False):
        with torch.no_grad():
            scores = reader.output(reader.body.compute_hidden_states(make_batch(text)))[0]
        assert span.score == pytest.approx(
            float(scores[span.begin, 0] + scores[span.end, 1]), abs=1e-4
        )


def make_batch(text):
    from hallmark.model.batch import Batch

    return Batch(torch.tensor([text]))


def test_only_the_two_vectors_learn_on_a_frozen_body():
    reader = AnswerSpanModel(tiny(architecture="encoder", dropout=0.5))
    before = {name: tensor.clone() for name, tensor in reader.state_dict().items()}
    texts, spans = make_questions(20, 0)
    losses = train_span_model(reader, texts, spans, steps=30, freeze_body=True, learning_rate=1e-2)
    after = reader.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"output.weight", "output.bias"}
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    assert all(p.requires_grad for p in reader.parameters()) and not reader.training
    # Dropout is off in a frozen body, so a second training has the same losses.
    again = AnswerSpanModel(tiny(architecture="encoder", dropout=0.5))
    options = {"steps": 30, "freeze_body": True, "learning_rate": 1e-2}
    assert train_span_model(again, texts, spans, **options) == losses


@pytest.mark.parametrize(
    ("texts", "spans", "words"),
    [
        ([[5, 6]], [], "one answer span per sequence, but got 0 for 1 sequences"),
        ([], [], "at least one sequence"),
        ([[5, 6]], [(1, 2)], r"Answer span 0 \(tokens 1 to 2\) is not inside"),
        ([[5, 6]], [(1, 0)], r"span 0 \(tokens 1 to 0\)"),
        ([[5, 6]], [(-1, 0)], r"span 0 \(tokens -1 to 0\)"),
        ([[]], [(0, 0)], "Sequence 0 must have 1 to 16 tokens, not 0"),
        ([[5] * 17], [(0, 0)], "Sequence 0 must have 1 to 16 tokens, not 17"),
        ([[61]], [(0, 0)], "Token id 61"),
    ],
)
def test_invalid_spans_are_refused(texts, spans, words):
    with pytest.raises(ValueError, match=words):
        train_span_model(AnswerSpanModel(tiny(architecture="encoder")), texts, spans, steps=1)


def test_a_span_model_refuses_an_encoder_decoder():
    with pytest.raises(ValueError, match="architecture, not 'encoder_decoder'"):
        AnswerSpanModel(tiny(architecture="encoder_decoder"))
