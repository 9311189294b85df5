"""Choose the texts of the capability audit from the corpus, and generate random ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hallmark.model.keyed_randomness import combine_into_key
from hallmark.tasks.contract import HallmarkError, Table, count_utf8_bytes

PRINTABLE_CHARACTERS = "".join(map(chr, range(32, 127)))

RANDOM_TEXT = "random characters"  # negative control: no model can compress them
TRAINING_TEXT = "training text"  # positive control: the 5-gram model's own training documents


def format_empty_split_message(split: str) -> str:
    return (
        f"the {split!r} split has no text to measure capability on; ingest more text, raise "
        f"split.{split}_share or set a different split.seed"
    )


def check_validation_text_exists(documents: Table) -> None:
    """Check before a training that the capability audit will have text to measure on.

    Raises:
        HallmarkError: The validation split has no document.
    """
    for batch in documents.iter_batches(["split"]):
        if pc.any(pc.equal(batch["split"], "validation")).as_py():
            return
    raise HallmarkError(
        f"audit_capability would fail after training: {format_empty_split_message('validation')}"
    )


def count_split_bytes(documents: Table, split: str) -> int:
    """Count the UTF-8 bytes of the text of a split."""
    return sum(
        pc.sum(split_table["bytes"]).as_py() or 0
        for split_table in _iter_nonempty_documents_with_bytes(documents, split, ["text"])
    )


def _iter_nonempty_documents_with_bytes(
    documents: Table, split: str, columns: list[str]
) -> Iterator[pa.Table]:
    """Yield these columns and the bytes of the documents of a split, without empty documents."""
    for batch in documents.iter_batches([*columns, "split"]):
        split_table = pa.table(batch).filter(pc.equal(batch["split"], split))
        split_table = split_table.append_column("bytes", count_utf8_bytes(split_table["text"]))
        yield split_table.filter(pc.greater(split_table["bytes"], 0))


class SplitSample(NamedTuple):
    """Sampled documents of a split, and the bytes of text of the whole split.

    The columns of the documents are doc_id, source, text and bytes.
    """

    documents: pa.Table
    split_bytes: int


def sample_split_documents(documents: Table, split: str, max_bytes: int, seed: int) -> SplitSample:
    """Sample documents of a split, about ``max_bytes`` of text, by a hash of (seed, doc_id).

    The documents are in the order of the hash; empty ones are omitted.
    """

    total_bytes = count_split_bytes(documents, split)
    sampled_share = min(1.0, max_bytes / total_bytes) if total_bytes else 1.0
    sampled_tables = []
    for split_table in _iter_nonempty_documents_with_bytes(
        documents, split, ["doc_id", "source", "text"]
    ):
        if len(split_table):
            id_halves = np.frombuffer(b"".join(split_table["doc_id"].to_pylist()), "<u8").reshape(
                -1, 2
            )
            hash_keys = combine_into_key(seed, *id_halves.T.astype(np.uint64))
            split_table = split_table.append_column("key", pa.array(hash_keys))
            sampled_tables.append(
                split_table.filter(pa.array(hash_keys / 2.0**64 <= sampled_share))
            )
    if not sum(map(len, sampled_tables)):
        raise HallmarkError(format_empty_split_message(split))
    sampled_documents = pa.concat_tables(sampled_tables).sort_by("key")
    return SplitSample(sampled_documents.drop_columns(["key", "split"]), total_bytes)


def generate_random_texts(seed: int, count: int = 64, length: int = 200) -> pa.Table:
    character_indices = np.random.default_rng(seed).integers(
        len(PRINTABLE_CHARACTERS), size=(count, length)
    )
    texts = [
        "".join(PRINTABLE_CHARACTERS[character_index] for character_index in text_indices)
        for text_indices in character_indices
    ]
    return pa.table({"text": pa.array(texts, pa.large_string())})
