"""All deployments: what a Prefect server schedules and starts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from hallmark.flows.config import load_config
from hallmark.flows.deployment_checks import check_settings_allowed
from hallmark.flows.runs import resolve_store_uri
from hallmark.tasks.contract import AllowedRoots, HallmarkError, UsageError, check_external_path

START_SERVER_HINT = (
    "start one with: prefect server start   (then, in this shell: export "
    "PREFECT_API_URL=http://127.0.0.1:4200/api)"
)


#: Where Prefect enters a run of each deployment.
ENTRYPOINT_TEMPLATE = "hallmark.flows.deployment_entrypoint.{}"


def serve_deployments(
    config: str, overrides: Sequence[str], store: str | None = None, roots: Sequence[str] = ()
) -> None:
    """Register the deployments and work on their runs until interrupted.

    Args:
        config: The config that the pipeline's deployment runs.
        overrides: Overrides of it.
        store: The store, in place of the config's.
        roots: Folders and URIs that runs may read and write beside the config's folder and the
            store.

    Raises:
        HallmarkError: If no Prefect server is set or it does not answer: the ephemeral server
            runs no scheduler.
        UsageError: If the config itself names a path outside the roots.
    """
    settings = load_config(config, overrides)
    store = resolve_store_uri(store) if store else None
    allowed_roots = collect_allowed_roots(config, resolve_store_uri(store or settings.store), roots)
    import prefect
    from prefect.settings import PREFECT_API_URL

    server_url = PREFECT_API_URL.value()
    if not server_url:
        raise HallmarkError(
            f"serve needs a Prefect server, and PREFECT_API_URL is not set; {START_SERVER_HINT}"
        )
    if not is_prefect_server_reachable(server_url):
        raise HallmarkError(f"no Prefect server answers at {server_url}; {START_SERVER_HINT}")

    from prefect.types.entrypoint import EntrypointType

    from hallmark.flows.pipeline import audit, pipeline

    allowed_roots.export_to_environment()
    if config.endswith(".toml"):
        check_external_path(config, "config")  # it may be a link
    check_settings_allowed(settings)
    print(f"runs may read and write in: {allowed_roots}", flush=True)
    deployments: list[Any] = [
        pipeline.to_deployment(
            name=settings.name,
            cron=settings.schedule,
            parameters={"config": config, "overrides": list(overrides), "store": store},
            description="Raw text to an audited model.",
            entrypoint_type=EntrypointType.MODULE_PATH,
        ),
        audit.to_deployment(
            name="on-demand",
            parameters={"store": store or settings.store},  # where the pipeline leaves its models
            description="Audit any checkpoint: RUN@STEP, an artifact, or a Hugging Face folder.",
            entrypoint_type=EntrypointType.MODULE_PATH,
        ),
    ]
    for deployment in deployments:
        deployment.entrypoint = ENTRYPOINT_TEMPLATE.format(deployment.flow_name)
    prefect.serve(*deployments, pause_on_shutdown=False)


def collect_allowed_roots(config: str, store: str, additional_roots: Sequence[str]) -> AllowedRoots:
    """The roots of deployments: the folder of a config's file, the store, and ``more``.

    Raises:
        UsageError: If a folder of ``more`` does not exist, or a URI cannot be a root; the error
            names ``--root`` or the setting ``store``.
    """
    for root in additional_roots:
        if "://" not in root and not os.path.exists(os.path.expanduser(root)):
            raise UsageError(f"--root {root}: there is no such folder; make it or correct the path")
    config_folders = [os.path.dirname(os.path.abspath(config))] if config.endswith(".toml") else []
    return (
        AllowedRoots.from_names(config_folders)
        | AllowedRoots.from_names([store], "store:")
        | AllowedRoots.from_names(additional_roots)
    )


def is_prefect_server_reachable(server_url: str) -> bool:
    import httpx

    try:
        return httpx.get(f"{server_url.rstrip('/')}/health", timeout=5).is_success
    except (httpx.HTTPError, httpx.InvalidURL):
        return False
