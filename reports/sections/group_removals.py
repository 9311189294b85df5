"""Report what curation removed of every group: the datasheet's section "Removal rates by group".

The figures come from the tables ``group_removals`` and ``group_removals_by_reason`` of the stage
``removal_effects``. No table here is cut: every group, language, length class and source has a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from hallmark.reports.page import charts
from hallmark.reports.page.document import (
    Block,
    Chart,
    DataTable,
    DefinitionEntry,
    DefinitionList,
    InlineContent,
    InlineElement,
    Paragraph,
    Section,
    ShortFigure,
)
from hallmark.reports.page.figures import Figure, format_number
from hallmark.reports.sections.corpus_figures import CorpusFigures
from hallmark.reports.sections.curation_effects import (
    CONFIDENCE_LEVEL,
    EFFECTS,
    INFINITE_RATIO,
    build_group_swap_section,
    build_rule_effect_sections,
    describe_document_group,
    describe_lost_duplicates,
    read_removal_effects_rows,
)
from hallmark.reports.sections.filter_errors import build_filter_error_section
from hallmark.reports.sections.stage_titles import name_corpus_stage
from hallmark.tasks.contract import Row, format_count

REMOVAL_RATES_TITLE = "Removal rates by group"

#: Dimensions of groups of people: the answer and the chart are about them.
PEOPLE_DIMENSIONS = ("identity", "dialect")

#: How many groups of a sentence have an interval and the share of others; the tables have all.
MAX_DETAILED_GROUPS = 3

SOURCE_MIX_SENTENCE = (
    "The comparison within sources can differ from the comparison of overall shares because a "
    "group's documents may be concentrated in sources from which few or many documents were "
    "removed."
)


class Outcome(NamedTuple):
    """What may become of a document: it is removed, or removed without a remaining copy."""

    caption: str
    """Caption of the table of this outcome, without the kind of group."""
    label: str
    prefix: str
    """Prefix of the columns of ``group_removals`` that compare this outcome."""
    rate_column: str
    count_column: str


REMOVED = Outcome(
    "Removed documents (including duplicates)", "removed", "", "removal_rate", "removed_documents"
)
LOST = Outcome(
    "Lost documents (no copy remains)",
    "no copy remains",
    "lost_",
    "lost_rate",
    "lost_documents",
)

#: What introduces the comparison of lost documents. A group may differ in it although its removal
#: rate does not, or the reverse.
LOST_LEAD = "“Removed” includes duplicates with a remaining copy; “lost” does not."

READING_NOTE = (
    "A document is treated as removed if any stage removed it, including as a duplicate. It is "
    "lost if no copy of it remains in the corpus. The tables of removed and lost documents can "
    "therefore disagree about a group. The ratio is the group's removed share divided by the "
    "removed share of all other documents, within each source (Mantel–Haenszel). It can exceed 1 "
    "although the group's overall share is below that of other documents. The “compared with "
    "others” column shows “more often” or “less often” if q is below 5 %; the q-values control "
    "the false discovery rate over all rows of the group_removals table. Intervals are not "
    "corrected, so an interval can exclude 1 although q is above 5 %. The detectable ratio is the "
    "smallest ratio that the test, without adjustment, would detect with 80 % power. All groups "
    "are shown, sorted by the distance of the interval from 1, largest first."
)
SOURCE_NOTE = (
    "Each source is compared with all other sources. The ratios for sources are not adjusted; the "
    "“compared with others” column uses these unadjusted ratios."
)
PEOPLE_NOTE = (
    "A high ratio does not prove that a filter is unfair: documents that mention a group also "
    "differ in other ways. Mentions and dialect markers are found with lists of English words and "
    "phrases, so only documents in English or an undetermined language are counted and compared. A "
    "dialect marker does not prove who wrote a text."
)


# Rows --------------------------------------------------------------------------------------------


def read_group_removals(corpus: CorpusFigures) -> list[Row]:
    """Return the rows of ``group_removals``; empty if the stage did not run."""
    return read_removal_effects_rows(corpus, "group_removals")


def sort_by_difference(rows: Sequence[Row], prefix: str = "") -> list[Row]:
    """Sort rows by the end of the interval nearest to 1, the largest difference first.

    Rows whose interval includes 1 follow by p, and then those that could not be compared.
    """
    p_column = f"{prefix}p"
    return sorted(
        rows,
        key=lambda row: (
            row[p_column] is None,
            -measure_log_distance_from_one(row, prefix),
            1.0 if row[p_column] is None else row[p_column],
            -row["documents"],
            row["dimension"],
            row["slice"],
        ),
    )


def measure_log_distance_from_one(row: Row, prefix: str) -> float:
    """Return the logarithm of the interval's end nearest to 1, without sign; 0 if it includes 1."""
    low, high = row[f"{prefix}adjusted_low"], row[f"{prefix}adjusted_high"]
    if low is not None and low > 1:
        return math.log(low)
    if high is not None and high < 1:
        return -math.log(high) if high > 0 else math.inf
    return 0.0


def has_infinite_adjusted_ratio(row: Row, prefix: str = "") -> bool:
    """Return whether documents of the group were removed, and no others of the same sources."""
    return row[f"{prefix}adjusted_ratio"] is None and row[f"{prefix}adjusted_low"] is not None


# Answer ------------------------------------------------------------------------------------------


def build_group_removal_answer(corpus: CorpusFigures) -> list[Block]:
    """Answer what share of the documents that mention each group curation removed."""
    rows = read_group_removals(corpus)
    if not rows:
        return [Paragraph([describe_missing_rates(corpus)])]
    total = next(row for row in rows if not row["dimension"])
    return [
        Paragraph(describe_total_removals(corpus, total)),
        Paragraph(describe_differences(corpus, rows)),
    ]


def describe_missing_rates(corpus: CorpusFigures) -> str:
    """Return why there are no removal rates."""
    reason = (
        "the removal_effects stage did not run"
        if EFFECTS not in corpus.stage_artifacts
        else "the removal_effects stage found no documents"
    )
    return f"Removal rates by group are not known, because {reason}."


def describe_total_removals(corpus: CorpusFigures, total: Row) -> InlineContent:
    """Return how many documents curation removed, and of how many no copy remains."""
    if not total["documents"]:
        return ["Curation received no documents."]
    if not total["removed_documents"]:
        return [f"Curation removed none of {format_count(total['documents'], 'document')}."]
    removed, duplicates, lost = (
        add_count_figure(corpus, total, column)
        for column in ("removed_documents", "duplicate_documents", "lost_documents")
    )
    return [
        "Curation removed ",
        ShortFigure(removed),
        f" of {format_count(total['documents'], 'document')} "
        f"({format_number(total['removal_rate'], 'share')}). ",
        ShortFigure(duplicates),
        f" of these {'was a duplicate' if total['duplicate_documents'] == 1 else 'were duplicates'}"
        " of other documents. Of the removed documents, ",
        ShortFigure(lost),
        f" {'is' if total['lost_documents'] == 1 else 'are'} lost: no copy remains in the corpus.",
    ]


def describe_differences(corpus: CorpusFigures, rows: Sequence[Row]) -> InlineContent:
    """Return about which groups documents were removed or lost more or less often than others."""
    people_rows = [row for row in rows if row["dimension"] in PEOPLE_DIMENSIONS]
    people_rows = [row for row in people_rows if row["documents"]]
    if not people_rows:
        return ["No document mentions a group of people from the lexicons or has dialect markers."]
    compared_rows = [row for row in people_rows if row["verdict"] != "not compared"]
    if not compared_rows:
        return ["No group could be compared with all other documents from the same sources."]
    config = corpus.stage_artifacts[EFFECTS].manifest["parts"]["config"]
    content: list[InlineElement] = [
        describe_compared_groups(compared_rows, config["min_group_documents"])
    ]
    significant_rows = [row for row in compared_rows if row["verdict"] in ("more", "less")]
    for verdict in ("more", "less"):
        verdict_rows = [row for row in significant_rows if row["verdict"] == verdict]
        content += describe_groups_with_verdict(corpus, verdict_rows, verdict)
    if any(is_share_against_verdict(row) for row in significant_rows):
        content.append(f" {SOURCE_MIX_SENTENCE}")
    other_count = len(compared_rows) - len(significant_rows)
    if not significant_rows:
        content.append(
            " Over all stages, the removal rate does not differ significantly for any group."
        )
    elif other_count:
        verb = "shows" if other_count == 1 else "show"
        other_groups = format_count(other_count, "other group")
        content.append(f" {other_groups} {verb} no significant difference.")
    return [*content, " ", describe_lost_differences(compared_rows)]


def describe_compared_groups(compared_rows: Sequence[Row], min_documents: int) -> str:
    """Return how many groups were compared; those with few documents are counted separately."""
    large_count = sum(row["documents"] >= min_documents for row in compared_rows)
    smaller_count = len(compared_rows) - large_count
    smaller_groups = format_count(smaller_count, "smaller group")
    others = "compared with those of all other documents from the same sources."
    if not large_count:
        return (
            f"No group of people or dialect has at least {min_documents:,} documents. The removal "
            f"rates of {smaller_groups}, including duplicates, were {others}"
        )
    smaller_clause = f", and of {smaller_groups}," if smaller_count else ""
    return (
        "The removal rates, including duplicates, of "
        f"{format_count(large_count, 'identity or dialect group')} with at least "
        f"{min_documents:,} documents{smaller_clause} were {others}"
    )


def describe_groups_with_verdict(
    corpus: CorpusFigures, rows: Sequence[Row], verdict: str
) -> InlineContent:
    """Return all groups with a verdict and their shares; empty without a group.

    Those with the largest differences have an interval and the share of all other documents.
    """
    if not rows:
        return []
    detailed_rows = sort_by_difference(rows)[:MAX_DETAILED_GROUPS]
    content: list[InlineElement] = [f" Documents were removed significantly {verdict} often if "]
    for introduction, row in introduce_groups(rows):
        content += [
            f"{introduction} (",
            *describe_share_of_group(corpus, row, is_detailed=row in detailed_rows),
            ")",
        ]
    return [*content, "."]


def introduce_groups(rows: Sequence[Row], prefix: str = "") -> list[tuple[str, Row]]:
    """Return the words that introduce each group in a list, such as "they mention women".

    Groups of people come before dialects; of each, the largest difference comes first.

    Args:
        rows: Rows of ``group_removals`` about groups of people and dialects.
        prefix: Prefix of the columns that compare the outcome, see ``sort_by_difference``.
    """
    introduced: list[tuple[str, Row]] = []
    for dimension, verb in (("identity", "they mention "), ("dialect", "they have markers of ")):
        dimension_rows = [row for row in rows if row["dimension"] == dimension]
        for position, row in enumerate(sort_by_difference(dimension_rows, prefix)):
            separator = ""
            if introduced:
                separator = "; " if position else "; or if "
                if 0 < position == len(dimension_rows) - 1:
                    separator = "; or " if position > 1 else " or "
            introduced.append((f"{separator}{'' if position else verb}{row['slice']}", row))
    return introduced


def describe_share_of_group(corpus: CorpusFigures, row: Row, *, is_detailed: bool) -> InlineContent:
    """Return the removed share of a group and n; if detailed, its interval and that of others."""
    share = ShortFigure(add_share_figure(corpus, row, REMOVED))
    if not is_detailed:
        return [share, f", n = {row['documents']:,}"]
    interval = ""
    if row["removal_rate_low"] is not None:
        low, high = (format_number(row[f"removal_rate_{end}"], "share") for end in ("low", "high"))
        interval = f"{100 * CONFIDENCE_LEVEL:g} % interval {low} to {high}, "
    other_share = format_or_dash(row["other_removal_rate"], "share")
    return [
        share,
        f" removed, {interval}n = {row['documents']:,}; all other documents: {other_share}",
    ]


def is_share_against_verdict(row: Row) -> bool:
    """Return whether the share, not adjusted for source, does not differ as the verdict says."""
    share, other_share = row["removal_rate"], row["other_removal_rate"]
    if other_share is None:
        return False
    return bool(share <= other_share if row["verdict"] == "more" else share >= other_share)


def describe_lost_differences(compared_rows: Sequence[Row]) -> str:
    """Return about which groups documents were lost more or less often, and what is not counted."""
    clauses = []
    for verdict in ("more", "less"):
        verdict_rows = [row for row in compared_rows if row["lost_verdict"] == verdict]
        if verdict_rows:
            introductions = [words for words, _ in introduce_groups(verdict_rows, LOST.prefix)]
            clauses.append(f"significantly {verdict} often if {''.join(introductions)}")
    if clauses:
        return f"{LOST_LEAD} Documents were lost {', and '.join(clauses)}."
    if all(row["lost_verdict"] == "not compared" for row in compared_rows):
        return f"{LOST_LEAD} The shares of documents lost could not be compared."
    return f"{LOST_LEAD} The share of documents lost does not differ significantly for any group."


# Figures -----------------------------------------------------------------------------------------


def _add_figure(
    corpus: CorpusFigures, row: Row, column: str, label: str, unit: str, **fields: object
) -> Figure:
    conditions = {key: row[key] for key in ("dimension", "slice")}
    documents = f"documents {describe_document_group(row)}" if row["dimension"] else "all documents"
    return corpus.book.add_computed_figure(
        "-".join(["group_removals", column, *conditions.values()]),
        f"{documents}: {label}",
        unit,
        (EFFECTS, "group_removals"),
        conditions,
        **{"aggregate": "last", "value_column": column, "n": row["documents"], **fields},
    )


def add_count_figure(corpus: CorpusFigures, row: Row, column: str) -> Figure:
    """Add a number of documents of a group."""
    return _add_figure(corpus, row, column, column.replace("_", " "), "documents")


def add_share_figure(corpus: CorpusFigures, row: Row, outcome: Outcome) -> Figure:
    """Add the share of the documents of a group with this outcome."""
    low, high = (row[f"{outcome.rate_column}_{end}"] for end in ("low", "high"))
    return _add_figure(
        corpus,
        row,
        f"{outcome.count_column}/documents",
        f"share: {outcome.label}",
        "share",
        aggregate="ratio",
        low=low,
        high=high,
        confidence_level=None if low is None else CONFIDENCE_LEVEL,
        method="Wilson interval with clusters of near-duplicates as units",
    )


def build_ratio_cell(corpus: CorpusFigures, row: Row, outcome: Outcome) -> InlineElement:
    """Return the share of a group divided by that of all other documents."""
    ratio_column = f"{outcome.prefix}adjusted_ratio"
    if row[ratio_column] is None:
        return INFINITE_RATIO if has_infinite_adjusted_ratio(row, outcome.prefix) else "–"
    return _add_figure(
        corpus,
        row,
        ratio_column,
        f"{outcome.label}: share divided by the share of all other documents, adjusted for source",
        "times",
        low=row[f"{outcome.prefix}adjusted_low"],
        high=row[f"{outcome.prefix}adjusted_high"],
        confidence_level=CONFIDENCE_LEVEL,
        method="Mantel–Haenszel within sources; exact interval with clusters of near-duplicates "
        "as units",
    )


# Section -----------------------------------------------------------------------------------------


def build_group_removal_section(corpus: CorpusFigures) -> Section:
    """Build the section on removals by group, with the errors of the filter that removes."""
    section = Section(REMOVAL_RATES_TITLE)
    rows = read_group_removals(corpus)
    filter_errors = build_filter_error_section(corpus)
    if not rows:
        section.add_blocks(Paragraph([describe_missing_rates(corpus)]))
        section.sections = [filter_errors]
        return section
    people_rows = sort_by_difference(
        [row for row in rows if row["dimension"] in PEOPLE_DIMENSIONS and row["documents"]]
    )
    section.add_blocks(Paragraph([READING_NOTE]), *build_ratio_chart(people_rows))
    if people_rows:
        section.add_blocks(*build_rate_tables(corpus, "group", people_rows, PEOPLE_NOTE))
    section.add_blocks(*describe_groups_without_documents(rows))
    lost_duplicates = describe_lost_duplicates(corpus)
    section.add_blocks(*(Paragraph(content) for content in lost_duplicates))
    section.sections = [
        filter_errors,
        Section(
            "Removal rates by language, source, stage and rule",
            sections=[
                build_group_swap_section(corpus),
                build_dimension_section(
                    corpus, "Removal rates by language and length", rows, ("language", "length")
                ),
                build_dimension_section(corpus, "Removal rates by source", rows, ("source",)),
                build_stage_section(corpus, rows),
                *build_rule_effect_sections(corpus),
            ],
            page="removal-rates",
            answer=["Further removal rates, examples, and the accuracy of the identity lexicon."],
        ),
    ]
    return section


def build_dimension_section(
    corpus: CorpusFigures, title: str, rows: Sequence[Row], dimensions: Sequence[str]
) -> Section:
    """Build a section with a table of the groups of these dimensions."""
    section = Section(title)
    for dimension in dimensions:
        dimension_rows = [row for row in rows if row["dimension"] == dimension]
        if dimension_rows:
            section.add_blocks(*build_rate_tables(corpus, dimension, dimension_rows))
    if not section.blocks:
        section.add_blocks(Paragraph(["No document has a known language or length."]))
    return section


def build_rate_tables(
    corpus: CorpusFigures, kind: str, rows: Sequence[Row], extra_note: str = ""
) -> list[DataTable]:
    """Build a table of removed documents and one of those without a remaining copy, all rows."""
    return [
        build_rate_table(corpus, kind, rows, REMOVED, extra_note),
        build_rate_table(corpus, kind, rows, LOST),
    ]


def build_rate_table(
    corpus: CorpusFigures, kind: str, rows: Sequence[Row], outcome: Outcome, extra_note: str = ""
) -> DataTable:
    """Build a table that compares the groups of these rows with all other documents."""
    is_about_sources = all(row["dimension"] == "source" for row in rows)
    columns = [
        "documents",
        "n",
        outcome.label,
        f"{outcome.label} (all other documents)",
        "ratio" if is_about_sources else "ratio adjusted for source",
        "95 % interval",
        "compared with others",
    ]
    if outcome is REMOVED:
        columns.append("detectable ratio")
    notes = [SOURCE_NOTE] if is_about_sources else []
    if any(has_infinite_adjusted_ratio(row, outcome.prefix) for row in rows):
        notes.append(f"{INFINITE_RATIO} means that the share for all other documents is 0.")
    return DataTable(
        f"{outcome.caption}, by {kind}",
        columns,
        [
            build_rate_cells(corpus, row, outcome)
            for row in sort_by_difference(rows, outcome.prefix)
        ],
        frozenset({1, 2, 3, 4, 5, 7}) & {*range(len(columns))},
        " ".join([*notes, extra_note]).strip(),
    )


def build_rate_cells(corpus: CorpusFigures, row: Row, outcome: Outcome) -> list[InlineElement]:
    """Build the cells of a row of ``build_rate_table``."""
    cells: list[InlineElement] = [
        describe_document_group(row),
        f"{row['documents']:,}",
        add_share_figure(corpus, row, outcome),
        format_or_dash(row[f"other_{outcome.rate_column}"], "share"),
        build_ratio_cell(corpus, row, outcome),
        format_interval(row, outcome.prefix),
        describe_difference(row, outcome.prefix),
    ]
    if outcome is REMOVED:
        cells.append(format_or_dash(row["minimum_detectable_ratio"], "times"))
    return cells


def format_or_dash(value: float | None, unit: str) -> str:
    return "–" if value is None else format_number(value, unit)


def format_interval(row: Row, prefix: str = "") -> str:
    """Format the interval of a ratio; "any" is an unbounded upper end."""
    low, high = row[f"{prefix}adjusted_low"], row[f"{prefix}adjusted_high"]
    if low is None:
        return "–"
    high_text = "any" if high is None else format_number(high, "times")
    return f"{format_number(low, 'times')} to {high_text}"


def describe_difference(row: Row, prefix: str = "") -> str:
    """Return whether the group was removed significantly more or less often, with q."""
    verdict, q = row[f"{prefix}verdict"], row[f"{prefix}q"]
    if verdict == "not shown":
        return "no significant difference"
    if verdict not in ("more", "less"):
        return str(verdict)
    return f"{verdict} often, {format_false_discovery_rate(q)}"


def format_false_discovery_rate(q: float) -> str:
    return "q < 0.001" if q < 0.001 else f"q = {format_number(q, 'p')}"


def build_ratio_chart(rows: Sequence[Row]) -> list[Block]:
    """Build a chart of the ratios of all rows that have one, with their intervals."""
    drawn_rows = [
        row
        for row in rows
        if row["adjusted_ratio"] and row["adjusted_low"] and row["adjusted_high"]
    ]
    if not drawn_rows:
        return []
    labels = [describe_document_group(row) for row in drawn_rows]
    ratios = [row["adjusted_ratio"] for row in drawn_rows]
    bounds = [(row["adjusted_low"], row["adjusted_high"]) for row in drawn_rows]

    drawing = charts.IntervalChart(
        labels,
        ratios,
        bounds,
        "removed share divided by the removed share of all other documents",
        1.0,
        is_ratio=True,
    )
    alt: list[str] = ["Ratio of removed shares: "]
    for label, row in zip(labels, drawn_rows, strict=True):
        alt += [label, f" {format_number(row['adjusted_ratio'], 'times')} ({format_interval(row)})"]
        alt[-1] += ", "
    alt[-1] = alt[-1].removesuffix(", ") + "."
    caption = (
        "Each group's removed share, divided by the removed share of all other documents and "
        "adjusted for source, with 95 % intervals. The dashed line marks no difference."
    )
    if omitted_count := len(rows) - len(drawn_rows):
        caption += (
            f" The chart omits {format_count(omitted_count, 'group')} whose ratio is missing or "
            "zero, or whose interval reaches zero or has no upper bound; the table contains all "
            "groups."
        )
    return [Chart("group-removals", drawing, alt, caption)]


def describe_groups_without_documents(rows: Sequence[Row]) -> list[Block]:
    """Name the groups of people that no document mentions, and dialects without markers."""
    entries: list[DefinitionEntry] = []
    for dimension, term in (
        ("identity", "Groups that no document mentions"),
        ("dialect", "Dialects without markers in any document"),
    ):
        names = [
            row["slice"] for row in rows if row["dimension"] == dimension and not row["documents"]
        ]
        if names:
            entries.append((term, [f"{'; '.join(sorted(names, key=str.casefold))}."]))
    return [DefinitionList(entries)] if entries else []


def format_count_and_share(count: int, total: int) -> str:
    return f"{count:,} ({format_number(count / total, 'share')})" if count else "0"


def build_stage_section(corpus: CorpusFigures, rows: Sequence[Row]) -> Section:
    """Build a table of removed documents of every group by stage."""
    section = Section("Removed documents by stage")
    reason_rows = read_removal_effects_rows(corpus, "group_removals_by_reason")
    stages = list(dict.fromkeys(row["stage"] for row in reason_rows))
    if not stages:
        section.add_blocks(Paragraph(["No stage removed any documents."]))
        return section
    stage_order = list(corpus.stage_artifacts)
    stages.sort(key=lambda stage: stage_order.index(stage) if stage in stage_order else -1)
    counts: dict[tuple[str, str, str], int] = {}
    for row in reason_rows:
        key = (row["dimension"], row["slice"], row["stage"])
        counts[key] = counts.get(key, 0) + row["documents"]
    table_rows: list[list[InlineElement]] = []
    dimensions = dict.fromkeys(row["dimension"] for row in rows)
    ordered_rows = [
        row
        for dimension in dimensions
        for row in sort_by_difference([r for r in rows if r["dimension"] == dimension])
        if row["documents"]
    ]
    for row in ordered_rows:
        group_key = (row["dimension"], row["slice"])
        removed = corpus.book.add_computed_figure(
            "-".join(["group_removals_by_reason", *group_key]),
            "removed documents "
            + (describe_document_group(row) if row["dimension"] else "of the corpus"),
            "documents",
            (EFFECTS, "group_removals_by_reason"),
            {"dimension": row["dimension"], "slice": row["slice"]},
            value_column="documents",
        )
        table_rows.append(
            [
                describe_document_group(row) if row["dimension"] else "all documents",
                f"{row['documents']:,}",
                *(
                    format_count_and_share(counts.get((*group_key, stage), 0), row["documents"])
                    for stage in stages
                ),
                removed,
                f"{row['kept_documents']:,}",
                f"{row['unique_documents']:,}",
            ]
        )
    stage_names = map(name_corpus_stage, stages)
    columns = ["documents", "read", *stage_names, "removed", "kept", "unique"]
    note = (
        "The stage columns show the number of documents that each stage removed or quarantined, "
        "and its share of the documents that were read. “Preprocessing, cleaning, labelling” "
        "shows shares of the documents that each stage received. “Read” is the sum of “removed” "
        "and “kept”. “Unique” documents are the documents that were read, excluding exact "
        "duplicates and near-duplicates of other documents. For documents that the ingest stage "
        "removed, and for "
        "duplicates of documents in an earlier corpus, only the source is known. Records that the "
        "ingest stage could not read are not counted as documents; the “Collection process” "
        "section counts them."
    )
    section.add_blocks(
        DataTable(
            "Removed documents by stage and group",
            columns,
            table_rows,
            frozenset(range(1, len(columns))),
            note,
        )
    )
    return section
