"""Keep the progress of a running stage in the store, for the application that shows it.

The file ``runs/<run>/progress.json`` exists only while the run is running. It is renewed at least
every RENEWAL_SECONDS, so that other hosts can see that the run is still executed. It is no
evidence: the tables of the stage remain the record.
"""

from __future__ import annotations

import json
import math
import re
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from hallmark.tasks.contract import Event, HallmarkError, Store

#: Seconds that two writes are at least apart.
WRITE_INTERVAL_SECONDS = 2.0

#: Seconds after which the file is written again although no event came.
RENEWAL_SECONDS = 10.0

#: Number of points of a curve from which every second point is dropped.
MAX_CURVE_POINTS = 2000

#: The metrics whose curves are kept.
CURVE_METRICS = ("loss", "validation_bits_per_token")

#: The label of a stage, or nothing, in a file that anyone who writes to the store may have written.
_LABEL_PATTERN = re.compile(r"\w{0,200}")

#: Number of characters of the description; a longer one is damage.
MAX_DESCRIPTION_CHARACTERS = 1000


@dataclass
class RunProgress:
    """The progress of the stage that a run executes.

    Attributes:
        label: The label of the stage.
        completed: Completed units; 0 if the stage reports none.
        total: All units; 0 if unknown.
        description: What the stage reports, such as its speed.
        curves: Pairs of a step and a value, by metric.
        tokens_per_second: The last speed of the running training; 0 if there is none.
    """

    label: str = ""
    completed: int = 0
    total: int = 0
    description: str = ""
    curves: dict[str, list[list[float]]] = field(default_factory=dict)
    tokens_per_second: float = 0.0

    def handle_event(self, event: Event) -> None:
        """Take what an event says about the running stage."""
        match event.kind:
            case "start":
                self.label, self.completed, self.total = event.label, 0, 0
                self.description, self.curves, self.tokens_per_second = "", {}, 0.0
            case "progress":
                self.label, self.completed, self.total = event.label, event.completed, event.total
                self.description = event.description
            case "figures":
                speed = event.metrics.get("tokens_per_second", self.tokens_per_second)
                self.tokens_per_second = speed if math.isfinite(speed) else 0.0
                for name in CURVE_METRICS:
                    value = event.metrics.get(name)
                    if value is not None and math.isfinite(value):
                        self._add_point(name, event.completed, value)

    def _add_point(self, name: str, step: int, value: float) -> None:
        points = self.curves.setdefault(name, [])
        points.append([step, value])
        if len(points) > MAX_CURVE_POINTS:
            del points[1:-1:2]


class RunProgressListener:
    """Write the progress of a run into its store; call it through a ``BackgroundListener``."""

    def __init__(self, store: Store, run_id: str) -> None:
        self.store, self.key = store, format_progress_key(run_id)
        self.progress = RunProgress()
        self._written_at = -math.inf
        self._is_closed = False

    def __call__(self, event: Event) -> None:
        self.progress.handle_event(event)
        is_due = time.monotonic() - self._written_at >= WRITE_INTERVAL_SECONDS
        if is_due and not self._is_closed:
            self.write_file()

    def write_file(self) -> None:
        """Write the file, as the first sign of life of the run."""
        self._written_at = time.monotonic()
        self.store.put(self.key, json.dumps(asdict(self.progress)).encode())

    def remove_file(self) -> None:
        """Remove the file at the end of the run; an error must not fail the run."""
        self._is_closed = True
        if self._written_at > -math.inf:
            with suppress(HallmarkError, OSError):
                self.store.delete([self.key])


def format_progress_key(run_id: str) -> str:
    """Return the key of the progress file of a run."""
    return f"runs/{run_id}/progress.json"


def read_run_progress(store: Store, run_id: str) -> RunProgress | None:
    """Read the progress of a running run; None if there is none, or it cannot be read."""
    try:
        fields: Any = json.loads(store.get(format_progress_key(run_id)) or b"null")
        progress = RunProgress(**fields)
        is_valid = (
            isinstance(progress.label, str)
            and _LABEL_PATTERN.fullmatch(progress.label) is not None
            and _is_count(progress.completed)
            and _is_count(progress.total)
            and isinstance(progress.description, str)
            and len(progress.description) <= MAX_DESCRIPTION_CHARACTERS
            and sum(map(len, progress.curves.values())) <= MAX_CURVE_POINTS * len(CURVE_METRICS)
            and isinstance(progress.tokens_per_second, int | float)
            and all(
                isinstance(value, int | float)
                for points in progress.curves.values()
                for step, number in points
                for value in (step, number)
            )
        )
    except (HallmarkError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    return progress if is_valid else None


def _is_count(number: Any) -> bool:
    return type(number) is int and 0 <= number < 1 << 63
