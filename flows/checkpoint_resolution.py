"""Resolve the name of a checkpoint, such as RUN@STEP, and find the run and corpus it came from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from hallmark.flows.audit_selection import CORPUS_AUDITS
from hallmark.flows.checkpoint_versions import CheckpointVersion, open_checkpoint_version
from hallmark.flows.corpus import Corpus
from hallmark.flows.deployment_checks import check_checkpoint_allowed, check_store_allowed
from hallmark.flows.notices import log_which_run_is_latest
from hallmark.flows.run_order import list_run_ids
from hallmark.flows.runs import (
    Run,
    find_artifact,
    iter_latest_candidates,
    open_run,
    open_store,
    read_all_runs,
)
from hallmark.tasks.contract import (
    ARTIFACT_NAME_PATTERN,
    Artifact,
    HallmarkError,
    Store,
    UsageError,
    folder_to_artifact,
    get_artifact_store,
    make_circular_lineage_error,
)

#: The stages that may be the first after those of the corpus.
POST_CORPUS_STAGES = ("train_tokenizer", "pack")


@dataclass(frozen=True)
class ResolvedCheckpoint:
    """A checkpoint and what the store knows about its origin.

    Attributes:
        checkpoint: The checkpoint itself.
        training_run: The artifact of the stage pretrain that wrote it. While this training has not
            ended, the artifact in which an audit of the checkpoint reconstructed what the training
            had read. None if there is neither, or if the checkpoint was fine-tuned.
        corpus: Its corpus; None if unknown.
        source_run: The run with this corpus; None if unknown.
    """

    checkpoint: Artifact
    training_run: Artifact | None = None
    corpus: Corpus | None = None
    source_run: Run | None = None

    @property
    def name(self) -> str:
        """RUN@STEP if the store knows both, otherwise the name of the artifact or the folder."""
        if self.source_run is not None:
            with suppress(HallmarkError):  # the artifact of its training is missing
                for row in self.source_run.list_committed_checkpoints():
                    if row["artifact"] == self.checkpoint.name:
                        return f"{self.source_run.id}@{row['step']}"
        return self.checkpoint.name


def _is_run_name(store: Store, name: str) -> bool:
    """Whether a name is "latest" or the beginning of the id of a run of the store."""
    return name == "latest" or (
        "/" not in name and any(run_id.startswith(name) for run_id in list_run_ids(store))
    )


def _parse_version(store: Store, checkpoint_name: str) -> CheckpointVersion | None:
    """Parse LOCATION@DIGEST; return None for RUN@STEP, whose step may look like a digest."""
    run_name, _, step = checkpoint_name.partition("@")
    version = CheckpointVersion.parse(checkpoint_name)
    return None if version and step.isdecimal() and _is_run_name(store, run_name) else version


def resolve_checkpoint(store: Store, checkpoint_name: str) -> ResolvedCheckpoint:
    """Find the checkpoint that a command names.

    Args:
        store: The store of the runs.
        checkpoint_name: RUN or RUN@STEP (RUN may be "latest", the newest that has completed a
            pretraining; while a training continues, its run must be named by its id), the name of
            an artifact ("checkpoint/0123…"), a folder: of a checkpoint in any store, or of a
            Hugging Face model; or a version of a folder or a URI, LOCATION@DIGEST.

    Raises:
        UsageError: If there is no such checkpoint.
    """
    if version := _parse_version(store, checkpoint_name):
        return ResolvedCheckpoint(open_checkpoint_version(store, version))
    resolved = find_checkpoint_in_folder(checkpoint_name)
    if resolved is not None:
        return resolved
    if checkpoint_name.startswith("checkpoint/"):
        artifact = (
            store.find_artifact(*checkpoint_name.split("/"))
            if ARTIFACT_NAME_PATTERN.fullmatch(checkpoint_name)
            else None
        )
        if artifact is None:
            raise UsageError(
                f"the store {store.uri} has no checkpoint {checkpoint_name!r}; specify a "
                "checkpoint as RUN@STEP, or choose another store with --store"
            )
        return _trace_checkpoint_origin(store, artifact)
    run_name, _, step = checkpoint_name.partition("@")
    if not _is_run_name(store, run_name):
        raise UsageError(
            f"there is no checkpoint {checkpoint_name!r}; specify a folder, RUN, RUN@STEP (such as "
            "latest@0) or the name of an artifact (checkpoint/…); a model from the Hugging Face "
            "Hub must be downloaded first: hf download NAME --local-dir FOLDER"
        )
    run = (
        _find_latest_trained_run(store, checkpoint_name)
        if run_name == "latest"
        else open_run(run_name, store)
    )
    checkpoint_rows = run.list_committed_checkpoints()
    if not checkpoint_rows:
        raise UsageError(
            f"{checkpoint_name}: this run has not trained a model yet; see: hallmark status "
            f"{run_name}"
        )
    matching_rows = [row for row in checkpoint_rows if not step or str(row["step"]) == step]
    if not matching_rows:
        steps = ", ".join(str(row["step"]) for row in checkpoint_rows)
        raise UsageError(
            f"run {run.id} has no checkpoint for step {step}; it has checkpoints for these steps: "
            f"{steps}"
        )
    return _trace_checkpoint_origin(
        store, find_artifact(store, matching_rows[-1]["artifact"]), preferred_run=run
    )


def get_checkpoint_artifact_name(store: Store, checkpoint_name: str) -> str:
    """Return the artifact name of a checkpoint, without opening a version that a run recorded.

    Raises:
        UsageError: If there is no such checkpoint.
    """
    if version := _parse_version(store, checkpoint_name):
        return version.artifact_name
    return resolve_checkpoint(store, checkpoint_name).checkpoint.name


def _find_latest_trained_run(store: Store, checkpoint_name: str) -> Run:
    candidates = (run for run in iter_latest_candidates(store) if "pretrain" in run.stages)
    run = next(candidates, None)
    if run is None:
        raise UsageError(
            f"{checkpoint_name}: no run in the store {store.uri} has trained a model yet; train "
            "one, or choose another store with --store"
        )
    log_which_run_is_latest(run.id, "the newest run that trained a model")
    return run


class TrainingHistory(NamedTuple):
    """A training and the ones that it continues, newest first.

    All fields map the position in the history ("0" for the newest) to an artifact.

    Attributes:
        checkpoints: The last checkpoint of each training; of the newest, the one in question.
        training_runs: The artifact of the stage pretrain.
        packed_corpora: The packed corpus that the training read.
    """

    checkpoints: dict[str, Artifact]
    training_runs: dict[str, Artifact]
    packed_corpora: dict[str, Artifact]

    def list_corpora_except(self, known_corpora: Sequence[Artifact]) -> list[Artifact]:
        """Return the corpora that the trainings read, without those in ``known_corpora``."""
        corpora_by_name: dict[str, Artifact] = {}
        for number, training_run in self.training_runs.items():
            store = get_artifact_store(training_run)
            assert store is not None
            resolved = _trace_checkpoint_origin(store, self.checkpoints[number])
            if resolved.corpus is not None:
                corpora_by_name |= {
                    documents.name: documents for documents in resolved.corpus.documents
                }
        return [
            corpora_by_name[number]
            for number in sorted(corpora_by_name.keys() - {corpus.name for corpus in known_corpora})
        ]


def trace_training_history(
    checkpoint: Artifact, training_run: Artifact | None
) -> TrainingHistory | None:
    """Trace how a checkpoint was trained; None if an artifact of its history is missing."""
    history = TrainingHistory({}, {}, {})
    while training_run is not None and (store := get_artifact_store(training_run)) is not None:
        number = str(len(history.training_runs))
        if any(checkpoint.name == earlier.name for earlier in history.checkpoints.values()):
            raise make_circular_lineage_error(checkpoint.name)
        packed_corpus = store.find_artifact(*checkpoint.get_input_name("packed_corpus").split("/"))
        if packed_corpus is None:
            return None
        history.checkpoints[number], history.training_runs[number] = checkpoint, training_run
        history.packed_corpora[number] = packed_corpus
        start_name = checkpoint.find_input_name("start_checkpoint")
        if start_name is None:
            return history
        start_checkpoint = store.find_artifact(*start_name.split("/"))
        if start_checkpoint is None:
            return None
        checkpoint = start_checkpoint
        training_run = find_training_run(store, checkpoint)
    return None


def find_training_run(store: Store, checkpoint: Artifact) -> Artifact | None:
    """Find the training that wrote a checkpoint, as in ``ResolvedCheckpoint.training_run``."""
    parent = checkpoint.manifest["parts"].get("parent")
    if not parent:
        raise checkpoint.make_manifest_error(
            "parts.parent must be the fingerprint of the training run"
        )
    training_run = store.find_artifact("pretrain", parent)
    if training_run is not None:
        return training_run
    reconstructions = [
        artifact
        for artifact in store.list_artifacts("reconstruct_reads", skip_damaged=True)
        if artifact.lineage.get("checkpoint") == checkpoint.name
    ]
    return max(reconstructions, key=lambda artifact: artifact.manifest["created"], default=None)


def get_permanent_name(store: Store, resolved: ResolvedCheckpoint, checkpoint_name: str) -> str:
    """Return a name that will still mean this checkpoint later, unlike "latest".

    This is its name in the store, or the absolute path of a folder outside the store. A version of
    a folder or a URI keeps the name that was given, with the complete digest.
    """
    if version := _parse_version(store, checkpoint_name):
        return CheckpointVersion(version.location, resolved.checkpoint.content_digest).name
    if store.find_artifact(*resolved.checkpoint.name.split("/")) is None:
        return os.path.abspath(Path(checkpoint_name).expanduser())
    return resolved.name


def find_checkpoint_in_folder(folder_name: str) -> ResolvedCheckpoint | None:
    """Find the checkpoint in a folder, of any store or of Hugging Face.

    Returns:
        The checkpoint, or None if there is no such path, as for the name of a run.

    Raises:
        UsageError: If the name is empty or the path is not the folder of a checkpoint.
    """
    if not folder_name.strip():
        raise UsageError("the checkpoint name is empty; specify RUN@STEP, checkpoint/… or a folder")
    try:
        path = Path(folder_name).expanduser()
    except RuntimeError as error:
        user = folder_name.partition("/")[0]
        raise UsageError(
            f"{folder_name}: the path begins with {user}, whose home folder is unknown; specify "
            "the full path"
        ) from error
    check_checkpoint_allowed(folder_name)
    if CheckpointVersion.parse(folder_name):
        return None  # its copy is in a store
    if path.is_dir():
        for folder in (path.resolve(), path.resolve().parent):
            if (folder / "manifest.json").exists() and folder.parent.name == "checkpoint":
                check_store_allowed(str(folder.parents[2]))
                folder_store = open_store(str(folder.parents[2]))
                return _trace_checkpoint_origin(
                    folder_store, find_artifact(folder_store, f"checkpoint/{folder.name}")
                )
        if not any(path.iterdir()):
            raise UsageError(
                f"{folder_name}: the folder is empty; a checkpoint consists of config.json, "
                "model.safetensors and tokenizer files"
            )
        if not (path / "config.json").is_file():  # before everything in the folder is hashed
            raise UsageError(
                f"{folder_name}: the folder has no config.json; a checkpoint consists of "
                "config.json, model.safetensors and tokenizer files"
            )
        return ResolvedCheckpoint(folder_to_artifact(path.resolve(), "checkpoint"))
    if path.exists():
        raise UsageError(f"{folder_name}: this is a file; specify a checkpoint folder")
    return None


def _trace_checkpoint_origin(
    store: Store,
    checkpoint: Artifact,
    preferred_run: Run | None = None,
    visited_names: Sequence[str] = (),
) -> ResolvedCheckpoint:
    """Trace a checkpoint back to its training, its corpus and a run that contains them.

    The run is ``preferred_run`` if given, else the newest run that trained the checkpoint or is
    training it, else the newest run with its corpus. Arms of experiments come after other runs.

    Args:
        store: The store of the checkpoint.
        checkpoint: The checkpoint.
        preferred_run: The run that the user named.
        visited_names: The checkpoints that were fine-tuned from this one.
    """
    if checkpoint.name in visited_names:
        raise make_circular_lineage_error(checkpoint.name)
    if base_name := checkpoint.find_input_name("checkpoint"):  # it was fine-tuned
        base_checkpoint = store.find_artifact(*base_name.split("/"))
        resolved_base = (
            ResolvedCheckpoint(checkpoint)
            if base_checkpoint is None
            else _trace_checkpoint_origin(
                store, base_checkpoint, visited_names=[*visited_names, checkpoint.name]
            )
        )
        return replace(resolved_base, checkpoint=checkpoint, training_run=None)
    training_run = find_training_run(store, checkpoint)
    packed_corpus = find_artifact(store, checkpoint.get_input_name("packed_corpus"))
    if packed_corpus.stage == "pad_removed_documents":
        # Only training reads the padded copy; audits use the complete corpus.
        packed_corpus = find_artifact(store, packed_corpus.get_input_name("packed_corpus"))
    *earlier_corpora, planted_corpus = [
        find_artifact(store, corpus_name)
        for corpus_name in packed_corpus.list_input_names("documents")
    ]
    if planted_corpus.stage == "leave_out":  # likewise
        planted_corpus = find_artifact(store, planted_corpus.get_input_name("documents"))
    earlier_corpus = Corpus(tuple({"plant_canaries": artifact} for artifact in earlier_corpora))

    def has_artifact(run: Run, stage: str, artifact: Artifact | None) -> bool:
        return artifact is not None and (run.stages.get(stage, {}).get("artifact") == artifact.name)

    def has_trained_checkpoint(run: Run) -> bool:
        return has_artifact(run, "pretrain", training_run) or any(
            entry["artifact"] == checkpoint.name for entry in run.record.get("checkpoints", [])
        )

    runs = [preferred_run] if preferred_run else read_all_runs(store)[::-1]
    runs = sorted(  # stable
        runs,
        key=lambda run: (not has_trained_checkpoint(run), not run.may_be_latest),
    )
    for run in runs:
        if has_artifact(run, "plant_canaries", planted_corpus):
            corpus_labels = takewhile(lambda label: label not in POST_CORPUS_STAGES, run.stages)
            corpus = earlier_corpus.with_addition(run.open_artifacts(corpus_labels))
            return ResolvedCheckpoint(checkpoint, training_run, corpus, run)
    corpus = earlier_corpus.with_addition({"plant_canaries": planted_corpus})
    return ResolvedCheckpoint(checkpoint, training_run, corpus)


def check_corpus_known(store: Store, checkpoint_name: str, only: Sequence[str] | None) -> None:
    """Check that the corpus of a checkpoint is known if audits that need it were named.

    Raises:
        UsageError: If it is unknown; names these audits.
    """
    corpus_audits = [name for name in only or () if name in CORPUS_AUDITS]
    if corpus_audits and resolve_checkpoint(store, checkpoint_name).corpus is None:
        raise UsageError(
            f"the 'only' option ({','.join(corpus_audits)!r}) selects audits that compare a model "
            f"with its training corpus, but the corpus of {checkpoint_name} is not in this store; "
            "choose other audits, or a checkpoint from a run in this store"
        )
