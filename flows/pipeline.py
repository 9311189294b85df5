"""The whole system on one screen: from raw text to an audited model."""

from __future__ import annotations

from hallmark.flows.audit_execution import check_user_files_exist
from hallmark.flows.auditing import (
    audit_checkpoint,
    check_model_settings,
    choose_audits_of_run,
    find_or_reconstruct_training,
    record_other_lexicons,
)
from hallmark.flows.checkpoint_resolution import get_permanent_name, resolve_checkpoint
from hallmark.flows.checkpoint_versions import hold_checkpoint_copy
from hallmark.flows.corpus_additions import open_earlier_corpus_or_empty
from hallmark.flows.curation import curate_corpus
from hallmark.flows.request_flows import request_flow
from hallmark.flows.run_outcome import conclude_flow
from hallmark.flows.run_recording import start_run
from hallmark.flows.run_request import RunRequest
from hallmark.flows.runs import Run
from hallmark.flows.training import train_model
from hallmark.flows.training_stop import request_training_stops
from hallmark.tasks.audits.ability.capability_texts import check_validation_text_exists
from hallmark.tasks.audits.audited_models.opening import is_hallmark_checkpoint
from hallmark.tasks.contract import Artifact, Table
from hallmark.tasks.corpus.contamination import check_evaluation_sets
from hallmark.tasks.training.pretrain import check_hosts_share_store


@request_flow
def pipeline(request: RunRequest) -> str:
    """Curate a corpus, train a model on it and audit the model."""
    with start_run(request) as run:
        audit_names = choose_audits_of_run(run.config, request.selected_audits, request.until)
        check_model_settings(run.config, is_hallmark=True)
        check_user_files_exist(run.config, audit_names)
        check_evaluation_sets(run.config.contamination)
        _check_hosts(run)
        start_checkpoint = _resolve_start_checkpoint(run, request.start)

        corpus = curate_corpus(run.config, open_earlier_corpus_or_empty(run.store, run.config))
        if "capability" in audit_names:
            check_validation_text_exists(Table(tuple(corpus.documents), "documents"))
        trained = train_model(run.config, corpus, start_checkpoint, audit_names)
        if "leave_out" in trained:
            corpus = corpus.with_artifact("leave_out", trained["leave_out"])
        checkpoint = run.find_last_checkpoint(trained["pretrain"])
        audit_checkpoint(run.config, checkpoint, audit_names, corpus, trained["pretrain"])
    return conclude_flow(run)


@request_flow
def corpus(request: RunRequest) -> str:
    """Curate a corpus and build its datasheet."""
    with start_run(request) as run:
        check_evaluation_sets(run.config.contamination)
        curate_corpus(run.config, open_earlier_corpus_or_empty(run.store, run.config))
    return run.id


@request_flow
def pretrain(request: RunRequest) -> str:
    """Curate a corpus and train a model on it."""
    with start_run(request) as run:
        check_evaluation_sets(run.config.contamination)
        _check_hosts(run)
        start_checkpoint = _resolve_start_checkpoint(run, request.start)
        corpus = curate_corpus(run.config, open_earlier_corpus_or_empty(run.store, run.config))
        trained = train_model(run.config, corpus, start_checkpoint)
        run.find_last_checkpoint(trained["pretrain"])
    return run.id


@request_flow
def audit(request: RunRequest) -> str:
    """Audit a checkpoint: one of Hallmark's, or a Hugging Face folder of a language model."""
    assert request.checkpoint is not None
    with start_run(request) as run, hold_checkpoint_copy(run.store, request.checkpoint):
        resolved = resolve_checkpoint(run.store, request.checkpoint)
        check_model_settings(run.config, is_hallmark=is_hallmark_checkpoint(resolved.checkpoint))
        run.update_record(checkpoint=get_permanent_name(run.store, resolved, request.checkpoint))
        audit_checkpoint(
            run.config,
            resolved.checkpoint,
            request.selected_audits,
            resolved.corpus,
            find_or_reconstruct_training(resolved.checkpoint, resolved.training_run),
            record_other_lexicons(run.config, resolved),
        )
        request_training_stops(run, resolved.checkpoint)
    return conclude_flow(run)


def _check_hosts(run: Run) -> None:
    is_folder = run.store.root_folder is not None
    check_hosts_share_store(run.config.pretrain.train, is_folder=is_folder)


def _resolve_start_checkpoint(run: Run, checkpoint_name: str | None) -> Artifact | None:
    """Find the checkpoint that training continues from, and record its permanent name."""
    if checkpoint_name is None:
        return None
    resolved = resolve_checkpoint(run.store, checkpoint_name)
    run.update_record(checkpoint=get_permanent_name(run.store, resolved, checkpoint_name))
    return resolved.checkpoint
