"""Run the steps of an audit as plain functions, without stages and without a store.

Benchmarks that audit a model share these functions. Each does what the stage with the
corresponding name does: build requests, generate responses, score texts, compute findings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.audits.audit_tables import (
    RESPONSES,
    SCORERS,
    TOKENIZER,
    RequestBuilder,
)
from hallmark.tasks.audits.audited_models.audited_model import AuditedModel
from hallmark.tasks.audits.audited_models.audited_tokenizer import AuditedTokenizer
from hallmark.tasks.audits.audited_models.opening import iter_small_untrained_models
from hallmark.tasks.audits.inference import (
    FIRST_SMALL_MODEL_SEED,
    SMALL_MODEL_COUNT,
    generate_responses,
    group_distinct_requests_into_chunks,
)
from hallmark.tasks.audits.judging.findings import Finding
from hallmark.tasks.audits.probe import CorpusTables, Probe
from hallmark.tasks.audits.responses import Responses
from hallmark.tasks.audits.scoring import (
    compute_score_columns,
    format_scorer_name,
    select_distinct_texts,
)
from hallmark.tasks.contract import Table, rows_to_table
from hallmark.tasks.measures.scorers import Scorer


class InMemoryTable:
    """A table in memory with the methods of ``Table`` that probes call."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows, self.row_count = rows, len(rows)

    def read(self) -> pa.Table:
        return self.rows

    def iter_batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        yield from self.rows.select(columns).to_batches()


def wrap_corpus_rows(rows: pa.Table) -> Table:
    """Wrap rows in memory so that a probe can read them like a stored table."""
    return cast(Table, InMemoryTable(rows))


@dataclass(frozen=True)
class ProbeRequests:
    """What a probe asks a model: the tables of the stage ``ask``.

    Attributes:
        items: One row for each test item.
        requests: One row for each request to the model.
        skipped: One row for each item that the probe skipped.
        tokenizer: One row that describes the tokenizer.
    """

    items: pa.Table
    requests: pa.Table
    skipped: pa.Table
    tokenizer: pa.Table


def build_probe_requests(
    probe: Probe, tokenizer: AuditedTokenizer, config: Any, corpus: CorpusTables | None = None
) -> ProbeRequests:
    """Build the items and the requests of a probe, as the stage ``ask`` does."""
    builder = RequestBuilder()
    probe.build_requests(builder, tokenizer, corpus or CorpusTables(), config)
    tokenizer_row = {
        "model_kind": tokenizer.model_kind,
        "opening_description": tokenizer.opening_description,
    }
    return ProbeRequests(
        items=builder.build_items_table(probe.item_schema),
        requests=builder.build_requests_table(),
        skipped=builder.build_skipped_table(),
        tokenizer=pa.Table.from_pylist([tokenizer_row], schema=TOKENIZER),
    )


def generate_response_table(model: AuditedModel, requests: pa.Table) -> pa.Table:
    """Let a model answer all requests, as the stage ``respond`` does."""
    rows = [
        row
        for chunk in group_distinct_requests_into_chunks(requests)
        for row in generate_responses(model, chunk.requests.to_pylist())
    ]
    return rows_to_table(rows, RESPONSES)


def generate_small_model_responses(
    folder: Path, probe: Probe, requests: pa.Table
) -> list[pa.Table]:
    """Let small untrained models answer, as the stage ``respond_untrained_models`` does.

    Returns:
        The responses of each model; empty if the probe does not compare with such models.
    """
    if not probe.compares_with_untrained_models:
        return []
    main_requests = requests.filter(pc.equal(requests["part"], ""))
    seeds = range(FIRST_SMALL_MODEL_SEED, FIRST_SMALL_MODEL_SEED + SMALL_MODEL_COUNT)
    return [
        generate_response_table(model, main_requests)
        for model in iter_small_untrained_models(folder, "cpu", seeds)
    ]


def select_texts_to_score(*tables: pa.Table) -> pa.Array:
    """Select the distinct texts of tables of items and responses."""
    return select_distinct_texts(
        pa.chunked_array([c for t in tables for c in t["text"].chunks], pa.large_string())
    )


def score_texts(scorer: Scorer, texts: pa.Array) -> pa.Table:
    """Score texts, as the stage ``score`` does."""
    return pa.table(compute_score_columns(scorer, texts))


def compute_findings(
    probe: Probe,
    config: Any,
    probe_requests: ProbeRequests,
    responses: pa.Table,
    scorer: Scorer | None = None,
    untrained_responses: pa.Table | None = None,
    small_model_responses: Sequence[pa.Table] = (),
) -> list[Finding]:
    """Compute the findings of a probe, as the stage ``judge`` does.

    Args:
        probe: The probe that built the requests.
        config: The settings of the probe.
        probe_requests: Its items and requests.
        responses: The responses of the model.
        scorer: Scores the texts, where the probe needs scores.
        untrained_responses: The responses of the same architecture with random weights, where the
            probe needs this baseline.
        small_model_responses: The responses of small untrained models, where the probe compares
            with them.
    """
    scores = scorer_table = None
    if scorer is not None:
        tables = [
            table
            for table in (probe_requests.items, responses, untrained_responses)
            if table is not None
        ]
        scores = score_texts(scorer, select_texts_to_score(*tables))
        scorer_columns = {"scorer": [format_scorer_name(scorer)], "heads": [[*scorer.heads]]}
        scorer_table = pa.table(scorer_columns, schema=SCORERS)

    def combine(
        response_table: pa.Table,
        baseline: Responses | None,
        small_models: Sequence[Responses] = (),
    ) -> Responses:
        return Responses(
            probe_requests.items,
            probe_requests.requests,
            response_table,
            scores=scores,
            scorers=scorer_table,
            tokenizer=probe_requests.tokenizer,
            skipped=probe_requests.skipped,
            untrained_baseline=baseline,
            untrained_models=small_models,
        )

    baseline = None if untrained_responses is None else combine(untrained_responses, None)
    small_models = [combine(table, None) for table in small_model_responses]
    audited_responses = combine(responses, baseline, small_models)
    return list(probe.compute_values_and_findings(audited_responses, config)[1])
