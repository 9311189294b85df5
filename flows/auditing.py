"""Audit a checkpoint: from a model to findings and a model card."""

from __future__ import annotations

from collections.abc import Sequence

from hallmark.flows.audit_execution import (
    ProbeAudits,
    TrainingInputs,
    capture_failure,
    get_step_settings,
)
from hallmark.flows.checkpoint_resolution import trace_training_history
from hallmark.flows.config import Config
from hallmark.flows.corpus import Corpus
from hallmark.flows.error_rates import find_current_error_rates
from hallmark.flows.policy_rule_checks import check_rule_slices
from hallmark.reports.model_card import build_model_card
from hallmark.tasks.audits.ability.attention_maps import attention_maps
from hallmark.tasks.audits.ability.capability import audit_capability
from hallmark.tasks.audits.ability.capability_baselines import capability_baselines
from hallmark.tasks.audits.failures import FailuresConfig, record_failures
from hallmark.tasks.audits.judging.policy import evaluate_policy
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS, PROBES
from hallmark.tasks.audits.sample_scoring import score_samples
from hallmark.tasks.contract import (
    Artifact,
    HallmarkError,
    UsageError,
    get_artifact_store,
    get_current_session,
)
from hallmark.tasks.training.train_tokenizer import train_tokenizer


def audit_checkpoint(
    config: Config,
    checkpoint: Artifact,
    audit_names: Sequence[str],
    corpus: Corpus | None = None,
    training_run: Artifact | None = None,
) -> dict[str, Artifact]:
    """Audit a checkpoint and build its model card.

    Args:
        config: The config of the run.
        checkpoint: The model to audit.
        audit_names: Names of the audits to run.
        corpus: The corpus that the model was trained on, if the store knows it. Without it, only
            what needs no training text is measured.
        training_run: The artifact of the training that wrote the checkpoint, if known.

    Returns:
        The artifacts by label.

    Raises:
        HallmarkError: No audit gave a result.
        UsageError: None of the audits can run with this config.
    """
    training = _collect_training_inputs(checkpoint, training_run, corpus)
    # The card says of probes whose files are not configured that they did not run.
    probes = [
        probe
        for probe in PROBES
        if probe.name in audit_names
        and not probe.find_missing_settings(get_step_settings(config, probe))
    ]
    probe_audits = ProbeAudits(
        probes=probes,
        checkpoint=checkpoint,
        lexicons=corpus.latest.get("identities") if corpus else None,
        documents=corpus.documents if corpus else None,
        training=training,
        config=config,
    )
    errors = probe_audits.errors
    request_sets = probe_audits.build_requests()
    check_rule_slices(config, probes, request_sets)
    audits: dict[str, Artifact] = {}
    if corpus and "capability" in audit_names:  # first, since it shows whether the model can answer
        with capture_failure(errors, "capability"):
            baselines = capability_baselines(
                checkpoint=checkpoint,
                documents=corpus.documents,
                config=config.audit_capability.baselines_config,
            )
            audits["capability"] = audit_capability(
                checkpoint=checkpoint,
                documents=corpus.documents,
                baselines=baselines,
                config=config.audit_capability,
            )
    audits |= probe_audits.run()
    if not audits:
        reason = next(
            iter(errors.values()),
            f"{', '.join(audit_names)}: {explain_missing_inputs(config, audit_names)}",
        )
        raise (HallmarkError if errors else UsageError)(reason)
    artifacts = probe_audits.artifacts | {f"audit_{name}": audits[name] for name in audits}
    if config.policy.rules:
        artifacts["policy"] = evaluate_policy(audits, config.policy)
    with capture_failure(errors, "attention_maps"):
        artifacts["attention_maps"] = attention_maps(checkpoint, config.attention_maps)
    if training_run:
        artifacts["score_samples"] = score_samples(training_run, config.score_samples)
    if errors:
        artifacts["failures"] = record_failures(FailuresConfig(audits=errors))
    artifacts["model_card"] = build_model_card(
        checkpoint=checkpoint,
        training_run=training_run,
        tokenizer=find_lineage_input(training_run, "tokenizer", train_tokenizer.name),
        audits=audits,
        corpus_artifacts=corpus.list_card_inputs("plant_canaries") if corpus else {},
        attention_maps=artifacts.get("attention_maps"),
        scored_samples=artifacts.get("score_samples"),
        policy_verdicts=artifacts.get("policy"),
        failures=artifacts.get("failures"),
        error_rates=find_current_error_rates(get_current_session().store),
        config=config.model_card,
    )
    return artifacts


def _collect_training_inputs(
    checkpoint: Artifact, training_run: Artifact | None, corpus: Corpus | None
) -> TrainingInputs:
    history = trace_training_history(checkpoint, training_run)
    documents = corpus.documents if corpus else None
    if documents and history:
        documents = [*documents, *history.list_corpora_except(documents)]
    if history is None:
        return TrainingInputs(documents=documents)
    return TrainingInputs(
        checkpoints=history.checkpoints,
        training_runs=history.training_runs,
        packed_corpora=history.packed_corpora,
        documents=documents,
    )


def explain_missing_inputs(config: Config, audit_names: Sequence[str]) -> str:
    """Explain why none of these audits can run."""
    missing_settings = [
        f"audit_{probe.name}.{name}"
        for probe in PROBES
        if probe.name in audit_names
        for name in probe.find_missing_settings(get_step_settings(config, probe))
    ]
    if missing_settings:
        return (
            f"needs files of yours; give their paths with --set "
            f"{'=… --set '.join(missing_settings)}=…"
        )
    return "needs the training corpus, which this store lacks"


def find_lineage_input(
    training_run: Artifact | None, input_name: str, stage: str | None = None
) -> Artifact | None:
    """Return an input of a training run from its store.

    Args:
        training_run: The training run, if known.
        input_name: Name of the input.
        stage: The stage that must have made the input, or None for any. The tokenizer of a
            continued training belongs to a checkpoint, for example.
    """
    store = get_artifact_store(training_run) if training_run else None
    if training_run is None or store is None:
        return None
    stage_name, _, fingerprint = training_run.manifest["lineage"][input_name].partition("/")
    return store.find_artifact(stage_name, fingerprint) if stage in (None, stage_name) else None


def list_audits_up_to(last_stage: str | None) -> tuple[str, ...]:
    """Return the audits of a run that stops after a stage."""
    audit_names = [*AUDIT_DESCRIPTIONS]
    last_audit = last_stage.removeprefix("audit_") if last_stage else ""
    if last_audit in audit_names:
        audit_names = audit_names[: audit_names.index(last_audit) + 1]
    return tuple(audit_names)


def has_audit_stages(last_stage: str | None) -> bool:
    """Return whether a run that stops after a stage reaches the audits."""
    stages = list(Config.model_fields)
    return last_stage is None or stages.index(last_stage) > stages.index("pretrain")


def check_audit_names(audit_names: Sequence[str]) -> None:
    """Raise UsageError unless these are names of audits, at least one."""
    unknown_names = [name for name in audit_names if name not in AUDIT_DESCRIPTIONS]
    if unknown_names or not audit_names:
        problem = (
            f"there is no audit {', '.join(map(repr, unknown_names))}"
            if unknown_names
            else "none is named"
        )
        raise UsageError(
            f"only {','.join(audit_names)!r}: {problem}; choose from "
            f"{', '.join(AUDIT_DESCRIPTIONS)}"
        )
