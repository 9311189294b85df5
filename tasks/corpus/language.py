"""Language: which language each document is written in, an estimate with its probability."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from tasks.contract import Part, StageConfig, Table, Tables, Work, column, stage
from tasks.corpus.signals import signals, write_signals
from tasks.measures.faults import Noted, tell
from tasks.measures.languages import CONFIDENCE, SAMPLE, estimate


class LanguageConfig(StageConfig):
    confidence: float = Field(
        CONFIDENCE, ge=0, le=1, description="below this probability a language is undetermined"
    )
    characters: int = Field(
        SAMPLE, ge=1, description="how much of a document is looked at, from its beginning"
    )


SIGNALS = signals(
    "The language of each document, an estimate.",
    column("language", pa.string(), "label", "ISO 639 code, zxx for what is no language, such as "
           "code; null where it is undetermined, as that of short texts often is"),
    column("language_probability", pa.float32(), "figure", "how sure the estimate is of the most "
           "likely language", unit="share"),
)  # fmt: skip


def language_part(part: Part, config: LanguageConfig, out: Tables) -> Noted:
    return write_signals(part, partial(told, config=config), out)


def told(batch: pa.RecordBatch, config: LanguageConfig) -> dict[str, pa.Array]:
    codes, sure = estimate(batch["text"], config.characters)
    known = pc.greater_equal(sure, pa.scalar(config.confidence, pa.float32()))
    return {"language": pc.if_else(known, codes, None), "language_probability": sure}


@stage(tables={"signals": SIGNALS}, libraries=["py3langid", "numpy"], determinism="machine")
def language(documents: Table, config: LanguageConfig, work: Work) -> None:
    done = work.parts(language_part, documents.parts, config)
    tell(work, [part.value for part in done], documents.rows, "the estimate of languages")
