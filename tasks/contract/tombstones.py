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

from tasks.contract.errors import HallmarkError
from tasks.contract.fingerprint import canonical, sha256

if TYPE_CHECKING:
    from tasks.contract.objects import Objects

Entry = dict[str, Any]

TOMBSTONES = "tombstones.json"
DENIED = "purged.json"

#: What a tombstone says of a part or file.
_KEYS = ("path", "size", "sha256")
_DOC_ID = re.compile("[0-9a-f]{32}")


def entries_of(manifest: dict[str, Any]) -> Iterable[Entry]:
    """Every file of an artifact, parts of tables among them."""
    for group in ("tables", "telemetry"):
        for table in manifest[group].values():
            yield from table["parts"]
    yield from manifest["files"].values()


def read_tombstones(data: bytes | None, folder: str) -> dict[str, Any]:
    """The tombstones of an artifact: the ids that were ``purged``, and when; the ``entries`` of its
    manifest that were rewritten, by name."""
    if data is None:
        return {"purged": {}, "entries": {}}
    found = _parsed(data)
    if not (
        isinstance(found, dict)
        and _is_list_of_ids(found.get("purged"))
        and isinstance(found.get("entries"), dict)
        and all(isinstance(e, dict) and e.keys() == set(_KEYS) for e in found["entries"].values())
        and all(_is_below(e["path"]) for e in found["entries"].values())
    ):
        raise HallmarkError(
            f"artifact {folder.removeprefix('artifacts/')} is damaged: its {TOMBSTONES} is not "
            f"whole; remove the artifact's folder and run again to make what is left of it anew"
        )
    return found


def lay_over(manifest: dict[str, Any], tombstones: dict[str, Any]) -> None:
    """Let the entries of a manifest that were rewritten name what stands in their place."""
    if not tombstones["entries"]:
        return
    for entry in entries_of(manifest):
        if known := tombstones["entries"].get(entry["name"]):
            entry |= {**known, "rewritten": True}
    manifest["purged"] = tombstones["purged"]


def as_read(digest: str, entries: Iterable[Entry]) -> Any:
    """What counts of an input for a fingerprint: its digest, and what was rewritten behind it."""
    rewritten = [entry["sha256"] for entry in entries if entry.get("rewritten")]
    return {"content": digest, "rewritten": sha256(canonical(rewritten))} if rewritten else digest


# The documents that must not come back ------------------------------------------------------------


def read_denied(store: Objects) -> dict[str, Any]:
    """``documents``: the ids that were purged from a store, and when; ``unfinished``: those of them
    of whose purge it is not known that it came to its end."""
    data = store.get(DENIED)
    found = {"documents": {}, "unfinished": []} if data is None else _parsed(data)
    if not (
        isinstance(found, dict)
        and _is_list_of_ids(found.get("documents"))
        and isinstance(found.get("unfinished"), list)
        and all(isinstance(i, str) and i in found["documents"] for i in found["unfinished"])
    ):
        raise HallmarkError(
            f"the list of purged documents in {store.uri}/{DENIED} is not whole; put it back from "
            f"a copy: without it purged documents would come back"
        )
    return found


def denied(store: Objects) -> frozenset[bytes]:
    """The ids that must not enter the store again."""
    return frozenset(map(bytes.fromhex, read_denied(store)["documents"]))


def denied_digest(store: Objects) -> dict[str, str]:
    """For the fingerprint of a stage that lets documents in; nothing where none was purged."""
    found = sorted(read_denied(store)["documents"])
    return {DENIED: sha256(canonical(found))} if found else {}


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _is_list_of_ids(value: Any) -> bool:
    return isinstance(value, dict) and all(
        _DOC_ID.fullmatch(key) and isinstance(when, str) for key, when in value.items()
    )


def _is_below(path: Any) -> bool:
    return isinstance(path, str) and not {"", ".", ".."} & set(path.split("/"))
