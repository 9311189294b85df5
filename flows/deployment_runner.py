"""Start, cancel and stop the flow runs of served deployments, also while Prefect's server is away.

Prefect's runner does so only while its server answers. Three of its parts are replaced here. Its
handler of SIGTERM exits before the runs are cancelled. Its search for scheduled runs stops at the
third error of a connection, which also ends all runs. Its search for cancelled runs stops as well.

Prefect's runner also starts one run for each time of a schedule that was missed. Here the newest
one runs, and the others are cancelled.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio
import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterNextScheduledStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.context import refresh_global_settings_context
from prefect.exceptions import PrefectException
from prefect.runner import Runner
from prefect.states import Cancelled

from hallmark.flows.dead_run_automation import HEARTBEAT_SECONDS, create_dead_run_automation

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.schemas.objects import FlowRun
    from prefect.deployments.runner import RunnerDeployment

log = logging.getLogger("hallmark")

#: Number of flow runs that one search for requested cancellations reads.
CANCELLATION_LIMIT = 100

#: Number of overdue runs that one search reads; Prefect's server allows no more.
OVERDUE_LIMIT = 200

#: The states that a run reports when it ends. *Crashed* is none of them: an automation also sets it
#: for a run that is alive, but has sent no heartbeat.
ENDED_STATES = frozenset({StateType.COMPLETED, StateType.FAILED, StateType.CANCELLED})

#: Seconds within which all runs must be cancelled when the runner stops; then they are killed.
STOP_TIMEOUT = 60.0


def repeat_failed_requests() -> None:
    """Make Prefect in this process and its flow runs repeat requests that a server fails to answer.

    A Prefect server with an SQLite database responds with 500 when many requests wait for the
    database. Without another attempt, Prefect reports the flow run as crashed.
    """
    os.environ.setdefault("PREFECT_CLIENT_RETRY_EXTRA_CODES", "500")
    refresh_global_settings_context()


class DeploymentRunner(Runner):  # type: ignore[misc]  # mypy skips prefect.runner
    """Prefect's runner, but it outlives an absent server and ends every run when it stops.

    Prefect has no settings for this, so the class uses private members of Prefect 3.8's runner.

    Attributes:
        deployment_ids: The registered deployments.
        is_server_away: Whether Prefect's server did not answer the last time.
    """

    def __init__(self) -> None:
        super().__init__(pause_on_shutdown=False, heartbeat_seconds=HEARTBEAT_SECONDS)
        self.deployment_ids: list[UUID] = []
        self.is_server_away = False

    async def serve(self, config_name: str, deployments: Sequence[RunnerDeployment]) -> None:
        """Register deployments and execute their runs until SIGTERM or SIGINT.

        At the end, all flow runs are cancelled and their processes have ended.

        Args:
            config_name: The config of the deployments.
            deployments: The deployments.
        """
        for deployment in deployments:
            self.deployment_ids.append(await self.aadd_deployment(deployment))
        await create_dead_run_automation(config_name, self.deployment_ids)
        repeat_failed_requests()
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with self:
                async with anyio.create_task_group() as loops:
                    loops.start_soon(self._repeat, self._start_scheduled_runs)
                    loops.start_soon(self._repeat, self._cancel_requested_runs)
                    name = signal.Signals(await anext(signals)).name
                    self.stopping = True
                    loops.cancel_scope.cancel()
                print(f"{name}: stopping; all runs are cancelled", flush=True)
                await self._cancel_all_runs()

    async def _cancel_all_runs(self) -> None:
        """Cancel all runs, also those whose processes are just starting, and wait for their end.

        If the runs have not ended after ``STOP_TIMEOUT``, or if the server does not answer, their
        processes are killed.
        """
        with anyio.move_on_after(0 if self.is_server_away else STOP_TIMEOUT):
            while self._scheduled_run_poller._submitting_flow_run_ids:
                await self._cancel_unfinished_runs()
                await anyio.sleep(0.2)
        self._runs_task_group.cancel_scope.cancel()

    async def _cancel_unfinished_runs(self) -> None:
        """Cancel the runs that have not reported a final state.

        The process of a run ends a moment after that. Prefect's runner would replace the state by
        *Cancelled*, and nobody would learn that the policy failed.
        """
        for flow_run_id in self._process_manager.flow_run_ids():
            try:
                flow_run = await self._client.read_flow_run(flow_run_id)
                if flow_run.state is None or flow_run.state.type not in ENDED_STATES:
                    await self._cancellation_manager.cancel(flow_run, "Runner is shutting down.")
            except (httpx.HTTPError, PrefectException) as error:  # also if somebody deleted it
                log.debug("flow run %s is not cancelled: %s", flow_run_id, _get_first_line(error))

    async def _start_scheduled_runs(self) -> None:
        for deployment_id in self.deployment_ids:
            await self._cancel_missed_runs(deployment_id)
        await self._get_and_submit_flow_runs()

    async def _cancel_missed_runs(self, deployment_id: UUID) -> None:
        """Cancel the overdue scheduled runs of a deployment except the newest.

        There are several only if nobody could start them: this runner, its host or the server was
        down. Runs that somebody requested are no scheduled runs.
        """
        newest: FlowRun | None = None
        missed_count = 0
        while True:
            overdue = await self._client.read_flow_runs(
                flow_run_filter=FlowRunFilter(
                    deployment_id=FlowRunFilterDeploymentId(any_=[deployment_id]),
                    state=FlowRunFilterState(
                        type=FlowRunFilterStateType(any_=[StateType.SCHEDULED])
                    ),
                    next_scheduled_start_time=FlowRunFilterNextScheduledStartTime(
                        before_=datetime.now(UTC)
                    ),
                ),
                sort=FlowRunSort.EXPECTED_START_TIME_DESC,
                limit=OVERDUE_LIMIT,
            )
            scheduled = [
                flow_run
                for flow_run in overdue
                if flow_run.auto_scheduled
                and flow_run.run_count == 0
                and flow_run.id not in self._scheduled_run_poller._submitting_flow_run_ids
            ]
            if newest is None and scheduled:
                newest = scheduled[0]
            missed = [flow_run for flow_run in scheduled if newest and flow_run.id != newest.id]
            if newest is None or not missed:
                break
            for flow_run in missed:
                message = (
                    f"The scheduled time of this run was missed; run {newest.name} starts instead."
                )
                await self._client.set_flow_run_state(flow_run.id, Cancelled(message=message))
            missed_count += len(missed)
        if newest is not None and missed_count:
            log.warning(
                "%d scheduled runs were missed while no process could start them; they are "
                "cancelled, and the newest run, %s, starts now",
                missed_count,
                newest.name,
            )

    async def _cancel_requested_runs(self) -> None:
        """Cancel the runs of this runner whose cancellation was requested.

        The websocket that tells Prefect's runner about them may have been lost.
        """
        flow_runs = await self._client.read_flow_runs(
            deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=self.deployment_ids)),
            flow_run_filter=FlowRunFilter(
                state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.CANCELLING]))
            ),
            sort=FlowRunSort.EXPECTED_START_TIME_DESC,
            limit=CANCELLATION_LIMIT,
        )
        for flow_run in flow_runs:  # runs of other runners are ignored
            self._runs_task_group.start_soon(self._cancel_run, flow_run)

    async def _repeat(self, request: Callable[[], Awaitable[object]]) -> None:
        """Repeat a request for ever while the server answers."""
        while True:
            try:
                await self._check_server_answers()
                if not self.is_server_away:
                    await request()
            except httpx.HTTPError as error:
                log.warning("the Prefect server refused a request: %s", _get_first_line(error))
            await anyio.sleep(self.query_seconds)

    async def _check_server_answers(self) -> None:
        """Set ``is_server_away``, and log a warning when it changes."""
        async with get_client() as client:  # a client that never had a connection does not retry
            error = await client.api_healthcheck()
        if error and not self.is_server_away:
            log.warning(
                "the Prefect server at %s does not respond (%s); runs continue, and new runs start "
                "when it responds again",
                client.api_url,
                _get_first_line(error),
            )
        elif self.is_server_away and not error:
            log.warning("the Prefect server at %s responds again", client.api_url)
        self.is_server_away = error is not None


def _get_first_line(error: Exception) -> str:
    return str(error).split("\n")[0] or type(error).__name__
