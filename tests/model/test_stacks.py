"""Encoder, decoder and encoder-decoder, against torch.nn.Transformer and each sequence alone."""

from __future__ import annotations

import cmath
import math

import pytest
import torch
from torch import nn

from hallmark.model.architecture import Stack, Transformer, make_norm_layer
from hallmark.model.batch import Batch
from hallmark.model.config import ModelConfig
from hallmark.model.decoding.cache import allocate_cache, compute_hidden_states_with_cache
from hallmark.model.masks import MaskSpec
from hallmark.model.positions import apply_rotary, compute_rotary_cos_sin, compute_sinusoids
from tests.model.oracles import logits, tiny

D, HEADS, FF, LAYERS = 32, 4, 48, 2


def copy_attention(ours, theirs):
    ours.qkv.weight.copy_(theirs.in_proj_weight)
    ours.qkv.bias.copy_(theirs.in_proj_bias)
    ours.out.load_state_dict(theirs.out_proj.state_dict())


@torch.no_grad()
def copy_stack(ours, layers):
    for block, layer in zip(ours.blocks, layers, strict=True):
        norms = [layer.norm1, layer.norm2]
        copy_attention(block.attention, layer.self_attn)
        block.attention_norm.load_state_dict(norms.pop(0).state_dict())
        if hasattr(layer, "multihead_attn"):
            copy_attention(block.cross, layer.multihead_attn)
            block.cross_norm.load_state_dict(norms.pop(0).state_dict())
            norms.append(layer.norm3)
        block.feed_forward_norm.load_state_dict(norms.pop(0).state_dict())
        block.feed_forward.up.load_state_dict(layer.linear1.state_dict())
        block.feed_forward.down.load_state_dict(layer.linear2.state_dict())


@pytest.mark.parametrize("pre", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_and_decoder_equal_torch_nn_transformer(pre, activation):
    torch.manual_seed(0)
    kinds = {
        "d_model": D,
        "nhead": HEADS,
        "dim_feedforward": FF,
        "dropout": 0.0,
        "activation": activation,
        "batch_first": True,
        "norm_first": pre,
    }
    last = (lambda: nn.LayerNorm(D)) if pre else (lambda: None)
    theirs = nn.Transformer(
        **kinds,
        custom_encoder=nn.TransformerEncoder(
            nn.TransformerEncoderLayer(**kinds), LAYERS, last(), enable_nested_tensor=False
        ),
        custom_decoder=nn.TransformerDecoder(nn.TransformerDecoderLayer(**kinds), LAYERS, last()),
    ).eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.2)
    config = ModelConfig(
        d_model=D,
        n_heads=HEADS,
        n_layers=LAYERS,
        d_ff=FF,
        norm_position="pre" if pre else "post",
        activation=activation,
    )
    encoder, decoder = (
        Stack(config, causal=False, has_cross_attention=False),
        Stack(config, causal=True, has_cross_attention=True),
    )
    copy_stack(encoder, theirs.encoder.layers)
    copy_stack(decoder, theirs.decoder.layers)
    if pre:
        encoder.norm.load_state_dict(theirs.encoder.norm.state_dict())
        decoder.norm.load_state_dict(theirs.decoder.norm.state_dict())

    source, target = torch.randn(3, 7, D), torch.randn(3, 5, D)
    keys = torch.arange(7) < torch.tensor([[7], [4], [1]])  # real source tokens
    target_keys = torch.arange(5) < torch.tensor([[5], [2], [4]])
    with torch.no_grad():
        expected = theirs(
            source,
            target,
            tgt_mask=torch.ones(5, 5).triu(1).bool(),
            src_key_padding_mask=~keys,
            tgt_key_padding_mask=~target_keys,
            memory_key_padding_mask=~keys,
        )
        memory = encoder(source, MaskSpec(key_mask=keys))
        mask = MaskSpec(causal=True, key_mask=target_keys)
        got = decoder(target, mask, memory=memory, memory_mask=MaskSpec(key_mask=keys))
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rope"])
def test_padding_does_not_change_encoder_states(positions):
    model = tiny(architecture="encoder", positions=positions)
    rows = [[5, 6, 7, 8, 9], [3, 4]]
    padded = torch.tensor([[5, 6, 7, 8, 9], [3, 4, 1, 1, 1]])
    hidden = model(Batch(padded, attention_mask=padded != 1))
    for i, row in enumerate(rows):
        alone = model(Batch(torch.tensor([row])))[0]
        torch.testing.assert_close(hidden[i, : len(row)], alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("changes", [{}, {"positions": "rope", "n_kv_heads": 2}])
def test_a_causal_stack_needs_no_padding_mask(changes, monkeypatch):
    """It keeps the causal kernel, and real tokens get the same states as in each row alone."""
    model, masks = tiny(**changes), []
    to_kernel_mask = MaskSpec.to_kernel_mask

    def record_mask(*fields):
        masks.append(to_kernel_mask(*fields))
        return masks[-1]

    monkeypatch.setattr(MaskSpec, "to_kernel_mask", record_mask)
    rows = [[5, 6, 7, 8, 9], [3, 4]]
    ids = torch.tensor([[5, 6, 7, 8, 9], [3, 4, 1, 1, 1]])
    prefix = torch.tensor([3, 1])
    for fields in ({}, {"prefix": prefix}):
        hidden = model(Batch(ids, attention_mask=ids != 1, **fields))
        for i, row in enumerate(rows):
            row_fields = {name: value[i : i + 1] for name, value in fields.items()}
            alone = model(Batch(torch.tensor([row]), **row_fields))[0]
            torch.testing.assert_close(hidden[i, : len(row)], alone, atol=1e-5, rtol=0)
    assert masks[:3] == ["causal"] * 3


def test_the_encoder_reads_both_directions():
    model = tiny(architecture="encoder")
    before = model(Batch(torch.tensor([[2, 3, 4, 5]])))
    after = model(Batch(torch.tensor([[2, 3, 4, 6]])))
    assert not torch.allclose(before[:, 0], after[:, 0], atol=1e-3)


def test_source_padding_does_not_change_decoder_logits():
    model = tiny(architecture="encoder_decoder", positions="sinusoidal", norm_position="post")
    source = torch.tensor([[5, 6, 7, 8], [9, 3, 1, 1]])
    target = torch.tensor([[0, 4, 4], [0, 7, 2]])
    both = logits(model, target, source=source, source_attention_mask=source != 1)
    torch.testing.assert_close(
        both[0], logits(model, target[:1], source=source[:1])[0], atol=1e-5, rtol=0
    )
    torch.testing.assert_close(
        both[1], logits(model, target[1:], source=source[1:, :2])[0], atol=1e-5, rtol=0
    )


def test_cached_steps_of_an_encoder_decoder_equal_the_full_pass():
    model = tiny(architecture="encoder_decoder", positions="rope")
    source = torch.tensor([[5, 6, 7, 8], [9, 3, 1, 1]])
    target = torch.tensor([[0, 4, 4, 9, 6], [0, 7, 2, 3, 3]])
    source_fields = {"source": source, "source_attention_mask": source != 1}
    expected = model(Batch(target, **source_fields))
    cache = allocate_cache(model, 2, 5)
    for t in range(5):
        cache.slots, cache.filled_length = slice(t, t + 1), t + 1
        ids, positions = target[:, t : t + 1], torch.full((2, 1), t)
        step = compute_hidden_states_with_cache(
            model, Batch(ids, positions=positions, **(source_fields if t == 0 else {})), cache
        )
        torch.testing.assert_close(step[:, 0], expected[:, t], atol=1e-5, rtol=0)


def test_an_encoder_decoder_without_a_source_is_refused():
    with pytest.raises(ValueError, match="needs a source sequence"):
        tiny(architecture="encoder_decoder")(Batch(torch.tensor([[0]])))


def test_without_positions_a_permuted_input_gives_the_permuted_output():
    torch.manual_seed(0)
    config = ModelConfig(d_model=D, n_heads=HEADS, n_layers=LAYERS)
    stack = Stack(config, causal=False, has_cross_attention=False).eval()
    x, order = torch.randn(2, 6, D), torch.tensor([3, 0, 5, 1, 4, 2])
    permuted = stack(x[:, order], MaskSpec())
    torch.testing.assert_close(permuted, stack(x, MaskSpec())[:, order], atol=1e-5, rtol=0)
    model = tiny(architecture="encoder")
    ids = torch.arange(2, 8).unsqueeze(0)
    moved, original = model(Batch(ids[:, order])), model(Batch(ids))
    assert not torch.allclose(moved, original[:, order], atol=1e-3)


def test_sinusoids_follow_the_formula():
    table = compute_sinusoids(torch.arange(50), 16)
    for position in (0, 1, 7, 49):
        for i in range(8):
            angle = position / 10000 ** (2 * i / 16)
            assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-5)
            assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "scaled"),
    [
        ({"positions": "sinusoidal"}, True),
        ({"positions": "sinusoidal", "scale_embeddings": False}, False),
        ({"positions": "rope"}, False),
        ({"positions": "rope", "scale_embeddings": True}, True),
    ],
)
def test_sinusoids_are_added_to_scaled_embeddings(changes, scaled):
    config = ModelConfig(d_model=128, vocab_size=50, **changes)
    model, ids = Transformer(config), torch.tensor([[5, 9, 7]])
    embedded, _ = model.embed_tokens(ids, None)
    rest = embedded - model.embedding(ids) * (math.sqrt(128) if scaled else 1)
    if config.positions == "sinusoidal":
        torch.testing.assert_close(rest[0], compute_sinusoids(torch.arange(3), 128))
        # Without scaling the ratio is 35 at initialisation.
        assert (rest.std() / (embedded - rest).std() < 4) == scaled
    else:
        assert not rest.any()


def test_rotary_positions_rotate_pairs_of_dimensions():
    """Dimension i with i + D/2, by position x theta^(-2i/D): Su et al. 2021, in Llama's layout."""
    x = torch.tensor([1.0, 2.0, 3.0, 4.0]).expand(2, 3, 2, 4)  # (B, H, T, D)
    rotated = apply_rotary(x, *compute_rotary_cos_sin(torch.tensor([[0, 1], [5, 7]]), 4, 100.0))
    for (row, place), position in zip([(0, 0), (0, 1), (1, 0), (1, 1)], (0, 1, 5, 7), strict=True):
        for i in range(2):
            z = complex(x[0, 0, 0, i], x[0, 0, 0, i + 2]) * cmath.exp(1j * position / 10**i)
            for head in range(3):
                rotated_vector = rotated[row, head, place]
                assert complex(rotated_vector[i], rotated_vector[i + 2]) == pytest.approx(
                    z, abs=1e-4
                )


def test_rotary_products_depend_only_on_distance():
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 1, 1, 8)

    def product(i, j):
        turned_q = apply_rotary(q, *compute_rotary_cos_sin(torch.tensor([[i]]), 8, 10_000.0))
        turned_k = apply_rotary(k, *compute_rotary_cos_sin(torch.tensor([[j]]), 8, 10_000.0))
        return (turned_q * turned_k).sum().item()

    assert product(0, 0) == pytest.approx((q * k).sum().item(), abs=1e-5)
    assert product(9, 4) == pytest.approx(product(105, 100), abs=1e-4)
    assert product(9, 4) != pytest.approx(product(9, 5), abs=1e-3)


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_norms_follow_their_formulas(kind):
    torch.manual_seed(0)
    norm = make_norm_layer(ModelConfig(d_model=D, norm=kind, norm_eps=1e-6))
    nn.init.normal_(norm.weight)
    x = torch.randn(4, D)
    if kind == "layernorm":
        nn.init.normal_(norm.bias)
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        expected = norm.weight * centred / (variance + 1e-6).sqrt() + norm.bias
    else:
        expected = norm.weight * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(norm(x), expected)


def test_architectures_have_the_stacks_they_need():
    shapes = {
        kind: Transformer(ModelConfig(architecture=kind, d_model=D, n_layers=1))
        for kind in ("decoder", "encoder", "encoder_decoder")
    }
    assert shapes["decoder"].encoder is None and shapes["encoder"].decoder is None
    both = shapes["encoder_decoder"]
    assert hasattr(both.decoder.blocks[0], "cross") and not hasattr(both.encoder.blocks[0], "cross")
