"""Test the correction for multiple comparisons by hand."""

import math

import numpy as np
import pytest
from scipy.stats import false_discovery_control

from hallmark.tasks.measures.multiple_testing import (
    adjust_p_values_holm,
    compute_false_discovery_rates,
)


def test_holm_equals_a_calculation_by_hand():
    # Wright 1992, table 1, in another order, which must not matter.
    assert adjust_p_values_holm([0.04, 0.01, 0.03, 0.005]) == pytest.approx(
        [0.06, 0.03, 0.06, 0.02]
    )
    assert adjust_p_values_holm([0.9, 0.8]) == [1.0, 1.0]
    with_gap = adjust_p_values_holm([0.01, math.nan, 0.04])
    assert with_gap[0] == 0.02 and math.isnan(with_gap[1]) and with_gap[2] == 0.04
    assert adjust_p_values_holm([]) == []


def test_holm_agrees_with_its_definition():
    """An equivalent definition: the maximum of p_(j) (m - j + 1) over all j up to the rank."""
    p = np.random.default_rng(7).uniform(size=9) ** 3
    order = np.argsort(p)
    expected = np.empty(9)
    for rank, index in enumerate(order):
        expected[index] = min(1, max(p[order[j]] * (9 - j) for j in range(rank + 1)))
    assert adjust_p_values_holm(list(p)) == pytest.approx(list(expected))


@pytest.mark.parametrize("count", [0, 1, 2, 7, 50])
def test_false_discovery_rates_are_those_of_scipy(count):
    p_values = np.random.default_rng(count).random(count).round(2)  # with ties
    expected = false_discovery_control(p_values)
    assert compute_false_discovery_rates(p_values.tolist()) == pytest.approx(expected.tolist())
