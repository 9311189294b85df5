"""Configs: invalid values are refused in one sentence, and valid ones survive JSON."""

from __future__ import annotations

import json
import math

import pytest

from hallmark.model.config import ModelConfig, TrainConfig, config_from_dict, config_to_dict


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"d_model": 130, "n_heads": 4}, "divisible"),
        ({"n_heads": 4, "n_kv_heads": 3}, "divisible"),
        ({"vocab_size": 0}, "between"),
        ({"d_model": 10**11, "n_heads": 4}, "between 1 and"),
        ({"n_heads": 4, "n_kv_heads": 8}, "between 1 and 4"),
        ({"d_ff": 0}, "between"),
        ({"d_head": 0}, "between"),
        ({"d_head": 5, "positions": "rope"}, "even head size, but the head size is 5"),
        ({"n_layers": "4"}, "must be an integer"),
        ({"n_layers": True}, "must be an integer"),
        ({"norm": "batchnorm"}, "layernorm, rmsnorm"),
        ({"dropout": 1.0}, "less than 1.0"),
        ({"dropout": math.nan}, "less than 1.0"),
        ({"attention_dropout": 1.0}, "attention_dropout must be at least 0.0 and less than 1.0"),
        ({"scale_embeddings": 2}, "scale_embeddings must be true or false or null"),
        ({"d_model": 6, "n_heads": 2, "positions": "rope"}, "even"),
        ({"d_model": 7, "n_heads": 1, "positions": "sinusoidal"}, "even"),
        ({"vocab_multiple": 0}, "vocab_multiple must be between 1 and 4096"),
        ({"d_modle": 4}, "no setting 'd_modle'"),
    ],
)
def test_an_invalid_model_config_is_refused_in_one_sentence(values, word):
    with pytest.raises(ValueError, match=word) as error:
        config_from_dict(ModelConfig, values)
    assert str(error.value).endswith(".") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"batch_size": 8, "accumulation_steps": 3}, "divisible"),
        ({"steps": 10, "warmup_steps": 11}, "warmup_steps is 11, but steps is only 10"),
        ({"learning_rate": 0.0}, "positive"),
        ({"learning_rate": math.inf}, "positive"),
        ({"max_grad_norm": 10**400}, "too large"),
        ({"beta2": 1.0}, "less than 1.0"),
        ({"learning_rate": 1e30}, "between"),
        ({"weight_decay": -0.1}, "between"),
        ({"z_loss": math.nan}, "between"),
        ({"steps": 0}, "between"),
        ({"steps": 10**8}, "between 1 and 99999999"),  # file names have eight digits
        ({"batch_size": 10**12}, "between"),
        ({"schedule": "step"}, "cosine"),
        ({"compile": 1}, "must be true or false or null"),
        ({"seed": 2**63}, "between"),
    ],
)
def test_an_invalid_train_config_is_refused_in_one_sentence(values, word):
    with pytest.raises(ValueError, match=word) as error:
        config_from_dict(TrainConfig, values)
    assert str(error.value).endswith(".") and "\n" not in str(error.value)


@pytest.mark.parametrize("config", [ModelConfig(n_heads=8, n_kv_heads=2), TrainConfig(seed=7)])
def test_configs_survive_json(config):
    assert config_from_dict(type(config), json.loads(json.dumps(config_to_dict(config)))) == config


def test_pydantic_refuses_unknown_keys_in_both_configs():
    pydantic = pytest.importorskip("pydantic")
    for cls in (ModelConfig, TrainConfig):
        adapter = pydantic.TypeAdapter(cls)
        assert adapter.validate_python({}) == cls()
        with pytest.raises(pydantic.ValidationError, match="unexpected"):
            adapter.validate_python({"unknown": 1})


def test_swiglu_keeps_the_parameter_count_of_a_plain_layer():
    assert ModelConfig(d_model=768, n_heads=12).feed_forward_width == 3072
    gated = ModelConfig(d_model=768, n_heads=12, activation="swiglu").feed_forward_width
    assert gated % 32 == 0 and abs(3 * gated - 2 * 3072) / (2 * 3072) < 0.05


def test_integers_become_floats_in_float_fields():
    """JSON from elsewhere may contain integers, but the optimizer only takes floats."""
    config = config_from_dict(TrainConfig, {"beta1": 0, "max_grad_norm": 1})
    assert config == TrainConfig(beta1=0.0, max_grad_norm=1.0) and isinstance(config.beta1, float)
