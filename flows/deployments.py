"""Serve the pipeline and the audit as deployments that a Prefect server schedules and starts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from hallmark.flows.checkpoint_watch import (
    POLL_SECONDS,
    AuditRequester,
    CheckpointWatcher,
    resolve_watched_locations,
    watch_checkpoints,
)
from hallmark.flows.config import load_config
from hallmark.flows.credentials import export_credentials, list_environment_variables
from hallmark.flows.deployment_checks import check_settings_allowed
from hallmark.flows.prefect_server import START_SERVER_HINT, is_prefect_server_reachable
from hallmark.flows.reporters.reporting import check_reporters_installed
from hallmark.flows.run_request import RunRequest
from hallmark.flows.runs import open_store, resolve_store_uri
from hallmark.flows.store_concurrency import get_limit_name, set_concurrency_limit
from hallmark.tasks.contract import (
    AllowedRoots,
    HallmarkError,
    Store,
    UsageError,
    check_external_path,
)

#: The function that Prefect calls for a run of each deployment.
ENTRYPOINT_TEMPLATE = "hallmark.flows.deployment_entrypoint.{}"


def serve_deployments(
    config: str,
    overrides: Sequence[str],
    store: str | None = None,
    roots: Sequence[str] = (),
    *,
    checkpoint_audits: Sequence[str] = (),
    watched: Sequence[str] = (),
    watched_audits: Sequence[str] = (),
    poll_seconds: float = POLL_SECONDS,
    metrics_port: int | None = None,
    concurrent_runs: int | None = None,
) -> None:
    """Register the deployments and execute their runs until SIGTERM or SIGINT.

    Args:
        config: The config that the deployment of the pipeline runs.
        overrides: Overrides of the config.
        store: The store; None for that of the config.
        roots: Folders and URIs that runs may read and write, in addition to the folder of the
            config and the store.
        checkpoint_audits: The audits of each checkpoint that a training of this store commits; the
            deployment for them is registered only if there are any.
        watched: Folders and URIs to which other trainers write checkpoints; each is audited when it
            is complete.
        watched_audits: The audits of these checkpoints.
        poll_seconds: Seconds between two looks at the watched places.
        metrics_port: Port on loopback at which Prometheus can read metrics; 0 for any free one,
            None for no metrics.
        concurrent_runs: How many flow runs may use the store at the same time; None to leave the
            limit as it is.

    Raises:
        HallmarkError: If no Prefect server is set or it does not answer. A temporary server is not
            enough, because it has no scheduler.
        UsageError: If the config names a path outside the roots, or if a watched folder is missing
            or outside the roots.
    """
    if metrics_port is not None:
        check_reporters_installed(["prometheus"], "--metrics-port")
    settings = load_config(config, overrides)
    store = resolve_store_uri(store) if store else None
    allowed_roots = replace(
        collect_allowed_roots(config, resolve_store_uri(store or settings.store), roots),
        environment_variables=list_environment_variables(settings.credentials),
    )
    from prefect.settings import PREFECT_API_URL

    server_url = PREFECT_API_URL.value()
    if not server_url:
        raise HallmarkError(
            f"serve requires a Prefect server, but PREFECT_API_URL is not set; {START_SERVER_HINT}"
        )
    if not is_prefect_server_reachable(server_url):
        raise HallmarkError(f"no Prefect server responds at {server_url}; {START_SERVER_HINT}")

    from prefect.types.entrypoint import EntrypointType

    from hallmark.flows.deployment_runner import DeploymentRunner
    from hallmark.flows.pipeline import audit, pipeline
    from hallmark.flows.prefect_logging import print_prefect_warnings_as_lines

    print_prefect_warnings_as_lines()
    allowed_roots.export_to_environment()
    if config.endswith(".toml"):
        check_external_path(config, "config")  # the file may be a link to another folder
    check_settings_allowed(settings)
    export_credentials(settings.credentials)
    print(f"runs may read and write files only in: {allowed_roots}", flush=True)
    watched_locations = resolve_watched_locations(watched)
    parameters = {"config": config, "overrides": overrides, "store": store}
    request = RunRequest.parse("pipeline", parameters)
    opened_store = open_store(store or settings.store)
    if concurrent_runs is not None:
        set_concurrency_limit(opened_store, concurrent_runs)
        print(
            f"concurrent flow runs using the store: {concurrent_runs} (Prefect concurrency limit "
            f"{get_limit_name(opened_store)})",
            flush=True,
        )
    deployments: list[Any] = [
        pipeline.to_deployment(
            name=settings.name,
            cron=settings.schedule,
            parameters=request.given_parameters,
            description="Train a language model from raw text and audit it.",
            entrypoint_type=EntrypointType.MODULE_PATH,
        ),
        audit.to_deployment(
            name="on-demand",
            parameters={"store": store or settings.store},  # where the pipeline writes its models
            description="Audit a checkpoint: RUN@STEP, an artifact, or a folder with a Hallmark or "
            "Hugging Face model.",
            entrypoint_type=EntrypointType.MODULE_PATH,
        ),
    ]
    if checkpoint_audits:
        deployments.append(create_checkpoint_deployment(opened_store, checkpoint_audits))
    watchers: list[CheckpointWatcher] = []
    if watched_locations:
        audit_request = RunRequest(
            flow="audit",
            checkpoint="latest",  # replaced by that of each request
            config=config,
            overrides=tuple(overrides),
            store=opened_store.uri,
            audits=tuple(watched_audits),
        )
        requester = AuditRequester(opened_store, audit_request)
        deployments.append(create_watch_deployment(requester))
        watchers = [CheckpointWatcher(requester, location) for location in watched_locations]
    for deployment in deployments:
        deployment.entrypoint = ENTRYPOINT_TEMPLATE.format(deployment.flow_name)
    names = [f"{deployment.flow_name}/{deployment.name}" for deployment in deployments]
    print(
        f"serving {' and '.join(names)} for the Prefect server at {server_url}; to start a run: "
        f"prefect deployment run {names[0]}",
        flush=True,
    )
    runner = DeploymentRunner()
    with ExitStack() as stack:
        if metrics_port is not None:
            from hallmark.flows.reporters.metrics_server import serve_metrics

            address = stack.enter_context(
                serve_metrics(opened_store, metrics_port, runner.deployment_ids)
            )
            print(f"metrics for Prometheus: {address}", flush=True)
        if watchers:
            stack.enter_context(watch_checkpoints(watchers, poll_seconds))
            print(
                f"watching {', '.join(watched_locations)} for checkpoints every {poll_seconds:g} s",
                flush=True,
            )
        asyncio.run(runner.serve(settings.name, deployments))


def create_checkpoint_deployment(store: Store, audits: Sequence[str]) -> Any:
    """Create the deployment that audits each checkpoint while the training continues.

    Its name contains the beginning of the store's id, so each store of a Prefect server has one,
    also if several commands serve the store.
    """
    from prefect.events import DeploymentEventTrigger
    from prefect.types.entrypoint import EntrypointType

    from hallmark.flows.checkpoint_events import (
        CHECKPOINT_COMMITTED_EVENT,
        STAGE_LABEL,
        STORE_ID_LABEL,
    )
    from hallmark.flows.pipeline import audit

    store_id = store.compute_secret_id()
    request = RunRequest(
        flow="audit",
        checkpoint="{{ event.payload.artifact }}",
        store=store.uri,
        audits=tuple(audits),
    )
    trigger = DeploymentEventTrigger(
        expect={CHECKPOINT_COMMITTED_EVENT},
        match={STORE_ID_LABEL: store_id, STAGE_LABEL: "pretrain"},
        parameters=request.given_parameters,
    )
    return audit.to_deployment(
        name=f"each-checkpoint-{store_id[:8]}",
        parameters={"store": store.uri, "audits": [*audits]},
        triggers=[trigger],
        description="Audit each checkpoint that a training run commits to the store.",
        entrypoint_type=EntrypointType.MODULE_PATH,
    )


def create_watch_deployment(requester: AuditRequester) -> Any:
    """Create the deployment that audits the checkpoints of watched folders and buckets."""
    from prefect.types.entrypoint import EntrypointType

    from hallmark.flows.pipeline import audit

    parameters = requester.request.given_parameters
    del parameters["checkpoint"]
    return audit.to_deployment(
        name=requester.deployment_name,
        parameters=parameters,
        description="Audit each checkpoint that other trainers write to a watched location.",
        entrypoint_type=EntrypointType.MODULE_PATH,
    )


def collect_allowed_roots(config: str, store: str, additional_roots: Sequence[str]) -> AllowedRoots:
    """Collect the roots of deployments: the config's folder, the store and additional ones.

    Raises:
        UsageError: If an additional folder does not exist, or a URI cannot be a root; the error
            names ``--allowed-root`` or the ``store`` setting.
    """
    for root in additional_roots:
        if "://" not in root and not os.path.exists(os.path.expanduser(root)):
            raise UsageError(
                f"--allowed-root {root}: there is no such folder; create it or correct the path"
            )
    config_folders = [os.path.dirname(os.path.abspath(config))] if config.endswith(".toml") else []
    return (
        AllowedRoots.from_names(config_folders)
        | AllowedRoots.from_names([store], "store:")
        | AllowedRoots.from_names(additional_roots)
    )
