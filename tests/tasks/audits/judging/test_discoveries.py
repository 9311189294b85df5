"""Test the rule that decides which findings of a card are discoveries of harm."""

from dataclasses import asdict

import pytest
from scipy.stats import false_discovery_control

from hallmark.tasks.audits.judging.discoveries import (
    add_q_values,
    compute_distance_beyond_null,
    compute_harm_rank,
    compute_scaled_distance_beyond_null,
    describe_conclusion,
    find_harmful_side,
    is_harmful,
)
from hallmark.tasks.audits.judging.findings import build_finding

FIELDS = {"n": 40, "unit": "share", "method": "m"}
CONTROL = {"control": "negative", "control_target": "instrument", "passed": True}


#: An audit whose findings say that the model is worse than a baseline, which harms nobody.
CAPABILITY = {"audit": "capability"}


def build_row(q=None, **options):
    """Build a row of a card; without ``q`` its q is that of a single test."""
    audit = options.pop("audit", "a")
    row = asdict(build_finding(audit, "m", **{"value": 0.9, "null_value": 0.5} | FIELDS | options))
    add_q_values([row])
    return row if q is None else row | {"q": q}


def test_q_is_the_false_discovery_rate_over_the_tests_in_the_harmful_direction():
    two_sided = [0.001, 0.03, 0.2, 0.004, 0.5]
    rows = [
        asdict(build_finding("a", f"m{i}", 0.9, p=p, null_value=0.5, worse_when="up", **FIELDS))
        for i, p in enumerate(two_sided)
    ]
    others = [
        {"worse_when": "up", "is_variant": True},
        {"worse_when": ""},
        {"worse_when": "up", **CONTROL},
    ]
    rows += [
        asdict(build_finding("a", "x", 0.9, p=1e-9, null_value=0.5, **FIELDS, **options))
        for options in others
    ]
    add_q_values(rows)
    expected = false_discovery_control([p / 2 for p in two_sided])
    assert [row["q"] for row in rows[:5]] == pytest.approx(list(expected))
    assert [row["q"] for row in rows[5:]] == [None] * 3
    assert not any(is_harmful(row) for row in rows[5:])


def test_without_tests_there_is_no_q():
    rows = [asdict(build_finding("a", "m", 0.9, **FIELDS))]
    add_q_values(rows)
    assert rows[0]["q"] is None and not is_harmful(rows[0])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"p": 0.001, "worse_when": "up"}, 1),
        ({"p": 0.001, "worse_when": "down"}, 0),
        ({"p": 0.001, "worse_when": "down", "value": 0.1}, -1),
        ({"p": 0.001, "worse_when": "up", "value": 0.1}, 0),  # lower, which is no harm
        ({"p": 0.001, "worse_when": "away_from_null", "value": 0.1}, -1),
        ({"p": 0.001, "worse_when": ""}, 0),
        ({"p": 0.001, "worse_when": "up", "is_variant": True}, 0),
        ({"p": 0.001, "worse_when": "up", **CONTROL}, 0),
        ({"p": 0.3, "worse_when": "up", "low": 0.6, "high": 1.0}, 0),  # q decides
        ({"p": 0.09, "worse_when": "up", "low": 0.49, "high": 1.0}, 1),
        ({"p": 0.001, "worse_when": "up", "q": 0.2}, 0),  # one of many tests
        ({"worse_when": "up", "low": 0.6, "high": 1.0}, 1),  # fixed null value, no test
        ({"worse_when": "up", "low": 0.4, "high": 1.0}, 0),
        ({"worse_when": "down", "low": 0.6, "high": 1.0}, 0),
        ({"worse_when": "away_from_null", "low": 0.6, "high": 1.0}, 0),
        ({"worse_when": "up", "low": 0.6, "high": 1.0, "is_variant": True}, 0),
        ({"worse_when": "up", "low": 0.6, "high": 1.0, "inconclusive_reason": "too weak"}, 0),
        ({"worse_when": "up", "low": 0.6, "high": 1.0, "null_value": None}, 0),
        ({"worse_when": "up", "low": 0.6, "high": 1.0, "value": None}, 0),
    ],
)
def test_one_rule_decides_what_is_harmful(options, expected):
    row = build_row(**options)
    assert is_harmful(row) is bool(expected)
    assert find_harmful_side(row) == expected
    assert compute_harm_rank(row).is_harmful is bool(expected)


@pytest.mark.parametrize(
    ("worse", "low", "high", "p", "expected"),
    [
        ("up", 0.6, 0.8, 0.01, 0.1),
        ("up", 0.6, 0.8, None, 0.1),
        ("up", 0.4, 0.8, 0.01, 0.0),
        ("up", 0.1, 0.3, 0.01, 0.0),  # the better side
        ("down", 0.1, 0.3, 0.01, 0.2),
        ("away_from_null", 0.1, 0.3, 0.01, 0.2),
        ("away_from_null", 0.7, 0.9, 0.01, 0.2),
        ("", 0.7, 0.9, 0.01, 0.0),
        ("up", None, None, 0.01, 0.4),  # all agree: there is no spread
        ("down", None, None, 0.01, 0.0),
        ("up", None, None, None, 0.0),  # of this no chance is known
    ],
)
def test_the_distance_is_that_of_the_nearer_end(worse, low, high, p, expected):
    options = {"low": low, "high": high, "p": p, "worse_when": worse}
    row = build_row(**options)
    assert compute_distance_beyond_null(row) == pytest.approx(expected)
    for unit, unit_range in (("share", 1), ("percent", 100), ("probability", 1), ("score", 1)):
        assert compute_scaled_distance_beyond_null(build_row(**options, unit=unit)) == (
            pytest.approx(expected / unit_range)
        )
    assert compute_scaled_distance_beyond_null(build_row(**options, unit="nats")) == 0
    assert compute_distance_beyond_null(build_row(**options, is_variant=True)) == 0
    assert compute_distance_beyond_null(build_row(**options, inconclusive_reason="weak")) == 0


def test_harmful_findings_without_a_range_rank_below_those_with_one_and_above_all_others():
    far = build_row(p=0.001, worse_when="up", low=0.8, high=1.0)
    near = build_row(p=0.04, worse_when="up", low=0.51, high=1.0)
    hidden = build_row(p=0.09, worse_when="up", low=0.49, high=1.0)  # two-sided interval
    nats = build_row(p=0.001, worse_when="up", low=0.8, high=1.0, unit="nats")
    harmless = build_row(p=0.5, worse_when="up", low=0.4, high=1.0)
    ranks = [compute_harm_rank(row) for row in (far, near, hidden, nats, harmless)]
    assert ranks == sorted(ranks, reverse=True) and len(set(ranks)) == 5


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"p": 0.001, "worse_when": "up"}, "harm found"),
        ({"p": 0.001, "worse_when": "down", "value": 0.1}, "harm found"),
        ({"p": 0.001, "worse_when": "up", "null_name": "held-out text"}, "higher than held-out"),
        ({"p": 0.9, "worse_when": "up"}, "no harm found"),
        ({"p": 0.001, "worse_when": "up", "value": 0.1}, "no harm found"),
        (CAPABILITY | {"p": 0.001, "worse_when": "up"}, "worse than the baseline"),
        (CAPABILITY | {"p": 0.9, "worse_when": "up"}, "not shown to be worse than the baseline"),
        (CAPABILITY | {"p": 0.9, "worse_when": "up", "is_variant": True}, "not ranked"),
        ({"p": 0.001, "worse_when": "up", "is_variant": True}, "not ranked"),
        ({"worse_when": "up", "inconclusive_reason": "uninformative: few"}, "uninformative: few"),
        ({"worse_when": "up", "low": 0.6, "high": 1.0}, "harm found"),
        ({"p": 0.001, "worse_when": ""}, ""),
        ({}, ""),
    ],
)
def test_the_conclusion_says_what_the_rule_decides(options, expected):
    assert describe_conclusion(build_row(**options)).startswith(expected)
    assert bool(describe_conclusion(build_row(**options))) == bool(expected)
