"""Effects: what curation did to people.

For every rule and stage that takes documents out: how often it took those that mention a group,
hold a dialect's marker, are of a language, a length or a source, beside all others; the same along
the range of a rule's threshold; which clusters of copies were lost whole because the one that was
kept left later; and what the scorer makes of a sentence when only the group in it changes. Of what
ingest itself took out nothing but the source is known: its reasons are compared by source alone.

A ratio is no verdict: documents that mention a group may well differ. That a filter takes them more
often is for somebody to look at, and ``removed_examples`` names the documents to look at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from hallmark.tasks.contract import (
    ID_TYPE,
    Artifact,
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
    compute_document_outcomes,
    find_signal_table,
    read_numeric_signal,
)
from hallmark.tasks.corpus.group_effects.removed_clusters import cluster_removed_documents
from hallmark.tasks.corpus.group_effects.swaps import (
    DRAWN_SENTENCES_SCHEMA,
    SWAP_TABLES,
    SwapConfig,
    build_swap_tables,
    draw_swappable_sentences,
    make_count_column,
    make_float_column,
    make_label_column,
)
from hallmark.tasks.corpus.identities import WORD_LISTS, load_user_lexicons
from hallmark.tasks.corpus.selection_rules import read_selection_rules
from hallmark.tasks.measures.failed_documents import report_failures
from hallmark.tasks.measures.lexicon_evaluation import evaluate_lexicon, read_labelled_sentences
from hallmark.tasks.measures.rate_ratios import (
    LEVEL,
    RATIO_METHOD,
    RateRatios,
    estimate_rate_ratios,
)
from hallmark.tasks.measures.scorers import scorer_versions

BoolArray = NDArray[np.bool_]

#: A corrected p below this is called a difference.
SIGNIFICANCE_LEVEL = 0.05

#: What stands in place of a stage and a reason where documents left for whatever reason; for any
#: but that they were copies; and where they were copies, and what was kept of them left later.
ALL_REASONS, EXCEPT_DUPLICATES, KEPT_COPY_REMOVED = (
    ("", ""),
    ("", "all except duplicates"),
    ("", "kept copy removed later"),
)


class RemovalEffectsConfig(SwapConfig):
    min_group_documents: int = Field(
        20, ge=2, description="groups with fewer documents are not compared: they are too few"
    )
    threshold_shares: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field(
        (0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
        description="for each numeric rule, thresholds that would remove these shares of "
        "all documents are tried as well",
    )
    examples_per_rule: int = Field(
        3,
        ge=0,
        le=100,
        description="documents named as examples for each rule, source and language",
    )


_CAUSE_COLUMNS = (
    make_label_column("stage", "label of the stage in the run; empty: all together"),
    make_label_column(
        "reason",
        "why they left, as the ledger says; of all stages together: empty: for any "
        "reason; all except duplicates: for any but that they were copies; kept copy removed "
        "later: as copies, and what was kept of them left later",
    ),
)

_GROUP_COLUMNS = (
    make_label_column(
        "dimension", "identity, dialect, language, length or source; empty: all documents"
    ),
    make_label_column("slice", "the group, variety, language, class of length or source"),
)

_RATE_COLUMNS = (
    make_count_column("documents", "documents of the group that the rule could take"),
    make_count_column(
        "removed_documents",
        "of these, the rule took or would have taken, by itself; of a rule that tags, "
        "those that it tagged, and n counts those that its stage kept",
    ),
    make_count_column("clusters", "clusters of near copies that they are in", "clusters"),
    make_count_column(
        "other_documents",
        "all other documents that it could take; beside identities and dialects "
        "those that are English, or of undetermined language",
    ),
    make_count_column("other_removed_documents", "of these, taken"),
    make_float_column("removal_rate", "share of the group that was taken", "share"),
    make_float_column("other_removal_rate", "share of all others", "share"),
    make_float_column(
        "rate_ratio",
        "rate by other rate; null where neither lost any, or only the group did",
        "times",
    ),
    make_float_column("low", f"lower end of its interval at {LEVEL:.0%}: {RATIO_METHOD}", "times"),
    make_float_column("high", "upper end; null where it has none", "times"),
    make_float_column(
        "source_adjusted_ratio",
        "the same ratio within sources (Mantel & Haenszel 1959), an estimate without "
        "interval: where it is near 1, the sources differ, not the groups",
        "times",
    ),
    make_float_column("p", "two-sided p-value that the ratio is 1", "p"),
    make_float_column(
        "p_corrected", "the same, corrected for all groups of the rule (Holm 1979)", "p"
    ),
    make_float_column(
        "minimum_detectable_ratio",
        "the smallest ratio that n would have shown in four of five such corpora, an "
        "estimate; null where none could",
        "times",
    ),
    make_label_column(
        "verdict", "more: taken more often than others, beyond chance; less; or not shown"
    ),
)

TABLES = {
    "removal_rates": table_schema(
        "How often each rule took documents by group, as ratios to all others.",
        *_CAUSE_COLUMNS,
        *_GROUP_COLUMNS,
        *_RATE_COLUMNS,
    ),
    "threshold_rates": table_schema(
        "The same along the range of a numeric rule, whatever its own threshold.",
        *_CAUSE_COLUMNS,
        make_label_column("signal", "the signal that the rule looks at"),
        make_label_column("comparison", "ge, gt, le or lt: how it compares"),
        make_float_column("threshold", "where it would cut"),
        column("is_rule_threshold", pa.bool_(), "figure", "it is the rule's own threshold"),
        *_GROUP_COLUMNS,
        *_RATE_COLUMNS,
    ),
    "lost_duplicate_clusters": table_schema(
        "Copies whose kept twin left later: with them clusters are lost whole.",
        *_CAUSE_COLUMNS,
        *_GROUP_COLUMNS,
        make_count_column(
            "lost_duplicates", "documents removed as copies, whose kept copy left for this"
        ),
        make_count_column(
            "lost_clusters", "clusters thereby lost, no document of which stayed", "clusters"
        ),
    ),
    "removed_examples": table_schema(
        "Documents that were taken, some of each rule, source and language, highest ratio first.",
        *_CAUSE_COLUMNS,
        *_GROUP_COLUMNS,
        make_float_column("rate_ratio", "see removal_rates", "times"),
        column(
            "no_other_removed",
            pa.bool_(),
            "figure",
            "of all others the rule took none: no ratio, and before all ratios",
        ),
        column("doc_id", ID_TYPE, "id", "the document"),
    ),
    **SWAP_TABLES,
    "lexicon_accuracy": table_schema(
        "How well mentions of groups are found, on the project's labelled sentences. They flatter: "
        "lexicon and sentences have one author.",
        make_label_column("group_name", "identity group; empty: all"),
        make_count_column("mentions", "sentences that mention it", "sentences"),
        make_count_column("detected", "sentences in which the lexicon finds it", "sentences"),
        make_count_column("true_positives", "sentences in both", "sentences"),
        *(
            make_float_column(f"{measure}{end}", f"{measure}{suffix}", "share")
            for measure in ("recall", "precision")
            for end, suffix in (
                ("", ""),
                ("_low", ", lower end (Wilson)"),
                ("_high", ", upper end"),
            )
        ),
    ),
}

# Rates -----------------------------------------------------------------------------------------


def iter_removal_masks(
    outcomes: DocumentOutcomes,
) -> Iterator[tuple[str, str, BoolArray, BoolArray]]:
    """(stage, reason, who was taken, who was at risk)."""
    is_removed = outcomes.removed_at < NOT_REMOVED
    yield (*ALL_REASONS, is_removed, np.ones(len(is_removed), bool))
    yield (*EXCEPT_DUPLICATES, is_removed & ~outcomes.is_copy, ~outcomes.is_copy)
    if outcomes.is_copy.any():
        yield (*KEPT_COPY_REMOVED, outcomes.is_lost_with_original, outcomes.is_copy)
    for cause in outcomes.causes:
        # What a stage tags, it keeps: a document that left there has no tags of it.
        at_risk = (
            outcomes.removed_at > cause.stage_index
            if cause.only_tags
            else outcomes.removed_at >= cause.stage_index
        )
        yield cause.stage, cause.reason, cause.is_affected, at_risk


def build_rate_rows(
    outcomes: DocumentOutcomes,
    is_removed: BoolArray,
    at_risk: BoolArray,
    min_documents: int,
    dimensions: Iterable[str] = COLUMN_BY_DIMENSION,
) -> list[dict[str, Any]]:
    """Rows of ``_WHOM`` and ``_RATES`` for one rule, corrected for all its groups together."""
    group_names: list[tuple[str, str]] = []
    ratio_parts: list[RateRatios] = []
    for dimension in dimensions:
        slices = outcomes.find_groups(dimension, min_documents)
        if not slices:
            continue
        at_risk_in_dimension = at_risk & outcomes.select_at_risk(dimension)
        strata = None if dimension == "source" else outcomes.source_index
        ratios = estimate_rate_ratios(
            list(slices.values()), is_removed, at_risk_in_dimension, outcomes.cluster_index, strata
        )
        group_names += [(dimension, name) for name in slices]
        ratio_parts.append(ratios)
    if not ratio_parts:
        return []
    joined_fields = [
        np.concatenate([getattr(ratio_part, field.name) for ratio_part in ratio_parts])
        for field in fields(RateRatios)
    ]
    reported_rows = np.flatnonzero((joined_fields[0] >= min_documents) & (joined_fields[3] > 0))
    reported_ratios = RateRatios(*(values[reported_rows] for values in joined_fields))
    corrected_p = reported_ratios.adjusted_p
    rows = []
    for i, (dimension, name) in enumerate(group_names[int(index)] for index in reported_rows):
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
                "rate_ratio": _finite_or_none(reported_ratios.ratio[i]),
                "low": _finite_or_none(reported_ratios.low[i]),
                "high": _finite_or_none(reported_ratios.high[i]),
                "source_adjusted_ratio": _finite_or_none(reported_ratios.stratified_ratio[i]),
                "p": _finite_or_none(reported_ratios.p[i]),
                "p_corrected": _finite_or_none(corrected_p[i]),
                "minimum_detectable_ratio": _finite_or_none(
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


def get_known_dimensions(outcomes: DocumentOutcomes, stage_name: str) -> Iterable[str]:
    """The dimensions that are known of the documents that a stage took."""
    return ("source",) if stage_name == outcomes.first_stage else COLUMN_BY_DIMENSION


def classify_rate_difference(p_value: float, group_rate: float, other_rate: float) -> str:
    if not p_value < SIGNIFICANCE_LEVEL:
        return "not shown"
    return "more" if group_rate > other_rate else "less"


def _finite_or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


#: How a value compares with a bound that it breaks.
_BOUND_VIOLATIONS = {"ge": np.less, "gt": np.less_equal, "le": np.greater, "lt": np.greater_equal}


def choose_thresholds(
    values: NDArray[np.float64], bound: str, rule_threshold: float, shares: Any
) -> list[float]:
    """Those that would take about these shares of the values, and the rule's own; ascending."""
    removes_below = bound in ("ge", "gt")
    quantile_levels = [share if removes_below else 1 - share for share in shares]
    quantile_thresholds = (
        np.quantile(values, quantile_levels, method="higher").tolist() if len(values) else []
    )
    return sorted({*quantile_thresholds, rule_threshold})


def build_threshold_rows(
    outcomes: DocumentOutcomes,
    corpus_artifacts: Mapping[str, Artifact],
    config: RemovalEffectsConfig,
) -> Iterator[dict[str, Any]]:
    stage_order = {stage_label: order for order, stage_label in enumerate(corpus_artifacts)}
    for stage_label, artifact in corpus_artifacts.items():
        for rule in read_selection_rules(artifact):
            bounds = {
                b: float(v) for b in _BOUND_VIOLATIONS if isinstance(v := rule[b], float | int)
            }
            if not bounds:  # a rule about labels has no range
                continue
            signal_values = read_numeric_signal(corpus_artifacts, str(rule["signal"]), outcomes)
            if signal_values is None:
                continue
            at_risk = (outcomes.removed_at >= stage_order[stage_label]) & np.isfinite(signal_values)
            for bound, rule_threshold in bounds.items():
                violates = _BOUND_VIOLATIONS[bound]
                for threshold in choose_thresholds(
                    signal_values[at_risk], bound, float(rule_threshold), config.threshold_shares
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


def build_lost_cluster_rows(
    outcomes: DocumentOutcomes, min_documents: int
) -> Iterator[dict[str, Any]]:
    reason_numbers = np.where(
        outcomes.is_lost_with_original, outcomes.reason_index[outcomes.final_original], -1
    )
    causes = [(ALL_REASONS, outcomes.is_lost_with_original)]
    causes += [
        (cause, reason_numbers == i)
        for i, cause in enumerate(outcomes.reasons)
        if (reason_numbers == i).any()
    ]
    slices = {("", ""): np.arange(len(reason_numbers))}
    for dimension in COLUMN_BY_DIMENSION:
        for name, group in outcomes.find_groups(dimension, min_documents).items():
            slices[dimension, name] = group.member_rows
    for (stage_name, reason), is_lost in causes:
        for (dimension, name), members in slices.items():
            lost_members = members[is_lost[members]]
            if len(lost_members):
                lost_clusters = np.unique(
                    outcomes.cluster_index[
                        lost_members[outcomes.is_lost_cluster[outcomes.cluster_index[lost_members]]]
                    ]
                )
                yield {
                    "stage": stage_name,
                    "reason": reason,
                    "dimension": dimension,
                    "slice": name,
                    "lost_duplicates": len(lost_members),
                    "lost_clusters": len(lost_clusters),
                }


def select_example_rows(
    outcomes: DocumentOutcomes, rates: list[dict[str, Any]], limit: int
) -> Iterator[dict[str, Any]]:
    """Of each rule, source and language the documents with the lowest ids, which are hashes."""
    removed_by_cause = {(cause.stage, cause.reason): cause.is_affected for cause in outcomes.causes}
    rates_by_group = {
        (row["stage"], row["reason"], row["dimension"], row["slice"]): row for row in rates
    }
    for (stage_name, reason), is_removed in removed_by_cause.items():
        if (outcomes.is_copy & is_removed).any():
            continue  # of copies one stayed
        examples: list[dict[str, Any]] = []
        for (dimension, name), is_member in outcomes.group_members.items():
            is_listed = dimension in ("source", "language")
            document_rows = (
                np.flatnonzero((is_member & is_removed)[: len(outcomes.doc_ids)])
                if is_listed
                else is_removed[:0]
            )
            rate = rates_by_group.get(
                (stage_name, reason, dimension, name), {"rate_ratio": None, "removed_documents": 0}
            )
            no_other_removed = (
                rate["rate_ratio"] is None and rate["removed_documents"] > 0
            )  # of all others none was taken
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
                for i in document_rows[:limit]
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


def find_toxicity_threshold(corpus_artifacts: Mapping[str, Artifact]) -> float:
    """Return the score from which the first rule over toxicity removes documents; without such a
    rule, that from which the first one tags them; without either, 0.5."""
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
    reads={"corpus_artifacts": ("documents", "ledger", "signals", "lexicons")},
)
def measure_removal_effects(
    documents: Table,
    corpus_artifacts: dict[str, Artifact],
    config: RemovalEffectsConfig,
    context: StageContext,
) -> None:
    """``documents``: what sentences are drawn from, personal data masked; ``corpus_artifacts``: the
    artifacts of the corpus stages by label, in the order they ran, without ``plant_canaries``: what
    that holds back for planting was silenced by no filter.

    Holds about 120 bytes a document, kept by ingest or not, some 300 more for each that a rule took
    before near copies were looked for, and of texts the drawn sentences alone.
    """
    outcomes = compute_document_outcomes(
        corpus_artifacts, cluster_removed_documents(corpus_artifacts, context)
    )
    unknown_count = float((~outcomes.has_signals[: len(outcomes.doc_ids)]).sum())
    context.record_measurement("documents_without_signals", unknown_count, "documents")

    def write_table(name: str, rows: list[dict[str, Any]]) -> None:
        context.get_table_writer(name).write(pa.Table.from_pylist(rows, schema=TABLES[name]))

    rates = [
        {"stage": stage_name, "reason": reason, **row}
        for stage_name, reason, is_removed, at_risk in iter_removal_masks(outcomes)
        for row in build_rate_rows(
            outcomes,
            is_removed,
            at_risk,
            config.min_group_documents,
            get_known_dimensions(outcomes, stage_name),
        )
    ]
    write_table("removal_rates", rates)
    write_table("threshold_rates", [*build_threshold_rows(outcomes, corpus_artifacts, config)])
    write_table(
        "lost_duplicate_clusters", [*build_lost_cluster_rows(outcomes, config.min_group_documents)]
    )
    write_table(
        "removed_examples", [*select_example_rows(outcomes, rates, config.examples_per_rule)]
    )
    sampling_rates = {
        name: config.documents_per_group / max(1, int(is_member.sum()))
        for (dimension, name), is_member in outcomes.group_members.items()
        if dimension == "identity"
    }
    signal_tables = [
        find_signal_table(corpus_artifacts, name) for name in ("identities", "language")
    ]
    available_tables = [table for table in signal_tables if table is not None]
    partitions = align_parts(documents, *available_tables) if len(available_tables) == 2 else []
    user_lexicons = load_user_lexicons(corpus_artifacts)
    results = context.map_items(
        draw_swappable_sentences, partitions, sampling_rates, user_lexicons, config
    )
    report_failures(
        context,
        [result.value for result in results],
        documents.row_count,
        "the search for sentences to swap",
    )
    drawn_sentences = concat_spilled_tables(results, "drawn", DRAWN_SENTENCES_SCHEMA)
    swap_summary, swap_rows = build_swap_tables(
        drawn_sentences, find_toxicity_threshold(corpus_artifacts), user_lexicons, config
    )
    write_table("swap_differences", swap_summary)
    write_table("swap_scores", swap_rows)
    write_table("lexicon_accuracy", evaluate_lexicon(read_labelled_sentences()))
