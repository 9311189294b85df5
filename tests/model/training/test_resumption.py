"""A training resumes with other settings only if batches and rates so far are equal."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import fields, replace

import pytest
import torch

from hallmark.model.config import BATCH_INVARIANT_SETTINGS, SCHEDULE_SETTINGS, TrainConfig
from hallmark.model.training.run import main
from hallmark.model.training.schedule import (
    compute_learning_rate,
    find_last_step_before_decay,
    have_same_rates_until,
)
from hallmark.model.training.work_folder import list_state_steps
from tests.model.training.training import follow, log, run, start, write_job


def test_have_same_rates_until_agrees_with_the_rates():
    draw = random.Random(0)
    same = other = 0
    for _ in range(3000):
        one, two = (
            TrainConfig(
                steps=(steps := draw.randint(4, 12)),
                warmup_steps=min(3, steps),
                schedule=draw.choice(["cosine", "linear", "wsd", "constant"]),
                decay_fraction=draw.choice([0.0, 0.25, 0.5, 1.0]),
                min_lr_ratio=draw.choice([0.0, 0.5]),
            )
            for _ in range(2)
        )
        step = draw.randint(1, 12)
        claimed_same = have_same_rates_until(one, two, step)
        past_steps = range(1, step + 1)
        if claimed_same:
            assert [compute_learning_rate(one, s) for s in past_steps] == [
                compute_learning_rate(two, s) for s in past_steps
            ]
            same += 1
        else:  # equal rates are possible by chance, or if one training has fewer steps
            differ = any(
                compute_learning_rate(one, s) != compute_learning_rate(two, s) for s in past_steps
            )
            chance = {one.schedule, two.schedule} & {"cosine", "linear"} or step > min(
                find_last_step_before_decay(one), find_last_step_before_decay(two)
            )
            assert differ or chance
            other += differ
    assert same > 300 and other > 300


def test_setting_lists_name_existing_settings_once():
    """A new setting changes batches unless it is listed."""
    names = {field.name for field in fields(TrainConfig)}
    assert names > BATCH_INVARIANT_SETTINGS and set(SCHEDULE_SETTINGS) < names
    assert not BATCH_INVARIANT_SETTINGS & set(SCHEDULE_SETTINGS)


def weights(work, step):
    return (work / "checkpoints" / f"step-{step:08d}" / "model.safetensors").read_bytes()


def history(events):
    return [(part["from"], part["settings"]) for part in events[-1]["history"]]


def test_a_training_resumes_with_another_accumulation(inputs, tmp_path):
    """As a user would do after running out of memory."""
    train = {"precision": "fp32"}
    alone, work = tmp_path / "alone", tmp_path / "work"
    assert run(write_job(inputs, alone, **train))[0] == 0
    process = start(write_job(inputs, work, **train))
    follow(process, lambda e: e["event"] == "checkpoint" and e["step"] == 10)
    process.kill()
    process.communicate()
    other = {
        **train,
        "accumulation_steps": 4,
        "activation_checkpointing": True,
        "checkpoint_every": 7,
        "sample_count": 1,
    }
    code, events = run(write_job(inputs, work, "other", **other))
    assert code == 0 and events[0]["resumed"] and events[0]["stretches"] == 2, events
    (one, before), (two, after) = history(events)
    assert one == 1 and two == events[0]["step"] + 1 >= 11
    assert {k for k in after if after[k] != before[k]} == set(other) - set(train)
    losses = [log(folder)["loss"].to_pylist() for folder in (alone, work)]
    assert losses[1] == pytest.approx(losses[0], abs=1e-3)


@pytest.mark.parametrize(
    ("schedule", "branch"), [("constant", 20), ("wsd", 16)], ids=["constant", "wsd"]
)
def test_a_longer_training_resumes_if_the_rates_so_far_are_equal(
    inputs, tmp_path, schedule, branch
):
    """The weights equal bit for bit those of a training with as many steps from the start."""
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


def read_refusal(job, capsys):
    threads = torch.get_num_threads()
    assert main([str(job)]) == 1
    torch.set_num_threads(threads)
    (event,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return event["message"]


CHANGES = {
    "batch_size": 4,
    "learning_rate": 0.02,
    "warmup_steps": 3,
    "beta1": 0.8,
    "beta2": 0.9,
    "weight_decay": 0.0,
    "max_grad_norm": 2.0,
    "z_loss": 1e-4,
    "optimizer": "muon",
    "precision": "bf16",
    "seed": 1,
    "document_mask": True,
    "on_divergence": "skip",
    "spike_factor": 9.0,
    "objective": "prefix",
}


@pytest.fixture(scope="module")
def decayed_training(inputs, tmp_path_factory):
    """A finished training without a state from before its decay."""
    train = {"steps": 4, "precision": "fp32", "checkpoint_every": 1}
    work = tmp_path_factory.mktemp("decayed") / "work"
    assert run(write_job(inputs, work, **train))[0] == 0
    return work, train


@pytest.mark.parametrize("name", CHANGES)
def test_other_settings_for_past_steps_are_refused(inputs, decayed_training, capsys, name):
    work, train = decayed_training
    job = write_job(inputs, work, "other", **{**train, name: CHANGES[name]})
    assert "other training settings" in read_refusal(job, capsys)


def test_every_setting_that_changes_batches_is_tested():
    all_settings = {field.name for field in fields(TrainConfig)}
    relevant = all_settings - BATCH_INVARIANT_SETTINGS - set(SCHEDULE_SETTINGS)
    assert relevant - {"momentum"} == set(CHANGES)  # only Muon has momentum


@pytest.mark.parametrize(
    ("finished", "changes"),
    [
        ({"schedule": "cosine"}, {"steps": 12}),
        ({"schedule": "linear"}, {"steps": 12}),
        ({"schedule": "cosine"}, {"schedule": "wsd", "steps": 8}),
        ({"schedule": "wsd"}, {"steps": 12}),
        ({"schedule": "constant"}, {"steps": 6}),
    ],
)
def test_another_schedule_for_past_steps_is_refused(inputs, tmp_path, capsys, finished, changes):
    train = {"steps": 8, "warmup_steps": 2, "precision": "fp32", "checkpoint_every": 1, **finished}
    work = tmp_path / "work"
    assert run(write_job(inputs, work, **train))[0] == 0
    if finished["schedule"] == "wsd":  # remove the state from before its decay
        shutil.rmtree(work / "state" / "step-00000006")
    message = read_refusal(write_job(inputs, work, "other", **{**train, **changes}), capsys)
    assert "has a different learning-rate schedule and has reached step 8" in message
    assert list_state_steps(work) == [8, 7]  # nothing was removed


def test_a_state_of_the_warm_up_fits_any_schedule():
    one = TrainConfig(steps=100, warmup_steps=10)
    assert have_same_rates_until(one, replace(one, steps=200, schedule="linear"), 10)
    assert not have_same_rates_until(one, replace(one, steps=200, schedule="linear"), 11)
