"""Write the metrics of a run to a file that Prometheus' node exporter reads.

Each config and flow of a store has one file, which contains its newest run. A file is replaced as a
whole, so that no reader sees half of it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from hallmark.flows.reporters.metrics import build_metrics, compute_run_figures
from hallmark.flows.run_progress import RunProgress
from hallmark.flows.runs import Run, iter_latest_candidates
from hallmark.tasks.contract import Artifact, Event

if TYPE_CHECKING:
    from prometheus_client.core import Metric

#: Seconds that two writes are at least apart, except the first and the last one of a run.
WRITE_INTERVAL_SECONDS = 2.0

#: Number of earlier runs among which the last good one is searched.
MAX_EARLIER_RUNS = 200


class PrometheusReporter:
    """Write the metrics of a run whenever they change, at most every WRITE_INTERVAL_SECONDS."""

    def __init__(self, folder: Path, run: Run) -> None:
        self.folder, self.run = folder, run
        self.artifacts: dict[str, Artifact] = {}
        self.progress = RunProgress()
        self.earlier_good_end = 0.0
        self._written_at = -math.inf

    def __call__(self, event: Event) -> None:
        self.progress.handle_event(event)
        if event.kind in ("done", "cached") and event.artifact:
            self.artifacts[event.label] = event.artifact
        if event.kind == "run_started":
            self.earlier_good_end = find_last_good_end(self.run)
        is_due = time.monotonic() - self._written_at >= WRITE_INTERVAL_SECONDS
        if is_due or event.kind in ("run_started", "run_ended"):
            self._write_file(self.run.record["status"])

    def _write_file(self, status: str) -> None:
        from prometheus_client import CollectorRegistry, write_to_textfile

        progress = self.progress if status == "running" else None
        figures = compute_run_figures(
            self.run, status, self.artifacts, progress
        ).with_last_good_end(self.earlier_good_end)
        registry = CollectorRegistry()
        registry.register(MetricsCollector(build_metrics([figures])))
        self.folder.mkdir(parents=True, exist_ok=True)
        name = quote("-".join((figures.store, figures.config, figures.flow)), safe="")
        write_to_textfile(str(self.folder / f"hallmark-{name}.prom"), registry)
        self._written_at = time.monotonic()


class MetricsCollector:
    """Return metrics that were computed before."""

    def __init__(self, metrics: list[Metric]) -> None:
        self.metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self.metrics


def find_last_good_end(run: Run) -> float:
    """Return when the newest good run with the config and the flow of a run ended; 0 if none."""
    for earlier_run in islice(iter_latest_candidates(run.store), MAX_EARLIER_RUNS):
        if (
            earlier_run.record["config_name"] == run.record["config_name"]
            and earlier_run.flow == run.flow
            and earlier_run.record["status"] == "completed"
        ):
            figures = compute_run_figures(earlier_run, "completed", {})
            if figures.is_good and figures.ended is not None:
                return figures.ended
    return 0.0
