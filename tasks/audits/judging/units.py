"""What findings are means of: units, in which two audits can be compared."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.audits.judging.findings import evidence
from tasks.contract import Artifact

Row = dict[str, Any]


class Unit(NamedTuple):
    """A unit: what it shares with others, its value, what else it shares with others, and of how
    many values its own is the mean."""

    cluster: str
    value: float
    crossed: str | None = None
    draws: int = 1


class Units:
    """What the findings of an audit are means of."""

    def __init__(self, artifact: Artifact) -> None:
        self.values = artifact["values"].read() if "values" in artifact.tables else None

    def where(self, finding: Row) -> Mapping[str, Any] | None:
        """What selects the units of a finding; None where it is no mean of any."""
        if self.values is None:
            return None
        if finding["table"] != "values":
            return None
        return {**json.loads(finding["where"]), "measure": finding["metric"]}

    def of(self, finding: Row) -> dict[Any, Unit] | None:
        """Cluster and value by unit; None where the finding is no mean of units."""
        where = self.where(finding)
        if self.values is None or where is None:
            return None
        rows = evidence(self.values, where)
        # What is computed from its values in another way, as a ratio or corrected, is no mean.
        value, near = finding["value"], []
        for mean in (pc.mean(rows["value"]).as_py(), pc.mean(by_item(rows)["value"]).as_py()):
            near.append(mean is not None and value is not None and math.isclose(
                mean, value, rel_tol=1e-9, abs_tol=1e-9))  # fmt: skip
        return units_in(rows) if any(near) else None


def units_in(values: pa.Table) -> dict[Any, Unit]:
    """The units that rows of values are of, by item."""
    draws = Counter(values["item"].to_pylist())
    rows = by_item(values)
    items, clusters = (rows[name].to_pylist() for name in ("item", "cluster"))
    known = pc.fill_null(rows["value"], float("nan")).to_pylist()
    both = "crossed" in rows.column_names
    crossed = rows["crossed"].to_pylist() if both else [None] * len(rows)
    many = [draws[item] for item in items]
    return dict(zip(items, map(Unit, clusters, known, crossed, many), strict=True))


def by_item(values: pa.Table) -> pa.Table:
    """Of each item its first row with the mean of its values: several, as of draws, are one
    unit."""
    numbered = values.append_column("at", pa.array(np.arange(len(values))))
    means = numbered.group_by("item", use_threads=False).aggregate(
        [("at", "min"), ("value", "mean")]
    )
    place = values.schema.get_field_index("value")
    rows = values.take(means["at_min"])
    return rows.set_column(place, values.schema.field(place), means["value_mean"])
