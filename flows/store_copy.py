"""Copy runs with everything they refer to from one store to another.

Everything is copied by content: an object that the target has already is not sent again, and what
arrives is read back and compared with its digest. Each object is written under its final key only
when it is complete: the files of an artifact come before its manifest, and all artifacts before
run.json. So a copy that is killed leaves no run that lacks anything, and a repeated copy continues.

A purge is never undone. Documents that were purged in the source are recorded as purged in the
target. If the copy would bring back the text of a document that was purged in the target, nothing
is copied.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from hallmark.flows.run_order import assign_number_of_copied_run
from hallmark.flows.runs import (
    Run,
    is_same_store,
    open_run,
    open_store,
    read_run_record,
    resolve_store_uri,
)
from hallmark.flows.store_references import (
    ArtifactGraph,
    check_ended,
    collect_run_chain,
    find_reviews_of_runs,
    list_run_artifacts,
)
from hallmark.flows.store_use import announce_use, wait_for_exclusive_uses
from hallmark.flows.training_stop import RUN_ID_PATTERN
from hallmark.reports.review.released_versions import (
    RELEASED_VERSIONS_FOLDER,
    read_released_versions,
)
from hallmark.reports.review.review_store import (
    REVIEWS_FOLDER,
    SIGNATURE_SUFFIX,
    StoredReview,
    parse_stored_review,
    read_reviews,
)
from hallmark.tasks.contract import (
    PURGED_DOCUMENTS_FILE,
    TOMBSTONES_FILE,
    Artifact,
    EquivalentVersion,
    EquivalentVersions,
    HallmarkError,
    ManifestEntry,
    Store,
    UsageError,
    hash_file,
    iter_library_versions,
    read_purged_documents,
    record_store_format,
)

#: Number of files that are copied at the same time.
PARALLEL_COPIES = 8

#: The fields of run.json that never change after a run began.
FIXED_RECORD_FIELDS = ("run", "flow", "config", "started", "host", "pid")


@dataclass
class CopyReport:
    """What was copied, and what the target had already.

    Attributes:
        source: The address of the source.
        target: The address of the target.
        runs: The ids of the runs, those to which others refer first.
        copied_artifacts: Number of artifacts that were copied.
        present_artifacts: Number of artifacts that the target had already.
        copied_files: Number of files of artifacts that were sent.
        copied_bytes: Their size.
        reviews: Number of reviews of these runs in the target.
        purged_documents: Ids of documents that were purged in the source and are now recorded as
            purged in the target, too.
        missing_inputs: Names of inputs that the source does not have: folders of the user, or
            artifacts of another store.
        equivalent_versions: Sentences about the versions of libraries that count as equal in the
            source, and now in the target, because an artifact depends on it.
        has_other_secret: Whether the target has another secret, so that a run there computes the
            stages again that depend on it.
    """

    source: str
    target: str
    runs: list[str] = field(default_factory=list)
    copied_artifacts: int = 0
    present_artifacts: int = 0
    copied_files: int = 0
    copied_bytes: int = 0
    reviews: int = 0
    purged_documents: list[str] = field(default_factory=list)
    missing_inputs: list[str] = field(default_factory=list)
    equivalent_versions: list[str] = field(default_factory=list)
    has_other_secret: bool = False


def copy_runs(source: Store, target: Store, run_names: Iterable[str]) -> CopyReport:
    """Copy runs, and everything they refer to, into another store.

    Args:
        source: The store of the runs.
        target: The store that receives them.
        run_names: Ids of runs, beginnings of ids, or "latest".

    Raises:
        UsageError: There is no such run, a run has not ended, or both stores are the same.
        HallmarkError: Something is missing or damaged, the stores contradict each other, or the
            copy would undo a purge.
    """
    if is_same_store(
        str(source.root_folder or source.uri).rstrip("/"),
        str(target.root_folder or target.uri).rstrip("/"),
    ):
        raise UsageError(f"{source.uri} and {target.uri} are the same store; specify two stores")
    runs = collect_run_chain(open_run(name, source) for name in run_names)
    for run in runs:
        check_ended(run, "copied")
    with ExitStack() as stack:
        stack.enter_context(announce_use(target, "copy"))
        wait_for_exclusive_uses(target)
        record_store_format(target)
        with suppress(OSError):  # a store that is read-only here cannot be purged from here
            stack.enter_context(source.shared_lock())
        stack.enter_context(target.shared_lock())
        return _StoreCopy(source, target, runs).execute()


@dataclass(frozen=True)
class _RecordCopy:
    """A run.json to write.

    Attributes:
        key: Its key in both stores.
        content: Its content; None if the target has it, or a newer one.
        is_new: Whether the target had none.
    """

    key: str
    content: bytes | None
    is_new: bool

    def write(self, target: Store) -> None:
        """Write run.json.

        Raises:
            HallmarkError: Another process wrote a different one meanwhile.
        """
        if self.content is None:
            return
        if not self.is_new:
            target.put(self.key, self.content)
        elif not target.create_if_absent(self.key, self.content):
            raise HallmarkError(
                f"another process wrote {target.uri}/{self.key} during the copy; find out which "
                "run has this id, then repeat the command"
            )


@dataclass
class _StoreCopy:
    """The copy of some runs from one store to another, while both are locked."""

    source: Store
    target: Store
    runs: list[Run]

    def __post_init__(self) -> None:
        self.report = CopyReport(self.source.uri, self.target.uri, [run.id for run in self.runs])
        self.artifacts: list[Artifact] = []

    def execute(self) -> CopyReport:
        """Copy everything, each run.json last."""
        records = [self._prepare_record(run) for run in self.runs]
        reviews = self._find_reviews()
        self.artifacts = self._collect_artifacts()
        stored_artifacts = self._find_stored_artifacts()
        purged_before = read_purged_documents(self.source)["documents"]
        self._check_purges_are_kept(stored_artifacts)
        self._record_purges(purged_before)
        self._copy_secret()
        self._copy_equivalent_versions()
        for artifact in self.artifacts:
            if (stored := stored_artifacts.get(artifact.name)) is not None:
                self._restore_missing_files(artifact, stored)
                self.report.present_artifacts += 1
            else:
                self._copy_artifact(artifact)
                self.report.copied_artifacts += 1
        self._copy_reviews_and_releases(reviews)
        if read_purged_documents(self.source)["documents"] != purged_before:
            raise HallmarkError(
                f"documents were purged in the store {self.source.uri} during the copy, so no run "
                f"was copied; run hallmark gc --delete on the store {self.target.uri} to "
                "remove what was copied so far, then repeat the command"
            )
        self._record_purges(purged_before)  # another copy may have written the list meanwhile
        for run, record in zip(self.runs, records, strict=True):
            record.write(self.target)
            assign_number_of_copied_run(self.target, run.id)
        return self.report

    def _prepare_record(self, run: Run) -> _RecordCopy:
        """Read a run.json, and compare it with that of the target.

        Raises:
            HallmarkError: The id is no valid name, or the target has another run with this id.
        """
        if not RUN_ID_PATTERN.fullmatch(run.id):
            raise HallmarkError(
                f"{run.id!r:.60} is not a valid run id, so nothing was copied; an id consists of "
                "letters, digits, hyphens and underscores"
            )
        key = f"runs/{run.id}/run.json"
        content = self.source.get(key)
        existing = self.target.get(key)
        if content is None or existing is None or existing == content:
            return _RecordCopy(key, None if content == existing else content, existing is None)
        record = read_run_record(self.target, run.id)
        stages, stored_stages = run.record["stages"], record["stages"]
        shared_count = min(len(stages), len(stored_stages))
        if any(record[name] != run.record[name] for name in FIXED_RECORD_FIELDS) or (
            stages[:shared_count] != stored_stages[:shared_count]
        ):
            raise HallmarkError(
                f"the store {self.target.uri} has a different run with the id {run.id}, so nothing "
                "was copied; choose another store"
            )
        is_newer = (len(stages), run.record["ended"] or "") >= (
            len(stored_stages),
            record["ended"] or "",
        )
        return _RecordCopy(key, content if is_newer else None, is_new=False)

    def _collect_artifacts(self) -> list[Artifact]:
        """Collect the artifacts to copy, each after those to which it refers.

        Raises:
            HallmarkError: One is damaged, or one of a run or a training is missing.
        """
        run_artifacts = [name for run in self.runs for name in list_run_artifacts(run)]
        nodes = ArtifactGraph(self.source).collect(run_artifacts)
        required_names = set(run_artifacts).union(*(node.checkpoints for node in nodes.values()))
        artifacts = []
        for name, node in nodes.items():
            if node.problem is not None:
                raise HallmarkError(f"nothing was copied: {node.problem}")
            if node.artifact is not None:
                artifacts.append(node.artifact)
            elif name in required_names:
                raise HallmarkError(
                    f"nothing was copied: the store {self.source.uri} does not contain the "
                    f"artifact {name} that a run refers to; run again to rebuild it"
                )
            else:
                self.report.missing_inputs.append(name)
            if node.artifact is not None:
                _check_paths_are_free(node.artifact)
        references = {name: (*node.checkpoints, *node.inputs) for name, node in nodes.items()}
        return _sort_inputs_first(artifacts, references)

    def _find_stored_artifacts(self) -> dict[str, Artifact]:
        """Find which artifacts the target has, by name.

        Raises:
            HallmarkError: One has other content, or still contains a document that was purged in
                the source.
        """
        with ThreadPoolExecutor(PARALLEL_COPIES) as pool:
            found = pool.map(
                lambda artifact: self.target.find_artifact(*artifact.name.split("/")),
                self.artifacts,
            )
            pairs = list(zip(self.artifacts, found, strict=True))
        stored_artifacts: dict[str, Artifact] = {}
        for artifact, stored in pairs:
            if stored is None:
                continue
            if stored.fingerprint != artifact.fingerprint or (
                stored.content_digest != artifact.content_digest
            ):
                raise HallmarkError(
                    f"the store {self.target.uri} contains the artifact {artifact.name} with "
                    "different content (results can differ between machines), so nothing was "
                    "copied; choose another store"
                )
            unpurged_ids = artifact.purge_time_by_doc_id.keys() - stored.purge_time_by_doc_id.keys()
            if unpurged_ids:
                doc_id = min(unpurged_ids)
                raise HallmarkError(
                    f"document {doc_id} was purged in the store {self.source.uri}, but "
                    f"{artifact.name} still contains it in the store {self.target.uri}, so nothing "
                    f"was copied; purge it there first: hallmark purge {doc_id} --store "
                    f"{self.target.uri}"
                )
            stored_artifacts[artifact.name] = stored
        return stored_artifacts

    def _check_purges_are_kept(self, stored_artifacts: Mapping[str, Artifact]) -> None:
        """Check that the copy brings no purged document into the target.

        Raises:
            HallmarkError: An artifact to copy contains a document that was purged in the target, or
                whose purge in the source was interrupted.
        """
        purged_ids = read_purged_documents(self.target)["documents"]
        unfinished_ids = read_purged_documents(self.source)["unfinished"]
        missing_artifacts = [
            artifact for artifact in self.artifacts if artifact.name not in stored_artifacts
        ]
        doc_ids = sorted({*purged_ids, *unfinished_ids}) if missing_artifacts else []
        if not doc_ids:
            return
        from hallmark.flows.document_purge import DocumentPurge, preview_rewrites

        for doc_id in doc_ids:
            purge = DocumentPurge.from_doc_ids({bytes.fromhex(doc_id)}, self.artifacts)
            changed_files = preview_rewrites(purge, missing_artifacts)
            if not changed_files:
                continue
            if doc_id in purged_ids:
                raise HallmarkError(
                    f"document {doc_id} was purged in the store {self.target.uri} on "
                    f"{purged_ids[doc_id][:10]}, and the copy would restore it with "
                    f"{min(changed_files)}, so nothing was copied; purge it in the other store, "
                    f"too, then repeat the command: hallmark purge {doc_id} --store "
                    f"{self.source.uri}"
                )
            raise HallmarkError(
                f"document {doc_id} is recorded as purged in the store {self.source.uri}, but the "
                f"purge was not completed, and {min(changed_files)} still contains the document, "
                "so nothing was copied; complete the purge, then repeat the command: hallmark "
                f"purge {doc_id} --store {self.source.uri}"
            )

    def _record_purges(self, purge_time_by_doc_id: Mapping[str, str]) -> None:
        """Record the documents that were purged in the source as purged in the target.

        Artifacts of other runs in the target may still contain them, so their purge there counts
        as unfinished until ``hallmark purge`` has searched them.
        """
        target_list = read_purged_documents(self.target)
        new_ids = sorted(purge_time_by_doc_id.keys() - target_list["documents"].keys())
        if not new_ids:
            return
        own_names = {artifact.name for artifact in self.artifacts}
        has_other_artifacts = any(
            f"{stage}/{folder_name}" not in own_names
            for stage in self.target.list_folder_names("artifacts")
            for folder_name in self.target.list_folder_names(f"artifacts/{stage}")
        )
        target_list["documents"] |= {doc_id: purge_time_by_doc_id[doc_id] for doc_id in new_ids}
        if has_other_artifacts:
            target_list["unfinished"] = sorted({*target_list["unfinished"], *new_ids})
        content = json.dumps(target_list, indent=1, sort_keys=True).encode()
        self.target.put(PURGED_DOCUMENTS_FILE, content)
        self.report.purged_documents = sorted({*self.report.purged_documents, *new_ids})

    def _copy_secret(self) -> None:
        """Give the secret of the source to a target that has none, so that hashes can be equal."""
        if self.source.get("secret") is None:
            return
        if self.target.get("secret") is None:
            self.target.set_secret_if_absent(self.source.secret)
        self.report.has_other_secret = self.target.secret != self.source.secret

    def _copy_equivalent_versions(self) -> None:
        """Copy the records of equal versions on which the fingerprints of artifacts depend.

        A record of the target about the same version stays as it is.
        """
        versions = EquivalentVersions(self.source)
        records: dict[str, EquivalentVersion] = {}
        for artifact in self.artifacts:
            counted_versions = artifact.manifest.get("equivalent_versions", {})
            for library, version in iter_library_versions(artifact.manifest["parts"]):
                if library in counted_versions:
                    records |= {
                        each.key: each
                        for each in versions.iter_chain(library, version, artifact.stage)
                    }
        for key, record in records.items():
            if self.target.get(key) is None:
                self.target.create_if_absent(key, record.to_json())
                self.report.equivalent_versions.append(str(record))

    def _copy_artifact(self, artifact: Artifact) -> None:
        """Copy the files of an artifact, then its tombstones, then its manifest."""
        manifest_bytes = self.source.get(f"{artifact.folder}/manifest.json")
        tombstone_bytes = self.source.get(f"{artifact.folder}/{TOMBSTONES_FILE}")
        if manifest_bytes is None:
            raise HallmarkError(
                f"artifact {artifact.name} was removed from the store {self.source.uri} during the "
                "copy, so no run was copied; repeat the command"
            )
        stored_files = self.target.list_object_sizes(artifact.folder)
        entries = [
            (entry, f"{artifact.folder}/{entry['path']}") for entry in artifact.iter_file_entries()
        ]
        self._copy_files(artifact, entries, stored_files)
        if tombstone_bytes is not None:
            self.target.put(f"{artifact.folder}/{TOMBSTONES_FILE}", tombstone_bytes)
        self.target.create_if_absent(f"{artifact.folder}/manifest.json", manifest_bytes)
        stored = self.target.find_artifact(*artifact.name.split("/"))
        if stored is None or stored.content_digest != artifact.content_digest:
            raise HallmarkError(
                f"another process wrote {artifact.name} with different content to the store "
                f"{self.target.uri} during the copy, so no run was copied; choose another store"
            )

    def _restore_missing_files(self, artifact: Artifact, stored: Artifact) -> None:
        """Copy the files that a stored artifact has lost, or that have another size.

        Raises:
            HallmarkError: A file is lost that was rewritten by a purge in the target.
        """
        sizes = self.target.list_object_sizes(stored.folder)
        source_entries = {entry["name"]: entry for entry in artifact.iter_file_entries()}
        lost_entries = []
        for entry in stored.iter_file_entries():
            key = f"{stored.folder}/{entry['path']}"
            if sizes.get(key) == entry["size"]:
                continue
            source_entry = source_entries.get(entry["name"])
            if source_entry is None or source_entry["sha256"] != entry["sha256"]:
                raise stored.location.make_damage_error(
                    f"{self.target.uri}/{key}", "is missing or incomplete"
                )
            lost_entries.append((source_entry, key))
        self._copy_files(artifact, lost_entries, {})

    def _copy_files(
        self,
        artifact: Artifact,
        entries: list[tuple[ManifestEntry, str]],
        stored_sizes: Mapping[str, int],
    ) -> None:
        """Copy files of an artifact in parallel, except those that the target has already.

        Args:
            artifact: The artifact in the source.
            entries: The manifest entries of the files, with their keys in the target.
            stored_sizes: The sizes of the objects of the target, by key.
        """

        def copy_file(entry_and_key: tuple[ManifestEntry, str]) -> int:
            entry, key = entry_and_key
            if stored_sizes.get(key) == entry["size"] and (
                _hash_stored_object(self.target, key) == entry["sha256"]
            ):
                return 0
            with _open_verified_file(artifact, entry) as path:
                self.target.put_file(key, path)
            if _hash_stored_object(self.target, key) != entry["sha256"]:
                self.target.delete([key])
                raise HallmarkError(
                    f"{self.target.uri}/{key} changed during the copy (its SHA-256 hash differs), "
                    "so no run was copied; check the disk or the network, then repeat the command"
                )
            return 1

        with ThreadPoolExecutor(PARALLEL_COPIES) as pool:
            was_copied = list(pool.map(copy_file, entries))
        self.report.copied_files += sum(was_copied)
        self.report.copied_bytes += sum(
            entry["size"] * copied for (entry, _), copied in zip(entries, was_copied, strict=True)
        )

    def _find_reviews(self) -> list[StoredReview]:
        """Find the reviews to copy.

        Raises:
            HallmarkError: The source has a damaged review.
        """
        for stored in read_reviews(self.source):
            if parse_stored_review(stored) is None:
                raise HallmarkError(
                    f"nothing was copied: the review {self.source.uri}/{REVIEWS_FOLDER}/"
                    f"{stored.file_name} is damaged and may be a rejection; restore it from a "
                    "backup, or remove it if it is not a review"
                )
        return find_reviews_of_runs(self.source, self.runs)

    def _copy_reviews_and_releases(self, reviews: Iterable[StoredReview]) -> None:
        """Copy the reviews of the runs with their signatures, and the records of releases."""
        keys_and_contents: list[tuple[str, bytes | None]] = []
        for review in reviews:
            self.report.reviews += 1
            key = f"{REVIEWS_FOLDER}/{review.file_name}"
            keys_and_contents += [
                (key, review.statement),
                (f"{key}{SIGNATURE_SUFFIX}", review.signature),
            ]
        run_ids = {run.id for run in self.runs}
        for release in read_released_versions(self.source):
            if release.run in run_ids:
                key = f"{RELEASED_VERSIONS_FOLDER}/{release.run}.json"
                keys_and_contents.append((key, self.source.get(key)))
        for key, content in keys_and_contents:
            if content is not None and not self.target.create_if_absent(key, content):
                raise HallmarkError(
                    f"{self.target.uri}/{key} already exists with different content, and reviews "
                    "and releases are never overwritten; no run was copied; find out which of the "
                    "two files is correct, then remove the other"
                )


def _check_paths_are_free(artifact: Artifact) -> None:
    """Raise HallmarkError if a file of an artifact would take the place of its manifest."""
    for entry in artifact.iter_file_entries():
        if entry["path"].split("/")[0] in ("manifest.json", TOMBSTONES_FILE):
            raise HallmarkError(
                f"nothing was copied: artifact {artifact.name} is damaged: its manifest.json lists "
                f"a file with the path {entry['path']!r:.80}; remove the artifact's folder and run "
                "again to rebuild it"
            )


def _sort_inputs_first(
    artifacts: Iterable[Artifact], references: Mapping[str, Iterable[str]]
) -> list[Artifact]:
    """Sort artifacts so that each comes after those to which it refers, unless there is a cycle."""
    artifact_by_name = {artifact.name: artifact for artifact in artifacts}
    ordered: list[Artifact] = []
    visited: set[str] = set()
    for first_name in artifact_by_name:
        pending = [(first_name, False)]
        while pending:
            name, is_complete = pending.pop()
            if is_complete:
                ordered.append(artifact_by_name[name])
            elif name in artifact_by_name and name not in visited:
                visited.add(name)
                pending.append((name, True))
                pending += [(reference, False) for reference in references[name]]
    return ordered


def _hash_stored_object(store: Store, key: str) -> str | None:
    """Compute the SHA-256 of an object as it is stored; None if it does not exist."""
    if store.root_folder is None:
        return store.hash_object(key)
    path = store.root_folder / key
    return hash_file(path) if path.exists() else None


@contextmanager
def _open_verified_file(artifact: Artifact, entry: ManifestEntry) -> Iterator[Path]:
    """Yield a local path of a file of the source, after its SHA-256 was compared.

    A remote file is copied into a temporary file, so that a copy does not fill the cache.

    Raises:
        HallmarkError: The file is missing or damaged.
    """
    store = artifact.store
    assert store is not None
    if store.root_folder is not None:
        artifact.location.verify_file_digest(entry)
        yield artifact.location.fetch_file(entry)
        return
    key = f"{artifact.folder}/{entry['path']}"
    store.work_folder.mkdir(parents=True, exist_ok=True)
    # A folder, because a purge removes unknown folders of the work folder.
    with tempfile.TemporaryDirectory(dir=store.work_folder, prefix="copied-") as folder_name:
        path = Path(folder_name, "file")
        with open(path, "wb") as file:
            is_found = store.download_object(key, file)
        if not is_found or hash_file(path) != entry["sha256"]:
            problem = "does not match the SHA-256 in its manifest" if is_found else "is missing"
            raise artifact.location.make_damage_error(f"{store.uri}/{key}", problem)
        yield path


def open_target_store(store_name: str) -> Store:
    """Open the store that receives a copy; a missing folder is created.

    Raises:
        UsageError: It is a folder with files that are not those of a store.
    """
    uri = resolve_store_uri(store_name)
    is_missing = "://" not in uri.removeprefix("file://") and not os.path.lexists(
        uri.removeprefix("file://")
    )
    return open_store(uri, create=is_missing)
