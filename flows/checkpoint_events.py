"""Announce the checkpoints of a running training in Prefect, so that automations can audit them.

The event is emitted when a checkpoint has been committed and recorded in run.json. From then on it
can be named by its step, also in another process or on another host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect.events import emit_event

from hallmark.flows.runs import Run

if TYPE_CHECKING:
    from hallmark.tasks.contract import Event

#: The event that a training emits for each checkpoint that it commits.
CHECKPOINT_COMMITTED_EVENT = "hallmark.checkpoint.committed"

#: Labels of the event's resource: the id of the store, whose path may differ between hosts, and the
#: stage that trains the model.
STORE_ID_LABEL, STAGE_LABEL = "hallmark.store-id", "hallmark.stage"


class CheckpointAnnouncer:
    """Emit an event for each new checkpoint of a run; call it through a ``BackgroundListener``.

    A training that is resumed commits its earlier checkpoints again; they are not announced again.
    The models of arms of experiments and of trials of studies are not announced.
    """

    def __init__(self, run: Run) -> None:
        self.run = run

    def __call__(self, event: Event) -> None:
        if event.kind != "child" or event.was_stored or not self.run.may_be_latest:
            return
        checkpoint, run = event.artifact, self.run
        assert checkpoint is not None
        step = checkpoint.training_step
        emit_event(
            CHECKPOINT_COMMITTED_EVENT,
            resource={
                "prefect.resource.id": f"hallmark.{checkpoint.name.replace('/', '.')}",
                "prefect.resource.name": f"{run.id}@{step}",
                "hallmark.run": run.id,
                "hallmark.config": run.record["config_name"],
                STAGE_LABEL: event.label,
                STORE_ID_LABEL: run.store.compute_secret_id(),
            },
            payload={
                "run": run.id,
                "step": step,
                "artifact": checkpoint.name,
                "store": run.store.uri,
            },
        )
