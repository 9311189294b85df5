"""Parquet: rows are texts or errors, and damage costs no more than its rows."""

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
from tests.tasks.corpus.reading import LIMIT, read, read_all, texts


def parquet(values, **options):
    sink = io.BytesIO()
    pq.write_table(pa.table(values), sink, **options)
    return sink.getvalue()


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
)
def test_parquet_text_of_any_layout(write, kind):
    rows = ["a", None, "é" * 400, "x" * (LIMIT + 1), "nul\0", ""]
    data = parquet({"text": pa.array(rows).cast(kind), "id": list(range(6))}, row_group_size=4)
    good, bad, meter = read(write("a.parquet", data), "parquet", key_field="id")
    assert [(r.location, r.key, r.text) for r in good] == [
        ("row 1", "0", "a"),
        ("row 3", "2", "é" * 400),
        ("row 5", "4", "nul\0"),
        ("row 6", "5", ""),
    ]
    assert bad == [("row 2", "field 'text' is null"), ("row 4", TOO_LONG)]
    assert meter.byte_count == 1 + 800 + LIMIT + 1 + 4


def test_parquet_that_is_not_utf8(write):
    """Arrow reads it without a word."""
    raw = pa.array([b"fine", b"caf\xe9"], pa.binary())
    broken = pa.StringArray.from_buffers(2, *raw.buffers()[1:3])
    good, bad, _ = read(write("a.parquet", parquet({"text": broken})), "parquet")
    assert texts(good) == ["fine"]
    assert bad == [("row 2, byte 4", NOT_UTF8)]


def test_damaged_parquet(write):
    data = parquet(
        {"text": [f"row {i}" for i in range(3000)]},
        row_group_size=1000,
        compression="zstd",
        write_page_checksum=False,
    )
    for cut in (3, 200, len(data) // 2, len(data) - 1):
        _, bad, meter = read(write("a.parquet", data[:cut]), "parquet")
        assert bad == [("whole file", "not a whole parquet file")]
        assert meter.byte_count == cut
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        column = file.metadata.row_group(1).column(0)
        start = column.dictionary_page_offset or column.data_page_offset
    damaged = bytearray(data)
    damaged[start : start + 200] = bytes(200)
    path = write("b.parquet", bytes(damaged))
    good, bad, meter = read(path, "parquet")
    assert bad == [("rows 1001 to 2000", "a damaged row group")]
    assert texts(good) == [f"row {i}" for i in range(3000) if not 1000 <= i < 2000]
    assert (good[0].location, good[-1].location) == ("row 1", "row 3000")
    assert meter.record_count == 3000
    assert meter.byte_count == sum(len(t) for t in texts(good)) + len(data) // 3
    (error,) = (r for r in read_all(path, "parquet") if r.error)
    assert (error.record_count, error.raw_bytes) == (1000, len(data) // 3)


@pytest.mark.parametrize("checksum", [True, False])
def test_a_row_group_that_is_damaged_in_the_middle(write, checksum):
    """A page checksum finds what decompression cannot; rows before it are counted once."""
    rows = [f"row {i} " + "x" * 40 for i in range(9000)]
    data = bytearray(
        parquet(
            {"text": rows},
            row_group_size=3000,
            compression="none",
            use_dictionary=False,
            data_page_size=8192,
            write_batch_size=100,
            write_page_checksum=checksum,
        )
    )
    assert data.count(b"row 4850 x") == 1  # it stands in no statistics
    data[data.index(b"row 4850 x") + 30] = ord("y")
    path = write("a.parquet", bytes(data))
    good, bad, meter = read(path, "parquet")
    if not checksum:
        assert (len(good), bad) == (9000, [])  # nobody can know
        return
    first = int(bad[0][0].split()[1])
    assert 4000 < first <= 4851
    assert bad == [(f"rows {first} to 6000", "a damaged row group")]
    assert texts(good) == [*rows[: first - 1], *rows[6000:]]
    assert meter.record_count == 9000
    left = 6001 - first
    assert meter.byte_count == sum(len(t) for t in texts(good)) + len(data) * left // 9000


def with_false_statistics(rows, column):
    """A file of three row groups; the statistics of the second's column contradict its schema.

    A list without numbers is followed by one of two: they change places.
    """
    data = parquet({"text": rows, "other": rows}, row_group_size=len(rows) // 3)
    lists = list(re.finditer(rb"\x19\x06(\x19\x26\x00.)", data))
    assert len(lists) == 6
    found = lists[2 + column]
    return data[: found.start()] + found[1] + b"\x19\x06" + data[found.end() :]


def test_a_row_group_that_contradicts_itself_costs_its_rows(write, session):
    """pyarrow, asked for the size of its column, ends the process."""
    rows = [f"row {n}" for n in range(30)]
    path = write("a.parquet", with_false_statistics(rows, column=0))
    good, bad, meter = read(path, "parquet")
    assert bad == [("rows 11 to 20", "a damaged row group")]
    assert texts(good) == rows[:10] + rows[20:]
    read_bytes = sum(len(text) for text in texts(good))
    assert meter.byte_count == read_bytes + path.stat().st_size // 3
    other = write("b.parquet", with_false_statistics(rows, column=1))  # which nobody reads
    assert texts(read(other, "parquet")[0]) == rows
    beside = write("good.jsonl", b'{"text": "fine"}\n')
    sources = [
        {"kind": "parquet", "name": "p", "path": str(path)},
        {"kind": "jsonl", "name": "j", "path": str(beside)},
    ]
    made = ingest(IngestConfig(sources=sources))
    assert sorted(made["documents"].read()["text"].to_pylist()) == sorted(["fine", *texts(good)])


def test_a_parquet_file_that_changes_while_it_is_read_is_an_error(write):
    path = write("a.parquet", parquet({"text": ["x" * 50] * 9000}, row_group_size=1000))
    found = read_parquet(path, ParquetSource(kind="parquet", name="s", path="a"), 99, ReadCounts())
    next(found)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(HallmarkError, match=r"a\.parquet changed while it was read"):
        list(found)


def test_parquet_with_the_name_of_a_column_that_is_not_utf8(write):
    data = parquet({"text": ["x"], "QQQQ": [1]}, store_schema=False).replace(b"QQQQ", b"QQ\xffQ")
    _, bad, meter = read(write("a.parquet", data), "parquet")
    assert bad == [("whole file", "not a whole parquet file")]
    assert meter.byte_count == len(data)


def test_parquet_with_wrong_columns(write):
    path = write("a.parquet", parquet({"body": ["x"], "n": [1]}))
    assert read(path, "parquet")[1] == [("whole file", "column 'text' is missing")]
    assert read(path, "parquet", text_field="n")[1] == [("whole file", "column 'n' is not text")]
    assert texts(read(path, "parquet", text_field="body")[0]) == ["x"]


def test_a_row_without_its_key_is_kept_as_it_is(write):
    path = write("a.parquet", parquet({"text": ["a", "text"], "id": ["k", None]}))
    found = read_all(path, "parquet", key_field="id")
    assert [(r.text, r.raw, r.error) for r in found] == [
        ("a", b"", ""),
        ("", b"text", "field 'id' is null"),
    ]


# Memory ------------------------------------------------------------------------------------------


@contextmanager
def counted():
    """A pool that counts what Arrow holds meanwhile."""
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


def long_rows(name, layout, count=64):
    """A file of rows with a long value each, in few bytes and pages of one row."""
    pages = {"data_page_size": 1, "write_batch_size": 1, "compression": "zstd"}
    places = pa.array([0] * count, pa.int32())
    long = pa.DictionaryArray.from_arrays(places, pa.array(["x" * LONG]))
    long = long if layout == "dictionary" else long.dictionary_decode()
    rows = {"id": [str(n) for n in range(count)], "text": ["text"] * count}
    options = LAYOUTS[layout]
    if "column_encoding" in options:
        options = options | {"column_encoding": {name: options["column_encoding"]}}
    return parquet(rows | {name: long}, store_schema=False, **pages, **options)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["text", "id"])
def test_rows_of_megabytes_are_not_held_together(write, monkeypatch, layout, name):
    """Of 64 MB, as texts and as keys."""
    monkeypatch.setattr(columnar, "MAX_DECODED_BYTES", 4 << 20)
    monkeypatch.setattr(columnar, "MAX_DICTIONARY_BYTES", 4 << 20)
    path = write("a.parquet", long_rows(name, layout))
    with counted() as pool:
        good, bad, meter = read(path, "parquet", key_field="id")
    assert (good, {error for _, error in bad}) == ([], {TOO_LONG})
    assert meter.byte_count == 64 * (LONG if name == "text" else 4)
    assert pool.max_memory() < 32_000_000


@pytest.mark.parametrize("layout", LAYOUTS)
def test_documents_of_megabytes_come_one_by_one(write, monkeypatch, layout):
    monkeypatch.setattr(columnar, "MAX_DECODED_BYTES", 4 << 20)
    monkeypatch.setattr(columnar, "MAX_DICTIONARY_BYTES", 4 << 20)
    path = write("a.parquet", long_rows("text", layout))
    source = ParquetSource(kind="parquet", name="s", path="a", key_field="id")
    tracemalloc.start()
    with counted() as pool:
        found = [(r.key, len(r.text)) for r in read_parquet(path, source, LONG, ReadCounts())]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == [(str(n), LONG) for n in range(64)]
    assert pool.max_memory() < 32_000_000
    assert peak < 32_000_000


def test_a_damaged_dictionary_costs_its_rows(write):
    """Whichever byte of the pages is another one; of some nobody can know it."""
    rows = [f"text {n % 5}" for n in range(200)]
    data = parquet({"text": rows}, compression="none", row_group_size=100)
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        column = file.metadata.row_group(0).column(0)
        start, size = column.dictionary_page_offset, column.total_compressed_size
    for place in range(start, start + size):
        damaged = bytearray(data)
        damaged[place] ^= 0xFF
        good, _, meter = read(write("a.parquet", bytes(damaged)), "parquet")
        assert meter.record_count == 200
        assert texts(good)[-100:] == rows[100:]
