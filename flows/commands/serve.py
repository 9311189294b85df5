"""Serve the pipeline and the audit as deployments of a Prefect server."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from hallmark.flows.commands.options import OnlyOption, OverridesOption, StoreOption
from hallmark.flows.deployments import serve_deployments
from hallmark.tasks.contract import UsageError


def serve(
    config: str = "demo",
    *,
    overrides: OverridesOption = None,
    store: StoreOption = None,
    allowed_root: Annotated[list[str] | None, Parameter(negative="")] = None,
    audit_checkpoints: Annotated[bool, Parameter(negative="")] = False,
    only: OnlyOption = None,
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
    audit_checkpoints
        Also register a deployment that audits each checkpoint when a training commits it to the
        store.
    only
        The audits of --audit-checkpoints; by default all. Separate the names with commas, or repeat
        the option.
    """
    from hallmark.flows.audit_selection import parse_audit_names, select_audits

    audit_names = parse_audit_names(only)
    if audit_names and not audit_checkpoints:
        raise UsageError("--only names the audits of --audit-checkpoints; add this option")
    checkpoint_audits = select_audits(audit_names) if audit_checkpoints else ()
    serve_deployments(config, overrides or [], store, allowed_root or [], checkpoint_audits)
