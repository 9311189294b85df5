"""The architecture against brute force: attention under every mask, documents, sizes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import hallmark.model
from hallmark.model import architecture, kernels, reference
from hallmark.model.batch import Batch
from hallmark.model.masks import MaskSpec
from hallmark.model.objectives import build_causal_batch
from tests.model.oracles import logits, tiny


def brute_force_attention(q, k, v, allowed):
    """Compute softmax(q.k / sqrt(D)) v in loops and float64; ``allowed``(b, i, j): may i see j?"""
    batch, heads, queries, size = q.shape
    out = np.zeros(q.shape)
    for b in range(batch):
        for h in range(heads):
            kv = h * k.shape[1] // heads
            for i in range(queries):
                visible_keys = [j for j in range(k.shape[2]) if allowed(b, i, j)]
                scores = np.array([q[b, h, i] @ k[b, kv, j] / size**0.5 for j in visible_keys])
                weights = np.exp(scores - scores.max())
                weights /= weights.sum()
                out[b, h, i] = sum(
                    w * v[b, kv, j] for w, j in zip(weights, visible_keys, strict=True)
                )
    return out


MASKS = {
    "none": (MaskSpec(), lambda b, i, j: True),
    "sequence": (MaskSpec(causal=True), lambda b, i, j: j <= i),
    "padding": (
        MaskSpec(key_mask=torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()),
        lambda b, i, j: j < (3, 5)[b],
    ),
    "sequence and padding": (
        MaskSpec(causal=True, key_mask=torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()),
        lambda b, i, j: j <= i and j < (3, 5)[b],
    ),
    "prefix": (
        MaskSpec(causal=True, prefix=torch.tensor([2, 4])),
        lambda b, i, j: j <= i or j < (2, 4)[b],
    ),
    "documents": (
        MaskSpec(causal=True, segments=torch.tensor([[0, 0, 1, 1, 2], [1, 1, 1, 1, 2]])),
        lambda b, i, j: (
            j <= i and (0, 0, 1, 1, 2)[i] == (0, 0, 1, 1, 2)[j]
            if b == 0
            else j <= i and (1, 1, 1, 1, 2)[i] == (1, 1, 1, 1, 2)[j]
        ),
    ),
    "documents read both ways, and padding": (
        MaskSpec(
            key_mask=torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool(),
            segments=torch.tensor([[1, 1, 2, 2, 2], [1, 2, 2, 3, 3]]),
        ),
        lambda b, i, j: (
            j < (3, 5)[b]
            and ((1, 1, 2, 2, 2), (1, 2, 2, 3, 3))[b][i] == ((1, 1, 2, 2, 2), (1, 2, 2, 3, 3))[b][j]
        ),
    ),
    "a document's own source": (
        MaskSpec(
            segments=torch.tensor([[1, 1, 2, 2, 2], [1, 2, 2, 3, 3]]),
            key_segments=torch.tensor([[1, 2, 2, 2, 2], [1, 1, 1, 2, 3]]),
        ),
        lambda b, i, j: (
            ((1, 1, 2, 2, 2), (1, 2, 2, 3, 3))[b][i] == ((1, 2, 2, 2, 2), (1, 1, 1, 2, 3))[b][j]
        ),
    ),
}


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("name", MASKS)
def test_attention_under_every_mask_equals_brute_force(name, kv_heads):
    spec, allowed = MASKS[name]
    torch.manual_seed(0)
    q = torch.randn(2, 4, 5, 8)
    k, v = torch.randn(2, 2, kv_heads, 5, 8)
    expected = brute_force_attention(*(x.double().numpy() for x in (q, k, v)), allowed)
    mask = spec.build_dense_mask(5, 5, q.device)
    x = torch.zeros(2, 5, 32)
    assert isinstance(spec.to_kernel_mask(x, x, True), str) is (name == "sequence")
    for lowered in [mask, "causal"] if name == "sequence" else [mask]:
        for form in (kernels.dispatch_attention, reference.compute_attention):
            np.testing.assert_allclose(form(q, k, v, lowered).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_equals_the_dense_mask(name, kv_heads):
    spec, _ = MASKS[name]
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, 5, 8) for heads in (4, kv_heads, kv_heads))
    dense = kernels.dispatch_attention(q, k, v, spec.build_dense_mask(5, 5, q.device))
    for form in (kernels.dispatch_attention, reference.compute_attention):
        flex = form(q, k, v, spec.build_block_mask(2, 5, 5, q.device))
        torch.testing.assert_close(flex, dense, atol=1e-6, rtol=0)


@pytest.mark.parametrize("documents", [True, False])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_blocks_over_a_source_of_another_length_equal_the_dense_mask(documents):
    torch.manual_seed(0)
    key_mask = torch.arange(130) < torch.tensor([[130], [70]])
    segment_ids = (
        torch.tensor([[1] * 3 + [2] * 4, [1] * 7]),
        torch.tensor([[1] * 50 + [2] * 80, [1] * 130]),
    )
    segments = {"segments": segment_ids[0], "key_segments": segment_ids[1]} if documents else {}
    spec = MaskSpec(key_mask=key_mask, **segments)
    q, k, v = torch.randn(2, 4, 7, 8), *torch.randn(2, 2, 4, 130, 8)
    flex = kernels.dispatch_attention(q, k, v, spec.build_block_mask(2, 7, 130, q.device))
    dense = kernels.dispatch_attention(q, k, v, spec.build_dense_mask(7, 130, q.device))
    torch.testing.assert_close(flex, dense, atol=1e-6, rtol=0)
    assert (dense[1] - kernels.dispatch_attention(q, k, v)[1]).abs().max() > 0.01


def test_flex_attention_is_used_where_its_blocks_save_work():
    """The mask must be more than causal, and its sides multiples of 128 tokens."""
    ones = torch.ones(1, 256, dtype=torch.long)
    assert MaskSpec(causal=True, segments=ones).is_block_mask_worthwhile(256, 256)
    assert MaskSpec(key_mask=ones.bool(), segments=ones).is_block_mask_worthwhile(
        256, 256
    )  # masked LM
    assert MaskSpec(causal=True, prefix=ones[:, 0]).is_block_mask_worthwhile(256, 256)
    assert MaskSpec(key_mask=ones.bool()).is_block_mask_worthwhile(128, 256)  # a padded source
    assert not MaskSpec(causal=True, segments=ones).is_block_mask_worthwhile(250, 256)
    assert not MaskSpec(key_mask=ones.bool()).is_block_mask_worthwhile(256, 250)
    assert not MaskSpec(causal=True).is_block_mask_worthwhile(256, 256)


@pytest.mark.parametrize("length", [1, 2, 7, 32])
def test_compiled_causal_attention_in_bf16_agrees_with_brute_force(length):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, length, 16).bfloat16() for heads in (4, 2, 2))
    q.requires_grad_()
    compiled = torch.compile(kernels.dispatch_attention, backend="aot_eager", fullgraph=True)
    output = compiled(q, k, v, "causal")
    arrays = (x.detach().double().numpy() for x in (q, k, v))
    expected = brute_force_attention(*arrays, lambda b, i, j: j <= i)
    np.testing.assert_allclose(output.detach().float().numpy(), expected, atol=0.03)
    (gradient,) = torch.autograd.grad(output.float().square().sum(), q)
    exact = reference.compute_attention(*(x.float() for x in (q, k, v)), "causal")
    (expected_gradient,) = torch.autograd.grad(exact.square().sum(), q)
    torch.testing.assert_close(gradient.float(), expected_gradient.float(), atol=0.05, rtol=0.05)


def test_plain_attention_in_bf16_agrees_with_the_kernel():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 32, 16)
    exact = kernels.dispatch_attention(q, k, v, "causal")
    low = kernels.dispatch_attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), "causal")
    assert (exact - low.float()).abs().max() < 0.05


def test_a_fully_masked_query_gives_no_nan():
    q = torch.randn(1, 1, 2, 4)
    mask = torch.tensor([[[[True, False], [False, False]]]])
    for form in (kernels.dispatch_attention, reference.compute_attention):
        assert form(q, q, q, mask).isfinite().all()


VARIANTS = [
    {},
    {"norm": "rmsnorm", "positions": "rope", "activation": "swiglu", "bias": False},
    {"norm_position": "post", "positions": "sinusoidal", "activation": "relu"},
    {"n_kv_heads": 2, "d_head": 6, "tie_embeddings": False, "activation": "gelu_tanh"},
]


@pytest.mark.parametrize("changes", VARIANTS)
def test_later_tokens_do_not_change_earlier_logits(changes):
    model = tiny(**changes)
    ids = torch.randint(2, 61, (2, 12))
    changed = ids.clone()
    changed[:, 7:] = torch.randint(2, 61, (2, 5))
    before, after = logits(model, ids), logits(model, changed)
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


@pytest.mark.parametrize("changes", VARIANTS)
def test_document_masking_gives_each_document_its_logits_alone(changes):
    model = tiny(**changes)
    documents = [[0, 5, 6, 7], [0, 9, 8, 7, 6, 5], [0, 3], [0, 4, 4, 4]]
    row = np.array([[token for document in documents for token in document]])
    batch = build_causal_batch(row, document_mask=True)
    packed = model.compute_logits(model(batch))[0]
    begin = 0
    for document in documents:
        alone = logits(model, torch.tensor([document]))[0]
        torch.testing.assert_close(packed[begin : begin + len(document)], alone, atol=1e-5, rtol=0)
        begin += len(document)
    assert not torch.allclose(packed, logits(model, batch.ids)[0], atol=1e-3)


@pytest.mark.parametrize("changes", VARIANTS)
def test_parameter_groups_add_up(changes):
    model = tiny(**changes)
    count = model.count_parameters_by_group()
    total = count.pop("total")
    assert total == sum(count.values()) == sum(p.numel() for p in model.parameters())


def test_parameter_count_of_gpt2_small():
    with torch.device("meta"):
        config = architecture.ModelConfig(
            vocab_size=50257, context=1024, d_model=768, n_layers=12, n_heads=12
        )
        assert architecture.Transformer(config).count_parameters_by_group()["total"] == 124_439_808


def test_initial_loss_equals_a_uniform_guess():
    torch.manual_seed(0)
    model = architecture.Transformer(
        architecture.ModelConfig(vocab_size=512, context=32, d_model=64, n_layers=3)
    )
    ids = torch.randint(0, 512, (8, 32))
    loss = F.cross_entropy(logits(model, ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert abs(loss.item() - np.log(512)) < 0.05


def test_a_sequence_longer_than_the_context_is_refused():
    with pytest.raises(ValueError, match="17 tokens exceeds the context of 16"):
        tiny()(Batch(torch.zeros(1, 17, dtype=torch.long)))


def test_reading_order_names_every_core_module():
    """The package docstring lists the core modules in reading order, or names them below."""
    folder = Path(hallmark.model.__file__).parent
    (order,) = re.findall(r"in this order:\n\n((?: {4}\S.*\n)+)", hallmark.model.__doc__)
    names = [line.split()[0] for line in order.splitlines()]
    assert names[0] == "config" and names[-1] == "loss"
    support_modules = {
        "__init__",
        "config_checks",
        "keyed_randomness",
        "kernels",
        "padding",
        "precision",
        "reference",
        "reference_kernels",
        "special_tokens",
    }
    assert set(names) | support_modules == {path.stem for path in folder.glob("*.py")}
