"""Show how the sentences of the training text speak about each group of people.

The section of the datasheet is read from the tables ``group_sentiment`` and ``group_sentences`` of
the profile.
"""

from __future__ import annotations

from hallmark.reports.page.document import DataTable, InlineElement, Paragraph, Section
from hallmark.reports.page.figures import Figure, format_number
from hallmark.reports.sections.corpus_figures import PROFILE, CorpusFigures
from hallmark.tasks.contract import Row, format_count
from hallmark.tasks.corpus.profiles.sentiment_conclusions import (
    SIGNIFICANCE_LEVEL,
    has_too_few_sentences,
    is_more_negative,
)

#: The rule by which a sentence names a group.
RULE = (
    f"if q is below {100 * SIGNIFICANCE_LEVEL:g} % and the whole interval is below 0; q is "
    "the p-value adjusted for the false discovery rate over all groups in the table that have an "
    "interval"
)


def build_group_sentiment_section(corpus: CorpusFigures) -> Section:
    """Build the table of the mean sentiment of sentences about each group, most negative first."""
    section = Section("Sentiment of sentences that mention a group of people")
    rows: list[Row] = corpus.profile["group_sentiment"].read().to_pylist()
    if not rows:
        message = (
            "Groups were not compared because the search found no suitable sentence in the "
            "training text. A suitable sentence mentions exactly one group of a given kind, only "
            "once, using a term that has a counterpart for other groups. The search covers "
            "documents in English or an undetermined language and excludes planted documents."
        )
        section.add_blocks(Paragraph([message]))
        return section
    rows.sort(
        key=lambda row: (
            row["difference"] is None,
            row["difference"] or 0.0,
            row["axis"],
            row["group_name"],
        )
    )
    negative_rows = [*filter(is_more_negative, rows)]
    difference_figures = {_get_key(row): _add_difference_figure(corpus, row) for row in rows}
    for row in negative_rows:
        section.add_blocks(
            Paragraph(
                [
                    f"Sentences about {row['group_name']} are more negative than those about the "
                    f"other groups of the “{row['axis']}” kind. The difference in mean sentiment "
                    "is ",
                    difference_figures[_get_key(row)],
                    ".",
                ]
            )
        )
    if not negative_rows:
        section.add_blocks(Paragraph([_explain_no_finding(rows)]))
    table_rows: list[list[InlineElement]] = [
        [
            row["axis"],
            row["group_name"],
            _add_sentence_count_figure(corpus, row),
            f"{row['clusters']:,}",
            _add_mean_figure(corpus, row),
            difference_figures[_get_key(row)],
            difference_figures[_get_key(row)].interval_or_dash,
            *(
                "–" if row[name] is None else format_number(row[name], unit)
                for name, unit in (("q", "p"), ("minimum_detectable_difference", "score"))
            ),
        ]
        for row in rows
    ]
    columns = [
        "kind of group",
        "group",
        "sentences",
        "clusters",
        "mean sentiment",
        "difference",
        "95 % interval",
        "q",
        "minimum detectable difference",
    ]
    section.add_blocks(
        DataTable(
            "Sentiment of sentences by the group that they mention",
            columns,
            table_rows,
            frozenset(range(2, len(columns))),
            _describe_columns(rows, corpus),
        ),
        Paragraph(
            [
                "The scorer uses a word list, so it judges words rather than their meaning. A "
                "sentence with a negative score may describe what happened to people or reject an "
                "insult. The scores describe the text, not the people."
            ]
        ),
    )
    return section


def _explain_no_finding(rows: list[Row]) -> str:
    """Say that no group is named, and whether any group could be tested."""
    tested_count = sum(row["q"] is not None for row in rows)
    if tested_count:
        return (
            "No group's sentences were shown to be more negative than those of the other groups "
            f"of the same kind (tested: {tested_count:,} of {format_count(len(rows), 'group')}). "
            "This does not prove that there is no difference; the table shows the smallest "
            "difference that the test detects with 80 % power."
        )
    cause = (
        "Too few sentences mention groups of people for a comparison"
        if all(has_too_few_sentences(row) for row in rows)
        else "No group could be compared with others"
    )
    return (
        f"{cause} (tested: 0 of {format_count(len(rows), 'group')}). The note below the table "
        "explains why."
    )


def _get_key(row: Row) -> tuple[str, str]:
    return row["axis"], row["group_name"]


def _describe_columns(rows: list[Row], corpus: CorpusFigures) -> str:
    """Explain the columns, the rule, and which groups have no interval or lack sentences."""
    note = (
        "The table covers sentences from the training text (excluding planted documents) that "
        "mention exactly one group of a given kind, and mention it only once. A neutral word "
        "replaces the group's name before scoring. Sentiment ranges from −1 (negative) to 1 "
        "(positive). The scores of sentences about a group are averaged within each cluster of "
        "near-duplicate documents. The difference is the group's mean minus the mean of the other "
        f"groups of the same kind. A group is listed above the table {RULE}. Scorer: "
        f"{_format_scorer_with_digest(corpus)}."
    )
    groups_by_reason: dict[str, list[str]] = {}
    names = [row["group_name"] for row in rows]
    for row in rows:
        if row["q"] is None:
            reason = row["method"].removeprefix("no interval: ")
            kind = f" ({row['axis']})" if names.count(row["group_name"]) > 1 else ""
            groups_by_reason.setdefault(reason, []).append(f"{row['group_name']}{kind}")
    for reason, groups in groups_by_reason.items():
        note += f" No interval for {'; '.join(groups)}: {reason}."
    missing_count = sum(row["missing_sentences"] for row in rows)
    if missing_count:
        note += f" The scorer failed for {format_count(missing_count, 'sentence')} (not counted)."
    return note


def _format_scorer_with_digest(corpus: CorpusFigures) -> str:
    external_digests = corpus.profile.manifest["parts"]["external"]
    return f"{external_digests['scorer']} ({external_digests['digest'][:12]})"


def _add_difference_figure(corpus: CorpusFigures, row: Row) -> Figure:
    return _add_summary_figure(
        corpus,
        row,
        "difference",
        "mean sentiment of sentences about the group minus the mean sentiment of sentences about "
        "other groups",
        low=row["low"],
        high=row["high"],
        confidence_level=None if row["low"] is None else 0.95,
        missing_reason=row["method"].removeprefix("no interval: "),
    )


def _add_mean_figure(corpus: CorpusFigures, row: Row) -> Figure:
    return _add_summary_figure(
        corpus,
        row,
        "mean_sentiment",
        "mean sentiment of sentences about the group",
        missing_reason="the scorer failed for all sentences",
    )


def _add_summary_figure(
    corpus: CorpusFigures, row: Row, value_column: str, label: str, **figure_fields: object
) -> Figure:
    """Add a figure that is a column of the row of a group."""
    return corpus.book.add_computed_figure(
        f"group_sentiment-{value_column}-{row['axis']}-{row['group_name']}",
        f"{label}, {row['axis']}: {row['group_name']}",
        "score",
        (PROFILE, "group_sentiment"),
        {"axis": row["axis"], "group_name": row["group_name"]},
        aggregate="last",
        value_column=value_column,
        n=row["sentences"],
        scorer=_format_scorer_with_digest(corpus),
        method=row["method"],
        **figure_fields,
    )


def _add_sentence_count_figure(corpus: CorpusFigures, row: Row) -> Figure:
    """Add the number of sentences, which links to their documents."""
    return corpus.book.add_computed_figure(
        f"group_sentences-{row['axis']}-{row['group_name']}",
        f"number of sentences about the group, {row['axis']}: {row['group_name']}",
        "sentences",
        (PROFILE, "group_sentences"),
        {"axis": row["axis"], "group_name": row["group_name"]},
        aggregate="count",
    )
