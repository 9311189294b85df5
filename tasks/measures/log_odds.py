"""Estimate how log-odds depend on a predictor, and the ratio of log-odds of a single unit.

Logistic regression after Firth (1993, "Bias reduction of maximum likelihood estimates", Biometrika
80) stays finite if all counts are on one side, and has no first-order bias. The interval is
Student's t over a jackknife of clusters (CR3), like that of `estimates.estimate_linear_slope`:
units differ in more than the predictor, so their draws are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hallmark.tasks.measures.estimates import Estimate
from hallmark.tasks.measures.statistics import Float64, jackknife_variance, t_half_width_and_p

#: Maximum number and size of Newton's steps.
MAX_STEPS, MAX_STEP_SIZE = 100, 2.0


def smoothed_log_odds(successes: ArrayLike, trials: ArrayLike) -> Float64:
    """Compute log-odds with 1/2 added to both counts, which keeps them finite (Haldane 1956)."""
    k, n = np.asarray(successes, np.float64), np.asarray(trials, np.float64)
    return np.log((k + 0.5) / (n - k + 0.5))


def estimate_log_odds_slope(
    values: ArrayLike,
    predictor: ArrayLike,
    strata: Sequence[Any],
    clusters: Sequence[Any],
    *,
    null_value: float = 1.0,
    confidence_level: float = 0.95,
    unit: str = "items",
) -> Estimate:
    """Estimate the slope of the log-odds of a value being 1, with an intercept for each stratum.

    Args:
        values: (n,) 0 or 1, NaN where missing.
        predictor: (n,), NaN where missing.
        strata: (n,) names of strata.
        clusters: (n,) names of clusters, which are independent of each other.
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
        return replace(estimate, method="not measured: the predictor has a single value")
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
    cluster_included = np.vstack(
        [np.ones(len(cell_clusters)), cell_clusters != np.arange(cluster_count)[:, None]]
    )  # The first row includes all clusters, each other row all but one.
    slopes = fit_firth_regressions(
        success_counts * cluster_included, counts * cluster_included, design
    )[:, 0]
    if np.isnan(slopes[0]):
        return replace(estimate, method="not measured: the regression did not converge")
    estimate = replace(estimate, value=float(slopes[0]))
    if cluster_count < 3 or np.isnan(slopes).any():
        return replace(estimate, method=f"no interval: too few {unit}")
    standard_error = jackknife_variance(estimate.value, slopes[1:]) ** 0.5
    half_width, p = 0.0, np.nan
    if standard_error:
        half_width, p = t_half_width_and_p(
            standard_error, cluster_count - 1, estimate.value - null_value, confidence_level
        )
    method = (
        f"logistic regression after Firth (1993), with an intercept for each of "
        f"{len(design[0]) - 1} strata; Student's t over a jackknife of {cluster_count} {unit}"
    )
    return replace(
        estimate,
        low=estimate.value - half_width,
        high=estimate.value + half_width,
        p=p,
        method=method,
    )


def fit_firth_regressions(successes: Float64, trials: Float64, design: Float64) -> Float64:
    """Fit several regressions over the same cells.

    Each solves X'(k - n p + h (1/2 - p)) = 0, where h is the leverage of a cell, as if h more
    trials had been counted in it, half of them successes. Newton's steps use these augmented
    counts: with the original ones they cycle if a column has a single count. The coefficient of a
    column without counts stays 0.

    Args:
        successes: (regressions, cells).
        trials: (regressions, cells).
        design: (cells, columns).

    Returns:
        (regressions, columns) coefficients; NaN for a regression that does not converge.
    """
    from scipy.special import expit

    coefficients = np.zeros((len(trials), design.shape[1]))
    ridge = 1e-9 * np.eye(design.shape[1])
    for _ in range(MAX_STEPS):
        probability = expit(coefficients @ design.T)
        weight = trials * probability * (1 - probability)
        inverse = np.linalg.inv(np.swapaxes(weight[..., None] * design, 1, 2) @ design + ridge)
        leverage = weight * ((design @ inverse) * design).sum(-1)
        score = (successes - trials * probability + leverage * (0.5 - probability)) @ design
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
    null_value: float = 1.0,
    confidence_level: float = 0.95,
    unit: str = "draws",
) -> Estimate:
    """Estimate the log-odds of a value being 1 as a multiple of reference log-odds.

    Values are independent of each other; the interval is Gart's (1966).
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
    half_width = float(ndtri((1 + confidence_level) / 2)) * standard_error
    low, high = sorted(
        end / reference_log_odds for end in (midpoint - half_width, midpoint + half_width)
    )
    return replace(
        estimate,
        value=midpoint / reference_log_odds,
        low=low,
        high=high,
        method=f"Gart's interval (1966) over {n} {unit}",
    )
