"""Count a patch release of a library as an earlier one, where a store records that they are equal.

    <store>/equivalent-versions/<library>-<version>.json

The versions of libraries enter fingerprints, so a new version computes everything again.
``hallmark replay --declare-equivalent`` writes a record after runs of different configs had the
same content with both versions. From then on, the fingerprints of this store contain the version
that the record names in place of the new one, for the stages that were compared. Manifests still
name the versions that were used.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cached_property
from typing import Annotated, Any, Self

from packaging.version import InvalidVersion, Version
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from hallmark.tasks.contract.errors import HallmarkError
from hallmark.tasks.contract.fingerprint import read_installed_version
from hallmark.tasks.contract.local_objects import escape_name
from hallmark.tasks.contract.manifests import ARTIFACT_NAME_PATTERN, describe_validation_problem
from hallmark.tasks.contract.object_store import EQUIVALENT_VERSIONS_FOLDER, ObjectStore
from hallmark.tasks.contract.wording import format_count

#: The number of runs of different configs that a record needs.
MIN_COMPARED_RUNS = 2

_LIBRARY_PATTERN, _VERSION_PATTERN = r"[A-Za-z0-9][\w.-]*", r"[0-9][\w.+!]*"

_RECORD_KEY = re.compile(
    rf"{EQUIVALENT_VERSIONS_FOLDER}/({_LIBRARY_PATTERN}-{_VERSION_PATTERN})\.json"
)


def is_patch_release(version: str, other_version: str) -> bool:
    """Whether two versions are releases that differ in the patch number only.

    "2.13.0+cpu" and "2.13.1+cpu" do; those of different builds and pre-releases do not.
    """
    try:
        versions = Version(version), Version(other_version)
    except InvalidVersion:
        return False
    identities = [
        (each.epoch, (*each.release, 0)[:2], each.local, each.pre, each.dev) for each in versions
    ]
    return (
        identities[0] == identities[1]
        and versions[0] != versions[1]
        and not versions[0].is_prerelease
    )


def _check_time(time: str) -> str:
    datetime.fromisoformat(time)
    return time


_ArtifactName = Annotated[str, Field(pattern=rf"^{ARTIFACT_NAME_PATTERN.pattern}$")]
_Library = Annotated[str, Field(pattern=rf"^{_LIBRARY_PATTERN}$", max_length=200)]
_Version = Annotated[str, Field(pattern=rf"^{_VERSION_PATTERN}$", max_length=200)]
_RunId = Annotated[str, Field(pattern=r"^[\w-]+$", max_length=200)]


class _RecordPart(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class ComparedRun(_RecordPart):
    """A run whose replay had the same content."""

    run: _RunId
    """Its id."""
    replay: _RunId
    """The id of the replay."""
    digests: Annotated[dict[_ArtifactName, str], Field(min_length=1)]
    """The content digests of the artifacts that the library helped to compute, by their names."""

    @property
    def stages(self) -> set[str]:
        """The names of the stages that computed the artifacts."""
        return {name.partition("/")[0] for name in self.digests}


class EquivalentVersion(_RecordPart):
    """The record that a version of a library counts as an earlier one."""

    library: _Library
    version: _Version
    counts_as: _Version
    """The version that takes its place in fingerprints."""
    declared: Annotated[str, AfterValidator(_check_time)]
    """When the record was written."""
    platform: str
    """The machine of the replays."""
    other_changes: dict[str, str]
    """Other libraries whose version differed between the runs and their replays, such as
    "2.4.5 → 2.4.6"."""
    runs: Annotated[list[ComparedRun], Field(min_length=MIN_COMPARED_RUNS)]
    """The runs that were replayed."""

    @model_validator(mode="after")
    def _check_versions_and_runs(self) -> Self:
        if not is_patch_release(self.version, self.counts_as):
            raise ValueError("its two versions must differ only in the patch number")
        if len({compared.run for compared in self.runs}) < MIN_COMPARED_RUNS:
            raise ValueError(f"it must list {MIN_COMPARED_RUNS} different runs")
        if not self.stages:
            raise ValueError(f"it must list {MIN_COMPARED_RUNS} runs that include the same stage")
        return self

    @cached_property
    def stages(self) -> frozenset[str]:
        """The stages for which the record holds: those that at least two of the runs have."""
        stages_by_run: dict[str, set[str]] = {}
        for compared in self.runs:
            stages_by_run.setdefault(compared.run, set()).update(compared.stages)
        run_counts = Counter(stage for stages in stages_by_run.values() for stage in stages)
        return frozenset(stage for stage, count in run_counts.items() if count >= MIN_COMPARED_RUNS)

    @property
    def key(self) -> str:
        """The key of the record in the store."""
        return f"{EQUIVALENT_VERSIONS_FOLDER}/{self.library}-{self.version}.json"

    def to_json(self) -> bytes:
        """Return the record as the store keeps it."""
        return self.model_dump_json(indent=1).encode()

    def __str__(self) -> str:
        runs = " and ".join(compared.run for compared in self.runs)
        return (
            f"{self.library} {self.version} is treated as {self.counts_as} in "
            f"{format_count(len(self.stages), 'stage')} (declared on {self.declared[:10]}: "
            f"replays of the runs {runs} produced the same content)"
        )


class EquivalentVersions:
    """The records of a store; each is read when it is first needed.

    Args:
        store: The store.
    """

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self._records: dict[str, EquivalentVersion] = {}

    @cached_property
    def names(self) -> frozenset[str]:
        """The library and the version of each record, joined by a hyphen."""
        matches = map(_RECORD_KEY.fullmatch, self.store.list_keys(EQUIVALENT_VERSIONS_FOLDER))
        return frozenset(match[1] for match in matches if match)

    def find_record(self, library: str, version: str) -> EquivalentVersion | None:
        """Return the record of a version; None if there is none.

        Raises:
            HallmarkError: The record is damaged.
        """
        name = f"{library}-{version}"
        if name not in self.names:
            return None
        if name not in self._records:
            record = self._read_record(name)
            if record is None:  # somebody removed it meanwhile
                return None
            if (record.library, record.version) != (library, version):
                raise self._make_damage_error(name, "it describes another version")
            self._records[name] = record
        return self._records[name]

    def count_as(self, library: str, version: str, stage: str) -> str:
        """Return the version that fingerprints of a stage contain in place of a version.

        Raises:
            HallmarkError: A record is damaged, or the records form a circle.
        """
        for record in self.iter_chain(library, version, stage):
            version = record.counts_as
        return version

    def iter_chain(self, library: str, version: str, stage: str) -> Iterator[EquivalentVersion]:
        """Yield the record of a version, then that of the version that it names, and so on.

        Records that do not hold for the stage end the chain.

        Raises:
            HallmarkError: A record is damaged, or the records form a circle.
        """
        passed_versions = {version}
        while (record := self.find_record(library, version)) and stage in record.stages:
            yield record
            version = record.counts_as
            if version in passed_versions:
                name = f"{library}-{record.version}"
                raise self._make_damage_error(name, "it leads back to the same version")
            passed_versions.add(version)

    def replace_versions(self, components: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the versions in the components of a fingerprint by those that count.

        The digests of external inputs contain the versions of the libraries of scorers.
        """
        replaced, stage = dict(components), components["stage"]
        if "libraries" in replaced:
            replaced["libraries"] = self.replace_library_versions(replaced["libraries"], stage)
        if "external" in replaced:
            replaced["external"] = self.replace_external_versions(replaced["external"], stage)
        return replaced

    def replace_library_versions(self, libraries: Mapping[str, str], stage: str) -> dict[str, str]:
        """Replace the versions of the libraries of a stage by those that count."""
        return {
            library: self.count_as(library, version, stage)
            for library, version in libraries.items()
        }

    def replace_external_versions(self, digests: Mapping[str, str], stage: str) -> dict[str, str]:
        """Replace the versions of libraries among the digests of external inputs of a stage."""
        return {
            key: self._replace_external_version(key, value, stage) for key, value in digests.items()
        }

    def _replace_external_version(self, key: str, value: str, stage: str) -> str:
        for library in key.split():  # "torch 2" is the library torch of the second scorer
            value = self.count_as(library, value, stage)
        return value

    def list_installed_records(self) -> list[EquivalentVersion]:
        """List the records of the installed versions of libraries.

        Raises:
            HallmarkError: One of them is damaged.
        """
        libraries = sorted({name.rpartition("-")[0] for name in self.names})
        records = [
            self.find_record(library, read_installed_version(library)) for library in libraries
        ]
        return [record for record in records if record is not None]

    def _read_record(self, name: str) -> EquivalentVersion | None:
        content = self.store.get(f"{EQUIVALENT_VERSIONS_FOLDER}/{name}.json")
        if content is None:
            return None
        try:
            return EquivalentVersion.model_validate_json(content)
        except ValidationError as error:
            raise self._make_damage_error(name, describe_validation_problem(error)) from error

    def _make_damage_error(self, name: str, problem: str) -> HallmarkError:
        address = f"{self.store.root_folder or self.store.uri}/{EQUIVALENT_VERSIONS_FOLDER}"
        return HallmarkError(
            f"{address}/{escape_name(name)}.json is damaged ({problem}); restore it from a backup "
            "of the store, or remove it to recompute the stages that use the library"
        )


def iter_library_versions(components: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each library of the components of a fingerprint with its version.

    Those of scorers are among the digests of external inputs, whose other values are no versions of
    an installed library.
    """
    yield from components.get("libraries", {}).items()
    for key, value in components.get("external", {}).items():
        for library in str(key).split():
            if re.fullmatch(r"[A-Za-z][\w.-]*", library) and (
                read_installed_version(library) != "absent"
            ):
                yield library, value
