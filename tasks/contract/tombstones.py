"""Tombstones: what stands in an artifact in place of the texts of purged documents.

    <store>/purged.json                                       documents that must not come back
    <store>/artifacts/<stage>/<fingerprint>/tombstones.json   parts and files rewritten without them

A manifest is never changed, nor are its content digests: they say what the artifact held. Whoever
finds an artifact reads its tombstones over the manifest, so that every reader sees the parts that
are there now. A stage that reads them has another fingerprint than one that read the whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hallmark.tasks.contract.errors import HallmarkError
from hallmark.tasks.contract.fingerprint import sha256_hex, to_canonical_json

if TYPE_CHECKING:
    from hallmark.tasks.contract.object_store import ObjectStore

ManifestEntry = dict[str, Any]

TOMBSTONES_FILE = "tombstones.json"
PURGED_DOCUMENTS_FILE = "purged.json"

#: What a tombstone says of a part or file.
_TOMBSTONE_KEYS = ("path", "size", "sha256")
_DOC_ID_PATTERN = re.compile("[0-9a-f]{32}")


def iter_file_entries(manifest: dict[str, Any]) -> Iterable[ManifestEntry]:
    """Every file of an artifact, parts of tables among them."""
    for group in ("tables", "telemetry"):
        for table in manifest[group].values():
            yield from table["parts"]
    yield from manifest["files"].values()


def parse_tombstones(tombstone_bytes: bytes | None, folder: str) -> dict[str, Any]:
    """The tombstones of an artifact: the ids that were ``purged``, and when; the ``entries`` of its
    manifest that were rewritten, by name."""
    if tombstone_bytes is None:
        return {"purged": {}, "entries": {}}
    tombstones = _parse_json_or_none(tombstone_bytes)
    if not (
        isinstance(tombstones, dict)
        and _maps_ids_to_times(tombstones.get("purged"))
        and isinstance(tombstones.get("entries"), dict)
        and all(
            isinstance(entry, dict) and entry.keys() == set(_TOMBSTONE_KEYS)
            for entry in tombstones["entries"].values()
        )
        and all(_is_safe_relative_path(entry["path"]) for entry in tombstones["entries"].values())
    ):
        raise HallmarkError(
            f"artifact {folder.removeprefix('artifacts/')} is damaged: its {TOMBSTONES_FILE} "
            f"is not "
            f"whole; remove the artifact's folder and run again to make what is left of it anew"
        )
    return tombstones


def apply_tombstones(manifest: dict[str, Any], tombstones: dict[str, Any]) -> None:
    """Let the entries of a manifest that were rewritten name what stands in their place."""
    if not tombstones["entries"]:
        return
    for entry in iter_file_entries(manifest):
        if replacement := tombstones["entries"].get(entry["name"]):
            entry |= {**replacement, "rewritten": True}
    manifest["purged"] = tombstones["purged"]


def add_rewritten_digest(content_digest: str, entries: Iterable[ManifestEntry]) -> Any:
    """What counts of an input for a fingerprint: its digest, and what was rewritten behind it."""
    rewritten_digests = [entry["sha256"] for entry in entries if entry.get("rewritten")]
    return (
        {"content": content_digest, "rewritten": sha256_hex(to_canonical_json(rewritten_digests))}
        if rewritten_digests
        else content_digest
    )


# The documents that must not come back ------------------------------------------------------------


def read_purged_documents(store: ObjectStore) -> dict[str, Any]:
    """``documents``: the ids that were purged from a store, and when; ``unfinished``: those of them
    of whose purge it is not known that it came to its end."""
    list_bytes = store.get(PURGED_DOCUMENTS_FILE)
    purged = (
        {"documents": {}, "unfinished": []}
        if list_bytes is None
        else _parse_json_or_none(list_bytes)
    )
    if not (
        isinstance(purged, dict)
        and _maps_ids_to_times(purged.get("documents"))
        and isinstance(purged.get("unfinished"), list)
        and all(
            isinstance(doc_id, str) and doc_id in purged["documents"]
            for doc_id in purged["unfinished"]
        )
    ):
        raise HallmarkError(
            f"the list of purged documents in {store.uri}/{PURGED_DOCUMENTS_FILE} is not "
            f"whole; put it back from "
            f"a copy: without it purged documents would come back"
        )
    return purged


def read_purged_ids(store: ObjectStore) -> frozenset[bytes]:
    """The ids that must not enter the store again."""
    return frozenset(map(bytes.fromhex, read_purged_documents(store)["documents"]))


def hash_purged_ids(store: ObjectStore) -> dict[str, str]:
    """For the fingerprint of a stage that lets documents in; nothing where none was purged."""
    purged_ids = sorted(read_purged_documents(store)["documents"])
    return {PURGED_DOCUMENTS_FILE: sha256_hex(to_canonical_json(purged_ids))} if purged_ids else {}


def _parse_json_or_none(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _maps_ids_to_times(value: Any) -> bool:
    return isinstance(value, dict) and all(
        _DOC_ID_PATTERN.fullmatch(doc_id) and isinstance(purge_time, str)
        for doc_id, purge_time in value.items()
    )


def _is_safe_relative_path(path: Any) -> bool:
    return isinstance(path, str) and not {"", ".", ".."} & set(path.split("/"))
