"""A vocabulary padded to a multiple of 64, against the same model without padding."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from hallmark.model.architecture import Transformer
from hallmark.model.config import ModelConfig
from hallmark.model.decoding.beam_search import decode_with_beam_search
from hallmark.model.decoding.generation import generate
from hallmark.model.decoding.token_scores import (
    compute_next_log_probs,
    compute_token_log_probs,
    compute_token_statistics,
)
from hallmark.model.interchange.checkpoint import load_checkpoint, save_checkpoint
from hallmark.model.interchange.transformers_checkpoint import (
    export_transformers,
    import_transformers,
)
from hallmark.model.objectives import build_causal_batch, build_mlm_batch
from hallmark.model.reference_kernels import use_reference_kernels
from tests.model.oracles import tiny, toy_rows, write_tokenizer

WORDS, TABLE = 61, 64
TABLES = ("embedding.weight", "head.weight", "head.bias")
PROMPTS = [[0], [0, 5, 9], [4] * 16]


def make_padded_model(**changes: object) -> Transformer:
    """Return a model whose padding would win everywhere if it counted."""
    model = tiny(vocab_multiple=TABLE, **changes)
    with torch.no_grad():
        model.embedding.weight[WORDS:] = 50.0
        model.head.weight[WORDS:] = 50.0
        if model.head.bias is not None:
            model.head.bias[WORDS:] = 1e4
    return model


def remove_padding(model: Transformer) -> Transformer:
    """Return the same model without padding."""
    one = Transformer(replace(model.config, vocab_multiple=1)).eval()
    state = model.state_dict()
    one.load_state_dict({k: v[:WORDS] if k in TABLES else v for k, v in state.items()})
    return one


def test_tables_are_padded_to_the_next_multiple():
    for words, multiple, rows in [(61, 64, 64), (64, 64, 64), (65, 64, 128), (61, 1, 61)]:
        config = ModelConfig(vocab_size=words, vocab_multiple=multiple)
        assert config.padded_vocab_size == rows
    assert (
        make_padded_model().embedding.num_embeddings
        == make_padded_model().head.out_features
        == TABLE
    )


VARIANTS = [
    {},
    {"tie_embeddings": False},
    {"architecture": "encoder", "head_transform": True, "head_bias": True},
]


@pytest.mark.parametrize("z_loss", [0.0, 0.1])
@pytest.mark.parametrize("changes", VARIANTS)
def test_padding_has_no_logit_no_loss_and_no_gradient(changes, z_loss):
    model = make_padded_model(**changes)
    without = remove_padding(model)
    rows = toy_rows(4, 16, 50).astype(np.int64)
    batch = (
        build_mlm_batch(rows, 1, mask_id=60, vocab_size=61)
        if "architecture" in changes
        else build_causal_batch(rows)
    )
    logits = model.compute_logits(model(batch))
    assert logits.shape == (4, 16, WORDS)
    torch.testing.assert_close(logits, without.compute_logits(without(batch)), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(
        model.compute_token_losses(batch), without.compute_token_losses(batch)
    )
    expected = without.compute_loss_sum(batch, z_loss)
    expected.backward()
    expected_gradients = {name: p.grad for name, p in without.named_parameters()}
    losses = []
    for run_plain in (False, True):
        model.zero_grad()
        if run_plain:
            with use_reference_kernels(model):
                losses.append(model.compute_loss_sum(batch, z_loss))
        else:
            losses.append(model.compute_loss_sum(batch, z_loss))
        losses[-1].backward()
        for name, parameter in model.named_parameters():
            gradient = parameter.grad
            if name in TABLES:
                assert not gradient[WORDS:].any()
                gradient = gradient[:WORDS]
            torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-3, atol=1e-4)
    for loss in losses:
        torch.testing.assert_close(loss, expected)


def test_padding_is_never_generated_and_has_no_probability():
    model = make_padded_model()
    without = remove_padding(model)
    for settings in ({"temperature": 0.0}, {"samples": 3, "top_p": 0.9}, {"temperature": 2.0}):
        options = {"max_new_tokens": 24, "seed": 3, "forbid": (1,), **settings}
        pairs = zip(
            generate(model, PROMPTS, **options), generate(without, PROMPTS, **options), strict=True
        )
        for one, other in pairs:
            assert [text.ids for text in one] == [text.ids for text in other]
    log_probs = compute_next_log_probs(model, PROMPTS)
    assert log_probs.shape == (3, WORDS)
    assert np.exp(log_probs.astype(np.float64)).sum(1) == pytest.approx([1] * 3, abs=1e-5)
    rows = toy_rows(3, 20, 50).tolist()
    scores = zip(
        compute_token_log_probs(model, rows), compute_token_log_probs(without, rows), strict=True
    )
    for one, other in scores:
        np.testing.assert_allclose(one, other, atol=1e-4)
    statistics = (
        compute_token_statistics(model, rows)[0],
        compute_token_statistics(without, rows)[0],
    )
    np.testing.assert_allclose(statistics[0].std_log_prob, statistics[1].std_log_prob, atol=1e-4)
    assert statistics[0].rank.max() < WORDS
    best = [
        decode_with_beam_search(m, [[0, 5]], width=4, max_new_tokens=6, stop=(0,))[0]
        for m in (model, without)
    ]
    assert [list(h.ids) for h in best[0]] == [list(h.ids) for h in best[1]]


def test_a_checkpoint_keeps_the_padding_and_an_old_one_has_none(tmp_path):
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json", WORDS)
    model, rows = make_padded_model(), toy_rows(2, 16, 50).astype(np.int64)
    save_checkpoint(model, tmp_path / "padded", tokenizer_path=tokenizer)
    loaded = load_checkpoint(tmp_path / "padded")
    assert loaded.config.vocab_multiple == TABLE
    assert torch.equal(
        loaded.compute_loss_sum(build_causal_batch(rows)),
        model.compute_loss_sum(build_causal_batch(rows)),
    )
    save_checkpoint(tiny(), tmp_path / "older", tokenizer_path=tokenizer)
    path = tmp_path / "older" / "config.json"
    config = json.loads(path.read_text())
    del config["model"]["vocab_multiple"]
    path.write_text(json.dumps(config))
    assert torch.equal(
        load_checkpoint(tmp_path / "older").compute_loss_sum(build_causal_batch(rows)),
        tiny().compute_loss_sum(build_causal_batch(rows)),
    )


@pytest.mark.parametrize("tied", [True, False])
def test_an_exported_model_has_no_padding(tmp_path, tied):
    model = make_padded_model(activation="gelu_tanh", tie_embeddings=tied)
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json", WORDS)
    export_transformers(model, tmp_path / "gpt2", tokenizer_path=tokenizer)
    assert json.loads((tmp_path / "gpt2" / "config.json").read_text())["vocab_size"] == WORDS
    tensors = load_file(tmp_path / "gpt2" / "model.safetensors")
    assert tensors["transformer.wte.weight"].shape == (WORDS, 32)
    back, batch = (
        import_transformers(tmp_path / "gpt2"),
        build_causal_batch(toy_rows(2, 16, 50).astype("int64")),
    )
    torch.testing.assert_close(
        back.compute_logits(back(batch)), model.compute_logits(model(batch)), atol=1e-4, rtol=1e-4
    )


def test_an_exported_tokenizer_begins_a_text_with_the_token_of_training(tmp_path):
    """transformers' pipelines add what the tokenizer adds, and nothing else."""
    model = make_padded_model(activation="gelu_tanh")
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json", WORDS)
    export_transformers(model, tmp_path / "gpt2", tokenizer_path=tokenizer)
    exported = AutoTokenizer.from_pretrained(tmp_path / "gpt2")
    assert exported("t5").input_ids == [0, 5]
    assert exported("t5", "t6").input_ids == [0, 5, 6]
    assert exported("t5", add_special_tokens=False).input_ids == [5]
