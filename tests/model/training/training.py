"""Run small trainings in their own processes, and compare two of them."""

from __future__ import annotations

import json
import multiprocessing.connection
import os
import signal
import socket
import subprocess
from multiprocessing.connection import Connection

import pyarrow.dataset as ds

from hallmark.model.training import parallel
from hallmark.model.training import run as trainer
from hallmark.model.training import trainer as steps
from hallmark.model.training.job import WATCH_STDIN_OPTION
from hallmark.model.training.step_metrics import LOG_SCHEMA
from hallmark.tasks.contract.mappers import FORK_CONTEXT

MODEL = {"vocab_size": 40, "context": 16, "d_model": 32, "n_layers": 2, "n_heads": 2}
TRAIN = {
    "steps": 40,
    "batch_size": 8,
    "warmup_steps": 4,
    "learning_rate": 0.01,
    "checkpoint_every": 10,
    "validate_every": 15,
    "device": "cpu",
    "threads": 1,
}

#: The learning rate rises to the end, and the gradient norm with it, above its mean on any machine.
DIVERGING = {"learning_rate": 3.0, "warmup_steps": 40}


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


# Trainers are forks of the process that workers are forks of (tests/preloaded.py). Tests of
# ``tests/tasks/training`` and of flows start the trainer as users do.


class Trainer:
    """A trainer in its own process, with the part of ``subprocess.Popen`` that the tests use."""

    def __init__(self, job, errors=None, torchrun=False):
        """Start the trainer.

        Args:
            job: path of the job.
            errors: a file for stderr, instead of a pipe.
            torchrun: whether torchrun starts the processes, as for users; else they are forks.
        """
        pipes = [os.pipe() for _ in range(3)]  # (read, write) of stdin, stdout, stderr
        (read, stdin), (stdout, out), (stderr, error) = pipes
        if errors is not None:
            os.dup2(errors.fileno(), error)
        theirs = [Connection(fd, fd == read, fd != read) for fd in (read, out, error)]
        self.process = FORK_CONTEXT.Process(target=_train, args=(str(job), torchrun, *theirs))
        self.process.start()
        for end in theirs:
            end.close()
        self.pid, self.kill, self.terminate = (
            self.process.pid,
            self.process.kill,
            self.process.terminate,
        )
        self.stdin, self.stdout, self.stderr = (
            os.fdopen(stdin, "w"),
            os.fdopen(stdout),
            os.fdopen(stderr),
        )

    def wait(self, timeout=None):
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("trainer", timeout)
        return self.process.exitcode

    def communicate(self):
        self.stdin.close()
        with self.stdout, self.stderr:
            outputs = self.stdout.read(), self.stderr.read()
        self.wait()
        return outputs


def _train(job, torchrun, *pipes):
    from tests.preloaded import CEILING

    steps.measure_matmul_flops_per_second = lambda device, dtype: CEILING  # measured once
    if not torchrun:
        parallel.launch_with_torchrun = launch
    os.setsid()
    for number, pipe in enumerate(pipes):
        os.dup2(pipe.fileno(), number)
        pipe.close()
    raise SystemExit(trainer.main([job, WATCH_STDIN_OPTION]))


def launch(processes, module, arguments):
    """Start the processes as one group of forks, because torchrun would import torch in each.

    They get SIGTERM passed on, and end with the first that fails.
    """
    assert module == trainer.__name__
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    fork = multiprocessing.get_context("fork")
    group = [
        fork.Process(target=_join, args=({**world, "RANK": rank}, arguments))
        for rank in range(processes)
    ]
    for process in group:
        process.start()
    signal.signal(signal.SIGTERM, lambda *_: [process.terminate() for process in group])
    while alive := [process for process in group if process.is_alive()]:
        if any(process.exitcode for process in group):
            for process in alive:
                process.terminate()
        multiprocessing.connection.wait([process.sentinel for process in alive])
    code = next((process.exitcode for process in group if process.exitcode), 0)
    return code if code >= 0 else 128 - code


def _join(world, arguments):
    os.environ |= {name: str(value) for name, value in world.items()}
    os.environ |= {"LOCAL_RANK": os.environ["RANK"], "TORCHELASTIC_RUN_ID": "tests"}
    raise SystemExit(trainer.main(arguments))


def start(job, torchrun=False):
    return Trainer(job, torchrun=torchrun)


def popen(command, *, stderr, **_):
    """Replace ``subprocess.Popen`` where the ``pretrain`` stage starts its trainer."""
    *_, module, job, watch = command
    assert (module, watch) == (trainer.__name__, WATCH_STDIN_OPTION)
    return Trainer(job, stderr)


def finish(process):
    """Wait for the trainer, with stdin open; return (exit code, events)."""
    events = [json.loads(line) for line in process.stdout]
    code = process.wait(timeout=60)
    assert "Traceback" not in process.stderr.read()
    return code, events


def run(job, torchrun=False):
    return finish(start(job, torchrun))


def follow(process, is_wanted):
    """Read events until ``wanted(event)``; return that event."""
    for line in process.stdout:
        event = json.loads(line)
        if is_wanted(event):
            return event
    raise AssertionError(f"the trainer ended early: {process.stderr.read()}")


def log(work, columns=None):
    files = sorted(map(str, (work / "log").glob("*.parquet")))
    return ds.dataset(files).to_table(columns=columns)


TIMING_COLUMNS = ("seconds", "tokens_per_second", "mfu", "memory_mb")
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
