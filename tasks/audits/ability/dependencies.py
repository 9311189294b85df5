"""Compute findings about long-distance dependencies: the share of minimal pairs read correctly.

The pairs, of agreement and of garden paths, are defined in ``minimal_pairs.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from hallmark.tasks.audits.ability.minimal_pairs import AGREEMENT, GARDEN_PATH, MODEL
from hallmark.tasks.audits.judging.findings import Finding, build_finding
from hallmark.tasks.contract import Row
from hallmark.tasks.measures.estimates import estimate_mean_or_share

METHOD_BY_PHENOMENON = {
    AGREEMENT: "share of pairs in which the grammatical sentence is more probable",
    GARDEN_PATH: "share of pairs in which the second verb is less probable after the ambiguous "
    "beginning than after the unambiguous beginning",
}


def compute_dependency_findings(pair_rows: Sequence[Row], audit: str) -> list[Finding]:
    """Compute the findings agreement_accuracy and garden_path_share, by system and distance.

    Negative control: a bigram model must be correct in exactly half of the agreement pairs with
    words between noun and verb.
    """

    def build_accuracy_finding(
        selected_rows: list[Row], evidence_filter: Mapping[str, Any], **options: Any
    ) -> Finding:
        outcomes, clusters = (
            [row["preference_score"] for row in selected_rows],
            [row["cluster"] for row in selected_rows],
        )
        accuracy = estimate_mean_or_share(outcomes, clusters, is_share=True, unit="nouns")
        phenomenon = selected_rows[0]["phenomenon"]
        metric = {AGREEMENT: "agreement_accuracy", GARDEN_PATH: "garden_path_share"}[phenomenon]
        return build_finding(
            audit,
            metric,
            accuracy.value,
            low=accuracy.low,
            high=accuracy.high,
            n=accuracy.n,
            unit="share",
            method=f"{METHOD_BY_PHENOMENON[phenomenon]}; ties count as one half; {accuracy.method}",
            evidence_table="pairs",
            evidence_filter={"phenomenon": phenomenon, **evidence_filter},
            worse_when="down" if evidence_filter["system"] == MODEL else "",
            evidence_order="log_prob_difference",
            **options,
        )

    findings = []
    for (phenomenon, system), row_group in groupby(
        pair_rows, lambda row: (row["phenomenon"], row["system"])
    ):
        system_rows = list(row_group)
        findings.append(build_accuracy_finding(system_rows, {"system": system}, part=system))
        for distance in sorted({row["distance"] for row in system_rows}):
            distance_rows = [row for row in system_rows if row["distance"] == distance]
            evidence_filter = {"system": system, "distance": distance}
            findings.append(
                build_accuracy_finding(
                    distance_rows, evidence_filter, part=system, tags={"distance": distance}
                )
            )
        distant_rows = [row for row in system_rows if row["distance"]]
        if phenomenon == AGREEMENT and system == "bigram":
            passed = (
                abs(float(np.mean([row["preference_score"] for row in distant_rows])) - 0.5) < 1e-9
            )
            distant_filter = {
                "system": system,
                "distance": sorted({row["distance"] for row in distant_rows}),
            }
            findings.append(
                build_accuracy_finding(
                    distant_rows,
                    distant_filter,
                    part="bigram, words between",
                    control="negative",
                    passed=passed,
                    control_target="baseline",
                )
            )
    return findings
