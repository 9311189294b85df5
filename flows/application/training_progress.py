"""Read the losses of a training, finished or running, and the progress of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hallmark.flows.run_progress import RunProgress, read_run_progress
from hallmark.flows.runs import Run
from hallmark.reports.artifact_lookup import find_artifact_by_name
from hallmark.reports.page.redaction import Redactor
from hallmark.reports.view.loss_curve import LossCurve, draw_loss_curve
from hallmark.tasks.contract import HallmarkError


@dataclass(frozen=True)
class TrainingView:
    """What the page of a run shows of its progress and its training.

    Attributes:
        is_running: Whether the run is running.
        progress: The progress of the running stage; None if unknown.
        description: What the running stage reports, redacted.
        curve: The losses; None without any.
        finished_count: The number of finished stages.
    """

    is_running: bool
    progress: RunProgress | None
    description: str
    curve: LossCurve | None
    finished_count: int


def read_training(run: Run) -> TrainingView:
    """Read the progress and the losses of a run."""
    is_running = run.status == "running"
    progress = read_run_progress(run.store, run.id) if is_running else None
    return TrainingView(
        is_running,
        progress,
        Redactor().redact_full_text(progress.description) if progress else "",
        _read_stored_curve(run) or (_read_live_curve(progress) if progress else None),
        len(run.stages),
    )


def _read_stored_curve(run: Run) -> LossCurve | None:
    entry = run.stages.get("pretrain")
    artifact = find_artifact_by_name(run.store, entry["artifact"]) if entry else None
    if artifact is None or "log" not in artifact.tables:
        return None
    try:
        columns = artifact["log"].read(["step", "loss", "validation_loss"]).to_pydict()
    except HallmarkError:  # the table of stages shows the damage
        return None
    steps = columns["step"]
    return draw_loss_curve(
        zip(steps, columns["loss"], strict=True),
        zip(steps, columns["validation_loss"], strict=True),
    )


def _read_live_curve(progress: RunProgress) -> LossCurve | None:
    training = progress.curves.get("loss", [])
    validation = progress.curves.get("validation_bits_per_token", [])
    return draw_loss_curve(
        [(step, loss) for step, loss in training],
        [(step, bits * math.log(2)) for step, bits in validation],
    )
