"""Models that give labels, as the architectures of ``transformers`` for classification."""

from __future__ import annotations

from typing import Any

from model.config import ModelConfig
from model.interchange.entries import Entry, Family, both
from model.interchange.families import (
    BERT_NEEDS,
    GPT2_NEEDS,
    LLAMA_NEEDS,
    bert_body,
    bert_read,
    bert_written,
    gpt2_body,
    gpt2_read,
    gpt2_written,
    llama_body,
    llama_read,
    llama_written,
)

#: In each pair first the model of sequences, then that of tokens.
_OUTPUT = {"tie_embeddings": (False,)}
_BERT = {k: v for k, v in BERT_NEEDS.items() if k not in ("labels", "head_transform")} | _OUTPUT
_GPT2, _LLAMA = (
    {k: v for k, v in needs.items() if k not in ("labels", "head_bias")} | _OUTPUT
    for needs in (GPT2_NEEDS, LLAMA_NEEDS)
)
_POOLER = both("transform.0", "bert.pooler.dense")
_CLASSIFIER = both("head", "classifier")
_SCORE = both("head", "score")


def _named(config: ModelConfig) -> dict[str, Any]:
    names = dict(enumerate(config.labels))
    return {"id2label": names, "label2id": {name: i for i, name in names.items()}}


def _family(
    kind: str, model_class: str, needs: dict[str, tuple[Any, ...]], head: list[Entry]
) -> Family:
    body, written, read, base = {
        "bert": (bert_body, bert_written, bert_read, "bert."),
        "gpt2": (gpt2_body, gpt2_written, gpt2_read, "transformer."),
        "llama": (llama_body, llama_written, llama_read, "model."),
    }[kind]
    return Family(
        model_class,
        base,
        needs,
        lambda config: [*body(config), *head],
        lambda config: written(config) | _named(config),
        read,
        grouped=kind == "llama",
    )


LABELLERS = [
    _family("bert", "BertForSequenceClassification", _BERT | {"head_transform": (True,)},
            [*_POOLER, *_CLASSIFIER]),
    _family("bert", "BertForTokenClassification", _BERT | {"head_transform": (False,)},
            _CLASSIFIER),
    _family("gpt2", "GPT2ForSequenceClassification", _GPT2 | {"head_bias": (False,)}, _SCORE[:1]),
    _family("gpt2", "GPT2ForTokenClassification", _GPT2 | {"head_bias": (True,)}, _CLASSIFIER),
    _family("llama", "LlamaForSequenceClassification", _LLAMA | {"head_bias": (False,)},
            _SCORE[:1]),
    _family("llama", "LlamaForTokenClassification", _LLAMA | {"head_bias": (True,)}, _SCORE),
]  # fmt: skip
