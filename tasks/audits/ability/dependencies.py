"""Dependencies over a distance: in how many minimal pairs a reader prefers what it should.

The pairs, of agreement and of garden paths, are those of ``minimal_pairs.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from tasks.audits.ability.minimal_pairs import AGREEMENT, GARDEN_PATH, SUBJECT
from tasks.audits.judging.findings import finding
from tasks.measures.estimates import estimate

HOW = {
    AGREEMENT: "share of pairs whose right sentence is the more probable",
    GARDEN_PATH: "share of pairs in which the late verb is the less probable behind the ambiguous "
    "beginning",
}


def measure_dependencies(rows: Sequence[dict[str, Any]], audit: str) -> list[dict[str, Any]]:
    """Findings agreement_accuracy and garden_path_share: by reader, and by distance.

    Control, negative: a bigram model agrees by chance, in exactly half of the pairs, wherever
    words stand between noun and verb."""

    def found(chosen: list[dict[str, Any]], where: Mapping[str, Any], **more: Any):  # type: ignore[no-untyped-def]
        values, clusters = [r["correct"] for r in chosen], [r["cluster"] for r in chosen]
        share = estimate(values, clusters, share=True, unit="nouns")
        kind = chosen[0]["phenomenon"]
        metric = {AGREEMENT: "agreement_accuracy", GARDEN_PATH: "garden_path_share"}[kind]
        return finding(
            audit, metric, share.value, low=share.low, high=share.high, n=share.n,
            unit="share", method=f"{HOW[kind]}; ties count half; {share.method}", table="pairs",
            where={"phenomenon": kind, **where},
            worse="down" if where["reader"] == SUBJECT else "", order="difference", **more,
        )  # fmt: skip

    findings = []
    for (kind, reader), group in groupby(rows, lambda row: (row["phenomenon"], row["reader"])):
        chosen = list(group)
        findings.append(found(chosen, {"reader": reader}, part=reader))
        for distance in sorted({row["distance"] for row in chosen}):
            there = [row for row in chosen if row["distance"] == distance]
            where = {"reader": reader, "distance": distance}
            findings.append(found(there, where, part=reader, tags={"distance": distance}))
        far = [row for row in chosen if row["distance"]]
        if kind == AGREEMENT and reader == "bigram":
            passed = abs(float(np.mean([row["correct"] for row in far])) - 0.5) < 1e-9
            apart = {"reader": reader, "distance": sorted({row["distance"] for row in far})}
            findings.append(found(far, apart, part="bigram, words between", control="negative",
                                  passed=passed, tests="baseline"))  # fmt: skip
    return findings
