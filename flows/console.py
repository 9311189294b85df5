"""Show the progress of a run on stderr.

A line reports each completed stage, or step of several stages. A running stage has a progress bar
in a terminal, and a line every half minute if the output is not a terminal.
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
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from hallmark.tasks.contract import Event

stderr = Console(file=sys.stderr, highlight=False)

#: Seconds between two lines about a running stage without a progress bar.
PROGRESS_LINE_SECONDS = 30.0


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
        #: The last event of the running stage, None if no stage is running.
        self.last_event: Event | None = None
        #: The completed part of the current step.
        self.completed_step: CompletedStep | None = None
        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<20}"),
            BarColumn(),
            TextColumn("{task.fields[what]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task_id = self.progress.add_task("starting Prefect", total=None, what="")

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
            self.stage_started_at = self.printed_at = self.clock()
            self.first_completed = -1
            self.progress.reset(self.task_id, description=event.label, total=None, what="")
        elif event.kind == "progress":
            self.progress.update(
                self.task_id,
                completed=event.completed,
                total=event.total or None,
                what=event.description,
            )
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
            self.console.print(
                self._format_progress_line(self.last_event), markup=False, soft_wrap=True
            )

    def _print_completed_step(self) -> None:
        if self.completed_step:
            self.console.print(str(self.completed_step), soft_wrap=True)
        self.completed_step = None

    def _format_progress_line(self, event: Event) -> str:
        """Format the progress, elapsed time, remaining time and status of a running stage."""
        timing = f"{self.printed_at - self.stage_started_at:,.0f} s elapsed"
        progress = "" if event.kind == "start" else f"{event.completed:,}"
        if event.total > 0:
            progress += f" of {event.total:,} ({event.completed / event.total:.0%})"
        if event.total > event.completed > self.first_completed:
            seconds_per_unit = (self.printed_at - self.first_progress_at) / (
                event.completed - self.first_completed
            )
            timing += (
                f", about {seconds_per_unit * (event.total - event.completed):,.0f} s remaining"
            )
        parts = (progress, timing, event.description)
        return f"  {event.label:<20} {', '.join(part for part in parts if part)}"
