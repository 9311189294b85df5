"""Artifacts: what a stage left, its tables and files, as its manifest names them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.contract.columns import Column, from_json
from tasks.contract.errors import HallmarkError
from tasks.contract.fingerprint import canonical, file_digest, sha256

if TYPE_CHECKING:
    import pandas as pd

    from tasks.contract.store import Store

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Shard:
    """A stretch of a table, small enough to send to another process."""

    path: str
    groups: tuple[int, ...]  # row groups
    first_row: int
    rows: int

    def batches(self, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """One record batch a row group: memory is bounded by the largest of them."""
        with pq.ParquetFile(self.path) as file:
            for group in self.groups:
                table = file.read_row_group(group, columns=columns).combine_chunks()
                yield from table.to_batches()

    def __str__(self) -> str:
        name = Path(self.path).stem
        return f"{name}, rows {self.first_row} to {self.first_row + self.rows - 1}"


@dataclass(frozen=True)
class Table:
    """One parquet table of an artifact."""

    artifact: Artifact
    name: str

    @property
    def entry(self) -> dict[str, Any]:
        return self.artifact.manifest["tables"][self.name]

    @property
    def digest(self) -> str:
        return self.entry["sha256"]

    @property
    def rows(self) -> int:
        return self.entry["rows"]

    @property
    def columns(self) -> dict[str, Column]:
        """What each column is, as the stage that wrote it says."""
        return from_json(self.entry.get("columns", []))

    @property
    def counts(self) -> list[list[Any]]:
        """Rows and bytes by source (and action), counted when the table was written."""
        return self.entry.get("counts", [])

    @property
    def path(self) -> Path:
        return self.artifact.path(f"{self.name}.parquet")

    def shards(self, rows: int = 4 * 4096) -> list[Shard]:
        """Consecutive stretches of whole row groups with about ``rows`` rows each."""
        with pq.ParquetFile(self.path) as file:
            sizes = [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)]
        shards: list[Shard] = []
        groups: list[int] = []
        first = count = 0
        for group, size in enumerate(sizes):
            groups.append(group)
            count += size
            if count >= rows or group == len(sizes) - 1:
                shards.append(Shard(str(self.path), tuple(groups), first, count))
                first, groups, count = first + count, [], 0
        return shards

    def batches(self, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        for shard in self.shards(rows=1):
            yield from shard.batches(columns)

    def read(self, columns: list[str] | None = None) -> pa.Table:
        """The whole table in memory; for small tables and for analysis."""
        return pq.read_table(self.path, columns=columns)

    def to_pandas(self) -> pd.DataFrame:
        """The table as a data frame, strings and numbers still held by Arrow."""
        import pandas as pd

        return self.read().to_pandas(types_mapper=pd.ArrowDtype)


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

    def __getitem__(self, name: str) -> Table:
        if name not in self.manifest["tables"]:
            has = ", ".join(self.manifest["tables"]) or "none"
            raise HallmarkError(f"artifact {self.name} has no table {name!r}; its tables: {has}")
        return Table(self, name)

    def __repr__(self) -> str:
        return f"Artifact({self.name})"

    @property
    def tables(self) -> dict[str, Table]:
        return {name: Table(self, name) for name in self.manifest["tables"]}

    def telemetry(self, name: str = "telemetry") -> pa.Table:
        """A table of measurements of this machine: seconds, memory, throughput."""
        return pq.read_table(self._fetch(self.manifest["telemetry"][name]))

    def path(self, name: str) -> Path:
        """A local path of one of the files ("tokenizer.json", "documents.parquet")."""
        for group in ("tables", "files"):
            for entry in self.manifest[group].values():
                if entry["name"] == name:
                    return self._fetch(entry)
        raise HallmarkError(f"artifact {self.name} holds no file {name!r}")

    def directory(self) -> Path:
        """A local folder with all the artifact's files in it (a checkpoint, say)."""
        paths = {}
        for group in ("tables", "files"):
            for entry in self.manifest[group].values():
                paths[entry["name"]] = self._fetch(entry)
        if not paths:
            raise HallmarkError(f"artifact {self.name} holds no files")
        name, first = next(iter(paths.items()))
        return first.parents[name.count("/")]

    def _fetch(self, entry: dict[str, Any]) -> Path:
        if self.store is None:
            path = Path(self.folder) / entry["name"]
        else:
            path = self.store.fetch(f"{self.folder}/{entry['path']}", entry)
        size = path.stat().st_size if path.exists() else None
        if size != entry["size"]:
            found = "is missing" if size is None else f"has {size} bytes instead of {entry['size']}"
            raise HallmarkError(
                f"artifact {self.name} is damaged: {path} {found}; remove the artifact's folder "
                f"and run again to rebuild it"
            )
        return path

    def verify(self) -> None:
        """Read every byte and compare it with the manifest; raise HallmarkError if it differs."""
        for group in ("tables", "files", "telemetry"):
            for entry in self.manifest[group].values():
                path = self._fetch(entry)
                if file_digest(path) != entry["sha256"]:
                    raise HallmarkError(
                        f"artifact {self.name} is damaged: {path} does not have the SHA-256 of its "
                        f"manifest; remove the artifact's folder and run again to rebuild it"
                    )


def describe(folder: Path, name: str) -> dict[str, Any]:
    """Manifest entry of a file below ``folder``."""
    path = folder / name
    return {"name": name, "size": path.stat().st_size, "sha256": file_digest(path)}


def content_digest(tables: dict[str, Any], files: dict[str, Any]) -> str:
    """Digest of an artifact's content: names and SHA-256 of its tables and files."""
    content = {kind: {n: e["sha256"] for n, e in group.items()} for kind, group in
               (("tables", tables), ("files", files))}  # fmt: skip
    return sha256(canonical(content))


def external(folder: Path, stage: str) -> Artifact:
    """A folder that Hallmark did not make (a Hugging Face checkpoint), as an artifact."""
    names = sorted(
        str(p.relative_to(folder))
        for p in folder.rglob("*")
        if p.is_file() and not any(part.startswith(".") for part in p.relative_to(folder).parts)
    )
    files = {name: describe(folder, name) for name in names}
    content = content_digest({}, files)
    manifest = {"stage": stage, "fingerprint": content, "content": content, "tables": {}}
    return Artifact({**manifest, "files": files, "telemetry": {}}, None, str(folder))
