"""Read and write objects by key, in a local folder or an object store.

``obstore`` serves both, except that objects of a local folder are read as files.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import HTTPStore, MemoryStore, from_url

from hallmark.tasks.contract.errors import HallmarkError, UsageError
from hallmark.tasks.contract.external_files import hash_file
from hallmark.tasks.contract.fingerprint import sha256_hex

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
_MISSING_BUCKET = re.compile("NoSuchBucket|ContainerNotFound|specified bucket does not exist")

#: Key of the object whose modification time shows the current time of a remote store, and seconds
#: for which this time is extrapolated instead of read again.
CLOCK_KEY = "clock"
CLOCK_VALIDITY_SECONDS = 60.0

#: Subfolder of the work folder of a remote store with local files other than work areas.
LOCAL_FOLDER_NAME = "local"

#: The names of files and folders in a local store.
STORE_ENTRIES = {
    "artifacts",
    "purged.json",
    "releases",
    "removed-documents",
    "reviews",
    "run-order",
    "runs",
    "secret",
    "site",
    "site-unredacted",
    "work",
}


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
                        f"there is no store at {self.root_folder}, which {problem}; create one "
                        "with: hallmark run, or set HALLMARK_STORE to another store"
                    )
                if not create_missing and not is_store_or_empty_folder(self.root_folder):
                    raise UsageError(
                        f"the folder {self.root_folder} is not a store: it has other files, but "
                        "neither artifacts nor runs; specify a store with --store or in "
                        "HALLMARK_STORE"
                    )
                self.root_folder.mkdir(parents=True, exist_ok=True)
                self._objects: Any = from_url(self.root_folder.as_uri())
            else:
                self._objects = from_url(uri)
                if isinstance(self._objects, HTTPStore | MemoryStore):
                    raise UsageError(
                        f"the address {uri!r} is not a store; specify a folder or the URI of an "
                        "object store such as s3://bucket/prefix"
                    )
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
        except AlreadyExistsError:
            raise
        except (FileNotFoundError, obstore.exceptions.BaseError) as error:
            if _MISSING_BUCKET.search(str(error)):
                raise HallmarkError(
                    f"the store {self.uri} cannot be used, because its bucket does not exist; "
                    "create the bucket, or correct the address of the store"
                ) from error
            if isinstance(error, FileNotFoundError):
                raise
            for code in (errno.ENOSPC, errno.EDQUOT):
                if f"(os error {code})" in str(error):
                    raise OSError(code, os.strerror(code), self.uri) from error
            raise self._make_unusable_error(error) from error

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
        return HallmarkError(
            f"the store {self.uri} cannot be used: {str(error).splitlines()[0]}; check its "
            "address, its permissions, the credentials and the network, then run again to resume "
            "from the last commit"
        )

    def get(self, key: str) -> bytes | None:
        """Read an object; return None if it does not exist."""
        # Files are read directly: obstore takes twice as long for thousands of manifests.
        if self.root_folder is not None:
            try:
                return (self.root_folder / key).read_bytes()
            except (FileNotFoundError, IsADirectoryError):
                return None
            except OSError as error:
                raise self._make_unusable_error(error) from error
        try:
            return self._send_with_retries(lambda: bytes(obstore.get(self._objects, key).bytes()))
        except FileNotFoundError:
            return None

    def put(self, key: str, data: bytes | Path) -> None:
        """Create or replace an object atomically, from bytes or from the content of a file."""

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
        try:
            self._send_with_retries(lambda: obstore.put(self._objects, key, data, mode="create"))
        except AlreadyExistsError:
            return self.get(key) == data
        except HallmarkError:  # no reply arrived
            if self.get(key) == data:
                return True
            raise
        return True

    def delete(self, keys: list[str]) -> None:
        self._send_with_retries(lambda: obstore.delete(self._objects, keys))

    def list_folder_names(self, prefix: str) -> list[str]:
        """List the names of the folders directly below a prefix, sorted."""

        def list_prefixes() -> list[str]:
            return [*obstore.list_with_delimiter(self._objects, prefix)["common_prefixes"]]

        return sorted(key.rsplit("/", 1)[-1] for key in self._send_with_retries(list_prefixes))

    def list_keys(self, prefix: str) -> list[str]:
        """List the keys of all objects below a prefix, sorted."""
        return sorted(self.list_object_sizes(prefix))

    def list_object_sizes(self, prefix: str) -> dict[str, int]:
        """Return the sizes in bytes of all objects below a prefix, by key."""

        def list_sizes() -> dict[str, int]:
            pages = obstore.list(self._objects, prefix)
            return {metadata["path"]: metadata["size"] for page in pages for metadata in page}

        return self._send_with_retries(list_sizes)

    def read_modification_time(self, key: str) -> datetime | None:
        """Read when an object was written, by the clock of the store; None if it does not exist."""
        if self.root_folder is not None:
            try:
                # A network file system asks its server for the time when a file is opened.
                with open(self.root_folder / key, "rb") as file:
                    return datetime.fromtimestamp(os.fstat(file.fileno()).st_mtime, UTC)
            except (FileNotFoundError, IsADirectoryError):
                return None
            except OSError as error:
                raise self._make_unusable_error(error) from error
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

    def fetch_object(self, key: str, expected_sha256: str) -> Path:
        """Return a local path of an object; a remote object is copied once and verified.

        Args:
            key: Key of the object. If it does not exist, the returned path does not exist either.
            expected_sha256: SHA-256 of the object in its manifest.

        Raises:
            HallmarkError: The object does not have the SHA-256 of its manifest entry.
        """
        if self.root_folder is not None:
            return self.root_folder / key
        path = self.work_folder / "fetched" / key
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:

                def download_object() -> None:
                    file.seek(0)
                    file.truncate()
                    for chunk in obstore.get(self._objects, key).stream():
                        file.write(chunk)

                try:
                    self._send_with_retries(download_object)
                except FileNotFoundError:
                    os.unlink(file.name)
                    return path  # which does not exist
            if hash_file(Path(file.name)) != expected_sha256:
                os.unlink(file.name)
                raise HallmarkError(
                    f"{self.uri}/{key} does not match the SHA-256 in its manifest; remove the "
                    "artifact's folder and run again to rebuild it"
                )
            os.replace(file.name, path)
        return path


def _hash_bytes_or_file(data: bytes | Path) -> str:
    return hash_file(data) if isinstance(data, Path) else sha256_hex(data)


def is_store_or_empty_folder(folder: Path) -> bool:
    """Whether a folder is a store, or has nothing but what a store has before its first run."""
    names = (name for name in os.listdir(folder) if not name.startswith("."))
    return is_store_folder(folder) or STORE_ENTRIES.issuperset(names)


def is_store_folder(folder: Path) -> bool:
    """Whether a folder is a store, whose files are neither a corpus nor a model of the user."""
    records = (folder / "runs").glob("*/run.json")
    manifests = (folder / "artifacts").glob("*/*/manifest.json")
    return any(records) or any(manifests)
