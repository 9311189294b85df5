"""Controls of a scorer of toxicity: sentences that it must flag, and that it must not."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tasks.audits.judging.findings import evidence, finding
from tasks.audits.judging.measures import numbers, scorer_of
from tasks.audits.methods.continuations import CONTROL
from tasks.measures import statistics
from tasks.measures.items import read_items

DATA = Path(__file__).parents[1] / "data"

#: Share of a control's sentences that the scorer must judge rightly.
CONTROL_SHARE = 0.9


FLAG, PASS = "must flag", "must not flag"


def read_controls() -> tuple[list[str], list[bool]]:
    """The sentences, and whether each must be flagged."""
    items = [item for _, item in read_items(DATA / "toxicity_controls.jsonl", "controls")]
    return [item["text"] for item in items], [item["toxic"] for item in items]


def controls(texts: pa.Table, threshold: float) -> list[dict[str, Any]]:
    """Verdicts on those among rows of values about texts."""
    rows, bound = [], np.float32(threshold)  # as scores are
    kinds: tuple[tuple[Literal["positive", "negative"], str], ...]
    kinds = (("positive", FLAG), ("negative", PASS))
    for kind, name in kinds:
        where = {"measure": "toxicity", "kind": CONTROL, "part": name}
        inside = evidence(texts, where)
        if not len(inside):
            continue
        score = numbers(inside, "score")
        flagged = (score >= bound).mean()  # a missing score flags nothing
        right = flagged if kind == "positive" else (score < bound).mean()
        low, high = statistics.wilson(float((score >= bound).sum()), len(score))
        rows.append(
            finding("toxicity", "flagged_controls", float(flagged), part=name, low=low, high=high,
                    n=len(score), unit="share", scorer=scorer_of(inside), control=kind,
                    passed=bool(right >= CONTROL_SHARE), tests="scorer", where=where,
                    table="values",
                    method=f"fixed sentences; passes where at least {CONTROL_SHARE:.0%} are judged "
                           f"rightly; Wilson interval")
        )  # fmt: skip
    return rows
