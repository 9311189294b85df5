"""Test whether a score differs from the scores of models that have nothing to show.

The scores of such models, for example with random weights, are not independent over items: items
share words. A test over items finds differences that mean nothing. This test compares whole models:
the audited score is a new draw of the distribution of the others, or it is not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from hallmark.tasks.measures.detectable_effects import detectable_standard_errors
from hallmark.tasks.measures.estimates import Estimate

#: With fewer scores there is no test.
MIN_BASELINE_SCORES = 20

#: Shapiro-Wilk tests below this p reject that the scores have a normal distribution.
NORMALITY_P = 0.01


@dataclass(frozen=True)
class PredictionTest:
    """The result of a prediction test.

    Attributes:
        p: Two-sided p.
        mean: Mean of the baseline scores.
        standard_error: Standard deviation of a new score around that mean.
        is_normal: Whether the baseline scores may have a normal distribution.
        count: Number of baseline scores.
    """

    p: float
    mean: float
    standard_error: float
    is_normal: bool
    count: int


def compute_prediction_test(
    score: float, baseline_scores: ArrayLike, smallest_deviation: float = 0.0
) -> PredictionTest | None:
    """Test whether a score is a further draw from the distribution of the baseline scores.

    With m scores of mean u and standard deviation s, (score - u) / (s sqrt(1 + 1/m)) has Student's
    t with m - 1 degrees of freedom if all are normal (Whitmore 1986). If Shapiro and Wilk's test
    (1965) rejects a normal distribution, the distance is measured from the furthest score on the
    side of the tested one, instead of from the mean.

    Args:
        score: The tested score.
        baseline_scores: (m,) scores, NaN where missing.
        smallest_deviation: The standard deviation is at least this value: that of a score that
            depends on few items is not known to be 0 because all drawn scores are equal.

    Returns:
        The result, or None if the score is missing or there are too few baseline scores.
    """
    from scipy.special import stdtr
    from scipy.stats import shapiro

    scores = np.asarray(baseline_scores, np.float64)
    scores = scores[~np.isnan(scores)]
    if np.isnan(score) or len(scores) < MIN_BASELINE_SCORES:
        return None
    mean, deviation = float(scores.mean()), float(scores.std(ddof=1))
    is_normal = deviation < 1e-12 or float(shapiro(scores).pvalue) >= NORMALITY_P
    standard_error = max(deviation, smallest_deviation) * (1 + 1 / len(scores)) ** 0.5
    distance = score - mean
    if not is_normal:
        distance = max(0.0, score - scores.max()) + min(0.0, score - scores.min())
    if standard_error < 1e-12:
        p = float(abs(distance) < 1e-12)
    else:
        p = float(2 * stdtr(len(scores) - 1, -abs(distance) / standard_error))
    return PredictionTest(p, mean, standard_error, is_normal, len(scores))


def require_difference_from_baseline(
    estimate: Estimate, baseline_scores: ArrayLike, baseline_name: str, smallest_deviation: float
) -> Estimate:
    """Require that an estimate differs from its null value and from the baseline scores.

    p becomes the larger of the p of the estimate and that of the prediction test. If the value is
    between the null value and the mean of the baseline scores, p is 1: it differs from each only
    in the direction of the other. The minimum detectable effect covers both tests.

    Args:
        estimate: The estimate, with a test against its null value.
        baseline_scores: (m,) scores of models that have nothing to show.
        baseline_name: Plural name of these models, such as "untrained models".
        smallest_deviation: As of ``compute_prediction_test``.
    """
    if np.isnan(estimate.p):
        return estimate
    test = compute_prediction_test(estimate.value, baseline_scores, smallest_deviation)
    if test is None:
        known_count = int((~np.isnan(np.asarray(baseline_scores, np.float64))).sum())
        reason = (
            f"only {known_count} of these models have values, but at least {MIN_BASELINE_SCORES} "
            "are required"
        )
        method = f"{estimate.method}; not compared with {baseline_name}: {reason}"
        return replace(estimate, method=method)
    null_distance, mean_distance = estimate.value - estimate.null_value, estimate.value - test.mean
    is_between = null_distance * mean_distance <= 0
    p = 1.0 if is_between else max(estimate.p, test.p)
    detectable = float(
        detectable_standard_errors(test.count - 1, 0.95, test.count - 1)
    ) * test.standard_error + abs(test.mean - estimate.null_value)
    normality_note = (
        ""
        if test.is_normal
        else "; the values of these models are not normally distributed (Shapiro-Wilk p < "
        f"{NORMALITY_P:g}), so the distance is measured from the most extreme of these values "
        "rather than from their mean"
    )
    combination_note = (
        f"the reported p is 1 because the value is between {estimate.null_value:g} and the mean "
        "of these models"
        if is_between
        else "the reported p is the larger of the two p-values"
    )
    return replace(
        estimate,
        p=p,
        p_above_null=np.nan,  # that of the test against the null value alone
        minimum_detectable_effect=max(estimate.minimum_detectable_effect, detectable),
        method=f"{estimate.method}; p = {estimate.p:.3g} in the test against "
        f"{estimate.null_value:g}, and p = {test.p:.3g} in the t prediction test against "
        f"{test.count} {baseline_name} (mean {test.mean:.4g}, standard deviation "
        f"{test.standard_error / (1 + 1 / test.count) ** 0.5:.3g}){normality_note}; "
        f"{combination_note}",
    )
