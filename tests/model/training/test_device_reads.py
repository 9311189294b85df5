"""Reads of a training step: on a GPU, reading a number waits for all work queued before it."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager

import pytest
import torch

from hallmark.model.training.job import read_job
from hallmark.model.training.parallel import DistributedWorld
from hallmark.model.training.trainer import Trainer
from tests.model.training.training import write_job

#: Tensor methods that read numbers, and wait for the device.
READS = ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__float__", "__int__")


class RecordingTrainer(Trainer):
    """A trainer that records the reads of its steps.

    Optimizers are excluded, since they count their steps on the CPU, wherever the weights are.
    """

    is_recording = False

    def _train_step(self, step):
        with self.record_reads(True):
            super()._train_step(step)

    @contextmanager
    def record_reads(self, is_on):
        before, RecordingTrainer.is_recording = RecordingTrainer.is_recording, is_on
        try:
            yield
        finally:
            RecordingTrainer.is_recording = before

    def exclude_optimizers(self):
        for optimizer in self.training_step.optimizers:
            step = optimizer.step

            def step_unrecorded(step=step):
                with self.record_reads(False):
                    step()

            optimizer.step = step_unrecorded


@pytest.fixture
def reads(monkeypatch):
    """Collect the reads of training steps."""
    names, training_thread = [], threading.current_thread()  # another thread builds batches

    def make_recording(name, method):
        def read(tensor, *args, **kwargs):
            if RecordingTrainer.is_recording and threading.current_thread() is training_thread:
                names.append(name)
            return method(tensor, *args, **kwargs)

        return read

    for name in READS:
        method = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, make_recording(name, method))
    handler = signal.getsignal(signal.SIGTERM)
    yield names
    signal.signal(signal.SIGTERM, handler)


@pytest.mark.parametrize(("divergence", "expected"), [("stop", set()), ("skip", {"tolist"})])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_step_reads_numbers_only_if_divergent_steps_are_skipped(
    inputs, tmp_path, reads, capsys, optimizer, divergence, expected
):
    job = write_job(
        inputs,
        tmp_path / "work",
        steps=6,
        optimizer=optimizer,
        on_divergence=divergence,
        accumulation_steps=2,
        checkpoint_every=3,
        validate_every=3,
    )
    trainer = RecordingTrainer(read_job(str(job)), DistributedWorld())
    trainer.exclude_optimizers()
    assert trainer.run_until_done() == 0
    assert '"done"' in capsys.readouterr().out
    assert set(reads) == expected
