"""What a training leaves is written by a thread of its own, while the next steps are computed."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from model.architecture import Transformer
from model.config import TrainConfig
from model.interchange import checkpoint
from model.interchange.files import atomic_file
from model.training.figures import LOG_SCHEMA
from model.training.job import emit
from model.training.state import Snapshot
from model.training.texts import SAMPLES
from model.training.validation import MEASURED
from model.training.work import remove_old_states, step_name

SCHEMAS = {"log": LOG_SCHEMA, "validation": MEASURED, "samples": SAMPLES}
Rows = dict[str, list[dict[str, Any]]]


class Keeper:
    """Writes checkpoint, tables and last the state, which makes both count: a kill in between loses
    what is newer than the state before, and that is made again.

    One thing at a time: whoever has the next one waits, so that no more than one snapshot is held.
    What goes wrong is raised in the training, at the next step at the latest.
    """

    def __init__(self, work: Path, tokenizer: Path, config: TrainConfig) -> None:
        self.work, self.tokenizer, self.config = work, tokenizer, config
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="keeper")
        self.writing: Future[None] | None = None

    def keep(self, snapshot: Snapshot, tables: Rows, model: Transformer | None) -> None:
        """Write a state and the rows of ``tables``, and, of a ``model``, a checkpoint; its weights
        are the snapshot's."""
        self.wait()
        self.writing = self.thread.submit(self._write, snapshot, tables, model)

    def check(self) -> None:
        """Raise what went wrong, without waiting."""
        if self.writing is not None and self.writing.done():
            self.wait()

    def wait(self) -> None:
        """Until all is on the disk."""
        writing, self.writing = self.writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """End the thread, when it has written what it was given."""
        self.thread.shutdown()

    def _write(self, snapshot: Snapshot, tables: Rows, model: Transformer | None) -> None:
        step, folder = snapshot.step, self.work / "checkpoints" / step_name(snapshot.step)
        if model is not None:
            checkpoint.save(model, folder, tokenizer=self.tokenizer, weights=snapshot.weights)
        for name, rows in tables.items():
            if rows:
                with atomic_file(self.work / name / f"part-{step:08d}.parquet") as path:
                    pq.write_table(pa.Table.from_pylist(rows, SCHEMAS[name]), path)
        snapshot.write(self.work)
        remove_old_states(self.work, self.config)
        if model is not None:
            announce(folder)


def announce(folder: Path) -> None:
    """Tell of a checkpoint that counts."""
    emit("checkpoint", step=int(folder.name.removeprefix("step-")), path=str(folder))
