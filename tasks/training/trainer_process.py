"""Run the trainer as a process: start it, read its events, restart it if it is killed.

The trainer ends with this process: its standard input is a pipe that only this process holds open.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hallmark.model.training.job import WATCH_STDIN_OPTION
from hallmark.tasks.contract import HallmarkError

log = logging.getLogger("hallmark")

#: Maximum number of restarts of a trainer that was killed.
MAX_RESTARTS = 3


#: What the trainer reports on a line: ``event``, the kind, and further values by name.
TrainerEvent = dict[str, Any]


@contextmanager
def start_trainer(
    job_path: Path, stderr_path: Path, *options: str
) -> Iterator[subprocess.Popen[str]]:
    """Start a trainer; kill its process group when the block ends.

    Args:
        job_path: The job.
        stderr_path: File for what the trainer writes to stderr.
        options: Further options of the trainer.
    """
    with stderr_path.open("w") as stderr:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "hallmark.model.training.run",
                str(job_path.absolute()),
                WATCH_STDIN_OPTION,
                *options,
            ],
            stdin=subprocess.PIPE,  # Its end signals the trainer that this process died.
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
        process.wait()


def iter_trainer_events(
    job_path: Path, stderr_path: Path, *options: str, max_restarts: int = MAX_RESTARTS
) -> Generator[TrainerEvent, None, None]:
    """Yield events of the trainer until it is done; restart it if it is killed.

    Args:
        job_path: The job.
        stderr_path: File for what the trainer writes to stderr.
        options: Further options of the trainer.
        max_restarts: Maximum number of restarts.

    Raises:
        HallmarkError: The trainer failed, or was killed more than ``max_restarts`` times.
    """
    for attempt in range(max_restarts + 1):
        with start_trainer(job_path, stderr_path, *options) as process:
            log.info("trainer: process %d started", process.pid)
            assert process.stdout is not None
            for line in process.stdout:
                event = parse_event(line)
                if event:
                    yield event
            exit_code = process.wait()
        if exit_code == 0:
            return
        signal_number = (
            -exit_code if exit_code < 0 else exit_code - 128
        )  # 128 + n: one of its processes was killed.
        if signal_number not in list(signal.Signals):
            raise HallmarkError(
                f"the trainer failed with exit code {exit_code}: "
                f"{_read_last_error_line(stderr_path)}"
            )
        signal_name = signal.Signals(signal_number).name
        if attempt < max_restarts:
            log.warning("trainer: killed by %s; resuming from the last saved state", signal_name)
    kills = f"{attempt + 1} times, the last time by" if attempt else "by"
    raise HallmarkError(
        f"the trainer was killed {kills} {signal_name}; if the "
        "machine ran out of memory, raise train.accumulation_steps and run again; training then "
        "resumes from the last saved state (if you change batch_size instead, training starts from "
        "scratch)"
    )


def parse_event(line: str) -> TrainerEvent | None:
    """Parse the event of a line; None if a library printed something else."""
    with suppress(ValueError):
        event = json.loads(line)
        if isinstance(event, dict) and "event" in event:
            return event
    log.debug("trainer: %s", line.rstrip())
    return None


def _read_last_error_line(stderr_path: Path) -> str:
    lines = stderr_path.read_text(errors="replace").strip().splitlines()
    return f"{lines[-1][:300]!r}" if lines else "it printed no error"
