"""Define a probe, the code of one audit, and make its two stages.

A probe is one file in ``probes/``. It has settings, the columns of its items, ``build_requests``
(items and requests, from a tokenizer without weights), ``score_items`` (values from responses) and
measures, which turn values into findings. Between its two stages run ``respond`` and ``score``,
which know no probe, so another statistic needs no new inference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.audits.audit_descriptions import (
    ITEMS_IN_TRAINING_TEXT,
    ITEMS_IN_TRAINING_TEXT_TITLE,
    AuditDescription,
)
from hallmark.tasks.audits.audit_tables import (
    CONTROL_SCORES,
    LOOKUPS,
    MODEL,
    REQUESTS,
    SKIPPED,
    TOKENIZER,
    RequestBuilder,
)
from hallmark.tasks.audits.audited_models.audited_tokenizer import METADATA_FILES, AuditedTokenizer
from hallmark.tasks.audits.audited_models.opening import open_audited_tokenizer
from hallmark.tasks.audits.judging.conclusions import (
    CapabilityControl,
    build_capability_control_finding,
    withhold_conclusions,
)
from hallmark.tasks.audits.judging.findings import (
    FINDINGS,
    Finding,
    build_finding,
    build_findings_table,
)
from hallmark.tasks.audits.judging.instrument_controls import build_instrument_control_finding
from hallmark.tasks.audits.judging.measures import (
    DerivedMetric,
    Measure,
    UntrainedValues,
    ValueWriter,
    build_values_schema,
    compute_measure_findings,
)
from hallmark.tasks.audits.judging.scorer_controls import (
    DEFAULT_TOXICITY_THRESHOLD,
    SCORER_CONTROL_METRICS,
    add_scorer_limits,
    build_scorer_control_findings,
)
from hallmark.tasks.audits.judging.training_exposure import EXPOSURE_TABLES, TrainingExposure
from hallmark.tasks.audits.responses import Responses, split_by_untrained_model
from hallmark.tasks.contract import Artifact, Stage, StageConfig, StageContext, Table, stage

#: Libraries that the requests depend on.
REQUEST_LIBRARIES = ("numpy", "tokenizers", "transformers")


@dataclass(frozen=True)
class CorpusTables:
    """Tables of the training corpus that a probe reads; None where they are unknown.

    Attributes:
        lexicons: Groups of the corpus, from the ``identities`` stage.
        canaries: Planted texts.
        documents: All documents.
    """

    lexicons: Table | None = None
    canaries: Table | None = None
    documents: Table | None = None


@dataclass(frozen=True, kw_only=True)
class DerivedFindings:
    """Describe findings that are computed from other findings.

    Attributes:
        compute: Called with (findings of the measures, values, config); returns further findings.
        metrics: Metrics of the derived findings.
        without_interval: Metrics whose findings never have an interval, so that no rule of a policy
            about them can pass.
    """

    compute: Callable[[Sequence[Finding], pa.Table, Any], list[Finding]] = (
        lambda findings, values, config: []
    )
    metrics: Mapping[str, DerivedMetric] = field(default_factory=dict)
    without_interval: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ExtraSteps:
    """Say which further steps an audit needs, besides the responses of the audited model.

    Attributes:
        scorer_heads: The properties that are scored in its texts; scorers with none of these are
            not used. Empty: its texts are not scored.
        needs_untrained_baseline: Called with the config; whether an untrained model answers its
            requests, too.
        searches_training_text: Whether responses and lookups are searched for in the training text.
        reference_folder: Called with the config; returns the folder of a reference model, or None.
        reference_answers_requests: Whether the reference model answers the requests itself, instead
            of reading the responses.
    """

    scorer_heads: tuple[str, ...] = ()
    needs_untrained_baseline: Callable[[Any], bool] = lambda config: False
    searches_training_text: bool = True
    reference_folder: Callable[[Any], Path | None] = lambda config: None
    reference_answers_requests: bool = False

    @property
    def uses_scorers(self) -> bool:
        return bool(self.scorer_heads)


@dataclass(frozen=True, kw_only=True)
class ProbeRequests:
    """Describe what an audit asks: all that its stage ``build_requests`` needs.

    The stage depends on this class and not on ``Probe``, so an edit of an estimator does not
    rebuild requests.

    Attributes:
        name: Name of the audit, such as "toxicity".
        config_class: Class of its settings, section ``audit_<name>``.
        item_schema: Schema of its items, see ``build_items_schema``; its module calls it ``ITEMS``.
        build_requests: The function ``build_requests`` of its module, called with (builder,
            tokenizer, corpus tables, config); adds items and requests to the builder.
        module: The module that defines the probe.
        data_files: Data files that it reads.
        external_digests: Called with (config, secret_id); returns digests of the user's files.
    """

    name: str
    config_class: type[StageConfig]
    item_schema: pa.Schema
    build_requests: Callable[[RequestBuilder, AuditedTokenizer, CorpusTables, Any], None]
    module: str
    data_files: tuple[str, ...] = ()
    external_digests: Callable[..., dict[str, str]] | None = None


@dataclass(frozen=True, kw_only=True)
class Probe(ProbeRequests):
    """Describe one audit: its items, requests, values, measures and inputs.

    Its module calls it ``PROBE``.

    Attributes:
        description: How a card describes the audit.
        score_items: Called with (responses, value writer, config); writes values and returns the
            text that the method of each finding ends with.
        measures: How findings are computed from the values.
        value_fields: Columns of its values besides those of its items.
        simulate_outputs: Called with (items, metric, has_effect, random generator); returns log
            probabilities of the targets, (n, targets), embeddings, (n, targets, d), or texts,
            (n, draws), of a simulated model with no effect or a large effect on that metric.
        derived: Findings that are computed from those of the measures.
        control_metrics: Further metrics of its controls, with their titles.
        capability_controls: Which figures show whether the model is capable enough. If one fails,
            no conclusion is drawn from the findings that it governs. Audits about stereotypes also
            need a model that shows planted associations; a card checks that.
        judging_files: As ``external_digests``, for files that ``score_items`` reads.
        steps: Scorers, untrained baseline, search of the training text and reference model.
        corpus_tables: Names of the ``CorpusTables`` that it reads.
        required_settings: Settings that must be set for it to run: files of the user.
        libraries: Libraries that its findings depend on, besides those of every probe.
    """

    description: AuditDescription
    score_items: Callable[[Responses, ValueWriter, Any], str]
    measures: tuple[Measure, ...]
    value_fields: tuple[pa.Field, ...] = ()
    simulate_outputs: Callable[[pa.Table, str, bool, np.random.Generator], np.ndarray] | None = None
    derived: DerivedFindings = DerivedFindings()
    control_metrics: Mapping[str, str] = field(default_factory=dict)
    capability_controls: tuple[CapabilityControl, ...] = ()
    judging_files: Callable[..., dict[str, str]] | None = None
    steps: ExtraSteps = ExtraSteps()
    corpus_tables: tuple[str, ...] = ()
    required_settings: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()

    @property
    def metric_titles(self) -> dict[str, str]:
        """The title of each metric of its findings, without controls."""
        titles = {
            measure.metric: measure.title for measure in self.measures if not measure.is_control
        }
        titles |= {name: metric.title for name, metric in self.derived.metrics.items()}
        if not self.step_dependent:
            titles[ITEMS_IN_TRAINING_TEXT] = ITEMS_IN_TRAINING_TEXT_TITLE
        return titles | dict(self.description.skipped_count_metrics)

    @property
    def metric_and_control_titles(self) -> dict[str, str]:
        """The title of each metric of its findings and of its controls."""
        control_measures = {
            measure.metric: measure.title for measure in self.measures if measure.is_control
        }
        scorer_controls = SCORER_CONTROL_METRICS if self.steps.uses_scorers else {}
        return self.metric_titles | control_measures | dict(self.control_metrics) | scorer_controls

    def find_missing_settings(self, config: Any) -> list[str]:
        """Return the required settings that are not set."""
        return [name for name in self.required_settings if not getattr(config, name)]

    def compute_values_and_findings(
        self, responses: Responses, config: Any
    ) -> tuple[pa.Table, list[Finding]]:
        """Compute the values and the findings."""
        # An audit that depends on the step asks about text that training had read.
        in_training = None if self.step_dependent else responses.flag_items_in_training()
        findings: list[Finding] = []
        writer = ValueWriter(
            responses.items, in_training, responses.count_item_reads(), self.value_fields
        )
        values = writer.to_table()
        untrained_values = []
        if not any(row["count"] is None and not row["metric"] for row in responses.skipped):
            method_note = self.score_items(responses, writer, config)
            values = writer.to_table()
            for small_model in responses.untrained_models:
                writer = ValueWriter(responses.items, in_training, None, self.value_fields)
                self.score_items(small_model, writer, config)
                untrained_values.append(writer.to_table())
            findings = compute_measure_findings(
                self.name,
                values,
                self.measures,
                config,
                method_note,
                UntrainedValues(untrained_values, responses.untrained_failure),
            )
            findings += self.derived.compute(findings, values, config)
            findings += self.compute_instrument_controls(responses, config)
            findings += self.build_capability_control_findings(findings)
            findings = withhold_conclusions(findings, self.capability_controls)
            if in_training is not None:
                findings.append(
                    build_finding(
                        self.name,
                        ITEMS_IN_TRAINING_TEXT,
                        in_training.count(True),
                        n=len(in_training) - in_training.count(None),
                        unit="items",
                        evidence_table="values",
                        evidence_filter={"in_training_text": True},
                        method="number of items with a text that occurs in full in the training "
                        "text read so far; each measure is reported both with and without these "
                        "items",
                    )
                )
        return values, [*findings, *build_skipped_findings(self, responses)]

    def build_capability_control_findings(self, findings: Sequence[Finding]) -> list[Finding]:
        """Build the controls of the model's capability that are computed from other findings."""
        controls = [
            build_capability_control_finding(control, findings, self.metric_titles[control.metric])
            for control in self.capability_controls
            if control.chance is not None
        ]
        return [control for control in controls if control]

    def compute_instrument_controls(self, responses: Responses, config: Any) -> list[Finding]:
        """Check that the audit finds a large simulated effect, and none where there is none."""
        controls: list[Finding | None] = []
        for measure in (
            candidate
            for candidate in self.measures
            if candidate.has_simulated_controls and self.simulate_outputs
        ):
            for has_effect in (False, True):
                assert self.simulate_outputs is not None
                rng = np.random.default_rng(config.seed)
                writer = ValueWriter(responses.items, value_fields=self.value_fields)
                outputs = self.simulate_outputs(responses.items, measure.metric, has_effect, rng)
                self.score_items(responses.with_simulated_outputs(outputs), writer, config)
                measure_values = measure.select_values(writer.to_table())
                controls.append(
                    build_instrument_control_finding(
                        self.name, measure_values, measure, config, has_effect
                    )
                )
        return [control for control in controls if control]

    @property
    def compares_with_untrained_models(self) -> bool:
        """Whether small untrained models answer its requests, too."""
        return any(measure.compares_with_untrained for measure in self.measures)

    @property
    def step_dependent(self) -> bool:
        """Whether its findings depend on what training had read by the checkpoint's step."""
        return "doc_ids" in self.item_schema.names


def make_request_stage(probe: ProbeRequests) -> Stage:
    """Make the stage that writes a probe's items and requests.

    It reads everything of a checkpoint but its weights, so checkpoints of one training share its
    artifact.
    """

    def build_requests(
        checkpoint: Artifact,
        lexicons: Table | None,
        canaries: Table | None,
        documents: Table | None,
        config: StageConfig,
        context: StageContext,
    ) -> None:
        tokenizer, builder = open_audited_tokenizer(checkpoint), RequestBuilder()
        corpus_tables = CorpusTables(lexicons, canaries, documents)
        probe.build_requests(builder, tokenizer, corpus_tables, config)
        context.get_table_writer("items").write(builder.build_items_table(probe.item_schema))
        context.get_table_writer("requests").write(builder.build_requests_table())
        context.get_table_writer("lookups").write(builder.build_lookups_table())
        context.get_table_writer("skipped").write(builder.build_skipped_table())
        tokenizer_rows = [
            {
                "model_kind": tokenizer.model_kind,
                "opening_description": tokenizer.opening_description,
            }
        ]
        context.get_table_writer("tokenizer").write(
            pa.Table.from_pylist(tokenizer_rows, schema=TOKENIZER)
        )

    return stage(
        name=f"build_requests_{probe.name}",
        tables={
            "items": probe.item_schema,
            "requests": REQUESTS,
            "lookups": LOOKUPS,
            "skipped": SKIPPED,
            "tokenizer": TOKENIZER,
        },
        extra_code=[f"{probe.module}:build_requests", f"{probe.module}:ITEMS", *probe.data_files],
        libraries=REQUEST_LIBRARIES,
        external_digests=probe.external_digests,
        reads={"checkpoint": METADATA_FILES},
    )(build_requests)


def make_findings_stage(probe: Probe) -> Stage:
    """Make the stage that computes a probe's values and findings."""

    def compute_findings(
        request_set: Artifact,
        response_set: Artifact,
        score_set: Artifact | None,
        checkpoints: dict[str, Artifact] | None,
        training_runs: dict[str, Artifact] | None,
        untrained_responses: Artifact | None,
        untrained_scores: Artifact | None,
        training_overlap: Artifact | None,
        reference_scores: Artifact | None,
        untrained_models: Artifact | None,
        reference_answers: dict[str, Artifact] | None,
        config: Any,
        context: StageContext,
    ) -> None:
        items = request_set["items"].read()
        reference_answers = reference_answers or {}
        score_tables = [
            score_artifact["scores"].read()
            for score_artifact in (score_set, untrained_scores, reference_answers.get("scores"))
            if score_artifact
        ]

        def load_responses(
            response_artifact: Artifact,
            overlap: Artifact | None = None,
            reference: Artifact | None = None,
            baseline: Responses | None = None,
            small_models: Sequence[Responses] = (),
            small_model_failure: str = "",
            other_requests: Artifact | None = None,
            answers_of_reference: Responses | None = None,
        ) -> Responses:
            requests = (other_requests or request_set)["requests"].read()
            return Responses(
                items,
                requests.filter(pc.is_in(requests["item"], items["item"].combine_chunks())),
                response_artifact["responses"].read(),
                scores=pa.concat_tables(score_tables) if score_tables else None,
                scorers=score_set["scorers"].read() if score_set else None,
                tokenizer=request_set["tokenizer"].read(),
                skipped=request_set["skipped"].read(),
                training_exposure=load_training_exposure(items, checkpoints, training_runs),
                untrained_baseline=baseline,
                untrained_models=small_models,
                untrained_failure=small_model_failure,
                training_overlap=overlap["training_overlap"].read() if overlap else None,
                occurrence_counts=overlap["occurrence_counts"].read() if overlap else None,
                embeddings=response_artifact["embeddings"].read(),
                reference_scores=reference["reference_scores"].read() if reference else None,
                reference_answers=answers_of_reference,
            )

        untrained_baseline = load_responses(untrained_responses) if untrained_responses else None
        small_models, small_model_failure = list[Responses](), ""
        if untrained_models:
            small_models = split_by_untrained_model(
                items,
                request_set["requests"].read(),
                untrained_models["untrained_log_probs"].read(),
                request_set["tokenizer"].read(),
            )
            failures = untrained_models["untrained_models"].read()["failure"].to_pylist()
            small_model_failure = next(filter(None, failures), "")
        answers_of_reference = (
            load_responses(
                reference_answers["responses"], other_requests=reference_answers["requests"]
            )
            if reference_answers
            else None
        )
        audited_responses = load_responses(
            response_set,
            training_overlap,
            reference_scores,
            untrained_baseline,
            small_models,
            small_model_failure,
            answers_of_reference=answers_of_reference,
        )
        values, findings = probe.compute_values_and_findings(audited_responses, config)
        if score_set:
            control_scores = score_set["control_scores"].read()
            controls = build_scorer_control_findings(
                probe.name,
                control_scores,
                getattr(config, "toxicity_threshold", DEFAULT_TOXICITY_THRESHOLD),
            )
            findings = [*add_scorer_limits(findings, controls, control_scores), *controls]
            context.get_table_writer("control_scores").write(control_scores)
        model_table = response_set["model"].read()
        context.get_table_writer("values").write(values)
        context.get_table_writer("findings").write(
            build_findings_table(
                findings, probe.metric_and_control_titles, *model_table["precision"].to_pylist()
            )
        )
        context.get_table_writer("model").write(model_table)

    return stage(
        name=f"audit_{probe.name}",
        tables={
            "values": build_values_schema(probe.item_schema, probe.value_fields),
            "findings": FINDINGS,
            "model": MODEL,
        }
        | ({"control_scores": CONTROL_SCORES} if probe.steps.uses_scorers else {}),
        extra_code=[f"{probe.module}:PROBE", *probe.data_files],
        libraries=["numpy", "scipy", *probe.libraries],
        external_digests=probe.judging_files,
        reads={
            "request_set": ("items", "requests", "tokenizer", "skipped"),
            "response_set": ("responses", "embeddings", "model"),
            "score_set": ("scores", "scorers", "control_scores"),
            "untrained_responses": ("responses", "embeddings"),
            "untrained_scores": ("scores",),
            "untrained_models": ("untrained_models", "untrained_log_probs"),
            "training_runs": EXPOSURE_TABLES,
            "training_overlap": ("training_overlap", "occurrence_counts"),
            "reference_scores": ("reference_scores",),
        },
    )(compute_findings)


def build_skipped_findings(probe: Probe, responses: Responses) -> list[Finding]:
    """Build a finding for each count of skipped items and for each skipped metric."""
    findings = []
    unit_by_metric = {measure.metric: measure.unit for measure in probe.measures}
    for row in responses.skipped:
        if row["count"] is not None:
            findings.append(
                build_finding(
                    probe.name,
                    row["metric"],
                    row["count"],
                    n=row["count"],
                    unit="items",
                    method=row["reason"],
                    evidence_table="",
                )
            )
            continue
        findings += [
            build_finding(
                probe.name,
                metric,
                None,
                n=0,
                unit=unit_by_metric.get(metric, ""),
                evidence_table="",
                tags=row["slice"],
                method=f"not measured: {row['reason']}",
            )
            for metric in ([row["metric"]] if row["metric"] else unit_by_metric)
        ]
    return findings


def load_training_exposure(
    items: pa.Table,
    checkpoints: Mapping[str, Artifact] | None,
    training_runs: Mapping[str, Artifact] | None,
) -> TrainingExposure | None:
    """Read how often the documents of the items were read by the checkpoint's step."""
    if not checkpoints:
        return None
    doc_ids = pc.unique(pc.list_flatten(items["doc_ids"])).drop_null().to_pylist()
    return TrainingExposure.from_checkpoints(training_runs, checkpoints, doc_ids)
