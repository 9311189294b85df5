"""Announce in a store which command other than a run works on the whole store, for all hosts.

    <store>/store-use/<token>.json     the command, its host, its process, and since when

A purge and a garbage collection need the store without runs and copies. Each command first
announces itself and then looks for the others, and a run first records that it is running and then
looks for such commands. So of two that begin at the same moment, at least one sees the other. An
announcement is renewed every RENEWAL_SECONDS; one that was not renewed for SILENCE_SECONDS is that
of a dead process. Both times are those of the store.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from pydantic import TypeAdapter, ValidationError

from hallmark.flows.run_liveness import SILENCE_SECONDS
from hallmark.flows.run_progress import RENEWAL_SECONDS
from hallmark.tasks.contract import (
    HallmarkError,
    Store,
    format_current_time,
    is_folder_leased,
    lease_folder,
)

log = logging.getLogger("hallmark")

USE_FOLDER = "store-use"

#: Subfolder of the work folder with the leases of the announced commands of this machine.
USE_LEASES_FOLDER = "uses"

#: The commands that announce themselves; the first two need the store without runs and copies.
UseKind = Literal["gc", "purge", "copy"]
USE_KINDS: tuple[UseKind, ...] = get_args(UseKind)
EXCLUSIVE_KINDS = ("gc", "purge")

#: Seconds between two looks whether a command has ended.
CHECK_INTERVAL_SECONDS = 0.5

#: Size of the largest announcement that is read; another process may have written it.
MAX_ANNOUNCEMENT_BYTES = 2000

_USE_KEY = re.compile(rf"{USE_FOLDER}/([0-9a-f]{{16}})\.json")


@dataclass(frozen=True)
class StoreUse:
    """A command that works on a whole store.

    Attributes:
        kind: The command.
        host: The name of its machine.
        pid: Its process id.
        since: When it began, by the clock of its machine.
    """

    kind: UseKind
    host: str
    pid: int
    since: str

    def __str__(self) -> str:
        name = "push or pull" if self.kind == "copy" else self.kind
        return f"hallmark {name} (process {self.pid} on {self.host}, since {self.since})"


@contextmanager
def announce_use(store: Store, kind: UseKind) -> Iterator[str]:
    """Announce a command to all users of a store while the context is open.

    Yields:
        The token of the announcement.
    """
    token = secrets.token_hex(8)
    key = f"{USE_FOLDER}/{token}.json"
    use = StoreUse(kind, socket.gethostname(), os.getpid(), format_current_time())
    announcement = json.dumps(asdict(use)).encode()
    has_ended = threading.Event()

    def renew() -> None:
        while not has_ended.wait(RENEWAL_SECONDS):
            with suppress(HallmarkError, OSError):
                store.put(key, announcement)

    with lease_folder(_get_lease_folder(store, token)) as lease:
        store.put(key, announcement)
        renewal = threading.Thread(target=renew, name=f"announcement of {kind}", daemon=True)
        renewal.start()
        try:
            yield token
        finally:
            has_ended.set()
            renewal.join()
            with suppress(HallmarkError, OSError):  # it counts as dead after a while
                store.delete([key])
            shutil.rmtree(lease, ignore_errors=True)


def list_uses(store: Store, own_token: str | None = None) -> list[StoreUse]:
    """List the announced commands that are still executed, except the caller's own.

    Args:
        store: The store.
        own_token: The token of the caller's announcement.
    """
    uses = []
    for key, status in sorted(store.list_stored_files(USE_FOLDER).items()):
        match = _USE_KEY.fullmatch(key)
        if match is None or match[1] == own_token or status.size > MAX_ANNOUNCEMENT_BYTES:
            continue
        use = _parse_announcement(store.get(key))
        if use is None:
            continue
        is_leased = is_folder_leased(_get_lease_folder(store, match[1]))
        if is_leased is None or (is_leased is False and use.host != socket.gethostname()):
            now = store.read_current_time()
            age = 0.0 if now is None else (now - status.modified).total_seconds()
            is_leased = abs(age) <= SILENCE_SECONDS
        if is_leased:
            uses.append(use)
    return uses


def has_dead_writer(store: Store, key: str) -> bool:
    """Return whether an announcement is that of a process of this machine that is gone."""
    match = _USE_KEY.fullmatch(key)
    return match is not None and is_folder_leased(_get_lease_folder(store, match[1])) is False


def wait_for_exclusive_uses(store: Store, on_wait: Callable[[], None] = lambda: None) -> None:
    """Wait until no purge and no garbage collection works on a store.

    Args:
        store: The store.
        on_wait: Function that is called about every CHECK_INTERVAL_SECONDS of the wait.
    """
    was_reported = False
    while uses := [use for use in list_uses(store) if use.kind in EXCLUSIVE_KINDS]:
        if not was_reported:
            log.warning("waiting for %s, which is using the store %s", uses[0], store.uri)
            was_reported = True
        on_wait()
        time.sleep(CHECK_INTERVAL_SECONDS)


def _parse_announcement(announcement: bytes | None) -> StoreUse | None:
    if announcement is None:  # the command has ended
        return None
    try:
        return _ANNOUNCEMENT.validate_json(announcement)
    except ValidationError:
        return None


_ANNOUNCEMENT = TypeAdapter(StoreUse)


def _get_lease_folder(store: Store, token: str) -> Path:
    return store.work_folder / USE_LEASES_FOLDER / token
