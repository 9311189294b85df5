"""Deployments on a Prefect server."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from hallmark.flows.commands.options import OverridesOption, StoreOption
from hallmark.flows.deployments import serve_deployments


def serve(
    config: str = "demo",
    *,
    overrides: OverridesOption = None,
    store: StoreOption = None,
    root: Annotated[list[str] | None, Parameter(name="--root", negative="")] = None,
) -> None:
    """Register the pipeline (on the config's schedule) and the audit with a Prefect server.

    Runs read and write inside the roots only: the store, the folder of a config's .toml file, and
    those that --root names.

    Parameters
    ----------
    config
        The config that the pipeline's deployment runs.
    root
        A folder, or the beginning of a URI such as s3://bucket/folder, that runs may read and
        write, too. May be given several times.
    """
    serve_deployments(config, overrides or [], store, root or [])
