"""Test where inputs are and whether they changed.

Covers object stores, cached digests, and files that change or disappear while they are read.
"""

import gzip
import json
import os
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hallmark.tasks.contract import (
    HallmarkError,
    Session,
    Store,
    UsageError,
    get_short_error_line,
    open_session,
)
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading import file_digests, sources
from hallmark.tasks.corpus.reading.byte_streams import ReadCounts
from hallmark.tasks.corpus.reading.inputs import (
    IngestConfig,
    digest_sources_and_block_lists,
    list_inputs,
    read_input_records,
)
from hallmark.tasks.corpus.reading.object_storage import (
    download_temporarily,
    list_remote_files_by_name,
)


def to_jsonl(texts):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def source_settings(path, kind="jsonl"):
    return {"kind": kind, "name": "s", "path": str(path)}


def make_config(path, kind="jsonl"):
    return IngestConfig(sources=[source_settings(path, kind)])


# Object stores -----------------------------------------------------------------------------------


def test_a_bucket_and_a_folder_give_the_same_corpus(tmp_path, replace_objects, session):
    """All containers, plain and compressed; no temporary copies remain."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": ["in parquet"]}), sink)
    wet = b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: 1\r\n\r\nw\r\n\r\n"
    objects = {
        "a.jsonl": to_jsonl(["one", "two", "two"]),
        "b/c.jsonl.gz": gzip.compress(to_jsonl(["three"])),
        "d.csv": b"text\nfour\n",
        "e.parquet": sink.getvalue().to_pybytes(),
        "f.txt": b"five",
        "g.tsv": b"text\nsix\n",
        "h.wet.gz": gzip.compress(wet),
        "broken.jsonl": b"{\n",
    }
    uri = replace_objects("corpus", objects)
    for name, data in objects.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
    kinds = ("jsonl", "csv", "parquet", "text", "tsv", "warc")
    from_bucket, from_folder = (
        ingest(
            IngestConfig(sources=[source_settings(path, kind) | {"name": kind} for kind in kinds])
        )
        for path in (uri, tmp_path / "in")
    )
    for table in ("documents", "origins", "quarantine", "ledger", "accounts"):
        assert from_bucket[table].digest == from_folder[table].digest, table
    assert from_bucket["documents"].row_count == 9
    assert not list(tmp_path.rglob("fetched-*"))


def test_objects_are_found_by_path_folder_and_pattern(replace_objects):
    uri = replace_objects(
        "found", dict.fromkeys(["a.txt", "b/c.txt", "b/d.txt.gz", "b/e.csv", "b2.txt"], b"x")
    )
    suffixes = (".txt",)
    assert list(list_remote_files_by_name("s", uri, suffixes)) == [
        "a.txt",
        "b/c.txt",
        "b/d.txt.gz",
        "b2.txt",
    ]
    assert list(list_remote_files_by_name("s", f"{uri}/b/", suffixes)) == ["c.txt", "d.txt.gz"]
    assert list(list_remote_files_by_name("s", f"{uri}/b/e.csv", suffixes)) == [
        "e.csv"
    ]  # named explicitly
    assert list(list_remote_files_by_name("s", f"{uri}/*/*.txt", suffixes)) == ["b/c.txt"]
    assert list(list_remote_files_by_name("s", f"{uri}/b/[cx].*", suffixes)) == ["c.txt"]
    assert list(list_remote_files_by_name("s", f"{uri}/**/*.txt", suffixes)) == [
        "a.txt",
        "b/c.txt",
        "b2.txt",
    ]
    for bad_uri in (
        f"{uri}/no",
        f"{uri}/*.parquet",
        "s3://no-such-bucket/x",
        "s3://",
        "what://x/y",
    ):
        with pytest.raises(UsageError, match="source 's'"):
            list_remote_files_by_name("s", bad_uri, suffixes)


NAMES = ["a.txt", "axtxt", "b/c.txt", "b/cc.txt", "b/cxtxt", "b/d.txt", "b/^.txt", "b/deep/c.txt"]


@pytest.mark.parametrize(
    "pattern",
    [
        "*",
        "*.txt",
        "?.txt",
        "b/*.txt",
        "b/c?.txt",
        "b/[c].txt",
        "b/[cd]*",
        "b/[b-d].txt",
        "b/[!c].txt",
        "b/[!b-d].txt",
        "b/[^c].txt",
        "**/*.txt",
        "b/**/c.txt",
        "*/*",
        "[ab]/**/*.txt",
    ],
)
def test_a_pattern_matches_objects_like_files(replace_objects, tmp_path, pattern):
    uri = replace_objects("patterns", dict.fromkeys(NAMES, b"x"))
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    files = sources.find_paths_by_file_name("s", f"{tmp_path}/{pattern}", (".txt",))
    objects = list_remote_files_by_name("s", f"{uri}/{pattern}", (".txt",))
    assert list(objects) == list(files)
    assert [file.uri.removeprefix(uri) for file in objects.values()] == [
        str(path).removeprefix(str(tmp_path)) for path in files.values()
    ]


def test_a_pattern_may_begin_with_the_first_folder_of_a_bucket(replace_objects):
    replace_objects("rooted", {"a.txt": b"x"})
    assert list(list_remote_files_by_name("s", "s3://hallmark/roote?/*.txt", (".txt",))) == [
        "rooted/a.txt"
    ]


def test_an_invalid_pattern_is_refused(replace_objects):
    uri = replace_objects("wrong", {"a.txt": b"x"})
    with pytest.raises(UsageError, match=r"\[z-a\]' is not a valid pattern \(bad character range"):
        list_remote_files_by_name("s", f"{uri}/[z-a]", (".txt",))


@pytest.mark.parametrize("uri", ["s3://no-such-bucket/x", "what://x/y"])
def test_the_error_of_a_failed_listing_is_one_line_with_the_cause(bucket, uri):
    with pytest.raises(UsageError) as raised:
        list_remote_files_by_name("s", uri, (".txt",))
    cause = get_short_error_line(raised.value.__cause__)
    message = str(raised.value)
    assert (
        f" cannot be listed ({cause}); correct the source path" in message and "\n" not in message
    )


def test_the_digest_of_an_object_depends_on_its_tag(replace_objects):
    uri = replace_objects("tags", {"a.jsonl": to_jsonl(["one"])})
    before = digest_sources_and_block_lists(make_config(uri), "")
    assert digest_sources_and_block_lists(make_config(uri), "") == before
    replace_objects("tags", {"a.jsonl": to_jsonl(["two"])})
    assert digest_sources_and_block_lists(make_config(uri), "") != before


def test_an_object_that_changes_or_is_deleted_is_an_error(replace_objects, tmp_path):
    uri = replace_objects("gone", {"a.jsonl": to_jsonl(["one"])})
    (file_input,) = list_inputs(make_config(uri))
    replace_objects("gone", {"a.jsonl": to_jsonl(["two"])})
    with (
        pytest.raises(HallmarkError, match=r"a\.jsonl changed while it was being read"),
        download_temporarily(file_input.locator, file_input.version_tag, tmp_path),
    ):
        pass
    replace_objects("gone", {})
    with pytest.raises(HallmarkError, match=r"a\.jsonl was deleted before it was read; restore it"):
        list(read_input_records(file_input, make_config(uri), ReadCounts(), tmp_path))
    assert not list(tmp_path.iterdir())


# Files that change or are deleted -----------------------------------------------------------------


def start_reading(tmp_path, texts=20_000):
    """Write a file and read its first record."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(to_jsonl(f"text {n} {'x' * 200}" for n in range(texts)))
    config = make_config(path)
    (file_input,) = list_inputs(config)
    records = read_input_records(file_input, config, ReadCounts())
    next(records)
    return path, records


def test_a_file_that_is_deleted_is_an_error(tmp_path):
    path, records = start_reading(tmp_path)
    path.unlink()
    with pytest.raises(
        HallmarkError,
        match=r"a\.jsonl disappeared while it was being read; nothing was stored; restore the file",
    ):
        list(records)


def test_a_file_that_is_overwritten_is_an_error(tmp_path):
    """The size is the same, so only the time shows the change."""
    path, records = start_reading(tmp_path)
    with path.open("r+b") as file:
        file.write(b"{")
    later = time.time_ns() + 10**9
    os.utime(path, ns=(later, later))
    with pytest.raises(HallmarkError, match=r"a\.jsonl changed while it was being read"):
        list(records)


def test_a_file_that_changes_or_is_deleted_before_reading_is_an_error(tmp_path):
    for change, problem in (
        (lambda p: p.write_bytes(b"x"), "changed"),
        (lambda p: p.unlink(), "disappeared"),
    ):
        path = tmp_path / "a.jsonl"
        path.write_bytes(to_jsonl(["one"]))
        (file_input,) = list_inputs(make_config(path))
        change(path)
        with pytest.raises(HallmarkError, match=f"{problem} while it was being read"):
            list(read_input_records(file_input, make_config(path), ReadCounts()))


def test_a_file_that_changes_after_its_digest_fails_the_stage(tmp_path, session, monkeypatch):
    """Otherwise the artifact would have the fingerprint of another text."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(to_jsonl(["one"]))
    original_save = file_digests.DigestCache.save

    def change(self):
        original_save(self)
        path.write_bytes(to_jsonl(["other"]))

    monkeypatch.setattr(file_digests.DigestCache, "save", change)
    with pytest.raises(
        HallmarkError, match=r"stage ingest: .*a\.jsonl changed while it was being read"
    ):
        ingest(make_config(path))


def test_a_change_of_permissions_is_reported_as_such(tmp_path, session):
    """Ingest compares only times; the contract compares digests, which are unchanged."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(to_jsonl(["one"]))
    set_age(path)

    def change(event):
        if event.kind == "progress":
            time.sleep(0.02)  # until the file system's clock has advanced
            path.chmod(0o600)

    session.listener = change
    message = (
        r"^stage ingest: .*a\.jsonl was renamed or replaced, or its permissions, owner or links "
    )
    with pytest.raises(HallmarkError, match=message):
        ingest(make_config(path))
    assert session.store.list_artifacts("ingest") == []


# Cached digests ----------------------------------------------------------------------------------


@pytest.fixture
def hashed_names(monkeypatch):
    """Record the names of the files that are hashed."""
    names = []

    def hash_and_record(path):
        names.append(path.name)
        return hash_file(path)

    hash_file = sources.hash_file
    monkeypatch.setattr(sources, "hash_file", hash_and_record)
    return names


def set_age(path, seconds=5):
    timestamp = time.time_ns() - seconds * 10**9
    os.utime(path, ns=(timestamp, timestamp))


def test_an_unchanged_file_is_not_hashed_again(tmp_path, hashed_names):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("old", "new"):
        (folder / f"{name}.jsonl").write_bytes(to_jsonl([name]))
    set_age(folder / "old.jsonl")
    os.utime(folder / "new.jsonl", ns=(time.time_ns() + 10**10,) * 2)
    digests = []
    for _ in range(3):
        with open_session(Session(Store(tmp_path / "store"))):
            digests.append(digest_sources_and_block_lists(make_config(folder), ""))
    assert hashed_names == ["new.jsonl", "old.jsonl", "new.jsonl", "new.jsonl"]
    assert digests[0] == digests[1] == digests[2]
    # Outside a session nothing is cached.
    assert digest_sources_and_block_lists(make_config(folder), "") == digests[0]
    assert len(hashed_names) == 6


@pytest.mark.parametrize(("before", "reads"), [(500_000_000, 1), (499_999_999, 2), (0, 2), (-1, 2)])
def test_a_file_changed_in_the_second_of_its_digest_is_hashed_again(
    tmp_path, hashed_names, monkeypatch, before, reads
):
    """It may have changed again within that second.

    Args:
        before: Nanoseconds from the change to the digest.
    """
    now = 1_700_000_000_499_999_999
    monkeypatch.setattr(file_digests.time, "time_ns", lambda: now)
    path = tmp_path / "a.jsonl"
    path.write_bytes(to_jsonl(["one"]))
    os.utime(path, ns=(now - before, now - before))
    for _ in range(2):
        with open_session(Session(Store(tmp_path / "some" / "store"))):
            digest_sources_and_block_lists(make_config(path), "")
    assert len(hashed_names) == reads


@pytest.mark.parametrize(
    "change", ["time", "size", "content", "file", "other store", "damaged entries"]
)
def test_a_file_that_may_have_changed_is_hashed_again(tmp_path, hashed_names, change):
    path = tmp_path / "a.jsonl"
    path.write_bytes(to_jsonl(["one"]))
    set_age(path)
    with open_session(Session(Store(tmp_path / "store"))):
        digest_sources_and_block_lists(make_config(path), "")
    if change == "time":
        path.write_bytes(to_jsonl(["two"]))
    elif change == "size":
        timestamp = path.stat().st_mtime_ns
        path.write_bytes(to_jsonl(["longer"]))
        os.utime(path, ns=(timestamp, timestamp))
    elif change in ("content", "file"):  # with the same size and time
        timestamp = path.stat().st_mtime_ns
        new_path = path if change == "content" else tmp_path / "other.jsonl"
        new_path.write_bytes(to_jsonl(["two"]))
        os.utime(new_path, ns=(timestamp, timestamp))
        new_path.replace(path)
    elif change == "damaged entries":
        (tmp_path / "store" / "work" / "digests.json").write_text('{"x": [1], ')
    store = "another" if change == "other store" else "store"
    with open_session(Session(Store(tmp_path / store))):
        digest_sources_and_block_lists(make_config(path), "")
    assert hashed_names == ["a.jsonl"] * 2


def test_a_store_inside_a_corpus_folder_is_not_read(tmp_path):
    """Otherwise its parquet files would be documents, and change while the stage writes them."""
    pq.write_table(pa.table({"text": ["A text of the corpus."]}), tmp_path / "a.parquet")
    settings = {"kind": "parquet", "name": "s"}
    with open_session(Session(Store(tmp_path / "deep" / "store"))):
        for path in (tmp_path, f"{tmp_path}/**/*.parquet"):
            # Two artifacts: the second run finds files of the first.
            for field in (
                "text_field",
                "key_field",
            ):
                config = IngestConfig(sources=[settings | {"path": str(path), field: "text"}])
                artifact = ingest(config)
                assert artifact["documents"].read(["text"])["text"].to_pylist() == [
                    "A text of the corpus."
                ]
    with open_session(Session(Store(tmp_path / "another"))):  # nor is a store that is not open
        artifact = ingest(
            IngestConfig(sources=[settings | {"path": str(tmp_path / "deep" / "..")}])
        )
        assert artifact["documents"].row_count == 1
        named_folder = tmp_path / "deep" / "store" / "mine"
        named_folder.mkdir()
        pq.write_table(pa.table({"text": ["Kept in the store."]}), named_folder / "b.parquet")
        artifact = ingest(IngestConfig(sources=[settings | {"path": str(named_folder)}]))
        assert artifact["documents"].read(["text"])["text"].to_pylist() == ["Kept in the store."]
