"""Measure recall and precision of the built-in identity lexicon on labelled sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from hallmark.tasks.measures.identities import DATA_FOLDER, find_groups_in_texts
from hallmark.tasks.measures.statistics import wilson_interval


class LabelledSentence(NamedTuple):
    """A sentence, labelled by whether it mentions a group."""

    group_name: str
    is_mentioned: bool
    """Whether the sentence mentions the group; otherwise a term of it means something else."""
    sentence: str


def read_labelled_sentences() -> list[LabelledSentence]:
    """Read `data/identity_sentences.txt`."""
    group_names: dict[str, str] = {}
    labelled = []
    for line in (DATA_FOLDER / "identity_sentences.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("#= "):
            key, _, name = line[3:].partition(" ")
            group_names[key] = name
        elif not line.startswith("#"):
            key, _, sentence = line.partition(" | ")
            group_name = group_names[key.removeprefix("!")]
            labelled.append(LabelledSentence(group_name, not key.startswith("!"), sentence))
    return labelled


def build_lexicon_accuracy_rows(sentences: Sequence[LabelledSentence]) -> list[dict[str, Any]]:
    """Compute the lexicon's recall and precision with Wilson intervals, by group and overall.

    Half of the sentences of each group are traps, in which a term does not mean people. In texts
    where *white* more often describes walls, precision is lower than here.

    Args:
        sentences: Rows of `read_labelled_sentences`.

    Returns:
        A row for each group; the last one, with an empty group name, covers all sentences.
    """
    groups, sentence_indices = find_groups_in_texts(
        pa.array([sentence for *_, sentence in sentences], pa.large_string())
    )
    detected_mentions = set(zip(groups.to_pylist(), sentence_indices.to_pylist(), strict=True))
    rows = []
    for name in [*dict.fromkeys(group for group, *_ in sentences), ""]:
        outcomes = [
            (is_mentioned, (group, index) in detected_mentions)
            for index, (group, is_mentioned, _) in enumerate(sentences)
            if name in (group, "")
        ]
        hits = sum(is_mentioned and is_detected for is_mentioned, is_detected in outcomes)
        mention_count = sum(is_mentioned for is_mentioned, _ in outcomes)
        detected_count = sum(is_detected for _, is_detected in outcomes)
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
