"""Test intervals and tests of means, shares and areas in designs that are hard for them.

    python -m benchmarks.coverage_designs [--only WORD ...] [--repetitions 2000] [--seed 0]

``benchmarks.coverage`` uses the items of the audits; the designs here are invented: rare events,
skewed or sparse values, few clusters, one dominant cluster, weights that follow the values, two-way
clusters, few labelled texts, areas under the ROC curve near 1, models as toxic as their corpus.
Each repetition draws values whose true mean is known and estimates it with the true mean as null
value; the null value of areas is 1/2.

Prints one row for each design: the share of repetitions that show an interval; of these, the share
that contains the true mean, and the shares whose lower end is above it and whose upper end is below
it; the share of all repetitions with p < 0.05, if the null value is the true one; and the CPU time
of one estimate, with its drawing. At the end come the designs outside the accepted range. An exact
or conservative method may cover more than 98 %.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from benchmarks import toxicity_reference
from hallmark.tasks.measures.estimates import Estimate, estimate_mean_or_share
from hallmark.tasks.measures.prevalence import estimate_prevalence
from hallmark.tasks.measures.roc import estimate_roc_auc

Floats = np.ndarray

ACCEPTED_COVERAGE = 0.92, 0.98
MAX_UPPER_ERRORS = 0.04
MAX_FALSE_POSITIVES = 0.065

#: Shares of repetitions are uncertain: a limit counts as exceeded beyond this many standard errors.
TOLERATED_ERRORS = 2.0


@dataclass(frozen=True)
class Design:
    """Describe how values are drawn and estimated.

    Attributes:
        name: What is drawn.
        truth: True mean; also the null value, except of areas.
        estimate: Called with a generator of random numbers; draws values and returns an estimate.
        is_conservative: Whether the method may cover more than 98 %.
    """

    name: str
    truth: float
    estimate: Callable[[np.random.Generator], Estimate]
    is_conservative: bool = False


class DesignResult(NamedTuple):
    """Shares of repetitions; NaN where none counts.

    Attributes:
        shown: Share with an interval.
        coverage: Share of intervals that contain the true mean.
        lower_errors: Share of intervals whose lower end is above the true mean.
        upper_errors: Share of intervals whose upper end is below it.
        false_positives: Share of all repetitions with p < 0.05; NaN if another value than the true
            mean is tested.
        contradictions: Number of intervals that exclude the null value although p is at least 0.05,
            or contain it although p is smaller.
        milliseconds: CPU time of one estimate with its drawing.
    """

    shown: float
    coverage: float
    lower_errors: float
    upper_errors: float
    false_positives: float
    contradictions: int
    milliseconds: float


def measure_design(design: Design, repetitions: int, seed: int = 0) -> DesignResult:
    """Draw and estimate many times."""
    rng = np.random.default_rng([seed, crc32(design.name.encode())])
    start = time.process_time()
    estimates = [design.estimate(rng) for _ in range(repetitions)]
    milliseconds = 1000 * (time.process_time() - start) / repetitions
    low, high, p, null = np.array([(e.low, e.high, e.p, e.null_value) for e in estimates]).T
    is_shown = ~np.isnan(low)
    is_above, is_below = low > design.truth + 1e-12, high < design.truth - 1e-12
    excludes_null = (low > null + 1e-12) | (high < null - 1e-12)
    has_both = is_shown & ~np.isnan(p)
    count = int(is_shown.sum())
    shares = (
        [1 - (is_above | is_below).sum() / count, is_above.sum() / count, is_below.sum() / count]
        if count
        else [np.nan] * 3
    )
    return DesignResult(
        count / repetitions,
        *shares,
        np.nan if (np.abs(null - design.truth) > 1e-9).any() else float((p < 0.05).mean()),
        int((excludes_null != (p < 0.05))[has_both].sum()),
        milliseconds,
    )


def list_problems(design: Design, result: DesignResult, repetitions: int) -> list[str]:
    """List the shares outside the accepted range.

    A design that shows fewer than a tenth of its intervals is judged by its false positives only:
    its few intervals are no random sample of all.
    """

    def exceeds(share: float, limit: float, count: float) -> bool:
        return share > limit + TOLERATED_ERRORS * np.sqrt(limit * (1 - limit) / count)

    problems = []
    count = result.shown * repetitions
    if result.shown >= 0.1:
        low, high = ACCEPTED_COVERAGE
        too_high = exceeds(result.coverage, high, count) and not design.is_conservative
        if too_high or exceeds(1 - result.coverage, 1 - low, count):
            problems.append(f"coverage {result.coverage:.1%}")
        if exceeds(result.upper_errors, MAX_UPPER_ERRORS, count):
            problems.append(f"upper end errs in {result.upper_errors:.1%}")
    if exceeds(result.false_positives, MAX_FALSE_POSITIVES, repetitions):
        problems.append(f"false positives {result.false_positives:.1%}")
    if result.contradictions:
        problems.append(f"{result.contradictions} intervals contradict p")
    return problems


# Designs ---------------------------------------------------------------------------------------


def list_designs() -> list[Design]:
    """List the designs of means, shares, areas and the test of toxicity."""
    return [
        *list_prevalence_designs(),
        *list_share_designs(),
        *list_mean_designs(),
        *list_weighted_designs(),
        *list_two_way_designs(),
        *list_area_designs(),
        *list_toxicity_designs(),
    ]


def build_design(
    name: str,
    truth: float,
    draw: Callable[[np.random.Generator], Floats],
    clusters: Sequence[int] | Floats | None = None,
    *,
    is_conservative: bool = False,
    **options: Any,
) -> Design:
    """Build a design whose values are estimated by ``estimate_mean_or_share``.

    Args:
        name: What is drawn.
        truth: True mean.
        draw: Draws the values.
        clusters: Cluster of each value; None if each is its own.
        is_conservative: Whether the method may cover more than 98 %.
        options: Passed to ``estimate_mean_or_share``.
    """
    names = None if clusters is None else list(clusters)
    return Design(
        name,
        truth,
        lambda rng: estimate_mean_or_share(draw(rng), names, null_value=truth, **options),
        is_conservative,
    )


def list_prevalence_designs() -> Iterator[Design]:
    """List corrected shares of 100 texts, by the numbers of labelled texts of either kind."""
    for positives, negatives, sensitivity, specificity, truth in (
        (5, 5, 0.8, 0.9, 0.25),
        (5, 5, 0.95, 0.95, 0.05),
        (20, 20, 0.8, 0.9, 0.5),
        (75, 125, 0.6, 0.98, 0.05),
    ):
        flag_rate = truth * sensitivity + (1 - truth) * (1 - specificity)
        rates = np.repeat([sensitivity, 1 - specificity], [positives, negatives])
        labels = np.arange(positives + negatives) < positives

        def estimate(
            rng: np.random.Generator,
            flag_rate: float = flag_rate,
            rates: Floats = rates,
            labels: Floats = labels,
        ) -> Estimate:
            flagged = rng.random(100) < flag_rate
            return estimate_prevalence(
                flagged.astype(float), None, (rng.random(len(rates)) < rates).astype(float), labels
            )

        yield Design(
            f"prevalence {truth:g}, {positives} + {negatives} labelled texts", truth, estimate, True
        )


def draw_labels_in_clusters(
    rng: np.random.Generator, share: float, correlation: float, clusters: Floats
) -> Floats:
    """Draw labels with a beta-binomial distribution and the given correlation within clusters."""
    precision = 1 / correlation - 1
    shares = rng.beta(share * precision, (1 - share) * precision, int(clusters.max()) + 1)
    return (rng.random(len(clusters)) < shares[clusters]).astype(float)


def list_share_designs() -> Iterator[Design]:
    """List shares: rare in clusters, scores near zero, few units, ties, one dominant cluster."""
    for share, cluster_count, size, correlation, is_conservative in (
        (0.01, 30, 20, 0.2, True),
        (0.02, 30, 20, 0.2, False),
        (0.05, 30, 20, 0.2, False),
        (0.05, 30, 20, 0.5, False),
        (0.02, 100, 25, 0.5, False),
        (0.05, 15, 10, 0.2, False),
        (0.2, 4, 20, 0.1, False),
        (0.2, 6, 20, 0.1, True),
        (0.05, 8, 100, 0.1, False),
    ):
        clusters = np.repeat(np.arange(cluster_count), size)
        yield build_design(
            f"share {share:g}, {cluster_count} clusters of {size}, correlation {correlation:g}",
            share,
            lambda rng, share=share, correlation=correlation, clusters=clusters: (
                draw_labels_in_clusters(rng, share, correlation, clusters)
            ),
            clusters,
            is_share=True,
            is_conservative=is_conservative,
        )
    for a, b, n in (
        (0.1, 2, 20),
        (0.05, 1, 20),
        (0.1, 2, 40),
        (0.3, 6, 20),
        (0.5, 20, 20),
        (0.5, 20, 6),
    ):
        yield build_design(
            f"scores near zero, Beta({a:g}, {b:g}), n = {n}",
            a / (a + b),
            lambda rng, a=a, b=b, n=n: rng.beta(a, b, n),
            is_share=True,
            is_conservative=a / (a + b) * n < 1.5,
        )
    for share, n in ((0.1, 16), (0.005, 40), (0.03, 100), (0.5, 100)):
        yield build_design(
            f"independent yes-or-no units, share {share:g}, n = {n}",
            share,
            lambda rng, share=share, n=n: (rng.random(n) < share).astype(float),
            is_share=True,
            is_conservative=True,
        )
    yield build_design(
        "ties: 9 of 10 paired differences are 0, n = 60",
        0.5,
        lambda rng: 0.5 + 0.5 * rng.choice([-1, 0, 1], 60, p=[0.05, 0.9, 0.05]),
        is_share=True,
    )
    yield build_design(
        "all ties: all paired differences are 0, n = 60",
        0.5,
        lambda rng: np.full(60, 0.5),
        is_share=True,
        is_conservative=True,
    )
    dominant = np.repeat(np.arange(20), [180] + [1] * 19)
    yield build_design(
        "share 0.3, one cluster of 180 and 19 of 1, correlation 0.2",
        0.3,
        lambda rng: draw_labels_in_clusters(rng, 0.3, 0.2, dominant),
        dominant,
        is_share=True,
    )
    unequal = np.repeat(np.arange(24), np.repeat([1, 4, 10, 25], 6))
    yield build_design(
        "share 0.2, 24 clusters of 1 to 25, correlation 0.2",
        0.2,
        lambda rng: draw_labels_in_clusters(rng, 0.2, 0.2, unequal),
        unequal,
        is_share=True,
    )


def draw_sparse_values(rng: np.random.Generator, n: int, share: float) -> Floats:
    """Draw values that are 0 except for a share of them, whose mean and spread are one half."""
    return (rng.random(n) < share) * rng.normal(0.5, 0.5, n)


def list_mean_designs() -> Iterator[Design]:
    """List means: sparse, skewed, of heavy tails, of few clusters, all equal, partly missing."""
    for n, share in ((20, 0.15), (20, 0.3), (40, 0.15), (100, 0.15)):
        yield build_design(
            f"sparse sentiment, {1 - share:.0%} are 0, n = {n}",
            share / 2,
            lambda rng, n=n, share=share: draw_sparse_values(rng, n, share),
        )
    for n in (3, 4, 5, 6, 8, 10, 20):
        yield build_design(
            f"exponential means of {n} clusters",
            1.0,
            lambda rng, n=n: rng.exponential(size=n),
        )
    for n in (2, 3, 5, 10):
        clusters = np.repeat(np.arange(n), 4)
        yield build_design(
            f"normal values in {n} clusters of 4",
            0.0,
            lambda rng, n=n, clusters=clusters: (
                rng.normal(size=n)[clusters] + rng.normal(size=4 * n)
            ),
            clusters,
        )
    for name, truth, draw in (
        ("Student's t with 2 degrees, n = 20", 0.0, lambda rng: rng.standard_t(2, 20)),
        ("Cauchy, n = 40", 0.0, lambda rng: rng.standard_cauchy(40)),
        ("lognormal, n = 40", np.exp(0.5), lambda rng: rng.lognormal(size=40)),
        ("uniform, n = 10", 0.5, lambda rng: rng.random(10)),
        ("all equal, n = 20", 3.0, lambda rng: np.full(20, 3.0)),
    ):
        yield build_design(name, truth, draw, is_conservative=name.startswith("Cauchy"))
    missing_clusters = np.repeat(np.arange(15), 4)

    def draw_partly_missing(rng: np.random.Generator) -> Floats:
        values = rng.exponential(size=15)[missing_clusters] + rng.normal(size=60)
        return np.where(rng.random(60) < 0.4, np.nan, values)

    yield build_design(
        "exponential, 15 clusters of 4, 40 % missing", 1.0, draw_partly_missing, missing_clusters
    )


def list_weighted_designs() -> Iterator[Design]:
    """List weighted means, such as bits per byte: weights that follow the values, one dominant."""
    for name, n, spread, compute_means in (
        ("independent of the value", 36, 1.0, lambda log_weights: 0 * log_weights),
        ("follow the value", 36, 0.5, lambda log_weights: np.exp(log_weights)),
        ("follow the value", 100, 0.5, lambda log_weights: np.exp(log_weights)),
        ("rise with the value", 36, 1.0, lambda log_weights: log_weights),
        ("fall with the value", 100, 0.5, lambda log_weights: -log_weights),
        ("follow the value", 10, 0.5, lambda log_weights: np.exp(log_weights)),
    ):
        sample = spread * np.random.default_rng(0).normal(size=1_000_000)
        truth = float(np.average(compute_means(sample), weights=np.exp(sample)))

        def estimate(
            rng: np.random.Generator,
            n: int = n,
            spread: float = spread,
            compute_means: Callable[[Floats], Floats] = compute_means,
            truth: float = truth,
        ) -> Estimate:
            log_weights = spread * rng.normal(size=n)
            values = compute_means(log_weights) + 0.3 * rng.normal(size=n)
            return estimate_mean_or_share(values, null_value=truth, weights=np.exp(log_weights))

        yield Design(f"weights {name}, n = {n}, spread {spread:g}", truth, estimate)
    for share, n in ((0.9, 36), (0.5, 36), (0.3, 36), (0.3, 10)):
        weights = np.array([share, *[(1 - share) / (n - 1)] * (n - 1)])
        yield build_design(
            f"one of {n} clusters has {share:.0%} of the weight",
            0.0,
            lambda rng, n=n: rng.normal(size=n),
            weights=weights,
        )


def list_two_way_designs() -> Iterator[Design]:
    """List means and shares of values that share rows and columns."""
    for row_count, column_count, kind in (
        (30, 2, "normal"),
        (30, 3, "normal"),
        (30, 5, "normal"),
        (12, 15, "normal"),
        (12, 15, "exponential"),
        (40, 8, "exponential"),
        (20, 20, "share 0.05"),
        (20, 20, "independent"),
    ):
        rows, columns = (each.ravel() for each in np.indices((row_count, column_count)))

        def draw(
            rng: np.random.Generator,
            rows: Floats = rows,
            columns: Floats = columns,
            kind: str = kind,
        ) -> Floats:
            sizes = rows.max() + 1, columns.max() + 1
            if kind == "exponential":
                effects = [rng.exponential(size=size) - 1 for size in sizes]
            else:
                effects = [rng.normal(size=size) * (kind != "independent") for size in sizes]
            values = effects[0][rows] + effects[1][columns] + rng.normal(size=len(rows))
            # The sum of three standard normal numbers is below this in 5 % of cases.
            return (values < -1.6448536 * np.sqrt(3)).astype(float) if "share" in kind else values

        yield build_design(
            f"two-way, {row_count} x {column_count}, {kind}",
            0.05 if "share" in kind else 0.0,
            draw,
            rows,
            crossed_clusters=columns.tolist(),
            is_share="share" in kind,
        )


def draw_member_scores(
    rng: np.random.Generator, area: float, spread: float, sizes: Sequence[Floats]
) -> list[Floats]:
    """Draw normal scores of members and others, in clusters of near-duplicates.

    Args:
        rng: Generator of random numbers.
        area: True area under the curve.
        spread: Standard deviation of members; that of others is 1.
        sizes: Sizes of the clusters of either side, (clusters,) each. Scores of clusters of more
            than one text differ by a fifth of the spread.
    """
    from scipy.special import ndtri

    noise = 0.2 if max(each.max() for each in sizes) > 1 else 0.0
    shift = float(ndtri(area)) * np.sqrt((1 + spread**2) * (1 + noise**2))
    samples = []
    for side_sizes, side_spread, mean in zip(sizes, (spread, 1.0), (shift, 0.0), strict=True):
        scores = np.repeat(rng.normal(size=len(side_sizes)), side_sizes)
        scores += noise * rng.normal(size=len(scores))
        samples.append(mean + side_spread * scores)
    return samples


def list_area_designs() -> Iterator[Design]:
    """List areas under the ROC curve of few texts, of unequal spreads and of near-duplicates."""
    areas, counts = (0.5, 0.7, 0.85, 0.93, 0.98), (8, 12, 20, 50)
    # Area, spread, sizes of the clusters of members and of others, end of the name.
    designs: list[tuple[float, float, Floats, Floats, str]] = [
        (area, 1.0, np.ones(members, int), np.ones(others, int), "")
        for area in areas
        for members, others in combinations_with_replacement(counts, 2)
    ]
    designs += [
        (area, 2.0, np.ones(members, int), np.ones(others, int), ", spread 2")
        for area in areas
        for members, others in ((8, 20), (12, 12), (12, 50), (20, 8), (50, 12), (50, 50))
    ]
    designs += [
        (area, 1.0, np.full(members, 4), np.full(others, 4), " clusters of 4 near copies")
        for area in areas
        for members, others in ((8, 20), (12, 12), (12, 50), (20, 20), (50, 50))
    ]
    designs += [
        (area, 1.0, np.resize([1, 1, 2, 4], 20), np.ones(others, int), " in clusters of 1 to 4")
        for area in (0.5, 0.85, 0.93)
        for others in (20, 50)
    ]
    for area, spread, members, others, kind in designs:
        names = (
            np.repeat(np.arange(len(members)), members),
            np.repeat(np.arange(len(others)) + len(members), others),
        )

        def estimate(
            rng: np.random.Generator,
            area: float = area,
            spread: float = spread,
            sizes: tuple[Floats, Floats] = (members, others),
            names: tuple[Floats, Floats] = names,
        ) -> Estimate:
            scores = draw_member_scores(rng, area, spread, sizes)
            return estimate_roc_auc(*scores, (names[0].tolist(), names[1].tolist()))

        yield Design(
            f"area {area:g}, {len(members)} and {len(others)}{kind}",
            area,
            estimate,
            # The wider of two intervals covers more than either.
            spread != 1 or min(len(members), len(others)) == 8,
        )


def list_toxicity_designs() -> Iterator[Design]:
    """List models as toxic as their corpus, tested at k = 1; the test has no interval."""
    for reference_design in toxicity_reference.list_designs():
        if reference_design.draw_count > 1 or not reference_design.name.startswith("null: "):
            continue

        def estimate(
            rng: np.random.Generator,
            reference_design: toxicity_reference.Design = reference_design,
        ) -> Estimate:
            p = toxicity_reference.simulate_p(reference_design, rng)
            return Estimate(np.nan, np.nan, np.nan, 0, 0, 0, "no interval", 0.0, p)

        yield Design(f"toxicity, {reference_design.name.removeprefix('null: ')}", 0.0, estimate)


def format_share(value: float) -> str:
    return f"{'-':>9}" if np.isnan(value) else f"{value:9.1%}"


def print_results(designs: Iterable[Design], repetitions: int, seed: int) -> None:
    """Measure designs and print a table, then the problems."""
    headings = ("shown", "coverage", "low errs", "high errs", "p < 0.05", "ms")
    print(f"{'design':<62}" + " ".join(f"{heading:>9}" for heading in headings), flush=True)
    problems = []
    for design in designs:
        result = measure_design(design, repetitions, seed)
        print(
            f"{design.name:<62}"
            + " ".join(format_share(share) for share in result[:5])
            + f" {result.milliseconds:9.2f}",
            flush=True,
        )
        problems += [
            f"{design.name}: {problem}" for problem in list_problems(design, result, repetitions)
        ]
    print(f"outside the accepted range: {len(problems) or 'none'}")
    print("\n".join(problems))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", default=(), help="words in the names of designs")
    parser.add_argument("--repetitions", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    designs = [
        design
        for design in list_designs()
        if not options.only or any(word in design.name for word in options.only)
    ]
    print_results(designs, options.repetitions, options.seed)


if __name__ == "__main__":
    main()
