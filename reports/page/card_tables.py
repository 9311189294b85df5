"""Store the content of a card as tables, and read it again.

A card is data: ``sections`` holds its text block by block, ``figures`` its numbers, ``evidence``
the rows that support them, and ``answers`` the answers to the questions of its form. Pages are
rendered from these tables, so that another template or style sheet changes no artifact.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter

from hallmark.reports.page.answers import AnswerRow, build_answers_table, redact_answer_row
from hallmark.reports.page.charts import Drawing
from hallmark.reports.page.document import (
    Block,
    BulletList,
    Callout,
    Chart,
    Code,
    CodeBlock,
    DataTable,
    DecisionSheet,
    DefinitionList,
    Details,
    Document,
    InlineElement,
    Link,
    Paragraph,
    RiskLine,
    Section,
    ShortFigure,
    UserStatement,
    redact_document,
)
from hallmark.reports.page.figures import EVIDENCE, FIGURES, Figure, FigureBook
from hallmark.reports.page.redaction import Redactor
from hallmark.tasks.contract import Artifact, StageContext, column, table_schema

#: The unit of columns of JSON documents.
JSON_UNIT = "JSON"

SECTIONS = table_schema(
    "The card text, block by block, in page order.",
    column(
        "level",
        pa.int32(),
        "label",
        "nesting depth of the section; 0 if the block precedes the first section",
    ),
    column("section", pa.string(), "project text", "section title"),
    column(
        "page",
        pa.string(),
        "label",
        "page of the section; empty if the section does not have its own page",
    ),
    column("kind", pa.string(), "label", "block type, such as Paragraph or DataTable"),
    # A purge empties it if it quotes a purged document.
    column(
        "content",
        pa.large_string(),
        "model text",
        "redacted block content or section answer; figures are represented by their ids",
        unit=JSON_UNIT,
    ),
)

#: The tables of a card, for ``@stage(tables=...)``.
CARD_TABLE_SCHEMAS = {"sections": SECTIONS, "figures": FIGURES, "evidence": EVIDENCE}

_BLOCK_CLASSES: dict[str, type] = {
    block_class.__name__: block_class
    for block_class in (
        Paragraph,
        BulletList,
        CodeBlock,
        DefinitionList,
        Callout,
        DataTable,
        Chart,
        DecisionSheet,
        Details,
    )
}

_DRAWING_ADAPTERS: dict[str, TypeAdapter[Any]] = {
    drawing_class.__name__: TypeAdapter(drawing_class) for drawing_class in Drawing.__args__
}

#: The kinds of rows that start a document and a section.
DOCUMENT_KIND, SECTION_KIND = "Document", "Section"


@dataclass(frozen=True)
class CardContent:
    """What the pages of a card are rendered from.

    Attributes:
        name: The name of the card's stage, such as "model_card".
        document: The text.
        book: The figures and the rows that support them.
        corpus_artifacts: The artifacts of the corpus stages by label, to show documents.
        redactor: Redacts what is shown.
        missing_inputs: Labels of inputs that are not in the store; no rows are shown then.
        answers: The answers to the questions of the card's form, if it has one.
        damaged_evidence: Why rows are not shown, by their id: a table of the rows, or one that says
            what must be masked, differs from its manifest.
    """

    name: str
    document: Document
    book: FigureBook
    corpus_artifacts: Mapping[str, Artifact]
    redactor: Redactor
    missing_inputs: tuple[str, ...] = ()
    answers: Sequence[AnswerRow] = ()
    damaged_evidence: Mapping[str, str] = field(default_factory=dict)


def write_card_tables(content: CardContent, context: StageContext) -> None:
    """Write the tables of a card; the text is redacted."""
    document = redact_document(content.document, content.redactor.redact_full_text)
    context.get_table_writer("sections").write(build_sections_table(document))
    context.get_table_writer("figures").write(content.book.build_figures_table())
    context.get_table_writer("evidence").write(content.book.build_evidence_table())
    if content.answers:
        redact = content.redactor.redact_full_text
        rows = [redact_answer_row(row, redact) for row in content.answers]
        context.get_table_writer("answers").write(build_answers_table(rows))


def build_sections_table(document: Document) -> pa.Table:
    """Return the ``sections`` table of a redacted document."""
    heading = json.dumps({"title": document.title, "kind": document.kind}, ensure_ascii=False)
    lead = Section("", [*document.lead])
    rows = [_build_row(0, lead, DOCUMENT_KIND, heading)]
    rows += [_block_to_row(block, 0, lead) for block in lead.blocks]
    for section in document.sections:
        rows += _iterate_section_rows(section, 1)
    return pa.Table.from_pylist(rows, schema=SECTIONS)


def _iterate_section_rows(section: Section, level: int) -> Iterator[dict[str, Any]]:
    answer = json.dumps(_encode(section.answer), ensure_ascii=False) if section.answer else ""
    yield _build_row(level, section, SECTION_KIND, answer)
    for block in section.blocks:
        yield _block_to_row(block, level, section)
    for subsection in section.sections:
        yield from _iterate_section_rows(subsection, level + 1)


def _build_row(level: int, section: Section, kind: str, content: str) -> dict[str, Any]:
    return {
        "level": level,
        "section": section.title,
        "page": section.page,
        "kind": kind,
        "content": content,
    }


def _block_to_row(block: Block, level: int, section: Section) -> dict[str, Any]:
    content = json.dumps(_encode_block_fields(block), ensure_ascii=False, sort_keys=True)
    return _build_row(level, section, type(block).__name__, content)


def _encode_block_fields(block: Block) -> dict[str, Any]:
    return {field.name: _encode(getattr(block, field.name)) for field in fields(block)}


def _encode(value: Any) -> Any:
    """Return a field of a block as JSON values."""
    match value:
        case UserStatement():
            return {"stated": str(value)}
        case Figure():
            return {"figure": value.id}
        case ShortFigure(figure):
            return {"value": figure.id}
        case Code(text):
            return {"code": text}
        case Link(text, href):
            return {"link": text, "href": href}
        case RiskLine(title, state, content, page):
            return {"risk": title, "state": state, "content": _encode(content), "page": page}
        case frozenset():
            return sorted(value)
        case list() | tuple():
            return [_encode(item) for item in value]
        case str() | int():
            return value
    kind = type(value).__name__
    if kind in _BLOCK_CLASSES:
        return {"block": kind, "content": _encode_block_fields(value)}
    return {"drawing": kind, **_DRAWING_ADAPTERS[kind].dump_python(value, mode="json")}


def read_document(rows: Iterable[Mapping[str, Any]], figures: Mapping[str, Figure]) -> Document:
    """Read a document from the rows of the ``sections`` table.

    Args:
        rows: The rows, in their order.
        figures: The figures of the card by id.
    """
    document = Document("", "", [], [])
    lead: list[Block] = []
    open_sections: list[Section] = []  # the current section and those that contain it
    for row in rows:
        if row["kind"] == DOCUMENT_KIND:
            document = Document(lead=lead, sections=[], **json.loads(row["content"]))
        elif row["kind"] == SECTION_KIND:
            answer = _decode(json.loads(row["content"] or "[]"), figures)
            section = Section(row["section"], page=row["page"], answer=answer)
            del open_sections[row["level"] - 1 :]
            parent_sections = open_sections[-1].sections if open_sections else document.sections
            assert isinstance(parent_sections, list)
            parent_sections.append(section)
            open_sections.append(section)
        else:
            blocks = open_sections[-1].blocks if open_sections else lead
            blocks.append(_row_to_block(row, figures))
    return document


def read_stated_status(sections: pa.Table) -> str:
    """Return the status that the decision sheet of a card states; empty if it states none.

    Args:
        sections: The ``sections`` table, which a signature covers.
    """
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        for row in sections.select(["kind", "content"]).to_pylist():
            if row["kind"] == DecisionSheet.__name__:
                return str(json.loads(row["content"])["status"])
    return ""


#: Shown instead of a block that quoted a purged document.
PURGED_BLOCK = Paragraph(["[purged]"])


def _row_to_block(row: Mapping[str, Any], figures: Mapping[str, Figure]) -> Block:
    if not row["content"]:
        return PURGED_BLOCK
    return _decode_block(row["kind"], json.loads(row["content"]), figures)


def _decode_block(kind: str, content: Mapping[str, Any], figures: Mapping[str, Figure]) -> Block:
    block_fields = {name: _decode(value, figures) for name, value in content.items()}
    if kind == "DataTable":
        block_fields["numeric_columns"] = frozenset(block_fields["numeric_columns"])
    block: Block = _BLOCK_CLASSES[kind](**block_fields)
    return block


def _decode(value: Any, figures: Mapping[str, Figure]) -> Any:
    match value:
        case {"block": kind, "content": content}:
            return _decode_block(kind, content, figures)
        case {"drawing": kind, **drawing}:
            return _DRAWING_ADAPTERS[kind].validate_python(drawing)
        case {"stated": text}:
            return UserStatement(text)
        case {"figure": figure_id}:
            return figures[figure_id]
        case {"value": figure_id}:
            return ShortFigure(figures[figure_id])
        case {"code": text}:
            return Code(text)
        case {"link": text, "href": href}:
            return Link(text, href)
        case {"risk": title, "state": state, "content": content, "page": page}:
            return RiskLine(title, state, _decode(content, figures), page)
        case list():
            return [_decode(item, figures) for item in value]
        case dict():
            raise ValueError(f"unknown element with the keys {', '.join(sorted(value))}")
    element: InlineElement = value
    return element


def read_figures(rows: Iterable[Mapping[str, Any]]) -> dict[str, Figure]:
    """Read the figures of a card from the rows of its table ``figures``, by id."""
    return {row["id"]: Figure(**row) for row in rows}
