"""What is written while training goes on: as it was when it was asked for, or not at all."""

from __future__ import annotations

import json
import shutil
import threading
from functools import partial

import pytest
import torch

from model.config import TrainConfig, config_to_dict
from model.interchange.checkpoint import load_checkpoint
from model.training.background_writer import TABLE_SCHEMAS, BackgroundWriter
from model.training.optimizers import SpikeGuard, make_optimizers
from model.training.parallel import DistributedWorld
from model.training.run import main
from model.training.state import TrainingSnapshot, restore_training_state, take_snapshot
from model.training.work_folder import list_state_steps
from tests.model.oracles import tiny, write_tokenizer
from tests.model.training.training import RISING, TRAIN, log, run, write_job

CONFIG = TrainConfig(**{**TRAIN, "optimizer": "muon"})
NOTHING = {name: [] for name in TABLE_SCHEMAS}


def header(step):
    return {"step": step, "identity": {}, "config": config_to_dict(CONFIG), "history": []}


class Training:
    """A model that changes with each step, and what is kept of it."""

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
            header(step), self.model, self.optimizers, SpikeGuard(), DistributedWorld()
        )

    def tensors(self):
        made = self.snapshot(0).tensors
        return {name: tensor for name, tensor in made.items() if not name.startswith("rng.")}


def test_a_snapshot_is_of_its_moment_whatever_is_trained_meanwhile(tmp_path):
    work = tmp_path / "work"
    training = Training(work)
    training.step()
    then = training.tensors()
    gate = threading.Event()
    training.writer.executor.submit(gate.wait)  # the disk is slow
    training.writer.start_writing(training.snapshot(1), NOTHING, training.model)
    for _ in range(3):
        training.step()
    now = training.tensors()
    assert any(not torch.equal(now[name], then[name]) for name in then)
    assert not list_state_steps(work)
    gate.set()
    training.writer.wait_until_written()
    weights = load_checkpoint(work / "checkpoints" / "step-00000001").state_dict()
    for name, tensor in weights.items():
        assert torch.equal(tensor, then.get(f"model.{name}", then["model.embedding.weight"]))
    restore_training_state(work, 1, training.model, training.optimizers, DistributedWorld())
    restored = training.tensors()
    assert restored.keys() == then.keys()
    assert all(torch.equal(restored[name], then[name]) for name in then)
    training.writer.shut_down()


def test_who_has_the_next_snapshot_waits_until_the_last_one_is_written(tmp_path):
    """So that memory holds one; and the last two states stay."""
    work, gate = tmp_path / "work", threading.Event()
    training = Training(work)

    class Slow(TrainingSnapshot):
        def write_state(self, work_folder):
            gate.wait()
            super().write_state(work_folder)

    made = training.snapshot(1)
    keep = partial(training.writer.start_writing, tables=NOTHING, model=None)
    keep(Slow(made.header, made.tensors))
    training.writer.raise_write_error()  # asks, and does not wait
    later = threading.Thread(target=keep, args=(training.snapshot(2),))
    later.start()
    later.join(0.2)
    assert later.is_alive() and not list_state_steps(work)
    gate.set()
    later.join()
    keep(training.snapshot(3))
    training.writer.wait_until_written()
    assert list_state_steps(work) == [3, 2]
    training.writer.shut_down()


def test_what_cannot_be_written_ends_the_training_with_a_sentence(inputs, tmp_path, capsys):
    work = tmp_path / "work"
    work.mkdir()
    (work / "state").write_text("a file where a folder is needed")
    threads = torch.get_num_threads()
    assert main([str(write_job(inputs, work, steps=100_000))]) == 1
    torch.set_num_threads(threads)
    *_, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert last["event"] == "error"
    assert "could not be written" in last["message"] and "state" in last["message"]


def test_states_come_more_often_than_checkpoints_where_asked_for(inputs, tmp_path):
    work = tmp_path / "work"
    job = write_job(inputs, work, steps=20, checkpoint_every=20, state_every=6, validate_every=20)
    code, events = run(job)
    assert code == 0
    assert [e["step"] for e in events if e["event"] == "checkpoint"] == [0, 20]
    assert list_state_steps(work) == [20, 18]
    assert log(work)["step"].to_pylist() == list(range(1, 21))


def test_as_many_states_stay_as_are_asked_for(inputs, tmp_path):
    """And a training goes on from a state of one that kept another number."""
    work, settings = tmp_path / "work", {"checkpoint_every": 5, "schedule": "constant"}
    assert run(write_job(inputs, work, steps=20, keep_states=3, **settings))[0] == 0
    assert list_state_steps(work) == [20, 15, 10]
    shutil.rmtree(work / "state" / "step-00000020")
    code, events = run(write_job(inputs, work, steps=20, keep_states=1, **settings))
    assert code == 0 and events[0]["resumed"] and events[0]["step"] == 15
    assert list_state_steps(work) == [20]
    assert len(events[-1]["history"]) == 1  # no other settings as far as figures go


def test_a_state_whose_steps_drew_otherwise_is_of_another_training(inputs, tmp_path):
    """As of versions that drew prefixes and masks for a batch at a time."""
    work = tmp_path / "work"
    train = {"objective": "prefix", "schedule": "constant", "checkpoint_every": 20}
    assert run(write_job(inputs, work, steps=20, **train))[0] == 0
    for path in (work / "state").glob("*/state.json"):
        header = json.loads(path.read_text())
        del header["identity"]["draws"]
        path.write_text(json.dumps(header))
    code, events = run(write_job(inputs, work, steps=25, **train))
    assert code == 1 and "with other draws settings" in events[-1]["message"]


@pytest.mark.parametrize("every", [1, 7])
def test_where_training_stops_nothing_of_the_step_that_diverged_is_kept(inputs, tmp_path, every):
    """Though the step after it may have begun when that is seen."""
    train = {**RISING, "precision": "fp32", "checkpoint_every": every}
    code, events = run(write_job(inputs, tmp_path / "stops", spike=1.0, **train))
    assert code == 1
    step = int(events[-1]["message"].split(":")[0].removeprefix("Step "))
    assert step > 20  # the guard's first
    assert run(write_job(inputs, tmp_path / "goes", **train))[0] == 0
    last = (step - 1) // every * every
    assert list_state_steps(tmp_path / "stops")[0] == last
    assert log(tmp_path / "stops")["step"].to_pylist() == list(range(1, last + 1))
    found = sorted(p.name for p in (tmp_path / "stops" / "checkpoints").iterdir())
    assert found[-1] == f"step-{last:08d}"
    stopped, gone = (
        tmp_path / name / "checkpoints" / found[-1] / "model.safetensors"
        for name in ("stops", "goes")
    )
    assert stopped.read_bytes() == gone.read_bytes()
