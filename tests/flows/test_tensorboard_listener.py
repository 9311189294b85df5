"""TensorBoard can read the event files, and nothing depends on them."""

from __future__ import annotations

import sys

import pytest

from hallmark.flows.config import load_config
from hallmark.flows.run_recording import resolve_flow_arguments
from hallmark.flows.tensorboard_listener import TensorBoardListener, check_tensorboard_installed
from hallmark.tasks.contract import BackgroundListener, Event, UsageError


def read(folder):
    """Read (step, value) by tag with TensorBoard's reader."""
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="TensorBoard is not installed",
    )
    found = event_accumulator.EventAccumulator(str(folder)).Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_tensorboard_reads_the_figures_of_stages_while_they_run(tmp_path):
    hear = TensorBoardListener(tmp_path / "run")
    hear(Event("start", "pretrain"))
    assert not (tmp_path / "run").exists()
    for step in (1, 5):
        hear(Event("figures", "pretrain", completed=step, metrics={"loss": 4.0 / step, "mfu": 0.5}))
        hear(Event("progress", "pretrain", completed=step, total=9))
        assert read(tmp_path / "run")["pretrain/loss"][-1] == (step, pytest.approx(4.0 / step))
    hear(Event("done", "pretrain"))
    hear(Event("figures", "other", completed=1, metrics={"loss": 1.0}))
    hear(Event("done", "other"))
    assert read(tmp_path / "run") == {
        "pretrain/loss": [(1, 4.0), (5, pytest.approx(0.8))],
        "pretrain/mfu": [(1, 0.5), (5, 0.5)],
        "other/loss": [(1, 1.0)],
    }


def test_an_unwritable_folder_only_causes_a_warning(tmp_path, caplog):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    (tmp_path / "file").write_text("")
    with BackgroundListener(
        TensorBoardListener(tmp_path / "file" / "run"), "TensorBoard's event files", 30
    ) as watch:
        watch(Event("figures", "pretrain", completed=1, metrics={"loss": 1.0}))
    (message,) = caplog.records
    assert message.getMessage().startswith("TensorBoard's event files failed: ")
    assert message.getMessage().endswith("the run continues without it")


def test_without_tensorboard_the_setting_is_refused_with_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    with pytest.raises(UsageError, match=r"pip install .*\[tensorboard\]"):
        check_tensorboard_installed()
    store = f"store={tmp_path / 'store'}"
    with pytest.raises(UsageError, match="the setting 'tensorboard' needs TensorBoard"):
        resolve_flow_arguments("smoke", [f"tensorboard={tmp_path}", store])
    assert resolve_flow_arguments("smoke", [store]).config.tensorboard is None


def test_the_setting_changes_no_artifact():
    with_files = load_config("smoke", ["tensorboard=files"])
    assert with_files.model_copy(update={"tensorboard": None}) == load_config("smoke")
