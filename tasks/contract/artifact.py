"""Artifacts: what a stage left, its tables in parts and its files, as its manifest names them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tasks.contract.accounts import Counts, merged
from tasks.contract.columns import Column, from_json
from tasks.contract.errors import FileChangedError, HallmarkError
from tasks.contract.external_files import (
    TICK,
    FileStamp,
    FileState,
    file_digest,
    file_stamp,
    record_state,
)
from tasks.contract.fingerprint import canonical, sha256
from tasks.contract.tombstones import entries_of

if TYPE_CHECKING:
    import pandas as pd

    from tasks.contract.store import Store

Manifest = dict[str, Any]
Entry = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """Where the files of an artifact lie; it can be sent to another process."""

    name: str  # of the artifact, for messages
    store: Store | None  # None: the folder of somebody else, see ``external``
    folder: str  # key of the artifact in the store, or a local folder

    def fetch(self, entry: Entry) -> Path:
        """A local path of a file of the manifest, of the size that the manifest says."""
        if self.store is None:
            path = Path(self.folder) / entry["name"]
        else:
            path = self.store.fetch(f"{self.folder}/{entry['path']}", entry)
        self._check_size(path, path.stat().st_size if path.exists() else None, entry)
        return path

    def check_sizes(self, entries: Sequence[Entry]) -> None:
        """Raise HallmarkError unless each of these files is in the store with its recorded size.

        Reads no content. Of a remote store one listing is asked for, and copies that were fetched
        do not count.
        """
        if self.store is None or self.store.root is not None:
            for entry in entries:
                self.fetch(entry)
        elif entries:
            sizes = self.store.sizes(self.folder)
            for entry in entries:
                key = f"{self.folder}/{entry['path']}"
                self._check_size(f"{self.store.uri}/{key}", sizes.get(key), entry)

    def verify(self, entry: Entry) -> None:
        """Read a file where it is stored; raise HallmarkError unless it has size and SHA-256 of the
        manifest. Of a remote store the object is read, not a copy that was fetched."""
        if self.store is None or self.store.root is not None:
            path: Path | str = self.fetch(entry)
            digest: str | None = file_digest(Path(path))
        else:
            key = f"{self.folder}/{entry['path']}"
            path, digest = f"{self.store.uri}/{key}", self.store.digest(key)
            if digest is None:
                self._check_size(path, None, entry)
        if digest != entry["sha256"]:
            raise self.damaged(path, UNLIKE)

    def _check_size(self, path: Path | str, size: int | None, entry: Entry) -> None:
        if size != entry["size"]:
            found = "is missing" if size is None else f"has {size} bytes instead of {entry['size']}"
            raise self.damaged(path, found)

    def damaged(self, path: Path | str, how: str) -> HallmarkError:
        if self.store is None:  # a folder of the user's, which nobody should remove
            return FileChangedError(
                f"{path} {how}: it changed after its digest was taken; nothing was stored; run "
                f"again when nothing writes to {self.folder}"
            )
        return HallmarkError(
            f"artifact {self.name} is damaged: {path} {how}; remove the artifact's folder "
            f"and run again to rebuild it"
        )


@dataclass(frozen=True)
class Part:
    """One part of a table: a parquet file, the unit of work. Small enough to send anywhere.

    ``number`` and ``of`` count the parts of its piece of the table, see ``Table``."""

    place: Place
    table: str
    number: int
    of: int
    entry: Entry

    def __str__(self) -> str:
        return f"{self.table} of {self.place.name}, part {self.number + 1} of {self.of}"

    def __repr__(self) -> str:
        return f"Part({self})"

    @property
    def rows(self) -> int:
        return self.entry["rows"]

    @property
    def path(self) -> Path:
        return self.place.fetch(self.entry)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """One record batch a row group, which bounds the memory."""
        path = self.path
        with self._reading(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
            self._check_columns(columns, file.schema_arrow.names)
            for group in range(file.num_row_groups):
                with self._reading(path):
                    rows = file.read_row_group(group, columns=_listed(columns), use_threads=False)
                yield from rows.combine_chunks().to_batches()

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        path = self.path
        with self._reading(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
            self._check_columns(columns, file.schema_arrow.names)
            # Group by group: nested columns of over 2 GiB can be held in no other way.
            read = partial(file.read_row_groups, columns=_listed(columns), use_threads=False)
            rows = pa.concat_tables(map(read, [[n] for n in range(file.num_row_groups)] or [[]]))
        return rows if columns is None else rows.select(list(columns))

    def empty(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Its columns without a row: of the file only the footer is read."""
        path = self.path
        with self._reading(path):
            none = pq.read_schema(path).empty_table()
        self._check_columns(columns, none.schema.names)
        return none if columns is None else none.select(list(columns))

    def _check_columns(self, columns: Sequence[str] | None, there: Sequence[str]) -> None:
        """HallmarkError where it is of a stage whose table has not what is to be read."""
        lacking = [name for name in columns or () if name not in there]
        if lacking:
            raise HallmarkError(
                f"{self} has no column {lacking[0]!r}, for which it is read; its columns: "
                f"{', '.join(there)}; give the artifact of the stage that is asked for"
            )

    @contextmanager
    def _reading(self, path: Path) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            raise self.place.damaged(path, f"cannot be read ({_first_line(error)})") from error


def _listed(columns: Sequence[str] | None) -> list[str] | None:
    return None if columns is None else list(columns)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]


@dataclass(frozen=True)
class Table:
    """One table of an artifact, or of each of several, one behind the other (a grown corpus is a
    list of artifacts): an ordered list of parts.

    A table about documents is sorted by ``doc_id`` and cut by its leading bits into 2^n ranges, as
    all others behind the same ingest are: part k of each is about the same documents. Of several
    artifacts, and of what was made of several, each piece is sorted and cut by itself.
    """

    artifacts: tuple[Artifact, ...]  # one at least
    name: str

    @property
    def pieces(self) -> list[int]:
        """How many parts each piece has."""
        return [n for entry in self.entries for n in entry.get("pieces", [len(entry["parts"])])]

    @property
    def entries(self) -> list[Entry]:
        """Of the manifests: one for each artifact."""
        return [artifact.manifest["tables"][self.name] for artifact in self.artifacts]

    @property
    def digest(self) -> str:
        """Of its parts' digests and its columns' kinds; of several artifacts, of theirs."""
        found = [entry["sha256"] for entry in self.entries]
        return found[0] if len(found) == 1 else sha256(canonical(found))

    @property
    def rows(self) -> int:
        return sum(entry["rows"] for entry in self.entries)

    @property
    def parts(self) -> list[Part]:
        pairs = zip(self.artifacts, self.entries, strict=True)
        places = ((artifact.place, part) for artifact, entry in pairs for part in entry["parts"])
        return [Part(place, self.name, number, many, part) for many in self.pieces
                for number, (place, part) in zip(range(many), places, strict=False)]  # fmt: skip

    @property
    def columns(self) -> dict[str, Column]:
        """What each column is, as the stage that wrote it last says."""
        return from_json(self.entries[-1].get("columns", []))

    @property
    def counts(self) -> Counts:
        """Rows, bytes and checksums by source (and action), counted as the table was written."""
        return merged(part["counts"] for entry in self.entries for part in entry["parts"])

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(part["size"] for entry in self.entries for part in entry["parts"])

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        for part in self.parts:
            yield from part.batches(columns)

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The whole table in memory; for small tables and for analysis."""
        return pa.concat_tables(part.read(columns) for part in self.parts)

    def find(self, ids: Sequence[bytes], columns: Sequence[str] | None = None) -> pa.Table:
        """The rows about these documents: each is looked for in the one part of a piece that it can
        be in."""
        names = None if columns is None else list(dict.fromkeys(["doc_id", *columns]))
        parts = iter(self.parts)
        pieces = [[*islice(parts, many)] for many in self.pieces]
        rows = pa.concat_tables(rows for piece in pieces for rows in _found(piece, ids, names))
        return rows if columns is None else rows.select(list(columns))

    def dataset(self) -> ds.Dataset:
        """For scans with conditions; reads no more columns and rows than they need."""
        options = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
        paths = [str(part.path) for part in self.parts]
        kind = ds.ParquetFileFormat(default_fragment_scan_options=options)
        return ds.dataset(paths, format=kind)

    def where(self, condition: ds.Expression, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows for which a condition holds; no more is read than it takes to find them."""
        try:
            return self.dataset().to_table(_listed(columns), filter=condition)
        except (pa.ArrowException, OSError):
            for artifact in self.artifacts:  # a scan does not say which file it is in
                artifact.verify()
            raise

    def to_pandas(self) -> pd.DataFrame:
        """The table as a data frame, strings and numbers still held by Arrow."""
        import pandas as pd

        return self.read().to_pandas(types_mapper=pd.ArrowDtype)


def _found(
    parts: Sequence[Part], ids: Sequence[bytes], names: Sequence[str] | None
) -> Iterator[pa.Table]:
    """The rows of one piece about these documents."""
    wanted: dict[int, list[bytes]] = {}
    for doc_id in ids:
        wanted.setdefault(part_of(doc_id, len(parts)), []).append(doc_id)
    yield parts[min(wanted, default=0)].empty(names)
    for number, here in sorted(wanted.items()):
        values = pa.array(sorted(here), pa.binary(16))
        for batch in parts[number].batches(names):
            kept = batch.filter(pc.is_in(batch["doc_id"], value_set=values))
            yield pa.Table.from_batches([kept])


def part_of(doc_id: bytes, parts: int) -> int:
    """The number of the part that a document is in, of a table cut into 2^n parts."""
    return int.from_bytes(doc_id[:8], "big") * parts >> 64


@dataclass(frozen=True, repr=False)
class Artifact:
    """What a stage left: tables and files, named by a manifest, never changed."""

    manifest: Manifest
    store: Store | None  # None: the folder of somebody else, see ``external``
    folder: str  # key of the artifact in the store, or a local folder

    @property
    def stage(self) -> str:
        return self.manifest["stage"]

    @property
    def fingerprint(self) -> str:
        return self.manifest["fingerprint"]

    @property
    def content(self) -> str:
        """Digest of what the artifact holds: tables and files, telemetry left out."""
        return self.manifest["content"]

    @property
    def name(self) -> str:
        return f"{self.stage}/{self.fingerprint[:16]}"

    @property
    def place(self) -> Place:
        return Place(self.name, self.store, self.folder)

    def __getitem__(self, name: str) -> Table:
        if name not in self.manifest["tables"]:
            has = ", ".join(self.manifest["tables"]) or "none"
            raise HallmarkError(f"artifact {self.name} has no table {name!r}; its tables: {has}")
        return Table((self,), name)

    def __repr__(self) -> str:
        return f"Artifact({self.name})"

    @property
    def tables(self) -> dict[str, Table]:
        return {name: Table((self,), name) for name in self.manifest["tables"]}

    def only(self, names: Sequence[str]) -> Artifact:
        """The artifact with these tables and files alone ("documents", "*.json"), as far as it has
        them: what a stage declares that it reads. Its content digest is theirs."""
        tables = {name: e for name, e in self.manifest["tables"].items() if name in names}
        files = {
            name: e
            for name, e in self.manifest["files"].items()
            if any(fnmatchcase(name, pattern) for pattern in names)
        }
        narrowed = {"tables": tables, "files": files, "content": content_digest(tables, files)}
        return replace(self, manifest={**self.manifest, **narrowed})

    def telemetry(self, name: str = "telemetry") -> pa.Table:
        """A table of measurements of this machine: seconds, memory, throughput."""
        entries = self.manifest["telemetry"][name]["parts"]
        parts = [Part(self.place, name, n, len(entries), e) for n, e in enumerate(entries)]
        return pa.concat_tables(part.read() for part in parts)

    def path(self, name: str) -> Path:
        """A local path of one of the files ("tokenizer.json")."""
        entry = self.manifest["files"].get(name)
        if entry is not None:
            path = self.place.fetch(entry)
            # A part of a table has its own checksums, which its reader checks; a file has none.
            if known_digest(path) != entry["sha256"]:
                raise self.place.damaged(path, UNLIKE)
            return path
        has = ", ".join([*self.manifest["files"]][:10]) or "none"
        raise HallmarkError(f"artifact {self.name} has no file {name!r}; its files: {has}")

    def directory(self) -> Path:
        """A local folder with all the artifact's files in it (a checkpoint, say)."""
        paths = {name: self.path(name) for name in self.manifest["files"]}
        if not paths:
            raise HallmarkError(f"artifact {self.name} holds no files")
        name, first = next(iter(paths.items()))
        return first.parents[name.count("/")]

    @property
    def purged(self) -> dict[str, str]:
        """Ids of the documents whose text was taken out of it, in hexadecimal, and when."""
        return self.manifest.get("purged", {})

    def entries(self) -> Iterator[Entry]:
        """Every file of the artifact, parts of tables among them."""
        yield from entries_of(self.manifest)

    def verify(self) -> None:
        """Read every byte and compare it with the manifest; raise HallmarkError if it differs."""
        for entry in self.entries():
            self.place.verify(entry)


UNLIKE = "does not have the SHA-256 of its manifest"


#: The stamp and SHA-256 of each file that ``known_digest`` read, by path. It has no limit: whoever
#: lists a folder again would find that a limited memory dropped each file before it is asked for.
_KNOWN_DIGESTS: dict[str, tuple[FileStamp, str]] = {}


def known_digest(path: Path) -> str:
    """SHA-256 of a file, read once in a process for each time that it was changed. A file changed
    just now is read: it may change again within one tick of the clock that stamps it."""
    name = os.fspath(path)
    stamp = file_stamp(path.stat())
    hot = time.time_ns() - max(stamp[:2]) < TICK
    before, digest = _KNOWN_DIGESTS.get(name, (None, ""))
    if hot or before != stamp:
        digest = file_digest(path)
    if not hot:
        _KNOWN_DIGESTS[name] = stamp, digest
    record_state(path, FileState(digest, stamp, not hot))
    return digest


def describe(folder: Path, name: str) -> Entry:
    """Manifest entry of a file below ``folder``."""
    path = folder / name
    return {"name": name, "size": path.stat().st_size, "sha256": known_digest(path)}


def table_digest(entry: Entry) -> str:
    """Of the parts' digests, in their order, and of what decides how a column may be shown."""
    kinds = [[c["name"], c["kind"], c.get("judged_by", "")] for c in entry["columns"]]
    return sha256(canonical({"parts": [p["sha256"] for p in entry["parts"]], "columns": kinds}))


def content_digest(tables: dict[str, Any], files: dict[str, Any]) -> str:
    """Digest of an artifact's content: names and SHA-256 of its tables and files."""
    content = {kind: {n: e["sha256"] for n, e in group.items()} for kind, group in
               (("tables", tables), ("files", files))}  # fmt: skip
    return sha256(canonical(content))
