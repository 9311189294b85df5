"""Remove documents whose highest window is as toxic as the threshold, or more."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from tasks.contract import (
    LEDGER,
    SCORED,
    HallmarkError,
    Part,
    StageConfig,
    Table,
    Tables,
    Work,
    aligned,
    removals,
    stage,
)


class FilterToxicityConfig(StageConfig):
    threshold: float = Field(
        default=0.8, gt=0, le=1, description="a score that is removed, or higher"
    )
    keep_unscored: bool = Field(
        default=True,
        description="whether documents stay that no scorer could score; never taken as zero",
    )


def highest(scores: Part) -> tuple[pa.Array, np.ndarray]:
    """Each document's id, and the highest score of its windows, float32: NaN where none has one.

    Held in memory: 20 bytes for each document of the part.
    """
    rows = scores.read(["doc_id", "window", "score"]).combine_chunks()
    first = np.flatnonzero(rows["window"].to_numpy() == 0)
    known = rows["score"].to_numpy().astype(np.float32)  # null is NaN
    best = np.fmax.reduceat(known, first) if len(first) else known
    return rows["doc_id"].combine_chunks().take(pa.array(first)), best


def filter_part(
    pair: tuple[Part, Part], config: FilterToxicityConfig, out: Tables
) -> dict[str, int]:
    """Documents and scores are walked side by side: both stand in the order of the ids."""
    documents, scores = pair
    ids, best = highest(scores)
    start = unscored = 0
    for batch in documents.batches():
        stop = start + len(batch)
        if not ids[start:stop].equals(batch["doc_id"]):
            raise HallmarkError(
                f"{documents} and {scores} are not about the same documents: score these ones first"
            )
        known = best[start:stop]
        toxicity = pa.array(known, pa.float32(), mask=np.isnan(known))
        unscored += toxicity.null_count
        filter_batch(batch.append_column("toxicity", toxicity), config, out)
        start = stop
    return {"unscored": unscored}


def filter_batch(scored: pa.RecordBatch, config: FilterToxicityConfig, out: Tables) -> None:
    toxic = pc.greater_equal(scored["toxicity"].cast(pa.float64()), config.threshold)
    keep = pc.fill_null(pc.invert(toxic), config.keep_unscored)
    out.table("documents").write(scored.filter(keep))
    removed = scored.filter(pc.invert(keep))
    out.table("ledger").write(
        removals(
            pc.if_else(pc.is_null(removed["toxicity"]), "toxicity unknown", "toxicity"),
            removed,
            score=removed["toxicity"].cast(pa.float64()),
            threshold=config.threshold,
        )
    )


@stage(tables={"documents": SCORED, "ledger": LEDGER}, libraries=["numpy"])
def filter_toxicity(
    documents: Table, scores: Table, config: FilterToxicityConfig, work: Work
) -> None:
    done = work.parts(filter_part, aligned(documents, scores), config)
    work.measure("unscored", sum(part.value["unscored"] for part in done), "documents")
