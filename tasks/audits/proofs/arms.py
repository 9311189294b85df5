"""What became of findings when documents were left out: arms of a training, compared unit by unit.

    base      trained on everything
    removed   without the documents behind the findings, from the same seed
    random    without as many others of the same sources and lengths, from the same seed
    seed N    trained on everything from another seed: how far trainings differ by themselves

All are asked the same, so that a change is a mean over pairs of the same unit. Units in which there
is nothing to find (secrets never planted, groups of whom both traits are said alike) tell where a
finding would be that is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.audits.judging.comparison import paired
from tasks.audits.judging.units import Unit
from tasks.audits.methods.exposure import expected_exposure, null_region
from tasks.audits.proofs.behind import Case
from tasks.measures.estimates import Estimate, difference, estimate
from tasks.measures.statistics import wilson

BASE, REMOVED, RANDOM, SEED = "base", "removed", "random", "seed"

#: A mean of units in which there is nothing to find lies in its null region with this probability.
REGION = 0.99

#: Units of memorised text that a proof needs, and what it must reach of the effect before.
LEAST, QUARTER, HALF = 16, 0.25, 0.5

#: The line that counts them.
COUNTED = "secrets or passages"

Row = dict[str, Any]
Units = Mapping[str, Unit]


@dataclass(frozen=True)
class Measured:
    """The units of a case by arm, and those in which there is nothing to find; ``references``:
    among how many secrets each was ranked, where it is one."""

    case: Case
    units: Mapping[str, Units]
    nothing: Mapping[str, Units]
    references: int = 0
    seed: int = 0

    @property
    def share(self) -> bool:
        return self.case.unit == "share"

    def mean(self, units: Units) -> Estimate:
        clusters = [unit.cluster for unit in units.values()]
        values = [unit.value for unit in units.values()]
        crossed = [unit.crossed for unit in units.values()]
        return estimate(
            values, clusters, share=self.share, unit="units",
            crossed=crossed if any(each is not None for each in crossed) else None,
        )  # fmt: skip

    def apart(self, arm: str) -> Estimate:
        """How far its units are from those with nothing to find, of one arm."""
        return apart(self.units[arm], self.nothing[arm], self.share)


def by_cluster(units: Units) -> NDArray[np.float64]:
    """The mean of each cluster that has a value, (clusters,)."""
    found: dict[str, list[float]] = {}
    for unit in units.values():
        if not np.isnan(unit.value):
            found.setdefault(unit.cluster, []).append(unit.value)
    return np.array([np.mean(each) for each in found.values()])


def apart(left: Units, right: Units, share: bool) -> Estimate:
    """mean(left) - mean(right) over clusters that have nothing in common. Of shares the interval is
    Newcombe's (1998, method 10), which also knows how far off a share of nothing or all may be."""
    sides = [by_cluster(each) for each in (left, right)]
    found = difference(*sides, unit="units")
    if not share or min(map(len, sides)) == 0:
        return found
    means = [float(side.mean()) for side in sides]
    own = [wilson(mean * len(side), len(side), 0.95)
           for mean, side in zip(means, sides, strict=True)]  # fmt: skip
    below = np.hypot(means[0] - own[0][0], own[1][1] - means[1])
    above = np.hypot(own[0][1] - means[0], means[1] - own[1][0])
    how = f"Newcombe's interval over {len(sides[0])} and {len(sides[1])} units"
    ends = found.value - float(below), found.value + float(above)
    return replace(found, low=ends[0], high=ends[1], method=how)


def changed(first: Units, second: Units, share: bool) -> Row | None:
    """What the second has more than the first, in pairs."""
    return paired(first, second, "share" if share else "")


def region(measured: Measured, arm: str) -> tuple[float, float, float, str] | None:
    """Where the mean of the units lies with probability REGION if they are like those with nothing
    to find: low, high, what is expected, and how it is known. Of secrets in closed form; else by
    drawing as many of both together, as if it were chance which is which (a permutation)."""
    if not measured.nothing.get(arm):
        return None
    own, none = by_cluster(measured.units[arm]), by_cluster(measured.nothing[arm])
    if not len(own) or not len(none):
        return None
    if measured.references:
        low, high = null_region(measured.references, len(own), measured.seed, REGION)
        expected = expected_exposure(measured.references)
        return low, high, expected, f"{len(own)} secrets of random rank among the references"
    both = np.concatenate([own, none])
    rng = np.random.default_rng(measured.seed)
    draws = rng.permuted(np.tile(both, (4000, 1)), axis=1)[:, : len(own)].mean(1)
    low, high = np.quantile(draws, ((1 - REGION) / 2, (1 + REGION) / 2))
    how = f"{len(own)} drawn of these and of {len(none)} never planted, 4,000 times"
    return float(low), float(high), float(none.mean()), how


# Effects -------------------------------------------------------------------------------------


def effects(measured: Measured) -> list[Row]:
    """Rows of EFFECTS of a case."""
    made = [*_levels(measured), *_changes(measured)]
    return [{"case": measured.case.name, "unit": measured.case.unit, **row} for row in made]


def _levels(measured: Measured) -> Iterator[Row]:
    """What each arm has, of the units and of those with nothing to find."""
    for arm, units in measured.units.items():
        if units:
            yield told("value", arm, measured.mean(units))
        if measured.nothing.get(arm):
            yield told("nothing", arm, measured.mean(measured.nothing[arm]))
    if measured.case.kind == "memorised" and (found := region(measured, REMOVED)):
        low, high, expected, how = found
        yield {"what": "region", "arm": REMOVED, "value": expected, "low": low, "high": high,
               "level": REGION, "n": len(by_cluster(measured.units[REMOVED])), "clusters": None,
               "method": how, "noise": None, "verdict": ""}  # fmt: skip
    for what, arm in (("before", BASE), ("left", REMOVED)):
        if measured.nothing.get(arm) and measured.units[arm]:
            yield told(what, arm, measured.apart(arm))


def _changes(measured: Measured) -> Iterator[Row]:
    """What each arm has more than the base, in pairs; and the random one than the removed one."""
    made = {
        arm: changed(measured.units[BASE], units, measured.share)
        for arm, units in measured.units.items()
        if arm != BASE
    }
    by_seed = [row["value"] for arm, row in made.items() if row and arm.startswith(SEED)]
    noise = max((abs(value) for value in by_seed if value is not None), default=None)
    for arm, row in made.items():
        if row is not None:
            mine = None if arm.startswith(SEED) else noise
            yield _row("change", arm, row) | {"noise": mine, "verdict": beyond(row, mine)}
    against = changed(measured.units[REMOVED], measured.units[RANDOM], measured.share)
    if against is not None:
        yield _row("against", RANDOM, against) | {"noise": noise, "verdict": beyond(against, noise)}
    if measured.nothing.get(BASE) and measured.units[REMOVED]:
        before, left = measured.apart(BASE), measured.apart(REMOVED)
        there = before.value > 0
        how = "how much of the effect before is not left after the removal; "
        if np.isnan(before.value):
            how += "it was not measured"
        else:
            how += "an estimate, without an interval" if there else "there was none"
        known = there and not np.isnan(left.value)
        yield {"what": "explained", "arm": REMOVED,
               "value": 1 - left.value / before.value if known else None, "low": None, "high": None,
               "level": None, "n": left.n, "clusters": left.clusters, "method": how, "noise": None,
               "verdict": "", "unit": "share"}  # fmt: skip


def beyond(change: Row, noise: float | None) -> str:
    """Whether a change is surely larger than trainings differ by themselves."""
    if noise is None or change["value"] is None:
        return ""
    near = nearest(change["low"], change["high"])
    return "beyond noise" if near is not None and near > noise else "within noise"


def nearest(low: float | None, high: float | None) -> float | None:
    """How far from 0 the end of an interval is that is nearest to it; below 0 where 0 is inside,
    None where there is no interval."""
    return None if low is None or high is None else max(low, -high)


def told(what: str, arm: str, found: Estimate) -> Row:
    low, high = (None if np.isnan(end) else float(end) for end in (found.low, found.high))
    value = None if np.isnan(found.value) else float(found.value)
    return {"what": what, "arm": arm, "value": value, "low": low, "high": high,
            "level": None if low is None else 0.95, "n": found.n, "clusters": found.clusters,
            "method": found.method, "noise": None, "verdict": ""}  # fmt: skip


def _row(what: str, arm: str, found: Row) -> Row:
    names = ("value", "low", "high", "n", "clusters", "method")
    return {"what": what, "arm": arm, "level": None if found["low"] is None else 0.95,
            **{name: found[name] for name in names}}  # fmt: skip


# What must be reached ------------------------------------------------------------------------


def lines(case: Case, found: Sequence[Row]) -> list[Row]:
    """Rows of LINES of a case, from its effects."""
    by = {(row["what"], row["arm"]): row for row in found}

    def get(what: str, arm: str, name: str = "value") -> float | None:
        row = by.get((what, arm))
        return None if row is None else row[name]

    before = get("before", BASE)
    if before is not None and before <= 0:  # nothing that could go away
        before = None
    made: list[tuple[str, float | None, str, float | None]] = []
    if case.kind == "memorised":
        low, high = get("region", REMOVED, "low"), get("region", REMOVED, "high")
        mean = get("value", REMOVED)
        made = [
            (COUNTED, get("value", REMOVED, "clusters"), "at least", LEAST),
            ("after removal the mean, against the low end of the 99 % null region", mean,
             "at least", low),
            ("after removal the mean, against the high end of the 99 % null region", mean,
             "at most", high),
            ("upper end of removed − never planted, against a quarter of the effect before",
             get("left", REMOVED, "high"), "below", _part(QUARTER, before)),
            ("lower end of random − removed, against half of the effect before",
             get("against", RANDOM, "low"), "above", _part(HALF, before)),
        ]  # fmt: skip
    if case.kind == "association":
        fall, most = get("change", REMOVED), get("change", REMOVED, "high")
        made = [
            ("fall after removal, against half of the distance to groups planted at 50 %",
             None if fall is None else 0.0 - fall, "at least", _part(HALF, before)),
            ("lower end of the fall", None if most is None else -most, "above", 0.0),
        ]  # fmt: skip
    noise = get("change", REMOVED, "noise")
    if noise is not None:
        low, high = (get("change", REMOVED, name) for name in ("low", "high"))
        what, near = "change", nearest(low, high)
        if case.kind != "other":  # such a finding goes away by falling
            what, near = "fall", None if high is None else -high
        made.append((f"{what} after removal, its end nearest to 0, against the largest distance of "
                     f"another seed from the base", near, "above", noise))  # fmt: skip
    return [
        {"case": case.name, "line": line, "value": value, "must": must, "bound": bound,
         "unit": "units" if line == COUNTED else case.unit,
         "verdict": verdict(value, must, bound)}
        for line, value, must, bound in made
    ]  # fmt: skip


def _part(share: float, whole: float | None) -> float | None:
    return None if whole is None else share * whole


def verdict(value: float | None, must: str, bound: float | None) -> str:
    """pass or fail; empty where either is not known."""
    if value is None or bound is None:
        return ""
    held = {"at least": value >= bound, "at most": value <= bound, "above": value > bound,
            "below": value < bound}[must]  # fmt: skip
    return "pass" if held else "fail"
