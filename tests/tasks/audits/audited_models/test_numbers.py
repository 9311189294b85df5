"""Models that give no numbers: an audit of one fails, and says so."""

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
    """A random causal model whose output layer has a bias for each token."""
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


BODY = {
    "own_folder": "decoder.blocks.1.feed_forward.down.weight",
    "gpt2_folder": "transformer.h.1.mlp.c_proj.weight",
    "phi_folder": "model.layers.1.mlp.fc2.weight",
    "bert_folder": "bert.encoder.layer.1.output.dense.weight",
}
BIAS = {"phi_folder": "lm_head.bias", "bert_folder": "cls.predictions.bias"}
ROWS = {
    "own_folder": "embedding.weight",
    "gpt2_folder": "transformer.wte.weight",
    "phi_folder": "model.embed_tokens.weight",
    "bert_folder": "bert.embeddings.word_embeddings.weight",
}


@pytest.fixture
def damaged(request, tmp_path):
    def make(name, tensor, place, value):
        folder = tmp_path / "damaged"
        shutil.copytree(request.getfixturevalue(name), folder)
        weights = load_file(folder / "model.safetensors")
        weights[tensor][place] = value
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    return make


def asks(subject):
    """What is asked of a model, by name."""
    lines = [subject.prepend_bos_id(ids) for ids in subject.encode_batch(TEXTS)]
    found = {"log_probs": lambda: subject.compute_log_probs(lines)}
    found["log_likelihoods"] = lambda: subject.compute_log_likelihoods(TEXTS)
    found["complete"] = lambda: subject.generate_completions(
        lines, [[]] * len(lines), completion_count=3, max_new_tokens=1
    )
    if subject.model_kind == "masked":
        places = [[*range(len(line))] for line in lines]
        found["masked_log_probs"] = lambda: subject.compute_masked_log_probs(lines, places)
        return found
    contexts, targets = [(lines[0] * 4)[:30]] * 4, [lines[0][1:5], lines[1][1:9]] * 2
    found["read_together"] = lambda: subject.compute_target_log_probs(contexts, targets)
    found["log_probs_behind"] = lambda: subject.compute_target_log_probs(lines, targets[:2])
    found["rank_statistics"] = lambda: subject.compute_rank_statistics(lines, targets[:2])
    for temperature in (0.0, 1.0):
        found[f"write at {temperature}"] = lambda t=temperature: subject.generate_continuations(
            lines, max_new_tokens=6, samples=3 if t else 1, temperature=t
        )
    return found


def check_refused(ask):
    with pytest.raises(HallmarkError, match=r"^The model's scores are not numbers \(NaN\)"):
        ask()


@pytest.mark.parametrize("name", BODY)
@pytest.mark.parametrize("value", [NAN, INF])
def test_a_model_with_a_weight_that_is_no_number_gives_no_answers(damaged, name, value):
    subject = open_audited_model(damaged(name, BODY[name], (0, 0), value), device="cpu")
    for ask in asks(subject).values():
        check_refused(ask)
    check_refused(
        lambda: subject.compute_mean_hidden_states([subject.encode(TEXTS[0])], [[0, 1]], -1)
    )


def test_one_row_of_many_is_enough(damaged, phi_folder):
    """A token that one of the texts has; what is asked of the others has answers."""
    first, other = open_audited_model(phi_folder, device="cpu").encode_batch(TEXTS)
    token = next(token for token in first[2:] if token not in other)
    folder = damaged("phi_folder", ROWS["phi_folder"], token, NAN)
    subject = open_audited_model(folder, device="cpu")
    lines = [subject.prepend_bos_id(other), subject.prepend_bos_id(first)]
    assert np.isfinite(subject.compute_log_probs(lines[:1])[0]).all()
    check_refused(lambda: subject.compute_log_probs(lines))
    check_refused(lambda: subject.generate_continuations(lines, max_new_tokens=2))
    check_refused(
        lambda: subject.compute_mean_hidden_states([other, first], [[0], [len(first) - 1]], -1)
    )


@pytest.mark.parametrize("name", BIAS)
@pytest.mark.parametrize("value", [NAN, INF])
def test_one_logit_is_enough(damaged, name, value):
    """The probability of every other token would be 0 behind +inf."""
    subject = open_audited_model(damaged(name, BIAS[name], 7, value), device="cpu")
    for ask in asks(subject).values():
        check_refused(ask)


@pytest.mark.parametrize("name", BIAS)
def test_a_token_that_is_never_given_is_no_fault(damaged, name, request):
    """Some models mask ids that stand for nothing: log p is -inf of these alone."""
    whole = open_audited_model(request.getfixturevalue(name), device="cpu")
    asked = {token for ids in whole.encode_batch(TEXTS) for token in whole.prepend_bos_id(ids)}
    token = max({*range(whole.vocab_size)} - asked)
    subject = open_audited_model(damaged(name, BIAS[name], token, -INF), device="cpu")
    for ask in asks(subject).values():
        ask()
    line = subject.prepend_bos_id(subject.encode(TEXTS[0]))
    assert np.isfinite(subject.compute_log_probs([line])[0]).all()
    (scores,) = subject.compute_log_probs([[*line, token]])
    assert np.isneginf(scores[-1]) and np.isfinite(scores[:-1]).all()
    if subject.model_kind == "causal":
        (found,) = subject.compute_rank_statistics([line[:1]], [line[1:]])
        assert np.isfinite(found.mean_log_prob).all() and (found.std_log_prob > 0).all()


@pytest.mark.parametrize("name", ["own_folder", "gpt2_folder"])
def test_attention_that_is_no_number_is_not_stored(session, damaged, name):
    folder = damaged(name, ROWS[name], slice(None), NAN)
    with pytest.raises(HallmarkError, match="stage attention_maps: The model's scores are not"):
        attention_maps(folder_to_artifact(folder, "checkpoint"), AttentionMapsConfig())
    assert session.store.list_artifacts("attention_maps") == []
