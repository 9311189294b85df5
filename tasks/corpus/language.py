"""Language: which language each document is written in, an estimate with its probability."""

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
    min_probability: float = Field(
        MIN_CONFIDENCE,
        ge=0,
        le=1,
        description="a language with a lower probability is undetermined",
    )
    max_characters: int = Field(
        MAX_CHARACTERS,
        ge=1,
        description="characters from the beginning of a document by which its language is "
        "identified",
    )


SIGNALS = build_signal_schema(
    "The language of each document, an estimate.",
    column(
        "language",
        pa.string(),
        "label",
        "ISO 639 code, zxx for what is no language, such as "
        "code; null where it is undetermined, as that of short texts often is",
    ),
    column(
        "language_probability",
        pa.float32(),
        "figure",
        "how sure the estimate is of the most likely language",
        unit="share",
    ),
)


def write_language_signals(
    partition: TablePart, config: LanguageConfig, out: TableWriters
) -> FailureList:
    return write_signals(partition, partial(estimate_batch_languages, config=config), out)


def estimate_batch_languages(batch: pa.RecordBatch, config: LanguageConfig) -> dict[str, pa.Array]:
    codes, probabilities = estimate_languages(batch["text"], config.max_characters)
    is_determined = pc.greater_equal(probabilities, pa.scalar(config.min_probability, pa.float32()))
    return {
        "language": pc.if_else(is_determined, codes, None),
        "language_probability": probabilities,
    }


@stage(
    name="language",
    tables={"signals": SIGNALS},
    libraries=["py3langid", "numpy"],
    determinism="machine",
)
def identify_languages(documents: Table, config: LanguageConfig, context: StageContext) -> None:
    results = context.map_partitions(write_language_signals, documents.parts, config)
    report_failures(
        context,
        [result.value for result in results],
        documents.row_count,
        "the estimate of languages",
    )
