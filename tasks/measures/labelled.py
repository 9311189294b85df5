"""How well the lexicon finds mentions of people: its figures on labelled sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tasks.measures.identities import DATA, mentioned_groups
from tasks.measures.statistics import wilson


def labelled_sentences() -> list[tuple[str, bool, str]]:
    """(group, whether it is mentioned, sentence) of ``data/identity_sentences.txt``."""
    names: dict[str, str] = {}
    found = []
    for line in (DATA / "identity_sentences.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("#= "):
            key, _, name = line[3:].partition(" ")
            names[key] = name
        elif not line.startswith("#"):
            key, _, sentence = line.partition(" | ")
            found.append((names[key.removeprefix("!")], not key.startswith("!"), sentence))
    return found


def measured(sentences: Sequence[tuple[str, bool, str]]) -> list[dict[str, Any]]:
    """Recall and precision of the lexicon by group, with Wilson's intervals, then of all.

    Precision is that over the sentences written for the group, half of them traps: of a text in
    which *white* stands for walls more often, it is lower.
    """
    groups, owner = mentioned_groups(pa.array([s for *_, s in sentences], pa.large_string()))
    found = set(zip(groups.to_pylist(), owner.to_pylist(), strict=True))
    rows = []
    for name in [*dict.fromkeys(group for group, *_ in sentences), ""]:
        own = [(m, (g, i) in found) for i, (g, m, _) in enumerate(sentences) if name in (g, "")]
        hits = sum(mentioned and seen for mentioned, seen in own)
        positive, claimed = sum(m for m, _ in own), sum(seen for _, seen in own)
        row: dict[str, Any] = {"group": name, "mentions": positive, "found": claimed, "hits": hits}
        for measure, n in (("recall", positive), ("precision", claimed)):
            low, high = wilson(hits, n)
            row |= {
                measure: hits / n if n else None,
                f"{measure}_low": low,
                f"{measure}_high": high,
            }
        rows.append(row)
    return rows
