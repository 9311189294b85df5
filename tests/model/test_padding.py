"""Sequences as rows: each appears once, grouped by length, padded on the right."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hallmark.model.padding import batch_indices_by_length, check_token_ids, pad_rows
from hallmark.model.special_tokens import PAD_ID

CPU = torch.device("cpu")


@given(st.lists(st.integers(0, 12), max_size=30), st.integers(1, 40))
def test_batches_contain_every_non_empty_sequence_and_are_full(lengths, batch_tokens):
    groups = list(batch_indices_by_length(lengths, batch_tokens))
    numbers = [number for group in groups for number in group]
    assert sorted(numbers) == [i for i, length in enumerate(lengths) if length]
    sorted_lengths = [lengths[number] for number in numbers]
    assert sorted_lengths == sorted(sorted_lengths, reverse=True)
    for number, group in enumerate(groups):
        width = lengths[group[0]]
        assert len(group) == 1 or len(group) * width <= batch_tokens
        last = number == len(groups) - 1
        assert last or (len(group) + 1) * width > batch_tokens, "another sequence would fit"


def test_padding_follows_real_tokens():
    ids, real = pad_rows([[5, 6, 7], [8], []], CPU)
    assert ids.tolist() == [[5, 6, 7], [8, PAD_ID, PAD_ID], [PAD_ID, PAD_ID, PAD_ID]]
    assert real.tolist() == [[True] * 3, [True, False, False], [False] * 3]
    assert ids.dtype == torch.int64 and real.dtype == torch.bool


@pytest.mark.parametrize(
    ("sequence", "words"),
    [
        ([0, 61], "Token id 61 is not in the model's vocabulary of 61"),
        ([-1], "Token id -1 is not in the"),
        ([0.5], "The prompt is not a list of token ids"),
        ([[1], [2]], "The prompt is not a list of token ids"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(sequence, words):
    with pytest.raises(ValueError, match=words):
        check_token_ids(sequence, 61, "The prompt")


def test_valid_ids_are_returned_unchanged():
    assert check_token_ids((0, 60, 3), 61, "The prompt").tolist() == [0, 60, 3]
    assert check_token_ids([], 61, "The prompt").tolist() == []
