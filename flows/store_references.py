"""Find everything in a store that runs, reviews and releases refer to.

``hallmark push`` and ``pull`` copy it, ``gc`` keeps it, ``du`` adds up its size, and ``verify``
reads it. An artifact refers to its inputs (its lineage), and a training also to its checkpoints.
A run refers to the artifacts of its stages, to the checkpoints of an unfinished training, and to
other runs: those whose corpora it extends, which it audits, and with which it is compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hallmark.flows.run_order import list_run_ids
from hallmark.flows.runs import (
    Record,
    Run,
    find_artifact,
    read_run_record,
    read_runs_and_problems,
)
from hallmark.reports.purge_notices import iter_artifact_names
from hallmark.reports.review.evidence_hash import compute_evidence_hash
from hallmark.reports.review.released_versions import read_released_versions
from hallmark.reports.review.review_store import (
    StoredReview,
    parse_stored_review,
    read_reviews,
)
from hallmark.reports.review.statements import CARD_STAGES
from hallmark.tasks.contract import (
    ARTIFACT_NAME_PATTERN,
    Artifact,
    HallmarkError,
    Store,
    UsageError,
    map_store_reads,
)

#: Names of artifacts, "stage/fingerprint", in the order in which they were found.
ArtifactNames = list[str]

#: The name of a checkpoint by its run and its step.
_RUN_AT_STEP = re.compile(r"([^/@]+)(?:@[0-9]+)?")


@dataclass(frozen=True)
class ReferencedArtifact:
    """An artifact as far as it can be read, and the artifacts to which it refers.

    Attributes:
        name: Its name.
        artifact: The artifact; None if it is missing or damaged.
        checkpoints: The checkpoints that it wrote.
        inputs: The names in its lineage. They may be those of folders outside the store.
        problem: Why it cannot be read; None if it can, or if it is not in the store.
    """

    name: str
    artifact: Artifact | None = None
    checkpoints: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    problem: str | None = None

    @property
    def is_missing(self) -> bool:
        return self.artifact is None and self.problem is None


@dataclass
class ArtifactGraph:
    """The references between the artifacts of a store; each artifact is read once.

    Attributes:
        store: The store.
        nodes: The artifacts that were read, by name.
    """

    store: Store
    nodes: dict[str, ReferencedArtifact] = field(default_factory=dict)

    def collect(self, artifact_names: Iterable[str]) -> dict[str, ReferencedArtifact]:
        """Collect artifacts and everything they refer to, by name.

        An artifact comes after those that refer to it.
        """
        level = [*dict.fromkeys(artifact_names)]
        collected: dict[str, ReferencedArtifact] = {}
        while level:
            unread = [name for name in level if name not in self.nodes]
            self.nodes |= zip(unread, map_store_reads(self.store, self._read, unread), strict=True)
            collected |= {name: self.nodes[name] for name in level}
            level = [
                *dict.fromkeys(
                    name
                    for node in map(self.nodes.__getitem__, level)
                    for name in (*node.checkpoints, *node.inputs)
                    if name not in collected
                )
            ]
        return collected

    def _read(self, name: str) -> ReferencedArtifact:
        try:
            if not ARTIFACT_NAME_PATTERN.fullmatch(name):
                find_artifact(self.store, name)  # fails with a sentence
            artifact = self.store.find_artifact(*name.split("/"))
            if artifact is None:
                return ReferencedArtifact(name)
            if artifact.name != name:
                raise HallmarkError(
                    f"artifact {name} is damaged: its manifest.json describes {artifact.name}; "
                    "remove the artifact's folder and run again to rebuild it"
                )
            checkpoints = tuple(read_checkpoint_names(artifact))
        except (HallmarkError, OSError) as error:
            return ReferencedArtifact(name, problem=str(error))
        inputs = [
            input_name.partition("#")[0]
            for input_name in iter_artifact_names(artifact.manifest["lineage"])
        ]
        return ReferencedArtifact(name, artifact, checkpoints, tuple(dict.fromkeys(inputs)))


def read_checkpoint_names(artifact: Artifact) -> ArtifactNames:
    """Return the names of the checkpoint artifacts that a training wrote."""
    if "checkpoints" not in artifact.tables:
        return []
    names: list[str] = artifact["checkpoints"].read(["artifact"])["artifact"].to_pylist()
    return names


def list_run_artifacts(run: Run) -> ArtifactNames:
    """List the artifacts that the record of a run names."""
    names = [entry["artifact"] for entry in run.stages.values()]
    names += [entry["artifact"] for entry in run.record.get("checkpoints", [])]
    checkpoint_name = run.record["checkpoint"]
    if checkpoint_name and ARTIFACT_NAME_PATTERN.fullmatch(checkpoint_name):
        names.append(checkpoint_name)
    return [*dict.fromkeys(names)]


def collect_run_chain(runs: Iterable[Run]) -> list[Run]:
    """Collect runs and all runs of their store to which they refer, these first.

    Raises:
        HallmarkError: If a run to which one refers is damaged.
    """
    collected: dict[str, Run] = {}
    pending = [*runs]
    while pending:
        run = pending.pop()
        if run.id in collected:
            continue
        collected[run.id] = run
        existing_ids = {*list_run_ids(run.store)}
        pending += [
            Run(run.store, read_run_record(run.store, run_id))
            for run_id in iter_named_runs(run.record)
            if run_id in existing_ids and run_id not in collected
        ]
    return [*collected.values()][::-1]


def iter_named_runs(record: Record) -> Iterator[str]:
    """Yield the names that a run.json gives to other runs, some of which may not exist."""
    yield from record.get("arms", {}).values()
    config: Mapping[str, Any] = record["config"]
    policy = config.get("policy")
    for name in (
        config.get("earlier_run"),
        policy.get("previous") if isinstance(policy, dict) else None,
    ):
        if isinstance(name, str):
            yield name
    if match := _RUN_AT_STEP.fullmatch(record["checkpoint"] or ""):
        yield match[1]


@dataclass(frozen=True)
class StoreReferences:
    """What the runs, reviews and releases of a store refer to.

    Attributes:
        running: The runs that are still executed.
        names_by_run: The artifacts of each run, by its id.
        names_of_decisions: The artifacts of the cards that reviews are about, and of the
            checkpoints that were reviewed or released.
        graph: All these artifacts.
        problems: A sentence about each run or artifact that cannot be read. What it refers to is
            unknown.
    """

    running: list[Run]
    names_by_run: dict[str, set[str]]
    names_of_decisions: set[str]
    graph: ArtifactGraph
    problems: list[str]

    @property
    def needed_names(self) -> set[str]:
        return self.names_of_decisions.union(*self.names_by_run.values())


def read_store_references(store: Store) -> StoreReferences:
    """Read what the runs, reviews and releases of a store refer to."""
    runs, problems = read_runs_and_problems(store)
    # This reads the record of a run again if the run has ended meanwhile, so it comes first.
    running = [run for run in runs if run.status == "running"]
    graph = ArtifactGraph(store)
    graph.collect(name for run in runs for name in list_run_artifacts(run))  # in one go
    names_by_run = {run.id: {*graph.collect(list_run_artifacts(run))} for run in runs}
    decision_roots, decision_problems = _find_decided_artifacts(store, names_by_run)
    names_of_decisions = {*graph.collect(decision_roots)}
    problems = [problem.removeprefix("skipped: ") for problem in problems] + decision_problems
    problems += [node.problem for node in graph.nodes.values() if node.problem is not None]
    return StoreReferences(running, names_by_run, names_of_decisions, graph, problems)


def _find_decided_artifacts(
    store: Store, names_by_run: Mapping[str, set[str]]
) -> tuple[set[str], list[str]]:
    """Find the cards and checkpoints that reviews and releases name by their digests.

    Those of a run that the store still has are kept with it, so only others are looked for.
    """
    reviewed_cards = [
        review.card
        for stored in read_reviews(store)
        if (review := parse_stored_review(stored)) is not None
    ]
    releases = read_released_versions(store)
    evidence_hashes = {card.evidence_hash for card in reviewed_cards}
    checkpoint_digests = {card.checkpoint for card in reviewed_cards if card.checkpoint}
    checkpoint_digests |= {release.checkpoint for release in releases}
    run_names = set[str]().union(*names_by_run.values())
    found, problems = set[str](), []
    for stage in ("checkpoint", *CARD_STAGES) if reviewed_cards or releases else ():
        for folder_name in store.list_folder_names(f"artifacts/{stage}"):
            name = f"{stage}/{folder_name}"
            if name in run_names:
                continue
            try:
                artifact = store.find_artifact(stage, folder_name)
                if artifact is None:
                    continue
                is_needed = (
                    artifact.content_digest in checkpoint_digests
                    if stage == "checkpoint"
                    else compute_evidence_hash(artifact) in evidence_hashes
                )
            except (HallmarkError, OSError) as error:
                problems.append(str(error))
                continue
            if is_needed:
                found.add(name)
    return found, problems


def find_reviews_of_runs(store: Store, runs: Iterable[Run]) -> list[StoredReview]:
    """Find the reviews of the cards and checkpoints of runs, whatever they decided."""
    run_ids, checkpoint_digests, evidence_hashes = set[str](), set[str](), set[str]()
    for run in runs:
        run_ids.add(run.id)
        for label in [label for label in run.stages if label in CARD_STAGES]:
            card = run[label]
            evidence_hashes.add(compute_evidence_hash(card))
            checkpoint_digest = card.manifest["parts"].get("inputs", {}).get("checkpoint")
            if isinstance(checkpoint_digest, str):
                checkpoint_digests.add(checkpoint_digest)
    return [
        stored
        for stored in read_reviews(store)
        if (review := parse_stored_review(stored)) is not None
        and (
            review.card.run in run_ids
            or review.card.evidence_hash in evidence_hashes
            or review.card.checkpoint in checkpoint_digests
        )
    ]


def check_ended(run: Run, action: str) -> None:
    """Check that a run is not being executed.

    Raises:
        UsageError: If it is.
    """
    if run.status == "running":
        raise UsageError(
            f"run {run.id} is running on {run.record['host']}, so it cannot be {action} yet; wait "
            "until it has ended, then repeat the command"
        )
