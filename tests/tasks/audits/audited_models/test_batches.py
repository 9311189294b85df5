"""Test that batches stay within limits of tokens and logits, and contain everything once."""

import random

import pytest

from hallmark.tasks.audits.audited_models import masked_model
from hallmark.tasks.audits.audited_models.audited_model import (
    MAX_LOGITS,
    batch_by_shared_context,
)
from hallmark.tasks.audits.audited_models.masked_model import (
    MAX_BATCH_TOKENS,
    batch_indices_of_similar_length,
)
from hallmark.tasks.audits.audited_models.opening import open_audited_model
from hallmark.tasks.contract import HallmarkError, UsageError


@pytest.mark.parametrize("vocab_size", [260, 32_000, 262_144])
def test_batches_are_limited_in_tokens_and_logits(vocab_size):
    """With a byte-level vocabulary the states of tokens need more memory than the logits."""
    lengths = [random.Random(0).randrange(300) for _ in range(2000)]
    batches = [*batch_indices_of_similar_length(lengths, vocab_size)]
    assert sorted(i for batch in batches for i in batch) == [*range(len(lengths))]
    for batch in batches:
        tokens = len(batch) * max(lengths[i] for i in batch)
        assert tokens <= MAX_BATCH_TOKENS or len(batch) == 1
        assert tokens * vocab_size <= MAX_LOGITS or len(batch) == 1


@pytest.mark.parametrize("max_scored_tokens", [1, 30, 2000])
@pytest.mark.parametrize("max_targets", [None, 7])
def test_targets_after_shared_contexts_are_limited(max_scored_tokens, max_targets):
    rng = random.Random(1)
    contexts = [[7] * rng.choice([2, 5, 40]) + [rng.randrange(3)] for _ in range(500)]
    targets = [[5] * rng.randrange(1, 12) for _ in contexts]
    batches = [
        *batch_by_shared_context(
            contexts, targets, 512, 0, max_targets=max_targets, max_scored_tokens=max_scored_tokens
        )
    ]
    assert sorted(i for batch in batches for i in batch.target_indices) == [*range(500)]
    for batch in batches:
        longest = max(len(targets[i]) for i in batch.target_indices)
        assert len(batch.target_indices) <= (max_targets or 500)
        scored_tokens = len(batch.target_indices) * longest
        assert scored_tokens <= max_scored_tokens or len(batch.target_indices) == 1
        for context_index, i in zip(batch.context_indices, batch.target_indices, strict=True):
            assert batch.contexts[context_index] == contexts[i]


def test_generated_rows_are_limited_in_tokens(gpt2_folder, monkeypatch):
    """A small vocabulary allows thousands of rows, whose states would fill the memory."""
    model = open_audited_model(gpt2_folder, device="cpu")
    assert model._count_rows_per_batch(20, 20) == (1 << 15) // 40
    monkeypatch.setattr(model, "vocab_size", 1 << 18)
    assert model._count_rows_per_batch(20, 20) == 64
    monkeypatch.setattr(model, "batch_size", 5)
    assert model._count_rows_per_batch(20, 20) == 5


def test_masked_rows_are_built_batch_by_batch(bert_folder, monkeypatch):
    """Each token of a text is a row of the text's length, so all rows together fill the memory."""
    model = open_audited_model(bert_folder, device="cpu")
    ids = [model.encode("The nurse said that she would be late.")] * 4
    positions = [[*range(len(row))] for row in ids]
    expected = model.compute_masked_log_probs(ids, positions)
    row_counts, compute_logits_at = [], model.compute_logits_at
    monkeypatch.setattr(masked_model, "MAX_BATCH_TOKENS", 3 * (len(ids[0]) + 2))
    monkeypatch.setattr(
        model,
        "compute_logits_at",
        lambda rows, places: row_counts.append(len(rows)) or compute_logits_at(rows, places),
    )
    scores = model.compute_masked_log_probs(ids, positions)
    assert max(row_counts) == 3 and sum(row_counts) == 4 * len(ids[0])
    for row, expected_row in zip(scores, expected, strict=True):
        assert row == pytest.approx(expected_row, abs=1e-5)


def test_new_tokens_that_do_not_fit_the_context_fail_one_audit_only(gpt2_folder):
    """A usage error would end the command; the other audits can run."""
    model = open_audited_model(gpt2_folder, device="cpu")
    new_tokens = {"max_new_tokens": model.context_length}
    message = "48 new tokens do not fit into the context of .* skip the audit"
    for generate in (
        lambda: model.generate_continuations([[0]], **new_tokens),
        lambda: model.generate_completions([[0]], [[]], completion_count=2, **new_tokens),
    ):
        with pytest.raises(HallmarkError, match=message) as caught:
            generate()
        assert not isinstance(caught.value, UsageError)
