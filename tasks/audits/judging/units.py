"""What findings are means of: units, in which two audits can be compared."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.audits.ability.texts import TEXT
from tasks.audits.judging.findings import evidence
from tasks.contract import Artifact
from tasks.measures.estimates import placements

Row = dict[str, Any]

#: The audit that is no probe. It has no values, but a table of texts and one of pairs of sentences.
CAPABILITY = "capability"

#: The unit of a finding that is the area under the ROC curve of members and others.
AREA = "probability"

#: Of these the columns that name a unit, and the one that says what it shares with others.
COLUMNS = {"samples": (("doc_id", "prompt"), "doc_id"), "pairs": (("pair",), "cluster")}


class Unit(NamedTuple):
    """A unit: what it shares with others, its value, what else it shares with others, of how many
    values its own is the mean, what it weighs, as bytes do in bits per byte, and, of an area,
    whether it is a member; None where it has its value by itself."""

    cluster: str
    value: float
    crossed: str | None = None
    draws: int = 1
    weight: float = 1.0
    member: bool | None = None


class Units:
    """What the findings of an audit are means of."""

    def __init__(self, artifact: Artifact) -> None:
        self.values = artifact["values"].read() if "values" in artifact.tables else None
        self.others = {name: artifact[name].read() for name in COLUMNS if name in artifact.tables}

    def where(self, finding: Row) -> Mapping[str, Any] | None:
        """What selects the values of which a finding is the mean; None where it is that of none."""
        if self.values is None or finding["table"] != "values" or finding["unit"] == AREA:
            return None
        return {**json.loads(finding["where"]), "measure": finding["metric"]}

    def of(self, finding: Row) -> dict[Any, Unit] | None:
        """Cluster and value by unit; None where the finding is no mean of units."""
        where, value = self.where(finding), finding["value"]
        if self.values is None and finding["table"] in self.others:
            rows = evidence(self.others[finding["table"]], finding["where"])
            # That of a baseline is worse in no way; what it reads is the text, not the model.
            units = capability_units(rows, finding["table"]) if finding["worse"] else {}
            means = [_mean(units)]
        elif self.values is not None and finding["unit"] == AREA:
            units = area_units(evidence(self.values, finding["where"]))
            means = [_mean({name: unit for name, unit in units.items() if unit.member})]
        elif self.values is None or where is None:
            return None
        else:
            rows = evidence(self.values, where)
            units, means = units_in(rows), [_plain(rows), _plain(by_item(rows))]
        # What is computed from its values in another way, as a ratio or corrected, is no mean.
        near = (
            mean is not None
            and value is not None
            and math.isclose(mean, value, rel_tol=1e-9, abs_tol=1e-9)
            for mean in means
        )
        return units if any(near) else None


def _plain(rows: pa.Table) -> float | None:
    return pc.mean(rows["value"]).as_py()  # type: ignore[no-any-return]


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


def capability_units(rows: pa.Table, table: str) -> dict[Any, Unit]:
    """A document with its bits per byte, which weighs as many bytes; a passage, or a pair of
    sentences, with 1 or 0."""
    names, cluster = COLUMNS[table]
    value, weight = rows["correct"].cast(pa.float64()), pa.array(np.ones(len(rows)))
    if table == "samples":
        sizes = rows["bytes"].cast(pa.float64())
        value = pc.coalesce(value, pc.divide(rows["model_bits"], sizes))
        weight = pc.coalesce(sizes, weight)
    value = pc.fill_null(value, math.nan)
    each = zip(*(c.to_pylist() for c in (rows[cluster], value, weight)), strict=True)
    units = [Unit(shared, known, weight=weighs) for shared, known, weighs in each]
    return dict(zip(_names(rows, names), units, strict=True))


def area_units(values: pa.Table) -> dict[Any, Unit]:
    """Members and others, each with the share of the other kind that is on its side of the curve;
    the mean of either kind is the area."""
    rows = values.filter(pc.is_finite(values["value"]))
    member = rows["member"].to_numpy(zero_copy_only=False).astype(bool)
    if member.all() or not member.any():
        return {}
    score = rows["value"].to_numpy().astype(np.float64)
    shares = np.empty(len(rows))
    shares[member], shares[~member] = placements(score[member], score[~member])
    items, clusters = (rows[name].to_pylist() for name in ("item", "cluster"))
    told = zip(clusters, shares.tolist(), member.tolist(), strict=True)
    units = (Unit(cluster, share, member=inside) for cluster, share, inside in told)
    return dict(zip(items, units, strict=True))


def texts_in(capability: Artifact) -> set[Any]:
    """The held-out documents that capability was measured on, and their sizes: of one that has a
    name of its own the text may change."""
    names = ("doc_id", "bytes")
    rows = capability["samples"].read(["part", *names])
    return {*_names(rows.filter(pc.equal(rows["part"], TEXT)), names)}


def _names(rows: pa.Table, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    return [*zip(*(rows[name].to_pylist() for name in columns), strict=True)]


def _mean(units: Mapping[Any, Unit]) -> float | None:
    """The weighted mean."""
    whole = sum(unit.weight for unit in units.values())
    return sum(unit.weight * unit.value for unit in units.values()) / whole if whole else None
