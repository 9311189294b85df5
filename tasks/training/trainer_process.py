"""The trainer as a process: started, listened to, started again where it was killed.

It dies with this process: its standard input is a pipe that only this process holds open.
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

#: How often a trainer that something else killed is started again.
MAX_RESTARTS = 3


@contextmanager
def start_trainer(job_path: Path, stderr_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A trainer, with its process group gone when the block is left."""
    with stderr_path.open("w") as stderr:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "hallmark.model.training.run",
                str(job_path.absolute()),
                WATCH_STDIN_OPTION,
            ],
            stdin=subprocess.PIPE,  # its end tells the trainer that this process died
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


def iter_trainer_events(job_path: Path, stderr_path: Path) -> Generator[dict[str, Any], None, None]:
    """Events of the trainer until it is done; one that was killed is started again."""
    for attempt in range(MAX_RESTARTS + 1):
        with start_trainer(job_path, stderr_path) as process:
            log.info("trainer: process %d started", process.pid)
            assert process.stdout is not None
            for line in process.stdout:
                event = parse_event(line)
                if event:
                    yield event
            exit_code = process.wait()
        if exit_code == 0:
            return
        signal_number = -exit_code if exit_code < 0 else exit_code - 128  # of one of its processes
        if signal_number not in list(signal.Signals):
            raise HallmarkError(
                f"the trainer failed with exit code {exit_code}: "
                f"{_read_last_error_line(stderr_path)}"
            )
        signal_name = signal.Signals(signal_number).name
        if attempt < MAX_RESTARTS:
            log.warning("trainer: killed by %s; it goes on from its last state", signal_name)
    raise HallmarkError(
        f"the trainer was killed {MAX_RESTARTS + 1} times, at last by {signal_name}; where "
        f"memory is short, "
        f"raise train.accumulation_steps and run again: it goes on from its last state (with "
        f"another "
        f"batch_size it would begin anew)"
    )


def parse_event(line: str) -> dict[str, Any] | None:
    """The event of a line, None where a library printed something else."""
    with suppress(ValueError):
        event = json.loads(line)
        if isinstance(event, dict) and "event" in event:
            return event
    log.debug("trainer: %s", line.rstrip())
    return None


def _read_last_error_line(stderr_path: Path) -> str:
    lines = stderr_path.read_text(errors="replace").strip().splitlines()
    return f"{lines[-1][:300]!r}" if lines else "it said nothing"
