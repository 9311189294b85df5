"""Batches made ready ahead: those of their steps, one ahead at most, errors where they belong."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

from model.keyed_randomness import combine_into_key
from model.objectives import build_mlm_batch
from model.training.packed_rows import PackedRows, select_batch_rows
from model.training.prefetching import BatchBuilder, Prefetcher
from tests.model.oracles import toy_rows


def recipe(folder, **changes):
    path = folder / "rows.bin"
    path.write_bytes(toy_rows(30, 16, 61).tobytes())

    def objective(rows, key, first):
        return build_mlm_batch(rows, key, first, mask_id=60, vocab_size=61)

    given = {"seed": 3, "batch_size": 8, "accumulation": 1, "rank": 0, "processes": 1}
    return BatchBuilder(
        PackedRows(path, 16),
        objective,
        **{**given, **changes},
        pin_memory=False,
        count_flops=lambda batch: batch.ids.numel(),
    )


def test_a_batch_is_that_of_its_step(tmp_path):
    how = recipe(tmp_path)
    ahead = Prefetcher(how, last_step=4)
    for step in (1, 2, 3, 4):
        made = ahead.get_batch(step)
        index = select_batch_rows(3, step, 8, 30)
        expected = how.objective(
            how.training_rows.read_rows(index), int(combine_into_key(3, step)[0]), 0
        ).with_predicted_positions()
        (part,) = made.micro_batches
        for name, tensor in vars(expected).items():
            assert tensor is None or torch.equal(getattr(part, name), tensor)
        assert made.weight_sum == expected.weights.sum().item()
        assert (made.token_count, made.flops) == (8 * 16, 8 * 16)
    ahead.stop()


def test_processes_make_the_rows_of_their_share_alone_and_together_the_batch(tmp_path):
    (whole,) = recipe(tmp_path)(5).micro_batches
    read = []

    def shared(rank):
        how = recipe(tmp_path, accumulation=2, rank=rank, processes=2)

        def objective(rows, key, first):
            read.append((len(rows), first))
            return how.objective(rows, key, first)

        return replace(how, objective=objective)(5)

    shares = [shared(rank) for rank in (0, 1)]
    assert read == [(4, 0), (4, 4)]
    parts = [part for share in shares for part in share.micro_batches]
    assert [len(part.ids) for part in parts] == [2, 2, 2, 2]
    for name in ("ids", "targets", "weights"):
        assert torch.equal(torch.cat([getattr(p, name) for p in parts]), getattr(whole, name))
    assert sum(share.weight_sum for share in shares) == whole.weights.sum().item()
    assert [share.token_count for share in shares] == [8 * 16] * 2  # what is logged is of all
    assert [share.flops for share in shares] == [8 * 16] * 2


def test_one_step_is_made_ahead_and_none_behind_the_last():
    asked, made = [], threading.Event()

    def make(step):
        asked.append(step)
        made.set()
        return step

    ahead = Prefetcher(make, last_step=3)
    for step in (1, 2, 3):
        made.clear()
        assert ahead.get_batch(step) == step
        if step < 3:
            made.wait(10)
        assert set(asked) <= set(range(1, min(step + 1, 3) + 1))
    assert ahead.pending is None  # nor is it waiting for its turn, which an end would take from it
    ahead.stop()
    assert asked == [1, 2, 3]


def test_a_training_may_begin_anywhere():
    ahead = Prefetcher(lambda step: step, last_step=9)
    assert [ahead.get_batch(step) for step in (7, 8)] == [7, 8]
    assert ahead.get_batch(2) == 2
    ahead.stop()


def test_what_goes_wrong_ahead_is_raised_at_its_own_step():
    def make(step):
        if step == 2:
            raise ValueError("step 2 has no rows")
        return step

    ahead = Prefetcher(make, last_step=3)
    assert ahead.get_batch(1) == 1
    with pytest.raises(ValueError, match="step 2 has no rows"):
        ahead.get_batch(2)
    ahead.stop()
