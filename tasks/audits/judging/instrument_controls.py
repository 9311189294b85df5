"""Test an audit's statistics on simulated outputs in place of a model's."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hallmark.tasks.audits.judging.findings import Finding, build_finding_from_estimate
from hallmark.tasks.audits.judging.measures import (
    SHARE_MAXIMUM_BY_UNIT,
    HasSeed,
    Measure,
    estimate_measure,
)

#: Without an effect, the interval of this level must cover the null value; with a large effect, p
#: must be below 1 minus this level.
CONTROL_LEVEL = 0.999


def has_enough_clusters(cluster_count: int, null_share: float) -> bool:
    """Return whether a large effect can reach the p that a positive control requires.

    If all clusters agree, chance gives the same with a probability of 2 s^clusters, where s is the
    probability that a cluster agrees by chance: the null share, and at least one half. So 11
    clusters are enough for a null of one half, and 35 for a null of 0.8.
    """
    agreement_by_chance = max(0.5, float(np.nan_to_num(null_share, nan=0.5)))
    return bool(2 * agreement_by_chance**cluster_count < 1 - CONTROL_LEVEL)


def build_instrument_control_finding(
    audit: str, simulated_values: pa.Table, measure: Measure, config: HasSeed, has_effect: bool
) -> Finding | None:
    """Return the control finding for simulated values without an effect or with a large one.

    Args:
        audit: Name of the audit.
        simulated_values: Values that were computed from the simulated outputs.
        measure: The measure to test.
        config: Settings of the audit.
        has_effect: Whether the simulation has a large effect.

    Returns:
        The finding, or None if the measure has no estimate for these items, neither interval nor p,
        or too few clusters.
    """
    value_clusters = len(pc.unique(simulated_values["cluster"]))
    if not has_enough_clusters(value_clusters, null_share=0.5):
        return None
    control_estimate = estimate_measure(simulated_values, measure, config, CONTROL_LEVEL)
    if control_estimate is None:
        return None
    # Without any number the estimate has no clusters, and the control must fail.
    cluster_count = control_estimate.clusters or value_clusters
    maximum = SHARE_MAXIMUM_BY_UNIT.get(measure.unit)
    null_share = 0.5 if maximum is None else control_estimate.null_value / maximum
    if not has_enough_clusters(cluster_count, null_share):
        return None
    covers_null = (
        control_estimate.low <= control_estimate.null_value <= control_estimate.high
        or control_estimate.value == control_estimate.null_value
    )
    # The audit would draw no conclusion from these values, so there is nothing to test.
    is_untested = control_estimate.n and np.isnan([control_estimate.low, control_estimate.p]).all()
    if is_untested and (has_effect or not covers_null):
        return None
    exceeds_null = control_estimate.value > control_estimate.null_value and (
        np.isnan(control_estimate.p) or control_estimate.p < 1 - CONTROL_LEVEL
    )
    passed = exceeds_null if has_effect else covers_null
    method = {
        True: (
            "simulated model with a large effect; the control passes if the value is above "
            f"{control_estimate.null_value:.4g} and p is below {1 - CONTROL_LEVEL:g}"
        ),
        False: f"simulated model without an effect; the control passes if the {CONTROL_LEVEL:.1%} "
        f"interval covers {control_estimate.null_value:.4g}",
    }[has_effect]
    control_kind: Literal["positive", "negative"] = "positive" if has_effect else "negative"
    part_name = f"scripted {'effect' if has_effect else 'chance'}"
    return build_finding_from_estimate(
        audit,
        measure.metric,
        control_estimate,
        unit=measure.unit,
        method_prefix=method,
        part=part_name,
        confidence_level=CONTROL_LEVEL,
        control=control_kind,
        passed=bool(passed),
        control_target="instrument",
        evidence_table="",
    )
