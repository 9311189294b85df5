"""Packed rows: the order of reading, copies of tables, and refused tables."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hallmark.model.training.packed_rows import PackedRows, open_packed_rows, select_batch_rows
from tests.model.oracles import toy_rows, write_rows


def test_orders_differ_between_epochs_and_seeds():
    n = 500
    orders = [select_batch_rows(seed, epoch + 1, n, n) for seed in (0, 1) for epoch in (0, 1)]
    for i, first in enumerate(orders):
        assert sorted(first) == list(range(n))
        # A random order keeps about one element in place, and is uncorrelated with the index.
        assert (first == np.arange(n)).sum() < 8
        assert abs(np.corrcoef(first, np.arange(n))[0, 1]) < 0.15
        for second in orders[:i]:
            assert abs(np.corrcoef(first, second)[0, 1]) < 0.15


@given(n=st.integers(1, 40), batch=st.integers(1, 17))
@settings(max_examples=30, deadline=None)
def test_steps_read_each_epoch_once_for_any_batch_size(n, batch):
    steps = -(-3 * n // batch)
    rows_read = np.concatenate([select_batch_rows(9, s, batch, n) for s in range(1, steps + 1)])
    assert (rows_read[: 3 * n] == select_batch_rows(9, 1, 3 * n, n)).all()
    for epoch in range(3):
        assert sorted(rows_read[epoch * n : (epoch + 1) * n]) == list(range(n))


def test_rows_are_read_from_one_file_or_several(tmp_path):
    rows = toy_rows(10, 8, 30)
    folder = tmp_path / "train"
    folder.mkdir()
    write_rows(folder / "a.parquet", rows[:6])
    write_rows(folder / "b.parquet", rows[6:])
    packed = open_packed_rows(str(folder), tmp_path / "train.bin", 8, 30)
    assert len(packed) == 10
    assert (packed.read_rows(np.array([9, 0, 5])) == rows[[9, 0, 5]]).all()
    first_stat = (tmp_path / "train.bin").stat()
    assert (open_packed_rows(str(folder), tmp_path / "train.bin", 8, 30).ids == rows).all()
    assert (tmp_path / "train.bin").stat() == first_stat  # not copied again


def test_a_copy_of_other_rows_is_replaced(tmp_path):
    """A training that failed before its first state leaves such a copy."""
    first, second = toy_rows(10, 8, 20), toy_rows(10, 8, 20, seed=7)
    paths = [write_rows(tmp_path / f"{i}.parquet", r) for i, r in enumerate((first, second))]
    assert (open_packed_rows(str(paths[0]), tmp_path / "train.bin", 8, 30).ids == first).all()
    assert (open_packed_rows(str(paths[1]), tmp_path / "train.bin", 8, 30).ids == second).all()
    write_rows(paths[1], first)  # in the same place
    assert (open_packed_rows(str(paths[1]), tmp_path / "train.bin", 8, 30).ids == first).all()
    with pytest.raises(ValueError, match="vocabulary has 5"):
        open_packed_rows(str(paths[1]), tmp_path / "train.bin", 8, 5)


def test_a_copy_is_hashed_and_replaced_if_it_was_changed(tmp_path):
    source = write_rows(tmp_path / "rows.parquet", toy_rows(5, 8, 30))
    path = tmp_path / "train.bin"
    packed = open_packed_rows(str(source), path, 8, 30)
    content = path.read_bytes()
    assert packed.sha256 == hashlib.sha256(content).hexdigest()
    first_stat = path.stat()
    assert open_packed_rows(str(source), path, 8, 30).sha256 == packed.sha256
    assert path.stat().st_ino == first_stat.st_ino  # neither copied nor hashed again
    path.write_bytes(content[::-1])
    assert open_packed_rows(str(source), path, 8, 30).sha256 == packed.sha256
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("context", "vocab_size", "word"), [(9, 30, "rows of 9"), (8, 20, "vocabulary has 20")]
)
def test_rows_that_do_not_fit_the_model_are_refused(tmp_path, context, vocab_size, word):
    path = write_rows(tmp_path / "train.parquet", toy_rows(4, 8, 30))
    with pytest.raises(ValueError, match=word):
        open_packed_rows(str(path), tmp_path / "train.bin", context, vocab_size)
    assert not (tmp_path / "train.bin").exists() and not list(tmp_path.glob("*.tmp"))


def test_unreadable_tables_are_refused_by_name(tmp_path):
    path = write_rows(tmp_path / "train.parquet", toy_rows(4, 8, 30))
    short = tmp_path / "short.parquet"
    short.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"short\.parquet"):
        open_packed_rows(str(short), tmp_path / "x.bin", 8, 30)
    with pytest.raises(ValueError, match="does not exist"):
        open_packed_rows(str(tmp_path / "gone.parquet"), tmp_path / "x.bin", 8, 30)
    empty = write_rows(tmp_path / "empty.parquet", np.zeros((0, 8), dtype=np.int32))
    with pytest.raises(ValueError, match="no rows"):
        open_packed_rows(str(empty), tmp_path / "x.bin", 8, 30)
    (tmp_path / "torn.bin").write_bytes(b"\0" * 33)
    with pytest.raises(ValueError, match="complete rows"):
        PackedRows(tmp_path / "torn.bin", 8)


def test_changed_rows_of_equal_size_are_refused(tmp_path):
    """Without page checksums, other valid tokens would not be noticed."""
    table = pq.read_table(write_rows(tmp_path / "train.parquet", toy_rows(4, 8, 30)))
    path = tmp_path / "sums.parquet"
    pq.write_table(table, path, compression="none", use_dictionary=False, write_page_checksum=True)
    content = path.read_bytes()
    ids = table["token_ids"].combine_chunks().flatten().to_numpy()
    offset = content.index(ids.tobytes())
    path.write_bytes(content[:offset] + bytes([content[offset] ^ 1]) + content[offset + 1 :])
    with pytest.raises(ValueError, match=r"sums\.parquet is damaged"):
        open_packed_rows(str(path), tmp_path / "train.bin", 8, 30)
    assert not (tmp_path / "train.bin").exists()
