"""Lease a work area for all hosts, by an object in a store that is no local folder.

    <store>/leases/<stage>-<fingerprint>.json     the holder, and the states that it has sent

The holder renews the object every RENEWAL_SECONDS by a conditional update, which succeeds only if
nobody else has changed the object. Whoever waits takes the lease over if the object stayed the same
for EXPIRY_SECONDS by its own monotonic clock; clocks of other hosts do not count. The update of a
former holder that continues later then fails, so it can neither commit nor replace states. Each
holder has a higher number than the one before it, until the object is removed.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from hallmark.tasks.contract.errors import HallmarkError, TemporaryError
from hallmark.tasks.contract.lease import LeaseHolder, describe_this_process
from hallmark.tasks.contract.local_objects import escape_name, read_regular_file
from hallmark.tasks.contract.object_store import ObjectStore, ObjectVersion
from hallmark.tasks.contract.tombstones import is_safe_relative_path

log = logging.getLogger("hallmark")

LEASES_FOLDER = "leases"

#: Seconds between two renewals of a lease.
RENEWAL_SECONDS = 5.0

#: Seconds without a renewal after which a lease has expired.
EXPIRY_SECONDS = 20.0

#: Seconds between two looks at the lease of another process.
CHECK_INTERVAL_SECONDS = 1.0

#: Size of the largest lease that is read; another process may have written it.
MAX_LEASE_BYTES = 1 << 20

#: File in the work area with the token of the holder. Whoever has locked the work area and finds
#: the token of the lease there knows that the holder, which had locked it too, is dead.
HOLDER_FILE = "store-lease"


class LeaseLostError(TemporaryError):
    """Another process has taken the lease over, because this one did not renew it in time."""


def _check_key(key: str) -> str:
    if not is_safe_relative_path(key):
        raise ValueError("it must be a store key")
    return key


StoreKey = Annotated[str, AfterValidator(_check_key)]
Count = Annotated[int, Field(ge=0, lt=1 << 62)]


@dataclass(frozen=True)
class StoredState:
    """A complete state of a stage in the store.

    Attributes:
        step: The step of the state; a later state has a higher one.
        index_key: Key of the list of its files.
        index_sha256: SHA-256 of this list.
    """

    step: Count
    index_key: StoreKey
    index_sha256: str


@dataclass(frozen=True)
class StoredWork:
    """The states of a folder in a work area.

    Attributes:
        fingerprint: The fingerprint of the stage that sent them.
        inputs: Names of the artifacts that this stage read.
        states: The newest complete states, the newest first.
    """

    fingerprint: str
    inputs: tuple[str, ...]
    states: tuple[StoredState, ...]


@dataclass(frozen=True)
class LeaseRecord:
    """The content of a lease's object.

    Attributes:
        number: Number of holders so far.
        token: Random id of the holder.
        renewals: Number of changes by this holder; so no two versions have the same content.
        holder: Who holds the lease; None if nobody does.
        is_ended: Whether the holder is about to remove the object.
        works: The states in the store, by folder of the work area.
    """

    number: Count
    token: str
    renewals: Count = 0
    holder: LeaseHolder | None = None
    is_ended: bool = False
    works: Mapping[str, StoredWork] = field(default_factory=dict)


_LEASE_RECORD = TypeAdapter(LeaseRecord)


def parse_lease_record(data: bytes) -> LeaseRecord | None:
    """Parse a lease's object, which anyone may have written; return None if it is damaged."""
    if len(data) > MAX_LEASE_BYTES:
        return None
    try:
        record = _LEASE_RECORD.validate_json(data)
    except ValidationError:
        return None
    if record.holder is None:
        return record
    host, since = escape_name(record.holder.host), escape_name(record.holder.since)
    return replace(record, holder=LeaseHolder(host, record.holder.pid, since))


def format_lease_key(area_name: str) -> str:
    return f"{LEASES_FOLDER}/{area_name}.json"


class StoreLease:
    """A lease that this process holds; see ``lease_in_store``.

    Attributes:
        record: The content of the object.
    """

    def __init__(
        self, store: ObjectStore, key: str, record: LeaseRecord, version: ObjectVersion
    ) -> None:
        self.store, self.key, self.record, self._version = store, key, record, version
        #: Who has taken the lease over.
        self._successor: LeaseHolder | None = None
        self._lock = threading.Lock()
        self._is_released = False

    def renew(self) -> None:
        """Renew the lease, and so check that this process still holds it.

        Raises:
            LeaseLostError: Another process has taken it over.
        """
        self._update(lambda record: record)

    def change_works(
        self, change: Callable[[Mapping[str, StoredWork]], Mapping[str, StoredWork]]
    ) -> None:
        """Replace the list of states in the store.

        Raises:
            LeaseLostError: Another process has taken the lease over.
        """
        self._update(lambda record: replace(record, works=change(record.works)))

    def check_not_lost(self) -> None:
        """Raise LeaseLostError if a renewal has found that another process has the lease."""
        if self._successor is not None:
            raise LeaseLostError(
                f"{self._successor} has taken over this work because this process did not renew "
                f"its lease in the store for {EXPIRY_SECONDS:.0f} seconds; run again to wait for "
                "the result"
            )

    def release(self) -> None:
        """Give the lease up; remove its object unless it lists states."""
        with suppress(LeaseLostError):
            if self.record.works:
                self._update(lambda record: replace(record, holder=None))
            else:
                self._update(lambda record: replace(record, holder=None, is_ended=True))
                self.store.delete([self.key])
        with self._lock:
            self._is_released = True

    def _update(self, change: Callable[[LeaseRecord], LeaseRecord]) -> None:
        with self._lock:
            self.check_not_lost()
            if self._is_released:
                raise LeaseLostError("the lease in the store was released; run again")
            record = change(self.record)
            record = replace(record, renewals=record.renewals + 1)
            version = self.store.replace_if_unchanged(
                self.key, _format_record(record), self._version
            )
            if version is None:
                self._successor = self._read_successor()
                self.check_not_lost()
            else:
                self.record, self._version = record, version

    def _read_successor(self) -> LeaseHolder:
        current = self.store.get_versioned(self.key)
        record = None if current is None else parse_lease_record(current.data)
        return LeaseHolder() if record is None or record.holder is None else record.holder


@contextmanager
def lease_in_store(
    store: ObjectStore,
    area_name: str,
    work_area: Path,
    on_wait: Callable[[LeaseHolder], None] = lambda holder: None,
) -> Iterator[StoreLease]:
    """Lease a work area for all hosts; wait while a process of another host holds it.

    Args:
        store: The store, which is no local folder.
        area_name: Name of the work area.
        work_area: The local work area, which this process has locked.
        on_wait: Called with the holder before waiting for it.
    """
    lease = _acquire_lease(store, format_lease_key(area_name), work_area / HOLDER_FILE, on_wait)
    has_ended = threading.Event()

    def renew_until_ended() -> None:
        while not has_ended.wait(RENEWAL_SECONDS):
            try:
                lease.renew()
            except LeaseLostError as error:
                log.warning("%s", error)
                return
            except (HallmarkError, OSError) as error:
                log.debug("the lease %s was not renewed: %s", lease.key, error)

    renewal = threading.Thread(target=renew_until_ended, name=f"lease {area_name}", daemon=True)
    renewal.start()
    try:
        yield lease
    finally:
        has_ended.set()
        renewal.join()
        with suppress(HallmarkError, OSError):  # then it expires
            lease.release()


def _acquire_lease(
    store: ObjectStore,
    key: str,
    token_path: Path,
    on_wait: Callable[[LeaseHolder], None],
) -> StoreLease:
    token = secrets.token_hex(8)
    holder = describe_this_process()
    observer = _LeaseObserver(token_path)
    was_reported = False
    while True:
        current = store.get_versioned(key)
        record = LeaseRecord(1, token, holder=holder)
        if current is not None:
            earlier = parse_lease_record(current.data)
            if not observer.is_free(earlier, current.version):
                if not was_reported:
                    was_reported = True
                    on_wait(earlier.holder if earlier and earlier.holder else LeaseHolder())
                time.sleep(CHECK_INTERVAL_SECONDS)
                continue
            if earlier is not None:
                record = replace(record, number=earlier.number + 1, works=earlier.works)
        # The token comes first: a process that dies after the update has then left it behind.
        token_path.write_text(token)
        version = store.replace_if_unchanged(
            key, _format_record(record), None if current is None else current.version
        )
        if version is not None:
            return StoreLease(store, key, record, version)


class _LeaseObserver:
    """Decides whether the lease of another process has expired, by this process's own clock."""

    def __init__(self, token_path: Path) -> None:
        #: The token of the last process that had locked this work area.
        self.dead_token = _read_token(token_path)
        self.version: ObjectVersion | None = None
        self.unchanged_since = self.last_look = 0.0

    def is_free(self, record: LeaseRecord | None, version: ObjectVersion) -> bool:
        """Return whether a lease can be taken over.

        Args:
            record: The content of its object; None if it is damaged.
            version: The version of its object.
        """
        if record is not None and not record.is_ended:
            is_holder_dead = record.token == self.dead_token
            if record.holder is None or is_holder_dead:
                return True
        now = time.monotonic()
        # After a long pause, the holder may have been unable to renew the lease in that time, too.
        was_paused = now - self.last_look > EXPIRY_SECONDS / 2
        if version != self.version or was_paused:
            self.version, self.unchanged_since = version, now
        self.last_look = now
        if now - self.unchanged_since < EXPIRY_SECONDS:
            return False
        holder = LeaseHolder() if record is None or record.holder is None else record.holder
        log.warning(
            "the lease of %s was not renewed for %.0f seconds; taking over its work",
            holder,
            EXPIRY_SECONDS,
        )
        return True


def _read_token(token_path: Path) -> str | None:
    with suppress(OSError, ValueError):
        return read_regular_file(token_path).decode()
    return None


def _format_record(record: LeaseRecord) -> bytes:
    return json.dumps(asdict(record)).encode()
