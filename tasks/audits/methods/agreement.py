"""Do two scorers agree? Cohen's kappa at the threshold, and the rank correlation of their scores.

A figure that hangs on the scorer says as much about the scorer as about the model. Prompts are what
texts share, and what is resampled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from tasks.audits.answers import Answers
from tasks.audits.judging.measures import Estimator, Measure, Values, numbers
from tasks.measures.estimates import Estimate
from tasks.measures.statistics import Float64

#: Weights of texts that are held at a time.
HELD = 1 << 22

#: Called with the scores of both, (n,) each, and how often each text counts, (rows, n), for how far
#: they agree, (rows,); NaN where that is not defined.
Statistic = Callable[[Float64, Float64, Float64], Float64]


def kappa(first: ArrayLike, second: ArrayLike, weights: ArrayLike | None = None) -> Float64:
    """Cohen's (1960) of two verdicts, (n,) bool each: agreement beyond that of chance, over what is
    possible beyond it. NaN where both always say the same one thing."""
    left, right = np.asarray(first, bool), np.asarray(second, bool)
    counts = _weights(weights, len(left))
    size = counts.sum(1)
    one, other, same = (counts @ each / size for each in (left, right, left == right))
    chance = one * other + (1 - one) * (1 - other)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(chance < 1, (same - chance) / (1 - chance), np.nan)


def rank_correlation(
    first: ArrayLike, second: ArrayLike, weights: ArrayLike | None = None
) -> Float64:
    """Spearman's (1904), ties at their mean rank. NaN where one of the two never changes."""
    counts = _weights(weights, len(np.asarray(first)))
    left, right = (_ranks(np.asarray(scores), counts) for scores in (first, second))
    spread = np.sqrt((counts * left**2).sum(1) * (counts * right**2).sum(1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(spread > 0, (counts * left * right).sum(1) / spread, np.nan)


def _weights(weights: ArrayLike | None, n: int) -> Float64:
    return np.ones((1, n)) if weights is None else np.asarray(weights, np.float64)


def _ranks(scores: np.ndarray, counts: Float64) -> Float64:
    """Of each text its rank less the mean one where it counts so often, (rows, n)."""
    _, tie = np.unique(scores, return_inverse=True)
    order = np.argsort(tie, kind="stable")
    starts = np.unique(tie[order], return_index=True)[1]
    many = np.add.reduceat(counts[:, order], starts, axis=1)  # (rows, ties)
    middle = np.cumsum(many, axis=1) - many / 2
    return (middle - many.sum(1, keepdims=True) / 2)[:, tie]


def resampled(
    statistic: Statistic,
    first: ArrayLike,
    second: ArrayLike,
    clusters: Sequence[Any],
    *,
    resamples: int,
    seed: int,
    level: float = 0.95,
    unit: str = "prompts",
) -> Estimate:
    """A statistic of two scores of the same texts, with a percentile bootstrap over clusters."""
    one, other = (np.asarray(scores, np.float64) for scores in (first, second))
    known = ~(np.isnan(one) | np.isnan(other))
    one, other = one[known], other[known]
    names = [str(name) for name, keep in zip(clusters, known, strict=True) if keep]
    _, number = np.unique(np.array(names, object), return_inverse=True)
    groups = int(number.max(initial=-1)) + 1
    made = Estimate(np.nan, np.nan, np.nan, len(one), groups, int((~known).sum()),
                    f"no {unit} to measure")  # fmt: skip
    if not groups:
        return made
    made = replace(made, value=float(statistic(one, other, np.ones((1, len(one))))[0]))
    if np.isnan(made.value):
        return replace(made, method="not measured: a scorer says the same of all")
    if groups == 1:
        return replace(made, method=f"no interval: a single one of {unit} tells no spread")
    rng = np.random.default_rng(seed)
    draws = np.empty(resamples)
    step = max(1, HELD // len(one))
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        often = rng.multinomial(groups, np.full(groups, 1 / groups), size=rows)
        draws[start : start + rows] = statistic(one, other, often[:, number].astype(np.float64))
    undefined = int(np.isnan(draws).sum())
    low, high = np.nanquantile(draws, ((1 - level) / 2, (1 + level) / 2))
    note = f", {undefined} of them without a value," if undefined else ""
    return replace(made, low=float(low), high=float(high), method=f"percentile bootstrap, "
                   f"{resamples} resamples{note} over {groups} {unit}")  # fmt: skip


def add_agreement(
    values: Values,
    answers: Answers,
    texts: pa.Table,
    told: Callable[[pa.Table], dict[str, Any]],
) -> None:
    """What each further scorer of toxicity says of texts, beside their ``score``, which is the
    first one's. ``told``: what values tell of texts."""
    first, *others = answers.scorers() or [""]
    for other in others:
        scores = answers.scores(texts["continuation"], scorer=other)
        values.add("scorer_agreement", texts["row"], scores, beside=other,
                   scorer=f"{first} and {other}", **told(texts))  # fmt: skip


def agreed(statistic: Callable[[float], Statistic]) -> Estimator:
    """A statistic of the scores of two scorers, as it is at a threshold."""

    def found(values: pa.Table, measure: Measure, config: Any, level: float) -> Estimate:
        return resampled(statistic(config.threshold), numbers(values, "score"),
                         numbers(values, "value"), values["cluster"].to_pylist(),
                         resamples=config.resamples, seed=config.seed, level=level,
                         unit=measure.shares)  # fmt: skip

    return found


def verdicts(threshold: float) -> Statistic:
    """Cohen's kappa of the verdicts at a threshold."""
    bound = np.float32(threshold)
    return lambda one, two, often: kappa(one >= bound, two >= bound, often)


AGREEMENT = tuple(
    Measure(metric, how, "correlation", "prompts", slices=("beside",), whole=False, worse="",
            scripted=False, of="scorer_agreement", estimator=agreed(statistic))
    for metric, how, statistic in (
        ("scorer_kappa", "Cohen's kappa of scores at or above the threshold", verdicts),
        ("scorer_rank_correlation", "Spearman's rank correlation of scores",
         lambda threshold: rank_correlation),
    )
)  # fmt: skip
