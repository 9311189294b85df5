"""Data sets, local and streamed: the same corpus however they come, and a break loses nothing."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hallmark.tasks.contract import HallmarkError, UsageError
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading import hub_datasets
from hallmark.tasks.corpus.reading.byte_streams import ReadCounts
from hallmark.tasks.corpus.reading.hub_datasets import DatasetsSource, read_dataset
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from tests.tasks.corpus.reading import LIMIT, texts


def dataset(path, **settings):
    source = DatasetsSource(kind="datasets", name="hub", path=str(path), **settings)
    meter = ReadCounts()
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
    assert records[-1].location == "row 1300"
    assert meter.byte_count == sum(len(r.text) for r in records)
    assert texts(dataset(tmp_path, text_field="body", split="test")[0]) == [
        f"test {i}" for i in range(3)
    ]
    with pytest.raises(
        UsageError, match="'hub': column 'text' is missing; the columns are body, id"
    ):
        dataset(tmp_path)
    with pytest.raises(HallmarkError, match=r"could not read .* split 'none'"):
        dataset(tmp_path, text_field="body", split="none")


def shards(folder, rows=400, mark=""):
    """A data set in three files of ten row groups each."""
    folder.mkdir(exist_ok=True)
    for shard in range(3):
        values = [f"{shard} {n} {mark}" for n in range(rows)]
        path = folder / f"train-{shard}.parquet"
        pq.write_table(pa.table({"text": values}), path, row_group_size=rows // 10)
    return folder


def test_a_data_set_in_pieces_is_the_same_corpus(tmp_path, session):
    folder = shards(tmp_path / "set")
    made = ingest(IngestConfig(sources=[{"kind": "datasets", "name": "s", "path": str(folder)}]))
    files = ingest(IngestConfig(sources=[{"kind": "parquet", "name": "s", "path": str(folder)}]))
    assert made["documents"].digest == files["documents"].digest
    places = made["origins"].read()["location"].to_pylist()
    assert len(set(places)) == 1200 and "piece 3 of 3, row 400" in places


def break_last(folder):
    """The last row group of the last file cannot be read."""
    path = folder / "train-2.parquet"
    with pq.ParquetFile(path) as file:
        column = file.metadata.row_group(9).column(0)
        start = column.dictionary_page_offset or column.data_page_offset
        size = column.total_compressed_size
    whole = path.read_bytes()
    path.write_bytes(whole[:start] + bytes(size) + whole[start + size :])


def test_a_stream_that_breaks_keeps_what_was_read(tmp_path, monkeypatch):
    """What comes of it then is not read again, and the rest from where it broke."""
    monkeypatch.setattr(hub_datasets, "RETRY_WAITS_SECONDS", (0.0,) * 3)
    monkeypatch.setattr(hub_datasets, "BATCH_ROWS", 50)
    monkeypatch.setattr(hub_datasets, "MAX_PENDING_BYTES", 2000)
    folder = shards(tmp_path / "set", mark="before")
    source = DatasetsSource(kind="datasets", name="hub", path=str(folder))
    break_last(folder)
    before = []
    with pytest.raises(HallmarkError, match=r"behind row \d+ .*; what was read stays: run again"):
        before.extend(
            r.text for r in read_dataset(source, LIMIT, ReadCounts(), (2, 3), tmp_path / "kept")
        )
    assert 300 <= len(before) < 400
    shards(folder, mark="after")
    meter = ReadCounts()
    records = list(read_dataset(source, LIMIT, meter, (2, 3), tmp_path / "kept"))
    after = [f"2 {n} after" for n in range(len(before), 400)]
    assert texts(records) == before + after
    assert records[-1].location == "piece 3 of 3, row 400"
    assert meter.record_count == 400


def test_a_stream_that_breaks_in_passing_goes_on(tmp_path, monkeypatch, session):
    """The connection fails at the start of a piece and in the middle of another, once each."""
    monkeypatch.setattr(hub_datasets, "RETRY_WAITS_SECONDS", (0.0,) * 3)
    monkeypatch.setattr(hub_datasets, "BATCH_ROWS", 50)
    folder = shards(tmp_path / "set")
    faults = {0: [0], 2: [4, 1]}  # by piece: before which table of a stream

    class Unsteady:
        def __init__(self, data, piece=None):
            self.data, self.piece = data, piece

        num_shards = 3

        def shard(self, num_shards, index):
            return Unsteady(self.data.shard(num_shards=num_shards, index=index), index)

        def iter(self, batch_size):
            left = faults.get(self.piece, [])
            at = left.pop(0) if left else None
            for number, table in enumerate(self.data.iter(batch_size=batch_size)):
                if number == at:
                    raise ConnectionError("reset by peer")
                yield table

        def __getattr__(self, name):
            return getattr(self.data, name)

    opened = hub_datasets._open_dataset
    monkeypatch.setattr(hub_datasets, "_open_dataset", lambda source: Unsteady(opened(source)))
    made = ingest(IngestConfig(sources=[{"kind": "datasets", "name": "s", "path": str(folder)}]))
    assert sorted(made["documents"].read()["text"].to_pylist()) == sorted(
        f"{shard} {n} " for shard in range(3) for n in range(400)
    )
    assert not any(faults.values())


def test_a_stream_that_stays_broken_fails_the_stage_and_the_next_run_goes_on(
    tmp_path, monkeypatch, session
):
    """Pieces that are done and rows of the broken one are read once."""
    monkeypatch.setattr(hub_datasets, "RETRY_WAITS_SECONDS", ())
    monkeypatch.setattr(hub_datasets, "BATCH_ROWS", 50)
    folder = shards(tmp_path / "set")
    where = {"kind": "datasets", "name": "s", "path": str(folder)}
    opened, seen, broken = hub_datasets._open_dataset, [], [True]

    def unsteady(source):
        data = opened(source)
        original = data.shard

        def shard(num_shards, index):
            piece = original(num_shards=num_shards, index=index)
            tables = piece.iter

            def iterate(batch_size):
                for number, table in enumerate(tables(batch_size=batch_size)):
                    if broken[0] and index == 1 and number == 5:
                        raise ConnectionError("reset by peer")
                    seen.extend(table["text"].to_pylist())
                    yield table

            piece.iter = iterate
            return piece

        data.shard = shard
        return data

    monkeypatch.setattr(hub_datasets, "_open_dataset", unsteady)
    with pytest.raises(HallmarkError, match=r"reset by peer.*what was read stays"):
        ingest(IngestConfig(sources=[where]))
    broken[0] = False
    made = ingest(IngestConfig(sources=[where]))
    assert made["documents"].row_count == 1200
    assert len(seen) == len(set(seen)) == 1200
