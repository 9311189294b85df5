"""Compute whether n draws would reproduce a text.

The method is that of Hayes et al. 2024, "Measuring memorization through probabilistic discoverable
extraction". One draw at temperature 1 reproduces the text with probability p, the product of its
token probabilities; at least one of n draws does with probability 1 - (1 - p)^n. A text is
(n, P)-extractable if this is at least P. Scoring the text once is enough for every n.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hallmark.tasks.measures.statistics import Float64

#: n: number of draws.
DRAW_COUNTS = (1, 100, 10_000)

#: P: lowest probability at which a text counts as extractable.
MIN_EXTRACTION_PROBABILITY = 0.5


def compute_extraction_probability(log_likelihoods: ArrayLike, draws: int) -> Float64:
    """Compute the probability that at least one of the draws is the text.

    The result is accurate even if 1 - p rounds to 1.

    Args:
        log_likelihoods: Log-likelihood of each text in nats; NaN gives NaN.
        draws: Number of draws.
    """
    # A sum of float32 may exceed 0.
    clipped = np.minimum(np.asarray(log_likelihoods, np.float64), 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(-np.expm1(draws * np.log1p(-np.exp(clipped))))


def flag_extractable(
    log_likelihoods: ArrayLike, draws: int, min_probability: float = MIN_EXTRACTION_PROBABILITY
) -> Float64:
    """Return 1 if a text is (n, P)-extractable, 0 if not, NaN if its log-likelihood is NaN."""
    probability = compute_extraction_probability(log_likelihoods, draws)
    return np.where(
        np.isnan(probability), np.nan, (probability >= min_probability).astype(np.float64)
    )
