"""Remember digests of input files, so that a second run need not read the files to hash them."""

from __future__ import annotations

import json
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from hallmark.tasks.contract import (
    FileStamp,
    FileState,
    HallmarkError,
    Store,
    get_current_session,
    is_stamp_reliable,
    read_regular_file,
    record_file_state,
    stat_to_file_stamp,
)
from hallmark.tasks.corpus.reading.sources import compute_file_digest

NANOSECONDS_PER_SECOND = 10**9

#: Name of the file in the work folder of a store that contains the digests.
CACHE_FILE = "digests.json"

#: The stamp of each file when this process last computed or looked up its digest.
_STAMP_BY_PATH: dict[str, FileStamp] = {}


def read_file_stamp(path: Path) -> FileStamp:
    """Return the stamp that shows whether a file has changed."""
    return stat_to_file_stamp(path.stat())


def get_stamp_at_digest(path: Path) -> FileStamp | None:
    """Return the stamp of a file when its digest was taken; None without a digest."""
    return _STAMP_BY_PATH.get(str(path))


def forget_file_digests(store: Store) -> None:
    """Delete the cached digests of a store, so that the next run reads and hashes every file."""
    with suppress(FileNotFoundError, IsADirectoryError):
        (store.work_folder / CACHE_FILE).unlink()


class DigestCache:
    """Cache the SHA-256 of local files, by path and stamp, in a file of the work folder.

    An entry is not trusted if the file was changed in the second in which its digest was recorded,
    or later: it may have changed again without a new time. A cache file that is damaged or cannot
    be written is no error: the digests are computed again.
    """

    def __init__(self) -> None:
        self.cache_path: Path | None = None
        self.may_write = False
        with suppress(HallmarkError):  # outside a session nothing is cached
            session = get_current_session()
            self.cache_path = session.store.work_folder / CACHE_FILE
            self.may_write = session.plan_stage is None  # a forecast writes nothing
        self.entries: dict[str, list[Any]] = {}
        with suppress(OSError, ValueError, RecursionError):
            loaded = json.loads(read_regular_file(self.cache_path)) if self.cache_path else {}
            self.entries = loaded if isinstance(loaded, dict) else {}
        self.new_entries: dict[str, list[Any]] = {}

    def get_or_compute_digest(self, source_name: str, path: Path) -> str:
        """Return the SHA-256 of a file.

        Raises:
            UsageError: if the file cannot be read.
        """
        absolute_path = os.path.abspath(path)
        with suppress(OSError):
            current_stamp = read_file_stamp(path)
            match self.entries.get(absolute_path):
                case [list(stored_stamp), int(noted_at), str(digest)] if (
                    stored_stamp[:3] == [*current_stamp[:3]]
                    and current_stamp[0] // NANOSECONDS_PER_SECOND
                    < noted_at // NANOSECONDS_PER_SECOND
                ):
                    _STAMP_BY_PATH[str(path)] = current_stamp
                    record_file_state(
                        path, FileState(digest, current_stamp, is_stamp_reliable(current_stamp))
                    )
                    return digest
        noted_at = time.time_ns()
        digest = compute_file_digest(source_name, path)
        with suppress(OSError):
            if read_file_stamp(path) == current_stamp:  # otherwise it changed meanwhile
                _STAMP_BY_PATH[str(path)] = current_stamp
                self.new_entries[absolute_path] = [current_stamp, noted_at, digest]
        return digest

    def save(self) -> None:
        """Write the cache with the new entries."""
        if self.cache_path is None or not self.may_write or not self.new_entries:
            return
        serialized = json.dumps({**self.entries, **self.new_entries})
        with suppress(OSError):
            self.cache_path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, temporary_path = tempfile.mkstemp(
                dir=self.cache_path.parent, prefix="digests."
            )
            with open(descriptor, "w") as file:
                file.write(serialized)
            os.replace(temporary_path, self.cache_path)
