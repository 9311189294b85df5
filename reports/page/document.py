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

from reports.page.figures import Figure, slug
from reports.page.masking import Say


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


class Stated(str):
    """What a person said in the config: shown as it is written, a contact for one."""


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
    draw: Callable[[Say], str]  # the SVG, given how labels may be shown: it cuts them
    alt: Sequence[str]  # in pieces where labels of data stand beside numbers
    caption: str

    @property
    def path(self) -> str:
        name = self.name
        if len(name) > 80:  # parts of findings may be called anything
            name = f"{name[:60]}-{hashlib.sha256(name.encode()).hexdigest()[:10]}"
        return f"charts/{name}.svg"


def stated(text: str | None) -> Parts:
    """What a person said in the config, or that nobody said it."""
    return [Stated(text.strip())] if text and text.strip() else ["Not stated."]


def slugs(shown: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """A slug for each of several names, from what is ``shown`` of it: with a digest of the name
    where it is that of others, too, as of words in other letters."""
    alike = Counter(map(slug, shown))
    return {
        name: slug(text)
        if alike[slug(text)] == 1
        else f"{slug(text)}-{hashlib.sha256(name.encode()).hexdigest()[:10]}"
        for text, name in zip(shown, names, strict=True)
    }


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


def masked(document: Document, say: Say) -> Document:
    """The document with every text in it as it may be shown; what a person stated is."""

    def of(part: Any) -> Any:
        match part:
            case Stated():
                return part
            case str():
                return say(part)
            case list() | tuple():
                return type(part)(map(of, part))
            case Figure():
                return replace(part, label=say(part.label), scorer=say(part.scorer),
                               method=say(part.method), note=say(part.note),
                               missing=say(part.missing))  # fmt: skip
            case Brief(figure):
                return Brief(of(figure))
            case Code(text) | Lines(text):
                return replace(part, text=say(text))
            case Link(text):
                return replace(part, text=say(text))
            case Paragraph(parts) | Callout(_, parts):
                return replace(part, parts=of(parts))
            case Bullets(items):
                return Bullets(of(items))
            case Facts(pairs):
                return Facts(of(pairs))
            case Grid():
                return replace(part, caption=say(part.caption), columns=of(part.columns),
                               rows=of(part.rows), note=say(part.note))  # fmt: skip
            case Chart():
                return replace(part, alt=of(part.alt), caption=say(part.caption))
            case Section(title, blocks, sections):
                return Section(say(title), of(blocks), of(sections))
        raise AssertionError(part)

    return Document(say(document.title), document.kind, of(document.lead), of(document.sections))
