"""Contrasts: how what was measured of one group differs from the same of others.

In the mean, with an interval; and as a whole distribution, by Wasserstein's distance, which is
above 0 by chance alone: how far above is its null, and it has no interval. Both are set against the
same figures of groups whose labels were dealt anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tasks.measures.effects import reach
from tasks.measures.estimates import Estimate, difference
from tasks.measures.statistics import Float64

Int64 = NDArray[np.int64]

#: Values of relabelled groups that are held at a time.
HELD = 1 << 20

#: Relabellings from which the distance of a group with a p of at least CLEAR is left at that.
ENOUGH, CLEAR = 999, 0.1


@dataclass(frozen=True)
class Contrast:
    """``difference``: the mean of a group less that of all others, or the mean of such differences
    within strata; ``distance``: Wasserstein-1 between the two, with a p, a null and no interval."""

    difference: Estimate
    distance: Estimate


def wasserstein(values: ArrayLike, inside: ArrayLike) -> float:
    """Wasserstein-1 between the values ``inside`` a group and the others: the area between their
    distribution functions, in the unit of the values. NaN where a side is empty."""
    array, member = np.asarray(values, np.float64), np.asarray(inside, bool)
    if member.all() or not member.any():
        return np.nan
    order = np.argsort(array, kind="stable")
    return float(_areas(member[order][None], np.diff(array[order]))[0])


def _areas(member: NDArray[np.bool_], gaps: Float64) -> Float64:
    """Of each row of ``member``, (rows, n) in the order of the values, the area between the two
    distribution functions; ``gaps``: (n - 1,) between values that follow each other."""
    count = np.cumsum(member, axis=1)[:, :-1]
    size, n = member.sum(1, keepdims=True), member.shape[1]
    apart = count * (1 / size + 1 / (n - size)) - np.arange(1, n) / (n - size)
    return np.abs(apart, out=apart) @ gaps


def contrasts(
    values: ArrayLike,
    groups: Sequence[str],
    blocks: Sequence[Any],
    strata: Sequence[Any] | None = None,
    *,
    permutations: int = 9999,
    level: float = 0.95,
    seed: int = 0,
    unit: str = "items",
) -> dict[str, Contrast]:
    """Of each group how it differs from all others. Labels change hands between ``blocks``, each of
    one group, which share nothing with each other; with ``strata`` between those of one stratum
    alone, and these share nothing.

    p counts what was found as one of the relabellings. Within strata differences are compared over
    their standard errors (Janssen 1997), and the interval holds those that are not refused; the
    smallest effect is drawn from the spread of the relabelled. Without strata the difference is
    Welch's, by blocks: few large ones beside many small ones do not stand for each other, and an
    interval by relabelling them covers 0.86 (Welch's 0.91 to 0.99). Of a group that is clearly like
    the others fewer distances are computed: what is left at that has a p of about CLEAR or more, so
    no small p hangs on when (Besag & Clifford 1991).
    """
    array = np.asarray(values, np.float64)
    known = np.flatnonzero(~np.isnan(array)).tolist()
    missed = [name for name, value in zip(groups, np.isnan(array), strict=True) if value]
    array, labels = array[known], [groups[i] for i in known]
    names, codes = [*dict.fromkeys(labels)], _numbered(labels)
    none = {
        name: Estimate(np.nan, np.nan, np.nan, 0, 0, missed.count(name), f"no {unit} to measure")
        for name in dict.fromkeys(groups)
    }
    made = {name: Contrast(estimate, estimate) for name, estimate in none.items()}
    if len(names) < 2:
        return made
    block = _numbered([(groups[i], blocks[i]) for i in known])
    _, first = np.unique(block, return_index=True)
    stratum = None if strata is None else _numbered([strata[i] for i in known])[first]
    centred = np.bincount(block, array - array.mean()).astype(np.float64)
    sums = None if stratum is None else _Strata(np.bincount(block), centred, stratum)
    own, order = codes[first], np.argsort(array, kind="stable")
    gaps, rows = np.diff(array[order]), block[order]
    found = [wasserstein(array, codes == code) for code in range(len(names))]
    differences: list[list[Float64]] = [[] for _ in names]
    areas: list[Float64] = [np.empty(0) for _ in names]
    for dealt in _relabelled(own, stratum, len(array), permutations, seed):
        for code, distance in enumerate(found):
            member = dealt == code  # (rows, blocks)
            if sums is not None:
                differences[code].append(sums.difference(member))
            beyond = int((areas[code] >= _least(distance)).sum())
            if len(areas[code]) < ENOUGH or beyond < CLEAR * len(areas[code]):
                areas[code] = np.append(areas[code], _areas(member[:, rows], gaps))
    within = "" if stratum is None else f", within each of {stratum.max() + 1}"
    how = f"relabellings of {len(own)} {unit}{within}"
    independent = len(own) if stratum is None else int(stratum.max()) + 1
    for code, name in enumerate(names):
        member = own == code
        base = replace(none[name], n=int((codes == code).sum()), clusters=int(member.sum()))
        whole = replace(base, n=len(array), clusters=independent, missing=len(missed), null=0.0)
        if sums is None:
            sides = codes == code, codes != code
            left, right = (array[side] for side in sides)
            clusters = block[sides[0]].tolist(), block[sides[1]].tolist()
            apart = difference(left, right, clusters=clusters, level=level, unit=unit)
            apart = replace(apart, missing=len(missed))
        else:
            apart = _difference(
                whole, sums.difference(member[None])[:, 0],
                np.concatenate(differences[code], axis=1),
                min(independent, int(member.sum()), int((~member).sum())) - 1, level, how,
            )  # fmt: skip
        made[name] = Contrast(
            apart,
            replace(
                base, value=found[code], null=float(areas[code].mean()),
                p=_share(areas[code] >= _least(found[code])), method=f"{len(areas[code]):,} {how}",
            ),
        )  # fmt: skip
    return made


def _difference(
    base: Estimate, own: Float64, dealt: Float64, freedom: int, level: float, how: str
) -> Estimate:
    """``own``: the difference and its error, (2,), of as many degrees of freedom; ``dealt``: those
    of the relabelled, (2, n)."""
    value, error = map(float, own)
    made = replace(base, value=value)
    if np.isnan(error):
        return replace(made, method="no interval: a single one of a side tells no spread")
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = dealt[0] / dealt[1]
    low, high = np.quantile(ratios, ((1 - level) / 2, (1 + level) / 2))
    if error < 1e-12 * max(1.0, abs(value)) or not np.isfinite([low, high]).all():
        return replace(made, method="no interval: there is no spread")
    tails = ratios >= _least(value / error), -ratios >= _least(-value / error)
    return replace(
        made, low=value - float(high) * error, high=value - float(low) * error,
        p=min(1.0, 2 * min(map(_share, tails))), method=f"{dealt.shape[1]:,} {how}",
        smallest=float(reach(freedom, level) * dealt[0].std()),
    )  # fmt: skip


def _share(reached: NDArray[np.bool_]) -> float:
    """Of all relabellings, that which was found among them."""
    return float((1 + reached.sum()) / (1 + len(reached)))


def _least(found: float) -> float:
    """From which a figure of relabelled groups is at least as large as one that was found: sums in
    another order may differ in their last bits."""
    return found - 1e-12 * max(1.0, abs(found))


@dataclass(frozen=True)
class _Strata:
    """Of blocks: how many values each has, their sum about a common mean, and the stratum that each
    is in, all (blocks,)."""

    counts: Int64
    sums: Float64
    strata: Int64

    def difference(self, member: NDArray[np.bool_]) -> Float64:
        """Of each row of ``member``, (rows, blocks), how much the mean of those blocks is above
        that of the others, in the mean of strata that have both, and its standard error over these:
        (2, rows), NaN where a single one has."""
        order = np.argsort(self.strata, kind="stable")
        starts = np.unique(self.strata[order], return_index=True)[1]

        def whole(each: NDArray[Any]) -> NDArray[Any]:  # (rows, strata)
            return np.add.reduceat(each[:, order], starts, axis=1)

        counts, sums = whole(self.counts[None]), whole(self.sums[None])
        size, inside = whole(member * self.counts), whole(member * self.sums)
        both = ((size > 0) & (size < counts))[0]  # labels change hands within: alike in all rows
        size, inside, counts, sums = (each[:, both] for each in (size, inside, counts, sums))
        if not both.any():
            return np.full((2, len(member)), np.nan)
        apart = inside / size - (sums - inside) / (counts - size)
        value = apart.mean(1)
        error = np.sqrt(((apart - value[:, None]) ** 2).sum(1)) / both.sum()
        return np.stack([value, error if both.sum() > 1 else np.full(len(value), np.nan)])


def _relabelled(
    codes: Int64, strata: Int64 | None, size: int, permutations: int, seed: int
) -> Iterator[NDArray[np.int32]]:
    """The codes of blocks, (rows, blocks), shuffled, within their strata where there are some;
    ``size``: values."""
    rng = np.random.default_rng(seed)
    strata = np.zeros(len(codes), np.int64) if strata is None else strata
    sorted_codes = codes[np.argsort(strata, kind="stable")]
    step = max(1, min(ENOUGH, HELD // size))
    for start in range(0, permutations, step):
        rows = min(step, permutations - start)
        order = np.argsort(strata + rng.random((rows, len(codes))), axis=1)
        made = np.empty((rows, len(codes)), np.int32)
        np.put_along_axis(made, order, np.broadcast_to(sorted_codes, made.shape), axis=1)
        yield made


def _numbered(names: Sequence[Any]) -> Int64:
    """Numbers from 0 for names, in the order in which these first stand there."""
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int64)
