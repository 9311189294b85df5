"""Embeddings and attention weights against the formula and transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hallmark.model.batch import Batch
from hallmark.model.decoding.activations import (
    compute_contextual_embeddings,
    extract_attention_weights,
)
from hallmark.model.interchange.transformers_checkpoint import export_transformers
from tests.model.interchange.test_transformers_checkpoint import BERT, FAMILIES, MARIAN
from tests.model.oracles import tiny, write_tokenizer

SEQUENCE = np.random.default_rng(4).integers(2, 61, 11).tolist()


@pytest.mark.parametrize("architecture", ["decoder", "encoder"])
def test_attention_of_one_layer_equals_the_formula(architecture):
    """softmax(q k^T / sqrt(D)) from the model's own matrices, in float64, head by head."""
    model = tiny(n_layers=1, architecture=architecture)
    [weights] = extract_attention_weights(model, SEQUENCE)[architecture]
    stack = model.decoder if architecture == "decoder" else model.encoder
    block, size, n = stack.blocks[0], 8, len(SEQUENCE)
    with torch.no_grad():
        x = model.embedding.weight[SEQUENCE] + model.position_embedding.weight[:n]
        x = block.attention_norm(x).double().numpy()
        matrix = block.attention.qkv.weight.double().numpy()
        bias = block.attention.qkv.bias.double().numpy()
    for head in range(4):
        rows = slice(head * size, (head + 1) * size)
        q = x @ matrix[:32][rows].T + bias[:32][rows]
        k = x @ matrix[32:64][rows].T + bias[32:64][rows]
        for i in range(n):
            visible_keys = range(i + 1 if architecture == "decoder" else n)
            powers = np.array([np.exp(q[i] @ k[j] / np.sqrt(size)) for j in visible_keys])
            np.testing.assert_allclose(
                weights[head, i, visible_keys], powers / powers.sum(), atol=1e-5
            )
            assert (weights[head, i, len(visible_keys) :] == 0).all()


def test_a_prefix_lm_reads_the_whole_text_in_both_directions():
    """This matches its prompts in decoding, also for texts of several lengths in one batch."""
    model = tiny(n_layers=2)
    model.objective = "prefix"
    texts = [SEQUENCE, SEQUENCE[:4]]
    for text, states in zip(texts, compute_contextual_embeddings(model, texts), strict=True):
        ids = torch.tensor([text])
        [expected] = model.decoder.norm(torch.from_numpy(states[None])).detach().numpy()
        alone = model.compute_hidden_states(Batch(ids, prefix=torch.tensor([len(text)])))
        np.testing.assert_allclose(alone[0].detach().numpy(), expected, atol=1e-5)
        for weights in extract_attention_weights(model, text)["decoder"]:
            assert (weights > 0).all()
            np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize("layer", [3, -4, 1.5])
def test_a_missing_layer_is_refused(layer):
    assert len(compute_contextual_embeddings(tiny(), [SEQUENCE], layer=2)) == 1
    with pytest.raises(ValueError, match=rf"layer must be between -3 and 2, not {layer}"):
        compute_contextual_embeddings(tiny(), [SEQUENCE], layer=layer)


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (FAMILIES["gpt2"], "CausalLM"),
        (FAMILIES["llama, grouped queries, untied"], "CausalLM"),
        (BERT, "MaskedLM"),
        (MARIAN, "Seq2SeqLM"),
    ],
)
@torch.no_grad()
def test_attention_of_every_stack_equals_transformers(config, kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    model = tiny(**config)
    tokenizer = write_tokenizer(tmp_path / "tok.json", 61)
    export_transformers(model, tmp_path / "theirs", tokenizer_path=tokenizer)
    model_class = getattr(transformers, f"AutoModelFor{kind}")
    theirs = model_class.from_pretrained(tmp_path / "theirs", attn_implementation="eager").eval()
    ids = torch.tensor([SEQUENCE])
    if kind == "Seq2SeqLM":
        out = theirs(input_ids=ids, decoder_input_ids=ids, output_attentions=True)
        expected = {
            "encoder": out.encoder_attentions,
            "decoder": out.decoder_attentions,
            "cross": out.cross_attentions,
        }
    else:
        stack = "decoder" if kind == "CausalLM" else "encoder"
        expected = {stack: theirs(ids, output_attentions=True).attentions}
    weights_by_stack = extract_attention_weights(model, SEQUENCE)
    assert weights_by_stack.keys() == expected.keys()
    for stack, layers in expected.items():
        assert len(weights_by_stack[stack]) == len(layers) == 2
        for ours, layer in zip(weights_by_stack[stack], layers, strict=True):
            assert ours.dtype == np.float32
            np.testing.assert_allclose(ours, layer[0].numpy(), atol=1e-5)


@pytest.mark.parametrize("architecture", ["decoder", "encoder", "encoder_decoder"])
def test_attention_rows_sum_to_one_and_a_decoder_never_looks_ahead(architecture):
    for stack, layers in extract_attention_weights(
        tiny(architecture=architecture), SEQUENCE
    ).items():
        for weights in layers:
            np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
            ahead = np.triu(weights, 1)
            assert (ahead == 0).all() if stack == "decoder" else (ahead > 0).any()


def compute_states_by_block(model, sequence):
    """Compute the states of each layer by calling the blocks in sequence."""
    stack = model.encoder or model.decoder
    x, rotation = model.embed_tokens(torch.tensor([sequence]), None)
    states = [x]
    for block in stack.blocks:
        states.append(block(states[-1], "causal" if stack.causal else None, rotation))
    return [state[0].detach().numpy() for state in states]


@pytest.mark.parametrize("architecture", ["decoder", "encoder", "encoder_decoder"])
@pytest.mark.parametrize("layer", [0, 1, -1])
def test_embeddings_equal_those_of_each_sequence_alone(architecture, layer):
    model = tiny(architecture=architecture)
    random = np.random.default_rng(0)
    sequences = [random.integers(0, 61, n).tolist() for n in (2, 5, 16, 1, 0, 3)]
    for sequence, got in zip(
        sequences, compute_contextual_embeddings(model, sequences, layer=layer), strict=True
    ):
        assert got.shape == (len(sequence), 32)
        if sequence:
            np.testing.assert_allclose(
                got, compute_states_by_block(model, sequence)[layer], atol=1e-5
            )


def test_extraction_does_not_change_the_model():
    """Neither hooks nor reference kernels remain, and the next result is the same as before."""
    model, batch = tiny(), Batch(torch.tensor([SEQUENCE]))
    kernels = [block.attention.kernel for block in model.decoder.blocks]
    before = model(batch)
    compute_contextual_embeddings(model, [SEQUENCE]), extract_attention_weights(model, SEQUENCE)
    with pytest.raises(ValueError, match="exceeds the context"):
        extract_attention_weights(model, [2] * 17)
    assert [block.attention.kernel for block in model.decoder.blocks] == kernels
    assert not any(block._forward_hooks for block in model.decoder.blocks)
    assert torch.equal(model(batch), before)


def test_cross_attention_equals_transformers(tmp_path):
    """The weights are (H, T, S) for every layer."""
    transformers = pytest.importorskip("transformers")
    model = tiny(**MARIAN)
    tokenizer = write_tokenizer(tmp_path / "tok.json", 61)
    export_transformers(model, tmp_path / "theirs", tokenizer_path=tokenizer)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        tmp_path / "theirs", attn_implementation="eager"
    ).eval()
    source, target = SEQUENCE[:7], [0, *SEQUENCE[7:], 5]
    weights_by_stack = extract_attention_weights(model, target, source=source)
    with torch.no_grad():
        out = theirs(
            input_ids=torch.tensor([source]),
            decoder_input_ids=torch.tensor([target]),
            output_attentions=True,
        )
    expected = {
        "encoder": out.encoder_attentions,
        "decoder": out.decoder_attentions,
        "cross": out.cross_attentions,
    }
    for stack, shape in (("encoder", (7, 7)), ("decoder", (6, 6)), ("cross", (6, 7))):
        for ours, layer in zip(weights_by_stack[stack], expected[stack], strict=True):
            assert ours.shape == (4, *shape)
            np.testing.assert_allclose(ours, layer[0].numpy(), atol=1e-5)
    other = extract_attention_weights(model, target, source=[*source[:-1], 9])
    assert abs(other["cross"][0] - weights_by_stack["cross"][0]).max() > 1e-3


@pytest.mark.parametrize(
    ("architecture", "source", "words"),
    [
        ("decoder", [2, 3], "not an encoder-decoder"),
        ("encoder_decoder", [], "The source is empty"),
        ("encoder_decoder", [2] * 17, "context of 16"),
        ("encoder_decoder", [61], "vocabulary"),
    ],
)
def test_invalid_sources_of_attention_weights_are_refused(architecture, source, words):
    with pytest.raises(ValueError, match=words):
        extract_attention_weights(tiny(architecture=architecture), [2, 3], source=source)


@pytest.mark.parametrize(
    ("sequence", "words"), [([2] * 17, "exceeds the context"), ([0.5], "not a list of token ids")]
)
def test_invalid_sequences_for_embeddings_are_refused(sequence, words):
    with pytest.raises(ValueError, match=words):
        compute_contextual_embeddings(tiny(), [sequence])


@pytest.mark.parametrize(
    ("sequence", "words"),
    [
        ([], "empty"),
        ([2] * 17, "context of 16"),
        ([2, 61], "vocabulary"),
        ([[2]], "not a list of token ids"),
        ([0.5], "not a list of token ids"),
    ],
)
def test_invalid_sequences_for_attention_weights_are_refused(sequence, words):
    with pytest.raises(ValueError, match=words):
        extract_attention_weights(tiny(), sequence)
