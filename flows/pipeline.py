"""The whole system on one screen: raw text to an audited model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prefect import flow

from hallmark.flows.audit_execution import (
    capture_failure,
    check_user_audit_items,
    check_user_files_exist,
    get_step_settings,
    run_probe_audits,
)
from hallmark.flows.checkpoint_resolution import (
    get_permanent_name,
    resolve_checkpoint,
    trace_training_history,
)
from hallmark.flows.config import Config
from hallmark.flows.corpus_additions import EarlierAdditions, collect_earlier_additions
from hallmark.flows.error_rates import find_current_error_rates
from hallmark.flows.policy_rule_checks import check_rule_slices
from hallmark.flows.removal_experiment import collect_source_document_inputs
from hallmark.flows.run_recording import generate_flow_run_name, start_run
from hallmark.flows.runs import Run, open_run
from hallmark.reports.datasheet import build_datasheet
from hallmark.reports.model_card import build_model_card
from hallmark.reports.removal_experiment_card import (
    RemovalExperimentCardConfig,
    build_removal_experiment_card,
)
from hallmark.reports.task_card import build_task_card
from hallmark.tasks.audits.ability.attention_maps import attention_maps
from hallmark.tasks.audits.ability.capability import audit_capability
from hallmark.tasks.audits.ability.capability_baselines import capability_baselines
from hallmark.tasks.audits.ability.capability_texts import check_validation_text_exists
from hallmark.tasks.audits.audit_descriptions import AUDIT_DESCRIPTIONS
from hallmark.tasks.audits.catalogue import PROBES
from hallmark.tasks.audits.experiments.removal_experiment import compare_arms
from hallmark.tasks.audits.experiments.source_documents import (
    SourceDocumentsConfig,
    find_source_documents,
)
from hallmark.tasks.audits.failures import FailuresConfig, record_failures
from hallmark.tasks.audits.judging.policy import evaluate_policy
from hallmark.tasks.audits.sample_scoring import score_samples
from hallmark.tasks.contract import (
    Artifact,
    HallmarkError,
    Table,
    UsageError,
    get_artifact_store,
    get_current_session,
)
from hallmark.tasks.corpus.contamination import find_contamination
from hallmark.tasks.corpus.deduplicate import deduplicate
from hallmark.tasks.corpus.deduplicate_near import deduplicate_near
from hallmark.tasks.corpus.evaluate_curation import evaluate_curation
from hallmark.tasks.corpus.evaluate_detectors import evaluate_detectors
from hallmark.tasks.corpus.find_personal_data import find_personal_data
from hallmark.tasks.corpus.find_repeats import find_repeats
from hallmark.tasks.corpus.find_toxic_spans import find_toxic_spans
from hallmark.tasks.corpus.identities import find_identities
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.language import identify_languages
from hallmark.tasks.corpus.leave_out import leave_out_documents
from hallmark.tasks.corpus.plant_canaries import plant_canaries
from hallmark.tasks.corpus.profile import profile_corpus
from hallmark.tasks.corpus.quality import measure_quality
from hallmark.tasks.corpus.reading.inputs import list_town_sources
from hallmark.tasks.corpus.redact_spans import redact_spans
from hallmark.tasks.corpus.removal_effects import measure_removal_effects
from hallmark.tasks.corpus.score_toxicity import score_toxicity
from hallmark.tasks.corpus.select import select_documents
from hallmark.tasks.corpus.split import split_corpus
from hallmark.tasks.training.document_padding import pad_removed_documents
from hallmark.tasks.training.finetune import finetune as finetune_model
from hallmark.tasks.training.pack import pack
from hallmark.tasks.training.pretrain import pretrain as pretrain_model
from hallmark.tasks.training.train_tokenizer import train_tokenizer

deduplicate_redacted = deduplicate.with_label(
    "deduplicate_redacted"
)  # masking makes new duplicates
select_scored = select_documents.with_label("select_scored")
cut_repeats = redact_spans.with_label("cut_repeats")
cut_toxic = redact_spans.with_label("cut_toxic")


#: Of a corpus what the page of a proof shows documents, and masks them, by.
PROOF_PAGE_STAGES = ("find_personal_data", "score_toxicity", "plant_canaries")


def earlier_artifacts(earlier_additions: EarlierAdditions, *labels: str) -> dict[str, Artifact]:
    """What these stages left of the additions before this one, oldest first."""
    numbered_additions = enumerate(earlier_additions, 1)
    return {
        f"{label} {number}": addition[label]
        for number, addition in numbered_additions
        for label in labels
    }


def with_earlier(
    earlier_additions: EarlierAdditions,
    artifacts: dict[str, Artifact],
    label: str = "plant_canaries",
) -> list[Artifact]:
    """The documents of a corpus, or what a stage says of them: of its earlier additions, and of
    the last one."""
    return [addition[label] for addition in (*earlier_additions, artifacts)]


def curate_corpus(config: Config, earlier_additions: EarlierAdditions = ()) -> dict[str, Artifact]:
    """Raw text to a corpus with its datasheet, or to an addition to ``earlier`` ones."""
    artifacts: dict[str, Artifact] = {}
    artifacts["ingest"] = raw = ingest(config.ingest)
    artifacts["deduplicate"] = unique_documents = deduplicate(
        raw, earlier_artifacts(earlier_additions, "deduplicate"), config.deduplicate
    )
    artifacts["language"] = languages = identify_languages(unique_documents, config.language)
    artifacts["quality"] = quality_signals = measure_quality(unique_documents, config.quality)
    artifacts["identities"] = identities = find_identities(unique_documents, config.identities)
    signals = {"language": languages, "quality": quality_signals, "identities": identities}
    artifacts["select"] = selected = select_documents(unique_documents, signals, config.select)
    earlier_corpora = earlier_artifacts(earlier_additions, "deduplicate_near")
    artifacts["deduplicate_near"] = deduplicated = deduplicate_near(
        selected, earlier_corpora, config.deduplicate_near
    )
    if config.find_repeats.enabled:
        artifacts["find_repeats"] = repeat_spans = find_repeats(
            deduplicated, earlier_corpora, config.find_repeats
        )
        artifacts["cut_repeats"] = deduplicated = cut_repeats(
            deduplicated, {"repeats": repeat_spans}, config.cut_repeats
        )
    artifacts["evaluate_detectors"] = evaluate_detectors(config.find_personal_data)
    artifacts["find_personal_data"] = personal_spans = find_personal_data(
        deduplicated, config.find_personal_data
    )
    artifacts["redact_spans"] = redacted = redact_spans(
        deduplicated, {"personal": personal_spans}, config.redact_spans
    )
    earlier_corpora = earlier_artifacts(earlier_additions, "deduplicate_redacted")
    artifacts["deduplicate_redacted"] = unique_redacted = deduplicate_redacted(
        redacted, earlier_corpora, config.deduplicate_redacted
    )
    artifacts["score_toxicity"] = toxicity_scores = score_toxicity(
        unique_redacted, languages, config.score_toxicity
    )
    artifacts["contamination"] = overlap_signals = find_contamination(
        unique_redacted, config.contamination
    )
    signals = {"toxicity": toxicity_scores, "contamination": overlap_signals}
    artifacts["select_scored"] = curated = select_scored(
        unique_redacted, signals, config.select_scored
    )
    if config.find_toxic_spans.enabled:
        artifacts["find_toxic_spans"] = toxic_spans = find_toxic_spans(
            curated, toxicity_scores, config.find_toxic_spans
        )
        artifacts["cut_toxic"] = curated = cut_toxic(
            curated, {"toxic": toxic_spans}, config.cut_toxic
        )
    artifacts["split"] = split_documents = split_corpus(curated, config.split)
    filter_artifacts = dict(artifacts)  # what is held back for planting was silenced by no filter
    artifacts["plant_canaries"] = plant_canaries(split_documents, config.plant_canaries)
    corpus_artifacts, documents, earlier_corpora = (
        dict(artifacts),
        with_earlier(earlier_additions, artifacts),
        earlier_artifacts(earlier_additions, "ingest", "language"),
    )
    artifacts["profile"] = corpus_profile = profile_corpus(
        documents, documents, corpus_artifacts, earlier_corpora, config.profile
    )
    artifacts["removal_effects"] = corpus_artifacts["removal_effects"] = measure_removal_effects(
        unique_redacted, filter_artifacts, config.removal_effects
    )
    if list_town_sources(config.ingest):  # their truth is known
        evaluation_inputs = {**corpus_artifacts, "profile": corpus_profile}
        artifacts["evaluate_curation"] = corpus_artifacts["evaluate_curation"] = evaluate_curation(
            evaluation_inputs, config.evaluate_curation
        )
    corpus_artifacts = {
        **earlier_artifacts(earlier_additions, "ingest", "plant_canaries"),
        **corpus_artifacts,
    }
    artifacts["datasheet"] = build_datasheet(corpus_profile, corpus_artifacts, config.datasheet)
    return artifacts


def train_model(
    config: Config,
    corpus_artifacts: dict[str, Artifact],
    start_checkpoint: Artifact | None = None,
    earlier_additions: EarlierAdditions = (),
    audit_names: Sequence[str] = (),
) -> dict[str, Artifact]:
    """A corpus to a tokenizer, packed sequences and a trained model with its checkpoints; or, from
    the checkpoint ``start``, whose tokenizer it keeps, to a model trained on. ``audits``: those
    that follow, whose files are read before the training."""
    artifacts: dict[str, Artifact] = {}
    documents, identities = (
        with_earlier(earlier_additions, corpus_artifacts),
        with_earlier(earlier_additions, corpus_artifacts, "identities"),
    )
    training_documents = documents
    exclusion_config = config.leave_out
    if exclusion_config.enabled:  # of training alone: tokenizer and audits are those of all
        artifacts["leave_out"] = remaining_documents = leave_out_documents(
            corpus_artifacts["plant_canaries"], exclusion_config
        )
        training_documents = (
            training_documents if exclusion_config.replace_with_padding else [remaining_documents]
        )
    if start_checkpoint is None:
        artifacts["train_tokenizer"] = train_tokenizer(
            documents, identities, config.train_tokenizer
        )
    tokenizer = start_checkpoint or artifacts["train_tokenizer"]
    check_user_audit_items(config, tokenizer, audit_names)
    artifacts["pack"] = packed_corpus = pack(training_documents, tokenizer, config.pack)
    if exclusion_config.replace_with_padding:  # what is left stays where it is
        artifacts["pad_removed_documents"] = packed_corpus = pad_removed_documents(
            packed_corpus, remaining_documents, remaining_documents, tokenizer
        )
    artifacts["pretrain"] = pretrain_model(
        packed_corpus, tokenizer, training_documents, identities, start_checkpoint, config.pretrain
    )
    return artifacts


def audit_checkpoint(
    config: Config,
    checkpoint: Artifact,
    audit_names: Sequence[str],
    corpus_artifacts: dict[str, Artifact] | None = None,
    training_run: Artifact | None = None,
    earlier_additions: EarlierAdditions = (),
) -> dict[str, Artifact]:
    """A checkpoint to audits and a model card; without a corpus what can be measured without."""
    documents = with_earlier(earlier_additions, corpus_artifacts) if corpus_artifacts else None
    identity_signals = (corpus_artifacts or {}).get("identities")  # with the groups of its lexicons
    corpus_tables = {"lexicons": identity_signals, "canaries": documents, "documents": documents}
    training_history = trace_training_history(checkpoint, training_run)
    training_corpora = (
        [*documents, *training_history.list_corpora_except(documents)]
        if documents and training_history
        else documents
    )
    training_inputs = (
        *(training_history or (None, None, None)),
        training_corpora,
        training_corpora,
    )
    audits: dict[str, Artifact] = {}
    artifacts: dict[str, Artifact] = {}
    errors: dict[str, str] = {}

    def check_slices_and_audit_capability(request_sets: dict[str, Artifact]) -> None:
        """Refuse rules about slices that do not exist; then ask the model, this audit first."""
        check_rule_slices(config, probes, request_sets)
        if documents and "capability" in audit_names:
            with capture_failure(errors, "capability"):
                settings = config.audit_capability
                baselines = capability_baselines(checkpoint, documents, settings.baselines_config)
                audits["capability"] = audit_capability(checkpoint, documents, baselines, settings)

    # Of those whose files are not named the card says that they did not run.
    probes = [
        candidate
        for candidate in PROBES
        if candidate.name in audit_names
        and not candidate.find_missing_settings(get_step_settings(config, candidate))
    ]
    audits |= run_probe_audits(
        probes,
        checkpoint,
        corpus_tables,
        training_inputs,
        config,
        artifacts,
        errors,
        check_requests=check_slices_and_audit_capability,
    )
    if not audits:
        reason = next(
            iter(errors.values()),
            f"{', '.join(audit_names)}: {explain_missing_inputs(config, audit_names)}",
        )
        raise (HallmarkError if errors else UsageError)(reason)
    artifacts |= {f"audit_{name}": artifact for name, artifact in audits.items()}
    if config.policy.rules:
        artifacts["policy"] = evaluate_policy(audits, config.policy)
    with capture_failure(errors, "attention_maps"):
        artifacts["attention_maps"] = attention_maps(checkpoint, config.attention_maps)
    if training_run:
        artifacts["score_samples"] = score_samples(training_run, config.score_samples)
    if errors:
        artifacts["failures"] = record_failures(FailuresConfig(audits=errors))
    artifacts["model_card"] = build_model_card(
        checkpoint,
        training_run,
        lineage_input(training_run, "tokenizer", train_tokenizer.name),
        audits,
        {**earlier_artifacts(earlier_additions, "plant_canaries"), **(corpus_artifacts or {})},
        artifacts.get("attention_maps"),
        artifacts.get("score_samples"),
        artifacts.get("policy"),
        artifacts.get("failures"),
        find_current_error_rates(get_current_session().store),
        config.model_card,
    )
    return artifacts


def explain_missing_inputs(config: Config, audit_names: Sequence[str]) -> str:
    """Why none of these audits can run."""
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


def lineage_input(
    training_run: Artifact | None, input_name: str, stage: str | None = None
) -> Artifact | None:
    """What a training was made of; None where it is not known, or another ``stage`` made it: the
    tokenizer may be a checkpoint's."""
    store = get_artifact_store(training_run) if training_run else None
    if training_run is None or store is None:
        return None
    stage_name, _, fingerprint = training_run.manifest["lineage"][input_name].partition("/")
    return store.find_artifact(stage_name, fingerprint) if stage in (None, stage_name) else None


def has_audit_stages(last_stage: str | None) -> bool:
    """Whether a run that stops behind this stage comes to the audits."""
    stages = list(Config.model_fields)
    return last_stage is None or stages.index(last_stage) > stages.index("pretrain")


def list_audits_up_to(last_stage: str | None) -> tuple[str, ...]:
    """The audits of a run that stops behind this stage: none in vain."""
    audit_names = [*AUDIT_DESCRIPTIONS]
    last_audit = last_stage.removeprefix("audit_") if last_stage else ""
    return tuple(
        audit_names[: audit_names.index(last_audit) + 1]
        if last_audit in audit_names
        else audit_names
    )


def check_audit_names(audit_names: Sequence[str]) -> None:
    """UsageError unless these are names of audits, at least one."""
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


@flow(name="pipeline", flow_run_name=generate_flow_run_name)
def pipeline(
    config: str | dict[str, Any] = "demo",
    overrides: Sequence[str] = (),
    until: str | None = None,
    start: str | None = None,
    store: str | None = None,
    only: Sequence[str] = tuple(AUDIT_DESCRIPTIONS),
) -> str:
    """Raw text to an audited model: curate, train, examine. Returns the id of the run.

    ``start``: the checkpoint to go on from (continued pretraining), as ``audit`` takes it.
    ``store``: instead of the config's. ``only``: these audits.
    """
    check_audit_names(only)
    with start_run("pipeline", config, overrides, until, start=start, store=store) as run:
        run.update_record(audits=None if {*only} == {*AUDIT_DESCRIPTIONS} else [*only])
        audit_names = (
            [name for name in list_audits_up_to(until) if name in only]
            if has_audit_stages(until)
            else []
        )
        check_user_files_exist(run.config, audit_names)
        start_checkpoint = resolve_start_checkpoint(run, start)
        earlier_additions = collect_earlier_additions(run.store, run.config)
        corpus_artifacts = curate_corpus(run.config, earlier_additions)
        if has_audit_stages(until):
            check_validation_text_exists(
                Table(tuple(with_earlier(earlier_additions, corpus_artifacts)), "documents")
            )
        training_artifacts = train_model(
            run.config, corpus_artifacts, start_checkpoint, earlier_additions, audit_names
        )
        checkpoint = run.find_last_checkpoint(training_artifacts["pretrain"])
        corpus_artifacts |= {
            label: training_artifacts[label]
            for label in ("leave_out",)
            if label in training_artifacts
        }
        audit_checkpoint(
            run.config,
            checkpoint,
            audit_names,
            corpus_artifacts,
            training_artifacts["pretrain"],
            earlier_additions,
        )
    return run.id


def resolve_start_checkpoint(run: Run, checkpoint_name: str | None) -> Artifact | None:
    """The checkpoint that training goes on from, told by a name that it has tomorrow, too."""
    if checkpoint_name is None:
        return None
    resolved = resolve_checkpoint(run.store, checkpoint_name)
    run.update_record(checkpoint=get_permanent_name(run.store, resolved, checkpoint_name))
    return resolved.checkpoint


@flow(name="corpus", flow_run_name=generate_flow_run_name)
def corpus(
    config: str | dict[str, Any] = "demo", overrides: Sequence[str] = (), store: str | None = None
) -> str:
    """Raw text to a corpus with its datasheet."""
    with start_run("corpus", config, overrides, store=store) as run:
        curate_corpus(run.config, collect_earlier_additions(run.store, run.config))
    return run.id


@flow(name="pretrain", flow_run_name=generate_flow_run_name)
def pretrain(
    config: str | dict[str, Any] = "demo",
    overrides: Sequence[str] = (),
    start: str | None = None,
    store: str | None = None,
) -> str:
    """Raw text to a trained model; the corpus stages come from the store where they can."""
    with start_run("pretrain", config, overrides, start=start, store=store) as run:
        start_checkpoint = resolve_start_checkpoint(run, start)
        earlier_additions = collect_earlier_additions(run.store, run.config)
        corpus_artifacts = curate_corpus(run.config, earlier_additions)
        run.find_last_checkpoint(
            train_model(run.config, corpus_artifacts, start_checkpoint, earlier_additions)[
                "pretrain"
            ]
        )
    return run.id


@flow(name="audit", flow_run_name=generate_flow_run_name)
def audit(
    checkpoint: str,
    config: str | None = None,
    overrides: Sequence[str] = (),
    only: Sequence[str] = tuple(AUDIT_DESCRIPTIONS),
    store: str | None = None,
) -> str:
    """Audit any checkpoint: one of ours, or a Hugging Face folder of a language model."""
    check_audit_names(only)
    with start_run("audit", config, overrides, checkpoint=checkpoint, store=store) as run:
        resolved = resolve_checkpoint(run.store, checkpoint)
        run.update_record(
            checkpoint=get_permanent_name(run.store, resolved, checkpoint), audits=list(only)
        )
        audit_checkpoint(
            run.config,
            resolved.checkpoint,
            only,
            resolved.corpus_artifacts,
            resolved.training_run,
            resolved.earlier_additions,
        )
    return run.id


@flow(name="prove", flow_run_name=generate_flow_run_name)
def prove(
    config: dict[str, Any], arms: dict[str, str], cases: dict[str, Any], store: str | None = None
) -> str:
    """Set trainings side by side of which some lack the documents behind findings. ``arms``: their
    runs, that of the whole corpus ("base") first; ``cases``: the findings, as ``behind`` has them.
    """
    with start_run("prove", config, store=store) as run:
        runs_by_arm = {arm: open_run(name, run.store) for arm, name in arms.items()}
        base_run, case_config = runs_by_arm["base"], SourceDocumentsConfig.model_validate(cases)
        finding_names = [name for case in case_config.cases for name in case.finding_names]
        seed_count = sum(arm.startswith("seed") for arm in arms)
        run.update_record(
            checkpoint=base_run.audited_checkpoint,
            arms=arms,
            findings=finding_names,
            seeds=seed_count,
        )
        source_documents = find_source_documents(
            *collect_source_document_inputs(base_run, case_config), case_config
        )
        audits_by_arm = {
            f"{arm}/{name}": arm_run[f"audit_{name}"]
            for arm, arm_run in runs_by_arm.items()
            for name in dict.fromkeys(case.audit for case in case_config.cases)
        }
        trainings = {arm: arm_run["pretrain"] for arm, arm_run in runs_by_arm.items()}
        removals = {
            arm: arm_run["leave_out"]
            for arm, arm_run in runs_by_arm.items()
            if "leave_out" in arm_run.stages
        }
        arm_comparison = compare_arms(
            audits_by_arm, trainings, removals, source_documents, case_config
        )
        corpus_artifacts = {label: base_run[label] for label in PROOF_PAGE_STAGES}
        card = RemovalExperimentCardConfig(title=base_run.config.model_card.title)
        build_removal_experiment_card(arm_comparison, source_documents, corpus_artifacts, card)
    return run.id


@flow(name="finetune", flow_run_name=generate_flow_run_name)
def finetune(
    checkpoint: str,
    config: str | dict[str, Any],
    overrides: Sequence[str] = (),
    store: str | None = None,
) -> str:
    """Fine-tune a checkpoint of ours on pairs, labelled texts or labelled words, to a card."""
    with start_run("finetune", config, overrides, checkpoint=checkpoint, store=store) as run:
        if run.config.finetune is None:
            raise UsageError("the config has no section finetune, which says what to learn")
        resolved = resolve_checkpoint(run.store, checkpoint)
        run.update_record(checkpoint=get_permanent_name(run.store, resolved, checkpoint))
        base_checkpoint = resolved.checkpoint
        finetuning_run = finetune_model(base_checkpoint, run.config.finetune)
        stored_base = (
            base_checkpoint if base_checkpoint.store else None
        )  # a folder is no part of a store
        build_task_card(
            finetuning_run,
            run.find_last_checkpoint(finetuning_run),
            stored_base,
            run.config.task_card,
        )
    return run.id
