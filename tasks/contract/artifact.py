"""Read artifacts, the outputs of stages: tables, divided into parquet parts, and files.

An artifact is described by its manifest. ``store.py`` finds and commits artifacts; this module
reads their tables and files, and detects missing or damaged ones.
"""

from __future__ import annotations

import os
import re
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

from hallmark.tasks.contract.accounts import SourceCounts, merge_counts
from hallmark.tasks.contract.columns import Column, columns_by_name_from_json
from hallmark.tasks.contract.errors import (
    FileChangedError,
    HallmarkError,
    get_short_error_line,
)
from hallmark.tasks.contract.external_files import (
    FileStamp,
    FileState,
    hash_file,
    is_stamp_reliable,
    record_file_state,
    stat_to_file_stamp,
)
from hallmark.tasks.contract.fingerprint import sha256_hex, to_canonical_json
from hallmark.tasks.contract.manifests import (
    Manifest,
    compute_content_digest,
    make_manifest_error,
)
from hallmark.tasks.contract.object_store import ObjectStore
from hallmark.tasks.contract.tombstones import ManifestEntry, iter_file_entries
from hallmark.tasks.contract.wording import format_count

if TYPE_CHECKING:
    import pandas as pd

_CONTENT_DIGEST_PATTERN = re.compile("[0-9a-f]{64}")

#: "stage/fingerprint", with the first 16 digits of the fingerprint.
StageAndFingerprint = str


@dataclass(frozen=True)
class ArtifactLocation:
    """The location of an artifact's files; it can be sent to another process."""

    artifact_name: StageAndFingerprint  # for messages
    store: ObjectStore | None  # None: a folder outside the store, see ``folder_to_artifact``
    folder: str  # key of the artifact in the store, or a local folder

    def fetch_file(self, entry: ManifestEntry) -> Path:
        """Return a local path of a file, which is copied first if the store is remote.

        Raises:
            HallmarkError: The file is missing or does not have the size of its manifest entry.
        """
        if self.store is None:
            path = Path(self.folder, entry["name"])
        else:
            path = self.store.fetch_object(f"{self.folder}/{entry['path']}", entry["sha256"])
        self._check_file_size(path, path.stat().st_size if path.exists() else None, entry)
        return path

    def fetch_verified_file(self, entry: ManifestEntry) -> Path:
        """Return a local path of a file whose SHA-256 is that of its manifest entry.

        A file is read again in this process only if it has changed.

        Raises:
            HallmarkError: The file is missing or damaged.
        """
        path = self.fetch_file(entry)
        if hash_file_cached(path) != entry["sha256"]:
            raise self.make_damage_error(path, DIGEST_MISMATCH)
        return path

    def check_file_sizes(self, entries: Sequence[ManifestEntry]) -> None:
        """Raise HallmarkError unless all these files are in the store with their recorded sizes.

        This reads no content. A remote store is listed once; local copies do not count.
        """
        if self.store is None or self.store.root_folder is not None:
            for entry in entries:
                self.fetch_file(entry)
        elif entries:
            sizes = self.store.list_object_sizes(self.folder)
            for entry in entries:
                key = f"{self.folder}/{entry['path']}"
                self._check_file_size(f"{self.store.uri}/{key}", sizes.get(key), entry)

    def verify_file_digest(self, entry: ManifestEntry) -> None:
        """Raise HallmarkError unless a stored file has the size and SHA-256 of its manifest entry.

        From a remote store, the object itself is read, not a local copy.
        """
        if self.store is None or self.store.root_folder is not None:
            path: Path | str = self.fetch_file(entry)
            digest: str | None = hash_file(Path(path))
        else:
            key = f"{self.folder}/{entry['path']}"
            path, digest = f"{self.store.uri}/{key}", self.store.hash_object(key)
            if digest is None:
                self._check_file_size(path, None, entry)
        if digest != entry["sha256"]:
            raise self.make_damage_error(path, DIGEST_MISMATCH)

    def _check_file_size(self, path: Path | str, size: int | None, entry: ManifestEntry) -> None:
        if size != entry["size"]:
            problem = (
                "is missing"
                if size is None
                else f"has {format_count(size, 'byte')} instead of {entry['size']:,}"
            )
            raise self.make_damage_error(path, problem)

    def make_damage_error(self, path: Path | str, problem: str) -> HallmarkError:
        """Create the error about a missing, changed or damaged file.

        Args:
            path: The file.
            problem: Predicate of a sentence about the file, such as "is missing".
        """
        if self.store is None:  # a folder of the user, which the message must not tell to remove
            return FileChangedError(
                f"{path} {problem}: it changed after its digest was computed; nothing was "
                f"stored; run again when no other process is writing to {self.folder}"
            )
        return HallmarkError(
            f"artifact {self.artifact_name} is damaged: {path} {problem}; remove the artifact's "
            "folder and run again to rebuild it"
        )


@dataclass(frozen=True)
class TablePart:
    """One part of a table: a parquet file, and the unit of work.

    It is small enough to be sent to other processes.

    Attributes:
        location: Location of the artifact.
        table: Name of the table.
        index: Number of the part in its segment of the table, from 0; see ``Table``.
        part_count: Number of parts of the segment.
        entry: Manifest entry of the file.
    """

    location: ArtifactLocation
    table: str
    index: int
    part_count: int
    entry: ManifestEntry

    def __str__(self) -> str:
        return (
            f"{self.table} of {self.location.artifact_name}, part {self.index + 1} of "
            f"{self.part_count}"
        )

    def __repr__(self) -> str:
        return f"Part({self})"

    @property
    def row_count(self) -> int:
        row_count: int = self.entry["rows"]
        return row_count

    @property
    def path(self) -> Path:
        return self.location.fetch_file(self.entry)

    def iter_batches(
        self, columns: Sequence[str] | None = None, *, min_bytes: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Yield one record batch per row group, or per group of them, to limit memory.

        Args:
            columns: The columns to read; by default all.
            min_bytes: Size in memory that every batch but the last has at least. Batches of many
                short rows are slow for kernels that do some work for each batch, such as compiling
                regular expressions.
        """
        path = self.path
        with (
            self._translate_read_errors(path),
            pq.ParquetFile(path, page_checksum_verification=True) as file,
        ):
            self._check_columns_exist(columns, file.schema_arrow.names)
            row_groups: list[pa.Table] = []
            for group_index in range(file.num_row_groups):
                with self._translate_read_errors(path):
                    row_group = file.read_row_group(
                        group_index, columns=_to_optional_list(columns), use_threads=False
                    )
                row_groups.append(row_group)
                is_last = group_index == file.num_row_groups - 1
                if is_last or sum(group.nbytes for group in row_groups) >= min_bytes:
                    rows, row_groups = pa.concat_tables(row_groups), []
                    yield from rows.combine_chunks().to_batches()

    def iter_document_rows(
        self, doc_ids: pa.Array, columns: Sequence[str] | None = None
    ) -> Iterator[pa.Table]:
        """Yield the rows about these documents, one table per row group that has any.

        Other columns than ``doc_id`` are read only from these row groups.
        """
        path = self.path
        with (
            self._translate_read_errors(path),
            pq.ParquetFile(path, page_checksum_verification=True) as file,
        ):
            self._check_columns_exist(columns, file.schema_arrow.names)
            for group_index in range(file.num_row_groups):
                read_row_group = partial(file.read_row_group, group_index, use_threads=False)
                is_wanted = pc.is_in(read_row_group(["doc_id"])["doc_id"], value_set=doc_ids)
                if pc.any(is_wanted).as_py():
                    yield read_row_group(_to_optional_list(columns)).filter(is_wanted)

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Read the whole part, or some columns of it in the given order.

        Raises:
            HallmarkError: The file is damaged or has no such column.
        """
        path = self.path
        with (
            self._translate_read_errors(path),
            pq.ParquetFile(path, page_checksum_verification=True) as file,
        ):
            self._check_columns_exist(columns, file.schema_arrow.names)
            # In row groups, since a nested column of more than 2 GiB needs several chunks.
            read_row_groups = partial(
                file.read_row_groups, columns=_to_optional_list(columns), use_threads=False
            )
            table = pa.concat_tables(
                map(
                    read_row_groups,
                    [[group_index] for group_index in range(file.num_row_groups)] or [[]],
                )
            )
        return table if columns is None else table.select(list(columns))

    def read_empty_table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the columns without rows; this reads only the footer of the file."""
        path = self.path
        with self._translate_read_errors(path):
            empty_table = pq.read_schema(path).empty_table()
        self._check_columns_exist(columns, empty_table.schema.names)
        return empty_table if columns is None else empty_table.select(list(columns))

    def _check_columns_exist(
        self, columns: Sequence[str] | None, available_columns: Sequence[str]
    ) -> None:
        missing_columns = [name for name in columns or () if name not in available_columns]
        if missing_columns:
            raise HallmarkError(
                f"{self} has no column {missing_columns[0]!r}, which this stage reads; the table "
                f"has the columns {', '.join(available_columns)}; use an artifact from the "
                "expected stage"
            )

    @contextmanager
    def _translate_read_errors(self, path: Path) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            raise self.location.make_damage_error(
                path, f"cannot be read ({get_short_error_line(error)})"
            ) from error


def _to_optional_list(columns: Sequence[str] | None) -> list[str] | None:
    return None if columns is None else list(columns)


@dataclass(frozen=True)
class Table:
    """A table of one artifact, or the concatenation of a table of several (a grown corpus).

    A table is an ordered list of parts. A table about documents is sorted by ``doc_id`` and
    partitioned by its leading bits into 2^n ranges, like all others that derive from the same
    ingest: part k of each is about the same documents. A table of several artifacts, or derived
    from several, has several segments, each sorted and partitioned separately.
    """

    artifacts: tuple[Artifact, ...]  # at least one
    name: str

    @property
    def parts_per_segment(self) -> list[int]:
        """Number of parts of each segment."""
        return [
            part_count
            for entry in self.manifest_entries
            for part_count in entry.get("pieces", [len(entry["parts"])])
        ]

    @property
    def manifest_entries(self) -> list[ManifestEntry]:
        """The table's manifest entries, one per artifact."""
        return [artifact.manifest["tables"][self.name] for artifact in self.artifacts]

    @property
    def digest(self) -> str:
        """Digest of the parts' digests and the columns' kinds, or of all artifacts' digests."""
        digests = [entry["sha256"] for entry in self.manifest_entries]
        return digests[0] if len(digests) == 1 else sha256_hex(to_canonical_json(digests))

    def verify(self) -> None:
        """Check the SHA-256 of all parts; a file is read again only if it has changed.

        Raises:
            HallmarkError: A file is missing or damaged.
        """
        for part in self.parts:
            part.location.fetch_verified_file(part.entry)

    @property
    def row_count(self) -> int:
        return sum(entry["rows"] for entry in self.manifest_entries)

    @property
    def parts(self) -> list[TablePart]:
        artifact_entries = zip(self.artifacts, self.manifest_entries, strict=True)
        located_entries = (
            (artifact.location, part)
            for artifact, entry in artifact_entries
            for part in entry["parts"]
        )
        return [
            TablePart(location, self.name, index, part_count, part)
            for part_count in self.parts_per_segment
            for index, (location, part) in zip(range(part_count), located_entries, strict=False)
        ]

    @property
    def _segments(self) -> list[list[TablePart]]:
        """The parts of each segment."""
        parts = iter(self.parts)
        return [[*islice(parts, part_count)] for part_count in self.parts_per_segment]

    @property
    def columns(self) -> dict[str, Column]:
        """Descriptions of the columns by name, according to the last artifact."""
        return columns_by_name_from_json(self.manifest_entries[-1].get("columns", []))

    @property
    def source_counts(self) -> SourceCounts:
        """Rows, bytes and checksums by source and action, counted when the table was written."""
        return merge_counts(
            part["counts"] for entry in self.manifest_entries for part in entry["parts"]
        )

    @property
    def byte_size(self) -> int:
        """Size of the files in bytes."""
        return sum(part["size"] for entry in self.manifest_entries for part in entry["parts"])

    def iter_batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        for part in self.parts:
            yield from part.iter_batches(columns)

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Read the whole table into memory; for small tables and for analysis."""
        return pa.concat_tables(part.read(columns) for part in self.parts)

    def find_document_rows(
        self, doc_ids: Sequence[bytes], columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Return the rows about these documents.

        In each segment, this reads only the parts that can contain the documents. Their SHA-256 is
        checked first, see ``verify``.

        Raises:
            HallmarkError: A part is missing or damaged.
        """
        column_names = None if columns is None else list(dict.fromkeys(["doc_id", *columns]))
        rows = pa.concat_tables(
            rows
            for segment in self._segments
            for rows in _read_document_rows_of_segment(segment, doc_ids, column_names)
        )
        return rows if columns is None else rows.select(list(columns))

    def to_dataset(self) -> ds.Dataset:
        """Return a dataset for scans that read only the columns and rows they need."""
        scan_options = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
        paths = [str(part.path) for part in self.parts]
        file_format = ds.ParquetFileFormat(default_fragment_scan_options=scan_options)
        return ds.dataset(paths, format=file_format)

    def filter_rows(
        self, condition: ds.Expression, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Return the rows that fulfil a condition; this reads only the necessary row groups.

        Raises:
            HallmarkError: A file is damaged.
        """
        try:
            return self.to_dataset().to_table(_to_optional_list(columns), filter=condition)
        except (pa.ArrowException, OSError):
            for artifact in self.artifacts:  # the scan's error does not name the file
                artifact.verify_files()
            raise

    def to_pandas(self) -> pd.DataFrame:
        """Convert the table to a data frame with Arrow types."""
        import pandas as pd

        frame: pd.DataFrame = self.read().to_pandas(types_mapper=pd.ArrowDtype)
        return frame


def _read_document_rows_of_segment(
    segment_parts: Sequence[TablePart], doc_ids: Sequence[bytes], columns: Sequence[str] | None
) -> Iterator[pa.Table]:
    """Yield tables with the rows of one segment about these documents, at least an empty one."""
    ids_by_part: dict[int, list[bytes]] = {}
    for doc_id in doc_ids:
        ids_by_part.setdefault(doc_id_to_part_index(doc_id, len(segment_parts)), []).append(doc_id)
    yield segment_parts[min(ids_by_part, default=0)].read_empty_table(columns)
    for part_index, part_ids in sorted(ids_by_part.items()):
        part = segment_parts[part_index]
        part.location.fetch_verified_file(part.entry)
        yield from part.iter_document_rows(pa.array(sorted(part_ids), pa.binary(16)), columns)


def doc_id_to_part_index(doc_id: bytes, part_count: int) -> int:
    """Return the index of the part that contains a document, in a segment of 2^n parts."""
    return int.from_bytes(doc_id[:8], "big") * part_count >> 64


@dataclass(frozen=True, repr=False)
class Artifact:
    """The output of a stage: tables and files, listed in a manifest and never changed."""

    manifest: Manifest
    store: ObjectStore | None  # None: a folder outside the store, see ``folder_to_artifact``
    folder: str  # key of the artifact in the store, or a local folder
    undeclared_tables: tuple[str, ...] = ()  # hidden from a stage that does not declare them

    @property
    def stage(self) -> str:
        stage_name: str = self.manifest["stage"]
        return stage_name

    @property
    def fingerprint(self) -> str:
        fingerprint: str = self.manifest["fingerprint"]
        return fingerprint

    @property
    def content_digest(self) -> str:
        """Digest of the tables and files, without telemetry."""
        digest: str = self.manifest["content"]
        return digest

    @property
    def name(self) -> StageAndFingerprint:
        """Name that identifies the artifact in messages and lineages."""
        return f"{self.stage}/{self.fingerprint[:16]}"

    @property
    def location(self) -> ArtifactLocation:
        return ArtifactLocation(self.name, self.store, self.folder)

    @property
    def lineage(self) -> dict[str, Any]:
        """Names of the inputs, by parameter name; empty for a folder outside any store."""
        lineage: dict[str, Any] = self.manifest.get("lineage", {})
        return lineage

    def find_input_name(self, input_name: str) -> StageAndFingerprint | None:
        """Return the name of an input artifact; None if the stage had no such input.

        Raises:
            HallmarkError: The manifest is damaged: the input is not one artifact.
        """
        name = self.lineage.get(input_name)
        if name is None:
            return None
        if not isinstance(name, str):
            raise self.make_manifest_error(f"lineage.{input_name} must be an artifact name")
        return name.partition("#")[0]

    def get_input_name(self, input_name: str) -> StageAndFingerprint:
        """Return the name of an input artifact.

        Raises:
            HallmarkError: The manifest is damaged: it does not name this input.
        """
        name = self.find_input_name(input_name)
        if name is None:
            raise self.make_manifest_error(f"lineage.{input_name} must be an artifact name")
        return name

    def list_input_names(self, input_name: str) -> list[StageAndFingerprint]:
        """Return the names of the artifacts of one input, in order: several for a grown corpus.

        Raises:
            HallmarkError: The manifest is damaged: it does not name this input.
        """
        names = self.lineage.get(input_name)
        names = names if isinstance(names, list) else [names]
        if not names or not all(isinstance(name, str) for name in names):
            raise self.make_manifest_error(
                f"lineage.{input_name} must contain one or more artifact names"
            )
        return [name.partition("#")[0] for name in names]

    def get_input_names_by_key(self, input_name: str) -> dict[str, StageAndFingerprint]:
        """Return the names of the artifacts of an input that is a mapping; empty without it.

        Raises:
            HallmarkError: The manifest is damaged: the input is not a mapping.
        """
        names = self.lineage.get(input_name) or {}
        if not isinstance(names, dict) or not all(isinstance(n, str) for n in names.values()):
            raise self.make_manifest_error(f"lineage.{input_name} must contain only artifact names")
        return {key: name.partition("#")[0] for key, name in names.items()}

    def get_input_digest(self, input_name: str) -> str | None:
        """Return the content digest of an input that is one artifact; None without this input.

        Raises:
            HallmarkError: The manifest is damaged: the input has no content digest.
        """
        digest = self.manifest["parts"].get("inputs", {}).get(input_name)
        is_digest = isinstance(digest, str) and _CONTENT_DIGEST_PATTERN.fullmatch(digest)
        if digest is not None and not is_digest:
            raise self.make_manifest_error(f"parts.inputs.{input_name} must be a content digest")
        return digest if is_digest else None

    def get_setting(self, *keys: str) -> Any:
        """Return a setting with which the stage ran, by the keys of its sections and its own.

        Raises:
            HallmarkError: The manifest is damaged: it does not have this setting.
        """
        value: Any = self.manifest["parts"]["config"]
        for key in keys:
            if not isinstance(value, dict) or key not in value:
                raise self.make_manifest_error(f"parts.config.{'.'.join(keys)} is missing")
            value = value[key]
        return value

    @property
    def training_step(self) -> int:
        """The step of a checkpoint that a training wrote.

        Raises:
            HallmarkError: The manifest is damaged: it has no step.
        """
        step = self.manifest["parts"].get("key", {}).get("step")
        if type(step) is not int or not 0 <= step < 1 << 62:
            raise self.make_manifest_error("parts.key.step must be a whole number")
        return step

    def make_manifest_error(self, problem: str) -> HallmarkError:
        """Create the error about a manifest that does not contain what its stage writes."""
        location = self.folder if self.store is None else f"{self.store.uri}/{self.folder}"
        return make_manifest_error(self.name, location, problem)

    def __getitem__(self, name: str) -> Table:
        if name in self.undeclared_tables:
            raise HallmarkError(
                f"this stage does not declare that it reads the {name!r} table of {self.name}; "
                "add the table to `reads` in the stage's declaration"
            )
        if name not in self.manifest["tables"]:
            available_tables = ", ".join(self.manifest["tables"]) or "none"
            raise HallmarkError(
                f"artifact {self.name} has no table {name!r}; its tables are {available_tables}"
            )
        return Table((self,), name)

    def __repr__(self) -> str:
        return f"Artifact({self.name})"

    @property
    def tables(self) -> dict[str, Table]:
        return {name: Table((self,), name) for name in self.manifest["tables"]}

    def select_contents(self, table_names_and_file_patterns: Sequence[str]) -> Artifact:
        """Return the artifact reduced to some tables and files, with their content digest.

        Args:
            table_names_and_file_patterns: Names of tables and patterns of files ("documents",
                "*.json"); those that the artifact lacks are ignored.
        """
        tables = {
            name: entry
            for name, entry in self.manifest["tables"].items()
            if name in table_names_and_file_patterns
        }
        files = {
            name: entry
            for name, entry in self.manifest["files"].items()
            if any(fnmatchcase(name, pattern) for pattern in table_names_and_file_patterns)
        }
        selected = {
            "tables": tables,
            "files": files,
            "content": compute_content_digest(tables, files),
        }
        undeclared_tables = tuple(name for name in self.manifest["tables"] if name not in tables)
        return replace(
            self, manifest={**self.manifest, **selected}, undeclared_tables=undeclared_tables
        )

    def read_telemetry(self, table_name: str = "telemetry") -> pa.Table:
        """Read a table of measurements of the machine: seconds, memory, throughput."""
        entries = self.manifest["telemetry"][table_name]["parts"]
        parts = [
            TablePart(self.location, table_name, index, len(entries), entry)
            for index, entry in enumerate(entries)
        ]
        return pa.concat_tables(part.read() for part in parts)

    def fetch_file(self, name: str) -> Path:
        """Return a local path of one of the files ("tokenizer.json").

        Raises:
            HallmarkError: There is no such file, or it is missing or damaged.
        """
        entry = self.manifest["files"].get(name)
        if entry is not None:
            # Readers of table parts verify parquet's checksums; other files need this check.
            return self.location.fetch_verified_file(entry)
        available_files = ", ".join([*self.manifest["files"]][:10]) or "none"
        raise HallmarkError(
            f"artifact {self.name} has no file {name!r}; its files are {available_files}"
        )

    def fetch_directory(self) -> Path:
        """Return a local folder with all files of the artifact, such as a checkpoint.

        Raises:
            HallmarkError: The artifact has no files, or one is missing or damaged.
        """
        paths: dict[str, Path] = {name: self.fetch_file(name) for name in self.manifest["files"]}
        if not paths:
            raise HallmarkError(f"artifact {self.name} has no files")
        name, first_path = next(iter(paths.items()))
        return first_path.parents[name.count("/")]

    @property
    def purge_time_by_doc_id(self) -> dict[str, str]:
        """Time of the purge by document id (hexadecimal), for documents that it lost."""
        purge_times: dict[str, str] = self.manifest.get("purged", {})
        return purge_times

    def iter_file_entries(self) -> Iterator[ManifestEntry]:
        """Yield the manifest entries of all files, including the parts of tables."""
        yield from iter_file_entries(self.manifest)

    def verify_tables(self) -> None:
        """Check the SHA-256 of all tables, for small ones such as those of a card.

        A file is read again in this process only if it has changed.

        Raises:
            HallmarkError: A file is missing or damaged.
        """
        for table in self.manifest["tables"].values():
            for entry in table["parts"]:
                self.location.fetch_verified_file(entry)

    def verify_files(self) -> None:
        """Read all files; raise HallmarkError if one differs from the manifest."""
        for entry in self.iter_file_entries():
            self.location.verify_file_digest(entry)


DIGEST_MISMATCH = "does not match the SHA-256 in its manifest"


#: Stamp and SHA-256 of each file that ``hash_file_cached`` read, by path. It is unlimited, since a
#: limited cache would drop every file of a large folder before the folder is read again.
_KNOWN_DIGESTS: dict[str, tuple[FileStamp, str]] = {}


def hash_file_cached(path: Path) -> str:
    """Compute the SHA-256 of a file, and reuse it in this process until the file changes.

    A recently changed file is read each time: its timestamps would not show another change within
    the same clock tick.
    """
    name = os.fspath(path)
    stamp = stat_to_file_stamp(path.stat())
    is_recently_changed = not is_stamp_reliable(stamp)
    before, digest = _KNOWN_DIGESTS.get(name, (None, ""))
    if is_recently_changed or before != stamp:
        digest = hash_file(path)
    if not is_recently_changed:
        _KNOWN_DIGESTS[name] = stamp, digest
    record_file_state(path, FileState(digest, stamp, not is_recently_changed))
    return digest


def build_file_entry(folder: Path, name: str) -> ManifestEntry:
    """Build the manifest entry of a file below ``folder``."""
    path = folder / name
    return {"name": name, "size": path.stat().st_size, "sha256": hash_file_cached(path)}
