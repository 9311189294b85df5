"""The tables of a release are read only up to a limit, whatever their files claim or repeat."""

import resource

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hallmark.reports.review.evidence_hash import hash_evidence_tables
from hallmark.reports.review.released_tables import MAX_TABLE_BYTES, read_released_table
from hallmark.tasks.contract import HallmarkError

LONG_TEXT = "x" * 1_000_000


def repeat_text(count):
    """Repeat a long text, which is stored once."""
    return pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), [LONG_TEXT])


def repeat_text_in_lists(count):
    return pa.ListArray.from_arrays([0, count], repeat_text(count))


def repeat_text_in_maps(count):
    keys = pa.array([str(number) for number in range(count)])
    return pa.MapArray.from_arrays([0, count], keys, repeat_text(count))


def repeat_text_in_structs(count):
    return pa.StructArray.from_arrays([repeat_text(count)], ["text"])


TOO_LARGE = {
    "null values": lambda: pa.nulls(10_000_000, pa.int64()),
    "elements of a list": lambda: pa.ListArray.from_arrays([0, 3_000_000], pa.nulls(3_000_000)),
    "compressed numbers": lambda: pa.array(range(0, 1_900_000 * 50, 50), pa.int64()),
    "compressed texts": lambda: pa.array([f"{number}{LONG_TEXT}" for number in range(70)]),
    "a repeated text": lambda: repeat_text(100_000),
    "a repeated text in a list": lambda: repeat_text_in_lists(1_000),
    "a repeated text in a map": lambda: repeat_text_in_maps(1_000),
    "a repeated text in a struct": lambda: repeat_text_in_structs(1_000),
}


@pytest.mark.parametrize("kind", TOO_LARGE)
def test_a_table_that_expands_is_refused(tmp_path, kind):
    path = tmp_path / "table.parquet"
    column = TOO_LARGE[kind]()
    if kind == "compressed numbers":
        columns = {str(number): column for number in range(2)}
    else:
        columns = {"a": column}
    pq.write_table(pa.table(columns), path, compression="zstd", store_schema=False)
    if kind != "compressed numbers":
        assert path.stat().st_size < 1_000_000
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(HallmarkError, match="the figures table is larger than any card table"):
        read_released_table([path], "figures")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 200_000


def test_the_files_of_a_table_are_counted_together(tmp_path):
    paths = [tmp_path / f"{number}.parquet" for number in range(3)]
    for path in paths:
        pq.write_table(pa.table({"a": pa.nulls(900_000, pa.int64())}), path)
    assert len(read_released_table(paths[:2], "figures")) == 1_800_000
    with pytest.raises(HallmarkError, match="larger than any card table"):
        read_released_table(paths, "figures")


def test_a_large_file_is_not_opened(tmp_path):
    path = tmp_path / "table.parquet"
    with path.open("wb") as file:
        file.truncate(MAX_TABLE_BYTES + 1)
    with pytest.raises(HallmarkError, match="larger than any card table"):
        read_released_table([path], "figures")


@pytest.mark.parametrize(
    "data_type",
    [pa.binary(8), pa.list_(pa.int8(), 2), pa.uuid(), pa.list_(pa.struct({"a": pa.binary(8)}))],
    ids=str,
)
def test_types_of_no_card_are_refused(tmp_path, data_type):
    pq.write_table(pa.table({"a": pa.nulls(1, data_type)}), tmp_path / "table.parquet")
    with pytest.raises(HallmarkError, match=r"has a column of type .*, which no card contains"):
        read_released_table([tmp_path / "table.parquet"], "figures")


def test_the_rows_and_their_hash_are_those_of_the_table(tmp_path):
    table = pa.table(
        {
            "text": ["a", None, "a"],
            "lists": [["a", None], [], None],
            "maps": pa.array([[("k", "v")], None, []], pa.map_(pa.string(), pa.string())),
            "structs": [{"a": "b", "n": 1}, None, {"a": None, "n": 2}],
            "bytes": [b"\xff", b"", None],
            "numbers": [1.5, None, float("inf")],
        }
    )
    paths = [tmp_path / "0.parquet", tmp_path / "1.parquet"]
    for path in paths:
        pq.write_table(table, path)
    read_table = read_released_table(paths, "figures")
    tables = pa.concat_tables([table, table])
    assert read_table.to_pylist() == tables.to_pylist()
    assert hash_evidence_tables({"figures": read_table}, "the card") == hash_evidence_tables(
        {"figures": tables}, "the card"
    )
