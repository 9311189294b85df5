"""Entry point of a served deployment, which Prefect imports in a new process for each request.

Prefect's engine crashes without a reason if a request has a parameter that the flow does not have.
Importing this module checks the parameters first, so that a refused run fails with a sentence.
"""

from __future__ import annotations

import os
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.exceptions import Abort
from prefect.states import Failed

from hallmark.flows.deployment_checks import check_request_parameters
from hallmark.flows.pipeline import audit, pipeline
from hallmark.tasks.contract import UsageError

__all__ = ["audit", "pipeline"]

FLOWS_BY_NAME = {flow.name: flow for flow in (pipeline, audit)}


def check_flow_run_request(flow_run_id: UUID) -> None:
    """Set a flow run to failed, with the reason as its message, if its parameters are wrong.

    Raises:
        Abort: If they are wrong; Prefect's engine then ends without another error.
    """
    with get_client(sync_client=True) as client:
        flow_run = client.read_flow_run(flow_run_id)
        flow_name = client.read_flow(flow_run.flow_id).name
        try:
            check_request_parameters(flow_name, FLOWS_BY_NAME[flow_name].fn, flow_run.parameters)
        except UsageError as error:
            client.set_flow_run_state(flow_run.id, Failed(message=str(error)), force=True)
            raise Abort(str(error)) from error


if flow_run_id := os.environ.get("PREFECT__FLOW_RUN_ID"):
    check_flow_run_request(UUID(flow_run_id))
