"""List files in object stores, identify their versions, and download them temporarily."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

import obstore
from obstore.exceptions import BaseError, PreconditionError
from obstore.store import from_url

from hallmark.tasks.contract import (
    FileChangedError,
    HallmarkError,
    UsageError,
    describe_object_store_error,
    redact_object_store_error,
)
from hallmark.tasks.corpus.reading.sources import (
    UnreadFile,
    add_compressed_suffixes,
    describe_unread_files,
    explain_unread_name,
    find_archive_reason,
)

if TYPE_CHECKING:
    from obstore import ObjectMeta

_URI_PATTERN = re.compile(r"(?P<root>[a-z][a-z0-9+.-]*://[^/]+)/*(?P<key>.*)", re.DOTALL)


@dataclass(frozen=True)
class RemoteFile:
    """Describe an object in an object store."""

    uri: str
    size_bytes: int
    version_tag: str  # changes whenever the content does


def is_remote_uri(path: str) -> bool:
    return bool(re.match(r"[a-z][a-z0-9+.-]*://", path))


class RemoteFiles(NamedTuple):
    """List the objects at the URI of a source."""

    file_by_name: dict[str, RemoteFile]
    """Objects to read, by their name below the URI, sorted by name."""
    unread_files: list[UnreadFile]
    """The other objects, sorted by name."""


def list_remote_files_by_name(
    source_name: str, path: str, suffixes: tuple[str, ...]
) -> dict[str, RemoteFile]:
    """List the objects to read at a URI, see ``find_remote_files``."""
    return find_remote_files(source_name, path, suffixes).file_by_name


def find_remote_files(source_name: str, path: str, suffixes: tuple[str, ...]) -> RemoteFiles:
    """Find the objects at a URI, below it, or matching it as a pattern.

    Raises:
        UsageError: if the URI is invalid, cannot be listed or matches no object.
    """
    match = _URI_PATTERN.fullmatch(path)
    if match is None:
        raise UsageError(
            f"source {source_name!r}: {path!r} does not specify a bucket; write it as "
            "s3://bucket/path"
        )
    root, key = match["root"], match["key"]
    wildcard = re.search(r"[*?\[]", key)
    prefix = (
        key[: key.rindex("/", 0, wildcard.start()) + 1]
        if wildcard and "/" in key[: wildcard.start()]
        else ("" if wildcard else key)
    )
    try:
        store = from_url(root)
        file_by_name = {}
        for chunk in obstore.list(store, prefix.strip("/") or None):
            for metadata in chunk:
                name = str(metadata["path"])
                file_by_name[name] = RemoteFile(
                    f"{root}/{name}", metadata["size"], _get_version_tag(metadata)
                )
        if not wildcard and key and not file_by_name:  # an object, not a folder
            metadata = obstore.head(store, key)
            if reason := find_archive_reason(key):
                raise UsageError(f"source {source_name!r}: {path!r}: {reason}")
            remote_file = RemoteFile(f"{root}/{key}", metadata["size"], _get_version_tag(metadata))
            return RemoteFiles({PurePosixPath(key).name: remote_file}, [])
    except FileNotFoundError:
        file_by_name = {}
    except (BaseError, OSError, ValueError) as error:
        raise UsageError(
            f"source {source_name!r}: {path!r} cannot be listed "
            f"({describe_object_store_error(error)}); correct the source path, or check the "
            "permissions, the credentials and the network"
        ) from redact_object_store_error(error)
    if wildcard:
        try:
            pattern = re.compile(_glob_to_regex(key))
        except re.error as error:  # such as [z-a]
            raise UsageError(
                f"source {source_name!r}: {path!r} is not a valid pattern ({error}); correct the "
                "source path"
            ) from error
        file_by_name = {
            name: file for name, file in file_by_name.items() if pattern.fullmatch(name)
        }
    endings = add_compressed_suffixes(("",) if wildcard else suffixes)
    prefix_length = len(prefix.rstrip("/")) + 1 if prefix else 0
    read_files: dict[str, RemoteFile] = {}
    unread_files: list[UnreadFile] = []
    for full_name, file in sorted(file_by_name.items()):
        name = full_name[prefix_length:]
        if not name or full_name.endswith("/"):
            continue  # the folder itself
        reason = find_archive_reason(name)
        if not reason and not name.lower().endswith(endings):
            reason = explain_unread_name(PurePosixPath(name).name)
        if reason:
            unread_files.append(UnreadFile(name, reason, 1, file.size_bytes))
        else:
            read_files[name] = file
    if not read_files:
        unread = describe_unread_files(unread_files)
        problem = (
            "no object matches"
            if wildcard
            else f"there is no object whose name ends in {' or '.join(suffixes)} at"
        )
        raise UsageError(
            f"source {source_name!r}: {problem} {path!r}{f' ({unread})' if unread else ''}; "
            "correct the source path"
        )
    return RemoteFiles(read_files, unread_files)


def _get_version_tag(metadata: ObjectMeta) -> str:
    """Return the store's tag or version; the time of the last change if it has neither."""
    return str(metadata["e_tag"] or metadata["version"] or metadata["last_modified"].isoformat())


def _glob_to_regex(glob: str) -> str:
    """Convert a pattern with the meaning of ``Path.glob`` to a regular expression."""
    replacements = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    tokens = re.split(r"(\*\*/|\*\*|\*|\?|\[!?[^\]]+\])", glob)
    return "".join(
        replacements.get(
            token,
            _bracket_to_regex(token)
            if token.startswith("[") and len(token) > 2
            else re.escape(token),
        )
        for token in tokens
    )


def _bracket_to_regex(bracket: str) -> str:
    """Convert [ab] or the negated [!ab] to a regular expression, which negates with ^."""
    is_negated = bracket.startswith("[!") and len(bracket) > 3
    characters = bracket[2:-1] if is_negated else bracket[1:-1]
    escaped = re.sub(r"[\\^\[&|~]", r"\\\g<0>", characters)
    return f"[^/{escaped}]" if is_negated else f"[{escaped}]"


@contextmanager
def download_temporarily(uri: str, version_tag: str, folder: Path | None) -> Iterator[Path]:
    """Download an object to a temporary folder below ``folder``, removed on exit.

    Raises:
        HallmarkError: if the object is missing, cannot be read, or differs from ``version_tag``.
    """
    match = _URI_PATTERN.fullmatch(uri)
    assert match is not None
    with tempfile.TemporaryDirectory(dir=folder, prefix="fetched-") as temporary_folder:
        path = Path(temporary_folder) / PurePosixPath(match["key"]).name
        try:
            with path.open("wb") as file:
                stored_object = obstore.get(from_url(match["root"]), match["key"])
                if _get_version_tag(stored_object.meta) != version_tag:
                    raise FileChangedError(_format_changed_message(uri))
                for chunk in stored_object.stream():
                    file.write(chunk)
        except FileNotFoundError as error:
            raise FileChangedError(
                f"{uri} was deleted before it was read; restore it and run again"
            ) from error
        except PreconditionError as error:
            raise FileChangedError(_format_changed_message(uri)) from error
        except BaseError as error:
            raise HallmarkError(
                f"{uri} cannot be read ({describe_object_store_error(error)}); check the "
                "permissions, the credentials and the network, then run again; files that were "
                "already read are not read again"
            ) from redact_object_store_error(error)
        yield path


def _format_changed_message(uri: str) -> str:
    return f"{uri} changed while it was being read (its version tag changed); run again"
