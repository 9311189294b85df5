"""Count in how many demo corpora Hallmark finds the truths that are planted in the invented town.

    python -m benchmarks.demo_recovery [--seeds 100 101 ...]

For each seed the town of the demo is composed anew and curated with the demo's settings, up to the
profile. A truth is found if Hallmark names what was planted; anything else that it names is a false
finding. Prints for each truth and seed what was named, and the totals.

A truth that only a trained model shows is one more entry of TRUTHS with a later last stage.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import hallmark
from hallmark.flows.config import read_tree_with_rebased_paths
from hallmark.flows.runs import Run
from hallmark.tasks.corpus.profiles.group_sentiment import is_more_negative
from hallmark.tasks.corpus.town.documents import TownRates

DEFAULT_SEEDS = range(100, 110)


@dataclass(frozen=True)
class Truth:
    """A truth about the demo corpus, and how Hallmark's findings about it are read.

    Attributes:
        name: What is true, for the table.
        planted: What Hallmark should name.
        last_stage: The last stage that the findings need.
        read_findings: Returns a description of each finding of a run, by what it names.
    """

    name: str
    planted: frozenset[str]
    last_stage: str
    read_findings: Callable[[Run], dict[str, str]]


def read_negative_groups(run: Run) -> dict[str, str]:
    """Return the groups about which sentences are more negative than about others."""
    return {
        row["group_name"]: f"{row['difference']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f}), "
        f"q {row['q']:.2g}, n = {row['sentences']}"
        for row in run["profile"]["group_sentiment"].read().to_pylist()
        if is_more_negative(row)
    }


def list_maligned_peoples() -> frozenset[str]:
    """Return the peoples about whom the town states more negative opinions than about others."""
    rates = TownRates()
    return frozenset(
        people
        for people, share in rates.negative_opinions_by_group.items()
        if share > rates.negative_opinions
    )


TRUTHS = (
    Truth(
        "sentences about a people are more negative",
        list_maligned_peoples(),
        "profile",
        read_negative_groups,
    ),
)


def build_config(seed: int) -> dict[str, Any]:
    """Return the config of the demo with another town."""
    config = deepcopy(read_tree_with_rebased_paths("demo"))
    for source in config["ingest"]["sources"]:
        if source["kind"] == "town":
            source["seed"] = seed
    return config


def main() -> None:
    parser = argparse.ArgumentParser(prog="demo_recovery", description=__doc__)
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[*DEFAULT_SEEDS], help="seeds of the town"
    )
    seeds = parser.parse_args().seeds
    for truth in TRUTHS:
        planted = ", ".join(sorted(truth.planted))
        print(f"{truth.name}: {planted}\n\n| seed | found | false findings |\n|---|---|---|")
        found_count = false_count = 0
        for seed in seeds:
            with tempfile.TemporaryDirectory() as store:
                run = hallmark.run(build_config(seed), until=truth.last_stage, store=store)
                findings = truth.read_findings(run)
            found, false = (
                [
                    f"{name} {text}"
                    for name, text in findings.items()
                    if (name in truth.planted) == is_planted
                ]
                for is_planted in (True, False)
            )
            found_count += {*findings} >= truth.planted
            false_count += len(false)
            print(f"| {seed} | {'; '.join(found) or '–'} | {'; '.join(false) or '–'} |", flush=True)
        print(f"\nfound with {found_count} of {len(seeds)} seeds; false findings: {false_count}\n")


if __name__ == "__main__":
    main()
