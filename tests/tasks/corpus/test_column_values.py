"""Test values of columns: times in every unit, batches of any size, and sizes of dictionaries."""

import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hallmark.tasks.corpus.reading import columnar
from hallmark.tasks.corpus.reading.byte_streams import ReadCounts
from hallmark.tasks.corpus.reading.columnar import ParquetSource, table_to_records
from tests.tasks.corpus.reader_helpers import read_checked
from tests.tasks.corpus.test_columns import count_arrow_memory, make_parquet

SOURCE = ParquetSource(
    kind="parquet", name="s", path="a", key_field="id", date_field="when", url_field="u"
)


def convert_to_records(first=0, limit=1000, **values):
    counts = ReadCounts()
    records = list(table_to_records(pa.table(values), SOURCE, first, limit, counts))
    assert (counts.record_count, counts.byte_count) == (
        len(records),
        sum(r.raw_bytes for r in records),
    )
    return records


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_times_of_every_unit_are_rounded_down_to_the_second(unit, zone):
    moments = [
        datetime.datetime(1969, 7, 20, 20, 17, 40, 999_999),
        None,
        datetime.datetime(1970, 1, 1),
        datetime.datetime(2261, 12, 31, 23, 59, 59, 1),
        datetime.datetime(1969, 12, 31, 23, 59, 59, 999_000),
    ]
    when = pa.array(moments, pa.timestamp("us")).cast(pa.timestamp(unit), safe=False)
    if zone:  # the same ticks in UTC
        when = when.cast(pa.int64()).cast(pa.timestamp(unit, zone))
    records = convert_to_records(text=["x"] * 5, id=[*"abcde"], when=when, u=[""] * 5)
    expected_times = [m and str(m)[:19] for m in when.cast(pa.timestamp(unit)).to_pylist()]
    assert [r.date for r in records] == [
        m and (f"{m[:10]}T{m[11:]}Z" if zone else m[:10]) for m in expected_times
    ]
    assert [r.unreadable_labels for r in records] == [0] * 5


def test_times_outside_the_range_of_python_are_counted():
    ticks = pa.array([2**62, 0, -(2**62)], pa.int64()).cast(pa.timestamp("s"))
    records = convert_to_records(text=["x"] * 3, id=[1, 2, 3], when=ticks, u=["a", None, "b"])
    assert [(r.date, r.unreadable_labels) for r in records] == [
        (None, 1),
        ("1970-01-01", 0),
        (None, 1),
    ]
    assert [(r.key, r.url) for r in records] == [("1", "a"), ("2", None), ("3", "b")]


@pytest.mark.parametrize("max_decoded_bytes", [1, 7, 10, 1 << 20])
def test_rows_are_the_same_in_batches_of_any_size(monkeypatch, max_decoded_bytes):
    monkeypatch.setattr(columnar, "MAX_DECODED_BYTES", max_decoded_bytes)
    texts = ["a", "bcd", None, "x" * 21, "", "efg", "h" * 20, "é" * 10, "i", "j"]
    keys = ["k" * 20, "1", "2", "3", "4", "k" * 21, "6", "7", None, ""]
    records = convert_to_records(5, 20, text=texts, id=keys, when=["2020-01-01"] * 10, u=["u"] * 10)
    long, null = "longer than max_document_bytes", "field {} is null"
    assert [(r.location, r.text or r.error, r.raw_bytes) for r in records] == [
        ("row 6", "a", 1),
        ("row 7", "bcd", 3),
        ("row 8", null.format("'text'"), 0),
        ("row 9", long, 21),
        ("row 10", "", 0),
        ("row 11", long, 3),
        ("row 12", "h" * 20, 20),
        ("row 13", "é" * 10, 20),
        ("row 14", null.format("'id'"), 1),
        ("row 15", "j", 1),
    ]
    assert [r.key for r in records if not r.error] == ["k" * 20, "1", "4", "6", "7", ""]
    assert [r.raw for r in records if r.error] == [b"", b"x" * 21, b"efg", b"i"]


@pytest.mark.parametrize("size", [1, 60, 100, 5000, 300_000])
def test_the_size_of_a_dictionary_is_the_size_of_its_values(size):
    """PLAIN encoding: four bytes, then the value (parquet, Encodings.md)."""
    values = [chr(97 + n) * size for n in range(3)]
    data = make_parquet({"text": values * 4}, compression="none")
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        column = file.metadata.row_group(0).column(0)
    with pa.BufferReader(data) as handle:
        assert columnar._read_dictionary_size(column, handle) == 3 * (4 + size)


def test_long_values_with_a_common_prefix_are_not_decoded_together(write, monkeypatch):
    """DELTA_BYTE_ARRAY stores 64 values of a megabyte in a page of little more than one."""
    monkeypatch.setattr(columnar, "MAX_DECODED_BYTES", 4 << 20)
    rows = {"text": ["x" * 1_000_000] * 64}
    path = write(
        "a.parquet",
        make_parquet(
            rows,
            store_schema=False,
            use_dictionary=False,
            compression="none",
            column_encoding={"text": "DELTA_BYTE_ARRAY"},
        ),
    )
    assert path.stat().st_size < 4_000_000
    with count_arrow_memory() as pool:
        documents, errors, _ = read_checked(path, "parquet", limit=10)
    assert (len(documents), len(errors)) == (0, 64)
    assert pool.max_memory() < 32_000_000
