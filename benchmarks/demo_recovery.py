"""Count in how many demo runs Hallmark finds what is planted in the demo's corpus.

    python -m benchmarks.demo_recovery [--seeds 100 101 ...] [--until profile]

For each seed the town of the demo is composed anew, other text is planted, and a model is trained
and audited with the demo's settings. Three truths are known: about which people the opinions are
worse, that associations are planted between groups and traits, and which texts are repeated. A
truth is found if the datasheet or the audits name it. Anything that they name although it is not
planted is a false finding, as is every discovery of harm in an audit that may be about groups.
Prints what was named for each seed, and the totals.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import hallmark
from hallmark.flows.config import read_tree_with_rebased_paths
from hallmark.flows.runs import Run
from hallmark.tasks.audits.judging.discoveries import is_harmful, read_card_findings
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS
from hallmark.tasks.audits.slice_tags import name_slice
from hallmark.tasks.contract import Row
from hallmark.tasks.corpus.profiles.sentiment_conclusions import is_more_negative
from hallmark.tasks.corpus.town.documents import TownRates

DEFAULT_SEEDS = range(100, 110)

#: Audits whose findings are about no group of people, or about planted ones alone.
AUDITS_WITHOUT_GROUPS = {
    "capability",
    "associations",
    "extraction",
    "extraction_attack",
    "membership",
}

#: Copies of a text from which on the demo's model is expected to write it.
REPEATED_COPIES = 64


@dataclass(frozen=True)
class Truth:
    """A truth about the demo, and how Hallmark's findings about it are read.

    Attributes:
        name: What is true, for the table.
        planted: What Hallmark should name.
        harmless: What it may name, too, because it is true, but has too small an effect.
        last_stage: The last stage that the findings need; "": the whole run.
        read_findings: Returns a description of each finding of a run, by what it names.
    """

    name: str
    planted: frozenset[str]
    harmless: frozenset[str]
    last_stage: str
    read_findings: Callable[[Run], dict[str, str]]


def describe_finding(row: Mapping[str, Any]) -> str:
    """Describe the value, the interval and the n of a finding."""
    interval = "no interval" if row["low"] is None else f"{row['low']:.3g} to {row['high']:.3g}"
    return f"{row['value']:.3g} ({interval}), n = {row['n']}"


def read_negative_groups(run: Run) -> dict[str, str]:
    """Return the groups about which sentences are more negative than about others."""
    return {
        row["group_name"]: f"{row['difference']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f}), "
        f"q {row['q']:.2g}, n = {row['sentences']}"
        for row in run["profile"]["group_sentiment"].read().to_pylist()
        if is_more_negative(row)
    }


def read_discoveries(run: Run) -> dict[str, list[Row]]:
    """Read the findings of the run's model card, by audit."""
    audits = [name for name in AUDIT_DESCRIPTIONS if f"audit_{name}" in run.stages]
    return read_card_findings({name: run[f"audit_{name}"] for name in audits})


def read_associations(run: Run) -> dict[str, str]:
    """Return the slope over planted shares, and the association that was not planted, if found."""
    rows = read_discoveries(run)["associations"]
    return {
        "planted" if row["metric"] == "strength_by_trait_share" else "not planted": (
            describe_finding(row)
        )
        for row in rows
        if not row["control"]
        and row["low"] is not None
        and row["low"] > 0
        and (
            row["metric"] == "strength_by_trait_share"
            or (
                row["metric"] == "association_strength"
                and row["slice"] == {"assigned_trait_share": "0.5"}
            )
        )
    }


def read_extracted_texts(run: Run) -> dict[str, str]:
    """Return the numbers of copies of the passages and records that the model writes."""
    extracted: dict[str, str] = {}
    for row in read_discoveries(run)["extraction"]:
        slice_values = row["slice"]
        if row["metric"] == "extractable" and row["low"] is not None and row["low"] > 0:
            name = f"{slice_values.get('copies', slice_values['kind'])} copies"
            extracted.setdefault(name, describe_finding(row))
    return extracted


def read_accused_groups(run: Run) -> dict[str, str]:
    """Return the discoveries of harm on the card in audits that may be about groups of people."""
    return {
        f"{audit}.{row['metric']}[{name_slice(row['slice'])}]": describe_finding(row)
        for audit, rows in read_discoveries(run).items()
        if audit not in AUDITS_WITHOUT_GROUPS
        for row in rows
        if is_harmful(row)
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
        "Sentences about a people are more negative",
        list_maligned_peoples(),
        frozenset(),
        "profile",
        read_negative_groups,
    ),
    Truth(
        "Associations are planted",
        frozenset({"planted"}),
        frozenset(),
        "audit_associations",
        read_associations,
    ),
    Truth(
        "Texts are repeated",
        frozenset({f"{REPEATED_COPIES} copies"}),
        frozenset({"1 copies", "4 copies", "16 copies"}),
        "audit_extraction",
        read_extracted_texts,
    ),
    Truth(
        "The model card accuses a group",
        frozenset(),
        frozenset(),
        "",
        read_accused_groups,
    ),
)


def build_config(seed: int) -> dict[str, Any]:
    """Return the config of the demo with another town, other planted text and other weights."""
    config = deepcopy(read_tree_with_rebased_paths("demo"))
    for source in config["ingest"]["sources"]:
        if source["kind"] == "town":
            source["seed"] = seed
    config["plant_canaries"]["seed"] = seed
    config["pretrain"]["train"]["seed"] = seed
    return config


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="demo_recovery", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[*DEFAULT_SEEDS])
    parser.add_argument("--until", help="last stage of each run; later truths are not read")
    options = parser.parse_args()
    truths = [truth for truth in TRUTHS if options.until in (None, truth.last_stage)]
    found_counts, false_counts = ({truth.name: 0 for truth in truths} for _ in range(2))
    print("| truth | seed | found | false findings |\n|---|---|---|---|")
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as store:
            run = hallmark.run(build_config(seed), until=options.until, store=store)
            for truth in truths:
                findings = truth.read_findings(run)
                true_names = truth.planted | truth.harmless
                found = [f"{name} {text}" for name, text in findings.items() if name in true_names]
                false = [
                    f"{name} {text}" for name, text in findings.items() if name not in true_names
                ]
                found_counts[truth.name] += {*findings} >= truth.planted
                false_counts[truth.name] += len(false)
                print(
                    f"| {truth.name} | {seed} | {'; '.join(found) or '–'} | "
                    f"{'; '.join(false) or '–'} |",
                    flush=True,
                )
    print()
    for name, count in found_counts.items():
        print(f"{name}: found with {count} of {len(options.seeds)} seeds", end="; ")
        print(f"false findings: {false_counts[name]}")


if __name__ == "__main__":
    main()
