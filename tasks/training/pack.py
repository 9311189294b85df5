"""Pack documents into sequences of equal length, and record the position of each document.

The documents of a split are concatenated, each after `<|endoftext|>`, and cut into rows of
`context` tokens; the last row is padded. Their order is a shuffle by a hash of (seed, doc_id),
which mixes sources and planted copies and depends neither on partitions nor on the order of the
input.

Memory: each worker holds the encoded documents of a partition, then of a range of rows; computing
positions takes 60 bytes per document. Encoded documents are spilled to memory-mapped files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from hallmark.model.keyed_randomness import combine_into_key
from hallmark.model.special_tokens import END_OF_TEXT_ID, PAD_ID
from hallmark.model.training.packed_rows import spell_tokens_as_bytes
from hallmark.tasks.contract import (
    ID_TYPE,
    LEDGER,
    Artifact,
    HallmarkError,
    ItemResult,
    StageConfig,
    StageContext,
    Table,
    TablePart,
    TableWriters,
    accounts,
    build_document_ledger_columns,
    build_removal_ledger_columns,
    column,
    hash_documents,
    stage,
    table_schema,
)
from hallmark.tasks.measures.failed_documents import (
    FailureList,
    list_failures_by_doc_id,
    report_failures,
    run_with_failing_texts_emptied,
)
from hallmark.tasks.training.encoding import join_token_bytes, load_tokenizer, split_long_text

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

#: The packed splits; "holdout" provides the non-members of the extraction audit.
PACKED_SPLITS = ("train", "validation")

#: Approximate number of tokens in a partition of the packed table.
TOKENS_PER_RANGE = 1 << 20


class PackConfig(StageConfig):
    """Settings of the sequences that documents are packed into."""

    context: int = Field(256, ge=8, le=1 << 20, description="number of tokens per sequence")
    seed: int = Field(0, ge=0, lt=1 << 63, description="random seed for the order of the documents")


SPANS = table_schema(
    "Positions of the documents in the packed sequences.",
    column(
        "split",
        pa.string(),
        "label",
        "name of the table that contains the sequence: train or validation",
    ),
    column(
        "sequence", pa.int64(), "figure", "index of the sequence's row in the table, starting at 0"
    ),
    column(
        "row_start",
        pa.int32(),
        "figure",
        "token position where the document begins in the sequence",
        unit="tokens",
    ),
    column(
        "row_end",
        pa.int32(),
        "figure",
        "token position where the document ends in the sequence (exclusive)",
        unit="tokens",
    ),
    column("doc_id", ID_TYPE, "id", "the document"),
    column(
        "char_start",
        pa.int32(),
        "figure",
        "position in the document where the packed span begins",
        unit="characters",
    ),
    column(
        "char_end",
        pa.int32(),
        "figure",
        "position in the document where the packed span ends (exclusive)",
        unit="characters",
    ),
)

#: A spilled encoded document; documents are sorted by `key`.
ENCODED_DOCUMENTS = pa.schema(
    [
        ("key", pa.uint64()),
        ("doc_id", ID_TYPE),
        ("source", pa.string()),
        ("size", pa.int64()),  # Number of tokens.
        ("token_ids", pa.large_list(pa.int32())),
        ("char_start", pa.large_list(pa.int32())),
        ("char_end", pa.large_list(pa.int32())),
    ]
)


def build_sequences_schema(context_length: int) -> pa.Schema:
    """Return the schema of packed rows."""
    # The default name of list elements is kept, because pickling loses any other name.
    row_type = pa.list_(pa.int32(), context_length)
    return table_schema(
        "Packed sequences, one per row; each row contains exactly as many tokens as the context "
        "length.",
        column("token_ids", row_type, "id", "token ids"),
        column(
            "char_start",
            row_type,
            "figure",
            "position in the document of the first character of each token; 0 for <|endoftext|>, "
            "-1 for padding",
            unit="characters",
        ),
        column(
            "char_end",
            row_type,
            "figure",
            "position in the document where each token ends (exclusive); 0 for <|endoftext|>, -1 "
            "for padding",
            unit="characters",
        ),
    )


# Encoding ------------------------------------------------------------------------------------


def encode_texts_with_char_positions(
    texts: pa.LargeStringArray, tokenizer: Tokenizer, bytes_by_token: pa.LargeBinaryArray
) -> pa.Table:
    """Encode texts, each with `<|endoftext|>` first.

    Character positions follow from the byte lengths of tokens; a token with part of a character
    covers the whole character.

    Args:
        texts: (n,) texts.
        tokenizer: The tokenizer.
        bytes_by_token: The bytes that each token spells.

    Returns:
        Columns token_ids, char_start and char_end, lists with an element per token.

    Raises:
        HallmarkError: The tokens do not spell the text.
    """
    pieces_by_text = [split_long_text(text) for text in texts.to_pylist()]
    all_pieces = [piece for text_pieces in pieces_by_text for piece in text_pieces]
    encodings = tokenizer.encode_batch_fast(all_pieces, add_special_tokens=False)
    piece_token_counts = np.array([len(encoding) for encoding in encodings], np.int64)
    token_ids = np.fromiter(
        (token_id for encoding in encodings for token_id in encoding.ids),
        np.int32,
        count=int(piece_token_counts.sum()),
    )
    text_indices = np.repeat(
        np.arange(len(pieces_by_text)), [len(text_pieces) for text_pieces in pieces_by_text]
    )
    token_counts = np.bincount(
        text_indices, piece_token_counts, minlength=len(pieces_by_text)
    ).astype(np.int64)
    token_offsets = np.concatenate([[0], np.cumsum(token_counts)])

    text_byte_offsets, utf8_data = _get_utf8_buffers(texts)
    token_byte_lengths = pc.binary_length(bytes_by_token).to_numpy()
    # The end of each token in the concatenated bytes of all texts.
    byte_ends = np.cumsum(token_byte_lengths[token_ids], dtype=np.int64)
    decoded_texts = join_token_bytes(
        bytes_by_token, token_ids, np.concatenate([[0], byte_ends])[token_offsets]
    )
    first_mismatch = pc.index(pc.equal(decoded_texts, texts.cast(pa.large_binary())), False).as_py()
    if first_mismatch >= 0:
        raise HallmarkError(
            "the tokenizer does not preserve the text: decoding the tokens of document "
            f"{first_mismatch} in a batch does not reproduce the document; the pack stage needs a "
            "byte-level tokenizer without normalisation"
        )
    byte_starts = byte_ends - token_byte_lengths[token_ids]
    is_first_byte = (utf8_data & 0xC0) != 0x80
    character_counts = np.concatenate([[0], np.cumsum(is_first_byte, dtype=np.int64)])
    text_char_offsets = np.repeat(character_counts[text_byte_offsets[:-1]], token_counts)
    # The character that contains the first byte of the token.
    char_start = character_counts[byte_starts + 1] - 1 - text_char_offsets
    char_end = character_counts[byte_ends] - text_char_offsets

    # Each document has one token more, <|endoftext|>.
    list_offsets = token_offsets + np.arange(len(token_offsets))
    columns = {}
    for column_name, values in (
        ("token_ids", token_ids),
        ("char_start", char_start),
        ("char_end", char_end),
    ):
        begin_value = END_OF_TEXT_ID if column_name == "token_ids" else 0
        full_values = np.insert(values.astype(np.int32), token_offsets[:-1], begin_value)
        columns[column_name] = pa.LargeListArray.from_arrays(
            pa.array(list_offsets), pa.array(full_values)
        )
    return pa.table(columns)


class Utf8Buffers(NamedTuple):
    """Hold the UTF-8 bytes of n texts, concatenated.

    Attributes:
        byte_offsets: (n + 1,) start of each text, and the end of the last.
        utf8_bytes: The bytes.
    """

    byte_offsets: Int64
    utf8_bytes: NDArray[np.uint8]


def _get_utf8_buffers(texts: pa.LargeStringArray) -> Utf8Buffers:
    """Return the bytes of a column of texts without copying."""
    _, offsets, data = texts.buffers()
    byte_offsets = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    start, stop = int(byte_offsets[0]), int(byte_offsets[-1])
    buffer_bytes = np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)
    return Utf8Buffers(byte_offsets - start, buffer_bytes[start:stop])


def compute_shuffle_keys(doc_ids: pa.Array, seed: int) -> NDArray[np.uint64]:
    """Compute the sort key of each document, a hash of (seed, doc_id), (n,)."""
    if not len(doc_ids):
        return np.empty(0, np.uint64)
    id_halves = np.frombuffer(b"".join(doc_ids.to_pylist()), dtype="<u8").reshape(-1, 2)
    return combine_into_key(
        seed, id_halves[:, 0].astype(np.uint64), id_halves[:, 1].astype(np.uint64)
    )


def encode_partition(
    partition: TablePart, config: PackConfig, tokenizer_path: str, out: TableWriters
) -> FailureList:
    """Encode the documents of a partition and spill each split in the order of the shuffle.

    Returns:
        The documents on which the tokenizer failed; they are quarantined.
    """
    tokenizer = load_tokenizer(Path(tokenizer_path))
    bytes_by_token = spell_tokens_as_bytes(tokenizer)
    failures: FailureList = []

    def encode_batch(batch: pa.RecordBatch) -> pa.Table:
        return encode_texts_with_char_positions(batch["text"], tokenizer, bytes_by_token)

    tables_by_split: dict[str, list[pa.Table]] = {
        split: [ENCODED_DOCUMENTS.empty_table()] for split in PACKED_SPLITS
    }
    for batch in partition.iter_batches(["doc_id", "source", "text", "split"]):
        holdout_batch = batch.filter(pc.equal(batch["split"], "holdout"))
        reason = "holdout: excluded from training, for the extraction audit"
        out.get_table_writer("ledger").write(build_removal_ledger_columns(reason, holdout_batch))
        for split, split_tables in tables_by_split.items():
            split_batch = batch.filter(pc.equal(batch["split"], split))
            encoded_columns, failed_rows = run_with_failing_texts_emptied(encode_batch, split_batch)
            if len(failed_rows):
                failed_documents = split_batch.take(failed_rows.rows)
                out.get_table_writer("ledger").write(
                    build_document_ledger_columns(
                        "quarantined", failed_rows.reasons, failed_documents
                    )
                )
                failures += list_failures_by_doc_id(split_batch, failed_rows)
                encoded_rows = np.setdiff1d(np.arange(len(split_batch)), failed_rows.rows)
                split_batch = split_batch.take(pa.array(encoded_rows))
                encoded_columns = encoded_columns.take(pa.array(encoded_rows))
            sort_keys = pa.array(
                compute_shuffle_keys(split_batch["doc_id"], config.seed), pa.uint64()
            )
            token_counts = pc.list_value_length(encoded_columns["token_ids"]).cast(pa.int64())
            document_columns = {
                "key": sort_keys,
                "doc_id": split_batch["doc_id"],
                "source": split_batch["source"],
                "size": token_counts,
                **{name: encoded_columns[name] for name in encoded_columns.column_names},
            }
            split_tables.append(pa.table(document_columns, schema=ENCODED_DOCUMENTS))
    for split, split_tables in tables_by_split.items():
        out.get_spill_writer(split, ENCODED_DOCUMENTS).write(
            pa.concat_tables(split_tables).sort_by(SHUFFLE_ORDER)
        )
    return failures


SHUFFLE_ORDER: Any = [("key", "ascending"), ("doc_id", "ascending")]


# Layout --------------------------------------------------------------------------------------


class DocumentSlice(NamedTuple):
    """Refer to consecutive documents that the encoding of a partition spilled.

    Attributes:
        result: The result with the spilled documents.
        start: The first of these documents.
        stop: The end, exclusive.
    """

    result: ItemResult
    start: int
    stop: int


@dataclass(frozen=True)
class RowRange:
    """Consecutive rows of a split, and the encoded documents whose tokens they contain.

    Attributes:
        split: The split.
        context_length: Tokens per row.
        token_start: Start of the rows, in tokens of the whole split.
        token_end: End of the rows; the last row may be incomplete.
        documents_start: Start of the first of these documents, in tokens of the whole split.
        document_slices: Where these documents are spilled.
    """

    split: str
    context_length: int
    token_start: int
    token_end: int
    documents_start: int
    document_slices: tuple[DocumentSlice, ...]

    def __str__(self) -> str:
        return f"{self.split}, rows from {self.token_start // self.context_length}"

    def read_documents(self) -> pa.Table:
        """Read the encoded documents in the order of the shuffle."""
        document_tables = [ENCODED_DOCUMENTS.empty_table()]
        for result, start, stop in self.document_slices:
            document_tables.append(
                result.open_spilled_table(self.split, ENCODED_DOCUMENTS).slice(start, stop - start)
            )
        return pa.concat_tables(document_tables).sort_by(SHUFFLE_ORDER)


def plan_row_ranges(results: list[ItemResult], split: str, context_length: int) -> list[RowRange]:
    """Divide the rows of a split into ranges of about TOKENS_PER_RANGE tokens."""
    index_tables = [
        result_index.open_spilled_table(split, ENCODED_DOCUMENTS).select(["key", "doc_id", "size"])
        for result_index in results
    ]
    document_index = pa.concat_tables(index_tables)
    result_indices = np.repeat(np.arange(len(results)), [len(table) for table in index_tables])
    row_indices = np.concatenate([np.arange(len(table)) for table in index_tables])
    sort_indices = pc.sort_indices(document_index, sort_keys=SHUFFLE_ORDER).to_numpy()
    result_indices, row_indices = result_indices[sort_indices], row_indices[sort_indices]
    token_ends = np.cumsum(document_index["size"].to_numpy()[sort_indices])
    total_tokens = int(token_ends[-1]) if len(token_ends) else 0
    tokens_per_range = max(1, TOKENS_PER_RANGE // context_length) * context_length
    row_ranges = []
    for token_start in range(0, total_tokens, tokens_per_range):
        token_end = min(token_start + tokens_per_range, total_tokens)
        # From the document that holds the first token to the one that holds the last.
        overlapping = slice(
            int(np.searchsorted(token_ends, token_start, "right")),
            int(np.searchsorted(token_ends, token_end, "left")) + 1,
        )
        document_slices = []
        for result_index in np.unique(result_indices[overlapping]):
            # Each partition is in the order of the shuffle, so its documents are consecutive.
            is_in_result = result_indices[overlapping] == result_index
            part_rows = row_indices[overlapping][is_in_result]
            document_slices.append(
                DocumentSlice(results[result_index], int(part_rows[0]), int(part_rows[-1]) + 1)
            )
        documents_start = int(token_ends[overlapping.start - 1]) if overlapping.start else 0
        row_ranges.append(
            RowRange(
                split,
                context_length,
                token_start,
                token_end,
                documents_start,
                tuple(document_slices),
            )
        )
    return row_ranges


def write_row_range(
    row_range: RowRange, tokenizer_path: str, out: TableWriters
) -> accounts.SourceCounts:
    """Write the rows and spans of a range.

    Returns:
        Counts of packed documents, computed from the tokens; each is counted where it begins.
    """
    documents = row_range.read_documents()
    range_start = row_range.token_start - row_range.documents_start
    range_end = row_range.token_end - row_range.documents_start
    token_ids, char_start, char_end = (
        documents[name].combine_chunks().flatten().to_numpy()
        for name in ("token_ids", "char_start", "char_end")
    )
    padding_count = -(range_end - range_start) % row_range.context_length
    schema = build_sequences_schema(row_range.context_length)
    arrays = []
    for values, padding_value, field in zip(
        (token_ids, char_start, char_end), (PAD_ID, -1, -1), schema, strict=True
    ):
        padded_values = np.concatenate(
            [values[range_start:range_end], np.full(padding_count, padding_value, np.int32)]
        )
        arrays.append(pa.FixedSizeListArray.from_arrays(pa.array(padded_values), type=field.type))
    out.get_table_writer(row_range.split).write(pa.table(arrays, schema=schema))
    token_counts = documents["size"].to_numpy()
    document_ends = np.cumsum(token_counts)  # Relative to the start of the first document.
    document_starts = document_ends - token_counts
    out.get_table_writer("spans").write(
        build_packed_span_columns(
            row_range,
            documents["doc_id"],
            document_starts,
            document_ends,
            char_start,
            char_end,
        )
    )
    bytes_by_token = spell_tokens_as_bytes(load_tokenizer(Path(tokenizer_path)))
    token_byte_lengths = pc.binary_length(bytes_by_token).to_numpy()
    byte_offsets = np.concatenate([[0], np.cumsum(token_byte_lengths[token_ids], dtype=np.int64)])
    clipped_ends = np.minimum(document_ends, range_end)
    clipped_starts = np.maximum(document_starts, range_start)
    texts = join_token_bytes(
        bytes_by_token, token_ids, byte_offsets[np.concatenate([[0], document_ends])]
    )
    document_rows = zip(
        documents["source"].to_pylist(),
        (document_starts >= range_start).tolist(),
        (byte_offsets[clipped_ends] - byte_offsets[clipped_starts]).tolist(),
        hash_documents(documents["doc_id"], texts),
        strict=True,
    )
    counts = [
        [
            source,
            "document",
            int(begins_in_range),
            byte_count,
            0,
            document_hash.hex() if begins_in_range else "0",
        ]
        for source, begins_in_range, byte_count, document_hash in document_rows
    ]
    return accounts.merge_counts([counts])


def build_packed_span_columns(
    row_range: RowRange,
    doc_ids: pa.ChunkedArray,
    document_starts: Int64,
    document_ends: Int64,
    char_starts: Int32,
    char_ends: Int32,
) -> dict[str, pa.Array | np.ndarray | list[str]]:
    """Build the columns of SPANS, a value per document and row of the range that has its tokens.

    Args:
        row_range: The range.
        doc_ids: (n,) documents.
        document_starts: (n,) first token of each document, from the start of the first one.
        document_ends: (n,) end of each document, exclusive.
        char_starts: First character of each token of the documents.
        char_ends: End character of each token.
    """
    context_length, documents_start = row_range.context_length, row_range.documents_start
    clipped_starts = np.maximum(document_starts + documents_start, row_range.token_start)
    clipped_ends = np.minimum(document_ends + documents_start, row_range.token_end)
    first_rows = clipped_starts // context_length
    rows_per_document = (clipped_ends - 1) // context_length - first_rows + 1
    document_indices = np.repeat(np.arange(len(rows_per_document)), rows_per_document)
    row_in_document = np.arange(len(document_indices)) - np.repeat(
        np.cumsum(rows_per_document) - rows_per_document, rows_per_document
    )
    row_indices = first_rows[document_indices] + row_in_document
    row_starts = row_indices * context_length - documents_start
    span_starts = np.maximum(document_starts[document_indices], row_starts)
    span_ends = np.minimum(document_ends[document_indices], row_starts + context_length)
    return {
        "split": [row_range.split] * len(row_indices),
        "sequence": row_indices,
        "row_start": span_starts - row_starts,
        "row_end": span_ends - row_starts,
        "doc_id": doc_ids.take(pa.array(document_indices)),
        "char_start": char_starts[span_starts],
        "char_end": char_ends[span_ends - 1],
    }


@stage(
    name="pack",
    tables={
        # Lists of any length, until the config is known.
        **{split: build_sequences_schema(-1) for split in PACKED_SPLITS},
        "spans": SPANS,
        "ledger": LEDGER,
        "accounts": accounts.ACCOUNTS,
        "checksums": accounts.CHECKSUMS,
    },
    libraries=["tokenizers", "numpy"],
    determinism="exact",
    reads={"tokenizer": ("tokenizer.json",)},
)
def pack(documents: Table, tokenizer: Artifact, config: PackConfig, context: StageContext) -> None:
    """Pack the documents of the train and validation splits into sequences."""
    tokenizer_path = str(tokenizer.fetch_file("tokenizer.json"))
    context.schemas |= {split: build_sequences_schema(config.context) for split in PACKED_SPLITS}
    encoding_results = context.map_partitions(
        encode_partition, documents.parts, config, tokenizer_path
    )
    report_failures(
        context, [result.value for result in encoding_results], documents.row_count, "the tokenizer"
    )
    row_ranges = [
        row_range
        for split in PACKED_SPLITS
        for row_range in plan_row_ranges(encoding_results, split, config.context)
    ]
    writing_results = context.map_items(write_row_range, row_ranges, tokenizer_path)
    kept_counts = accounts.merge_counts(result.value for result in writing_results)
    ledger_counts = accounts.merge_counts(
        result.parts["ledger"]["counts"] for result in encoding_results
    )
    account_rows = accounts.compute_account_rows(
        documents.source_counts, kept_counts, ledger_counts
    )
    checksum_rows = accounts.compute_checksum_rows(
        documents.source_counts, kept_counts, ledger_counts
    )
    context.get_table_writer("accounts").write(
        pa.Table.from_pylist(account_rows, schema=accounts.ACCOUNTS)
    )
    context.get_table_writer("checksums").write(
        pa.Table.from_pylist(checksum_rows, schema=accounts.CHECKSUMS)
    )
