"""Lock folders of a local file system, so that concurrent processes do not interfere.

A work area is leased by one process at a time. The work folder of a store is shared by all running
stages and locked exclusively by a purge.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hallmark.tasks.contract.errors import UsageError

LEASE_FILE = "lease"

#: The file may have been put there by somebody else: links are refused, and pipes do not block.
LEASE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(frozen=True)
class LeaseHolder:
    """Who holds a lease, and since when, as the holder wrote it into the file.

    Attributes:
        host: The name of its machine; empty if the file does not say.
        pid: Its process id; 0 if the file does not say.
        since: The time at which it got the lease, in ISO 8601; empty if the file does not say.
    """

    host: str = ""
    pid: int = 0
    since: str = ""

    def __str__(self) -> str:
        if not self.pid:
            return "another process"
        return f"process {self.pid} on {self.host}, since {self.since}"


@contextmanager
def lease_folder(
    folder: Path, on_wait: Callable[[LeaseHolder], None] = lambda holder: None
) -> Iterator[Path]:
    """Lease a folder, and create it if it is missing; wait while another process holds it.

    The lease is a lock of the operating system, which ends with the process in any case.

    Args:
        folder: The folder.
        on_wait: Called with the holder before waiting for it.

    Raises:
        UsageError: The folder or its lease file is a link.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    while True:
        # The previous holder removes the folder when it commits, possibly at any of these steps.
        with suppress(FileExistsError):
            folder.mkdir()
        if folder.is_symlink():  # the holder of the lease clears the folder
            raise UsageError(
                f"{folder} is a link to {os.readlink(folder)}, whose files a run could delete; "
                "remove the link and run again"
            )
        try:
            descriptor = os.open(folder / LEASE_FILE, LEASE_FLAGS | os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise UsageError(
                f"{folder / LEASE_FILE} is a link, which cannot be locked; remove the link and run "
                "again"
            ) from None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait(_read_holder(descriptor))
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_same_file(descriptor, folder / LEASE_FILE):
                _write_holder(descriptor)
                yield folder
                return
        finally:
            os.close(descriptor)


def is_folder_leased(folder: Path) -> bool | None:
    """Return whether a process of this machine leases a folder; None if there is no lease file."""
    try:
        descriptor = os.open(folder / LEASE_FILE, LEASE_FLAGS | os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextmanager
def try_lease_folder(folder: Path) -> Iterator[bool | None]:
    """Lease an existing folder without waiting.

    Yields:
        Whether this process now holds the lease; None if the folder has no lease file.
    """
    try:
        descriptor = os.open(folder / LEASE_FILE, LEASE_FLAGS | os.O_RDWR)
    except OSError:
        yield None
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield _is_same_file(descriptor, folder / LEASE_FILE)
    finally:
        os.close(descriptor)


def describe_this_process() -> LeaseHolder:
    """Describe this process as the holder of a lease that begins now."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return LeaseHolder(socket.gethostname(), os.getpid(), now)


def _write_holder(descriptor: int) -> None:
    text = json.dumps(asdict(describe_this_process())).encode()
    with suppress(OSError):  # on a full disk the lease holds all the same
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text, 0)


def _read_holder(descriptor: int) -> LeaseHolder:
    """Read who holds a lease; an empty holder if the file does not say it."""
    try:
        fields: Any = json.loads(os.pread(descriptor, 1000, 0))
        holder = LeaseHolder(**fields)
    except (OSError, ValueError, TypeError, RecursionError):
        return LeaseHolder()
    is_valid = (
        isinstance(holder.host, str)
        and isinstance(holder.pid, int)
        and isinstance(holder.since, str)
    )
    return holder if is_valid else LeaseHolder()


def clear_or_remove_folder(folder: Path, preserved_names: Collection[str] = ()) -> None:
    """Clear a leased folder except for some names; if it has none of them, remove it completely."""
    remaining_names = {path.name for path in folder.iterdir()} & set(preserved_names) - {LEASE_FILE}
    if not remaining_names:
        shutil.rmtree(folder, ignore_errors=True)
        return
    clear_folder(folder, remaining_names)


def clear_folder(folder: Path, preserved_names: Collection[str] = ()) -> None:
    """Remove the contents of a leased folder except for the lease and some names."""
    for path in folder.iterdir():
        if path.is_dir() and path.name not in preserved_names:
            shutil.rmtree(path, ignore_errors=True)
        elif path.name not in {LEASE_FILE, *preserved_names}:
            path.unlink()


@contextmanager
def shared_lock(folder: Path) -> Iterator[None]:
    """Lock a folder together with others; wait while another process locks it exclusively."""
    with _open_folder_descriptor(folder) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


@contextmanager
def try_exclusive_lock(folder: Path) -> Iterator[bool]:
    """Lock a folder exclusively; yield False, without waiting, if another process uses it."""
    with _open_folder_descriptor(folder) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


@contextmanager
def _open_folder_descriptor(folder: Path) -> Iterator[int]:
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        path_stat = path.stat()
    except FileNotFoundError:
        return False
    descriptor_stat = os.fstat(descriptor)
    return (descriptor_stat.st_ino, descriptor_stat.st_dev) == (path_stat.st_ino, path_stat.st_dev)
