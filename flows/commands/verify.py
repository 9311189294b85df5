"""Read every byte of a run, or of the whole store, and compare it with the manifests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from os import cpu_count
from pathlib import Path
from typing import Any, TypeVar

from hallmark.flows.commands.options import JsonOption, StoreOption, print_result
from hallmark.flows.run_order import list_run_ids
from hallmark.flows.runs import find_artifact, open_run, open_store
from hallmark.flows.store_references import ArtifactGraph, list_run_artifacts
from hallmark.reports.review.release_folder import MANIFEST_NAME
from hallmark.reports.review.review_store import (
    REVIEWS_FOLDER,
    parse_stored_review,
    read_reviews,
)
from hallmark.tasks.contract import (
    Artifact,
    HallmarkError,
    ManifestEntry,
    Store,
    UsageError,
    format_count,
)

Record = TypeVar("Record")

#: Number of damaged files that a terminal shows.
MAX_SHOWN_DAMAGED = 20


@dataclass
class Verification:
    """Store what was read of a store, and which files are damaged.

    Attributes:
        artifact_count: Number of artifacts that were read.
        file_count: Number of files in these artifacts.
        byte_count: Total size of these files.
        damage_messages: One sentence for each damaged file, manifest or record.
        missing_inputs: Names of inputs that are not in the store: folders of the user, or
            artifacts of another store.
    """

    artifact_count: int = 0
    file_count: int = 0
    byte_count: int = 0
    damage_messages: list[str] = field(default_factory=list)
    missing_inputs: list[str] = field(default_factory=list)


def verify(
    run: str | None = None, *, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Read every file of a run or the whole store, and compare its SHA-256 hash with the manifest.

    Ends with exit code 1 if a file is missing or damaged.

    Parameters
    ----------
    run
        Read only the artifacts of this run, its checkpoints and their inputs; by default every
        artifact and every record of the store.
    """
    if run is not None and Path(run, MANIFEST_NAME).is_file():
        raise UsageError(f"{run} is a release; verify it with: hallmark verify-release {run}")
    opened_store = open_store(store, create=False)
    with opened_store.shared_lock():
        verification = verify_run(opened_store, run) if run else verify_store(opened_store)
    report = {
        "store": opened_store.uri,
        "run": open_run(run, opened_store).id if run else None,
        **vars(verification),
    }
    print_result(report, as_json, render_verification)
    if verification.damage_messages:
        raise SystemExit(1)


def verify_store(store: Store) -> Verification:
    """Verify every artifact of a store, and read every run's record, the reviews and the secret."""
    verification = Verification()
    artifact_names = dict.fromkeys(
        f"{stage}/{name}"
        for stage in store.list_folder_names("artifacts")
        for name in store.list_folder_names(f"artifacts/{stage}")
        if store.get(f"artifacts/{stage}/{name}/manifest.json")
        is not None  # without one, it was never committed
    )
    for name in list_run_ids(store):
        run = _read_or_record_damage(verification, partial(open_run, name, store))
        if run is not None:  # finds artifacts whose manifest is lost
            artifact_names |= dict.fromkeys(entry["artifact"] for entry in run.stages.values())
    _verify_artifacts(store, artifact_names, verification)
    verification.damage_messages += [
        f"the review {store.uri}/{REVIEWS_FOLDER}/{review.file_name} is damaged; restore it from a "
        "backup, or remove it if it is not a review"
        for review in read_reviews(store)
        if parse_stored_review(review) is None
    ]
    if store.get("secret") is not None:
        _read_or_record_damage(verification, store.compute_secret_id)
    return verification


def verify_run(store: Store, run_name: str) -> Verification:
    """Verify the artifacts of a run, its checkpoints, and all their inputs."""
    run_artifacts = list_run_artifacts(open_run(run_name, store))
    nodes = ArtifactGraph(store).collect(run_artifacts)
    required_names = set(run_artifacts).union(*(node.checkpoints for node in nodes.values()))
    verification = Verification(
        missing_inputs=sorted(
            name for name, node in nodes.items() if node.is_missing and name not in required_names
        )
    )
    _verify_artifacts(
        store, [name for name in nodes if name not in verification.missing_inputs], verification
    )
    return verification


def _verify_artifacts(
    store: Store, artifact_names: Iterable[str], verification: Verification
) -> None:
    """Verify artifacts by name, with one thread per core, since hashing releases the GIL."""

    def iter_artifacts_with_file_entries() -> Iterator[tuple[Artifact, ManifestEntry]]:
        for name in artifact_names:
            artifact = _read_or_record_damage(verification, partial(find_artifact, store, name))
            if artifact is not None:
                verification.artifact_count += 1
                yield from ((artifact, entry) for entry in artifact.iter_file_entries())

    def verify_file(artifact_and_entry: tuple[Artifact, ManifestEntry]) -> str | None:
        """Return a sentence about the damage of a file, or None if it is intact."""
        artifact, entry = artifact_and_entry
        try:
            artifact.location.verify_file_digest(entry)
        except (HallmarkError, OSError) as error:
            return describe_read_failure(error, f"{artifact.name}, {entry['name']}")
        return None

    with ThreadPoolExecutor(cpu_count()) as pool:
        artifact_entries = list(iter_artifacts_with_file_entries())
        verification.file_count, verification.byte_count = (
            len(artifact_entries),
            sum(entry["size"] for _, entry in artifact_entries),
        )
        verification.damage_messages += [
            problem for problem in pool.map(verify_file, artifact_entries) if problem
        ]


def _read_or_record_damage(
    verification: Verification, read_record: Callable[[], Record]
) -> Record | None:
    """Return what ``read_record`` returns, or record its failure and return None."""
    try:
        return read_record()
    except (HallmarkError, OSError) as error:
        verification.damage_messages.append(describe_read_failure(error, "a store record"))
        return None


def describe_read_failure(error: HallmarkError | OSError, file_description: str) -> str:
    """Describe a damaged or unreadable file in one sentence."""
    if isinstance(error, HallmarkError):
        return str(error)
    return f"{error.filename or file_description} cannot be read ({error.strerror or error})"


def render_verification(report: dict[str, Any]) -> str:
    """Format the report for a terminal."""
    scope = f"run {report['run']}" if report["run"] else f"store {report['store']}"
    lines = [
        f"{scope}: {format_count(report['artifact_count'], 'artifact')}, "
        f"{format_count(report['file_count'], 'file')}, "
        f"{report['byte_count'] / 1e6:,.1f} MB read"
    ]
    if report["missing_inputs"]:
        lines.append(
            f"not read, because they are not in this store: {', '.join(report['missing_inputs'])}"
        )
    messages = report["damage_messages"]
    lines += messages[:MAX_SHOWN_DAMAGED]
    if len(messages) > MAX_SHOWN_DAMAGED:
        lines.append(f"and {len(messages) - MAX_SHOWN_DAMAGED} more; --json lists all")
    lines.append(f"{len(messages)} damaged" if messages else "no damage found")
    return "\n".join(lines)
