"""What a model keeps where it gets another output layer."""

from __future__ import annotations

import pytest
import torch

from model.batch import Batch
from model.config import ModelConfig
from model.interchange.checkpoint import load_checkpoint, save_checkpoint
from model.training.adaptation import (
    adapt_model_to_config,
    freeze_all_but_output_layer,
    is_body_trainable,
    make_classifier_config,
)
from tests.model.oracles import tiny, write_tokenizer

IDS = torch.tensor([[0, 5, 6, 7], [0, 9, 8, 2]])


@torch.no_grad()
@pytest.mark.parametrize("architecture", ["encoder", "decoder"])
@pytest.mark.parametrize("whole", [True, False])
def test_the_features_stay_and_the_model_survives_saving(tmp_path, architecture, whole):
    model = tiny(architecture=architecture)
    config = make_classifier_config(
        model.config, ("x", "y", "z"), per_sequence=whole, sentence_count=2
    )
    made = adapt_model_to_config(model, config).eval()
    assert torch.equal(
        made.compute_hidden_states(Batch(IDS)), model.compute_hidden_states(Batch(IDS))
    )
    types = torch.ones_like(IDS)
    if architecture == "encoder":  # a second sentence is read as before, until that is learnt
        assert torch.equal(
            made.compute_hidden_states(Batch(IDS, token_types=types)),
            model.compute_hidden_states(Batch(IDS)),
        )
    assert made.compute_logits(made(Batch(IDS))).shape == (2, 4, 3)
    save_checkpoint(made, tmp_path / "c", tokenizer_path=write_tokenizer(tmp_path / "tok.json", 61))
    back = load_checkpoint(tmp_path / "c")
    assert back.config == config and back.config.labels == ("x", "y", "z")
    assert torch.equal(back.compute_logits(back(Batch(IDS))), made.compute_logits(made(Batch(IDS))))


@torch.no_grad()
def test_the_same_labels_keep_what_was_learnt_of_them():
    model = tiny(architecture="encoder", labels=("x", "y"), tie_embeddings=False, head_bias=True)
    same = make_classifier_config(model.config, ("x", "y"), per_sequence=False, sentence_count=1)
    assert torch.equal(adapt_model_to_config(model, same).head.weight, model.head.weight)
    others = make_classifier_config(model.config, ("x", "z"), per_sequence=False, sentence_count=1)
    assert not torch.equal(adapt_model_to_config(model, others).head.weight, model.head.weight)


def test_another_model_is_refused():
    with pytest.raises(ValueError, match="of another model than the job asks: its d_model is 32"):
        adapt_model_to_config(
            tiny(), ModelConfig(vocab_size=61, context=16, d_model=64, n_layers=2)
        )


def test_only_the_output_layer_of_a_frozen_model_learns():
    model = tiny(
        architecture="encoder",
        labels=("x", "y"),
        tie_embeddings=False,
        head_transform=True,
        token_types=2,
    )
    freeze_all_but_output_layer(model)
    learns = {name for name, p in model.named_parameters() if p.requires_grad}
    assert learns == {"transform.0.weight", "transform.0.bias", "head.weight"}
    assert not is_body_trainable(model)
    model.type_embedding.weight.requires_grad_(True)
    assert is_body_trainable(model)


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
    made = make_classifier_config(base, ("x", "y"), per_sequence=whole, sentence_count=sentences)
    assert (made.token_types, made.head_transform, made.head_bias) == (types, pooler, bias)
    assert made.labels == ("x", "y") and not made.tie_embeddings


def test_what_tells_sentences_apart_already_goes_on_doing_so():
    base = tiny(architecture="encoder", token_types=4).config
    for sentences in (1, 2, 5):
        made = make_classifier_config(base, ("x", "y"), per_sequence=True, sentence_count=sentences)
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
