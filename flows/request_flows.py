"""Make Prefect flows whose parameters are the fields of a request, and run requests with them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from prefect import Flow, flow
from pydantic_core import PydanticUndefined

from hallmark.flows.run_recording import generate_flow_run_name
from hallmark.flows.run_request import RunRequest, build_flow_signature


def request_flow(execute: Callable[[RunRequest], str]) -> Flow[..., str]:
    """Make a Prefect flow of a function that executes a request and returns the id of the run.

    The flow has the name of the function. Its parameters are the fields of the request that
    ``FIELDS_BY_FLOW`` lists, so Prefect's form and its server know their types, values and help.
    """
    name = execute.__name__

    @wraps(execute)
    def execute_parameters(**parameters: Any) -> str:
        given_parameters = {
            key: value for key, value in parameters.items() if value is not PydanticUndefined
        }
        return execute(RunRequest.parse(name, given_parameters))

    execute_parameters.__signature__ = build_flow_signature(name)  # type: ignore[attr-defined]
    request_flow: Flow[..., str] = flow(name=name, flow_run_name=generate_flow_run_name)(
        execute_parameters
    )
    return request_flow
