"""Check that a stage's inputs outside the store stay unchanged until its commit.

The fingerprint contains the digests of these folders and files, but the stage reads them later.
``stages.py`` therefore monitors them; ``external_files.py`` records and compares their states.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from hallmark.tasks.contract.artifact import (
    DIGEST_MISMATCH,
    Artifact,
    build_file_entry,
    hash_file_cached,
)
from hallmark.tasks.contract.errors import FileChangedError
from hallmark.tasks.contract.external_files import (
    ExternalFiles,
    FolderListing,
    format_file_changed_message,
    format_file_missing_message,
)
from hallmark.tasks.contract.inputs import iter_artifacts
from hallmark.tasks.contract.lease import clear_folder
from hallmark.tasks.contract.local_objects import read_regular_file
from hallmark.tasks.contract.manifests import compute_content_digest
from hallmark.tasks.contract.object_store import is_store_folder
from hallmark.tasks.contract.stage_call import StageCall

#: Name of the file in a work area that records the states of the files outside the store at the
#: start of an attempt.
RECORD_FILE = "external.json"


def list_visible_relative_paths(folder: Path) -> list[str]:
    """List the names of the files below a folder, sorted, without hidden files and stores."""
    names: list[str] = []
    for subfolder, folders, files in os.walk(folder):
        subfolder_path = Path(subfolder)
        folders[:] = [
            name
            for name in folders
            if name[0] != "." and not is_store_folder(subfolder_path / name)
        ]
        paths = (subfolder_path / name for name in files if name[0] != ".")
        names += [str(path.relative_to(folder)) for path in paths if path.is_file()]
    return sorted(names)


def folder_to_artifact(folder: Path, stage: str) -> Artifact:
    """Describe a folder outside the store, such as a Hugging Face checkpoint, as an artifact.

    Args:
        folder: The folder.
        stage: Stage name of the artifact.

    Raises:
        FileChangedError: A file vanished after the folder was listed.
    """
    file_entries = {}
    for name in list_visible_relative_paths(folder):
        try:
            file_entries[name] = build_file_entry(folder, name)
        except FileNotFoundError as error:
            raise FileChangedError(format_file_missing_message(folder / name)) from error
    digest = compute_content_digest({}, file_entries)
    manifest = {"stage": stage, "fingerprint": digest, "content": digest, "tables": {}}
    return Artifact({**manifest, "files": file_entries, "telemetry": {}}, None, str(folder))


def record_external_folder(
    artifact: Artifact, new_file_patterns: Sequence[str] = (), ignored_folder: Path | None = None
) -> ExternalFiles:
    """Record the present states of the files of a folder outside the store.

    Args:
        artifact: Result of ``folder_to_artifact``; for an artifact in a store, nothing is recorded.
        new_file_patterns: Patterns of file names; a new file that matches one counts as a change.
        ignored_folder: A folder whose files may change, such as a store inside this folder.

    Raises:
        FileChangedError: A file no longer has the digest of the manifest.
    """
    external_files = ExternalFiles()
    if artifact.store is not None:
        return external_files
    folder = Path(artifact.folder)

    def list_present_names() -> list[str]:
        return [
            name
            for name in list_visible_relative_paths(folder)
            if any(fnmatchcase(name, pattern) for pattern in new_file_patterns)
            and not (ignored_folder and (folder / name).is_relative_to(ignored_folder))
        ]

    with external_files.record_hashed_files():
        for entry in artifact.iter_file_entries():
            path = folder / entry["name"]
            if ignored_folder and path.is_relative_to(ignored_folder):
                continue
            try:
                digest = hash_file_cached(artifact.location.fetch_file(entry))
            except FileNotFoundError as error:  # it vanished meanwhile
                raise FileChangedError(format_file_missing_message(path)) from error
            if digest != entry["sha256"]:
                raise artifact.location.make_damage_error(path, DIGEST_MISMATCH)
    external_files.folder_listings.append(
        FolderListing(list_present_names, [*artifact.manifest["files"]], artifact.folder)
    )
    return external_files


@dataclass(frozen=True)
class ExternalInputMonitor:
    """The states of all files outside the store that a stage reads, from before it started."""

    file_groups: list[ExternalFiles]
    external_digests: Mapping[str, str]
    """Result of ``compute_digests`` that entered the fingerprint."""
    compute_digests: Callable[[], dict[str, str]]
    """Compute the digests of everything that the stage reads from outside the store."""

    def clear_outdated_work_area_and_record_files(self, work_area: Path) -> None:
        """Clear a work area if its earlier attempt read other files, and record the present ones.

        A finished attempt leaves no record in the work area.
        """
        record_path = work_area / RECORD_FILE
        if record_path.exists() and not self._matches_record(record_path):
            clear_folder(work_area)
        if states := [group.to_json() for group in self.file_groups if group.file_states]:
            record_path.write_text(json.dumps(states))

    def _matches_record(self, record_path: Path) -> bool:
        try:
            recorded_groups = list(
                map(ExternalFiles.from_json, json.loads(read_regular_file(record_path)))
            )
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return False  # cut off by a power failure
        current_paths = [[*group.file_states] for group in self.file_groups if group.file_states]
        recorded_paths = [[*group.file_states] for group in recorded_groups]
        return recorded_paths == current_paths and not _describe_first_change(recorded_groups)

    def check_unchanged(self) -> None:
        """Raise FileChangedError if any file changed."""
        if change := _describe_first_change(self.file_groups):
            raise FileChangedError(change)

    def guard_commit(self, commit_child: Callable[..., Artifact]) -> Callable[..., Artifact]:
        """Wrap a commit function so that it raises FileChangedError if any file changed."""

        def commit_if_unchanged(*arguments: Any) -> Artifact:
            self.check_unchanged()
            return commit_child(*arguments)

        return commit_if_unchanged

    def run_body_and_check_unchanged(self, body: Callable[..., None], /, **arguments: Any) -> None:
        """Run a stage's body, then check that no file changed.

        Raises:
            FileChangedError: A file changed. This replaces an error of the body, which the change
                may explain.
        """
        try:
            body(**arguments)
        except Exception:
            self.check_unchanged()  # its message names the file that changed
            raise
        self.check_unchanged()
        try:
            with self.file_groups[0].reuse_recorded_digests():
                current_digests = self.compute_digests()
        except Exception:
            self.check_unchanged()  # a file may have vanished meanwhile
            raise
        for name in [*self.external_digests, *current_digests]:
            if self.external_digests.get(name) != current_digests.get(name):
                raise FileChangedError(format_file_changed_message(f"external input {name!r}"))


def monitor_external_inputs(call: StageCall, work_area: Path) -> ExternalInputMonitor:
    """Record the files that a call reads from outside the store, and prepare its work area.

    Raises:
        FileChangedError: A file changed since the fingerprint was computed.
    """
    root_folder, stage = call.session.store.root_folder, call.stage
    compute_digests = partial(stage.compute_external_digests, call.config, call.session.store)
    monitor = ExternalInputMonitor(
        [call.external_files],
        call.fingerprint_components["external"],
        compute_digests,
    )
    try:
        for input_name, input_value in call.arguments.items():
            for artifact in iter_artifacts([input_value]):
                monitor.file_groups.append(
                    record_external_folder(
                        artifact, stage.reads.get(input_name, ("*",)), root_folder
                    )
                )
        monitor.check_unchanged()
    except FileChangedError as error:
        raise FileChangedError(f"stage {call.label}: {error}") from error
    monitor.clear_outdated_work_area_and_record_files(work_area)
    return monitor


def _describe_first_change(file_groups: Iterable[ExternalFiles]) -> str | None:
    return next(filter(None, (group.describe_first_change() for group in file_groups)), None)
