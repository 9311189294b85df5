"""Report how single rules of the curation affect groups, with examples of removed documents.

The figures come from the ``removal_effects`` stage: removal rates by rule and threshold,
differences in score when only the group changes, and examples. ``group_removals`` reports what all
stages together removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hallmark.reports.page.document import (
    DataTable,
    InlineElement,
    Paragraph,
    Section,
    ShortFigure,
)
from hallmark.reports.page.figures import Figure, format_number
from hallmark.reports.sections.corpus_figures import CorpusFigures
from hallmark.reports.sections.row_selection import (
    SELECTION_NOTE,
    select_first_pairs_covering_all_groups,
    select_first_rows_and_all_group_rows,
)
from hallmark.reports.sections.stage_titles import name_corpus_stage
from hallmark.tasks.audits.audit_descriptions import SIGNIFICANCE_LEVEL
from hallmark.tasks.audits.judging.selection import correct_interval_for_choice
from hallmark.tasks.contract import Row, format_count

EFFECTS = "removal_effects"

GROUP_TEMPLATES = {
    "identity": "mentioning {}",
    "dialect": "with markers of {}",
    "language": "in language {}",
    "length": "{}",
    "source": "from {}",
}

CONFIDENCE_LEVEL = 0.95

#: Shown as the ratio if no other document was removed.
INFINITE_RATIO = "∞"

INGEST_NOTE = (
    "The comparison is by source only, because nothing else is known about records that the ingest "
    "stage removed."
)


def read_removal_effects_rows(corpus: CorpusFigures, table: str) -> list[Row]:
    """Return the rows of a table of ``removal_effects``; empty if the stage did not run."""
    effects = corpus.stage_artifacts.get(EFFECTS)
    return [] if effects is None else effects[table].read().to_pylist()


def describe_document_group(row: Row) -> str:
    """Return the documents of a group in words."""
    if (row["dimension"], row["slice"]) == ("language", "undetermined"):
        return "in an undetermined language"
    return GROUP_TEMPLATES[row["dimension"]].format(row["slice"])


def select_rows_with_ratio_highest_first(rows: list[Row]) -> list[Row]:
    """Sort rows by removal ratio, highest first; infinite ratios come first."""
    infinite_ratio_rows = [row for row in rows if has_infinite_ratio(row)]
    finite_ratio_rows = [row for row in rows if row["rate_ratio"] is not None]
    return infinite_ratio_rows + sorted(
        finite_ratio_rows,
        key=lambda row: (-row["rate_ratio"], -row["documents"], row["dimension"], row["slice"]),
    )


def format_ratio_interval(row: Row) -> str:
    """Format the interval of a ratio; "any" is an unbounded upper end."""
    if row["low"] is None:
        return "–"
    high = "any" if row["high"] is None else format_number(row["high"], "times")
    return f"{format_number(row['low'], 'times')} to {high}"


def format_adjusted_ratio(row: Row) -> str:
    """Format the ratio adjusted for source with its interval."""
    low, high = row["source_adjusted_low"], row["source_adjusted_high"]
    if low is None:
        return "–"
    ratio = row["source_adjusted_ratio"]
    ratio_text = INFINITE_RATIO if ratio is None else format_number(ratio, "times")
    high_text = "any" if high is None else format_number(high, "times")
    return f"{ratio_text} ({format_number(low, 'times')} to {high_text})"


def add_removal_ratio_figure(
    corpus: CorpusFigures, row: Row, table: str = "removal_rates", **extra_conditions: Any
) -> Figure:
    """Add the removal rate of a group divided by that of all other documents."""
    key_columns = ("stage", "reason", "dimension", "slice")
    conditions = {key: row[key] for key in key_columns} | extra_conditions
    label = (
        f"{row['reason'] or 'removed for any reason'}: rate for documents "
        f"{describe_document_group(row)}, divided by the rate for all other documents"
    )
    return corpus.book.add_computed_figure(
        "-".join([table, *(str(value) for value in conditions.values())]),
        label,
        "times",
        (EFFECTS, table),
        conditions,
        aggregate="last",
        value_column="rate_ratio",
        n=row["documents"],
        low=row["low"],
        high=row["high"],
        confidence_level=CONFIDENCE_LEVEL,
        missing_reason="no other documents were removed",
        missing_text=INFINITE_RATIO,
        method="exact interval with clusters of near-duplicates as units; see the description of "
        "the `low` column",
    )


def build_removal_rate_row(corpus: CorpusFigures, row: Row) -> list[InlineElement]:
    """Build a table row with the columns of ``RATE_COLUMNS``."""
    rates = [
        format_number(row[column], "share") for column in ("removal_rate", "other_removal_rate")
    ]
    return [
        describe_document_group(row),
        add_removal_ratio_figure(corpus, row),
        format_ratio_interval(row),
        f"{row['documents']:,}",
        *rates,
        format_adjusted_ratio(row),
    ]


def has_infinite_ratio(row: Row) -> bool:
    """Return whether documents of the group were removed, and no others."""
    return row["rate_ratio"] is None and row["removed_documents"] > 0


def has_ratio(row: Row) -> bool:
    """Return whether a row has a finite or infinite ratio."""
    return row["rate_ratio"] is not None or has_infinite_ratio(row)


def format_infinite_ratio_note(rows: list[Row]) -> str:
    """Return a sentence that explains the sign for infinite ratios, if any row has one."""
    return (
        f"{INFINITE_RATIO} means that the rate for all other documents is 0. "
        if any(map(has_infinite_ratio, rows))
        else ""
    )


RATE_COLUMNS = [
    "documents",
    "ratio",
    "95 % interval",
    "n",
    "removed",
    "removed (all other documents)",
    "ratio adjusted for source",
]
NUMERIC_RATE_COLUMNS = frozenset(range(1, len(RATE_COLUMNS)))

#: ``RATE_COLUMNS`` of a rule that tags documents and keeps them.
TAG_RATE_COLUMNS = [
    {"removed": "tagged", "removed (all other documents)": "tagged (all other documents)"}.get(
        column_name, column_name
    )
    for column_name in RATE_COLUMNS
]


def format_rule_name(corpus: CorpusFigures, stage: str, reason: str) -> str:
    """Return a reason as the page shows it; rules that tag are marked."""
    return f"{reason} (tagged, not removed)" if corpus.is_tagging_rule(stage, reason) else reason


# Swaps and lost duplicates ----------------------------------------------------------------------


def describe_largest_swap_difference(corpus: CorpusFigures) -> list[list[InlineElement]]:
    """Return the largest significant score difference when only the group changes."""
    swaps = [
        swap_row
        for swap_row in read_removal_effects_rows(corpus, "swap_differences")
        if swap_row["origin"] == "templates"
    ]
    significant_swaps = [*filter(is_swap_difference_significant, swaps)]
    if not significant_swaps:
        return []
    row = max(significant_swaps, key=lambda swap_row: abs(swap_row["score_difference"]))
    figure = add_swap_difference_figure(corpus, row)
    details = ""
    if interval := _format_corrected_swap_interval(row, figure, len(swaps)):
        details = (
            f" ({100 * CONFIDENCE_LEVEL:g} % interval {interval}, corrected for the choice of "
            f"the largest; n = {row['sentences']:,}, scorer {figure.scorer})"
        )
    direction = "higher" if row["score_difference"] > 0 else "lower"
    return [
        [
            "The toxicity scorer rates a sentence differently if only the mentioned group is "
            f"changed. Among {format_count(len(swaps), 'pair')} of groups, the largest mean "
            "change is ",
            ShortFigure(figure) if details else figure,
            f"{details}: sentences score {direction} if they mention {row['other_group']} than if "
            f"they mention {row['group_name']}.",
        ]
    ]


def _format_corrected_swap_interval(row: Row, figure: Figure, pair_count: int) -> str:
    """Return the interval of the largest difference, corrected for its choice; empty without one.

    Args:
        row: The row of the largest difference.
        figure: Its figure.
        pair_count: From how many pairs of groups it was chosen.
    """
    interval = correct_interval_for_choice(
        {
            "value": row["score_difference"],
            "confidence_level": CONFIDENCE_LEVEL,
            "n": row["sentences"],
            "unit": figure.unit,
            **{name: row[name] for name in ("low", "high", "clusters")},
        },
        pair_count,
    )
    return "" if interval is None else " to ".join(format_number(e, figure.unit) for e in interval)


def is_swap_difference_significant(row: Row) -> bool:
    """Return whether the difference between two groups is significant."""
    return row["p_corrected"] is not None and row["p_corrected"] < SIGNIFICANCE_LEVEL


def describe_lost_duplicates(corpus: CorpusFigures) -> list[list[InlineElement]]:
    """Return how many duplicates were removed whose kept copy was removed later."""
    conditions = {"stage": "", "dimension": ""}
    if not any(
        conditions.items() <= row.items()
        for row in read_removal_effects_rows(corpus, "lost_duplicate_clusters")
    ):
        return []
    figures = [
        corpus.book.add_computed_figure(
            f"lost-{column}",
            f"number of {column.replace('_', ' ')} whose kept copy was removed later",
            unit,
            (EFFECTS, "lost_duplicate_clusters"),
            conditions,
            value_column=column,
        )
        for column, unit in (("lost_duplicates", "documents"), ("lost_clusters", "clusters"))
    ]
    return [
        [
            figures[0],
            " were removed as duplicates of documents that were themselves removed later; ",
            figures[1],
            " have no remaining documents.",
        ]
    ]


# Section ---------------------------------------------------------------------------------------


def build_rule_effect_sections(corpus: CorpusFigures) -> list[Section]:
    """Build the sections on single rules, their thresholds, examples and the lexicon."""
    return [
        build_removal_rates_by_rule(corpus),
        build_threshold_rates_section(corpus),
        build_removed_examples_section(corpus),
        build_lexicon_accuracy_section(corpus),
    ]


def build_removal_rates_by_rule(corpus: CorpusFigures) -> Section:
    """Build one table of removal rates by group for each rule."""
    outcome = corpus.describe_rule_outcome()
    introduction = (
        "For each reason in a ledger, the tables compare two shares: the share of a group's "
        f"documents that were {outcome} for this reason, and the corresponding share of all other "
        "documents that the rule judged. Intervals treat clusters of near-duplicates, not single "
        "documents, as independent. A group is listed if its unadjusted ratio differs from 1 with "
        "p below 5 %, after correction for testing all of the rule's groups. The ratio adjusted "
        "for source is not tested. If it is near 1 or on the opposite side of 1 from the "
        "unadjusted ratio, the sources may explain the difference. Groups with few documents are "
        "omitted. For records that the ingest stage removed, only the source is known. Documents "
        "withheld for planting are not treated as removed."
    )
    if outcome != "removed":
        introduction += (
            " A rule that tags documents removes none, so its shares are relative to the documents "
            "that its stage kept."
        )
    introduction += " The removal_rates table lists all rules and groups."
    section = Section("By rule", [Paragraph([introduction])])
    rows_by_rule: dict[tuple[str, str], list[Row]] = {}
    for row in read_removal_effects_rows(corpus, "removal_rates"):
        if row["stage"]:
            rows_by_rule.setdefault((row["stage"], row["reason"]), []).append(row)
    for (stage, reason), rows in rows_by_rule.items():
        # Ingest has few rows, and only sources to compare.
        is_ingest = corpus.stage_artifacts[stage].stage == "ingest"
        shown_rows = [
            group_row for group_row in rows if is_ingest or group_row["verdict"] != "not shown"
        ]
        if not shown_rows:
            rule_name = format_rule_name(corpus, stage, reason)
            outcome = "tagged" if corpus.is_tagging_rule(stage, reason) else "removed"
            compared_groups = (
                f"each of {len(rows)} groups"
                if len(rows) > 1
                else "the only group that could be compared"
            )
            section.add_blocks(
                Paragraph(
                    [
                        f"For “{rule_name}” in the {stage} stage, no significant difference was "
                        f"found between the share {outcome} from {compared_groups} and the share "
                        f"{outcome} from all other documents."
                    ]
                )
            )
            continue
        selected_rows = select_first_rows_and_all_group_rows(
            select_rows_with_ratio_highest_first(shown_rows), corpus.max_rows // 3 or 1
        )
        inconclusive_count = len(rows) - len(shown_rows)
        note = ""
        if len(shown_rows) > len(selected_rows):
            note = (
                f"The table shows {len(selected_rows)} of {len(shown_rows)} rows: "
                f"{SELECTION_NOTE.format('highest ratios')}. "
            )
        note += (
            "No significant difference was found for "
            f"{format_count(inconclusive_count, 'other group')}. "
            if inconclusive_count
            else ""
        )
        note += format_infinite_ratio_note(selected_rows)
        note += INGEST_NOTE if is_ingest else ""
        table_rows = [build_removal_rate_row(corpus, row) for row in selected_rows]
        is_tagging = corpus.is_tagging_rule(stage, reason)
        columns = TAG_RATE_COLUMNS if is_tagging else RATE_COLUMNS
        caption = f"{stage}: {format_rule_name(corpus, stage, reason)}"
        section.add_blocks(
            DataTable(caption, columns, table_rows, NUMERIC_RATE_COLUMNS, note.strip())
        )
    if not rows_by_rule:
        section.blocks = [
            Paragraph(["No rule removed enough documents from any group for a comparison."])
        ]
    return section


def build_threshold_rates_section(corpus: CorpusFigures) -> Section:
    """Build tables of removal ratios by group at other thresholds of each rule."""
    section = Section("Removal ratios at other thresholds")
    rows_by_rule: dict[tuple[str, str, str], list[Row]] = {}
    for row in read_removal_effects_rows(corpus, "threshold_rates"):
        if row["dimension"] in ("identity", "dialect"):
            rows_by_rule.setdefault((row["stage"], row["reason"], row["comparison"]), []).append(
                row
            )
    for (stage, reason, bound), rows in rows_by_rule.items():
        thresholds = sorted({row["threshold"] for row in rows})
        own_threshold_rows = [row for row in rows if row["is_rule_threshold"]]
        table_rows: list[list[InlineElement]] = []
        for group_row in select_rows_with_ratio_highest_first(own_threshold_rows):
            row_by_threshold = {
                threshold_row["threshold"]: threshold_row
                for threshold_row in rows
                if all(threshold_row[k] == group_row[k] for k in ("dimension", "slice"))
            }
            cells: list[InlineElement] = [
                "–"
                if threshold not in row_by_threshold or not has_ratio(row_by_threshold[threshold])
                else add_removal_ratio_figure(
                    corpus,
                    row_by_threshold[threshold],
                    "threshold_rates",
                    comparison=bound,
                    threshold=threshold,
                )
                for threshold in thresholds
            ]
            table_rows.append([describe_document_group(group_row), *cells])
        if table_rows:
            rule_name = format_rule_name(corpus, stage, reason)
            own_threshold = own_threshold_rows[0]["threshold"]
            threshold_headings = [
                f"{bound} {threshold:.6g}{' (configured)' if threshold == own_threshold else ''}"
                for threshold in thresholds
            ]
            section.add_blocks(
                DataTable(
                    f"{stage}, {rule_name}: ratio of removal rates at other thresholds",
                    ["documents", *threshold_headings],
                    table_rows,
                    frozenset(range(1, len(threshold_headings) + 1)),
                    "Ratios are computed only from documents with a value that the rule can test, "
                    "whereas the tables for each rule include all documents that the rule "
                    "received. Rows are sorted by the ratio at the configured threshold. The "
                    "threshold_rates table contains intervals, n and all groups.",
                )
            )
    if not section.blocks:
        message = (
            "No rule with a numeric threshold judged enough documents from any group or dialect "
            "for a comparison."
        )
        section.add_blocks(Paragraph([message]))
    return section


def add_swap_difference_figure(corpus: CorpusFigures, row: Row) -> Figure:
    """Add the mean change of the score when one group is replaced with another."""
    conditions = {key: row[key] for key in ("origin", "axis", "group_name", "other_group")}
    return corpus.book.add_computed_figure(
        "-".join(["swap_differences", *conditions.values()]),
        f"{row['other_group']} in place of {row['group_name']}, {row['origin']}: "
        f"difference in score",
        "score",
        (EFFECTS, "swap_differences"),
        conditions,
        aggregate="last",
        value_column="score_difference",
        n=row["sentences"],
        low=row["low"],
        high=row["high"],
        confidence_level=None if row["low"] is None else CONFIDENCE_LEVEL,
        scorer=format_swap_scorer_with_digest(corpus),
        method="mean over sentences; t interval with documents as units",
    )


def format_swap_scorer_with_digest(corpus: CorpusFigures) -> str:
    external_digests = corpus.stage_artifacts[EFFECTS].manifest["parts"]["external"]
    return f"{external_digests['scorer']} ({external_digests['digest'][:12]})"


def _describe_swap_intervals(corpus: CorpusFigures, rows: Sequence[Row]) -> str:
    """Say why the datasheet gives another interval of the largest difference than the table."""
    row = max(
        filter(is_swap_difference_significant, rows),
        key=lambda swap_row: abs(swap_row["score_difference"]),
    )
    figure = add_swap_difference_figure(corpus, row)
    interval = _format_corrected_swap_interval(row, figure, len(rows))
    if not interval:
        return ""
    return (
        "Each interval is valid for a pair that was chosen in advance. In the datasheet, the "
        f"interval of {figure.short_text} is corrected for choosing the largest difference among "
        f"{format_count(len(rows), 'pair')} of groups: {interval}. "
    )


def build_group_swap_section(corpus: CorpusFigures) -> Section:
    """Build tables of significant score differences when only the group changes."""
    section = Section("Score changes if only the group is changed")
    rows = sorted(
        read_removal_effects_rows(corpus, "swap_differences"),
        key=lambda swap_row: -abs(swap_row["score_difference"]),
    )
    for origin, origin_label in (
        ("templates", "Hallmark's own sentences"),
        ("corpus", "sentences from the corpus"),
    ):
        origin_rows = [swap_row for swap_row in rows if swap_row["origin"] == origin]
        significant_rows = [
            swap_row for swap_row in origin_rows if is_swap_difference_significant(swap_row)
        ]
        untested_count = sum(swap_row["p_corrected"] is None for swap_row in origin_rows)
        untested_note = (
            f" {format_count(untested_count, 'pair')} could not be tested, because there are too "
            "few sentences or because too few of them differ in score."
            if untested_count
            else ""
        )
        if not significant_rows:
            pair_count = format_count(len(origin_rows), "pair")
            message = (
                f"In {origin_label}, no significant difference was found for {pair_count} of "
                "groups."
            )
            message += untested_note
            if not origin_rows:
                message = f"In {origin_label}, no pair of groups was compared."
            section.add_blocks(Paragraph([message]))
            continue
        table_rows: list[list[InlineElement]] = []
        for row in select_first_pairs_covering_all_groups(
            significant_rows, corpus.max_rows // 3 or 1
        ):
            figure = add_swap_difference_figure(corpus, row)
            crossed_share = format_number(row["raised_share"] + row["lowered_share"], "share")
            table_rows.append(
                [
                    f"{row['group_name']} → {row['other_group']}",
                    f"{row['sentences']:,}",
                    figure,
                    figure.interval_or_dash,
                    crossed_share,
                ]
            )
        columns = ["group → replacement", "n", "difference", "95 % interval", "crossed"]
        note = ""
        if origin == "templates":
            note = (
                "The scored sentences are not part of the corpus, so the table does not describe "
                f"the corpus. {_describe_swap_intervals(corpus, origin_rows)}"
            )
        note += (
            f"The scores of {len(significant_rows)} of {format_count(len(origin_rows), 'pair')} "
            f"of groups differ significantly.{untested_note} The table shows the largest "
            "differences and the largest difference for every group; the swap_differences table "
            "lists all differences. “Crossed” is the share of sentences for which only one of the "
            f"two scores passes the threshold of {rows[0]['threshold']:g}. Scorer: "
            f"{format_swap_scorer_with_digest(corpus)}."
        )
        section.add_blocks(
            DataTable(
                f"Toxicity scorer bias, measured on {origin_label}",
                columns,
                table_rows,
                frozenset({1, 2, 3, 4}),
                note,
            )
        )
    return section


def build_removed_examples_section(corpus: CorpusFigures) -> Section:
    """Build the table of examples of removed documents by source and language.

    The figures link to the redacted documents.
    """
    section = Section("Examples of removed documents")
    rows = read_removal_effects_rows(corpus, "removed_examples")
    example_by_rule_group: dict[tuple[str, ...], Row] = {}
    for row in rows:
        example_by_rule_group.setdefault(
            (row["stage"], row["reason"], row["dimension"], row["slice"]), row
        )
    ordered = sorted(
        example_by_rule_group.values(),
        key=lambda example: (not example["no_other_removed"], -(example["rate_ratio"] or 0)),
    )
    worst_by_group: dict[tuple[str, str], Row] = {}
    for row in ordered:
        worst_by_group.setdefault((row["dimension"], row["slice"]), row)
    # Every source and language has a row, even one that is too small for a ratio.
    leading_rows = [*worst_by_group.values()]
    further_rows = [
        row for row in ordered if worst_by_group[row["dimension"], row["slice"]] is not row
    ]
    table_rows: list[list[InlineElement]] = []
    for row in [*leading_rows, *further_rows[: max(0, corpus.max_rows - len(leading_rows))]]:
        conditions = {k: row[k] for k in ("stage", "reason", "dimension", "slice")}
        figure = corpus.book.add_computed_figure(
            "-".join(["removed_examples", *conditions.values()]),
            f"{row['reason']}: number of example documents {describe_document_group(row)}",
            "documents",
            (EFFECTS, "removed_examples"),
            conditions,
            aggregate="count",
        )
        ratio_text = "–" if row["rate_ratio"] is None else format_number(row["rate_ratio"], "times")
        ratio_text = INFINITE_RATIO if row["no_other_removed"] else ratio_text
        rule_name = format_rule_name(corpus, row["stage"], row["reason"])
        table_rows.append(
            [
                describe_document_group(row),
                name_corpus_stage(row["stage"]),
                rule_name,
                ratio_text,
                figure,
            ]
        )
    if not table_rows:
        section.add_blocks(Paragraph(["No example documents were stored."]))
        return section
    note = (
        "The table first lists the highest ratio for each source and language, then the highest "
        "remaining ratios. Each number of examples links to the documents, which are redacted as "
        "on all pages. To view them unredacted on this machine only, run hallmark export-site "
        "--unredacted."
    )
    if len(example_by_rule_group) > len(table_rows):
        note = (
            f"The table shows {len(table_rows)} of {len(example_by_rule_group)} rows; the "
            f"removal_effects stage's removed_examples table lists all of them. {note}"
        )
    columns = ["documents", "stage", "reason", "ratio", "examples"]
    section.add_blocks(
        DataTable(
            f"Documents {corpus.describe_rule_outcome()}",
            columns,
            table_rows,
            frozenset({3, 4}),
            note,
        )
    )
    return section


def build_lexicon_accuracy_section(corpus: CorpusFigures) -> Section:
    """Report recall and precision of the lexicon that finds mentions of people."""
    figures: list[InlineElement] = []
    for row in read_removal_effects_rows(corpus, "lexicon_accuracy"):
        if row["group_name"]:
            continue
        for metric, sample_size in (("recall", row["mentions"]), ("precision", row["detected"])):
            figures.append(
                corpus.book.add_computed_figure(
                    f"lexicon-{metric}",
                    f"mentions of people: {metric}",
                    "share",
                    (EFFECTS, "lexicon_accuracy"),
                    {"group_name": ""},
                    aggregate="last",
                    value_column=metric,
                    n=sample_size,
                    low=row[f"{metric}_low"],
                    high=row[f"{metric}_high"],
                    confidence_level=CONFIDENCE_LEVEL,
                    method="measured on Hallmark's own labelled sentences, with a Wilson interval",
                )
            )
    recall, precision = figures
    return Section(
        "Accuracy of the identity lexicon",
        [
            Paragraph(
                [
                    "On labelled sentences, the lexicon finds ",
                    recall,
                    " of the mentions (recall). The share of the lexicon's matches that are "
                    "mentions (precision) is ",
                    precision,
                    ". The same author wrote the lexicon and the sentences, so accuracy on other "
                    "text is probably lower. The lexicon_accuracy table lists the accuracy for "
                    "each group.",
                ]
            )
        ],
    )
