"""Report trainings and key figures to MLflow: to a folder or a tracking server."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hallmark.flows.reporter_settings import MLflowConfig
from hallmark.flows.reporters.tracked_figures import (
    collect_key_figures,
    collect_stage_figures,
    collect_step_figures,
    collect_tags,
    collect_training_settings,
    find_verdict,
)
from hallmark.tasks.contract import Event

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

    from hallmark.flows.runs import Run

#: MLflow's status of a run by Hallmark's.
STATUS_NAMES = {"completed": "FINISHED", "cancelled": "KILLED", "interrupted": "KILLED"}

#: Number of settings that MLflow accepts at once.
MAX_SETTINGS = 100


class MLflowReporter:
    """Create a run in MLflow and log the figures of its stages."""

    def __init__(self, settings: MLflowConfig, run: Run) -> None:
        self.settings, self.run = settings, run
        self.client: MlflowClient | None = None
        self.run_id = ""

    def __call__(self, event: Event) -> None:
        match event.kind:
            case "run_started":
                self._create_run()
            case "figures":
                self._log_figures(collect_step_figures(event), event.completed)
            case "done":
                self._log_figures(collect_stage_figures(event), 0)
            case "run_ended" if self.client is not None:
                self._log_figures(collect_key_figures(self.run), 0)
                if verdict := find_verdict(self.run):
                    self.client.set_tag(self.run_id, "hallmark.verdict", verdict)
                self.client.set_terminated(
                    self.run_id, STATUS_NAMES.get(event.description, "FAILED")
                )

    def _create_run(self) -> None:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        client = MlflowClient(to_tracking_uri(self.settings.uri or ""))
        experiment = client.get_experiment_by_name(self.settings.experiment)
        experiment_id = (
            client.create_experiment(self.settings.experiment)
            if experiment is None
            else experiment.experiment_id
        )
        created = client.create_run(
            experiment_id, tags=collect_tags(self.run), run_name=self.run.id
        )
        self.client, self.run_id = client, created.info.run_id
        params = [
            Param(name, str(value)) for name, value in collect_training_settings(self.run).items()
        ]
        for start in range(0, len(params), MAX_SETTINGS):
            client.log_batch(self.run_id, params=params[start : start + MAX_SETTINGS])

    def _log_figures(self, figures: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in figures.items()]
        if self.client is not None and metrics:
            self.client.log_batch(self.run_id, metrics=metrics)


def to_tracking_uri(uri: str) -> str:
    """Return the URI of a server as it is, and that of a folder with permission to use it.

    MLflow refuses folders since version 3.17 without an environment variable.
    """
    if uri.startswith(("http://", "https://")):
        return uri
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return Path(uri.removeprefix("file://")).expanduser().absolute().as_uri()
