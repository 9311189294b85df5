"""Pack documents into sequences of one length, and keep which document stands where.

The documents of a split are laid end to end, each after ``<|endoftext|>``, and cut into rows of
``context`` tokens; the last row is padded. Their order is a shuffle by a hash of (seed, doc_id):
sources and planted copies mix, and the order depends on neither shards nor the input's order.

Memory: an encoded bucket of about 16 MB of compressed text; buckets are ranges of the shuffle's
hash, written by the shards and laid out one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from model.training.data import END_OF_TEXT, PAD, combine, token_lengths
from tasks.contract import (
    ID,
    LEDGER,
    Artifact,
    HallmarkError,
    Part,
    Shard,
    StageConfig,
    Table,
    Tables,
    Work,
    accounts,
    column,
    ledger_rows,
    stage,
    table,
    utf8_bytes,
)
from tasks.training.encoding import load_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

#: The splits that are packed; "holdout" stays out, as the non-members of the extraction audit.
PACKED = ("train", "validation")
BUCKET_BYTES = 16 << 20


class PackConfig(StageConfig):
    context: int = Field(256, ge=8, le=1 << 20, description="tokens of a sequence")
    seed: int = Field(0, ge=0, lt=1 << 63, description="names the order of the documents")


SPANS = table(
    "Which characters of which document stand where in the packed sequences.",
    column("split", pa.string(), "label", "train or validation: the table that holds the sequence"),
    column("sequence", pa.int64(), "figure", "row of that table, from 0"),
    column("start", pa.int32(), "figure", "first position in the row", unit="tokens"),
    column("end", pa.int32(), "figure", "position behind the last", unit="tokens"),
    column("doc_id", ID, "id", "the document"),
    column("char_start", pa.int32(), "figure", "its first character there", unit="characters"),
    column("char_end", pa.int32(), "figure", "the character behind its last", unit="characters"),
)

#: An encoded document on its way from a shard to its place; ``key`` is its place in the shuffle.
ENCODED = pa.schema(
    [
        ("key", pa.uint64()),
        ("doc_id", ID),
        ("source", pa.string()),
        ("ids", pa.large_list(pa.int32())),
        ("char_start", pa.large_list(pa.int32())),
        ("char_end", pa.large_list(pa.int32())),
    ]
)


def sequences(context: int) -> pa.Schema:
    """Schema of packed rows."""
    row = pa.list_(pa.field("element", pa.int32()), context)
    return table(
        "Packed sequences; each row has as many positions as the context.",
        column("ids", row, "id", "ids of the tokens"),
        column("char_start", row, "figure", "first character of the token in its document; 0 at "
               "<|endoftext|>, -1 at padding", unit="characters"),
        column("char_end", row, "figure", "the character behind its last; 0 at "
               "<|endoftext|>, -1 at padding", unit="characters"),
    )  # fmt: skip


# Encoding ------------------------------------------------------------------------------------


def encode(texts: pa.LargeStringArray, tokenizer: Tokenizer, lengths: Int32) -> pa.Table:
    """Columns ids, char_start, char_end of each text, ``<|endoftext|>`` first.

    The characters follow from the tokens' lengths in bytes; a token that holds a part of a
    character counts as that whole character.
    """
    encodings = tokenizer.encode_batch_fast(texts.to_pylist(), add_special_tokens=False)
    sizes = np.array([len(e) for e in encodings], np.int64)
    ids = np.fromiter((i for e in encodings for i in e.ids), np.int32, count=int(sizes.sum()))
    first = np.concatenate([[0], np.cumsum(sizes)])  # of each document's tokens

    text_first, data = _utf8(texts)
    ends = np.cumsum(lengths[ids], dtype=np.int64)  # of each token, in the bytes of all texts
    found = np.concatenate([[0], ends])[first]
    if not np.array_equal(found, text_first):
        row = int(np.argmax(found[1:] != text_first[1:]))
        raise HallmarkError(
            f"the tokenizer loses text: its tokens do not spell document {row} of a batch; "
            f"pack needs a byte-level tokenizer without normalisation"
        )
    begins = ends - lengths[ids]
    is_first_byte = (data & 0xC0) != 0x80
    characters = np.concatenate([[0], np.cumsum(is_first_byte, dtype=np.int64)])
    base = np.repeat(characters[text_first[:-1]], sizes)
    char_start = characters[begins + 1] - 1 - base  # the character that holds its first byte
    char_end = characters[ends] - base

    offsets = first + np.arange(len(first))  # one place more a document, for <|endoftext|>
    columns = {}
    for name, values in (("ids", ids), ("char_start", char_start), ("char_end", char_end)):
        begin = END_OF_TEXT if name == "ids" else 0
        full = np.insert(values.astype(np.int32), first[:-1], begin)
        columns[name] = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(full))
    return pa.table(columns)


def _utf8(texts: pa.LargeStringArray) -> tuple[Int64, NDArray[np.uint8]]:
    """Offsets (n + 1,) and bytes of a column of texts, without a copy."""
    _, offsets, data = texts.buffers()
    first = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    start, stop = int(first[0]), int(first[-1])
    whole = np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)
    return first - start, whole[start:stop]


def shuffle_keys(doc_ids: pa.Array, seed: int) -> NDArray[np.uint64]:
    """Each document's place in the shuffle: a hash of (seed, doc_id), (n,)."""
    if not len(doc_ids):
        return np.empty(0, np.uint64)
    halves = np.frombuffer(b"".join(doc_ids.to_pylist()), dtype="<u8").reshape(-1, 2)
    return combine(seed, halves[:, 0].astype(np.uint64), halves[:, 1].astype(np.uint64))


def encode_shard(
    shard: Shard, config: PackConfig, tokenizer_path: str, buckets: int, out: Tables
) -> None:
    """Encode the documents of a shard into one table for each split and bucket."""
    tokenizer = load_tokenizer(Path(tokenizer_path))
    lengths = token_lengths(tokenizer)
    for batch in shard.batches(["doc_id", "source", "text", "split"]):
        held_out = batch.filter(pc.equal(batch["split"], "holdout"))
        out.table("ledger").write(
            ledger_rows(
                "removed",
                "holdout: kept from training, for the extraction audit",
                held_out["doc_id"],
                held_out["source"],
                utf8_bytes(held_out["text"]),
            )
        )
        for split in PACKED:
            chosen = batch.filter(pc.equal(batch["split"], split))
            keys = shuffle_keys(chosen["doc_id"], config.seed)
            encoded = encode(chosen["text"], tokenizer, lengths)
            for name in ("source", "doc_id"):
                encoded = encoded.add_column(0, name, chosen[name])
            encoded = encoded.add_column(0, "key", pa.array(keys, pa.uint64()))
            place = (keys >> np.uint64(32)) * np.uint64(buckets) >> np.uint64(32)
            for bucket in np.unique(place):
                rows = encoded.filter(pa.array(place == bucket))
                out.table(f"{split}-{bucket}", ENCODED).write(rows)


# Layout --------------------------------------------------------------------------------------


@dataclass
class Stream:
    """The tokens of a split as they come, cut into rows; ``position`` counts them all."""

    split: str
    context: int
    work: Work
    position: int = 0

    def __post_init__(self) -> None:
        self.rest: list[Int32] = [np.empty(0, np.int32)] * 3
        self.work.table(self.split, sequences(self.context))

    def append(self, documents: pa.Table) -> None:
        """Lay encoded documents behind what is there."""
        columns = [_values(documents[name]) for name in ("ids", "char_start", "char_end")]
        sizes = pc.list_value_length(documents["ids"]).to_numpy().astype(np.int64)
        self._spans(documents["doc_id"], sizes, columns[1], columns[2])
        self.position += int(sizes.sum())
        merged = [np.concatenate([rest, new]) for rest, new in zip(self.rest, columns, strict=True)]
        whole = len(merged[0]) // self.context * self.context
        self._write([values[:whole] for values in merged])
        self.rest = [values[whole:].copy() for values in merged]

    def close(self) -> None:
        """Pad the last row."""
        missing = -len(self.rest[0]) % self.context
        fills = (PAD, -1, -1)
        self._write(
            [np.append(values, np.full(missing, fill, np.int32))
             for values, fill in zip(self.rest, fills, strict=True)]
        )  # fmt: skip

    def _write(self, columns: Sequence[Int32]) -> None:
        schema = sequences(self.context)
        if len(columns[0]):
            arrays = [
                pa.FixedSizeListArray.from_arrays(pa.array(values), type=field.type)
                for values, field in zip(columns, schema, strict=True)
            ]
            self.work.table(self.split).write(pa.table(arrays, schema=schema))

    def _spans(
        self, doc_ids: pa.ChunkedArray, sizes: Int64, char_start: Int32, char_end: Int32
    ) -> None:
        """One span for each row that a document touches."""
        ends = np.cumsum(sizes)
        begins = ends - sizes  # in this batch; the stream's own positions are self.position more
        first_row = (begins + self.position) // self.context
        rows = (ends - 1 + self.position) // self.context - first_row + 1
        document = np.repeat(np.arange(len(sizes)), rows)
        nth = np.arange(len(document)) - np.repeat(np.cumsum(rows) - rows, rows)
        row = first_row[document] + nth
        row_begin = row * self.context - self.position
        start = np.maximum(begins[document], row_begin)
        end = np.minimum(ends[document], row_begin + self.context)
        self.work.table("spans").write(
            {
                "split": [self.split] * len(row),
                "sequence": row,
                "start": start - row_begin,
                "end": end - row_begin,
                "doc_id": doc_ids.take(pa.array(document)),
                "char_start": char_start[start],
                "char_end": char_end[end - 1],
            }
        )


def _values(column: pa.ChunkedArray) -> Int32:
    return column.combine_chunks().flatten().to_numpy()


def in_order(parts: Sequence[Part], split: str, buckets: int) -> Iterator[pa.Table]:
    """The encoded documents of a split in the order of the shuffle, bucket by bucket."""
    for bucket in range(buckets):
        name = f"{split}-{bucket}"
        batches = [batch for part in parts for batch in part.batches(name)]
        if batches:
            table = pa.Table.from_batches(batches, ENCODED)
            yield table.sort_by([("key", "ascending"), ("doc_id", "ascending")])


def packed_counts(documents: pa.Table, lengths: Int32) -> list[list[Any]]:
    """Rows and bytes by source, the bytes measured from the tokens that were packed."""
    ids = _values(documents["ids"])
    sizes = pc.list_value_length(documents["ids"]).to_numpy().astype(np.int64)
    spelled = np.add.reduceat(lengths[ids].astype(np.int64), np.cumsum(sizes) - sizes)
    table = pa.table({"source": documents["source"], "bytes": spelled})
    sums = table.group_by("source").aggregate([("bytes", "count"), ("bytes", "sum")])
    return [[r["source"], "document", r["bytes_count"], r["bytes_sum"], 0]
            for r in sums.to_pylist()]  # fmt: skip


@stage(
    # The packed rows are as long as the config says; each writer names its schema.
    tables={
        **dict.fromkeys(PACKED, sequences(PackConfig().context)),
        "spans": SPANS,
        "ledger": LEDGER,
        "accounts": accounts.ACCOUNTS,
    },
    libraries=["tokenizers", "numpy"],
    determinism="exact",
)
def pack(documents: Table, tokenizer: Artifact, config: PackConfig, work: Work) -> None:
    path = tokenizer.path("tokenizer.json")
    buckets = 1 + documents.entry["size"] // BUCKET_BYTES
    parts = work.map(encode_shard, documents.shards(), config, str(path), buckets)
    work.merge(parts, "ledger")
    lengths = token_lengths(load_tokenizer(path))
    kept: list[list[Any]] = []
    for split in PACKED:
        stream = Stream(split, config.context, work)
        for encoded in in_order(parts, split, buckets):
            stream.append(encoded)
            kept += packed_counts(encoded, lengths)
            work.progress(stream.position, 0, f"{split} tokens")
        stream.close()
    ledger = work.table("ledger")
    ledger.close()
    books = accounts.balance(documents.counts, kept, ledger.counts.to_json())
    work.table("accounts").write(pa.Table.from_pylist(books, schema=accounts.ACCOUNTS))
