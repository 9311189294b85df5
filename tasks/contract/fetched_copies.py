"""Keep copies of the objects of a store on this machine, up to a number of bytes.

    <work>/fetched/artifacts/<stage>/<fingerprint>/     copies of the files of an artifact
    <work>/fetch-users/<token>                          the artifacts that a process uses
    <work>/fetch-lock                                   locked while copies or lists are removed

The copies of the artifacts that were not used for the longest time are removed first. Those of an
artifact that a running process has used since its start stay, because that process may read them
again. A process locks the file in which it lists its artifacts; the lock ends with the process.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import secrets
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hallmark.tasks.contract.errors import UsageError

log = logging.getLogger("hallmark")

FETCHED_FOLDER = "fetched"
FETCH_USERS_FOLDER = "fetch-users"
LOCK_FILE = "fetch-lock"

#: Environment variable with the most gigabytes of copies of a store on this machine.
CACHE_SIZE_VARIABLE = "HALLMARK_CACHE_GB"
DEFAULT_CACHE_GB = 50.0

#: Share of the most bytes to which copies are removed, and share whose fetching causes another look
#: at their size.
TARGET_SHARE, LOOK_SHARE = 0.9, 0.05


def read_max_cache_bytes() -> float:
    """Read the most bytes of copies from the environment.

    Raises:
        UsageError: The value is not a number of gigabytes.
    """
    text = os.environ.get(CACHE_SIZE_VARIABLE, "")
    with suppress(ValueError):
        gigabytes = float(text or DEFAULT_CACHE_GB)
        if gigabytes >= 0 and math.isfinite(gigabytes):
            return gigabytes * 1e9
    raise UsageError(
        f"{CACHE_SIZE_VARIABLE} is {text[:60]!r}, but must be a number of gigabytes, such as "
        f"{DEFAULT_CACHE_GB:.0f}"
    )


class FetchedCopies:
    """The copies in the work folder of a store, as this process uses them.

    Args:
        work_folder: The work folder.
    """

    def __init__(self, work_folder: Path) -> None:
        self.work_folder, self.folder = work_folder, work_folder / FETCHED_FOLDER
        self._used_artifacts: set[str] = set()
        self._bytes_since_look = math.inf
        self._lock = threading.Lock()
        self._user_file: int | None = None

    def use(self, key: str) -> Path:
        """Return the path of the copy of an object, which then stays as long as this process.

        Args:
            key: Key of the object; the copy may not exist.
        """
        artifact_folder = "/".join(key.split("/")[:3])
        with self._lock:
            if artifact_folder not in self._used_artifacts:
                # Nobody else may look while a new list is not locked yet.
                with self._hold_lock(fcntl.LOCK_EX if self._user_file is None else fcntl.LOCK_SH):
                    os.write(self._open_user_file(), f"{artifact_folder}\n".encode())
                with suppress(FileNotFoundError):
                    os.utime(self.folder / artifact_folder)  # its last use
                self._used_artifacts.add(artifact_folder)
        return self.folder / key

    def record_fetched(self, byte_count: int) -> None:
        """Record that a copy was fetched; remove other copies if there are too many bytes."""
        max_bytes = read_max_cache_bytes()
        with self._lock:
            self._bytes_since_look += byte_count
            if self._bytes_since_look <= LOOK_SHARE * max_bytes:
                return
            self._bytes_since_look = 0
            self._remove_oldest(max_bytes)

    def _open_user_file(self) -> int:
        """Open and lock the file in which this process lists the artifacts that it uses."""
        if self._user_file is None:
            self._list_used_artifacts()  # removes the lists of dead processes
            users_folder = self.work_folder / FETCH_USERS_FOLDER
            users_folder.mkdir(parents=True, exist_ok=True)
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND
            self._user_file = os.open(users_folder / secrets.token_hex(8), flags, 0o600)
            fcntl.flock(self._user_file, fcntl.LOCK_EX)
        return self._user_file

    @contextmanager
    def _hold_lock(self, kind: int) -> Iterator[None]:
        self.work_folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_CREAT | os.O_RDONLY | os.O_NOFOLLOW
        descriptor = os.open(self.work_folder / LOCK_FILE, flags, 0o600)
        try:
            fcntl.flock(descriptor, kind)
            yield
        finally:
            os.close(descriptor)

    def _remove_oldest(self, max_bytes: float) -> None:
        sizes = {path: _measure_bytes(path) for path in self.folder.glob("artifacts/*/*")}
        total = sum(sizes.values())
        if total <= max_bytes:
            return
        removed_bytes = 0
        with self._hold_lock(fcntl.LOCK_EX):
            used_artifacts = self._list_used_artifacts()
            for path in sorted(sizes, key=_read_last_use):
                if total - removed_bytes <= TARGET_SHARE * max_bytes:
                    break
                if path.relative_to(self.folder).as_posix() not in used_artifacts:
                    shutil.rmtree(path, ignore_errors=True)
                    removed_bytes += sizes[path]
        log.debug(
            "removed copies with a total size of %d bytes from %s", removed_bytes, self.folder
        )

    def list_ended_user_files(self) -> list[Path]:
        """List the files in which dead processes listed the artifacts that they used."""
        users_folder = self.work_folder / FETCH_USERS_FOLDER
        if not users_folder.is_dir():
            return []
        with self._hold_lock(fcntl.LOCK_SH):  # every file of a running process is locked then
            return [path for path in sorted(users_folder.iterdir()) if _read_list(path) is None]

    def _list_used_artifacts(self) -> set[str]:
        """List the artifacts that running processes use; remove the lists of dead ones."""
        used_artifacts = {*self._used_artifacts}
        for path in (self.work_folder / FETCH_USERS_FOLDER).glob("*"):
            if (names := _read_list(path)) is None:
                path.unlink(missing_ok=True)
            else:
                used_artifacts |= {*names}
        return used_artifacts


def _read_list(path: Path) -> list[str] | None:
    """Read the artifacts that a process uses; None if the process is dead."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:  # removed meanwhile
        return None
    except BlockingIOError:
        return path.read_text(errors="replace").splitlines()
    return None


def _measure_bytes(folder: Path) -> int:
    byte_count = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                byte_count += Path(parent, name).lstat().st_size
    return byte_count


def _read_last_use(folder: Path) -> float:
    with suppress(FileNotFoundError):
        return folder.stat().st_mtime
    return 0.0


_copies_by_folder: dict[Path, FetchedCopies] = {}
_copies_lock = threading.Lock()


def open_fetched_copies(work_folder: Path) -> FetchedCopies:
    """Return the copies in a work folder, the same object for all stores of this process."""
    with _copies_lock:
        return _copies_by_folder.setdefault(work_folder, FetchedCopies(work_folder))
