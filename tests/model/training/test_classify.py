"""Sequence classification: transformers' BERT as oracle, and a task that is learnt."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from model.interchange.checkpoint import CheckpointError
from model.interchange.convert import import_transformers
from model.training.classify import FineTuning, SequenceClassifier, fine_tune, load, predict, save
from tests.model.oracles import tiny, write_tokenizer

transformers = pytest.importorskip("transformers")


@torch.no_grad()
def test_logits_equal_those_of_bert_for_sequence_classification(tmp_path):
    torch.manual_seed(4)
    config = transformers.BertConfig(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=20, initializer_range=0.3, num_labels=3,
    )  # fmt: skip
    theirs = transformers.BertForSequenceClassification(config).eval()
    masked = transformers.BertForMaskedLM(config)
    masked.bert.load_state_dict(theirs.bert.state_dict(), strict=False)
    masked.save_pretrained(tmp_path / "bert")
    ours = SequenceClassifier(import_transformers(tmp_path / "bert"), 3).eval()
    ours.pooler.load_state_dict(theirs.bert.pooler.dense.state_dict())
    ours.output.load_state_dict(theirs.classifier.state_dict())
    ids = torch.randint(2, 61, (3, 12), generator=torch.Generator().manual_seed(1))
    real = torch.arange(12) < torch.tensor([[12], [7], [3]])
    expected = theirs(ids, attention_mask=real.long()).logits
    torch.testing.assert_close(ours(ids, real), expected, atol=1e-4, rtol=0)


def sentences(count, seed):
    """Begin-of-text and 5 to 15 tokens; class 1 where token 7 occurs more often than token 9."""
    random = np.random.default_rng(seed)
    rows, labels = [], []
    while len(rows) < count:
        row = random.choice([7, 9, 20, 21, 22], random.integers(5, 16)).tolist()
        if row.count(7) != row.count(9):
            rows.append([0, *row])
            labels.append(int(row.count(7) > row.count(9)))
    return rows, labels


@pytest.mark.parametrize("architecture", ["encoder", "decoder"])
def test_a_task_is_learnt_and_survives_saving(tmp_path, architecture):
    torch.manual_seed(0)
    classifier = SequenceClassifier(tiny(architecture=architecture), 2)
    rows, labels = sentences(600, 1)
    losses = fine_tune(classifier, rows, labels, FineTuning(epochs=12, learning_rate=2e-3))
    assert len(losses) == 12 * 19
    others, answers = sentences(200, 2)
    p = predict(classifier, others)
    np.testing.assert_allclose(p.sum(1), 1.0, atol=1e-5)
    assert (p.argmax(1) == np.array(answers)).mean() > 0.9
    np.testing.assert_allclose(predict(classifier, others[:3]), p[:3], atol=1e-5)  # no batch
    save(classifier, tmp_path / "c", tokenizer=write_tokenizer(tmp_path / "tok.json", 61))
    np.testing.assert_array_equal(predict(load(tmp_path / "c"), others), p)


def test_the_same_seed_gives_the_same_classifier():
    rows, labels = sentences(40, 3)
    losses = []
    for _ in range(2):
        torch.manual_seed(0)
        classifier = SequenceClassifier(tiny(architecture="encoder", dropout=0.1), 2)
        losses.append(fine_tune(classifier, rows, labels, FineTuning(epochs=2, seed=5)))
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("rows", "labels", "words"),
    [
        ([[0, 5], []], [0, 1], "Sequence 1 has 0 tokens"),
        ([[0] * 99], [0], "Sequence 0 has 99 tokens"),
        ([[0, 61]], [0], "Token id 61"),
        ([[0, 5]], [2], "Label 0 is 2; there are the classes 0 to 1"),
        ([[0, 5]], [], "as many labels"),
        ([], [], "as many labels"),
    ],
)
def test_bad_sequences_and_labels_are_named(rows, labels, words):
    with pytest.raises(ValueError, match=words):
        fine_tune(SequenceClassifier(tiny(architecture="encoder"), 2), rows, labels, FineTuning())


def test_folders_that_hold_no_classifier_are_refused(tmp_path):
    classifier = SequenceClassifier(tiny(architecture="encoder"), 2)
    save(classifier, tmp_path / "c", tokenizer=write_tokenizer(tmp_path / "tok.json", 61))
    head = load_file(tmp_path / "c" / "classifier.safetensors")
    for changes, words in (
        ({"output.bias": torch.tensor(1.0)}, "not the head of a classifier"),
        ({"output.bias": torch.zeros(1)}, "at least 2 classes"),
        ({"output.weight": torch.zeros(2, 3)}, "output.weight has shape"),
        ({"output.bias": torch.zeros(2, dtype=torch.int64)}, "not a float type"),
        ({"body.encoder.norm.weight": torch.zeros(32)}, "expected none"),
    ):
        save_file({**head, **changes}, tmp_path / "c" / "classifier.safetensors")
        with pytest.raises(CheckpointError, match=words) as error:
            load(tmp_path / "c")
        assert "\n" not in str(error.value)
    (tmp_path / "c" / "classifier.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="not the head of a classifier"):
        load(tmp_path / "c")
    with pytest.raises(CheckpointError, match="is not a folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="one stack"):
        SequenceClassifier(tiny(architecture="encoder_decoder"), 2)
