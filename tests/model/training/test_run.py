"""The trainer on packed text: outputs, resumption, divergence, objectives and schedules."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from hallmark.model.config import TrainConfig
from hallmark.model.interchange.checkpoint import load_checkpoint
from hallmark.model.objectives import build_causal_batch
from hallmark.model.training.optimizers import SpikeGuard
from hallmark.model.training.packed_rows import select_batch_rows
from hallmark.model.training.schedule import compute_learning_rate
from hallmark.model.training.step_metrics import LOG_SCHEMA
from tests.model.oracles import toy_rows, write_tokenizer
from tests.model.training.training import (
    DIVERGING,
    assert_same_run,
    finish,
    follow,
    log,
    run,
    start,
    write_job,
)


@pytest.fixture(scope="module")
def reference(inputs, tmp_path_factory):
    """Run an undisturbed training with everything that a resumed one must restore.

    It has dropout, both optimizers, bf16 and skipped steps.
    """
    train = {
        "optimizer": "muon",
        "precision": "bf16",
        "accumulation_steps": 2,
        "document_mask": True,
        "activation_checkpointing": True,
        "learning_rate": 0.03,
        "spike_factor": 1.05,
        "on_divergence": "skip",
    }
    work = tmp_path_factory.mktemp("run") / "work"
    job = write_job(inputs, work, model={"dropout": 0.1}, **train)
    code, events = run(job)
    assert code == 0, events
    assert {e["step"] for e in events if e["event"] == "skipped"} == read_skipped_steps(work)
    assert read_skipped_steps(work)
    return work, train, events


def read_skipped_steps(work):
    rows = log(work, ["step", "skipped"]).to_pylist()
    return {row["step"] for row in rows if row["skipped"]}


def test_a_training_writes_its_log_and_checkpoints(reference):
    work, _, events = reference
    table = log(work)
    assert table.schema.equals(LOG_SCHEMA)
    assert table["step"].to_pylist() == list(range(1, 41))
    assert table["tokens_seen"].to_pylist() == [16 * 8 * s for s in range(1, 41)]
    validated_steps = [
        s
        for s, v in zip(
            *(table[c].to_pylist() for c in ("step", "validation_bits_per_token")), strict=True
        )
        if v is not None
    ]
    assert validated_steps == [15, 30, 40]
    kinds = [e["event"] for e in events]
    assert kinds[0] == "start" and kinds[-1] == "done"
    assert [e["step"] for e in events if e["event"] == "checkpoint"] == [0, 10, 20, 30, 40]
    assert all((Path(e["path"]) / "model.safetensors").exists() for e in events if "path" in e)
    states = sorted(path.name for path in (work / "state").iterdir())
    assert states == ["step-00000030", "step-00000040"]  # the last two of five


def test_the_model_learns_and_step_zero_is_untrained(reference):
    work, _, _ = reference
    losses = log(work)["loss"].to_pylist()
    assert losses[-1] < 0.7 * losses[0]
    first = load_checkpoint(work / "checkpoints" / "step-00000000")
    last = load_checkpoint(work / "checkpoints" / "step-00000040")
    batch = build_causal_batch(toy_rows(12, 16, 40, seed=2).astype(np.int64), document_mask=True)
    assert last.compute_loss_sum(batch) < 0.7 * first.compute_loss_sum(batch)


def test_a_training_killed_five_times_equals_an_undisturbed_one_bit_for_bit(
    reference, inputs, tmp_path
):
    """It is killed before its first state, after and between checkpoints, and after validation."""
    undisturbed, train, _ = reference
    work = tmp_path / "work"
    job = write_job(inputs, work, model={"dropout": 0.1}, **train)
    kill_conditions = [
        lambda e: e["event"] == "start",
        lambda e: e["event"] == "checkpoint" and e["step"] == 10,
        lambda e: e["event"] == "validation" and e["step"] == 15,
        lambda e: e["event"] == "checkpoint" and e["step"] == 20,
        lambda e: e["event"] == "validation" and e["step"] == 30,
    ]
    for kill_condition in kill_conditions:
        process = start(job)
        follow(process, kill_condition)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    code, events = run(job)
    assert code == 0 and events[0]["resumed"], events
    assert_same_run(work, undisturbed)


def test_sigterm_saves_a_state_and_training_resumes_from_that_step(reference, inputs, tmp_path):
    undisturbed, train, _ = reference
    work = tmp_path / "work"
    job = write_job(inputs, work, model={"dropout": 0.1}, **train)
    process = start(job)
    follow(process, lambda e: e["event"] == "step")
    process.terminate()
    code, _ = finish(process)
    assert code == 143
    stopped_at = log(work)["step"].to_pylist()[-1]
    code, events = run(job)
    assert code == 0 and events[0]["resumed"] and events[0]["step"] == stopped_at
    assert_same_run(work, undisturbed)


def test_a_second_trainer_waits_for_the_first(inputs, tmp_path):
    job = write_job(inputs, tmp_path / "work", steps=400, checkpoint_every=400)
    first, second = start(job), start(job)
    pair = {p: json.loads(p.stdout.readline())["event"] for p in (first, second)}
    assert sorted(pair.values()) == ["start", "waiting"]
    holder = next(p for p, event in pair.items() if event == "start")
    waiter = next(p for p, event in pair.items() if event == "waiting")
    holder.terminate()
    assert finish(holder)[0] == 143
    follow(waiter, lambda e: e["event"] == "start" and e["resumed"])
    waiter.terminate()
    assert finish(waiter)[0] == 143


def test_the_trainer_exits_with_its_parent(inputs, tmp_path):
    job = write_job(inputs, tmp_path / "work", steps=100_000, checkpoint_every=100_000)
    process = start(job)
    follow(process, lambda e: e["event"] == "step")
    process.stdin.close()  # as when the parent dies
    assert process.wait(timeout=10) == 1
    process.stdout.close()
    process.stderr.close()


def test_the_trainer_stops_when_nobody_reads_its_events(inputs, tmp_path):
    job = write_job(inputs, tmp_path / "work", steps=100_000, checkpoint_every=100_000)
    process = start(job)
    follow(process, lambda e: e["event"] == "start")
    process.stdout.close()
    assert process.wait(timeout=20) == 1
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    process.stdin.close()


def test_a_finished_training_reports_its_checkpoints_again(reference, inputs, tmp_path):
    work, train, _ = reference
    code, events = run(write_job(inputs, work, "again", model={"dropout": 0.1}, **train))
    assert code == 0
    assert [e["event"] for e in events] == ["start", *["checkpoint"] * 5, "done"]


def test_other_settings_on_the_same_work_folder_are_refused(reference, inputs):
    work, train, _ = reference
    changed = {**train, "learning_rate": 0.5}
    code, events = run(write_job(inputs, work, "other", model={"dropout": 0.1}, **changed))
    assert code == 1
    assert "other training settings" in events[-1]["message"]


def test_accumulation_does_not_change_the_losses(inputs, tmp_path):
    losses = []
    for parts in (1, 4):
        work = tmp_path / f"work{parts}"
        job = write_job(inputs, work, accumulation_steps=parts, precision="fp32", steps=10)
        assert run(job)[0] == 0
        losses.append(log(work)["loss"].to_pylist())
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_recomputing_activations_does_not_change_the_training(inputs, tmp_path):
    for work in (tmp_path / "kept", tmp_path / "again"):
        train = {"activation_checkpointing": work.name == "again", "precision": "fp32", "steps": 10}
        assert run(write_job(inputs, work, model={"dropout": 0.1}, **train))[0] == 0
    assert_same_run(tmp_path / "kept", tmp_path / "again")


def test_a_skipped_step_changes_no_weight(inputs, tmp_path):
    """After the guard's first 20 steps, 1.05 times the mean norm is too large.

    At this learning rate some steps exceed it and some do not.
    """
    train = {"spike_factor": 1.05, "on_divergence": "skip", **DIVERGING, "learning_rate": 0.3}
    run(write_job(inputs, tmp_path / "work", checkpoint_every=1, **train))
    skipped = read_skipped_steps(tmp_path / "work")
    assert skipped and min(skipped) > 20
    for step in range(1, 41):
        now, before = (
            (tmp_path / "work" / "checkpoints" / f"step-{s:08d}" / "model.safetensors").read_bytes()
            for s in (step, step - 1)
        )
        assert (now == before) == (step in skipped)


def test_the_spike_guard_counts_consecutive_divergent_steps():
    guard = SpikeGuard()
    assert not any(guard.update_and_detect_divergence(1.0, 1.0, 3.0) for _ in range(30))
    assert [
        guard.update_and_detect_divergence(1.0, 2.9, 3.0),
        guard.update_and_detect_divergence(1.0, 4.0, 3.0),
    ] == [
        False,
        True,
    ]
    assert guard.update_and_detect_divergence(math.nan, 1.0, 0.0) and guard.divergent_steps == 2
    assert not guard.update_and_detect_divergence(1.0, 1.0, 3.0) and guard.divergent_steps == 0
    assert not SpikeGuard().update_and_detect_divergence(
        1.0, 1e9, 3.0
    )  # no mean to compare with yet


def test_log_spaced_checkpoints_are_at_powers_of_two(inputs, tmp_path):
    job = write_job(
        inputs, tmp_path / "work", steps=12, checkpoint_every=10, log_spaced_checkpoints=True
    )
    assert run(job)[0] == 0
    checkpoints = sorted(p.name for p in (tmp_path / "work" / "checkpoints").iterdir())
    assert [int(name[-8:]) for name in checkpoints] == [0, 1, 2, 4, 8, 10, 12]


def test_a_step_trains_on_the_rows_of_select_batch_rows(inputs, tmp_path):
    work = tmp_path / "work"
    assert run(write_job(inputs, work, precision="fp32", steps=5, warmup_steps=1))[0] == 0
    model = load_checkpoint(work / "checkpoints" / "step-00000000")
    rows = toy_rows(60, 16, 40, seed=1)[select_batch_rows(0, 1, 8, 60)]
    batch = build_causal_batch(rows.astype(np.int64))
    loss = model.compute_loss_sum(batch) / batch.weights.sum()
    assert log(work)["loss"].to_pylist()[0] == pytest.approx(loss.item(), abs=1e-5)


@pytest.mark.parametrize(
    ("objective", "architecture"),
    [("prefix", "decoder"), ("mlm", "encoder"), ("span_corruption", "encoder_decoder")],
)
def test_every_objective_trains_its_architecture(tmp_path, inputs, objective, architecture):
    marks = ["<|mask|>", "<|sentinel_0|>", "<|sentinel_1|>"]
    folder = tmp_path / "inputs"
    shutil.copytree(inputs, folder)
    write_tokenizer(folder / "tokenizer.json", 43, marks)
    model = {"architecture": architecture, "vocab_size": 43, "positions": "rope"}
    train = {"objective": objective, "precision": "fp32", "steps": 150}
    job = write_job(folder, tmp_path / "work", model=model, **train)
    code, events = run(job)
    assert code == 0, events
    losses = log(tmp_path / "work")["loss"].to_pylist()
    assert np.mean(losses[-20:]) < 0.9 * np.mean(losses[:5])
    assert (
        load_checkpoint(tmp_path / "work" / "checkpoints" / "step-00000150").objective == objective
    )


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
def test_schedules_warm_up_and_end_at_the_minimum_rate(schedule):
    config = TrainConfig(
        steps=100, warmup_steps=10, schedule=schedule, learning_rate=1.0, min_lr_ratio=0.1
    )
    rates = [compute_learning_rate(config, step) for step in range(1, 101)]
    assert rates[:10] == pytest.approx([0.1 * i for i in range(1, 11)])
    assert rates[-1] == pytest.approx(0.1)
    assert rates[9:] == sorted(rates[9:], reverse=True)
    middle = {"cosine": 0.55, "linear": 0.55, "wsd": 1.0}[schedule]
    assert rates[54] == pytest.approx(middle)  # step 55, half-way from 10 to 100


@pytest.mark.parametrize(("steps", "share"), [(20, 0.0), (2, 0.2), (20, 0.02)])
def test_a_decay_shorter_than_a_step_is_one_step(steps, share):
    config = TrainConfig(
        steps=steps,
        warmup_steps=0,
        schedule="wsd",
        decay_fraction=share,
        learning_rate=1.0,
        min_lr_ratio=0.1,
    )
    rates = [compute_learning_rate(config, step) for step in range(1, steps + 1)]
    assert rates == pytest.approx([1.0] * (steps - 1) + [0.1])


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd", "constant"])
def test_a_warm_up_of_the_whole_training_ends_at_the_full_rate(schedule):
    config = TrainConfig(steps=4, warmup_steps=4, schedule=schedule, learning_rate=1.0)
    assert [compute_learning_rate(config, step) for step in range(1, 5)] == [0.25, 0.5, 0.75, 1.0]


def test_a_constant_schedule_warms_up_and_stays_constant():
    config = TrainConfig(steps=100, warmup_steps=4, schedule="constant", learning_rate=1.0)
    rates = [compute_learning_rate(config, step) for step in range(1, 101)]
    assert rates == [0.25, 0.5, 0.75, *[1.0] * 97]
