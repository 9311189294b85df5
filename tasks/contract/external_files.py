"""Files outside the store that a stage reads, and whether they stayed what they were.

A fingerprint holds the digests of these files, but a stage reads them later, by their paths. So the
contract notes the state of each file when its digest is taken and compares it before the commit. A
file that is replaced and put back in between is found by its time of change (ctime), a folder that
is renamed and renamed back by its own. A change of permissions, owner or links moves the same time,
so it fails a stage too; the error then says that the content is the same.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.contract.errors import FileChangedError

#: Nanoseconds: the coarsest step of a file system's times.
TICK = 2_000_000_000

#: Times of content and of metadata in nanoseconds, size in bytes, and inode of a file.
FileStamp = tuple[int, int, int, int]


def file_stamp(about: os.stat_result) -> FileStamp:
    """What differs between two contents of one path, also where the time of content is kept."""
    return about.st_mtime_ns, about.st_ctime_ns, about.st_size, about.st_ino


def is_settled(stamp: FileStamp) -> bool:
    """Whether a file that changes from now on gets another stamp."""
    return time.time_ns() - max(stamp[:2]) >= TICK


def _differ_in_ctime_alone(before: FileStamp, now: FileStamp) -> bool:
    """Whether a path has the same time of content, size and inode, and another ctime."""
    return before[1] != now[1] and (before[0], *before[2:]) == (now[0], *now[2:])


@dataclass(frozen=True)
class FileState:
    """A file as it was when its digest was taken."""

    digest: str
    stamp: FileStamp
    settled: bool
    """Whether it had not been changed just before, see ``is_settled``."""


@dataclass
class ExternalFiles:
    """Files outside the store, as they were when their digests were taken."""

    files: dict[str, FileState] = field(default_factory=dict)
    """By absolute path."""
    directories: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Times of content and of metadata of the folders above the files."""
    links: dict[str, FileStamp] = field(default_factory=dict)
    """Symbolic links on the way to the files."""
    listings: list[tuple[Callable[[], list[str]], list[str], str]] = field(default_factory=list)
    """Functions that list a folder, what each found at first, and the folder."""

    @contextmanager
    def record(self) -> Iterator[None]:
        """Note each file whose digest is taken inside of this context."""
        token = _recording.set(self)
        try:
            yield
        finally:
            _recording.reset(token)

    @contextmanager
    def recall(self) -> Iterator[None]:
        """Take digests of files that did not change from here instead of reading the files."""
        token = _recalling.set(self)
        try:
            yield
        finally:
            _recalling.reset(token)

    def add(self, path: Path, state: FileState) -> None:
        """Note a file, the folders above it and the links on the way to it.

        Raises:
            FileChangedError: The file or a folder above it vanished since its digest was taken.
        """
        name = os.path.abspath(path)
        self.files[name] = state
        for way in {name, os.path.realpath(name)}:
            for above in (Path(way), *Path(way).parents):
                if str(above) in self.directories or str(above) in self.links:
                    break
                try:
                    about = os.lstat(above)
                except OSError as error:
                    raise FileChangedError(lost_sentence(name, error)) from error
                if stat.S_ISLNK(about.st_mode):
                    self.links[str(above)] = file_stamp(about)
                elif stat.S_ISDIR(about.st_mode):
                    self.directories[str(above)] = about.st_mtime_ns, about.st_ctime_ns

    def unchanged_digest(self, path: Path) -> str | None:
        """The digest of a file that is what it was; None of any other."""
        name = os.path.abspath(path)
        if name not in self.files or self._find_file_change(name):
            return None
        return self.files[name].digest

    def find_change(self) -> str | None:
        """What changed, in a sentence that also says what to do; None where nothing did."""
        for name in self.files:
            if change := self._find_file_change(name):
                return change
        for name, stamp in self.links.items():
            try:
                now = file_stamp(os.lstat(name))
            except OSError as error:
                return lost_sentence(name, error)
            if _differ_in_ctime_alone(stamp, now):
                return metadata_sentence(f"the link {name}")
            if now != stamp:
                return changed_sentence(name)
        for name, (content, metadata) in self.directories.items():
            try:
                about = os.stat(name)
            except OSError as error:
                return lost_sentence(name, error)
            # A new entry changes both times; a folder that is renamed keeps the first.
            if about.st_mtime_ns == content and about.st_ctime_ns != metadata:
                return metadata_sentence(f"the folder {name}")
        for list_names, names, folder in self.listings:
            if new := sorted({*list_names()} - {*names}):
                return changed_sentence(os.path.join(folder, new[0]))
        return None

    def check(self) -> None:
        """Raise FileChangedError where a file is not what it was."""
        if change := self.find_change():
            raise FileChangedError(change)

    def _find_file_change(self, name: str) -> str | None:
        """What changed of one file, in a sentence; None where nothing did."""
        state = self.files[name]
        try:
            about = os.stat(name)
            stamp = file_stamp(about)
            if stamp == state.stamp and state.settled:
                return None
            # Some network file systems number a file anew when it is looked up again.
            if stamp[:3] != state.stamp[:3] and not (
                # A named pipe that took the place of a file would be waited for.
                _differ_in_ctime_alone(state.stamp, stamp) and stat.S_ISREG(about.st_mode)
            ):
                return changed_sentence(name)
            now = read_state(Path(name))
        except OSError as error:
            return lost_sentence(name, error)
        if now.digest != state.digest:
            return changed_sentence(name)
        if now.stamp[:3] == state.stamp[:3]:
            if now.stamp == state.stamp:
                self.files[name] = now
            return None
        if _differ_in_ctime_alone(state.stamp, now.stamp):
            return metadata_sentence(name)
        return changed_sentence(name)

    def to_json(self) -> dict[str, Any]:
        """What ``from_json`` reads; without the listings."""
        files = {name: [s.digest, s.stamp, s.settled] for name, s in self.files.items()}
        return {"files": files, "directories": self.directories, "links": self.links}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ExternalFiles:
        files = {
            name: FileState(digest, tuple(stamp), settled)
            for name, (digest, stamp, settled) in value["files"].items()
        }
        directories = {name: tuple(times) for name, times in value["directories"].items()}
        links = {name: tuple(stamp) for name, stamp in value["links"].items()}
        return cls(files, directories, links)


_recording: ContextVar[ExternalFiles | None] = ContextVar("hallmark_recording", default=None)
_recalling: ContextVar[ExternalFiles | None] = ContextVar("hallmark_recalling", default=None)


def changed_sentence(path: str | Path) -> str:
    return (
        f"{path} changed while it was read; nothing was stored; run again when nothing writes to it"
    )


def metadata_sentence(what: str | Path) -> str:
    """Say that the time of change (ctime) is the only thing that differs.

    Args:
        what: A file, or a folder or link with the word for it before its path.
    """
    return (
        f"{what} was renamed or replaced, or its permissions, owner or links changed while it was "
        f"read, so the stage may have read other content; nothing was stored; run again when "
        f"nothing changes it"
    )


def missing_sentence(path: str | Path) -> str:
    return (
        f"{path} vanished while it was read; put it back, or correct the path, and run again: "
        f"nothing was stored"
    )


def lost_sentence(path: str | Path, error: OSError) -> str:
    """Say why a path that was there before cannot be looked at now."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return missing_sentence(path)
    return (
        f"{path} could be read before and cannot be read now ({error.strerror or error}); make it "
        f"readable and run again: nothing was stored"
    )


def record_state(path: Path, state: FileState) -> None:
    """Tell whoever records what a file is now."""
    files = _recording.get()
    if files is not None:
        files.add(path, state)


def recalled_digest(path: Path) -> str | None:
    """The digest of a file that did not change, where somebody recalls it."""
    files = _recalling.get()
    return files.unchanged_digest(path) if files else None


def read_state(path: Path) -> FileState:
    """SHA-256 of a file, and its stamp when it was opened."""
    with path.open("rb") as file:
        stamp = file_stamp(os.fstat(file.fileno()))
        settled = is_settled(stamp)
        return FileState(hashlib.file_digest(file, "sha256").hexdigest(), stamp, settled)


def file_digest(path: Path) -> str:
    """SHA-256 of a file; whoever records notes it, whoever recalls need not read it."""
    if known := recalled_digest(path):
        return known
    state = read_state(path)
    record_state(path, state)
    return state.digest
