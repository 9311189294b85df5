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
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from copy import deepcopy
from dataclasses import fields
from pathlib import Path
from typing import Any, TypedDict, TypeGuard

from hallmark.tasks.contract.artifact import (
    Artifact,
    Manifest,
    compute_content_digest,
    compute_table_digest,
)
from hallmark.tasks.contract.columns import Column
from hallmark.tasks.contract.errors import HallmarkError
from hallmark.tasks.contract.external_files import hash_file
from hallmark.tasks.contract.lease import LeaseHolder, lease_folder, shared_lock, try_exclusive_lock
from hallmark.tasks.contract.object_store import ObjectStore
from hallmark.tasks.contract.tombstones import (
    TOMBSTONES_FILE,
    apply_tombstones,
    is_safe_relative_path,
    parse_tombstones,
)

#: Version of the layout of an artifact's tables and files; raised when the layout changes.
LAYOUT_VERSION = 2

#: Maximum number of files that are uploaded at the same time.
MAX_PARALLEL_UPLOADS = 8

#: Keys of every manifest.
MANIFEST_KEYS = {
    "stage",
    "fingerprint",
    "content",
    "determinism",
    "tables",
    "files",
    "telemetry",
    "parts",
    "lineage",
}
#: Components of a fingerprint that ``hallmark status`` compares with their present values.
STALENESS_COMPONENTS = ("code", "libraries", "config", "external")
COLUMN_KEYS = {field.name for field in fields(Column)}

#: "stage/fingerprint"; names in files become parts of paths, and this allows none that leaves its
#: folder.
ARTIFACT_NAME_PATTERN = re.compile(r"\w+/[0-9a-f]+")

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
                f"{artifact_name} is not the name of an artifact; list the artifacts of a run "
                "with: hallmark status"
            )
        manifest_bytes = self.get(f"{folder}/manifest.json")
        if manifest_bytes is None:
            return None
        manifest = self._parse_manifest(folder, manifest_bytes)
        if not manifest["fingerprint"].startswith(fingerprint):
            raise HallmarkError(
                f"two fingerprints share the folder {folder}; remove that folder and run again"
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
                f"{artifact_name!r} is not the name of an artifact, such as stage/0123456789abcdef"
            )
        artifact = self.find_artifact(*artifact_name.split("/"))
        if artifact is None:
            raise HallmarkError(
                f"the store {self.uri} has no artifact {artifact_name}; run again to rebuild it"
            )
        return artifact

    def _parse_manifest(self, folder: str, manifest_bytes: bytes) -> Manifest:
        artifact_name = folder.removeprefix("artifacts/")
        try:
            manifest: Manifest | None = json.loads(manifest_bytes)
        except (ValueError, RecursionError):
            manifest = None
        if (
            isinstance(manifest, dict)
            and manifest.keys() >= MANIFEST_KEYS
            and (manifest.get("layout", 1) != LAYOUT_VERSION)
        ):
            raise HallmarkError(
                f"artifact {artifact_name} was written by another version of Hallmark with a "
                "different layout; remove the artifact's folder and run again to rebuild it, or "
                "read it with that version"
            )
        if not _is_valid_manifest(manifest):
            raise HallmarkError(
                f"artifact {artifact_name} is damaged: its manifest.json in "
                f"{self.uri}/{folder} is incomplete or invalid; remove the artifact's folder and "
                "run again to rebuild it"
            )
        return manifest

    def list_artifacts(self, stage: str) -> list[Artifact]:
        """Return all committed artifacts of a stage."""
        candidates = (
            self.find_artifact(stage, name) for name in self.list_folder_names(f"artifacts/{stage}")
        )
        return [artifact for artifact in candidates if artifact]

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
            assert secret_hex is not None
        if not _SECRET_PATTERN.fullmatch(secret_hex):
            raise HallmarkError(
                f"the secret in {self.uri}/secret is damaged: it must have at least 32 hexadecimal "
                "digits; restore it from a backup of the store, or remove it, so that a new secret "
                "is created and the artifacts that depend on it are rebuilt"
            )
        return bytes.fromhex(secret_hex.decode())

    def set_secret_if_absent(self, secret: bytes) -> None:
        """Set the store's secret if it has none; in a local store, only its owner can read it."""
        if self.root_folder is None:
            self.create_if_absent("secret", secret.hex().encode())
            return
        # mkstemp makes the file private before anything is written to it.
        descriptor, temporary_path = tempfile.mkstemp(dir=self.root_folder)
        with os.fdopen(descriptor, "w") as file:
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


def _is_valid_manifest(manifest: Any) -> TypeGuard[Manifest]:
    """Whether a manifest has all keys, values of the expected types, and consistent digests."""
    text_keys = ("stage", "fingerprint", "content", "determinism")
    mapping_keys = ("tables", "files", "telemetry", "parts", "lineage")
    return (
        isinstance(manifest, dict)
        and manifest.keys() >= MANIFEST_KEYS
        and all(isinstance(manifest[key], str) for key in text_keys)
        and all(isinstance(manifest[key], dict) for key in mapping_keys)
        and all(
            _is_valid_table_entry(table_entry)
            for group in ("tables", "telemetry")
            for table_entry in manifest[group].values()
        )
        and all(_is_valid_file_entry(entry) for entry in manifest["files"].values())
        and manifest["content"] == compute_content_digest(manifest["tables"], manifest["files"])
        and all(isinstance(manifest["parts"].get(key, {}), dict) for key in STALENESS_COMPONENTS)
        and _is_valid_lineage(manifest["lineage"])
    )


def _is_valid_lineage(lineage: Any) -> bool:
    """Whether all names in a lineage, or in a part of one, are those of artifacts or tables."""
    if isinstance(lineage, dict):
        return all(map(_is_valid_lineage, lineage.values()))
    if isinstance(lineage, list):
        return all(map(_is_valid_lineage, lineage))
    return lineage is None or (
        isinstance(lineage, str)
        and ARTIFACT_NAME_PATTERN.fullmatch(lineage.partition("#")[0]) is not None
    )


def _is_valid_table_entry(table_entry: Any) -> bool:
    return (
        isinstance(table_entry, dict)
        and isinstance(table_entry.get("columns"), list)
        and all(_is_valid_column_entry(column) for column in table_entry["columns"])
        and isinstance(table_entry.get("parts"), list)
        and len(table_entry["parts"]) > 0
        and all(
            _is_valid_file_entry(part) and isinstance(part.get("rows"), int)
            for part in table_entry["parts"]
        )
        and table_entry.get("rows") == sum(part["rows"] for part in table_entry["parts"])
        and _is_valid_segmentation(
            table_entry.get("pieces", [len(table_entry["parts"])]), len(table_entry["parts"])
        )
        and table_entry.get("sha256") == compute_table_digest(table_entry)
    )


def _is_valid_segmentation(parts_per_segment: Any, part_count: int) -> bool:
    """Whether a list has positive numbers of parts that add up to ``part_count``."""
    return (
        isinstance(parts_per_segment, list)
        and all(type(count) is int and count > 0 for count in parts_per_segment)
        and sum(parts_per_segment) == part_count
    )


def _is_valid_column_entry(column_entry: Any) -> bool:
    return (
        isinstance(column_entry, dict)
        and {"name", "type", "kind"} <= column_entry.keys() <= COLUMN_KEYS
        and all(isinstance(value, str) for value in column_entry.values())
    )


def _is_valid_file_entry(file_entry: Any) -> bool:
    """Whether an entry has all keys of a file and names no file outside the artifact."""
    return (
        isinstance(file_entry, dict)
        and isinstance(file_entry.get("size"), int)
        and isinstance(file_entry.get("sha256"), str)
        and all(is_safe_relative_path(file_entry.get(key)) for key in ("name", "path"))
    )


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
