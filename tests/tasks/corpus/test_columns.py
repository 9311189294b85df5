"""Parquet and data sets: rows are texts or errors, and damage costs no more than its rows."""

import io
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.contract import HallmarkError, UsageError
from tasks.corpus.reading.columns import DatasetsSource, ParquetSource, read_dataset, read_parquet
from tasks.corpus.reading.readers import NOT_UTF8, TOO_LONG
from tasks.corpus.reading.streams import Meter
from tests.tasks.corpus.reading import LIMIT, read, read_all, texts

# Parquet -----------------------------------------------------------------------------------------


def parquet(columns, **options):
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, **options)
    return sink.getvalue()


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
)
def test_parquet_text_of_any_layout(write, kind):
    rows = ["a", None, "é" * 400, "x" * (LIMIT + 1), "nul\0", ""]
    data = parquet({"text": pa.array(rows).cast(kind), "id": list(range(6))}, row_group_size=4)
    good, bad, meter = read(write("a.parquet", data), "parquet", key_field="id")
    assert [(r.place, r.key, r.text) for r in good] == [
        ("row 1", "0", "a"), ("row 3", "2", "é" * 400), ("row 5", "4", "nul\0"), ("row 6", "5", ""),
    ]  # fmt: skip
    assert bad == [("row 2", "field 'text' is null"), ("row 4", TOO_LONG)]
    assert meter.bytes == 1 + 800 + LIMIT + 1 + 4


def test_parquet_that_is_not_utf8(write):
    """Arrow reads it without a word."""
    raw = pa.array([b"fine", b"caf\xe9"], pa.binary())
    broken = pa.StringArray.from_buffers(2, *raw.buffers()[1:3])
    good, bad, _ = read(write("a.parquet", parquet({"text": broken})), "parquet")
    assert texts(good) == ["fine"]
    assert bad == [("row 2, byte 4", NOT_UTF8)]


def test_damaged_parquet(write):
    data = parquet({"text": [f"row {i}" for i in range(3000)]}, row_group_size=1000,
                   compression="zstd", write_page_checksum=False)  # fmt: skip
    for cut in (3, 200, len(data) // 2, len(data) - 1):
        _, bad, meter = read(write("a.parquet", data[:cut]), "parquet")
        assert bad == [("whole file", "not a whole parquet file")]
        assert meter.bytes == cut
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        column = file.metadata.row_group(1).column(0)
        start = column.dictionary_page_offset or column.data_page_offset
    damaged = bytearray(data)
    damaged[start : start + 200] = bytes(200)
    path = write("b.parquet", bytes(damaged))
    good, bad, meter = read(path, "parquet")
    assert bad == [("rows 1001 to 2000", "a damaged row group")]
    assert texts(good) == [f"row {i}" for i in range(3000) if not 1000 <= i < 2000]
    assert (good[0].place, good[-1].place) == ("row 1", "row 3000")
    assert meter.rows == 3000
    assert meter.bytes == sum(len(t) for t in texts(good)) + column.total_compressed_size
    (error,) = (r for r in read_all(path, "parquet") if r.error)
    assert (error.records, error.raw_bytes) == (1000, column.total_compressed_size)


@pytest.mark.parametrize("checksum", [True, False])
def test_a_row_group_that_is_damaged_in_the_middle(write, checksum):
    """A page checksum finds what decompression cannot; rows before it are counted once."""
    rows = [f"row {i} " + "x" * 40 for i in range(9000)]
    data = bytearray(parquet({"text": rows}, row_group_size=3000, compression="none",
                             use_dictionary=False, data_page_size=8192, write_batch_size=100,
                             write_page_checksum=checksum))  # fmt: skip
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
    assert meter.rows == 9000
    with pq.ParquetFile(path) as file:
        stored = file.metadata.row_group(1).column(0).total_compressed_size
    left = 6001 - first
    assert meter.bytes == sum(len(t) for t in texts(good)) + stored * left // 3000


def test_a_parquet_file_that_changes_while_it_is_read_is_an_error(write):
    path = write("a.parquet", parquet({"text": ["x" * 50] * 9000}, row_group_size=1000))
    found = read_parquet(path, ParquetSource(kind="parquet", name="s", path="a"), 99, Meter())
    next(found)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(HallmarkError, match=r"a\.parquet changed while it was read"):
        list(found)


def test_parquet_with_wrong_columns(write):
    path = write("a.parquet", parquet({"body": ["x"], "n": [1]}))
    assert read(path, "parquet")[1] == [("whole file", "column 'text' is missing")]
    assert read(path, "parquet", text_field="n")[1] == [("whole file", "column 'n' is not text")]
    assert texts(read(path, "parquet", text_field="body")[0]) == ["x"]


# Data sets ---------------------------------------------------------------------------------------


def dataset(path, **settings):
    source = DatasetsSource(kind="datasets", name="hub", path=str(path), **settings)
    meter = Meter()
    return list(read_dataset(source, LIMIT, meter)), meter


def test_a_local_data_set_is_streamed(tmp_path):
    """By splits, through the datasets library, from a folder in the layout of the hub."""
    (tmp_path / "data").mkdir()
    for split, rows in (("train", 1300), ("test", 3)):
        values = [f"{split} {i}" for i in range(rows)]
        pq.write_table(
            pa.table({"body": values, "id": range(rows)}), tmp_path / f"data/{split}-0.parquet"
        )
    records, meter = dataset(tmp_path, text_field="body", key_field="id")
    assert texts(records) == [f"train {i}" for i in range(1300)]
    assert [r.key for r in records] == [str(i) for i in range(1300)]
    assert records[-1].place == "row 1300"
    assert meter.bytes == sum(len(r.text) for r in records)
    assert texts(dataset(tmp_path, text_field="body", split="test")[0]) == [
        f"test {i}" for i in range(3)
    ]
    with pytest.raises(
        UsageError, match="'hub': column 'text' is missing; the columns are body, id"
    ):
        dataset(tmp_path)
    with pytest.raises(HallmarkError, match=r"could not read .* split 'none'"):
        dataset(tmp_path, text_field="body", split="none")
