"""Build the findings of the probes that compare groups, words and texts, for
``benchmarks.coverage``: counterfactual prompts, BOLD, HONEST, WEAT, amplification, extraction
attack."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.coverage_simulation import (
    Estimator,
    FindingName,
    Floats,
    SimulatedFinding,
    build_mean_estimator,
    build_share_finding,
    number_names,
    simulate_labels,
)
from hallmark.tasks.audits.methods.group_comparison import GroupPrompt
from hallmark.tasks.audits.methods.memorisation_ranking import estimate_precision
from hallmark.tasks.audits.probes import bold, counterfactual, honest, weat
from hallmark.tasks.measures.contrasts import estimate_group_differences
from hallmark.tasks.measures.effect_sizes import estimate_weat_effect_size
from hallmark.tasks.measures.estimates import Estimate, estimate_mean_difference
from hallmark.tasks.measures.log_odds import estimate_log_odds_slope

#: Permutations of the group labels for one interval.
PERMUTATIONS = 999


def build_text_findings(
    public_sets: Path | None, probes: Sequence[str] = ()
) -> Iterator[SimulatedFinding]:
    """Yield the findings of the probes that compare groups, words and texts.

    Args:
        public_sets: Folder with public test sets; without it their probes are skipped.
        probes: Names of probes; all if empty.
    """
    builders: dict[str, Callable[[], Iterator[SimulatedFinding]]] = {
        "counterfactual": build_counterfactual_findings,
        "amplification": build_amplification_findings,
        "extraction_attack": build_attack_findings,
    }
    if public_sets is not None:
        builders |= {
            "bold": lambda: build_bold_findings(sorted(public_sets.glob("bold_*.json.gz"))),
            "honest": lambda: build_honest_findings(public_sets / "honest_binary_en.tsv"),
            "weat": lambda: build_weat_findings(public_sets / "weat.json"),
        }
    for name, build in builders.items():
        if not probes or name in probes:
            yield from build()


def build_counterfactual_findings() -> Iterator[SimulatedFinding]:
    """Yield the score difference of one group from the others, within templates.

    Two domains are used: the one with the fewest and the one with the most prompts. The group is
    that of the domain's first prompt.
    """
    templates = counterfactual.load_prompt_templates(counterfactual.CounterfactualConfig())
    prompts_by_domain: dict[str, list[GroupPrompt]] = {}
    for prompt in counterfactual.fill_templates(counterfactual.read_builtin_groups(), templates):
        prompts_by_domain.setdefault(prompt.domain, []).append(prompt)
    for choose in (min, max):
        domain = choose(prompts_by_domain, key=lambda name: len(prompts_by_domain[name]))
        prompts = prompts_by_domain[domain]
        group = prompts[0].group
        templates_of_prompts = number_names([prompt.cluster for prompt in prompts])
        yield build_group_finding(
            FindingName("counterfactual", "score_difference", f"{domain}, {group}"),
            clusters=templates_of_prompts,
            in_group=np.array([prompt.group == group for prompt in prompts]),
            estimate=build_group_estimator(
                [prompt.group for prompt in prompts],
                group,
                range(len(prompts)),
                strata=templates_of_prompts.tolist(),
            ),
        )


def build_group_estimator(
    groups: list[str], group: str, clusters: Sequence[int], strata: list[int] | None = None
) -> Estimator:
    """Build an estimator of the difference of a group from the others.

    Args:
        groups: Group of each value.
        group: The group whose difference is estimated.
        clusters: Cluster of each value.
        strata: Stratum of each value, within which groups are compared; None for a single stratum.
    """

    def estimate(values: Floats, seed: int) -> Estimate:
        return estimate_group_differences(
            values, groups, clusters, strata, permutations=PERMUTATIONS, seed=seed
        )[group]

    return estimate


def build_group_finding(
    name: FindingName,
    *,
    clusters: Floats,
    in_group: Floats,
    estimate: Estimator,
    transform: Callable[[Floats], Floats] = lambda normals: normals,
    harder_side: int = 1,
) -> SimulatedFinding:
    """Build the finding of the difference of a group from the others.

    Args:
        name: Name of the finding.
        clusters: Cluster of each value.
        in_group: Whether each value belongs to the group.
        estimate: Estimator of the difference.
        transform: Turns normal numbers into values of the wanted distribution.
        harder_side: Direction in which an effect is harder to detect.
    """
    return SimulatedFinding(
        name,
        clusters,
        0.0,
        0.0,
        lambda normals, mean: transform(normals) + mean * in_group,
        estimate,
        harder_side=harder_side,
    )


def build_bold_findings(paths: Sequence[Path]) -> Iterator[SimulatedFinding]:
    """Yield findings of the group with the fewest names in each of BOLD's domains.

    The findings are its toxic share and the difference of its scores from the others', for a normal
    and for a skewed distribution of scores.
    """
    all_prompts = bold.select_prompts(bold.BoldConfig(prompts=tuple(paths))).prompts
    for domain in dict.fromkeys(prompt.domain for prompt in all_prompts):
        prompts = [prompt for prompt in all_prompts if prompt.domain == domain]
        names = number_names([(prompt.group, prompt.cluster) for prompt in prompts])
        groups = np.array([prompt.group for prompt in prompts])
        name_counts = {group: len({*names[groups == group]}) for group in {*groups}}
        smallest_group = min((n, group) for group, n in name_counts.items() if n > 1)[1]
        in_group = groups == smallest_group
        yield build_share_finding(
            FindingName("bold", "toxic_share", smallest_group),
            number_names(names[in_group].tolist()),
            truth=0.1,
            null=np.nan,
        )
        estimate = build_group_estimator(
            np.where(in_group, smallest_group, "others").tolist(), smallest_group, names.tolist()
        )
        # In a distribution that is skewed to the right, it is harder to detect that the mean of few
        # values is lower than the mean of many.
        for metric, transform, harder_side in (
            ("difference", lambda normals: normals, 1),
            ("difference, skewed", np.exp, -1),
        ):
            yield build_group_finding(
                FindingName("bold", metric, smallest_group),
                clusters=names,
                in_group=in_group,
                estimate=estimate,
                transform=transform,
                harder_side=harder_side,
            )


def build_honest_findings(path: Path) -> Iterator[SimulatedFinding]:
    """Yield HONEST's share of hurtful completions, and one group's difference from the others.

    Values are clustered by the person's name and by the sentence.
    """
    rows = [*honest.read_honest_templates([path])]
    names, sentences = (
        number_names([row[column] for row in rows]) for column in ("cluster", "crossed_cluster")
    )
    for mean in (0.05, 0.3):
        yield SimulatedFinding(
            FindingName("honest", f"hurtful at {mean:g}", ""),
            names,
            mean,
            np.nan,
            simulate_labels,
            build_mean_estimator(names, is_share=True, crossed_clusters=sentences.tolist()),
            is_share=True,
            crossed_clusters=sentences,
        )
    category = rows[0]["category"]
    in_category = np.array([row["category"] == category for row in rows])

    def estimate(values: Floats, seed: int) -> Estimate:
        table = pa.table({"cluster": names, "value": values})
        means = [
            honest.average_by_name(table.filter(selected))
            for selected in (in_category, ~in_category)
        ]
        null_variance = float(np.var(np.concatenate(means))) or np.nan
        return estimate_mean_difference(*means, null_variance=null_variance)

    yield SimulatedFinding(
        FindingName("honest", "hurtful_excess_over_others", category),
        names,
        0.0,
        np.nan,
        lambda normals, mean: simulate_labels(normals, 0.3),
        estimate,
    )


def build_weat_findings(path: Path) -> Iterator[SimulatedFinding]:
    """Yield WEAT's effect size for the test with the fewest words, with normal associations."""
    tests = weat.read_word_lists_by_test(path)
    word_lists = min(tests.values(), key=lambda lists: len(lists.x) + len(lists.y))
    x, y = word_lists.x, word_lists.y
    in_first_list = np.arange(len(x) + len(y)) < len(x)

    def simulate(normals: Floats, mean: float) -> Floats:
        # The effect size is in standard deviations of all words, whose variance includes the shift.
        n = len(in_first_list)
        return normals + in_first_list * mean / np.sqrt(1 - mean**2 * len(x) * len(y) / n**2)

    yield SimulatedFinding(
        FindingName("weat", "effect_size", f"{len(x)} and {len(y)} words"),
        np.arange(len(in_first_list)),
        0.0,
        0.0,
        simulate,
        lambda values, seed: estimate_weat_effect_size(values, in_first_list),
    )


def build_amplification_findings() -> Iterator[SimulatedFinding]:
    """Yield the slope of log-odds of a model that reproduces its text, and a share of women.

    There are 30 occupations, four prompts and ten continuations of each.
    """
    from scipy.special import expit

    occupation_count, prompt_count, draw_count = 30, 4, 10
    text_log_odds = np.random.default_rng(0).normal(size=occupation_count)
    clusters = np.repeat(np.arange(occupation_count), prompt_count * draw_count)
    strata = np.tile(np.repeat(np.arange(prompt_count), draw_count), occupation_count)
    predictor = text_log_odds[clusters]
    yield SimulatedFinding(
        FindingName("amplification", "log_odds_amplification", ""),
        clusters,
        1.0,
        1.0,
        lambda normals, mean: simulate_labels(normals, expit(mean * predictor)),
        lambda values, seed: estimate_log_odds_slope(
            values, predictor, strata.tolist(), clusters.tolist()
        ),
    )
    yield build_share_finding(
        FindingName("amplification", "women_share", ""), clusters, truth=0.4, null=0.4
    )


def build_attack_findings() -> Iterator[SimulatedFinding]:
    """Yield the share of generated texts that contain training text, and a precision.

    The precision is that of the 100 highest of 400 scores, which are independent of the labels.
    """
    yield build_share_finding(
        FindingName("extraction_attack", "with training text", ""),
        np.arange(176),
        truth=0.2,
        null=np.nan,
    )
    has_training_text = np.arange(400) % 5 == 0
    yield SimulatedFinding(
        FindingName("extraction_attack", "precision", "100 of 400"),
        np.arange(400),
        0.2,
        np.nan,
        lambda normals, mean: normals,
        lambda values, seed: estimate_precision(values, has_training_text, 100),
        is_share=True,
    )
