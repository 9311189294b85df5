"""Folders and files outside the store as inputs of a stage, from its fingerprint to its commit."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.contract.artifact import UNLIKE, Artifact, content_digest, describe, known_digest
from tasks.contract.errors import FileChangedError
from tasks.contract.external_files import ExternalFiles, changed_sentence, missing_sentence
from tasks.contract.inputs import artifacts_of
from tasks.contract.lease import empty
from tasks.contract.objects import is_store_folder

if TYPE_CHECKING:
    from tasks.contract.stages import Call

#: Name of the file in a work area that says what the files outside the store were when an attempt
#: began.
RECORD = "external.json"


def external_names(folder: Path) -> list[str]:
    """Names of the files below a folder, in order, without hidden ones and those of a store."""
    names: list[str] = []
    for inner, folders, files in os.walk(folder):
        place = Path(inner)
        folders[:] = [
            name for name in folders if name[0] != "." and not is_store_folder(place / name)
        ]
        paths = (place / name for name in files if name[0] != ".")
        names += [str(path.relative_to(folder)) for path in paths if path.is_file()]
    return sorted(names)


def external(folder: Path, stage: str) -> Artifact:
    """A folder that Hallmark did not make (a Hugging Face checkpoint), as an artifact.

    Raises:
        FileChangedError: A file vanished after the folder was listed.
    """
    files = {}
    for name in external_names(folder):
        try:
            files[name] = describe(folder, name)
        except FileNotFoundError as error:
            raise FileChangedError(missing_sentence(folder / name)) from error
    content = content_digest({}, files)
    manifest = {"stage": stage, "fingerprint": content, "content": content, "tables": {}}
    return Artifact({**manifest, "files": files, "telemetry": {}}, None, str(folder))


def watch_folder(
    artifact: Artifact, patterns: Sequence[str] = (), ignored: Path | None = None
) -> ExternalFiles:
    """The files of a folder of the user's, as they are now; none of an artifact of a store.

    Args:
        artifact: What ``external`` made of the folder.
        patterns: Names of files that count where they appear later.
        ignored: A folder whose files may come and go, such as a store inside of this one.

    Raises:
        FileChangedError: A file has no longer the digest of the manifest.
    """
    watched = ExternalFiles()
    if artifact.store is not None:
        return watched
    folder = Path(artifact.folder)

    def list_names() -> list[str]:
        return [
            name
            for name in external_names(folder)
            if any(fnmatchcase(name, pattern) for pattern in patterns)
            and not (ignored and (folder / name).is_relative_to(ignored))
        ]

    with watched.record():
        for entry in artifact.entries():
            path = folder / entry["name"]
            if ignored and path.is_relative_to(ignored):
                continue
            try:
                digest = known_digest(artifact.place.fetch(entry))
            except FileNotFoundError as error:  # between two looks at it
                raise FileChangedError(missing_sentence(path)) from error
            if digest != entry["sha256"]:
                raise artifact.place.damaged(path, UNLIKE)
    watched.listings.append((list_names, [*artifact.manifest["files"]], artifact.folder))
    return watched


@dataclass(frozen=True)
class Watch:
    """All files outside the store that a stage reads, as they were before it began."""

    files: list[ExternalFiles]
    digests: Mapping[str, str]
    """What ``take_digests`` gave for the fingerprint."""
    take_digests: Callable[[], dict[str, str]]

    def prepare(self, area: Path) -> None:
        """Remove from a work area what an earlier attempt made of files that changed since it
        began, and write down what they are now. A finished attempt leaves no record there."""
        record = area / RECORD
        if record.exists() and not self._is_same(record):
            empty(area)
        if states := [files.to_json() for files in self.files if files.files]:
            record.write_text(json.dumps(states))

    def _is_same(self, record: Path) -> bool:
        try:
            before = list(map(ExternalFiles.from_json, json.loads(record.read_bytes())))
        except (ValueError, TypeError, KeyError, AttributeError):
            return False  # written when the power went
        names = [[*files.files] for files in self.files if files.files]
        return [[*files.files] for files in before] == names and not _first_change(before)

    def check_files(self) -> None:
        """Raise FileChangedError where a file is not what it was."""
        if change := _first_change(self.files):
            raise FileChangedError(change)

    def guard(self, commit_child: Callable[..., Artifact]) -> Callable[..., Artifact]:
        """A function that commits what it is given, unless a file is not what it was."""

        def guarded(*arguments: Any) -> Artifact:
            self.check_files()
            return commit_child(*arguments)

        return guarded

    def run(self, body: Callable[..., None], /, **arguments: Any) -> None:
        """Run a stage's body.

        Raises:
            FileChangedError: A file is not what it was, be it that this explains another error.
        """
        try:
            body(**arguments)
        except Exception:
            self.check_files()  # also where the body noticed: the digests tell what changed
            raise
        self.check_files()
        try:
            with self.files[0].recall():
                now = self.take_digests()
        except Exception:
            self.check_files()  # a file vanished between two looks at it
            raise
        for name in [*self.digests, *now]:
            if self.digests.get(name) != now.get(name):
                raise FileChangedError(changed_sentence(f"what {name!r} names outside the store"))


def watch_outside(call: Call, area: Path) -> Watch:
    """Watch what a call reads outside the store, and make its work area fit for it.

    Raises:
        FileChangedError: A file is not what the fingerprint says.
    """
    root, stage = call.session.store.root, call.stage
    again = partial(stage.outside, call.config, call.session.store)
    watch = Watch([call.outside], call.parts["external"], again)
    try:
        for name, value in call.arguments.items():
            for artifact in artifacts_of([value]):
                watch.files.append(watch_folder(artifact, stage.reads.get(name, ("*",)), root))
        watch.check_files()
    except FileChangedError as error:
        raise FileChangedError(f"stage {call.label}: {error}") from error
    watch.prepare(area)
    return watch


def _first_change(files: Iterable[ExternalFiles]) -> str | None:
    return next(filter(None, (each.find_change() for each in files)), None)
