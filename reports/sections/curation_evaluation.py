"""Compare the known contents of invented documents with what the corpus stages found in them.

The ``evaluate_curation`` stage computes the rates; this file puts them on the datasheet as tables.
"""

from __future__ import annotations

from hallmark.reports.page.document import (
    Block,
    DataTable,
    InlineElement,
    Link,
    Paragraph,
    Section,
)
from hallmark.reports.page.figures import Figure
from hallmark.reports.sections.corpus_figures import CorpusFigures
from hallmark.reports.sections.stage_titles import name_corpus_stage
from hallmark.tasks.contract import Artifact, Row

CURATION_EVALUATION = "evaluate_curation"

#: The title of the section, which is on a page of its own.
RECOVERY_TITLE = "Recovery of known effects"


def build_curation_evaluation_sections(corpus: CorpusFigures) -> list[Section]:
    """Build the section on the invented documents; return nothing where the stage did not run."""
    if CURATION_EVALUATION not in corpus.stage_artifacts:
        return []
    artifact = corpus.stage_artifacts[CURATION_EVALUATION]
    filter_rows = list_filter_error_rows(corpus)
    detection_rows = [
        row for row in artifact["detection_rates"].read().to_pylist() if row not in filter_rows
    ]
    property_rows: list[Row] = artifact["property_shares"].read().to_pylist()
    occupation_rows: list[Row] = artifact["occupation_shares"].read().to_pylist()
    sources = dict.fromkeys(row["source"] for row in property_rows)
    source_names = ", ".join(f"“{source}”" for source in sources)
    return [
        Section(
            RECOVERY_TITLE,
            [
                Paragraph(
                    [
                        f"The documents from {source_names} are invented: a seeded grammar "
                        "generated them, so their content is known. The people and places in these "
                        "documents are fictional. The tables compare the results of the stages "
                        "with the known content; intervals are 95 % Wilson intervals. Results on "
                        "simple, invented text say little about text that people wrote. The "
                        "section “Removal rates by group” reports the error rates of the toxicity "
                        "filter."
                    ]
                ),
                *_describe_personal_data_rates(corpus),
                *(
                    build_detection_rate_table(
                        corpus,
                        f"Known cases found in the source “{source}”",
                        [row for row in detection_rows if row["source"] == source],
                        "A stage should keep near copies whose similarity is below its threshold.",
                    )
                    for source in sources
                ),
                *(
                    _build_occupation_share_table(corpus, source, occupation_rows)
                    for source in sources
                    if occupation_rows
                ),
                *(_build_property_share_table(corpus, source, property_rows) for source in sources),
            ],
        )
    ]


def list_personal_data_rates(corpus: CorpusFigures) -> list[Row]:
    """Return the rows of ``detection_rates`` about personal data planted in documents."""
    if CURATION_EVALUATION not in corpus.stage_artifacts:
        return []
    rows = corpus.stage_artifacts[CURATION_EVALUATION]["detection_rates"].read().to_pylist()
    return [row for row in rows if row["stage"] == "redact_spans" and row["n"]]


def _describe_personal_data_rates(corpus: CorpusFigures) -> list[Block]:
    """Say on what the rates of personal data were measured; nothing without such rates."""
    if not list_personal_data_rates(corpus):
        return []
    content: list[InlineElement] = [
        "Recall of personal data is the share of the planted personal data that was found."
    ]
    if "evaluate_detectors" in corpus.stage_artifacts:
        content += [
            " For the share found in test cases, which are sentences outside the corpus, see ",
            Link("Composition", "composition.html"),
            ".",
        ]
    return [Paragraph(content)]


def list_filter_error_rows(corpus: CorpusFigures) -> list[Row]:
    """Return the rows of ``detection_rates`` about rules that remove or tag toxic documents."""
    if CURATION_EVALUATION not in corpus.stage_artifacts:
        return []
    return select_filter_error_rows(corpus.stage_artifacts[CURATION_EVALUATION])


def select_filter_error_rows(evaluation: Artifact) -> list[Row]:
    """Return the rows of ``detection_rates`` about rules that remove or tag toxic documents."""
    rows = evaluation["detection_rates"].read().to_pylist()
    # Of all stages, only a filter has false alarms among documents without a case.
    filter_stages = {row["stage"] for row in rows if row["measure"] == "false alarms"}
    return [row for row in rows if row["stage"] in filter_stages]


def build_detection_rate_table(
    corpus: CorpusFigures, caption: str, rows: list[Row], extra_note: str = ""
) -> DataTable:
    """Build a table of recall, precision and false alarms of stages."""
    table_rows: list[list[InlineElement]] = []
    for row in rows:
        figure = add_detection_rate_figure(corpus, row)
        table_rows.append(
            [
                name_corpus_stage(row["stage"]),
                row["target"],
                row["measure"],
                *_format_share_cells(figure, row),
            ]
        )
    outcome = corpus.describe_toxicity_outcome()
    note = (
        "Recall is the share of the known cases that the stage found. Precision is the share of "
        "the reported cases that are known cases. The false-alarm rate is the share of the "
        f"documents without known cases that were nevertheless {outcome}. Each stage is "
        "judged only on the documents that it received. "
    )
    note = f"{note}{extra_note}".strip()
    columns = ["stage", "what", "measure", "share", "interval", "n"]
    return DataTable(caption, columns, table_rows, frozenset({3, 4, 5}), note)


def add_detection_rate_figure(corpus: CorpusFigures, row: Row) -> Figure:
    """Add a recall, precision or false alarm rate of a stage."""
    conditions = {name: row[name] for name in ("source", "stage", "target", "measure")}
    return _add_share_figure(corpus, "detection_rates", conditions, row)


def _build_occupation_share_table(corpus: CorpusFigures, source: str, rows: list[Row]) -> DataTable:
    """Build the table of configured and recovered shares of women by occupation for one source."""
    note = (
        "The table shows the share of women among the mentions of an occupation near gendered "
        "words, as configured in the generator (stated) and as measured by the profile in the kept "
        "documents (recovered)."
    )
    return DataTable(
        f"Share of women by occupation in the source “{source}”",
        ["occupation", "stated", "recovered", "interval", "n"],
        _build_share_rows(corpus, source, rows, "occupation_shares", ("occupation",)),
        frozenset({1, 2, 3, 4}),
        note,
    )


def _build_property_share_table(corpus: CorpusFigures, source: str, rows: list[Row]) -> DataTable:
    """Build the table of configured and generated shares of each property for one source."""
    return DataTable(
        f"Properties of the documents in the source “{source}”",
        ["what", "among", "stated", "composed", "interval", "n"],
        _build_share_rows(corpus, source, rows, "property_shares", ("property_name", "population")),
        frozenset({2, 3, 4, 5}),
    )


def _build_share_rows(
    corpus: CorpusFigures, source: str, rows: list[Row], table: str, key_columns: tuple[str, ...]
) -> list[list[InlineElement]]:
    """Build the rows of a source: keys, configured share, and the measured share with interval."""
    table_rows: list[list[InlineElement]] = []
    for row in rows:
        if row["source"] == source:
            conditions = {name: row[name] for name in ("source", *key_columns)}
            figure = _add_share_figure(corpus, table, conditions, row)
            keys = [row[name] for name in key_columns]
            configured_share = f"{100 * row['configured_share']:g} %"
            table_rows.append([*keys, configured_share, *_format_share_cells(figure, row)])
    return table_rows


def _format_share_cells(figure: Figure, row: Row) -> list[InlineElement]:
    return [figure, figure.interval_or_dash, f"{row['n']:,}"]


def _add_share_figure(
    corpus: CorpusFigures, table: str, conditions: dict[str, str], row: Row
) -> Figure:
    """Add a share of ``table`` to the book, with its 95 % Wilson interval where the row has one."""
    interval_fields = (
        {}
        if row["low"] is None
        else {"low": row["low"], "high": row["high"], "confidence_level": 0.95}
    )
    return corpus.book.add_computed_figure(
        "-".join([table, *conditions.values()]),
        ", ".join(conditions.values()),
        "share",
        (CURATION_EVALUATION, table),
        conditions,
        aggregate="ratio",
        value_column="hits/n",
        n=row["n"],
        method="Wilson interval",
        missing_reason="there are no such cases",
        **interval_fields,
    )
