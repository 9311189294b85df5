"""Report trainings and key figures to Weights & Biases, by default to a folder only.

The library's collection of code, git state, console output and installed packages is off.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hallmark.flows.reporter_settings import WandbConfig
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
    from hallmark.flows.runs import Run

#: Seconds after which a start without an answer of the server fails.
START_TIMEOUT_SECONDS = 30.0

#: Seconds for what was not sent yet at the end of a run; it stays in the folder.
END_TIMEOUT_SECONDS = 5.0


class WandbReporter:
    """Create a run in Weights & Biases and log the figures of its stages."""

    def __init__(self, settings: WandbConfig, run: Run) -> None:
        self.settings, self.run = settings, run
        self.wandb_run: Any = None

    def __call__(self, event: Event) -> None:
        if event.kind == "run_started":
            self.wandb_run = self._create_run()
        elif self.wandb_run is None:  # its creation failed
            return
        elif event.kind == "figures":
            step_name = f"{event.label}/step"
            self.wandb_run.define_metric(f"{event.label}/*", step_metric=step_name)
            self.wandb_run.log({**collect_step_figures(event), step_name: event.completed})
        elif event.kind == "done":
            self.wandb_run.summary.update(collect_stage_figures(event))
        elif event.kind == "run_ended":
            self.wandb_run.summary.update(collect_key_figures(self.run))
            if verdict := find_verdict(self.run):
                self.wandb_run.summary["hallmark.verdict"] = verdict
            self.wandb_run.finish(exit_code=0 if event.description == "completed" else 1)

    def _create_run(self) -> Any:
        import wandb

        folder = Path(self.settings.folder or "").expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        return wandb.init(
            project=self.settings.project,
            name=self.run.id,
            dir=str(folder),
            config=collect_tags(self.run) | collect_training_settings(self.run),
            settings=wandb.Settings(
                mode=self.settings.mode,
                reinit="create_new",  # a process may execute several runs
                console="off",
                silent=True,
                save_code=False,
                disable_code=True,
                disable_git=True,
                disable_job_creation=True,
                init_timeout=START_TIMEOUT_SECONDS,
                finish_timeout=END_TIMEOUT_SECONDS,
                x_disable_meta=True,
                x_disable_stats=True,
                x_save_requirements=False,
            ),
        )
