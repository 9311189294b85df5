"""Deployments on a Prefect server."""

from __future__ import annotations

from flows.commands.shared import Set
from flows.deployments import serve_deployments


def serve(config: str = "demo", *, set_: Set = None) -> None:
    """Register the pipeline (on the config's schedule) and the audit with a Prefect server.

    Parameters
    ----------
    config
        The config that the pipeline's deployment runs.
    """
    serve_deployments(config, set_ or [])
