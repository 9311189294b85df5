"""Write TensorBoard event files while a training runs.

They contain the figures that the terminal shows; the tables of the stage remain the record. The
files are written with TensorBoard's own writer, without torch.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from hallmark.tasks.contract import Event

if TYPE_CHECKING:
    from tensorboard.summary.writer.event_file_writer import EventFileWriter


class TensorBoardReporter:
    """Write the figures of stages to a folder, as ``stage/figure`` by step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writer: EventFileWriter | None = None

    def __call__(self, event: Event) -> None:
        if event.kind == "figures":
            values = {f"{event.label}/{name}": value for name, value in event.metrics.items()}
            self._write_scalars(event.completed, values)
        elif event.kind in ("done", "failed") and self.writer is not None:
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
        writer.flush()  # TensorBoard shows the value immediately

    def _get_writer(self) -> EventFileWriter:
        """Return the open writer, or open a new file for the first figure of a stage."""
        if self.writer is None:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter

            self.writer = EventFileWriter(str(self.folder))
        return self.writer
