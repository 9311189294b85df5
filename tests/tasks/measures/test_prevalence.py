"""Test prevalence estimates corrected for known error rates."""

import numpy as np
import pytest

from hallmark.tasks.measures.prevalence import (
    ShareInterval,
    correct_prevalence,
    estimate_prevalence,
    find_plausible_prevalences,
)
from hallmark.tasks.measures.statistics import wilson_interval


def build_labelled_texts(true_positives, toxic, true_negatives, other):
    """Return predictions of a scorer for labelled texts, and the labels."""
    predictions = [1] * true_positives + [0] * (toxic - true_positives)
    predictions += [0] * true_negatives + [1] * (other - true_negatives)
    return predictions, [True] * toxic + [False] * other


def test_the_corrected_share_equals_the_formula():
    assert correct_prevalence(0.30, 0.80, 0.90) == pytest.approx(0.2857, abs=5e-5)
    assert correct_prevalence(0.25, 1, 1) == 0.25
    assert correct_prevalence(0.05, 0.8, 0.9) == pytest.approx(-0.05 / 0.7)
    assert np.isnan(correct_prevalence(0.3, 0.5, 0.5))
    flagged = [1] * 30 + [0] * 70
    estimate = estimate_prevalence(flagged, None, *build_labelled_texts(80, 100, 90, 100))
    assert (
        estimate.value == pytest.approx(0.2857, abs=5e-5) and estimate.n == estimate.clusters == 100
    )
    assert estimate.low < 0.2 and estimate.high > 0.37
    assert "sensitivity 0.8 and specificity 0.9" in estimate.method


def test_the_interval_agrees_with_the_delta_method():
    """Rogan and Gladen's variance for many texts."""
    n, toxic, other = 2000, 750, 1250
    p, se, sp = 0.3, 0.8, 0.9
    flagged = [1] * int(p * n) + [0] * (n - int(p * n))
    said = build_labelled_texts(int(se * toxic), toxic, int(sp * other), other)
    estimate = estimate_prevalence(flagged, None, *said)
    apart, value = se + sp - 1, (p + sp - 1) / (se + sp - 1)
    variance = (
        p * (1 - p) / n
        + value**2 * se * (1 - se) / toxic
        + (1 - value) ** 2 * sp * (1 - sp) / other
    ) / apart**2
    half = 1.96 * variance**0.5
    assert (estimate.low, estimate.high) == pytest.approx((value - half, value + half), abs=0.005)


def test_intervals_cover_the_true_share():
    rng = np.random.default_rng(0)
    covered, truth, cluster = 0, 0.25, np.repeat(np.arange(60), 3)  # the mean of Beta(1, 3)
    for _ in range(400):
        so = rng.random(180) < rng.beta(1, 3, 60)[cluster]
        rate = np.where(so, 0.8, 0.1)
        flagged = rng.random(180) < rate
        said = build_labelled_texts(rng.binomial(150, 0.8), 150, rng.binomial(150, 0.9), 150)
        estimate = estimate_prevalence(flagged, cluster, *said)
        covered += estimate.low <= truth <= estimate.high
    assert 0.92 <= covered / 400 <= 0.98


@pytest.mark.parametrize(
    ("labelled", "truth"), [(5, 0.25), (5, 0.05), (20, 0.5)], ids=lambda value: str(value)
)
def test_intervals_from_few_labelled_texts_cover_the_true_share(labelled, truth):
    rng = np.random.default_rng(0)
    covered, above = 0, 0
    for _ in range(800):
        flagged = rng.random(100) < truth * 0.8 + (1 - truth) * 0.1
        said = build_labelled_texts(
            rng.binomial(labelled, 0.8), labelled, rng.binomial(labelled, 0.9), labelled
        )
        estimate = estimate_prevalence(flagged, None, *said)
        assert np.isnan(estimate.value) or estimate.low <= estimate.value <= estimate.high
        covered += not (estimate.low > truth or estimate.high < truth)
        above += estimate.high < truth
    assert covered >= 0.93 * 800 and above <= 0.05 * 800


@pytest.mark.parametrize(
    ("flagged", "sensitivity", "false_positives"),
    [((30, 100), (80, 100), (10, 100)), ((3, 20), (5, 5), (0, 5)), ((1, 40), (7, 10), (1, 12))],
)
def test_plausible_shares_are_those_whose_contrast_may_be_0(flagged, sensitivity, false_positives):
    """Test each share on a fine grid."""
    rates = [
        ShareInterval(k / n, *wilson_interval(k, n))
        for k, n in (flagged, sensitivity, false_positives)
    ]
    p, se, fp = rates
    plausible = []
    for t in np.linspace(0, 1, 20_001):
        contrast = p.value - t * se.value - (1 - t) * fp.value
        below = (p.value - p.low) ** 2 + (t * (se.high - se.value)) ** 2
        below += ((1 - t) * (fp.high - fp.value)) ** 2
        above = (p.high - p.value) ** 2 + (t * (se.value - se.low)) ** 2
        above += ((1 - t) * (fp.value - fp.low)) ** 2
        if contrast - below**0.5 <= 0 <= contrast + above**0.5:
            plausible.append(t)
    assert find_plausible_prevalences(*rates) == pytest.approx(
        (min(plausible), max(plausible)), abs=1e-4
    )


def test_an_estimate_without_a_value_says_why():
    none = estimate_prevalence([1, 0], None, [1, 1], [True, True])
    assert np.isnan(none.value) and "both labels" in none.method
    blind = estimate_prevalence([1, 0], None, *build_labelled_texts(5, 10, 5, 10))
    assert np.isnan(blind.value) and "no better than chance" in blind.method
    assert np.isnan(estimate_prevalence([np.nan], None, *build_labelled_texts(5, 5, 5, 5)).value)
    few = estimate_prevalence([0, 0, np.nan], None, *build_labelled_texts(8, 10, 9, 10))
    assert few.value == 0 and few.missing == 1  # (0 + 0.9 - 1) / 0.7 is kept within 0
    # So few labelled texts exclude nothing.
    unsure = estimate_prevalence([1] * 5 + [0] * 5, None, *build_labelled_texts(2, 2, 2, 3))
    assert 0 < unsure.value < 1 and (unsure.low, unsure.high) == (0, 1)
    two = estimate_prevalence([0, 1, 1, 1], [*"aabb"], *build_labelled_texts(90, 100, 90, 100))
    assert two.method.endswith("no interval: fewer than 6 prompts") and two.value > 0.5


def test_fewer_flagged_texts_than_false_positives_give_no_value():
    labels = [1] * 300 + [0] * 300
    says = [1] * 270 + [0] * 30 + [1] * 60 + [0] * 240  # A false-positive rate of one fifth.
    estimate = estimate_prevalence([1] * 10 + [0] * 990, None, says, labels)
    assert np.isnan([estimate.value, estimate.low, estimate.high]).all()
    assert estimate.method.startswith("not measured: a flagged share of 0.01 is impossible for ")
    near = estimate_prevalence(
        [1] * 190 + [0] * 810, None, says, labels
    )  # Within chance of a true share of 0.
    assert near.value == 0 == near.low < near.high
