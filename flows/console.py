"""How runs show themselves: a line when a stage is done, or a step that several are part of; while
it works a bar in a terminal, and where the output is piped a line every half minute."""

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
    from tasks.contract import Event

stderr = Console(file=sys.stderr, highlight=False)

#: Seconds between two lines about one stage where there is no bar.
EVERY = 30.0


@dataclass
class Done:
    """What a stage left, or those of a step together."""

    name: str
    stages: int = 0
    made: int = 0
    seconds: float = 0.0
    rows: Counter[str] = field(default_factory=Counter)
    files: list[str] = field(default_factory=list)

    def add(self, event: Event) -> None:
        assert event.artifact is not None
        self.stages += 1
        self.made += event.kind == "done"
        self.seconds += event.seconds
        self.rows.update({name: table.rows for name, table in event.artifact.tables.items()})
        self.files += list(event.artifact.manifest["files"])[:2]

    def __str__(self) -> str:
        told = [f"{self.stages} audits"] if self.stages > 1 else []
        told += [f"{name} {rows:,}" for name, rows in self.rows.items()]
        when = f"{self.seconds:.1f} s" if self.made else "cached"
        return f"[green]✓[/] {self.name:<20} {when:>8}   [dim]{', '.join(told + self.files)}[/]"


class RunView:
    """Listens to a session. Everything goes to stderr; stdout is for what was asked for."""

    def __init__(
        self, console: Console = stderr, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.console, self.clock = console, clock
        self.began = self.said = self.heard = clock()
        self.first = -1
        #: What was heard last of the stage that works.
        self.last: Event | None = None
        #: What is done of the step that is under way.
        self.done: Done | None = None
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
        self.bar = self.progress.add_task("starting Prefect", total=None, what="")

    def __enter__(self) -> RunView:
        self.progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._say_done()
        self.progress.stop()

    def __call__(self, event: Event) -> None:
        if event.kind in ("start", "progress", "done", "cached"):
            self.last = event if event.kind in ("start", "progress") else None
        if self.done and event.kind in ("start", "done", "cached") and event.step != self.done.name:
            self._say_done()
        if event.kind == "start":
            self.began = self.said = self.clock()
            self.first = -1
            self.progress.reset(self.bar, description=event.label, total=None, what="")
        elif event.kind == "progress":
            self.progress.update(
                self.bar, completed=event.done, total=event.total or None, what=event.what
            )
            if self.first < 0:  # what is resumed does not begin at 0
                self.first, self.heard = event.done, self.clock()
        elif event.kind in ("done", "cached") and event.artifact:
            self.done = self.done or Done(event.step or event.label)
            self.done.add(event)
            if not event.step:
                self._say_done()
        if self.last and not self.console.is_terminal and self.clock() - self.said >= EVERY:
            self.said = self.clock()
            self.console.print(self._so_far(self.last), markup=False, soft_wrap=True)

    def _say_done(self) -> None:
        if self.done:
            self.console.print(str(self.done), soft_wrap=True)
        self.done = None

    def _so_far(self, event: Event) -> str:
        """A line on a stage that works: how far it is, the time it took and takes, what it says."""
        time = f"{self.said - self.began:,.0f} s so far"
        done = "" if event.kind == "start" else f"{event.done:,}"
        if event.total > 0:
            done += f" of {event.total:,} ({event.done / event.total:.0%})"
        if event.total > event.done > self.first:
            each = (self.said - self.heard) / (event.done - self.first)
            time += f", about {each * (event.total - event.done):,.0f} s left"
        parts = (done, time, event.what)
        return f"  {event.label:<20} {', '.join(part for part in parts if part)}"
