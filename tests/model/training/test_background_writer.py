"""Outputs written during training: as they were when requested, or not at all."""

from __future__ import annotations

import json
import shutil
import threading
from functools import partial

import pytest
import torch

from hallmark.model.config import TrainConfig, config_to_dict
from hallmark.model.interchange.checkpoint import load_checkpoint
from hallmark.model.training.background_writer import TABLE_SCHEMAS, BackgroundWriter
from hallmark.model.training.optimizers import SpikeGuard, make_optimizers
from hallmark.model.training.parallel import DistributedWorld
from hallmark.model.training.run import main
from hallmark.model.training.state import TrainingSnapshot, restore_training_state, take_snapshot
from hallmark.model.training.work_folder import list_state_steps
from tests.model.oracles import tiny, write_tokenizer
from tests.model.training.training import DIVERGING, TRAIN, log, run, write_job

CONFIG = TrainConfig(**{**TRAIN, "optimizer": "muon"})
EMPTY_TABLES = {name: [] for name in TABLE_SCHEMAS}


def make_header(step):
    return {"step": step, "identity": {}, "config": config_to_dict(CONFIG), "history": []}


class Training:
    """A model that changes with each step, and the writer of its outputs."""

    def __init__(self, work):
        self.work_folder, self.model = work, tiny()
        self.optimizers = make_optimizers(self.model, CONFIG)
        tokenizer = write_tokenizer(work.parent / "tokenizer.json", 61)
        self.writer = BackgroundWriter(work, tokenizer, CONFIG)

    def step(self):
        for parameter in self.model.parameters():
            parameter.grad = torch.randn_like(parameter)
        for optimizer in self.optimizers:
            optimizer.step()

    def snapshot(self, step):
        return take_snapshot(
            make_header(step), self.model, self.optimizers, SpikeGuard(), DistributedWorld()
        )

    def tensors(self):
        tensors_by_name = self.snapshot(0).tensors
        return {
            name: tensor for name, tensor in tensors_by_name.items() if not name.startswith("rng.")
        }


def test_later_steps_do_not_change_a_snapshot(tmp_path):
    work = tmp_path / "work"
    training = Training(work)
    training.step()
    expected = training.tensors()
    gate = threading.Event()
    training.writer.executor.submit(gate.wait)  # the disk is slow
    training.writer.start_writing(training.snapshot(1), EMPTY_TABLES, training.model)
    for _ in range(3):
        training.step()
    current = training.tensors()
    assert any(not torch.equal(current[name], expected[name]) for name in expected)
    assert not list_state_steps(work)
    gate.set()
    training.writer.wait_until_written()
    weights = load_checkpoint(work / "checkpoints" / "step-00000001").state_dict()
    for name, tensor in weights.items():
        assert torch.equal(
            tensor, expected.get(f"model.{name}", expected["model.embedding.weight"])
        )
    restore_training_state(work, 1, training.model, training.optimizers, DistributedWorld())
    restored = training.tensors()
    assert restored.keys() == expected.keys()
    assert all(torch.equal(restored[name], expected[name]) for name in expected)
    training.writer.shut_down()


def test_the_next_snapshot_waits_until_the_last_one_is_written(tmp_path):
    """So memory contains one snapshot. The last two states are kept."""
    work, gate = tmp_path / "work", threading.Event()
    training = Training(work)

    class Slow(TrainingSnapshot):
        def write_state(self, work_folder):
            gate.wait()
            super().write_state(work_folder)

    first_snapshot = training.snapshot(1)
    start_writing = partial(training.writer.start_writing, tables=EMPTY_TABLES, model=None)
    start_writing(Slow(first_snapshot.header, first_snapshot.tensors))
    training.writer.raise_write_error()  # does not wait
    later = threading.Thread(target=start_writing, args=(training.snapshot(2),))
    later.start()
    later.join(0.2)
    assert later.is_alive() and not list_state_steps(work)
    gate.set()
    later.join()
    start_writing(training.snapshot(3))
    training.writer.wait_until_written()
    assert list_state_steps(work) == [3, 2]
    training.writer.shut_down()


def test_a_write_error_ends_the_training_with_a_sentence(inputs, tmp_path, capsys):
    work = tmp_path / "work"
    work.mkdir()
    (work / "state").write_text("a file where a folder is needed")
    threads = torch.get_num_threads()
    assert main([str(write_job(inputs, work, steps=100_000))]) == 1
    torch.set_num_threads(threads)
    *_, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert last["event"] == "error"
    assert "could not be read or written" in last["message"] and "state" in last["message"]


def test_states_can_be_more_frequent_than_checkpoints(inputs, tmp_path):
    work = tmp_path / "work"
    job = write_job(inputs, work, steps=20, checkpoint_every=20, state_every=6, validate_every=20)
    code, events = run(job)
    assert code == 0
    assert [e["step"] for e in events if e["event"] == "checkpoint"] == [0, 20]
    assert list_state_steps(work) == [20, 18]
    assert log(work)["step"].to_pylist() == list(range(1, 21))


def test_keep_states_sets_the_number_of_kept_states(inputs, tmp_path):
    """A training can resume from the state of a training that kept another number."""
    work, settings = tmp_path / "work", {"checkpoint_every": 5, "schedule": "constant"}
    assert run(write_job(inputs, work, steps=20, keep_states=3, **settings))[0] == 0
    assert list_state_steps(work) == [20, 15, 10]
    shutil.rmtree(work / "state" / "step-00000020")
    code, events = run(write_job(inputs, work, steps=20, keep_states=1, **settings))
    assert code == 0 and events[0]["resumed"] and events[0]["step"] == 15
    assert list_state_steps(work) == [20]
    assert len(events[-1]["history"]) == 1  # keep_states is not part of the history


def test_a_state_with_draws_by_batch_belongs_to_another_training(inputs, tmp_path):
    """Older versions drew prefixes and masks for a whole batch at a time."""
    work = tmp_path / "work"
    train = {"objective": "prefix", "schedule": "constant", "checkpoint_every": 20}
    assert run(write_job(inputs, work, steps=20, **train))[0] == 0
    for path in (work / "state").glob("*/state.json"):
        make_header = json.loads(path.read_text())
        del make_header["identity"]["draws"]
        path.write_text(json.dumps(make_header))
    code, events = run(write_job(inputs, work, steps=25, **train))
    assert code == 1 and "with other random draws" in events[-1]["message"]


@pytest.mark.parametrize("checkpoint_every", [1, 7])
def test_a_divergent_step_leaves_no_output(inputs, tmp_path, checkpoint_every):
    """The next step may already have begun when divergence is detected."""
    train = {**DIVERGING, "precision": "fp32", "checkpoint_every": checkpoint_every}
    code, events = run(write_job(inputs, tmp_path / "stops", spike_factor=1.0, **train))
    assert code == 1
    step = int(events[-1]["message"].split(":")[0].removeprefix("Training diverged at step "))
    assert step > 20  # the guard accepts the first 20 steps
    assert run(write_job(inputs, tmp_path / "goes", **train))[0] == 0
    last_kept = (step - 1) // checkpoint_every * checkpoint_every
    assert list_state_steps(tmp_path / "stops")[0] == last_kept
    assert log(tmp_path / "stops")["step"].to_pylist() == list(range(1, last_kept + 1))
    checkpoints = sorted(p.name for p in (tmp_path / "stops" / "checkpoints").iterdir())
    assert checkpoints[-1] == f"step-{last_kept:08d}"
    stopped, continued = (
        tmp_path / name / "checkpoints" / checkpoints[-1] / "model.safetensors"
        for name in ("stops", "goes")
    )
    assert stopped.read_bytes() == continued.read_bytes()
