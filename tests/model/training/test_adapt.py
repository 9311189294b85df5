"""What a model keeps where it gets another output layer."""

from __future__ import annotations

import pytest
import torch

from model.batch import Batch
from model.config import ModelConfig
from model.interchange.checkpoint import load, save
from model.training.adapt import adapted, body_learns, for_labels, freeze_body
from tests.model.oracles import tiny, write_tokenizer

IDS = torch.tensor([[0, 5, 6, 7], [0, 9, 8, 2]])


@torch.no_grad()
@pytest.mark.parametrize("architecture", ["encoder", "decoder"])
@pytest.mark.parametrize("whole", [True, False])
def test_the_features_stay_and_the_model_survives_saving(tmp_path, architecture, whole):
    model = tiny(architecture=architecture)
    config = for_labels(model.config, ("x", "y", "z"), of_sequences=whole, sentences=2)
    made = adapted(model, config).eval()
    assert torch.equal(made.states(Batch(IDS)), model.states(Batch(IDS)))
    types = torch.ones_like(IDS)
    if architecture == "encoder":  # a second sentence is read as before, until that is learnt
        assert torch.equal(made.states(Batch(IDS, token_types=types)), model.states(Batch(IDS)))
    assert made.logits(made(Batch(IDS))).shape == (2, 4, 3)
    save(made, tmp_path / "c", tokenizer=write_tokenizer(tmp_path / "tok.json", 61))
    back = load(tmp_path / "c")
    assert back.config == config and back.config.labels == ("x", "y", "z")
    assert torch.equal(back.logits(back(Batch(IDS))), made.logits(made(Batch(IDS))))


@torch.no_grad()
def test_the_same_labels_keep_what_was_learnt_of_them():
    model = tiny(architecture="encoder", labels=("x", "y"), tie_embeddings=False, head_bias=True)
    same = for_labels(model.config, ("x", "y"), of_sequences=False, sentences=1)
    assert torch.equal(adapted(model, same).head.weight, model.head.weight)
    others = for_labels(model.config, ("x", "z"), of_sequences=False, sentences=1)
    assert not torch.equal(adapted(model, others).head.weight, model.head.weight)


def test_another_model_is_refused():
    with pytest.raises(ValueError, match="of another model than the job asks: its d_model is 32"):
        adapted(tiny(), ModelConfig(vocab_size=61, context=16, d_model=64, n_layers=2))


def test_only_the_output_layer_of_a_frozen_model_learns():
    model = tiny(architecture="encoder", labels=("x", "y"), tie_embeddings=False,
                 head_transform=True, token_types=2)  # fmt: skip
    freeze_body(model)
    learns = {name for name, p in model.named_parameters() if p.requires_grad}
    assert learns == {"transform.0.weight", "transform.0.bias", "head.weight"}
    assert not body_learns(model)
    model.type_embedding.weight.requires_grad_(True)
    assert body_learns(model)


@pytest.mark.parametrize(
    ("architecture", "whole", "sentences", "types", "pooler", "bias"),
    [
        ("encoder", True, 2, 2, True, True),
        ("encoder", True, 1, 0, True, True),
        ("encoder", False, 3, 3, False, True),
        ("decoder", True, 2, 0, False, False),
        ("decoder", False, 1, 0, False, True),
    ],
)
def test_labels_are_read_off_as_architectures_of_transformers_do(
    architecture, whole, sentences, types, pooler, bias
):
    base = tiny(architecture=architecture).config
    made = for_labels(base, ("x", "y"), of_sequences=whole, sentences=sentences)
    assert (made.token_types, made.head_transform, made.head_bias) == (types, pooler, bias)
    assert made.labels == ("x", "y") and not made.tie_embeddings


def test_what_tells_sentences_apart_already_goes_on_doing_so():
    base = tiny(architecture="encoder", token_types=4).config
    for sentences in (1, 2, 5):
        made = for_labels(base, ("x", "y"), of_sequences=True, sentences=sentences)
        assert made.token_types == max(4, sentences)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"labels": ("a",)}, "at least 2 names"),
        ({"labels": ("a", "a")}, "none of them twice"),
        ({"labels": "ab"}, "labels must be a list of names"),
        ({"labels": (1, 2)}, "labels must be a list of names"),
        ({"labels": ("a", "b"), "tie_embeddings": True}, "untie it"),
        ({"labels": ("a", "b"), "architecture": "encoder_decoder"}, "one stack"),
        ({"token_types": 2, "architecture": "decoder"}, "token_types are for an encoder"),
        ({"token_types": -1}, "token_types must be between 0"),
    ],
)
def test_what_no_model_of_labels_can_be_is_refused(changes, words):
    values = {"architecture": "encoder", "tie_embeddings": False, **changes}
    with pytest.raises(ValueError, match=words):
        ModelConfig(**values)
