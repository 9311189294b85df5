"""The whole system on one screen: from raw text to an audited model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prefect import flow

from hallmark.flows.audit_execution import check_user_files_exist
from hallmark.flows.audit_selection import ALL_AUDITS, select_audits
from hallmark.flows.auditing import (
    audit_checkpoint,
    check_model_settings,
    choose_audits_of_run,
    find_or_reconstruct_training,
    record_other_lexicons,
)
from hallmark.flows.checkpoint_resolution import get_permanent_name, resolve_checkpoint
from hallmark.flows.corpus_additions import open_earlier_corpus_or_empty
from hallmark.flows.curation import curate_corpus
from hallmark.flows.run_outcome import conclude_flow
from hallmark.flows.run_recording import generate_flow_run_name, start_run
from hallmark.flows.runs import Run
from hallmark.flows.training import train_model
from hallmark.flows.training_stop import request_training_stops
from hallmark.tasks.audits.ability.capability_texts import check_validation_text_exists
from hallmark.tasks.audits.audited_models.opening import is_hallmark_checkpoint
from hallmark.tasks.contract import Artifact, Table
from hallmark.tasks.corpus.contamination import check_evaluation_sets


@flow(name="pipeline", flow_run_name=generate_flow_run_name)
def pipeline(
    config: str | dict[str, Any] = "demo",
    overrides: Sequence[str] = (),
    until: str | None = None,
    start: str | None = None,
    store: str | None = None,
    only: Sequence[str] = ALL_AUDITS,
    experiment_arm: str | None = None,
) -> str:
    """Curate a corpus, train a model on it and audit the model.

    Args:
        config: A config file, the name of a bundled config, or the config itself.
        overrides: Settings that replace those of the config: "pretrain.train.steps=100".
        until: The last stage to run; by default all run.
        start: The checkpoint to continue training from, as ``audit`` takes it.
        store: The store to use instead of the config's.
        only: The audits to run.
        experiment_arm: For an arm of an experiment, its name, such as "control arm of mitigate".
            "latest" does not mean such a run.

    Returns:
        The id of the run.
    """
    selected_audits = select_audits(only)
    with start_run("pipeline", config, overrides, until, start=start, store=store) as run:
        run.update_record(
            audits=_get_recorded_selection(selected_audits), experiment_arm=experiment_arm
        )
        audit_names = choose_audits_of_run(run.config, selected_audits, until)
        check_model_settings(run.config, is_hallmark=True)
        check_user_files_exist(run.config, audit_names)
        check_evaluation_sets(run.config.contamination)
        start_checkpoint = _resolve_start_checkpoint(run, start)

        corpus = curate_corpus(run.config, open_earlier_corpus_or_empty(run.store, run.config))
        if "capability" in audit_names:
            check_validation_text_exists(Table(tuple(corpus.documents), "documents"))
        trained = train_model(run.config, corpus, start_checkpoint, audit_names)
        if "leave_out" in trained:
            corpus = corpus.with_artifact("leave_out", trained["leave_out"])
        checkpoint = run.find_last_checkpoint(trained["pretrain"])
        audit_checkpoint(run.config, checkpoint, audit_names, corpus, trained["pretrain"])
    return conclude_flow(run)


@flow(name="corpus", flow_run_name=generate_flow_run_name)
def corpus(
    config: str | dict[str, Any] = "demo", overrides: Sequence[str] = (), store: str | None = None
) -> str:
    """Curate a corpus and build its datasheet; arguments and result as of ``pipeline``."""
    with start_run("corpus", config, overrides, store=store) as run:
        check_evaluation_sets(run.config.contamination)
        curate_corpus(run.config, open_earlier_corpus_or_empty(run.store, run.config))
    return run.id


@flow(name="pretrain", flow_run_name=generate_flow_run_name)
def pretrain(
    config: str | dict[str, Any] = "demo",
    overrides: Sequence[str] = (),
    start: str | None = None,
    store: str | None = None,
) -> str:
    """Curate a corpus and train a model on it; arguments and result as of ``pipeline``."""
    with start_run("pretrain", config, overrides, start=start, store=store) as run:
        check_evaluation_sets(run.config.contamination)
        start_checkpoint = _resolve_start_checkpoint(run, start)
        corpus = curate_corpus(run.config, open_earlier_corpus_or_empty(run.store, run.config))
        trained = train_model(run.config, corpus, start_checkpoint)
        run.find_last_checkpoint(trained["pretrain"])
    return run.id


@flow(name="audit", flow_run_name=generate_flow_run_name)
def audit(
    checkpoint: str,
    config: str | None = None,
    overrides: Sequence[str] = (),
    only: Sequence[str] = ALL_AUDITS,
    store: str | None = None,
) -> str:
    """Audit a checkpoint: one of Hallmark's, or a Hugging Face folder of a language model.

    Args:
        checkpoint: RUN, RUN@STEP, the name of a checkpoint artifact, or a folder.
        config: As of ``pipeline``; by default that of the run that trained the checkpoint.
        overrides, only, store: As of ``pipeline``.

    Returns:
        The id of the run.
    """
    selected_audits = select_audits(only)
    with start_run("audit", config, overrides, checkpoint=checkpoint, store=store) as run:
        resolved = resolve_checkpoint(run.store, checkpoint)
        check_model_settings(run.config, is_hallmark=is_hallmark_checkpoint(resolved.checkpoint))
        permanent_name = get_permanent_name(run.store, resolved, checkpoint)
        run.update_record(
            checkpoint=permanent_name, audits=_get_recorded_selection(selected_audits)
        )
        audit_checkpoint(
            run.config,
            resolved.checkpoint,
            selected_audits,
            resolved.corpus,
            find_or_reconstruct_training(resolved.checkpoint, resolved.training_run),
            record_other_lexicons(run.config, resolved),
        )
        request_training_stops(run, resolved.checkpoint)
    return conclude_flow(run)


def _get_recorded_selection(selected_audits: tuple[str, ...]) -> list[str] | None:
    """Return what run.json records of a selection of audits: None for all."""
    return None if selected_audits == ALL_AUDITS else [*selected_audits]


def _resolve_start_checkpoint(run: Run, checkpoint_name: str | None) -> Artifact | None:
    """Find the checkpoint that training continues from, and record its permanent name."""
    if checkpoint_name is None:
        return None
    resolved = resolve_checkpoint(run.store, checkpoint_name)
    run.update_record(checkpoint=get_permanent_name(run.store, resolved, checkpoint_name))
    return resolved.checkpoint
