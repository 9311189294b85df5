"""Compute the metrics of runs for Prometheus, from run.json, progress and manifests.

The same metrics are written to a file by a single run and served by ``hallmark serve``. Labels are
names of stores, configs, flows and stages: run ids are no labels, because each would be a new time
series. The numbers of runs and stages are bounded, whatever the store contains.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hallmark.flows.run_outcome import read_run_verdict
from hallmark.flows.run_progress import RunProgress
from hallmark.flows.runs import Run
from hallmark.tasks.contract import Artifact, HallmarkError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

#: The verdicts that a run can have, as the event ``hallmark.run.ended`` names them.
VERDICTS = ("pass", "fail", "not_shown", "audit_failed", "none")

#: The verdicts of a completed run that is good.
GOOD_VERDICTS = ("pass", "none")

STATUSES = ("running", "completed", "failed", "cancelled", "interrupted")

#: The largest number of pairs of a config and a flow, of stages of a run, and of characters of a
#: label.
MAX_RUNS, MAX_STAGES, MAX_LABEL_CHARACTERS = 50, 200, 100

RUN_LABELS, STAGE_LABELS = ("store", "config", "flow"), ("store", "config", "flow", "stage")


@dataclass(frozen=True)
class StageFigures:
    """What the metrics say about a stage that ended.

    Attributes:
        seconds: Duration; None if the result was in the store.
        row_count: Rows of all tables that the stage wrote; None if unknown.
        byte_size: Bytes of its tables and files; None if unknown.
    """

    seconds: float | None
    row_count: int | None = None
    byte_size: int | None = None


@dataclass(frozen=True)
class RunFigures:
    """What the metrics say about the newest run of a config and a flow.

    Attributes:
        store: The beginning of the id of the store.
        started: When it started, in seconds since 1970; None if unknown.
        ended: When it ended; None if it is running, or if this is unknown.
        verdict: One of VERDICTS; None if the run did not complete.
        last_good_end: When the newest good run of this config and flow ended; 0 if there is none.
        stages: The stages by label.
        progress: The running stage; None if no stage is running.
    """

    store: str
    config: str
    flow: str
    status: str
    started: float | None
    ended: float | None
    verdict: str | None
    last_good_end: float = 0.0
    stages: Mapping[str, StageFigures] = field(default_factory=dict)
    progress: RunProgress | None = None

    @property
    def is_good(self) -> bool:
        """Whether the run completed, no audit failed, and its policy passed or it has none."""
        return self.status == "completed" and self.verdict in GOOD_VERDICTS

    @property
    def labels(self) -> list[str]:
        return [to_label(name) for name in (self.store, self.config, self.flow)]

    def with_last_good_end(self, earlier_end: float) -> RunFigures:
        """Return the figures with the end of this run if it is good, else the given one."""
        end = self.ended if self.is_good and self.ended is not None else earlier_end
        return replace(self, last_good_end=end)


def compute_run_figures(
    run: Run,
    status: str,
    artifacts: Mapping[str, Artifact],
    progress: RunProgress | None = None,
) -> RunFigures:
    """Compute the figures of a run.

    Args:
        run: The run.
        status: Its status.
        artifacts: The artifacts of its stages by label, as far as they are known.
        progress: The running stage, if any.
    """
    stages: dict[str, StageFigures] = {}
    for entry in [*run.record["stages"]][:MAX_STAGES]:
        seconds = None if entry["cached"] else entry["seconds"]
        artifact = artifacts.get(entry["label"])
        row_count, byte_size = (None, None) if artifact is None else _measure_artifact(artifact)
        stages[entry["label"]] = StageFigures(seconds, row_count, byte_size)
    verdict = None
    if status == "completed":
        try:
            verdict = read_run_verdict(run)
        except HallmarkError:  # an artifact is damaged, so the run does not count as good
            verdict = None
    return RunFigures(
        store=run.store.compute_secret_id()[:8],
        config=run.record["config_name"],
        flow=run.flow,
        status=status,
        started=_parse_time(run.record["started"]),
        ended=_parse_time(run.record["ended"]),
        verdict=verdict,
        stages=stages,
        progress=progress,
    )


def _measure_artifact(artifact: Artifact) -> tuple[int, int]:
    """Return the rows of the tables of an artifact, and the bytes of its tables and files."""
    tables, files = artifact.manifest["tables"].values(), artifact.manifest["files"].values()
    rows = sum(entry["rows"] for entry in tables)
    table_bytes = sum(part["size"] for entry in tables for part in entry["parts"])
    return rows, table_bytes + sum(entry["size"] for entry in files)


def _parse_time(text: str | None) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except (ValueError, OverflowError):
        return None


def to_label(text: str) -> str:
    """Limit a label to printable characters and a length; prometheus_client escapes the rest."""
    printable = "".join(character if character.isprintable() else "?" for character in text)
    return printable[:MAX_LABEL_CHARACTERS]


def build_metrics(
    runs: Iterable[RunFigures],
    queue: Mapping[str, int] | None = None,
    read_at: float | None = None,
) -> list[Metric]:
    """Build the metrics of the newest runs.

    Args:
        runs: The newest run of each config and flow; those after MAX_RUNS are left out.
        queue: Number of flow runs of the served deployments, by state.
        read_at: When the store was read, in seconds since 1970.
    """
    from prometheus_client.core import GaugeMetricFamily

    def add(name: str, meaning: str, labels: tuple[str, ...] = RUN_LABELS) -> Any:
        metrics.append(GaugeMetricFamily(f"hallmark_{name}", meaning, labels=labels))
        return metrics[-1]

    metrics: list[Any] = []
    status = add(
        "run_status",
        "Status of the newest run: 1 for the current status, 0 for all others.",
        (*RUN_LABELS, "status"),
    )
    verdict = add(
        "run_verdict",
        "Verdict of the newest run: 1 for the current verdict, 0 for all others; none means that "
        "there is no policy and no audit failed.",
        (*RUN_LABELS, "verdict"),
    )
    started = add("run_start_timestamp_seconds", "Start time of the newest run.")
    duration = add("run_duration_seconds", "Duration of the newest run, if it has ended.")
    last_good = add(
        "last_good_run_timestamp_seconds",
        "End time of the newest run that completed without a failed audit or policy; 0 if there is "
        "none.",
    )
    seconds = add("stage_duration_seconds", "Duration of a computed stage.", STAGE_LABELS)
    cached = add("stage_cached", "Whether a stage's result was already in the store.", STAGE_LABELS)
    rows = add("stage_rows", "Number of rows in all tables that a stage wrote.", STAGE_LABELS)
    byte_sizes = add(
        "stage_bytes", "Size of all tables and files of a stage in bytes.", STAGE_LABELS
    )
    completed = add(
        "stage_completed_units", "Number of completed units of the running stage.", STAGE_LABELS
    )
    total = add(
        "stage_total_units", "Total number of units of the running stage, if known.", STAGE_LABELS
    )
    speed = add(
        "training_tokens_per_second", "Tokens per second in the current training run.", STAGE_LABELS
    )
    # Prometheus refuses a series that occurs twice; cut labels may be equal.
    runs_by_labels = {tuple(run.labels): run for run in reversed([*runs][:MAX_RUNS])}
    for labels, run in runs_by_labels.items():
        for name in STATUSES:
            status.add_metric([*labels, name], float(run.status == name))
        for name in VERDICTS if run.verdict else ():
            verdict.add_metric([*labels, name], float(run.verdict == name))
        if run.started is not None:
            started.add_metric(labels, run.started)
            if run.ended is not None:
                duration.add_metric(labels, max(0.0, run.ended - run.started))
        last_good.add_metric(labels, run.last_good_end)
        for label, stage in {to_label(name): stage for name, stage in run.stages.items()}.items():
            stage_labels = [*labels, label]
            cached.add_metric(stage_labels, float(stage.seconds is None))
            for metric, value in (
                (seconds, stage.seconds),
                (rows, stage.row_count),
                (byte_sizes, stage.byte_size),
            ):
                if value is not None:
                    metric.add_metric(stage_labels, value)
        if run.progress is not None and run.progress.label:
            stage_labels = [*labels, to_label(run.progress.label)]
            completed.add_metric(stage_labels, run.progress.completed)
            if run.progress.total:
                total.add_metric(stage_labels, run.progress.total)
            if math.isfinite(run.progress.tokens_per_second) and run.progress.tokens_per_second:
                speed.add_metric(stage_labels, run.progress.tokens_per_second)
    if queue is not None:
        waiting = add(
            "flow_runs", "Number of flow runs of the served deployments by state.", ("state",)
        )
        for state, count in queue.items():
            waiting.add_metric([state], count)
    if read_at is not None:
        add(
            "store_read_timestamp_seconds", "Time at which the store was last read.", ()
        ).add_metric([], read_at)
    return metrics
