"""What a model keeps when its output layer is replaced."""

from __future__ import annotations

import pytest
import torch

from hallmark.model.batch import Batch
from hallmark.model.config import ModelConfig
from hallmark.model.interchange.checkpoint import load_checkpoint, save_checkpoint
from hallmark.model.training.adaptation import (
    copy_model_with_task_settings,
    freeze_all_but_output_layer,
    is_body_trainable,
    make_classifier_config,
)
from tests.model.oracles import tiny, write_tokenizer

IDS = torch.tensor([[0, 5, 6, 7], [0, 9, 8, 2]])


@torch.no_grad()
@pytest.mark.parametrize("architecture", ["encoder", "decoder"])
@pytest.mark.parametrize("per_sequence", [True, False])
def test_an_adapted_model_keeps_its_features_and_can_be_saved(tmp_path, architecture, per_sequence):
    model = tiny(architecture=architecture)
    config = make_classifier_config(
        model.config, ("x", "y", "z"), per_sequence=per_sequence, sentence_count=2
    )
    adapted = copy_model_with_task_settings(model, config).eval()
    assert torch.equal(
        adapted.compute_hidden_states(Batch(IDS)), model.compute_hidden_states(Batch(IDS))
    )
    types = torch.ones_like(IDS)
    if architecture == "encoder":  # new token types have no effect before training
        assert torch.equal(
            adapted.compute_hidden_states(Batch(IDS, token_types=types)),
            model.compute_hidden_states(Batch(IDS)),
        )
    assert adapted.compute_logits(adapted(Batch(IDS))).shape == (2, 4, 3)
    save_checkpoint(
        adapted, tmp_path / "c", tokenizer_path=write_tokenizer(tmp_path / "tok.json", 61)
    )
    loaded = load_checkpoint(tmp_path / "c")
    assert loaded.config == config and loaded.config.labels == ("x", "y", "z")
    assert torch.equal(
        loaded.compute_logits(loaded(Batch(IDS))), adapted.compute_logits(adapted(Batch(IDS)))
    )


@torch.no_grad()
def test_the_output_layer_is_kept_for_the_same_labels():
    model = tiny(architecture="encoder", labels=("x", "y"), tie_embeddings=False, head_bias=True)
    same_labels = make_classifier_config(
        model.config, ("x", "y"), per_sequence=False, sentence_count=1
    )
    assert torch.equal(
        copy_model_with_task_settings(model, same_labels).head.weight, model.head.weight
    )
    other_labels = make_classifier_config(
        model.config, ("x", "z"), per_sequence=False, sentence_count=1
    )
    assert not torch.equal(
        copy_model_with_task_settings(model, other_labels).head.weight, model.head.weight
    )


def test_a_config_of_another_size_is_refused():
    with pytest.raises(ValueError, match="has d_model = 32, but the job has d_model = 64"):
        copy_model_with_task_settings(
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
    ("architecture", "per_sequence", "sentences", "types", "pooler", "bias"),
    [
        ("encoder", True, 2, 2, True, True),
        ("encoder", True, 1, 0, True, True),
        ("encoder", False, 3, 3, False, True),
        ("decoder", True, 2, 0, False, False),
        ("decoder", False, 1, 0, False, True),
    ],
)
def test_classifier_configs_follow_transformers(
    architecture, per_sequence, sentences, types, pooler, bias
):
    base = tiny(architecture=architecture).config
    config = make_classifier_config(
        base, ("x", "y"), per_sequence=per_sequence, sentence_count=sentences
    )
    assert (config.token_types, config.head_transform, config.head_bias) == (types, pooler, bias)
    assert config.labels == ("x", "y") and not config.tie_embeddings


def test_existing_token_types_are_kept():
    base = tiny(architecture="encoder", token_types=4).config
    for sentences in (1, 2, 5):
        config = make_classifier_config(
            base, ("x", "y"), per_sequence=True, sentence_count=sentences
        )
        assert config.token_types == max(4, sentences)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"labels": ("a",)}, "labels must contain at least 2"),
        ({"labels": ("a", "a")}, "at least 2 distinct names"),
        ({"labels": "ab"}, "labels must be a list of names"),
        ({"labels": (1, 2)}, "labels must be a list of names"),
        ({"labels": ("a", "b"), "tie_embeddings": True}, "set tie_embeddings to false"),
        (
            {"labels": ("a", "b"), "architecture": "encoder_decoder"},
            "must have the 'encoder' or 'decoder' architecture",
        ),
        (
            {"token_types": 2, "architecture": "decoder"},
            "token_types is supported only with the 'encoder' architecture",
        ),
        ({"token_types": -1}, "token_types must be between 0"),
    ],
)
def test_invalid_classifier_configs_are_refused(changes, words):
    values = {"architecture": "encoder", "tie_embeddings": False, **changes}
    with pytest.raises(ValueError, match=words):
        ModelConfig(**values)
