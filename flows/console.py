"""How runs show themselves in a terminal: a bar while a stage works, a line when it is done."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from tasks.contract import Event

stderr = Console(file=sys.stderr, highlight=False)


class RunView:
    """Listens to a session. Everything goes to stderr; stdout is for what was asked for."""

    def __init__(self) -> None:
        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<20}"),
            BarColumn(),
            TextColumn("{task.fields[what]}"),
            TimeElapsedColumn(),
            console=stderr,
            transient=True,
            disable=not stderr.is_terminal,
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
        self.progress.stop()

    def __call__(self, event: Event) -> None:
        if event.kind == "start":
            self.progress.reset(self.bar, description=event.label, total=None, what="")
        elif event.kind == "progress":
            self.progress.update(
                self.bar, completed=event.done, total=event.total or None, what=event.what
            )
        elif event.kind in ("done", "cached") and event.artifact:
            rows = [f"{name} {t.rows:,}" for name, t in event.artifact.tables.items()]
            rows += list(event.artifact.manifest["files"])[:2]
            when = "cached" if event.kind == "cached" else f"{event.seconds:.1f} s"
            stderr.print(
                f"[green]✓[/] {event.label:<20} {when:>8}   [dim]{', '.join(rows)}[/]",
                soft_wrap=True,
            )
