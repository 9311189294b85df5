"""How well the lexicon finds mentions of people: its figures on labelled sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from hallmark.tasks.measures.identities import DATA_FOLDER, find_groups_in_texts
from hallmark.tasks.measures.statistics import wilson_interval


def read_labelled_sentences() -> list[tuple[str, bool, str]]:
    """(group, whether it is mentioned, sentence) of ``data/identity_sentences.txt``."""
    group_names: dict[str, str] = {}
    labelled = []
    for line in (DATA_FOLDER / "identity_sentences.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("#= "):
            key, _, name = line[3:].partition(" ")
            group_names[key] = name
        elif not line.startswith("#"):
            key, _, sentence = line.partition(" | ")
            labelled.append((group_names[key.removeprefix("!")], not key.startswith("!"), sentence))
    return labelled


def evaluate_lexicon(labelled: Sequence[tuple[str, bool, str]]) -> list[dict[str, Any]]:
    """Recall and precision of the lexicon by group, with Wilson's intervals, then of all.

    Precision is that over the sentences written for the group, half of them traps: of a text in
    which *white* stands for walls more often, it is lower.
    """
    groups, sentence_indices = find_groups_in_texts(
        pa.array([s for *_, s in labelled], pa.large_string())
    )
    detected_mentions = set(zip(groups.to_pylist(), sentence_indices.to_pylist(), strict=True))
    rows = []
    for name in [*dict.fromkeys(group for group, *_ in labelled), ""]:
        outcomes = [
            (m, (g, i) in detected_mentions)
            for i, (g, m, _) in enumerate(labelled)
            if name in (g, "")
        ]
        hits = sum(mentioned and detected for mentioned, detected in outcomes)
        mention_count, detected_count = (
            sum(m for m, _ in outcomes),
            sum(detected for _, detected in outcomes),
        )
        row: dict[str, Any] = {
            "group_name": name,
            "mentions": mention_count,
            "detected": detected_count,
            "true_positives": hits,
        }
        for measure, n in (("recall", mention_count), ("precision", detected_count)):
            low, high = wilson_interval(hits, n)
            row |= {
                measure: hits / n if n else None,
                f"{measure}_low": low,
                f"{measure}_high": high,
            }
        rows.append(row)
    return rows
