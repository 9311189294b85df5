"""Batches made ready ahead: those of their steps, one ahead at most, errors where they belong."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

from model.draws import combine
from model.objectives import mlm
from model.training.batches import Ahead, Recipe
from model.training.data import PackedRows, batch_sequences
from tests.model.oracles import toy_rows


def recipe(folder, **changes):
    path = folder / "rows.bin"
    path.write_bytes(toy_rows(30, 16, 61).tobytes())

    def objective(rows, key, first):
        return mlm(rows, key, first, mask=60, vocab_size=61)

    given = {"seed": 3, "size": 8, "accumulation": 1, "rank": 0, "processes": 1}
    return Recipe(
        PackedRows(path, 16), objective, **{**given, **changes}, pinned=False,
        flops=lambda batch: batch.ids.numel(),
    )  # fmt: skip


def test_a_batch_is_that_of_its_step(tmp_path):
    how = recipe(tmp_path)
    ahead = Ahead(how, last=4)
    for step in (1, 2, 3, 4):
        made = ahead.of(step)
        index = batch_sequences(3, step, 8, 30)
        expected = how.objective(how.rows.rows(index), int(combine(3, step)[0]), 0).sparse()
        (part,) = made.parts
        for name, tensor in vars(expected).items():
            assert tensor is None or torch.equal(getattr(part, name), tensor)
        assert made.weight == expected.weights.sum().item()
        assert (made.tokens, made.flops) == (8 * 16, 8 * 16)
    ahead.close()


def test_processes_make_the_rows_of_their_share_alone_and_together_the_batch(tmp_path):
    (whole,) = recipe(tmp_path)(5).parts
    read = []

    def shared(rank):
        how = recipe(tmp_path, accumulation=2, rank=rank, processes=2)

        def objective(rows, key, first):
            read.append((len(rows), first))
            return how.objective(rows, key, first)

        return replace(how, objective=objective)(5)

    shares = [shared(rank) for rank in (0, 1)]
    assert read == [(4, 0), (4, 4)]
    parts = [part for share in shares for part in share.parts]
    assert [len(part.ids) for part in parts] == [2, 2, 2, 2]
    for name in ("ids", "targets", "weights"):
        assert torch.equal(torch.cat([getattr(p, name) for p in parts]), getattr(whole, name))
    assert sum(share.weight for share in shares) == whole.weights.sum().item()
    assert [share.tokens for share in shares] == [8 * 16] * 2  # what is logged is of all
    assert [share.flops for share in shares] == [8 * 16] * 2


def test_one_step_is_made_ahead_and_none_behind_the_last():
    asked, made = [], threading.Event()

    def make(step):
        asked.append(step)
        made.set()
        return step

    ahead = Ahead(make, last=3)
    for step in (1, 2, 3):
        made.clear()
        assert ahead.of(step) == step
        if step < 3:
            made.wait(10)
        assert set(asked) <= set(range(1, min(step + 1, 3) + 1))
    assert ahead.next is None  # nor is it waiting for its turn, which an end would take from it
    ahead.close()
    assert asked == [1, 2, 3]


def test_a_training_may_begin_anywhere():
    ahead = Ahead(lambda step: step, last=9)
    assert [ahead.of(step) for step in (7, 8)] == [7, 8]
    assert ahead.of(2) == 2
    ahead.close()


def test_what_goes_wrong_ahead_is_raised_at_its_own_step():
    def make(step):
        if step == 2:
            raise ValueError("step 2 has no rows")
        return step

    ahead = Ahead(make, last=3)
    assert ahead.of(1) == 1
    with pytest.raises(ValueError, match="step 2 has no rows"):
        ahead.of(2)
    ahead.close()
