"""Jobs that a training refuses, and how it ends after an error."""

from __future__ import annotations

import json
import shutil
import signal

import pytest
import torch
from safetensors.torch import load_file, save_file

from hallmark.model.training.job import check_job, read_job
from hallmark.model.training.run import main
from hallmark.model.training.trainer import Trainer
from tests.model.oracles import toy_rows, write_rows, write_tokenizer
from tests.model.training.training import DIVERGING, log, run, write_job


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"learning_rate": 1e30}, "between"),
        ({"model": {"d_model": 33}}, "not divisible"),
        ({"model": {"vocab_size": 41}}, "40 tokens, but the model's vocab_size is 41"),
        (
            {"model": {"vocab_size": 39}},
            "40 tokens, but the model's vocab_size is 39. The two numbers must be equal",
        ),
        ({"model": {"context": 8}}, "rows of 8"),
        ({"learning_rat": 1.0}, "no setting 'learning_rat'"),
        ({"device": "cuda"}, "no CUDA device"),
        ({"objective": "mlm"}, "architecture encoder"),
        ({"objective": "mlm", "model": {"architecture": "encoder"}}, "<|mask|>"),
        (
            {"objective": "span_corruption", "model": {"architecture": "encoder_decoder"}},
            "<|sentinel_0|>",
        ),
    ],
)
def test_an_impossible_job_ends_with_one_sentence(inputs, tmp_path, capsys, changes, word):
    if "device" in changes and torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    threads = torch.get_num_threads()
    assert main([str(write_job(inputs, tmp_path / "work", **changes))]) == 1
    torch.set_num_threads(threads)  # the job sets them for a process of its own
    (event,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert event["event"] == "error" and word in event["message"]


@pytest.mark.parametrize(
    ("model", "job", "words"),
    [
        ({"labels": ["a", "b"], "tie_embeddings": False}, {}, "labels learns from examples"),
        ({}, {"frozen": True}, "uses the embedding table as its output layer"),
        ({}, {"frozen": True, "examples": True}, "uses the embedding table as its output layer"),
    ],
)
def test_contradictory_jobs_are_refused_before_data_are_read(inputs, tmp_path, model, job, words):
    path = write_job(inputs, tmp_path / "work", model=model)
    path.write_text(json.dumps({**json.loads(path.read_text()), **job}))
    with pytest.raises(ValueError, match=words):
        check_job(read_job(str(path)), 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"work": ""}, "work must be a path"),
        ({"work": 5}, "work must be a path"),
        ({"start": []}, "start must be a path"),
        ({"tokenizer": None}, "tokenizer must be a path"),
        ({"data": {"train": [5]}}, "data.train must be a path"),
        ({"data": {"train": "t", "validaton": "v"}}, "data must be an object with the key train"),
        ({"extra": 1}, "must have the keys"),
    ],
)
def test_a_job_with_wrong_types_is_refused_by_key(inputs, tmp_path, change, words):
    path = write_job(inputs, tmp_path / "work")
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match=words):
        read_job(str(path))


def test_a_divergent_training_ends_with_one_sentence(inputs, tmp_path):
    code, events = run(write_job(inputs, tmp_path / "work", spike_factor=1.0, **DIVERGING))
    assert code == 1 and events[-1]["event"] == "error"
    assert "times its running mean. Reduce learning_rate" in events[-1]["message"]


def test_a_full_disk_ends_with_one_sentence_and_training_resumes_with_free_space(
    inputs, small_disk
):
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


def test_the_trainer_removes_only_its_own_files(inputs, tmp_path):
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
    code, events = run(write_job(inputs, work, steps=2, warmup_steps=0))
    assert code == 0, events
    assert all(path.read_text() == "mine" for path in kept) and not stale.exists()


def test_a_damaged_state_ends_with_one_sentence(inputs, tmp_path, capsys):
    work = tmp_path / "work"
    job = write_job(inputs, work, steps=4, warmup_steps=0, checkpoint_every=2)
    assert run(job)[0] == 0
    before, folder = sorted((work / "state").iterdir())
    header = json.loads((folder / "state.json").read_text())
    tensors = load_file(folder / "state.safetensors")
    moment = "optimizer.0.0.exp_avg"
    headers = (
        {k: v for k, v in header.items() if k != "guard"},
        {**header, "guard": {"x": 1}},
        {**header, "guard": {**header["guard"], "mean_norm": "x"}},
        [],
        *({k: v for k, v in header.items() if k != x} for x in ("history", "identity")),
        {**header, "history": 3},
        {**header, "history": [1]},
        {**header, "history": [{}]},
        {**header, "history": [{"from": "1", "settings": {}}]},
        {**header, "identity": []},
        {**header, "step": 99},
    )
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
        advice = f"remove {folder} to resume training from the previous state"
        assert advice in event["message"]
    shutil.rmtree(folder)
    assert main([str(job)]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert events[0]["step"] == int(before.name[-8:]) == 2 and events[-1]["event"] == "done"
    torch.set_num_threads(threads)


def test_a_training_with_other_data_does_not_resume(inputs, tmp_path, capsys):
    work = tmp_path / "work"
    job = write_job(inputs, work, steps=2, warmup_steps=0)
    assert run(job)[0] == 0
    values = json.loads(job.read_text())
    values["data"]["train"] = str(inputs / "validation.parquet")
    job.write_text(json.dumps(values))
    threads = torch.get_num_threads()
    assert main([str(job)]) == 1
    torch.set_num_threads(threads)
    assert "with other data: use another" in capsys.readouterr().out


def test_a_context_of_one_token_has_no_samples(tmp_path):
    write_rows(tmp_path / "train.parquet", toy_rows(60, 1, 40, seed=1))
    write_rows(tmp_path / "validation.parquet", toy_rows(12, 1, 40, seed=2))
    write_tokenizer(tmp_path / "tokenizer.json", 40)
    model = {"context": 1}
    assert run(write_job(tmp_path, tmp_path / "work", model=model, steps=2, warmup_steps=0))[0] == 0


def test_out_of_memory_names_settings_that_resume_the_training(
    inputs, tmp_path, monkeypatch, capsys
):
    """The trainer runs out of memory at a step, with the error of a GPU."""
    step, threads = Trainer._train_step, torch.get_num_threads()
    handler = signal.getsignal(signal.SIGTERM)

    def run_out_of_memory(trainer, number):
        if number > 12:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        step(trainer, number)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_train_step", run_out_of_memory)
        assert main([str(write_job(inputs, tmp_path / "work"))]) == 1
    torch.set_num_threads(threads)  # the job sets them, and a signal handler, for its own process
    signal.signal(signal.SIGTERM, handler)
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["event"] == "error"
    assert (
        "increase train.accumulation_steps or set train.activation_checkpointing, then run the "
        "command again" in last["message"]
    )
    code, events = run(
        write_job(inputs, tmp_path / "work", accumulation_steps=2, activation_checkpointing=True)
    )
    assert code == 0 and events[0]["resumed"] and events[0]["step"] == 10
    assert log(tmp_path / "work", ["step"])["step"].to_pylist() == list(range(1, 41))
