"""Purge documents from a store: remove their text from every table part, page and work folder.

Rows are kept without the text (``flows/quotation_removal.py``). New parts and pages are written
next to the old ones, ``tombstones.json`` names them, then the old ones are deleted. Tables of
documents come last, because they contain the texts to search for: so an interrupted purge can
continue.
"""

from __future__ import annotations

import json
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hallmark.flows.quotation_removal import (
    BINARY_TYPES,
    REMOVED_ID,
    QuotationFinder,
    compute_document_hashes,
    find_rows_naming_documents,
    find_unreadable_values,
    list_quoting_columns,
    remove_document_content,
)
from hallmark.flows.runs import read_all_runs
from hallmark.flows.store_use import USE_LEASES_FOLDER, list_uses
from hallmark.reports.page.redaction import Redactor
from hallmark.reports.sections.corpus_figures import collect_planted_secrets
from hallmark.tasks.audits.experiments.source_documents import list_document_id_columns
from hallmark.tasks.contract import (
    FETCH_USERS_FOLDER,
    FETCHED_FOLDER,
    ID_TYPE,
    PURGED_DOCUMENTS_FILE,
    TOMBSTONES_FILE,
    Artifact,
    HallmarkError,
    ManifestEntry,
    Store,
    Table,
    format_current_time,
    list_stored_areas,
    parse_tombstones,
    read_purged_documents,
    read_regular_file,
)
from hallmark.tasks.measures.personal_data import DEFAULT_REGIONS
from hallmark.tasks.training.document_padding import replace_spans_with_padding

#: Suffixes of files that may quote documents, and whether they have markup. Other files are weights
#: Columns of a table of packed spans.
PACKED_SPAN_COLUMNS = {"split", "sequence", "row_start", "row_end", "doc_id"}

#: Columns that name another document in a row about one.
RELATED_ID_COLUMNS = ("doc_id", "matched_doc_id", "first_doc_id", "second_doc_id")

ChangedFiles = dict[str, list[str]]  # names of table parts and files, by artifact


class Rewrite(NamedTuple):
    """Hold the new content of a part or file of an artifact.

    Attributes:
        entry: The entry of the part or file in the manifest.
        new_content: The new rows of a part, or the new text of a file.
    """

    entry: ManifestEntry
    new_content: pa.Table | str


class DocumentMentions(NamedTuple):
    """Hold where tables name documents.

    Attributes:
        is_mentioned: Whether any table names one of the documents.
        related_ids: Other documents that share a row with one of them, such as near-duplicates.
    """

    is_mentioned: bool
    related_ids: set[bytes]


class ClearedPages(NamedTuple):
    """Hold which folders with pages were, or would be, cleared.

    Attributes:
        changed_folders: Folders inside the store, each with what was done.
        external_folders: Folders with unredacted pages outside the store, which their owners must
            delete.
    """

    changed_folders: list[str]
    external_folders: list[str]


def read_all_artifacts(store: Store) -> list[Artifact]:
    """Read every committed artifact.

    Raises:
        HallmarkError: If one cannot be read, because it may contain the document.
    """
    return [
        artifact
        for stage in store.list_folder_names("artifacts")
        for artifact in store.list_artifacts(stage)
    ]


@dataclass(frozen=True)
class DocumentPurge:
    """The documents to purge, and how to find them.

    Attributes:
        doc_ids: Their ids.
        text_hashes: The hashes of their texts.
        quotations: Finds quotations of their texts.
    """

    doc_ids: pa.Array
    text_hashes: pa.Array
    quotations: QuotationFinder

    @classmethod
    def from_doc_ids(cls, doc_ids: set[bytes], artifacts: list[Artifact]) -> DocumentPurge:
        texts, sources = set[str](), set[str]()
        hashes: set[bytes] = set()
        for artifact in artifacts:
            if "documents" in artifact.tables:
                columns = ["doc_id", "source", "text", "text_hash"]
                rows = artifact["documents"].find_document_rows(sorted(doc_ids), columns)
                sources.update(rows["source"].to_pylist())
                rows = rows.filter(pc.not_equal(rows["text"], ""))
                texts.update(rows["text"].to_pylist())
                hashes.update(compute_document_hashes(rows))
        doc_id_array = pa.array(sorted(doc_ids), ID_TYPE)
        quotations = QuotationFinder(texts, sources, _build_redactors(artifacts))
        return cls(doc_id_array, pa.array(sorted(hashes), ID_TYPE), quotations)

    def iter_rewrites(self, artifact: Artifact, in_documents_table: bool) -> Iterator[Rewrite]:
        """Yield the parts and files of an artifact that change, each with its new content.

        Only one is in memory at a time.

        Args:
            artifact: The artifact.
            in_documents_table: Whether to yield only parts of the table of documents; otherwise
                all other parts and files.
        """
        for name, table in artifact.tables.items():
            if (name == "documents") == in_documents_table:
                yield from self._iter_rewritten_parts(table)

    def _iter_rewritten_parts(self, table: Table) -> Iterator[Rewrite]:
        spans = self.read_packed_spans(table.artifacts[0])
        if spans is not None and table.name in ("train", "validation"):
            document_spans, first_sequence = spans.filter(pc.equal(spans["split"], table.name)), 0
            for part in table.parts:
                is_in_part = pc.and_(
                    pc.greater_equal(document_spans["sequence"], first_sequence),
                    pc.less(document_spans["sequence"], first_sequence + part.row_count),
                )
                if pc.any(is_in_part).as_py():
                    rewritten = replace_spans_with_padding(
                        part.read(), first_sequence, document_spans.filter(is_in_part)
                    )
                    if rewritten is not None:
                        yield Rewrite(part.entry, rewritten)
                first_sequence += part.row_count
            return
        columns = table.columns
        may_contain_quotations = table.name != "documents" and bool(list_quoting_columns(columns))
        id_columns = list_document_id_columns(columns)
        for part in table.parts:
            if not may_contain_quotations and not (
                id_columns
                and pc.any(
                    find_rows_naming_documents(part.read(id_columns), id_columns, self.doc_ids)
                ).as_py()
            ):
                continue
            quotations = self.quotations if may_contain_quotations else None
            rewritten = remove_document_content(
                part.read(), columns, self.doc_ids, self.text_hashes, quotations
            )
            if rewritten is not None:
                yield Rewrite(part.entry, rewritten)

    def read_packed_spans(self, artifact: Artifact) -> pa.Table | None:
        """Read the spans of the documents in packed sequences; None without such a table."""
        if (
            "spans" not in artifact.tables
            or not artifact["spans"].columns.keys() >= PACKED_SPAN_COLUMNS
        ):
            return None
        row_filter = pc.field("doc_id").isin(self.doc_ids)
        return artifact["spans"].filter_rows(row_filter)

    def count_unreadable_records(self, artifacts: list[Artifact]) -> dict[str, int]:
        """Count the unreadable records of other sources, by artifact.

        In these, the documents can only be searched for with a guessed encoding.
        """
        counts_by_artifact: dict[str, int] = {}
        for table in (
            artifact_table for artifact in artifacts for artifact_table in artifact.tables.values()
        ):
            byte_columns = [
                n
                for n in list_quoting_columns(table.columns)
                if table.columns[n].type in BINARY_TYPES
            ]
            for part in table.parts if byte_columns and "source" in table.columns else []:
                rows = part.read(["source", *byte_columns])
                other_rows = rows.filter(
                    pc.invert(pc.is_in(rows["source"], self.quotations.source_names))
                )
                n = sum(
                    pc.sum(find_unreadable_values(other_rows[name])).as_py() or 0
                    for name in byte_columns
                )
                if n:
                    name = table.artifacts[0].name
                    counts_by_artifact[name] = counts_by_artifact.get(name, 0) + n
        return counts_by_artifact

    def has_training_documents(self, artifact: Artifact) -> bool:
        """Return whether any of the documents is in the training split of an artifact."""
        if artifact.stage != "plant_canaries":
            return False
        row_filter = pc.field("doc_id").isin(self.doc_ids) & (pc.field("split") == "train")
        matching_rows = artifact["documents"].filter_rows(row_filter, ["doc_id"])
        return len(matching_rows) > 0

    def find_mentions(self, artifacts: list[Artifact]) -> DocumentMentions:
        """Find whether any table names the documents, and which others share a row with them."""
        is_mentioned, related_ids = False, set[bytes]()
        for table in (
            artifact_table for artifact in artifacts for artifact_table in artifact.tables.values()
        ):
            id_columns = (
                [] if table.name == "checksums" else list_document_id_columns(table.columns)
            )
            related_columns = [column for column in id_columns if column in RELATED_ID_COLUMNS]
            for part in table.parts if id_columns else []:
                rows = part.read(id_columns)
                rows = rows.filter(find_rows_naming_documents(rows, id_columns, self.doc_ids))
                is_mentioned |= len(rows) > 0
                for related_column in related_columns if len(related_columns) > 1 else []:
                    related_ids.update(rows[related_column].drop_null().to_pylist())
        return DocumentMentions(is_mentioned, related_ids - set(self.doc_ids.to_pylist()))


def _build_redactors(artifacts: list[Artifact]) -> list[Redactor]:
    """Build the redactors of all cards, one for each set of regions for personal data."""
    default_regions = frozenset(DEFAULT_REGIONS)
    region_sets = {
        default_regions.union(artifact["regions"].read()["region"].to_pylist())
        for artifact in artifacts
        if "regions" in artifact.tables
    }
    canary_secrets = collect_planted_secrets({artifact.name: artifact for artifact in artifacts})
    return [
        Redactor(canary_secrets, phone_regions=region_set)
        for region_set in sorted({default_regions, *region_sets}, key=sorted)
    ]


def find_identical_documents(doc_ids: set[bytes], artifacts: list[Artifact]) -> set[bytes]:
    """Find other documents with exactly the same text as ingested or planted."""
    identical_ids: set[bytes] = set()
    for artifact in artifacts:
        if "documents" not in artifact.tables:
            continue
        table = artifact["documents"]
        text_hashes = table.find_document_rows(sorted(doc_ids), ["text_hash"])[
            "text_hash"
        ].combine_chunks()
        text_hashes = text_hashes.filter(pc.not_equal(text_hashes, pa.scalar(REMOVED_ID, ID_TYPE)))
        if not len(text_hashes):
            continue
        row_filter = pc.field("text_hash").isin(text_hashes)
        matching_ids = set(table.filter_rows(row_filter, ["doc_id"])["doc_id"].to_pylist())
        if "documents" in artifact.lineage:  # redaction can make other texts equal
            matching_ids &= _read_added_doc_ids(artifact)
        identical_ids |= matching_ids
    return identical_ids - doc_ids


def has_planted_documents(doc_ids: set[bytes], artifacts: list[Artifact]) -> bool:
    """Return whether any of the documents was planted by Hallmark."""
    return any(doc_ids & _read_added_doc_ids(artifact) for artifact in artifacts)


def _read_added_doc_ids(artifact: Artifact) -> set[bytes]:
    if "ledger" not in artifact.tables:
        return set()
    row_filter = pc.field("action") == "added"
    rows = artifact["ledger"].filter_rows(row_filter, ["doc_id"])
    return set(rows["doc_id"].to_pylist())


def check_store_is_idle(store: Store, got_exclusive_lock: bool, own_token: str) -> None:
    """Check that no run and no other command is using the store.

    Args:
        store: The store.
        got_exclusive_lock: Whether this process has the store's lock on this machine.
        own_token: The token of the purge's announcement.

    Raises:
        HallmarkError: If one is, on this machine or on another.
    """
    hostname = socket.gethostname()
    remote_runs = [
        run
        for run in read_all_runs(store)
        if run.status == "running" and run.record["host"] != hostname
    ]
    other_uses = list_uses(store, own_token)
    if not got_exclusive_lock or remote_runs or other_uses:
        reader = "a run"
        if remote_runs:
            reader = f"run {remote_runs[0].id} on {remote_runs[0].record['host']}"
        elif other_uses:
            reader = str(other_uses[0])
        raise HallmarkError(
            f"{reader} is using the store {store.uri}, so nothing was changed; wait until it has "
            "ended, or stop it, then purge again"
        )


def record_purged_documents(store: Store, doc_ids: set[bytes], is_unfinished: bool) -> None:
    """Add ids to the store's list of purged documents, which ingest skips.

    Args:
        store: The store.
        doc_ids: The documents.
        is_unfinished: Whether their purge has only begun.
    """
    purged_documents = read_purged_documents(store)
    hex_ids = sorted(i.hex() for i in doc_ids)
    purged_documents["documents"] = {i: format_current_time() for i in hex_ids} | purged_documents[
        "documents"
    ]
    unfinished_ids = set(purged_documents["unfinished"]) - set(hex_ids)
    purged_documents["unfinished"] = sorted(
        {*unfinished_ids, *hex_ids} if is_unfinished else unfinished_ids
    )
    store.put(
        PURGED_DOCUMENTS_FILE, json.dumps(purged_documents, indent=1, sort_keys=True).encode()
    )


def remove_documents(store: Store, purge: DocumentPurge, artifacts: list[Artifact]) -> ChangedFiles:
    """Rewrite all parts and files that contain the documents, and delete the old ones."""
    changed_files: ChangedFiles = {}
    for in_documents_table in (False, True):
        for artifact in artifacts:
            if rewritten_names := _rewrite_artifact(store, purge, artifact, in_documents_table):
                changed_files.setdefault(artifact.name, []).extend(rewritten_names)
    for stored_artifact in read_all_artifacts(store):
        if stored_artifact.purge_time_by_doc_id:
            _delete_replaced_files(store, stored_artifact)
    return changed_files


def preview_rewrites(purge: DocumentPurge, artifacts: list[Artifact]) -> ChangedFiles:
    """Return the names of the parts and files that ``remove_documents`` would rewrite."""
    changed_files: ChangedFiles = {}
    for artifact in artifacts:
        rewritten_names = [
            rewrite.entry["name"]
            for in_documents_table in (False, True)
            for rewrite in purge.iter_rewrites(artifact, in_documents_table)
        ]
        if rewritten_names:
            changed_files[artifact.name] = rewritten_names
    return changed_files


def _rewrite_artifact(
    store: Store, purge: DocumentPurge, artifact: Artifact, in_documents_table: bool
) -> list[str]:
    attempt = f"purged-{secrets.token_hex(6)}"
    scratch_folder = store.work_folder / attempt
    written_entries: dict[str, ManifestEntry] = {}
    try:
        for entry, content in purge.iter_rewrites(artifact, in_documents_table):
            path = scratch_folder / entry["name"]
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, str):
                path.write_text(content, encoding="utf-8")
            else:
                pq.write_table(
                    content, path, compression="zstd", row_group_size=4096, write_page_checksum=True
                )
            stored_entry = store.put_file(f"{artifact.folder}/{attempt}/{entry['name']}", path)
            written_entries[entry["name"]] = {"path": f"{attempt}/{entry['name']}", **stored_entry}
            path.unlink()
    finally:
        shutil.rmtree(scratch_folder, ignore_errors=True)
    if written_entries:
        tombstones_key = f"{artifact.folder}/{TOMBSTONES_FILE}"
        tombstones = parse_tombstones(store.get(tombstones_key), artifact.folder)
        tombstones["purged"] = {
            i.hex(): format_current_time() for i in purge.doc_ids.to_pylist()
        } | tombstones["purged"]
        tombstones["entries"] |= written_entries
        store.put(tombstones_key, json.dumps(tombstones, indent=1, sort_keys=True).encode())
    return list(written_entries)


def _delete_replaced_files(store: Store, artifact: Artifact) -> None:
    """Delete files of an artifact that no entry names any more, also from the download cache."""
    current_keys = {f"{artifact.folder}/{entry['path']}" for entry in artifact.iter_file_entries()}
    current_keys |= {f"{artifact.folder}/{name}" for name in ("manifest.json", TOMBSTONES_FILE)}
    stored_keys = store.list_stored_files(artifact.folder)
    obsolete_keys = [key for key in stored_keys if key not in current_keys]
    if obsolete_keys:
        store.delete_stored_files(obsolete_keys)
    fetch_cache = store.work_folder / FETCHED_FOLDER
    for path in (fetch_cache / artifact.folder).rglob("*"):
        if path.is_file() and path.relative_to(fetch_cache).as_posix() not in current_keys:
            path.unlink()


#: Folders that are not work areas: downloaded copies (cleaned separately), pages, lists and leases.
PRESERVED_FOLDERS = (FETCHED_FOLDER, FETCH_USERS_FOLDER, "local", USE_LEASES_FOLDER)


def remove_unfinished_work(
    store: Store, affected_names: set[str], dry_run: bool = False
) -> list[str]:
    """Remove the files of interrupted runs: work areas, and artifacts without a manifest.

    The work area of a training contains weights; it is removed only if the training read one of
    the affected artifacts. The same holds for its states in an object store.

    Args:
        store: The store.
        affected_names: Artifacts that contain the documents.
        dry_run: Whether to remove nothing.

    Returns:
        The names of the removed files and folders; with ``dry_run``, of those to remove.
    """
    removed_names = []
    for work_area in sorted(store.work_folder.iterdir()) if store.work_folder.exists() else []:
        if (
            work_area.is_dir()
            and work_area.name not in PRESERVED_FOLDERS
            and not is_unrelated_training(work_area, affected_names)
        ):
            removed_names.append(work_area.name)
            if not dry_run:
                shutil.rmtree(work_area)
    for area in list_stored_areas(store):
        works = () if area.record is None else area.record.works.values()
        if area.record is None or any(affected_names.intersection(work.inputs) for work in works):
            removed_names.append(f"work-states/{area.name}")
            if not dry_run:
                store.delete_stored_files(area.files)
    for stage in store.list_folder_names("artifacts"):
        for fingerprint in store.list_folder_names(f"artifacts/{stage}"):
            folder = f"artifacts/{stage}/{fingerprint}"
            if store.get(f"{folder}/manifest.json") is None and (
                keys := store.list_stored_files(folder)
            ):
                removed_names.append(f"{stage}/{fingerprint}, never committed")
                if not dry_run:
                    store.delete_stored_files(keys)
    return removed_names


def is_unrelated_training(work_area: Path, affected_names: set[str]) -> bool:
    """Return whether a work area belongs to a training that read none of the artifacts."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        packed_paths = json.loads(read_regular_file(work_area / "job.json"))["data"]["train"]
        return not any(f"/{name}/" in path for name in affected_names for path in packed_paths)
    return False


def clear_rendered_pages(store: Store, dry_run: bool = False) -> ClearedPages:
    """Rebuild the site of a store, and remove the unredacted pages inside the store."""
    from hallmark.flows.site import build_store_site

    changed_folders, external_folders = [], []
    store_folder = store.local_folder.resolve()
    site_folder = store_folder / "site"
    if site_folder.exists():
        changed_folders.append(f"{site_folder}, rebuilt")
        if not dry_run:
            shutil.rmtree(site_folder)
            build_store_site(store)
    unredacted_folders = {
        str(site_record.get("folder"))
        for run in read_all_runs(store)
        for site_record in run.record.get("unredacted_sites", [])
        if isinstance(site_record, dict)
    }
    for folder in sorted(unredacted_folders):
        folder_path = Path(folder)
        if not folder_path.exists():
            continue
        if store_folder not in folder_path.parents:
            external_folders.append(folder)
        else:
            changed_folders.append(f"{folder}, removed")
            if not dry_run:
                shutil.rmtree(folder_path)
    return ClearedPages(changed_folders, external_folders)
