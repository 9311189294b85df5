"""Audit a checkpoint: from a model to findings and a model card."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from hallmark.flows.audit_execution import (
    ProbeAudits,
    TrainingInputs,
    check_scorers_of_audits,
    get_step_settings,
    record_failure,
)
from hallmark.flows.audit_selection import ALL_AUDITS, CORPUS_AUDITS
from hallmark.flows.checkpoint_resolution import (
    ResolvedCheckpoint,
    find_training_run,
    trace_training_history,
)
from hallmark.flows.config import Config, rebase_config_paths
from hallmark.flows.corpus import ArtifactsByLabel, Corpus
from hallmark.flows.error_rates import find_current_error_rates_by_audit
from hallmark.flows.policy_rule_checks import check_rule_slices
from hallmark.flows.previous_release import compare_audits_with_previous, find_previous_release
from hallmark.flows.runs import find_artifact
from hallmark.reports.model_card import build_model_card
from hallmark.tasks.audits.ability.attention_maps import attention_maps
from hallmark.tasks.audits.ability.capability import audit_capability
from hallmark.tasks.audits.ability.capability_baselines import capability_baselines
from hallmark.tasks.audits.audited_models.opening import check_inference_settings
from hallmark.tasks.audits.judging.policy import write_rule_verdicts
from hallmark.tasks.audits.missing_audits import MissingAuditsConfig, record_missing_audits
from hallmark.tasks.audits.registry import PROBES
from hallmark.tasks.audits.sample_scoring import score_samples
from hallmark.tasks.contract import (
    Artifact,
    HallmarkError,
    UsageError,
    get_artifact_store,
    get_current_session,
    make_circular_lineage_error,
)
from hallmark.tasks.corpus.identities import record_lexicons
from hallmark.tasks.training.reconstructed_reads import (
    ReadOrderConfig,
    ReconstructReadsConfig,
    reconstruct_reads,
)
from hallmark.tasks.training.train_tokenizer import train_tokenizer


def audit_checkpoint(
    config: Config,
    checkpoint: Artifact,
    audit_names: Sequence[str],
    corpus: Corpus | None = None,
    training_run: Artifact | None = None,
    lexicons: Artifact | None = None,
) -> ArtifactsByLabel:
    """Audit a checkpoint and build its model card.

    Args:
        config: The config of the run.
        checkpoint: The model to audit.
        audit_names: Names of the audits to run; the card lists the others as skipped, or as not
            run if they could not.
        corpus: The corpus that the model was trained on, if the store knows it. Without it, only
            what needs no training text is measured.
        training_run: The artifact of the training that wrote the checkpoint, if known; or that of
            ``find_or_reconstruct_training``.
        lexicons: The lexicons of groups, if they are not those of the corpus.

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
    if lexicons is None and corpus is not None:
        lexicons = corpus.latest_addition.get("identities")
    probe_audits = ProbeAudits(
        probes=probes,
        checkpoint=checkpoint,
        lexicons=lexicons,
        documents=corpus.documents if corpus else None,
        training=training,
        config=config,
    )
    errors = probe_audits.errors
    requests_by_audit = probe_audits.build_requests()
    check_rule_slices(config, probes, requests_by_audit)
    check_scorers_of_audits(config, [probe.name for probe in probes])
    audits: dict[str, Artifact] = {}
    if corpus and "capability" in audit_names:  # first, since it shows whether the model can answer
        with record_failure(errors, "capability"):
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
    previous_release = find_previous_release(config, checkpoint)
    comparison = compare_audits_with_previous(previous_release, checkpoint, audits, artifacts)
    if comparison:
        artifacts["compare_with_previous"] = comparison
    if rules := config.policy.rules:
        has_rule_about_previous = any(rule.is_about_previous for rule in rules.values())
        artifacts["policy"] = write_rule_verdicts(
            audits, comparison if has_rule_about_previous else None, config.policy.rules_config
        )
    with record_failure(errors, "attention_maps"):
        artifacts["attention_maps"] = attention_maps(checkpoint, config.attention_maps)
    if training_run and has_samples(training_run):
        artifacts["score_samples"] = score_samples(training_run, config.score_samples)
    available_audits = list_available_audits(config, has_corpus=corpus is not None)
    skipped_audits = [name for name in available_audits if name not in audit_names]
    if errors or skipped_audits:
        artifacts["missing_audits"] = record_missing_audits(
            MissingAuditsConfig(failure_reasons=errors, skipped_audits=skipped_audits)
        )
    artifacts["model_card"] = build_model_card(
        checkpoint=checkpoint,
        training_run=training_run,
        tokenizer=(
            find_lineage_input(checkpoint, "tokenizer", train_tokenizer.name)
            if training_run
            else None
        ),
        audits=audits,
        corpus_artifacts=corpus.collect_card_inputs("plant_canaries") if corpus else {},
        attention_maps=artifacts.get("attention_maps"),
        scored_samples=artifacts.get("score_samples"),
        policy_verdicts=artifacts.get("policy"),
        missing_audits=artifacts.get("missing_audits"),
        error_rates=find_current_error_rates_by_audit(get_current_session().store),
        previous_comparison=comparison,
        config=config.model_card,
    )
    return artifacts


def find_or_reconstruct_training(
    checkpoint: Artifact, training_run: Artifact | None, label: str = reconstruct_reads.name
) -> Artifact | None:
    """Return the training of a checkpoint; reconstruct what it had read if it has not ended.

    Args:
        checkpoint: The checkpoint.
        training_run: What the store knows of its training, as in ``ResolvedCheckpoint``.
        label: The label of the stage that reconstructs.

    Returns:
        The artifact of ``pretrain``, or one with the tables about reads that ``pretrain`` writes
        at its end. None if Hallmark did not pretrain the checkpoint, or if a document was purged
        from its packed corpus.
    """
    if training_run is not None and training_run.stage == "pretrain":
        return training_run
    store = get_artifact_store(checkpoint)
    training_config = checkpoint.manifest.get("parts", {}).get("config", {})
    packed_name = checkpoint.find_input_name("packed_corpus")
    if store is None or "train" not in training_config or packed_name is None:
        return None
    packed_corpus = find_artifact(store, packed_name)
    if packed_corpus.purge_time_by_doc_id:
        return None
    return reconstruct_reads.with_label(label)(
        checkpoint=checkpoint,
        packed_corpus=packed_corpus,
        documents=[find_artifact(store, name) for name in checkpoint.list_input_names("documents")],
        config=ReconstructReadsConfig(
            step=checkpoint.training_step,
            train=_read_order_config(checkpoint),
        ),
    )


def _read_order_config(checkpoint: Artifact) -> ReadOrderConfig:
    """Read the settings of a training that decide in which order it read the sequences."""
    try:
        return ReadOrderConfig(
            seed=checkpoint.get_setting("train", "seed"),
            batch_size=checkpoint.get_setting("train", "batch_size"),
        )
    except ValidationError as error:
        raise checkpoint.make_manifest_error(
            "parts.config.train.seed and batch_size must be whole numbers"
        ) from error


def has_samples(training_run: Artifact) -> bool:
    """Return whether a training recorded generated texts; one that has not ended has not.

    Forecasts and tests describe a training that ended by an object of another class.
    """
    return not isinstance(training_run, Artifact) or "samples" in training_run.tables


def record_other_lexicons(config: Config, resolved: ResolvedCheckpoint) -> Artifact | None:
    """Record the lexicons of a config if they are not those of the checkpoint's corpus.

    Returns:
        None if the audits can use the lexicons of the corpus, or if there are none.
    """
    known_paths: Sequence[str] = []
    if resolved.source_run is not None:
        recorded_tree = rebase_config_paths(
            resolved.source_run.record["config"], resolved.source_run.working_folder
        )
        known_paths = recorded_tree.get("identities", {}).get("lexicons", [])
    if [*map(str, config.identities.lexicons)] == [*known_paths]:
        return None
    return record_lexicons(config.identities.lexicons_config)


def list_available_audits(config: Config, *, has_corpus: bool) -> list[str]:
    """List the audits that can measure something: their files and the corpus are available."""
    probes_by_name = {probe.name: probe for probe in PROBES}
    return [
        name
        for name in ALL_AUDITS
        if (has_corpus or name not in CORPUS_AUDITS)
        and not (
            name in probes_by_name
            and (probe := probes_by_name[name]).find_missing_settings(
                get_step_settings(config, probe)
            )
        )
    ]


def check_model_settings(config: Config, *, is_hallmark: bool) -> None:
    """Check that the audited model supports the settings of every stage that opens it.

    Raises:
        UsageError: It does not; the stage would fail after others have computed their results.
    """
    for section in ("respond", "audit_capability", "attention_maps"):
        settings = getattr(config, section)
        batch_size = getattr(settings, "batch_size", None)
        try:
            check_inference_settings(
                settings.device, settings.dtype, batch_size, is_hallmark=is_hallmark
            )
        except UsageError as error:
            raise UsageError(f"{section}: {error}") from error


def _collect_training_inputs(
    checkpoint: Artifact, training_run: Artifact | None, corpus: Corpus | None
) -> TrainingInputs:
    if training_run is not None:
        _reconstruct_earlier_trainings(checkpoint)
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


def _reconstruct_earlier_trainings(checkpoint: Artifact) -> None:
    """Reconstruct the trainings that a checkpoint continues, if they have not ended."""
    store, visited_names = get_artifact_store(checkpoint), set[str]()
    while store is not None and (start_name := checkpoint.find_input_name("start_checkpoint")):
        if checkpoint.name in visited_names:
            raise make_circular_lineage_error(checkpoint.name)
        visited_names.add(checkpoint.name)
        start_checkpoint = store.find_artifact(*start_name.split("/"))
        if start_checkpoint is None or "checkpoint" in start_checkpoint.lineage:
            return
        checkpoint, number = start_checkpoint, len(visited_names)
        find_or_reconstruct_training(
            checkpoint,
            find_training_run(store, checkpoint),
            f"{reconstruct_reads.name}_{number}",
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
            "requires files that you must provide; specify their paths with --set "
            f"{'=… --set '.join(missing_settings)}=…"
        )
    return "requires the training corpus, which is not in this store"


def find_lineage_input(
    artifact: Artifact, input_name: str, stage: str | None = None
) -> Artifact | None:
    """Return an input of the stage that wrote an artifact from its store.

    Args:
        artifact: The artifact, such as a checkpoint.
        input_name: Name of the input.
        stage: The stage that must have made the input, or None for any. The tokenizer of a
            continued training belongs to a checkpoint, for example.
    """
    store = get_artifact_store(artifact)
    if store is None:
        return None
    stage_name, _, fingerprint = artifact.get_input_name(input_name).partition("/")
    return store.find_artifact(stage_name, fingerprint) if stage in (None, stage_name) else None


def list_audits_up_to(last_stage: str | None) -> tuple[str, ...]:
    """Return the audits of a run that stops after a stage."""
    last_audit = last_stage.removeprefix("audit_") if last_stage else ""
    if last_audit not in ALL_AUDITS:
        return ALL_AUDITS
    return ALL_AUDITS[: ALL_AUDITS.index(last_audit) + 1]


def has_audit_stages(last_stage: str | None) -> bool:
    """Return whether a run that stops after a stage reaches the audits."""
    stages = list(Config.model_fields)
    return last_stage is None or stages.index(last_stage) > stages.index("pretrain")


def choose_audits_of_run(
    config: Config, selected_audits: Sequence[str], last_stage: str | None
) -> list[str]:
    """Return the selected audits that a run reaches, before anything is computed.

    Raises:
        UsageError: The run reaches audits, but none of the selected ones can run.
    """
    if not has_audit_stages(last_stage):
        return []
    audit_names = [name for name in list_audits_up_to(last_stage) if name in selected_audits]
    if not audit_names:
        raise UsageError(
            f"the run stops after {last_stage}, before these audits: {', '.join(selected_audits)}; "
            "stop after a later stage, or select other audits"
        )
    probes = [probe for probe in PROBES if probe.name in audit_names]
    if len(probes) == len(audit_names) and all(
        probe.find_missing_settings(get_step_settings(config, probe)) for probe in probes
    ):
        raise UsageError(f"{', '.join(audit_names)}: {explain_missing_inputs(config, audit_names)}")
    return audit_names
