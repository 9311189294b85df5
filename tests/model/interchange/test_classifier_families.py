"""Classifiers against those of transformers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from hallmark.model.batch import Batch
from hallmark.model.interchange.transformers_checkpoint import (
    export_transformers,
    import_transformers,
)
from hallmark.model.probing.label_scores import compute_log_probs_at_labelled_tokens
from hallmark.model.training.adaptation import copy_model_with_task_settings, make_classifier_config
from hallmark.model.training.example_batches import make_example_objective
from hallmark.model.training.examples import NO_LABEL, Example
from tests.model.oracles import tiny, write_tokenizer

transformers = pytest.importorskip("transformers")

BERT = {
    "architecture": "encoder",
    "norm_position": "post",
    "embedding_norm": True,
    "head_transform": True,
    "head_bias": True,
    "norm_eps": 1e-12,
}
LLAMA = {"norm": "rmsnorm", "positions": "rope", "activation": "swiglu", "bias": False}
MODELS = {"bert": BERT, "gpt2": {"activation": "gelu_tanh"}, "llama": LLAMA}
TEXTS = [[0, 5, 6, 7, 8, 9], [0, 5, 6], [0, 60, 9, 2]]


def randomise_output_layer(model):
    """Add random weights to the new output layer, so that mistakes show."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith(("head.", "transform.", "type_embedding.")):
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.eval()


def score_with_transformers(model, texts):
    width = max(map(len, texts))
    ids = torch.tensor([[*text, *[1] * (width - len(text))] for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (width - len(text)) for text in texts])
    with torch.no_grad():
        return model(ids, attention_mask=mask).logits.log_softmax(-1)


@pytest.mark.parametrize("kind", MODELS)
def test_sequence_classifiers_equal_those_of_transformers(kind, tmp_path):
    model = tiny(**MODELS[kind])
    config = make_classifier_config(
        model.config, ("low", "mid", "high"), per_sequence=True, sentence_count=1
    )
    model = randomise_output_layer(copy_model_with_task_settings(model, config))
    tokenizer = write_tokenizer(tmp_path / "tok.json", 61)
    export_transformers(model, tmp_path / "theirs", tokenizer_path=tokenizer)
    auto = transformers.AutoModelForSequenceClassification
    theirs = auto.from_pretrained(tmp_path / "theirs").eval()
    assert theirs.config.id2label == {0: "low", 1: "mid", 2: "high"}
    label_position = 0 if kind == "bert" else -1
    examples = []
    for text in TEXTS:
        labels = [NO_LABEL] * len(text)
        labels[label_position] = 0
        examples.append(Example(text, labels))
    ours = torch.tensor(np.stack(compute_log_probs_at_labelled_tokens(model, examples))).squeeze(1)
    torch.testing.assert_close(ours, score_with_transformers(theirs, TEXTS), atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", MODELS)
def test_token_classifiers_equal_those_of_transformers(kind, tmp_path):
    model = tiny(**MODELS[kind])
    config = make_classifier_config(model.config, ("O", "B"), per_sequence=False, sentence_count=1)
    model = randomise_output_layer(copy_model_with_task_settings(model, config))
    tokenizer = write_tokenizer(tmp_path / "tok.json", 61)
    export_transformers(model, tmp_path / "theirs", tokenizer_path=tokenizer)
    auto = transformers.AutoModelForTokenClassification
    theirs = score_with_transformers(auto.from_pretrained(tmp_path / "theirs").eval(), TEXTS)
    examples = [Example(text, [0] * len(text)) for text in TEXTS]
    for ours, expected in zip(
        compute_log_probs_at_labelled_tokens(model, examples), theirs, strict=True
    ):
        got = torch.tensor(ours)
        torch.testing.assert_close(got, expected[: len(got)], atol=1e-4, rtol=0)


@torch.no_grad()
def test_token_types_of_bert_survive_import_and_export(tmp_path):
    torch.manual_seed(4)
    config = transformers.BertConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=20,
        initializer_range=0.3,
    )
    theirs = transformers.BertForMaskedLM(config).eval()
    theirs.save_pretrained(tmp_path / "bert")
    ours = import_transformers(tmp_path / "bert")
    assert ours.config.token_types == 2
    ids = torch.randint(2, 61, (2, 8), generator=torch.Generator().manual_seed(1))
    types = (torch.arange(8) >= 5).long().expand(2, 8)
    for given in (None, types):
        expected = theirs(ids, token_type_ids=given).logits
        got = ours.compute_logits(ours(Batch(ids, token_types=given)))
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)
    tokenizer = write_tokenizer(tmp_path / "tok.json", 61)
    export_transformers(ours, tmp_path / "again", tokenizer_path=tokenizer)
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "again").eval()
    torch.testing.assert_close(again(ids, token_type_ids=types).logits, expected, atol=1e-4, rtol=0)


@torch.no_grad()
def test_sentence_pairs_equal_those_of_bert(tmp_path):
    config = make_classifier_config(
        tiny(**BERT).config, ("yes", "no"), per_sequence=True, sentence_count=2
    )
    model = randomise_output_layer(copy_model_with_task_settings(tiny(**BERT), config))
    tokenizer = write_tokenizer(tmp_path / "tok.json", 61)
    export_transformers(model, tmp_path / "theirs", tokenizer_path=tokenizer)
    auto = transformers.AutoModelForSequenceClassification
    theirs = auto.from_pretrained(tmp_path / "theirs").eval()
    text, first = [0, 5, 6, 0, 8], 3
    batch = make_example_objective(config, "mlm")(
        [Example(text, [1] + [NO_LABEL] * 4, first)], 0, 0
    )
    types = torch.tensor([[0, 0, 0, 1, 1]])
    expected = theirs(torch.tensor([text]), token_type_ids=types).logits
    ours = model.compute_logits(model(batch))[:, 0]
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=0)


def test_a_model_without_a_transformers_architecture_is_refused(tmp_path):
    model = tiny(architecture="encoder", labels=("a", "b"), tie_embeddings=False)
    with pytest.raises(ValueError, match=r"ForSequenceClassification, .*embedding_norm"):
        export_transformers(
            model, tmp_path / "x", tokenizer_path=write_tokenizer(tmp_path / "t", 61)
        )
    prefix = tiny(activation="gelu_tanh")
    prefix.objective = "prefix"
    with pytest.raises(ValueError, match="attention mask of a prefix language model"):
        export_transformers(prefix, tmp_path / "x", tokenizer_path=tmp_path / "t")


def test_a_classifier_folder_is_refused_as_language_model(tmp_path):
    config = make_classifier_config(
        tiny(**BERT).config, ("yes", "no"), per_sequence=True, sentence_count=1
    )
    model = copy_model_with_task_settings(tiny(**BERT), config)
    tokenizer = write_tokenizer(tmp_path / "tok.json", 61)
    export_transformers(model, tmp_path / "theirs", tokenizer_path=tokenizer)
    assert json.loads((tmp_path / "theirs" / "config.json").read_text())["label2id"] == {
        "yes": 0,
        "no": 1,
    }
    with pytest.raises(ValueError, match="describes a classifier"):
        import_transformers(tmp_path / "theirs")
