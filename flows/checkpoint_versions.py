"""Name the versions of checkpoints that other trainers write, and keep copies of some of them.

A folder, or a prefix of a bucket, may be replaced at any time. ``LOCATION@DIGEST`` names one
version of it, by the digest of the files of its model. Its audit reads a copy on this machine,
which is made before the audit and removed after it:

    <work folder>/checkpoints/<digest>/     the copy of a version; locked while it is read
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hallmark.flows.checkpoint_sources import CheckpointListing, list_checkpoint
from hallmark.tasks.contract import (
    Artifact,
    ExternalMarker,
    FileChangedError,
    HallmarkError,
    Store,
    UsageError,
    check_external_path,
    compute_content_digest,
    folder_to_artifact,
)

#: Subfolder of the work folder with the copies.
COPIES_FOLDER = "checkpoints"

#: Number of copies that nobody reads and that are kept nevertheless, because their audits begin
#: soon. Others are removed; an audit makes its copy again if its version is still there.
MAX_UNUSED_COPIES = 3

#: Number of digits of a digest with which tables show a version; so many are enough to name it.
SHOWN_DIGITS = 12

#: Number of digits of a digest in the name of an artifact.
ARTIFACT_DIGITS = 16

DIGEST_PATTERN = re.compile("[0-9a-f]{64}")
_VERSION_NAME = re.compile(rf"(.+)@([0-9a-f]{{{SHOWN_DIGITS},64}})", re.DOTALL)
_TEMPORARY_PREFIX = "tmp"


@dataclass(frozen=True)
class CheckpointVersion:
    """A version of a checkpoint outside the store.

    Attributes:
        location: The absolute path of a folder, or a URI.
        digest: The content digest of its files, or its first digits.
    """

    location: str
    digest: str

    @classmethod
    def parse(cls, checkpoint_name: str) -> CheckpointVersion | None:
        """Parse LOCATION@DIGEST; return None for any other name, and for an existing path."""
        match = _VERSION_NAME.fullmatch(checkpoint_name)
        if match is None or "\0" in checkpoint_name or os.path.lexists(checkpoint_name):
            return None
        location = match[1]
        if "://" not in location:
            location = os.path.abspath(os.path.expanduser(location))
        return cls(location, match[2])

    def is_of_artifact(self, artifact_name: str) -> bool:
        """Whether an artifact, such as the input of a model card, has the files of this version."""
        return artifact_name.startswith(self.artifact_name)

    @property
    def artifact_name(self) -> str:
        """The name of its artifact, as far as the digits of the digest are known."""
        return f"checkpoint/{self.digest[:ARTIFACT_DIGITS]}"

    @property
    def name(self) -> str:
        return f"{self.location}@{self.digest}"

    @property
    def short_name(self) -> str:
        """The name for a table."""
        return f"{self.location}@{self.digest[:SHOWN_DIGITS]}"


def shorten_version_name(checkpoint_name: str) -> str:
    """Shorten the digest in the name of a version; return any other name unchanged."""
    version = CheckpointVersion.parse(checkpoint_name)
    return checkpoint_name if version is None else version.short_name


def open_checkpoint_version(store: Store, version: CheckpointVersion) -> Artifact:
    """Open the copy of a version; make it if this machine has none.

    Args:
        store: The store in whose work folder the copies are.
        version: The version.

    Raises:
        UsageError: The location is outside the allowed roots, is missing, or now has another
            version.
        FileChangedError: A file changed while it was being copied.
        HallmarkError: Somebody changed the copy.
    """
    check_external_path(version.location, "checkpoint", ExternalMarker(recursive=False))
    for copy in _iter_copies(store):
        if copy.name.startswith(version.digest):
            artifact = folder_to_artifact(copy, "checkpoint")
            if not artifact.content_digest.startswith(version.digest):
                raise HallmarkError(f"{copy} was changed after it was copied; remove this folder")
            return artifact
    listing = list_checkpoint(version.location)
    if listing.problem is not None:
        raise UsageError(f"{version.short_name} cannot be opened: {listing.problem}")
    with copy_checkpoint(store, listing) as digest:
        if not digest.startswith(version.digest):
            raise UsageError(
                f"{version.short_name} cannot be opened: {version.location} was replaced and is "
                f"now version {digest[:SHOWN_DIGITS]}; specify this version, or a folder that "
                "contains a copy of the requested version"
            )
    return folder_to_artifact(_get_copies_folder(store) / digest, "checkpoint")


def check_copy_fits(store: Store, listing: CheckpointListing) -> None:
    """Check that there is space for the copy of a checkpoint, before its files are read.

    Raises:
        HallmarkError: There is not.
    """
    size = sum(status.size for status in listing.model_files.values())
    folder = _get_copies_folder(store)
    folder.mkdir(parents=True, exist_ok=True)
    if size > shutil.disk_usage(folder).free:
        raise HallmarkError(
            f"{listing.location} has {size:,} bytes, but {folder} does not have enough free space "
            "for a copy; free some space there"
        )


def hash_checkpoint(listing: CheckpointListing, target: Path | None = None) -> str:
    """Compute the content digest of a checkpoint, and copy its files while they are read.

    Args:
        listing: The checkpoint.
        target: The folder for the copy; None for no copy.

    Raises:
        FileChangedError: A file has another size than in the listing.
    """
    entries = {}
    for name, status in sorted(listing.model_files.items()):
        digest, size = hashlib.sha256(), 0
        with nullcontext() if target is None else _create_file(target / name) as copy:
            for chunk in listing.iter_chunks(name):
                digest.update(chunk)
                size += len(chunk)
                if copy is not None:
                    copy.write(chunk)
                if size > status.size:
                    break
        if size != status.size:
            raise FileChangedError(f"{listing.location}/{name} changed while it was being read")
        entries[name] = {"name": name, "size": size, "sha256": digest.hexdigest()}
    return compute_content_digest({}, entries)


def _create_file(path: Path) -> BinaryIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("xb")


@contextmanager
def copy_checkpoint(store: Store, listing: CheckpointListing) -> Iterator[str]:
    """Copy a checkpoint to this machine; keep the copy if the context ends without an error.

    Yields:
        The content digest of the copy.

    Raises:
        HallmarkError: There is no space for it, or a file cannot be read.
    """
    check_copy_fits(store, listing)
    folder = _get_copies_folder(store)
    with _lock_all(folder):
        temporary = Path(tempfile.mkdtemp(dir=folder, prefix=_TEMPORARY_PREFIX))
        descriptor = _lock(temporary, fcntl.LOCK_SH)
    try:
        with store.shared_lock():  # so that no garbage collection removes the copy meanwhile
            digest = hash_checkpoint(listing, temporary)
        yield digest
        with suppress(OSError):  # another process has made the copy meanwhile
            temporary.rename(folder / digest)
            os.utime(folder / digest)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)
        _remove_unused_copies(folder, MAX_UNUSED_COPIES)


@contextmanager
def hold_checkpoint_copy(store: Store, checkpoint_name: str) -> Iterator[None]:
    """Keep the copy of a version while the context is open, then remove it if nobody else does.

    Args:
        store: The store.
        checkpoint_name: The checkpoint; there is no copy unless it is the name of a version.
    """
    version = CheckpointVersion.parse(checkpoint_name)
    descriptor = None
    while version is not None and descriptor is None:
        copy = Path(open_checkpoint_version(store, version).folder)
        descriptor = _lock(copy, fcntl.LOCK_SH)  # None if it was removed meanwhile
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)
            with _lock_all(copy.parent):
                _remove_if_unused(copy)


def remove_unused_copy(store: Store, digest: str) -> None:
    """Remove the copy of a version, unless somebody reads it."""
    folder = _get_copies_folder(store)
    with _lock_all(folder):
        _remove_if_unused(folder / digest)


def _get_copies_folder(store: Store) -> Path:
    return store.work_folder / COPIES_FOLDER


def _iter_copies(store: Store) -> Iterator[Path]:
    folder = _get_copies_folder(store)
    for copy in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not copy.name.startswith(_TEMPORARY_PREFIX) and copy.is_dir() and not copy.is_symlink():
            yield copy


def _remove_unused_copies(folder: Path, kept_count: int) -> None:
    """Remove all copies that nobody reads or writes, except the newest ones."""
    with _lock_all(folder):
        copies = []
        for path in folder.iterdir():
            with suppress(OSError):
                if path.is_dir() and not path.is_symlink():
                    copies.append((path.stat().st_mtime, path))
        for _, path in sorted(copies, reverse=True):
            if path.name.startswith(_TEMPORARY_PREFIX) or kept_count <= 0:
                _remove_if_unused(path)
            elif not _is_used(path):
                kept_count -= 1


def _is_used(copy: Path) -> bool:
    descriptor = _lock(copy, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is None


def _remove_if_unused(copy: Path) -> None:
    descriptor = _lock(copy, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if descriptor is not None:
        shutil.rmtree(copy, ignore_errors=True)
        os.close(descriptor)


def _lock(folder: Path, operation: int) -> int | None:
    """Lock a folder; return its descriptor, or None if it is missing or another process has it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, operation)
        if os.stat(folder).st_ino == os.fstat(descriptor).st_ino:
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


@contextmanager
def _lock_all(folder: Path) -> Iterator[None]:
    """Let only one process at a time begin or remove copies."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
