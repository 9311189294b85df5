"""Controls of an audit itself: what it makes of scripts in place of a model."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tasks.audits.judging.findings import measured
from tasks.audits.judging.measures import Drawn, Measure, estimated

#: Of a control that has no effect: it must be within the interval of this level; of one that has a
#: large one: its p must be below what is left.
CONTROL_LEVEL = 0.999


def instrument(
    audit: str, values: pa.Table, measure: Measure, config: Drawn, effect: bool
) -> dict[str, Any] | None:
    """The verdict of a control: values of a script that has no effect, or a large one. None where
    the measure has nothing to say of these items."""
    found = estimated(values, measure, config, CONTROL_LEVEL)
    if found is None:
        return None
    within = found.low <= found.null <= found.high or found.value == found.null
    # Where all clusters agree there is no p: of as many as are asked for it would be smaller.
    clear = found.value > found.null and (np.isnan(found.p) or found.p < 1 - CONTROL_LEVEL)
    passed = clear if effect else within
    how = {
        True: f"a script in place of the model, with a large effect; passes where the value is "
              f"above {found.null:.4g}, p below {1 - CONTROL_LEVEL:g}",
        False: f"a script in place of the model, without any effect; passes where the "
               f"{CONTROL_LEVEL:.1%} interval covers {found.null:.4g}",
    }[effect]  # fmt: skip
    kind: Literal["positive", "negative"] = "positive" if effect else "negative"
    name = f"scripted {'effect' if effect else 'chance'}"
    return measured(audit, measure.metric, found, unit=measure.unit, how=how, part=name,
                    level=CONTROL_LEVEL, control=kind, passed=bool(passed), tests="instrument",
                    table="")  # fmt: skip
