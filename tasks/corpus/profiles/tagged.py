"""Counts of the documents that rules tagged and kept, for the profile."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow.compute as pc

from tasks.contract import Artifact
from tasks.corpus.rules import tagging_rules


def count_tagged(label: str, selected: Artifact) -> list[dict[str, Any]]:
    """Return rows of the table ``tagged``, one for each tagging rule of a stage and source."""
    rules = tagging_rules(selected)
    if not rules:
        return []
    rows = selected["documents"].read(["source", "tags"])
    tags = rows["tags"].combine_chunks()
    pairs = zip(
        pc.list_flatten(tags).to_pylist(), pc.list_parent_indices(tags).to_pylist(), strict=True
    )
    sources = rows["source"].combine_chunks()
    tagged = Counter((rule, sources[owner].as_py()) for rule, owner in set(pairs))
    return [
        {
            "stage": label,
            "rule": rule,
            "source": kept["values"],
            "documents": kept["counts"],
            "tagged": tagged[rule, kept["values"]],
        }
        for rule in rules
        for kept in pc.value_counts(sources).to_pylist()
    ]
