"""What a step waits for: on a GPU, each number that is read waits for all that was asked before."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager

import pytest
import torch

from model.training.job import read_job
from model.training.parallel import DistributedWorld
from model.training.trainer import Trainer
from tests.model.training.training import write_job

#: How numbers leave a tensor, and wait for its device.
READS = ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__float__", "__int__")


class Watched(Trainer):
    """A trainer that notes which reads a step does of its own; an optimizer counts its steps on
    the CPU, wherever the weights are."""

    watching = False

    def _train_step(self, step):
        with self.watched(True):
            super()._train_step(step)

    @contextmanager
    def watched(self, on):
        before, Watched.watching = Watched.watching, on
        try:
            yield
        finally:
            Watched.watching = before

    def leave_out_optimizers(self):
        for optimizer in self.optimizers:
            step = optimizer.step

            def apart(step=step):
                with self.watched(False):
                    step()

            optimizer.step = apart


@pytest.fixture
def reads(monkeypatch):
    """The reads that steps did."""
    found, own = [], threading.current_thread()  # batches are made by another thread

    def noted(name, true):
        def read(tensor, *given, **named):
            if Watched.watching and threading.current_thread() is own:
                found.append(name)
            return true(tensor, *given, **named)

        return read

    for name in READS:
        monkeypatch.setattr(torch.Tensor, name, noted(name, getattr(torch.Tensor, name)))
    handler = signal.getsignal(signal.SIGTERM)
    yield found
    signal.signal(signal.SIGTERM, handler)


@pytest.mark.parametrize(("divergence", "expected"), [("stop", set()), ("skip", {"tolist"})])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_step_reads_no_number_unless_it_may_have_to_be_skipped(
    inputs, tmp_path, reads, capsys, optimizer, divergence, expected
):
    job = write_job(
        inputs,
        tmp_path / "work",
        steps=6,
        optimizer=optimizer,
        divergence=divergence,
        accumulation=2,
        checkpoint_every=3,
        validate_every=3,
    )
    trainer = Watched(read_job(str(job)), DistributedWorld())
    trainer.leave_out_optimizers()
    assert trainer.run_until_done() == 0
    assert '"done"' in capsys.readouterr().out
    assert set(reads) == expected
