"""Find personal data and secrets: where they stand in each document, by type.

What stood there is kept as a hash keyed by the store's secret: equal hashes are equal values, but
none can be guessed by trying. What becomes of the spans, ``redact_spans`` decides.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from functools import partial
from typing import Any

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
from hallmark.tasks.corpus.spans import SPANS, build_span_columns
from hallmark.tasks.measures.failed_documents import (
    FailedDocuments,
    FailureList,
    list_failures_by_doc_id,
    report_failures,
    run_isolating_failures,
)
from hallmark.tasks.measures.personal.types import PERSONAL_DATA_TYPES, UNREADABLE, PersonalDataType
from hallmark.tasks.measures.personal_data import DEFAULT_REGIONS, find_spans_by_row


class PersonalDataConfig(StageConfig):
    types: tuple[PersonalDataType, ...] = Field(
        default=PERSONAL_DATA_TYPES, description="what is looked for"
    )
    regions: tuple[str, ...] = Field(
        default=DEFAULT_REGIONS,
        description="countries (ISO 3166) whose national telephone, identity and tax numbers are "
        "looked for; international telephone numbers always are",
    )

    @field_validator("regions")
    @classmethod
    def _check_regions(cls, regions: tuple[str, ...]) -> tuple[str, ...]:
        from phonenumbers import SUPPORTED_REGIONS

        unknown = [region for region in regions if region not in SUPPORTED_REGIONS]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is no region with telephone numbers, such as 'US'")
        return regions


SEARCHED_REGIONS = table_schema(
    "The countries whose national numbers were looked for.",
    column("region", pa.string(), "label", "country (ISO 3166)"),
)


@dataclass(frozen=True, repr=False)
class SecretKey:
    """The store's secret on its way to a part; it shows itself nowhere."""

    secret: bytes

    def __repr__(self) -> str:
        return "Key(...)"

    def hash_value(self, value: str) -> bytes:
        """As ``Work.keyed_hashes``."""
        data = value.encode("utf-8", "surrogatepass")
        return hmac.digest(self.secret, data, "sha256")[:16]


def find_personal_data_in_partition(
    partition: TablePart, config: PersonalDataConfig, key: SecretKey, out: TableWriters
) -> FailureList:
    failures: FailureList = []
    for batch in partition.iter_batches(["doc_id", "text"]):
        columns, faults = run_isolating_failures(
            partial(find_personal_data_in_batch, config=config, key=key), batch
        )
        out.get_table_writer("spans").write(
            add_unreadable_spans(batch, columns, faults) if len(faults) else columns
        )
        failures += list_failures_by_doc_id(batch, faults)
    return failures


def add_unreadable_spans(
    batch: pa.RecordBatch, span_columns: dict[str, Any], faults: FailedDocuments
) -> pa.Table:
    """The spans of a batch, and one over the whole of each document that could not be looked
    through, with which it goes to quarantine."""
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


def find_personal_data_in_batch(
    batch: pa.RecordBatch, config: PersonalDataConfig, key: SecretKey
) -> dict[str, Any]:
    """Columns of SPANS."""
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
    results = context.map_partitions(
        find_personal_data_in_partition, documents.parts, config, SecretKey(context.secret)
    )
    report_failures(
        context,
        [result.value for result in results],
        documents.row_count,
        "the search for personal data",
    )
    context.get_table_writer("regions").write({"region": sorted(set(config.regions))})
