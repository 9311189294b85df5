"""Data sets that are streamed: in how many pieces, as of which commit, how often begun again."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from hallmark.tasks.contract import HallmarkError, UsageError
from hallmark.tasks.corpus.reading import hub_datasets
from hallmark.tasks.corpus.reading.byte_streams import ReadCounts
from hallmark.tasks.corpus.reading.hub_datasets import (
    DatasetsSource,
    count_shards,
    read_dataset,
    resolve_hub_commit,
)
from tests.tasks.corpus.reading import texts

LIMIT = 1000


def source(path, **settings):
    return DatasetsSource(kind="datasets", name="hub", path=str(path), **settings)


def read(path, *more, **settings):
    return list(read_dataset(source(path, **settings), LIMIT, ReadCounts(), *more))


def written(folder, files, rows=3):
    """A data set in so many files."""
    folder.mkdir()
    for number in range(files):
        values = [f"{number} {row}" for row in range(rows)]
        pq.write_table(pa.table({"text": values}), folder / f"train-{number}.parquet")
    return folder


@pytest.mark.parametrize("files", [1, 2, 3])
def test_a_data_set_is_read_in_a_piece_a_file(tmp_path, files):
    folder = written(tmp_path / "set", files)
    assert count_shards(source(folder)) == files
    for number in range(files):
        records = read(folder, (number, files))
        place = f"piece {number + 1} of {files}, " if files > 1 else ""
        assert [(r.text, r.location) for r in records] == [
            (f"{number} {row}", f"{place}row {row + 1}") for row in range(3)
        ]


def test_there_are_no_more_pieces_than_that(tmp_path, monkeypatch):
    monkeypatch.setattr(hub_datasets, "MAX_SHARDS", 2)
    folder = written(tmp_path / "set", 3)
    assert count_shards(source(folder)) == 2
    found = [r.text for piece in (0, 1) for r in read(folder, (piece, 2))]
    assert sorted(found) == [f"{number} {row}" for number in range(3) for row in range(3)]


def test_a_commit_is_taken_as_it_is_and_of_all_else_the_hub_is_asked():
    """Which cannot be reached from here."""
    assert resolve_hub_commit(source("user/name", revision="0123456789abcdef" * 2 + "0" * 8)) == (
        "0123456789abcdef" * 2 + "0" * 8
    )
    for revision in (None, "main", "f" * 39, "f" * 41, "F" * 40):
        with pytest.raises(UsageError, match=r"'user/name' is no folder here and the hub gave no"):
            resolve_hub_commit(source("user/name", revision=revision))


def test_a_path_is_at_least_a_letter():
    assert source("x").path == "x"
    with pytest.raises(ValidationError):
        source("")


def test_a_column_that_is_no_text_is_refused(tmp_path):
    pq.write_table(pa.table({"id": ["a"], "text": [7]}), tmp_path / "train-0.parquet")
    with pytest.raises(UsageError, match="'hub': column 'text' is not text; the columns are id, t"):
        read(tmp_path)


def test_of_very_many_columns_twenty_are_named(tmp_path):
    names = [f"c{number:02}" for number in range(25)]
    pq.write_table(pa.table({name: ["x"] for name in names}), tmp_path / "train-0.parquet")
    with pytest.raises(UsageError) as raised:
        read(tmp_path)
    assert str(raised.value).endswith("the columns are " + ", ".join(names[:20]))


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("x" * 200, "x" * 200),
        ("x" * 201, "x" * 197 + "..."),
        ("\n first \nsecond", "first "),
        ("", "ValueError"),
    ],
)
def test_what_the_library_says_is_told_in_two_hundred_characters(
    monkeypatch, tmp_path, said, shown
):
    def opened(source):
        raise ValueError(said)

    monkeypatch.setattr(hub_datasets, "_open_dataset", opened)
    for ask in (
        lambda: count_shards(source("x")),
        lambda: read("x"),
        lambda: read("x", (0, 1), tmp_path),
    ):
        with pytest.raises(HallmarkError) as raised:
            ask()
        assert f", behind row 0 ({shown}); run again, or read its files " in str(raised.value)


@pytest.mark.parametrize("more", [0, 1])
def test_a_stream_is_begun_again_as_often_as_there_are_waits(tmp_path, monkeypatch, more):
    folder = written(tmp_path / "set", 1)
    opened, left = (
        hub_datasets._open_dataset,
        ["broken"] * (len(hub_datasets.RETRY_WAITS_SECONDS) + more),
    )
    monkeypatch.setattr(
        hub_datasets, "RETRY_WAITS_SECONDS", (0.0,) * len(hub_datasets.RETRY_WAITS_SECONDS)
    )

    def unsteady(source):
        if left:
            left.pop()
            raise ConnectionError("reset by peer")
        return opened(source)

    monkeypatch.setattr(hub_datasets, "_open_dataset", unsteady)
    if more:
        with pytest.raises(HallmarkError, match="reset by peer"):
            read(folder)
    else:
        assert texts(read(folder)) == ["0 0", "0 1", "0 2"]
    assert not left


class Unsteady:
    """A data set of which each stream breaks behind its first table, as long as any are left."""

    def __init__(self, data, left):
        self.data, self.left = data, left

    def iter(self, batch_size):
        for table in self.data.iter(batch_size=batch_size):
            yield table
            if self.left:
                self.left.pop()
                raise ConnectionError("reset by peer")

    def __getattr__(self, name):
        return getattr(self.data, name)


def test_a_stream_that_goes_on_may_break_again_and_again(tmp_path, monkeypatch):
    """What counts is how often nothing came of it."""
    folder = written(tmp_path / "set", 1, rows=100)
    opened, left = (
        hub_datasets._open_dataset,
        ["broken"] * (2 * len(hub_datasets.RETRY_WAITS_SECONDS)),
    )
    monkeypatch.setattr(
        hub_datasets, "RETRY_WAITS_SECONDS", (0.0,) * len(hub_datasets.RETRY_WAITS_SECONDS)
    )
    monkeypatch.setattr(hub_datasets, "BATCH_ROWS", 10)
    monkeypatch.setattr(
        hub_datasets, "_open_dataset", lambda source: Unsteady(opened(source), left)
    )
    assert texts(read(folder)) == [f"0 {row}" for row in range(100)]
    assert not left


@pytest.mark.parametrize("kept", [False, True])
def test_what_stays_of_a_stream_that_stays_broken_is_said(tmp_path, monkeypatch, kept):
    """And is not asked for again."""
    folder = written(tmp_path / "set", 1, rows=30)
    place = tmp_path / "deep" / "kept" if kept else None
    opened, left = hub_datasets._open_dataset, ["broken"]
    monkeypatch.setattr(hub_datasets, "RETRY_WAITS_SECONDS", ())
    monkeypatch.setattr(hub_datasets, "BATCH_ROWS", 10)
    monkeypatch.setattr(
        hub_datasets, "_open_dataset", lambda source: Unsteady(opened(source), left)
    )
    says = "what was read stays: run again and it goes on there" if kept else "run again"
    with pytest.raises(HallmarkError, match=rf"behind row 10 \(reset by peer\); {says}, or read"):
        read(folder, (0, 1), place)
    if kept:
        values = pa.table({"text": [f"after {row}" for row in range(30)]})
        pq.write_table(values, folder / "train-0.parquet")
        assert texts(read(folder, (0, 1), place)) == [
            f"0 {row}" if row < 10 else f"after {row}" for row in range(30)
        ]
