"""Two processes that train together (gloo, on the CPU), against a single process."""

from __future__ import annotations

import json
import shutil

import pyarrow.dataset as ds
import pytest
from safetensors.torch import load_file

from tests.model.oracles import write_tokenizer
from tests.model.training.training import (
    assert_same_run,
    finish,
    follow,
    log,
    run,
    start,
    write_job,
)

TRAIN = {
    "precision": "fp32",
    "accumulation_steps": 2,
    "steps": 12,
    "warmup_steps": 2,
    "checkpoint_every": 6,
    "validate_every": 5,
}


@pytest.fixture(scope="module")
def single_process(inputs, tmp_path_factory):
    work = tmp_path_factory.mktemp("alone") / "work"
    assert run(write_job(inputs, work, **TRAIN))[0] == 0
    return work


def weights(work, step=12):
    return load_file(work / "checkpoints" / f"step-{step:08d}" / "model.safetensors")


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_processes_train_like_one(single_process, inputs, tmp_path, kind):
    work = tmp_path / "work"
    job = write_job(inputs, work, **TRAIN, parallel=kind, processes=2)
    code, events = run(job)
    assert code == 0, events
    assert events[0]["event"] == "start" and events[0]["processes"] == 2
    for column in ("loss", "grad_norm"):
        expected = log(single_process)[column].to_pylist()
        assert log(work)[column].to_pylist() == pytest.approx(expected, rel=1e-4)
    expected = weights(single_process)
    for name, tensor in weights(work).items():
        assert tensor.shape == expected[name].shape
        assert (tensor - expected[name]).abs().max() < 1e-4, name
    assert_same_tables(work, single_process)


def assert_same_tables(work, single_process):
    for name in ("validation", "samples"):
        one, other = (ds.dataset(w / name).to_table().to_pylist() for w in (work, single_process))
        assert len(one) == len(other) > 0
        for row, like in zip(one, other, strict=True):
            bits = row.pop("bits_per_byte", 0), like.pop("bits_per_byte", 0)
            assert row == like and bits[0] == pytest.approx(bits[1], rel=1e-4)


@pytest.mark.parametrize(
    ("kind", "objective", "architecture"),
    [
        ("ddp", "mlm", "encoder"),
        ("ddp", "prefix", "decoder"),
        ("fsdp", "prefix", "decoder"),
        ("fsdp", "span_corruption", "encoder_decoder"),
    ],
)
def test_two_processes_draw_and_generate_like_one(inputs, tmp_path, kind, objective, architecture):
    """Each process builds its own rows, and both generate the samples of a sharded model."""
    folder = tmp_path / "inputs"
    shutil.copytree(inputs, folder)
    marks = ["<|mask|>", "<|sentinel_0|>", "<|sentinel_1|>"]
    write_tokenizer(folder / "tokenizer.json", 43, marks)
    model = {"vocab_size": 43, "architecture": architecture}
    train = {**TRAIN, "objective": objective, "steps": 5, "validate_every": 2, "parallel": kind}
    works = [tmp_path / f"{n}" for n in (1, 2)]
    for processes, work in enumerate(works, 1):
        job = write_job(folder, work, model=model, **train, processes=processes)
        code, events = run(job)
        assert code == 0, events
    one, two = (log(work) for work in works)
    assert two["loss"].to_pylist() == pytest.approx(one["loss"].to_pylist(), rel=1e-4)
    assert two["tokens_seen"].equals(one["tokens_seen"])
    if architecture != "encoder":  # an encoder generates nothing
        assert_same_tables(*works)


@pytest.mark.slow
def test_two_resumed_processes_write_the_same_bytes(inputs, tmp_path):
    train = {**TRAIN, "parallel": "fsdp", "processes": 2}
    dropout = {"dropout": 0.1}  # each process has its own generator
    reference, work = tmp_path / "reference", tmp_path / "work"
    assert run(write_job(inputs, reference, model=dropout, **train))[0] == 0
    job = write_job(inputs, work, model=dropout, **train)
    process = start(job, torchrun=True)  # torchrun passes SIGTERM on
    follow(process, lambda e: e["event"] == "step")
    process.terminate()
    assert finish(process)[0] == 143
    code, events = run(job)
    assert code == 0 and events[0]["resumed"] and events[0]["step"] > 0
    assert_same_run(work, reference)


def test_training_resumes_with_fewer_processes(single_process, inputs, tmp_path):
    work = tmp_path / "work"
    process = start(write_job(inputs, work, **TRAIN, parallel="fsdp", processes=2))
    follow(process, lambda e: e["event"] == "checkpoint" and e["step"] == 6)
    process.kill()
    process.communicate()
    code, events = run(write_job(inputs, work, **TRAIN))
    assert code == 0 and events[0]["resumed"] and events[0]["processes"] == 1
    expected = weights(single_process)
    for name, tensor in weights(work).items():
        assert (tensor - expected[name]).abs().max() < 1e-4, name


def test_an_error_in_all_processes_is_one_sentence(inputs, tmp_path):
    train = {"optimizer": "muon", "parallel": "fsdp", "processes": 2}
    code, events = run(write_job(inputs, tmp_path / "work", **train), torchrun=True)
    assert code == 1
    assert {e["event"] for e in events} == {"error"}
    assert "The 'muon' optimizer needs whole matrices" in events[0]["message"]


def test_a_sharded_model_generates_samples_without_validation(inputs, tmp_path):
    """Validation gathers the weights outside the blocks, and samples normally follow it."""
    train = {**TRAIN, "steps": 3, "validate_every": 1, "checkpoint_every": 2, "parallel": "fsdp"}
    works = [tmp_path / f"{processes}" for processes in (1, 2)]
    for processes, work in enumerate(works, 1):
        path = write_job(inputs, work, **train, processes=processes)
        job = json.loads(path.read_text())
        job["data"]["validation"] = None
        path.write_text(json.dumps(job))
        code, events = run(path)
        assert code == 0, events
    one, two = (ds.dataset(work / "samples").to_table().to_pylist() for work in works)
    assert one == two and {row["step"] for row in two} == {1, 2, 3}
