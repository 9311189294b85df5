"""Find out whether a Prefect server answers, and wait for one that is restarted."""

from __future__ import annotations

import logging
import queue
import time
from contextlib import suppress

log = logging.getLogger("hallmark")

START_SERVER_HINT = (
    "start one with: prefect server start   (then, in this shell: export "
    "PREFECT_API_URL=http://127.0.0.1:4200/api)"
)

#: Seconds between two requests to a server that does not answer.
RETRY_INTERVAL = 1.0


def is_prefect_server_reachable(server_url: str) -> bool:
    import httpx

    try:
        return httpx.get(f"{server_url.rstrip('/')}/health", timeout=5).is_success
    except (httpx.HTTPError, httpx.InvalidURL):
        return False


def wait_for_prefect_server(run_id: str, status: str, timeout: float) -> bool:
    """Wait until the server answers, so that it can be told how a run ended.

    Prefect itself would retry for a minute only. If the server came back a little later, Prefect
    would report the lost connection as the failure of a run that is complete.

    Args:
        run_id: The run, for the warnings.
        status: How it ended.
        timeout: The most seconds to wait.

    Returns:
        Whether the server answers, or no server is configured.
    """
    from prefect.settings import PREFECT_API_URL

    server_url = PREFECT_API_URL.value()
    if not server_url or is_prefect_server_reachable(server_url):
        return True
    if not timeout:
        return False
    log.warning(
        "run %s has ended in the store (%s), but the Prefect server at %s does not respond; "
        "waiting up to %.0f s to report this",
        run_id,
        status,
        server_url,
        timeout,
    )
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        time.sleep(RETRY_INTERVAL)
        if is_prefect_server_reachable(server_url):
            return True
    return False


def discard_unsent_events() -> None:
    """Discard the events that wait to be sent if the server does not answer.

    At the exit of the process, each of them would wait ten seconds for the server.
    """
    from prefect.events.worker import EventsWorker
    from prefect.settings import PREFECT_API_URL

    server_url = PREFECT_API_URL.value()
    if not server_url or is_prefect_server_reachable(server_url):
        return
    pending_events = EventsWorker.instance()._queue
    with suppress(queue.Empty):
        while True:
            pending_events.get_nowait()
            pending_events.task_done()
