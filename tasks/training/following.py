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

from model.training.job import WATCH
from tasks.contract import ROOT, HallmarkError

log = logging.getLogger("hallmark")

#: How often a trainer that something else killed is started again.
RESTARTS = 3


@contextmanager
def started(job: Path, errors: Path) -> Iterator[subprocess.Popen[str]]:
    """A trainer, with its process group gone when the block is left."""
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "model.training.run", str(job.absolute()), WATCH],
            cwd=ROOT,  # where the package model is
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


def events(job: Path, errors: Path) -> Generator[dict[str, Any], None, None]:
    """Events of the trainer until it is done; one that was killed is started again."""
    for attempt in range(RESTARTS + 1):
        with started(job, errors) as process:
            log.info("trainer: process %d started", process.pid)
            assert process.stdout is not None
            for line in process.stdout:
                event = event_of(line)
                if event:
                    yield event
            code = process.wait()
        if code == 0:
            return
        number = -code if code < 0 else code - 128  # of one of its processes
        if number not in list(signal.Signals):
            raise HallmarkError(f"the trainer failed with exit code {code}: {_tail(errors)}")
        name = signal.Signals(number).name
        if attempt < RESTARTS:
            log.warning("trainer: killed by %s; it goes on from its last state", name)
    raise HallmarkError(
        f"the trainer was killed {RESTARTS + 1} times, at last by {name}; where memory is short, "
        f"raise train.accumulation and run again: it goes on from its last state (with another "
        f"batch_size it would begin anew)"
    )


def event_of(line: str) -> dict[str, Any] | None:
    """The event of a line, None where a library printed something else."""
    with suppress(ValueError):
        event = json.loads(line)
        if isinstance(event, dict) and "event" in event:
            return event
    log.debug("trainer: %s", line.rstrip())
    return None


def _tail(errors: Path) -> str:
    lines = errors.read_text(errors="replace").strip().splitlines()
    return f"{lines[-1][:300]!r}" if lines else "it said nothing"
