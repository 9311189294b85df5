"""List the checkpoints that other trainers write to a folder or a bucket, without trusting them.

A folder is a checkpoint if files in it look like those of a model. Of such a folder, only the files
of the model belong to it: not the state of the training, not weights in formats that can run code,
and not the checkpoints below it. Everything else in it may be a pipe, a link that leads elsewhere,
or a hundred thousand files; this is a problem that the listing describes.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import obstore
from obstore.store import from_url

from hallmark.tasks.contract import (
    MISSING_BUCKET_PATTERN,
    ExternalMarker,
    FileChangedError,
    FileStamp,
    HallmarkError,
    UsageError,
    check_external_path,
    describe_file_type,
    escape_name,
    is_store_folder,
    is_valid_name,
    open_external_file,
    stat_to_file_stamp,
)

#: How many folders below a watched one are searched for checkpoints.
MAX_DEPTH = 3

#: Largest number of files and folders in a checkpoint, and of folders below a watched one.
MAX_FILES, MAX_FOLDERS = 10_000, 10_000

#: Largest number of objects below a watched URI.
MAX_OBJECTS = 200_000

CHUNK_BYTES = 1 << 20

#: Files by which a folder is recognized as a checkpoint, whether it is complete or not.
_MODEL_FILE = re.compile(
    r"config\.json|adapter_config\.json|.*\.safetensors|.*\.index\.json|pytorch_model.*\.bin"
)

#: Weights in formats that can run code or that audits do not read, and the state of a training.
_PICKLED_FILE = re.compile(r".*\.(bin|pt|pth|ckpt|pkl|pickle|h5|msgpack)", re.IGNORECASE)
_STATE_FILE = re.compile(r"(optimizer|scheduler|scaler|training_args|rng_state.*)\.(pt|pth|bin)")
_UNREAD_FILE = re.compile(
    rf"{_PICKLED_FILE.pattern}|.*\.(onnx|gguf)|trainer_state\.json|events\.out\.tfevents\..*",
    re.IGNORECASE,
)

#: Folders in a checkpoint that are not part of its model.
_UNREAD_FOLDER = re.compile(
    r"\..*|checkpoint-[0-9]+|global_step[0-9]+|pytorch_model_fsdp_[0-9]+|optimizer_[0-9]+"
    r"|runs|logs|wandb|__pycache__"
)

#: Keys of folders that every reader of a URI takes literally.
_PLAIN_KEY = re.compile(r"[\w.=+/-]*")

#: How programs name what they have not finished writing; the last is that of rsync.
_TEMPORARY_NAME = re.compile(
    r"\.?(tmp|temp)[-_.].*|.*[-_.](tmp|temp|part|partial|incomplete)|.*~|\..*\.sw[a-z]|.*#[0-9]+"
    r"|\..*\.(safetensors|json|model|txt)\.\w{6}",
    re.IGNORECASE,
)

#: Why an object store refuses a request, by obstore's error.
_REASONS: dict[type[Exception], str] = {
    obstore.exceptions.NotFoundError: "there is no such object",
    obstore.exceptions.PermissionDeniedError: "the credentials do not grant access",
    obstore.exceptions.UnauthenticatedError: "the credentials are missing or have expired",
}


class FileStatus(NamedTuple):
    """The size of a file, and what differs if its content was replaced.

    Attributes:
        size: The size in bytes.
        stamp: The times of a file; or the ETag of an object, or its time if it has none.
    """

    size: int
    stamp: Any


@dataclass
class CheckpointListing:
    """The files of a checkpoint at one moment.

    Attributes:
        location: The absolute path of its folder, or its URI.
        files: The status of its files by name, without hidden ones.
        temporary_files: Names of files that are still being written.
        problem: Why the checkpoint cannot be read, as a sentence; None if it can.
        objects: The bucket; None for a folder.
        prefix: The key of its folder in the bucket.
    """

    location: str
    files: dict[str, FileStatus] = field(default_factory=dict)
    temporary_files: list[str] = field(default_factory=list)
    problem: str | None = None
    objects: Any = None
    prefix: str = ""

    def _get_key(self, name: str) -> str:
        return f"{self.prefix}/{name}".lstrip("/")

    @property
    def model_files(self) -> dict[str, FileStatus]:
        """The files that belong to the model."""
        return {
            name: status
            for name, status in self.files.items()
            if not _UNREAD_FILE.fullmatch(name.rpartition("/")[2])
        }

    @property
    def pickled_weights(self) -> list[str]:
        """Names of files with weights in formats that can run code."""
        return sorted(
            name
            for name in self.files
            if _PICKLED_FILE.fullmatch(name) and not _STATE_FILE.fullmatch(name)
        )

    @property
    def state(self) -> tuple[Any, ...]:
        """A value that differs if the model changed between two listings."""
        return self.problem, self.temporary_files, self.model_files

    def iter_chunks(self, name: str) -> Iterator[bytes]:
        """Yield the content of a file.

        Raises:
            FileChangedError: It was replaced or removed after it was listed.
            HallmarkError: It cannot be read.
        """
        if self.objects is not None:
            yield from self._iter_object_chunks(name)
            return
        path = Path(self.location, name)
        try:
            with open_external_file(path, "checkpoint") as file:
                if _get_stamp(os.fstat(file.fileno())) != self.files[name].stamp:
                    raise FileChangedError(f"{path} changed while it was being read")
                while chunk := file.read(CHUNK_BYTES):
                    yield chunk
                if _get_stamp(os.fstat(file.fileno())) != self.files[name].stamp:
                    raise FileChangedError(f"{path} changed while it was being read")
        except OSError as error:
            raise _make_unreadable_error(str(path), error) from error

    def _iter_object_chunks(self, name: str) -> Iterator[bytes]:
        try:
            stamp = self.files[name].stamp
            options: Any = {"if_match" if isinstance(stamp, str) else "if_unmodified_since": stamp}
            for chunk in obstore.get(self.objects, self._get_key(name), options=options).stream():
                yield bytes(chunk)
        except (FileNotFoundError, obstore.exceptions.PreconditionError) as error:
            raise FileChangedError(
                f"{self.location}/{name} changed while it was being read"
            ) from error
        except obstore.exceptions.BaseError as error:
            raise _make_unreadable_error(f"{self.location}/{name}", error) from error

    def read_start(self, name: str, max_bytes: int) -> bytes:
        """Read the first bytes of a file, or all if it is smaller."""
        if self.objects is not None:
            end = min(max_bytes, self.files[name].size)
            if end == 0:
                return b""
            try:
                return bytes(obstore.get_range(self.objects, self._get_key(name), start=0, end=end))
            except FileNotFoundError as error:
                raise FileChangedError(f"{self.location}/{name} was removed") from error
            except obstore.exceptions.BaseError as error:
                raise _make_unreadable_error(f"{self.location}/{name}", error) from error
        content = bytearray()
        for chunk in self.iter_chunks(name):
            content += chunk
            if len(content) >= max_bytes:
                break
        return bytes(content[:max_bytes])


def _get_stamp(status: os.stat_result) -> FileStamp:
    """Return the stamp of a file without its inode, which some network file systems change."""
    return stat_to_file_stamp(status)._replace(inode=0)


def _make_unreadable_error(path: str, error: Exception) -> HallmarkError:
    """Make the same error for the same cause; obstore's own text states how long a request took."""
    if isinstance(error, OSError) and error.strerror:
        reason = error.strerror.lower()
    elif MISSING_BUCKET_PATTERN.search(str(error)):
        reason = "the bucket does not exist"
    elif isinstance(error, obstore.exceptions.BaseError):
        reason = _REASONS.get(
            type(error), "the object store did not respond or refused the request"
        )
    else:
        reason = str(error).splitlines()[0]
    return HallmarkError(f"{escape_name(path, 300)} cannot be read: {reason}")


def list_checkpoint(location: str) -> CheckpointListing:
    """List the files of the checkpoint at a location: an absolute path or a URI.

    Raises:
        UsageError: There is no checkpoint.
    """
    listings = (
        _list_checkpoints_of_bucket(location)
        if "://" in location
        else _list_checkpoints_of_folder(Path(location), max_depth=0)
    )
    for listing in listings:
        if listing.location == location:
            return listing
    raise UsageError(
        f"there is no checkpoint at {location}; specify a folder that contains a model"
    )


def list_checkpoints(location: str) -> list[CheckpointListing]:
    """List all checkpoints in and below a folder or a URI.

    Raises:
        HallmarkError: It cannot be listed; in one sentence.
    """
    if "://" in location:
        return _list_checkpoints_of_bucket(location)
    return _list_checkpoints_of_folder(Path(location), MAX_DEPTH)


# Folders -------------------------------------------------------------------------------------


def _list_checkpoints_of_folder(root: Path, max_depth: int) -> list[CheckpointListing]:
    listings: list[CheckpointListing] = []
    folders: list[tuple[Path, int, bool]] = [(root, 0, False)]
    folder_count = 0
    while folders:
        folder, depth, is_reported = folders.pop()
        folder_count += 1
        if folder_count > MAX_FOLDERS:
            raise HallmarkError(
                f"{root} has more than {MAX_FOLDERS:,} folders; watch one of its subfolders"
            )
        try:
            entries = _read_entries(folder)
        except (OSError, HallmarkError) as error:
            if folder == root and isinstance(error, FileNotFoundError):
                raise UsageError(f"there is no folder {root}; create it") from None
            # A folder may have been removed meanwhile; that of a checkpoint with a problem may be
            # this problem.
            if not isinstance(error, FileNotFoundError) and not is_reported:
                problem = _describe_error(folder, error)
                listings.append(CheckpointListing(str(folder), problem=problem))
            continue
        has_problem = False
        if any(_MODEL_FILE.fullmatch(entry.name) for entry in entries):
            listings.append(_list_folder(folder, entries))
            has_problem = listings[-1].problem is not None
        if depth < max_depth:
            folders += [
                (Path(entry.path), depth + 1, has_problem)
                for entry in entries
                if _is_searched(entry)
            ]
    return sorted(listings, key=lambda listing: listing.location)


def _read_entries(folder: Path) -> list[os.DirEntry[str]]:
    """List a folder inside the allowed roots.

    Raises:
        HallmarkError: It is outside the roots, or has too many entries.
        OSError: It cannot be listed.
    """
    check_external_path(folder, "checkpoint", ExternalMarker(recursive=False))
    entries: list[os.DirEntry[str]] = []
    with os.scandir(folder) as iterator:
        for entry in iterator:
            entries.append(entry)
            if len(entries) > MAX_FILES:
                raise _make_size_error(folder)
    return entries


def _make_size_error(folder: Path) -> HallmarkError:
    return HallmarkError(f"{escape_name(str(folder), 300)} has more than {MAX_FILES:,} files")


def _check_name(path: Path) -> None:
    """Raise HallmarkError if the path of a checkpoint is not text, which requests and URIs are."""
    if not is_valid_name(str(path)):
        raise HallmarkError(
            f"the name {escape_name(str(path), 300)} contains control characters or is not valid "
            "text; rename it"
        )


def _is_searched(entry: os.DirEntry[str]) -> bool:
    """Whether checkpoints may be in a folder: it is not hidden, not temporary and not a store."""
    if entry.name.startswith(".") or _TEMPORARY_NAME.fullmatch(entry.name):
        return False
    try:
        return entry.is_dir() and not is_store_folder(Path(entry.path))
    except OSError:
        return False


def _list_folder(folder: Path, entries: list[os.DirEntry[str]]) -> CheckpointListing:
    """List the files of a checkpoint, also those in its subfolders."""
    listing = CheckpointListing(str(folder))
    pending = [("", entries)]
    entry_count = 0
    try:
        _check_name(folder)
        while pending:
            prefix, entries = pending.pop()
            entry_count += len(entries)
            if entry_count > MAX_FILES:
                raise _make_size_error(folder)
            if prefix and any(_MODEL_FILE.fullmatch(entry.name) for entry in entries):
                continue  # it is another checkpoint
            for entry in entries:
                name = f"{prefix}{entry.name}"
                if _TEMPORARY_NAME.fullmatch(entry.name):
                    listing.temporary_files.append(name)
                elif entry.name.startswith("."):
                    continue
                elif entry.is_dir():
                    is_read = not _UNREAD_FOLDER.fullmatch(entry.name)
                    if (
                        is_read
                        and name.count("/") < MAX_DEPTH
                        and not is_store_folder(Path(entry.path))
                    ):
                        pending.append((f"{name}/", _read_entries(Path(entry.path))))
                else:
                    _add_file(listing, name, Path(entry.path))
    except (OSError, HallmarkError) as error:
        listing.problem = _describe_error(folder, error)
    listing.temporary_files.sort()
    return listing


def _add_file(listing: CheckpointListing, name: str, path: Path) -> None:
    _check_name(Path(name))
    try:
        status = path.stat()
    except FileNotFoundError:
        if not path.is_symlink():
            return  # it was removed meanwhile
        raise HallmarkError(f"{escape_name(str(path), 300)} is a broken link") from None
    if not stat.S_ISREG(status.st_mode):
        raise HallmarkError(
            f"{escape_name(str(path), 300)} is {describe_file_type(status.st_mode)}, but a "
            "checkpoint can contain only files"
        )
    if path.is_symlink():
        check_external_path(path, "checkpoint", ExternalMarker(recursive=False))
    listing.files[name] = FileStatus(status.st_size, _get_stamp(status))


def _describe_error(folder: Path, error: Exception) -> str:
    if isinstance(error, OSError):
        return str(_make_unreadable_error(error.filename or str(folder), error))
    return str(error)


# Buckets -------------------------------------------------------------------------------------


def _list_checkpoints_of_bucket(uri: str) -> list[CheckpointListing]:
    """List the checkpoints below a URI from the keys of its objects.

    Raises:
        HallmarkError: The bucket cannot be listed, or it has too many objects.
    """
    check_external_path(uri, "checkpoint")
    statuses: dict[str, FileStatus] = {}
    try:
        objects = from_url(uri)
        for page in obstore.list(objects):
            for metadata in page:
                stamp = metadata["e_tag"] or metadata["last_modified"]
                statuses[metadata["path"]] = FileStatus(metadata["size"], stamp)
            if len(statuses) > MAX_OBJECTS:
                raise HallmarkError(
                    f"{uri} has more than {MAX_OBJECTS:,} objects; watch a longer prefix"
                )
    except (OSError, ValueError, obstore.exceptions.BaseError) as error:
        raise _make_unreadable_error(uri, error) from error
    listings = {
        folder: CheckpointListing(
            f"{uri.rstrip('/')}/{folder}".rstrip("/"), objects=objects, prefix=folder
        )
        for key in statuses
        if _is_model_folder(folder := key.rpartition("/")[0])
        and _MODEL_FILE.fullmatch(key.rpartition("/")[2])
    }
    for key, status in statuses.items():
        folder = key.rpartition("/")[0]
        while folder not in listings and folder:
            folder = folder.rpartition("/")[0]
        if folder in listings:
            _add_object(listings[folder], key[len(folder) + 1 if folder else 0 :], status)
    for listing in listings.values():
        listing.temporary_files.sort()
        if len(listing.files) > MAX_FILES:
            listing.problem = f"{listing.location} has more than {MAX_FILES:,} files"
        elif not _PLAIN_KEY.fullmatch(listing.prefix) or not all(map(is_valid_name, listing.files)):
            listing.problem = (
                f"the name {escape_name(listing.location, 300)} contains characters that URI "
                "parsers may decode; use only letters, digits and ._=+-"
            )
    return [listings[folder] for folder in sorted(listings)]


def _is_model_folder(folder: str) -> bool:
    parts = folder.split("/") if folder else []
    return len(parts) <= MAX_DEPTH and not any(
        part.startswith(".") or _TEMPORARY_NAME.fullmatch(part) for part in parts
    )


def _add_object(listing: CheckpointListing, name: str, status: FileStatus) -> None:
    *folders, file_name = name.split("/")
    if _TEMPORARY_NAME.fullmatch(file_name) and not folders:
        listing.temporary_files.append(name)
    elif (
        file_name
        and not file_name.startswith(".")
        and not any(map(_UNREAD_FOLDER.fullmatch, folders))
    ):
        listing.files[name] = status
