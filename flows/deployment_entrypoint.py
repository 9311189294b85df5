"""Entry point of a served deployment, which Prefect imports in a new process for each request.

Each run prints a line when it starts and when it ends, in the terminal of ``hallmark serve``.

Prefect's engine crashes without a reason if a request has a parameter that the flow does not have.
Importing this module checks the parameters first, so that a refused run fails with a sentence.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any
from uuid import UUID

from prefect import Flow, State
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import Abort
from prefect.states import Failed

from hallmark.flows.commands.runs import build_run_row, format_outcome, format_start_and_duration
from hallmark.flows.json_logging import (
    JsonEventLog,
    install_json_log,
    is_json_log,
    log_run_end,
    log_run_start,
)
from hallmark.flows.pipeline import audit, pipeline
from hallmark.flows.prefect_logging import print_prefect_warnings_as_lines
from hallmark.flows.run_recording import frontend
from hallmark.flows.run_request import RunRequest
from hallmark.flows.runs import Run
from hallmark.reports.page.redaction import escape_invisible
from hallmark.tasks.contract import UsageError

__all__ = ["audit", "pipeline"]

FLOWS_BY_NAME = {flow.name: flow for flow in (pipeline, audit)}


def print_run_start(run: Run) -> None:
    _print_line(f"run {run.id} ({run.flow} {run.record['config_name']}) started")


def print_run_end(flow: Flow[Any, Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Print how a run ended: its outcome, duration and page; Prefect calls this."""
    run = next(iter(frontend.runs_by_id.values()), None)  # the only run of this process
    if run is None:  # its arguments were refused, or its process was killed
        _print_line(
            f"run {flow_run.name} ({flow.name}) {state.type.value.lower()}: {state.message}"
        )
        return
    row = build_run_row(run)
    page = ""
    if run.page:
        page = f": {run.page}"
    _print_line(
        f"run {run.id} ({run.flow} {run.record['config_name']}) {format_outcome(row)}, "
        f"{format_start_and_duration(row)[1]}{page}"
    )


def _print_line(text: str) -> None:
    if is_json_log():
        install_json_log().write("INFO", text)
        return
    with suppress(OSError):  # a closed terminal must not fail the run
        print(escape_invisible(text), flush=True)


print_prefect_warnings_as_lines(with_hallmark=True)
frontend.on_run_start = print_run_start
if is_json_log():
    frontend.on_event = JsonEventLog(install_json_log())
    frontend.on_run_start, frontend.on_run_end = log_run_start, log_run_end
for served_flow in FLOWS_BY_NAME.values():
    for register_hook in (
        served_flow.on_completion,
        served_flow.on_failure,
        served_flow.on_crashed,
    ):
        register_hook(print_run_end)


def check_flow_run_request(flow_run_id: UUID) -> None:
    """Set a flow run to failed, with the reason as its message, if its parameters are wrong.

    Raises:
        Abort: If they are wrong; Prefect's engine then ends without another error.
    """
    with get_client(sync_client=True) as client:
        flow_run = client.read_flow_run(flow_run_id)
        flow_name = client.read_flow(flow_run.flow_id).name
        try:
            RunRequest.parse(flow_name, flow_run.parameters)
        except UsageError as error:
            _print_line(f"run {flow_run.name} ({flow_name}) was refused: {error}")
            client.set_flow_run_state(flow_run.id, Failed(message=str(error)), force=True)
            raise Abort(str(error)) from error


if flow_run_id := os.environ.get("PREFECT__FLOW_RUN_ID"):
    check_flow_run_request(UUID(flow_run_id))
