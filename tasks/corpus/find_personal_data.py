"""Find personal data and secrets: the type and position of each span in each document.

The value of a span is stored as a hash keyed by the store's secret: equal values have equal hashes,
but nobody can find a value by hashing guesses. ``redact_spans`` decides what happens to the spans.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator

from hallmark.tasks.contract import (
    ID_TYPE,
    StageConfig,
    StageContext,
    Table,
    TablePart,
    TableWriters,
    column,
    count_utf8_bytes,
    stage,
    table_schema,
)
from hallmark.tasks.corpus.spans import SPANS, SpanColumns, build_span_columns
from hallmark.tasks.measures.failed_documents import (
    FailedDocuments,
    FailureList,
    list_failures_by_doc_id,
    report_failures,
    run_with_failing_texts_emptied,
)
from hallmark.tasks.measures.personal.types import PERSONAL_DATA_TYPES, UNREADABLE, PersonalDataType
from hallmark.tasks.measures.personal_data import DEFAULT_REGIONS, find_spans_by_row

#: pyarrow compiles the detectors' expressions for each batch, which takes as long as it takes to
#: search about 200 kB.
MIN_BATCH_BYTES = 4 << 20


class PersonalDataConfig(StageConfig):
    """Choose which personal data is searched for."""

    types: tuple[PersonalDataType, ...] = Field(
        default=PERSONAL_DATA_TYPES, description="types of personal data to search for"
    )
    regions: tuple[str, ...] = Field(
        default=DEFAULT_REGIONS,
        description="countries (ISO 3166 codes) whose national telephone, identity and tax "
        "numbers are searched for; telephone numbers in international format are always searched "
        "for",
    )

    @field_validator("regions")
    @classmethod
    def _check_regions(cls, regions: tuple[str, ...]) -> tuple[str, ...]:
        from phonenumbers import SUPPORTED_REGIONS

        unknown = [region for region in regions if region not in SUPPORTED_REGIONS]
        if unknown:
            raise ValueError(
                f"{unknown[0]!r:.60} is not a known region; use ISO 3166 codes such as 'US'"
            )
        return regions


SEARCHED_REGIONS = table_schema(
    "Countries whose national telephone, identity and tax numbers were searched for.",
    column("region", pa.string(), "label", "country (ISO 3166)"),
)


@dataclass(frozen=True, repr=False)
class SecretKey:
    """The store's secret, as passed to workers; its repr does not show it."""

    secret: bytes

    def __repr__(self) -> str:
        return "SecretKey(...)"

    def hash_value(self, value: str) -> bytes:
        """Return the keyed hash of a value, as ``StageContext.hash_with_secret`` does."""
        data = value.encode("utf-8", "surrogatepass")
        return hmac.digest(self.secret, data, "sha256")[:16]


def write_personal_data_spans(
    partition: TablePart, config: PersonalDataConfig, key: SecretKey, out: TableWriters
) -> FailureList:
    """Write the spans of a partition; return the documents that could not be searched."""
    failures: FailureList = []
    for batch in partition.iter_batches(["doc_id", "text"], min_bytes=MIN_BATCH_BYTES):
        columns, faults = run_with_failing_texts_emptied(
            partial(build_personal_data_span_columns, config=config, key=key), batch
        )
        out.get_table_writer("spans").write(
            add_unreadable_spans(batch, columns, faults) if len(faults) else columns
        )
        failures += list_failures_by_doc_id(batch, faults)
    return failures


def add_unreadable_spans(
    batch: pa.RecordBatch, span_columns: SpanColumns, faults: FailedDocuments
) -> pa.Table:
    """Add an UNREADABLE span over the whole text of each document that could not be searched.

    ``redact_spans`` quarantines the documents with such a span.
    """
    text_sizes = count_utf8_bytes(batch["text"]).take(faults.rows)
    starts = pa.array(np.zeros(len(faults), np.int64))
    types = pa.array([UNREADABLE] * len(faults), pa.string())
    unreadable_columns = build_span_columns(
        batch, faults.rows, type=types, byte_start=starts, byte_end=text_sizes
    )
    column_sets = [
        {field.name: pa.array(column_set[field.name], field.type) for field in SPANS}
        for column_set in (span_columns, unreadable_columns)
    ]
    spans = pa.concat_tables([pa.table(rows, schema=SPANS) for rows in column_sets])
    row_order = pc.index_in(spans["doc_id"], value_set=batch["doc_id"])
    return spans.take(pc.sort_indices(row_order))


def build_personal_data_span_columns(
    batch: pa.RecordBatch, config: PersonalDataConfig, key: SecretKey
) -> SpanColumns:
    """Find the personal data of a batch and build the columns of SPANS."""
    owner_rows, types, starts, ends, digests = [], [], [], [], []
    for row, spans in find_spans_by_row(batch["text"], config.types, config.regions).items():
        text, character_position, byte_position = batch["text"][row].as_py(), 0, 0
        for data_type, start, end in spans:
            value = text[start:end]
            byte_position += _utf8_length(text[character_position:start])
            owner_rows.append(row)
            types.append(data_type)
            starts.append(byte_position)
            digests.append(key.hash_value(value))
            byte_position += _utf8_length(value)
            ends.append(byte_position)
            character_position = end
    span_hash = pa.array(digests, ID_TYPE)
    return build_span_columns(
        batch, owner_rows, type=types, byte_start=starts, byte_end=ends, span_hash=span_hash
    )


def _utf8_length(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


@stage(
    name="find_personal_data",
    tables={"spans": SPANS, "regions": SEARCHED_REGIONS},
    libraries=["phonenumbers", "python-stdnum"],
    external_digests=lambda config, secret_id: {"secret": secret_id},
)
def find_personal_data(documents: Table, config: PersonalDataConfig, context: StageContext) -> None:
    """Find personal data in all documents and record the regions that were searched for."""
    results = context.map_partitions(
        write_personal_data_spans, documents.parts, config, SecretKey(context.secret)
    )
    report_failures(
        context,
        [result.value for result in results],
        documents.row_count,
        "the search for personal data",
    )
    context.get_table_writer("regions").write({"region": sorted(set(config.regions))})
