"""Map models with labels to the classification architectures of ``transformers``."""

from __future__ import annotations

from typing import Any

from hallmark.model.config import ModelConfig
from hallmark.model.interchange.model_families import (
    BERT_SUPPORTED_SETTINGS,
    GPT2_SUPPORTED_SETTINGS,
    LLAMA_SUPPORTED_SETTINGS,
    make_bert_config_values,
    make_gpt2_config_values,
    make_llama_config_values,
    map_bert_body,
    map_gpt2_body,
    map_llama_body,
    parse_bert_config,
    parse_gpt2_config,
    parse_llama_config,
)
from hallmark.model.interchange.tensor_mappings import (
    ModelFamily,
    TensorMapping,
    map_weight_and_bias,
)

_UNTIED = {"tie_embeddings": (False,)}
_BERT_SUPPORTED = {
    name: allowed_values
    for name, allowed_values in BERT_SUPPORTED_SETTINGS.items()
    if name not in ("labels", "head_transform")
} | _UNTIED
_GPT2_SUPPORTED, _LLAMA_SUPPORTED = (
    {
        name: allowed_values
        for name, allowed_values in supported_settings.items()
        if name not in ("labels", "head_bias")
    }
    | _UNTIED
    for supported_settings in (GPT2_SUPPORTED_SETTINGS, LLAMA_SUPPORTED_SETTINGS)
)
_POOLER_MAPPINGS = map_weight_and_bias("transform.0", "bert.pooler.dense")
_CLASSIFIER_MAPPINGS = map_weight_and_bias("head", "classifier")
_SCORE_MAPPINGS = map_weight_and_bias("head", "score")


def _make_label_name_settings(config: ModelConfig) -> dict[str, Any]:
    label_by_index = dict(enumerate(config.labels))
    return {
        "id2label": label_by_index,
        "label2id": {name: index for index, name in label_by_index.items()},
    }


def _make_classifier_family(
    base_family: str,
    model_class: str,
    supported_settings: dict[str, tuple[Any, ...]],
    head_mappings: list[TensorMapping],
) -> ModelFamily:
    map_body, make_config, parse_config, base_prefix = {
        "bert": (map_bert_body, make_bert_config_values, parse_bert_config, "bert."),
        "gpt2": (map_gpt2_body, make_gpt2_config_values, parse_gpt2_config, "transformer."),
        "llama": (map_llama_body, make_llama_config_values, parse_llama_config, "model."),
    }[base_family]
    return ModelFamily(
        model_class,
        base_prefix,
        supported_settings,
        lambda config: [*map_body(config), *head_mappings],
        lambda config: make_config(config) | _make_label_name_settings(config),
        parse_config,
        supports_grouped_heads=base_family == "llama",
    )


CLASSIFIER_FAMILIES = [
    _make_classifier_family(
        "bert",
        "BertForSequenceClassification",
        _BERT_SUPPORTED | {"head_transform": (True,)},
        [*_POOLER_MAPPINGS, *_CLASSIFIER_MAPPINGS],
    ),
    _make_classifier_family(
        "bert",
        "BertForTokenClassification",
        _BERT_SUPPORTED | {"head_transform": (False,)},
        _CLASSIFIER_MAPPINGS,
    ),
    _make_classifier_family(
        "gpt2",
        "GPT2ForSequenceClassification",
        _GPT2_SUPPORTED | {"head_bias": (False,)},
        _SCORE_MAPPINGS[:1],
    ),
    _make_classifier_family(
        "gpt2",
        "GPT2ForTokenClassification",
        _GPT2_SUPPORTED | {"head_bias": (True,)},
        _CLASSIFIER_MAPPINGS,
    ),
    _make_classifier_family(
        "llama",
        "LlamaForSequenceClassification",
        _LLAMA_SUPPORTED | {"head_bias": (False,)},
        _SCORE_MAPPINGS[:1],
    ),
    _make_classifier_family(
        "llama",
        "LlamaForTokenClassification",
        _LLAMA_SUPPORTED | {"head_bias": (True,)},
        _SCORE_MAPPINGS,
    ),
]
