"""Where inputs lie and whether they are still the same: object stores, remembered digests, files
that change or vanish while they are read."""

import gzip
import json
import os
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hallmark.tasks.contract import HallmarkError, Session, Store, UsageError, open_session
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading import file_digests, sources
from hallmark.tasks.corpus.reading.byte_streams import ReadCounts
from hallmark.tasks.corpus.reading.inputs import (
    IngestConfig,
    compute_source_digests,
    list_inputs,
    read_input_records,
)
from hallmark.tasks.corpus.reading.object_storage import download_temporarily, list_remote_files


def jsonl(texts):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def source(path, kind="jsonl"):
    return {"kind": kind, "name": "s", "path": str(path)}


def config(path, kind="jsonl"):
    return IngestConfig(sources=[source(path, kind)])


# Object stores -----------------------------------------------------------------------------------


@pytest.fixture
def put(bucket):
    """Put objects of a folder of the bucket, and take away what was there."""

    def put(folder, objects):
        listed = bucket.list_objects_v2(Bucket="hallmark", Prefix=f"{folder}/").get("Contents", [])
        for there in listed:
            bucket.delete_object(Bucket="hallmark", Key=there["Key"])
        for name, data in objects.items():
            bucket.put_object(Bucket="hallmark", Key=f"{folder}/{name}", Body=data)
        return f"s3://hallmark/{folder}"

    return put


def test_a_corpus_from_a_bucket_is_that_of_a_folder(tmp_path, put, session):
    """Each container, plain and compressed; nothing of the copies is left."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": ["in parquet"]}), sink)
    wet = b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: 1\r\n\r\nw\r\n\r\n"
    objects = {
        "a.jsonl": jsonl(["one", "two", "two"]),
        "b/c.jsonl.gz": gzip.compress(jsonl(["three"])),
        "d.csv": b"text\nfour\n",
        "e.parquet": sink.getvalue().to_pybytes(),
        "f.txt": b"five",
        "g.tsv": b"text\nsix\n",
        "h.wet.gz": gzip.compress(wet),
        "broken.jsonl": b"{\n",
    }
    uri = put("corpus", objects)
    for name, data in objects.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
    kinds = ("jsonl", "csv", "parquet", "text", "tsv", "warc")
    there, here = (
        ingest(IngestConfig(sources=[source(place, kind) | {"name": kind} for kind in kinds]))
        for place in (uri, tmp_path / "in")
    )
    for table in ("documents", "origins", "quarantine", "ledger", "accounts"):
        assert there[table].digest == here[table].digest, table
    assert there["documents"].row_count == 9
    assert not list(tmp_path.rglob("fetched-*"))


def test_objects_are_found_by_path_folder_and_pattern(put):
    uri = put("found", dict.fromkeys(["a.txt", "b/c.txt", "b/d.txt.gz", "b/e.csv", "b2.txt"], b"x"))
    ends = (".txt",)
    assert list(list_remote_files("s", uri, ends)) == ["a.txt", "b/c.txt", "b/d.txt.gz", "b2.txt"]
    assert list(list_remote_files("s", f"{uri}/b/", ends)) == ["c.txt", "d.txt.gz"]
    assert list(list_remote_files("s", f"{uri}/b/e.csv", ends)) == ["e.csv"]  # named: taken
    assert list(list_remote_files("s", f"{uri}/*/*.txt", ends)) == ["b/c.txt"]
    assert list(list_remote_files("s", f"{uri}/b/[cx].*", ends)) == ["c.txt"]
    assert list(list_remote_files("s", f"{uri}/**/*.txt", ends)) == ["a.txt", "b/c.txt", "b2.txt"]
    for wrong in (f"{uri}/no", f"{uri}/*.parquet", "s3://no-such-bucket/x", "s3://", "what://x/y"):
        with pytest.raises(UsageError, match="source 's'"):
            list_remote_files("s", wrong, ends)


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
def test_a_pattern_means_for_objects_what_it_means_for_files(put, tmp_path, pattern):
    uri = put("patterns", dict.fromkeys(NAMES, b"x"))
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    here = sources.find_files("s", f"{tmp_path}/{pattern}", (".txt",))
    there = list_remote_files("s", f"{uri}/{pattern}", (".txt",))
    assert list(there) == list(here)
    assert [file.uri.removeprefix(uri) for file in there.values()] == [
        str(path).removeprefix(str(tmp_path)) for path in here.values()
    ]


def test_a_pattern_may_begin_with_the_first_folder_of_a_bucket(put):
    put("rooted", {"a.txt": b"x"})
    assert list(list_remote_files("s", "s3://hallmark/roote?/*.txt", (".txt",))) == ["rooted/a.txt"]


def test_a_pattern_that_is_none_is_refused(put):
    uri = put("wrong", {"a.txt": b"x"})
    with pytest.raises(UsageError, match=r"\[z-a\]' is no pattern \(bad character range"):
        list_remote_files("s", f"{uri}/[z-a]", (".txt",))


@pytest.mark.parametrize("wrong", ["s3://no-such-bucket/x", "what://x/y"])
def test_why_a_place_cannot_be_listed_is_said_in_a_line(bucket, wrong):
    with pytest.raises(UsageError) as raised:
        list_remote_files("s", wrong, (".txt",))
    why = str(raised.value.__cause__).strip().splitlines()[0][:200]
    said = str(raised.value)
    assert f" cannot be listed ({why}); correct the source's path" in said and "\n" not in said


def test_an_object_is_known_by_its_tag(put):
    uri = put("tags", {"a.jsonl": jsonl(["one"])})
    before = compute_source_digests(config(uri), "")
    assert compute_source_digests(config(uri), "") == before
    put("tags", {"a.jsonl": jsonl(["two"])})
    assert compute_source_digests(config(uri), "") != before


def test_an_object_that_changes_or_vanishes(put, tmp_path):
    uri = put("gone", {"a.jsonl": jsonl(["one"])})
    (part,) = list_inputs(config(uri))
    put("gone", {"a.jsonl": jsonl(["two"])})
    with (
        pytest.raises(HallmarkError, match=r"a\.jsonl changed while it was read"),
        download_temporarily(part.locator, part.version_tag, tmp_path),
    ):
        pass
    put("gone", {})
    with pytest.raises(HallmarkError, match=r"a\.jsonl vanished before it was read; put it back"):
        list(read_input_records(part, config(uri), ReadCounts(), tmp_path))
    assert not list(tmp_path.iterdir())


# Files that change or vanish ---------------------------------------------------------------------


def begun(tmp_path, texts=20_000):
    """A file of which the first record was read."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl(f"text {n} {'x' * 200}" for n in range(texts)))
    where = config(path)
    (part,) = list_inputs(where)
    found = read_input_records(part, where, ReadCounts())
    next(found)
    return path, found


def test_a_file_that_vanishes(tmp_path):
    path, found = begun(tmp_path)
    path.unlink()
    with pytest.raises(HallmarkError, match=r"a\.jsonl vanished while it was read; put it back"):
        list(found)


def test_a_file_that_is_written_over(tmp_path):
    """With as many bytes, so that only its time tells."""
    path, found = begun(tmp_path)
    with path.open("r+b") as file:
        file.write(b"{")
    later = time.time_ns() + 10**9
    os.utime(path, ns=(later, later))
    with pytest.raises(HallmarkError, match=r"a\.jsonl changed while it was read"):
        list(found)


def test_a_file_that_changes_or_vanishes_before_it_is_read(tmp_path):
    for change, why in (
        (lambda p: p.write_bytes(b"x"), "changed"),
        (lambda p: p.unlink(), "vanished"),
    ):
        path = tmp_path / "a.jsonl"
        path.write_bytes(jsonl(["one"]))
        (part,) = list_inputs(config(path))
        change(path)
        with pytest.raises(HallmarkError, match=f"{why} while it was read"):
            list(read_input_records(part, config(path), ReadCounts()))


def test_a_file_that_changes_behind_its_digest_fails_the_stage(tmp_path, session, monkeypatch):
    """The artifact would stand under the fingerprint of another text."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl(["one"]))
    taken = file_digests.DigestCache.save

    def change(self):
        taken(self)
        path.write_bytes(jsonl(["other"]))

    monkeypatch.setattr(file_digests.DigestCache, "save", change)
    with pytest.raises(HallmarkError, match=r"stage ingest: .*a\.jsonl changed while it was read"):
        ingest(config(path))


def test_a_corpus_file_whose_permissions_change_is_not_said_to_be_written_to(tmp_path, session):
    """Ingest compares times alone; the contract has the digest, which says that no byte changed."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl(["one"]))
    age(path)

    def change(event):
        if event.kind == "progress":
            time.sleep(0.02)  # until the clock of the file system has another time
            path.chmod(0o600)

    session.listener = change
    said = r"^stage ingest: .*a\.jsonl was renamed or replaced, or its permissions, owner or links "
    with pytest.raises(HallmarkError, match=said):
        ingest(config(path))
    assert session.store.list_artifacts("ingest") == []


# Digests that are remembered ---------------------------------------------------------------------


@pytest.fixture
def hashed(monkeypatch):
    """The names of the files that are read for their digests."""
    seen = []

    def note(path):
        seen.append(path.name)
        return original(path)

    original = sources.hash_file
    monkeypatch.setattr(sources, "hash_file", note)
    return seen


def age(path, seconds=5):
    then = time.time_ns() - seconds * 10**9
    os.utime(path, ns=(then, then))


def test_an_unchanged_file_is_not_read_to_be_known(tmp_path, hashed):
    for name in ("old", "new"):
        (tmp_path / f"{name}.jsonl").write_bytes(jsonl([name]))
    age(tmp_path / "old.jsonl")
    os.utime(tmp_path / "new.jsonl", ns=(time.time_ns() + 10**10,) * 2)
    found = []
    for _ in range(3):
        with open_session(Session(Store(tmp_path / "store"))):
            found.append(compute_source_digests(config(tmp_path), ""))
    assert hashed == ["new.jsonl", "old.jsonl", "new.jsonl", "new.jsonl"]
    assert found[0] == found[1] == found[2]
    assert (
        compute_source_digests(config(tmp_path), "") == found[0]
    )  # outside of a session nothing is remembered
    assert len(hashed) == 6


@pytest.mark.parametrize(("before", "reads"), [(500_000_000, 1), (499_999_999, 2), (0, 2), (-1, 2)])
def test_a_file_of_the_second_in_which_its_digest_was_noted_is_read_again(
    tmp_path, hashed, monkeypatch, before, reads
):
    """It may have changed again since, in the same second. ``before``: nanoseconds."""
    now = 1_700_000_000_499_999_999
    monkeypatch.setattr(file_digests.time, "time_ns", lambda: now)
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl(["one"]))
    os.utime(path, ns=(now - before, now - before))
    for _ in range(2):
        with open_session(Session(Store(tmp_path / "some" / "store"))):
            compute_source_digests(config(path), "")
    assert len(hashed) == reads


@pytest.mark.parametrize(
    "change", ["time", "size", "content", "file", "other store", "damaged entries"]
)
def test_a_file_that_may_have_changed_is_read_again(tmp_path, hashed, change):
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl(["one"]))
    age(path)
    with open_session(Session(Store(tmp_path / "store"))):
        compute_source_digests(config(path), "")
    if change == "time":
        path.write_bytes(jsonl(["two"]))
    elif change == "size":
        then = path.stat().st_mtime_ns
        path.write_bytes(jsonl(["longer"]))
        os.utime(path, ns=(then, then))
    elif change in ("content", "file"):  # of the same size and time
        then = path.stat().st_mtime_ns
        other = path if change == "content" else tmp_path / "other.jsonl"
        other.write_bytes(jsonl(["two"]))
        os.utime(other, ns=(then, then))
        other.replace(path)
    elif change == "damaged entries":
        (tmp_path / "store" / "work" / "digests.json").write_text('{"x": [1], ')
    store = "another" if change == "other store" else "store"
    with open_session(Session(Store(tmp_path / store))):
        compute_source_digests(config(path), "")
    assert hashed == ["a.jsonl"] * 2


def test_the_store_inside_of_a_corpus_folder_is_no_part_of_it(tmp_path):
    """Its parquet files would be read as documents, and change while the stage writes them."""
    pq.write_table(pa.table({"text": ["A text of the corpus."]}), tmp_path / "a.parquet")
    where = {"kind": "parquet", "name": "s"}
    with open_session(Session(Store(tmp_path / "deep" / "store"))):
        for path in (tmp_path, f"{tmp_path}/**/*.parquet"):
            for field in ("text_field", "key_field"):  # two stages: the second finds the first's
                config = IngestConfig(sources=[where | {"path": str(path), field: "text"}])
                made = ingest(config)
                assert made["documents"].read(["text"])["text"].to_pylist() == [
                    "A text of the corpus."
                ]
    with open_session(Session(Store(tmp_path / "another"))):  # nor is that of somebody else
        made = ingest(IngestConfig(sources=[where | {"path": str(tmp_path / "deep" / "..")}]))
        assert made["documents"].row_count == 1
        named = tmp_path / "deep" / "store" / "mine"
        named.mkdir()
        pq.write_table(pa.table({"text": ["Kept in the store."]}), named / "b.parquet")
        made = ingest(IngestConfig(sources=[where | {"path": str(named)}]))
        assert made["documents"].read(["text"])["text"].to_pylist() == ["Kept in the store."]
