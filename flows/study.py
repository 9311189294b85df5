"""Run a study of the audits on worlds: synthetic corpora with sealed answer keys.

A model is trained on each world and audited like any other. The answer keys are opened only when
all audits are done, and give the error rates of the audits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from typing import Any, NamedTuple

from prefect import flow

from hallmark.flows.audit_execution import FindingsByAudit, ProbeAudits
from hallmark.flows.mitigation import get_removal_list_folder, write_document_id_list
from hallmark.flows.run_recording import frontend, generate_flow_run_name, record_run
from hallmark.flows.runs import WORLD_FLOW, Run, find_artifact, open_run, read_all_runs
from hallmark.flows.site import try_build_site
from hallmark.flows.study_config import (
    STUDIED_PROBES,
    StudyConfig,
    expand_to_full_audits,
    iter_world_names_and_configs,
)
from hallmark.reports.study_card import build_study_card
from hallmark.tasks.audits.experiments.attribution import (
    CandidateKey,
    attribute_texts,
    select_near_best_documents,
)
from hallmark.tasks.audits.experiments.candidate_verdicts import judge_candidates
from hallmark.tasks.audits.experiments.error_rates import (
    ARMS,
    ErrorRatesConfig,
    compute_error_rates,
    read_effect_level_by_candidate,
)
from hallmark.tasks.contract import (
    Artifact,
    HallmarkError,
    Resources,
    Store,
    hash_file,
    make_mapper,
)
from hallmark.tasks.corpus.leave_out import LeaveOutConfig, leave_out_documents
from hallmark.tasks.corpus.synthetic_world import seal_answer_key, write_synthetic_world
from hallmark.tasks.training.document_padding import pad_removed_documents
from hallmark.tasks.training.pack import pack
from hallmark.tasks.training.pretrain import pretrain
from hallmark.tasks.training.train_tokenizer import train_tokenizer

#: Prefix for the labels of the audits that use all items.
FULL_AUDIT_PREFIX = "whole_"

#: The environment variable for the number of threads of a process.
THREAD_COUNT_VARIABLE = "OMP_NUM_THREADS"


@flow(name="world", flow_run_name=generate_flow_run_name)
def world(config: dict[str, Any], store: str) -> str:
    """Build one world, train and audit a model on it, and judge its candidates.

    The answer key is sealed and not read.
    """
    settings = StudyConfig.model_validate(config)
    with record_run("world", settings, Store(store)) as run:
        world_corpus = write_synthetic_world(settings.world)
        seal_answer_key(settings.world)
        tokenizer = train_tokenizer(
            documents=[world_corpus], signals=None, config=settings.train_tokenizer
        )
        packed_corpus = pack(documents=[world_corpus], tokenizer=tokenizer, config=settings.pack)
        training_run = pretrain(
            packed_corpus=packed_corpus,
            tokenizer=tokenizer,
            documents=[world_corpus],
            signals=None,
            start_checkpoint=None,
            config=settings.pretrain,
        )
        checkpoint = run.find_last_checkpoint(training_run)
        sample_audits = audit_world(settings, checkpoint, world_corpus)
        full_audits = audit_world(
            expand_to_full_audits(settings), checkpoint, world_corpus, FULL_AUDIT_PREFIX
        )
        verdicts = judge_candidates(
            sample_audits=sample_audits,
            full_audits=full_audits,
            training_run=training_run,
            packed_corpus=packed_corpus,
        )
        attributions = attribute_texts(
            documents=[world_corpus], canaries=[world_corpus], config=settings.attribute_texts
        )
        removed_ids = (
            select_near_best_documents(
                attributions["attributions"].read(), read_detected_kinds_and_candidate_ids(verdicts)
            )
            if settings.is_retrained
            else []
        )
        if removed_ids:  # empty if the audits detected nothing
            doc_ids_file = write_document_id_list(removed_ids, get_removal_list_folder(run.store))
            for arm in ARMS:
                exclusion_config = LeaveOutConfig(
                    doc_ids_file=doc_ids_file,
                    random_control=arm == "random",
                    replace_with_padding=True,
                )
                remaining_documents = leave_out_documents.with_label(f"{arm}_leave_out")(
                    world_corpus, exclusion_config
                )
                padded_corpus = pad_removed_documents.with_label(f"{arm}_pad_removed_documents")(
                    packed_corpus=packed_corpus,
                    documents=remaining_documents,
                    ledger=remaining_documents,
                    tokenizer=tokenizer,
                )
                retraining_run = pretrain.with_label(f"{arm}_pretrain")(
                    packed_corpus=padded_corpus,
                    tokenizer=tokenizer,
                    documents=[world_corpus],
                    signals=None,
                    start_checkpoint=None,
                    config=settings.pretrain,
                )
                arm_audits = audit_world(
                    settings, run.find_last_checkpoint(retraining_run), world_corpus, f"{arm}_"
                )
                judge_candidates.with_label(f"{arm}_verdicts")(
                    sample_audits=arm_audits,
                    full_audits=arm_audits,
                    training_run=retraining_run,
                    packed_corpus=packed_corpus,
                )
    return run.id


def read_detected_kinds_and_candidate_ids(verdicts: Artifact) -> set[CandidateKey]:
    """Read which candidates the audits detected."""
    rows = verdicts["verdicts"].read().to_pylist()
    return {CandidateKey(row["kind"], row["candidate_id"]) for row in rows if row["is_detected"]}


def audit_world(
    config: StudyConfig, checkpoint: Artifact, world_corpus: Artifact, label_prefix: str = ""
) -> FindingsByAudit:
    """Audit the model of a world and return the findings by audit.

    Raises:
        HallmarkError: If an audit fails.
    """
    probe_audits = ProbeAudits(
        probes=STUDIED_PROBES,
        checkpoint=checkpoint,
        config=config,
        lexicons=world_corpus,
        canaries=[world_corpus],
        label_prefix=label_prefix,
    )
    probe_audits.build_requests()
    findings = probe_audits.run()
    if errors := probe_audits.errors:
        raise HallmarkError("; ".join(f"{name}: {reason}" for name, reason in errors.items()))
    return findings


class WorldOutcome(NamedTuple):
    """The id of a world's run, or None and the error."""

    run_id: str | None
    error: str


def run_world(config: dict[str, Any], store_uri: str) -> WorldOutcome:
    """Run a world with one thread and return its run or its error; called in a worker process."""
    previous_threads = os.environ.get(THREAD_COUNT_VARIABLE)
    os.environ[THREAD_COUNT_VARIABLE] = "1"  # before torch is loaded
    try:
        return WorldOutcome(world(config, store_uri), "")
    except HallmarkError as error:
        return WorldOutcome(None, str(error))
    except (OSError, MemoryError):  # a problem of the machine would affect every world
        raise
    except Exception as error:  # any other error excludes only this world
        return WorldOutcome(None, f"{type(error).__name__}: {error}")
    finally:
        os.environ.pop(THREAD_COUNT_VARIABLE)
        if previous_threads is not None:
            os.environ[THREAD_COUNT_VARIABLE] = previous_threads


@flow(name="study", flow_run_name=generate_flow_run_name)
def study(config: dict[str, Any], store: str) -> str:
    """Run all worlds, each as a separate run, and compute the error rates of the audits."""
    settings, opened_store = StudyConfig.model_validate(config), Store(store, create_missing=True)
    with record_run("study", settings, opened_store) as run:
        verdicts_by_world, answer_keys, attributions_by_world, excluded_worlds = {}, {}, {}, {}
        arm_verdicts: dict[str, Artifact] = {}
        sealed_digests = read_first_sealed_digest_by_artifact(opened_store)
        for name, world_outcome in iter_world_names_and_outcomes(settings, store):
            frontend.on_world_outcome(name, world_outcome)
            try:
                if world_outcome.run_id is None:
                    raise HallmarkError(world_outcome.error)
                world_run = open_run(world_outcome.run_id, opened_store)
                answer_keys[name] = open_verified_answer_key(world_run, sealed_digests)
                attributions_by_world[name] = world_run["attribute_texts"]
                arm_verdicts |= {
                    f"{name} {arm}": world_run[f"{arm}_verdicts"]
                    for arm in ARMS
                    if f"{arm}_verdicts" in world_run.stages
                }
                verdicts_by_world[name] = world_run["judge_candidates"]
            except HallmarkError as error:
                answer_keys.pop(name, None)
                attributions_by_world.pop(name, None)
                excluded_worlds[name] = str(error)
        if not verdicts_by_world:
            name, reason = next(iter(excluded_worlds.items()))
            raise HallmarkError(
                "no world (synthetic corpus and model) of the study gave a usable result; "
                f"{name}: {reason}"
            )
        rates_config = ErrorRatesConfig(
            excluded_worlds=excluded_worlds, max_documents=settings.attribute_texts.max_documents
        )
        rates = compute_error_rates(
            verdicts=verdicts_by_world,
            answer_keys=answer_keys,
            attributions=attributions_by_world,
            retrained_verdicts=arm_verdicts,
            config=rates_config,
        )
        build_study_card(rates, settings.study_card)
    run.site_index = try_build_site(opened_store)
    return run.id


def iter_world_names_and_outcomes(
    config: StudyConfig, store_uri: str
) -> Iterator[tuple[str, WorldOutcome]]:
    """Run the worlds in parallel, one thread each, and yield their outcomes in order."""
    configs_by_world = dict(iter_world_names_and_configs(config))
    call_arguments = [
        (entry.model_dump(mode="json"), store_uri) for entry in configs_by_world.values()
    ]
    completed_count = 0
    with make_mapper("processes", config.parallel_worlds) as mapper:
        try:
            for name, entry in zip(
                configs_by_world, mapper(run_world, call_arguments, Resources()), strict=True
            ):
                completed_count += 1
                yield name, entry
        except BrokenExecutor as error:
            raise HallmarkError(
                f"a process that ran {[*configs_by_world][completed_count]} or a later world was "
                "killed, perhaps because memory ran out; completed worlds are kept, so run the "
                "same command again, with --parallel-worlds 1 if memory is short"
            ) from error


def read_first_sealed_digest_by_artifact(store: Store) -> dict[str, str]:
    """Read the digest with which each answer key was first sealed, by artifact name.

    A continued study runs each world again and takes whatever answer key the store has then, so
    only the first digest proves that the key was not exchanged.
    """
    digests_by_artifact: dict[str, str] = {}
    for run in (run for run in read_all_runs(store, include_worlds=True) if run.flow == WORLD_FLOW):
        if entry := run.stages.get("seal_answer_key"):
            digests_by_artifact.setdefault(entry["artifact"], entry["content"])
    return digests_by_artifact


def open_verified_answer_key(run: Run, first_digest_by_artifact: dict[str, str]) -> Artifact:
    """Open the answer key of a world if it is the one that was sealed first.

    Args:
        run: The run of the world.
        first_digest_by_artifact: The first digest of each answer key by artifact name; receives
            that of a new one.

    Raises:
        HallmarkError: If the answer key is missing, was changed, or belongs to another world.
    """
    entry = run.stages.get("seal_answer_key")
    if entry is None:
        raise HallmarkError("the answer key of this world was never sealed")
    first_digest = first_digest_by_artifact.setdefault(entry["artifact"], entry["content"])
    artifact = find_artifact(run.store, entry["artifact"])
    if not artifact.content_digest == entry["content"] == first_digest:
        raise HallmarkError(
            f"the answer key of this world is not the one that was sealed ({artifact.name})"
        )
    for part in (part for table in artifact.tables.values() for part in table.parts):
        if hash_file(part.path) != part.entry["sha256"]:
            raise HallmarkError(
                f"the answer key of this world was changed after it was sealed ({artifact.name})"
            )
    candidates = run["judge_candidates"]["verdicts"].read(["kind", "candidate_id"]).to_pylist()
    if {(row["kind"], row["candidate_id"]) for row in candidates} - {
        *read_effect_level_by_candidate(artifact["answer_key"].read())
    }:
        raise HallmarkError(
            "the answer key of this world does not list the effects for which the world was "
            f"audited ({artifact.name})"
        )
    return artifact
