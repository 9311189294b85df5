"""Contrasts: how what was measured of one group differs from the same of others.

In the mean, with an interval; and as a whole distribution, by Wasserstein's distance, which is
above 0 by chance alone: how far above is its null, and it has no interval. Both are set against the
same figures of groups whose labels were dealt anew: of few blocks, or of skewed values, these tell
how far chance goes where Student's t does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tasks.measures.effects import POWER
from tasks.measures.estimates import Estimate
from tasks.measures.statistics import Float64

Int64 = NDArray[np.int64]

#: Values of relabelled groups that are held at a time.
HELD = 1 << 20

#: Relabellings from which the distance of a group with a p of at least CLEAR is left at that.
ENOUGH, CLEAR = 999, 0.1


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


def differences(
    values: ArrayLike,
    groups: Sequence[str],
    blocks: Sequence[Any],
    strata: Sequence[Any] | None = None,
    *,
    permutations: int = 9999,
    level: float = 0.95,
    seed: int = 0,
    unit: str = "items",
) -> dict[str, Estimate]:
    """Of each group the mean of its blocks less that of all others', or the mean of such
    differences within strata. Labels change hands between ``blocks``, each of one group, which
    share nothing with each other; with ``strata`` between those of one stratum alone, and these
    share nothing.

    Differences are compared over their standard errors (Janssen 1997): p counts those of relabelled
    groups that are as large, and the interval holds those that are not refused. Without strata each
    block counts once, with the mean of its values: a group is of few people, and were each value
    to count, of one with most of them. Such a mean varies the less the more values it is of, so
    what changes hands are means over the standard deviations that they are expected to have.
    """
    given = _Given.of(values, groups, blocks, strata, unit)
    made = dict(given.none)
    if len(given.names) < 2:
        return made
    array, own = given.values, given.own
    sums = given.sums(array, own)
    found = sums.differences(np.arange(len(own))[None])[:, 0]  # (2, groups)
    dealt = np.concatenate(
        [sums.differences(taken) for taken in given.relabelled(permutations, seed)], axis=1
    )  # (2, permutations, groups)
    independent = len(own) if given.stratum is None else int(given.stratum.max()) + 1
    missing = sum(each.missing for each in given.none.values())
    for code, name in enumerate(given.names):
        base = replace(made[name], n=len(array), clusters=independent, missing=missing, null=0.0)

        def shifted(by: float, code: int = code) -> Float64:
            """As ``dealt``, of fewer, were the values of this group larger by so much."""
            sums = given.sums(array + by * (given.codes == code), (own != code).astype(np.int64))
            some = given.relabelled(min(permutations, ENOUGH), seed)
            return np.concatenate([sums.differences(taken)[..., 0] for taken in some], axis=1)

        made[name] = _difference(base, found[:, code], dealt[..., code], shifted, level, given.how)
    return made


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
    """Of each group Wasserstein-1 between its values and those of all others, with a p and a null,
    both by relabelling as of ``differences``, and no interval. Of a group that is clearly like the
    others fewer relabellings are looked at: what is left at that has a p of about CLEAR or more, so
    no small p hangs on when (Besag & Clifford 1991)."""
    given = _Given.of(values, groups, blocks, strata, unit)
    made = dict(given.none)
    if len(given.names) < 2:
        return made
    array, codes = given.values, given.codes
    order = np.argsort(array, kind="stable")
    gaps, rows = np.diff(array[order]), given.block[order]
    found = [wasserstein(array, codes == code) for code in range(len(given.names))]
    areas: list[Float64] = [np.empty(0) for _ in found]
    for taken in given.relabelled(permutations, seed):
        dealt = _dealt(taken, given.own)
        for code, distance in enumerate(found):
            beyond = int((areas[code] >= _least(distance)).sum())
            if len(areas[code]) < ENOUGH or beyond < CLEAR * len(areas[code]):
                areas[code] = np.append(areas[code], _areas(dealt[:, rows] == code, gaps))
    for code, name in enumerate(given.names):
        made[name] = replace(
            made[name], value=found[code], null=float(areas[code].mean()),
            n=int((codes == code).sum()), clusters=int((given.own == code).sum()),
            p=_share(areas[code] >= _least(found[code])),
            method=f"{len(areas[code]):,} {given.how}",
        )  # fmt: skip
    return made


@dataclass(frozen=True)
class _Given:
    """Values that are known, (n,), with the codes of their groups and blocks; of blocks the codes
    of their groups and strata; and of each group what is said of it where it has no values."""

    values: Float64
    names: list[str]
    codes: Int64
    block: Int64
    own: Int64
    stratum: Int64 | None
    none: dict[str, Estimate]
    how: str

    @classmethod
    def of(
        cls,
        values: ArrayLike,
        groups: Sequence[str],
        blocks: Sequence[Any],
        strata: Sequence[Any] | None,
        unit: str,
    ) -> _Given:
        array = np.asarray(values, np.float64)
        known = np.flatnonzero(~np.isnan(array)).tolist()
        missed = [name for name, value in zip(groups, np.isnan(array), strict=True) if value]
        none = {
            name: Estimate(np.nan, np.nan, np.nan, 0, 0, missed.count(name),
                           f"no {unit} to measure")
            for name in dict.fromkeys(groups)
        }  # fmt: skip
        labels = [groups[i] for i in known]
        codes, block = _numbered(labels), _numbered([(groups[i], blocks[i]) for i in known])
        first = np.unique(block, return_index=True)[1]
        stratum = None if strata is None else _numbered([strata[i] for i in known])[first]
        within = f", within each of {stratum.max() + 1}" if stratum is not None and known else ""
        return cls(array[known], [*dict.fromkeys(labels)], codes, block, codes[first], stratum,
                   none, f"relabellings of {len(first)} {unit}{within}")  # fmt: skip

    def sums(self, values: Float64, own: Int64) -> _Strata | _Blocks:
        """What differences are made of, for blocks of the groups ``own``."""
        if self.stratum is None:
            return _Blocks.of(values, self.block, own)
        centred = np.bincount(self.block, values - values.mean()).astype(np.float64)
        return _Strata(np.bincount(self.block), centred, self.stratum, own)

    def relabelled(self, permutations: int, seed: int) -> Iterator[Int64]:
        """For the place of each block the block that comes to stand there, (rows, blocks): all
        shuffled, within their strata where there are some."""
        rng = np.random.default_rng(seed)
        strata = np.zeros(len(self.own), np.int64) if self.stratum is None else self.stratum
        places = np.argsort(strata, kind="stable")
        step = max(1, min(ENOUGH, HELD // len(self.values)))
        for start in range(0, permutations, step):
            rows = min(step, permutations - start)
            taken = np.empty((rows, len(strata)), np.int64)
            taken[:, places] = np.argsort(strata + rng.random((rows, len(strata))), axis=1)
            yield taken


def _dealt(taken: Int64, own: Int64) -> Int64:
    """The codes of blocks, (rows, blocks), each that of the place to which it came."""
    made = np.empty_like(taken)
    np.put_along_axis(made, taken, np.broadcast_to(own, taken.shape), axis=1)
    return made


def _difference(
    base: Estimate,
    own: Float64,
    dealt: Float64,
    shifted: Callable[[float], Float64],
    level: float,
    how: str,
) -> Estimate:
    """``own``: the difference and its error, (2,); ``dealt``: those of the relabelled, (2, n);
    ``shifted``: the same, were the group's values larger by so much."""
    value, error = map(float, own)
    made = replace(base, value=value)
    if np.isnan(error):
        return replace(made, method="no interval: a single one of a side tells no spread")
    ratios = _ratios(dealt)
    least, most = _furthest(ratios, level)
    if error < 1e-12 * max(1.0, abs(value)) or not np.isfinite([least, most]).all():
        return replace(made, method="no interval: there is no spread")
    ratios = np.clip(ratios, -1e300, 1e300)  # a few without spread lie beyond all
    tails = ratios >= _least(value / error), -ratios >= _least(-value / error)
    # What is found may be the furthest of few relabellings: then 0 is an end, but for rounding.
    low, high = (
        0.0 if abs(end) < 1e-9 * abs(value) else end
        for end in (value - most * error, value - least * error)
    )
    # Of too few no p is ever as small, whatever the effect.
    furthest = _share(ratios >= _least(ratios.max())), _share(ratios <= -_least(-ratios.min()))
    smallest = np.nan
    if 2 * max(furthest) < 1 - level:
        turned = np.array([[-1], [1]])
        up = _smallest(dealt, most, shifted, level)
        down = _smallest(dealt * turned, -least, lambda by: shifted(-by) * turned, level)
        smallest = max(up, down)  # to the harder side
    return replace(
        made, low=low, high=high, p=min(1.0, 2 * min(map(_share, tails))),
        method=f"{dealt.shape[1]:,} {how}", smallest=smallest,
    )  # fmt: skip


def _ratios(dealt: Float64) -> Float64:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(dealt[0] == 0, 0, dealt[0] / dealt[1])


def _furthest(ratios: Float64, level: float) -> tuple[float, float]:
    """The ends that p does not refuse: so many of a side are beyond them."""
    beyond = max(1, math.ceil((1 - level) / 2 * (1 + len(ratios)) - 1e-9) - 1)
    low, high = np.sort(ratios)[[beyond - 1, -beyond]]
    return float(low), float(high)


def _smallest(
    dealt: Float64, high: float, shifted: Callable[[float], Float64], level: float
) -> float:
    """What must be added to a group for its difference to be refused as too large in four of five
    relabellings. Where it was added relabelled groups have it too, here and there, which makes
    their errors larger and their ratios smaller: the end to pass is then that of such groups."""
    first = float(np.quantile(high * dealt[1] - dealt[0], POWER))
    end = _furthest(_ratios(shifted(first)), level)[1]
    return float(np.quantile(end * dealt[1] - dealt[0], POWER)) if np.isfinite(end) else first


def _share(reached: NDArray[np.bool_]) -> float:
    """Of all relabellings, that which was found among them."""
    return float((1 + reached.sum()) / (1 + len(reached)))


def _least(found: float) -> float:
    """From which a figure of relabelled groups is at least as large as one that was found: sums in
    another order may differ in their last bits."""
    return found - 1e-12 * max(1.0, abs(found))


@dataclass(frozen=True)
class _Blocks:
    """Of blocks: the mean of each one's values, about that of all, the standard deviation that it
    is expected to have, and the group, all (blocks,)."""

    means: Float64
    spreads: Float64
    own: Int64

    @classmethod
    def of(cls, values: Float64, block: Int64, own: Int64) -> _Blocks:
        """A mean varies as blocks do, and the less the more values it is of: the components of
        variance by the analysis of it (Searle 1992, section 3.6)."""
        counts = np.bincount(block)
        n, many = len(values), len(counts)
        means = np.bincount(block, values) / counts
        within = float(((values - means[block]) ** 2).sum()) / max(1, n - many)
        among = float((counts * (means - values.mean()) ** 2).sum()) - (many - 1) * within
        shared = max(0.0, among / (n - float((counts**2).sum()) / n)) if many > 1 else 0.0
        spreads = np.sqrt(shared + within / counts)
        return cls(means - means.mean(), np.where(spreads > 0, spreads, 1.0), own)

    def differences(self, taken: Int64) -> Float64:
        """Of each group the mean of its blocks less that of the others, and its standard error
        (Welch 1947): (2, rows, groups), NaN where a side has a single one. ``taken`` (rows, blocks)
        are the blocks that stand at each one's place, and vary as is expected there."""
        size, order = np.bincount(self.own), np.argsort(self.own, kind="stable")
        starts = np.cumsum(size) - size
        means = ((self.means / self.spreads)[taken] * self.spreads)[:, order]
        whole = (means**2).sum(1)
        # Of each group, (rows, groups). Squares are of what is off its own mean: those of all less
        # the mean's would round what is far from 0 in another way for each order of the same.
        mean = np.add.reduceat(means, starts, axis=1) / size
        off = np.add.reduceat((means - np.repeat(mean, size, axis=1)) ** 2, starts, axis=1)
        made = np.empty((2, *mean.shape))
        for code, count in enumerate(size):
            rest = np.arange(len(size)) != code
            others = (mean[:, rest] @ size[rest]) / size[rest].sum()
            apart = (mean[:, rest] - others[:, None]) ** 2 @ size[rest]
            sides = [(off[:, code], count), (off[:, rest].sum(1) + apart, size[rest].sum())]
            errors = [
                np.where(spread < 1e-12 * whole, 0, spread) / (many - 1) / many
                if many > 1 else np.full(len(whole), np.nan)
                for spread, many in sides
            ]  # fmt: skip
            made[:, :, code] = mean[:, code] - others, np.sqrt(errors[0] + errors[1])
        return made


@dataclass(frozen=True)
class _Strata:
    """Of blocks: how many values each has, their sum about a common mean, and the stratum and the
    group that each is in, all (blocks,)."""

    counts: Int64
    sums: Float64
    strata: Int64
    own: Int64

    def differences(self, taken: Int64) -> Float64:
        """Of all groups, (2, rows, groups), where blocks have the labels of the places to which
        they came."""
        dealt = _dealt(taken, self.own)
        return np.stack([self.difference(dealt == code) for code in range(self.own.max() + 1)], 2)

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


def _numbered(names: Sequence[Any]) -> Int64:
    """Numbers from 0 for names, in the order in which these first stand there."""
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int64)
