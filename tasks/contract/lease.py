"""Leases: a work area is held by one process at a time."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tasks.contract.errors import UsageError

LEASE = "lease"


@contextmanager
def lease(folder: Path) -> Iterator[Path]:
    """Hold a folder, made where it is missing; wait for whoever holds it.

    The lease is a lock of the operating system: it ends with the process, however it ends.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    while True:
        # The holder before us removes the folder when it commits, at any moment of these.
        with suppress(FileExistsError):
            folder.mkdir()
        try:
            lock = os.open(folder / LEASE, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            if folder.is_symlink() and not folder.exists():
                raise UsageError(
                    f"{folder} is a link to {folder.readlink()}, which is not there: mount or make "
                    f"it, or remove the link"
                ) from None
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _same_file(lock, folder / LEASE):
                yield folder
                return
        finally:
            os.close(lock)


def clear(folder: Path, kept: Collection[str] = ()) -> None:
    """Remove what a leased folder holds but for the names that are ``kept``; where there is none of
    them, the folder with its lease."""
    stays = {path.name for path in folder.iterdir()} & set(kept) - {LEASE}
    if not stays:
        shutil.rmtree(folder, ignore_errors=True)
        return
    empty(folder, stays)


def empty(folder: Path, stays: Collection[str] = ()) -> None:
    """Remove what a leased folder holds but for the names in ``stays`` and the lease."""
    for path in folder.iterdir():
        if path.is_dir() and path.name not in stays:
            shutil.rmtree(path, ignore_errors=True)
        elif path.name not in {LEASE, *stays}:
            path.unlink()


@contextmanager
def beside(folder: Path) -> Iterator[None]:
    """Use what a folder stands for, beside others; wait for whoever has it alone."""
    with _opened(folder) as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


@contextmanager
def alone(folder: Path) -> Iterator[bool]:
    """Have it alone; false, at once, where anybody uses it."""
    with _opened(folder) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        yield lock
    finally:
        os.close(lock)


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(descriptor)
    return (here.st_ino, here.st_dev) == (there.st_ino, there.st_dev)
