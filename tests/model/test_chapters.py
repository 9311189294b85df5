"""Statements of the textbook's chapters on transformers that no other test covers.

The row numbers are those of ``model/README.md``.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from hallmark.model import kernels, reference
from hallmark.model.architecture import FeedForward
from hallmark.model.batch import Batch
from hallmark.model.config import ModelConfig
from hallmark.model.decoding.activations import compute_contextual_embeddings
from hallmark.model.masks import MaskSpec
from hallmark.model.objectives import build_causal_batch
from hallmark.model.reference_kernels import use_reference_kernels
from tests.model.oracles import logits, random_tensor, tiny


def test_attention_without_weights_compares_the_words_themselves():
    """Rows 1 to 3: score(x_i, x_j) = x_i . x_j, softmax over j <= i, sum of the x_j."""
    x = random_tensor(5, 8).double().numpy()
    expected = np.zeros_like(x)
    for i in range(5):
        powers = [math.exp(x[i] @ x[j]) for j in range(i + 1)]
        expected[i] = sum(p / sum(powers) * x[j] for j, p in enumerate(powers))
    words = torch.from_numpy(x)[None, None]
    unscaled = words * math.sqrt(8)  # its own factor is 1 / sqrt(8)
    np.testing.assert_allclose(
        reference.compute_attention(unscaled, words, words, "causal")[0, 0], expected
    )


def test_the_cost_of_attention_grows_with_the_square_of_the_length():
    """Row 11, by torch's FLOP counter."""

    def cost(length):
        q, k, v = random_tensor(3, 1, 2, length, 8)
        with FlopCounterMode(display=False) as counter:
            reference.compute_attention(q, k, v, "causal")
        return counter.get_total_flops()

    assert cost(64) == 2 * 2 * 2 * 64 * 64 * 8  # two products, two heads, two operations
    assert cost(128) == 4 * cost(64)


@pytest.mark.parametrize("changes", [{}, {"positions": "rope", "norm_position": "post"}])
def test_positions_computed_at_once_equal_one_by_one(changes):
    """Row 13: a position's output does not depend on later tokens."""
    model, ids = tiny(**changes), torch.tensor([[0, 7, 9, 7, 30, 2]])
    at_once = logits(model, ids)[0]
    for t in range(6):
        alone = logits(model, ids[:, : t + 1])[0, -1]
        torch.testing.assert_close(at_once[t], alone, atol=1e-5, rtol=0)


def test_a_stack_applies_its_blocks_in_sequence():
    """Row 16."""
    stack, x = tiny(n_layers=3).decoder, random_tensor(2, 5, 32)
    y = x
    for block in stack.blocks:
        y = block(y, "causal")
    torch.testing.assert_close(stack(x, MaskSpec(causal=True)), stack.norm(y))
    assert len(stack.blocks) == 3


def test_heads_may_have_any_size_and_layers_keep_theirs():
    """Rows 18 and 19: by default 64 for width 512 and eight heads, as in the original."""
    assert ModelConfig(d_model=512, n_heads=8).head_dim == 64
    model = tiny(d_head=6, n_kv_heads=2, architecture="encoder_decoder")
    layer, memory = model.decoder.blocks[0].cross, random_tensor(2, 7, 32)
    assert layer.qkv.weight.shape == ((4 + 2 + 2) * 6, 32) and layer.out.weight.shape == (32, 24)
    q, (k, v) = layer.project_queries(memory[:, :3]), layer.project_keys_values(memory)
    assert q.shape == (2, 4, 3, 6) and k.shape == v.shape == (2, 2, 7, 6)
    assert layer(memory[:, :3], None, None, memory).shape == (2, 3, 32)
    for form in (kernels.dispatch_attention, reference.compute_attention):  # d_v need not be d_k
        values = random_tensor(2, 4, 7, 5)
        weights = (q @ k.repeat_interleave(2, 1).mT / math.sqrt(6)).softmax(-1)
        keys = k.repeat_interleave(2, 1)
        torch.testing.assert_close(form(q, keys, values), weights @ values)


def test_wavelengths_go_from_two_pi_to_ten_thousand_two_pi():
    """Row 22: the first pair rotates once in 2 pi positions, the last almost in 10000 x 2 pi."""
    from hallmark.model.positions import compute_sinusoids

    size = 512
    table = compute_sinusoids(torch.tensor([0, 1]), size).double()
    radians_per_position = torch.atan2(table[1, 0::2], table[1, 1::2])  # radians in a position
    waves = (2 * math.pi / radians_per_position).numpy()
    assert waves[0] == pytest.approx(2 * math.pi, rel=1e-5)
    assert (np.diff(waves) > 0).all()
    assert waves[-1] == pytest.approx(10_000 ** (1 - 2 / size) * 2 * math.pi, rel=1e-3)


def test_masks_combine_by_or_of_excluded_positions():
    """Rows 26 to 29: 1 = excluded in the chapter, True = may attend here."""
    key_mask = torch.tensor([[True, True, False, False]])
    padding = ~MaskSpec(key_mask=key_mask).build_dense_mask(4, 4, key_mask.device)
    sequence = ~MaskSpec(causal=True).build_dense_mask(4, 4, key_mask.device)
    both = ~MaskSpec(causal=True, key_mask=key_mask).build_dense_mask(4, 4, key_mask.device)
    assert padding.squeeze().tolist() == [False, False, True, True]
    assert sequence.squeeze().tolist() == [[j > i for j in range(4)] for i in range(4)]
    assert torch.equal(both, (padding | sequence))
    scores = random_tensor(1, 1, 4, 4)
    weights = reference.compute_attention_weights(scores, torch.eye(4)[None, None], ~both)
    assert (weights[both] == 0).all() and weights.sum(-1).allclose(torch.ones(4))


def test_a_recurrent_decoder_attends_by_the_same_function():
    """Rows 33 and 34: alpha = softmax(H^T s), c = H alpha, H the encoder's states as columns."""
    states, query = random_tensor(6, 9, seed=1), random_tensor(6, seed=2)
    alpha = torch.softmax(states.T @ query, 0)
    context = states @ alpha
    keys = states.T[None, None]  # (1, 1, 9, 6)
    scaled_query = (query * math.sqrt(6))[None, None, None]
    for form in (kernels.dispatch_attention, reference.compute_attention):
        torch.testing.assert_close(form(scaled_query, keys, keys)[0, 0, 0], context)


def test_a_tied_output_compares_states_with_embeddings():
    """Row 35: P(y_t | x, y_<t) = softmax(E h)."""
    model, batch = tiny(), Batch(torch.tensor([[0, 5, 9]]))
    hidden = model(batch)
    expected = torch.softmax(hidden @ model.embedding.weight.T, -1)
    torch.testing.assert_close(model.compute_logits(hidden).softmax(-1), expected)
    assert model.head.weight is model.embedding.weight
    untied = tiny(tie_embeddings=False)
    assert untied.head.weight is not untied.embedding.weight


def test_the_probability_of_a_text_is_the_product_over_its_words():
    """Rows 37 and 38: cross-entropy, perplexity, and the product they come from."""
    model, row = tiny(), np.array([[0, 5, 9, 33, 2]])
    p = logits(model, torch.from_numpy(row)).softmax(-1)[0]
    product = math.prod(p[t, row[0, t + 1]].item() for t in range(4))
    nats = model.compute_loss_sum(build_causal_batch(row)).item()
    assert math.exp(-nats) == pytest.approx(product, rel=1e-4)
    assert math.exp(nats / 4) == pytest.approx(product ** (-1 / 4), rel=1e-4)  # perplexity


def test_a_words_vector_depends_on_its_context():
    """Row 66: *great* has one vector below the first block, and different ones above it."""
    great, one, other = 7, [0, 3, 7], [0, 40, 7]
    model = tiny(positions="rope")
    same = [
        vectors[one.index(great)]
        for vectors in compute_contextual_embeddings(model, [one, other], layer=0)
    ]
    np.testing.assert_array_equal(*same)
    different = [
        vectors[one.index(great)] for vectors in compute_contextual_embeddings(model, [one, other])
    ]
    assert np.abs(different[0] - different[1]).max() > 0.1


FORMULAS = {
    "relu": lambda x: x.clamp(min=0),
    "sigmoid": lambda x: 1 / (1 + (-x).exp()),
    "tanh": lambda x: (x.exp() - (-x).exp()) / (x.exp() + (-x).exp()),
    "silu": lambda x: x / (1 + (-x).exp()),
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x / (1 + (-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).exp()),
}


@pytest.mark.parametrize("activation", [*FORMULAS, "swiglu"])
def test_activations_follow_their_formulas(activation):
    """Row 71, inside the feed-forward layer."""
    torch.manual_seed(0)
    layer = FeedForward(ModelConfig(d_model=8, n_heads=2, activation=activation)).double()
    x = random_tensor(3, 8).double()
    inside = F.linear(x, layer.up.weight, layer.up.bias)
    if activation == "swiglu":
        gate, value = inside.chunk(2, -1)
        expected = FORMULAS["silu"](gate) * value
    else:
        expected = FORMULAS[activation](inside)
    torch.testing.assert_close(layer(x), F.linear(expected, layer.down.weight, layer.down.bias))


def test_back_propagation_computes_the_slope_of_the_loss():
    """Row 73: against differences of the loss in ten random directions."""
    model = tiny(activation="tanh", norm_position="post").double()
    batch = build_causal_batch(np.array([[0, 5, 9, 33, 2]]))
    with use_reference_kernels(model):  # the fast loss keeps float32
        model.cross_entropy = sum_exact_cross_entropy
        model.compute_loss_sum(batch).backward()
        for seed in range(10):
            epsilon = 1e-5
            directions = [
                (p, random_tensor(*p.shape, seed=seed).double()) for p in model.parameters()
            ]
            slope = sum((p.grad * direction).sum().item() for p, direction in directions)
            values = []
            for factor in (1, -2, 1):  # forward, to the other side, and back
                with torch.no_grad():
                    for p, direction in directions:
                        p += factor * epsilon * direction
                    values.append(model.compute_loss_sum(batch).item())
            assert (values[0] - values[1]) / (2 * epsilon) == pytest.approx(slope, rel=1e-5)


def sum_exact_cross_entropy(hidden, weight, bias, targets, weights, z_loss, words):
    nats = F.cross_entropy(F.linear(hidden, weight, bias)[0], targets[0], reduction="none")
    return (nats * weights[0]).sum()
