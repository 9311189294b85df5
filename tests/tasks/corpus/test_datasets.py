"""Test local and streamed data sets: all ways give the same corpus, and a break loses nothing."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hallmark.tasks.contract import HallmarkError, UsageError
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading import hub_datasets
from hallmark.tasks.corpus.reading.byte_streams import ReadCounts
from hallmark.tasks.corpus.reading.hub_datasets import DatasetsSource, read_dataset
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.corpus.reading.sources import Shard
from tests.tasks.corpus.reader_helpers import LIMIT, get_texts


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
        UsageError, match="'hub': column 'text' is missing; its columns are 'body', 'id'"
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
        HallmarkError, match=r"after row \d+ .*; the rows read so far are kept: run again"
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


def test_a_stream_with_temporary_errors_continues(tmp_path, monkeypatch, session):
    """The connection fails once at the start of a shard, and twice within another."""
    monkeypatch.setattr(hub_datasets, "RETRY_WAITS_SECONDS", (0.0,) * 3)
    monkeypatch.setattr(hub_datasets, "BATCH_ROWS", 50)
    folder = write_shards(tmp_path / "set")
    failing_tables = {0: [0], 2: [4, 1]}  # by shard: the table before which each attempt fails

    class UnsteadyDataset:
        def __init__(self, data, shard_index=None):
            self.data, self.shard_index = data, shard_index

        num_shards = 3

        def shard(self, num_shards, index):
            return UnsteadyDataset(self.data.shard(num_shards=num_shards, index=index), index)

        def iter(self, batch_size):
            remaining = failing_tables.get(self.shard_index, [])
            failing_table = remaining.pop(0) if remaining else None
            for number, table in enumerate(self.data.iter(batch_size=batch_size)):
                if number == failing_table:
                    raise ConnectionError("reset by peer")
                yield table

        def __getattr__(self, name):
            return getattr(self.data, name)

    open_dataset = hub_datasets._open_dataset
    monkeypatch.setattr(
        hub_datasets, "_open_dataset", lambda source: UnsteadyDataset(open_dataset(source))
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
    open_dataset, read_texts, is_broken = hub_datasets._open_dataset, [], [True]

    def open_unsteady_dataset(source):
        data = open_dataset(source)
        original = data.shard

        def shard(num_shards, index):
            shard_data = original(num_shards=num_shards, index=index)
            tables = shard_data.iter

            def iterate(batch_size):
                for number, table in enumerate(tables(batch_size=batch_size)):
                    if is_broken[0] and index == 1 and number == 5:
                        raise ConnectionError("reset by peer")
                    read_texts.extend(table["text"].to_pylist())
                    yield table

            shard_data.iter = iterate
            return shard_data

        data.shard = shard
        return data

    monkeypatch.setattr(hub_datasets, "_open_dataset", open_unsteady_dataset)
    with pytest.raises(HallmarkError, match=r"reset by peer.*the rows read so far are kept"):
        ingest(IngestConfig(sources=[settings]))
    is_broken[0] = False
    artifact = ingest(IngestConfig(sources=[settings]))
    assert artifact["documents"].row_count == 1200
    assert len(read_texts) == len(set(read_texts)) == 1200
