"""Serve the metrics of a store's runs over HTTP, for ``hallmark serve --metrics-port``.

A thread reads the store and asks Prefect's server again and again. A request gets what it read
last, so neither a slow store nor a slow server delays Prometheus.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING
from uuid import UUID

from hallmark.flows.reporters.metrics import (
    MAX_RUNS,
    MAX_STAGES,
    RunFigures,
    build_metrics,
    compute_run_figures,
)
from hallmark.flows.run_order import list_run_ids
from hallmark.flows.run_progress import read_run_progress
from hallmark.flows.runs import Run, read_run_record
from hallmark.tasks.contract import HallmarkError, Store, UsageError, map_store_reads

if TYPE_CHECKING:
    from prometheus_client.core import Metric

log = logging.getLogger("hallmark")

#: Only this computer can read the metrics.
HOST = "127.0.0.1"

#: Seconds between two readings of the store.
READ_INTERVAL_SECONDS = 15.0

#: Number of the newest runs that are read.
MAX_READ_RUNS = 500


class StoreMetrics:
    """Read the metrics of the newest runs of a store.

    Runs that ended are read once. Only of the newest run of each config and flow are the manifests
    read too.

    Args:
        store: The store.
        count_flow_runs: Returns the number of flow runs by state, None if it is unknown.
    """

    def __init__(
        self, store: Store, count_flow_runs: Callable[[], Mapping[str, int] | None]
    ) -> None:
        self.store, self.count_flow_runs = store, count_flow_runs
        #: The newest metrics; replaced as a whole.
        self.metrics: list[Metric] = []
        self._ended_runs: dict[str, RunFigures | None] = {}
        self._detailed_runs: dict[str, RunFigures] = {}

    def collect(self) -> Iterator[Metric]:
        yield from self.metrics

    def read(self) -> None:
        """Read the store and the number of flow runs."""
        run_ids = list_run_ids(self.store)[::-1][:MAX_READ_RUNS]
        newest: dict[tuple[str, str], tuple[str, RunFigures]] = {}
        good_ends: dict[tuple[str, str], float] = {}
        all_figures = map_store_reads(self.store, self._read_run, run_ids)
        for run_id, figures in zip(run_ids, all_figures, strict=True):
            if figures is None:
                continue
            key = figures.config, figures.flow
            newest.setdefault(key, (run_id, figures))
            if figures.is_good and figures.ended is not None:
                good_ends.setdefault(key, figures.ended)
        detailed_runs = {
            run_id: self._add_details(run_id, figures)
            for run_id, figures in islice(newest.values(), MAX_RUNS)
        }
        self._ended_runs = {
            run_id: self._ended_runs[run_id] for run_id in run_ids if run_id in self._ended_runs
        }
        self._detailed_runs = {
            run_id: figures
            for run_id, figures in detailed_runs.items()
            if figures.status != "running"
        }
        self.metrics = build_metrics(
            [
                figures.with_last_good_end(good_ends.get((figures.config, figures.flow), 0.0))
                for figures in detailed_runs.values()
            ],
            self.count_flow_runs(),
            time.time(),
        )

    def _read_run(self, run_id: str) -> RunFigures | None:
        """Read a run without its manifests; None for one that "latest" does not mean."""
        if run_id in self._ended_runs:
            return self._ended_runs[run_id]
        try:
            run = Run(self.store, read_run_record(self.store, run_id))
        except HallmarkError:  # damaged, or being written
            return None
        figures = compute_run_figures(run, run.status, {}) if run.may_be_latest else None
        # A run without a recorded end may be alive after all.
        if run.record["status"] != "running":
            self._ended_runs[run_id] = figures
        return figures

    def _add_details(self, run_id: str, figures: RunFigures) -> RunFigures:
        """Return the figures of a run with rows, bytes and progress."""
        if run_id in self._detailed_runs:
            return self._detailed_runs[run_id]
        try:
            run = Run(self.store, read_run_record(self.store, run_id))
            artifacts = run.open_artifacts(islice(run.stages, MAX_STAGES))
            is_running = figures.status == "running"
            progress = read_run_progress(self.store, run_id) if is_running else None
            return compute_run_figures(run, figures.status, artifacts, progress)
        except (HallmarkError, LookupError, TypeError, AttributeError):
            return figures  # an artifact is damaged or was removed


@contextmanager
def serve_metrics(store: Store, port: int, deployment_ids: Sequence[UUID] = ()) -> Iterator[str]:
    """Serve the metrics of a store on loopback while the context is open.

    Args:
        store: The store.
        port: The port; 0 for any free one.
        deployment_ids: The deployments whose flow runs are counted; more may be appended later.

    Yields:
        The address of the metrics.

    Raises:
        UsageError: The port cannot be used.
    """
    from prometheus_client import CollectorRegistry, start_http_server

    metrics = StoreMetrics(store, lambda: count_flow_runs(deployment_ids))
    registry = CollectorRegistry()
    registry.register(metrics)
    try:
        server, server_thread = start_http_server(port, HOST, registry)
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"--metrics-port {port}: the port cannot be used ({error}); choose another one"
        ) from error
    is_closed = threading.Event()

    def read_repeatedly() -> None:
        has_failed = False
        while True:
            try:
                metrics.read()
                has_failed = False
            except Exception as error:
                if not has_failed:
                    log.warning(
                        "the metrics cannot be read: %s: %s; trying again every %g seconds",
                        type(error).__name__,
                        str(error).split("\n")[0],
                        READ_INTERVAL_SECONDS,
                    )
                has_failed = True
            if is_closed.wait(READ_INTERVAL_SECONDS):
                return

    reader = threading.Thread(target=read_repeatedly, name="metrics", daemon=True)
    reader.start()
    try:
        yield f"http://{HOST}:{server.server_port}/metrics"
    finally:
        is_closed.set()
        server.shutdown()
        server.server_close()
        server_thread.join()


def count_flow_runs(deployment_ids: Sequence[UUID]) -> dict[str, int] | None:
    """Count the flow runs of deployments that wait and that run; None if the server is away."""
    import httpx
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import (
        DeploymentFilter,
        DeploymentFilterId,
        FlowRunFilter,
        FlowRunFilterExpectedStartTime,
        FlowRunFilterState,
        FlowRunFilterStateType,
    )
    from prefect.client.schemas.objects import StateType
    from prefect.types._datetime import now

    if not deployment_ids:
        return None
    deployments = DeploymentFilter(id=DeploymentFilterId(any_=[*deployment_ids]))
    counts: dict[str, int] = {}
    try:
        with get_client(sync_client=True) as client:
            for state in (StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING):
                flow_run_filter = FlowRunFilter(
                    state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[state])),
                    # Runs that are scheduled for later do not wait yet.
                    expected_start_time=FlowRunFilterExpectedStartTime(before_=now("UTC")),
                )
                counts[state.value.lower()] = client.count_flow_runs(
                    flow_run_filter=flow_run_filter, deployment_filter=deployments
                )
    except httpx.HTTPError:
        return None
    return counts
