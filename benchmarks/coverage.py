"""How often intervals hold the truth, and how often tests find the effect that they say they find.

    python -m benchmarks.coverage [--data FOLDER] [--only PROBE ...] [--quick]

On the real items of each probe (``coverage_lines``), with values under a null that is known: each
label comes from a normal number of which a share RHO is that of its cluster; at 0 labels are
swapped by lot within pairs. They go through the estimator of the finding. Prints a line a finding:
n, clusters, how many of 1,000 intervals of 95 % hold the truth, the smallest effect that it states
and how many of 2,000 tests at 5 % find it, each with labels apart and with labels that clusters
share; and at the end what is outside of 92.5 to 97.2 % (of shares of under 40 units: below 92.5 %)
and of 76 to 84 %. What is outside is drawn again with another seed and four times as often, and
that counts. All is a function of the seed. It takes ten to twenty minutes on two cores.
"""

from __future__ import annotations

import argparse
import functools
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from zlib import crc32

import numpy as np

from benchmarks.coverage_draws import Line
from benchmarks.coverage_lines import lines
from benchmarks.coverage_texts import text_lines
from hallmark.tasks.measures.estimates import MAX_EXACT_UNITS

#: The share of a label that is its cluster's.
RHO = 0.2

COVERS, FINDS = (0.925, 0.972), (0.76, 0.84)

NONE = np.nan, np.nan

#: How many more repetitions decide where the first are outside.
MORE = 4


@dataclass(frozen=True)
class Found:
    """What became of a line: shares of its intervals and tests, NaN where it has none."""

    name: tuple[str, str, str]
    n: int
    clusters: int
    share: bool
    smallest: float
    covers: tuple[float, float]
    finds: tuple[float, float]

    def faults(self) -> list[str]:
        """What does not hold."""
        low, high = COVERS
        high = 1.0 if self.share and self.clusters < MAX_EXACT_UNITS else high
        said = []
        for name, values, least, most in (
            ("covers", self.covers, low, high),
            ("finds", self.finds, *FINDS),
        ):
            for how, value in zip(("apart", "shared"), values, strict=True):
                if not np.isnan(value) and not least <= value <= most:
                    said.append(f"{name} {value:.1%}, labels {how}")
        return said


def normals(line: Line, rng: np.random.Generator, rho: float) -> np.ndarray:
    """Standard normal numbers, (line.size,), of which clusters share so much; two kinds of them
    share it equally."""
    own = rng.normal(size=line.size)
    if not rho:
        return own
    ways = [way for way in (line.clusters, line.crossed) if way is not None]
    shared = sum(rng.normal(size=way.max() + 1)[way] for way in ways)
    return np.sqrt(rho / len(ways)) * shared + np.sqrt(1 - rho) * own


def coverage(line: Line, seed: int, rho: float, count: int) -> float:
    """The share of intervals that hold the truth; NaN where there are none."""
    rng, held, known = np.random.default_rng([seed, crc32(repr(line.name).encode())]), 0, 0
    for number in range(count):
        found = line.made(line.draw(normals(line, rng, rho), line.truth), number)
        if not np.isnan(found.low):
            known += 1
            held += found.low <= line.truth <= found.high
    return held / known if known else np.nan


def power(line: Line, seed: int, rho: float, count: int) -> tuple[float, float]:
    """The mean of the smallest effects that are stated, and the share of tests that find them."""
    rng = np.random.default_rng([seed, crc32(repr(line.name).encode()), 1])
    stated, hits = [], 0
    for number in range(count):
        under = line.made(line.draw(normals(line, rng, rho), line.null), number)
        at = line.null + under.minimum_detectable_effect * line.side
        if np.isnan(at):
            continue
        stated.append(under.minimum_detectable_effect)
        hits += line.made(line.draw(normals(line, rng, rho), at), number).p < 0.05
    # Where it is a matter of chance whether an effect is stated, its power means nothing.
    return (float(np.mean(stated)), hits / len(stated)) if len(stated) > 0.9 * count else NONE


@functools.cache
def every(data: Path | None, only: tuple[str, ...]) -> list[Line]:
    return [*lines(data, only), *text_lines(data, only)]


def examined(
    number: int, data: Path | None, only: tuple[str, ...], seed: int, quick: bool
) -> Found:
    """One of the lines; it is made again in each process. Of hundreds some are outside by chance:
    those are drawn again, and oftener."""
    line, count = every(data, only)[number], (50, 20) if quick else (1000, 2000)
    found = measured(line, seed, *count)
    if found.faults() and not quick:
        return measured(line, seed + 1, MORE * count[0], MORE * count[1])
    return found


def measured(line: Line, seed: int, intervals: int, tests: int) -> Found:
    n, groups = len(line.clusters), int(line.clusters.max()) + 1
    covers: list[float] = []
    finds: list[float] = []
    smallest = np.nan
    for rho in (0.0, RHO):
        if rho and line.crossed is None and groups == n:  # nothing to share
            covers, finds = [*covers, np.nan], [*finds, np.nan]
            continue
        covers.append(coverage(line, seed, rho, intervals))
        stated, found = power(line, seed, rho, tests)
        smallest = smallest if rho else stated
        finds.append(found)
    return Found(
        line.name, n, groups, line.share, smallest, (covers[0], covers[1]), (finds[0], finds[1])
    )


def percent(value: float) -> str:
    return f"{'-':>7}" if np.isnan(value) else f"{value:7.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of the public sets")
    parser.add_argument("--only", nargs="+", default=(), help="names of probes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--quick", action="store_true", help="few repetitions in one process, to try the program"
    )
    options = parser.parse_args()
    only = tuple(options.only)
    count = len(every(options.data, only))
    print(
        f"{'probe':<19}{'measure':<34}{'part':<34}{'n':>5}{'groups':>7}{'covers':>8}{'shared':>8}"
        f"{'smallest':>9}{'finds':>8}{'shared':>8}",
        flush=True,
    )
    wrong = []
    examine = functools.partial(
        examined, data=options.data, only=only, seed=options.seed, quick=options.quick
    )
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:  # starts as it is used
        for found in (map if options.quick else pool.map)(examine, range(count)):
            probe, metric, part = found.name
            print(
                f"{probe:<19}{metric:<34}{part:<34}{found.n:>5}{found.clusters:>7} "
                f"{percent(found.covers[0])} {percent(found.covers[1])}{found.smallest:>9.3g} "
                f"{percent(found.finds[0])} {percent(found.finds[1])}",
                flush=True,
            )
            wrong += [f"{', '.join(filter(None, found.name))}: {said}" for said in found.faults()]
    print(f"{count} lines; outside of what they must be: {len(wrong) or 'none'}")
    print("\n".join(wrong))


if __name__ == "__main__":
    main()
