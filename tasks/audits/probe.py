"""A probe: what an audit asks, and what it makes of the answers. Each is one file in ``probes/``.

What makes one: its settings, the columns of its items, ``ask`` (items and requests, from a reader
without weights), ``values`` (from answers) and measures: how findings are drawn from values. Two
stages of its own are made of it here; between them stand ``respond`` and
``score``, which know no probe, so that another statistic asks no model again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.audits.audit_descriptions import ITEMS_IN_TRAINING_TEXT
from hallmark.tasks.audits.audit_tables import LOOKUPS, REQUESTS, SKIPPED, TOKENIZER, RequestBuilder
from hallmark.tasks.audits.audited_models.audited_tokenizer import METADATA_FILES, AuditedTokenizer
from hallmark.tasks.audits.audited_models.opening import open_audited_tokenizer
from hallmark.tasks.audits.judging.findings import FINDINGS, build_finding, build_findings_table
from hallmark.tasks.audits.judging.instrument_controls import evaluate_instrument_control
from hallmark.tasks.audits.judging.measures import (
    Measure,
    ValueWriter,
    build_values_schema,
    compute_measure_findings,
)
from hallmark.tasks.audits.judging.tags import SliceTags, parse_tags
from hallmark.tasks.audits.judging.training_exposure import EXPOSURE_TABLES, TrainingExposure
from hallmark.tasks.audits.responses import Responses
from hallmark.tasks.contract import Artifact, Stage, StageConfig, StageContext, Table, stage

#: Clusters of items in which a large effect cannot be overlooked: where all agree, chance agrees as
#: well in 1 of 1,024 draws, which is below the 0.001 that a control asks for.
MIN_CONTROL_CLUSTERS = 11

#: The metric of the finding that every probe has whose items are looked for in the training text.
SEEN_METRIC = ITEMS_IN_TRAINING_TEXT

#: Libraries that decide what is asked.
REQUEST_LIBRARIES = ("numpy", "tokenizers", "transformers")


@dataclass(frozen=True)
class CorpusTables:
    """Tables of the training corpus that a probe asks about; None where they are not known.

    lexicons   groups that the corpus brings, as the stage ``identities`` leaves them
    canaries   texts that were planted
    documents  all documents
    """

    lexicons: Table | None = None
    canaries: Table | None = None
    documents: Table | None = None


@dataclass(frozen=True)
class Probe:
    """name      of the audit: "toxicity"
    settings  class of its config, section ``audit_<name>``
    items     schema of its items, see ``exchange.items_table``
    ask       called with (questions, reader, corpus, config): fills ``questions``
    module    where it is written
    measures  what findings are drawn from its values, with
    values    called with (answers, values, config): fills ``values``; returns what the methods of
              all findings end with
    told      columns of its values beside those of its items
    script    called with (items, metric, effect, random numbers): log p of each target of each
              item, (n, targets), or its embedding, (n, targets, d), or texts, (n, draws), of
              who has no effect on that measure, or a large one
    derived   called with (findings of its measures, values, config): further ones, computed from
              them, with
    also      the metrics of these, and the slices that they have beside those of measures
    without_interval  metrics whose findings never have an interval, so that no rule of a policy
              about them can pass
    data      data files that it reads
    external  called with (config, secret_id) for digests of files of the user
    read_back called as ``external``, for files that ``values`` reads
    scored    whether scorers are asked about its texts, with
    heads     what for: scorers that score nothing of that are not asked
    floor     called with the config: whether an untrained model answers its requests, too
    traced    whether what was written, and what is sought, is looked for in the training text
    corpus    tables of the corpus that it asks about, as ``Corpus`` names them
    needs     settings without which it does not run: files of the user
    libraries that decide its findings, beside those of every probe
    reference called with the config: the folder of a model that reads what was written, too
    """

    name: str
    config_class: type[StageConfig]
    item_schema: pa.Schema
    build_requests: Callable[[RequestBuilder, AuditedTokenizer, CorpusTables, Any], None]
    score_items: Callable[[Responses, ValueWriter, Any], str]
    measures: tuple[Measure, ...]
    module: str
    value_fields: tuple[pa.Field, ...] = ()
    simulate_outputs: Callable[[pa.Table, str, bool, np.random.Generator], np.ndarray] | None = None
    derive_findings: Callable[[Sequence[Any], pa.Table, Any], list[dict[str, Any]]] = (
        lambda found, values, config: []
    )
    derived_metrics: Mapping[str, SliceTags] = field(default_factory=dict)
    metrics_without_interval: tuple[str, ...] = ()
    data_files: tuple[str, ...] = ()
    external_digests: Callable[..., dict[str, str]] | None = None
    judging_files: Callable[..., dict[str, str]] | None = None
    uses_scorers: bool = False
    scorer_heads: tuple[str, ...] = ("toxicity",)
    needs_untrained_baseline: Callable[[Any], bool] = lambda config: False
    searches_training_text: bool = True
    corpus_tables: tuple[str, ...] = ()
    required_settings: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    reference_folder: Callable[[Any], Path | None] = lambda config: None

    @property
    def metrics(self) -> tuple[str, ...]:
        """Those of its findings, as far as these are no controls, and no counts of what was not
        asked, which are in ``about.LEFT_OUT``."""
        measured_metrics = [
            measure.metric
            for measure in self.measures
            if not (measure.is_capability_control or measure.null_interval)
        ]
        return tuple(
            dict.fromkeys(
                [
                    *measured_metrics,
                    *self.derived_metrics,
                    *([] if self.step_dependent else [SEEN_METRIC]),
                ]
            )
        )

    def find_missing_settings(self, config: Any) -> list[str]:
        """The settings without which it does not run, as far as they are not set."""
        return [name for name in self.required_settings if not getattr(config, name)]

    def compute_values_and_findings(
        self, responses: Responses, config: Any
    ) -> tuple[pa.Table, list[dict[str, Any]]]:
        """The values, and the rows of the findings."""
        # What asks how much of its training text a model gives away is about what it read.
        in_training = None if self.step_dependent else responses.flag_items_in_training()
        writer, finding_rows = (
            ValueWriter(
                responses.items, in_training, responses.count_item_reads(), self.value_fields
            ),
            [],
        )
        values = writer.to_table()
        if not any(row["count"] is None and not row["metric"] for row in responses.skipped):
            method_note = self.score_items(responses, writer, config)
            values = writer.to_table()
            finding_rows = compute_measure_findings(
                self.name, values, self.measures, config, method_note
            )
            finding_rows += self.derive_findings(finding_rows, values, config)
            finding_rows += self.compute_instrument_controls(responses, config)
            if in_training is not None:
                finding_rows.append(
                    build_finding(
                        self.name,
                        SEEN_METRIC,
                        in_training.count(True),
                        n=len(in_training) - in_training.count(None),
                        unit="items",
                        evidence_table="values",
                        evidence_filter={"in_training_text": True},
                        method="a text of theirs stands whole in what the model had read; each "
                        "measure stands with and without them",
                    )
                )
        return values, [*finding_rows, *build_skipped_findings(self, responses)]

    def compute_instrument_controls(
        self, responses: Responses, config: Any
    ) -> list[dict[str, Any]]:
        """The verdicts on scripts in place of the model: does this audit find what is there, and
        nothing where nothing is?"""
        control_rows: list[dict[str, Any] | None] = []
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
                if len(pc.unique(measure_values["cluster"])) >= MIN_CONTROL_CLUSTERS:
                    control_rows.append(
                        evaluate_instrument_control(
                            self.name, measure_values, measure, config, has_effect
                        )
                    )
        return [row for row in control_rows if row]

    @property
    def step_dependent(self) -> bool:
        """Whether its findings depend on what training had read by the checkpoint's step."""
        return "doc_ids" in self.item_schema.names


def make_request_stage(probe: Probe) -> Stage:
    """The stage that writes a probe's items and requests, from all of a checkpoint but its weights:
    checkpoints of one training share what it leaves."""

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
        item_rows, request_rows = [*builder.items.values()], builder.requests
        context.get_table_writer("items").write(
            pa.Table.from_pylist(item_rows, schema=probe.item_schema)
        )
        context.get_table_writer("requests").write(
            pa.Table.from_pylist(request_rows, schema=REQUESTS)
        )
        context.get_table_writer("lookups").write(
            pa.Table.from_pylist(builder.lookups, schema=LOOKUPS)
        )
        context.get_table_writer("skipped").write(
            pa.Table.from_pylist(builder.skipped, schema=SKIPPED)
        )
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
        extra_code=[probe.module, *probe.data_files],
        libraries=REQUEST_LIBRARIES,
        external_digests=probe.external_digests,
        reads={"checkpoint": METADATA_FILES},
    )(build_requests)


def make_findings_stage(probe: Probe) -> Stage:
    """The stage that makes a probe's values and findings."""

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
        config: Any,
        context: StageContext,
    ) -> None:
        items = request_set["items"].read()
        score_tables = [
            score_artifact["scores"].read()
            for score_artifact in (score_set, untrained_scores)
            if score_artifact
        ]

        def load_responses(
            response_artifact: Artifact,
            overlap: Artifact | None = None,
            reference: Artifact | None = None,
            baseline: Responses | None = None,
        ) -> Responses:
            return Responses(
                items,
                request_set["requests"].read(),
                response_artifact["responses"].read(),
                pa.concat_tables(score_tables) if score_tables else None,
                request_set["tokenizer"].read(),
                request_set["skipped"].read(),
                score_set["scorers"].read()["scorer"][0].as_py() if score_set else "",
                load_training_exposure(items, checkpoints, training_runs),
                baseline,
                overlap["training_overlap"].read() if overlap else None,
                overlap["occurrence_counts"].read() if overlap else None,
                score_set["scorers"].read() if score_set else None,
                response_artifact["embeddings"].read(),
                reference["reference_scores"].read() if reference else None,
            )

        untrained_baseline = load_responses(untrained_responses) if untrained_responses else None
        audited_responses = load_responses(
            response_set, training_overlap, reference_scores, untrained_baseline
        )
        values, findings = probe.compute_values_and_findings(audited_responses, config)
        precisions = response_set["model"].read()["precision"].to_pylist()
        context.get_table_writer("values").write(values)
        context.get_table_writer("findings").write(build_findings_table(findings, *precisions))

    return stage(
        name=f"audit_{probe.name}",
        tables={
            "values": build_values_schema(probe.item_schema, probe.value_fields),
            "findings": FINDINGS,
        },
        extra_code=[probe.module, *probe.data_files],
        libraries=["numpy", "scipy", *probe.libraries],
        external_digests=probe.judging_files,
        reads={
            "request_set": ("items", "requests", "tokenizer", "skipped"),
            "response_set": ("responses", "embeddings", "model"),
            "score_set": ("scores", "scorers"),
            "untrained_responses": ("responses", "embeddings"),
            "untrained_scores": ("scores",),
            "training_runs": EXPOSURE_TABLES,
            "training_overlap": ("training_overlap", "occurrence_counts"),
            "reference_scores": ("reference_scores",),
        },
    )(compute_findings)


def build_skipped_findings(probe: Probe, responses: Responses) -> list[dict[str, Any]]:
    """Findings about what was not asked: how many, or of each measure that it concerns why it has
    no value."""
    finding_rows = []
    unit_by_metric = {measure.metric: measure.unit for measure in probe.measures}
    for row in responses.skipped:
        if row["count"] is not None:
            finding_rows.append(
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
        finding_rows += [
            build_finding(
                probe.name,
                metric,
                None,
                n=0,
                unit=unit_by_metric.get(metric, ""),
                evidence_table="",
                tags=parse_tags(row),
                method=f"not measured: {row['reason']}",
            )
            for metric in ([row["metric"]] if row["metric"] else unit_by_metric)
        ]
    return finding_rows


def load_training_exposure(
    items: pa.Table,
    checkpoints: Mapping[str, Artifact] | None,
    training_runs: Mapping[str, Artifact] | None,
) -> TrainingExposure | None:
    """How often the documents of the items were read by a checkpoint's step."""
    if not checkpoints:
        return None
    doc_ids = pc.unique(pc.list_flatten(items["doc_ids"])).drop_null().to_pylist()
    return TrainingExposure.from_checkpoints(training_runs, checkpoints, doc_ids)
