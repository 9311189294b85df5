"""Tombstones laid over manifests, and the list of documents that must not come back."""

import json

import pytest

from hallmark.tasks.contract import (
    PURGED_DOCUMENTS_FILE,
    HallmarkError,
    Store,
    read_purged_documents,
)
from hallmark.tasks.contract.fingerprint import sha256_hex, to_canonical_json
from hallmark.tasks.contract.tombstones import (
    apply_tombstones,
    combine_with_rewritten_digests,
    hash_purged_ids,
    iter_file_entries,
    parse_tombstones,
    read_purged_ids,
)

ONE, TWO = "0" * 32, "a1" * 16
FOLDER = "artifacts/make/0123"


def manifest():
    def entry(name):
        return {"name": name, "path": f"0a/{name}", "size": 1, "sha256": "x", "rows": 2}

    return {
        "content": "as it was",
        "tables": {"documents": {"parts": [entry("documents/0"), entry("documents/1")]}},
        "telemetry": {"telemetry": {"parts": [entry("telemetry/0")]}},
        "files": {"text.txt": entry("text.txt")},
    }


NEW = {"path": "0b/new", "size": 7, "sha256": "y"}


def test_what_was_rewritten_is_read_in_its_place_and_nothing_else_changes():
    for name in ("documents/1", "telemetry/0", "text.txt"):
        found, said = manifest(), {"purged": {ONE: "today"}, "entries": {name: NEW}}
        apply_tombstones(found, parse_tombstones(json.dumps(said).encode(), FOLDER))
        for before, after in zip(
            iter_file_entries(manifest()), iter_file_entries(found), strict=True
        ):
            changed = NEW | {"rewritten": True} if after["name"] == name else {}
            assert after == before | changed
        assert found["purged"] == {ONE: "today"} and found["content"] == "as it was"


def test_without_tombstones_a_manifest_is_as_it_was():
    found = manifest()
    apply_tombstones(found, parse_tombstones(None, FOLDER))
    assert found == manifest()
    apply_tombstones(found, {"purged": {ONE: "today"}, "entries": {}})  # it held none of its text
    assert found == manifest()


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\xff",
        b"[]",
        b"null",
        {},
        {"purged": {}},
        {"entries": {}},
        {"purged": [], "entries": {}},
        {"purged": {}, "entries": []},
        {"purged": {"0" * 31: "today"}, "entries": {}},
        {"purged": {"G" * 32: "t"}, "entries": {}},
        {"purged": {ONE: 7}, "entries": {}},
        {"purged": {}, "entries": {"a": "x"}},
        {"purged": {}, "entries": {"a": {"path": "x", "size": 1}}},
        {"purged": {}, "entries": {"a": NEW | {"more": 1}}},
        {"purged": {}, "entries": {"a": NEW, "b": NEW | {"path": "../x"}}},
        {"purged": {}, "entries": {"a": NEW | {"path": "/x"}}},
        {"purged": {}, "entries": {"a": NEW | {"path": 7}}},
    ],
)
def test_tombstones_that_are_not_whole_are_refused(said):
    data = said if isinstance(said, bytes) else json.dumps(said).encode()
    with pytest.raises(HallmarkError, match=r"artifact make/0123 is damaged: its tombstones"):
        parse_tombstones(data, FOLDER)


def test_what_was_rewritten_counts_for_who_reads_it():
    entries = list(iter_file_entries(manifest()))
    assert combine_with_rewritten_digests("digest", entries) == "digest"
    entries[1] |= {"rewritten": True, "sha256": "y"}
    entries[3] |= {"rewritten": True, "sha256": "z"}
    found = combine_with_rewritten_digests("digest", entries)
    assert found == {"content": "digest", "rewritten": sha256_hex(to_canonical_json(["y", "z"]))}
    entries[3]["sha256"] = "other"
    assert combine_with_rewritten_digests("digest", entries) != found


def test_the_list_of_a_store(tmp_path):
    store = Store(tmp_path)
    assert read_purged_documents(store) == {"documents": {}, "unfinished": []}
    assert read_purged_ids(store) == frozenset() and hash_purged_ids(store) is None
    said = {"documents": {TWO: "today", ONE: "before"}, "unfinished": [TWO]}
    store.put(PURGED_DOCUMENTS_FILE, json.dumps(said).encode())
    assert read_purged_documents(store) == said
    assert read_purged_ids(store) == {bytes(16), bytes([0xA1] * 16)}
    # when does not count
    assert hash_purged_ids(store) == sha256_hex(to_canonical_json([ONE, TWO]))


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\xff{",
        [],
        {},
        {"documents": {}},
        {"unfinished": []},
        {"documents": [], "unfinished": []},
        {"documents": {}, "unfinished": {}},
        {"documents": {"x": "today"}, "unfinished": []},
        {"documents": {ONE: "today"}, "unfinished": [ONE, TWO]},
        {"documents": {}, "unfinished": [[]]},
        {"documents": {}, "unfinished": [{}]},
    ],
)
def test_a_list_that_is_not_whole_is_refused(tmp_path, said):
    store = Store(tmp_path)
    store.put(PURGED_DOCUMENTS_FILE, said if isinstance(said, bytes) else json.dumps(said).encode())
    for ask in (read_purged_documents, read_purged_ids, hash_purged_ids):
        with pytest.raises(HallmarkError, match=r"the list of purged documents in .*is incomplete"):
            ask(store)
