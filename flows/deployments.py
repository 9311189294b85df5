"""All deployments: what a Prefect server schedules and starts."""

from __future__ import annotations

from collections.abc import Sequence

from flows.config import load
from tasks.contract import HallmarkError

HOW = (
    "start one with: prefect server start   (then, in this shell: export "
    "PREFECT_API_URL=http://127.0.0.1:4200/api)"
)


def serve_deployments(config: str, overrides: Sequence[str], store: str | None = None) -> None:
    """Register the deployments and work on their runs until interrupted.

    Raises HallmarkError where no Prefect server is set or it does not answer: the ephemeral
    server runs no scheduler.
    """
    settings = load(config, overrides)
    import prefect
    from prefect.settings import PREFECT_API_URL

    url = PREFECT_API_URL.value()
    if not url:
        raise HallmarkError(f"serve needs a Prefect server, and PREFECT_API_URL is not set; {HOW}")
    if not server_answers(url):
        raise HallmarkError(f"no Prefect server answers at {url}; {HOW}")

    from flows.pipeline import audit, pipeline

    prefect.serve(
        pipeline.to_deployment(  # type: ignore[arg-type]
            name=settings.name,
            cron=settings.schedule,
            parameters={"config": config, "overrides": list(overrides), "store": store},
            description="Raw text to an audited model.",
        ),
        audit.to_deployment(  # type: ignore[arg-type]
            name="on-demand",
            parameters={"store": store or settings.store},  # where the pipeline leaves its models
            description="Audit any checkpoint: RUN@STEP, an artifact, or a Hugging Face folder.",
        ),
        pause_on_shutdown=False,
    )


def server_answers(url: str) -> bool:
    import httpx

    try:
        return httpx.get(f"{url.rstrip('/')}/health", timeout=5).is_success
    except (httpx.HTTPError, httpx.InvalidURL):
        return False
