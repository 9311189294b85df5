"""TensorBoard's event files, written while a training runs.

They hold what the terminal shows, for a person to look at: the tables of the stage are what counts.
TensorBoard's own writer is used, without torch; whoever asks for the files has its pages, too.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from hallmark.tasks.contract import Event, UsageError


def check_tensorboard_installed() -> None:
    """UsageError where TensorBoard is not installed."""
    try:
        import tensorboard.summary.writer.event_file_writer  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"tensorboard is set, and TensorBoard cannot be loaded ({error}); install it with "
            f"pip install -c constraints.txt -e '.[tensorboard]', or leave the setting out"
        ) from error


class TensorBoardListener:
    """Hears the figures of stages and writes them below a folder, as ``stage/figure`` by step.

    To be told by a ``Watcher``: a full disk stops no training.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writer: Any = None

    def __call__(self, event: Event) -> None:
        if event.kind == "figures":
            values = {f"{event.label}/{name}": value for name, value in event.metrics.items()}
            self._write_scalars(event.completed, values)
        elif event.kind == "done" and self.writer is not None:
            self.writer.close()
            self.writer = None

    def _write_scalars(self, step: int, scalars: dict[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event as Written
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary_values = [
            Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()
        ]
        summary = Summary(value=summary_values)
        writer = self._get_writer()
        writer.add_event(Written(wall_time=time.time(), step=step, summary=summary))
        writer.flush()  # to be seen now

    def _get_writer(self) -> Any:
        """A file of its own from the first figure on, and after each stage."""
        if self.writer is None:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter

            self.writer = EventFileWriter(str(self.folder))
        return self.writer
