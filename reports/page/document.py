"""What a card says, before it is HTML or Markdown: both are rendered from the same blocks.

Every string in a block is plain text. The renderers escape it; nothing here is markup.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from reports.page.figures import Figure, slug


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
class Brief:
    """The value of a figure alone, in a sentence that says the rest."""

    figure: Figure


Inline = str | Figure | Brief | Code | Link
Parts = Sequence[Inline]


@dataclass(frozen=True)
class Paragraph:
    parts: Parts


@dataclass(frozen=True)
class Bullets:
    items: Sequence[Parts]


@dataclass(frozen=True)
class Lines:
    """Lines of Python, to be copied."""

    text: str


@dataclass(frozen=True)
class Facts:
    """Terms and what they are: the head of a card, the questions only a person can answer."""

    pairs: Sequence[tuple[str, Parts]]


@dataclass(frozen=True)
class Callout:
    """What must not be overlooked."""

    kind: Literal["good", "bad", "note"]
    parts: Parts


@dataclass(frozen=True)
class Grid:
    """A table. The first column names the row; columns listed in ``numeric`` align right."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Inline]]
    numeric: frozenset[int] = frozenset()
    note: str = ""


@dataclass(frozen=True)
class Chart:
    """A picture of a grid that stands beside it."""

    name: str  # the file is charts/<name>.svg, of a long name its beginning and a digest
    svg: str
    alt: str
    caption: str

    @property
    def path(self) -> str:
        name = self.name
        if len(name) > 80:  # parts of findings may be called anything
            name = f"{name[:60]}-{hashlib.sha256(name.encode()).hexdigest()[:10]}"
        return f"charts/{name}.svg"


def stated(text: str | None) -> Parts:
    """What a person said in the config, or that nobody said it."""
    return [text.strip()] if text and text.strip() else ["Not stated."]


Block = Paragraph | Bullets | Lines | Facts | Callout | Grid | Chart


@dataclass
class Section:
    title: str
    blocks: list[Block] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        return slug(self.title)

    def add(self, *blocks: Block) -> None:
        self.blocks.extend(blocks)


@dataclass
class Document:
    """A card: its head, and sections in the order of the template it follows."""

    title: str
    kind: str  # "Datasheet", "Model card" or "Task card"
    lead: Sequence[Block]
    sections: Sequence[Section]

    def charts(self) -> list[Chart]:
        return [block for block in self.blocks() if isinstance(block, Chart)]

    def blocks(self) -> list[Block]:
        found = list(self.lead)
        waiting = list(self.sections)
        while waiting:
            section = waiting.pop(0)
            found.extend(section.blocks)
            waiting = [*section.sections, *waiting]
        return found
