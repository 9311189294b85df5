"""Let Prefect's server mark runs of served deployments as crashed when their process is dead.

A process that was killed, or whose host is gone, cannot report its end. Prefect sends a heartbeat
event from each process of a flow run. An automation on the server notices when it stops.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from prefect.automations import Automation, EventTrigger, Posture, ResourceSpecification
from prefect.client.schemas.objects import StateType
from prefect.events import emit_event
from prefect.events.actions import ChangeFlowRunState
from prefect.runtime import flow_run

#: Seconds between two heartbeats of a flow run, the smallest value that Prefect allows.
HEARTBEAT_SECONDS = 30

#: Seconds without a heartbeat after which a run counts as dead.
SILENCE_SECONDS = 3 * HEARTBEAT_SECONDS

#: The event of a process that ends because its run was suspended; no heartbeat follows it.
SUSPENDED_EVENT = "hallmark.run.suspended"

#: Names of states without heartbeats.
SILENT_STATES = ("Completed", "Failed", "Cancelled", "Crashed", "AwaitingRetry", "Resuming")


def emit_suspended_event() -> None:
    """Tell the automation that the process of the present flow run ends on purpose."""
    emit_event(SUSPENDED_EVENT, resource={"prefect.resource.id": f"prefect.flow-run.{flow_run.id}"})


async def create_dead_run_automation(config_name: str, deployment_ids: Sequence[UUID]) -> None:
    """Create the automation for the deployments of a config, or replace it by its present version.

    Args:
        config_name: The config, a part of the name of the automation.
        deployment_ids: The deployments whose runs it watches.
    """
    automation = Automation(
        name=f"hallmark {config_name}: mark dead runs as crashed",
        description="Created by hallmark serve. Marks a run as Crashed if its process sends no "
        f"heartbeat for {SILENCE_SECONDS} s.",
        trigger=EventTrigger(
            posture=Posture.Proactive,
            after={"prefect.flow-run.heartbeat"},
            expect={
                "prefect.flow-run.heartbeat",
                SUSPENDED_EVENT,
                *(f"prefect.flow-run.{state}" for state in SILENT_STATES),
            },
            match=ResourceSpecification({"prefect.resource.id": ["prefect.flow-run.*"]}),
            match_related=ResourceSpecification(
                {
                    "prefect.resource.role": "deployment",
                    "prefect.resource.id": [f"prefect.deployment.{one}" for one in deployment_ids],
                }
            ),
            for_each={"prefect.resource.id"},
            threshold=1,
            within=timedelta(seconds=SILENCE_SECONDS),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                name="Crashed",
                message=f"The process of this run sent no heartbeat for {SILENCE_SECONDS} s; it "
                "was killed, or its host is gone. Run again to continue from the last commit.",
            )
        ],
    )
    try:
        existing = await Automation.aread(name=automation.name)
    except ValueError:  # there is none with this name
        await automation.acreate()
        return
    automation.id = existing.id
    await automation.aupdate()
