"""Report the metadata of documents on the datasheet: which fields they have, with which values."""

from __future__ import annotations

from hallmark.reports.page.document import DataTable, InlineElement, Paragraph, Section
from hallmark.reports.page.figures import Figure
from hallmark.reports.sections.corpus_figures import PROFILE, CorpusFigures
from hallmark.tasks.contract import Row
from hallmark.tasks.corpus.profiles.metadata_counts import MAX_DISTINCT_VALUES, MIN_VALUE_DOCUMENTS
from hallmark.tasks.corpus.reading.metadata import LICENCE_FIELD

#: Licences that the first screen names.
MAX_SHOWN_LICENCES = 5


def build_metadata_section(corpus: CorpusFigures, *, has_declared_licences: bool) -> Section:
    """Build the tables of the fields of metadata and of their most frequent values.

    Args:
        corpus: The corpus and its profile.
        has_declared_licences: Whether the config states the licence of a source.
    """
    section = Section("Metadata")
    field_rows = sorted(
        corpus.profile["metadata_fields"].read().to_pylist(),
        key=lambda row: (-row["documents"], row["field"]),
    )
    if not field_rows:
        message = "The documents have no metadata of their own except web addresses and dates."
        if has_declared_licences:
            message += " The config specifies licences for the sources; see “Source declarations”."
        section.add_blocks(Paragraph([message]))
        return section
    shown_fields = field_rows[: corpus.max_rows]
    rows: list[list[InlineElement]] = [
        [
            row["field"],
            _add_field_figure(corpus, row["field"]),
            "free text" if row["distinct_values"] is None else f"{row['distinct_values']:,}",
        ]
        for row in shown_fields
    ]
    note = (
        f"The table shows {len(shown_fields)} of {len(field_rows):,} fields, most frequent first; "
        "the profile's metadata_fields table lists all of them."
        if len(shown_fields) < len(field_rows)
        else ""
    )
    columns = ["field", "documents", "distinct values"]
    section.add_blocks(
        DataTable("Document metadata fields", columns, rows, frozenset({1, 2}), note)
    )
    value_rows = [
        row
        for field_row in shown_fields
        for row in _read_frequent_values(corpus, field_row["field"])[: max(3, corpus.max_rows // 5)]
    ]
    rows = [
        [
            row["field"],
            corpus.redact_value(row["value"]),
            _add_value_figure(corpus, row["field"], row["value"]),
        ]
        for row in value_rows
    ]
    if rows:
        columns = ["field", "value", "documents"]
        section.add_blocks(
            DataTable("Most frequent values of each field", columns, rows, frozenset({2}))
        )
    section.add_blocks(
        Paragraph(
            [
                "Values are quoted from the sources. A value other than a licence is shown only "
                f"if at least {MIN_VALUE_DOCUMENTS} documents have it and its field has at most "
                f"{MAX_DISTINCT_VALUES:,} distinct values. Personal data that the detectors find "
                "in a value is masked; personal names are not detected."
            ]
        )
    )
    return section


def describe_document_licences(corpus: CorpusFigures) -> list[InlineElement]:
    """Return how many documents state which licence, and how many none; empty if all have none."""
    licence_rows = _read_frequent_values(corpus, LICENCE_FIELD)
    field_rows = corpus.profile["metadata_fields"].read().to_pylist()
    licensed_count = sum(row["documents"] for row in field_rows if row["field"] == LICENCE_FIELD)
    if not licensed_count:
        return []
    document_counts = corpus.profile["sources"].read(["documents"])["documents"].to_pylist()
    content: list[InlineElement] = [
        _add_field_figure(corpus, LICENCE_FIELD),
        " specify their own licence",
    ]
    for number, row in enumerate(licence_rows[:MAX_SHOWN_LICENCES]):
        content += [
            ", " if number else ": ",
            f"{corpus.redact_value(row['value'])} (",
            _add_value_figure(corpus, LICENCE_FIELD, row["value"]),
            ")",
        ]
    more = ", and others" if len(licence_rows) > MAX_SHOWN_LICENCES else ""
    return [
        *content,
        f"{more}. {sum(document_counts) - licensed_count:,} documents specify no licence. ",
    ]


def _read_frequent_values(corpus: CorpusFigures, field: str) -> list[Row]:
    """Return the rows of a field in the ``metadata_values`` table, the most frequent first."""
    rows = corpus.profile["metadata_values"].read().to_pylist()
    return sorted(
        (row for row in rows if row["field"] == field),
        key=lambda row: (-row["documents"], row["value"]),
    )


def _add_field_figure(corpus: CorpusFigures, field: str) -> Figure:
    figure_id = f"metadata_fields-{field}"
    return corpus.book.figures.get(figure_id) or corpus.book.add_computed_figure(
        figure_id,
        f"number of documents with {field}",
        "documents",
        (PROFILE, "metadata_fields"),
        {"field": field},
        value_column="documents",
    )


def _add_value_figure(corpus: CorpusFigures, field: str, value: str) -> Figure:
    figure_id = f"metadata_values-{field}-{value}"
    return corpus.book.figures.get(figure_id) or corpus.book.add_computed_figure(
        figure_id,
        f"number of documents with {field} {corpus.redact_value(value)}",
        "documents",
        (PROFILE, "metadata_values"),
        {"field": field, "value": value},
        value_column="documents",
    )
