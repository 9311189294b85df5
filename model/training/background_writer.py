"""Write a training's outputs in a background thread, while the next steps are computed."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hallmark.model.architecture import Transformer
from hallmark.model.config import TrainConfig
from hallmark.model.interchange import checkpoint
from hallmark.model.interchange.atomic_files import write_file_atomically
from hallmark.model.training.job import emit_event
from hallmark.model.training.samples import SAMPLES_SCHEMA
from hallmark.model.training.state import TrainingSnapshot
from hallmark.model.training.step_metrics import LOG_SCHEMA
from hallmark.model.training.validation import VALIDATION_SCHEMA
from hallmark.model.training.work_folder import format_step_name, remove_old_states

TABLE_SCHEMAS = {"log": LOG_SCHEMA, "validation": VALIDATION_SCHEMA, "samples": SAMPLES_SCHEMA}
RowsByTable = dict[str, list[dict[str, Any]]]


class BackgroundWriter:
    """Writes checkpoint, tables and finally the state, which commits them.

    After a kill, outputs newer than the last state are lost and computed again. Only one write runs
    at a time and the next one waits, so that at most one snapshot is in memory. Errors are raised
    in the training, at the next step at the latest.
    """

    def __init__(self, work_folder: Path, tokenizer_path: Path, config: TrainConfig) -> None:
        self.work_folder, self.tokenizer_path, self.config = work_folder, tokenizer_path, config
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="background-writer")
        self.pending_write: Future[None] | None = None

    def start_writing(
        self, snapshot: TrainingSnapshot, tables: RowsByTable, model: Transformer | None
    ) -> None:
        """Write a state and the rows of ``tables``, and a checkpoint if ``model`` is given.

        The checkpoint's weights are those of the snapshot.
        """
        self.wait_until_written()
        self.pending_write = self.executor.submit(self._write_snapshot, snapshot, tables, model)

    def raise_write_error(self) -> None:
        """Raise the error of a finished write, without waiting."""
        if self.pending_write is not None and self.pending_write.done():
            self.wait_until_written()

    def wait_until_written(self) -> None:
        """Wait until everything is on disk; raise the error of the write."""
        pending_write, self.pending_write = self.pending_write, None
        if pending_write is not None:
            pending_write.result()

    def shut_down(self) -> None:
        """End the thread after its last write."""
        self.executor.shutdown()

    def _write_snapshot(
        self, snapshot: TrainingSnapshot, tables: RowsByTable, model: Transformer | None
    ) -> None:
        step = snapshot.step
        folder = self.work_folder / "checkpoints" / format_step_name(step)
        if model is not None:
            checkpoint.save_checkpoint(
                model, folder, tokenizer_path=self.tokenizer_path, weights=snapshot.model_weights
            )
        for name, rows in tables.items():
            if rows:
                table_path = self.work_folder / name / f"part-{step:08d}.parquet"
                with write_file_atomically(table_path) as path:
                    pq.write_table(pa.Table.from_pylist(rows, TABLE_SCHEMAS[name]), path)
        snapshot.write_state(self.work_folder)
        emit_event("state", step=step)
        remove_old_states(self.work_folder, self.config)
        if model is not None:
            emit_checkpoint_event(folder)


def emit_checkpoint_event(checkpoint_folder: Path) -> None:
    """Report a committed checkpoint."""
    emit_event(
        "checkpoint",
        step=int(checkpoint_folder.name.removeprefix("step-")),
        path=str(checkpoint_folder),
    )
