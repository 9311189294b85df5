"""Read and list the files of a local store into which other programs may have put anything.

Only regular files below the folder of the store are objects. Named pipes, sockets and devices would
block or never end, and links could lead to any file of the machine. What is asked for by its key is
refused with a sentence; in a list, it is ignored with a warning.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from hallmark.tasks.contract.errors import HallmarkError

log = logging.getLogger("hallmark")

#: O_NONBLOCK, since opening a named pipe would otherwise wait for its writer.
OPEN_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

#: Number of ignored names that a warning lists, and of characters of each.
MAX_LISTED_NAMES, MAX_NAME_CHARACTERS = 5, 100

#: End of the name of a file that is still being written by obstore.
_UNFINISHED_UPLOAD = re.compile(r"#[0-9]+$")

#: The store and the names of each warning of this process.
_REPORTED_NAMES: set[tuple[Path, tuple[str, ...]]] = set()


class LocalObjects:
    """The objects of a local store by key, the path of a file below the folder of the store.

    Args:
        root_folder: The folder, without links in its path.
    """

    def __init__(self, root_folder: Path) -> None:
        self.root_folder = root_folder

    def open_file(self, key: str) -> BinaryIO:
        """Open an object for reading.

        Raises:
            HallmarkError: It is not a regular file, or a link leads out of the store.
            OSError: It cannot be opened; a folder raises IsADirectoryError.
        """
        path = self._check_is_inside(self.root_folder / key)
        try:
            descriptor = os.open(path, OPEN_FLAGS)
        except NotADirectoryError:
            self._refuse_file_as_folder(os.path.dirname(key))
            raise
        except OSError as error:
            if error.errno == errno.ENXIO:  # a socket, or a device that does not exist
                self._check_is_regular(path, os.stat(path).st_mode)
            raise
        try:
            self._check_is_regular(path, os.fstat(descriptor).st_mode)
            return open(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise

    def find_file(self, key: str) -> Path:
        """Return the path of an object, which may be missing.

        Raises:
            HallmarkError: It is not a regular file, or a link leads out of the store.
        """
        path = self._check_is_inside(self.root_folder / key)
        with suppress(OSError):  # the reader says why it cannot be read
            self._check_is_regular(path, os.stat(path).st_mode)
        return path

    def check_folder_is_inside(self, key: str) -> None:
        """Raise HallmarkError if the folder of a key that is written is outside, or a file."""
        self._check_is_inside((self.root_folder / key).parent, shown_path=self.root_folder / key)
        self._refuse_file_as_folder(os.path.dirname(key))

    def _refuse_file_as_folder(self, folder: str) -> None:
        """Raise HallmarkError if a folder, or one above it, is something else."""
        for parent in (*reversed(Path(folder).parents), Path(folder)):
            path = self.root_folder / parent
            try:
                mode = os.stat(path).st_mode
            except OSError:  # nothing is there, or the caller says why it cannot be read
                return
            if not stat.S_ISDIR(mode):
                raise HallmarkError(
                    f"{path} is {describe_file_type(mode)}, but must be a folder; restore it from "
                    "a backup, or remove it if the folder was empty"
                )

    def _check_is_inside(self, path: Path, shown_path: Path | None = None) -> Path:
        """Return the path; raise HallmarkError if a link in it leads out of the store."""
        try:
            real_path = os.path.realpath(path)
        except ValueError as error:  # a zero byte, which no key has
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL)) from error
        if not Path(real_path).is_relative_to(self.root_folder):
            raise HallmarkError(
                f"{shown_path or path} points outside the store; remove the link, then run again"
            )
        if os.path.islink(real_path):
            raise HallmarkError(f"{path} is a link to itself; remove the link, then run again")
        return path

    def _check_is_regular(self, path: Path, mode: int) -> None:
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise HallmarkError(
                f"{path} is {describe_file_type(mode)}, but a store can contain only regular "
                "files; remove it, then run again"
            )

    def list_folder_names(self, prefix: str) -> list[str]:
        """List the names of the folders directly below a prefix, sorted."""
        ignored_names: list[str] = []
        names = [
            entry.name
            for entry in self._iter_entries(prefix, ignored_names)
            if entry.is_dir(follow_symlinks=False)
        ]
        self._warn_once(ignored_names)
        return sorted(names)

    def list_entry_names(self, folder: str) -> list[str]:
        """List the names of everything directly in a folder, sorted; also what is no object."""
        try:
            return sorted(os.listdir(self._check_is_inside(self.root_folder / folder)))
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            self._refuse_file_as_folder(folder)
            raise

    def list_sizes(self, prefix: str) -> dict[str, int]:
        """Return the sizes in bytes of all objects below a prefix, by key."""
        ignored_names: list[str] = []
        sizes: dict[str, int] = {}
        prefixes = [prefix]
        while prefixes:
            folder = prefixes.pop()
            for entry in self._iter_entries(folder, ignored_names):
                key = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir(follow_symlinks=False):
                    prefixes.append(key)
                elif not _UNFINISHED_UPLOAD.search(entry.name):
                    try:
                        sizes[key] = entry.stat(follow_symlinks=False).st_size
                    except FileNotFoundError:
                        continue  # it was removed meanwhile
        self._warn_once(ignored_names)
        return sizes

    def _iter_entries(self, prefix: str, ignored_names: list[str]) -> Iterator[os.DirEntry[str]]:
        """Yield the files and folders directly below a prefix; add others to ``ignored_names``."""
        for parent in (*Path(prefix).parents, Path(prefix)):
            if (self.root_folder / parent).is_symlink() and parent.parts:
                ignored_names.append(f"{escape_name(str(parent))} (is a link)")
                return
        try:
            entries = os.scandir(self.root_folder / prefix)
        except FileNotFoundError:
            return
        except NotADirectoryError:
            self._refuse_file_as_folder(prefix)
            raise
        with entries:
            for entry in entries:
                is_object = entry.is_dir(follow_symlinks=False) or entry.is_file(
                    follow_symlinks=False
                )
                if is_object and is_valid_name(entry.name):
                    yield entry
                else:
                    name = escape_name(f"{prefix}/{entry.name}" if prefix else entry.name)
                    with suppress(OSError):  # it was removed meanwhile
                        if not is_object:
                            mode = entry.stat(follow_symlinks=False).st_mode
                            name += f" (is {describe_file_type(mode)})"
                    ignored_names.append(name)

    def _warn_once(self, ignored_names: list[str]) -> None:
        names = tuple(sorted(ignored_names))
        if not names or (self.root_folder, names) in _REPORTED_NAMES:
            return
        _REPORTED_NAMES.add((self.root_folder, names))
        listed = ", ".join(names[:MAX_LISTED_NAMES])
        if len(names) > MAX_LISTED_NAMES:
            listed += f" and {len(names) - MAX_LISTED_NAMES:,} more"
        log.warning(
            "ignored %s in the store %s: a store can contain only files and folders whose names "
            "are text without control characters; remove %s",
            listed,
            self.root_folder,
            "it" if len(names) == 1 else "them",
        )


def read_regular_file(path: Path) -> bytes:
    """Read a file of a work area.

    Raises:
        OSError: It cannot be read, or it is not a regular file.
    """
    with open(os.open(path, OPEN_FLAGS), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read()


def describe_file_type(mode: int) -> str:
    """Name the type of a file that is no folder."""
    if stat.S_ISREG(mode):
        return "a file"
    if stat.S_ISLNK(mode):
        return "a link"
    if stat.S_ISFIFO(mode):
        return "a named pipe"
    return "a socket" if stat.S_ISSOCK(mode) else "a device"


def is_valid_name(name: str) -> bool:
    """Whether a name of a file can be part of a key: text without control characters."""
    return not any(unicodedata.category(character) in ("Cc", "Cs") for character in name)


def escape_name(name: str, max_characters: int = MAX_NAME_CHARACTERS) -> str:
    """Make a name printable, and cut it."""
    escaped = "".join(
        character if character.isprintable() else ascii(character)[1:-1]
        for character in name[: max_characters + 1]
    )
    return escaped if len(escaped) <= max_characters else f"{escaped[: max_characters - 3]}..."
