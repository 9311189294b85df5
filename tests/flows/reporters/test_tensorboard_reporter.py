"""TensorBoard can read the event files, and nothing depends on them."""

from __future__ import annotations

import pytest

from hallmark.flows.reporters.tensorboard_reporter import TensorBoardReporter
from hallmark.tasks.contract import BackgroundListener, Event


def read(folder):
    """Read (step, value) by tag with TensorBoard's reader."""
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="TensorBoard is not installed",
    )
    found = event_accumulator.EventAccumulator(str(folder)).Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_tensorboard_reads_the_figures_of_stages_while_they_run(tmp_path):
    hear = TensorBoardReporter(tmp_path / "run")
    hear(Event("start", "pretrain"))
    assert not (tmp_path / "run").exists()
    for step in (1, 5):
        hear(Event("figures", "pretrain", completed=step, metrics={"loss": 4.0 / step, "mfu": 0.5}))
        hear(Event("progress", "pretrain", completed=step, total=9))
        assert read(tmp_path / "run")["pretrain/loss"][-1] == (step, pytest.approx(4.0 / step))
    hear(Event("done", "pretrain"))
    hear(Event("figures", "other", completed=1, metrics={"loss": 1.0}))
    hear(Event("failed", "other"))
    assert hear.writer is None
    assert read(tmp_path / "run") == {
        "pretrain/loss": [(1, 4.0), (5, pytest.approx(0.8))],
        "pretrain/mfu": [(1, 0.5), (5, 0.5)],
        "other/loss": [(1, 1.0)],
    }


def test_an_unwritable_folder_only_causes_a_warning(tmp_path, caplog):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    (tmp_path / "file").write_text("")
    with BackgroundListener(
        TensorBoardReporter(tmp_path / "file" / "run"), "TensorBoard", 30
    ) as watch:
        watch(Event("figures", "pretrain", completed=1, metrics={"loss": 1.0}))
    (message,) = caplog.records
    assert message.getMessage().startswith("TensorBoard failed: ")
    assert message.getMessage().endswith("the run continues without it")
