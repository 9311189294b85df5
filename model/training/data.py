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

from model.draws import Int64, combine, permute
from model.interchange.files import atomic_file

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def batch_sequences(seed: int, step: int, batch: int, n: int) -> Int64:
    """The rows of the packed table, of n rows, that step ``step`` (from 1) trains on.

    Sequence g = (step - 1) * batch + i is row permute(g mod n) of epoch g div n, so that every
    row is seen once per epoch, a batch may straddle two epochs, and nothing but the step is needed
    to go on.

    Returns:
        (batch,) int64, in the order of the batch.
    """
    if step < 1 or n < 1:
        raise ValueError(f"Steps count from 1 and need at least one row (step {step}, {n} rows).")
    positions = np.arange((step - 1) * batch, step * batch, dtype=np.int64)
    epochs, offsets = positions // n, positions % n
    rows = np.empty(batch, dtype=np.int64)
    for epoch in np.unique(epochs):
        part = epochs == epoch
        rows[part] = permute(offsets[part], n, combine(seed, int(epoch)))
    return rows


def times_read(seed: int, step: int, batch: int, rows: int) -> Int64:
    """How often each of the packed rows was read in the steps 1 ... ``step``, of ``batch`` rows
    each, (rows,)."""
    epoch, rest = divmod(step * batch, rows)
    return epoch + (_places(seed, epoch, rows) < rest)


def step_of(reading: Int64, seed: int, batch: int) -> Int64:
    """The step of each row's reading number ``reading`` (from 0), (rows,): the epoch's number."""
    rows = len(reading)
    step = np.empty(rows, np.int64)
    for epoch in np.unique(reading):
        here = reading == epoch
        step[here] = (epoch * rows + _places(seed, int(epoch), rows)[here]) // batch + 1
    return step


def _places(seed: int, epoch: int, rows: int) -> Int64:
    """At which place of an epoch each row is read, (rows,)."""
    place = np.empty(rows, np.int64)
    place[permute(np.arange(rows), rows, combine(seed, epoch))] = np.arange(rows)
    return place


class PackedRows:
    """Rows of token ids, (n, context) int32, mapped from a file; ``digest``: its SHA-256."""

    def __init__(self, path: Path, context: int, digest: str = "") -> None:
        size = path.stat().st_size
        row = 4 * context
        if size == 0 or size % row:
            raise ValueError(f"{path} is {size:,} bytes, not whole rows of {context} tokens.")
        self.path, self.digest = path, digest
        self.ids = np.memmap(path, dtype=np.int32, mode="r", shape=(size // row, context))

    def __len__(self) -> int:
        return int(self.ids.shape[0])

    def rows(self, index: Int64) -> Int64:
        """The rows (len(index), context) as int64, copied."""
        return self.ids[index].astype(np.int64)

    def tokens(self, index: Int64) -> int:
        """How many tokens these rows have."""
        return len(index) * int(self.ids.shape[1])

    def read(self, seed: int, steps: int, batch: int) -> int:
        """How many tokens the first ``steps`` steps read."""
        return steps * batch * int(self.ids.shape[1])

    def spread(self, count: int) -> Int64:
        """The numbers of at most ``count`` rows, evenly spread over all."""
        n = len(self)
        return np.linspace(0, n - 1, min(n, count)).round().astype(np.int64)


def token_bytes(tokenizer: Tokenizer) -> pa.LargeBinaryArray:
    """What each token of a byte-level vocabulary spells, (V,); special ones nothing. Letters stand
    for bytes as in GPT-2 (Radford et al. 2019): printable ones for themselves. So does what else is
    ASCII, where a vocabulary has it; for other letters stands a byte that no text has."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in [*range(128), *printable]}
    letters |= {chr(256 + n): byte for n, byte in enumerate(others)}
    special = tokenizer.get_added_tokens_decoder()
    # WordPiece marks tokens inside a word, and the mark stands for no byte.
    mark = getattr(tokenizer.model, "continuing_subword_prefix", None) or ""
    found = [b""] * tokenizer.get_vocab_size()
    for token, number in tokenizer.get_vocab().items():
        if number not in special:
            found[number] = bytes(letters.get(c, 0xFF) for c in token.removeprefix(mark))
    return pa.array(found, pa.large_binary())


def token_lengths(tokenizer: Tokenizer) -> NDArray[np.int32]:
    """UTF-8 bytes that each token of a byte-level vocabulary stands for; (V,), special ones 0."""
    lengths: NDArray[np.int64] = pc.binary_length(token_bytes(tokenizer)).to_numpy()
    return lengths.astype(np.int32)


def materialise(
    source: str | Sequence[str], path: Path, context: int, vocab_size: int
) -> PackedRows:
    """Map the packed table at ``source``, copying it to ``path`` first where that is not done yet.

    ``source`` is a parquet file, a folder of them (read in the order of their names), or a list of
    either. The copy appears under ``path`` only when it is whole, and a note beside says of which
    files it was made, for which model, and what its digest is: a copy of others, or one that was
    changed since, is made anew. Ids outside the
    vocabulary and rows of another length raise a ValueError that names the file.
    """
    files = _files(source)
    origin = {
        "files": [_seen(file) for file in files],
        "context": context,
        "vocab_size": vocab_size,
    }
    note = path.with_suffix(".json")
    digest = _digest_noted(note, origin, path)
    if digest is None:
        note.unlink(missing_ok=True)
        sums = hashlib.sha256()
        with atomic_file(path) as temporary:
            with temporary.open("wb") as out:
                for ids in _batches(files, context, vocab_size):
                    data = ids.tobytes()
                    out.write(data)
                    sums.update(data)
            if temporary.stat().st_size == 0:
                raise ValueError(f"{source} holds no rows: there is nothing to learn from.")
        digest = sums.hexdigest()
        with atomic_file(note) as temporary:
            known = {"origin": origin, "copy": _seen(path), "digest": digest}
            temporary.write_text(json.dumps(known), encoding="utf-8")
    return PackedRows(path, context, digest)


def _digest_noted(note: Path, origin: dict[str, Any], path: Path) -> str | None:
    """The digest of a copy that is of this origin and as it was made; else None."""
    try:
        known = json.loads(note.read_text(encoding="utf-8"))
        same = (known["origin"], known["copy"]) == (origin, _seen(path))
        return str(known["digest"]) if same else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def _seen(file: Path) -> list[Any]:
    stat = file.stat()
    return [str(file), stat.st_size, stat.st_mtime_ns]


def _batches(files: list[Path], context: int, vocab_size: int) -> Iterator[NDArray[np.int32]]:
    for path in files:
        try:
            file = pq.ParquetFile(path, page_checksum_verification=True)
            kind = file.schema_arrow.field("ids").type
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{path} is not a readable parquet file: {error}.") from error
        except KeyError:
            raise ValueError(f"{path} has no column 'ids': is it a packed table?") from None
        fits = pa.types.is_fixed_size_list(kind) and kind.list_size == context
        if not fits or not pa.types.is_integer(kind.value_type):
            raise ValueError(
                f"{path} holds ids of type {kind}, the model's context needs rows of {context} "
                "integers: set both to the same length."
            )
        for batch in _columns(file, path):
            if batch.null_count or batch.flatten().null_count:
                raise ValueError(f"{path} holds empty rows or ids: is it a packed table?")
            ids = batch.flatten().to_numpy(zero_copy_only=False)
            if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
                raise ValueError(
                    f"{path} holds token ids from {ids.min()} to {ids.max()}, the model's "
                    f"vocabulary has {vocab_size}: was it packed with another tokenizer?"
                )
            yield ids.astype(np.int32, copy=False)


def _columns(file: pq.ParquetFile, path: Path) -> Iterator[pa.Array]:
    try:
        for batch in file.iter_batches(columns=["ids"]):
            yield batch.column(0)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is damaged: {error}.") from error


def _files(source: str | Sequence[str]) -> list[Path]:
    files: list[Path] = []
    for item in [source] if isinstance(source, str) else source:
        path = Path(item)
        if path.is_dir():
            files.extend(sorted(path.glob("*.parquet")))
        elif path.exists():
            files.append(path)
        else:
            raise ValueError(f"{path} does not exist: give the packed table's parquet file.")
    return files
