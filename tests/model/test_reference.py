"""The fast kernels against the reference kernels, by ``use_reference_kernels``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hallmark.model import kernels, reference
from hallmark.model.decoding.generation import generate
from hallmark.model.decoding.sampling import TokenSampler
from hallmark.model.loss import sum_linear_cross_entropy
from hallmark.model.objectives import (
    build_causal_batch,
    build_mlm_batch,
    build_prefix_batch,
    build_span_corruption_batch,
)
from hallmark.model.reference_kernels import use_reference_kernels
from tests.model.oracles import generate_without_cache, tiny, toy_rows

ROWS = toy_rows(4, 16, 50).astype(np.int64)
LENGTHS = np.array([1, 5, 9, 15])
KINDS = {
    "causal": ({}, lambda: build_causal_batch(ROWS)),
    "documents": (
        {"positions": "rope", "n_kv_heads": 2},
        lambda: build_causal_batch(ROWS, document_mask=True),
    ),
    "prefix": ({"norm_position": "post"}, lambda: build_prefix_batch(ROWS, LENGTHS)),
    "masked": (
        {"architecture": "encoder", "head_transform": True, "head_bias": True},
        lambda: build_mlm_batch(ROWS, 1, mask_id=60, vocab_size=61, mask_rate=0.5),
    ),
    "spans": (
        {"architecture": "encoder_decoder", "positions": "sinusoidal", "tie_embeddings": False},
        lambda: build_span_corruption_batch(ROWS, 1, sentinels=range(55, 60)),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("z_loss", [0.0, 0.1])
def test_loss_and_gradients_equal_the_reference(kind, z_loss):
    changes, batch = KINDS[kind]
    model = tiny(**changes)
    fast = model.compute_loss_sum(batch(), z_loss)
    fast.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    with use_reference_kernels(model) as weights:
        slow = model.compute_loss_sum(batch(), z_loss)
        slow.backward()
    assert len(weights) == (6 if kind == "spans" else 2)
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=0)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("z_loss", [0.0, 0.1])
def test_loss_of_predicted_positions_equals_loss_of_all_positions(z_loss):
    model = tiny(**KINDS["masked"][0])
    batch_of_few = build_mlm_batch(ROWS, 1, mask_id=60, vocab_size=61).with_predicted_positions()
    row_counts, results = [], []

    def count_rows(hidden, *rest):
        row_counts.append(hidden.shape[:-1].numel())
        return sum_linear_cross_entropy(hidden, *rest)

    model.cross_entropy = count_rows
    for batch in (batch_of_few, replace(batch_of_few, predicted_positions=None)):
        model.zero_grad()
        loss = model.compute_loss_sum(batch, z_loss)
        loss.backward()
        results.append((loss, [p.grad for p in model.parameters()]))
    assert row_counts == [11, 4 * 16]  # 8, rounded up
    torch.testing.assert_close(results[0][0], results[1][0])
    for one, other in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    losses = [
        model.compute_token_losses(b) * batch_of_few.weights
        for b in (batch_of_few, replace(batch_of_few, predicted_positions=None))
    ]
    torch.testing.assert_close(*losses)
    assert losses[0].count_nonzero() == batch_of_few.weights.sum()


def test_a_fully_predicted_batch_is_not_copied():
    batch, hidden = build_causal_batch(ROWS), torch.zeros(4, 16, 3)
    assert batch.predicted_positions is None and batch.select_predicted(hidden) is hidden


@pytest.mark.parametrize("form", [kernels.dispatch_attention, reference.compute_attention])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_drops_weights_and_scales_the_rest(form, dtype):
    """Each of four equal weights is dropped with probability 0.5, or doubled."""
    torch.manual_seed(0)
    q, k = torch.zeros(2, 1, 1, 4000, 4, dtype=dtype)
    v = torch.eye(4, dtype=dtype).expand(1, 1, 4, 4)
    weights = form(q, k[:, :, :4], v, None, 0.5)[0, 0]
    assert set(weights.flatten().tolist()) == {0.0, 0.5}
    assert abs((weights == 0).float().mean() - 0.5) < 0.02


def test_attention_dropout_only_acts_in_training():
    model, batch = tiny(attention_dropout=0.5), build_causal_batch(ROWS)
    assert torch.equal(model(batch), model(batch))
    assert torch.equal(model(batch), tiny()(batch))
    model.train()
    torch.manual_seed(1)
    first = model(batch)
    assert not torch.allclose(first, model(batch), atol=1e-2)
    torch.manual_seed(1)
    assert torch.equal(first, model(batch))


@pytest.mark.parametrize(
    ("dtype", "queries", "keys", "uses_plain_product"),
    [
        (torch.bfloat16, 512, 512, True),
        (torch.bfloat16, 513, 513, False),
        (torch.bfloat16, 1, 600, True),
        (torch.float32, 1, 600, True),
        (torch.float32, 2, 600, False),
    ],
)
def test_short_sequences_and_single_queries_use_plain_products_on_the_cpu(
    monkeypatch, dtype, queries, keys, uses_plain_product
):
    calls, form = [], reference.compute_attention
    monkeypatch.setattr(
        reference, "compute_attention", lambda *arguments: (calls.append(1), form(*arguments))[1]
    )
    q, k = torch.ones(1, 1, queries, 4, dtype=dtype), torch.ones(1, 1, keys, 4, dtype=dtype)
    torch.testing.assert_close(kernels.dispatch_attention(q, k, k), q, atol=0.01, rtol=0)
    assert bool(calls) == uses_plain_product


def test_reference_kernels_are_removed_after_an_error():
    model = tiny()
    layers = [block.attention for block in model.decoder.blocks]
    with pytest.raises(RuntimeError, match="stop"), use_reference_kernels(model):
        assert all(layer.kernel != kernels.dispatch_attention for layer in layers)
        assert model.cross_entropy == reference.sum_cross_entropy
        raise RuntimeError("stop")
    assert all(layer.kernel == kernels.dispatch_attention for layer in layers)
    assert model.cross_entropy == sum_linear_cross_entropy


@pytest.mark.parametrize("objective", ["causal", "prefix"])
@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.0},
        {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
        {"min_p": 0.05, "first_temperature": 4.0, "decay_tokens": 9},
        {"repetition_penalty": 2.0},
    ],
)
def test_generated_text_equals_the_loop_without_cache(settings, objective):
    """This also holds for a model in training mode."""
    model = tiny(norm_position="post", positions="rope", dropout=0.5).train()
    model.objective = objective
    prompts = [[0], [0, 5, 9], [4] * 16, list(range(2, 45))]
    options = {"max_new_tokens": 30, "seed": 3, "stop": (7, 11), "forbid": (1,)}
    continuations = generate(model, prompts, **options, **settings)
    with use_reference_kernels(model):
        for prompt, (text,) in zip(prompts, continuations, strict=True):
            assert text.ids == generate_without_cache(
                model, prompt, TokenSampler(**settings), **options
            )
