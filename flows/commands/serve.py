"""Serve the pipeline and the audit as deployments of a Prefect server."""

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
    allowed_root: Annotated[list[str] | None, Parameter(negative="")] = None,
) -> None:
    """Register the pipeline (with the schedule of the config) and the audit as deployments on a
    Prefect server.

    Runs read and write only inside the allowed roots: the store, the folder of the config's .toml
    file, and the locations that --allowed-root names.

    Parameters
    ----------
    config
        The config that the deployment of the pipeline runs.
    allowed_root
        A folder, or the beginning of a URI such as s3://bucket/folder, that runs may also read and
        write; can be repeated.
    """
    serve_deployments(config, overrides or [], store, allowed_root or [])
