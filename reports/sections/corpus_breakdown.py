"""Break a corpus down by licence, domain and other dimensions, and occupations by gender.

Both sections of the datasheet are read from the tables ``composition`` and ``occupations`` of the
profile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hallmark.reports.page.document import DataTable, InlineElement, Paragraph, Section
from hallmark.reports.page.figures import Figure
from hallmark.reports.sections.corpus_figures import PROFILE, CorpusFigures
from hallmark.tasks.contract import Row, format_count

#: The beginning of the names of the sources of planted documents.
PLANTED_SOURCE_PREFIX = "planted/"

#: Values of the ``composition`` table: nothing is known, and all values that the profile merged.
UNKNOWN_VALUE, OTHER_VALUES = "unknown", "other"

LANGUAGE_NOTE = (
    "Languages are shown as ISO 639 codes; zxx means text without a language, such as code or "
    "numbers. “Unknown” includes languages that the detector could not determine with confidence."
)


def build_breakdown_section(
    corpus: CorpusFigures, stated_licence: str | None = None, declared_licences: Sequence[str] = ()
) -> Section:
    """Build the table of the largest values of each dimension.

    Unknown values always have a row, and one row sums up the smaller values, so that the rows of a
    dimension add up to all documents. A dimension that is unknown for all documents is named in a
    sentence instead.

    Args:
        corpus: The corpus and its profile.
        stated_licence: The licence that a person stated for the whole corpus.
        declared_licences: The licences that sources declare, whether or not any of their documents
            remain.
    """
    rows = corpus.profile["composition"].read().to_pylist()
    table_rows: list[list[InlineElement]] = []
    unknown_dimensions: list[str] = []
    shown_dimensions: list[str] = []
    has_smaller_values = False
    # Sources have a table of their own.
    dimensions = dict.fromkeys(row["dimension"] for row in rows if row["dimension"] != "source")
    for dimension in dimensions:
        dimension_rows = [
            row for row in rows if row["dimension"] == dimension and row["split"] == ""
        ]
        if {row["value"] for row in dimension_rows} == {UNKNOWN_VALUE}:
            unknown_dimensions.append(dimension)
            continue
        shown_dimensions.append(dimension)
        dimension_rows.sort(
            key=lambda row: (row["value"] in (UNKNOWN_VALUE, OTHER_VALUES), -row["bytes"])
        )
        max_values = max(3, corpus.max_rows // 5)
        smaller_rows = [row for row in dimension_rows[max_values:] if row["value"] != UNKNOWN_VALUE]
        for row in dimension_rows:
            if row not in smaller_rows:
                value = row["value"]
                cells = _add_composition_figures(corpus, dimension, value, value)
                table_rows.append([dimension, corpus.redact_value(value), *cells])
        if smaller_rows:
            smaller_values = [row["value"] for row in smaller_rows]
            label = (
                "other values"  # the profile does not say how many it merged
                if OTHER_VALUES in smaller_values
                else format_count(len(smaller_values), "other value")
            )
            cells = _add_composition_figures(corpus, dimension, smaller_values, label)
            table_rows.append([dimension, label, *cells])
            has_smaller_values = True
    section = Section("Documents by licence, domain and other properties")
    if table_rows:
        notes = [LANGUAGE_NOTE] if "language" in shown_dimensions else []
        if has_smaller_values:
            notes.append("The profile's composition table lists the other values.")
        columns = ["by", "value", "documents", "share of bytes"]
        caption = "Documents by metadata"
        section.add_blocks(
            DataTable(caption, columns, table_rows, frozenset({2, 3}), " ".join(notes))
        )
    if "licence" in unknown_dimensions and (
        declared_licences or (stated_licence and stated_licence.strip())
    ):
        unknown_dimensions.remove("licence")
        message = "No document comes from a source with a declared licence."
        if not declared_licences:
            message = (
                "No source declares a licence; this page shows the licence for the whole corpus."
            )
        section.add_blocks(Paragraph([message]))
    if unknown_dimensions:
        *first_names, last_name = unknown_dimensions
        dimension_list = f"{', '.join(first_names)} or {last_name}" if first_names else last_name
        message = f"No document has a known {dimension_list}."
        section.add_blocks(Paragraph([message]))
    return section


def _add_composition_figures(
    corpus: CorpusFigures, dimension: str, values: str | list[str], value_label: str
) -> list[InlineElement]:
    """Add the number of documents with one of these values, and their share of bytes."""
    documents, byte_share = (
        corpus.book.add_computed_figure(
            f"composition-{column}-{dimension}-{value_label}",
            f"{column_label}, {dimension} {value_label}",
            unit,
            (PROFILE, "composition"),
            {"dimension": dimension, "value": values, "split": ""},
            value_column=column,
            missing_reason="the corpus has no text",
        )
        for column, column_label, unit in (
            ("documents", "documents", "documents"),
            ("byte_share", "share of bytes", "share"),
        )
    )
    return [documents, byte_share]


# Occupations -------------------------------------------------------------------------------------


def describe_planted_mentions(rows: Iterable[Row]) -> str:
    """Say how many mentions are in planted documents; empty if none is.

    Args:
        rows: Numbers of mentions by source, as ``mentions`` and ``source``.
    """
    planted_count = sum(
        row["mentions"] for row in rows if row["source"].startswith(PLANTED_SOURCE_PREFIX)
    )
    if not planted_count:
        return ""
    verb = "is" if planted_count == 1 else "are"
    return (
        f" {format_count(planted_count, 'counted mention')} {verb} in planted documents, counting "
        f"every copy. Other pages may exclude planted documents, so their figures can "
        "differ."
    )


def build_occupations_section(corpus: CorpusFigures) -> Section:
    """Build the table of occupations whose share of women differs from the overall share.

    A share differs where its 95 % interval excludes the overall share. The most skewed occupation,
    by the nearer bound of its interval, comes first.
    """
    rows: list[Row] = corpus.profile["occupations"].read().to_pylist()
    all_source_rows = [row for row in rows if row["source"] == ""]
    total_row = next((row for row in all_source_rows if row["occupation"] == ""), None)
    section = Section("Occupations near gendered words")
    if total_row is None or total_row["women_share"] is None:
        message = (
            "No mention of a listed occupation has more words for one gender than for the other "
            "nearby."
        )
        section.add_blocks(Paragraph([message]))
        return section
    occupation_rows = [row for row in all_source_rows if row["occupation"]]
    rows_with_share = [row for row in occupation_rows if row["women_share"] is not None]
    skewed_rows = [
        row for row in rows_with_share if not row["low"] <= total_row["women_share"] <= row["high"]
    ]
    skewed_rows.sort(
        key=lambda row: (
            -_measure_distance_to_nearest_bound(row, total_row["women_share"]),
            row["occupation"],
        )
    )
    inconclusive_count = len(rows_with_share) - len(skewed_rows)
    overall_share = _add_women_share_figure(corpus, total_row, "all occupations")
    section.add_blocks(
        Paragraph(
            [
                "An occupation mention is counted if the words near it in the same sentence "
                "include more for one gender than for the other. Of the counted mentions, ",
                overall_share,
                " have more words for women (such as she, her, woman, Mrs) than words for men "
                "nearby.",
                describe_planted_mentions(
                    [
                        {
                            "source": row["source"],
                            "mentions": row["women_mentions"] + row["men_mentions"],
                        }
                        for row in rows
                        if row["occupation"] == ""
                    ]
                ),
            ]
        )
    )
    shown_rows = skewed_rows[: corpus.max_rows // 2]
    table_rows: list[list[InlineElement]] = []
    for row in shown_rows:
        share = _add_women_share_figure(corpus, row, row["occupation"])
        table_rows.append(
            [
                row["occupation"],
                share,
                share.interval_or_dash,
                f"{row['women_mentions'] + row['men_mentions']:,}",
            ]
        )
    if table_rows:
        columns = ["occupation", "near words for women", "95 % interval", "n"]
        limit_note = (
            f"The table shows {len(shown_rows)} of {len(skewed_rows):,} occupations, most skewed "
            "first. "
            if len(shown_rows) < len(skewed_rows)
            else ""
        )
        note = (
            f"{limit_note}Occupations are sorted by skew, the distance from the share over all "
            "occupations to the nearer end of the interval. n is the number of mentions. The "
            "profile's occupations table lists all occupations."
        )
        section.add_blocks(
            DataTable(
                "Occupations whose share of women differs from the overall share",
                columns,
                table_rows,
                frozenset({1, 2, 3}),
                note,
            )
        )
    section.add_blocks(
        Paragraph(
            [
                "Number of occupations for which no difference was found, because the interval "
                f"contains the share of all occupations: {inconclusive_count:,}. Number of "
                "mentioned occupations that never have more words for one gender than for the "
                f"other nearby: {len(occupation_rows) - len(rows_with_share):,}. About one in "
                "twenty comparisons shows a difference by chance. Wilson intervals assume "
                "independent "
                "mentions and are too narrow for repetitive text. The profile counts English "
                "words, not roles: a printer can be a machine."
            ]
        )
    )
    return section


def _measure_distance_to_nearest_bound(row: Row, reference_share: float) -> float:
    """Return the distance from a share to the nearer bound of an interval that excludes it."""
    distance: float = max(row["low"] - reference_share, reference_share - row["high"])
    return distance


def _add_women_share_figure(corpus: CorpusFigures, row: Row, label: str) -> Figure:
    mention_count = row["women_mentions"] + row["men_mentions"]
    return corpus.book.add_computed_figure(
        f"occupations-{row['occupation'] or 'all'}",
        f"share of mentions that have more words for women than words for men nearby, {label}",
        "share",
        (PROFILE, "occupations"),
        {"source": "", "occupation": row["occupation"]},
        aggregate="last",
        value_column="women_share",
        low=row["low"],
        high=row["high"],
        confidence_level=0.95,
        n=mention_count,
        method="Wilson interval with mentions as units",
    )
