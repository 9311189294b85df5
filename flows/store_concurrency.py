"""Limit how many flow runs use a store at the same time, by a concurrency limit of Prefect.

The limit is Prefect's own: it has a page, and ``prefect gcl`` changes or deletes it. A run waits
before its first stage, and says so. A killed run frees its place when Prefect's lease expires.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice

import httpx

from hallmark.flows.runs import iter_latest_candidates
from hallmark.tasks.contract import Store

log = logging.getLogger("hallmark")

#: Seconds between two attempts of a run that waits.
ATTEMPT_INTERVAL = 2.0

#: Seconds after which the place of a killed run is free; a run renews its lease in time.
LEASE_SECONDS = 300.0

#: Number of runs of a store that are searched for those that a waiting run waits for.
SEARCHED_RUNS = 32


def get_limit_name(store: Store) -> str:
    """Return the name of the concurrency limit of a store, the same on every host."""
    return f"hallmark-store-{store.compute_secret_id()[:8]}"


def set_concurrency_limit(store: Store, run_count: int) -> None:
    """Create or change the concurrency limit of a store."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        client.upsert_global_concurrency_limit_by_name(get_limit_name(store), run_count)


@contextmanager
def occupy_store(store: Store) -> Iterator[None]:
    """Wait until the concurrency limit of a store has a free place, and occupy it meanwhile.

    Nothing is occupied outside of a flow run, without a limit, or if Prefect's server does not
    answer: a server that is away stops no run.
    """
    from prefect.context import FlowRunContext

    if FlowRunContext.get() is None:
        yield
        return
    limit_name, place = get_limit_name(store), ExitStack()
    run_limit = read_run_limit(limit_name)
    if run_limit is not None and not _try_to_occupy(place, limit_name):
        log.warning(
            "waiting for a slot: the concurrency limit %s is %d for flow runs using the store %s%s",
            limit_name,
            run_limit,
            store.uri,
            _describe_running(store),
        )
        while not _try_to_occupy(place, limit_name):
            time.sleep(ATTEMPT_INTERVAL)
        log.warning("a slot of the concurrency limit %s is now free; starting the run", limit_name)
    try:
        yield
    finally:
        try:
            place.close()
        except httpx.HTTPError as error:  # the lease expires
            log.warning(
                "the slot of the concurrency limit %s was not released (%s); it will be free after "
                "%.0f s",
                limit_name,
                str(error).split("\n")[0] or type(error).__name__,
                LEASE_SECONDS,
            )


def read_run_limit(limit_name: str) -> int | None:
    """Read how many flow runs a limit allows; None without a limit, or without an answer."""
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    try:
        with get_client(sync_client=True) as client:
            limit = client.read_global_concurrency_limit_by_name(limit_name)
    except ObjectNotFound:
        return None
    except httpx.HTTPError as error:
        log.warning(
            "the store's concurrency limit cannot be read from the Prefect server (%s); the run "
            "starts without it",
            str(error).split("\n")[0] or type(error).__name__,
        )
        return None
    return limit.limit if limit.active else None


def _try_to_occupy(place: ExitStack, limit_name: str) -> bool:
    """Occupy a place of a limit until the stack is closed; return False if none is free."""
    from prefect.concurrency._asyncio import ConcurrencySlotAcquisitionError
    from prefect.concurrency.sync import concurrency

    try:
        place.enter_context(
            concurrency(
                limit_name,
                max_retries=0,
                lease_duration=LEASE_SECONDS,
                raise_on_lease_renewal_failure=False,
            )
        )
    except ConcurrencySlotAcquisitionError:  # also if the server does not answer for a while
        return False
    return True


def _describe_running(store: Store) -> str:
    """Return which runs of the store are running, "" if none is."""
    running_ids = [
        run.id
        for run in islice(iter_latest_candidates(store), SEARCHED_RUNS)
        if run.status == "running"
    ]
    return f"; running: {', '.join(running_ids)}" if running_ids else ""
