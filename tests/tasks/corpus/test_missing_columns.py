"""A corpus without the configured column: the error lists the columns of the file."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hallmark.tasks.contract import HallmarkError, Session, Store, open_session
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading.inputs import IngestConfig

ROWS = [{"txt": "Words of a corpus.", "id": str(number)} for number in range(3)]


def write_rows(path, kind):
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif kind == "jsonl":
        path.write_text("\n" + "".join(f"{json.dumps(row)}\n" for row in ROWS))
    else:
        separator = "," if kind == "csv" else "\t"
        lines = [ROWS[0].keys(), *(row.values() for row in ROWS)]
        path.write_text("".join(f"{separator.join(line)}\n" for line in lines))


def ingest_text(tmp_path, kind, path, **settings):
    source = {"kind": kind, "name": "letters", "path": str(path), **settings}
    with open_session(Session(Store(tmp_path / "store", create_missing=True))):
        return ingest(IngestConfig.model_validate({"sources": [source]}))


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_the_columns_that_exist_are_listed_with_the_nearest(tmp_path, kind):
    path = tmp_path / f"rows.{kind}"
    write_rows(path, kind)
    with pytest.raises(HallmarkError) as raised:
        ingest_text(tmp_path, kind, path)
    noun = "field" if kind == "jsonl" else "column"
    assert f"file 'rows.{kind}': {noun} 'text' is missing; " in str(raised.value)
    assert "; its columns are 'txt', 'id' (did you mean txt?); correct the " in str(raised.value)
    with pytest.raises(HallmarkError, match=r"'key' is missing; its columns are 'txt', 'id'; corr"):
        ingest_text(tmp_path, kind, path, text_field="txt", key_field="key")
    assert ingest_text(tmp_path, kind, path, text_field="txt")["documents"].row_count == 3


def test_the_columns_of_a_compressed_file_are_listed(tmp_path):
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(b"body,id\nWords,1\n"))
    with pytest.raises(HallmarkError, match=r"its columns are 'body', 'id'; correct the record"):
        ingest_text(tmp_path, "csv", path)


def test_no_columns_are_listed_for_another_error(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": 7}\n')
    with pytest.raises(HallmarkError, match="field 'text' is not text; correct the record"):
        ingest_text(tmp_path, "jsonl", path)
