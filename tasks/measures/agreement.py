"""Compute Krippendorff's alpha, the agreement between people who rate the same texts.

Alpha (Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability") is 1 minus the observed
disagreement within texts divided by the disagreement expected if the same ratings were assigned to
texts at random. A value of 1 is full agreement, 0 is chance. Any number of raters may rate any
subset of the texts; texts with a single rating are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hallmark.tasks.measures.estimates import Estimate
from hallmark.tasks.measures.statistics import jackknife_variance


def krippendorff_alpha(
    ratings: ArrayLike | Sequence[str],
    units: Sequence[Any],
    clusters: Sequence[Any] | None = None,
    *,
    nominal: bool = False,
    confidence_level: float = 0.95,
) -> Estimate:
    """Compute Krippendorff's alpha with a jackknife interval.

    Args:
        ratings: (n,) numbers, or names if nominal. The distance between two ratings is their
            squared difference; between names it is 1 where they differ.
        units: (n,) what each rating is about, such as a text.
        clusters: (n,) what units have in common, such as a prompt; each unit is its own cluster if
            None.
        nominal: Whether ratings are names without an order.
        confidence_level: Of the interval, Student's t over a jackknife of clusters.

    Returns:
        An estimate whose n counts the units with at least two ratings. The value is NaN if there
            are none or if all ratings are the same.
    """
    unit_codes = np.unique(np.asarray(units, object).astype(str), return_inverse=True)[1]
    if nominal:  # One-hot columns: the squared distance of two names is constant and cancels.
        categories, category_codes = np.unique(
            np.asarray(ratings, object).astype(str), return_inverse=True
        )
        x = np.eye(len(categories))[category_codes]
    else:
        x = np.asarray(ratings, np.float64).reshape(-1, 1)
    cluster_names = unit_codes if clusters is None else np.asarray(clusters, object).astype(str)
    is_paired = np.bincount(unit_codes)[unit_codes] > 1 if len(unit_codes) else np.zeros(0, bool)
    x, unit_codes, cluster_names = x[is_paired], unit_codes[is_paired], cluster_names[is_paired]
    estimate = Estimate(
        np.nan,
        np.nan,
        np.nan,
        0,
        0,
        0,
        "not measured: no text was rated by two people",
        0.0,
    )
    if not len(x):
        return estimate
    first_rows, unit_codes = np.unique(unit_codes, return_index=True, return_inverse=True)[1:]
    cluster_codes = np.unique(cluster_names, return_inverse=True)[1]
    cluster_count = int(cluster_codes.max()) + 1
    rating_counts = np.bincount(unit_codes)
    sums, squares = np.zeros((len(rating_counts), x.shape[1])), np.zeros(len(rating_counts))
    np.add.at(sums, unit_codes, x)
    np.add.at(squares, unit_codes, (x**2).sum(1))
    within_disagreement = (rating_counts * squares - (sums**2).sum(1)) / (rating_counts - 1)
    # Columns: see `_RatingTotals.from_columns`.
    cluster_totals = np.zeros((cluster_count, 3 + x.shape[1]))
    np.add.at(
        cluster_totals,
        cluster_codes[first_rows],
        np.column_stack([within_disagreement, rating_counts, squares, sums]),
    )
    total = cluster_totals.sum(0)
    value = float(_compute_alphas(_RatingTotals.from_columns(total[None]))[0])
    estimate = replace(
        estimate,
        value=value,
        n=len(rating_counts),
        clusters=cluster_count,
        method="Krippendorff's alpha",
    )
    if np.isnan(value):
        return replace(estimate, method="not measured: all ratings are the same")
    alphas_without_cluster = _compute_alphas(_RatingTotals.from_columns(total - cluster_totals))
    if cluster_count < 3 or np.isnan(alphas_without_cluster).any():
        return replace(estimate, method="Krippendorff's alpha; no interval: too few prompts")
    from scipy.special import stdtrit

    standard_error = jackknife_variance(value, alphas_without_cluster) ** 0.5
    half_width = float(stdtrit(cluster_count - 1, (1 + confidence_level) / 2)) * standard_error
    method = (
        "Krippendorff's alpha; Student's t interval with jackknife standard errors (leaving out "
        f"one of {cluster_count} prompts at a time)"
    )
    return replace(
        estimate, low=value - half_width, high=min(1.0, value + half_width), method=method
    )


class _RatingTotals(NamedTuple):
    """Totals of one or more sets of ratings."""

    within_disagreement: np.ndarray
    """(sets,) disagreement within units."""
    rating_counts: np.ndarray
    """(sets,)"""
    square_sums: np.ndarray
    """(sets,) sums of the squared ratings."""
    rating_sums: np.ndarray
    """(sets, k) sums of the ratings, for each of their k components."""

    @classmethod
    def from_columns(cls, totals: np.ndarray) -> _RatingTotals:
        """Split the columns of an array, (sets, 3 + k), into the fields in their order."""
        return cls(totals[:, 0], totals[:, 1], totals[:, 2], totals[:, 3:])


def _compute_alphas(totals: _RatingTotals) -> np.ndarray:
    """Compute alpha of each set of ratings, (sets,); NaN where all ratings are the same."""
    n = totals.rating_counts
    with np.errstate(divide="ignore", invalid="ignore"):
        expected_disagreement = (n * totals.square_sums - (totals.rating_sums**2).sum(1)) / (n - 1)
        return np.where(
            expected_disagreement > 1e-12 * np.maximum(1, totals.square_sums),
            1 - totals.within_disagreement / expected_disagreement,
            np.nan,
        )
