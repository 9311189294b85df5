"""Index the training text of a corpus byte by byte, to find where any text occurs in it.

The index is a suffix array over the texts of the documents on which models are trained. It is built
when it is first used, in the work folder of the store, and found again by the digests of the
documents. So a purge, which changes these digests and removes work areas, also removes the index.

    <work>/text_index-<key>/<shard>.text         texts, TEXT_SEPARATOR after each
    <work>/text_index-<key>/<shard>.suffixes     positions in the text, in the order of the suffixes
    <work>/text_index-<key>/<shard>.samples      first bytes of every SAMPLE_STEP-th suffix
    <work>/text_index-<key>/<shard>.documents    the documents and where their texts begin
    <work>/text_index-<key>/files.json           sizes, digests and stamps; written last

The files are mapped into memory. A search of the suffixes jumps from page to page of two large
files, so its first steps use the samples, which few pages hold. While a shard is built, memory is 5
bytes for each byte of its text (9 beyond 2 GB), and the columns of its documents except for the
text.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hallmark.tasks.contract import (
    HallmarkError,
    Store,
    Table,
    get_artifact_store,
    hash_file,
    read_regular_file,
    sha256_hex,
    stat_to_file_stamp,
    to_canonical_json,
)

#: Maximum size of the text of a shard, except for one that consists of a single longer document.
MAX_SHARD_BYTES = 1_000_000_000

#: Follows the text of each document. UTF-8 never contains it, so no match crosses a boundary.
TEXT_SEPARATOR = b"\xff"

#: Distance between suffixes whose first SAMPLE_BYTES are stored next to each other. The positions
#: of this number of suffixes fill one page of memory.
SAMPLE_STEP, SAMPLE_BYTES = 1024, 16

#: Version of the layout of the files; raised when the layout changes.
INDEX_VERSION = 1

#: Columns of the documents that the index keeps, with ``text_start``.
DOCUMENT_COLUMNS = ("doc_id", "source", "toxicity", "metadata")

#: Errors of a store that cannot be written.
READ_ONLY_ERRORS = (errno.EROFS, errno.EACCES, errno.EPERM)

FILE_LIST_NAME, SHARD_FILE_SUFFIXES = "files.json", (".text", ".suffixes", ".samples", ".documents")


@dataclass(frozen=True)
class TextOccurrence:
    """A place in a training document where a text occurs.

    Attributes:
        document: The values of the document in DOCUMENT_COLUMNS.
        char_start: Index of the first character of the occurrence in the document.
        text_before: The text of the document directly before the occurrence.
        text_after: The text of the document directly after the occurrence.
    """

    document: dict[str, Any]
    char_start: int
    text_before: str
    text_after: str


@dataclass(frozen=True)
class SuffixRange:
    """The suffixes of a shard that begin with a certain text: ``low`` to ``high``, exclusive."""

    low: int
    high: int

    def __len__(self) -> int:
        return self.high - self.low


@dataclass(frozen=True)
class TextShard:
    """A part of the training text with its suffix array.

    Attributes:
        text: The texts in UTF-8, TEXT_SEPARATOR after each.
        suffixes: Position of each suffix in the text, in the order of the suffixes, (n,).
        samples: The first SAMPLE_BYTES of every SAMPLE_STEP-th suffix.
        documents: The documents, one per row; see DOCUMENT_COLUMNS.
        text_starts: Position of the text of each document.
    """

    text: mmap.mmap
    suffixes: memoryview
    samples: mmap.mmap
    documents: pa.Table
    text_starts: NDArray[np.int64]

    @classmethod
    def open(cls, folder: Path, name: str) -> TextShard:
        text, suffixes, samples, documents = (
            _map_file(folder / f"{name}{suffix}") for suffix in SHARD_FILE_SUFFIXES
        )
        for file_map in (text, suffixes):
            file_map.madvise(mmap.MADV_RANDOM)  # one page of each step is read, not its neighbours
        document_table = pa.ipc.open_file(pa.py_buffer(documents)).read_all()
        return cls(
            text,
            memoryview(suffixes).cast("i" if len(suffixes) == 4 * len(text) else "q"),
            samples,
            document_table,
            document_table["text_start"].combine_chunks().to_numpy(),
        )

    def find_suffixes(self, pattern: bytes, within: SuffixRange | None = None) -> SuffixRange:
        """Find the suffixes that begin with a pattern.

        Args:
            pattern: The pattern.
            within: A range that contains all of them; None to search all suffixes.
        """
        text, length = self.text, len(pattern)

        def read_prefix(position: int) -> bytes:
            return text[position : position + length]

        if within is None:
            within = self._narrow_with_samples(pattern[:SAMPLE_BYTES])
        low = bisect_left(self.suffixes, pattern, within.low, within.high, key=read_prefix)
        high = bisect_right(self.suffixes, pattern, low, within.high, key=read_prefix)
        return SuffixRange(low, high)

    def _narrow_with_samples(self, prefix: bytes) -> SuffixRange:
        """Return a range that contains all suffixes with a prefix, or the place where one would be.

        ``prefix`` has at most SAMPLE_BYTES bytes.
        """
        samples, length = self.samples, len(prefix)

        def read_sample(number: int) -> bytes:
            return samples[SAMPLE_BYTES * number : SAMPLE_BYTES * number + length]

        numbers = range(len(samples) // SAMPLE_BYTES)
        low = bisect_left(numbers, prefix, key=read_sample)
        high = bisect_right(numbers, prefix, low, key=read_sample)
        return SuffixRange(
            SAMPLE_STEP * max(low - 1, 0), min(SAMPLE_STEP * high, len(self.suffixes))
        )

    def measure_longest_match(self, query: bytes, start: int) -> int:
        """Measure the longest text that begins at ``start`` in the query and occurs here."""
        prefix_bytes, matching = SAMPLE_BYTES, SuffixRange(0, len(self.suffixes))
        while True:
            prefix = query[start : start + prefix_bytes]
            narrowed = self.find_suffixes(prefix, matching if prefix_bytes > SAMPLE_BYTES else None)
            if not narrowed:
                # The neighbours of the place where the prefix would be share most with it.
                neighbours = (narrowed.low - 1, narrowed.low)
                break
            if len(prefix) < prefix_bytes:
                return len(prefix)
            if len(narrowed) == 1:
                neighbours = (narrowed.low, narrowed.low)
                break
            matching, prefix_bytes = narrowed, 2 * prefix_bytes
        return max(
            (
                self._count_common_bytes(self.suffixes[number], query, start)
                for number in {*neighbours}
                if matching.low <= number < matching.high
            ),
            default=0,
        )

    def _count_common_bytes(self, position: int, query: bytes, start: int) -> int:
        """Count the bytes that the text from ``position`` shares with the query from ``start``."""
        limit = min(len(self.text) - position, len(query) - start)
        common, step, is_growing = 0, 64, True
        while step:
            end = common + step
            is_equal = end <= limit and (
                self.text[position + common : position + end] == query[start + common : start + end]
            )
            common, is_growing = (end if is_equal else common), is_growing and is_equal
            step = 2 * step if is_growing else step // 2
        return common

    def iter_first_occurrences(
        self, pattern: bytes, context_characters: int
    ) -> Iterator[TextOccurrence]:
        """Yield the first occurrence of a pattern in each document, in their order."""
        matching = self.find_suffixes(pattern)
        positions = np.sort(np.asarray(self.suffixes[matching.low : matching.high]))
        while len(positions):
            row = int(np.searchsorted(self.text_starts, positions[0], "right")) - 1
            is_last = row + 1 == len(self.text_starts)
            next_start = len(self.text) if is_last else int(self.text_starts[row + 1])
            yield self._read_occurrence(
                row, int(positions[0]), len(pattern), next_start - 1, context_characters
            )
            positions = positions[np.searchsorted(positions, next_start) :]

    def _read_occurrence(
        self, row: int, start: int, length: int, text_end: int, context_characters: int
    ) -> TextOccurrence:
        text_start = int(self.text_starts[row])
        preceding = np.frombuffer(self.text, np.uint8, start - text_start, text_start)
        char_start = int(np.count_nonzero((preceding & 0xC0) != 0x80))
        # A character has at most four bytes; the one that a cut may have split is dropped.
        before = self.text[max(text_start, start - 4 * context_characters) : start]
        after = self.text[start + length : min(text_end, start + length + 4 * context_characters)]
        document = self.documents.slice(row, 1).select(DOCUMENT_COLUMNS).to_pylist()[0]
        return TextOccurrence(
            document,
            char_start,
            before.decode(errors="ignore")[-context_characters:],
            after.decode(errors="ignore")[:context_characters],
        )


@dataclass(frozen=True)
class TextIndex:
    """The training text of a corpus, in shards."""

    shards: list[TextShard]

    @property
    def document_count(self) -> int:
        return sum(len(shard.text_starts) for shard in self.shards)

    @property
    def text_bytes(self) -> int:
        """Size of the texts, without separators."""
        return sum(len(shard.text) for shard in self.shards) - self.document_count

    def count_occurrences(self, pattern: bytes) -> int:
        """Count the positions of the training text at which a pattern begins."""
        return sum(len(shard.find_suffixes(pattern)) for shard in self.shards)

    def measure_longest_match(self, query: bytes, start: int) -> int:
        """Measure the longest text that begins at ``start`` in the query and occurs anywhere."""
        return max((shard.measure_longest_match(query, start) for shard in self.shards), default=0)

    def iter_first_occurrences(
        self, pattern: bytes, context_characters: int
    ) -> Iterator[TextOccurrence]:
        """Yield the first occurrence of a pattern in each document, in the order of the corpus.

        Args:
            pattern: UTF-8, at least one character.
            context_characters: Maximum number of characters of the document to read before and
                after the occurrence.
        """
        for shard in self.shards:
            yield from shard.iter_first_occurrences(pattern, context_characters)


def _map_file(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def open_text_index(
    documents: Table,
    announce_build: Callable[[int], None] = lambda document_count: None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> TextIndex:
    """Open the index of the training text of a corpus; build it first if there is none.

    The index of each artifact is separate, so that a corpus that extends another one shares its
    index. One process at a time builds an index; others wait for it. An index that is incomplete or
    damaged is built again. A complete index can also be opened in a store that cannot be written.

    Args:
        documents: The documents. Those of other splits than ``train`` and those without text, such
            as purged ones, are not indexed.
        announce_build: Called with the number of documents before an index is built.
        max_shard_bytes: Maximum size of the text of a shard.

    Raises:
        HallmarkError: If an index must be built, but the store cannot be written or the documents
            are damaged.
    """
    shards: list[TextShard] = []
    for artifact in documents.artifacts:
        table, store = artifact[documents.name], get_artifact_store(artifact)
        assert store is not None
        part_digests = [part.entry["sha256"] for part in table.parts]
        key = sha256_hex(to_canonical_json([INDEX_VERSION, max_shard_bytes, part_digests]))
        try:
            shards += _open_shards_of_store(store, key, table, announce_build, max_shard_bytes)
        except OSError as error:
            if error.errno not in READ_ONLY_ERRORS:
                raise
            raise HallmarkError(
                f"the training text of {artifact.name} has no complete index, and the store "
                f"{store.uri} is not writable ({error.strerror}); make the store writable for one "
                "run, or copy it to a writable location"
            ) from error
    return TextIndex(shards)


def _open_shards_of_store(
    store: Store,
    key: str,
    documents: Table,
    announce_build: Callable[[int], None],
    max_shard_bytes: int,
) -> list[TextShard]:
    """Open the index of an artifact's documents, with a lease only if it is not known as complete.

    Raises:
        OSError: If the index is not complete and cannot be written.
    """
    # The lock excludes a purge, which would not find the text in an index that is being built.
    with store.shared_lock():
        folder = store.work_folder / f"text_index-{key[:16]}"
        if _is_complete(folder, trusts_stamps_only=True):
            return _open_shards(folder)
        try:
            with store.lease_work_area("text_index", key) as folder:
                return open_or_build_shards(folder, documents, announce_build, max_shard_bytes)
        except OSError as error:
            if error.errno not in READ_ONLY_ERRORS or not _is_complete(folder):
                raise
            return _open_shards(folder)


def open_or_build_shards(
    folder: Path, documents: Table, announce_build: Callable[[int], None], max_shard_bytes: int
) -> list[TextShard]:
    """Open the shards of an index in a leased folder; build them first if they are not complete.

    The arguments are those of ``open_text_index``.
    """
    if not _is_complete(folder):
        documents.verify()
        announce_build(documents.row_count)
        _build_index(folder, documents, max_shard_bytes)
    return _open_shards(folder)


def _open_shards(folder: Path) -> list[TextShard]:
    return [TextShard.open(folder, path.stem) for path in sorted(folder.glob("*.suffixes"))]


def _is_complete(folder: Path, *, trusts_stamps_only: bool = False) -> bool:
    """Whether a folder has all files of an index, with their recorded content.

    A file whose stamp has changed since it was written, for example because the store was copied,
    is read completely and compared with its digest; then the new stamps are recorded, if that is
    possible.

    Args:
        folder: The folder.
        trusts_stamps_only: Whether a changed stamp means that the index is not complete.
    """
    try:
        recorded_files = json.loads(read_regular_file(folder / FILE_LIST_NAME))
        stamps, changed_names = _read_stamps(folder), []
        if stamps.keys() != recorded_files.keys():
            return False
        for name, (recorded_digest, recorded_stamp) in recorded_files.items():
            if recorded_stamp != stamps[name]:
                changed_names.append(name)
                if trusts_stamps_only or hash_file(folder / name) != recorded_digest:
                    return False
    except (OSError, ValueError, TypeError, AttributeError):
        return False
    if changed_names:
        with suppress(OSError):  # the store cannot be written
            _write_file_list(folder, {name: digest for name, (digest, _) in recorded_files.items()})
    return True


def _read_stamps(folder: Path) -> dict[str, list[int]]:
    """Read the stamps of the files of an index, except for the list of files and the lease."""
    return {
        path.name: [*stat_to_file_stamp(path.stat())]
        for path in folder.iterdir()
        if path.suffix in SHARD_FILE_SUFFIXES
    }


def _write_file_list(folder: Path, digests: dict[str, str]) -> None:
    stamps = _read_stamps(folder)
    content = json.dumps({name: [digests[name], stamps[name]] for name in digests})
    with (folder / f"{FILE_LIST_NAME}.new").open("wb") as file:
        file.write(content.encode())
        _close_synced(file)
    os.replace(folder / f"{FILE_LIST_NAME}.new", folder / FILE_LIST_NAME)


def _remove_files(folder: Path) -> None:
    """Remove the files of an index, complete or not."""
    for name in (FILE_LIST_NAME, f"{FILE_LIST_NAME}.new", *_read_stamps(folder)):
        (folder / name).unlink(missing_ok=True)


def _build_index(folder: Path, documents: Table, max_shard_bytes: int) -> None:
    """Write the files of an index into a leased folder; nothing remains if that fails."""
    _remove_files(folder)
    try:
        shard = ShardWriter(folder, 0)
        for batch in documents.iter_batches([*DOCUMENT_COLUMNS, "split", "text"]):
            is_indexed = pc.and_(
                pc.equal(batch["split"], "train"), pc.greater(pc.binary_length(batch["text"]), 0)
            )
            batch = batch.filter(is_indexed)
            sizes = pc.binary_length(batch["text"]).to_numpy() + len(TEXT_SEPARATOR)
            while len(batch):
                room = max_shard_bytes - shard.byte_count
                fitting_count = int(np.searchsorted(np.cumsum(sizes), room, "right"))
                if fitting_count == 0 and shard.byte_count:
                    shard.finish()
                    shard = ShardWriter(folder, shard.number + 1)
                    continue
                row_count = max(1, fitting_count)
                shard.write(batch.slice(0, row_count), sizes[:row_count])
                batch, sizes = batch.slice(row_count), sizes[row_count:]
        shard.finish()
        _write_file_list(folder, {name: hash_file(folder / name) for name in _read_stamps(folder)})
    except BaseException:
        _remove_files(folder)
        raise


class ShardWriter:
    """Write one shard of an index.

    Args:
        folder: Folder of the index.
        number: Number of the shard, from 0.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self.folder, self.number, self.byte_count = folder, number, 0
        self._documents: list[pa.RecordBatch] = []
        self._text_file = (folder / f"{number:05}.text").open("wb")

    def write(self, batch: pa.RecordBatch, sizes: NDArray[np.int64]) -> None:
        """Append documents.

        Args:
            batch: The documents.
            sizes: Size of each text with the separator, (n,).
        """
        text_starts = self.byte_count + np.cumsum(sizes) - sizes
        self._documents.append(
            batch.select(DOCUMENT_COLUMNS).append_column("text_start", pa.array(text_starts))
        )
        texts = batch["text"].cast(pa.large_binary()).to_pylist()
        self._text_file.write(TEXT_SEPARATOR.join([*texts, b""]))
        self.byte_count += int(sizes.sum())

    def finish(self) -> None:
        """Write the suffix array and the documents; remove the shard if it has no documents."""
        from pydivsufsort import divsufsort

        text_path = Path(self._text_file.name)
        _close_synced(self._text_file)
        if not self.byte_count:
            text_path.unlink()
            return
        text = np.memmap(text_path, np.uint8, "c")  # the function wants writable memory
        suffixes = divsufsort(text)
        with text_path.with_suffix(".suffixes").open("wb") as file:
            suffixes.tofile(file)
            _close_synced(file)
        # What follows the end does not matter: the separator before it decides each comparison.
        sample_positions = suffixes[::SAMPLE_STEP].astype(np.int64)[:, None]
        samples = text[np.minimum(sample_positions + np.arange(SAMPLE_BYTES), len(text) - 1)]
        with text_path.with_suffix(".samples").open("wb") as file:
            samples.tofile(file)
            _close_synced(file)
        documents = pa.Table.from_batches(self._documents).combine_chunks()
        with text_path.with_suffix(".documents").open("wb") as file:
            with pa.ipc.new_file(file, documents.schema) as writer:
                writer.write_table(documents)
            _close_synced(file)


def _close_synced(file: IO[bytes]) -> None:
    """Close a file after its content has reached the disk."""
    file.flush()
    os.fsync(file.fileno())
    file.close()
