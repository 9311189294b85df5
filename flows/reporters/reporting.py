"""Open the reporters that a config names, and pass them the events of a run.

A reporter is called in a thread of its own. One that fails causes one warning; one that hangs loses
events at the end of the run. Neither delays a stage.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hallmark.flows.reporter_settings import ReporterName, ReportersConfig
from hallmark.tasks.contract import BackgroundListener, Event, UsageError

if TYPE_CHECKING:
    from hallmark.flows.runs import Run

log = logging.getLogger("hallmark")

#: Receives the events of a run and of its stages; ``run_started`` is the first and ``run_ended``
#: the last.
Reporter = Callable[[Event], None]

#: Seconds that all reporters together get at the end of a run for pending events.
DRAIN_SECONDS = 5.0

#: Seconds without an event after which reporters receive an event of kind ``silence``.
IDLE_SECONDS = 15.0


class ReporterKind(NamedTuple):
    """What a user must know about a reporter."""

    title: str
    """Name of the system, for messages."""
    library: str
    """Module that must be importable."""


REPORTER_KINDS: dict[ReporterName, ReporterKind] = {
    "tensorboard": ReporterKind("TensorBoard", "tensorboard.summary.writer.event_file_writer"),
    "mlflow": ReporterKind("MLflow", "mlflow"),
    "wandb": ReporterKind("Weights & Biases", "wandb"),
    "prometheus": ReporterKind("Prometheus", "prometheus_client"),
    "openlineage": ReporterKind("OpenLineage", "openlineage.client"),
}


def check_reporters_installed(names: Sequence[ReporterName], needed_by: str = "report_to") -> None:
    """Check that the libraries of reporters can be imported.

    Args:
        names: The reporters.
        needed_by: The setting or option that needs them, for the error.

    Raises:
        UsageError: If a library is missing.
    """
    for name in names:
        title, library = REPORTER_KINDS[name]
        try:
            importlib.import_module(library)
        except ImportError as error:
            raise UsageError(
                f"{needed_by} needs the {title} library, which cannot be imported ({error}); "
                f"install it with pip install -c constraints.txt -e '.[{name}]', or do not use "
                f"{needed_by} for {title}"
            ) from error


def create_reporter(name: ReporterName, settings: ReportersConfig, run: Run) -> Reporter:
    """Create a reporter, which writes nothing before its first event."""
    match name:
        case "tensorboard":
            from hallmark.flows.reporters.tensorboard_reporter import TensorBoardReporter

            assert settings.tensorboard.folder is not None
            return TensorBoardReporter(Path(settings.tensorboard.folder).expanduser() / run.id)
        case "openlineage":
            from hallmark.flows.reporters.openlineage_reporter import OpenLineageReporter

            return OpenLineageReporter(settings.openlineage, run)
        case "prometheus":
            from hallmark.flows.reporters.prometheus_reporter import PrometheusReporter

            assert settings.prometheus.folder is not None
            return PrometheusReporter(Path(settings.prometheus.folder).expanduser(), run)
        case "mlflow":
            from hallmark.flows.reporters.mlflow_reporter import MLflowReporter

            return MLflowReporter(settings.mlflow, run)
        case "wandb":
            from hallmark.flows.reporters.wandb_reporter import WandbReporter

            return WandbReporter(settings.wandb, run)


@contextmanager
def open_reporters(
    names: Sequence[ReporterName], settings: ReportersConfig | None, run: Run
) -> Iterator[Callable[[Event], None]]:
    """Start the reporters of a run, and stop them when the context ends.

    Args:
        names: The systems, as in the ``report_to`` setting.
        settings: Where they receive reports; None if there are no names.
        run: The run.

    Yields:
        A function that passes an event to all of them and returns at once.
    """
    listeners = [
        BackgroundListener(
            create_reporter(name, settings, run), REPORTER_KINDS[name].title, 0.0, IDLE_SECONDS
        )
        for name in names
        if settings is not None
    ]

    def pass_event(event: Event) -> None:
        for listener in listeners:
            listener(event)

    for listener in listeners:
        listener.thread.start()
    try:
        pass_event(Event("run_started", ""))
        yield pass_event
    finally:
        pass_event(Event("run_ended", "", description=run.record["status"]))
        deadline = time.monotonic() + DRAIN_SECONDS
        for listener in listeners:
            if not listener.close(max(0.0, deadline - time.monotonic())):
                log.warning(
                    "%s did not accept all events within %g seconds after the end of the run; the "
                    "remaining events are lost",
                    listener.listener_name,
                    DRAIN_SECONDS,
                )
