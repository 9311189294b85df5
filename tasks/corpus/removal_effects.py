"""Measure how curation affects documents about different groups of people.

For every rule and stage that removes documents, this stage compares groups (an identity, dialect,
language, length class or source) with all other documents: how often they are removed, also for
other thresholds of a rule. It counts duplicate clusters of which no document remains because the
kept copy was removed later, and scores sentences again after swapping the group in them. Records
that ingest removed are compared by source only, because nothing else is known of them.

A rate ratio is not a verdict: documents that mention a group may differ in other ways. A person has
to judge it; ``removed_examples`` lists documents to inspect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from hallmark.tasks.contract import (
    ID_TYPE,
    Artifact,
    Row,
    StageContext,
    Table,
    align_parts,
    column,
    concat_spilled_tables,
    stage,
    table_schema,
)
from hallmark.tasks.corpus.group_effects.document_outcomes import (
    COLUMN_BY_DIMENSION,
    NOT_REMOVED,
    DocumentOutcomes,
    Group,
    StageReason,
    compute_document_outcomes,
    find_signal_table,
    read_numeric_signal,
)
from hallmark.tasks.corpus.group_effects.group_removals import (
    GROUP_REMOVAL_TABLES,
    SIGNIFICANCE_LEVEL,
    build_group_removal_reason_rows,
    build_group_removal_rows,
    count_unreadable_records,
    list_lexicon_groups,
)
from hallmark.tasks.corpus.group_effects.group_sentences import (
    DRAWN_SENTENCES_SCHEMA,
    SentenceDraw,
    draw_group_sentences,
)
from hallmark.tasks.corpus.group_effects.removed_clusters import cluster_removed_documents
from hallmark.tasks.corpus.group_effects.swaps import (
    SWAP_TABLES,
    SwapConfig,
    build_swap_rows,
)
from hallmark.tasks.corpus.identities import WORD_LISTS, load_user_lexicons
from hallmark.tasks.corpus.selection_rules import read_selection_rules
from hallmark.tasks.corpus.table_columns import (
    make_count_column,
    make_float_column,
    make_label_column,
)
from hallmark.tasks.measures.failed_documents import report_failures
from hallmark.tasks.measures.lexicon_evaluation import (
    build_lexicon_accuracy_rows,
    read_labelled_sentences,
)
from hallmark.tasks.measures.rate_ratios import (
    LEVEL,
    RATIO_METHOD,
    RateRatios,
    estimate_rate_ratios,
)
from hallmark.tasks.measures.scorers import scorer_languages, scorer_versions
from hallmark.tasks.measures.statistics import finite_or_none

BoolArray = NDArray[np.bool_]

#: Reasons of rows over all stages: removals for any reason; for any reason but duplicates;
#: and duplicates whose kept copy was removed later.
ALL_REASONS, EXCEPT_DUPLICATES, KEPT_COPY_REMOVED = (
    StageReason("", ""),
    StageReason("", "all except duplicates"),
    StageReason("", "kept copy removed later"),
)


class RemovalEffectsConfig(SwapConfig):
    """Settings of the comparison of removal rates and of sentences with swapped groups."""

    min_group_documents: int = Field(
        20, ge=2, description="minimum number of documents that a group must contain to be compared"
    )
    threshold_shares: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field(
        (0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
        description="additional thresholds to evaluate for each numeric rule; each is specified as "
        "the share of all documents that the threshold would remove",
    )
    examples_per_rule: int = Field(
        3,
        ge=0,
        le=100,
        description="number of removed documents to list as examples for each rule, source and "
        "language",
    )


_CAUSE_COLUMNS = (
    make_label_column("stage", "stage label in the run; empty in rows that combine all stages"),
    make_label_column(
        "reason",
        "reason for the removal, as in the ledger. In rows that combine all stages, an empty value "
        "means all removals, `all except duplicates` means removals for any reason other than "
        "being a duplicate, and `kept copy removed later` means duplicates whose kept copy was "
        "later removed for another reason",
    ),
)

_GROUP_COLUMNS = (
    make_label_column(
        "dimension",
        "property by which documents are grouped: identity, dialect, language, length or "
        "source; empty in rows that cover all documents together",
    ),
    make_label_column(
        "slice",
        "name of the compared group: an identity group, dialect, language, length class or source",
    ),
)

_RATE_COLUMNS = (
    make_count_column("documents", "number of the group's documents that reached the rule"),
    make_count_column(
        "removed_documents",
        "number of the group's documents that the rule removed, or would have removed if no other "
        "rule had removed them first; for a rule that tags, the number of documents that the rule "
        "tagged and the stage kept",
    ),
    make_count_column(
        "clusters",
        "number of near-duplicate clusters that contain documents of the group",
        "clusters",
    ),
    make_count_column(
        "other_documents",
        "number of all other documents that reached the rule; for identities and dialects, only "
        "documents in English or in an undetermined language are counted",
    ),
    make_count_column(
        "other_removed_documents", "number of removed documents among all other documents"
    ),
    make_float_column("removal_rate", "share of the group's documents that were removed", "share"),
    make_float_column(
        "other_removal_rate", "share of all other documents that were removed", "share"
    ),
    make_float_column(
        "rate_ratio",
        "rate ratio: removal_rate / other_removal_rate; null if no other document was removed",
        "times",
    ),
    make_float_column(
        "low",
        f"lower end of the {LEVEL:.0%} confidence interval of `rate_ratio`: {RATIO_METHOD}",
        "times",
    ),
    make_float_column(
        "high",
        "upper end of the confidence interval of `rate_ratio`; null if the interval is unbounded",
        "times",
    ),
    make_float_column(
        "source_adjusted_ratio",
        "rate ratio adjusted for source (Mantel & Haenszel 1959); null if the group is a source; "
        "if it is close to 1 but `rate_ratio` is not, the sources of the documents explain the "
        "difference",
        "times",
    ),
    make_float_column(
        "source_adjusted_low",
        f"lower end of the {LEVEL:.0%} confidence interval of `source_adjusted_ratio`",
        "times",
    ),
    make_float_column(
        "source_adjusted_high",
        "upper end of the confidence interval of `source_adjusted_ratio`; null if the interval is "
        "unbounded",
        "times",
    ),
    make_float_column(
        "p", "two-sided p-value for the null hypothesis that the rate ratio is 1", "p"
    ),
    make_float_column(
        "p_corrected",
        "`p`, corrected for the number of groups compared under the same rule (Holm 1979)",
        "p",
    ),
    make_float_column(
        "minimum_detectable_ratio",
        "estimate of the smallest rate ratio above 1 that the test would detect with 80 % power; "
        "null if no such ratio exists",
        "times",
    ),
    make_label_column(
        "verdict",
        "more: documents of the group are removed significantly more often than all other "
        "documents; less: significantly less often; not shown: no significant difference",
    ),
)

TABLES = {
    **GROUP_REMOVAL_TABLES,
    "removal_rates": table_schema(
        "Removal rates by rule and group, compared with the removal rates of all other documents.",
        *_CAUSE_COLUMNS,
        *_GROUP_COLUMNS,
        *_RATE_COLUMNS,
    ),
    "threshold_rates": table_schema(
        "Removal rates for each group at several possible thresholds of each numeric rule.",
        *_CAUSE_COLUMNS,
        make_label_column("signal", "signal that the rule compares with the threshold"),
        make_label_column(
            "comparison",
            "condition that the signal must satisfy for a document to be kept: at least (ge), "
            "above (gt), at most (le) or below (lt) the threshold",
        ),
        make_float_column("threshold", "evaluated threshold"),
        column(
            "is_rule_threshold",
            pa.bool_(),
            "figure",
            "whether the config sets this threshold for the rule",
        ),
        *_GROUP_COLUMNS,
        *_RATE_COLUMNS,
    ),
    "lost_duplicate_clusters": table_schema(
        "Number of duplicates whose kept copy was later removed and whose cluster has no "
        "remaining documents, for each stage, reason and group.",
        *_CAUSE_COLUMNS,
        *_GROUP_COLUMNS,
        make_count_column(
            "lost_duplicates",
            "number of documents that were removed as duplicates and whose kept copy was later "
            "removed for the reason in the `reason` column",
        ),
        make_count_column(
            "lost_clusters",
            "number of clusters that contained the removed duplicates and have no remaining "
            "documents",
            "clusters",
        ),
    ),
    "removed_examples": table_schema(
        "Examples of removed documents by rule, source and language; documents from the groups "
        "with the highest rate ratios are listed first.",
        *_CAUSE_COLUMNS,
        *_GROUP_COLUMNS,
        make_float_column("rate_ratio", "see removal_rates", "times"),
        column(
            "no_other_removed",
            pa.bool_(),
            "figure",
            "whether the rule removed none of the other documents, in which case `rate_ratio` is "
            "null and the row is listed first",
        ),
        column("doc_id", ID_TYPE, "id", "the document"),
    ),
    **SWAP_TABLES,
    "lexicon_accuracy": table_schema(
        "Recall and precision of the lexicon that detects mentions of groups, measured on "
        "labelled sentences that ship with Hallmark. The estimates are optimistic because the "
        "same author wrote the lexicon and the sentences.",
        make_label_column(
            "group_name", "identity group name; empty in the row for all groups together"
        ),
        make_count_column("mentions", "number of sentences that mention the group", "sentences"),
        make_count_column(
            "detected",
            "number of sentences in which the lexicon finds a mention of the group",
            "sentences",
        ),
        make_count_column(
            "true_positives",
            "number of sentences that mention the group and in which the lexicon finds the mention",
            "sentences",
        ),
        *(
            make_float_column(f"{measure}{end}", f"{measure}{suffix}", "share")
            for measure in ("recall", "precision")
            for end, suffix in (
                ("", ""),
                ("_low", ", lower end of the 95 % confidence interval (Wilson)"),
                ("_high", ", upper end of the 95 % confidence interval (Wilson)"),
            )
        ),
    ),
}

# Rates -----------------------------------------------------------------------------------------


class RemovalMasks(NamedTuple):
    """Say which of n documents a stage removed for a reason, or a rule tagged."""

    stage: str
    reason: str
    is_removed: BoolArray
    """Whether the document was removed, would have been removed, or was tagged; shape (n,)."""
    at_risk: BoolArray
    """Whether the document reached the stage and therefore could have been removed; shape (n,)."""


def iter_removal_masks(outcomes: DocumentOutcomes) -> Iterator[RemovalMasks]:
    """Yield the masks of all reasons together, of some combinations, and of each cause."""
    is_removed = outcomes.removed_at < NOT_REMOVED
    yield RemovalMasks(*ALL_REASONS, is_removed, np.ones(len(is_removed), bool))
    yield RemovalMasks(*EXCEPT_DUPLICATES, is_removed & ~outcomes.is_copy, ~outcomes.is_copy)
    if outcomes.is_copy.any():
        yield RemovalMasks(*KEPT_COPY_REMOVED, outcomes.is_lost_with_original, outcomes.is_copy)
    for cause in outcomes.causes:
        # A stage tags only documents that it keeps, so those that it removed are not at risk.
        at_risk = (
            outcomes.removed_at > cause.stage_index
            if cause.only_tags
            else outcomes.removed_at >= cause.stage_index
        )
        yield RemovalMasks(cause.stage, cause.reason, cause.is_affected, at_risk)


def build_rate_rows(
    outcomes: DocumentOutcomes,
    is_removed: BoolArray,
    at_risk: BoolArray,
    min_group_documents: int,
    dimensions: Iterable[str] = COLUMN_BY_DIMENSION,
) -> list[Row]:
    """Compare the groups of all dimensions for one rule.

    Args:
        is_removed: Documents that the rule removed, (n,).
        at_risk: Documents that reached the rule, (n,).
        min_group_documents: Size of the smallest group that is compared.

    Returns:
        Rows with ``_GROUP_COLUMNS`` and ``_RATE_COLUMNS``; p is corrected for all of them.
    """
    groups: list[Group] = []
    ratio_parts: list[RateRatios] = []
    for dimension in dimensions:
        slices = outcomes.find_groups_by_name(dimension, min_group_documents)
        if not slices:
            continue
        at_risk_in_dimension = at_risk & outcomes.select_at_risk(dimension)
        strata = None if dimension == "source" else outcomes.source_index
        ratios = estimate_rate_ratios(
            list(slices.values()), is_removed, at_risk_in_dimension, outcomes.cluster_index, strata
        )
        groups += [Group(dimension, name) for name in slices]
        ratio_parts.append(ratios)
    if not ratio_parts:
        return []
    joined_fields = [
        np.concatenate([getattr(ratio_part, field.name) for ratio_part in ratio_parts])
        for field in fields(RateRatios)
    ]
    reported_rows = np.flatnonzero(
        (joined_fields[0] >= min_group_documents) & (joined_fields[3] > 0)
    )
    reported_ratios = RateRatios(*(values[reported_rows] for values in joined_fields))
    corrected_p = reported_ratios.adjusted_p
    rows = []
    for i, (dimension, name) in enumerate(groups[int(index)] for index in reported_rows):
        rows.append(
            {
                "dimension": dimension,
                "slice": name,
                "documents": int(reported_ratios.n[i]),
                "removed_documents": int(reported_ratios.events[i]),
                "clusters": int(reported_ratios.clusters[i]),
                "other_documents": int(reported_ratios.other_n[i]),
                "other_removed_documents": int(reported_ratios.other_events[i]),
                "removal_rate": reported_ratios.events[i] / reported_ratios.n[i],
                "other_removal_rate": reported_ratios.other_events[i] / reported_ratios.other_n[i],
                "rate_ratio": finite_or_none(reported_ratios.ratio[i]),
                "low": finite_or_none(reported_ratios.low[i]),
                "high": finite_or_none(reported_ratios.high[i]),
                "source_adjusted_ratio": finite_or_none(reported_ratios.stratified_ratio[i]),
                "source_adjusted_low": finite_or_none(reported_ratios.stratified_low[i]),
                "source_adjusted_high": finite_or_none(reported_ratios.stratified_high[i]),
                "p": finite_or_none(reported_ratios.p[i]),
                "p_corrected": finite_or_none(corrected_p[i]),
                "minimum_detectable_ratio": finite_or_none(
                    reported_ratios.minimum_detectable_ratio[i]
                ),
                "verdict": classify_rate_difference(
                    corrected_p[i],
                    reported_ratios.events[i] * reported_ratios.other_n[i],
                    reported_ratios.other_events[i] * reported_ratios.n[i],
                ),
            }
        )
    return rows


def get_dimensions_known_at_removal(outcomes: DocumentOutcomes, stage_name: str) -> Iterable[str]:
    """Return the dimensions known for documents that a stage removed: source only for ingest."""
    return ("source",) if stage_name == outcomes.first_stage else COLUMN_BY_DIMENSION


def classify_rate_difference(p_value: float, group_rate: float, other_rate: float) -> str:
    """Return the verdict on a difference: "more", "less" or "not shown"; NaN p is not shown."""
    if not p_value < SIGNIFICANCE_LEVEL:
        return "not shown"
    return "more" if group_rate > other_rate else "less"


#: Comparison that is true for values that violate a bound.
_BOUND_VIOLATIONS = {"ge": np.less, "gt": np.less_equal, "le": np.greater, "lt": np.greater_equal}


def choose_thresholds(
    values: NDArray[np.float64], bound: str, rule_threshold: float, removed_shares: Sequence[float]
) -> list[float]:
    """Return thresholds that would remove these shares of the values, and the rule's; ascending."""
    removes_below = bound in ("ge", "gt")
    quantile_levels = [share if removes_below else 1 - share for share in removed_shares]
    quantile_thresholds = (
        np.quantile(values, quantile_levels, method="higher").tolist() if len(values) else []
    )
    return sorted({*quantile_thresholds, rule_threshold})


def build_threshold_rows(
    outcomes: DocumentOutcomes,
    corpus_artifacts: Mapping[str, Artifact],
    config: RemovalEffectsConfig,
) -> Iterator[Row]:
    """Build the rows of the ``threshold_rates`` table."""
    stage_order = {stage_label: order for order, stage_label in enumerate(corpus_artifacts)}
    for stage_label, artifact in corpus_artifacts.items():
        for rule in read_selection_rules(artifact):
            bounds = {
                bound: float(value)
                for bound in _BOUND_VIOLATIONS
                if isinstance(value := rule[bound], float | int)
            }
            if not bounds:  # the rule is about labels
                continue
            signal_values = read_numeric_signal(corpus_artifacts, str(rule["signal"]), outcomes)
            if signal_values is None:
                continue
            at_risk = (outcomes.removed_at >= stage_order[stage_label]) & np.isfinite(signal_values)
            for bound, rule_threshold in bounds.items():
                violates = _BOUND_VIOLATIONS[bound]
                for threshold in choose_thresholds(
                    signal_values[at_risk], bound, rule_threshold, config.threshold_shares
                ):
                    key_columns = {
                        "stage": stage_label,
                        "reason": rule["name"],
                        "signal": rule["signal"],
                        "comparison": bound,
                        "threshold": threshold,
                        "is_rule_threshold": threshold == rule_threshold,
                    }
                    is_removed = violates(signal_values, threshold)
                    for row in build_rate_rows(
                        outcomes, is_removed, at_risk, config.min_group_documents
                    ):
                        yield key_columns | row


# Lost clusters and examples --------------------------------------------------------------------


def count_lost_clusters_by_cause_and_group(
    outcomes: DocumentOutcomes, min_group_documents: int
) -> Iterator[Row]:
    """Build the rows of the ``lost_duplicate_clusters`` table."""
    reason_numbers = np.where(
        outcomes.is_lost_with_original, outcomes.reason_index[outcomes.final_original], -1
    )
    causes = [(ALL_REASONS, outcomes.is_lost_with_original)]
    causes += [
        (cause, reason_numbers == i)
        for i, cause in enumerate(outcomes.reasons)
        if (reason_numbers == i).any()
    ]
    members_by_group = {Group("", ""): np.arange(len(reason_numbers))}
    for dimension in COLUMN_BY_DIMENSION:
        for name, group in outcomes.find_groups_by_name(dimension, min_group_documents).items():
            members_by_group[Group(dimension, name)] = group.member_rows
    for (stage_name, reason), is_lost in causes:
        for (dimension, name), members in members_by_group.items():
            lost_members = members[is_lost[members]]
            if len(lost_members):
                clusters = np.unique(outcomes.cluster_index[lost_members])
                lost_clusters = clusters[outcomes.is_lost_cluster[clusters]]
                yield {
                    "stage": stage_name,
                    "reason": reason,
                    "dimension": dimension,
                    "slice": name,
                    "lost_duplicates": len(lost_members),
                    "lost_clusters": len(lost_clusters),
                }


def build_removed_example_rows(
    outcomes: DocumentOutcomes, rates: list[Row], max_examples_per_group: int
) -> Iterator[Row]:
    """Build the rows of the ``removed_examples`` table.

    Each rule, source and language gets the documents with the lowest ids; ids are hashes, so this
    is a random choice.
    """
    removed_by_cause = {(cause.stage, cause.reason): cause.is_affected for cause in outcomes.causes}
    rates_by_group = {
        (row["stage"], row["reason"], row["dimension"], row["slice"]): row for row in rates
    }
    for (stage_name, reason), is_removed in removed_by_cause.items():
        if (outcomes.is_copy & is_removed).any():
            continue  # no examples of duplicates: the kept copy has the same text
        examples: list[Row] = []
        for (dimension, name), is_member in outcomes.members_by_group.items():
            is_listed = dimension in ("source", "language")
            document_rows = (
                np.flatnonzero((is_member & is_removed)[: len(outcomes.doc_ids)])
                if is_listed
                else is_removed[:0]
            )
            rate = rates_by_group.get(
                (stage_name, reason, dimension, name), {"rate_ratio": None, "removed_documents": 0}
            )
            no_other_removed = rate["rate_ratio"] is None and rate["removed_documents"] > 0
            key_columns = {
                "stage": stage_name,
                "reason": reason,
                "dimension": dimension,
                "slice": name,
            }
            examples += [
                key_columns
                | {
                    "rate_ratio": rate["rate_ratio"],
                    "no_other_removed": no_other_removed,
                    "doc_id": outcomes.doc_ids[int(i)].as_py(),
                }
                for i in document_rows[:max_examples_per_group]
            ]
        yield from sorted(
            examples,
            key=lambda row: (
                not row["no_other_removed"],
                -(row["rate_ratio"] or 0),
                row["dimension"],
                row["slice"],
            ),
        )


def find_toxicity_threshold_or_default(corpus_artifacts: Mapping[str, Artifact]) -> float:
    """Return the bound of the first toxicity rule that removes documents.

    Without such a rule, return that of the first one that tags documents; without any, 0.5.
    """
    rules = [
        rule
        for artifact in corpus_artifacts.values()
        for rule in read_selection_rules(artifact)
        if rule["signal"] == "toxicity"
    ]
    rules.sort(key=lambda rule: rule["action"] == "tag")
    thresholds = [rule["lt"] if rule["lt"] is not None else rule["le"] for rule in rules]
    return next(
        (float(threshold) for threshold in thresholds if isinstance(threshold, float | int)), 0.5
    )


# The stage -------------------------------------------------------------------------------------


@stage(
    name="removal_effects",
    tables=TABLES,
    extra_code=[
        *WORD_LISTS,
        "tasks/measures/data/identity_sentences.txt",
        "tasks/measures/data/swaps.json",
    ],
    libraries=["numpy", "scipy"],
    external_digests=lambda config, secret_id: scorer_versions(config.scorer),
    determinism="machine",
    reads={"corpus_artifacts": ("documents", "errors", "ledger", "signals", "lexicons")},
)
def measure_removal_effects(
    documents: Table,
    corpus_artifacts: dict[str, Artifact],
    config: RemovalEffectsConfig,
    context: StageContext,
) -> None:
    """Compare removal rates of groups, and score swapped sentences.

    Memory: about 120 bytes per document, including those that ingest removed; 300 bytes more per
    document that a rule removed before the search for near duplicates; and the drawn sentences.

    Args:
        documents: Documents with masked personal data, from which sentences are drawn.
        corpus_artifacts: Artifacts of the corpus stages by label, in the order they ran, without
            ``plant_canaries``, because the documents that it withholds were not filtered.
    """
    outcomes = compute_document_outcomes(
        corpus_artifacts, cluster_removed_documents(corpus_artifacts, context)
    )
    unknown_count = float((~outcomes.has_signals[: len(outcomes.doc_ids)]).sum())
    context.record_measurement("documents_without_signals", unknown_count, "documents")

    def write_table(name: str, rows: list[Row]) -> None:
        context.get_table_writer(name).write(pa.Table.from_pylist(rows, schema=TABLES[name]))

    user_lexicons = load_user_lexicons(corpus_artifacts)
    searched_groups = list_lexicon_groups(user_lexicons)
    unreadable_records = count_unreadable_records(corpus_artifacts[outcomes.first_stage])
    write_table(
        "group_removals", build_group_removal_rows(outcomes, searched_groups, unreadable_records)
    )
    write_table(
        "group_removals_by_reason", [*build_group_removal_reason_rows(outcomes, searched_groups)]
    )
    rates = [
        {"stage": stage_name, "reason": reason, **row}
        for stage_name, reason, is_removed, at_risk in iter_removal_masks(outcomes)
        for row in build_rate_rows(
            outcomes,
            is_removed,
            at_risk,
            config.min_group_documents,
            get_dimensions_known_at_removal(outcomes, stage_name),
        )
    ]
    write_table("removal_rates", rates)
    write_table("threshold_rates", [*build_threshold_rows(outcomes, corpus_artifacts, config)])
    write_table(
        "lost_duplicate_clusters",
        [*count_lost_clusters_by_cause_and_group(outcomes, config.min_group_documents)],
    )
    write_table(
        "removed_examples", [*build_removed_example_rows(outcomes, rates, config.examples_per_rule)]
    )
    sampling_rates = {
        name: config.documents_per_group / max(1, int(is_member.sum()))
        for (dimension, name), is_member in outcomes.members_by_group.items()
        if dimension == "identity"
    }
    signal_tables = [
        find_signal_table(corpus_artifacts, name) for name in ("identities", "language")
    ]
    available_tables = [table for table in signal_tables if table is not None]
    partitions = align_parts(documents, *available_tables) if len(available_tables) == 2 else []
    draw = SentenceDraw(
        sampling_rates, config.max_sentences_per_group, scorer_languages(config.scorer)
    )
    results = context.map_items(draw_group_sentences, partitions, draw, user_lexicons)
    report_failures(
        context,
        [result.value for result in results],
        documents.row_count,
        "the search for sentences in which groups can be swapped",
    )
    drawn_sentences = concat_spilled_tables(results, "drawn", DRAWN_SENTENCES_SCHEMA)
    swap_summary, swap_rows = build_swap_rows(
        drawn_sentences, find_toxicity_threshold_or_default(corpus_artifacts), user_lexicons, config
    )
    write_table("swap_differences", swap_summary)
    write_table("swap_scores", swap_rows)
    write_table("lexicon_accuracy", build_lexicon_accuracy_rows(read_labelled_sentences()))
