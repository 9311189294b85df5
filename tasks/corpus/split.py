"""Split documents into train, validation and holdout, whole duplicate clusters at a time.

Near-duplicates share a cluster, so they always fall into the same split. Training neither uses nor
evaluates the holdout: its documents are the non-members of the membership audit.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from hallmark.tasks.contract import (
    DOCUMENTS,
    LEDGER,
    Seed,
    StageConfig,
    StageContext,
    Table,
    TablePart,
    TableWriters,
    replace_columns,
    stage,
)


class SplitConfig(StageConfig):
    """Shares of the splits; the train split gets the rest."""

    seed: Seed = Field(
        default=0,
        description="random seed used to assign each cluster of near-duplicate documents to a "
        "split",
    )
    validation_share: float = Field(
        default=0.05,
        gt=0,
        lt=1,
        description="share of near-duplicate clusters assigned to the validation split",
    )
    holdout_share: float = Field(
        default=0.05,
        ge=0,
        lt=1,
        description="share of near-duplicate clusters assigned to the holdout split, which is "
        "used only for audits; the remaining clusters form the train split",
    )

    @model_validator(mode="after")
    def _check_shares(self) -> SplitConfig:
        if self.validation_share + self.holdout_share >= 1:
            raise ValueError("the sum of 'validation_share' and 'holdout_share' must be below 1")
        return self


def hash_ids_to_uniform_draws(
    ids: pa.Array | pa.ChunkedArray, seed: int, purpose: str
) -> np.ndarray:
    """Hash 16-byte ids to float64 in [0, 1), keyed by seed and purpose; (n,).

    SplitMix64 (Steele et al. 2014) over the two halves of the id.
    """
    if isinstance(ids, pa.ChunkedArray):
        ids = ids.combine_chunks()
    if not len(ids):
        return np.empty(0)
    id_bytes = np.frombuffer(ids.buffers()[1], np.uint8)[16 * ids.offset :][: 16 * len(ids)]
    halves = id_bytes.copy().view("<u8").reshape(-1, 2)
    key = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    key_word = np.frombuffer(key, "<u8")
    mixed = _splitmix64(_splitmix64(halves[:, 0] ^ key_word) ^ halves[:, 1])
    return (mixed >> np.uint64(11)) * 2.0**-53


def _splitmix64(x: np.ndarray) -> np.ndarray:
    x = x + np.uint64(0x9E3779B97F4A7C15)  # unsigned arrays wrap around, as the algorithm needs
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    hashes: np.ndarray = x ^ (x >> np.uint64(31))
    return hashes


def assign_splits(clusters: pa.Array, config: SplitConfig) -> pa.Array:
    """Return the split of each document, which depends on its cluster alone."""
    draws = hash_ids_to_uniform_draws(clusters, config.seed, "split")
    train_share = 1 - config.validation_share - config.holdout_share
    split_numbers = np.searchsorted(
        [train_share, train_share + config.validation_share], draws, side="right"
    )
    split_names = pa.array(["train", "validation", "holdout"])
    return split_names.take(pa.array(split_numbers))


def split_partition(partition: TablePart, config: SplitConfig, out: TableWriters) -> None:
    """Write the documents of a partition with their splits."""
    for batch in partition.iter_batches():
        split_names = assign_splits(batch["cluster"], config)
        out.get_table_writer("documents").write(replace_columns(batch, split=split_names))


@stage(name="split", tables={"documents": DOCUMENTS, "ledger": LEDGER}, libraries=["numpy"])
def split_corpus(documents: Table, config: SplitConfig, context: StageContext) -> None:
    """Assign every document to a split."""
    context.map_partitions(split_partition, documents.parts, config)
