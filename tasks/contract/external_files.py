"""Record the state of files outside the store, and detect whether they change while a stage runs.

A fingerprint contains the digests of these files, but a stage reads them later, by path. So the
contract records the state of each file when it computes the digest, and compares it before the
commit. The ctime reveals a file that was replaced and put back meanwhile, or a folder that was
renamed and renamed back. A change of permissions, owner or links also changes the ctime, so it
fails the stage too; the error message then mentions these causes.
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
from typing import Any, NamedTuple

from hallmark.tasks.contract.errors import FileChangedError

#: Coarsest resolution of a file system's timestamps, in nanoseconds.
TIMESTAMP_TICK_NS = 2_000_000_000


class FileStamp(NamedTuple):
    """Metadata that differ if the file at a path changes, even if its mtime is reset."""

    mtime_ns: int
    ctime_ns: int
    size: int
    inode: int


def stat_to_file_stamp(stat_result: os.stat_result) -> FileStamp:
    return FileStamp(
        stat_result.st_mtime_ns, stat_result.st_ctime_ns, stat_result.st_size, stat_result.st_ino
    )


def is_stamp_reliable(stamp: FileStamp) -> bool:
    """Whether any later change of the file gives it another stamp."""
    return time.time_ns() - max(stamp.mtime_ns, stamp.ctime_ns) >= TIMESTAMP_TICK_NS


def _differ_in_ctime_alone(before: FileStamp, after: FileStamp) -> bool:
    """Whether two stamps have the same mtime, size and inode, but different ctimes."""
    return before.ctime_ns != after.ctime_ns and before == after._replace(ctime_ns=before.ctime_ns)


@dataclass(frozen=True)
class FileState:
    """The state of a file when its digest was computed."""

    digest: str
    stamp: FileStamp
    is_stamp_reliable: bool
    """False if the file had changed just before, see the function ``is_stamp_reliable``."""


class FolderListing(NamedTuple):
    """The names in a folder when it was read."""

    list_present_names: Callable[[], list[str]]
    """List the names that are in the folder now."""
    names: list[str]
    folder: str


@dataclass
class ExternalFiles:
    """The states of files outside the store when their digests were computed."""

    file_states: dict[str, FileState] = field(default_factory=dict)
    """States of the files, by absolute path."""
    directory_times: dict[str, tuple[int, int]] = field(default_factory=dict)
    """mtime and ctime of the folders above the files, by path."""
    link_stamps: dict[str, FileStamp] = field(default_factory=dict)
    """Stamps of the symbolic links on the paths of the files, by path."""
    folder_listings: list[FolderListing] = field(default_factory=list)

    @contextmanager
    def record_hashed_files(self) -> Iterator[None]:
        """Record each file whose digest is computed inside this context."""
        token = _active_recorder.set(self)
        try:
            yield
        finally:
            _active_recorder.reset(token)

    @contextmanager
    def reuse_recorded_digests(self) -> Iterator[None]:
        """Let ``hash_file`` reuse the recorded digests of unchanged files inside this context."""
        token = _active_digest_source.set(self)
        try:
            yield
        finally:
            _active_digest_source.reset(token)

    def add_file(self, path: Path, state: FileState) -> None:
        """Record a file, the folders above it and the symbolic links on its path.

        Raises:
            FileChangedError: The file or a folder above it vanished since the digest was computed.
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
        """Return the digest of a recorded, unchanged file; None for any other file."""
        absolute_path = os.path.abspath(path)
        if absolute_path not in self.file_states or self._describe_file_change(absolute_path):
            return None
        return self.file_states[absolute_path].digest

    def describe_first_change(self) -> str | None:
        """Describe the first change and what to do, for an error; None if nothing changed."""
        for path in self.file_states:
            if change := self._describe_file_change(path):
                return change
        for path, stamp in self.link_stamps.items():
            try:
                current_stamp = stat_to_file_stamp(os.lstat(path))
            except OSError as error:
                return format_unreadable_message(path, error)
            if _differ_in_ctime_alone(stamp, current_stamp):
                return format_metadata_changed_message(f"the link {path}")
            if current_stamp != stamp:
                return format_file_changed_message(path)
        for path, (content_time, metadata_time) in self.directory_times.items():
            try:
                stat_result = os.stat(path)
            except OSError as error:
                return format_unreadable_message(path, error)
            # A new entry changes mtime and ctime; renaming the folder changes only its ctime.
            if stat_result.st_mtime_ns == content_time and stat_result.st_ctime_ns != metadata_time:
                return format_metadata_changed_message(f"the folder {path}")
        for listing in self.folder_listings:
            if new_names := sorted({*listing.list_present_names()} - {*listing.names}):
                return format_file_changed_message(os.path.join(listing.folder, new_names[0]))
        return None

    def check_unchanged(self) -> None:
        """Raise FileChangedError if any recorded file changed."""
        if change := self.describe_first_change():
            raise FileChangedError(change)

    def _describe_file_change(self, absolute_path: str) -> str | None:
        """Describe the change of one file, for an error; None if it did not change."""
        state = self.file_states[absolute_path]
        try:
            stat_result = os.stat(absolute_path)
            stamp = stat_to_file_stamp(stat_result)
            if stamp == state.stamp and state.is_stamp_reliable:
                return None
            # Some network file systems give a file a new inode number at each lookup.
            if stamp[:3] != state.stamp[:3] and not (
                # Reading a named pipe that replaced the file would block.
                _differ_in_ctime_alone(state.stamp, stamp) and stat.S_ISREG(stat_result.st_mode)
            ):
                return format_file_changed_message(absolute_path)
            current_state = read_file_state(Path(absolute_path))
        except OSError as error:
            return format_unreadable_message(absolute_path, error)
        if current_state.digest != state.digest:
            return format_file_changed_message(absolute_path)
        if current_state.stamp[:3] == state.stamp[:3]:
            if current_state.stamp == state.stamp:
                self.file_states[absolute_path] = current_state
            return None
        if _differ_in_ctime_alone(state.stamp, current_state.stamp):
            return format_metadata_changed_message(absolute_path)
        return format_file_changed_message(absolute_path)

    def to_json(self) -> dict[str, Any]:
        """Convert the states to JSON for ``from_json``, without ``folder_listings``."""
        files = {
            path: [state.digest, state.stamp, state.is_stamp_reliable]
            for path, state in self.file_states.items()
        }
        return {"files": files, "directories": self.directory_times, "links": self.link_stamps}

    @classmethod
    def from_json(cls, json_value: dict[str, Any]) -> ExternalFiles:
        files = {
            path: FileState(digest, FileStamp(*stamp), is_reliable)
            for path, (digest, stamp, is_reliable) in json_value["files"].items()
        }
        directories = {path: tuple(times) for path, times in json_value["directories"].items()}
        links = {path: FileStamp(*stamp) for path, stamp in json_value["links"].items()}
        return cls(files, directories, links)


_active_recorder: ContextVar[ExternalFiles | None] = ContextVar(
    "hallmark_active_recorder", default=None
)
_active_digest_source: ContextVar[ExternalFiles | None] = ContextVar(
    "hallmark_active_digest_source", default=None
)


def format_file_changed_message(path: str | Path) -> str:
    return (
        f"{path} changed while it was being read; nothing was stored; run again when no other "
        "process is writing to the file"
    )


def format_metadata_changed_message(path: str | Path) -> str:
    """Format the message about a path of which only the ctime differs.

    Args:
        path: Path of a file, or a path after "the folder" or "the link".
    """
    return (
        f"{path} was renamed or replaced, or its permissions, owner or links changed while it "
        "was being read, so the stage may have read different content; nothing was stored; run "
        "again when no other process is changing it"
    )


def format_file_missing_message(path: str | Path) -> str:
    return (
        f"{path} disappeared while it was being read; nothing was stored; restore the file, or "
        "correct the path, and run again"
    )


def format_unreadable_message(path: str | Path, error: OSError) -> str:
    """Format the message about a recorded path that is now missing or unreadable."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return format_file_missing_message(path)
    return (
        f"{path} was readable before, but cannot be read now ({error.strerror or error}); nothing "
        "was stored; make it readable and run again"
    )


def record_file_state(path: Path, state: FileState) -> None:
    """Add a file's state to the active recorder, if any."""
    recorder = _active_recorder.get()
    if recorder is not None:
        recorder.add_file(path, state)


def find_recorded_digest(path: Path) -> str | None:
    """Return the active recorded digest of an unchanged file; None if there is none."""
    digest_source = _active_digest_source.get()
    return digest_source.find_unchanged_digest(path) if digest_source else None


def read_file_state(path: Path) -> FileState:
    """Compute the SHA-256 of a file, and its stamp at opening."""
    with path.open("rb") as file:
        stamp = stat_to_file_stamp(os.fstat(file.fileno()))
        is_reliable = is_stamp_reliable(stamp)
        return FileState(hashlib.file_digest(file, "sha256").hexdigest(), stamp, is_reliable)


def hash_file(path: Path) -> str:
    """Compute the SHA-256 of a file, reuse a recorded digest, and record a new one.

    See ``ExternalFiles.record_hashed_files`` and ``ExternalFiles.reuse_recorded_digests``.
    """
    if recorded_digest := find_recorded_digest(path):
        return recorded_digest
    state = read_file_state(path)
    record_file_state(path, state)
    return state.digest
