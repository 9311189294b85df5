"""Ingest: stable ids, balanced accounts, and sources that are found or rejected."""

import csv
import gzip
import hashlib
import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from hallmark.tasks.contract import (
    HallmarkError,
    ProcessMapper,
    Session,
    Store,
    UsageError,
    open_session,
)
from hallmark.tasks.corpus.ingest import MAX_QUARANTINED_BYTES, ingest
from hallmark.tasks.corpus.reading.inputs import (
    IngestConfig,
    digest_sources_and_block_lists,
    list_inputs,
)
from hallmark.tasks.corpus.reading.records import IdRange, count_preceding_equal_identities
from hallmark.tasks.corpus.reading.sources import find_paths_by_file_name

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "corpus"


def write_jsonl(path, read_rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in read_rows))
    return path


def source(kind, path, name="s", **settings):
    return {"kind": kind, "name": name, "path": str(path), **settings}


def make_config(*sources, **settings):
    return IngestConfig(sources=list(sources), **settings)


def read_rows(artifact, table):
    return artifact[table].read().to_pylist()


def read_accounts(artifact):
    return {(b["source"], b["unit"]): b for b in read_rows(artifact, "accounts")}


TEXTS = ["alpha", "beta", "alpha", "gamma\r\nlines", "alpha", "délta \u2028 \0"]


def test_ids_do_not_depend_on_container_folder_or_order(tmp_path, session):
    """Nor do they depend on whether identical documents are in one file or in several."""
    jsonl_path = write_jsonl(tmp_path / "a/one.jsonl", [{"text": t} for t in TEXTS])
    parquet_path = tmp_path / "other/place/t.parquet"
    parquet_path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"text": TEXTS[::-1]}), parquet_path)
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text",), *((t,) for t in TEXTS)])
    archive = [
        b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: %d\r\n\r\n%s\r\n\r\n"
        % (len(t.encode()), t.encode())
        for t in TEXTS
    ]
    (tmp_path / "t.wet.gz").write_bytes(b"".join(map(gzip.compress, archive)))
    folder = tmp_path / "many"
    for index, text in enumerate(TEXTS):
        write_jsonl(folder / f"{9 - index}/x.jsonl", [{"text": text, "more": index}])
    artifacts = [
        ingest(make_config(source("jsonl", jsonl_path))),
        ingest(make_config(source("parquet", parquet_path))),
        ingest(make_config(source("csv", tmp_path / "t.csv"))),
        ingest(make_config(source("jsonl", folder))),
        ingest(make_config(source("warc", tmp_path / "t.wet.gz"))),
    ]
    pairs = [
        Counter((r["doc_id"], r["text"]) for r in read_rows(a, "documents")) for a in artifacts
    ]
    assert all(counts == pairs[0] for counts in pairs)
    assert len(pairs[0]) == len(TEXTS)  # identical documents differ in their ids
    renamed = ingest(make_config(source("jsonl", jsonl_path, name="t")))
    assert not {r["doc_id"] for r in read_rows(renamed, "documents")} & {i for i, _ in pairs[0]}


def test_a_declared_key_determines_the_id(tmp_path, session):
    first = write_jsonl(
        tmp_path / "a.jsonl", [{"text": "draft", "id": 1}, {"text": "draft", "id": 2}]
    )
    second = write_jsonl(
        tmp_path / "b.jsonl", [{"text": "final", "id": "2"}, {"text": "final", "id": 1}]
    )
    before, after = (
        {r["location"]: r["doc_id"] for r in read_rows(ingest(c), "origins")}
        for c in (make_config(source("jsonl", p, key_field="id")) for p in (first, second))
    )
    assert before["line 1"] == after["line 2"]
    assert before["line 2"] == after["line 1"]
    assert len({*before.values(), *after.values()}) == 2


def test_the_record_with_the_smallest_text_hash_is_kept_for_each_key(tmp_path, session):
    """The order of the records does not matter; the others are quarantined."""
    records = [{"text": f"text {i}", "id": i % 3} for i in range(8)]
    artifacts = []
    for name, order in (("there", records), ("back", records[::-1])):
        write_jsonl(tmp_path / name / "a.jsonl", order[:4])
        write_jsonl(tmp_path / name / "b.jsonl", order[4:])
        artifacts.append(ingest(make_config(source("jsonl", tmp_path / name, key_field="id"))))
    kept_texts = {min((f"text {i}" for i in range(k, 8, 3)), key=text_hash) for k in range(3)}
    for artifact in artifacts:
        assert {r["text"] for r in read_rows(artifact, "documents")} == kept_texts
        quarantined = read_rows(artifact, "quarantine")
        assert {r["raw"].decode() for r in quarantined} == {
            row["text"] for row in records
        } - kept_texts
        assert {r["error"] for r in quarantined} == {"duplicate key"}
        assert read_accounts(artifact)[("s", "rows")]["quarantined"] == 5
    assert artifacts[0]["documents"].digest == artifacts[1]["documents"].digest
    places = {
        (r["raw"], r["file_name"], r["location"]) for r in read_rows(artifacts[0], "quarantine")
    }
    expected = {
        (f"text {i}".encode(), "ab"[i // 4] + ".jsonl", f"line {i % 4 + 1}")
        for i in range(8)
        if f"text {i}" not in kept_texts
    }
    assert places == expected


def text_hash(text):
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


HOSTILE = (
    b"\xef\xbb\xbf\n" + b'{"text": "kept one"}\n' + b"{broken\n" + b'{"text": ""}\n'
    b'{"text": " \\u3000\\n"}\n' + b'{"text": "ab"}\n' + b"\xff\xfe\n\n" + b'{"text": "kept two"}'
)


def test_every_byte_is_accounted_for(tmp_path, session):
    """Compare with the sizes of the files."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(HOSTILE)
    (folder / "b.jsonl").write_bytes(b"")
    (folder / "c.jsonl.gz").write_bytes(gzip.compress(HOSTILE)[:-8])
    result = ingest(make_config(source("jsonl", folder), min_document_bytes=3))
    texts = sorted(r["text"] for r in read_rows(result, "documents"))
    assert texts == ["kept one", "kept one", "kept two"]
    account = read_accounts(result)[("s", "bytes")]
    assert account["input"] == 2 * len(HOSTILE)
    lines = HOSTILE.split(b"\n")
    assert account["kept"] == 2 * 21 + 20
    assert account["removed_rows"] == 2 * sum(len(lines[i]) + 1 for i in (3, 4, 5))
    assert account["removed_spans"] == 2 * 5  # the byte order mark and two blank lines
    assert account["quarantined"] == 2 * (len(b"{broken\n") + 3) + 20
    account = read_accounts(result)[("s", "rows")]
    assert (account["input"], account["kept"], account["removed_rows"], account["quarantined"]) == (
        15,
        3,
        6,
        6,
    )
    reasons = Counter(r["reason"] for r in read_rows(result, "ledger") if r["action"] == "removed")
    assert reasons == {"empty": 4, "too short": 2}
    removed = [r["doc_id"] for r in read_rows(result, "ledger") if r["action"] == "removed"]
    assert len(set(removed)) == 6  # identical records have different ids here, too
    assert [
        (r["file_name"], r["location"], r["error"]) for r in read_rows(result, "quarantine")
    ] == [
        ("a.jsonl", "line 3, character 2", "broken JSON"),
        ("a.jsonl", "line 7, byte 1", "not valid UTF-8"),
        ("b.jsonl", "whole file", "the file is empty"),
        ("c.jsonl.gz", "line 3, character 2", "broken JSON"),
        ("c.jsonl.gz", "line 7, byte 1", "not valid UTF-8"),
        ("c.jsonl.gz", "line 9", "the compressed data are incomplete: the end is missing"),
    ]
    origins = [
        (r["file_name"], r["location"], r["raw_bytes"]) for r in read_rows(result, "origins")
    ]
    assert sorted(origins) == [
        ("a.jsonl", "line 2", 21),
        ("a.jsonl", "line 9", 20),
        ("c.jsonl.gz", "line 2", 21),
    ]


def test_quarantine_keeps_only_the_beginning_of_a_record(tmp_path, session):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "x"}\n' + b"y" * 300_000 + b"\n" + b"z" * 300_000)
    result = ingest(make_config(source("jsonl", path), max_document_bytes=200_000))
    assert [(r["raw_bytes"], r["raw"]) for r in read_rows(result, "quarantine")] == [
        (300_001, b"y" * MAX_QUARANTINED_BYTES),
        (300_000, b"z" * MAX_QUARANTINED_BYTES),
    ]


def test_output_does_not_depend_on_workers(tmp_path):
    for index in range(6):
        records = [{"text": f"text {i % 40}"} for i in range(100 * index)]
        write_jsonl(tmp_path / f"in/{index}.jsonl", records)
    (tmp_path / "in/7.jsonl").write_bytes(HOSTILE)
    config = make_config(
        source("jsonl", tmp_path / "in"),
        {"kind": "documentation", "packages": ["click", "joblib"]},
        source("text", tmp_path / "in/*.jsonl", name="t", document_boundary="blank_lines"),
        partition_bytes=100_000,
    )
    artifacts = []
    for name, mapper in (("a", None), ("b", ProcessMapper(2))):
        session = Session(Store(tmp_path / name))
        if mapper:
            session.mapper = mapper
        with open_session(session):
            artifacts.append(ingest(config))
    assert artifacts[0].content_digest == artifacts[1].content_digest
    assert artifacts[0]["documents"].row_count > 1500
    assert len(artifacts[0]["documents"].parts) >= 4


@settings(deadline=None)
@given(st.lists(st.tuples(*(st.integers(0, n) for n in (5, 1, 3, 2, 2))), max_size=40))
def test_ordinals_rank_copies_by_their_columns_and_then_by_arrival(records):
    expected = []
    for place, (identity, *values) in enumerate(records):
        others = [(c, other) for other, (i, *c) in enumerate(records) if i == identity]
        expected.append(sum(other < (values, place) for other in others))

    def halves(column):  # ids that differ in either half: 0 1, 1 0, 1 1, 2 0 ...
        values = [record[column] for record in records]
        return np.array([((v + 1) // 2, (v + 1) % 2) for v in values], np.uint64).reshape(-1, 2)

    is_removed, metadata_hashes, sizes = (
        np.array([r[i] for r in records], np.int64) for i in (1, 3, 4)
    )
    others = {
        "is_removed": is_removed.astype(bool),
        "metadata_hash": metadata_hashes.astype(np.uint64),
        "raw_bytes": sizes,
    }
    assert count_preceding_equal_identities(halves(0), halves(2), others).tolist() == expected


# Sources that are found or rejected --------------------------------------------------------------


def test_files_are_found_by_path_folder_or_pattern(tmp_path):
    for name in ("a.txt", "b/c.txt", "b/d.txt.gz", "b/.hidden.txt", "b/e.csv", "[x].txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    suffixes = (".txt",)
    assert list(find_paths_by_file_name("s", str(tmp_path), suffixes)) == [
        "[x].txt",
        "a.txt",
        "b/c.txt",
        "b/d.txt.gz",
    ]
    assert list(find_paths_by_file_name("s", str(tmp_path / "b/e.csv"), suffixes)) == [
        "e.csv"
    ]  # any suffix
    assert list(find_paths_by_file_name("s", str(tmp_path / "[x].txt"), suffixes)) == ["[x].txt"]
    assert list(find_paths_by_file_name("s", str(tmp_path / "*/*.txt"), suffixes)) == [
        "b/.hidden.txt",
        "b/c.txt",
    ]
    assert list(find_paths_by_file_name("s", str(tmp_path / "**/c*"), suffixes)) == ["b/c.txt"]
    for missing in ("no", "no/where/*.txt", "*.nothing", "b/\0"):
        with pytest.raises(UsageError, match="source 's'"):
            find_paths_by_file_name("s", str(tmp_path / missing), suffixes)
    with pytest.raises(UsageError, match=r"there is no file ending in \.parquet at"):
        find_paths_by_file_name("s", str(tmp_path), (".parquet",))


def test_a_file_without_read_permission_is_rejected(tmp_path, monkeypatch):
    """The error is simulated, because the user who runs the tests may read all files."""
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "x"}])

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("hallmark.tasks.corpus.reading.sources.hash_file", refuse)
    with pytest.raises(UsageError, match=r"a\.jsonl' cannot be read \(Permission denied\)"):
        digest_sources_and_block_lists(make_config(source("jsonl", path)), "")


def test_file_names_that_are_not_utf8_are_escaped(tmp_path, session):
    (tmp_path / "in").mkdir()
    with open(bytes(tmp_path / "in") + b"/caf\xe9.jsonl", "wb") as file:
        file.write(b'{"text": "x"}\n')
    result = ingest(make_config(source("jsonl", tmp_path / "in")))
    assert read_rows(result, "origins")[0]["file_name"] == "caf\\udce9.jsonl"


def test_missing_sources_are_rejected_before_the_stage_starts(tmp_path):
    for missing_source in (
        source("jsonl", tmp_path / "no.jsonl"),
        {"kind": "documentation", "packages": ["click", "no-such-package"]},
        source("datasets", "no/such-dataset"),
    ):
        events = []
        session = Session(Store(tmp_path / "store"), listener=events.append)
        valid_path = write_jsonl(tmp_path / "a.jsonl", [{"text": "x"}])
        with open_session(session), pytest.raises(UsageError, match="no"):
            ingest(make_config(source("jsonl", valid_path, name="g"), missing_source))
        assert events == []


def test_a_corpus_without_a_document_fails_with_the_first_error(tmp_path, session):
    path = write_jsonl(tmp_path / "a.jsonl", [{"body": "x"}] * 3)
    with pytest.raises(
        HallmarkError, match=r"\(3 damaged records\); .*'s', file 'a\.jsonl': field 'text'"
    ):
        ingest(make_config(source("jsonl", path)))
    (tmp_path / "long.txt").write_text("x" * 11)
    with pytest.raises(
        HallmarkError, match=r"raise ingest\.max_document_bytes, or split the document"
    ):
        ingest(make_config(source("text", tmp_path / "long.txt"), max_document_bytes=10))
    path = write_jsonl(tmp_path / "b.jsonl", [{"text": ""}])
    with pytest.raises(HallmarkError, match="the sources contain no documents"):
        ingest(make_config(source("jsonl", path)))


@pytest.mark.parametrize(
    "sources",
    [
        [],
        [source("text", "a"), source("jsonl", "b")],  # two sources with the same name
        [source("text", "a", name="planted/x")],
        [source("text", "a", name="../x")],
        [source("xml", "a")],
        [source("text", "a", text_field="body")],
        [source("csv", "a", delimiter=",,")],
        [{"kind": "documentation", "packages": []}],
        [{"kind": "documentation", "packages": ["typing_extensions", "Typing.Extensions"]}],
        [
            {"kind": "documentation", "packages": ["click"]},
            source("jsonl", "a", name="documentation/click"),
        ],
    ],
)
def test_invalid_configs_are_rejected(sources):
    with pytest.raises(ValidationError):
        IngestConfig(sources=sources)


def test_a_partition_reads_only_its_own_copies_of_a_text(tmp_path, session, monkeypatch):
    """Later copies have other ids and belong to other partitions."""
    read_records, record_counts = IdRange.read_records, []

    def count_records(id_range):
        records = read_records(id_range)
        record_counts.append(len(records[0]))
        return records

    monkeypatch.setattr(IdRange, "read_records", count_records)
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "copied " * 100}] * 60)
    result = ingest(make_config(source("jsonl", path), partition_bytes=1000))
    assert result["documents"].row_count == sum(record_counts) == 60 and max(record_counts) < 10


def test_the_digest_depends_on_the_content_and_not_on_the_path(tmp_path):
    write_jsonl(tmp_path / "a/x.jsonl", [{"text": "one"}])
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (first, second) = (
        digest_sources_and_block_lists(make_config(source("jsonl", tmp_path / d)), "") for d in "ab"
    )
    assert first == second
    write_jsonl(tmp_path / "b/x.jsonl", [{"text": "two"}])
    assert digest_sources_and_block_lists(make_config(source("jsonl", tmp_path / "b")), "") != first
    hub = source("datasets", "a/b", revision="0123456789" * 4)  # pinned: the hub is not asked
    assert digest_sources_and_block_lists(make_config(hub), "") != digest_sources_and_block_lists(
        make_config(hub | {"revision": "f" * 40}), ""
    )
    assert [str(part) for part in list_inputs(make_config(hub))] == ["source s, train"]


def test_a_local_data_set_is_ingested(tmp_path, session):
    (tmp_path / "set").mkdir()
    pq.write_table(pa.table({"text": ["a", "", "c"]}), tmp_path / "set/train.parquet")
    result = ingest(make_config(source("datasets", tmp_path / "set", name="local")))
    assert sorted(r["text"] for r in read_rows(result, "documents")) == ["a", "c"]
    assert read_accounts(result)[("local", "rows")]["removed_rows"] == 1


# Real files --------------------------------------------------------------------------------------


@pytest.mark.skipif(not SHARED.is_dir(), reason="shared data folder is absent")
def test_real_files_of_every_kind_are_read_completely(session):
    """Compare counts with the description of the data, and texts with other libraries."""
    result = ingest(
        make_config(
            source("parquet", SHARED / "movie_reviews.parquet", name="reviews", key_field="id"),
            source("jsonl", SHARED / "abc_news.jsonl.gz", name="news", key_field="id"),
            source("csv", SHARED / "webtext.csv", name="web", key_field="id"),
            source("jsonl", SHARED / "nps_chat.jsonl.zst", name="chat", key_field="id"),
            source("text", SHARED / "inaugural", name="speeches"),
            source(
                "text", SHARED / "wikitext2_*.txt", name="wiki", document_boundary="blank_lines"
            ),
        )
    )
    accounts = read_accounts(result)
    expected = {"reviews": 2000, "news": 28482, "web": 13146, "chat": 10567, "speeches": 59}
    assert {name: accounts[(name, "rows")]["kept"] for name in expected} == expected
    assert result["quarantine"].row_count == 0
    assert accounts[("web", "bytes")]["input"] == (SHARED / "webtext.csv").stat().st_size
    by_source: dict[str, list[str]] = {}
    for row in read_rows(result, "documents"):
        by_source.setdefault(row["source"], []).append(row["text"])
    reviews = pq.read_table(SHARED / "movie_reviews.parquet")["text"].to_pylist()
    by_source = {name: sorted(texts) for name, texts in by_source.items()}
    assert by_source["reviews"] == sorted(reviews)
    with gzip.open(SHARED / "abc_news.jsonl.gz", "rt", encoding="utf-8") as file:
        assert by_source["news"] == sorted(json.loads(line)["text"] for line in file)
    with (SHARED / "webtext.csv").open(newline="", encoding="utf-8") as file:
        assert by_source["web"] == sorted(row["text"] for row in csv.DictReader(file))
    speeches = [p.read_bytes().decode() for p in (SHARED / "inaugural").glob("*.txt")]
    assert by_source["speeches"] == sorted(speeches)
