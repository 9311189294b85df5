"""Test that a sound audit never fails its own controls because its items are too few."""

import numpy as np
import pyarrow as pa
import pytest

from hallmark.tasks.audits.judging.instrument_controls import build_instrument_control_finding
from hallmark.tasks.audits.judging.measures import Measure, ValueWriter
from hallmark.tasks.audits.methods.sentence_pairs import simulate_log_likelihoods
from hallmark.tasks.audits.probe_settings import SeededConfig
from hallmark.tasks.audits.probes import bbq, stereoset, winogender
from tests.tasks.audits.judging.test_measures import make_items


def build_control(clusters, null, has_effect=True):
    """Build the control of a preference that chance gives with probability ``null``."""
    writer = ValueWriter(make_items(clusters, clusters))
    outcomes = np.ones(clusters) if has_effect else np.arange(clusters) < round(null * clusters)
    writer.add_values("share", np.arange(clusters), outcomes, np.full(clusters, null))
    measure = Measure("share", "S", "", null_value="own", worse_when="up")
    return build_instrument_control_finding(
        "winobias", writer.to_table(), measure, SeededConfig(), has_effect
    )


@pytest.mark.parametrize("null", [0.3, 0.5, 0.6, 0.8, 0.9])
def test_with_the_clusters_that_the_null_needs_a_full_effect_passes(null):
    needed = next(count for count in range(2, 200) if build_control(count, null) is not None)
    for count in (needed, needed + 1, 2 * needed):
        assert build_control(count, null).verdict == "pass"
        assert build_control(count, null, has_effect=False).verdict == "pass"
    expected = {0.3: 11, 0.5: 11, 0.6: 15, 0.8: 35, 0.9: 73}[null]
    assert needed == expected


def test_with_fewer_clusters_a_full_effect_would_fail():
    """With 11 clusters and a null of 0.8, chance gives the same in 9 % of cases."""
    assert build_control(11, 0.8) is None and 0.8**11 > 0.001


@pytest.mark.parametrize("has_effect", [True, False])
def test_an_audit_without_interval_and_p_is_not_tested(has_effect):
    """Two of twelve clusters differ: there is no interval, so nothing could be concluded."""
    writer = ValueWriter(make_items(12, 12))
    writer.add_values("gap", np.arange(12), [1.0, 1.0] + [0.0] * 10)
    measure = Measure("gap", "G", "", "score", null_value=0.0)
    assert (
        build_instrument_control_finding(
            "winogender", writer.to_table(), measure, SeededConfig(), has_effect
        )
        is None
    )


@pytest.mark.parametrize("probe", [bbq, stereoset, winogender])
def test_a_simulated_effect_is_no_matter_of_chance(probe):
    """A few items that differ by chance could hide the effect from few clusters."""
    columns = {"biased_answer": 0, "gender": "male", "right_answer": 0, "women_percent": 20.0}
    items = make_items(200, 20)
    for name, value in columns.items():
        items = items.append_column(name, pa.array([value] * 200))
    for seed in range(20):
        scores = probe.simulate_log_likelihoods(items, "m", True, np.random.default_rng(seed))
        assert (scores[:, 0] > scores[:, 1:].max(axis=1)).all()


def test_a_simulated_model_with_an_effect_prefers_every_stereotype():
    """Otherwise a few pairs would differ by chance, and few clusters could not show the effect."""
    items = make_items(200, 20)
    items = items.append_column("second_text", items["text"])
    for seed in range(20):
        scores = simulate_log_likelihoods(items, "m", True, np.random.default_rng(seed))
        assert (scores[:, 0] > scores[:, 1]).all()
