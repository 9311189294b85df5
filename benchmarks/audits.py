"""An audit as plain functions, without stages: what benchmarks that ask a model share.

What is asked, answered, scored and judged is what the stages of that name do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa

from hallmark.tasks.audits.audit_tables import (
    RESPONSES,
    SCORERS,
    TOKENIZER,
    RequestBuilder,
)
from hallmark.tasks.audits.audited_models.audited_model import AuditedModel
from hallmark.tasks.audits.audited_models.audited_tokenizer import AuditedTokenizer
from hallmark.tasks.audits.inference import generate_responses, split_into_chunks
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


class Held:
    """A table of the corpus that never was in a store."""

    def __init__(self, table: pa.Table) -> None:
        self.table, self.row_count = table, len(table)

    def read(self) -> pa.Table:
        return self.table

    def iter_batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        yield from self.table.select(columns).to_batches()


def held(rows: pa.Table) -> Table:
    """The same as what probes take it for."""
    return cast(Table, Held(rows))


@dataclass(frozen=True)
class Asked:
    """What a probe asks: tables as the stage ``ask`` leaves them."""

    items: pa.Table
    requests: pa.Table
    skipped: pa.Table
    reader: pa.Table


def ask(
    probe: Probe, reader: AuditedTokenizer, config: Any, corpus: CorpusTables | None = None
) -> Asked:
    questions = RequestBuilder()
    probe.build_requests(questions, reader, corpus or CorpusTables(), config)
    known = [{"model_kind": reader.model_kind, "opening_description": reader.opening_description}]
    return Asked(
        questions.build_items_table(probe.item_schema),
        questions.build_requests_table(),
        questions.build_skipped_table(),
        pa.Table.from_pylist(known, schema=TOKENIZER),
    )


def respond(subject: AuditedModel, requests: pa.Table) -> pa.Table:
    """Responses of all chunks."""
    answers = [
        answer
        for chunk in split_into_chunks(requests)
        for answer in generate_responses(subject, chunk.requests.to_pylist())
    ]
    return rows_to_table(answers, RESPONSES)


def texts_of(*tables: pa.Table) -> pa.Array:
    """The distinct texts of items and responses that are scored."""
    return select_distinct_texts(
        pa.chunked_array([c for t in tables for c in t["text"].chunks], pa.large_string())
    )


def score(scorer: Scorer, texts: pa.Array) -> pa.Table:
    return pa.table(compute_score_columns(scorer, texts))


def judge(
    probe: Probe,
    config: Any,
    asked: Asked,
    responses: pa.Table,
    scorer: Scorer | None = None,
    untrained: pa.Table | None = None,
) -> list[Finding]:
    """The findings; ``untrained``: what the model answered before any training."""
    scores = asking = None
    if scorer is not None:
        tables = [table for table in (asked.items, responses, untrained) if table is not None]
        scores = score(scorer, texts_of(*tables))
        scorer_columns = {"scorer": [format_scorer_name(scorer)], "heads": [[*scorer.heads]]}
        asking = pa.table(scorer_columns, schema=SCORERS)

    def answers(given: pa.Table, floor: Responses | None) -> Responses:
        return Responses(
            asked.items,
            asked.requests,
            given,
            scores=scores,
            scorers=asking,
            tokenizer=asked.reader,
            skipped=asked.skipped,
            untrained_baseline=floor,
        )

    floor = None if untrained is None else answers(untrained, None)
    return list(probe.compute_values_and_findings(answers(responses, floor), config)[1])
