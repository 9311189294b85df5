"""Count for every group what curation removed, and compare with all other documents.

Groups are the values of the dimensions in ``COLUMN_BY_DIMENSION``: people that documents mention,
dialects, languages, length classes and sources. Every group has a row, however small. Ratios are
adjusted for source, so that a group is not compared with documents of another kind.

Two outcomes are counted. A *removed* document is not in the corpus any more; this includes
duplicates, of which another copy remains. The text of a document is *lost* if no copy remains.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hallmark.tasks.contract import Artifact, Row, table_schema
from hallmark.tasks.corpus.group_effects.document_outcomes import (
    COLUMN_BY_DIMENSION,
    NOT_REMOVED,
    DocumentOutcomes,
    Group,
)
from hallmark.tasks.corpus.identities import UserLexicons, combine_with_builtin_lexicon
from hallmark.tasks.corpus.table_columns import (
    make_count_column,
    make_float_column,
    make_label_column,
    make_share_column,
)
from hallmark.tasks.measures.identities import load_builtin_lexicon
from hallmark.tasks.measures.multiple_testing import compute_false_discovery_rates
from hallmark.tasks.measures.rate_ratios import (
    LEVEL,
    ClusteredGroup,
    RateRatios,
    estimate_rate_ratios,
)
from hallmark.tasks.measures.statistics import finite_or_none, wilson_interval

BoolArray = NDArray[np.bool_]

#: A difference is significant if its false discovery rate is below this.
SIGNIFICANCE_LEVEL = 0.05

#: All documents of the corpus, as a group.
ALL_DOCUMENTS = Group("", "")

_ADJUSTED_METHOD = (
    "Mantel-Haenszel risk ratio (1959), stratified by source; not adjusted if the groups are "
    "themselves sources"
)

_GROUP_COLUMNS = (
    make_label_column(
        "dimension",
        "property by which documents are grouped: identity, dialect, language, length or "
        "source; empty in the row for all documents",
    ),
    make_label_column("slice", "group name; empty in the row for all documents"),
)


def _make_comparison_columns(prefix: str, event: str, ratio: str) -> list[pa.Field]:
    """Return the columns that compare how often a group and all others have an event."""
    return [
        make_float_column(
            f"{prefix}adjusted_ratio",
            f"{ratio}, adjusted for source: {_ADJUSTED_METHOD}. Null if the ratio is infinite (in "
            f"this case `{prefix}adjusted_low` has a value) or if no source contains documents of "
            "the group as well as other documents",
            "times",
        ),
        make_float_column(
            f"{prefix}adjusted_low",
            f"lower end of the {LEVEL:.0%} confidence interval of `{prefix}adjusted_ratio`: exact "
            "conditional interval for the ratio of two Poisson rates, with weighted counts divided "
            "by the design effect of near-duplicate clusters (Rao & Scott 1992)",
            "times",
        ),
        make_float_column(
            f"{prefix}adjusted_high",
            f"upper end of the confidence interval of `{prefix}adjusted_ratio`; null if the "
            "interval is unbounded",
            "times",
        ),
        make_float_column(
            f"{prefix}p",
            f"two-sided p-value for the null hypothesis that `{prefix}adjusted_ratio` is 1; null "
            "if no document was removed or no source contains documents of the group as well as "
            "other documents",
            "p",
        ),
        make_float_column(
            f"{prefix}q",
            "q-value of the difference: p-value adjusted to control the false discovery rate "
            "(Benjamini & Hochberg 1995) across all comparisons in this table, for removed "
            "documents and for documents with no remaining copy",
            "p",
        ),
        make_label_column(
            f"{prefix}verdict",
            f"more: documents of the group {event} significantly more often than all other "
            f"documents (`{prefix}q` below {SIGNIFICANCE_LEVEL:g}); less: significantly less "
            "often; not shown: no significant difference; not compared: `p` is null",
        ),
    ]


def _make_share_columns(prefix: str, event: str) -> list[pa.Field]:
    return [
        make_share_column(f"{prefix}_rate", f"share of the group's documents {event}"),
        make_share_column(
            f"{prefix}_rate_low",
            f"lower end of the {LEVEL:.0%} confidence interval of `{prefix}_rate`: Wilson "
            "interval, with the number of documents divided by the design effect of near-duplicate "
            "clusters",
        ),
        make_share_column(
            f"{prefix}_rate_high", f"upper end of the confidence interval of `{prefix}_rate`"
        ),
        make_share_column(f"other_{prefix}_rate", f"share of all other documents {event}"),
    ]


GROUP_REMOVAL_TABLES = {
    "group_removals": table_schema(
        "Number and share of documents removed by curation in the whole corpus and in each group, "
        "compared with all other documents. Duplicates are treated as removed. Groups of people "
        "and dialects are detected and compared only among documents in English or in an "
        "undetermined language.",
        *_GROUP_COLUMNS,
        make_count_column(
            "documents",
            "number of the group's documents that the `ingest` stage read, including documents "
            "that it removed",
        ),
        make_count_column("kept_documents", "number of the group's documents that all stages kept"),
        make_count_column(
            "removed_documents",
            "number of the group's documents that a stage removed or quarantined, including "
            "duplicates",
        ),
        make_count_column(
            "duplicate_documents",
            "number of documents that were removed as exact or near duplicates of another document",
        ),
        make_count_column("unique_documents", "`documents` minus `duplicate_documents`"),
        make_count_column(
            "lost_documents",
            "number of removed documents with no remaining copy of their text: documents removed "
            "for a reason other than being a duplicate, or duplicates whose kept copy was removed "
            "for another reason",
        ),
        make_count_column(
            "unreadable_records",
            "number of records that the `ingest` stage could not read, which are not counted as "
            "documents; null for groups other than sources, because only the source of an "
            "unreadable record is known",
            "records",
        ),
        make_count_column(
            "clusters",
            "number of near-duplicate clusters that contain documents of the group",
            "clusters",
        ),
        make_count_column("other_documents", "number of all other documents"),
        make_count_column(
            "other_removed_documents", "number of removed documents among all other documents"
        ),
        make_count_column(
            "other_lost_documents",
            "number of all other documents that were removed and have no remaining copy of their "
            "text",
        ),
        *_make_share_columns("removal", "that were removed"),
        *_make_share_columns("lost", "that were removed and have no remaining copy of their text"),
        make_float_column(
            "rate_ratio",
            "removal_rate / other_removal_rate, not adjusted for source; null if no other document "
            "was removed",
            "times",
        ),
        make_float_column(
            "minimum_detectable_ratio",
            "estimate of the smallest `rate_ratio` above 1 that the test would detect with 80 % "
            "power, without correction for the number of groups; null if no such ratio exists",
            "times",
        ),
        *_make_comparison_columns("", "were removed", "removal_rate / other_removal_rate"),
        *_make_comparison_columns(
            "lost_", "lost all copies of their text", "lost_rate / other_lost_rate"
        ),
    ),
    "group_removals_by_reason": table_schema(
        "Number of documents that each stage removed, by group and reason. Each document of a "
        "group is either kept by all stages or counted in this table.",
        *_GROUP_COLUMNS,
        make_label_column("stage", "stage label in the run"),
        make_label_column("reason", "reason for the removal, as in the ledger"),
        make_label_column(
            "action", "removed, or quarantined if the stage could not process the documents"
        ),
        make_count_column(
            "documents", "number of the group's documents with this stage, reason and action"
        ),
        make_count_column(
            "other_documents",
            "number of other documents recorded with this stage, reason and action",
        ),
    ),
}


def list_lexicon_groups(user_lexicons: UserLexicons) -> list[Group]:
    """Return all groups of people and dialects that the ``identities`` stage searches for."""
    return [
        Group(dimension, name)
        for dimension, lexicon in (
            ("identity", combine_with_builtin_lexicon(user_lexicons)),
            ("dialect", load_builtin_lexicon("dialects")),
        )
        for name in lexicon.groups
    ]


def count_unreadable_records(ingest_artifact: Artifact) -> Counter[str]:
    """Return the number of records that ingest could not read, by source."""
    counts: Counter[str] = Counter()
    if "errors" in ingest_artifact.tables:
        for row in ingest_artifact["errors"].read(["source", "records"]).to_pylist():
            counts[row["source"]] += row["records"]
    return counts


def build_group_removal_rows(
    outcomes: DocumentOutcomes,
    searched_groups: list[Group],
    unreadable_records: Mapping[str, int],
) -> list[Row]:
    """Build the rows of the ``group_removals`` table.

    Args:
        outcomes: What became of each document.
        searched_groups: Groups that have a row even if no document belongs to them.
        unreadable_records: Number of records that ingest could not read, by source.
    """
    rows = [
        _build_count_row(outcomes, ALL_DOCUMENTS, np.ones(len(outcomes.removed_at), bool), None)
    ]
    for dimension in COLUMN_BY_DIMENSION:
        rows += _build_dimension_rows(outcomes, dimension, searched_groups)
    for row in rows:
        if row["dimension"] == "source":
            row["unreadable_records"] = unreadable_records.get(row["slice"], 0)
    rows[0]["unreadable_records"] = sum(unreadable_records.values())
    _add_false_discovery_rates_and_verdicts(rows)
    return rows


def build_group_removal_reason_rows(
    outcomes: DocumentOutcomes, searched_groups: list[Group]
) -> Iterator[Row]:
    """Build the rows of the ``group_removals_by_reason`` table, also those without documents."""
    is_removed = outcomes.removed_at < NOT_REMOVED
    keys, key_numbers = np.unique(
        outcomes.reason_index[is_removed] * 2 + outcomes.is_quarantined[is_removed],
        return_inverse=True,
    )
    outcome_numbers = np.full(len(is_removed), len(keys))  # kept documents have the last number
    outcome_numbers[is_removed] = key_numbers
    everyone = np.ones(len(is_removed), bool)
    member_masks = [(ALL_DOCUMENTS, everyone, everyone)]
    for dimension in COLUMN_BY_DIMENSION:
        at_risk = outcomes.select_at_risk(dimension)
        member_masks += [
            (Group(dimension, name), is_member & at_risk, at_risk)
            for name, is_member in _find_members_by_name(
                outcomes, dimension, searched_groups
            ).items()
        ]
    for (dimension, name), is_member, at_risk in member_masks:
        counts = np.bincount(outcome_numbers[is_member], minlength=len(keys) + 1)
        risk_counts = np.bincount(outcome_numbers[at_risk], minlength=len(keys) + 1)
        for number, key in enumerate(keys.tolist()):
            reason = outcomes.reasons[key // 2]
            yield {
                "dimension": dimension,
                "slice": name,
                "stage": reason.stage,
                "reason": reason.reason,
                "action": "quarantined" if key % 2 else "removed",
                "documents": int(counts[number]),
                "other_documents": int(risk_counts[number] - counts[number]),
            }


def _find_members_by_name(
    outcomes: DocumentOutcomes, dimension: str, searched_groups: list[Group]
) -> dict[str, BoolArray]:
    """Return the members of each group of a dimension, also of groups without documents."""
    nobody = np.zeros(len(outcomes.removed_at), bool)
    members = {name: nobody for searched, name in searched_groups if searched == dimension}
    members |= {
        name: is_member
        for (group_dimension, name), is_member in outcomes.members_by_group.items()
        if group_dimension == dimension
    }
    return dict(sorted(members.items()))


def _build_dimension_rows(
    outcomes: DocumentOutcomes, dimension: str, searched_groups: list[Group]
) -> list[Row]:
    at_risk = outcomes.select_at_risk(dimension)
    members_by_name = {
        name: is_member & at_risk
        for name, is_member in _find_members_by_name(outcomes, dimension, searched_groups).items()
    }
    groups = [
        ClusteredGroup.from_members(np.flatnonzero(is_member), outcomes.cluster_index)
        for is_member in members_by_name.values()
    ]
    if not groups:
        return []
    ratios_by_outcome = [
        estimate_rate_ratios(
            groups,
            is_event,
            at_risk,
            outcomes.cluster_index,
            None if dimension == "source" else outcomes.source_index,
        )
        for is_event in (outcomes.removed_at < NOT_REMOVED, outcomes.is_text_lost)
    ]
    rows = []
    for i, (name, is_member) in enumerate(members_by_name.items()):
        row = _build_count_row(outcomes, Group(dimension, name), is_member, at_risk)
        for prefix, ratios in zip(("", "lost_"), ratios_by_outcome, strict=True):
            row |= _build_comparison(prefix, dimension, ratios, i)
        removal_ratios = ratios_by_outcome[0]
        row["rate_ratio"] = finite_or_none(removal_ratios.ratio[i])
        row["minimum_detectable_ratio"] = finite_or_none(removal_ratios.minimum_detectable_ratio[i])
        for prefix, ratios in zip(("removal", "lost"), ratios_by_outcome, strict=True):
            row |= _build_share_interval(prefix, row, float(ratios.design_effect[i]))
        rows.append(row)
    return rows


def _build_count_row(
    outcomes: DocumentOutcomes, group: Group, is_member: BoolArray, at_risk: BoolArray | None
) -> Row:
    """Count the documents of a group, and the others at risk; the group of all has no others."""
    is_other = np.zeros(len(is_member), bool) if at_risk is None else at_risk & ~is_member
    is_removed = outcomes.removed_at < NOT_REMOVED
    documents, other_documents = int(is_member.sum()), int(is_other.sum())
    removed, lost = (int((mask & is_member).sum()) for mask in (is_removed, outcomes.is_text_lost))
    other_removed, other_lost = (
        int((mask & is_other).sum()) for mask in (is_removed, outcomes.is_text_lost)
    )
    duplicates = int((outcomes.is_copy & is_member).sum())
    row: Row = {
        "dimension": group.dimension,
        "slice": group.name,
        "documents": documents,
        "kept_documents": documents - removed,
        "removed_documents": removed,
        "duplicate_documents": duplicates,
        "unique_documents": documents - duplicates,
        "lost_documents": lost,
        "clusters": len(np.unique(outcomes.cluster_index[is_member])),
        "other_documents": other_documents,
        "other_removed_documents": other_removed,
        "other_lost_documents": other_lost,
        "removal_rate": _divide_or_none(removed, documents),
        "other_removal_rate": _divide_or_none(other_removed, other_documents),
        "lost_rate": _divide_or_none(lost, documents),
        "other_lost_rate": _divide_or_none(other_lost, other_documents),
    }
    if at_risk is None and documents:
        everyone = [ClusteredGroup.from_members(np.arange(documents), outcomes.cluster_index)]
        for prefix, is_event in (("removal", is_removed), ("lost", outcomes.is_text_lost)):
            ratios = estimate_rate_ratios(everyone, is_event, is_member, outcomes.cluster_index)
            row |= _build_share_interval(prefix, row, float(ratios.design_effect[0]))
    return row


def _build_share_interval(prefix: str, row: Row, design_effect: float) -> Row:
    rate, documents = row[f"{prefix}_rate"], row["documents"]
    if rate is None or not math.isfinite(design_effect):
        return {}
    effective_documents = documents / design_effect
    low, high = wilson_interval(rate * effective_documents, effective_documents)
    return {f"{prefix}_rate_low": low, f"{prefix}_rate_high": high}


def _build_comparison(prefix: str, dimension: str, ratios: RateRatios, index: int) -> Row:
    if dimension == "source":
        values = (ratios.ratio, ratios.low, ratios.high, ratios.p)
    else:
        values = (
            ratios.stratified_ratio,
            ratios.stratified_low,
            ratios.stratified_high,
            ratios.stratified_p,
        )
    names = ("adjusted_ratio", "adjusted_low", "adjusted_high", "p")
    return {
        prefix + name: finite_or_none(float(value[index]))
        for name, value in zip(names, values, strict=True)
    }


def _add_false_discovery_rates_and_verdicts(rows: list[Row]) -> None:
    """Add q and verdict of both comparisons to each row."""
    tests = [
        (row, prefix)
        for row in rows
        for prefix in ("", "lost_")
        if row.get(f"{prefix}p") is not None
    ]
    rates = compute_false_discovery_rates([row[f"{prefix}p"] for row, prefix in tests])
    for row in rows:
        row |= {"verdict": "not compared", "lost_verdict": "not compared"}
    for (row, prefix), q in zip(tests, rates, strict=True):
        ratio = row[f"{prefix}adjusted_ratio"]
        direction = "more" if ratio is None or ratio > 1 else "less"  # null: it is infinite
        row[f"{prefix}q"] = q
        row[f"{prefix}verdict"] = direction if q < SIGNIFICANCE_LEVEL else "not shown"


def _divide_or_none(numerator: int, denominator: int) -> float | None:
    return numerator / denominator if denominator else None
