"""A training goes on with settings that change no batch, and with more steps where the rates so far
are the same; with others it does not."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import fields, replace

import pytest
import torch

from model.config import BATCH_INVARIANT_SETTINGS, SCHEDULE_SETTINGS, TrainConfig
from model.training.run import main
from model.training.schedule import (
    compute_learning_rate,
    find_last_step_before_decay,
    have_same_rates_until,
)
from model.training.work_folder import list_state_steps
from tests.model.training.training import follow, log, run, start, write_job


def test_rates_are_called_the_same_exactly_where_they_are():
    draw = random.Random(0)
    same = other = 0
    for _ in range(3000):
        one, two = (
            TrainConfig(
                steps=(steps := draw.randint(4, 12)),
                warmup=min(3, steps),
                schedule=draw.choice(["cosine", "linear", "wsd", "constant"]),
                decay_fraction=draw.choice([0.0, 0.25, 0.5, 1.0]),
                min_lr_ratio=draw.choice([0.0, 0.5]),
            )
            for _ in range(2)
        )
        step = draw.randint(1, 12)
        found = have_same_rates_until(one, two, step)
        past = range(1, step + 1)
        if found:
            assert [compute_learning_rate(one, s) for s in past] == [
                compute_learning_rate(two, s) for s in past
            ]
            same += 1
        else:  # or one has no such step, or it would be by chance: a decay of nothing
            apart = any(
                compute_learning_rate(one, s) != compute_learning_rate(two, s) for s in past
            )
            chance = {one.schedule, two.schedule} & {"cosine", "linear"} or step > min(
                find_last_step_before_decay(one), find_last_step_before_decay(two)
            )
            assert apart or chance
            other += apart
    assert same > 300 and other > 300


def test_every_setting_either_changes_batches_or_is_said_not_to():
    """A new setting decides, until somebody says otherwise."""
    names = {field.name for field in fields(TrainConfig)}
    assert names > BATCH_INVARIANT_SETTINGS and set(SCHEDULE_SETTINGS) < names
    assert not BATCH_INVARIANT_SETTINGS & set(SCHEDULE_SETTINGS)


def weights(work, step):
    return (work / "checkpoints" / f"step-{step:08d}" / "model.safetensors").read_bytes()


def history(events):
    return [(part["from"], part["settings"]) for part in events[-1]["history"]]


def test_a_training_goes_on_with_another_accumulation(inputs, tmp_path):
    """As after running out of memory."""
    train = {"precision": "fp32"}
    alone, work = tmp_path / "alone", tmp_path / "work"
    assert run(write_job(inputs, alone, **train))[0] == 0
    process = start(write_job(inputs, work, **train))
    follow(process, lambda e: e["event"] == "checkpoint" and e["step"] == 10)
    process.kill()
    process.communicate()
    other = {**train, "accumulation": 4, "recompute": True, "checkpoint_every": 7, "samples": 1}
    code, events = run(write_job(inputs, work, "other", **other))
    assert code == 0 and events[0]["resumed"] and events[0]["stretches"] == 2, events
    (one, before), (two, behind) = history(events)
    assert one == 1 and two == events[0]["step"] + 1 >= 11
    assert {k for k in behind if behind[k] != before[k]} == set(other) - set(train)
    losses = [log(folder)["loss"].to_pylist() for folder in (alone, work)]
    assert losses[1] == pytest.approx(losses[0], abs=1e-3)


@pytest.mark.parametrize(
    ("schedule", "branch"), [("constant", 20), ("wsd", 16)], ids=["constant", "wsd"]
)
def test_more_steps_go_on_where_the_rates_so_far_are_the_same(inputs, tmp_path, schedule, branch):
    """To the same weights, bit for bit, as if there had been as many from the start."""
    train = {"schedule": schedule, "precision": "fp32", "validate_every": 20}
    model = {"dropout": 0.1}
    alone, work = tmp_path / "alone", tmp_path / "work"
    assert run(write_job(inputs, alone, model=model, steps=40, **train))[0] == 0
    assert run(write_job(inputs, work, model=model, steps=20, **train))[0] == 0
    assert branch in list_state_steps(work) and len(list_state_steps(work)) <= 3
    code, events = run(write_job(inputs, work, "longer", model=model, steps=40, **train))
    assert code == 0 and events[0]["step"] == branch
    assert weights(work, 40) == weights(alone, 40)
    assert log(work)["loss"].to_pylist() == log(alone)["loss"].to_pylist()
    assert [step for step, _ in history(events)] == [1, branch + 1]


def refused(job, capsys):
    threads = torch.get_num_threads()
    assert main([str(job)]) == 1
    torch.set_num_threads(threads)
    (event,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return event["message"]


CHANGES = {
    "batch_size": 4,
    "learning_rate": 0.02,
    "warmup": 3,
    "beta1": 0.8,
    "beta2": 0.9,
    "weight_decay": 0.0,
    "clip": 2.0,
    "z_loss": 1e-4,
    "optimizer": "muon",
    "precision": "bf16",
    "seed": 1,
    "document_mask": True,
    "divergence": "skip",
    "spike": 9.0,
    "objective": "prefix",
}


@pytest.fixture(scope="module")
def decayed(inputs, tmp_path_factory):
    """A training that is done, of which no state is left from before its decay."""
    train = {"steps": 4, "precision": "fp32", "checkpoint_every": 1}
    work = tmp_path_factory.mktemp("decayed") / "work"
    assert run(write_job(inputs, work, **train))[0] == 0
    return work, train


@pytest.mark.parametrize("name", CHANGES)
def test_other_settings_of_past_steps_are_refused(inputs, decayed, capsys, name):
    work, train = decayed
    job = write_job(inputs, work, "other", **{**train, name: CHANGES[name]})
    assert "other train settings" in refused(job, capsys)


def test_all_settings_that_decide_are_tried():
    told = (
        {field.name for field in fields(TrainConfig)}
        - BATCH_INVARIANT_SETTINGS
        - set(SCHEDULE_SETTINGS)
    )
    assert told - {"momentum"} == set(CHANGES)  # which is Muon's


@pytest.mark.parametrize(
    ("done", "asked"),
    [
        ({"schedule": "cosine"}, {"steps": 12}),
        ({"schedule": "linear"}, {"steps": 12}),
        ({"schedule": "cosine"}, {"schedule": "wsd", "steps": 8}),
        ({"schedule": "wsd"}, {"steps": 12}),
        ({"schedule": "constant"}, {"steps": 6}),
    ],
)
def test_another_schedule_of_past_steps_is_refused(inputs, tmp_path, capsys, done, asked):
    train = {"steps": 8, "warmup": 2, "precision": "fp32", "checkpoint_every": 1, **done}
    work = tmp_path / "work"
    assert run(write_job(inputs, work, **train))[0] == 0
    if done["schedule"] == "wsd":  # the state before its decay is gone
        shutil.rmtree(work / "state" / "step-00000006")
    message = refused(write_job(inputs, work, "other", **{**train, **asked}), capsys)
    assert "with another schedule, of which 8 steps are done" in message
    assert list_state_steps(work) == [8, 7]  # nothing was taken away


def test_states_of_the_warm_up_serve_any_schedule():
    one = TrainConfig(steps=100, warmup=10)
    assert have_same_rates_until(one, replace(one, steps=200, schedule="linear"), 10)
    assert not have_same_rates_until(one, replace(one, steps=200, schedule="linear"), 11)
