"""The trainer, a process of its own: ``python -m model.training.run JOB.json [--watch-stdin]``.

JOB.json: {"model": ModelConfig, "train": TrainConfig, "data": {"train": path, "validation": path
or null, "groups": path or null}, "tokenizer": path of tokenizer.json, "work": folder, "start":
checkpoint or null, "examples": bool, "frozen": bool}; see Job.

The work folder receives ``checkpoints/step-*``, the tables ``log``, ``validation`` and ``samples``
in parts, and ``state/``. A step is committed by its state, written after its checkpoint and tables;
what is newer than the state is removed on resume and made again, bit for bit on the CPU. A job with
other settings of those that change no batch, or of more steps where the rates so far are the same
(see model/training/work.py), goes on from the state, too. Events are
JSON lines on stdout. With --watch-stdin the end of stdin, a pipe that the parent holds open, means
that the parent has died, and the trainer with it.
"""

from __future__ import annotations

import os
import sys

import torch

from model.training import parallel
from model.training.job import WATCH, Job, emit, lock, read_job, watch_parent
from model.training.machine import keep_memory
from model.training.trainer import Trainer, TrainingError


def processes(job: Job) -> int:
    """How many train together on this machine."""
    if job.config.processes:
        return job.config.processes
    if job.config.device == "cpu":
        return 1
    return max(1, torch.cuda.device_count())


def do_job(path: str, watched: bool) -> int:
    """Do the job at ``path``, alone or as one of the processes that torchrun started."""
    job = read_job(path)
    if not parallel.launched() and processes(job) > 1:
        return parallel.launch(processes(job), "model.training.run", [path, *[WATCH] * watched])
    keep_memory()
    world = parallel.World()
    handle = lock(job.work) if world.first else None
    try:
        code = Trainer(job, world).run()
        world.leave()  # not after an error: it would wait for what the others still want to say
        return code
    finally:
        if handle is not None:
            handle.close()


def main(arguments: list[str]) -> int:
    path, watched = arguments[:1], arguments[1:] == [WATCH]
    if not path or (len(arguments) > 1 and not watched):
        print(f"usage: python -m model.training.run JOB.json [{WATCH}]", file=sys.stderr)
        return 2
    if watched:
        watch_parent()
    try:
        return do_job(path[0], watched)
    except (TrainingError, ValueError) as error:
        message = str(error)
    except OSError as error:
        message = f"A file could not be written or read: {error}; the last state is whole."
    except RuntimeError as error:
        text = str(error)
        if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in text:
            message = (
                "Out of memory: raise train.accumulation or set train.recompute and run again, it "
                "goes on from the last state; or begin anew with a lower train.batch_size, or with "
                "a smaller model."
            )
        elif parallel.launched() and any(word in text for word in ("gloo", "NCCL", "TCPStore")):
            print(f"another process has ended: {text.splitlines()[0]}", file=sys.stderr)
            return 1  # that one has said why
        elif "CUDA error" in text:
            message = (
                f"The GPU failed ({text.splitlines()[0]}): run again, the last state is whole."
            )
        else:
            raise
    emit("error", message=" ".join(message.split()))
    return 1


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    # Without the interpreter's own end: to free torch module by module takes a second or more, and
    # threads of the communication abort in it now and then.
    sys.stdout.flush()
    os._exit(exit_code)
