"""Keep the states of a long stage in an object store, so that another host can continue from them.

    <store>/work-states/<work area>/<token>/<sha256>           a file, once for all states
    <store>/work-states/<work area>/<token>/index-<n>.json     the files of a state

A stage sends a state while its work continues. The lease of the work area lists the states, and is
changed last: a state that it lists is complete, and only the holder of the lease can change the
list. With a local store, work areas are in the store already, and nothing is sent.
"""

from __future__ import annotations

import errno
import json
import logging
import secrets
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from hallmark.tasks.contract.errors import HallmarkError, get_first_error_line
from hallmark.tasks.contract.external_files import hash_file
from hallmark.tasks.contract.fingerprint import sha256_hex
from hallmark.tasks.contract.object_store import ObjectStatus, ObjectStore
from hallmark.tasks.contract.store_lease import (
    EXPIRY_SECONDS,
    LEASES_FOLDER,
    Count,
    LeaseLostError,
    LeaseRecord,
    StoredState,
    StoredWork,
    StoreKey,
    StoreLease,
    format_lease_key,
    parse_lease_record,
)

log = logging.getLogger("hallmark")

STATES_FOLDER = "work-states"

#: Number of states of a folder that the store keeps: the older one serves if the newer is damaged.
KEPT_STATES = 2

#: Seconds between the end of sending a state and the beginning of the next one. A training that
#: writes states more often sends only the newest.
SEND_INTERVAL_SECONDS = 10.0

#: Seconds that a stage waits for a state that is being sent when it ends.
CLOSE_TIMEOUT_SECONDS = 5.0

#: Number of files that are sent or fetched at the same time.
MAX_PARALLEL_FILES = 4

#: Subfolder of the work area with states that wait to be sent.
OUTGOING_FOLDER = "outgoing"


class DamagedStoredStateError(HallmarkError):
    """A state in the store is incomplete or differs from its digests."""


@dataclass(frozen=True)
class StoredFile:
    """A file of a state.

    Attributes:
        path: Its path in the folder.
        key: Key of its content in the store.
        size: Its size in bytes.
        sha256: Its SHA-256.
    """

    path: StoreKey
    key: StoreKey
    size: Count
    sha256: str


_FILE_LIST = TypeAdapter(tuple[StoredFile, ...])


class _OutgoingState(NamedTuple):
    """A state that is to be sent, in a folder that does not change."""

    name: str
    step: int
    folder: Path


def read_state_index(store: ObjectStore, state: StoredState) -> tuple[StoredFile, ...]:
    """Read the list of the files of a state.

    Raises:
        DamagedStoredStateError: The list is missing or damaged.
    """
    data = store.get(state.index_key)
    if data is None:
        raise DamagedStoredStateError(f"{state.index_key} is missing")
    if sha256_hex(data) != state.index_sha256:
        raise DamagedStoredStateError(f"{state.index_key} does not match its SHA-256")
    try:
        return _FILE_LIST.validate_json(data)
    except ValidationError as error:
        raise DamagedStoredStateError(f"{state.index_key} is not a list of files") from error


@dataclass(frozen=True)
class StoredArea:
    """What a store that is no local folder has of a work area.

    Attributes:
        name: The name of the work area.
        record: Its lease; None if it is missing or damaged.
        lease_files: The object of the lease, if it exists.
        state_files: The files of its states.
    """

    name: str
    record: LeaseRecord | None
    lease_files: dict[str, ObjectStatus]
    state_files: dict[str, ObjectStatus]

    @property
    def files(self) -> dict[str, ObjectStatus]:
        """All objects of the area; that of the lease comes first."""
        return self.lease_files | self.state_files

    def is_leased(self, now: datetime | None) -> bool:
        """Return whether a process may hold the lease.

        Args:
            now: The time of the store; None if it is unknown.
        """
        is_held = self.record is None or self.record.holder is not None or self.record.is_ended
        return is_held and any(
            now is None or now - status.modified <= timedelta(seconds=3 * EXPIRY_SECONDS)
            for status in self.lease_files.values()
        )

    def find_unlisted_keys(self, store: ObjectStore) -> set[str]:
        """Return the keys of the files that no complete state needs."""
        listed_keys: set[str] = set()
        for work in () if self.record is None else self.record.works.values():
            for state in work.states:
                with suppress(DamagedStoredStateError):
                    files = read_state_index(store, state)
                    listed_keys |= {state.index_key, *(file.key for file in files)}
        return self.state_files.keys() - listed_keys


def list_stored_areas(store: ObjectStore) -> list[StoredArea]:
    """List the work areas of which a store has a lease or states; none of a local store."""
    if store.root_folder is not None:
        return []
    lease_files: dict[str, dict[str, ObjectStatus]] = {}
    for key, status in store.list_stored_files(LEASES_FOLDER).items():
        lease_files[key.removeprefix(f"{LEASES_FOLDER}/").removesuffix(".json")] = {key: status}
    state_files: dict[str, dict[str, ObjectStatus]] = {}
    for key, status in store.list_stored_files(STATES_FOLDER).items():
        state_files.setdefault(key.split("/")[1], {})[key] = status
    areas = []
    for name in sorted(lease_files.keys() | state_files.keys()):
        data = store.get(format_lease_key(name)) if name in lease_files else None
        areas.append(
            StoredArea(
                name,
                None if data is None else parse_lease_record(data),
                lease_files.get(name, {}),
                state_files.get(name, {}),
            )
        )
    return areas


class StoredStates:
    """The states of a running stage in an object store; sent by a thread of their own.

    Args:
        store: The store.
        lease: The lease of the work area in the store.
        work_area: The local work area, which has the same name on every host.
        fingerprint: The fingerprint of the stage.
        inputs: Names of the artifacts that the stage reads.
    """

    def __init__(
        self,
        store: ObjectStore,
        lease: StoreLease,
        *,
        work_area: Path,
        fingerprint: str,
        inputs: Iterable[str],
    ) -> None:
        self.store, self.lease = store, lease
        self.outgoing_folder = work_area / OUTGOING_FOLDER
        shutil.rmtree(self.outgoing_folder, ignore_errors=True)  # of an earlier attempt
        self.area_prefix = f"{STATES_FOLDER}/{work_area.name}"
        self.own_prefix = f"{self.area_prefix}/{secrets.token_hex(8)}"
        self.fingerprint, self.inputs = fingerprint, tuple(sorted(inputs))
        #: The files of the states by the key of their list, as far as this process read them.
        self._files_by_index: dict[str, tuple[StoredFile, ...]] = {}
        #: The SHA-256 of files by path, size and modification time; files of states never change.
        self._known_digests: dict[tuple[str, int, int], str] = {}
        #: Keys of the files of this process, and of those that earlier holders had sent.
        self._removable_keys: set[str] = set()
        #: Names of the folders whose states this process fetched or sent.
        self._folder_names: set[str] = set()
        self._pending: _OutgoingState | None = None
        self._condition = threading.Condition()
        self._is_closed = self._is_removed = False
        self._thread: threading.Thread | None = None

    # Restore ---------------------------------------------------------------------------------

    def restore(self, folder: Path, newer_than: int | None) -> int | None:
        """Fetch the newest complete state of a folder, unless the local one is as new.

        Args:
            folder: The folder in the local work area, which the state replaces.
            newer_than: The step of the newest local state; None without one.

        Returns:
            The step of the state that was fetched; None if none was.
        """
        self._removable_keys |= {*self.store.list_keys(self.area_prefix)}
        self.lease.renew()  # so none of the keys is that of a process that took the lease over
        work = self.lease.record.works.get(folder.name)
        for state in () if work is None else work.states:
            if newer_than is not None and state.step <= newer_than:
                return None
            try:
                self._fetch_state(state, folder)
            except DamagedStoredStateError as error:
                log.warning(
                    "the state of step %d in the store cannot be used: %s; an earlier state will "
                    "be used if one is available",
                    state.step,
                    error,
                )
                continue
            self._folder_names.add(folder.name)
            log.info("fetched the state of step %d from the store", state.step)
            return state.step
        return None

    def _fetch_state(self, state: StoredState, folder: Path) -> None:
        files = read_state_index(self.store, state)
        unfinished_folder = folder.with_name(f".{folder.name}.half")
        shutil.rmtree(unfinished_folder, ignore_errors=True)
        unfinished_folder.mkdir(parents=True)
        with ThreadPoolExecutor(MAX_PARALLEL_FILES) as pool:
            list(pool.map(lambda file: self._fetch_file(file, unfinished_folder), files))
        shutil.rmtree(folder, ignore_errors=True)
        unfinished_folder.rename(folder)
        self._files_by_index[state.index_key] = files

    def _fetch_file(self, file: StoredFile, folder: Path) -> None:
        path = folder / file.path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as target:
                if not self.store.download_object(file.key, target):
                    raise DamagedStoredStateError(f"{file.key} is missing")
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise DamagedStoredStateError(  # for example if the list has a file below another
                f"{file.key} cannot be written to a file: {error.strerror}"
            ) from error
        if path.stat().st_size != file.size or hash_file(path) != file.sha256:
            raise DamagedStoredStateError(f"{file.key} does not match its SHA-256")

    # Send ------------------------------------------------------------------------------------

    def send(self, name: str, step: int, write_copy: Callable[[Path], None]) -> None:
        """Send a state in the background; it replaces one that still waits.

        Args:
            name: Name of the folder in the work area of every host.
            step: The step of the state.
            write_copy: Writes the state into a folder, which this object then owns.
        """
        folder = self.outgoing_folder / f"{step}-{secrets.token_hex(4)}"
        folder.parent.mkdir(parents=True, exist_ok=True)
        write_copy(folder)
        self._folder_names.add(name)
        with self._condition:
            replaced, self._pending = self._pending, _OutgoingState(name, step, folder)
            self._condition.notify()
        if replaced is not None:
            shutil.rmtree(replaced.folder, ignore_errors=True)
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._send_until_closed, name="states", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Stop sending; wait a little for a state that is being sent."""
        with self._condition:
            self._is_closed = True
            self._condition.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_TIMEOUT_SECONDS)

    def _send_until_closed(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._pending is not None or self._is_closed)
                state, self._pending = self._pending, None
                if state is None or self._is_closed:
                    return
            try:
                self._send_state(state)
                log.info("the state of step %d is in the store", state.step)
            except LeaseLostError:
                return  # the stage ends at its next step
            except (HallmarkError, OSError) as error:
                log.warning(
                    "the state of step %d could not be sent to the store: %s; the stage "
                    "continues and will send the next state",
                    state.step,
                    get_first_error_line(error),
                )
            finally:
                shutil.rmtree(state.folder, ignore_errors=True)
            with self._condition:
                if self._condition.wait_for(lambda: self._is_closed, SEND_INTERVAL_SECONDS):
                    return

    def _send_state(self, outgoing: _OutgoingState) -> None:
        """Send the files that the store lacks, then their list, and then change the lease."""
        stored_keys = {
            (file.sha256, file.size): file.key
            for work in self.lease.record.works.values()
            for state in work.states
            for file in self._files_by_index.get(state.index_key, ())
        }
        files, new_paths = [], {}
        for path in sorted(path for path in outgoing.folder.rglob("*") if path.is_file()):
            relative_path, status = path.relative_to(outgoing.folder).as_posix(), path.stat()
            identity = relative_path, status.st_size, status.st_mtime_ns
            if identity not in self._known_digests:
                self._known_digests[identity] = hash_file(path)
            sha256 = self._known_digests[identity]
            key = stored_keys.get((sha256, status.st_size))
            if key is None:
                key = f"{self.own_prefix}/{sha256}"
                new_paths[key] = path
            files.append(StoredFile(relative_path, key, status.st_size, sha256))
        index = json.dumps([asdict(file) for file in files]).encode()
        index_key = f"{self.own_prefix}/index-{secrets.token_hex(4)}.json"
        self._removable_keys |= {*new_paths, index_key}
        with ThreadPoolExecutor(MAX_PARALLEL_FILES) as pool:
            list(pool.map(lambda item: self.store.put(*item), new_paths.items()))
        self.store.put(index_key, index)
        self._files_by_index[index_key] = tuple(files)
        state = StoredState(outgoing.step, index_key, sha256_hex(index))

        def add_state(works: Mapping[str, StoredWork]) -> dict[str, StoredWork]:
            if self._is_removed:
                raise LeaseLostError("the stage has ended")
            earlier_states = works[outgoing.name].states if outgoing.name in works else ()
            # A state of a later step was damaged, so that the work began again at an earlier one.
            kept = [earlier for earlier in earlier_states if earlier.step < state.step]
            states = (state, *kept[: KEPT_STATES - 1])
            return {**works, outgoing.name: StoredWork(self.fingerprint, self.inputs, states)}

        self.lease.change_works(add_state)
        self._delete_unlisted()

    # Remove ----------------------------------------------------------------------------------

    def remove(self) -> None:
        """Remove the states of this fingerprint and its folders: the artifact is committed.

        What cannot be removed now is left for ``hallmark gc``.
        """
        self.close()
        self._is_removed = True

        def select_others(works: Mapping[str, StoredWork]) -> dict[str, StoredWork]:
            return {
                name: work
                for name, work in works.items()
                if work.fingerprint != self.fingerprint and name not in self._folder_names
            }

        if select_others(self.lease.record.works) == self.lease.record.works:
            return
        try:
            self.lease.change_works(select_others)
            self._delete_unlisted()
        except (HallmarkError, OSError) as error:
            log.warning(
                "states of a completed training run remain in the store: %s; remove them with: "
                "hallmark gc --delete",
                get_first_error_line(error),
            )

    def _delete_unlisted(self) -> None:
        """Delete the files that no listed state needs.

        Only files of this process and of earlier holders of the lease are deleted: if another
        process has taken the lease over meanwhile, its files stay.
        """
        listed_keys: set[str] = set()
        for work in self.lease.record.works.values():
            for state in work.states:
                if state.index_key not in self._files_by_index:
                    with suppress(DamagedStoredStateError):
                        self._files_by_index[state.index_key] = read_state_index(self.store, state)
                files = self._files_by_index.get(state.index_key, ())
                listed_keys |= {state.index_key, *(file.key for file in files)}
        unlisted_keys = sorted(self._removable_keys - listed_keys)
        if unlisted_keys:
            self.store.delete(unlisted_keys)
            self._removable_keys -= {*unlisted_keys}
