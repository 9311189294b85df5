"""Remove documents whose highest window is as toxic as the threshold, or more."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from tasks.contract import (
    LEDGER,
    SCORED,
    HallmarkError,
    StageConfig,
    Table,
    Work,
    ledger_rows,
    stage,
    utf8_bytes,
)


class FilterToxicityConfig(StageConfig):
    threshold: float = Field(
        default=0.8, gt=0, le=1, description="a score that is removed, or higher"
    )
    keep_unscored: bool = Field(
        default=True,
        description="whether documents stay that no scorer could score; never taken as zero",
    )


def highest(scores: Table) -> pa.Table:
    """doc_id and the highest score of its windows, null where none has a score.

    Held in memory: 20 bytes a document.
    """
    table = scores.read(["doc_id", "score"])
    return table.group_by("doc_id").aggregate([("score", "max")])


def toxicity_of(batch: pa.RecordBatch, scores: pa.Table) -> pa.Array:
    """The score of each document, float32, null where there is none."""
    found = pc.index_in(batch["doc_id"], value_set=scores["doc_id"].combine_chunks())
    if found.null_count:
        raise HallmarkError(
            f"{found.null_count} documents have no row in the table of scores; the scores are of "
            f"other documents: score these ones first"
        )
    return scores["score_max"].combine_chunks().take(found)


@stage(tables={"documents": SCORED, "ledger": LEDGER})
def filter_toxicity(
    documents: Table, scores: Table, config: FilterToxicityConfig, work: Work
) -> None:
    best = highest(scores)
    unscored = 0
    for batch in documents.batches():
        toxicity = toxicity_of(batch, best)
        unscored += toxicity.null_count
        toxic = pc.greater_equal(toxicity.cast(pa.float64()), config.threshold)
        keep = pc.fill_null(pc.invert(toxic), config.keep_unscored)
        scored = batch.append_column("toxicity", toxicity)
        work.table("documents").write(scored.filter(keep))
        removed = scored.filter(pc.invert(keep))
        reasons = pc.if_else(pc.is_null(removed["toxicity"]), "toxicity unknown", "toxicity")
        work.table("ledger").write(
            ledger_rows(
                "removed",
                reasons,
                removed["doc_id"],
                removed["source"],
                utf8_bytes(removed["text"]),
                score=removed["toxicity"].cast(pa.float64()),
                threshold=config.threshold,
            )
        )
    work.measure("unscored", unscored, "documents")
