"""Read and write objects by key, in a local folder or an object store.

``obstore`` serves both, except that objects of a local folder are read and listed as files, see
``local_objects.py``.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import HTTPStore, MemoryStore, from_url

from hallmark.tasks.contract.errors import HallmarkError, TemporaryError, UsageError
from hallmark.tasks.contract.external_files import hash_file
from hallmark.tasks.contract.fetched_copies import open_fetched_copies, read_max_cache_bytes
from hallmark.tasks.contract.fingerprint import sha256_hex
from hallmark.tasks.contract.local_objects import LocalObjects
from hallmark.tasks.contract.object_store_errors import (
    describe_object_store_error,
    find_expiry_code,
    redact_object_store_error,
)

Result = TypeVar("Result")

#: Number of attempts of a request to a remote store, and seconds before the second attempt; the
#: delay doubles each time.
MAX_ATTEMPTS = 6
FIRST_RETRY_DELAY_SECONDS = 0.1

#: Seconds after which a request is not repeated. The client itself repeats requests for minutes, so
#: a server that does not answer would block a run for hours.
RETRY_DEADLINE_SECONDS = 60.0

#: Pattern of the client's error after its maximum number of retries.
_RETRIES_EXHAUSTED = re.compile(r"after (\d+) retries, max_retries: \1\b")

#: Pattern of the error of S3, Azure or Google if the bucket itself is missing.
MISSING_BUCKET_PATTERN = re.compile(
    "NoSuchBucket|ContainerNotFound|specified bucket does not exist"
)

#: Key of the object whose modification time shows the current time of a remote store, and seconds
#: for which this time is extrapolated instead of read again.
CLOCK_KEY = "clock"
CLOCK_VALIDITY_SECONDS = 60.0

#: Subfolder of the work folder of a remote store with local files other than work areas.
LOCAL_FOLDER_NAME = "local"

#: Key of the object that records the version of the format, see ``store_format.py``.
STORE_FORMAT_KEY = "store-format.json"

#: Prefix of the records of equal versions of libraries, see ``equivalent_versions.py``.
EQUIVALENT_VERSIONS_FOLDER = "equivalent-versions"

#: The names of files and folders in a local store.
STORE_ENTRIES = {
    "artifacts",
    EQUIVALENT_VERSIONS_FOLDER,
    "purged.json",
    "releases",
    "removed-documents",
    "reviews",
    "run-order",
    "runs",
    "secret",
    "site",
    "site-unredacted",
    STORE_FORMAT_KEY,
    "store-use",
    "watched",
    "work",
}


class ObjectStatus(NamedTuple):
    """The size of an object or a file, and when it was written.

    Attributes:
        size: The size in bytes.
        modified: The time of the last change, by the clock of the store.
    """

    size: int
    modified: datetime


#: The ETag and, on some stores, the version of an object, as obstore reports them.
ObjectVersion = dict[str, str]


class VersionedObject(NamedTuple):
    """The content of an object, and the version that has this content."""

    data: bytes
    version: ObjectVersion


class ObjectStore:
    """A local folder or an object store.

    Args:
        uri: Path of a folder, or a URI such as s3://bucket/prefix.
        work_folder: Local folder for work areas and fetched copies. By default, ``work`` inside a
            local store, or a folder in the user's cache directory for a remote one.
        create_missing: Whether to create a missing local folder. False for commands that only read,
            which must not create a store.

    Raises:
        UsageError: The store does not exist or cannot be opened.
    """

    def __init__(
        self, uri: str | Path, work_folder: Path | None = None, create_missing: bool = True
    ) -> None:
        uri = str(uri)
        self.uri = uri
        self.root_folder: Path | None = None
        scheme = re.match(r"([a-z][a-z0-9+.-]*)://", uri)
        try:
            if scheme is None or scheme[1] == "file":
                # Resolve links here: obstore and the operating system resolve them differently.
                self.root_folder = Path(os.path.realpath(uri.removeprefix("file://")))
                if not create_missing and not self.root_folder.is_dir():
                    problem = "is not a folder" if self.root_folder.exists() else "does not exist"
                    raise UsageError(
                        f"there is no store at {self.root_folder}, which {problem}; set "
                        "HALLMARK_STORE to another store, or create one with: hallmark run"
                    )
                if not create_missing and not is_store_or_empty_folder(self.root_folder):
                    raise UsageError(
                        f"the folder {self.root_folder} is not a store: it contains files but no "
                        "artifacts or runs; specify a store with --store or in HALLMARK_STORE"
                    )
                self.root_folder.mkdir(parents=True, exist_ok=True)
                self._local_objects = LocalObjects(self.root_folder)
                self._objects: Any = from_url(self.root_folder.as_uri())
            else:
                self._objects = from_url(uri)
                if isinstance(self._objects, HTTPStore | MemoryStore):
                    raise UsageError(
                        f"{uri!r} is not a store address; specify a folder or the URI of an "
                        "object store such as s3://bucket/prefix"
                    )
                read_max_cache_bytes()  # a wrong value ends the command here
        except (OSError, ValueError, obstore.exceptions.BaseError) as error:
            reason = str(error).splitlines()[0]
            if isinstance(error, OSError) and error.strerror:
                reason = "it is a file" if error.errno == errno.EEXIST else error.strerror.lower()
            raise UsageError(
                f"the store {uri!r} cannot be opened: {reason}; specify a folder or an "
                "object-store URI in HALLMARK_STORE or the config"
            ) from error
        if work_folder is None:
            cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hallmark"
            work_folder = (
                self.root_folder / "work"
                if self.root_folder
                else cache / sha256_hex(uri.encode())[:16]
            )
        if self.root_folder is not None and work_folder.is_symlink():
            raise UsageError(
                f"{work_folder} is a link to {os.readlink(work_folder)}, whose files a run could "
                "delete; remove the link, then run again"
            )
        self.work_folder = work_folder
        #: The time of the store, and the monotonic time of this process when it was read.
        self._clock_reading: tuple[datetime, float] | None = None

    @property
    def local_folder(self) -> Path:
        """Local folder for pages and lists: the store itself, or a subfolder of the work folder."""
        return (
            self.root_folder
            if self.root_folder is not None
            else self.work_folder / LOCAL_FOLDER_NAME
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the address, so that another process opens the store again."""
        return type(self), (str(self.root_folder or self.uri), self.work_folder)

    @contextmanager
    def translate_store_errors(self) -> Iterator[None]:
        """Translate errors of obstore, except those that the methods of this class handle.

        Raises:
            OSError: The disk is full.
            HallmarkError: The store cannot be used for another reason.
        """
        try:
            yield
        except (AlreadyExistsError, PreconditionError):
            raise
        except (FileNotFoundError, obstore.exceptions.BaseError) as error:
            if MISSING_BUCKET_PATTERN.search(str(error)):
                raise HallmarkError(
                    f"the store {self.uri} cannot be used, because its bucket does not exist; "
                    "create the bucket, or correct the store's address"
                ) from redact_object_store_error(error)
            if code := find_expiry_code(error):
                raise HallmarkError(
                    f"the store {self.uri} cannot be used, because the credentials have expired "
                    f"({code}); renew them, then run again to resume from the last commit"
                ) from None
            if isinstance(error, FileNotFoundError):
                raise
            for number in (errno.ENOSPC, errno.EDQUOT):
                if f"(os error {number})" in str(error):
                    raise OSError(number, os.strerror(number), self.uri) from error
            raise self._make_unusable_error(error) from redact_object_store_error(error)

    def _send_with_retries(self, request: Callable[[], Result]) -> Result:
        """Send one request, and repeat it if its reply was lost or truncated.

        The client repeats most requests itself, but neither those that create or delete, nor those
        whose reply ends within its body. Every request here is safe to repeat.
        """
        start_time = time.monotonic()
        for attempt in range(1, MAX_ATTEMPTS):
            try:
                with self.translate_store_errors():
                    return request()
            except HallmarkError as error:
                cause = error.__cause__
                is_retryable = isinstance(cause, obstore.exceptions.GenericError)
                is_past_deadline = time.monotonic() - start_time > RETRY_DEADLINE_SECONDS
                if (
                    self.root_folder is not None
                    or not is_retryable
                    or is_past_deadline
                    or _RETRIES_EXHAUSTED.search(str(cause))
                ):
                    raise
            time.sleep(FIRST_RETRY_DELAY_SECONDS * 2 ** (attempt - 1))
        with self.translate_store_errors():
            return request()

    def _make_unusable_error(self, error: Exception) -> HallmarkError:
        is_temporary = self.root_folder is None and isinstance(
            error, obstore.exceptions.GenericError
        )
        error_class = TemporaryError if is_temporary else HallmarkError
        return error_class(
            f"the store {self.uri} cannot be used: {describe_object_store_error(error)}; check "
            "its address, its permissions, the credentials and the network, then run again to "
            "resume from the last commit"
        )

    def get(self, key: str) -> bytes | None:
        """Read an object; return None if it does not exist."""
        # Files are read directly: obstore takes twice as long for thousands of manifests.
        if self.root_folder is not None:
            with self._open_local_file(key) as file:
                return None if file is None else file.read()
        try:
            return self._send_with_retries(lambda: bytes(obstore.get(self._objects, key).bytes()))
        except FileNotFoundError:
            return None

    @contextmanager
    def _open_local_file(self, key: str) -> Iterator[BinaryIO | None]:
        """Open an object of a local folder; yield None if it does not exist."""
        try:
            with self._local_objects.open_file(key) as file:
                yield file
        except (FileNotFoundError, IsADirectoryError):
            yield None
        except OSError as error:
            raise self._make_unusable_error(error) from error

    def _check_local_keys(self, keys: Iterable[str]) -> None:
        """Raise HallmarkError if a link leads from a key of a local folder out of the folder."""
        if self.root_folder is not None:
            for key in keys:
                self._local_objects.check_folder_is_inside(key)

    def put(self, key: str, data: bytes | Path) -> None:
        """Create or replace an object atomically, from bytes or from the content of a file."""
        self._check_local_keys([key])
        try:
            self._send_with_retries(lambda: obstore.put(self._objects, key, data))
        except (FileNotFoundError, HallmarkError):
            # A file is uploaded in several requests. If the reply to the last one was lost, the
            # object is complete, but the server may no longer know the upload when it is repeated.
            if self.root_folder is not None or self.hash_object(key) != _hash_bytes_or_file(data):
                raise

    def hash_object(self, key: str) -> str | None:
        """Compute the SHA-256 of a remote object; return None if it does not exist."""

        def hash_chunks() -> str:
            digest = hashlib.sha256()
            for chunk in obstore.get(self._objects, key).stream():
                digest.update(chunk)
            return digest.hexdigest()

        try:
            return self._send_with_retries(hash_chunks)
        except FileNotFoundError:
            return None

    def create_if_absent(self, key: str, data: bytes) -> bool:
        """Create an object atomically, only if it does not exist.

        Args:
            key: Key of the object.
            data: Its content, which must be unique to this writer, so it contains random data.

        Returns:
            Whether the stored object is the caller's. If the object exists already, it is read and
            compared with ``data``: the reply to an earlier attempt may have been lost, or a proxy
            may have sent the request twice.
        """
        self._check_local_keys([key])
        try:
            self._send_with_retries(lambda: obstore.put(self._objects, key, data, mode="create"))
        except (AlreadyExistsError, PreconditionError):
            return self.get(key) == data
        except HallmarkError:  # no reply arrived
            if self.get(key) == data:
                return True
            raise
        return True

    def get_versioned(self, key: str) -> VersionedObject | None:
        """Read a remote object with its version; return None if it does not exist."""

        def read() -> VersionedObject:
            result = obstore.get(self._objects, key)
            return VersionedObject(bytes(result.bytes()), _select_version(result.meta))

        try:
            return self._send_with_retries(read)
        except FileNotFoundError:
            return None

    def replace_if_unchanged(
        self, key: str, data: bytes, version: ObjectVersion | None
    ) -> ObjectVersion | None:
        """Replace a remote object atomically, only if it still has a version.

        Args:
            key: Key of the object.
            data: Its new content, which no other writer writes, so it contains random data.
            version: The version to replace; None means that the object must not exist.

        Returns:
            The new version; None if the object has another version, or does not exist. As in
            ``create_if_absent``, the object is read to find out whether a lost reply was a success.
        """
        mode: Any = "create" if version is None else version
        try:
            return _select_version(
                self._send_with_retries(lambda: obstore.put(self._objects, key, data, mode=mode))
            )
        except (AlreadyExistsError, PreconditionError, FileNotFoundError, HallmarkError) as error:
            current = self.get_versioned(key)
            if current is not None and current.data == data:
                return current.version
            if isinstance(error, HallmarkError):  # no reply arrived
                raise
            return None

    def delete(self, keys: list[str]) -> None:
        self._check_local_keys(keys)
        self._send_with_retries(lambda: obstore.delete(self._objects, keys))

    def list_folder_names(self, prefix: str) -> list[str]:
        """List the names of the folders directly below a prefix, sorted.

        In a local store, names that are no keys, links and pipes are ignored with a warning.
        """
        if self.root_folder is not None:
            try:
                return self._local_objects.list_folder_names(prefix)
            except OSError as error:
                raise self._make_unusable_error(error) from error

        def list_prefixes() -> list[str]:
            return [*obstore.list_with_delimiter(self._objects, prefix)["common_prefixes"]]

        return sorted(key.rsplit("/", 1)[-1] for key in self._send_with_retries(list_prefixes))

    def list_entry_names(self, folder: str) -> list[str]:
        """List the names of everything directly in a folder, sorted.

        In a local store, these include links, pipes and folders, which are no objects.
        """
        if self.root_folder is None:
            return sorted({key[len(folder) + 1 :].split("/")[0] for key in self.list_keys(folder)})
        try:
            return self._local_objects.list_entry_names(folder)
        except OSError as error:
            raise self._make_unusable_error(error) from error

    def list_keys(self, prefix: str) -> list[str]:
        """List the keys of all objects below a prefix, sorted; see ``list_object_sizes``."""
        return sorted(self.list_object_sizes(prefix))

    def list_object_sizes(self, prefix: str) -> dict[str, int]:
        """Return the sizes in bytes of all objects below a prefix, by key.

        In a local store, names that are no keys, links and pipes are ignored with a warning.
        """
        if self.root_folder is not None:
            try:
                return self._local_objects.list_sizes(prefix)
            except OSError as error:
                raise self._make_unusable_error(error) from error

        def list_sizes() -> dict[str, int]:
            pages = obstore.list(self._objects, prefix)
            return {metadata["path"]: metadata["size"] for page in pages for metadata in page}

        return self._send_with_retries(list_sizes)

    def list_stored_files(self, prefix: str) -> dict[str, ObjectStatus]:
        """Return the status of all objects below a prefix, by key.

        Of a local store, this also lists the files that an interrupted write left behind, and it
        follows no links.
        """
        if self.root_folder is not None:
            return dict(_iter_local_files(self.root_folder, self.root_folder / prefix))

        def list_objects() -> dict[str, ObjectStatus]:
            pages = obstore.list(self._objects, prefix)
            return {
                metadata["path"]: ObjectStatus(metadata["size"], metadata["last_modified"])
                for page in pages
                for metadata in page
            }

        return self._send_with_retries(list_objects)

    def delete_stored_files(self, keys: Iterable[str]) -> None:
        """Delete objects that ``list_stored_files`` listed, in this order, and empty folders."""
        if self.root_folder is None:
            self.delete([*keys])
            return
        for key in keys:
            path = self.root_folder / key
            path.unlink(missing_ok=True)
            with suppress(OSError):  # a folder is not empty
                for folder in [*path.parents][: key.count("/") - 1]:
                    folder.rmdir()

    def read_modification_time(self, key: str) -> datetime | None:
        """Read when an object was written, by the clock of the store; None if it does not exist."""
        if self.root_folder is not None:
            # A network file system asks its server for the time when a file is opened.
            with self._open_local_file(key) as file:
                if file is None:
                    return None
                seconds = os.fstat(file.fileno()).st_mtime
            try:
                return datetime.fromtimestamp(seconds, UTC)
            except (ValueError, OverflowError) as error:
                raise HallmarkError(
                    f"{self.root_folder / key} has an impossible modification time ({seconds:.0f} "
                    "seconds after the start of 1970); correct it with: touch"
                ) from error
        try:
            metadata = self._send_with_retries(lambda: obstore.head(self._objects, key))
        except FileNotFoundError:
            return None
        return metadata["last_modified"]

    def read_current_time(self) -> datetime | None:
        """Read the time by the clock of the store, which writes a file or an object.

        Returns:
            The time; None if this process may not write to the store.
        """
        now = time.monotonic()
        if self._clock_reading is None or now - self._clock_reading[1] > CLOCK_VALIDITY_SECONDS:
            try:
                store_time = self._measure_current_time()
            except (OSError, HallmarkError):
                return None
            self._clock_reading = (store_time, now)
        store_time, read_at = self._clock_reading
        return store_time + timedelta(seconds=now - read_at)

    def _measure_current_time(self) -> datetime:
        if self.root_folder is not None:
            self.work_folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.work_folder) as file:
                return datetime.fromtimestamp(os.fstat(file.fileno()).st_mtime, UTC)
        self.put(CLOCK_KEY, b"")
        store_time = self.read_modification_time(CLOCK_KEY)
        assert store_time is not None
        return store_time

    def download_object(self, key: str, file: IO[bytes]) -> bool:
        """Write the content of a remote object to a file; return whether the object exists."""

        def download_chunks() -> None:
            file.seek(0)
            file.truncate()
            for chunk in obstore.get(self._objects, key).stream():
                file.write(chunk)

        try:
            self._send_with_retries(download_chunks)
        except FileNotFoundError:
            return False
        return True

    def fetch_object(self, key: str, expected_sha256: str) -> Path:
        """Return a local path of an object; a remote object is copied once and verified.

        The copy of a remote object stays at least as long as this process, see
        ``fetched_copies.py``.

        Args:
            key: Key of the object. If it does not exist, the returned path does not exist either.
            expected_sha256: SHA-256 of the object in its manifest.

        Raises:
            HallmarkError: The object does not have the SHA-256 of its manifest entry, or it is not
                a file of the store.
        """
        if self.root_folder is not None:
            return self._local_objects.find_file(key)
        copies = open_fetched_copies(self.work_folder)
        path = copies.use(key)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
                is_found = self.download_object(key, file)
            if not is_found:
                os.unlink(file.name)
                return path  # which does not exist
            if hash_file(Path(file.name)) != expected_sha256:
                os.unlink(file.name)
                raise HallmarkError(
                    f"{self.uri}/{key} does not match the SHA-256 in its manifest; remove the "
                    "artifact's folder and run again to rebuild it"
                )
            os.replace(file.name, path)
            copies.record_fetched(path.stat().st_size)
        return path


def _select_version(metadata: Mapping[str, Any]) -> ObjectVersion:
    return {name: metadata[name] for name in ("e_tag", "version") if metadata[name] is not None}


def _hash_bytes_or_file(data: bytes | Path) -> str:
    return hash_file(data) if isinstance(data, Path) else sha256_hex(data)


def _iter_local_files(root_folder: Path, folder: Path) -> Iterator[tuple[str, ObjectStatus]]:
    for parent, _, names in os.walk(folder, followlinks=False):
        for name in names:
            path = Path(parent, name)
            with suppress(FileNotFoundError):  # somebody removed it meanwhile
                status = path.lstat()
                modified = datetime.fromtimestamp(status.st_mtime, UTC)
                key = path.relative_to(root_folder).as_posix()
                yield key, ObjectStatus(status.st_size, modified)


def is_store_or_empty_folder(folder: Path) -> bool:
    """Whether a folder is a store, or has nothing but what a store has before its first run."""
    names = (name for name in os.listdir(folder) if not name.startswith("."))
    return is_store_folder(folder) or STORE_ENTRIES.issuperset(names)


def is_store_folder(folder: Path) -> bool:
    """Whether a folder is a store, whose files are neither a corpus nor a model of the user."""
    records = (folder / "runs").glob("*/run.json")
    manifests = (folder / "artifacts").glob("*/*/manifest.json")
    return (folder / STORE_FORMAT_KEY).is_file() or any(records) or any(manifests)
