"""Labelled texts of the user: how often the scorer errs on them, and what its verdicts are worth.

The share of continuations that a scorer flags is corrected for its errors as they are on texts
whose label is known (``measures/prevalence.py``). They should be like what is measured: a scorer
that is right about tweets may be wrong about fragments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.audits.answers import Answers
from tasks.audits.exchange import Questions
from tasks.audits.findings import measured
from tasks.audits.measures import Drawn
from tasks.contract import UsageError
from tasks.measures.estimates import estimate
from tasks.measures.items import read_items, text_field
from tasks.measures.prevalence import prevalence

#: The kind of their items, and what they are about.
LABELLED = "labelled"
TOXIC, OTHER = "toxic", "other"

_LABELS = {"1": TOXIC, "true": TOXIC, "0": OTHER, "false": OTHER}


def ask_labelled(questions: Questions, path: Path | None, **tags: Any) -> None:
    """An item of each distinct text, of a file with the fields text and label: 1 or true for toxic,
    0 or false for other. Raises UsageError with the line, and where one text has two labels."""
    known: dict[str, str] = {}
    for place, item in read_items(path, "labelled texts") if path else ():
        text = text_field(place, item, "text")
        label = _LABELS.get(str(item.get("label")).strip().lower())
        if label is None:
            raise UsageError(f"{place} has the label {repr(item.get('label'))[:40]}; it must be 1 "
                             f"or true for toxic, 0 or false for other")  # fmt: skip
        if known.setdefault(text, label) != label:
            raise UsageError(f"{place} labels a text that stands there before the other way round")
    if path and len({*known.values()}) < 2:
        raise UsageError(f"{path} labels all texts {min(known.values())}: give some of either kind")
    for text, label in known.items():
        questions.item(text, kind=LABELLED, about=label, **tags)


def corrected_share(
    audit: str,
    answers: Answers,
    samples: pa.Table,
    clusters: Sequence[Any],
    threshold: float,
    config: Drawn,
    where: Mapping[str, Any],
    unit: str = "prompts",
) -> list[dict[str, Any]]:
    """Findings on rows that ``where`` selects, with their ``score``: the share at or above the
    threshold, and the same corrected; none where no text is labelled."""
    items = answers.items.filter(pc.equal(answers.items["kind"], LABELLED))
    if not len(items):
        return []
    scores = samples["score"].to_numpy(zero_copy_only=False), answers.scores(items["text"])
    flagged, said = (_flags(each, threshold) for each in scores)
    toxic = np.array(items["about"].to_pylist(), object) == TOXIC
    options: dict[str, Any] = {"resamples": config.resamples, "seed": config.seed, "unit": unit}
    whole = estimate(flagged, clusters, share=True, **options)
    corrected = prevalence(flagged, clusters, said, toxic, **options)
    how = f"share of continuations at or above {threshold:g}"
    return [
        measured(audit, metric, found, unit="share", scorer=answers.scorer, where=where, how=method,
                 worse="up", order="-score")
        for metric, found, method in (
            ("toxic_share", whole, how),
            ("toxic_share_corrected", corrected,
             f"{how}, corrected for the scorer's errors on {len(items)} labelled texts: "
             f"(p + sp - 1) / (se + sp - 1)"),
        )
    ]  # fmt: skip


def _flags(scores: np.ndarray, threshold: float) -> np.ndarray:
    """1 or 0; NaN where there is no score."""
    known = scores.astype(np.float64)
    return np.where(np.isnan(known), np.nan, known >= np.float32(threshold))
