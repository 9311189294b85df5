"""Score with a cascade: a cheap scorer clears documents, and the main scorer scores the rest.

The recall is measured on the corpus itself before any document is cleared. Both scorers score a
sample of the documents, chosen by their ids. The recall is estimated as the share of the sample's
toxic documents (by the main scorer) that the cheap scorer would not clear. The lower confidence
bound of the recall must reach the required recall; otherwise the cascade is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from hallmark.tasks.contract import ID_TYPE, HallmarkError, Seed, StageConfig, column, table_schema
from hallmark.tasks.measures.proportions import clopper_pearson_interval
from hallmark.tasks.measures.scorers import ScorerConfig, scorer_versions


class CascadeConfig(StageConfig):
    """Configure a cheap scorer that runs before the main scorer.

    Without this section, the main scorer scores all documents.
    """

    cheap_scorer: ScorerConfig = Field(
        default=ScorerConfig(),
        description="settings of the cheap scorer, which scores all documents first",
    )
    clears_below: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="cheap scorer's score below which a window is treated as harmless; documents "
        "that contain only harmless windows are cleared, that is, not scored by the main scorer",
    )
    toxicity_threshold: float = Field(
        default=0.8,
        gt=0,
        le=1,
        description="minimum score from the main scorer at which a document is treated as toxic; "
        "rules for the signal `toxicity` must use the same threshold",
    )
    min_recall: float = Field(
        default=0.9,
        gt=0,
        lt=1,
        description="minimum recall: the share of toxic documents that the cheap scorer must not "
        "clear; if the lower confidence bound on the measured recall is below this value, the "
        "cascade is refused",
    )
    confidence_level: float = Field(
        default=0.95,
        ge=0.5,
        lt=1,
        description="confidence level of the one-sided lower bound on recall",
    )
    sample_size: int = Field(
        default=2000,
        ge=1,
        description="number of documents in the sample that both scorers score to measure recall",
    )
    seed: Seed = Field(default=0, description="random seed for the sample")


CASCADE_TABLE = table_schema(
    "Recall of the two-scorer cascade, measured on a sample of the documents; the table is empty "
    "if no cascade is used.",
    column(
        "cheap_scorer",
        pa.string(),
        "label",
        "name of the cheap scorer, with its version digest",
    ),
    column("documents", pa.int64(), "figure", "number of documents to score", unit="documents"),
    column(
        "sampled_documents",
        pa.int64(),
        "figure",
        "number of documents in the sample, which both scorers score",
        unit="documents",
    ),
    column(
        "toxic_documents",
        pa.int64(),
        "figure",
        "number of documents in the sample that are toxic according to the main scorer",
        unit="documents",
    ),
    column(
        "missed_documents",
        pa.int64(),
        "figure",
        "number of toxic documents in the sample that the cheap scorer would classify as harmless",
        unit="documents",
    ),
    column(
        "recall_lower_bound",
        pa.float64(),
        "figure",
        "one-sided lower confidence bound on recall (Clopper & Pearson 1934)",
        unit="share",
    ),
    column(
        "confidence_level", pa.float64(), "figure", "confidence level of the bound", unit="share"
    ),
    column(
        "min_recall",
        pa.float64(),
        "figure",
        "minimum lower bound on recall required by the config",
        unit="share",
    ),
    column(
        "clears_below",
        pa.float64(),
        "figure",
        "cheap scorer's score below which a document is classified as harmless",
        unit="score",
    ),
    column(
        "toxicity_threshold",
        pa.float64(),
        "figure",
        "minimum score from the main scorer at which a document is treated as toxic",
        unit="score",
    ),
    column(
        "cleared_documents",
        pa.int64(),
        "figure",
        "number of documents that only the cheap scorer scored",
        unit="documents",
    ),
)

SAMPLE_TABLE = table_schema(
    "Documents in the sample used to measure the cascade's recall, with the scores from both "
    "scorers.",
    column("doc_id", ID_TYPE, "id", "the document"),
    column(
        "cheap_score",
        pa.float32(),
        "figure",
        "highest score that the cheap scorer assigned to any window in the document; null if the "
        "document was not scored or the scorer failed",
        unit="score",
    ),
    column(
        "toxicity",
        pa.float32(),
        "figure",
        "highest score that the main scorer assigned to any window in the document; null if the "
        "document was not scored or the scorer failed",
        unit="score",
    ),
    column(
        "would_be_cleared",
        pa.bool_(),
        "label",
        "whether the cheap scorer would have classified the document as harmless",
    ),
)


@dataclass(frozen=True)
class CascadeRecall:
    """Count the documents of a sample that a cascade finds and misses."""

    document_count: int  # documents to score
    sample_size: int
    toxic_count: int  # toxic documents of the sample
    missed_count: int  # toxic documents that would be cleared
    lowest_missed_score: float  # lowest cheap score of a missed document; NaN if none is missed

    def lower_bound(self, confidence: float) -> float:
        """Compute the one-sided lower confidence bound of the recall (Clopper & Pearson 1934)."""
        found_count = self.toxic_count - self.missed_count
        return clopper_pearson_interval(found_count, self.toxic_count, 2 * confidence - 1)[0]


def find_max_sample_draw(draws: np.ndarray, sample_size: int) -> float:
    """Return the draw up to which documents are in the sample of this size.

    Args:
        draws: (n,) random numbers of all documents, computed from their ids, so that the sample
            depends neither on order nor on partitions.
    """
    sample_size = min(sample_size, len(draws))
    return float(np.partition(draws, sample_size - 1)[sample_size - 1]) if sample_size else -1.0


def measure_cascade_recall(
    sample: pa.Table, document_count: int, toxic_threshold: float
) -> CascadeRecall:
    """Count toxic and missed documents in a sample.

    Args:
        sample: Rows of SAMPLE_TABLE.
        document_count: Documents from which the sample was drawn.
    """
    is_toxic = sample["toxicity"].to_numpy().astype(np.float64) >= toxic_threshold
    is_cleared = sample["would_be_cleared"].to_numpy()
    missed_scores = sample["cheap_score"].to_numpy()[is_toxic & is_cleared]
    lowest = float(missed_scores.min()) if len(missed_scores) else math.nan
    return CascadeRecall(
        document_count, len(sample), int(is_toxic.sum()), int((is_toxic & is_cleared).sum()), lowest
    )


def check_cascade_recall(recall: CascadeRecall, config: CascadeConfig) -> None:
    """Check that the sample shows the required recall, or holds all documents.

    Raises:
        HallmarkError: if it does not; the message says what to change.
    """
    recall_bound = recall.lower_bound(config.confidence_level)
    if recall_bound >= config.min_recall or recall.sample_size == recall.document_count:
        return
    # With n toxic documents and none missed, the bound is (1 - confidence)^(1/n).
    required_toxic = math.ceil(math.log(1 - config.confidence_level) / math.log(config.min_recall))
    if recall.toxic_count < required_toxic:
        advice = (
            f"the sample must contain at least {required_toxic} toxic documents to demonstrate "
            "this recall; raise score_toxicity.cascade.sample_size"
        )
    else:
        # Slightly lower, so that rounding to three digits does not exceed the lowest score.
        suggested_bound = recall.lowest_missed_score * 0.995
        advice = (
            f"lower score_toxicity.cascade.clears_below (with {suggested_bound:.3g}, the cheap "
            "scorer would have cleared none of the toxic documents)"
        )
    raise HallmarkError(
        f"the cascade is refused: {recall.toxic_count:,} of the {recall.sample_size:,} sampled "
        f"documents are toxic (score of {config.toxicity_threshold:g} or more), and the cheap "
        f"scorer clears {recall.missed_count:,} of these. The recall is therefore at least "
        f"{recall_bound:.3f} with {100 * config.confidence_level:g} % confidence, but the config "
        f"requires {config.min_recall:g}; {advice}, or remove the cascade from the config"
    )


def build_cascade_columns(
    recall: CascadeRecall, config: CascadeConfig, cleared_count: int
) -> dict[str, list[Any]]:
    """Build the row of CASCADE_TABLE."""
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
