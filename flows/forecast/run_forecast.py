"""Forecast a run without training a model, writing to the store or starting a Prefect server.

The functions of the pipeline run under a plan that replaces the stages. If the store lacks the
corpus, a sample of the sources goes through the real stages in a temporary store. If the sample is
complete, the config is used unchanged, and figures and errors are those of the run; otherwise
nothing is planted, and figures are estimates.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from hallmark.flows.audit_execution import (
    check_user_audit_items,
    check_user_files_exist,
    open_tokenizer_of_model,
)
from hallmark.flows.audit_selection import ALL_AUDITS
from hallmark.flows.auditing import (
    audit_checkpoint,
    check_model_settings,
    choose_audits_of_run,
)
from hallmark.flows.config import STAGE_SECTIONS, Config, load_config, read_answers
from hallmark.flows.corpus_additions import (
    check_preferred_sources_exist,
    open_earlier_corpus_or_empty,
    resolve_earlier_run_id,
)
from hallmark.flows.credentials import export_credentials
from hallmark.flows.curation import curate_corpus
from hallmark.flows.forecast import baseline_costs, training_costs
from hallmark.flows.forecast.corpus_estimates import (
    UNKNOWN_ESTIMATE,
    Estimate,
    ScaledSample,
    estimate_corpus_sizes_by_name,
    estimate_source_sizes,
    read_vocabulary_size,
)
from hallmark.flows.forecast.problems import ForecastProblem, predict_problems
from hallmark.flows.forecast.source_sampling import MAX_SAMPLE_BYTES, CorpusSample, sample_sources
from hallmark.flows.forecast.stage_plan import (
    ReadOnlyStore,
    StagePlan,
    UnknownArtifact,
    find_newest_artifact,
)
from hallmark.flows.policy_rule_checks import check_policy_rules
from hallmark.flows.previous_release import pin_previous_run
from hallmark.flows.run_recording import check_last_stage, check_start_checkpoint, check_weat_layer
from hallmark.flows.runs import find_artifact, read_artifact_seconds, resolve_store_uri
from hallmark.flows.training import train_model
from hallmark.tasks.audits.ability.capability_baselines import capability_baselines
from hallmark.tasks.contract import (
    Artifact,
    Event,
    HallmarkError,
    LastStageReached,
    Session,
    Store,
    Table,
    UsageError,
    is_store_or_empty_folder,
    open_session,
)
from hallmark.tasks.corpus.contamination import check_evaluation_sets
from hallmark.tasks.corpus.plant_canaries import PlantCanariesConfig
from hallmark.tasks.corpus.toxicity.actions import explain_action
from hallmark.tasks.measures.scorers import TOXICITY_HEADS, ScorerConfig, needs_checkpoint_download

Report = dict[str, Any]

#: The stages before the training, through which a sample goes.
SAMPLED_STAGES = STAGE_SECTIONS[: STAGE_SECTIONS.index("pretrain")]
#: The stages whose artifacts give the exact size of the corpus.
CORPUS_STAGES = ("ingest", "plant_canaries", "pack")


def forecast_run(
    config_name: str,
    overrides: Sequence[str] = (),
    last_stage: str | None = None,
    start_checkpoint: str | None = None,
    store: str | None = None,
    max_sample_bytes: int = MAX_SAMPLE_BYTES,
    only: Sequence[str] = ALL_AUDITS,
) -> Report:
    """Forecast a run and return the report as a JSON value.

    Args:
        config_name: A config file, or the name of a bundled config.
        overrides: Overrides of the config.
        last_stage: The last stage of the run; None for all.
        start_checkpoint: A checkpoint from which training continues.
        store: The store; None for that of the config.
        max_sample_bytes: Maximum bytes of text in a sample.
        only: The audits to run.

    Raises:
        UsageError: If an argument is wrong.
    """
    settings = read_answers(load_config(config_name, overrides))
    export_credentials(settings.credentials)
    check_last_stage(last_stage, settings)
    uri = resolve_store_uri(store or settings.store)
    check_policy_rules(settings, uri)
    check_model_settings(settings, is_hallmark=True)
    audit_names = choose_audits_of_run(settings, only, last_stage)
    if start_checkpoint is None:
        check_weat_layer(settings)
    with tempfile.TemporaryDirectory(prefix="hallmark-dry-run-") as folder_name:
        folder = Path(folder_name)
        store_exists = _has_store(uri)
        # A store that does not exist yet is replaced by an empty temporary one.
        opened_store = (
            ReadOnlyStore(uri, create_missing=False)
            if store_exists
            else ReadOnlyStore(folder / "empty")
        )
        resolve_earlier_run_id(opened_store, settings)
        settings = settings.model_copy(
            update={"policy": pin_previous_run(opened_store, settings.policy)}
        )
        check_preferred_sources_exist(opened_store, settings)
        checkpoint = (
            check_start_checkpoint(start_checkpoint, settings, last_stage, opened_store)
            if start_checkpoint is not None
            else None
        )
        forecaster = Forecaster(
            settings,
            opened_store,
            folder,
            last_stage,
            checkpoint,
            max_sample_bytes,
            audit_names,
        )
        forecaster.plan_and_sample()
        report = forecaster.build_report()
    store_text = uri if store_exists else f"{uri} (does not exist yet)"
    return {
        "config": config_name,
        "store": store_text,
        "last_stage": last_stage,
        "start_checkpoint": start_checkpoint,
    } | report


def _has_store(uri: str) -> bool:
    """Return whether there is a store that can be read; True for every object store and file."""
    local_path = Path(uri.removeprefix("file://"))
    if "://" in str(local_path) or not local_path.is_dir():
        return "://" in str(local_path) or local_path.exists()
    return is_store_or_empty_folder(local_path)


def describe_toxicity_rules(config: Config) -> list[str]:
    """Return the action of each rule over a toxicity score, and why it applies."""
    scorer_kind = config.score_toxicity.scorer.kind
    return [
        f"select_scored.rules.{rule.name}: action {rule.action}, "
        + explain_action(rule.action, scorer_kind)
        for rule in config.select_scored.rules
        if rule.signal in TOXICITY_HEADS
    ]


class SampleOutcome(NamedTuple):
    """Hold what the stages before the training produced from a sample.

    Attributes:
        artifacts: The artifacts by label.
        seconds_by_stage: The seconds of each stage by label.
        error: The error that stopped the stages, if any.
    """

    artifacts: dict[str, Artifact]
    seconds_by_stage: dict[str, float]
    error: HallmarkError | None


class VocabularyForecast(NamedTuple):
    """Hold the expected size of the vocabulary.

    Attributes:
        size: Number of tokens of the tokenizer, if the corpus fills the vocabulary.
        size_expected_from_sample: Number of tokens that the corpus is expected to yield; None if it
            fills the vocabulary or if this is unknown.
    """

    size: Estimate
    size_expected_from_sample: float | None


class Forecaster:
    """Forecasts a run; all files that it writes are in ``folder``.

    Call ``plan_and_sample``, then ``build_report``.
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        folder: Path,
        last_stage: str | None,
        start_checkpoint: Artifact | None,
        max_sample_bytes: int,
        audit_names: Sequence[str],
    ) -> None:
        self.config, self.store, self.folder = config, store, folder
        self.audit_names = audit_names
        self.last_stage, self.start_checkpoint, self.max_sample_bytes = (
            last_stage,
            start_checkpoint,
            max_sample_bytes,
        )
        self.earlier_corpus = open_earlier_corpus_or_empty(store, config)
        self.sample: CorpusSample | None = None
        self.scaled_sample: ScaledSample | None = None
        # The fixed time of each stage, and its additional time on the sample.
        self.fixed_seconds_by_stage: dict[str, float] = {}
        self.sample_seconds_by_stage: dict[str, float] = {}
        self.notes = describe_toxicity_rules(config)
        self.problems: list[ForecastProblem] = []

    def plan_and_sample(self) -> None:
        """Plan the run, and run a sample through the stages if the store lacks the corpus."""
        self.plan = self._run_pipeline_under_plan(StagePlan(self.store), self.config)
        self.known_artifacts = self.plan.known_artifacts
        required_labels = [
            label
            for label in CORPUS_STAGES
            if any(row.label == label for row in self.plan.stage_forecasts)
        ]
        if (
            all(label in self.plan.known_artifacts for label in required_labels)
            or self.plan.failure_reasons
        ):
            return
        try:
            self.sample = sample_sources(self.config.ingest, self.folder, self.max_sample_bytes)
        except HallmarkError as error:
            self.problems.append(ForecastProblem(f"stage ingest: {error}", is_certain=True))
            return
        if self.sample.is_complete:
            trial_store = Store(self.folder / "trial")
            # With another secret, artifacts that depend on it would differ.
            trial_store.set_secret_if_absent(self.store.secret)
            self.plan = self._run_pipeline_under_plan(
                StagePlan(self.store, Session(trial_store), SAMPLED_STAGES), self.config
            )
            self.known_artifacts = self.plan.known_artifacts
            if self._has_failed("plant_canaries"):
                self._replan_without_canaries(Session(trial_store))
        elif not self.sample.document_count:
            self.notes.append("no documents in the sources could be read, so nothing is estimated")
        is_incomplete = any(label not in self.plan.known_artifacts for label in required_labels)
        if is_incomplete and not self.plan.failure_reasons and self.sample.document_count:
            self._run_stages_on_sample(self.sample)

    def _has_failed(self, stage_label: str) -> bool:
        return any(
            row.label == stage_label and row.state == "fails" for row in self.plan.stage_forecasts
        )

    def _replan_without_canaries(self, trial_session: Session) -> None:
        """Plan the run without planting, to find further failures after that of plant_canaries."""
        config = self.config.model_copy(
            update={"plant_canaries": self._build_config_without_canaries()}
        )
        plan = self._run_pipeline_under_plan(
            StagePlan(self.store, trial_session, SAMPLED_STAGES), config
        )
        self.known_artifacts = plan.known_artifacts
        self.problems += [
            ForecastProblem(reason, is_certain=True) for reason in plan.failure_reasons
        ]
        self.notes.append(
            "plant_canaries would fail, so all other estimates assume a corpus without planted "
            "canaries"
        )

    def _build_config_without_canaries(self) -> PlantCanariesConfig:
        return self.config.plant_canaries.model_copy(update={"enabled": False})

    def _run_pipeline_under_plan(self, plan: StagePlan, config: Config) -> StagePlan:
        """Run the whole pipeline with a plan instead of its stages."""
        session = Session(self.store, last_stage=self.last_stage, plan_stage=plan)
        with open_session(session), suppress(LastStageReached):
            corpus = curate_corpus(config, self.earlier_corpus)
            trained = train_model(config, corpus, self.start_checkpoint)
            pretrained = trained["pretrain"]
            last_checkpoint: Any = self._find_last_checkpoint(pretrained)  # unknown under a plan
            audit_checkpoint(
                config,
                last_checkpoint,
                self.audit_names,
                corpus,
                pretrained,
            )
        return plan

    def _find_last_checkpoint(
        self, pretrained: Artifact | UnknownArtifact
    ) -> Artifact | UnknownArtifact:
        """Return the last checkpoint of a training, or an UnknownArtifact."""
        if isinstance(pretrained, UnknownArtifact):
            return UnknownArtifact("pretrain")
        names = pretrained["checkpoints"].read(["artifact"])["artifact"].to_pylist()
        return find_artifact(self.store, names[-1])

    def _run_stages_on_sample(self, sample: CorpusSample) -> None:
        """Run the stages before the training on the sample, without planting."""
        config_updates: dict[str, Any] = {
            "ingest": sample.build_ingest_config(self.config.ingest),
            "plant_canaries": self._build_config_without_canaries(),
        }
        # A sample is too small to measure the recall of a cascade.
        score_config = self.config.score_toxicity.model_copy(update={"cascade": None})
        config_updates["score_toxicity"] = score_config
        if self.config.score_toxicity.cascade:
            self.notes.append(
                "the sample was scored without the score_toxicity cascade, because a sample cannot "
                "show whether the cascade's recall suffices or how much time it saves"
            )
        effects_config = self.config.removal_effects
        if needs_checkpoint_download(effects_config.scorer):
            config_updates["removal_effects"] = effects_config.model_copy(
                update={"scorer": ScorerConfig()}
            )
        if needs_checkpoint_download(score_config.scorer):
            config_updates["score_toxicity"] = score_config.model_copy(
                update={"scorer": ScorerConfig()}
            )
            self.notes.append(
                "the Detoxify weights are not on this machine, so the embedded scorer scored the "
                "sample; with Detoxify, select_scored will keep different documents, and the "
                "duration of score_toxicity will differ"
            )
        sample_config = self.config.model_copy(update=config_updates)
        minimal_ingest = sample.write_minimal_sample(self.folder / "few").build_ingest_config(
            self.config.ingest
        )
        minimal_config = sample_config.model_copy(update={"ingest": minimal_ingest})
        # The first execution also loads libraries and models, the second does not.
        first_seconds, repeated_seconds = (
            self._run_corpus_stages(minimal_config, f"few-{attempt}").seconds_by_stage
            for attempt in (1, 2)
        )
        outcome = self._run_corpus_stages(sample_config, "sample")
        if outcome.error:
            self.problems.append(ForecastProblem(f"on the sample: {outcome.error}"))
        for label, seconds in outcome.seconds_by_stage.items():
            self.fixed_seconds_by_stage[label] = first_seconds.get(label, 0.0)
            self.sample_seconds_by_stage[label] = max(
                0.0, seconds - repeated_seconds.get(label, 0.0)
            )
        if {"ingest", "split", "plant_canaries", "pack"} <= outcome.artifacts.keys():
            self.scaled_sample = ScaledSample(sample, outcome.artifacts)

    def _run_corpus_stages(self, config: Config, store_name: str) -> SampleOutcome:
        """Run the stages before the training in a separate store."""
        artifacts: dict[str, Artifact] = {}
        seconds_by_stage: dict[str, float] = {}

        def record_event(event: Event) -> None:
            if event.artifact and event.kind in ("done", "cached"):
                artifacts[event.label] = event.artifact
                seconds_by_stage[event.label] = event.seconds

        session = Session(Store(self.folder / store_name), listener=record_event, last_stage="pack")
        try:
            with open_session(session), suppress(LastStageReached):
                train_model(
                    config, curate_corpus(config, self.earlier_corpus), self.start_checkpoint
                )
        except HallmarkError as error:
            return SampleOutcome(artifacts, seconds_by_stage, error)
        return SampleOutcome(artifacts, seconds_by_stage, None)

    def build_report(self) -> Report:
        """Build the report from the plan and the sample."""
        known_artifacts, sample = self.known_artifacts, self.sample
        earlier_documents = self.earlier_corpus.documents
        estimates = estimate_corpus_sizes_by_name(
            self.config, known_artifacts, self.scaled_sample, earlier_documents
        )
        vocabulary = self._estimate_vocabulary_size()
        training = self._estimate_training(estimates, vocabulary.size)
        self._check_user_files()
        self._estimate_baseline_seconds()
        self._estimate_stage_seconds()
        runs_audits = any(row.label == "audit_capability" for row in self.plan.stage_forecasts)
        problems = [
            ForecastProblem(reason, is_certain=True) for reason in self.plan.failure_reasons
        ] + self.problems
        trains_tokenizer = self.start_checkpoint is None
        problems += predict_problems(
            self.config,
            estimates,
            vocabulary.size if trains_tokenizer else UNKNOWN_ESTIMATE,
            vocabulary.size_expected_from_sample if trains_tokenizer else None,
            runs_audits,
        )
        return {
            "stages": [row.to_dict() for row in self.plan.stage_forecasts],
            "sample": sample
            and {
                "documents": sample.document_count,
                "bytes": sample.text_bytes,
                "is_complete": sample.is_complete,
                "corpus_to_sample_ratio": sample.corpus_to_sample_ratio,
            },
            "sources": estimate_source_sizes(known_artifacts, self.scaled_sample, sample),
            "corpus": {name: estimate.to_dict() for name, estimate in estimates.items()},
            "vocabulary": vocabulary.size.to_dict(),
            "training": training,
            "seconds": self._sum_stage_seconds(),
            "notes": self.notes,
            "warnings": [problem.to_dict() for problem in problems],
            "will_fail": any(problem.is_certain for problem in problems),
        }

    def _check_user_files(self) -> None:
        """Check that evaluation sets and the user's files for audits contain usable items."""
        artifacts = {
            **(self.scaled_sample.artifacts if self.scaled_sample else {}),
            **self.known_artifacts,
        }
        try:
            check_evaluation_sets(self.config.contamination)
            check_user_files_exist(self.config, self.audit_names)
            if tokenizer := self.start_checkpoint or artifacts.get("train_tokenizer"):
                check_user_audit_items(self.config, tokenizer, self.audit_names)
        except UsageError as error:
            if all(str(error) not in reason for reason in self.plan.failure_reasons):
                self.problems.append(ForecastProblem(str(error), is_certain=True))

    def _estimate_vocabulary_size(self) -> VocabularyForecast:
        """Estimate the size of the vocabulary."""
        configured_size = self.config.train_tokenizer.vocab_size
        known_tokenizer = self.start_checkpoint or self.known_artifacts.get("train_tokenizer")
        if known_tokenizer is not None:
            return VocabularyForecast(Estimate(read_vocabulary_size(known_tokenizer), True), None)
        if self.scaled_sample is None or "train_tokenizer" not in self.scaled_sample.artifacts:
            return VocabularyForecast(Estimate(configured_size), None)
        sample_vocabulary_size = read_vocabulary_size(
            self.scaled_sample.artifacts["train_tokenizer"]
        )
        if sample_vocabulary_size >= configured_size:
            # More text cannot yield fewer tokens.
            return VocabularyForecast(Estimate(configured_size, True), None)
        # Words grow with about the square root of the text (Heaps' law).
        corpus_to_sample_ratio = self.scaled_sample.sample.corpus_to_sample_ratio
        return VocabularyForecast(
            Estimate(configured_size),
            None
            if corpus_to_sample_ratio is None
            else min(configured_size, sample_vocabulary_size * corpus_to_sample_ratio**0.5),
        )

    def _estimate_training(
        self, estimates: dict[str, Estimate], vocabulary_size: Estimate
    ) -> Report | None:
        row = next((row for row in self.plan.stage_forecasts if row.label == "pretrain"), None)
        if row is None:
            return None
        train_config = self.config.pretrain.train
        assert vocabulary_size.value is not None
        context_length = self.config.pack.context
        model_config = training_costs.build_model_config(
            self.config.pretrain.model, int(vocabulary_size.value), context_length
        )
        if self.start_checkpoint is not None:
            model_config = training_costs.read_checkpoint_model_config(
                self.start_checkpoint.fetch_directory()
            )
        parameter_counts = training_costs.count_parameters_by_group(model_config)
        tokens_seen = train_config.steps * train_config.batch_size * context_length
        train_rows = estimates["train_rows"]
        epochs = (
            train_config.steps * train_config.batch_size / train_rows.value
            if train_rows.value
            else None
        )
        report: Report = {
            "parameters": {
                "value": parameter_counts["total"],
                "is_exact": vocabulary_size.is_exact,
            },
            "steps": train_config.steps,
            "tokens_seen": tokens_seen,
            "epochs": {"value": epochs, "is_exact": train_rows.is_exact},
            "memory": training_costs.estimate_memory_bytes_by_use(parameter_counts, train_config),
            "step": None,
        }
        if row.state == "store":
            return report
        missing_device = training_costs.find_missing_device(train_config)
        if missing_device:
            self.problems.append(
                ForecastProblem(
                    f"pretrain.train.device is {missing_device}, but this machine has no such "
                    "device, so training would fail here, and the training time and peak memory "
                    "are not estimated; set the device to auto or cpu, or run on a machine with "
                    "this device"
                )
            )
            return report
        report["step"] = self._measure_training_step(estimates, report["memory"]["total"])
        if report["step"] and row.state != "blocked":
            row.seconds = report["step"]["training_seconds"]
            row.time_basis = (
                f"estimate: measured in {report['step']['step_count']} real training steps"
            )
        return report

    def _measure_training_step(
        self, estimates: dict[str, Estimate], min_memory_bytes: int
    ) -> Report | None:
        """Measure a few real training steps on the packed corpus, or on the packed sample."""
        artifacts = {
            **(self.scaled_sample.artifacts if self.scaled_sample else {}),
            **self.known_artifacts,
        }
        tokenizer = self.start_checkpoint or artifacts.get("train_tokenizer")
        if tokenizer is None or "pack" not in artifacts or not artifacts["pack"]["train"].row_count:
            return None
        train_config = self.config.pretrain.train
        model_config = training_costs.build_model_config(
            self.config.pretrain.model, read_vocabulary_size(tokenizer), self.config.pack.context
        )
        if self.start_checkpoint is not None:
            model_config = training_costs.read_checkpoint_model_config(
                self.start_checkpoint.fetch_directory()
            )
        try:
            measurement = training_costs.measure_training_steps(
                artifacts["pack"], tokenizer, model_config, train_config, self.folder
            )
        except HallmarkError as error:
            self.problems.append(
                ForecastProblem(
                    f"the pretrain stage failed in a trial of a few steps: {error}", True
                )
            )
            return None
        if measurement is None:
            self.notes.append(
                "fewer than two training steps were completed within "
                f"{training_costs.TRIAL_TIMEOUT:.0f} s, so the training time is not estimated"
            )
            return None
        peak_bytes, device_bytes = (
            max(measurement.peak_bytes, min_memory_bytes),
            training_costs.get_device_memory_bytes(measurement.device),
        )
        if peak_bytes > 0.9 * device_bytes:
            self.problems.append(
                ForecastProblem(
                    f"training needs {peak_bytes / 1e9:.1f} GB of memory, but this "
                    f"machine's {measurement.device} device has only "
                    f"{device_bytes / 1e9:.1f} GB, part of which must remain free; raise "
                    "pretrain.train.accumulation_steps, set "
                    "pretrain.train.activation_checkpointing, or lower pretrain.train.batch_size"
                )
            )
        validation_rows = int(estimates["validation_rows"].value or 0)
        training_seconds = training_costs.estimate_training_seconds(
            measurement, train_config, validation_rows
        )
        return {
            "seconds_per_step": measurement.seconds_per_step,
            "peak_bytes": measurement.peak_bytes,
            "step_count": measurement.step_count,
            "device": measurement.device,
            "training_seconds": training_seconds,
        }

    def _estimate_baseline_seconds(self) -> None:
        """Estimate the seconds of capability_baselines from baselines of a part of the text."""
        row = next(
            (row for row in self.plan.stage_forecasts if row.stage == capability_baselines.name),
            None,
        )
        artifacts = {
            **(self.scaled_sample.artifacts if self.scaled_sample else {}),
            **self.known_artifacts,
        }
        tokenizer = self.start_checkpoint or artifacts.get("train_tokenizer")
        if (
            row is None
            or row.state in ("store", "blocked")
            or tokenizer is None
            or "plant_canaries" not in artifacts
        ):
            return
        earlier_documents = self.earlier_corpus.documents
        corpus_to_sample_ratio: float | None = 1.0
        if "plant_canaries" not in self.known_artifacts:
            earlier_documents = []
            corpus_to_sample_ratio = self.sample.corpus_to_sample_ratio if self.sample else None
        if corpus_to_sample_ratio is None:
            return
        try:
            row.seconds = baseline_costs.estimate_baseline_seconds(
                open_tokenizer_of_model(self.config, tokenizer),
                Table((*earlier_documents, artifacts["plant_canaries"]), "documents"),
                self.config.audit_capability.baselines_config,
                corpus_to_sample_ratio,
            )
        except HallmarkError:  # a split without text, which other checks report
            return
        row.time_basis = (
            "estimate: time taken by the baseline models on part of the text, scaled in proportion "
            "to bytes and tokens"
        )

    def _estimate_stage_seconds(self) -> None:
        """Estimate the seconds of the stages that would run, and record the basis."""
        corpus_to_sample_ratio = self.sample.corpus_to_sample_ratio if self.sample else None
        for row in self.plan.stage_forecasts:
            if row.seconds is not None or row.state in ("store", "blocked"):
                continue
            if row.label in self.sample_seconds_by_stage and corpus_to_sample_ratio is not None:
                # The time of a card does not depend on the amount of text.
                scale_factor = 1.0 if row.label == "datasheet" else corpus_to_sample_ratio
                reading_seconds = (
                    self.sample.reading_seconds if self.sample and row.label == "ingest" else 0.0
                )
                row.seconds = (
                    self.sample_seconds_by_stage[row.label] + reading_seconds
                ) * scale_factor
                row.seconds += self.fixed_seconds_by_stage[row.label]
                row.time_basis = "estimate: time for the sample, scaled in proportion to bytes"
            elif row.label not in (*SAMPLED_STAGES, "pretrain"):
                newest_artifact = find_newest_artifact(self.store, row.stage)
                if newest_artifact is not None:
                    row.seconds = read_artifact_seconds(newest_artifact)
                    row.time_basis = f"estimate: time taken to compute {newest_artifact.name}"

    def _sum_stage_seconds(self) -> Report:
        """Sum the seconds of the stages that would run, and list those without an estimate."""
        pending_rows = [row for row in self.plan.stage_forecasts if row.state in ("run", "unknown")]
        return {
            "value": sum(row.seconds or 0 for row in pending_rows),
            "stages_without_estimate": [row.label for row in pending_rows if row.seconds is None],
        }
