"""The split: clusters stay whole, and shares match the config."""

import hashlib

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from hallmark.tasks.contract import hash_to_ids
from hallmark.tasks.corpus.split import (
    SplitConfig,
    assign_splits,
    hash_ids_to_uniform_draws,
    split_corpus,
)
from tests.tasks.corpora import given

MASK = (1 << 64) - 1


def splitmix(x):
    """Compute SplitMix64 in Python integers, as in the paper."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def test_the_reference_is_splitmix64():
    """The first output for state 0 is the one published with the reference code."""
    assert splitmix(0) == 0xE220A8397B1DCDAF


def test_hashes_match_the_reference_in_python_integers():
    values = hash_to_ids(str(i) for i in range(50))[7:31]  # a slice: its buffer starts elsewhere
    key = int.from_bytes(hashlib.blake2b(b"3/split", digest_size=8).digest(), "little")
    expected = []
    for value in values.to_pylist():
        low, high = int.from_bytes(value[:8], "little"), int.from_bytes(value[8:], "little")
        expected.append((splitmix(splitmix(low ^ key) ^ high) >> 11) / 2**53)
    assert hash_ids_to_uniform_draws(values, 3, "split").tolist() == expected


def test_hashes_are_uniform_and_depend_on_seed_and_purpose():
    values = hash_to_ids(str(i) for i in range(20_000))
    draws = [
        hash_ids_to_uniform_draws(values, 0, "a"),
        hash_ids_to_uniform_draws(values, 1, "a"),
        hash_ids_to_uniform_draws(values, 0, "b"),
    ]
    for draw in draws:
        counts = np.histogram(draw, bins=20, range=(0, 1))[0]
        assert ((counts - 1000) ** 2 / 1000).sum() < 43.8  # chi-squared, 19 df, p = 0.001
    correlation = np.corrcoef(draws)
    assert abs(correlation[np.triu_indices(3, 1)]).max() < 0.03


def test_shares_match_the_config():
    clusters = hash_to_ids(str(i) for i in range(40_000))
    config = SplitConfig(seed=5, validation_share=0.1, holdout_share=0.2)
    names, counts = np.unique(assign_splits(clusters, config).to_pylist(), return_counts=True)
    share = dict(zip(names.tolist(), counts / 40_000, strict=True))
    assert share["validation"] == pytest.approx(0.1, abs=0.006)
    assert share["holdout"] == pytest.approx(0.2, abs=0.008)
    assert share["train"] == pytest.approx(0.7, abs=0.01)


def test_a_cluster_is_never_divided_between_splits(session):
    clusters = [f"cluster {i % 200}" for i in range(2_000)]
    scored = given([f"text {i}" for i in range(2_000)], clusters=clusters, kind="scored")
    rows = split_corpus(scored, SplitConfig(validation_share=0.3, holdout_share=0.3))[
        "documents"
    ].read()
    splits_by_cluster = {}
    for row in rows.select(["cluster", "split"]).to_pylist():
        splits_by_cluster.setdefault(row["cluster"], set()).add(row["split"])
    assert len(splits_by_cluster) == 200
    assert all(len(splits) == 1 for splits in splits_by_cluster.values())
    assert {name for splits in splits_by_cluster.values() for name in splits} == {
        "train",
        "validation",
        "holdout",
    }


def test_the_split_of_a_document_does_not_depend_on_others():
    clusters = hash_to_ids(str(i) for i in range(1000))
    all_splits = assign_splits(clusters, SplitConfig()).to_pylist()
    assert assign_splits(clusters[500:], SplitConfig()).to_pylist() == all_splits[500:]
    assert assign_splits(pa.array([], pa.binary(16)), SplitConfig()).to_pylist() == []


def test_all_rows_are_kept(session):
    scored = given([f"text {i}" for i in range(100)], kind="scored", toxicity=[None] * 100)
    result = split_corpus(scored, SplitConfig())
    tables = [artifact["documents"].read().drop(["split"]) for artifact in (result, scored)]
    assert tables[0].equals(tables[1])
    assert result["ledger"].row_count == 0


def test_shares_without_training_documents_are_rejected():
    with pytest.raises(
        ValidationError, match=r"'validation_share' and 'holdout_share' must be below 1"
    ):
        SplitConfig(validation_share=0.5, holdout_share=0.5)
