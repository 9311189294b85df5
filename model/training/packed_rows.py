"""Read packed tokens from disk, and determine which rows a training step reads.

Packed tables are parquet with one column ``token_ids``, fixed_size_list<int32>[context]. They are
copied once to a flat int32 file and mapped, so that memory does not grow with the corpus. The rows
of step K are a pure function of (seed, K): each epoch reads all rows in its own order, and the
order is computed, not stored (see ``keyed_randomness.map_indices_by_permutation``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hallmark.model.interchange.atomic_files import write_file_atomically
from hallmark.model.keyed_randomness import Int64, combine_into_key, map_indices_by_permutation

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def select_batch_rows(seed: int, step: int, batch_size: int, row_count: int) -> Int64:
    """Return the rows of the packed table that step ``step`` (from 1) trains on.

    Sequence g = (step - 1) * batch_size + i is row permute(g mod row_count) of epoch g div
    row_count. Every row is read once per epoch, a batch may span two epochs, and resuming needs
    only the step.

    Returns:
        (batch_size,) int64, in the order of the batch.

    Raises:
        ValueError: ``step`` or ``row_count`` is less than 1.
    """
    if step < 1 or row_count < 1:
        raise ValueError(f"step and row_count must be at least 1, not {step} and {row_count}.")
    positions = np.arange((step - 1) * batch_size, step * batch_size, dtype=np.int64)
    epochs, offsets = positions // row_count, positions % row_count
    rows = np.empty(batch_size, dtype=np.int64)
    for epoch in np.unique(epochs):
        in_epoch = epochs == epoch
        rows[in_epoch] = map_indices_by_permutation(
            offsets[in_epoch], row_count, combine_into_key(seed, int(epoch))
        )
    return rows


def count_reads_per_row(seed: int, step_count: int, batch_size: int, row_count: int) -> Int64:
    """Count how often the first ``step_count`` steps read each row, (row_count,)."""
    full_epochs, rows_in_epoch = divmod(step_count * batch_size, row_count)
    return full_epochs + (_compute_epoch_positions(seed, full_epochs, row_count) < rows_in_epoch)


def compute_read_steps(epoch_per_row: Int64, seed: int, batch_size: int) -> Int64:
    """Return the step that reads each row in epoch ``epoch_per_row`` (from 0), (rows,)."""
    row_count = len(epoch_per_row)
    steps = np.empty(row_count, np.int64)
    for epoch in np.unique(epoch_per_row):
        in_epoch = epoch_per_row == epoch
        positions = _compute_epoch_positions(seed, int(epoch), row_count)
        steps[in_epoch] = (epoch * row_count + positions[in_epoch]) // batch_size + 1
    return steps


def _compute_epoch_positions(seed: int, epoch: int, row_count: int) -> Int64:
    """Return the position of each row in the order of an epoch, (row_count,)."""
    positions = np.empty(row_count, np.int64)
    order = map_indices_by_permutation(
        np.arange(row_count), row_count, combine_into_key(seed, epoch)
    )
    positions[order] = np.arange(row_count)
    return positions


class PackedRows:
    """Rows of token ids, (n, context) int32, mapped from a file whose SHA-256 is ``sha256``."""

    def __init__(self, path: Path, context: int, sha256: str = "") -> None:
        byte_count = path.stat().st_size
        row_bytes = 4 * context
        if byte_count == 0 or byte_count % row_bytes:
            raise ValueError(
                f"{path} has {byte_count:,} bytes, but must consist of complete rows of {context} "
                f"tokens ({row_bytes:,} bytes per row)."
            )
        self.path, self.sha256 = path, sha256
        self.ids = np.memmap(
            path, dtype=np.int32, mode="r", shape=(byte_count // row_bytes, context)
        )

    def __len__(self) -> int:
        return int(self.ids.shape[0])

    def read_rows(self, row_indices: Int64) -> Int64:
        """Return a copy of the rows as int64, (len(row_indices), context)."""
        return self.ids[row_indices].astype(np.int64)

    def count_tokens(self, row_indices: Int64) -> int:
        """Count the tokens of these rows."""
        return len(row_indices) * int(self.ids.shape[1])

    def count_tokens_read(self, seed: int, step_count: int, batch_size: int) -> int:
        """Count the tokens that the first ``step_count`` steps read."""
        return step_count * batch_size * int(self.ids.shape[1])


def select_evenly_spaced_rows(row_count: int, count: int) -> Int64:
    """Return the indices of at most ``count`` of all rows, evenly spread over them."""
    return np.linspace(0, row_count - 1, min(row_count, count)).round().astype(np.int64)


def spell_tokens_as_bytes(tokenizer: Tokenizer) -> pa.LargeBinaryArray:
    """Return the bytes of each token of a byte-level vocabulary, (V,); special tokens have none.

    Each letter of a token represents a byte, as in GPT-2 (Radford et al. 2019): printable bytes
    represent themselves. Other ASCII letters, if a vocabulary has them, represent themselves, too.
    Any other letter becomes 0xFF, a byte that no text contains.
    """
    printable_bytes = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other_bytes = [byte for byte in range(256) if byte not in printable_bytes]
    byte_by_letter = {chr(byte): byte for byte in [*range(128), *printable_bytes]}
    byte_by_letter |= {chr(256 + n): byte for n, byte in enumerate(other_bytes)}
    special_tokens = tokenizer.get_added_tokens_decoder()
    # WordPiece marks tokens inside a word with a prefix that represents no byte.
    subword_prefix = getattr(tokenizer.model, "continuing_subword_prefix", None) or ""
    spellings = [b""] * tokenizer.get_vocab_size()
    for token, token_id in tokenizer.get_vocab().items():
        if token_id not in special_tokens:
            spellings[token_id] = bytes(
                byte_by_letter.get(letter, 0xFF) for letter in token.removeprefix(subword_prefix)
            )
    return pa.array(spellings, pa.large_binary())


def count_token_bytes(tokenizer: Tokenizer) -> NDArray[np.int32]:
    """Count the UTF-8 bytes of each token of a byte-level vocabulary, (V,); 0 for special ones."""
    lengths: NDArray[np.int64] = pc.binary_length(spell_tokens_as_bytes(tokenizer)).to_numpy()
    return lengths.astype(np.int32)


def open_packed_rows(
    source: str | Sequence[str], copy_path: Path, context: int, vocab_size: int
) -> PackedRows:
    """Map the packed table at ``source``, after copying it to ``copy_path`` if needed.

    The copy appears under ``copy_path`` only when it is complete. A note next to it records the
    source files, the model's sizes and the digest; the copy is made again if its sources or the
    copy itself have changed.

    Args:
        source: a parquet file, a folder of them (read in order of their names), or a list of
            either.
        copy_path: file for the flat copy.
        context: tokens in a row.
        vocab_size: tokens in the vocabulary.

    Raises:
        ValueError: A file is unreadable, or has rows of another length or ids outside the
            vocabulary; the message names it.
    """
    files = _list_parquet_files(source)
    origin = {
        "files": [_get_file_stamp(file) for file in files],
        "context": context,
        "vocab_size": vocab_size,
    }
    note_path = copy_path.with_suffix(".json")
    digest = _read_noted_digest(note_path, origin, copy_path)
    if digest is None:
        note_path.unlink(missing_ok=True)
        hasher = hashlib.sha256()
        with write_file_atomically(copy_path) as temporary:
            with temporary.open("wb") as copy_file:
                for ids in _iter_id_arrays(files, context, vocab_size):
                    id_bytes = ids.tobytes()
                    copy_file.write(id_bytes)
                    hasher.update(id_bytes)
            if temporary.stat().st_size == 0:
                raise ValueError(f"{source} has no rows, so there is nothing to train on.")
        digest = hasher.hexdigest()
        with write_file_atomically(note_path) as temporary:
            note = {"origin": origin, "copy": _get_file_stamp(copy_path), "digest": digest}
            temporary.write_text(json.dumps(note), encoding="utf-8")
    return PackedRows(copy_path, context, digest)


def _read_noted_digest(note_path: Path, origin: dict[str, Any], copy_path: Path) -> str | None:
    """Return the noted digest if the copy matches its note and ``origin``, else None."""
    try:
        note = json.loads(note_path.read_text(encoding="utf-8"))
        is_current = (note["origin"], note["copy"]) == (origin, _get_file_stamp(copy_path))
        return str(note["digest"]) if is_current else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def _get_file_stamp(file: Path) -> list[str | int]:
    """Return path, size and time of change: values that change with the file's content."""
    stat = file.stat()
    return [str(file), stat.st_size, stat.st_mtime_ns]


def _iter_id_arrays(
    paths: list[Path], context: int, vocab_size: int
) -> Iterator[NDArray[np.int32]]:
    for path in paths:
        try:
            file = pq.ParquetFile(path, page_checksum_verification=True)
            column_type = file.schema_arrow.field("token_ids").type
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{path} is not a readable parquet file: {error}.") from error
        except KeyError:
            raise ValueError(
                f"{path} has no 'token_ids' column, so it is not a packed table: specify the path "
                "of a packed table."
            ) from None
        has_context_width = (
            pa.types.is_fixed_size_list(column_type) and column_type.list_size == context
        )
        if not has_context_width or not pa.types.is_integer(column_type.value_type):
            raise ValueError(
                f"The token_ids column of {path} has the type {column_type}, but the model reads "
                f"rows of {context} integers: pack the corpus with the model's context length."
            )
        for batch in _iter_id_columns(file, path):
            if batch.null_count or batch.flatten().null_count:
                raise ValueError(
                    f"The token_ids column of {path} has missing values. Is the file a packed "
                    "table?"
                )
            ids = batch.flatten().to_numpy(zero_copy_only=False)
            if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
                raise ValueError(
                    f"{path} has token ids from {ids.min()} to {ids.max()}, but the model's "
                    f"vocabulary has {vocab_size} tokens. Was the file packed with another "
                    "tokenizer?"
                )
            yield ids.astype(np.int32, copy=False)


def _iter_id_columns(file: pq.ParquetFile, path: Path) -> Iterator[pa.Array]:
    try:
        for batch in file.iter_batches(columns=["token_ids"]):
            yield batch.column(0)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is damaged: {error}.") from error


def _list_parquet_files(source: str | Sequence[str]) -> list[Path]:
    paths: list[Path] = []
    for entry in [source] if isinstance(source, str) else source:
        path = Path(entry)
        if path.is_dir():
            paths.extend(sorted(path.glob("*.parquet")))
        elif path.exists():
            paths.append(path)
        else:
            raise ValueError(
                f"{path} does not exist: specify the path of the packed table's parquet file."
            )
    return paths
