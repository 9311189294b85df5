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

from hallmark.tasks.audits.audit_tables import RequestBuilder
from hallmark.tasks.audits.judging.measures import Measure, ValueWriter, read_float_column
from hallmark.tasks.contract import UsageError
from hallmark.tasks.measures.estimates import Estimate, estimate_mean_or_share
from hallmark.tasks.measures.item_files import get_text_field, read_items
from hallmark.tasks.measures.prevalence import estimate_prevalence

#: The kind of their items, and what they are about.
LABELLED = "labelled"
TOXIC, NOT_TOXIC = "toxic", "other"

_LABELS = {"1": TOXIC, "true": TOXIC, "0": NOT_TOXIC, "false": NOT_TOXIC}


def add_labelled_items(requests: RequestBuilder, path: Path | None, **tags: Any) -> None:
    """An item of each distinct text, of a file with the fields text and label: 1 or true for toxic,
    0 or false for other. Raises UsageError with the line, and where one text has two labels."""
    label_by_text: dict[str, str] = {}
    for location, item in read_items(path, "labelled texts") if path else ():
        text = get_text_field(location, item, "text")
        label = _LABELS.get(str(item.get("label")).strip().lower())
        if label is None:
            raise UsageError(
                f"{location} has the label {repr(item.get('label'))[:40]}; it must be 1 "
                f"or true for toxic, 0 or false for other"
            )
        if label_by_text.setdefault(text, label) != label:
            raise UsageError(
                f"{location} labels a text that stands there before the other way round"
            )
    if path and len({*label_by_text.values()}) < 2:
        raise UsageError(
            f"{path} labels all texts {min(label_by_text.values())}: give some of either kind"
        )
    for text_index, (text, label) in enumerate(label_by_text.items()):
        requests.add_item(text, f"{LABELLED} {text_index}", kind=LABELLED, topic=label, **tags)


def add_toxic_shares(
    writer: ValueWriter,
    texts: pa.Table,
    labelled_texts: pa.Table,
    scorer: str,
    threshold: float,
    value_columns: Callable[[pa.Table], dict[str, Any]],
) -> None:
    """Of each text whether its score is at or above the threshold; and the same beside the labelled
    ones. Nothing where none is labelled. ``told``: what values tell of texts."""
    if not len(labelled_texts):
        return
    for measure_name, text_rows in (
        ("toxic_share", texts),
        ("toxic_share_corrected", pa.concat_tables([texts, labelled_texts])),
    ):
        scores = read_float_column(text_rows, "toxicity")
        flags = np.where(np.isnan(scores), np.nan, scores >= np.float32(threshold))
        writer.add_values(
            measure_name, text_rows["row"], flags, scorer=scorer, **value_columns(text_rows)
        )


def estimate_toxic_share(
    values: pa.Table, measure: Measure, config: Any, level: float
) -> Estimate | None:
    """Of texts that were flagged, corrected where labelled ones are among them; None where there
    are none."""
    if not len(values):
        return None
    is_labelled = np.array(values["kind"].to_pylist(), object) == LABELLED
    is_flagged = read_float_column(values, "value")
    clusters = values["cluster"].filter(pa.array(~is_labelled)).to_pylist()
    if not is_labelled.any():
        return estimate_mean_or_share(
            is_flagged, clusters, is_share=True, confidence_level=level, unit=measure.cluster_unit
        )
    is_toxic = np.array(values["topic"].to_pylist(), object)[is_labelled] == TOXIC
    corrected_estimate = estimate_prevalence(
        is_flagged[~is_labelled],
        clusters,
        is_flagged[is_labelled],
        is_toxic,
        resamples=config.resamples,
        confidence_level=level,
        seed=config.seed,
        unit=measure.cluster_unit,
    )
    return replace(
        corrected_estimate,
        method=f"on {is_labelled.sum()} labelled texts; {corrected_estimate.method}",
    )


_TOXIC_SHARE_METHOD = "share of continuations that the scorer calls toxic"

TOXIC_SHARE_MEASURES = (
    Measure(
        "toxic_share",
        _TOXIC_SHARE_METHOD,
        "share",
        "prompts",
        worse_when="up",
        evidence_order="-toxicity",
        has_simulated_controls=False,
        estimator=estimate_toxic_share,
    ),
    Measure(
        "toxic_share_corrected",
        f"{_TOXIC_SHARE_METHOD}, corrected for its errors on labelled texts: "
        "(p + sp - 1) / (se + sp - 1)",
        "share",
        "prompts",
        worse_when="up",
        evidence_order="-toxicity",
        has_simulated_controls=False,
        estimator=estimate_toxic_share,
    ),
)
