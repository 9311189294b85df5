"""Distributions at masks and restored gaps, against each sequence alone and transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hallmark.model.probing.cloze import compute_mask_log_probs, count_restored_gaps
from tests.model.oracles import logits, tiny

MASK = 60
TEXTS = [[0, 5, MASK, 7], [MASK], [0, MASK, 9, 9, MASK, 2, 3, 4], [3] * 15 + [MASK]]


@pytest.mark.parametrize("batch_tokens", [1, 20, 10_000])
@pytest.mark.parametrize("changes", [{}, {"positions": "rope", "head_transform": True}])
def test_mask_log_probs_equal_those_of_each_sequence_alone(changes, batch_tokens):
    model = tiny(architecture="encoder", **changes)
    mask_log_probs = compute_mask_log_probs(model, TEXTS, MASK, batch_tokens=batch_tokens)
    for text, scores in zip(TEXTS, mask_log_probs, strict=True):
        mask_positions = [i for i, token in enumerate(text) if token == MASK]
        with torch.no_grad():
            expected = logits(model, torch.tensor([text]))[0, mask_positions].log_softmax(-1)
        assert scores.shape == (len(mask_positions), 61)
        np.testing.assert_allclose(scores, expected, atol=1e-4)
        np.testing.assert_allclose(np.exp(scores).sum(1), 1, atol=1e-5)


def test_mask_log_probs_depend_on_both_sides():
    """*He ate the cake <mask> the fork*: another last word gives another distribution."""
    model = tiny(architecture="encoder")
    fork, glass = compute_mask_log_probs(
        model, [[5, 6, 7, 8, MASK, 7, end] for end in (9, 10)], MASK
    )
    assert abs(fork - glass).max() > 0.05


def test_mask_log_probs_equal_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    from hallmark.model.interchange.transformers_checkpoint import export_transformers
    from tests.model.interchange.test_transformers_checkpoint import BERT
    from tests.model.oracles import write_tokenizer

    model = tiny(**BERT)
    export_transformers(
        model, tmp_path / "bert", tokenizer_path=write_tokenizer(tmp_path / "tok.json", 61)
    )
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "bert").eval()
    (found,) = compute_mask_log_probs(model, [TEXTS[2]], MASK)
    with torch.no_grad():
        expected = theirs(torch.tensor([TEXTS[2]])).logits[0, [1, 4]].log_softmax(-1)
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "texts", "mask", "words"),
    [
        ({"architecture": "decoder"}, [[MASK]], MASK, "Only an encoder-only model"),
        ({}, [[MASK], [0, 5]], MASK, r"Sequence 1 has no mask token \(id 60\)"),
        ({}, [[MASK], []], MASK, "Sequence 1 has no mask"),
        ({}, [[MASK] * 17], MASK, "Sequence 0 has 17 tokens, more than the context of 16 tokens"),
        ({}, [[61]], MASK, "Token id 61"),
        ({}, [[5]], 61, "Token id 61"),
    ],
)
def test_invalid_masked_sequences_are_refused(changes, texts, mask, words):
    with pytest.raises(ValueError, match=words):
        compute_mask_log_probs(tiny(**{"architecture": "encoder", **changes}), texts, mask)


@pytest.mark.parametrize("gap_interval", [2, 5])
def test_restored_gaps_are_counted(gap_interval):
    model = tiny(architecture="encoder", positions="rope")
    random = np.random.default_rng(0)
    texts = [random.integers(2, 55, n).tolist() for n in (16, 9, gap_interval, gap_interval + 1, 1)]
    for text in texts[:2]:  # make one gap restorable: write the model's prediction into the text
        gapped = [MASK if i and i % gap_interval == 0 else t for i, t in enumerate(text)]
        (predictions,) = compute_mask_log_probs(model, [gapped], MASK)
        text[gap_interval] = int(predictions[0][:MASK].argmax())
    restored, gaps = count_restored_gaps(model, texts, MASK, gap_interval=gap_interval)
    for text, restored_count, gap_count in zip(texts, restored, gaps, strict=True):
        positions = [i for i in range(1, len(text)) if i % gap_interval == 0]
        assert gap_count == len(positions)
        gapped = torch.tensor([[MASK if i in positions else t for i, t in enumerate(text)]])
        predictions = logits(model, gapped)[0].argmax(-1).tolist()
        assert restored_count == sum(predictions[i] == text[i] for i in positions)
    assert restored[:2].min() > 0 and restored.sum() < gaps.sum()


@pytest.mark.parametrize(
    ("text", "gap_interval", "words"),
    [
        ([5, 6, 7], 1, "gap_interval must be at least 2"),
        ([5, MASK, 7], 2, "already contains the mask token"),
    ],
)
def test_invalid_cloze_tests_are_refused(text, gap_interval, words):
    with pytest.raises(ValueError, match=words):
        count_restored_gaps(tiny(architecture="encoder"), [text], MASK, gap_interval=gap_interval)
