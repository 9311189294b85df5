"""Prefetched batches: they belong to their steps, one step ahead, with errors at their step."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

from hallmark.model.keyed_randomness import combine_into_key
from hallmark.model.objectives import build_mlm_batch
from hallmark.model.training.packed_rows import PackedRows, select_batch_rows
from hallmark.model.training.prefetching import BatchBuilder, Prefetcher
from tests.model.oracles import toy_rows


def make_builder(folder, **changes):
    path = folder / "rows.bin"
    path.write_bytes(toy_rows(30, 16, 61).tobytes())

    def objective(rows, key, first):
        return build_mlm_batch(rows, key, first, mask_id=60, vocab_size=61)

    defaults = {"seed": 3, "batch_size": 8, "accumulation_steps": 1, "rank": 0, "processes": 1}
    return BatchBuilder(
        PackedRows(path, 16),
        objective,
        **{**defaults, **changes},
        pin_memory=False,
        count_flops=lambda batch: batch.ids.numel(),
    )


def test_a_batch_belongs_to_its_step(tmp_path):
    builder = make_builder(tmp_path)
    prefetcher = Prefetcher(builder, last_step=4)
    for step in (1, 2, 3, 4):
        prepared = prefetcher.get_batch(step)
        index = select_batch_rows(3, step, 8, 30)
        expected = builder.objective(
            builder.training_rows.read_rows(index), int(combine_into_key(3, step)[0]), 0
        ).with_predicted_positions()
        (part,) = prepared.micro_batches
        for name, tensor in vars(expected).items():
            assert tensor is None or torch.equal(getattr(part, name), tensor)
        assert prepared.weight_sum == expected.weights.sum().item()
        assert (prepared.token_count, prepared.flops) == (8 * 16, 8 * 16)
    prefetcher.stop()


def test_the_shares_of_all_processes_make_up_the_batch(tmp_path):
    (full_batch,) = make_builder(tmp_path)(5).micro_batches
    calls = []

    def build_share(rank):
        builder = make_builder(tmp_path, accumulation_steps=2, rank=rank, processes=2)

        def objective(rows, key, first):
            calls.append((len(rows), first))
            return builder.objective(rows, key, first)

        return replace(builder, objective=objective)(5)

    shares = [build_share(rank) for rank in (0, 1)]
    assert calls == [(4, 0), (4, 4)]
    parts = [part for share in shares for part in share.micro_batches]
    assert [len(part.ids) for part in parts] == [2, 2, 2, 2]
    for name in ("ids", "targets", "weights"):
        assert torch.equal(torch.cat([getattr(p, name) for p in parts]), getattr(full_batch, name))
    assert sum(share.weight_sum for share in shares) == full_batch.weights.sum().item()
    assert [share.token_count for share in shares] == [8 * 16] * 2  # logged for all processes
    assert [share.flops for share in shares] == [8 * 16] * 2


def test_one_step_is_prefetched_and_none_after_the_last():
    requested, built = [], threading.Event()

    def build_batch(step):
        requested.append(step)
        built.set()
        return step

    prefetcher = Prefetcher(build_batch, last_step=3)
    for step in (1, 2, 3):
        built.clear()
        assert prefetcher.get_batch(step) == step
        if step < 3:
            built.wait(10)
        assert set(requested) <= set(range(1, min(step + 1, 3) + 1))
    assert prefetcher.pending is None  # no further step is queued
    prefetcher.stop()
    assert requested == [1, 2, 3]


def test_prefetching_can_start_at_any_step():
    prefetcher = Prefetcher(lambda step: step, last_step=9)
    assert [prefetcher.get_batch(step) for step in (7, 8)] == [7, 8]
    assert prefetcher.get_batch(2) == 2
    prefetcher.stop()


def test_an_error_in_prefetching_is_raised_at_its_step():
    def build_batch(step):
        if step == 2:
            raise ValueError("step 2 has no rows")
        return step

    prefetcher = Prefetcher(build_batch, last_step=3)
    assert prefetcher.get_batch(1) == 1
    with pytest.raises(ValueError, match="step 2 has no rows"):
        prefetcher.get_batch(2)
    prefetcher.stop()
