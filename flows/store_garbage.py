"""Find and remove what nothing in a store needs any more, and measure what uses its space.

Needed are the artifacts to which a run, a review or a release refers (``store_references``), and
whatever a living process may be writing or about to use. While a run, a copy or a purge uses the
store, artifacts that were committed are kept, because a run may reuse any of them; then only files
are removed that nobody has written to for a while, and work areas that nobody leases.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from hallmark.flows.checkpoint_versions import COPIES_FOLDER
from hallmark.flows.checkpoint_watch import WATCHED_PREFIX
from hallmark.flows.document_purge import is_unrelated_training
from hallmark.flows.store_references import StoreReferences, read_store_references
from hallmark.flows.store_use import (
    EXCLUSIVE_KINDS,
    USE_FOLDER,
    USE_LEASES_FOLDER,
    announce_use,
    has_dead_writer,
    list_uses,
)
from hallmark.tasks.contract import (
    EQUIVALENT_VERSIONS_FOLDER,
    FETCH_USERS_FOLDER,
    FETCHED_FOLDER,
    TOMBSTONES_FILE,
    Artifact,
    HallmarkError,
    ObjectStatus,
    Store,
    StoredArea,
    is_folder_leased,
    list_stored_areas,
    open_fetched_copies,
    try_lease_folder,
)

#: Hours without a write after which unfinished work counts as given up.
DEFAULT_UNFINISHED_HOURS = 168.0

#: Hours after which the announcement of a command is no longer that of a living process, which
#: renews it every few seconds.
ANNOUNCEMENT_HOURS = 1.0

GarbageKind = Literal[
    "artifact",
    "unfinished artifact",
    "unused file",
    "temporary file",
    "work area",
    "training state",
    "cache",
]

#: The kinds of garbage with the words for a terminal.
KIND_DESCRIPTIONS: dict[GarbageKind, str] = {
    "artifact": "artifacts that no run, review or release needs",
    "unfinished artifact": "artifacts that were never committed",
    "unused file": "files of artifacts that were replaced or never committed",
    "temporary file": "temporary files of dead processes",
    "work area": "work areas of dead processes",
    "training state": "states and leases of dead processes in the store",
    "cache": "caches, which are rebuilt when needed",
}

#: Prefixes of a store with small files that are written at once.
RECORD_PREFIXES = (
    "runs",
    "run-order",
    "reviews",
    "releases",
    EQUIVALENT_VERSIONS_FOLDER,
    WATCHED_PREFIX,
    USE_FOLDER,
)

#: How obstore and the contract name the files to which they write before they rename them.
_TEMPORARY_NAME = re.compile(r".*#[0-9]+|tmp[a-z0-9_]{8}")
_TEMPORARY_WORK_FILE = re.compile(r"digests\.(?!json$).*")
_TEMPORARY_WORK_FOLDER = re.compile(r"purged-[0-9a-f]{12}|copied-[a-z0-9_]{8}")
_WORK_AREA = re.compile(r"(\w+)-([0-9a-f]{16})")

#: Folders of the work folder with caches: copies of remote objects and of watched checkpoints.
_CACHE_FOLDERS = (FETCHED_FOLDER, COPIES_FOLDER)

#: Prefix of the folders of the work folder with indexes of texts, which are caches.
_TEXT_INDEX_PREFIX = "text_index-"


@dataclass(frozen=True)
class Garbage:
    """Something that can be removed.

    Attributes:
        kind: What it is.
        name: Its name for the report.
        files: Number of its files.
        bytes: Their size.
        keys: The keys of its objects in the order in which they must be removed.
        path: The folder or file of this machine; None for objects of the store.
    """

    kind: GarbageKind
    name: str
    files: int
    bytes: int
    keys: tuple[str, ...] = ()
    path: Path | None = None


@dataclass
class GarbageReport:
    """What can be removed from a store, or was removed.

    Attributes:
        store: The address of the store.
        is_deleted: Whether it was removed.
        in_use_by: What uses the store, so that committed artifacts were kept; None if nothing does.
        problems: A sentence about each run or artifact that cannot be read. What it needs is
            unknown, so committed artifacts were kept.
        garbage: What can be removed, or was removed.
    """

    store: str
    is_deleted: bool
    in_use_by: str | None = None
    problems: list[str] = field(default_factory=list)
    garbage: list[Garbage] = field(default_factory=list)

    @property
    def byte_count(self) -> int:
        return sum(item.bytes for item in self.garbage)


def collect_garbage(
    store: Store, *, delete: bool, unfinished_hours: float = DEFAULT_UNFINISHED_HOURS
) -> GarbageReport:
    """Find what nothing needs, and remove it.

    Args:
        store: The store.
        delete: Whether to remove it.
        unfinished_hours: Hours without a write after which unfinished work counts as given up.

    Raises:
        HallmarkError: A purge or another garbage collection works on the store.
    """
    with ExitStack() as stack:
        own_token = stack.enter_context(announce_use(store, "gc")) if delete else None
        with ExitStack() as test_of_lock:
            got_lock = test_of_lock.enter_context(store.try_exclusive_lock())
            if delete:
                stack.enter_context(test_of_lock.pop_all())
        other_uses = list_uses(store, own_token)
        for use in other_uses:
            if delete and use.kind in EXCLUSIVE_KINDS:
                raise HallmarkError(
                    f"{use} is using the store {store.uri}, so nothing was removed; wait until it "
                    "has ended, then repeat the command"
                )
        # A run is read once: one that cannot be read now is a problem, and never an ended run.
        references = read_store_references(store)
        in_use_by = next(
            (f"run {run.id} on {run.record['host']}" for run in references.running),
            str(other_uses[0]) if other_uses else None,
        )
        if in_use_by is None and not got_lock:
            in_use_by = "another process on this machine"
        report = GarbageReport(store.uri, delete, in_use_by, references.problems)
        finder = _GarbageFinder(store, references, in_use_by is None, unfinished_hours)
        for item in finder.iter_garbage():
            if not delete or _remove(store, item):
                report.garbage.append(item)
        if delete and in_use_by is None and store.root_folder is not None:
            _remove_empty_folders(store.root_folder / "artifacts")
        return report


def _remove_empty_folders(folder: Path) -> None:
    """Remove the empty folders below a folder, which a killed collection may have left behind."""
    for parent, _, _ in os.walk(folder, topdown=False, followlinks=False):
        if parent != str(folder):
            with suppress(OSError):  # not empty
                os.rmdir(parent)


@dataclass
class _GarbageFinder:
    """Finds what nothing needs.

    Attributes:
        store: The store.
        references: What its runs, reviews and releases refer to.
        is_idle: Whether nobody else uses the store.
        unfinished_hours: Hours without a write after which unfinished work counts as given up.
    """

    store: Store
    references: StoreReferences
    is_idle: bool
    unfinished_hours: float

    def __post_init__(self) -> None:
        self.needed_names = self.references.needed_names
        self.now = self.store.read_current_time()

    def iter_garbage(self) -> Iterator[Garbage]:
        yield from self._iter_artifact_garbage()
        yield from self._iter_temporary_files()
        yield from self._iter_state_garbage()
        yield from self._iter_work_garbage()

    def _is_given_up(self, statuses: Iterable[ObjectStatus], hours: float | None = None) -> bool:
        """Whether no file was written for a while, so that its writer is dead."""
        if self.now is None:  # this process may not write to the store, nor remove from it
            return False
        limit = timedelta(hours=self.unfinished_hours if hours is None else hours)
        return all(self.now - status.modified > limit for status in statuses)

    def _iter_artifact_garbage(self) -> Iterator[Garbage]:
        for name, files in _group_by_artifact(self.store.list_stored_files("artifacts")).items():
            folder = f"artifacts/{name}"
            manifest_key = f"{folder}/manifest.json"
            if manifest_key not in files:
                if self.is_idle or self._is_given_up(files.values()):
                    yield _make_garbage("unfinished artifact", name, files)
            elif name not in self.needed_names:
                # What damaged runs and artifacts need is unknown, and a run may reuse any artifact.
                if self.is_idle and not self.references.problems:
                    ordered = {manifest_key: files[manifest_key]} | files
                    yield _make_garbage("artifact", name, ordered)
            elif (artifact := self.references.graph.nodes[name].artifact) is not None:
                unused = {
                    key: status
                    for key, status in files.items()
                    if key not in _list_artifact_keys(artifact)
                }
                if unused and (self.is_idle or self._is_given_up(unused.values())):
                    yield _make_garbage("unused file", name, unused)

    def _iter_temporary_files(self) -> Iterator[Garbage]:
        for prefix in RECORD_PREFIXES:
            for key, status in self.store.list_stored_files(prefix).items():
                is_dead_announcement = prefix == USE_FOLDER and (
                    self._is_given_up([status], ANNOUNCEMENT_HOURS)
                    or has_dead_writer(self.store, key)
                )
                is_temporary = _TEMPORARY_NAME.fullmatch(key.rsplit("/", 1)[-1]) is not None and (
                    self.is_idle or self._is_given_up([status])
                )
                if is_dead_announcement or is_temporary:
                    yield _make_garbage("temporary file", key, {key: status})
        if self.store.root_folder is None:
            return
        for path in sorted(self.store.root_folder.iterdir()):
            if _TEMPORARY_NAME.fullmatch(path.name) and path.is_file() and not path.is_symlink():
                yield from self._iter_unused_local_file(path)

    def _iter_state_garbage(self) -> Iterator[Garbage]:
        """Find states and leases in an object store from which no run can continue."""
        for area in list_stored_areas(self.store):
            if area.is_leased(self.now):
                continue
            is_given_up = self._is_given_up(area.files.values())
            if is_given_up or (self.is_idle and self._is_ended(area)):
                yield _make_garbage("training state", f"work-states/{area.name}", area.files)
            elif self.is_idle and (unlisted := area.find_unlisted_keys(self.store)):
                files = {key: area.state_files[key] for key in sorted(unlisted)}
                yield _make_garbage("training state", f"work-states/{area.name}", files)

    def _is_ended(self, area: StoredArea) -> bool:
        """Whether the artifacts of all trainings that sent states are committed."""
        match = _WORK_AREA.fullmatch(area.name)
        if match is None or area.record is None:
            return False
        return all(
            self.store.get(f"artifacts/{match[1]}/{work.fingerprint[:16]}/manifest.json")
            for work in area.record.works.values()
        )

    def _iter_work_garbage(self) -> Iterator[Garbage]:
        """Find work areas, caches and temporary files in the work folder of this machine."""
        work_folder = self.store.work_folder
        for path in sorted(work_folder.iterdir()) if work_folder.is_dir() else []:
            if path.is_symlink():
                continue
            if not path.is_dir():
                if _TEMPORARY_WORK_FILE.fullmatch(path.name):
                    yield from self._iter_unused_local_file(path)
            elif path.name == USE_LEASES_FOLDER:
                for lease in sorted(path.iterdir()):
                    if is_folder_leased(lease) is False:
                        yield _make_local_garbage("temporary file", lease)
            elif path.name == FETCH_USERS_FOLDER:
                for list_path in open_fetched_copies(work_folder).list_ended_user_files():
                    if (status := _read_local_status(list_path)) is not None:
                        yield Garbage(
                            "temporary file", list_path.name, 1, status.size, path=list_path
                        )
            elif path.name in _CACHE_FOLDERS or path.name.startswith(_TEXT_INDEX_PREFIX):
                if self.is_idle and any(path.iterdir()):
                    yield _make_local_garbage("cache", path)
            elif _TEMPORARY_WORK_FOLDER.fullmatch(path.name):
                if self.is_idle:
                    yield _make_local_garbage("temporary file", path)
            elif path.name.startswith("run-"):
                if is_folder_leased(path) is False:
                    yield _make_local_garbage("temporary file", path)
            elif (
                (match := _WORK_AREA.fullmatch(path.name)) is not None
                and is_folder_leased(path) is not True
                and self._is_work_area_unneeded(path, match)
            ):
                yield _make_local_garbage("work area", path)

    def _iter_unused_local_file(self, path: Path) -> Iterator[Garbage]:
        status = _read_local_status(path)
        if status is not None and (self.is_idle or self._is_given_up([status])):
            yield Garbage("temporary file", path.name, 1, status.size, path=path)

    def _is_work_area_unneeded(self, work_area: Path, match: re.Match[str]) -> bool:
        """Whether no run can continue from a work area that nobody leases.

        The states of a training serve as long as its packed corpus is kept, also for a training
        with more steps. The finished items of another stage serve until its artifact is committed.
        """
        if (work_area / "job.json").is_file():
            return is_unrelated_training(work_area, self.needed_names)
        if self.store.get(f"artifacts/{match[1]}/{match[2]}/manifest.json") is not None:
            return True
        return self._is_given_up(_list_local_files(work_area).values())


def _group_by_artifact(files: Mapping[str, ObjectStatus]) -> dict[str, dict[str, ObjectStatus]]:
    """Group the keys below "artifacts" by the artifact, "stage/fingerprint"."""
    groups: dict[str, dict[str, ObjectStatus]] = {}
    for key, status in sorted(files.items()):
        _, *parts = key.split("/")
        if len(parts) > 2:
            groups.setdefault("/".join(parts[:2]), {})[key] = status
    return groups


def _list_artifact_keys(artifact: Artifact) -> set[str]:
    names = [entry["path"] for entry in artifact.iter_file_entries()]
    return {f"{artifact.folder}/{name}" for name in (*names, "manifest.json", TOMBSTONES_FILE)}


def _make_garbage(kind: GarbageKind, name: str, files: Mapping[str, ObjectStatus]) -> Garbage:
    byte_count = sum(status.size for status in files.values())
    return Garbage(kind, name, len(files), byte_count, keys=tuple(files))


def _make_local_garbage(kind: GarbageKind, path: Path) -> Garbage:
    files = _list_local_files(path)
    byte_count = sum(status.size for status in files.values())
    return Garbage(kind, f"work/{path.name}", len(files), byte_count, path=path)


def _list_local_files(folder: Path) -> dict[str, ObjectStatus]:
    statuses = {
        str(path): _read_local_status(path)
        for parent, _, names in os.walk(folder, followlinks=False)
        for path in (Path(parent, name) for name in names)
    }
    return {name: status for name, status in statuses.items() if status is not None}


def _read_local_status(path: Path) -> ObjectStatus | None:
    """Read the size and the time of a file; None if somebody removed it."""
    with suppress(FileNotFoundError):
        status = path.lstat()
        return ObjectStatus(status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))
    return None


def _remove(store: Store, item: Garbage) -> bool:
    """Remove garbage; return False if somebody began to use it meanwhile."""
    if item.path is not None:
        if not item.path.is_dir():
            item.path.unlink(missing_ok=True)
            return True
        with try_lease_folder(item.path) as is_leased:
            if is_leased is False:
                return False
            shutil.rmtree(item.path, ignore_errors=True)
        return True
    # The manifest comes first: without it, the artifact does not exist.
    store.delete_stored_files(item.keys[:1])
    store.delete_stored_files(item.keys[1:])
    return True


# What uses the space -------------------------------------------------------------------------


@dataclass(frozen=True)
class ArtifactKindUsage:
    """The space of the artifacts of a stage."""

    stage: str
    artifacts: int
    files: int
    bytes: int


@dataclass(frozen=True)
class RunUsage:
    """The space of the artifacts of a run.

    Attributes:
        run: The id of the run.
        bytes: The size of all artifacts to which it refers.
        own_bytes: The size of those to which no other run refers.
    """

    run: str
    bytes: int
    own_bytes: int


@dataclass(frozen=True)
class FolderUsage:
    """The space of one of the other folders of a store."""

    name: str
    files: int
    bytes: int


@dataclass(frozen=True)
class StoreUsage:
    """What uses the space of a store.

    Attributes:
        store: The address of the store.
        files: Number of all files, with those in the work folder of this machine.
        bytes: Their size.
        stages: The artifacts by stage, the largest first.
        runs: The runs, oldest first.
        shared_bytes: The size of the artifacts to which several runs refer.
        folders: Everything else, by folder.
        reclaimable_bytes: The size of what ``hallmark gc --delete`` would remove now.
        problems: A sentence about each run or artifact that cannot be read.
    """

    store: str
    files: int
    bytes: int
    stages: list[ArtifactKindUsage]
    runs: list[RunUsage]
    shared_bytes: int
    folders: list[FolderUsage]
    reclaimable_bytes: int
    problems: list[str]


def measure_usage(store: Store) -> StoreUsage:
    """Measure what uses the space of a store; nothing is changed."""
    references = read_store_references(store)  # this may fetch files, which are then counted
    reclaimable_bytes = collect_garbage(store, delete=False).byte_count
    files = store.list_stored_files("")
    if store.root_folder is None:
        files |= {
            f"work/{Path(name).relative_to(store.work_folder)}": status
            for name, status in _list_local_files(store.work_folder).items()
        }
    files_by_artifact = _group_by_artifact(
        {key: status for key, status in files.items() if key.startswith("artifacts/")}
    )
    artifact_sizes = {
        name: sum(status.size for status in group.values())
        for name, group in files_by_artifact.items()
    }
    return StoreUsage(
        store.uri,
        len(files),
        sum(status.size for status in files.values()),
        _measure_stages(files_by_artifact, artifact_sizes),
        *_measure_runs(references, artifact_sizes),
        _measure_folders(files),
        reclaimable_bytes,
        references.problems,
    )


def _measure_stages(
    files_by_artifact: Mapping[str, Mapping[str, ObjectStatus]], artifact_sizes: Mapping[str, int]
) -> list[ArtifactKindUsage]:
    names_by_stage: dict[str, list[str]] = {}
    for name in files_by_artifact:
        names_by_stage.setdefault(name.split("/")[0], []).append(name)
    usages = [
        ArtifactKindUsage(
            stage,
            len(names),
            sum(len(files_by_artifact[name]) for name in names),
            sum(artifact_sizes[name] for name in names),
        )
        for stage, names in names_by_stage.items()
    ]
    return sorted(usages, key=lambda usage: (-usage.bytes, usage.stage))


def _measure_runs(
    references: StoreReferences, artifact_sizes: Mapping[str, int]
) -> tuple[list[RunUsage], int]:
    """Measure the artifacts of each run, and those that several runs share."""
    run_counts: dict[str, int] = {}
    for names in references.names_by_run.values():
        for name in names:
            run_counts[name] = run_counts.get(name, 0) + 1
    usages = [
        RunUsage(
            run_id,
            sum(artifact_sizes.get(name, 0) for name in names),
            sum(artifact_sizes.get(name, 0) for name in names if run_counts[name] == 1),
        )
        for run_id, names in references.names_by_run.items()
    ]
    shared_bytes = sum(
        artifact_sizes.get(name, 0) for name, count in run_counts.items() if count > 1
    )
    return usages, shared_bytes


def _measure_folders(files: Mapping[str, ObjectStatus]) -> list[FolderUsage]:
    sizes_by_folder: dict[str, list[int]] = {}
    for key, status in files.items():
        first, *rest = key.split("/")
        if first != "artifacts":
            folder = f"work/{rest[0].split('-')[0]}" if first == "work" and rest else first
            sizes_by_folder.setdefault(folder, []).append(status.size)
    usages = [
        FolderUsage(folder, len(sizes), sum(sizes)) for folder, sizes in sizes_by_folder.items()
    ]
    return sorted(usages, key=lambda usage: (-usage.bytes, usage.name))
