"""Labelled texts of the user: how often the scorer errs on them, and what its verdicts are worth.

The share of continuations that a scorer flags is corrected for its errors as they are on texts
whose label is known (``measures/prevalence.py``). They should be like what is measured: a scorer
that is right about tweets may be wrong about fragments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.audits.exchange import Questions
from tasks.audits.judging.measures import Measure, Values, numbers
from tasks.contract import UsageError
from tasks.measures.estimates import Estimate, estimate
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
    for number, (text, label) in enumerate(known.items()):
        questions.item(text, f"{LABELLED} {number}", kind=LABELLED, about=label, **tags)


def add_shares(
    values: Values,
    texts: pa.Table,
    labelled: pa.Table,
    scorer: str,
    threshold: float,
    told: Callable[[pa.Table], dict[str, Any]],
) -> None:
    """Of each text whether its score is at or above the threshold; and the same beside the labelled
    ones. Nothing where none is labelled. ``told``: what values tell of texts."""
    if not len(labelled):
        return
    for name, rows in (("toxic_share", texts),
                       ("toxic_share_corrected", pa.concat_tables([texts, labelled]))):  # fmt: skip
        score = numbers(rows, "score")
        flags = np.where(np.isnan(score), np.nan, score >= np.float32(threshold))
        values.add(name, rows["row"], flags, scorer=scorer, **told(rows))


def share(values: pa.Table, measure: Measure, config: Any, level: float) -> Estimate | None:
    """Of texts that were flagged, corrected where labelled ones are among them; None where there
    are none."""
    if not len(values):
        return None
    known = np.array(values["kind"].to_pylist(), object) == LABELLED
    flags = numbers(values, "value")
    clusters = values["cluster"].filter(pa.array(~known)).to_pylist()
    if not known.any():
        return estimate(flags, clusters, share=True, level=level, unit=measure.shares)
    toxic = np.array(values["about"].to_pylist(), object)[known] == TOXIC
    made = prevalence(flags[~known], clusters, flags[known], toxic, resamples=config.resamples,
                      level=level, seed=config.seed, unit=measure.shares)  # fmt: skip
    return replace(made, method=f"on {known.sum()} labelled texts; {made.method}")


_SHARE = "share of continuations that the scorer calls toxic"

SHARES = (
    Measure("toxic_share", _SHARE, "share", "prompts", worse="up", order="-score", scripted=False,
            estimator=share),
    Measure("toxic_share_corrected", f"{_SHARE}, corrected for its errors on labelled texts: "
            "(p + sp - 1) / (se + sp - 1)", "share", "prompts", worse="up", order="-score",
            scripted=False, estimator=share),
)  # fmt: skip
