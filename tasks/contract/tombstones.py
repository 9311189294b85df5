"""Read and apply tombstones, which record the purge of documents from artifacts.

    <store>/purged.json                                       documents that must not come back
    <store>/artifacts/<stage>/<fingerprint>/tombstones.json   parts and files rewritten without them

A manifest and its content digests never change: they describe the original artifact. ``Store``
applies the tombstones to each manifest that it reads, so every reader sees the rewritten files. A
stage that reads rewritten files has a different fingerprint than one that read the originals.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypedDict

from hallmark.tasks.contract.errors import HallmarkError
from hallmark.tasks.contract.fingerprint import sha256_hex, to_canonical_json

if TYPE_CHECKING:
    from hallmark.tasks.contract.object_store import ObjectStore

ManifestEntry = dict[str, Any]

TOMBSTONES_FILE = "tombstones.json"
PURGED_DOCUMENTS_FILE = "purged.json"

#: Largest number of bytes of a file's name, and of a path inside an artifact; object stores allow
#: 1,024 bytes with the prefix.
MAX_NAME_BYTES, MAX_PATH_BYTES = 255, 900

#: Keys of a rewritten part or file in the tombstones.
_TOMBSTONE_KEYS = ("path", "size", "sha256")
_DOC_ID_PATTERN = re.compile("[0-9a-f]{32}")


def iter_file_entries(manifest: dict[str, Any]) -> Iterable[ManifestEntry]:
    """Yield the entries of all files in a manifest, including the parts of tables."""
    for group in ("tables", "telemetry"):
        for table in manifest[group].values():
            yield from table["parts"]
    yield from manifest["files"].values()


class Tombstones(TypedDict):
    """The content of an artifact's tombstone file."""

    purged: dict[str, str]
    """Time of the purge by document id, in hexadecimal."""
    entries: dict[str, ManifestEntry]
    """The replaced ``path``, ``size`` and ``sha256`` of each rewritten file, by manifest name."""


class PurgedDocuments(TypedDict):
    """The content of a store's list of purged documents."""

    documents: dict[str, str]
    """Time of the purge by document id, in hexadecimal."""
    unfinished: list[str]
    """Ids of documents whose purge may not have completed."""


def parse_tombstones(tombstone_bytes: bytes | None, folder: str) -> Tombstones:
    """Parse and check the tombstones of an artifact.

    Args:
        tombstone_bytes: Content of the tombstone file; None if there is none.
        folder: Key of the artifact in the store, for the error.

    Raises:
        HallmarkError: The file is damaged.
    """
    if tombstone_bytes is None:
        return {"purged": {}, "entries": {}}
    tombstones: Tombstones = _parse_json_or_none(tombstone_bytes)
    if not (
        isinstance(tombstones, dict)
        and _maps_ids_to_strings(tombstones.get("purged"))
        and isinstance(tombstones.get("entries"), dict)
        and all(
            isinstance(entry, dict)
            and entry.keys() == set(_TOMBSTONE_KEYS)
            and type(entry["size"]) is int
            and isinstance(entry["sha256"], str)
            for entry in tombstones["entries"].values()
        )
        and all(is_safe_relative_path(entry["path"]) for entry in tombstones["entries"].values())
    ):
        raise HallmarkError(
            f"artifact {folder.removeprefix('artifacts/')} is damaged: its {TOMBSTONES_FILE} is "
            "incomplete or invalid; remove the artifact's folder and run again to rebuild it "
            "without the purged documents"
        )
    return tombstones


def apply_tombstones(manifest: dict[str, Any], tombstones: Tombstones) -> None:
    """Update the entries of a manifest, in place, to describe their rewritten files."""
    if not tombstones["entries"]:
        return
    for entry in iter_file_entries(manifest):
        if replacement := tombstones["entries"].get(entry["name"]):
            entry |= {**replacement, "rewritten": True}
    manifest["purged"] = tombstones["purged"]


def combine_with_rewritten_digests(
    content_digest: str, entries: Iterable[ManifestEntry]
) -> str | dict[str, str]:
    """Combine a content digest with the digests of rewritten files, for a fingerprint.

    Returns:
        The content digest itself if no entry was rewritten.
    """
    rewritten_digests = [entry["sha256"] for entry in entries if entry.get("rewritten")]
    return (
        {"content": content_digest, "rewritten": sha256_hex(to_canonical_json(rewritten_digests))}
        if rewritten_digests
        else content_digest
    )


# The list of purged documents ---------------------------------------------------------------


def read_purged_documents(store: ObjectStore) -> PurgedDocuments:
    """Read and check a store's list of purged documents.

    Raises:
        HallmarkError: The list is damaged.
    """
    list_bytes = store.get(PURGED_DOCUMENTS_FILE)
    purged: PurgedDocuments = (
        {"documents": {}, "unfinished": []}
        if list_bytes is None
        else _parse_json_or_none(list_bytes)
    )
    if not (
        isinstance(purged, dict)
        and _maps_ids_to_strings(purged.get("documents"))
        and isinstance(purged.get("unfinished"), list)
        and all(
            isinstance(doc_id, str) and doc_id in purged["documents"]
            for doc_id in purged["unfinished"]
        )
    ):
        raise HallmarkError(
            f"the list of purged documents in {store.uri}/{PURGED_DOCUMENTS_FILE} is incomplete "
            "or invalid; restore it from a backup; without this list, purged documents could "
            "enter the store again"
        )
    return purged


def read_purged_ids(store: ObjectStore) -> frozenset[bytes]:
    """Return the ids of the documents that must not enter the store again."""
    return frozenset(map(bytes.fromhex, read_purged_documents(store)["documents"]))


def hash_purged_ids(store: ObjectStore) -> str | None:
    """Compute one digest of all purged ids; None if no document was purged."""
    purged_ids = sorted(read_purged_documents(store)["documents"])
    return sha256_hex(to_canonical_json(purged_ids)) if purged_ids else None


def _parse_json_or_none(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _maps_ids_to_strings(value: Any) -> bool:
    return isinstance(value, dict) and all(
        _DOC_ID_PATTERN.fullmatch(doc_id) and isinstance(purge_time, str)
        for doc_id, purge_time in value.items()
    )


def is_safe_relative_path(path: Any) -> bool:
    """Whether a name that was read from a file is a path below the folder that it is joined to.

    A path that is too long for a file system or an object store is none.
    """
    if not isinstance(path, str) or "\\" in path or "\0" in path:
        return False
    names = path.split("/")
    byte_counts = [len(name.encode(errors="surrogatepass")) for name in names]
    if max(byte_counts) > MAX_NAME_BYTES or sum(byte_counts) + len(names) > MAX_PATH_BYTES:
        return False
    return not {"", ".", ".."} & set(names)  # an absolute path begins with ""
