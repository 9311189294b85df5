"""Estimate how log-odds depend on a predictor, and the ratio of log-odds of a single unit.

Logistic regression after Firth (1993, "Bias reduction of maximum likelihood estimates", Biometrika
80) stays finite if all counts are on one side, and has no first-order bias. The interval is
Student's t over a jackknife of clusters (CR3), like that of `slopes.estimate_linear_slope`:
units differ in more than the predictor, so their draws are not independent. A predictor that is
itself estimated from counts would flatten the slope; it is calibrated first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hallmark.tasks.measures.estimates import Estimate
from hallmark.tasks.measures.statistics import Float64, jackknife_variance, t_half_width_and_p

#: Maximum number and size of Newton's steps.
MAX_STEPS, MAX_STEP_SIZE = 100, 2.0


def smoothed_log_odds(successes: ArrayLike, trials: ArrayLike) -> Float64:
    """Compute log-odds with 1/2 added to both counts, which keeps them finite (Haldane 1956)."""
    k, n = np.asarray(successes, np.float64), np.asarray(trials, np.float64)
    return np.log((k + 0.5) / (n - k + 0.5))


def smoothed_log_odds_variance(successes: ArrayLike, trials: ArrayLike) -> Float64:
    """Compute the sampling variance of `smoothed_log_odds` (Gart 1966)."""
    k, n = np.asarray(successes, np.float64), np.asarray(trials, np.float64)
    return 1 / (k + 0.5) + 1 / (n - k + 0.5)


class CalibratedPredictor(NamedTuple):
    """A predictor without its sampling error, for several selections of units."""

    expected: Float64
    """(selections, units) expected true value of each unit."""
    reliability: Float64
    """(selections,) mean share of a unit's variance that is not sampling error; 0: none."""


def calibrate_predictor(
    predictor: Float64, variances: Float64, is_selected: NDArray[np.bool_]
) -> CalibratedPredictor:
    """Replace a predictor by the expected true value of each unit.

    Regressing on it does not flatten a slope (regression calibration; Carroll et al. 2006, chapter
    4). True values vary between units with a variance that is estimated after Paule & Mandel
    (1982).

    Args:
        predictor: (units,) estimates.
        variances: (units,) their sampling variances, above 0.
        is_selected: (selections, units); each selection has its own calibration.
    """
    low = np.zeros(len(is_selected))
    high = np.full(len(is_selected), float(np.ptp(predictor)) ** 2 + 1)

    def compute_weighted_means(between_variance: Float64) -> tuple[Float64, Float64]:
        weights = is_selected / (variances + between_variance[:, None])
        return weights, (weights @ predictor) / weights.sum(1)

    for _ in range(50):
        middle = (low + high) / 2
        weights, means = compute_weighted_means(middle)
        squares = (weights * (predictor - means[:, None]) ** 2).sum(1)
        is_too_small = squares > is_selected.sum(1) - 1
        low, high = np.where(is_too_small, middle, low), np.where(is_too_small, high, middle)
    between_variance = low[:, None]
    reliabilities = between_variance / (between_variance + variances)
    means = compute_weighted_means(low)[1][:, None]
    return CalibratedPredictor(
        means + reliabilities * (predictor - means),
        (reliabilities * is_selected).sum(1) / is_selected.sum(1),
    )


def estimate_log_odds_slope(
    values: ArrayLike,
    predictor: ArrayLike,
    strata: Sequence[Any],
    clusters: Sequence[Any],
    *,
    predictor_variances: ArrayLike | None = None,
    null_value: float = 1.0,
    confidence_level: float = 0.95,
    unit: str = "items",
) -> Estimate:
    """Estimate the slope of the log-odds of a value being 1, with an intercept for each stratum.

    If the predictor is calibrated, p is the larger one and the interval the wider one of those with
    and without calibration: a value may depend on the estimate itself, as if a model repeats the
    counts of its text, or on the true value.

    Args:
        values: (n,) 0 or 1, NaN where missing.
        predictor: (n,), NaN where missing.
        strata: (n,) names of strata.
        clusters: (n,) names of clusters, which are independent of each other.
        predictor_variances: (n,) sampling variances of the predictor, for which it is then
            calibrated; predictor and variances are the same for all values of a cluster. None if it
            is known exactly.
        null_value: Slope under the null.
        confidence_level: Of the interval.
        unit: Plural name of the clusters, for the description of the method.

    Returns:
        The change in log-odds per unit of the predictor; n counts the known values.
    """
    y, x = (np.asarray(array, np.float64) for array in (values, predictor))
    is_known = ~np.isnan(y) & ~np.isnan(x)
    stratum_codes, cluster_codes = (
        np.unique(np.asarray(names, object)[is_known].astype(str), return_inverse=True)[1]
        for names in (strata, clusters)
    )
    cluster_count = int(cluster_codes.max()) + 1 if is_known.any() else 0
    missing_count = int((~is_known).sum())
    estimate = Estimate(
        np.nan,
        np.nan,
        np.nan,
        int(is_known.sum()),
        cluster_count,
        missing_count,
        f"no {unit} to measure",
        null_value,
    )
    y, x = y[is_known], x[is_known]
    if not cluster_count:
        return estimate
    if len(np.unique(x)) < 2:
        return replace(estimate, method="not measured: the predictor has the same value everywhere")
    # A cell groups values with the same predictor, stratum and cluster.
    cell_keys, cell_codes = np.unique(
        np.stack([x, stratum_codes, cluster_codes]), axis=1, return_inverse=True
    )
    cell_codes = cell_codes.reshape(-1)
    counts, success_counts = np.bincount(cell_codes).astype(np.float64), np.bincount(cell_codes, y)
    design = np.column_stack(
        [cell_keys[0], np.eye(int(stratum_codes.max()) + 1)[cell_keys[1].astype(int)]]
    )
    cell_clusters = cell_keys[2].astype(int)
    # The first row includes all clusters, each other row all but one.
    is_included = np.vstack([np.ones(cluster_count, bool), ~np.eye(cluster_count, dtype=bool)])
    cell_included = is_included[:, cell_clusters]

    def fit_slopes(designs: Float64) -> Float64:
        """Return the slope of all clusters, and of all but one."""
        counts_by_fit = success_counts * cell_included, counts * cell_included
        return fit_firth_regressions(*counts_by_fit, designs)[:, 0]

    slope_sets, calibration_note, is_unreliable = [fit_slopes(design)], "", False
    if predictor_variances is not None:
        first_rows = np.unique(cluster_codes, return_index=True)[1]
        variances = np.asarray(predictor_variances, np.float64)[is_known]
        calibrated = calibrate_predictor(x[first_rows], variances[first_rows], is_included)
        is_unreliable = bool((calibrated.reliability < 1e-9).any())
        if not is_unreliable:
            designs = np.tile(design, (len(is_included), 1, 1))
            designs[:, :, 0] = calibrated.expected[:, cell_clusters]
            slope_sets.append(fit_slopes(designs))
            calibration_note = (
                "; predictor calibrated for its sampling error (reliability "
                f"{calibrated.reliability[0]:.2f}); the interval also covers the interval without "
                "calibration"
            )
    value = float(slope_sets[-1][0])
    if np.isnan(value):
        return replace(estimate, method="not measured: the regression did not converge")
    estimate = replace(estimate, value=value)
    if cluster_count < 3 or np.isnan(slope_sets).any():
        return replace(estimate, method=f"no interval: too few {unit}")
    if is_unreliable:
        reason = "no interval: almost all of the variation in the predictor is sampling error"
        return replace(estimate, method=f"{reason}, so the predictor could not be calibrated")
    ends: list[float] = []
    p_values: list[float] = []
    for slope, *slopes_without_cluster in slope_sets:
        standard_error = jackknife_variance(slope, np.array(slopes_without_cluster)) ** 0.5
        half_width, p = 0.0, np.nan
        if standard_error:
            half_width, p = t_half_width_and_p(
                standard_error, cluster_count - 1, slope - null_value, confidence_level
            )
        ends += [slope - half_width, slope + half_width]
        p_values.append(p)
    return replace(
        estimate,
        low=float(min(ends)),
        high=float(max(ends)),
        p=float(np.max(p_values)),
        method=(
            "Firth's logistic regression (1993) with an intercept for each of "
            f"{design.shape[1] - 1} strata{calibration_note}; Student's t interval with jackknife "
            f"standard errors (leaving out one of {cluster_count} {unit} at a time)"
        ),
    )


def fit_firth_regressions(successes: Float64, trials: Float64, design: Float64) -> Float64:
    """Fit several regressions over the same cells, with a common design or one for each.

    Each solves X'(k - n p + h (1/2 - p)) = 0, where h is the leverage of a cell, as if h more
    trials had been counted in it, half of them successes. Newton's steps use these augmented
    counts: with the original ones they cycle if a column has a single count. The coefficient of a
    column without counts stays 0.

    Args:
        successes: (regressions, cells).
        trials: (regressions, cells).
        design: (cells, columns), or (regressions, cells, columns).

    Returns:
        (regressions, columns) coefficients; NaN for a regression that does not converge.
    """
    from scipy.special import expit

    column_count = design.shape[-1]
    design = np.broadcast_to(design, (len(trials), *design.shape[-2:]))
    coefficients = np.zeros((len(trials), column_count))
    ridge = 1e-9 * np.eye(column_count)
    for _ in range(MAX_STEPS):
        probability = expit((design @ coefficients[..., None])[..., 0])
        weight = trials * probability * (1 - probability)
        inverse = np.linalg.inv(np.swapaxes(weight[..., None] * design, 1, 2) @ design + ridge)
        leverage = weight * ((design @ inverse) * design).sum(-1)
        residuals = successes - trials * probability + leverage * (0.5 - probability)
        score = (residuals[:, None] @ design)[:, 0]
        weight = (trials + leverage) * probability * (1 - probability)
        information = np.swapaxes(weight[..., None] * design, 1, 2) @ design + ridge
        step = np.linalg.solve(information, score[..., None])[..., 0]
        coefficients += np.clip(step, -MAX_STEP_SIZE, MAX_STEP_SIZE)
        has_converged = np.abs(step).max(1) < 1e-8
        if has_converged.all():
            return coefficients
    coefficients[~has_converged] = np.nan
    return coefficients


def estimate_log_odds_multiple(
    values: ArrayLike,
    reference_log_odds: float,
    *,
    reference_variance: float = 0.0,
    null_value: float = 1.0,
    confidence_level: float = 0.95,
    unit: str = "draws",
) -> Estimate:
    """Estimate the log-odds of a value being 1 as a multiple of reference log-odds.

    Values are independent of each other. The interval of their log-odds is Gart's (1966); that of
    the multiple is Fieller's (1954), which allows for the sampling variance of the reference.
    """
    from scipy.special import ndtri

    known_values = np.asarray(values, np.float64)
    known_values = known_values[~np.isnan(known_values)]
    n, missing_count = len(known_values), np.size(values) - len(known_values)
    estimate = Estimate(
        np.nan, np.nan, np.nan, n, n, missing_count, f"no {unit} to measure", null_value
    )
    if not n:
        return estimate
    success_count = float(known_values.sum())
    standard_error = (1 / (success_count + 0.5) + 1 / (n - success_count + 0.5)) ** 0.5
    midpoint = float(smoothed_log_odds(success_count, n))
    estimate = replace(estimate, value=midpoint / reference_log_odds)
    z_square = float(ndtri((1 + confidence_level) / 2)) ** 2
    # The interval contains the multiples r with (midpoint - r reference)^2 <= z^2 variance(r).
    divisor = reference_log_odds**2 - z_square * reference_variance
    if divisor <= 0:
        return replace(estimate, method="no interval: the log-odds of the reference may be 0")
    product = midpoint * reference_log_odds
    root = (product**2 - divisor * (midpoint**2 - z_square * standard_error**2)) ** 0.5
    return replace(
        estimate,
        low=(product - root) / divisor,
        high=(product + root) / divisor,
        method=f"Fieller interval based on {n} {unit}",
    )
