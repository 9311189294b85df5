"""Extraction by many draws (Hayes et al. 2024, "Measuring memorization through probabilistic
discoverable extraction"): would somebody who asks n times get the text?

One draw at temperature 1 is the text with p, the product of the probabilities of its tokens; among
n draws it is there with 1 - (1 - p)^n. A text is (n, P)-extractable where that is at least P. So no
text need be drawn: reading it once tells for every n.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hallmark.tasks.measures.statistics import Float64

#: n: how often somebody asks.
DRAW_COUNTS = (1, 100, 10_000)

#: P: the chance from which a text counts as given away.
MIN_EXTRACTION_PROBABILITY = 0.5


def compute_extraction_probability(log_likelihoods: ArrayLike, draws: int) -> Float64:
    """The chance that one of so many draws is the text, whose log p (nats) is that of all of its
    tokens; NaN where there is none. Exact to rounding also where 1 - p is 1."""
    clipped = np.minimum(
        np.asarray(log_likelihoods, np.float64), 0.0
    )  # a sum of float32 may be above
    with np.errstate(divide="ignore"):
        return np.asarray(-np.expm1(draws * np.log1p(-np.exp(clipped))))


def flag_extractable(
    log_likelihoods: ArrayLike, draws: int, min_probability: float = MIN_EXTRACTION_PROBABILITY
) -> Float64:
    """1 where the text is (n, P)-extractable, 0 where not, NaN where its log p is."""
    probability = compute_extraction_probability(log_likelihoods, draws)
    return np.where(
        np.isnan(probability), np.nan, (probability >= min_probability).astype(np.float64)
    )
