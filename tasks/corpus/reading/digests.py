"""Digests of input files, remembered, so that a second run need not read them to know them."""

from __future__ import annotations

import json
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from tasks.contract import (
    FileStamp,
    FileState,
    HallmarkError,
    current_session,
    file_stamp,
    is_settled,
    record_state,
)
from tasks.corpus.reading.sources import digest_of

SECOND = 10**9

#: The stamp of each file when this process last took or recalled its digest.
_SEEN: dict[str, FileStamp] = {}


def stamp(path: Path) -> FileStamp:
    """What tells whether a file is still the same."""
    return file_stamp(path.stat())


def seen(path: Path) -> FileStamp | None:
    """The stamp of a file when its digest was taken; None if it was not."""
    return _SEEN.get(str(path))


class Digests:
    """SHA-256 of local files by path and stamp, in a file of the work folder.

    An entry is not trusted if the file was changed in the second in which its digest was noted, or
    later: it may have changed again since without its time telling. Nobody fails if the file of
    entries is damaged or cannot be written: digests are taken again.
    """

    def __init__(self) -> None:
        self.path: Path | None = None
        self.writes = False
        with suppress(HallmarkError):  # outside of a session nothing is remembered
            session = current_session()
            self.path = session.store.work / "digests.json"
            self.writes = session.plan is None  # a forecast only looks
        self.known: dict[str, list] = {}
        with suppress(OSError, ValueError):
            found = json.loads(self.path.read_bytes()) if self.path else {}
            self.known = found if isinstance(found, dict) else {}
        self.fresh: dict[str, list] = {}

    def of(self, source: str, path: Path) -> str:
        """UsageError if the file cannot be read."""
        name = os.path.abspath(path)
        with suppress(OSError):
            found = stamp(path)
            match self.known.get(name):
                case [list(known), int(noted), str(digest)] if (
                    known[:3] == [*found[:3]] and found[0] // SECOND < noted // SECOND
                ):
                    _SEEN[str(path)] = found
                    record_state(path, FileState(digest, found, is_settled(found)))
                    return digest
        noted = time.time_ns()
        digest = digest_of(source, path)
        with suppress(OSError):
            if stamp(path) == found:  # else it changed meanwhile
                _SEEN[str(path)] = found
                self.fresh[name] = [found, noted, digest]
        return digest

    def keep(self) -> None:
        """Write down what was taken anew."""
        if self.path is None or not self.writes or not self.fresh:
            return
        entries = json.dumps({**self.known, **self.fresh})
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.path.parent, prefix="digests.")
            with open(handle, "w") as file:
                file.write(entries)
            os.replace(name, self.path)
