"""Write files and folders so that a kill keeps either the old or the new content, never a part."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@contextmanager
def write_folder_atomically(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes ``folder`` if the body ends without an error.

    Files and folder are synced to disk before the rename, so that even a power cut keeps all or
    nothing.

    Raises:
        FileExistsError: ``folder`` is not empty, or another process wrote it in the meantime.
    """
    if folder.is_dir() and any(folder.iterdir()):
        raise _make_exists_error(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        for path in [*temporary.iterdir(), temporary]:
            sync_to_disk(path)
        try:
            temporary.rename(folder)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise _make_exists_error(folder) from error
            raise
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_to_disk(folder.parent)


def _make_exists_error(folder: Path) -> FileExistsError:
    # With an errno, as errors of the system have it, so that callers show its place and reason.
    reason = "the folder already exists and is not empty; choose another folder, or remove this one"
    return FileExistsError(errno.EEXIST, reason, str(folder))


@contextmanager
def write_file_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path whose file replaces ``path`` if the body ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        sync_to_disk(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_to_disk(path.parent)


def write_safetensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a safetensors file; raise OSError if it cannot be written, as for any other file."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"{path}: {error}") from error


def sync_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_unfinished_writes(folder: Path) -> None:
    """Remove the temporary files and folders of killed writers in ``folder``."""
    for path in folder.glob(".*.tmp") if folder.is_dir() else ():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
