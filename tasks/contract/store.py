"""The store: artifacts addressed by stage and fingerprint, in a folder or an object store.

    <store>/artifacts/<stage>/<fingerprint>/manifest.json      written last, created only if absent
    <store>/artifacts/<stage>/<fingerprint>/<attempt>/...      tables and files
    <store>/runs/<run id>/run.json                             which artifact served each stage
    <store>/secret                                             key of the hashes in ledgers
    <work>/<stage>-<fingerprint>/                              work areas, leased, always local

No manifest, no artifact. ``obstore`` gives one conditional put for local folders, S3, GCS and
Azure; data files of a local store are renamed into place instead of copied.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import from_url

from tasks.contract.artifact import (
    Artifact,
    Manifest,
    Shard,
    Table,
    content_digest,
    describe,
    external,
)
from tasks.contract.errors import HallmarkError, UsageError
from tasks.contract.fingerprint import file_digest, sha256

#: Keys of every manifest that a stage leaves.
MANIFEST = {"stage", "fingerprint", "content", "determinism", "tables", "files", "telemetry",
            "parts", "lineage"}  # fmt: skip

__all__ = [
    "Artifact",
    "Manifest",
    "Shard",
    "Store",
    "Table",
    "content_digest",
    "describe",
    "external",
]


class Store:
    """A place for artifacts: a local folder or an object-store URI such as s3://bucket/prefix.

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
                self.root = Path(uri.removeprefix("file://")).absolute()
                if not create and not self.root.is_dir():
                    what = "is no folder" if self.root.exists() else "does not exist"
                    raise UsageError(
                        f"there is no store at {self.root}, which {what}; make one with: hallmark "
                        f"run, or name another in HALLMARK_STORE"
                    )
                self.root.mkdir(parents=True, exist_ok=True)
                self.objects: Any = from_url(self.root.as_uri())
            else:
                self.objects = from_url(uri)
        except (OSError, ValueError, obstore.exceptions.BaseError) as error:
            raise UsageError(
                f"the store {uri!r} cannot be opened: {str(error).splitlines()[0]}; give a folder "
                f"or an object-store URI in HALLMARK_STORE or the config"
            ) from error
        if work is None:
            cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hallmark"
            work = self.root / "work" if self.root else cache / sha256(uri.encode())[:16]
        self.work = work

    # Small objects -------------------------------------------------------------------------

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Errors of the store in words; those that its methods expect pass through."""
        try:
            yield
        except (FileNotFoundError, AlreadyExistsError):
            raise
        except obstore.exceptions.BaseError as error:
            for code in (errno.ENOSPC, errno.EDQUOT):
                if f"(os error {code})" in str(error):
                    raise OSError(code, os.strerror(code), self.uri) from error
            raise HallmarkError(
                f"the store {self.uri} cannot be used: {str(error).splitlines()[0]}; check its "
                f"address, its permissions, the credentials and the network, then run again: it "
                f"goes on from the last commit"
            ) from error

    def get(self, key: str) -> bytes | None:
        try:
            with self._asking():
                return bytes(obstore.get(self.objects, key).bytes())
        except FileNotFoundError:
            return None

    def put(self, key: str, data: bytes) -> None:
        """Create or replace an object, atomically."""
        with self._asking():
            obstore.put(self.objects, key, data)

    def create(self, key: str, data: bytes) -> bool:
        """Create an object only if it is absent, atomically; False if it was there."""
        try:
            with self._asking():
                obstore.put(self.objects, key, data, mode="create")
        except AlreadyExistsError:
            return False
        return True

    def children(self, prefix: str) -> list[str]:
        """Names of the "folders" right below a prefix, sorted."""
        with self._asking():
            found = obstore.list_with_delimiter(self.objects, prefix)["common_prefixes"]
        return sorted(key.rsplit("/", 1)[-1] for key in found)

    # Artifacts -----------------------------------------------------------------------------

    @staticmethod
    def folder(stage: str, fingerprint: str) -> str:
        return f"artifacts/{stage}/{fingerprint[:16]}"

    def find(self, stage: str, fingerprint: str) -> Artifact | None:
        """The committed artifact of a stage and fingerprint (or its first 16 digits), if any."""
        folder = self.folder(stage, fingerprint)
        data = self.get(f"{folder}/manifest.json")
        if data is None:
            return None
        manifest = self._manifest(folder, data)
        if not manifest["fingerprint"].startswith(fingerprint):
            raise HallmarkError(f"two fingerprints share the folder {folder}; remove that folder")
        return Artifact(manifest, self, folder)

    def _manifest(self, folder: str, data: bytes) -> Manifest:
        try:
            manifest = json.loads(data)
        except ValueError:
            manifest = None
        if not _is_manifest(manifest):
            raise HallmarkError(
                f"artifact {folder.removeprefix('artifacts/')} is damaged: its manifest.json in "
                f"{self.uri}/{folder} is not whole; remove the artifact's folder and run again to "
                f"rebuild it"
            )
        return manifest

    def artifacts(self, stage: str) -> list[Artifact]:
        """All committed artifacts of a stage."""
        found = (self.find(stage, name) for name in self.children(f"artifacts/{stage}"))
        return [artifact for artifact in found if artifact]

    def commit(self, scratch: Path, manifest: Manifest) -> Artifact:
        """Move the files of ``scratch`` into the store, then create the manifest.

        Where another run has committed the same fingerprint meanwhile, its artifact is
        returned and this attempt's data are removed.
        """
        folder = self.folder(manifest["stage"], manifest["fingerprint"])
        attempt = secrets.token_hex(6)
        manifest = deepcopy(manifest)
        entries = [e for g in ("tables", "files", "telemetry") for e in manifest[g].values()]
        for entry in entries:
            entry["path"] = f"{attempt}/{entry['name']}"
        if self.root is not None:
            place = self.root / folder / attempt
            place.parent.mkdir(parents=True, exist_ok=True)
            for entry in entries:
                _sync(scratch / entry["name"])
            os.replace(scratch, place)
            _sync(place.parent)
        else:
            with self._asking():
                for entry in entries:
                    obstore.put(self.objects, f"{folder}/{entry['path']}", scratch / entry["name"])
            shutil.rmtree(scratch)
        text = json.dumps(manifest, indent=1, sort_keys=True).encode()
        won = self.create(f"{folder}/manifest.json", text)
        artifact = self.find(manifest["stage"], manifest["fingerprint"])
        assert artifact is not None
        if not won:
            keys = [f"{folder}/{entry['path']}" for entry in entries]
            obstore.delete(self.objects, keys)
        if self.root is not None:
            self._sweep(self.root / folder, artifact)
        return artifact

    def _sweep(self, folder: Path, artifact: Artifact) -> None:
        """Remove what killed attempts left beside a committed artifact of a local store."""
        groups = (artifact.manifest[g].values() for g in ("tables", "files", "telemetry"))
        keep = {entry["path"].split("/")[0] for group in groups for entry in group}
        for path in folder.iterdir():
            if path.is_dir() and path.name not in keep:
                shutil.rmtree(path, ignore_errors=True)

    def fetch(self, key: str, entry: dict[str, Any]) -> Path:
        """A local path of an object; remote objects are copied once, checked by SHA-256."""
        if self.root is not None:
            return self.root / key
        path = self.work / "fetched" / key
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
                for chunk in obstore.get(self.objects, key).stream():
                    file.write(chunk)
            if file_digest(Path(file.name)) != entry["sha256"]:
                os.unlink(file.name)
                raise HallmarkError(f"{self.uri}/{key} does not have the SHA-256 of its manifest")
            os.replace(file.name, path)
        return path

    # Work areas ----------------------------------------------------------------------------

    @contextmanager
    def lease(self, stage: str, fingerprint: str) -> Iterator[Path]:
        """The work area of a fingerprint, held by one process at a time.

        The lease is a lock of the operating system: it ends with the process, however it ends.
        """
        folder = self.work / f"{stage}-{fingerprint[:16]}"
        while True:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder / "lease", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                # The holder before us removes the folder when it commits: lock the living one.
                if _same_file(lock, folder / "lease"):
                    yield folder
                    return
            finally:
                os.close(lock)

    # The secret ----------------------------------------------------------------------------

    @property
    def secret(self) -> bytes:
        """Key of the hashes that stand for personal data in ledgers; made on first use."""
        data = self.get("secret")
        if data is None:
            self.create("secret", secrets.token_hex(32).encode())
            if self.root is not None:
                (self.root / "secret").chmod(0o600)
            data = self.get("secret")
            assert data is not None
        return bytes.fromhex(data.decode())

    def secret_id(self) -> str:
        """Names the secret without telling it."""
        return hmac.new(self.secret, b"hallmark secret id", hashlib.sha256).hexdigest()[:16]


def _is_manifest(manifest: Any) -> bool:
    """Whether it has all keys of a manifest, of the types that readers rely on."""
    texts = ("stage", "fingerprint", "content", "determinism")
    groups = ("tables", "files", "telemetry", "parts", "lineage")
    return (
        isinstance(manifest, dict)
        and manifest.keys() >= MANIFEST
        and all(isinstance(manifest[key], str) for key in texts)
        and all(isinstance(manifest[key], dict) for key in groups)
    )


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(descriptor)
    return (here.st_ino, here.st_dev) == (there.st_ino, there.st_dev)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
