"""Declare a patch release of a library equal to an earlier one, after replays with equal content.

``tasks/contract/equivalent_versions.py`` reads the record and applies it. It is written only if at
least two runs of different configs were replayed with the new version, and every stage of each
replay had the same content as in the run. It holds for the stages that two of the runs have, and
names the runs, the replays, the artifacts and their digests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hallmark.flows.replay_report import ReplayReport
from hallmark.flows.run_recording import describe_machine
from hallmark.flows.runs import CARD_LABELS, Run
from hallmark.tasks.contract import (
    MIN_COMPARED_RUNS,
    Artifact,
    ComparedRun,
    EquivalentVersion,
    EquivalentVersions,
    HallmarkError,
    UsageError,
    format_current_time,
    is_patch_release,
    iter_library_versions,
    read_installed_version,
    to_canonical_json,
)


@dataclass(frozen=True)
class VersionChange:
    """A library that is installed in another version than that of the runs.

    Attributes:
        library: The library.
        version: The installed version.
        counts_as: The version in the fingerprints of the runs.
        labels_by_run: The labels of the stages that use the library, by the id of the run.
    """

    library: str
    version: str
    counts_as: str
    labels_by_run: Mapping[str, Sequence[str]]

    def __str__(self) -> str:
        return f"{self.library} {self.version} in place of {self.counts_as}"


def find_version_changes(runs: Sequence[Run]) -> list[VersionChange]:
    """Find the libraries that runs used in another version than the installed one.

    Args:
        runs: Completed runs of one store.

    Raises:
        UsageError: The runs cannot show that the versions are equal: they are too few, or alike; no
            version differs, or by more than the patch number.
        HallmarkError: A record of the store is damaged, or is about the same version already.
    """
    if len({run.id for run in runs}) < MIN_COMPARED_RUNS:
        raise UsageError(
            f"--declare-equivalent needs at least {MIN_COMPARED_RUNS} runs of different configs, "
            f"but only {len({run.id for run in runs})} is specified; specify another run: hallmark "
            "replay RUN RUN --declare-equivalent"
        )
    store = runs[0].store
    equivalent_versions = EquivalentVersions(store)
    artifacts_by_run = {run.id: run.artifacts for run in runs}
    uses_by_library: dict[str, list[_Use]] = {}
    for run_id, artifacts in artifacts_by_run.items():
        for label, artifact in artifacts.items():
            for library, version in dict(iter_library_versions(artifact.manifest["parts"])).items():
                counted_version = equivalent_versions.count_as(library, version, artifact.stage)
                use = _Use(run_id, label, artifact, counted_version)
                uses_by_library.setdefault(library, []).append(use)
    changes = []
    for library, uses in sorted(uses_by_library.items()):
        installed_version = read_installed_version(library)
        if all(
            use.counted_version
            == equivalent_versions.count_as(library, installed_version, use.artifact.stage)
            for use in uses
        ):
            continue
        if record := equivalent_versions.find_record(library, installed_version):
            raise HallmarkError(
                f"{record}, which does not hold for all stages of these runs; to declare it again, "
                f"remove {store.root_folder or store.uri}/{record.key}, and specify at least "
                f"{MIN_COMPARED_RUNS} runs that have all stages"
            )
        changes.append(_build_change(library, installed_version, uses))
    if not changes:
        raise UsageError(
            f"nothing to declare: the runs {' and '.join(artifacts_by_run)} used the installed "
            "versions of all libraries, or versions that the store treats as equivalent"
        )
    return changes


class _Use(NamedTuple):
    """An artifact of a run that a library helped to compute."""

    run_id: str
    label: str
    artifact: Artifact
    counted_version: str
    """The version in the fingerprint of the artifact."""

    @property
    def computation(self) -> bytes:
        """What was computed, apart from the code and the libraries."""
        parts = self.artifact.manifest["parts"]
        return to_canonical_json([self.artifact.stage, parts["config"], parts.get("inputs")])


def _build_change(library: str, installed_version: str, uses: Sequence[_Use]) -> VersionChange:
    """Build the change of a library, if it may be declared.

    Raises:
        UsageError: The runs used several versions, the change is more than a patch release, or no
            two runs use the library for different computations.
    """
    counted_versions = sorted({use.counted_version for use in uses})
    if len(counted_versions) > 1:
        raise UsageError(
            f"the runs used different versions of {library} ({', '.join(counted_versions)}), which "
            "the store does not treat as equivalent; choose runs that used the same version"
        )
    [counted_version] = counted_versions
    if not is_patch_release(installed_version, counted_version):
        raise UsageError(
            f"{library} {installed_version} cannot be declared equal to {counted_version}, because "
            "only patch releases with the same first two version numbers and build can be equal; "
            "install such a version, or run the configs again"
        )
    labels_by_run: dict[str, list[str]] = {}
    for use in uses:
        labels_by_run.setdefault(use.run_id, []).append(use.label)
    run_counts = Counter(stage for _, stage in {(use.run_id, use.artifact.stage) for use in uses})
    computations = {
        run_id: frozenset(
            use.computation
            for use in uses
            if use.run_id == run_id
            and run_counts[use.artifact.stage] >= MIN_COMPARED_RUNS
            and use.label not in CARD_LABELS  # their settings are mostly texts
        )
        for run_id in labels_by_run
    }
    if len({*computations.values()}) < MIN_COMPARED_RUNS:
        raise UsageError(
            f"no stage uses {library} with two different configs in these runs, so the runs cannot "
            f"show that {installed_version} is equivalent to {counted_version}; specify runs whose "
            "configs differ in sections other than [datasheet] and [model_card]"
        )
    return VersionChange(library, installed_version, counted_version, labels_by_run)


def build_provisional_records(
    runs: Sequence[Run], changes: Sequence[VersionChange]
) -> list[EquivalentVersion]:
    """Build records for the stores of replays, which hold for all stages of the runs.

    A table of a training names its checkpoints by their fingerprints. With these records, the
    artifacts of a replay have the same names as those of the run, so that contents can be equal.
    The store of a replay is new, so all artifacts are computed with the installed versions.
    """
    compared_runs = {}
    for change in changes:
        digests: dict[str, str] = {}
        for run in runs:
            digests |= _read_digests(run, change)
        compared_runs[change.library] = [
            ComparedRun(run=run.id, replay="pending", digests=digests) for run in runs
        ]
    return _build_records(changes, compared_runs)


def _read_digests(run: Run, change: VersionChange) -> dict[str, str]:
    """Read the content digests of the artifacts of a run that a library helped to compute."""
    return {
        run.stages[label]["artifact"]: run.stages[label]["content"]
        for label in change.labels_by_run.get(run.id, ())
    }


def _build_records(
    changes: Sequence[VersionChange], compared_runs: Mapping[str, list[ComparedRun]]
) -> list[EquivalentVersion]:
    """Build the records of changes from the compared runs of each library."""
    return [
        EquivalentVersion(
            library=change.library,
            version=change.version,
            counts_as=change.counts_as,
            declared=format_current_time(),
            platform=describe_machine(),
            other_changes={
                other.library: f"{other.counts_as} → {other.version}"
                for other in changes
                if other is not change
            },
            runs=compared_runs[change.library],
        )
        for change in changes
    ]


def declare_equivalent_versions(
    runs: Sequence[Run], changes: Sequence[VersionChange], reports: Sequence[ReplayReport]
) -> list[EquivalentVersion]:
    """Record in the store that the installed versions count as those of the runs.

    Args:
        runs: The runs.
        changes: The libraries whose version differs.
        reports: The reports of the replays, in the order of the runs.

    Raises:
        HallmarkError: A stage of a replay has other content than in the run, or another process
            wrote a record meanwhile.
    """
    for report in reports:
        _check_content_is_equal(report, changes)
    store = runs[0].store
    compared_runs = {
        change.library: [
            ComparedRun(run=run.id, replay=report["replay"], digests=_read_digests(run, change))
            for run, report in zip(runs, reports, strict=True)
            if run.id in change.labels_by_run
        ]
        for change in changes
    }
    records = _build_records(changes, compared_runs)
    for record in records:
        if not store.create_if_absent(record.key, record.to_json()):
            raise HallmarkError(
                f"another process wrote {store.root_folder or store.uri}/{record.key} in the "
                "meantime, so this declaration was not recorded; check what the file declares, "
                "then repeat the command if needed"
            )
    return records


def _check_content_is_equal(report: ReplayReport, changes: Sequence[VersionChange]) -> None:
    """Raise HallmarkError, naming the first stage and table, if a replay has other content."""
    for row in report["stages"]:
        if row["original_digest"] == row["replayed_digest"]:
            continue
        contents = [name for name in row["differences"] if name.startswith(("table ", "file "))]
        difference = (
            f"differs ({', '.join(contents)})" if row["replayed_digest"] else "was not computed"
        )
        raise HallmarkError(
            f"nothing was declared: in the replay of run {report['run']} with "
            f"{' and '.join(map(str, changes))}, the {row['label']} stage {difference}; run the "
            "configs again to compute their artifacts with the installed versions"
        )
