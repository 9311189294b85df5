"""A cascade of scorers: a cheap one clears documents, a decisive one is asked about the rest.

What that misses is measured on the corpus itself before anything is cleared: both score a sample of
the documents, drawn by their ids. Of those in it that the decisive scorer finds toxic the share
that the cheap one would not have cleared estimates the recall; its lower confidence bound must
reach the recall that the config requires, or the cascade is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from hallmark.tasks.contract import ID_TYPE, HallmarkError, Seed, StageConfig, column, table_schema
from hallmark.tasks.measures.scorers import ScorerConfig, scorer_versions


class CascadeConfig(StageConfig):
    """A cheap scorer before the one that decides; without this section that one scores all."""

    cheap_scorer: ScorerConfig = Field(
        default=ScorerConfig(), description="the scorer that scores every document first"
    )
    clears_below: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="documents of which the cheap scorer finds no window at or above this are "
        "cleared: the other scorer is not asked about them",
    )
    toxicity_threshold: float = Field(
        default=0.8,
        gt=0,
        le=1,
        description="a document is toxic if the other scorer gives it at least this score; "
        "rules on toxicity must have the same bound",
    )
    min_recall: float = Field(
        default=0.9,
        gt=0,
        lt=1,
        description="the share of toxic documents that must not be cleared; the cascade is "
        "refused if it is lower",
    )
    confidence_level: float = Field(
        default=0.95,
        ge=0.5,
        lt=1,
        description="confidence with which the recall must be shown to be high enough",
    )
    sample_size: int = Field(
        default=2000,
        ge=1,
        description="documents that both scorers score first, to measure the recall",
    )
    seed: Seed = Field(default=0, description="another seed, another sample")


CASCADE_TABLE = table_schema(
    "What the cascade misses, as measured on a sample; no row without a cascade.",
    column("cheap_scorer", pa.string(), "label", "the scorer that clears, with its digest"),
    column("documents", pa.int64(), "figure", "documents that were to be scored", unit="documents"),
    column(
        "sampled_documents",
        pa.int64(),
        "figure",
        "of them drawn by their ids and scored by both",
        unit="documents",
    ),
    column(
        "toxic_documents",
        pa.int64(),
        "figure",
        "drawn ones at or above the threshold by the scorer that decides",
        unit="documents",
    ),
    column(
        "missed_documents",
        pa.int64(),
        "figure",
        "of these such as the cheap scorer would clear",
        unit="documents",
    ),
    column(
        "recall_lower_bound",
        pa.float64(),
        "figure",
        "the recall is at least this: one-sided lower bound (Clopper & Pearson 1934)",
        unit="share",
    ),
    column("confidence_level", pa.float64(), "figure", "confidence of the bound", unit="share"),
    column("min_recall", pa.float64(), "figure", "recall that the config requires", unit="share"),
    column(
        "clears_below",
        pa.float64(),
        "figure",
        "cheap score below which a document is cleared",
        unit="score",
    ),
    column(
        "toxicity_threshold",
        pa.float64(),
        "figure",
        "score from which a document counts as toxic",
        unit="score",
    ),
    column(
        "cleared_documents",
        pa.int64(),
        "figure",
        "documents that nobody but the cheap scorer has scored",
        unit="documents",
    ),
)

SAMPLE_TABLE = table_schema(
    "Documents that were drawn to measure the cascade, with both scores.",
    column("doc_id", ID_TYPE, "id", "the document"),
    column(
        "cheap_score",
        pa.float32(),
        "figure",
        "highest score of its windows by the cheap scorer; null where it was not asked or failed",
        unit="score",
    ),
    column("toxicity", pa.float32(), "figure", "the same by the scorer that decides", unit="score"),
    column(
        "would_be_cleared", pa.bool_(), "label", "whether the cheap scorer would have cleared it"
    ),
)


@dataclass(frozen=True)
class CascadeRecall:
    """What a sample says of a cascade."""

    document_count: int  # that were to be scored
    sample_size: int
    toxic_count: int  # of those drawn
    missed_count: int  # of the toxic ones
    lowest_missed_score: float  # the least cheap score of a missed one; NaN without

    def lower_bound(self, confidence: float) -> float:
        return clopper_pearson_lower_bound(
            self.toxic_count - self.missed_count, self.toxic_count, confidence
        )


def clopper_pearson_lower_bound(hits: int, n: int, confidence: float) -> float:
    """One-sided lower confidence bound of a share (Clopper & Pearson 1934): the share under which
    ``hits`` or more of ``n`` have probability 1 - level. 0 for n = 0."""
    from scipy.special import betaincinv

    return float(betaincinv(hits, n - hits + 1, 1 - confidence)) if hits else 0.0


def find_sample_cutoff(draws: np.ndarray, sample_size: int) -> float:
    """The draw up to which documents are in the sample: its ``count`` smallest. draws: (n,) of all
    documents in question, by their ids; so the sample depends on neither order nor parts."""
    sample_size = min(sample_size, len(draws))
    return float(np.partition(draws, sample_size - 1)[sample_size - 1]) if sample_size else -1.0


def measure_cascade_recall(
    sample: pa.Table, document_count: int, toxic_threshold: float
) -> CascadeRecall:
    """sample: rows of SAMPLE, drawn from as many documents."""
    is_toxic = sample["toxicity"].to_numpy().astype(np.float64) >= toxic_threshold
    is_cleared = sample["would_be_cleared"].to_numpy()
    missed_scores = sample["cheap_score"].to_numpy()[is_toxic & is_cleared]
    lowest = float(missed_scores.min()) if len(missed_scores) else math.nan
    return CascadeRecall(
        document_count, len(sample), int(is_toxic.sum()), int((is_toxic & is_cleared).sum()), lowest
    )


def check_cascade_recall(recall: CascadeRecall, config: CascadeConfig) -> None:
    """HallmarkError if the sample does not show the recall that is required.

    Where it holds all documents nothing is left to be missed.
    """
    recall_bound = recall.lower_bound(config.confidence_level)
    if recall_bound >= config.min_recall or recall.sample_size == recall.document_count:
        return
    # Of n toxic ones and none missed the bound is (1 - level)^(1/n).
    required_toxic = math.ceil(math.log(1 - config.confidence_level) / math.log(config.min_recall))
    if recall.toxic_count < required_toxic:
        advice = (
            f"no fewer than {required_toxic} toxic ones can show it: raise "
            f"score_toxicity.cascade.sample_size"
        )
    else:
        suggested_bound = (
            recall.lowest_missed_score * 0.995
        )  # three digits of which are no larger, however they round
        advice = (
            f"lower score_toxicity.cascade.clears_below, which at {suggested_bound:.3g} "
            f"would have cleared "
            f"none of them"
        )
    raise HallmarkError(
        f"the cascade is refused: of {recall.sample_size:,} documents drawn "
        f"{recall.toxic_count:,} are toxic, at "
        f"{config.toxicity_threshold:g} or above, and the cheap scorer clears "
        f"{recall.missed_count:,} of them, so "
        f"its recall is at least {recall_bound:.3f} with {100 * config.confidence_level:g} % "
        f"confidence, where "
        f"{config.min_recall:g} is required; {advice}, or leave the cascade out"
    )


def build_cascade_row(
    recall: CascadeRecall, config: CascadeConfig, cleared_count: int
) -> dict[str, list[Any]]:
    """The row of CASCADE."""
    scorer_identity = scorer_versions(config.cheap_scorer)
    row = {
        "cheap_scorer": f"{scorer_identity['scorer']} ({scorer_identity['digest'][:12]})",
        "documents": recall.document_count,
        "sampled_documents": recall.sample_size,
        "toxic_documents": recall.toxic_count,
        "missed_documents": recall.missed_count,
        "recall_lower_bound": recall.lower_bound(config.confidence_level),
        "confidence_level": config.confidence_level,
        "min_recall": config.min_recall,
        "clears_below": config.clears_below,
        "toxicity_threshold": config.toxicity_threshold,
        "cleared_documents": cleared_count,
    }
    return {name: [value] for name, value in row.items()}
