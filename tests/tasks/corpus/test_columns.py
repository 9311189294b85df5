"""Test parquet: rows are texts or errors, and damage affects only the damaged rows."""

import io
import os
import re
import tracemalloc
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hallmark.tasks.contract import HallmarkError
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading import columnar
from hallmark.tasks.corpus.reading.byte_streams import ReadCounts
from hallmark.tasks.corpus.reading.columnar import ParquetSource, read_parquet
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.corpus.reading.readers import NOT_UTF8, TOO_LONG
from tests.tasks.corpus.reader_helpers import LIMIT, get_texts, read_all, read_checked


def make_parquet(values, **options):
    sink = io.BytesIO()
    pq.write_table(pa.table(values), sink, **options)
    return sink.getvalue()


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
)
def test_parquet_text_of_any_layout(write, kind):
    rows = ["a", None, "é" * 400, "x" * (LIMIT + 1), "nul\0", ""]
    data = make_parquet({"text": pa.array(rows).cast(kind), "id": list(range(6))}, row_group_size=4)
    documents, errors, counts = read_checked(write("a.parquet", data), "parquet", key_field="id")
    assert [(r.location, r.key, r.text) for r in documents] == [
        ("row 1", "0", "a"),
        ("row 3", "2", "é" * 400),
        ("row 5", "4", "nul\0"),
        ("row 6", "5", ""),
    ]
    assert errors == [("row 2", "field 'text' is null"), ("row 4", TOO_LONG)]
    assert counts.byte_count == 1 + 800 + LIMIT + 1 + 4


def test_parquet_that_is_not_utf8(write):
    """Arrow reads it without an error."""
    raw = pa.array([b"fine", b"caf\xe9"], pa.binary())
    broken = pa.StringArray.from_buffers(2, *raw.buffers()[1:3])
    documents, errors, _ = read_checked(
        write("a.parquet", make_parquet({"text": broken})), "parquet"
    )
    assert get_texts(documents) == ["fine"]
    assert errors == [("row 2, byte 4", NOT_UTF8)]


def test_damaged_parquet(write):
    data = make_parquet(
        {"text": [f"row {i}" for i in range(3000)]},
        row_group_size=1000,
        compression="zstd",
        write_page_checksum=False,
    )
    for cut in (3, 200, len(data) // 2, len(data) - 1):
        _, errors, counts = read_checked(write("a.parquet", data[:cut]), "parquet")
        assert errors == [("whole file", "not a complete parquet file")]
        assert counts.byte_count == cut
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        column = file.metadata.row_group(1).column(0)
        start = column.dictionary_page_offset or column.data_page_offset
    damaged = bytearray(data)
    damaged[start : start + 200] = bytes(200)
    path = write("b.parquet", bytes(damaged))
    documents, errors, counts = read_checked(path, "parquet")
    assert errors == [("rows 1001 to 2000", "a damaged row group")]
    assert get_texts(documents) == [f"row {i}" for i in range(3000) if not 1000 <= i < 2000]
    assert (documents[0].location, documents[-1].location) == ("row 1", "row 3000")
    assert counts.record_count == 3000
    assert counts.byte_count == sum(len(t) for t in get_texts(documents)) + len(data) // 3
    (error,) = (r for r in read_all(path, "parquet") if r.error)
    assert (error.record_count, error.raw_bytes) == (1000, len(data) // 3)


@pytest.mark.parametrize("checksum", [True, False])
def test_a_row_group_damaged_in_the_middle_keeps_its_first_rows(write, checksum):
    """A page checksum detects damage that decompression cannot."""
    rows = [f"row {i} " + "x" * 40 for i in range(9000)]
    data = bytearray(
        make_parquet(
            {"text": rows},
            row_group_size=3000,
            compression="none",
            use_dictionary=False,
            data_page_size=8192,
            write_batch_size=100,
            write_page_checksum=checksum,
        )
    )
    assert data.count(b"row 4850 x") == 1  # it is not in the statistics
    data[data.index(b"row 4850 x") + 30] = ord("y")
    path = write("a.parquet", bytes(data))
    documents, errors, counts = read_checked(path, "parquet")
    if not checksum:
        assert (len(documents), errors) == (9000, [])  # the damage cannot be detected
        return
    first = int(errors[0][0].split()[1])
    assert 4000 < first <= 4851
    assert errors == [(f"rows {first} to 6000", "a damaged row group")]
    assert get_texts(documents) == [*rows[: first - 1], *rows[6000:]]
    assert counts.record_count == 9000
    lost_rows = 6001 - first
    assert (
        counts.byte_count
        == sum(len(t) for t in get_texts(documents)) + len(data) * lost_rows // 9000
    )


def make_contradictory_parquet(rows, column):
    """Return a file of three row groups; the metadata of one column contradict the schema.

    In the second row group, a list without numbers is followed by one of two; they are exchanged.
    """
    data = make_parquet({"text": rows, "other": rows}, row_group_size=len(rows) // 3)
    lists = list(re.finditer(rb"\x19\x06(\x19\x26\x00.)", data))
    assert len(lists) == 6
    match = lists[2 + column]
    return data[: match.start()] + match[1] + b"\x19\x06" + data[match.end() :]


def test_a_row_group_with_contradictory_metadata_loses_only_its_rows(write, session):
    """Asked for the size of this column, pyarrow ends the process."""
    rows = [f"row {n}" for n in range(30)]
    path = write("a.parquet", make_contradictory_parquet(rows, column=0))
    documents, errors, counts = read_checked(path, "parquet")
    assert errors == [("rows 11 to 20", "a damaged row group")]
    assert get_texts(documents) == rows[:10] + rows[20:]
    read_bytes = sum(len(text) for text in get_texts(documents))
    assert counts.byte_count == read_bytes + path.stat().st_size // 3
    # The damage is in a column that is not read.
    other_path = write("b.parquet", make_contradictory_parquet(rows, column=1))
    assert get_texts(read_checked(other_path, "parquet")[0]) == rows
    good_path = write("good.jsonl", b'{"text": "fine"}\n')
    sources = [
        {"kind": "parquet", "name": "p", "path": str(path)},
        {"kind": "jsonl", "name": "j", "path": str(good_path)},
    ]
    artifact = ingest(IngestConfig(sources=sources))
    assert sorted(artifact["documents"].read()["text"].to_pylist()) == sorted(
        ["fine", *get_texts(documents)]
    )


def test_a_parquet_file_that_changes_while_it_is_read_is_an_error(write):
    path = write("a.parquet", make_parquet({"text": ["x" * 50] * 9000}, row_group_size=1000))
    record_stream = read_parquet(
        path, ParquetSource(kind="parquet", name="s", path="a"), 99, ReadCounts()
    )
    next(record_stream)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(HallmarkError, match=r"a\.parquet changed while it was being read"):
        list(record_stream)


def test_parquet_with_a_column_name_that_is_not_utf8(write):
    data = make_parquet({"text": ["x"], "QQQQ": [1]}, store_schema=False).replace(
        b"QQQQ", b"QQ\xffQ"
    )
    _, errors, counts = read_checked(write("a.parquet", data), "parquet")
    assert errors == [("whole file", "not a complete parquet file")]
    assert counts.byte_count == len(data)


def test_parquet_with_wrong_columns(write):
    path = write("a.parquet", make_parquet({"body": ["x"], "n": [1]}))
    assert read_checked(path, "parquet")[1] == [("whole file", "column 'text' is missing")]
    assert read_checked(path, "parquet", text_field="n")[1] == [
        ("whole file", "column 'n' is not text")
    ]
    assert get_texts(read_checked(path, "parquet", text_field="body")[0]) == ["x"]


def test_a_row_without_a_key_is_an_error_with_its_text(write):
    path = write("a.parquet", make_parquet({"text": ["a", "text"], "id": ["k", None]}))
    records = read_all(path, "parquet", key_field="id")
    assert [(r.text, r.raw, r.error) for r in records] == [
        ("a", b"", ""),
        ("", b"text", "field 'id' is null"),
    ]


# Memory ------------------------------------------------------------------------------------------


@contextmanager
def count_arrow_memory():
    """Use a memory pool that counts what Arrow allocates."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)


LONG = 1_000_000
LAYOUTS = {
    "plain": {"use_dictionary": False},
    "prefixes": {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"},
    "dictionary": {},
}


def make_long_rows(name, layout, count=64):
    """Return a file of rows with a long value each, in few bytes and pages of one row."""
    pages = {"data_page_size": 1, "write_batch_size": 1, "compression": "zstd"}
    indices = pa.array([0] * count, pa.int32())
    long_values = pa.DictionaryArray.from_arrays(indices, pa.array(["x" * LONG]))
    long_values = long_values if layout == "dictionary" else long_values.dictionary_decode()
    rows = {"id": [str(n) for n in range(count)], "text": ["text"] * count}
    options = LAYOUTS[layout]
    if "column_encoding" in options:
        options = options | {"column_encoding": {name: options["column_encoding"]}}
    return make_parquet(rows | {name: long_values}, store_schema=False, **pages, **options)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["text", "id"])
def test_rows_of_megabytes_are_not_loaded_together(write, monkeypatch, layout, name):
    """64 MB in total, as texts and as keys."""
    monkeypatch.setattr(columnar, "MAX_DECODED_BYTES", 4 << 20)
    monkeypatch.setattr(columnar, "MAX_DICTIONARY_BYTES", 4 << 20)
    path = write("a.parquet", make_long_rows(name, layout))
    with count_arrow_memory() as pool:
        documents, errors, counts = read_checked(path, "parquet", key_field="id")
    assert (documents, {error for _, error in errors}) == ([], {TOO_LONG})
    assert counts.byte_count == 64 * (LONG if name == "text" else 4)
    assert pool.max_memory() < 32_000_000


@pytest.mark.parametrize("layout", LAYOUTS)
def test_documents_of_megabytes_are_read_one_by_one(write, monkeypatch, layout):
    monkeypatch.setattr(columnar, "MAX_DECODED_BYTES", 4 << 20)
    monkeypatch.setattr(columnar, "MAX_DICTIONARY_BYTES", 4 << 20)
    path = write("a.parquet", make_long_rows("text", layout))
    source = ParquetSource(kind="parquet", name="s", path="a", key_field="id")
    tracemalloc.start()
    with count_arrow_memory() as pool:
        keys_and_lengths = [
            (r.key, len(r.text)) for r in read_parquet(path, source, LONG, ReadCounts())
        ]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert keys_and_lengths == [(str(n), LONG) for n in range(64)]
    assert pool.max_memory() < 32_000_000
    assert peak < 32_000_000


def test_a_damaged_dictionary_affects_only_its_row_group(write):
    """Any byte of the pages may be changed; some changes cannot be detected."""
    rows = [f"text {n % 5}" for n in range(200)]
    data = make_parquet({"text": rows}, compression="none", row_group_size=100)
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        column = file.metadata.row_group(0).column(0)
        start, size = column.dictionary_page_offset, column.total_compressed_size
    for position in range(start, start + size):
        damaged = bytearray(data)
        damaged[position] ^= 0xFF
        documents, _, counts = read_checked(write("a.parquet", bytes(damaged)), "parquet")
        assert counts.record_count == 200
        assert get_texts(documents)[-100:] == rows[100:]
