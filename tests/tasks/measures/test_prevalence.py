"""Prevalence where a scorer errs at a known rate."""

import numpy as np
import pytest

from hallmark.tasks.measures.prevalence import correct_prevalence, estimate_prevalence


def labelled(found, toxic, passed, other):
    """What a scorer says of texts, and their labels."""
    said = [1] * found + [0] * (toxic - found) + [0] * passed + [1] * (other - passed)
    return said, [True] * toxic + [False] * other


def test_the_share_that_is_so():
    assert correct_prevalence(0.30, 0.80, 0.90) == pytest.approx(0.2857, abs=5e-5)
    assert correct_prevalence(0.25, 1, 1) == 0.25
    assert correct_prevalence(0.05, 0.8, 0.9) == pytest.approx(-0.05 / 0.7)
    assert np.isnan(correct_prevalence(0.3, 0.5, 0.5))
    flagged = [1] * 30 + [0] * 70
    made = estimate_prevalence(flagged, None, *labelled(80, 100, 90, 100))
    assert made.value == pytest.approx(0.2857, abs=5e-5) and made.n == made.clusters == 100
    assert made.low < 0.2 and made.high > 0.37
    assert "sensitivity 0.8 and specificity 0.9" in made.method


def test_the_interval_is_that_of_the_delta_method():
    """Of many texts: Rogan and Gladen's variance."""
    n, toxic, other = 2000, 750, 1250
    p, se, sp = 0.3, 0.8, 0.9
    flagged = [1] * int(p * n) + [0] * (n - int(p * n))
    said = labelled(int(se * toxic), toxic, int(sp * other), other)
    made = estimate_prevalence(flagged, None, *said, resamples=4000)
    apart, value = se + sp - 1, (p + sp - 1) / (se + sp - 1)
    variance = (
        p * (1 - p) / n
        + value**2 * se * (1 - se) / toxic
        + (1 - value) ** 2 * sp * (1 - sp) / other
    ) / apart**2
    half = 1.96 * variance**0.5
    assert (made.low, made.high) == pytest.approx((value - half, value + half), abs=0.005)


def test_intervals_cover_what_is_so():
    rng = np.random.default_rng(0)
    covered, truth, cluster = 0, 0.25, np.repeat(np.arange(60), 3)  # the mean of Beta(1, 3)
    for seed in range(400):
        so = rng.random(180) < rng.beta(1, 3, 60)[cluster]
        rate = np.where(so, 0.8, 0.1)
        flagged = rng.random(180) < rate
        said = labelled(rng.binomial(150, 0.8), 150, rng.binomial(150, 0.9), 150)
        made = estimate_prevalence(flagged, cluster, *said, resamples=400, seed=seed)
        covered += made.low <= truth <= made.high
    assert 0.92 <= covered / 400 <= 0.98


def test_what_cannot_be_corrected_says_why():
    none = estimate_prevalence([1, 0], None, [1, 1], [True, True])
    assert np.isnan(none.value) and "either label" in none.method
    blind = estimate_prevalence([1, 0], None, *labelled(5, 10, 5, 10))
    assert np.isnan(blind.value) and "tells nothing apart" in blind.method
    assert np.isnan(estimate_prevalence([np.nan], None, *labelled(5, 5, 5, 5)).value)
    few = estimate_prevalence([0, 0, np.nan], None, *labelled(8, 10, 9, 10))
    assert few.value == 0 and few.missing == 1  # (0 + 0.9 - 1) / 0.7 is kept within 0


def test_fewer_flagged_than_by_mistake_is_no_certain_zero():
    labels = [1] * 300 + [0] * 300
    says = [1] * 270 + [0] * 30 + [1] * 60 + [0] * 240  # a fifth of the others by mistake
    made = estimate_prevalence([1] * 10 + [0] * 990, None, says, labels)
    assert np.isnan([made.value, made.low, made.high]).all()
    assert made.method.startswith("not measured: a share flagged of 0.01 cannot be at ")
    near = estimate_prevalence([1] * 190 + [0] * 810, None, says, labels)  # chance explains that
    assert near.value == 0 == near.low < near.high
