"""Controls of an audit itself: what it makes of scripts in place of a model."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pyarrow as pa

from hallmark.tasks.audits.judging.findings import build_finding_from_estimate
from hallmark.tasks.audits.judging.measures import HasSeed, Measure, estimate_measure

#: Of a control that has no effect: it must be within the interval of this level; of one that has a
#: large one: its p must be below what is left.
CONTROL_LEVEL = 0.999


def evaluate_instrument_control(
    audit: str, values: pa.Table, measure: Measure, config: HasSeed, has_effect: bool
) -> dict[str, Any] | None:
    """The verdict of a control: values of a script that has no effect, or a large one. None where
    the measure has nothing to say of these items."""
    control_estimate = estimate_measure(values, measure, config, CONTROL_LEVEL)
    if control_estimate is None:
        return None
    covers_null = (
        control_estimate.low <= control_estimate.null_value <= control_estimate.high
        or control_estimate.value == control_estimate.null_value
    )
    # Where all clusters agree there is no p: of as many as are asked for it would be smaller.
    exceeds_null = control_estimate.value > control_estimate.null_value and (
        np.isnan(control_estimate.p) or control_estimate.p < 1 - CONTROL_LEVEL
    )
    passed = exceeds_null if has_effect else covers_null
    method = {
        True: f"a script in place of the model, with a large effect; passes where the value is "
        f"above {control_estimate.null_value:.4g}, p below {1 - CONTROL_LEVEL:g}",
        False: f"a script in place of the model, without any effect; passes where the "
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
