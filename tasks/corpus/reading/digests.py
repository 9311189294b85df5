"""Digests of input files, remembered, so that a second run need not read them to know them."""

from __future__ import annotations

import json
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from tasks.contract import HallmarkError, current_session
from tasks.corpus.reading.sources import digest_of

SECOND = 10**9

#: Size and time of change of each file when this process last took or recalled its digest.
_SEEN: dict[str, tuple[int, int]] = {}


def stamp(path: Path) -> tuple[int, int]:
    """Bytes of a file, and when it was changed, in nanoseconds."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def seen(path: Path) -> tuple[int, int] | None:
    """The stamp of a file when its digest was taken; None if it was not."""
    return _SEEN.get(str(path))


class Digests:
    """SHA-256 of local files by path, size and time of change, in a file of the work folder.

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
            size, changed = stamp(path)
            match self.known.get(name):
                case [int(s), int(c), int(noted), str(digest)] if (s, c) == (
                    size,
                    changed,
                ) and changed // SECOND < noted // SECOND:
                    _SEEN[str(path)] = (size, changed)
                    return digest
        noted = time.time_ns()
        digest = digest_of(source, path)
        with suppress(OSError):
            if stamp(path) == (size, changed):  # else it changed meanwhile
                _SEEN[str(path)] = (size, changed)
                self.fresh[name] = [size, changed, noted, digest]
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
