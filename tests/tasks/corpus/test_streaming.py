"""Test streamed data sets: number of shards, commit, and restarts of broken streams."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from hallmark.tasks.contract import HallmarkError, UsageError
from hallmark.tasks.corpus.reading import hub_datasets
from hallmark.tasks.corpus.reading.byte_streams import ReadCounts
from hallmark.tasks.corpus.reading.hub_datasets import (
    DatasetsSource,
    read_dataset,
    resolve_hub_commit,
)
from hallmark.tasks.corpus.reading.sources import WHOLE_INPUT, Shard
from tests.tasks.corpus.reader_helpers import get_texts

LIMIT = 1000


def make_source(path, **settings):
    return DatasetsSource(kind="datasets", name="hub", path=str(path), **settings)


def read_shard(path, *more, **settings):
    return list(read_dataset(make_source(path, **settings), LIMIT, ReadCounts(), *more))


def write_dataset(folder, files, rows=3):
    """Write a data set with this many files."""
    folder.mkdir()
    for number in range(files):
        values = [f"{number} {row}" for row in range(rows)]
        pq.write_table(pa.table({"text": values}), folder / f"train-{number}.parquet")
    return folder


@pytest.mark.parametrize("files", [1, 2, 3])
def test_a_data_set_has_one_shard_per_file(tmp_path, files):
    folder = write_dataset(tmp_path / "set", files)
    assert make_source(folder).choose_shard_count() == files
    for number in range(files):
        records = read_shard(folder, Shard(number, files))
        prefix = f"shard {number + 1} of {files}, " if files > 1 else ""
        assert [(r.text, r.location) for r in records] == [
            (f"{number} {row}", f"{prefix}row {row + 1}") for row in range(3)
        ]


def test_the_number_of_shards_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(hub_datasets, "MAX_SHARDS", 2)
    folder = write_dataset(tmp_path / "set", 3)
    assert make_source(folder).choose_shard_count() == 2
    found_texts = [r.text for index in (0, 1) for r in read_shard(folder, Shard(index, 2))]
    assert sorted(found_texts) == [f"{number} {row}" for number in range(3) for row in range(3)]


def test_only_a_commit_is_used_without_asking_the_hub():
    """The hub cannot be reached in tests."""
    assert resolve_hub_commit(
        make_source("user/name", revision="0123456789abcdef" * 2 + "0" * 8)
    ) == ("0123456789abcdef" * 2 + "0" * 8)
    for revision in (None, "main", "f" * 39, "f" * 41, "F" * 40):
        with pytest.raises(
            UsageError, match=r"'user/name' is not a local folder, and the Hugging Face Hub could"
        ):
            resolve_hub_commit(make_source("user/name", revision=revision))


def test_an_empty_path_is_refused():
    assert make_source("x").path == "x"
    with pytest.raises(ValidationError):
        make_source("")


def test_a_column_that_is_not_text_is_refused(tmp_path):
    pq.write_table(pa.table({"id": ["a"], "text": [7]}), tmp_path / "train-0.parquet")
    with pytest.raises(
        UsageError,
        match=r"file 'train-0.parquet': column 'text' is not text but int64; its columns are 'id'",
    ):
        read_shard(tmp_path)


def test_at_most_twenty_columns_are_named(tmp_path):
    names = [f"c{number:02}" for number in range(25)]
    pq.write_table(pa.table({name: ["x"] for name in names}), tmp_path / "train-0.parquet")
    with pytest.raises(UsageError) as raised:
        read_shard(tmp_path)
    assert str(raised.value).endswith("its columns are " + ", ".join(map(repr, names[:20])))


@pytest.mark.parametrize(
    ("message", "shortened"),
    [
        ("x" * 200, "x" * 200),
        ("x" * 201, "x" * 197 + "..."),
        ("\n first \nsecond", "first "),
        ("", "ValueError"),
    ],
)
def test_errors_of_the_library_are_shortened_to_200_characters(
    monkeypatch, tmp_path, message, shortened
):
    def fail_to_open(source):
        raise ValueError(message)

    monkeypatch.setattr(hub_datasets, "_load_builder", fail_to_open)
    for call in (
        lambda: make_source("x").choose_shard_count(),
        lambda: read_shard("x"),
        lambda: read_shard("x", WHOLE_INPUT, tmp_path),
    ):
        with pytest.raises(HallmarkError) as raised:
            call()
        assert f", after row 0 ({shortened}); correct the data set, or read the files " in str(
            raised.value
        )


@pytest.mark.parametrize("additional_errors", [0, 1])
def test_a_stream_is_restarted_once_per_wait(tmp_path, monkeypatch, additional_errors):
    folder = write_dataset(tmp_path / "set", 1)
    open_data_file = hub_datasets._open_data_file
    remaining_errors = ["broken"] * (len(hub_datasets.RETRY_WAITS_SECONDS) + additional_errors)
    monkeypatch.setattr(
        hub_datasets, "RETRY_WAITS_SECONDS", (0.0,) * len(hub_datasets.RETRY_WAITS_SECONDS)
    )

    def open_unsteady_file(*arguments):
        if remaining_errors:
            remaining_errors.pop()
            raise ConnectionError("reset by peer")
        return open_data_file(*arguments)

    monkeypatch.setattr(hub_datasets, "_open_data_file", open_unsteady_file)
    if additional_errors:
        with pytest.raises(HallmarkError, match="reset by peer"):
            read_shard(folder)
    else:
        assert get_texts(read_shard(folder)) == ["0 0", "0 1", "0 2"]
    assert not remaining_errors


class UnsteadyDataset:
    """A data set whose streams break after their first table while errors remain."""

    def __init__(self, data, remaining_errors):
        self.data, self.remaining_errors = data, remaining_errors

    def iter(self, batch_size):
        for table in self.data.iter(batch_size=batch_size):
            yield table
            if self.remaining_errors:
                self.remaining_errors.pop()
                raise ConnectionError("reset by peer")

    def __getattr__(self, name):
        return getattr(self.data, name)


def test_a_stream_that_makes_progress_may_break_any_number_of_times(tmp_path, monkeypatch):
    """Only consecutive attempts without progress count."""
    folder = write_dataset(tmp_path / "set", 1, rows=100)
    open_data_file = hub_datasets._open_data_file
    remaining_errors = ["broken"] * (2 * len(hub_datasets.RETRY_WAITS_SECONDS))
    monkeypatch.setattr(
        hub_datasets, "RETRY_WAITS_SECONDS", (0.0,) * len(hub_datasets.RETRY_WAITS_SECONDS)
    )
    monkeypatch.setattr(hub_datasets, "BATCH_ROWS", 10)
    monkeypatch.setattr(
        hub_datasets,
        "_open_data_file",
        lambda *arguments: UnsteadyDataset(open_data_file(*arguments), remaining_errors),
    )
    assert get_texts(read_shard(folder)) == [f"0 {row}" for row in range(100)]
    assert not remaining_errors


@pytest.mark.parametrize("keeps_rows", [False, True])
def test_the_error_of_a_broken_stream_says_whether_rows_are_kept(tmp_path, monkeypatch, keeps_rows):
    """Kept rows are not read again."""
    folder = write_dataset(tmp_path / "set", 1, rows=30)
    resume_folder = tmp_path / "deep" / "kept" if keeps_rows else None
    open_data_file, remaining_errors = hub_datasets._open_data_file, ["broken"]
    monkeypatch.setattr(hub_datasets, "RETRY_WAITS_SECONDS", ())
    monkeypatch.setattr(hub_datasets, "BATCH_ROWS", 10)
    monkeypatch.setattr(
        hub_datasets,
        "_open_data_file",
        lambda *arguments: UnsteadyDataset(open_data_file(*arguments), remaining_errors),
    )
    advice = (
        r"run again to continue with the next row \(the rows read so far are kept\)"
        if keeps_rows
        else "run again"
    )
    with pytest.raises(HallmarkError, match=rf"after row 10 \(reset by peer\); {advice}, or read"):
        read_shard(folder, WHOLE_INPUT, resume_folder)
    if keeps_rows:
        values = pa.table({"text": [f"after {row}" for row in range(30)]})
        pq.write_table(values, folder / "train-0.parquet")
        assert get_texts(read_shard(folder, WHOLE_INPUT, resume_folder)) == [
            f"0 {row}" if row < 10 else f"after {row}" for row in range(30)
        ]
