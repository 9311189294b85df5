"""Taking documents out of a store: their text out of every part, page and work area.

Rows stay and texts go, see ``flows/redaction.py``: parts and pages are written anew beside the old
ones, ``tombstones.json`` names them, then the old ones are deleted. Tables of documents come last:
what is looked for elsewhere is read from them, so a purge that was killed goes on where it stopped.
"""

from __future__ import annotations

import json
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flows.redaction import (
    BYTES,
    NOBODY,
    Quotations,
    emptied,
    hashes_of,
    may_quote,
    named,
    unreadable,
    without_quotations,
)
from flows.runs import all_runs
from reports.page.masking import Masker
from reports.sections.corpus_figures import planted_secrets
from tasks.audits.proofs.behind import naming
from tasks.contract import (
    DENIED,
    ID,
    TOMBSTONES,
    Artifact,
    Entry,
    HallmarkError,
    Store,
    Table,
    read_denied,
    read_tombstones,
)
from tasks.measures.personal_data import REGIONS
from tasks.training.blank import padded

#: Files that may quote documents; True: with elements. Others are weights and vocabularies.
PAGES = {".html": True, ".svg": True, ".md": False, ".txt": False, ".csv": False}

#: Columns of a table of packed spans.
SPANS = {"split", "sequence", "start", "end", "doc_id"}

#: Columns that name another document in a row about one.
BESIDE = ("doc_id", "matched", "left", "right")

Changes = dict[str, list[str]]  # names of parts and files, by artifact


def all_artifacts(store: Store) -> list[Artifact]:
    """Every committed artifact; HallmarkError for one that cannot be read: it may hold anything."""
    return [a for stage in store.children("artifacts") for a in store.artifacts(stage)]


# What is to go ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Purge:
    """Documents that are to go, and by what they are found."""

    documents: pa.Array  # of ids
    hashes: pa.Array  # of their texts
    quotations: Quotations

    @classmethod
    def of(cls, doc_ids: set[bytes], artifacts: list[Artifact]) -> Purge:
        texts, sources = set[str](), set[str]()
        hashes: set[bytes] = set()
        for artifact in artifacts:
            if "documents" in artifact.tables:
                names = ["doc_id", "source", "text", "text_hash"]
                rows = artifact["documents"].find(sorted(doc_ids), names)
                sources.update(rows["source"].to_pylist())
                rows = rows.filter(pc.not_equal(rows["text"], ""))
                texts.update(rows["text"].to_pylist())
                hashes.update(hashes_of(rows))
        documents = pa.array(sorted(doc_ids), ID)
        quotations = Quotations(texts, sources, _maskers(artifacts))
        return cls(documents, pa.array(sorted(hashes), ID), quotations)

    def rewritings(
        self, artifact: Artifact, documents: bool
    ) -> Iterator[tuple[Entry, pa.Table | str]]:
        """The parts and files of an artifact that hold any of it, each with what is to stand in its
        place; of the table of documents alone, or of all else. One at a time is in memory."""
        for name, table in artifact.tables.items():
            if (name == "documents") == documents:
                yield from self._parts(table)
        if not documents and self.quotations:
            for name, entry in artifact.manifest["files"].items():
                if (markup := PAGES.get(Path(name).suffix)) is not None:
                    page = artifact.path(name).read_text(encoding="utf-8", errors="replace")
                    cleaned = without_quotations(page, self.quotations, markup)
                    if cleaned is not None:
                        yield entry, cleaned

    def _parts(self, table: Table) -> Iterator[tuple[Entry, pa.Table]]:
        spans = self.spans(table.artifacts[0])
        if spans is not None and table.name in ("train", "validation"):
            mine, first = spans.filter(pc.equal(spans["split"], table.name)), 0
            for part in table.parts:
                here = pc.and_(pc.greater_equal(mine["sequence"], first),
                               pc.less(mine["sequence"], first + part.rows))  # fmt: skip
                if pc.any(here).as_py():
                    changed = padded(part.read(), first, mine.filter(here))
                    if changed is not None:
                        yield part.entry, changed
                first += part.rows
            return
        columns = table.columns
        quotes = table.name != "documents" and bool(may_quote(columns))
        ids = naming(columns)
        for part in table.parts:
            if not quotes and not (
                ids and pc.any(named(part.read(ids), ids, self.documents)).as_py()
            ):
                continue
            quotations = self.quotations if quotes else None
            changed = emptied(part.read(), columns, self.documents, self.hashes, quotations)
            if changed is not None:
                yield part.entry, changed

    def spans(self, artifact: Artifact) -> pa.Table | None:
        """Where its tokens stand in packed sequences; None of an artifact that has none."""
        if "spans" not in artifact.tables or not artifact["spans"].columns.keys() >= SPANS:
            return None
        mine = pc.field("doc_id").isin(self.documents)
        return artifact["spans"].where(mine)

    def unread(self, artifacts: list[Artifact]) -> dict[str, int]:
        """Records of other sources that are no readable text, by artifact: in them the documents
        are looked for by a guess at their encoding, and nothing else."""
        found: dict[str, int] = {}
        for table in (t for a in artifacts for t in a.tables.values()):
            names = [n for n in may_quote(table.columns) if table.columns[n].type in BYTES]
            for part in table.parts if names and "source" in table.columns else []:
                rows = part.read(["source", *names])
                rest = rows.filter(pc.invert(pc.is_in(rows["source"], self.quotations.sources)))
                n = sum(pc.sum(unreadable(rest[name])).as_py() or 0 for name in names)
                if n:
                    name = table.artifacts[0].name
                    found[name] = found.get(name, 0) + n
        return found

    def trains(self, artifact: Artifact) -> bool:
        """Whether any of the documents is in its split for training."""
        if artifact.stage != "plant":
            return False
        wanted = pc.field("doc_id").isin(self.documents) & (pc.field("split") == "train")
        return artifact["documents"].where(wanted, ["doc_id"]).num_rows > 0

    def beside(self, artifacts: list[Artifact]) -> tuple[bool, set[bytes]]:
        """Whether any table names the documents, and which others stand beside them in a row."""
        known, others = False, set[bytes]()
        for table in (t for a in artifacts for t in a.tables.values()):
            names = [] if table.name == "checksums" else naming(table.columns)
            shown = [n for n in names if n in BESIDE]
            for part in table.parts if names else []:
                rows = part.read(names)
                rows = rows.filter(named(rows, names, self.documents))
                known |= len(rows) > 0
                for name in shown if len(shown) > 1 else []:
                    others.update(rows[name].drop_null().to_pylist())
        return known, others - set(self.documents.to_pylist())


def _maskers(artifacts: list[Artifact]) -> list[Masker]:
    """As the pages of any card mask, wherever its corpus looked for personal data."""
    own = frozenset(REGIONS)
    regions = {
        own.union(artifact["regions"].read()["region"].to_pylist())
        for artifact in artifacts
        if "regions" in artifact.tables
    }
    secrets = planted_secrets({artifact.name: artifact for artifact in artifacts})
    return [Masker(secrets, regions=some) for some in sorted({own, *regions}, key=sorted)]


def copies_of(doc_ids: set[bytes], artifacts: list[Artifact]) -> set[bytes]:
    """Other documents of the very same text, as it came in, or was planted."""
    found: set[bytes] = set()
    for artifact in artifacts:
        if "documents" not in artifact.tables:
            continue
        table = artifact["documents"]
        own = table.find(sorted(doc_ids), ["text_hash"])["text_hash"].combine_chunks()
        own = own.filter(pc.not_equal(own, pa.scalar(NOBODY, ID)))
        if not len(own):
            continue
        alike = pc.field("text_hash").isin(own)
        same = set(table.where(alike, ["doc_id"])["doc_id"].to_pylist())
        if "documents" in artifact.manifest["lineage"]:  # others became the same by what was masked
            same &= _added(artifact)
        found |= same
    return found - doc_ids


def planted(doc_ids: set[bytes], artifacts: list[Artifact]) -> bool:
    """Whether any of them came neither from a source nor from anybody."""
    return any(doc_ids & _added(artifact) for artifact in artifacts)


def _added(artifact: Artifact) -> set[bytes]:
    if "ledger" not in artifact.tables:
        return set()
    added = pc.field("action") == "added"
    rows = artifact["ledger"].where(added, ["doc_id"])
    return set(rows["doc_id"].to_pylist())


# Taking it out ---------------------------------------------------------------------------------


def check_nobody_reads(store: Store, alone: bool) -> None:
    """HallmarkError while anybody runs stages on the store."""
    here = socket.gethostname()
    afar = [r for r in all_runs(store) if r.status == "running" and r.record["host"] != here]
    if not alone or afar:
        who = f"run {afar[0].id} on {afar[0].record['host']}" if afar else "a run"
        raise HallmarkError(
            f"{who} reads the store {store.uri}; wait until it has ended, or end it, and purge "
            f"again: nothing has been changed"
        )


def deny(store: Store, doc_ids: set[bytes], unfinished: bool) -> None:
    """Add ids to the list that ingest obeys."""
    known = read_denied(store)
    ids = sorted(i.hex() for i in doc_ids)
    known["documents"] = {i: _now() for i in ids} | known["documents"]
    rest = set(known["unfinished"]) - set(ids)
    known["unfinished"] = sorted({*rest, *ids} if unfinished else rest)
    store.put(DENIED, json.dumps(known, indent=1, sort_keys=True).encode())


def take_out(store: Store, purge: Purge, artifacts: list[Artifact]) -> Changes:
    """Rewrite what holds the documents, and delete what stood there."""
    changed: Changes = {}
    for documents in (False, True):
        for artifact in artifacts:
            if names := _rewrite(store, purge, artifact, documents):
                changed.setdefault(artifact.name, []).extend(names)
    for found in all_artifacts(store):
        if found.purged:
            _sweep(store, found)
    return changed


def would_change(purge: Purge, artifacts: list[Artifact]) -> Changes:
    """The names of what ``take_out`` would rewrite."""
    found: Changes = {}
    for artifact in artifacts:
        names = [e["name"] for last in (False, True) for e, _ in purge.rewritings(artifact, last)]
        if names:
            found[artifact.name] = names
    return found


def _rewrite(store: Store, purge: Purge, artifact: Artifact, documents: bool) -> list[str]:
    attempt = f"purged-{secrets.token_hex(6)}"
    scratch = store.work / attempt
    written: dict[str, Entry] = {}
    try:
        for entry, content in purge.rewritings(artifact, documents):
            path = scratch / entry["name"]
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, str):
                path.write_text(content, encoding="utf-8")
            else:
                pq.write_table(content, path, compression="zstd", row_group_size=4096,
                               write_page_checksum=True)  # fmt: skip
            made = store.put_file(f"{artifact.folder}/{attempt}/{entry['name']}", path)
            written[entry["name"]] = {"path": f"{attempt}/{entry['name']}", **made}
            path.unlink()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if written:
        key = f"{artifact.folder}/{TOMBSTONES}"
        stones = read_tombstones(store.get(key), artifact.folder)
        stones["purged"] = {i.hex(): _now() for i in purge.documents.to_pylist()} | stones["purged"]
        stones["entries"] |= written
        store.put(key, json.dumps(stones, indent=1, sort_keys=True).encode())
    return list(written)


def _sweep(store: Store, artifact: Artifact) -> None:
    """Delete what no entry of an artifact names any more, here and among fetched copies."""
    keep = {f"{artifact.folder}/{entry['path']}" for entry in artifact.entries()}
    keep |= {f"{artifact.folder}/{name}" for name in ("manifest.json", TOMBSTONES)}
    gone = [key for key in store.below(artifact.folder) if key not in keep]
    if gone:
        store.delete(gone)
    fetched = store.work / "fetched"
    for path in (fetched / artifact.folder).rglob("*"):
        if path.is_file() and path.relative_to(fetched).as_posix() not in keep:
            path.unlink()


# What lies around ------------------------------------------------------------------------------


#: Folders beside the work areas: fetched copies, which are cleared one by one, pages and lists.
KEPT = ("fetched", "local")


def clear_scratch(store: Store, held: set[str], dry_run: bool = False) -> list[str]:
    """Remove what runs that ended early left: work areas, and attempts without a manifest.

    Of a training, whose states are weights, only where its sequences are of an artifact in
    ``held``. Returns what was removed, work areas by their names.
    """
    gone = []
    for area in sorted(store.work.iterdir()) if store.work.exists() else []:
        if area.is_dir() and area.name not in KEPT and not _trains_on_others(area, held):
            gone.append(area.name)
            if not dry_run:
                shutil.rmtree(area)
    for stage in store.children("artifacts"):
        for name in store.children(f"artifacts/{stage}"):
            folder = f"artifacts/{stage}/{name}"
            if store.get(f"{folder}/manifest.json") is None and (keys := store.below(folder)):
                gone.append(f"{stage}/{name}, never committed")
                if not dry_run:
                    store.delete(keys)
    return gone


def _trains_on_others(area: Path, held: set[str]) -> bool:
    """Whether it is the work area of a training that read none of the artifacts."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        read = json.loads((area / "job.json").read_text())["data"]["train"]
        return not any(f"/{name}/" in path for name in held for path in read)
    return False


def clear_pages(store: Store, dry_run: bool = False) -> tuple[list[str], list[str]]:
    """Build the store's site anew from what is left and remove unmasked ones in it. Returns these
    places, and places of unmasked pages out of the store, which are left to whoever made them."""
    from flows.site import build

    here, beyond = [], []
    root = store.local.resolve()
    site = root / "site"
    if site.exists():
        here.append(f"{site}, built anew")
        if not dry_run:
            shutil.rmtree(site)
            build(store)
    notes = [note for run in all_runs(store) for note in run.record.get("revealed", [])]
    for folder in sorted({str(note.get("folder")) for note in notes if isinstance(note, dict)}):
        place = Path(folder)
        if not place.exists():
            continue
        if root not in place.parents:
            beyond.append(folder)
        else:
            here.append(f"{folder}, removed")
            if not dry_run:
                shutil.rmtree(place)
    return here, beyond


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
