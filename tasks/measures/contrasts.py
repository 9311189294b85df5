"""Contrasts: how what was measured of one group differs from the same of others.

In the mean, with an interval; and as a whole distribution, by Wasserstein's distance, which has a p
from relabelling and no interval: it is above 0 by chance alone, and how far above is its null.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tasks.measures.estimates import POWER, Estimate, student
from tasks.measures.statistics import Float64

Int64 = NDArray[np.int64]

#: Values of relabelled groups that are held at a time.
HELD = 1 << 20

#: Relabellings from which a group with a p of at least CLEAR is not relabelled any more.
ENOUGH, CLEAR = 999, 0.1


def contrast(
    values: ArrayLike,
    inside: ArrayLike,
    clusters: Sequence[Any],
    *,
    level: float = 0.95,
    unit: str = "items",
) -> Estimate:
    """The mean of the values ``inside`` a group less that of the others, null 0. A cluster may hold
    values of both: then they are a pair.

    The interval is Student's t over a jackknife of clusters (CR3; MacKinnon, Nielsen & Webb 2023),
    with one less than there are of them degrees of freedom where all are pairs, else Welch's
    (1947). The smallest effect is drawn from values about their common mean.
    """
    from scipy.special import stdtrit

    array, member = np.asarray(values, np.float64), np.asarray(inside, bool)
    known = ~np.isnan(array)
    array, member = array[known], member[known]
    names = _numbered([name for name, keep in zip(clusters, known, strict=True) if keep])
    groups = int(names.max(initial=-1)) + 1
    made = Estimate(np.nan, np.nan, np.nan, len(array), groups, int((~known).sum()), "", 0.0)
    if member.all() or not member.any():
        return replace(made, method=f"no {unit} on one of the sides")
    sides = (member, ~member)
    counts = np.array([np.bincount(names[side], minlength=groups) for side in sides])  # (2, groups)
    sums = np.array([np.bincount(names[side], array[side], groups) for side in sides])
    sizes, means = counts.sum(1), sums.sum(1) / counts.sum(1)
    made = replace(made, value=float(means[0] - means[1]))
    here = counts > 0
    many = here.sum(1)  # (2,) clusters of each side
    if many.min() < 2:
        return replace(made, method=f"no interval: a single one of {unit} tells no spread")
    rest = np.where(here, sizes[:, None] - counts, 1)
    without = (sums.sum(1)[:, None] - sums) / rest
    scale = np.sqrt((many - 1) / many)[:, None]
    moved = np.where(here, without - means[:, None], 0) * scale  # (2, groups)
    parts = (moved**2).sum(1)
    error = float(np.sqrt(((moved[0] - moved[1]) ** 2).sum()))
    if error < 1e-12 * max(1.0, float(np.abs(means).max())):
        return replace(made, method=f"no interval: all {unit} say the same")
    paired = bool(here.all())
    freedom = groups - 1 if paired else float(parts.sum() ** 2 / (parts**2 / (many - 1)).sum())
    about = (sums - array.mean() * counts) / sizes[:, None]
    reach = stdtrit(freedom, (1 + level) / 2) + stdtrit(freedom, POWER)
    half, p = student(error, freedom, made.value, level)
    over = f"{groups} {unit} in pairs" if paired else f"{many[0]} and {many[1]} {unit}"
    return replace(made, low=made.value - half, high=made.value + half, p=p,
                   smallest=float(reach * np.sqrt(((about[0] - about[1]) ** 2).sum())),
                   method=f"Student's t over a jackknife of {over}")  # fmt: skip


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


def distances(
    values: ArrayLike,
    groups: Sequence[str],
    blocks: Sequence[Any],
    strata: Sequence[Any] | None = None,
    *,
    permutations: int = 9999,
    seed: int = 0,
    unit: str = "items",
) -> dict[str, Estimate]:
    """Wasserstein-1 between the values of each group and those of all others.

    p is the share of relabellings with a distance at least as large, that which was found counted
    as one of them. Labels change hands between ``blocks``, each of one group, and between those of
    one of the ``strata`` alone. The null is the mean distance of the relabelled. Of a group that is
    clearly like the others fewer are made: what is stopped has a p of about CLEAR or more, so no
    small p hangs on when (Besag & Clifford 1991).
    """
    array = np.asarray(values, np.float64)
    known = np.flatnonzero(~np.isnan(array)).tolist()
    labels = [groups[i] for i in known]
    codes, names = _numbered(labels), [*dict.fromkeys(labels)]
    block = _numbered([(groups[i], blocks[i]) for i in known])
    stratum = _numbered([strata[i] if strata is not None else 0 for i in known])
    order = np.argsort(array[known], kind="stable")
    gaps = np.diff(array[known][order])
    missed = [name for name, value in zip(groups, np.isnan(array), strict=True) if value]
    found = np.array([wasserstein(array[known], codes == code) for code in range(len(names))])
    none = {
        name: Estimate(np.nan, np.nan, np.nan, 0, 0, missed.count(name), f"no {unit} to measure")
        for name in dict.fromkeys(groups)
    }
    if len(names) < 2:
        return {name: replace(e, method=f"no {unit} of any other group")
                for name, e in none.items()}  # fmt: skip
    _, first = np.unique(block, return_index=True)
    beyond, done, total = np.zeros((3, len(names)))
    near = found - 1e-12 * np.maximum(1, np.abs(found))
    going = [*range(len(names))]
    for label in _relabelled(codes[first], stratum[first], len(known), permutations, seed):
        spread = label[:, block[order]]  # (rows, n)
        for code in going:
            area = _areas(spread == code, gaps)
            beyond[code] += (area >= near[code]).sum()
            done[code] += len(area)
            total[code] += area.sum()
        going = [c for c in going if done[c] < ENOUGH or beyond[c] < CLEAR * done[c]]
        if not going:
            break
    within = "" if strata is None else f", within each of {stratum.max() + 1}"
    how = f"relabellings of {len(first)} {unit}{within}"
    return none | {
        name: Estimate(
            value=float(found[code]), low=np.nan, high=np.nan, n=int((codes == code).sum()),
            clusters=len({*block[codes == code]}), missing=missed.count(name),
            method=f"{int(done[code]):,} {how}", null=float(total[code] / done[code]),
            p=float((1 + beyond[code]) / (1 + done[code])),
        )
        for code, name in enumerate(names)
    }  # fmt: skip


def _relabelled(
    codes: Int64, strata: Int64, size: int, permutations: int, seed: int
) -> Iterator[NDArray[np.int32]]:
    """The codes of blocks, (rows, blocks), shuffled within their strata; ``size``: values."""
    rng = np.random.default_rng(seed)
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
