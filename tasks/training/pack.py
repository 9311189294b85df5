"""Pack documents into sequences of one length, and keep which document stands where.

The documents of a split are laid end to end, each after ``<|endoftext|>``, and cut into rows of
``context`` tokens; the last row is padded. Their order is a shuffle by a hash of (seed, doc_id):
sources and planted copies mix, and the order depends on neither parts nor the input's order.

Memory: the encoded documents of a part in each worker, then of a stretch of rows; 60 bytes a
document where their places are computed. Encoded documents wait in files that are mapped at need.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from model.draws import combine
from model.tokens import END_OF_TEXT, PAD
from model.training.data import token_bytes
from tasks.contract import (
    ID,
    LEDGER,
    Artifact,
    Done,
    HallmarkError,
    Part,
    StageConfig,
    Table,
    Tables,
    Work,
    accounts,
    column,
    departures,
    identities,
    removals,
    stage,
    table,
)  # fmt: skip
from tasks.measures.faults import Noted, careful, noted, tell
from tasks.training.encoding import load_tokenizer, pieces, spelled

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

#: The splits that are packed; "holdout" stays out, as the non-members of the extraction audit.
PACKED = ("train", "validation")

#: Tokens that are laid out together: a part of the packed table.
STRETCH = 1 << 20


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

#: An encoded document on its way to its place; ``key`` is its place in the shuffle.
ENCODED = pa.schema(
    [
        ("key", pa.uint64()),
        ("doc_id", ID),
        ("source", pa.string()),
        ("size", pa.int64()),  # tokens
        ("ids", pa.large_list(pa.int32())),
        ("char_start", pa.large_list(pa.int32())),
        ("char_end", pa.large_list(pa.int32())),
    ]
)


def sequences(context: int) -> pa.Schema:
    """Schema of packed rows."""
    row = pa.list_(pa.int32(), context)  # a pickled one forgets another name of its elements
    return table(
        "Packed sequences; each row has as many positions as the context.",
        column("ids", row, "id", "ids of the tokens"),
        column("char_start", row, "figure", "first character of the token in its document; 0 at "
               "<|endoftext|>, -1 at padding", unit="characters"),
        column("char_end", row, "figure", "the character behind its last; 0 at "
               "<|endoftext|>, -1 at padding", unit="characters"),
    )  # fmt: skip


# Encoding ------------------------------------------------------------------------------------


def encode(
    texts: pa.LargeStringArray, tokenizer: Tokenizer, known: pa.LargeBinaryArray
) -> pa.Table:
    """Columns ids, char_start, char_end of each text, ``<|endoftext|>`` first; ``known``: what each
    token spells.

    The characters follow from the tokens' lengths in bytes; a token that holds a part of a
    character counts as that whole character.
    """
    cut = [pieces(text) for text in texts.to_pylist()]
    together = [piece for parts in cut for piece in parts]
    encodings = tokenizer.encode_batch_fast(together, add_special_tokens=False)
    lengths_of = np.array([len(e) for e in encodings], np.int64)
    ids = np.fromiter((i for e in encodings for i in e.ids), np.int32, count=int(lengths_of.sum()))
    owner = np.repeat(np.arange(len(cut)), [len(parts) for parts in cut])
    sizes = np.bincount(owner, lengths_of, minlength=len(cut)).astype(np.int64)
    first = np.concatenate([[0], np.cumsum(sizes)])  # of each document's tokens

    text_first, data = _utf8(texts)
    lengths = pc.binary_length(known).to_numpy()
    ends = np.cumsum(lengths[ids], dtype=np.int64)  # of each token, in the bytes of all texts
    found = spelled(known, ids, np.concatenate([[0], ends])[first])
    row = pc.index(pc.equal(found, texts.cast(pa.large_binary())), False).as_py()
    if row >= 0:
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


def encode_part(part: Part, config: PackConfig, tokenizer_path: str, out: Tables) -> Noted:
    """Encode the documents of a part: those of each split in the order of the shuffle. Returns
    those on which the tokenizer failed, which are in quarantine."""
    tokenizer = load_tokenizer(Path(tokenizer_path))
    known = token_bytes(tokenizer)
    failed: Noted = []

    def kernel(batch: pa.RecordBatch) -> pa.Table:
        return encode(batch["text"], tokenizer, known)

    encoded: dict[str, list[pa.Table]] = {split: [ENCODED.empty_table()] for split in PACKED}
    for batch in part.batches(["doc_id", "source", "text", "split"]):
        held_out = batch.filter(pc.equal(batch["split"], "holdout"))
        reason = "holdout: kept from training, for the extraction audit"
        out.table("ledger").write(removals(reason, held_out))
        for split, found in encoded.items():
            chosen = batch.filter(pc.equal(batch["split"], split))
            columns, faults = careful(kernel, chosen)
            if len(faults):
                bad = chosen.take(faults.rows)
                out.table("ledger").write(departures("quarantined", faults.reasons, bad))
                failed += noted(chosen, faults)
                good = np.setdiff1d(np.arange(len(chosen)), faults.rows)
                chosen, columns = chosen.take(pa.array(good)), columns.take(pa.array(good))
            keys = pa.array(shuffle_keys(chosen["doc_id"], config.seed), pa.uint64())
            size = pc.list_value_length(columns["ids"]).cast(pa.int64())
            rows = {"key": keys, "doc_id": chosen["doc_id"], "source": chosen["source"]}
            rows |= {"size": size, **{name: columns[name] for name in columns.column_names}}
            found.append(pa.table(rows, schema=ENCODED))
    for split, found in encoded.items():
        out.spill(split, ENCODED).write(pa.concat_tables(found).sort_by(SHUFFLED))
    return failed


SHUFFLED: Any = [("key", "ascending"), ("doc_id", "ascending")]


# Layout --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stretch:
    """Consecutive rows of a split, and the encoded documents that any of their tokens are of.

    ``begins`` is where the first of these documents begins, ``first`` and ``last`` where the rows
    begin and end, in the tokens of the whole split. The last row may be short of tokens.
    """

    split: str
    context: int
    first: int
    last: int
    begins: int
    slices: tuple[tuple[Done, int, int], ...]

    def __str__(self) -> str:
        return f"{self.split}, rows from {self.first // self.context}"

    def documents(self) -> pa.Table:
        """The encoded documents in the order of the shuffle."""
        found = [ENCODED.empty_table()]
        for done, start, stop in self.slices:
            found.append(done.mapped(self.split, ENCODED).slice(start, stop - start))
        return pa.concat_tables(found).sort_by(SHUFFLED)


def stretches(done: list[Done], split: str, context: int) -> list[Stretch]:
    """The rows of a split in stretches of about STRETCH tokens."""
    known = [part.mapped(split, ENCODED).select(["key", "doc_id", "size"]) for part in done]
    index = pa.concat_tables(known)
    owner = np.repeat(np.arange(len(done)), [len(table) for table in known])
    row = np.concatenate([np.arange(len(table)) for table in known])
    order = pc.sort_indices(index, sort_keys=SHUFFLED).to_numpy()
    owner, row = owner[order], row[order]
    ends = np.cumsum(index["size"].to_numpy()[order])
    total = int(ends[-1]) if len(ends) else 0
    step = max(1, STRETCH // context) * context
    found = []
    for first in range(0, total, step):
        last = min(first + step, total)
        # From the document that holds the first token to the one that holds the last.
        here = slice(int(np.searchsorted(ends, first, "right")),
                     int(np.searchsorted(ends, last, "left")) + 1)  # fmt: skip
        slices = []
        for part in np.unique(owner[here]):
            rows = row[here][owner[here] == part]  # in a part, too, they stand in this order
            slices.append((done[part], int(rows[0]), int(rows[-1]) + 1))
        begins = int(ends[here.start - 1]) if here.start else 0
        found.append(Stretch(split, context, first, last, begins, tuple(slices)))
    return found


def lay_out(stretch: Stretch, tokenizer_path: str, out: Tables) -> accounts.Counts:
    """Write the rows and spans of a stretch. Returns what was packed, measured from the tokens;
    documents are counted where they begin."""
    documents = stretch.documents()
    skip, stop = stretch.first - stretch.begins, stretch.last - stretch.begins
    ids, char_start, char_end = (
        documents[name].combine_chunks().flatten().to_numpy()
        for name in ("ids", "char_start", "char_end")
    )
    missing = -(stop - skip) % stretch.context
    schema = sequences(stretch.context)
    arrays = []
    for values, fill, field in zip((ids, char_start, char_end), (PAD, -1, -1), schema, strict=True):
        full = np.concatenate([values[skip:stop], np.full(missing, fill, np.int32)])
        arrays.append(pa.FixedSizeListArray.from_arrays(pa.array(full), type=field.type))
    out.table(stretch.split).write(pa.table(arrays, schema=schema))
    sizes = documents["size"].to_numpy()
    ends = np.cumsum(sizes)  # from where the first document begins
    out.table("spans").write(spans(stretch, documents["doc_id"], ends - sizes, ends,
                                   char_start, char_end))  # fmt: skip
    known = token_bytes(load_tokenizer(Path(tokenizer_path)))
    lengths = pc.binary_length(known).to_numpy()
    places = np.concatenate([[0], np.cumsum(lengths[ids], dtype=np.int64)])
    inside = np.minimum(ends, stop), np.maximum(ends - sizes, skip)
    texts = spelled(known, ids, places[np.concatenate([[0], ends])])
    rows = zip(documents["source"].to_pylist(), (ends - sizes >= skip).tolist(),
               (places[inside[0]] - places[inside[1]]).tolist(),
               identities(documents["doc_id"], texts), strict=True)  # fmt: skip
    return accounts.merged([[
        [source, "document", int(begins), size, 0, identity.hex() if begins else "0"]
        for source, begins, size, identity in rows
    ]])  # fmt: skip


def spans(
    stretch: Stretch,
    doc_ids: pa.ChunkedArray,
    begins: Int64,
    ends: Int64,
    char_start: Int32,
    char_end: Int32,
) -> dict[str, Any]:
    """Rows of SPANS: one for each row of the stretch that a document touches."""
    context, base = stretch.context, stretch.begins
    first_row = np.maximum(begins + base, stretch.first) // context
    rows = (np.minimum(ends + base, stretch.last) - 1) // context - first_row + 1
    document = np.repeat(np.arange(len(rows)), rows)
    nth = np.arange(len(document)) - np.repeat(np.cumsum(rows) - rows, rows)
    row = first_row[document] + nth
    row_begin = row * context - base
    start = np.maximum(begins[document], row_begin)
    end = np.minimum(ends[document], row_begin + context)
    return {
        "split": [stretch.split] * len(row),
        "sequence": row,
        "start": start - row_begin,
        "end": end - row_begin,
        "doc_id": doc_ids.take(pa.array(document)),
        "char_start": char_start[start],
        "char_end": char_end[end - 1],
    }


@stage(
    tables={
        **{split: sequences(-1) for split in PACKED},  # of any length: the config knows it
        "spans": SPANS,
        "ledger": LEDGER,
        "accounts": accounts.ACCOUNTS,
        "checksums": accounts.CHECKSUMS,
    },
    libraries=["tokenizers", "numpy"],
    determinism="exact",
    reads={"tokenizer": ("tokenizer.json",)},
)  # fmt: skip
def pack(documents: Table, tokenizer: Artifact, config: PackConfig, work: Work) -> None:
    path = str(tokenizer.path("tokenizer.json"))
    work.schemas |= {split: sequences(config.context) for split in PACKED}
    encoded = work.parts(encode_part, documents.parts, config, path)
    tell(work, [part.value for part in encoded], documents.rows, "the tokenizer")
    rows = [row for split in PACKED for row in stretches(encoded, split, config.context)]
    laid = work.map(lay_out, rows, path)
    kept = accounts.merged(done.value for done in laid)
    ledger = accounts.merged(done.parts["ledger"]["counts"] for done in encoded)
    books = accounts.balance(documents.counts, kept, ledger)
    sums = accounts.checksums(documents.counts, kept, ledger)
    work.table("accounts").write(pa.Table.from_pylist(books, schema=accounts.ACCOUNTS))
    work.table("checksums").write(pa.Table.from_pylist(sums, schema=accounts.CHECKSUMS))
