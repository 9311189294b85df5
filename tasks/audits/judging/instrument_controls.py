"""Test an audit's statistics on simulated outputs in place of a model's."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow as pa

from hallmark.tasks.audits.judging.findings import Finding, build_finding_from_estimate
from hallmark.tasks.audits.judging.measures import HasSeed, Measure, estimate_measure

#: Without an effect, the interval of this level must cover the null value; with a large effect, p
#: must be below 1 minus this level.
CONTROL_LEVEL = 0.999


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
        The finding, or None if the measure has no estimate for these items.
    """
    control_estimate = estimate_measure(simulated_values, measure, config, CONTROL_LEVEL)
    if control_estimate is None:
        return None
    covers_null = (
        control_estimate.low <= control_estimate.null_value <= control_estimate.high
        or control_estimate.value == control_estimate.null_value
    )
    # There is no p if all clusters agree; with the required number of clusters it would be smaller.
    exceeds_null = control_estimate.value > control_estimate.null_value and (
        np.isnan(control_estimate.p) or control_estimate.p < 1 - CONTROL_LEVEL
    )
    passed = exceeds_null if has_effect else covers_null
    method = {
        True: f"simulated model with a large effect; passes if the value is above "
        f"{control_estimate.null_value:.4g} and p below {1 - CONTROL_LEVEL:g}",
        False: f"simulated model without an effect; passes if the "
        f"{CONTROL_LEVEL:.1%} interval covers {control_estimate.null_value:.4g}",
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
