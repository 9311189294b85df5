"""Estimate the language of each document, with a probability, as signals for later stages."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from hallmark.tasks.contract import (
    StageConfig,
    StageContext,
    Table,
    TablePart,
    TableWriters,
    column,
    stage,
)
from hallmark.tasks.corpus.signals import build_signal_schema, write_signals
from hallmark.tasks.measures.failed_documents import FailureList, report_failures
from hallmark.tasks.measures.languages import MAX_CHARACTERS, MIN_CONFIDENCE, estimate_languages


class LanguageConfig(StageConfig):
    """Settings of language identification."""

    min_probability: float = Field(
        MIN_CONFIDENCE,
        ge=0,
        le=1,
        description="minimum probability of the most likely language; below this value, the "
        "document's language is recorded as undetermined",
    )
    max_characters: int = Field(
        MAX_CHARACTERS,
        ge=1,
        description="number of characters used to identify a document's language, taken from "
        "segments spread throughout the document; the language identified most often is chosen",
    )


SIGNALS = build_signal_schema(
    "Estimated language of each document.",
    column(
        "language",
        pa.string(),
        "label",
        "ISO 639 code of the document's most likely language; zxx for text without a language, "
        "such as program code; null if the language could not be determined, which is common for "
        "short texts",
    ),
    column(
        "language_probability",
        pa.float32(),
        "figure",
        "estimated probability that the document is in the most likely language",
        unit="share",
    ),
)


def write_language_signals(
    partition: TablePart, config: LanguageConfig, out: TableWriters
) -> FailureList:
    """Write the signals of a partition; return the documents on which that failed."""
    return write_signals(partition, partial(compute_language_columns, config=config), out)


def compute_language_columns(batch: pa.RecordBatch, config: LanguageConfig) -> dict[str, pa.Array]:
    """Compute the columns of SIGNALS for a batch; improbable languages become null."""
    codes, probabilities = estimate_languages(batch["text"], config.max_characters)
    is_determined = pc.greater_equal(probabilities, pa.scalar(config.min_probability, pa.float32()))
    return {
        "language": pc.if_else(is_determined, codes, None),
        "language_probability": probabilities,
    }


@stage(
    name="language",
    tables={"signals": SIGNALS},
    libraries=["confusable-homoglyphs", "py3langid", "numpy"],
    determinism="machine",
)
def identify_languages(documents: Table, config: LanguageConfig, context: StageContext) -> None:
    """Estimate the language of every document."""
    results = context.map_partitions(write_language_signals, documents.parts, config)
    report_failures(
        context,
        [result.value for result in results],
        documents.row_count,
        "language identification",
    )
