"""The store: artifacts addressed by stage and fingerprint, in a folder or an object store.

    <store>/artifacts/<stage>/<fingerprint>/manifest.json      written last, created only if absent
    <store>/artifacts/<stage>/<fingerprint>/<attempt>/<table>/00000.parquet ...
    <store>/artifacts/<stage>/<fingerprint>/<attempt>/<file>
    <store>/artifacts/<stage>/<fingerprint>/tombstones.json    what stands in place of purged texts
    <store>/runs/<run id>/run.json                             which artifact served each stage
    <store>/secret                                             key of the hashes in ledgers
    <work>/<stage>-<fingerprint>/                              work areas, leased, always local

No manifest, no artifact. ``obstore`` gives one conditional put for local folders, S3, GCS and
Azure; data files of a local store are renamed into place instead of copied.
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
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from copy import deepcopy
from dataclasses import fields
from pathlib import Path
from typing import Any

from hallmark.tasks.contract.artifact import (
    Artifact,
    Manifest,
    compute_content_digest,
    compute_table_digest,
)
from hallmark.tasks.contract.columns import Column
from hallmark.tasks.contract.errors import HallmarkError
from hallmark.tasks.contract.external_files import hash_file
from hallmark.tasks.contract.lease import exclusive_lock, lease_folder, shared_lock
from hallmark.tasks.contract.object_store import ObjectStore
from hallmark.tasks.contract.tombstones import TOMBSTONES_FILE, apply_tombstones, parse_tombstones

#: Of tables and files in an artifact; raised when they lie otherwise.
LAYOUT_VERSION = 2

#: Files that are put into an object store at a time.
MAX_PARALLEL_UPLOADS = 8

#: Keys of every manifest that a stage leaves.
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
#: What of a fingerprint's parts ``hallmark status`` compares with today, where a stage has it.
STALENESS_COMPONENTS = ("code", "libraries", "config", "external")
COLUMN_KEYS = {field.name for field in fields(Column)}

_SECRET_PATTERN = re.compile(rb"(?:[0-9a-f]{2}){16,}\s*")


class Store(ObjectStore):
    """Objects among which artifacts are found and committed; see the head of this module."""

    @staticmethod
    def format_artifact_folder(stage: str, fingerprint: str) -> str:
        return f"artifacts/{stage}/{fingerprint[:16]}"

    def find_artifact(self, stage: str, fingerprint: str) -> Artifact | None:
        """The committed artifact of a stage and fingerprint (or its first 16 digits), if any."""
        folder = self.format_artifact_folder(stage, fingerprint)
        if not is_safe_relative_path(folder):
            artifact_name = f"{stage}/{fingerprint}"
            raise HallmarkError(f"{artifact_name} is no name of an artifact; see: hallmark status")
        manifest_bytes = self.get(f"{folder}/manifest.json")
        if manifest_bytes is None:
            return None
        manifest = self._parse_manifest(folder, manifest_bytes)
        if not manifest["fingerprint"].startswith(fingerprint):
            raise HallmarkError(f"two fingerprints share the folder {folder}; remove that folder")
        apply_tombstones(
            manifest, parse_tombstones(self.get(f"{folder}/{TOMBSTONES_FILE}"), folder)
        )
        return Artifact(manifest, self, folder)

    def _parse_manifest(self, folder: str, manifest_bytes: bytes) -> Manifest:
        artifact_name = folder.removeprefix("artifacts/")
        try:
            manifest = json.loads(manifest_bytes)
        except (ValueError, RecursionError):
            manifest = None
        if (
            isinstance(manifest, dict)
            and manifest.keys() >= MANIFEST_KEYS
            and (manifest.get("layout", 1) != LAYOUT_VERSION)
        ):
            raise HallmarkError(
                f"artifact {artifact_name} was made by another version of Hallmark, which "
                f"laid out tables "
                f"otherwise; remove the artifact's folder and run again to make it anew, or look "
                f"at it with that version"
            )
        if not _is_valid_manifest(manifest):
            raise HallmarkError(
                f"artifact {artifact_name} is damaged: its manifest.json in "
                f"{self.uri}/{folder} is not whole; remove the artifact's folder and run again to "
                f"rebuild it"
            )
        return manifest

    def list_artifacts(self, stage: str) -> list[Artifact]:
        """All committed artifacts of a stage."""
        candidates = (
            self.find_artifact(stage, name) for name in self.list_folder_names(f"artifacts/{stage}")
        )
        return [artifact for artifact in candidates if artifact]

    def commit(self, scratch_folder: Path, manifest: Manifest) -> Artifact:
        """Move the files of ``scratch`` into the store, then create the manifest.

        Where another run has committed the same fingerprint meanwhile, its artifact is
        returned and this attempt's data are removed.
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
                with ThreadPoolExecutor(
                    MAX_PARALLEL_UPLOADS
                ) as pool:  # each waits for the answer to its own
                    list(
                        pool.map(
                            lambda entry: self.put(
                                f"{folder}/{entry['path']}", scratch_folder / entry["name"]
                            ),
                            entries,
                        )
                    )
            except OSError:  # a full disk: what is half there would take the room that is freed
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
        """Remove what killed attempts left beside a committed artifact of a local store."""
        used_folders = {entry["path"].split("/")[0] for entry in artifact.iter_file_entries()}
        for path in folder.iterdir():
            if path.is_dir() and path.name not in used_folders:
                shutil.rmtree(path, ignore_errors=True)

    def put_file(self, key: str, path: Path) -> dict[str, Any]:
        """Put a file under a new key; its size and SHA-256, when it is safe on the disk."""
        self.put(key, path)
        if self.root_folder is not None:
            sync_to_disk(self.root_folder / key)
        return {"size": path.stat().st_size, "sha256": hash_file(path)}

    def lease_work_area(self, stage: str, fingerprint: str) -> AbstractContextManager[Path]:
        """The work area of a fingerprint, held by one process at a time."""
        return lease_folder(self.work_folder / f"{stage}-{fingerprint[:16]}")

    def shared_lock(self) -> AbstractContextManager[None]:
        """Held by whoever runs stages on this machine; many may, but not beside ``alone``."""
        return shared_lock(self.work_folder)

    def exclusive_lock(self) -> AbstractContextManager[bool]:
        """Held by who takes texts out of committed artifacts; false where somebody uses it."""
        return exclusive_lock(self.work_folder)

    # The secret ----------------------------------------------------------------------------

    @property
    def secret(self) -> bytes:
        """Key of the hashes that stand for personal data in ledgers; made on first use."""
        secret_hex = self.get("secret")
        if secret_hex is None:
            self.set_secret_if_absent(secrets.token_bytes(32))
            secret_hex = self.get("secret")
            assert secret_hex is not None
        if not _SECRET_PATTERN.fullmatch(secret_hex):
            raise HallmarkError(
                f"the secret in {self.uri}/secret is not whole: it must be 32 hexadecimal digits "
                f"or more; put it back from a copy of the store, or remove it: what depends on it "
                f"is then made anew"
            )
        return bytes.fromhex(secret_hex.decode())

    def set_secret_if_absent(self, secret: bytes) -> None:
        """Make this the store's secret if it has none; in a folder only its owner can read it."""
        if self.root_folder is None:
            self.create_if_absent("secret", secret.hex().encode())
            return
        descriptor, temporary_path = tempfile.mkstemp(
            dir=self.root_folder
        )  # private before there is anything in it
        with os.fdopen(descriptor, "w") as file:
            file.write(secret.hex())
        with suppress(FileExistsError):
            os.link(temporary_path, self.root_folder / "secret")
        os.unlink(temporary_path)

    def compute_secret_id(self) -> str:
        """Names the secret without telling it."""
        return hmac.new(self.secret, b"hallmark secret id", hashlib.sha256).hexdigest()[:16]


def get_artifact_store(artifact: Artifact) -> Store | None:
    """Return the store of an artifact, or None if it is a folder outside of any store."""
    return artifact.store if isinstance(artifact.store, Store) else None


def _is_valid_manifest(manifest: Any) -> bool:
    """Whether it has all keys of a manifest, of the types that readers rely on, and its digests
    are those of what it lists."""
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
    """Whether these are numbers of parts, together as many as there are."""
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
    """Whether it names a file of the artifact, and of nothing outside of it."""
    return (
        isinstance(file_entry, dict)
        and isinstance(file_entry.get("size"), int)
        and isinstance(file_entry.get("sha256"), str)
        and all(is_safe_relative_path(file_entry.get(key)) for key in ("name", "path"))
    )


def _try_rename_folder(folder: Path, target: Path) -> bool:
    """Put a folder where it belongs; false where that is on another disk."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.replace(folder, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True


def is_safe_relative_path(relative_path: Any) -> bool:
    """Whether a name out of a file stays below the folder that it is joined to."""
    if (
        not isinstance(relative_path, str)
        or not relative_path
        or "\\" in relative_path
        or "\0" in relative_path
    ):
        return False
    return not {"", ".", ".."} & set(relative_path.split("/"))  # an absolute one begins with ""


def sync_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
