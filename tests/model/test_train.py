from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.dataset as ds
import pytest
import torch
from safetensors.torch import load_file, save_file

from model.checkpoint import load
from model.config import TrainConfig
from model.data import batch_sequences
from model.job import read_job
from model.objectives import causal
from model.optimise import SpikeGuard, learning_rate
from model.train import main
from model.trainer import LOG_SCHEMA, TIMING_COLUMNS
from tests.model.oracles import toy_rows, write_rows, write_tokenizer

ROOT = Path(__file__).resolve().parents[2]
MODEL = {"vocab_size": 40, "context": 16, "d_model": 32, "n_layers": 2, "n_heads": 2}
TRAIN = {
    "steps": 40,
    "batch_size": 8,
    "warmup": 4,
    "learning_rate": 0.01,
    "checkpoint_every": 10,
    "validate_every": 15,
    "device": "cpu",
    "threads": 1,
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    write_rows(folder / "train.parquet", toy_rows(60, 16, 40, seed=1))
    write_rows(folder / "validation.parquet", toy_rows(12, 16, 40, seed=2))
    write_tokenizer(folder / "tokenizer.json", 40)
    return folder


def write_job(inputs, work, name="job", model=None, **train):
    job = {
        "model": {**MODEL, **(model or {})},
        "train": {**TRAIN, **train},
        "data": {
            "train": str(inputs / "train.parquet"),
            "validation": str(inputs / "validation.parquet"),
        },
        "tokenizer": str(inputs / "tokenizer.json"),
        "work": str(work),
    }
    path = work.parent / f"{work.name}-{name}.json"
    path.write_text(json.dumps(job))
    return path


def start(job):
    return subprocess.Popen(
        [sys.executable, "-m", "model.train", str(job), "--watch-stdin"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    """Wait for the trainer; returns (exit code, events). Its stdin stays open to the end."""
    events = [json.loads(line) for line in process.stdout]
    code = process.wait(timeout=60)
    assert "Traceback" not in process.stderr.read()
    return code, events


def run(job):
    return finish(start(job))


def follow(process, wanted):
    """Read events until ``wanted(event)``; returns it."""
    for line in process.stdout:
        event = json.loads(line)
        if wanted(event):
            return event
    raise AssertionError(f"the trainer ended early: {process.stderr.read()}")


def log(work, columns=None):
    files = sorted(map(str, (work / "log").glob("*.parquet")))
    return ds.dataset(files).to_table(columns=columns)


CONTENT = [name for name in LOG_SCHEMA.names if name not in TIMING_COLUMNS]


def assert_same_run(work, reference):
    assert log(work, CONTENT).equals(log(reference, CONTENT))
    for name in ("validation", "samples"):
        one, other = (ds.dataset(w / name).to_table() for w in (work, reference))
        assert one.num_rows and one.equals(other)
    names = [sorted(p.name for p in (w / "checkpoints").iterdir()) for w in (work, reference)]
    assert names[0] == names[1]
    for name in names[0]:
        for file in ("model.safetensors", "config.json"):
            one, other = (w / "checkpoints" / name / file for w in (work, reference))
            assert one.read_bytes() == other.read_bytes()


@pytest.fixture(scope="module")
def reference(inputs, tmp_path_factory):
    """An undisturbed run, with all that needs restoring: dropout, both optimizers, bf16, and
    steps that are skipped."""
    train = {
        "optimizer": "muon",
        "precision": "bf16",
        "accumulation": 2,
        "document_mask": True,
        "recompute": True,
        "learning_rate": 0.03,
        "spike": 1.05,
        "divergence": "skip",
    }
    work = tmp_path_factory.mktemp("run") / "work"
    job = write_job(inputs, work, model={"dropout": 0.1}, **train)
    code, events = run(job)
    assert code == 0, events
    assert {e["step"] for e in events if e["event"] == "skipped"} == skipped_steps(work)
    assert skipped_steps(work)
    return work, train, events


def skipped_steps(work):
    rows = log(work, ["step", "skipped"]).to_pylist()
    return {row["step"] for row in rows if row["skipped"]}


def test_a_run_leaves_its_log_and_checkpoints(reference):
    work, _, events = reference
    table = log(work)
    assert table.schema.equals(LOG_SCHEMA)
    assert table["step"].to_pylist() == list(range(1, 41))
    assert table["tokens"].to_pylist() == [16 * 8 * s for s in range(1, 41)]
    validated = [
        s
        for s, v in zip(
            *(table[c].to_pylist() for c in ("step", "validation_bits_per_token")), strict=True
        )
        if v is not None
    ]
    assert validated == [15, 30, 40]
    kinds = [e["event"] for e in events]
    assert kinds[0] == "start" and kinds[-1] == "done"
    assert [e["step"] for e in events if e["event"] == "checkpoint"] == [0, 10, 20, 30, 40]
    assert all((Path(e["path"]) / "model.safetensors").exists() for e in events if "path" in e)
    assert len(list((work / "state").iterdir())) == 1


def test_the_model_learns_and_step_zero_is_untrained(reference):
    work, _, _ = reference
    losses = log(work)["loss"].to_pylist()
    assert losses[-1] < 0.7 * losses[0]
    first = load(work / "checkpoints" / "step-00000000")
    last = load(work / "checkpoints" / "step-00000040")
    batch = causal(toy_rows(12, 16, 40, seed=2).astype(np.int64), document_mask=True)
    inputs = dict(targets=batch.targets, weights=batch.weights, **batch.inputs())
    assert last(batch.ids, **inputs) < 0.7 * first(batch.ids, **inputs)


def test_a_run_killed_at_five_moments_equals_an_undisturbed_one_to_the_bit(
    reference, inputs, tmp_path
):
    """Before its first state, after checkpoints, between two of them, and behind validation."""
    undisturbed, train, _ = reference
    work = tmp_path / "work"
    job = write_job(inputs, work, model={"dropout": 0.1}, **train)
    moments = [
        lambda e: e["event"] == "start",
        lambda e: e["event"] == "checkpoint" and e["step"] == 10,
        lambda e: e["event"] == "validation" and e["step"] == 15,
        lambda e: e["event"] == "checkpoint" and e["step"] == 20,
        lambda e: e["event"] == "validation" and e["step"] == 30,
    ]
    for moment in moments:
        process = start(job)
        follow(process, moment)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    code, events = run(job)
    assert code == 0 and events[0]["resumed"], events
    assert_same_run(work, undisturbed)


def test_sigterm_saves_and_goes_on_from_the_very_step(reference, inputs, tmp_path):
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


def test_the_trainer_dies_with_its_parent(inputs, tmp_path):
    job = write_job(inputs, tmp_path / "work", steps=100_000, checkpoint_every=100_000)
    process = start(job)
    follow(process, lambda e: e["event"] == "step")
    process.stdin.close()  # what a parent's death does
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


def test_a_finished_run_announces_its_checkpoints_again(reference, inputs, tmp_path):
    work, train, _ = reference
    code, events = run(write_job(inputs, work, "again", model={"dropout": 0.1}, **train))
    assert code == 0
    assert [e["event"] for e in events] == ["start", *["checkpoint"] * 5, "done"]


def test_other_settings_on_the_same_work_folder_are_refused(reference, inputs):
    work, train, _ = reference
    changed = {**train, "learning_rate": 0.5}
    code, events = run(write_job(inputs, work, "other", model={"dropout": 0.1}, **changed))
    assert code == 1
    assert "other train settings" in events[-1]["message"]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"learning_rate": 1e30}, "between"),
        ({"model": {"d_model": 33}}, "not divisible"),
        ({"model": {"vocab_size": 41}}, "40 tokens"),
        ({"model": {"context": 8}}, "rows of 8"),
        ({"learning_rat": 1.0}, "no key 'learning_rat'"),
        ({"device": "cuda"}, "no CUDA device"),
        ({"objective": "mlm"}, "architecture encoder"),
        ({"objective": "mlm", "model": {"architecture": "encoder"}}, "<|mask|>"),
    ],
)
def test_a_job_that_cannot_be_done_ends_with_one_sentence(inputs, tmp_path, capsys, changes, word):
    if "device" in changes and torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    threads = torch.get_num_threads()
    assert main([str(write_job(inputs, tmp_path / "work", **changes))]) == 1
    torch.set_num_threads(threads)  # the job's are for a process of its own
    (event,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert event["event"] == "error" and word in event["message"]


def test_a_run_that_diverges_ends_with_one_sentence(inputs, tmp_path):
    code, events = run(write_job(inputs, tmp_path / "work", spike=1.0, learning_rate=0.1))
    assert code == 1 and events[-1]["event"] == "error"
    assert "times its mean; lower learning_rate" in events[-1]["message"]


def test_a_full_disk_is_one_sentence_and_with_room_again_the_run_goes_on(inputs, small_disk):
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * (700 << 10))
    work = small_disk / "work"
    job = write_job(inputs, work, steps=12, checkpoint_every=12)
    code, events = run(job)
    assert code == 1 and "No space left on device" in events[-1]["message"]
    assert not list(work.rglob("*.tmp"))
    filler.unlink()
    code, events = run(job)
    assert code == 0 and log(work)["step"].to_pylist() == list(range(1, 13))


def test_accumulation_changes_nothing_but_memory(inputs, tmp_path):
    losses = []
    for parts in (1, 4):
        work = tmp_path / f"work{parts}"
        job = write_job(inputs, work, accumulation=parts, precision="fp32", steps=10)
        assert run(job)[0] == 0
        losses.append(log(work)["loss"].to_pylist())
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_recomputing_activations_changes_nothing_but_memory(inputs, tmp_path):
    for work in (tmp_path / "kept", tmp_path / "again"):
        train = {"recompute": work.name == "again", "precision": "fp32", "steps": 10}
        assert run(write_job(inputs, work, model={"dropout": 0.1}, **train))[0] == 0
    assert_same_run(tmp_path / "kept", tmp_path / "again")


def test_a_skipped_step_changes_no_weight(inputs, tmp_path):
    """Behind the guard's first 20 steps whatever is above the mean is out of line."""
    train = {"spike": 1.0, "divergence": "skip", "learning_rate": 0.1}
    run(write_job(inputs, tmp_path / "work", checkpoint_every=1, **train))
    skipped = skipped_steps(tmp_path / "work")
    assert skipped and min(skipped) > 20
    for step in range(1, 41):
        now, before = (
            (tmp_path / "work" / "checkpoints" / f"step-{s:08d}" / "model.safetensors").read_bytes()
            for s in (step, step - 1)
        )
        assert (now == before) == (step in skipped)


def test_ten_skipped_steps_in_a_row_stop_the_training():
    guard = SpikeGuard()
    assert not any(guard.diverged(1.0, 1.0, 3.0) for _ in range(30))
    assert [guard.diverged(1.0, 2.9, 3.0), guard.diverged(1.0, 4.0, 3.0)] == [False, True]
    assert guard.diverged(math.nan, 1.0, 0.0) and guard.skipped == 2
    assert not guard.diverged(1.0, 1.0, 3.0) and guard.skipped == 0
    assert not SpikeGuard().diverged(1.0, 1e9, 3.0)  # nothing to compare with yet


def test_checkpoints_at_powers_of_two_for_the_growth_of_memorisation(inputs, tmp_path):
    job = write_job(inputs, tmp_path / "work", steps=12, checkpoint_every=10, log_spaced=True)
    assert run(job)[0] == 0
    found = sorted(p.name for p in (tmp_path / "work" / "checkpoints").iterdir())
    assert [int(name[-8:]) for name in found] == [0, 1, 2, 4, 8, 10, 12]


def test_a_step_trains_on_the_rows_that_batch_sequences_names(inputs, tmp_path):
    work = tmp_path / "work"
    assert run(write_job(inputs, work, precision="fp32", steps=5, warmup=1))[0] == 0
    model = load(work / "checkpoints" / "step-00000000")
    rows = toy_rows(60, 16, 40, seed=1)[batch_sequences(0, 1, 8, 60)]
    batch = causal(rows.astype(np.int64))
    loss = model(batch.ids, targets=batch.targets, weights=batch.weights) / batch.weights.sum()
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


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
def test_schedules_warm_up_to_the_rate_and_end_at_its_floor(schedule):
    config = TrainConfig(
        steps=100, warmup=10, schedule=schedule, learning_rate=1.0, min_lr_ratio=0.1
    )
    rates = [learning_rate(config, step) for step in range(1, 101)]
    assert rates[:10] == pytest.approx([0.1 * i for i in range(1, 11)])
    assert rates[-1] == pytest.approx(0.1)
    assert rates[9:] == sorted(rates[9:], reverse=True)
    middle = {"cosine": 0.55, "linear": 0.55, "wsd": 1.0}[schedule]
    assert rates[54] == pytest.approx(middle)  # step 55, half-way from 10 to 100


def test_the_trainer_removes_nothing_that_is_not_its_own(inputs, tmp_path):
    work = tmp_path / "work"
    kept = [
        work / "checkpoints" / "step-final" / "notes.txt",
        work / "log" / "2026-11.txt",
        work / "samples" / "part-one.parquet",
    ]
    for path in kept:
        path.parent.mkdir(parents=True)
        path.write_text("mine")
    stale = work / "checkpoints" / "step-00000007"
    stale.mkdir()
    code, events = run(write_job(inputs, work, steps=2, warmup=0))
    assert code == 0, events
    assert all(path.read_text() == "mine" for path in kept) and not stale.exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"work": ""}, "work must be a path"),
        ({"work": 5}, "work must be a path"),
        ({"start": []}, "start must be a path"),
        ({"tokenizer": None}, "tokenizer must be a path"),
        ({"data": {"train": [5]}}, "data.train must be a path"),
        ({"data": {"train": "t", "validaton": "v"}}, "data may have"),
        ({"extra": 1}, "must have the keys"),
    ],
)
def test_a_job_of_wrong_types_is_refused_by_name(inputs, tmp_path, change, words):
    path = write_job(inputs, tmp_path / "work")
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match=words):
        read_job(str(path))


def test_a_damaged_state_is_one_sentence(inputs, tmp_path, capsys):
    work = tmp_path / "work"
    job = write_job(inputs, work, steps=4, warmup=0, checkpoint_every=2)
    assert run(job)[0] == 0
    (folder,) = (work / "state").iterdir()
    header = json.loads((folder / "state.json").read_text())
    tensors = load_file(folder / "state.safetensors")
    moment = "optimizer.0.0.exp_avg"
    headers = ({k: v for k, v in header.items() if k != "guard"}, {**header, "guard": {"x": 1}},
               {**header, "guard": {**header["guard"], "mean": "x"}}, [])  # fmt: skip
    contents = (
        {k: v for k, v in tensors.items() if k != moment},
        {**tensors, "optimizer.0.99.exp_avg": torch.zeros(3)},
        {**tensors, moment: torch.zeros(2)},
        {**tensors, "model.decoder.norm.weight": torch.ones(1)},
    )
    threads = torch.get_num_threads()
    for bad, content in [*((h, tensors) for h in headers), *((header, c) for c in contents)]:
        (folder / "state.json").write_text(json.dumps(bad))
        save_file(content, folder / "state.safetensors")
        assert main([str(job)]) == 1
        *_, event = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert "is damaged" in event["message"]
    torch.set_num_threads(threads)


def test_a_training_goes_on_with_its_own_data_only(inputs, tmp_path, capsys):
    work = tmp_path / "work"
    job = write_job(inputs, work, steps=2, warmup=0)
    assert run(job)[0] == 0
    values = json.loads(job.read_text())
    values["data"]["train"] = str(inputs / "validation.parquet")
    job.write_text(json.dumps(values))
    threads = torch.get_num_threads()
    assert main([str(job)]) == 1
    torch.set_num_threads(threads)
    assert "other data settings" in capsys.readouterr().out


def test_a_context_of_one_token_has_no_room_for_samples(tmp_path):
    write_rows(tmp_path / "train.parquet", toy_rows(60, 1, 40, seed=1))
    write_rows(tmp_path / "validation.parquet", toy_rows(12, 1, 40, seed=2))
    write_tokenizer(tmp_path / "tokenizer.json", 40)
    model = {"context": 1}
    assert run(write_job(tmp_path, tmp_path / "work", model=model, steps=2, warmup=0))[0] == 0
