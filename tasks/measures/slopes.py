"""Estimate slopes of values of clustered items over a predictor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hallmark.tasks.measures.estimates import Estimate
from hallmark.tasks.measures.statistics import Float64, jackknife_variance, t_half_width_and_p


def estimate_linear_slope(
    values: ArrayLike,
    predictor: ArrayLike,
    clusters: Sequence[Any] | None = None,
    *,
    confidence_level: float = 0.95,
    unit: str = "items",
) -> Estimate:
    """Estimate a slope by least squares; null 0.

    The interval is Student's t over a jackknife of clusters (CR3; MacKinnon, Nielsen & Webb 2023):
    the usual interval is too narrow for few clusters of unequal weight.

    Args:
        values: (n,), NaN where missing.
        predictor: (n,), NaN where missing.
        clusters: (n,) names; None makes each value its own cluster.
        confidence_level: Of the interval.
        unit: Plural name of the clusters, for the description of the method.
    """
    y, x = (np.asarray(array, dtype=np.float64) for array in (values, predictor))
    is_known = ~np.isnan(y) & ~np.isnan(x)
    cluster_codes = (
        np.arange(len(y)) if clusters is None else np.unique(clusters, return_inverse=True)[1]
    )
    y, x = y[is_known], x[is_known]
    cluster_codes = np.unique(cluster_codes[is_known], return_inverse=True)[1]
    cluster_count = int(cluster_codes.max()) + 1 if len(y) else 0
    missing = int((~is_known).sum())
    estimate = Estimate(
        np.nan, np.nan, np.nan, len(y), cluster_count, missing, f"no {unit} to measure", 0.0
    )
    if len(np.unique(x)) < 2:
        return replace(estimate, method="not measured: the predictor has the same value everywhere")
    y, x = y - y.mean(), x - x.mean()
    moment_sums = [
        np.bincount(cluster_codes, weights=w, minlength=cluster_count)
        for w in (np.ones_like(x), x, y, x * x, x * y)
    ]

    def least_squares_slope(
        n: Float64, sx: Float64, sy: Float64, sxx: Float64, sxy: Float64
    ) -> Float64:
        with np.errstate(invalid="ignore", divide="ignore"):
            return (n * sxy - sx * sy) / (n * sxx - sx * sx)

    estimate = replace(
        estimate,
        value=float(least_squares_slope(*(moment_sum.sum() for moment_sum in moment_sums))),
    )
    slopes_without_cluster = least_squares_slope(
        *(moment_sum.sum() - moment_sum for moment_sum in moment_sums)
    )  # (clusters,)
    if cluster_count < 3 or not np.isfinite(slopes_without_cluster).all():
        return replace(estimate, method=f"no interval: too few {unit}")
    standard_error = jackknife_variance(estimate.value, slopes_without_cluster) ** 0.5
    if standard_error < 1e-12 * max(1.0, abs(estimate.value)):
        return replace(estimate, method="no interval: all points lie on one line")
    half_width, p = t_half_width_and_p(
        standard_error, cluster_count - 1, estimate.value, confidence_level
    )
    method = (
        "least-squares slope; Student's t interval with jackknife standard errors (leaving out one "
        f"of {cluster_count} {unit} at a time)"
    )
    return replace(
        estimate,
        low=estimate.value - half_width,
        high=estimate.value + half_width,
        p=p,
        method=method,
    )
