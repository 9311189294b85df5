"""What a card says, before it is HTML or Markdown: both are rendered from the same blocks.

Every string in a block is plain text. The renderers escape it; nothing here is markup. Strings may
come from data: what must not be shown in them is masked once, of the whole document (``masked``).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from hallmark.reports.page.figures import Figure, slugify
from hallmark.reports.page.redaction import RedactFunction


@dataclass(frozen=True)
class Code:
    """Text shown as it is, in a fixed-width face: names of tables, digests, lines of Python."""

    text: str


@dataclass(frozen=True)
class Link:
    """A link inside the same artifact."""

    text: str
    href: str


@dataclass(frozen=True)
class ShortFigure:
    """The value of a figure alone, in a sentence that says the rest."""

    figure: Figure


class UserStatement(str):
    """What a person said in the config: shown as it is written, a contact for one."""


InlineElement = str | Figure | ShortFigure | Code | Link
InlineContent = Sequence[InlineElement]


@dataclass(frozen=True)
class Paragraph:
    content: InlineContent


@dataclass(frozen=True)
class BulletList:
    items: Sequence[InlineContent]


@dataclass(frozen=True)
class CodeBlock:
    """Lines of Python, to be copied."""

    text: str


@dataclass(frozen=True)
class DefinitionList:
    """Terms and what they are: the head of a card, the questions only a person can answer."""

    entries: Sequence[tuple[str, InlineContent]]


@dataclass(frozen=True)
class Callout:
    """What must not be overlooked."""

    kind: Literal["good", "bad", "note"]
    content: InlineContent


@dataclass(frozen=True)
class DataTable:
    """A table. The first column names the row; columns listed in ``numeric`` align right."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[InlineElement]]
    numeric_columns: frozenset[int] = frozenset()
    note: str = ""


@dataclass(frozen=True)
class Chart:
    """A picture of a grid that stands beside it."""

    name: str  # the file is charts/<name>.svg, of a long name its beginning and a digest
    render_svg: Callable[
        [RedactFunction], str
    ]  # the SVG, given how labels may be shown: it cuts them
    alt_text: Sequence[str]  # in pieces where labels of data stand beside numbers
    caption: str

    @property
    def path(self) -> str:
        file_stem = self.name
        if len(file_stem) > 80:  # parts of findings may be called anything
            file_stem = f"{file_stem[:60]}-{hashlib.sha256(file_stem.encode()).hexdigest()[:10]}"
        return f"charts/{file_stem}.svg"


def format_user_statement(text: str | None) -> InlineContent:
    """What a person said in the config, or that nobody said it."""
    return [UserStatement(text.strip())] if text and text.strip() else ["Not stated."]


def build_unique_slugs(display_texts: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """A slug for each of several names, from what is ``shown`` of it: with a digest of the name
    where it is that of others, too, as of words in other letters."""
    slug_counts = Counter(map(slugify, display_texts))
    return {
        name: slugify(text)
        if slug_counts[slugify(text)] == 1
        else f"{slugify(text)}-{hashlib.sha256(name.encode()).hexdigest()[:10]}"
        for text, name in zip(display_texts, names, strict=True)
    }


Block = Paragraph | BulletList | CodeBlock | DefinitionList | Callout | DataTable | Chart


@dataclass
class Section:
    title: str
    blocks: list[Block] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        return slugify(self.title)

    def add_blocks(self, *blocks: Block) -> None:
        self.blocks.extend(blocks)


@dataclass
class Document:
    """A card: its head, and sections in the order of the template it follows."""

    title: str
    kind: str  # "Datasheet", "Model card" or "Task card"
    lead: Sequence[Block]
    sections: Sequence[Section]

    def list_charts(self) -> list[Chart]:
        return [block for block in self.list_blocks() if isinstance(block, Chart)]

    def list_blocks(self) -> list[Block]:
        blocks = list(self.lead)
        pending_sections = list(self.sections)
        while pending_sections:
            section = pending_sections.pop(0)
            blocks.extend(section.blocks)
            pending_sections = [*section.sections, *pending_sections]
        return blocks


def redact_document(document: Document, redact: RedactFunction) -> Document:
    """The document with every text in it as it may be shown; what a person stated is."""

    def redact_element(element: Any) -> Any:
        match element:
            case UserStatement():
                return element
            case str():
                return redact(element)
            case list() | tuple():
                return type(element)(map(redact_element, element))
            case Figure():
                return replace(
                    element,
                    label=redact(element.label),
                    scorer=redact(element.scorer),
                    method=redact(element.method),
                    missing_reason=redact(element.missing_reason),
                    missing_text=redact(element.missing_text),
                )
            case ShortFigure(figure):
                return ShortFigure(redact_element(figure))
            case Code(text) | CodeBlock(text):
                return replace(element, text=redact(text))
            case Link(text):
                return replace(element, text=redact(text))
            case Paragraph(content) | Callout(_, content):
                return replace(element, content=redact_element(content))
            case BulletList(items):
                return BulletList(redact_element(items))
            case DefinitionList(entries):
                return DefinitionList(redact_element(entries))
            case DataTable():
                return replace(
                    element,
                    caption=redact(element.caption),
                    columns=redact_element(element.columns),
                    rows=redact_element(element.rows),
                    note=redact(element.note),
                )
            case Chart():
                return replace(
                    element,
                    alt_text=redact_element(element.alt_text),
                    caption=redact(element.caption),
                )
            case Section(title, blocks, sections):
                return Section(redact(title), redact_element(blocks), redact_element(sections))
        raise AssertionError(element)

    return Document(
        redact(document.title),
        document.kind,
        redact_element(document.lead),
        redact_element(document.sections),
    )
