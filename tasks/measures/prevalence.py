"""Estimate the prevalence of toxic texts, corrected for the known error rates of a scorer.

On labelled texts the scorer has a sensitivity se and a specificity sp. A flagged share p then
corresponds to a true share of (p + sp - 1) / (se + sp - 1) (Rogan & Gladen 1978). This assumes the
same error rates on the measured texts as on the labelled ones, so reports must name the labelled
data set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hallmark.tasks.measures.estimates import Estimate, estimate_mean_or_share
from hallmark.tasks.measures.statistics import wilson_interval


def correct_prevalence(flagged_share: float, sensitivity: float, specificity: float) -> float:
    """Correct a flagged share for the errors of the scorer; by chance it can be outside 0 to 1.

    NaN if the scorer is no better than chance.
    """
    discrimination = sensitivity + specificity - 1
    return (flagged_share + specificity - 1) / discrimination if discrimination > 0 else np.nan


class ShareInterval(NamedTuple):
    """A share and the ends of its interval."""

    value: float
    low: float
    high: float


def estimate_prevalence(
    flagged: ArrayLike,
    clusters: Sequence[Any] | None,
    labelled_predictions: ArrayLike,
    labels: ArrayLike,
    *,
    confidence_level: float = 0.95,
    unit: str = "prompts",
) -> Estimate:
    """Estimate the true share of texts from the share that a scorer flags.

    The interval includes the uncertainty of error rates from few labelled texts, also if no error
    was observed; see ``find_plausible_prevalences``. The value is clipped to 0 to 1. If the clipped
    value is not plausible, the scorer's error rates differ on these texts, and the value is NaN.

    Args:
        flagged: (n,) 1 if the scorer flags a text, 0 if not, NaN without a score.
        clusters: (n,) names; None makes each text its own cluster.
        labelled_predictions: (m,) the same for labelled texts.
        labels: (m,) whether each labelled text is truly positive.
        confidence_level: Of the interval.
        unit: Plural name of the clusters, for the description of the method.
    """
    predictions, is_positive = (
        np.asarray(labelled_predictions, np.float64),
        np.asarray(labels, bool),
    )
    predictions_by_label = [
        label_predictions[~np.isnan(label_predictions)]
        for label_predictions in (predictions[is_positive], predictions[~is_positive])
    ]
    flagged_estimate = estimate_mean_or_share(
        flagged, clusters, is_share=True, confidence_level=confidence_level, unit=unit
    )
    estimate = replace(flagged_estimate, value=np.nan, low=np.nan, high=np.nan)
    if not estimate.n:
        return estimate
    if not all(map(len, predictions_by_label)):
        return replace(
            estimate, method="not measured: the labelled texts do not include both labels"
        )
    sensitivity, false_positive_rate = (
        ShareInterval(
            float(label_predictions.mean()),
            *wilson_interval(
                float(label_predictions.sum()), len(label_predictions), confidence_level
            ),
        )
        for label_predictions in predictions_by_label
    )
    value = correct_prevalence(
        flagged_estimate.value, sensitivity.value, 1 - false_positive_rate.value
    )
    error_description = (
        f"sensitivity {sensitivity.value:.3g} and specificity {1 - false_positive_rate.value:.3g}"
    )
    if np.isnan(value):
        return replace(
            estimate,
            method=f"not measured: the scorer is no better than chance ({error_description})",
        )
    estimate = replace(estimate, value=float(np.clip(value, 0, 1)))
    if np.isnan(flagged_estimate.low):
        return replace(
            estimate, method=f"corrected for {error_description}; {flagged_estimate.method}"
        )
    plausible_ends = find_plausible_prevalences(
        ShareInterval(flagged_estimate.value, flagged_estimate.low, flagged_estimate.high),
        sensitivity,
        false_positive_rate,
    )
    if plausible_ends is None:
        return replace(
            estimate,
            value=np.nan,
            method=f"not measured: a flagged share of {flagged_estimate.value:.3g} is impossible "
            f"for a scorer with {error_description}, so the scorer's error rates must differ "
            "between these texts and the labelled texts",
        )
    return replace(
        estimate,
        low=plausible_ends[0],
        high=plausible_ends[1],
        method=f"corrected for {error_description}; Fieller interval derived from Wilson intervals "
        f"for the error rates on {len(predictions_by_label[0])} positive and "
        f"{len(predictions_by_label[1])} negative labelled texts; share of flagged texts: "
        f"{flagged_estimate.method}",
    )


def find_plausible_prevalences(
    flagged: ShareInterval, sensitivity: ShareInterval, false_positive_rate: ShareInterval
) -> tuple[float, float] | None:
    """Find the smallest and the largest plausible true share; None if none near the value is.

    For a true share t the contrast p - t se - (1 - t) fp of the flagged share, the sensitivity and
    the false-positive rate is 0. A t is plausible if the interval of its contrast contains 0
    (Fieller 1954). The variances of a contrast's parts are recovered from their intervals, on the
    side of 0 (Zou, Huang & Zhang 2009), so that a rate of 0 or 1 from few texts is no certainty.
    """
    # Contrast: constant + slope t. Its lower end uses the ends of the shares that make it smaller.
    constant = flagged.value - false_positive_rate.value
    slope = false_positive_rate.value - sensitivity.value
    roots = {0.0, 1.0}
    squared_margins = []
    for margins in (
        (
            flagged.value - flagged.low,
            sensitivity.high - sensitivity.value,
            false_positive_rate.high - false_positive_rate.value,
        ),
        (
            flagged.high - flagged.value,
            sensitivity.value - sensitivity.low,
            false_positive_rate.value - false_positive_rate.low,
        ),
    ):
        flagged_part, sensitivity_part, false_positive_part = np.square(margins)
        squared_margin = np.array(
            [
                sensitivity_part + false_positive_part,
                -2 * false_positive_part,
                flagged_part + false_positive_part,
            ]
        )  # Coefficients of t^2, t and 1.
        squared_margins.append(squared_margin)
        ends = np.roots(np.array([slope**2, 2 * slope * constant, constant**2]) - squared_margin)
        roots |= {float(end.real) for end in ends if not end.imag and 0 <= end.real <= 1}

    def is_plausible(share: float) -> bool:
        contrast = constant + slope * share
        margin = float(np.polyval(squared_margins[0 if contrast > 0 else 1], share)) ** 0.5
        return bool(abs(contrast) <= margin + 1e-9)

    # The estimate itself is plausible unless it had to be clipped.
    if not is_plausible(min(1.0, max(0.0, -constant / slope))):
        return None
    plausible_shares = [share for share in roots if is_plausible(share)]
    return min(plausible_shares), max(plausible_shares)
