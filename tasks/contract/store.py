"""Find and commit artifacts by stage and fingerprint, in a folder or an object store.

    <store>/artifacts/<stage>/<fingerprint>/manifest.json      written last, created only if absent
    <store>/artifacts/<stage>/<fingerprint>/<attempt>/<table>/00000.parquet ...
    <store>/artifacts/<stage>/<fingerprint>/<attempt>/<file>
    <store>/artifacts/<stage>/<fingerprint>/tombstones.json    files rewritten by purges
    <store>/runs/<run id>/run.json                             which artifact served each stage
    <store>/runs/<run id>/progress.json                        renewed while the run is executed
    <store>/run-order/<number>-<run id>                        the order in which the runs began
    <store>/reviews/<review id>.json, .json.sig                signed decisions about cards
    <store>/releases/<run id>.json                             released versions of models
    <store>/store-format.json                                  version of the format of the store
    <store>/equivalent-versions/<library>-<version>.json       versions treated as equivalent
    <store>/store-use/<token>.json                             commands on the whole store
    <store>/leases/<stage>-<fingerprint>.json                  holders of work areas  } not in a
    <store>/work-states/<stage>-<fingerprint>/                 states of trainings    } local store
    <store>/watched/<digest>.json                              requested audits of other checkpoints
    <store>/secret                                             key of the hashes in ledgers
    <work>/<stage>-<fingerprint>/                              work areas, leased, always local

An artifact exists if and only if its manifest exists. ``obstore`` provides the conditional put that
creates it, for local folders, S3, GCS and Azure. Data files are renamed into a local store instead
of copied.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from typing import TypedDict

from hallmark.tasks.contract.artifact import Artifact
from hallmark.tasks.contract.errors import HallmarkError
from hallmark.tasks.contract.external_files import hash_file
from hallmark.tasks.contract.lease import LeaseHolder, lease_folder, shared_lock, try_exclusive_lock
from hallmark.tasks.contract.manifests import (
    ARTIFACT_NAME_PATTERN,
    LAYOUT_VERSION,
    Manifest,
    parse_manifest,
)
from hallmark.tasks.contract.object_store import ObjectStore
from hallmark.tasks.contract.store_lease import StoreLease, lease_in_store
from hallmark.tasks.contract.tombstones import (
    TOMBSTONES_FILE,
    apply_tombstones,
    is_safe_relative_path,
    parse_tombstones,
)

#: Maximum number of files that are uploaded at the same time.
MAX_PARALLEL_UPLOADS = 8

#: Components of a fingerprint that ``hallmark status`` compares with their present values.
STALENESS_COMPONENTS = ("code", "libraries", "config", "external")

log = logging.getLogger("hallmark")

#: The secrets that other users can read and that a warning of this process has named.
_SECRETS_WITH_WARNING: set[Path] = set()

_SECRET_PATTERN = re.compile(rb"(?:[0-9a-f]{2}){16,}\s*")


class SizeAndDigest(TypedDict):
    """What a manifest entry says about the content of a stored file."""

    size: int
    """Size in bytes."""
    sha256: str


class Store(ObjectStore):
    """An object store of artifacts; see the module's docstring for its layout."""

    @staticmethod
    def format_artifact_folder(stage: str, fingerprint: str) -> str:
        return f"artifacts/{stage}/{fingerprint[:16]}"

    def find_artifact(self, stage: str, fingerprint: str) -> Artifact | None:
        """Return a committed artifact; None if there is none.

        Args:
            stage: Name of the stage.
            fingerprint: The fingerprint, or its first 16 digits.

        Raises:
            HallmarkError: The name is invalid, or the artifact is damaged or of another layout.
        """
        folder = self.format_artifact_folder(stage, fingerprint)
        if not is_safe_relative_path(folder):
            artifact_name = f"{stage}/{fingerprint}"
            raise HallmarkError(
                f"{artifact_name} is not an artifact name; list a run's artifacts with: hallmark "
                "status"
            )
        manifest_bytes = self.get(f"{folder}/manifest.json")
        if manifest_bytes is None:
            return None
        manifest = parse_manifest(
            manifest_bytes, folder.removeprefix("artifacts/"), f"{self.uri}/{folder}"
        )
        if not manifest["fingerprint"].startswith(fingerprint):
            raise HallmarkError(
                f"two artifacts with different fingerprints share the folder {folder}; remove "
                "that folder and run again"
            )
        apply_tombstones(
            manifest, parse_tombstones(self.get(f"{folder}/{TOMBSTONES_FILE}"), folder)
        )
        return Artifact(manifest, self, folder)

    def open_artifact(self, artifact_name: str) -> Artifact:
        """Open an artifact by a name such as "pack/0123456789abcdef".

        Args:
            artifact_name: The name, perhaps followed by "#" and the name of a table.

        Raises:
            HallmarkError: The name is malformed, or the artifact is missing or damaged.
        """
        artifact_name = artifact_name.partition("#")[0]
        if not ARTIFACT_NAME_PATTERN.fullmatch(artifact_name):
            raise HallmarkError(
                f"{artifact_name!r} is not an artifact name such as stage/0123456789abcdef"
            )
        artifact = self.find_artifact(*artifact_name.split("/"))
        if artifact is None:
            raise HallmarkError(
                f"the store {self.uri} has no artifact {artifact_name}; run again to rebuild it"
            )
        return artifact

    def list_artifacts(self, stage: str, *, skip_damaged: bool = False) -> list[Artifact]:
        """Return all committed artifacts of a stage.

        Args:
            stage: The name of the stage.
            skip_damaged: Whether to skip damaged artifacts with a warning.

        Raises:
            HallmarkError: An artifact is damaged.
        """
        artifacts = []
        for name in self.list_folder_names(f"artifacts/{stage}"):
            try:
                artifacts.append(self.find_artifact(stage, name))
            except HallmarkError as error:
                if not skip_damaged:
                    raise
                log.warning("skipped: %s", error)
        return [artifact for artifact in artifacts if artifact]

    def commit(self, scratch_folder: Path, manifest: Manifest) -> Artifact:
        """Move the files of ``scratch_folder`` into the store, then create the manifest.

        If another run has committed the same fingerprint meanwhile, this returns its artifact and
        removes the files of this attempt.
        """
        folder = self.format_artifact_folder(manifest["stage"], manifest["fingerprint"])
        attempt_id = secrets.token_hex(6)
        manifest = deepcopy(manifest) | {"layout": LAYOUT_VERSION}
        entries = list(Artifact(manifest, self, folder).iter_file_entries())
        for entry in entries:
            entry["path"] = f"{attempt_id}/{entry['name']}"
        attempt_folder = (
            None if self.root_folder is None else self.root_folder / folder / attempt_id
        )
        if attempt_folder is None or not _try_rename_folder(scratch_folder, attempt_folder):
            try:
                with ThreadPoolExecutor(MAX_PARALLEL_UPLOADS) as pool:
                    list(
                        pool.map(
                            lambda entry: self.put(
                                f"{folder}/{entry['path']}", scratch_folder / entry["name"]
                            ),
                            entries,
                        )
                    )
            except OSError:  # on a full disk, partial files would occupy space that the user frees
                if attempt_folder is not None:
                    shutil.rmtree(attempt_folder, ignore_errors=True)
                raise
            shutil.rmtree(scratch_folder)
        if attempt_folder is not None:
            for entry in entries:
                sync_to_disk(attempt_folder / entry["name"])
            sync_to_disk(attempt_folder.parent)
        manifest_bytes = json.dumps(manifest, indent=1, sort_keys=True).encode()
        is_first = self.create_if_absent(f"{folder}/manifest.json", manifest_bytes)
        artifact = self.find_artifact(manifest["stage"], manifest["fingerprint"])
        assert artifact is not None
        if not is_first:
            self.delete([f"{folder}/{entry['path']}" for entry in entries])
        if self.root_folder is not None:
            self._remove_failed_attempts(self.root_folder / folder, artifact)
        return artifact

    def _remove_failed_attempts(self, folder: Path, artifact: Artifact) -> None:
        """Remove files of killed attempts from the folder of an artifact in a local store."""
        used_folders = {entry["path"].split("/")[0] for entry in artifact.iter_file_entries()}
        for path in folder.iterdir():
            if path.is_dir() and path.name not in used_folders:
                shutil.rmtree(path, ignore_errors=True)

    def put_file(self, key: str, path: Path) -> SizeAndDigest:
        """Store a file under a new key, synced to disk, and return its size and SHA-256."""
        self.put(key, path)
        if self.root_folder is not None:
            sync_to_disk(self.root_folder / key)
        return {"size": path.stat().st_size, "sha256": hash_file(path)}

    def lease_work_area(
        self,
        stage: str,
        fingerprint: str,
        on_wait: Callable[[LeaseHolder], None] = lambda holder: None,
    ) -> AbstractContextManager[Path]:
        """Lease the work area of a fingerprint, which one process at a time can use.

        Args:
            stage: The name of the stage.
            fingerprint: The fingerprint.
            on_wait: Called with the holder before waiting for it.
        """
        return lease_folder(self.work_folder / f"{stage}-{fingerprint[:16]}", on_wait)

    @contextmanager
    def lease_for_all_hosts(
        self, work_area: Path, on_wait: Callable[[LeaseHolder], None]
    ) -> Iterator[StoreLease | None]:
        """Lease a work area in the store, too, if that is no local folder.

        The work areas of a local store are in the store, so that their locks hold on every host.

        Args:
            work_area: The work area, which this process has leased on this machine.
            on_wait: Called with the holder before waiting for it.

        Yields:
            The lease; None for a local store.
        """
        if self.root_folder is not None:
            yield None
            return
        with lease_in_store(self, work_area.name, work_area, on_wait) as lease:
            yield lease

    def shared_lock(self) -> AbstractContextManager[None]:
        """Lock the store on this machine to run stages; several processes may do so at once."""
        return shared_lock(self.work_folder)

    def try_exclusive_lock(self) -> AbstractContextManager[bool]:
        """Lock the store on this machine for a purge; yield False if another process uses it."""
        return try_exclusive_lock(self.work_folder)

    # The secret ----------------------------------------------------------------------------

    @property
    def secret(self) -> bytes:
        """Key of the hashes of personal data in ledgers; created on first use.

        Raises:
            HallmarkError: The stored secret is damaged.
        """
        secret_hex = self.get("secret")
        if secret_hex is None:
            self.set_secret_if_absent(secrets.token_bytes(32))
            secret_hex = self.get("secret")
        if secret_hex is None:
            raise HallmarkError(
                f"the secret in {self.uri}/secret is a folder instead of a file; restore it from "
                "a backup of the store, or remove it, in which case a new secret is created and "
                "the artifacts that depend on it are rebuilt"
            )
        if not _SECRET_PATTERN.fullmatch(secret_hex):
            raise HallmarkError(
                f"the secret in {self.uri}/secret is damaged: it must have at least 32 "
                "hexadecimal digits; restore it from a backup of the store, or remove it, in "
                "which case a new secret is created and the artifacts that depend on it are "
                "rebuilt"
            )
        self._warn_if_others_can_read_secret()
        return bytes.fromhex(secret_hex.decode())

    def _warn_if_others_can_read_secret(self) -> None:
        """Log once in this process that a copy of the store has lost the mode of its secret."""
        if self.root_folder is None:
            return
        path = self.root_folder / "secret"
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077 and path not in _SECRETS_WITH_WARNING:
            _SECRETS_WITH_WARNING.add(path)
            log.warning(
                "other users can read the store's key %s (mode %04o); restrict access with: chmod "
                "600 %s",
                path,
                mode,
                path,
            )

    def set_secret_if_absent(self, secret: bytes) -> None:
        """Set the store's secret if it has none; in a local store, only its owner can read it."""
        if self.root_folder is None:
            self.create_if_absent("secret", secret.hex().encode())
            return
        # mkstemp makes the file private before anything is written to it. A umask may also deny the
        # owner to read it.
        descriptor, temporary_path = tempfile.mkstemp(prefix=".secret-", dir=self.root_folder)
        with os.fdopen(descriptor, "w") as file:
            os.fchmod(descriptor, 0o600)
            file.write(secret.hex())
        with suppress(FileExistsError):
            os.link(temporary_path, self.root_folder / "secret")
        os.unlink(temporary_path)

    def compute_secret_id(self) -> str:
        """Compute an id of the secret that does not reveal it."""
        return hmac.new(self.secret, b"hallmark secret id", hashlib.sha256).hexdigest()[:16]


def get_artifact_store(artifact: Artifact) -> Store | None:
    """Return the store of an artifact, or None if it is a folder outside any store."""
    return artifact.store if isinstance(artifact.store, Store) else None


def _try_rename_folder(folder: Path, target: Path) -> bool:
    """Rename a folder and return True; return False if the target is on another disk."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.replace(folder, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True


def sync_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
