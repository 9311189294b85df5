"""Test the probability of extraction by many draws against exact arithmetic and simulation."""

from fractions import Fraction

import numpy as np
import pytest

from hallmark.tasks.audits.methods.probabilistic_extraction import (
    compute_extraction_probability,
    flag_extractable,
)


@pytest.mark.parametrize("draws", [1, 2, 100, 10_000])
def test_the_probability_equals_exact_arithmetic(draws):
    for power in (1, 3, 10, 60):
        p = Fraction(1, 2**power)
        exact = float(1 - (1 - p) ** draws)
        assert compute_extraction_probability(power * np.log(0.5), draws) == pytest.approx(
            exact, rel=1e-12
        )


def test_the_probability_equals_the_simulated_frequency():
    rng = np.random.default_rng(0)
    tokens = np.array([0.5, 0.3, 0.4])
    for draws in (1, 10, 100):
        written = (rng.random((4000, draws, 3)) < tokens).all(2).any(1)
        expected = compute_extraction_probability(np.log(tokens).sum(), draws)
        assert written.mean() == pytest.approx(expected, abs=4 * (0.25 / 4000) ** 0.5)


def test_a_text_is_extractable_from_a_probability_of_one_half():
    log_p = np.log([0.6, 0.4, 0.007, 0.006, 7e-5, 6e-5])
    for draws, expected in ((1, 1), (100, 3), (10_000, 5)):
        assert flag_extractable(log_p, draws).tolist() == [1] * expected + [0] * (6 - expected)
    assert flag_extractable(log_p, 1, 0.3).tolist() == [1, 1, 0, 0, 0, 0]
    exact = float(compute_extraction_probability(-2.0, 3))  # the bound itself is enough
    assert flag_extractable([-2.0, -2.1], 3, exact).tolist() == [1, 0]


def test_certain_impossible_and_unknown_texts():
    assert compute_extraction_probability([0.0, 1e-7, -np.inf], 1).tolist() == [1, 1, 0]
    assert np.isnan(compute_extraction_probability([np.nan], 100)).all()
    assert np.isnan(flag_extractable([np.nan, -1.0], 1)).tolist() == [True, False]
