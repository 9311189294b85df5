"""Test local and streamed data sets: all ways give the same corpus, and a break loses nothing."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import huggingface_hub.constants
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hallmark.tasks.contract import HallmarkError, UsageError
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading import hub_datasets
from hallmark.tasks.corpus.reading.byte_streams import ReadCounts
from hallmark.tasks.corpus.reading.hub_datasets import (
    DatasetsSource,
    _may_be_temporary,
    read_dataset,
    resolve_hub_commit,
)
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.corpus.reading.sources import Shard
from tests.tasks.corpus.reader_helpers import LIMIT, get_texts

CASES = Path(__file__).parents[2] / "cases" / "corpus" / "datasets"


def read_hub_dataset(path, **settings):
    source = DatasetsSource(kind="datasets", name="hub", path=str(path), **settings)
    counts = ReadCounts()
    return list(read_dataset(source, LIMIT, counts)), counts


def test_a_local_data_set_is_streamed(tmp_path):
    """The datasets library reads splits from a folder in the layout of the hub."""
    (tmp_path / "data").mkdir()
    for split, rows in (("train", 1300), ("test", 3)):
        values = [f"{split} {i}" for i in range(rows)]
        pq.write_table(
            pa.table({"body": values, "id": range(rows)}), tmp_path / f"data/{split}-0.parquet"
        )
    records, counts = read_hub_dataset(tmp_path, text_field="body", key_field="id")
    assert get_texts(records) == [f"train {i}" for i in range(1300)]
    assert [r.key for r in records] == [str(i) for i in range(1300)]
    assert records[-1].location == "row 1300"
    assert counts.byte_count == sum(len(r.text) for r in records)
    assert get_texts(read_hub_dataset(tmp_path, text_field="body", split="test")[0]) == [
        f"test {i}" for i in range(3)
    ]
    with pytest.raises(
        UsageError,
        match=r"file 'data/train-0.parquet': column 'text' is missing; its columns are 'body'",
    ):
        read_hub_dataset(tmp_path)
    with pytest.raises(HallmarkError, match=r"could not read .* split 'none'"):
        read_hub_dataset(tmp_path, text_field="body", split="none")


def write_shards(folder, rows=400, mark=""):
    """Write a data set of three files with ten row groups each."""
    folder.mkdir(exist_ok=True)
    for shard in range(3):
        values = [f"{shard} {n} {mark}" for n in range(rows)]
        path = folder / f"train-{shard}.parquet"
        pq.write_table(pa.table({"text": values}), path, row_group_size=rows // 10)
    return folder


def test_a_data_set_in_shards_gives_the_same_corpus(tmp_path, session):
    folder = write_shards(tmp_path / "set")
    artifact = ingest(
        IngestConfig(sources=[{"kind": "datasets", "name": "s", "path": str(folder)}])
    )
    artifact_of_files = ingest(
        IngestConfig(sources=[{"kind": "parquet", "name": "s", "path": str(folder)}])
    )
    assert artifact["documents"].digest == artifact_of_files["documents"].digest
    locations = artifact["origins"].read()["location"].to_pylist()
    assert len(set(locations)) == 1200 and "shard 3 of 3, row 400" in locations


def damage_last_row_group(folder):
    """Damage the last row group of the last file."""
    path = folder / "train-2.parquet"
    with pq.ParquetFile(path) as file:
        column = file.metadata.row_group(9).column(0)
        start = column.dictionary_page_offset or column.data_page_offset
        size = column.total_compressed_size
    data = path.read_bytes()
    path.write_bytes(data[:start] + bytes(size) + data[start + size :])


def test_a_broken_stream_keeps_the_rows_read_so_far(tmp_path, monkeypatch):
    """Rows read before the break are not read again; the rest is read after it."""
    monkeypatch.setattr(hub_datasets, "RETRY_WAITS_SECONDS", (0.0,) * 3)
    monkeypatch.setattr(hub_datasets, "BATCH_ROWS", 50)
    monkeypatch.setattr(hub_datasets, "MAX_PENDING_BYTES", 2000)
    folder = write_shards(tmp_path / "set", mark="before")
    source = DatasetsSource(kind="datasets", name="hub", path=str(folder))
    damage_last_row_group(folder)
    texts_before = []
    with pytest.raises(
        HallmarkError, match=r"after row \d+ .*; run again .*the rows read so far are kept"
    ):
        texts_before.extend(
            r.text
            for r in read_dataset(source, LIMIT, ReadCounts(), Shard(2, 3), tmp_path / "kept")
        )
    assert 300 <= len(texts_before) < 400
    write_shards(folder, mark="after")
    counts = ReadCounts()
    records = list(read_dataset(source, LIMIT, counts, Shard(2, 3), tmp_path / "kept"))
    texts_after = [f"2 {n} after" for n in range(len(texts_before), 400)]
    assert get_texts(records) == texts_before + texts_after
    assert records[-1].location == "shard 3 of 3, row 400"
    assert counts.record_count == 400


def interrupt_reading(monkeypatch, get_failing_tables):
    """Let connections fail.

    Args:
        get_failing_tables: Returns for a file the table before which each attempt still to come
            fails; without one, the attempt succeeds.
    """
    open_data_file = hub_datasets._open_data_file

    def open_unsteady_file(source, builder, file):
        dataset = open_data_file(source, builder, file)
        remaining = get_failing_tables(file)
        failing_table = remaining.pop(0) if remaining else None
        read_tables = dataset.iter

        def iterate(batch_size):
            for number, table in enumerate(read_tables(batch_size=batch_size)):
                if number == failing_table:
                    raise ConnectionError("reset by peer")
                yield table

        dataset.iter = iterate
        return dataset

    monkeypatch.setattr(hub_datasets, "_open_data_file", open_unsteady_file)


def test_a_stream_with_temporary_errors_continues(tmp_path, monkeypatch, session):
    """The connection fails once at the start of a shard, and twice within another."""
    monkeypatch.setattr(hub_datasets, "RETRY_WAITS_SECONDS", (0.0,) * 3)
    monkeypatch.setattr(hub_datasets, "BATCH_ROWS", 50)
    folder = write_shards(tmp_path / "set")
    failing_tables = {0: [0], 2: [4, 1]}  # by file: the table before which each attempt fails

    interrupt_reading(
        monkeypatch, lambda file: failing_tables.get(int(file[-len("0.parquet")]), [])
    )
    artifact = ingest(
        IngestConfig(sources=[{"kind": "datasets", "name": "s", "path": str(folder)}])
    )
    assert sorted(artifact["documents"].read()["text"].to_pylist()) == sorted(
        f"{shard} {n} " for shard in range(3) for n in range(400)
    )
    assert not any(failing_tables.values())


def test_a_permanently_broken_stream_fails_the_stage_and_the_next_run_continues(
    tmp_path, monkeypatch, session
):
    """Completed shards, and rows of the broken one, are read only once."""
    monkeypatch.setattr(hub_datasets, "RETRY_WAITS_SECONDS", ())
    monkeypatch.setattr(hub_datasets, "BATCH_ROWS", 50)
    folder = write_shards(tmp_path / "set")
    settings = {"kind": "datasets", "name": "s", "path": str(folder)}
    open_data_file, read_texts, is_broken = hub_datasets._open_data_file, [], [True]

    def open_unsteady_file(source, builder, file):
        dataset = open_data_file(source, builder, file)
        read_tables = dataset.iter

        def iterate(batch_size):
            for number, table in enumerate(read_tables(batch_size=batch_size)):
                if is_broken[0] and file.endswith("train-1.parquet") and number == 5:
                    raise ConnectionError("reset by peer")
                read_texts.extend(table["text"].to_pylist())
                yield table

        dataset.iter = iterate
        return dataset

    monkeypatch.setattr(hub_datasets, "_open_data_file", open_unsteady_file)
    with pytest.raises(HallmarkError, match=r"reset by peer.*the rows read so far are kept"):
        ingest(IngestConfig(sources=[settings]))
    is_broken[0] = False
    artifact = ingest(IngestConfig(sources=[settings]))
    assert artifact["documents"].row_count == 1200
    assert len(read_texts) == len(set(read_texts)) == 1200


def test_a_stream_that_breaks_in_one_file_reads_the_next_files_from_their_start(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(hub_datasets, "RETRY_WAITS_SECONDS", (0.0,) * 3)
    monkeypatch.setattr(hub_datasets, "BATCH_ROWS", 50)
    folder = write_shards(tmp_path / "set")
    failing_tables = [2, 3]
    interrupt_reading(monkeypatch, lambda file: failing_tables)
    records, _ = read_hub_dataset(folder)
    assert get_texts(records) == [f"{shard} {n} " for shard in range(3) for n in range(400)]


@pytest.mark.parametrize("rows_before", [0, 1])
def test_a_stream_is_restarted_three_times_without_a_table_between(
    tmp_path, monkeypatch, rows_before
):
    """A table in between shows that the connection works, so that the count begins again."""
    folder = write_shards(tmp_path / "set", rows=10)
    open_data_file, waits, failures = hub_datasets._open_data_file, [], []

    def open_unsteady_file(source, builder, file):
        dataset = open_data_file(source, builder, file)
        read_tables = dataset.iter

        def iterate(batch_size):
            if rows_before and len(failures) == 3:
                yield next(read_tables(batch_size=batch_size))
            failures.append(1)
            raise ConnectionError("reset by peer")

        dataset.iter = iterate
        return dataset

    monkeypatch.setattr(hub_datasets, "_open_data_file", open_unsteady_file)
    monkeypatch.setattr(hub_datasets.time, "sleep", waits.append)
    with pytest.raises(HallmarkError, match=r"reset by peer\); run again, or read the files"):
        read_hub_dataset(folder)
    assert waits == [1, 5, 30] + [1, 5, 30] * rows_before
    assert len(failures) == len(waits) + 1


@pytest.fixture
def hub(monkeypatch):
    """Serve the information about one data set; yield the requests for it."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            is_known = self.path.startswith("/api/datasets/user/name")
            if is_known:
                requests.append(self.path)
            body = json.dumps({"id": "user/name", "sha": "c" * 40}).encode() if is_known else b""
            self.send_response(200 if is_known else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
    yield requests
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_hub_says_which_commit_a_branch_is(hub):
    settings = {"kind": "datasets", "name": "s", "path": "user/name"}
    for revision in (None, "main", "v1"):
        source = DatasetsSource(**settings, revision=revision)
        assert resolve_hub_commit(source) == "c" * 40
        (source_input,) = source.list_inputs(0)
        assert source.compute_input_digest(source_input, None) == f"commit {'c' * 40}"
    assert {path.rpartition("/")[2] for path in hub} == {"name", "main", "v1"}
    hub.clear()
    assert resolve_hub_commit(DatasetsSource(**settings, revision="a" * 40)) == "a" * 40
    assert hub == []
    with pytest.raises(UsageError, match="'user/other' is not a local folder, and the Hugging"):
        resolve_hub_commit(DatasetsSource(**settings | {"path": "user/other"}))


# Files that do not agree --------------------------------------------------------------------------


def write_data_set(folder, files):
    folder.mkdir()
    for name, rows in files.items():
        (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


@pytest.fixture
def no_waits(monkeypatch):
    """Fail if a stream is restarted."""

    def refuse(seconds):
        raise AssertionError("the stream was restarted")

    monkeypatch.setattr(hub_datasets.time, "sleep", refuse)


def test_columns_that_are_not_needed_may_differ(session, no_waits):
    source = {"kind": "datasets", "name": "s", "path": str(CASES / "mixed")}
    documents = ingest(IngestConfig(sources=[source]))["documents"].read()
    assert sorted(text[:8] for text in documents["text"].to_pylist()) == [
        f"Letter {number}" for number in range(6)
    ]


MIXED_FILES = {
    "types": [{"text": "a", "n": 1}, {"text": "b", "n": "x"}, {"text": "c", "n": {"m": 1}}],
    "missing": [{"text": "a"}, {"text": "b", "n": 1}, {"n": 2, "text": "c"}],
    "lists": [{"text": "a", "n": [1]}, {"text": "b", "n": ["x"]}, {"text": "c", "n": None}],
}


@pytest.mark.parametrize("name", MIXED_FILES)
def test_columns_that_are_not_needed_may_differ_within_a_file(tmp_path, no_waits, name):
    folder = write_data_set(tmp_path / "set", {"a.jsonl": MIXED_FILES[name]})
    assert get_texts(read_hub_dataset(folder)[0]) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        ([{"text": 1}], {}, "column 'text' is not text but int64; its columns are 'text'"),
        ([{"text": {"a": 1}}], {}, "column 'text' is not text but struct<a: int64>; its col"),
        ([{"text": "a"}, {"text": 5}], {}, "column 'text' is not text but extension<arrow.json>"),
        ([{"body": "x"}], {}, "column 'text' is missing; its columns are 'body'"),
        ([{"text": "x"}], {"key_field": "id"}, "column 'id' is missing; its columns are 'text'"),
    ],
)
def test_an_error_about_a_needed_column_names_file_and_column(
    tmp_path, no_waits, rows, settings, message
):
    good = [{"text": "good", "id": "1"}] if settings else [{"text": "good"}]
    folder = write_data_set(tmp_path / "set", {"a.jsonl": good, "b.jsonl": rows})
    with pytest.raises(UsageError) as raised:
        read_hub_dataset(folder, **settings)
    assert str(raised.value).startswith(f"source 'hub': file 'b.jsonl': {message}")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("b.jsonl", b'{"text": "a"}\n{"text": '),
        ("b.parquet", b"PAR1 and no more"),
        ("b.csv", b'text,id\na,b,c,d\n"'),
    ],
)
def test_a_file_that_cannot_be_read_is_named_at_once(tmp_path, no_waits, name, data):
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / name).write_bytes(data)
    with pytest.raises(HallmarkError, match=rf"file '{name}', split 'train', after row 0 \("):
        read_hub_dataset(folder)


def test_a_split_that_does_not_exist_lists_the_splits(tmp_path, no_waits):
    files = {"train.jsonl": [{"text": "a"}], "test.jsonl": [{"text": "b"}]}
    folder = write_data_set(tmp_path / "set", files)
    message = r"split 'x', after row 0 \(the data set has only the splits 'train', 't"
    with pytest.raises(HallmarkError, match=message):
        read_hub_dataset(folder, split="x")
    assert get_texts(read_hub_dataset(folder, split="train+test")[0]) == ["a", "b"]


def test_declared_types_apply_to_needed_columns(tmp_path, no_waits):
    """The README of a data set may declare features."""
    rows = [{"text": "a", "id": 1, "n": 1}, {"text": "b", "id": 2, "n": "x"}]
    folder = write_data_set(tmp_path / "set", {"a.jsonl": rows[:1], "b.jsonl": rows[1:]})
    features = [{"name": "text", "dtype": "string"}, {"name": "id", "dtype": "string"}]
    features += [{"name": "n", "dtype": "int64"}, {"name": "url", "dtype": "string"}]
    card = {"dataset_info": {"features": features}}
    (folder / "README.md").write_text(f"---\n{json.dumps(card)}\n---\n")
    records, _ = read_hub_dataset(folder, key_field="id", url_field="url")
    assert [(r.text, r.key, r.url) for r in records] == [("a", "1", None), ("b", "2", None)]
    with pytest.raises(
        UsageError, match=r"file 'b.jsonl': column 'n' has the type string, but the"
    ):
        read_hub_dataset(folder, metadata_fields={"n": "n"})


def test_files_of_a_data_set_that_are_not_read_are_listed(tmp_path, session):
    files = {"train.jsonl": [{"text": "a"}], "test.jsonl": [{"text": "b"}]}
    folder = write_data_set(tmp_path / "set", files)
    (folder / "notes.pdf").write_bytes(b"12345")
    (folder / ".hidden").write_bytes(b"1")
    source = {"kind": "datasets", "name": "s", "path": str(folder)}
    artifact = ingest(IngestConfig(sources=[source]))
    rows = artifact["unread_files"].read().to_pylist()
    assert [(row["file_name"], row["reason"], row["raw_bytes"]) for row in rows] == [
        ("notes.pdf", "the datasets library does not read this file", 5),
        ("test.jsonl", "file of the split 'test'", 14),
    ]
    assert artifact["sources"].read()["unread_files"].to_pylist() == [2]


def test_a_pointer_of_git_lfs_in_a_data_set_is_refused(tmp_path, session):
    """The file of another split may be missing, and is listed."""
    files = {"train.jsonl": [{"text": "a"}], "test.jsonl": [{"text": "b"}]}
    folder = write_data_set(tmp_path / "set", files)
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 2\n"
    (folder / "test.jsonl").write_text(pointer)
    source = {"kind": "datasets", "name": "s", "path": str(folder)}
    artifact = ingest(IngestConfig(sources=[source]))
    assert artifact["documents"].row_count == 1
    reason = "a Git LFS pointer instead of the file (run git lfs pull)"
    rows = artifact["unread_files"].read().to_pylist()
    assert [(row["file_name"], row["reason"]) for row in rows] == [("test.jsonl", reason)]
    (folder / "train.jsonl").write_text(pointer)
    (folder / "test.jsonl").write_text('{"text": "b"}\n')
    with pytest.raises(UsageError) as raised:
        ingest(IngestConfig(sources=[source]))
    assert str(raised.value) == f"stage ingest: source 's': file 'train.jsonl': {reason}"


@pytest.mark.parametrize(
    ("error", "is_local", "is_temporary"),
    [
        (ConnectionError("x"), True, True),
        (TimeoutError("x"), True, True),
        (OSError("x"), True, False),
        (OSError("x"), False, True),
        (FileNotFoundError("x"), False, False),
        (ValueError("x"), False, False),
        (TypeError("Couldn't cast array of type"), False, False),
        (httpx.ConnectTimeout("x"), False, True),
    ],
)
def test_only_errors_of_a_network_are_temporary(tmp_path, error, is_local, is_temporary):
    path = str(tmp_path) if is_local else "user/no-such-name"
    source = DatasetsSource(kind="datasets", name="s", path=path)
    assert _may_be_temporary(source, error) == is_temporary
    outer = RuntimeError("outer")
    outer.__cause__ = error
    assert _may_be_temporary(source, outer) == is_temporary
