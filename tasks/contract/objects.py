"""Objects by key, in a local folder or an object store; ``obstore`` serves both, but that small
objects of a folder are read as its files."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import from_url

from tasks.contract.errors import HallmarkError, UsageError
from tasks.contract.fingerprint import file_digest, sha256


class Objects:
    """A local folder or an object-store URI such as s3://bucket/prefix.

    ``work`` is the local folder for work areas and fetched copies; by default ``work`` inside a
    local store, or a folder of the user's cache directory for a remote one. ``create`` false
    refuses a local folder that does not exist: reading must not leave a store behind.
    """

    def __init__(self, uri: str | Path, work: Path | None = None, create: bool = True) -> None:
        uri = str(uri)
        self.uri = uri
        self.root: Path | None = None
        scheme = re.match(r"([a-z][a-z0-9+.-]*)://", uri)
        try:
            if scheme is None or scheme[1] == "file":
                # Links are followed once, here: obstore and the system would do so each their way.
                self.root = Path(os.path.realpath(uri.removeprefix("file://")))
                if not create and not self.root.is_dir():
                    what = "is no folder" if self.root.exists() else "does not exist"
                    raise UsageError(
                        f"there is no store at {self.root}, which {what}; make one with: hallmark "
                        f"run, or name another in HALLMARK_STORE"
                    )
                self.root.mkdir(parents=True, exist_ok=True)
                self._objects: Any = from_url(self.root.as_uri())
            else:
                self._objects = from_url(uri)
        except (OSError, ValueError, obstore.exceptions.BaseError) as error:
            raise UsageError(
                f"the store {uri!r} cannot be opened: {str(error).splitlines()[0]}; give a folder "
                f"or an object-store URI in HALLMARK_STORE or the config"
            ) from error
        if work is None:
            cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hallmark"
            work = self.root / "work" if self.root else cache / sha256(uri.encode())[:16]
        self.work = work

    def __reduce__(self) -> tuple[Any, ...]:
        """Opened anew in another process."""
        return type(self), (str(self.root or self.uri), self.work)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Errors of the store in words; those that its methods expect pass through."""
        try:
            yield
        except (FileNotFoundError, AlreadyExistsError):
            raise
        except obstore.exceptions.BaseError as error:
            for code in (errno.ENOSPC, errno.EDQUOT):
                if f"(os error {code})" in str(error):
                    raise OSError(code, os.strerror(code), self.uri) from error
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> HallmarkError:
        return HallmarkError(
            f"the store {self.uri} cannot be used: {str(error).splitlines()[0]}; check its "
            f"address, its permissions, the credentials and the network, then run again: it "
            f"goes on from the last commit"
        )

    def get(self, key: str) -> bytes | None:
        if self.root is not None:  # thousands of manifests: obstore's threads take twice as long
            try:
                return (self.root / key).read_bytes()
            except (FileNotFoundError, IsADirectoryError):
                return None
            except OSError as error:
                raise self._unusable(error) from error
        try:
            with self.asking():
                return bytes(obstore.get(self._objects, key).bytes())
        except FileNotFoundError:
            return None

    def put(self, key: str, data: bytes | Path) -> None:
        """Create or replace an object, atomically; of a Path its content."""
        with self.asking():
            obstore.put(self._objects, key, data)

    def create(self, key: str, data: bytes) -> bool:
        """Create an object only if it is absent, atomically; False if it was there."""
        try:
            with self.asking():
                obstore.put(self._objects, key, data, mode="create")
        except AlreadyExistsError:
            return False
        return True

    def delete(self, keys: list[str]) -> None:
        with self.asking():
            obstore.delete(self._objects, keys)

    def children(self, prefix: str) -> list[str]:
        """Names of the "folders" right below a prefix, sorted."""
        with self.asking():
            found = obstore.list_with_delimiter(self._objects, prefix)["common_prefixes"]
        return sorted(key.rsplit("/", 1)[-1] for key in found)

    def below(self, prefix: str) -> list[str]:
        """Keys of all objects below a prefix, sorted."""
        with self.asking():
            pages = obstore.list(self._objects, prefix)
            return sorted(found["path"] for page in pages for found in page)

    def fetch(self, key: str, entry: dict[str, Any]) -> Path:
        """A local path of an object; remote objects are copied once, checked by SHA-256."""
        if self.root is not None:
            return self.root / key
        path = self.work / "fetched" / key
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
                try:
                    with self.asking():
                        for chunk in obstore.get(self._objects, key).stream():
                            file.write(chunk)
                except FileNotFoundError:
                    os.unlink(file.name)
                    return path  # which does not exist
            if file_digest(Path(file.name)) != entry["sha256"]:
                os.unlink(file.name)
                raise HallmarkError(f"{self.uri}/{key} does not have the SHA-256 of its manifest")
            os.replace(file.name, path)
        return path
