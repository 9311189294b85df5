"""Show the progress of a run on stderr.

A line reports each completed stage, or step of several stages. A running stage has a line that
changes in a terminal, and the same line every half minute if the output is not a terminal. The most
useful figures come first, because a terminal cuts the line.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task
from rich.table import Column
from rich.text import Text

if TYPE_CHECKING:
    from hallmark.tasks.contract import Event

stderr = Console(file=sys.stderr, highlight=False)

#: Seconds between two lines about a running stage if the output is not a terminal.
PROGRESS_LINE_SECONDS = 30.0


def format_duration(seconds: float) -> str:
    for unit, min_seconds in (("days", 172_800), ("h", 7_200), ("min", 120)):
        if seconds >= min_seconds:
            return f"{seconds / {'days': 86_400, 'h': 3_600, 'min': 60}[unit]:.1f} {unit}"
    return f"{seconds:.1f} s"


@dataclass
class CompletedStep:
    """The output of a completed stage, or of all stages of a step together."""

    name: str
    stage_count: int = 0
    computed_count: int = 0
    seconds: float = 0.0
    row_counts: Counter[str] = field(default_factory=Counter)
    file_names: list[str] = field(default_factory=list)

    def add_stage(self, event: Event) -> None:
        assert event.artifact is not None
        self.stage_count += 1
        self.computed_count += event.kind == "done"
        self.seconds += event.seconds
        self.row_counts.update(
            {name: table.row_count for name, table in event.artifact.tables.items()}
        )
        self.file_names += list(event.artifact.manifest["files"])[:2]

    def __str__(self) -> str:
        counts = [f"{self.stage_count} audits"] if self.stage_count > 1 else []
        counts += [
            f"{table_name} {row_count:,}" for table_name, row_count in self.row_counts.items()
        ]
        duration = f"{self.seconds:.1f} s" if self.computed_count else "cached"
        return (
            f"[green]✓[/] {self.name:<20} {duration:>8}   "
            f"[dim]{', '.join(counts + self.file_names)}[/]"
        )


class RunProgressDisplay:
    """Listen to the events of a session and print progress to stderr, never to stdout."""

    def __init__(
        self, console: Console = stderr, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.console, self.clock = console, clock
        self.stage_started_at = self.printed_at = self.first_progress_at = clock()
        self.first_completed = -1
        #: What the line says while no stage is running.
        self.idle_text = "starting Prefect"
        #: The last event of the running stage, None if no stage is running.
        self.last_event: Event | None = None
        #: The completed part of the current step.
        self.completed_step: CompletedStep | None = None
        self.progress = Progress(
            SpinnerColumn(),
            _ProgressLineColumn(self._format_progress_line),
            console=console,
            transient=True,
            expand=True,
            disable=not console.is_terminal,
        )
        self.progress.add_task("", total=None)

    def __enter__(self) -> RunProgressDisplay:
        self.progress.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._print_completed_step()
        self.progress.stop()

    def __call__(self, event: Event) -> None:
        if event.kind in ("start", "progress", "done", "cached"):
            self.last_event = event if event.kind in ("start", "progress") else None
        if (
            self.completed_step
            and event.kind in ("start", "done", "cached")
            and event.phase != self.completed_step.name
        ):
            self._print_completed_step()
        if event.kind == "start":
            self.idle_text = "preparing the next stage"
            self.stage_started_at = self.printed_at = self.clock()
            self.first_completed = -1
        elif event.kind == "progress":
            if self.first_completed < 0:  # a resumed stage does not start at 0
                self.first_completed, self.first_progress_at = event.completed, self.clock()
        elif event.kind in ("done", "cached") and event.artifact:
            self.completed_step = self.completed_step or CompletedStep(event.phase or event.label)
            self.completed_step.add_stage(event)
            if not event.phase:
                self._print_completed_step()
        if (
            self.last_event
            and not self.console.is_terminal
            and self.clock() - self.printed_at >= PROGRESS_LINE_SECONDS
        ):
            self.printed_at = self.clock()
            self.console.print(f"  {self._format_progress_line()}", markup=False, soft_wrap=True)

    def _print_completed_step(self) -> None:
        if self.completed_step:
            self.console.print(str(self.completed_step), soft_wrap=True)
        self.completed_step = None

    def _format_progress_line(self) -> str:
        """Format the progress of the running stage, its remaining time, status and elapsed time."""
        event, now = self.last_event, self.clock()
        if event is None:
            return self.idle_text
        progress = remaining = ""
        if event.kind == "progress" and (event.completed or event.total):
            progress = f"{event.completed:,}" + (f" of {event.total:,}" if event.total else "")
        if event.total > event.completed > self.first_completed:
            seconds_per_unit = (now - self.first_progress_at) / (
                event.completed - self.first_completed
            )
            remaining_seconds = seconds_per_unit * (event.total - event.completed)
            remaining = f"{format_duration(remaining_seconds)} remaining"
        elapsed = f"{format_duration(now - self.stage_started_at)} elapsed"
        parts = (progress, remaining, event.description, elapsed)
        return f"{event.label} {', '.join(part for part in parts if part)}"


class _ProgressLineColumn(ProgressColumn):
    """Show a text on one line, cut at the width of the terminal."""

    def __init__(self, format_line: Callable[[], str]) -> None:
        super().__init__(Column(ratio=1, no_wrap=True, overflow="ellipsis"))
        self.format_line = format_line

    def render(self, task: Task) -> Text:
        return Text(self.format_line())
