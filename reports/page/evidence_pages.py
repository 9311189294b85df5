"""Render the pages of evidence of a card: the rows that support its figures.

A page of evidence shows the first rows, how the figure is computed from them, and the documents
that the rows name.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import repeat
from typing import Any

import pyarrow as pa
from markupsafe import Markup, escape

from hallmark.reports.page.card_tables import CardContent
from hallmark.reports.page.figures import Evidence, Figure
from hallmark.reports.page.redaction import (
    NO_NEIGHBOURS,
    Redactor,
    TextNeighbours,
    find_prompt_column_by_response_column,
    get_shown_neighbours,
)
from hallmark.reports.page.rendering import get_template_environment
from hallmark.tasks.contract import Artifact, Column, HallmarkError

#: Largest number of ids of a page that are looked up, and of documents that it shows.
_MAX_LOOKUP_IDS, _MAX_DOCUMENTS_PER_PAGE = 100, 20
_MAX_LABEL_CHARACTERS = 160

#: Largest number of rows on a page of evidence.
MAX_EVIDENCE_ROWS = 200


@dataclass
class TableCell:
    """A rendered table cell: its text, its CSS class, and ids that may link to documents."""

    text: str = ""
    css_class: str = ""
    ids: Sequence[str] = ()


#: Shown where a row has no value.
EMPTY_CELL = TableCell("–", "muted")


@dataclass(frozen=True)
class DocumentExcerpt:
    """A document as an evidence page shows it.

    Attributes:
        id: The id in hexadecimal digits.
        source: The redacted name of its source.
        stage: The last stage that contains it.
        score: The formatted toxicity score; a dash if it has none.
        text: The redacted text, shortened.
    """

    id: str
    source: str
    stage: str
    score: str
    text: str


@dataclass
class DocumentLookup:
    """Looks up documents by id in the artifacts of the corpus stages, the last stage first."""

    corpus_artifacts: Mapping[str, Artifact]
    redactor: Redactor
    documents_by_id: dict[bytes, dict[str, Any]] = field(default_factory=dict)
    toxicity_by_id: dict[bytes, float] = field(default_factory=dict)

    def load_documents(self, doc_ids: set[bytes]) -> None:
        """Read documents and their toxicity scores, with one scan of each artifact."""
        self._load_toxicity_scores(doc_ids)
        for stage, artifact in reversed(list(self.corpus_artifacts.items())):
            missing_ids = doc_ids - self.documents_by_id.keys()
            if not missing_ids:
                return
            if "documents" not in artifact.tables:
                continue
            table = artifact["documents"].find_document_rows(
                sorted(missing_ids), ["doc_id", "source", "text"]
            )
            for row in table.to_pylist():
                self.documents_by_id.setdefault(row["doc_id"], {**row, "stage": stage})

    def _load_toxicity_scores(self, doc_ids: set[bytes]) -> None:
        for artifact in self.corpus_artifacts.values():
            signals = artifact.tables.get("signals")
            if signals is None or "toxicity" not in signals.columns:
                continue
            for row in signals.find_document_rows(
                sorted(doc_ids), ["doc_id", "toxicity"]
            ).to_pylist():
                if row["toxicity"] is not None and not math.isnan(row["toxicity"]):
                    self.toxicity_by_id[row["doc_id"]] = row["toxicity"]

    def build_excerpt(self, doc_id: bytes, related_ids: set[bytes]) -> DocumentExcerpt:
        """Return a document as it may be shown.

        A document without a toxicity score, because it was removed before scoring, gets the highest
        score of a related document with the same words.

        Args:
            doc_id: The id of the document.
            related_ids: Ids that appear in the same rows.
        """
        document = self.documents_by_id[doc_id]
        toxicity = self.toxicity_by_id.get(doc_id)
        if toxicity is None:
            scored_related_ids = [
                i for i in related_ids & self.toxicity_by_id.keys() if i in self.documents_by_id
            ]
            words = document["text"].split()
            identical_text_scores = [
                self.toxicity_by_id[i]
                for i in scored_related_ids
                if self.documents_by_id[i]["text"].split() == words
            ]
            toxicity = max(identical_text_scores, default=None)
        return DocumentExcerpt(
            id=doc_id.hex(),
            source=self.redactor.redact_by_kind(
                document["source"], "label", max_characters=_MAX_LABEL_CHARACTERS
            ),
            stage=document["stage"],
            score="–" if toxicity is None else f"{toxicity:.3f}",
            text=self.redactor.redact_by_kind(
                document["text"], "corpus text", toxicity, max_characters=600
            ),
        )


def iterate_evidence_pages(content: CardContent) -> Iterator[tuple[str, str]]:
    """Yield path and HTML of the page of rows of each selection."""
    figures_by_evidence = content.book.group_figures_by_evidence_id()
    evidence_by_id = content.book.evidence_by_id
    first_rows_by_id: dict[str, pa.Table] = {}
    for evidence_id in figures_by_evidence:
        if evidence_id in evidence_by_id:
            with suppress(HallmarkError):  # the page then says that the rows are not available
                first_rows_by_id[evidence_id] = evidence_by_id[evidence_id].read_first_rows(
                    MAX_EVIDENCE_ROWS
                )
    related_ids_by_evidence = {
        i: collect_related_ids_by_id(evidence_by_id[i], first_rows)
        for i, first_rows in first_rows_by_id.items()
    }
    document_lookup = DocumentLookup(content.corpus_artifacts, content.redactor)
    doc_ids = {i for related_ids in related_ids_by_evidence.values() for i in related_ids}
    if doc_ids:
        document_lookup.load_documents(doc_ids)
    for evidence_id, figures in figures_by_evidence.items():
        if evidence_id not in first_rows_by_id:
            yield figures[0].page_path, render_missing_evidence_page(content, figures)
            continue
        related_ids = related_ids_by_evidence[evidence_id]
        available_ids = [i for i in related_ids if i in document_lookup.documents_by_id][
            :_MAX_DOCUMENTS_PER_PAGE
        ]
        documents = [document_lookup.build_excerpt(i, related_ids[i]) for i in available_ids]
        yield (
            figures[0].page_path,
            render_evidence_page(
                evidence_by_id[evidence_id],
                figures,
                first_rows_by_id[evidence_id],
                documents,
                content.redactor,
                card_path=f"{content.name}.html",
                card_kind=content.document.kind,
            ),
        )


def render_missing_evidence_page(content: CardContent, figures: Sequence[Figure]) -> str:
    """Render the page of figures whose rows are not in the store."""
    return (
        get_template_environment()
        .get_template("rows_missing.html")
        .render(
            say=content.redactor.redact_full_text,
            figures=figures,
            how=describe_computation,
            inputs=", ".join(content.missing_inputs),
            card=f"{content.name}.html",
            kind=content.document.kind,
        )
    )


def collect_related_ids_by_id(evidence: Evidence, rows: pa.Table) -> dict[bytes, set[bytes]]:
    """Return the first ids in the rows, each with the ids that appear in the same rows.

    Some of them are ids of documents.
    """
    id_columns = [
        column_name
        for column_name in rows.column_names
        if evidence.get_column_description(column_name).kind == "id"
    ]
    related_ids: dict[bytes, set[bytes]] = {}
    for row in rows.select(id_columns).to_pylist():
        id_lists = [value if isinstance(value, list) else [value] for value in row.values()]
        ids = [i for id_list in id_lists for i in id_list if isinstance(i, bytes) and len(i) == 16]
        for i in ids:
            if len(related_ids) >= _MAX_LOOKUP_IDS and i not in related_ids:
                return related_ids
            related_ids.setdefault(i, set()).update(ids)
    return related_ids


def render_evidence_page(
    evidence: Evidence,
    figures: Sequence[Figure],
    first_rows: pa.Table,
    documents: Sequence[DocumentExcerpt],
    redactor: Redactor,
    *,
    card_path: str,
    card_kind: str,
) -> str:
    """Render the page of evidence for the figures that share the same rows."""
    columns = [evidence.get_column_description(name) for name in first_rows.column_names]
    linked_ids = {document.id for document in documents}
    return (
        get_template_environment()
        .get_template("rows.html")
        .render(
            evidence=evidence,
            condition=redactor.redact_full_text(evidence.conditions_json),
            python=redactor.redact_full_text(evidence.format_python_code()),
            say=redactor.redact_full_text,
            figures=figures,
            how=describe_computation,
            columns=columns,
            notice=redactor.notice,
            numeric={field.name for field in first_rows.schema if _is_numeric_type(field.type)},
            rows=_render_table_rows(columns, first_rows, redactor, linked_ids),
            shown=len(first_rows),
            documents=documents,
            card=card_path,
            kind=card_kind,
        )
    )


def describe_computation(figure: Figure) -> str:
    """Return in words how the figure is computed from the rows."""
    column = figure.value_column
    description = {
        "count": "the number of rows",
        "sum": f"the sum of {column}",
        "mean": f"the mean of {column}",
        "ratio": (
            f"the sum of {column.replace('+', ' and ').replace('/', ' divided by the sum of ')}"
        ),
        "min": f"the smallest {column}",
        "max": f"the largest {column}",
        "last": f"the last {column}",
        "distinct": f"the number of different values of {column}",
        "finding": figure.method or "computed by the audit",
    }[figure.aggregate]
    return (
        f"{description}; {figure.method}"
        if figure.method and figure.aggregate != "finding"
        else description
    )


def _render_table_rows(
    columns: Sequence[Column], first_rows: pa.Table, redactor: Redactor, linked_ids: Collection[str]
) -> Markup:
    """Render the rows of a table body.

    This is Python and not a template, since a card has hundreds of thousands of cells and a
    template takes longer than everything else.
    """
    rendered_columns = [
        _render_column_cells(column, columns, first_rows, redactor, linked_ids)
        for column in columns
    ]
    table_rows = [f"<tr>{''.join(cells)}</tr>" for cells in zip(*rendered_columns, strict=True)]
    return Markup("\n".join(table_rows))  # noqa: S704  # the cells are escaped


def _render_column_cells(
    column: Column,
    columns: Sequence[Column],
    first_rows: pa.Table,
    redactor: Redactor,
    linked_ids: Collection[str],
) -> Iterable[str]:
    """Render the cells of a column; equal values with equal neighbours are rendered once."""

    def render_value(
        value: Any,
        judging_score: float | None,
        shown_neighbours: TextNeighbours = NO_NEIGHBOURS,
    ) -> str:
        return _cell_to_html(
            value_to_cell(column, value, judging_score, redactor, shown_neighbours), linked_ids
        )

    values = first_rows[column.name]
    if pa.types.is_floating(values.type) and column.kind != "personal":
        return map(_render_number_cell, values.to_pylist())  # the most frequent kind of cell
    score_column_count = first_rows.column_names.count(column.judged_by)
    scores = first_rows[column.judged_by].to_pylist() if score_column_count else repeat(None)
    # Lists are not hashable, and -0.0 would share a cache entry with 0.0.
    is_uncacheable = pa.types.is_nested(values.type) or pa.types.is_floating(values.type)
    render_cached = render_value if is_uncacheable else cache(render_value)
    prompt_columns = find_prompt_column_by_response_column(columns)
    if column.name in (*prompt_columns, *prompt_columns.values()):
        text_columns = sorted({*prompt_columns, *prompt_columns.values()})
        rows = first_rows.select(text_columns).to_pylist()
        neighbours = [get_shown_neighbours(column.name, row, prompt_columns) for row in rows]
        return map(render_cached, values.to_pylist(), scores, neighbours)
    return map(render_cached, values.to_pylist(), scores)


def _render_number_cell(value: float | None) -> str:
    """Render a number directly, as ``value_to_cell`` and ``_cell_to_html`` would."""
    return (
        f'<td class="number">{value:.6g}</td>'
        if value is not None
        else _cell_to_html(EMPTY_CELL, ())
    )


def _cell_to_html(cell: TableCell, linked_ids: Collection[str]) -> str:
    class_attribute = f' class="{cell.css_class}"' if cell.css_class else ""
    id_links = " ".join(
        f'<a href="#doc-{i}"><code>{i}</code></a>' if i in linked_ids else f"<code>{i}</code>"
        for i in cell.ids
    )
    return f"<td{class_attribute}>{id_links}{escape(cell.text)}</td>"


def value_to_cell(
    column: Column,
    value: Any,
    judging_score: float | None,
    redactor: Redactor,
    shown_neighbours: TextNeighbours = NO_NEIGHBOURS,
) -> TableCell:
    """Return a value of a column as it may be shown.

    Args:
        column: The column.
        value: The value.
        judging_score: The value of the column that judges this one.
        redactor: Redacts the text.
        shown_neighbours: The texts that the row shows directly before and after the value.
    """
    if value is None:
        return EMPTY_CELL
    if column.kind == "personal":
        return TableCell(
            redactor.redact_by_kind(_value_to_shortened_text(value), column.kind), "text"
        )
    if isinstance(value, bool):
        return TableCell("yes" if value else "no")
    if isinstance(value, int):
        return TableCell(str(value), "number")
    if isinstance(value, float):
        return TableCell(f"{value:.6g}", "number")
    if isinstance(value, list) and all(isinstance(item, bytes) for item in value):
        return TableCell(_format_total_suffix(value, 8), ids=[item.hex() for item in value[:8]])
    if isinstance(value, bytes):
        return TableCell(ids=[value.hex()])
    if column.kind in ("label", "id", "figure"):
        return TableCell(
            redactor.redact_by_kind(
                _value_to_shortened_text(value), column.kind, max_characters=_MAX_LABEL_CHARACTERS
            )
        )
    return TableCell(
        redactor.redact_by_kind(
            _value_to_shortened_text(value),
            column.kind,
            judging_score,
            shown_neighbours=shown_neighbours,
        ),
        "text",
    )


def _value_to_shortened_text(value: Any) -> str:
    """Return a value as text; long values are shortened."""
    if isinstance(value, list):
        return ", ".join(
            _value_to_shortened_text(item) for item in value[:16]
        ) + _format_total_suffix(value, 16)
    if isinstance(value, tuple):  # an entry of a map
        return "=".join(map(_value_to_shortened_text, value))
    if isinstance(value, bytes):  # raw input in quarantine
        return value[:8000].decode("utf-8", "backslashreplace")
    return str(value)


def _format_total_suffix(values: Sequence[Any], limit: int) -> str:
    return f" … ({len(values):,} in all)" if len(values) > limit else ""


def _is_numeric_type(data_type: pa.DataType) -> bool:
    is_numeric: bool = pa.types.is_integer(data_type) or pa.types.is_floating(data_type)
    return is_numeric
