"""Test that audits of models that give NaN fail with a clear message."""

import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hallmark.tasks.audits.ability.attention_maps import AttentionMapsConfig, attention_maps
from hallmark.tasks.audits.audited_models.opening import open_audited_model
from hallmark.tasks.contract import HallmarkError, folder_to_artifact
from tests.tasks.audits.conftest import train_bpe

NAN, INF = float("nan"), float("inf")
TEXTS = ["The nurse said that she would be late, as always.", "We read the documentation."]


@pytest.fixture(scope="session")
def phi_folder(tmp_path_factory):
    """A random causal model whose output layer has a bias per token."""
    from transformers import PhiConfig, PhiForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("hf") / "phi-tiny"
    folder.mkdir()
    tokenizer = train_bpe(folder / "tokenizer.json")
    PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
    ).save_pretrained(folder)
    torch.manual_seed(4)
    config = PhiConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=0,
    )
    PhiForCausalLM(config).save_pretrained(folder)
    return folder


LAYER_WEIGHTS = {
    "own_folder": "decoder.blocks.1.feed_forward.down.weight",
    "gpt2_folder": "transformer.h.1.mlp.c_proj.weight",
    "phi_folder": "model.layers.1.mlp.fc2.weight",
    "bert_folder": "bert.encoder.layer.1.output.dense.weight",
}
OUTPUT_BIASES = {"phi_folder": "lm_head.bias", "bert_folder": "cls.predictions.bias"}
EMBEDDING_WEIGHTS = {
    "own_folder": "embedding.weight",
    "gpt2_folder": "transformer.wte.weight",
    "phi_folder": "model.embed_tokens.weight",
    "bert_folder": "bert.embeddings.word_embeddings.weight",
}


@pytest.fixture
def make_damaged_folder(request, tmp_path):
    def make(name, tensor, place, value):
        folder = tmp_path / "damaged"
        shutil.copytree(request.getfixturevalue(name), folder)
        weights = load_file(folder / "model.safetensors")
        weights[tensor][place] = value
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    return make


def list_calls(model):
    """Return every kind of call of a model, by name."""
    lines = [model.prepend_bos_id(ids) for ids in model.encode_batch(TEXTS)]
    calls = {"log_probs": lambda: model.compute_log_probs(lines)}
    calls["log_likelihoods"] = lambda: model.compute_log_likelihoods(TEXTS)
    calls["complete"] = lambda: model.generate_completions(
        lines, [[]] * len(lines), completion_count=3, max_new_tokens=1
    )
    if model.model_kind == "masked":
        places = [[*range(len(line))] for line in lines]
        calls["masked_log_probs"] = lambda: model.compute_masked_log_probs(lines, places)
        return calls
    contexts, targets = [(lines[0] * 4)[:30]] * 4, [lines[0][1:5], lines[1][1:9]] * 2
    calls["read_together"] = lambda: model.compute_target_log_probs(contexts, targets)
    calls["log_probs_behind"] = lambda: model.compute_target_log_probs(lines, targets[:2])
    calls["rank_statistics"] = lambda: model.compute_rank_statistics(lines, targets[:2])
    for temperature in (0.0, 1.0):
        calls[f"write at {temperature}"] = lambda t=temperature: model.generate_continuations(
            lines, max_new_tokens=6, samples=3 if t else 1, temperature=t
        )
    return calls


def assert_refused(call):
    with pytest.raises(HallmarkError, match=r"^The model's scores are not numbers \(NaN\)"):
        call()


@pytest.mark.parametrize("name", LAYER_WEIGHTS)
@pytest.mark.parametrize("value", [NAN, INF])
def test_a_weight_that_is_no_number_fails_every_call(make_damaged_folder, name, value):
    model = open_audited_model(
        make_damaged_folder(name, LAYER_WEIGHTS[name], (0, 0), value), device="cpu"
    )
    for call in list_calls(model).values():
        assert_refused(call)
    assert_refused(lambda: model.compute_mean_hidden_states([model.encode(TEXTS[0])], [[0, 1]], -1))


def test_one_damaged_row_fails_the_batch(make_damaged_folder, phi_folder):
    """A token of one text is damaged; the other text can still be scored."""
    damaged_ids, intact_ids = open_audited_model(phi_folder, device="cpu").encode_batch(TEXTS)
    token = next(token for token in damaged_ids[2:] if token not in intact_ids)
    folder = make_damaged_folder("phi_folder", EMBEDDING_WEIGHTS["phi_folder"], token, NAN)
    model = open_audited_model(folder, device="cpu")
    lines = [model.prepend_bos_id(intact_ids), model.prepend_bos_id(damaged_ids)]
    assert np.isfinite(model.compute_log_probs(lines[:1])[0]).all()
    assert_refused(lambda: model.compute_log_probs(lines))
    assert_refused(lambda: model.generate_continuations(lines, max_new_tokens=2))
    assert_refused(
        lambda: model.compute_mean_hidden_states(
            [intact_ids, damaged_ids], [[0], [len(damaged_ids) - 1]], -1
        )
    )


@pytest.mark.parametrize("name", OUTPUT_BIASES)
@pytest.mark.parametrize("value", [NAN, INF])
def test_one_damaged_logit_fails_every_call(make_damaged_folder, name, value):
    """With +inf for one token, the probability of every other token would be 0."""
    model = open_audited_model(
        make_damaged_folder(name, OUTPUT_BIASES[name], 7, value), device="cpu"
    )
    for call in list_calls(model).values():
        assert_refused(call)


@pytest.mark.parametrize("name", OUTPUT_BIASES)
def test_a_masked_token_is_allowed(make_damaged_folder, name, request):
    """Some models mask unused ids, which then have log probability -inf."""
    original = open_audited_model(request.getfixturevalue(name), device="cpu")
    used_tokens = {
        token for ids in original.encode_batch(TEXTS) for token in original.prepend_bos_id(ids)
    }
    token = max({*range(original.vocab_size)} - used_tokens)
    model = open_audited_model(
        make_damaged_folder(name, OUTPUT_BIASES[name], token, -INF), device="cpu"
    )
    for call in list_calls(model).values():
        call()
    line = model.prepend_bos_id(model.encode(TEXTS[0]))
    assert np.isfinite(model.compute_log_probs([line])[0]).all()
    (scores,) = model.compute_log_probs([[*line, token]])
    assert np.isneginf(scores[-1]) and np.isfinite(scores[:-1]).all()
    if model.model_kind == "causal":
        (statistics,) = model.compute_rank_statistics([line[:1]], [line[1:]])
        assert np.isfinite(statistics.mean_log_prob).all() and (statistics.std_log_prob > 0).all()


@pytest.mark.parametrize("name", ["own_folder", "gpt2_folder"])
def test_attention_with_nan_is_not_stored(session, make_damaged_folder, name):
    folder = make_damaged_folder(name, EMBEDDING_WEIGHTS[name], slice(None), NAN)
    with pytest.raises(HallmarkError, match="stage attention_maps: The model's scores are not"):
        attention_maps(folder_to_artifact(folder, "checkpoint"), AttentionMapsConfig())
    assert session.store.list_artifacts("attention_maps") == []
