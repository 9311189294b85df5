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

from hallmark.tasks.contract.errors import FileChangedError

#: Nanoseconds: the coarsest step of a file system's times.
TIMESTAMP_TICK_NS = 2_000_000_000

#: Times of content and of metadata in nanoseconds, size in bytes, and inode of a file.
FileStamp = tuple[int, int, int, int]


def stat_to_file_stamp(stat_result: os.stat_result) -> FileStamp:
    """What differs between two contents of one path, also where the time of content is kept."""
    return stat_result.st_mtime_ns, stat_result.st_ctime_ns, stat_result.st_size, stat_result.st_ino


def is_stamp_reliable(stamp: FileStamp) -> bool:
    """Whether a file that changes from now on gets another stamp."""
    return time.time_ns() - max(stamp[:2]) >= TIMESTAMP_TICK_NS


def _differ_in_ctime_alone(before: FileStamp, now: FileStamp) -> bool:
    """Whether a path has the same time of content, size and inode, and another ctime."""
    return before[1] != now[1] and (before[0], *before[2:]) == (now[0], *now[2:])


@dataclass(frozen=True)
class FileState:
    """A file as it was when its digest was taken."""

    digest: str
    stamp: FileStamp
    is_stamp_reliable: bool
    """Whether it had not been changed just before, see ``is_settled``."""


@dataclass
class ExternalFiles:
    """Files outside the store, as they were when their digests were taken."""

    file_states: dict[str, FileState] = field(default_factory=dict)
    """By absolute path."""
    directory_times: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Times of content and of metadata of the folders above the files."""
    link_stamps: dict[str, FileStamp] = field(default_factory=dict)
    """Symbolic links on the way to the files."""
    folder_listings: list[tuple[Callable[[], list[str]], list[str], str]] = field(
        default_factory=list
    )
    """Functions that list a folder, what each found at first, and the folder."""

    @contextmanager
    def record_hashed_files(self) -> Iterator[None]:
        """Note each file whose digest is taken inside of this context."""
        token = _active_recorder.set(self)
        try:
            yield
        finally:
            _active_recorder.reset(token)

    @contextmanager
    def reuse_recorded_digests(self) -> Iterator[None]:
        """Take digests of files that did not change from here instead of reading the files."""
        token = _active_digest_source.set(self)
        try:
            yield
        finally:
            _active_digest_source.reset(token)

    def add_file(self, path: Path, state: FileState) -> None:
        """Note a file, the folders above it and the links on the way to it.

        Raises:
            FileChangedError: The file or a folder above it vanished since its digest was taken.
        """
        absolute_path = os.path.abspath(path)
        self.file_states[absolute_path] = state
        for path_variant in {absolute_path, os.path.realpath(absolute_path)}:
            for ancestor in (Path(path_variant), *Path(path_variant).parents):
                if str(ancestor) in self.directory_times or str(ancestor) in self.link_stamps:
                    break
                try:
                    stat_result = os.lstat(ancestor)
                except OSError as error:
                    raise FileChangedError(
                        format_unreadable_message(absolute_path, error)
                    ) from error
                if stat.S_ISLNK(stat_result.st_mode):
                    self.link_stamps[str(ancestor)] = stat_to_file_stamp(stat_result)
                elif stat.S_ISDIR(stat_result.st_mode):
                    self.directory_times[str(ancestor)] = (
                        stat_result.st_mtime_ns,
                        stat_result.st_ctime_ns,
                    )

    def find_unchanged_digest(self, path: Path) -> str | None:
        """The digest of a file that is what it was; None of any other."""
        absolute_path = os.path.abspath(path)
        if absolute_path not in self.file_states or self._find_file_change(absolute_path):
            return None
        return self.file_states[absolute_path].digest

    def describe_first_change(self) -> str | None:
        """What changed, in a sentence that also says what to do; None where nothing did."""
        for path in self.file_states:
            if change := self._find_file_change(path):
                return change
        for path, stamp in self.link_stamps.items():
            try:
                now = stat_to_file_stamp(os.lstat(path))
            except OSError as error:
                return format_unreadable_message(path, error)
            if _differ_in_ctime_alone(stamp, now):
                return format_metadata_changed_message(f"the link {path}")
            if now != stamp:
                return format_file_changed_message(path)
        for path, (content_time, metadata_time) in self.directory_times.items():
            try:
                stat_result = os.stat(path)
            except OSError as error:
                return format_unreadable_message(path, error)
            # A new entry changes both times; a folder that is renamed keeps the first.
            if stat_result.st_mtime_ns == content_time and stat_result.st_ctime_ns != metadata_time:
                return format_metadata_changed_message(f"the folder {path}")
        for list_names, names, folder in self.folder_listings:
            if new_names := sorted({*list_names()} - {*names}):
                return format_file_changed_message(os.path.join(folder, new_names[0]))
        return None

    def check_unchanged(self) -> None:
        """Raise FileChangedError where a file is not what it was."""
        if change := self.describe_first_change():
            raise FileChangedError(change)

    def _find_file_change(self, name: str) -> str | None:
        """What changed of one file, in a sentence; None where nothing did."""
        state = self.file_states[name]
        try:
            about = os.stat(name)
            stamp = stat_to_file_stamp(about)
            if stamp == state.stamp and state.is_stamp_reliable:
                return None
            # Some network file systems number a file anew when it is looked up again.
            if stamp[:3] != state.stamp[:3] and not (
                # A named pipe that took the place of a file would be waited for.
                _differ_in_ctime_alone(state.stamp, stamp) and stat.S_ISREG(about.st_mode)
            ):
                return format_file_changed_message(name)
            now = read_file_state(Path(name))
        except OSError as error:
            return format_unreadable_message(name, error)
        if now.digest != state.digest:
            return format_file_changed_message(name)
        if now.stamp[:3] == state.stamp[:3]:
            if now.stamp == state.stamp:
                self.file_states[name] = now
            return None
        if _differ_in_ctime_alone(state.stamp, now.stamp):
            return format_metadata_changed_message(name)
        return format_file_changed_message(name)

    def to_json(self) -> dict[str, Any]:
        """What ``from_json`` reads; without the listings."""
        files = {
            path: [state.digest, state.stamp, state.is_stamp_reliable]
            for path, state in self.file_states.items()
        }
        return {"files": files, "directories": self.directory_times, "links": self.link_stamps}

    @classmethod
    def from_json(cls, json_value: dict[str, Any]) -> ExternalFiles:
        files = {
            path: FileState(digest, tuple(stamp), is_reliable)
            for path, (digest, stamp, is_reliable) in json_value["files"].items()
        }
        directories = {path: tuple(times) for path, times in json_value["directories"].items()}
        links = {path: tuple(stamp) for path, stamp in json_value["links"].items()}
        return cls(files, directories, links)


_active_recorder: ContextVar[ExternalFiles | None] = ContextVar("hallmark_recording", default=None)
_active_digest_source: ContextVar[ExternalFiles | None] = ContextVar(
    "hallmark_recalling", default=None
)


def format_file_changed_message(path: str | Path) -> str:
    return (
        f"{path} changed while it was read; nothing was stored; run again when nothing writes to it"
    )


def format_metadata_changed_message(path: str | Path) -> str:
    """Say that the time of change (ctime) is the only thing that differs.

    Args:
        path: A file, or a folder or link with the word for it before its path.
    """
    return (
        f"{path} was renamed or replaced, or its permissions, owner or links changed while it was "
        f"read, so the stage may have read other content; nothing was stored; run again when "
        f"nothing changes it"
    )


def format_file_missing_message(path: str | Path) -> str:
    return (
        f"{path} vanished while it was read; put it back, or correct the path, and run again: "
        f"nothing was stored"
    )


def format_unreadable_message(path: str | Path, error: OSError) -> str:
    """Say why a path that was there before cannot be looked at now."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return format_file_missing_message(path)
    return (
        f"{path} could be read before and cannot be read now ({error.strerror or error}); make it "
        f"readable and run again: nothing was stored"
    )


def record_file_state(path: Path, state: FileState) -> None:
    """Tell whoever records what a file is now."""
    recorder = _active_recorder.get()
    if recorder is not None:
        recorder.add_file(path, state)


def find_recorded_digest(path: Path) -> str | None:
    """The digest of a file that did not change, where somebody recalls it."""
    digest_source = _active_digest_source.get()
    return digest_source.find_unchanged_digest(path) if digest_source else None


def read_file_state(path: Path) -> FileState:
    """SHA-256 of a file, and its stamp when it was opened."""
    with path.open("rb") as file:
        stamp = stat_to_file_stamp(os.fstat(file.fileno()))
        is_reliable = is_stamp_reliable(stamp)
        return FileState(hashlib.file_digest(file, "sha256").hexdigest(), stamp, is_reliable)


def hash_file(path: Path) -> str:
    """SHA-256 of a file; whoever records notes it, whoever recalls need not read it."""
    if recorded_digest := find_recorded_digest(path):
        return recorded_digest
    state = read_file_state(path)
    record_file_state(path, state)
    return state.digest
