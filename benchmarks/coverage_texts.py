"""Lines of ``benchmarks.coverage`` for the probes that compare groups, words and texts:
counterfactual prompts, BOLD, HONEST, WEAT, amplification, extraction attack."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.coverage_draws import Floats, Line, labels, of_estimate, of_share, places
from hallmark.tasks.audits.methods.group_comparison import GroupPrompt
from hallmark.tasks.audits.methods.memorisation_ranking import estimate_precision
from hallmark.tasks.audits.probes import bold, counterfactual, honest, weat
from hallmark.tasks.measures.contrasts import estimate_group_differences
from hallmark.tasks.measures.effect_sizes import estimate_weat_effect_size
from hallmark.tasks.measures.estimates import Estimate, estimate_mean_difference
from hallmark.tasks.measures.log_odds import estimate_log_odds_slope

#: Relabellings behind an interval of groups.
RELABELLED = 999


def text_lines(data: Path | None, only: Sequence[str] = ()) -> Iterator[Line]:
    """Of all these probes, or of some; of public sets those in ``data``."""
    made: dict[str, Callable[[], Iterator[Line]]] = {
        "counterfactual": of_counterfactual,
        "amplification": of_amplification,
        "extraction_attack": of_attack,
    }
    if data is not None:
        made |= {
            "bold": lambda: of_bold(sorted(data.glob("bold_*.json.gz"))),
            "honest": lambda: of_honest(data / "honest_binary_en.tsv"),
            "weat": lambda: of_weat(data / "weat.json"),
        }
    for name, probe in made.items():
        if not only or name in only:
            yield from probe()


def of_counterfactual() -> Iterator[Line]:
    """Of the domains with the fewest groups and with the most, the first group beside the others,
    within templates."""
    templates = counterfactual.load_prompt_templates(counterfactual.CounterfactualConfig())
    prompts = [*counterfactual.fill_templates(counterfactual.read_builtin_groups(), templates)]
    domains: dict[str, list[GroupPrompt]] = {}
    for prompt in prompts:
        domains.setdefault(prompt.domain, []).append(prompt)
    for pick in (min, max):
        domain = pick(domains, key=lambda name: len(domains[name]))
        rows = domains[domain]
        groups, first = [row.group for row in rows], rows[0].group
        strata = places([row.cluster for row in rows])
        member = np.array(groups) == first

        def made(
            values: Floats,
            seed: int,
            groups: list[str] = groups,
            strata: Floats = strata,
            first: str = first,
        ) -> Estimate:
            return estimate_group_differences(
                values,
                groups,
                range(len(values)),
                strata.tolist(),
                permutations=RELABELLED,
                seed=seed,
            )[first]

        yield Line(
            ("counterfactual", "score_difference", f"{domain}, {first}"),
            strata,
            0.0,
            0.0,
            lambda z, mean, member=member: z + mean * member,
            made,
        )


def of_bold(paths: Sequence[Path]) -> Iterator[Line]:
    """Of each domain the group of the fewest names: its toxic share, and scores beside the others',
    of a normal and of a skewed distribution."""
    asked = bold.select_prompts(bold.BoldConfig(prompts=tuple(paths))).prompts
    for domain in dict.fromkeys(prompt.domain for prompt in asked):
        rows = [prompt for prompt in asked if prompt.domain == domain]
        names = places([(row.group, row.cluster) for row in rows])
        groups = np.array([row.group for row in rows])
        sizes = {group: len({*names[groups == group]}) for group in {*groups}}
        least = min((n, group) for group, n in sizes.items() if n > 1)[1]
        member = groups == least
        yield of_share(("bold", "toxic_share", least), places(names[member].tolist()), 0.1, np.nan)
        beside = np.where(member, least, "others").tolist()

        def made(
            values: Floats,
            seed: int,
            beside: list[str] = beside,
            names: Floats = names,
            least: str = least,
        ) -> Estimate:
            return estimate_group_differences(
                values, beside, names.tolist(), permutations=RELABELLED, seed=seed
            )[least]

        # Of what is skewed to the right, the mean of a few is harder to find below that of many.
        for metric, draw, side in (
            ("difference", lambda z: z, 1),
            ("difference, skewed", np.exp, -1),
        ):
            yield Line(
                ("bold", metric, least),
                names,
                0.0,
                0.0,
                lambda z, mean, draw=draw, member=member: draw(z) + mean * member,
                made,
                side=side,
            )


def of_honest(path: Path) -> Iterator[Line]:
    """The share of completions that are hurtful, of people named and sentences, and how much more
    often a group's than the others'."""
    rows = [*honest.read_honest_templates([path])]
    named, raw = (places([row[name] for row in rows]) for name in ("cluster", "crossed_cluster"))
    for mean in (0.05, 0.3):
        made = of_estimate(named, is_share=True, crossed_clusters=raw.tolist())
        yield Line(
            ("honest", f"hurtful at {mean:g}", ""),
            named,
            mean,
            np.nan,
            labels,
            made,
            share=True,
            crossed=raw,
        )
    inside = np.array([row["category"] for row in rows]) == rows[0]["category"]

    def apart(values: Floats, seed: int) -> Estimate:
        rows = pa.table({"cluster": named, "value": values})
        sides = [honest.average_by_name(rows.filter(side)) for side in (inside, ~inside)]
        spread = float(np.var(np.concatenate(sides))) or np.nan
        return estimate_mean_difference(*sides, null_variance=spread)

    yield Line(
        ("honest", "hurtful_excess_over_others", rows[0]["category"]),
        named,
        0.0,
        np.nan,
        lambda z, mean: labels(z, 0.3),
        apart,
    )


def of_weat(path: Path) -> Iterator[Line]:
    """The shortest lists of words; their association is normal."""
    tests = weat.read_word_lists_by_test(path)
    lists = min(tests.values(), key=lambda lists: len(lists.x) + len(lists.y))
    x, y = lists.x, lists.y
    first = np.arange(len(x) + len(y)) < len(x)

    def moved(z: Floats, mean: float) -> Floats:  # d in standard deviations of all
        return z + first * mean / np.sqrt(1 - mean**2 * len(x) * len(y) / len(first) ** 2)

    yield Line(
        ("weat", "effect_size", f"{len(x)} and {len(y)} words"),
        np.arange(len(first)),
        0.0,
        0.0,
        moved,
        lambda values, seed: estimate_weat_effect_size(values, first),
    )


def of_amplification() -> Iterator[Line]:
    """The slope of log-odds of a model that mirrors its text, of 30 occupations behind four
    prompts, and shares of women."""
    from scipy.special import expit

    people, prompts, draws = 30, 4, 10
    lean = np.random.default_rng(0).normal(size=people)
    cluster = np.repeat(np.arange(people), prompts * draws)
    strata = np.tile(np.repeat(np.arange(prompts), draws), people)
    over = lean[cluster]

    def slope(values: Floats, seed: int) -> Estimate:
        return estimate_log_odds_slope(values, over, strata.tolist(), cluster.tolist())

    yield Line(
        ("amplification", "log_odds_amplification", ""),
        cluster,
        1.0,
        1.0,
        lambda z, mean: labels(z, expit(mean * over)),
        slope,
    )
    yield of_share(("amplification", "women_share", ""), cluster, 0.4, 0.4)


def of_attack() -> Iterator[Line]:
    """Texts of one sampler that hold training text; and the precision of a score that tells
    nothing, of 100 among 400 texts."""
    yield of_share(("extraction_attack", "with training text", ""), np.arange(176), 0.2, np.nan)
    hits = np.arange(400) % 5 == 0
    yield Line(
        ("extraction_attack", "precision", "100 of 400"),
        np.arange(400),
        0.2,
        np.nan,
        lambda z, mean: z,
        lambda values, seed: estimate_precision(values, hits, 100),
        share=True,
    )
