"""Count the documents that rules tagged and kept, for the profile."""

from __future__ import annotations

from collections import Counter

import pyarrow.compute as pc

from hallmark.tasks.contract import Artifact, Row
from hallmark.tasks.corpus.selection_rules import read_tagging_rule_names


def build_tag_count_rows(stage_label: str, selection: Artifact) -> list[Row]:
    """Build the rows of the ``tag_counts`` table for the tagging rules and sources of a stage."""
    rules = read_tagging_rule_names(selection)
    if not rules:
        return []
    rows = selection["documents"].read(["source", "tags"])
    tags = rows["tags"].combine_chunks()
    row_tags = zip(
        pc.list_flatten(tags).to_pylist(), pc.list_parent_indices(tags).to_pylist(), strict=True
    )
    sources = rows["source"].combine_chunks()
    tagged_counts = Counter((rule, sources[row].as_py()) for rule, row in set(row_tags))
    return [
        {
            "stage": stage_label,
            "rule": rule,
            "source": source_count["values"],
            "documents": source_count["counts"],
            "tagged_documents": tagged_counts[rule, source_count["values"]],
        }
        for rule in rules
        for source_count in pc.value_counts(sources).to_pylist()
    ]
