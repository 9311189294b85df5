"""The texts that capability is measured on, chosen from the corpus or drawn by lot."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from model.draws import combine
from tasks.contract import HallmarkError, Table, utf8_bytes

PRINTABLE = "".join(map(chr, range(32, 127)))

TEXT = "text"  # held-out documents
RANDOM = "random characters"  # negative control: nobody can compress them
SEEN = "training text"  # positive control: the 5-gram model's own training documents


def no_text(split: str) -> str:
    return (
        f"the split {split!r} holds no text to measure capability on; ingest more text, raise "
        f"split.{split} or take another split.seed"
    )


def check_held_out(documents: Table) -> None:
    """HallmarkError where there is nothing to measure on, for who is about to train a model: that
    is then not paid for."""
    for batch in documents.batches(["split"]):
        if pc.any(pc.equal(batch["split"], "validation")).as_py():
            return
    raise HallmarkError(f"audit_capability would fail behind the training: {no_text('validation')}")


def choose(documents: Table, split: str, most_bytes: int, seed: int) -> pa.Table:
    """Documents of a split, about ``most_bytes`` of text chosen by a hash of (seed, doc_id).

    Columns doc_id, source, text, bytes, in the order of the hash; empty documents stay out.
    """

    def of_split(columns: list[str]) -> Iterator[pa.Table]:
        for batch in documents.batches([*columns, "split"]):
            table = pa.table(batch).filter(pc.equal(batch["split"], split))
            table = table.append_column("bytes", utf8_bytes(table["text"]))
            yield table.filter(pc.greater(table["bytes"], 0))

    total = sum(pc.sum(part["bytes"]).as_py() or 0 for part in of_split(["text"]))
    share = min(1.0, most_bytes / total) if total else 1.0
    chosen = []
    for part in of_split(["doc_id", "source", "text"]):
        if len(part):
            halves = np.frombuffer(b"".join(part["doc_id"].to_pylist()), "<u8").reshape(-1, 2)
            key = combine(seed, *halves.T.astype(np.uint64))
            part = part.append_column("key", pa.array(key))
            chosen.append(part.filter(pa.array(key / 2.0**64 <= share)))
    if not sum(map(len, chosen)):
        raise HallmarkError(no_text(split))
    return pa.concat_tables(chosen).sort_by("key").drop_columns(["key", "split"])


def random_texts(seed: int, count: int = 64, length: int = 200) -> pa.Table:
    drawn = np.random.default_rng(seed).integers(len(PRINTABLE), size=(count, length))
    texts = ["".join(PRINTABLE[i] for i in row) for row in drawn]
    return pa.table({"text": pa.array(texts, pa.large_string())})
