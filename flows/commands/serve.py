"""Serve the pipeline and the audit as deployments of a Prefect server."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter, validators

from hallmark.flows.checkpoint_watch import POLL_SECONDS
from hallmark.flows.commands.options import OnlyOption, OverridesOption, StoreOption, WholeNumber
from hallmark.flows.deployments import serve_deployments
from hallmark.tasks.contract import UsageError


def serve(
    config: str = "demo",
    *,
    overrides: OverridesOption = None,
    store: StoreOption = None,
    allowed_root: Annotated[list[str] | None, Parameter(negative="")] = None,
    audit_checkpoints: Annotated[bool, Parameter(negative="")] = False,
    watch: Annotated[list[str] | None, Parameter(negative="")] = None,
    poll_seconds: float | None = None,
    only: OnlyOption = None,
    metrics_port: Annotated[
        WholeNumber | None, Parameter(validator=validators.Number(gte=0, lte=65_535))
    ] = None,
    concurrent_runs: WholeNumber | None = None,
) -> None:
    """Register the pipeline (with the schedule from the config) and the audit as deployments on a
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
        Also register a deployment that audits each checkpoint when a training run commits it to
        the store.
    watch
        A folder, or a URI such as s3://bucket/folder, to which other trainers write checkpoints.
        Each version of a checkpoint is audited once, when all its files are complete. Can be
        repeated. The folder must be inside the allowed roots.
    poll_seconds
        Seconds between two looks at the folders of --watch; 2 by default.
    only
        The audits of --audit-checkpoints and --watch; by default all. Separate the names with
        commas, or repeat the option.
    metrics_port
        Serve metrics of the store's runs for Prometheus at http://127.0.0.1:PORT/metrics; 0 chooses
        a free port.
    concurrent_runs
        How many flow runs may use the store at the same time; further ones wait before their first
        stage. The limit remains when the command ends.
    """
    from hallmark.flows.audit_selection import parse_audit_names, select_audits

    audit_names = parse_audit_names(only)
    if audit_names and not audit_checkpoints and not watch:
        raise UsageError("--only requires --audit-checkpoints or --watch; add one of these options")
    selected_audits = select_audits(audit_names)
    if poll_seconds is not None and not watch:
        raise UsageError("--poll-seconds sets the polling interval for --watch; add --watch FOLDER")
    if poll_seconds is None:
        poll_seconds = POLL_SECONDS
    if not 0.5 <= poll_seconds <= 3600:
        raise UsageError(f"--poll-seconds is {poll_seconds:g}; it must be between 0.5 and 3,600")
    if concurrent_runs is not None and concurrent_runs < 1:
        raise UsageError(f"--concurrent-runs is {concurrent_runs}; it must be at least 1")
    serve_deployments(
        config,
        overrides or [],
        store,
        allowed_root or [],
        checkpoint_audits=selected_audits if audit_checkpoints else (),
        watched=watch or [],
        watched_audits=selected_audits,
        poll_seconds=poll_seconds,
        metrics_port=metrics_port,
        concurrent_runs=concurrent_runs,
    )
