"""Write logs as JSON: one object per line on stderr, with ``--log-format json``.

Everything that would be printed on stderr becomes such a line: log records, errors, the progress of
stages, and what libraries print. So a newline in a message never splits a record. stdout, which
contains results, does not change.
"""

from __future__ import annotations

import atexit
import io
import json
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from hallmark.flows.runs import Run
    from hallmark.tasks.contract import Event

#: Environment variable with the format of logs, which processes of served runs inherit.
LOG_FORMAT_VARIABLE = "HALLMARK_LOG_FORMAT"
LOG_FORMATS = ("text", "json")

#: Seconds between two lines about the progress of a stage.
PROGRESS_SECONDS = 30.0


def is_json_log() -> bool:
    """Return whether logs are written as JSON."""
    return os.environ.get(LOG_FORMAT_VARIABLE) == "json"


class JsonLog:
    """Write records to a stream, with the run and the stage that are being executed.

    Attributes:
        run_id: The run that this process executes; None before the first one starts.
        stage: The label of the running stage; None between stages.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.run_id: str | None = None
        self.stage: str | None = None
        self._lock = threading.Lock()

    def write(self, level: str, message: str, **fields: Any) -> None:
        """Write a record; fields that are None are omitted."""
        from hallmark.reports.page.redaction import escape_invisible

        record = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "level": level,
            "run": self.run_id,
            "stage": self.stage,
            "message": "\n".join(map(escape_invisible, message.split("\n"))),
            **fields,
        }
        present = {name: value for name, value in record.items() if value is not None}
        line = json.dumps(present, allow_nan=False, default=str) + "\n"
        with self._lock:
            self.stream.write(line)
            self.stream.flush()


class JsonLogHandler(logging.Handler):
    """Write log records, with the class and the sentence of an error instead of its traceback."""

    def __init__(self, log: JsonLog, level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self.log = log

    def emit(self, record: logging.LogRecord) -> None:
        try:
            error = record.exc_info[1] if record.exc_info else None
            self.log.write(
                record.levelname,
                record.getMessage(),
                logger=record.name,
                error=None if error is None else f"{type(error).__name__}: {error}",
            )
        except Exception:
            self.handleError(record)


class JsonStderr(io.TextIOBase):
    """A replacement of ``sys.stderr`` that turns each printed line into a record.

    ``print`` writes a line and its end one after the other, so each thread has a line of its own.
    """

    def __init__(self, log: JsonLog) -> None:
        self.log = log
        self._incomplete_lines: dict[int, str] = {}  # by thread
        self._lock = threading.RLock()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._lock:
            thread = threading.get_ident()
            *lines, incomplete_line = (self._incomplete_lines.pop(thread, "") + text).split("\n")
            for line in lines:
                self._write_line(line)
            if incomplete_line:
                self._incomplete_lines[thread] = incomplete_line
        return len(text)

    def write_incomplete_lines(self) -> None:
        """Write what was printed without a newline at its end."""
        with self._lock:
            for thread in [*self._incomplete_lines]:
                self._write_line(self._incomplete_lines.pop(thread))

    def fileno(self) -> int:
        return self.log.stream.fileno()

    def _write_line(self, line: str) -> None:
        if line.strip():
            self.log.write("INFO", line.rstrip())


class JsonEventLog:
    """Write the events of a session; those about progress at most every PROGRESS_SECONDS."""

    def __init__(self, log: JsonLog) -> None:
        self.log = log
        self._progress_at = -math.inf

    def __call__(self, event: Event) -> None:
        if event.kind in ("silence", "run_started", "run_ended"):
            return
        if event.kind in ("progress", "figures"):
            if time.monotonic() - self._progress_at < PROGRESS_SECONDS:
                return
            self._progress_at = time.monotonic()
        if event.kind == "start":
            self.log.stage = event.label
            self._progress_at = time.monotonic()
        level = "ERROR" if event.kind == "failed" else "INFO"
        self.log.write(
            level,
            f"stage {event.label}: {event.kind}",
            stage=event.label,
            event=event.kind,
            **_build_event_fields(event),
        )
        if event.kind in ("done", "cached", "failed"):
            self.log.stage = None


def _build_event_fields(event: Event) -> dict[str, Any]:
    """Return the fields that an event of this kind has."""
    match event.kind:
        case "progress":
            return {
                "completed": event.completed,
                "total": event.total or None,
                "description": event.description or None,
            }
        case "figures":
            return {"step": event.completed, "figures": _remove_non_numbers(event.metrics)}
        case "failed":
            return {"error": event.description}
        case "done" | "cached" | "child" if event.artifact is not None:
            rows = {name: table.row_count for name, table in event.artifact.tables.items()}
            return {
                "artifact": event.artifact.name,
                "seconds": round(event.seconds, 3) if event.kind == "done" else None,
                "rows": rows or None,
            }
    return {}


def _remove_non_numbers(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


_installed_log: JsonLog | None = None


def install_json_log() -> JsonLog:
    """Replace ``sys.stderr``, so that this process prints nothing but JSON there.

    Returns:
        The log; of the first call, if ``sys.stderr`` is still the one that it installed.
    """
    global _installed_log
    if _installed_log is None or not isinstance(sys.stderr, JsonStderr):
        _installed_log = JsonLog(sys.stderr)
        sys.stderr = json_stderr = JsonStderr(_installed_log)
        atexit.register(json_stderr.write_incomplete_lines)
    return _installed_log


def log_run_start(run: Run) -> None:
    """Write that a run starts; all later records name it."""
    log = install_json_log()
    log.run_id = run.id
    log.write(
        "INFO",
        f"run {run.id} started",
        event="run_started",
        flow=run.flow,
        config=run.record["config_name"],
        store=run.store.uri,
    )


def log_run_end(run: Run) -> None:
    """Write how a run ended."""
    record = run.record
    level = "INFO" if record["status"] == "completed" else "ERROR"
    install_json_log().write(
        level,
        f"run {run.id} {record['status']}",
        event="run_ended",
        status=record["status"],
        reason=record["error"],
    )
