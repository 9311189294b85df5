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

from tasks.contract.artifact import Artifact, Manifest, content_digest, table_digest
from tasks.contract.columns import Column
from tasks.contract.errors import HallmarkError
from tasks.contract.external_files import file_digest
from tasks.contract.lease import alone, beside, lease
from tasks.contract.objects import Objects
from tasks.contract.tombstones import TOMBSTONES, lay_over, read_tombstones

#: Of tables and files in an artifact; raised when they lie otherwise.
LAYOUT = 2

#: Files that are put into an object store at a time.
UPLOADS = 8

#: Keys of every manifest that a stage leaves.
MANIFEST = {"stage", "fingerprint", "content", "determinism", "tables", "files", "telemetry",
            "parts", "lineage"}  # fmt: skip
#: What of a fingerprint's parts ``hallmark status`` compares with today, where a stage has it.
CHANGING = ("code", "libraries", "config", "external")
KEYS_OF_A_COLUMN = {field.name for field in fields(Column)}

_SECRET = re.compile(rb"(?:[0-9a-f]{2}){16,}\s*")


class Store(Objects):
    """Objects among which artifacts are found and committed; see the head of this module."""

    @staticmethod
    def folder(stage: str, fingerprint: str) -> str:
        return f"artifacts/{stage}/{fingerprint[:16]}"

    def find(self, stage: str, fingerprint: str) -> Artifact | None:
        """The committed artifact of a stage and fingerprint (or its first 16 digits), if any."""
        folder = self.folder(stage, fingerprint)
        if not is_inside(folder):
            named = f"{stage}/{fingerprint}"
            raise HallmarkError(f"{named} is no name of an artifact; see: hallmark status")
        data = self.get(f"{folder}/manifest.json")
        if data is None:
            return None
        manifest = self._manifest(folder, data)
        if not manifest["fingerprint"].startswith(fingerprint):
            raise HallmarkError(f"two fingerprints share the folder {folder}; remove that folder")
        lay_over(manifest, read_tombstones(self.get(f"{folder}/{TOMBSTONES}"), folder))
        return Artifact(manifest, self, folder)

    def _manifest(self, folder: str, data: bytes) -> Manifest:
        name = folder.removeprefix("artifacts/")
        try:
            manifest = json.loads(data)
        except (ValueError, RecursionError):
            manifest = None
        if isinstance(manifest, dict) and manifest.keys() >= MANIFEST and (
            manifest.get("layout", 1) != LAYOUT
        ):  # fmt: skip
            raise HallmarkError(
                f"artifact {name} was made by another version of Hallmark, which laid out tables "
                f"otherwise; remove the artifact's folder and run again to make it anew, or look "
                f"at it with that version"
            )
        if not _is_manifest(manifest):
            raise HallmarkError(
                f"artifact {name} is damaged: its manifest.json in "
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
        manifest = deepcopy(manifest) | {"layout": LAYOUT}
        entries = list(Artifact(manifest, self, folder).entries())
        for entry in entries:
            entry["path"] = f"{attempt}/{entry['name']}"
        place = None if self.root is None else self.root / folder / attempt
        if place is None or not _renamed(scratch, place):
            try:
                with ThreadPoolExecutor(UPLOADS) as pool:  # each waits for the answer to its own
                    list(pool.map(lambda e: self.put(f"{folder}/{e['path']}", scratch / e["name"]),
                                  entries))  # fmt: skip
            except OSError:  # a full disk: what is half there would take the room that is freed
                if place is not None:
                    shutil.rmtree(place, ignore_errors=True)
                raise
            shutil.rmtree(scratch)
        if place is not None:
            for entry in entries:
                sync(place / entry["name"])
            sync(place.parent)
        text = json.dumps(manifest, indent=1, sort_keys=True).encode()
        won = self.create(f"{folder}/manifest.json", text)
        artifact = self.find(manifest["stage"], manifest["fingerprint"])
        assert artifact is not None
        if not won:
            self.delete([f"{folder}/{entry['path']}" for entry in entries])
        if self.root is not None:
            self._sweep(self.root / folder, artifact)
        return artifact

    def _sweep(self, folder: Path, artifact: Artifact) -> None:
        """Remove what killed attempts left beside a committed artifact of a local store."""
        keep = {entry["path"].split("/")[0] for entry in artifact.entries()}
        for path in folder.iterdir():
            if path.is_dir() and path.name not in keep:
                shutil.rmtree(path, ignore_errors=True)

    def put_file(self, key: str, path: Path) -> dict[str, Any]:
        """Put a file under a new key; its size and SHA-256, when it is safe on the disk."""
        self.put(key, path)
        if self.root is not None:
            sync(self.root / key)
        return {"size": path.stat().st_size, "sha256": file_digest(path)}

    def lease(self, stage: str, fingerprint: str) -> AbstractContextManager[Path]:
        """The work area of a fingerprint, held by one process at a time."""
        return lease(self.work / f"{stage}-{fingerprint[:16]}")

    def in_use(self) -> AbstractContextManager[None]:
        """Held by whoever runs stages on this machine; many may, but not beside ``alone``."""
        return beside(self.work)

    def alone(self) -> AbstractContextManager[bool]:
        """Held by who takes texts out of committed artifacts; false where somebody uses it."""
        return alone(self.work)

    # The secret ----------------------------------------------------------------------------

    @property
    def secret(self) -> bytes:
        """Key of the hashes that stand for personal data in ledgers; made on first use."""
        data = self.get("secret")
        if data is None:
            self.keep_secret(secrets.token_bytes(32))
            data = self.get("secret")
            assert data is not None
        if not _SECRET.fullmatch(data):
            raise HallmarkError(
                f"the secret in {self.uri}/secret is not whole: it must be 32 hexadecimal digits "
                f"or more; put it back from a copy of the store, or remove it: what depends on it "
                f"is then made anew"
            )
        return bytes.fromhex(data.decode())

    def keep_secret(self, secret: bytes) -> None:
        """Make this the store's secret if it has none; in a folder only its owner can read it."""
        if self.root is None:
            self.create("secret", secret.hex().encode())
            return
        number, name = tempfile.mkstemp(dir=self.root)  # private before there is anything in it
        with os.fdopen(number, "w") as file:
            file.write(secret.hex())
        with suppress(FileExistsError):
            os.link(name, self.root / "secret")
        os.unlink(name)

    def secret_id(self) -> str:
        """Names the secret without telling it."""
        return hmac.new(self.secret, b"hallmark secret id", hashlib.sha256).hexdigest()[:16]


def _is_manifest(manifest: Any) -> bool:
    """Whether it has all keys of a manifest, of the types that readers rely on, and its digests
    are those of what it lists."""
    texts = ("stage", "fingerprint", "content", "determinism")
    groups = ("tables", "files", "telemetry", "parts", "lineage")
    return (
        isinstance(manifest, dict)
        and manifest.keys() >= MANIFEST
        and all(isinstance(manifest[key], str) for key in texts)
        and all(isinstance(manifest[key], dict) for key in groups)
        and all(_is_table(t) for g in ("tables", "telemetry") for t in manifest[g].values())
        and all(_is_entry(entry) for entry in manifest["files"].values())
        and manifest["content"] == content_digest(manifest["tables"], manifest["files"])
        and all(isinstance(manifest["parts"].get(key, {}), dict) for key in CHANGING)
    )


def _is_table(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("columns"), list)
        and all(_is_column(column) for column in entry["columns"])
        and isinstance(entry.get("parts"), list)
        and len(entry["parts"]) > 0
        and all(_is_entry(p) and isinstance(p.get("rows"), int) for p in entry["parts"])
        and entry.get("rows") == sum(p["rows"] for p in entry["parts"])
        and _are_pieces(entry.get("pieces", [len(entry["parts"])]), len(entry["parts"]))
        and entry.get("sha256") == table_digest(entry)
    )


def _are_pieces(pieces: Any, parts: int) -> bool:
    """Whether these are numbers of parts, together as many as there are."""
    return (
        isinstance(pieces, list)
        and all(type(many) is int and many > 0 for many in pieces)
        and sum(pieces) == parts
    )


def _is_column(column: Any) -> bool:
    return (
        isinstance(column, dict)
        and {"name", "type", "kind"} <= column.keys() <= KEYS_OF_A_COLUMN
        and all(isinstance(value, str) for value in column.values())
    )


def _is_entry(entry: Any) -> bool:
    """Whether it names a file of the artifact, and of nothing outside of it."""
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("size"), int)
        and isinstance(entry.get("sha256"), str)
        and all(is_inside(entry.get(key)) for key in ("name", "path"))
    )


def _renamed(folder: Path, place: Path) -> bool:
    """Put a folder where it belongs; false where that is on another disk."""
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.replace(folder, place)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True


def is_inside(name: Any) -> bool:
    """Whether a name out of a file stays below the folder that it is joined to."""
    if not isinstance(name, str) or not name or "\\" in name or "\0" in name:
        return False
    return not {"", ".", ".."} & set(name.split("/"))  # an absolute one begins with ""


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
