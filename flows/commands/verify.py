"""Read every byte of a run, or of the whole store, and compare it with the manifests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from os import cpu_count
from typing import Any

from flows.commands.shared import InStore, Json, show
from flows.runs import default_store, find_artifact, open_run, run_ids
from reports.purged import named_in
from tasks.contract import Artifact, HallmarkError, Store

#: Damaged files that a terminal shows.
SHOWN = 20


@dataclass
class Verification:
    """What was read of a store, and what of it is damaged.

    Attributes:
        artifacts: How many artifacts were read.
        files: How many files of them.
        bytes: Size of these files.
        damaged: One sentence for each damaged file, manifest or record.
        not_stored: Names of inputs that the store does not hold: folders of the user, or artifacts
            of another store.
    """

    artifacts: int = 0
    files: int = 0
    bytes: int = 0
    damaged: list[str] = field(default_factory=list)
    not_stored: list[str] = field(default_factory=list)


def verify(run: str | None = None, *, store: InStore = None, json_: Json = False) -> None:
    """Read every file of a run, or of the whole store, and compare its SHA-256 with the manifest.

    Ends with 1 where a file is missing or damaged.

    Parameters
    ----------
    run
        Only what this run reused or computed, its checkpoints and what these were made from.
        Without it every artifact and every record of the store is read.
    """
    place = default_store(store, create=False)
    with place.in_use():
        found = verify_run(place, run) if run else verify_store(place)
    report = {"store": place.uri, "run": open_run(run, place).id if run else None, **vars(found)}
    show(report, json_, render)
    if found.damaged:
        raise SystemExit(1)


def verify_store(store: Store) -> Verification:
    """Verify every artifact of a store, and read every run's record and the secret."""
    result = Verification()
    names = dict.fromkeys(
        f"{stage}/{name}"
        for stage in store.children("artifacts")
        for name in store.children(f"artifacts/{stage}")
        if store.get(f"artifacts/{stage}/{name}/manifest.json") is not None  # else never committed
    )
    for name in run_ids(store):
        run = _attempt(result, lambda name=name: open_run(name, store))
        if run is not None:  # a manifest that a run names may be lost
            names |= dict.fromkeys(entry["artifact"] for entry in run.stages.values())
    _verify_artifacts(store, names, result)
    if store.get("secret") is not None:
        _attempt(result, store.secret_id)
    return result


def verify_run(store: Store, name: str) -> Verification:
    """Verify the artifacts of a run, and all from which they were made."""
    result = Verification()
    stages = open_run(name, store).stages.values()
    waiting = [entry["artifact"] for entry in stages]
    required, seen = set(waiting), dict[str, None]()
    while waiting:
        artifact_name = waiting.pop().partition("#")[0]
        if artifact_name in seen:
            continue
        seen[artifact_name] = None
        try:
            artifact = find_artifact(store, artifact_name)
            children = checkpoint_names(artifact)
        except HallmarkError:  # said where it is verified
            continue
        required.update(children)
        waiting += [*children, *named_in(artifact.manifest["lineage"])]
    for artifact_name in sorted(seen.keys() - required):
        if store.get(f"artifacts/{artifact_name}/manifest.json") is None:
            result.not_stored.append(artifact_name)
    _verify_artifacts(store, [n for n in seen if n not in result.not_stored], result)
    return result


def checkpoint_names(artifact: Artifact) -> list[str]:
    """Names of the checkpoints that a training committed as artifacts of their own."""
    if "checkpoints" not in artifact.tables:
        return []
    return artifact["checkpoints"].read(["artifact"])["artifact"].to_pylist()


def _verify_artifacts(store: Store, names: Iterable[str], result: Verification) -> None:
    """Verify artifacts by name, their files in parallel; hashing releases Python's lock."""

    def entries() -> Iterator[tuple[Artifact, dict[str, Any]]]:
        for name in names:
            artifact = _attempt(result, lambda name=name: find_artifact(store, name))
            if artifact is not None:
                result.artifacts += 1
                yield from ((artifact, entry) for entry in artifact.entries())

    def check(pair: tuple[Artifact, dict[str, Any]]) -> str | None:
        artifact, entry = pair
        try:
            artifact.place.verify(entry)
        except (HallmarkError, OSError) as error:
            return describe_failure(error, f"{artifact.name}, {entry['name']}")
        return None

    with ThreadPoolExecutor(cpu_count()) as pool:
        pairs = list(entries())
        result.files, result.bytes = len(pairs), sum(entry["size"] for _, entry in pairs)
        result.damaged += [problem for problem in pool.map(check, pairs) if problem]


def _attempt(result: Verification, read: Any) -> Any:
    """What ``read`` returns, or None where it fails; the failure is recorded."""
    try:
        return read()
    except (HallmarkError, OSError) as error:
        result.damaged.append(describe_failure(error, "a record of the store"))
        return None


def describe_failure(error: HallmarkError | OSError, what: str) -> str:
    """One sentence about a file that is damaged, or cannot be read."""
    if isinstance(error, HallmarkError):
        return str(error)
    return f"{error.filename or what} cannot be read ({error.strerror or error})"


def render(report: dict[str, Any]) -> str:
    """The report as text for a terminal."""
    what = f"run {report['run']}" if report["run"] else f"store {report['store']}"
    lines = [
        f"{what}: {report['artifacts']:,} artifacts, {report['files']:,} files, "
        f"{report['bytes'] / 1e6:,.1f} MB read"
    ]
    if report["not_stored"]:
        lines.append(f"not in this store, so not read: {', '.join(report['not_stored'])}")
    damaged = report["damaged"]
    lines += damaged[:SHOWN]
    if len(damaged) > SHOWN:
        lines.append(f"and {len(damaged) - SHOWN} more; --json lists all")
    lines.append(f"{len(damaged)} damaged" if damaged else "nothing is damaged")
    return "\n".join(lines)
