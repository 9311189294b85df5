"""Find out whether a run that records no end is still executed, from any host.

A run gives two signs of life. It holds a lease on this machine, a lock that ends with its process:
on the host of the run this decides at once. It also renews its progress file in the store: on other
hosts, a file that was not renewed for SILENCE_SECONDS means that the run was interrupted. Both ages
are measured with the clock of the store. Neither process ids, which may be reused, nor the clocks
of hosts count.
"""

from __future__ import annotations

import logging
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hallmark.flows.run_progress import format_progress_key
from hallmark.tasks.contract import (
    HallmarkError,
    LeaseHolder,
    Store,
    TemporaryError,
    is_folder_leased,
    lease_folder,
)

log = logging.getLogger("hallmark")

#: Seconds without a renewed progress file after which another host calls a run interrupted.
SILENCE_SECONDS = 60.0

#: Seconds by which a renewed file may be newer than the estimated time of the store.
FUTURE_TOLERANCE_SECONDS = 60.0


@contextmanager
def lease_run(store: Store, run_id: str) -> Iterator[None]:
    """Hold the lease of a run on this machine; wait while another process executes this run."""

    def report_wait(holder: LeaseHolder) -> None:
        log.warning("run %s is being executed by %s; waiting for the run to finish", run_id, holder)

    with lease_folder(_get_lease_folder(store, run_id), report_wait) as folder:
        try:
            yield
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def find_reason_of_silence(store: Store, record: Mapping[str, Any]) -> str | None:
    """Say since when a run without a recorded end gives no sign of life.

    Args:
        store: The store of the run.
        record: Its run.json.

    Returns:
        The sentence; None if the run gives a sign of life, or if the store does not answer.
    """
    is_leased = last_sign = None
    with suppress(HallmarkError, OSError):  # what somebody else put there is no sign of life
        is_leased = is_folder_leased(_get_lease_folder(store, record["run"]))
    if is_leased:
        return None
    is_decided = is_leased is False and record["host"] == socket.gethostname()
    try:
        last_sign = store.read_modification_time(format_progress_key(record["run"]))
    except (HallmarkError, OSError) as error:
        if isinstance(error, TemporaryError) and not is_decided:
            return None
    if last_sign is not None and not is_decided:
        now = store.read_current_time()
        age_seconds = 0.0 if now is None else (now - last_sign).total_seconds()
        # The clock of the store wrote no time in the future.
        if now is None or -FUTURE_TOLERANCE_SECONDS <= age_seconds <= SILENCE_SECONDS:
            return None
        if age_seconds < 0:
            last_sign = None
    since = record["started"] if last_sign is None else last_sign.isoformat(timespec="seconds")
    return f"no sign of life from process {record['pid']} on {record['host']}" + (
        f" since {since}" if since else ""
    )


def _get_lease_folder(store: Store, run_id: str) -> Path:
    return store.work_folder / f"run-{run_id}"
