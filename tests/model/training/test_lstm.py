"""The LSTM baseline, against its formulas and on texts that need memory."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from hallmark.model.training.lstm import LstmLanguageModel, train_lstm_language_model
from tests.model.oracles import toy_rows


def compute_bits_by_formula(model, document):
    """Compute the bits of a document with gates and cell, one token at a time, in float64."""
    weights = [p.detach().double() for p in model.lstm.parameters()]
    w_input, w_state, b_input, b_state = weights
    embedding = model.embedding.weight.detach().double()
    h, c, bits = torch.zeros(8).double(), torch.zeros(8).double(), 0.0
    for before, token in zip([model.begin_id, *document], document, strict=False):
        gates = w_input @ embedding[before] + b_input + w_state @ h + b_state
        enter, forget, new, leave = gates.chunk(4)
        c = forget.sigmoid() * c + enter.sigmoid() * new.tanh()
        h = leave.sigmoid() * c.tanh()
        bits -= (embedding @ h).log_softmax(0)[token].item() / math.log(2)
    return bits


def test_bits_equal_the_formula_for_any_batch():
    torch.manual_seed(0)
    model = LstmLanguageModel(11, 8)
    torch.nn.init.normal_(model.embedding.weight)
    random = np.random.default_rng(0)
    documents = [random.integers(0, 11, n).tolist() for n in (5, 0, 1, 9, 9, 3)]
    expected = [compute_bits_by_formula(model, document) for document in documents]
    for batch_tokens in (8, 1000):
        np.testing.assert_allclose(
            model.compute_document_bits(documents, batch_tokens), expected, rtol=1e-5
        )
    assert model.compute_document_bits([]).shape == (0,) and model.compute_document_bits(
        [[], []]
    ).tolist() == [0, 0]


@pytest.fixture(scope="module")
def texts_with_repeated_token():
    """Texts whose last token repeats the first, with four random tokens between."""
    random = np.random.default_rng(1)
    texts = random.integers(4, 12, (600, 6))
    texts[:, 0] = texts[:, 5] = random.integers(0, 4, 600)
    return texts.tolist()


def test_the_lstm_learns_that_the_last_token_repeats_the_first(texts_with_repeated_token):
    model = train_lstm_language_model(
        texts_with_repeated_token[:500], 12, token_budget=150_000, d_model=32, context=14
    )
    last = model.compute_document_bits(
        texts_with_repeated_token[500:]
    ) - model.compute_document_bits([text[:5] for text in texts_with_repeated_token[500:]])
    assert last.mean() < 0.2  # without memory it costs two bits


def test_training_is_deterministic_and_does_not_change_torchs_generator(texts_with_repeated_token):
    def train(**more):
        options = {"token_budget": 2_000, "d_model": 8, "context": 14, "seed": 3}
        return train_lstm_language_model(
            texts_with_repeated_token, 12, **(options | more)
        ).embedding.weight

    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first = train()
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(first, train())
    assert not torch.equal(first, train(seed=4))
    assert not torch.equal(first, train(token_budget=3_000))


def test_every_row_is_read_before_any_is_repeated(monkeypatch):
    batches = []
    loss = LstmLanguageModel.compute_loss_sum
    monkeypatch.setattr(
        LstmLanguageModel, "compute_loss_sum", lambda m, b: batches.append(b) or loss(m, b)
    )
    text = toy_rows(1, 81, 50)[0].tolist()  # eight rows of ten, with the begin token
    train_lstm_language_model([text], 50, token_budget=160, d_model=8, context=10, batch_size=4)
    assert len(batches) == 4
    for half in (batches[:2], batches[2:]):
        rows = sorted(row for batch in half for row in batch.ids.tolist())
        flat = [50, *text]
        assert rows == sorted(flat[i : i + 10] for i in range(0, 80, 10))
        for batch in half:
            assert torch.equal(batch.ids[:, 1:], batch.targets[:, :-1])


@pytest.mark.parametrize("size", [3, 30, 700])
def test_a_small_text_is_repeated_up_to_the_token_budget(monkeypatch, size):
    weights_of_batches = []
    loss = LstmLanguageModel.compute_loss_sum
    monkeypatch.setattr(
        LstmLanguageModel,
        "compute_loss_sum",
        lambda m, b: weights_of_batches.append(b.require_targets_and_weights()[1]) or loss(m, b),
    )
    text = toy_rows(1, size, 50)[0].tolist()
    train_lstm_language_model([text], 50, token_budget=20_000, d_model=8)
    assert 18_000 <= sum(weights.sum() for weights in weights_of_batches) <= 20_000


@pytest.mark.parametrize("documents", [[], [[], []]])
def test_documents_without_tokens_are_refused(documents):
    with pytest.raises(ValueError, match="documents have no tokens to train on"):
        train_lstm_language_model(documents, 50, token_budget=1_000)


def test_a_text_shorter_than_a_row_is_learned():
    model = train_lstm_language_model(
        [[1, 2, 3]], 5, token_budget=2_000, d_model=16, context=32, batch_size=2
    )
    assert model.compute_document_bits([[1, 2, 3]])[0] < 0.1
