"""Run a training in its own process: ``python -m hallmark.model.training.run JOB.json
[--watch-stdin] [--join]``.

JOB.json: {"model": ModelConfig, "train": TrainConfig, "data": {"train": path, "validation": path
or null, "groups": path or null}, "tokenizer": path of tokenizer.json, "work": folder, "start":
checkpoint or null, "examples": bool, "frozen": bool, "versions": versions by name}; see
``TrainingJob``.

The work folder receives ``checkpoints/step-*``, the tables ``log``, ``validation`` and ``samples``
in parts, and ``state/``. A step is committed by its state, which is written after its checkpoint
and tables. On resume, outputs newer than the state are removed and computed again, bit for bit on
the CPU. A job may resume from the state of another job if only settings differ that do not change
the batches, or the number of steps if the learning rates so far are the same (see
``training.work_folder``). Events are JSON lines on stdout. With --watch-stdin the trainer exits
when stdin ends: stdin is a pipe that the parent holds open, so its end means that the parent has
died. With --join it joins the training of the job on another host; see ``training.hosts``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from hallmark.model.training import parallel
from hallmark.model.training.hardware import retain_freed_memory
from hallmark.model.training.job import (
    JOIN_OPTION,
    PEER_ENDED_EXIT_CODE,
    WATCH_STDIN_OPTION,
    TrainingJob,
    emit_event,
    lock_work_folder,
    read_job,
    watch_stdin_and_exit_at_end,
)
from hallmark.model.training.trainer import Trainer
from hallmark.model.training.training_step import TrainingError

MODULE = "hallmark.model.training.run"


def choose_process_count(job: TrainingJob) -> int:
    """Return the number of processes that train together on this machine."""
    if job.train_config.processes:
        return job.train_config.processes
    if job.train_config.device == "cpu":
        return 1
    return max(1, torch.cuda.device_count())


def run_job(job_path: str, *, is_watched: bool, is_joining: bool) -> int:
    """Run the job at ``job_path``, alone or as one of the processes that torchrun started.

    Args:
        job_path: The job file.
        is_watched: Whether the processes exit when stdin ends.
        is_joining: Whether the training has begun on another host.

    Returns:
        The exit code.
    """
    job = read_job(job_path)
    if not parallel.is_under_torchrun():
        process_count = choose_process_count(job)
        arguments = [job_path, *[WATCH_STDIN_OPTION] * is_watched]
        if job.train_config.hosts > 1:
            from hallmark.model.training.hosts import join_training, lead_training

            start_training = join_training if is_joining else lead_training
            return start_training(job, Path(job_path), process_count, MODULE, arguments)
        if process_count > 1:
            return parallel.launch_with_torchrun(process_count, MODULE, arguments)
    retain_freed_memory()
    world = parallel.DistributedWorld()
    lock_file = lock_work_folder(job.work_folder) if world.is_first else None
    try:
        exit_code = Trainer(job, world).run_until_done()
        # Not after an error: it would wait for the other processes.
        world.disconnect()
        return exit_code
    finally:
        if lock_file is not None:
            lock_file.close()


def main(arguments: list[str]) -> int:
    job_paths, options = arguments[:1], arguments[1:]
    if not job_paths or not {*options} <= {WATCH_STDIN_OPTION, JOIN_OPTION}:
        print(
            f"usage: python -m {MODULE} JOB.json [{WATCH_STDIN_OPTION}] [{JOIN_OPTION}]",
            file=sys.stderr,
        )
        return 2
    is_watched = WATCH_STDIN_OPTION in options
    if is_watched:
        watch_stdin_and_exit_at_end()
    try:
        return run_job(job_paths[0], is_watched=is_watched, is_joining=JOIN_OPTION in options)
    except (TrainingError, ValueError) as error:
        message = str(error)
    except OSError as error:
        message = (
            f"A file could not be read or written: {error}. The last saved state is intact. Run "
            "the command again to resume from it."
        )
    except RuntimeError as error:
        error_text = str(error)
        if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in error_text:
            message = (
                "Out of memory: increase train.accumulation_steps or set "
                "train.activation_checkpointing, then run the command again to resume from the "
                "last saved state. Alternatively, start again with a lower train.batch_size or a "
                "smaller model."
            )
        elif parallel.is_under_torchrun() and (
            isinstance(error, torch.distributed.DistError)
            or any(marker in error_text for marker in ("gloo", "NCCL", "TCPStore"))
        ):
            print(
                "This process is stopping because another training process has ended: "
                f"{error_text.splitlines()[0]}",
                file=sys.stderr,
            )
            return PEER_ENDED_EXIT_CODE  # that process reports the error
        elif "CUDA error" in error_text:
            message = (
                f"The GPU failed ({error_text.splitlines()[0]}). The last saved state is intact. "
                "Run the command again to resume from it."
            )
        else:
            raise
    emit_event("error", message=" ".join(message.split()))
    return 1


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    # Skip the interpreter's shutdown: freeing torch takes a second or more, and communication
    # threads sometimes abort in it.
    sys.stdout.flush()
    os._exit(exit_code)
