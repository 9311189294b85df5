"""Counted operations of a training step, against those that torch counts at run time."""

from __future__ import annotations

import numpy as np
import pytest
from torch.utils.flop_counter import FlopCounterMode

from hallmark.model import reference
from hallmark.model.attention import Attention
from hallmark.model.objectives import (
    build_causal_batch,
    build_mlm_batch,
    build_prefix_batch,
    build_seq2seq_batch,
)
from hallmark.model.training.adaptation import freeze_all_but_output_layer
from hallmark.model.training.example_batches import make_example_objective
from hallmark.model.training.examples import Example
from hallmark.model.training.flops import count_training_flops
from tests.model.oracles import tiny, toy_rows

ROWS = toy_rows(6, 16, 61).astype(np.int64)
PAIRS = [[5] * n for n in (3, 9, 14)], [[6] * n for n in (7, 2, 4)]


def count_with_torch(model, batch):
    """Count with torch and reference kernels, since torch cannot count all the fast ones."""
    for module in model.modules():
        if isinstance(module, Attention):
            module.kernel = reference.compute_attention
    model.cross_entropy = reference.sum_cross_entropy
    with FlopCounterMode(display=False) as counter:
        model.compute_loss_sum(batch).backward()
    return counter.get_total_flops()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_embeddings": False, "bias": False, "n_layers": 3},
        {"n_kv_heads": 2, "positions": "rope"},  # keys and values are repeated for their queries
        {"activation": "swiglu", "norm": "rmsnorm"},
        {"d_ff": 40, "positions": "sinusoidal"},
        {"d_head": 12, "vocab_multiple": 64},
    ],
)
@pytest.mark.parametrize("kind", ["decoder", "prefix", "encoder", "encoder_decoder"])
def test_flops_equal_those_counted_by_torch(kind, changes):
    batch = {
        "decoder": lambda: build_causal_batch(ROWS),
        "prefix": lambda: build_prefix_batch(ROWS, np.arange(1, 7)),
        "encoder": lambda: build_mlm_batch(ROWS, 0, mask_id=60, vocab_size=61),
        "encoder_decoder": lambda: build_seq2seq_batch(*PAIRS),
    }[kind]()
    model = tiny(architecture="decoder" if kind == "prefix" else kind, **changes)
    assert count_training_flops(model, batch) == count_with_torch(model, batch)


def test_a_transform_before_the_output_layer_is_counted():
    model = tiny(architecture="encoder", head_transform=True)
    batch = build_mlm_batch(ROWS, 0, mask_id=60, vocab_size=61)
    assert count_training_flops(model, batch) == count_with_torch(model, batch)


@pytest.mark.parametrize("transform", [False, True])
def test_a_frozen_body_has_no_backward_pass(transform):
    model = tiny(
        architecture="encoder",
        labels=("a", "b", "c"),
        tie_embeddings=False,
        head_transform=transform,
    )
    batch = make_example_objective(model.config, "labels")(
        [Example([5, 6, 7, 8], [0, 1, 2, 1])] * 3, 0, 0
    )
    full_training = count_training_flops(model, batch)
    assert full_training == count_with_torch(model, batch)
    freeze_all_but_output_layer(model)
    assert count_training_flops(model, batch) == count_with_torch(model, batch)
    assert count_training_flops(model, batch) < 0.4 * full_training


def test_flops_of_a_decoder_equal_palms_formula():
    model = tiny(bias=False, norm="rmsnorm", positions="rope")
    rows, context = ROWS.shape
    matrices = sum(p.numel() for p in model.parameters() if p.ndim == 2)
    flops_per_token = 6 * matrices + 12 * model.config.n_layers * model.config.d_model * context
    assert count_training_flops(model, build_causal_batch(ROWS)) == rows * context * flops_per_token


def test_an_encoder_decoder_counts_the_tokens_of_each_stack():
    """Counting all tokens of the rows for each stack would give nearly twice as much."""
    model = tiny(architecture="encoder_decoder", context=64)
    sources, targets = [[5] * 55] * 4, [[6] * 18] * 4
    batch = build_seq2seq_batch(sources, targets)
    parameter_count = sum(p.numel() for p in model.parameters())
    flops_of_all_tokens = (
        6 * parameter_count + 12 * 3 * model.config.n_layers * model.config.d_model * 64
    )
    assert count_training_flops(model, batch) < 0.6 * flops_of_all_tokens * 4 * 64
