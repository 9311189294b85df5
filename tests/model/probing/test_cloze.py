from __future__ import annotations

import numpy as np
import pytest
import torch

from model.probing.cloze import compute_mask_log_probs, count_restored_gaps
from tests.model.oracles import logits, tiny

MASK = 60
TEXTS = [[0, 5, MASK, 7], [MASK], [0, MASK, 9, 9, MASK, 2, 3, 4], [3] * 15 + [MASK]]


@pytest.mark.parametrize("batch_tokens", [1, 20, 10_000])
@pytest.mark.parametrize("changes", [{}, {"positions": "rope", "head_transform": True}])
def test_the_distribution_at_each_mask_is_that_of_the_sequence_alone(changes, batch_tokens):
    model = tiny(architecture="encoder", **changes)
    found = compute_mask_log_probs(model, TEXTS, MASK, batch_tokens=batch_tokens)
    for text, scores in zip(TEXTS, found, strict=True):
        at = [i for i, token in enumerate(text) if token == MASK]
        with torch.no_grad():
            expected = logits(model, torch.tensor([text]))[0, at].log_softmax(-1)
        assert scores.shape == (len(at), 61)
        np.testing.assert_allclose(scores, expected, atol=1e-4)
        np.testing.assert_allclose(np.exp(scores).sum(1), 1, atol=1e-5)


def test_both_sides_count():
    """*He ate the cake <mask> the fork*: another last word, another distribution."""
    model = tiny(architecture="encoder")
    fork, glass = compute_mask_log_probs(
        model, [[5, 6, 7, 8, MASK, 7, end] for end in (9, 10)], MASK
    )
    assert abs(fork - glass).max() > 0.05


def test_it_equals_that_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    from model.interchange.transformers_checkpoint import export_transformers
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
        ({"architecture": "decoder"}, [[MASK]], MASK, "needs an encoder-only model"),
        ({}, [[MASK], [0, 5]], MASK, "Sequence 1 holds no mask, which is token 60"),
        ({}, [[MASK], []], MASK, "Sequence 1 holds no mask"),
        ({}, [[MASK] * 17], MASK, "Sequence 0 has 17 tokens, more than the context 16"),
        ({}, [[61]], MASK, "Token id 61"),
        ({}, [[5]], 61, "Token id 61"),
    ],
)
def test_what_cannot_be_asked_is_named(changes, texts, mask, words):
    with pytest.raises(ValueError, match=words):
        compute_mask_log_probs(tiny(**{"architecture": "encoder", **changes}), texts, mask)


@pytest.mark.parametrize("every", [2, 5])
def test_a_text_is_as_readable_as_the_gaps_that_are_filled(every):
    model = tiny(architecture="encoder", positions="rope")
    random = np.random.default_rng(0)
    texts = [random.integers(2, 55, n).tolist() for n in (16, 9, every, every + 1, 1)]
    for text in texts[:2]:  # some gaps that it will fill: what it says there becomes the text
        gapped = [MASK if i and i % every == 0 else t for i, t in enumerate(text)]
        (said,) = compute_mask_log_probs(model, [gapped], MASK)
        text[every] = int(said[0][:MASK].argmax())
    restored, gaps = count_restored_gaps(model, texts, MASK, gap_interval=every)
    for text, right, asked in zip(texts, restored, gaps, strict=True):
        places = [i for i in range(1, len(text)) if i % every == 0]
        assert asked == len(places)
        gapped = torch.tensor([[MASK if i in places else t for i, t in enumerate(text)]])
        said = logits(model, gapped)[0].argmax(-1).tolist()
        assert right == sum(said[i] == text[i] for i in places)
    assert restored[:2].min() > 0 and restored.sum() < gaps.sum()


@pytest.mark.parametrize(
    ("text", "every", "words"), [([5, 6, 7], 1, "at least 2"), ([5, MASK, 7], 2, "the mask al")]
)
def test_what_is_no_cloze_test_is_named(text, every, words):
    with pytest.raises(ValueError, match=words):
        count_restored_gaps(tiny(architecture="encoder"), [text], MASK, gap_interval=every)
