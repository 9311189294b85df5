"""Run a study of the audits on trials: synthetic corpora with sealed answer keys.

A model is trained on each trial and audited like any other. The answer keys are opened only when
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
from hallmark.flows.runs import (
    TRIAL_FLOW,
    Run,
    find_artifact,
    open_run,
    open_store,
    read_all_runs,
)
from hallmark.flows.site import try_build_site
from hallmark.flows.study_config import (
    STUDIED_PROBES,
    StudyConfig,
    expand_to_full_audits,
    iter_trial_names_and_configs,
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
from hallmark.tasks.corpus.synthetic_corpus import seal_answer_key, write_synthetic_corpus
from hallmark.tasks.training.document_padding import pad_removed_documents
from hallmark.tasks.training.pack import pack
from hallmark.tasks.training.pretrain import pretrain
from hallmark.tasks.training.train_tokenizer import train_tokenizer

#: Prefix for the labels of the audits that use all items.
FULL_AUDIT_PREFIX = "whole_"

#: The environment variable for the number of threads of a process.
THREAD_COUNT_VARIABLE = "OMP_NUM_THREADS"


@flow(name="trial", flow_run_name=generate_flow_run_name)
def trial(config: dict[str, Any], store: str) -> str:
    """Build one trial, train and audit a model on it, and judge its candidates.

    The answer key is sealed and not read.
    """
    settings = StudyConfig.model_validate(config)
    with record_run("trial", settings, Store(store)) as run:
        trial_corpus = write_synthetic_corpus(settings.synthetic_corpus)
        seal_answer_key(settings.synthetic_corpus)
        tokenizer = train_tokenizer(
            documents=[trial_corpus], signals=None, config=settings.train_tokenizer
        )
        packed_corpus = pack(documents=[trial_corpus], tokenizer=tokenizer, config=settings.pack)
        training_run = pretrain(
            packed_corpus=packed_corpus,
            tokenizer=tokenizer,
            documents=[trial_corpus],
            signals=None,
            start_checkpoint=None,
            config=settings.pretrain,
        )
        checkpoint = run.find_last_checkpoint(training_run)
        sample_audits = audit_trial(settings, checkpoint, trial_corpus)
        full_audits = audit_trial(
            expand_to_full_audits(settings), checkpoint, trial_corpus, FULL_AUDIT_PREFIX
        )
        verdicts = judge_candidates(
            sample_audits=sample_audits,
            full_audits=full_audits,
            training_run=training_run,
            packed_corpus=packed_corpus,
        )
        attributions = attribute_texts(
            documents=[trial_corpus], canaries=[trial_corpus], config=settings.attribute_texts
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
                    trial_corpus, exclusion_config
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
                    documents=[trial_corpus],
                    signals=None,
                    start_checkpoint=None,
                    config=settings.pretrain,
                )
                arm_audits = audit_trial(
                    settings, run.find_last_checkpoint(retraining_run), trial_corpus, f"{arm}_"
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


def audit_trial(
    config: StudyConfig, checkpoint: Artifact, trial_corpus: Artifact, label_prefix: str = ""
) -> FindingsByAudit:
    """Audit the model of a trial and return the findings by audit.

    Raises:
        HallmarkError: If an audit fails.
    """
    probe_audits = ProbeAudits(
        probes=STUDIED_PROBES,
        checkpoint=checkpoint,
        config=config,
        lexicons=trial_corpus,
        canaries=[trial_corpus],
        label_prefix=label_prefix,
    )
    probe_audits.build_requests()
    findings = probe_audits.run()
    if errors := probe_audits.errors:
        raise HallmarkError("; ".join(f"{name}: {reason}" for name, reason in errors.items()))
    return findings


class TrialOutcome(NamedTuple):
    """The id of a trial's run, or None and the error."""

    run_id: str | None
    error: str


def run_trial(config: dict[str, Any], store_uri: str) -> TrialOutcome:
    """Run a trial with one thread and return its run or its error; called in a worker process."""
    previous_threads = os.environ.get(THREAD_COUNT_VARIABLE)
    os.environ[THREAD_COUNT_VARIABLE] = "1"  # before torch is loaded
    try:
        return TrialOutcome(trial(config, store_uri), "")
    except HallmarkError as error:
        return TrialOutcome(None, str(error))
    except (OSError, MemoryError):  # a problem of the machine would affect every trial
        raise
    except Exception as error:  # any other error excludes only this trial
        return TrialOutcome(None, f"{type(error).__name__}: {error}")
    finally:
        os.environ.pop(THREAD_COUNT_VARIABLE)
        if previous_threads is not None:
            os.environ[THREAD_COUNT_VARIABLE] = previous_threads


@flow(name="study", flow_run_name=generate_flow_run_name)
def study(config: dict[str, Any], store: str) -> str:
    """Run all trials, each as a separate run, and compute the error rates of the audits."""
    settings, opened_store = StudyConfig.model_validate(config), open_store(store)
    with record_run("study", settings, opened_store) as run:
        verdicts_by_trial, answer_keys, attributions_by_trial, excluded_trials = {}, {}, {}, {}
        arm_verdicts: dict[str, Artifact] = {}
        sealed_digests = read_first_sealed_digest_by_artifact(opened_store)
        for name, trial_outcome in iter_trial_names_and_outcomes(settings, store):
            frontend.on_trial_outcome(name, trial_outcome)
            try:
                if trial_outcome.run_id is None:
                    raise HallmarkError(trial_outcome.error)
                trial_run = open_run(trial_outcome.run_id, opened_store)
                answer_keys[name] = open_verified_answer_key(trial_run, sealed_digests)
                attributions_by_trial[name] = trial_run["attribute_texts"]
                arm_verdicts |= {
                    f"{name} {arm}": trial_run[f"{arm}_verdicts"]
                    for arm in ARMS
                    if f"{arm}_verdicts" in trial_run.stages
                }
                verdicts_by_trial[name] = trial_run["judge_candidates"]
            except HallmarkError as error:
                answer_keys.pop(name, None)
                attributions_by_trial.pop(name, None)
                excluded_trials[name] = str(error)
        if not verdicts_by_trial:
            name, reason = next(iter(excluded_trials.items()))
            raise HallmarkError(
                "no trial (synthetic corpus and model) of the study produced a usable result; "
                f"{name}: {reason}"
            )
        rates_config = ErrorRatesConfig(
            excluded_trials=excluded_trials, max_documents=settings.attribute_texts.max_documents
        )
        rates = compute_error_rates(
            verdicts=verdicts_by_trial,
            answer_keys=answer_keys,
            attributions=attributions_by_trial,
            retrained_verdicts=arm_verdicts,
            config=rates_config,
        )
        build_study_card(rates, settings.study_card)
    run.site_index = try_build_site(opened_store)
    return run.id


def iter_trial_names_and_outcomes(
    config: StudyConfig, store_uri: str
) -> Iterator[tuple[str, TrialOutcome]]:
    """Run the trials in parallel, one thread each, and yield their outcomes in order."""
    configs_by_trial = dict(iter_trial_names_and_configs(config))
    call_arguments = [
        (entry.model_dump(mode="json"), store_uri) for entry in configs_by_trial.values()
    ]
    completed_count = 0
    with make_mapper("processes", config.parallel_trials) as mapper:
        try:
            for name, entry in zip(
                configs_by_trial, mapper(run_trial, call_arguments, Resources()), strict=True
            ):
                completed_count += 1
                yield name, entry
        except BrokenExecutor as error:
            raise HallmarkError(
                f"a process that ran {[*configs_by_trial][completed_count]} or a later trial was "
                "killed, perhaps because memory ran out; completed trials are kept, so run the "
                "same command again, with --parallel-trials 1 if memory is short"
            ) from error


def read_first_sealed_digest_by_artifact(store: Store) -> dict[str, str]:
    """Read the digest with which each answer key was first sealed, by artifact name.

    A continued study runs each trial again and takes whatever answer key the store has then, so
    only the first digest proves that the key was not exchanged.
    """
    digests_by_artifact: dict[str, str] = {}
    for run in (run for run in read_all_runs(store, include_trials=True) if run.flow == TRIAL_FLOW):
        if entry := run.stages.get("seal_answer_key"):
            digests_by_artifact.setdefault(entry["artifact"], entry["content"])
    return digests_by_artifact


def open_verified_answer_key(run: Run, first_digest_by_artifact: dict[str, str]) -> Artifact:
    """Open the answer key of a trial if it is the one that was sealed first.

    Args:
        run: The run of the trial.
        first_digest_by_artifact: The first digest of each answer key by artifact name; receives
            that of a new one.

    Raises:
        HallmarkError: If the answer key is missing, was changed, or belongs to another trial.
    """
    entry = run.stages.get("seal_answer_key")
    if entry is None:
        raise HallmarkError("this trial's answer key was never sealed")
    first_digest = first_digest_by_artifact.setdefault(entry["artifact"], entry["content"])
    artifact = find_artifact(run.store, entry["artifact"])
    if not artifact.content_digest == entry["content"] == first_digest:
        raise HallmarkError(
            f"this trial's answer key is not the one that was sealed ({artifact.name})"
        )
    for part in (part for table in artifact.tables.values() for part in table.parts):
        if hash_file(part.path) != part.entry["sha256"]:
            raise HallmarkError(
                f"this trial's answer key was changed after it was sealed ({artifact.name})"
            )
    candidates = run["judge_candidates"]["verdicts"].read(["kind", "candidate_id"]).to_pylist()
    if {(row["kind"], row["candidate_id"]) for row in candidates} - {
        *read_effect_level_by_candidate(artifact["answer_key"].read())
    }:
        raise HallmarkError(
            "this trial's answer key does not list the effects that the audits tested "
            f"({artifact.name})"
        )
    return artifact
