"""Packed tokens on disk, and which of them a training step sees.

The packed tables are parquet with one column ``ids``, fixed_size_list<int32>[context]. They are
copied once to a flat int32 file and mapped, so that memory does not grow with the corpus.

Which rows step K sees is a pure function of (seed, K): the rows are walked epoch by epoch, each
epoch in its own order, and the order is computed, not stored. See ``draws.permute``.
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

from model.interchange.atomic_files import write_file_atomically
from model.keyed_randomness import Int64, combine_into_key, permute_indices

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def select_batch_rows(seed: int, step: int, batch_size: int, row_count: int) -> Int64:
    """The rows of the packed table, of n rows, that step ``step`` (from 1) trains on.

    Sequence g = (step - 1) * batch + i is row permute(g mod n) of epoch g div n, so that every
    row is seen once per epoch, a batch may straddle two epochs, and nothing but the step is needed
    to go on.

    Returns:
        (batch,) int64, in the order of the batch.
    """
    if step < 1 or row_count < 1:
        raise ValueError(
            f"Steps count from 1 and need at least one row (step {step}, {row_count} rows)."
        )
    positions = np.arange((step - 1) * batch_size, step * batch_size, dtype=np.int64)
    epochs, offsets = positions // row_count, positions % row_count
    rows = np.empty(batch_size, dtype=np.int64)
    for epoch in np.unique(epochs):
        in_epoch = epochs == epoch
        rows[in_epoch] = permute_indices(
            offsets[in_epoch], row_count, combine_into_key(seed, int(epoch))
        )
    return rows


def count_reads_per_row(seed: int, step: int, batch_size: int, row_count: int) -> Int64:
    """How often each of the packed rows was read in the steps 1 ... ``step``, of ``batch`` rows
    each, (rows,)."""
    full_epochs, rows_in_epoch = divmod(step * batch_size, row_count)
    return full_epochs + (_compute_epoch_positions(seed, full_epochs, row_count) < rows_in_epoch)


def compute_read_steps(read_numbers: Int64, seed: int, batch_size: int) -> Int64:
    """The step of each row's reading number ``reading`` (from 0), (rows,): the epoch's number."""
    row_count = len(read_numbers)
    steps = np.empty(row_count, np.int64)
    for epoch in np.unique(read_numbers):
        in_epoch = read_numbers == epoch
        steps[in_epoch] = (
            epoch * row_count + _compute_epoch_positions(seed, int(epoch), row_count)[in_epoch]
        ) // batch_size + 1
    return steps


def _compute_epoch_positions(seed: int, epoch: int, row_count: int) -> Int64:
    """At which place of an epoch each row is read, (rows,)."""
    positions = np.empty(row_count, np.int64)
    positions[permute_indices(np.arange(row_count), row_count, combine_into_key(seed, epoch))] = (
        np.arange(row_count)
    )
    return positions


class PackedRows:
    """Rows of token ids, (n, context) int32, mapped from a file; ``digest``: its SHA-256."""

    def __init__(self, path: Path, context: int, sha256: str = "") -> None:
        byte_count = path.stat().st_size
        row_bytes = 4 * context
        if byte_count == 0 or byte_count % row_bytes:
            raise ValueError(f"{path} is {byte_count:,} bytes, not whole rows of {context} tokens.")
        self.path, self.sha256 = path, sha256
        self.ids = np.memmap(
            path, dtype=np.int32, mode="r", shape=(byte_count // row_bytes, context)
        )

    def __len__(self) -> int:
        return int(self.ids.shape[0])

    def read_rows(self, row_indices: Int64) -> Int64:
        """The rows (len(index), context) as int64, copied."""
        return self.ids[row_indices].astype(np.int64)

    def count_tokens(self, row_indices: Int64) -> int:
        """How many tokens these rows have."""
        return len(row_indices) * int(self.ids.shape[1])

    def count_tokens_read(self, seed: int, step_count: int, batch_size: int) -> int:
        """How many tokens the first ``steps`` steps read."""
        return step_count * batch_size * int(self.ids.shape[1])

    def select_evenly_spaced(self, count: int) -> Int64:
        """The numbers of at most ``count`` rows, evenly spread over all."""
        n = len(self)
        return np.linspace(0, n - 1, min(n, count)).round().astype(np.int64)


def spell_tokens_as_bytes(tokenizer: Tokenizer) -> pa.LargeBinaryArray:
    """What each token of a byte-level vocabulary spells, (V,); special ones nothing. Letters stand
    for bytes as in GPT-2 (Radford et al. 2019): printable ones for themselves. So does what else is
    ASCII, where a vocabulary has it; for other letters stands a byte that no text has."""
    printable_bytes = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other_bytes = [byte for byte in range(256) if byte not in printable_bytes]
    byte_by_letter = {chr(byte): byte for byte in [*range(128), *printable_bytes]}
    byte_by_letter |= {chr(256 + n): byte for n, byte in enumerate(other_bytes)}
    special_tokens = tokenizer.get_added_tokens_decoder()
    # WordPiece marks tokens inside a word, and the mark stands for no byte.
    subword_prefix = getattr(tokenizer.model, "continuing_subword_prefix", None) or ""
    spellings = [b""] * tokenizer.get_vocab_size()
    for token, token_id in tokenizer.get_vocab().items():
        if token_id not in special_tokens:
            spellings[token_id] = bytes(
                byte_by_letter.get(letter, 0xFF) for letter in token.removeprefix(subword_prefix)
            )
    return pa.array(spellings, pa.large_binary())


def count_token_bytes(tokenizer: Tokenizer) -> NDArray[np.int32]:
    """UTF-8 bytes that each token of a byte-level vocabulary stands for; (V,), special ones 0."""
    lengths: NDArray[np.int64] = pc.binary_length(spell_tokens_as_bytes(tokenizer)).to_numpy()
    return lengths.astype(np.int32)


def open_packed_rows(
    source: str | Sequence[str], copy_path: Path, context: int, vocab_size: int
) -> PackedRows:
    """Map the packed table at ``source``, copying it to ``path`` first where that is not done yet.

    ``source`` is a parquet file, a folder of them (read in the order of their names), or a list of
    either. The copy appears under ``path`` only when it is whole, and a note beside says of which
    files it was made, for which model, and what its digest is: a copy of others, or one that was
    changed since, is made anew. Ids outside the
    vocabulary and rows of another length raise a ValueError that names the file.
    """
    files = _list_parquet_files(source)
    origin = {
        "files": [_describe_file(file) for file in files],
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
                raise ValueError(f"{source} holds no rows: there is nothing to learn from.")
        digest = hasher.hexdigest()
        with write_file_atomically(note_path) as temporary:
            note = {"origin": origin, "copy": _describe_file(copy_path), "digest": digest}
            temporary.write_text(json.dumps(note), encoding="utf-8")
    return PackedRows(copy_path, context, digest)


def _read_noted_digest(note_path: Path, origin: dict[str, Any], copy_path: Path) -> str | None:
    """The digest of a copy that is of this origin and as it was made; else None."""
    try:
        note = json.loads(note_path.read_text(encoding="utf-8"))
        is_current = (note["origin"], note["copy"]) == (origin, _describe_file(copy_path))
        return str(note["digest"]) if is_current else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def _describe_file(file: Path) -> list[Any]:
    stat = file.stat()
    return [str(file), stat.st_size, stat.st_mtime_ns]


def _iter_id_arrays(
    paths: list[Path], context: int, vocab_size: int
) -> Iterator[NDArray[np.int32]]:
    for path in paths:
        try:
            file = pq.ParquetFile(path, page_checksum_verification=True)
            column_type = file.schema_arrow.field("ids").type
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{path} is not a readable parquet file: {error}.") from error
        except KeyError:
            raise ValueError(f"{path} has no column 'ids': is it a packed table?") from None
        has_context_width = (
            pa.types.is_fixed_size_list(column_type) and column_type.list_size == context
        )
        if not has_context_width or not pa.types.is_integer(column_type.value_type):
            raise ValueError(
                f"{path} holds ids of type {column_type}, the model's context needs rows of "
                f"{context} "
                "integers: set both to the same length."
            )
        for batch in _iter_id_columns(file, path):
            if batch.null_count or batch.flatten().null_count:
                raise ValueError(f"{path} holds empty rows or ids: is it a packed table?")
            ids = batch.flatten().to_numpy(zero_copy_only=False)
            if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
                raise ValueError(
                    f"{path} holds token ids from {ids.min()} to {ids.max()}, the model's "
                    f"vocabulary has {vocab_size}: was it packed with another tokenizer?"
                )
            yield ids.astype(np.int32, copy=False)


def _iter_id_columns(file: pq.ParquetFile, path: Path) -> Iterator[pa.Array]:
    try:
        for batch in file.iter_batches(columns=["ids"]):
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
            raise ValueError(f"{path} does not exist: give the packed table's parquet file.")
    return paths
