"""The two renderers of a ``Document``: HTML through Jinja2 with escaping on, and Markdown."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import jinja2

from reports.page.document import (
    Block,
    Brief,
    Bullets,
    Callout,
    Chart,
    Code,
    Document,
    Facts,
    Grid,
    Inline,
    Lines,
    Link,
    Paragraph,
    Parts,
    Section,
)
from reports.page.figures import Figure
from reports.page.masking import visible

#: Data files of every card, for ``@stage(code=...)``.
TEMPLATES = tuple(
    f"reports/page/templates/{name}"
    for name in ("base.html", "blocks.html", "card.html", "rows.html", "style.css")
)
LIBRARIES = ("jinja2", "matplotlib", "phonenumbers", "python-stdnum")

_KINDS = {
    "figure": Figure,
    "alone": Brief,
    "code": Code,
    "paragraph": Paragraph,
    "bullets": Bullets,
    "lines": Lines,
    "facts": Facts,
    "callout": Callout,
    "grid": Grid,
    "chart": Chart,
}


@functools.cache
def environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    made.filters["visible"] = visible
    tests: dict[str, Any] = {n: functools.partial(_is, kind=k) for n, k in _KINDS.items()}
    made.tests.update(tests)
    return made


def _is(value: object, kind: type) -> bool:
    return isinstance(value, kind)


def render_html(document: Document) -> str:
    return environment().get_template("card.html").render(document=document)


# Markdown ------------------------------------------------------------------------------------


def render_markdown(document: Document) -> str:
    lines = [f"# {escape(document.title)}", escape(document.kind)]
    lines += [_block(block) for block in document.lead]
    for section in document.sections:
        lines += _section(section, 2)
    return "\n\n".join(line for line in lines if line) + "\n"


def _section(section: Section, depth: int) -> list[str]:
    lines = [f"{'#' * depth} {escape(section.title)}"]
    lines += [_block(block) for block in section.blocks]
    for part in section.sections:
        lines += _section(part, depth + 1)
    return lines


def _block(block: Block) -> str:
    match block:
        case Paragraph(parts):
            return _start(_parts(parts))
        case Callout(_, parts):
            return f"> {_start(_parts(parts))}"
        case Bullets(items):
            return "\n".join(f"- {_start(_parts(item))}" for item in items)
        case Lines(text):
            return _fenced(text)
        case Facts(pairs):
            return "\n".join(f"- **{escape(term)}:** {_parts(answer)}" for term, answer in pairs)
        case Chart():
            return (
                f"![{escape(''.join(block.alt))}]({block.path})\n\n{_start(escape(block.caption))}"
            )
        case Grid():
            return _grid(block)


def _grid(grid: Grid) -> str:
    rule = ["---:" if index in grid.numeric else "---" for index in range(len(grid.columns))]
    rows = [[_inline(cell, brief=True) for cell in row] for row in grid.rows]
    lines = [[escape(name) for name in grid.columns], rule, *rows]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    note = f"\n\n{_start(escape(grid.note))}" if grid.note else ""
    return f"**{escape(grid.caption)}**\n\n{table}{note}"


def _parts(parts: Parts) -> str:
    return "".join(_inline(part) for part in parts)


def _inline(part: Inline, brief: bool = False) -> str:
    match part:
        case Figure():
            return f"[{escape(part.short if brief else part.full)}]({part.page})"
        case Brief(figure):
            return _inline(figure, brief=True)
        case Code(text):
            return code(text)
        case Link(text, href):
            return f"[{escape(text)}]({href})"
        case _:
            return escape(part)


def escape(text: str) -> str:
    """A text as Markdown that shows it: no markup, no HTML, no link made of a bare address."""
    text = re.sub(r"\s+", " ", visible(text))
    text = re.sub(r"([\\`*_{}\[\]<>#|~!&$@])", r"\\\1", text)
    return re.sub(r"(?i):(?=//)", r"\\:", re.sub(r"(?i)\b(www)\.", r"\1\\.", text))


def code(text: str) -> str:
    """A code span with a fence longer than any in the text; it may stand in a table."""
    text = re.sub(r"\s+", " ", visible(text)).replace("|", "\\|")
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    pad = " " if text[:1] in "` " or text[-1:] in "` " else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def _fenced(text: str) -> str:
    """A block of code with a fence longer than any in it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}python\n{visible(text)}\n{fence}"


def _start(text: str) -> str:
    """Keep the start of a block from becoming a list, a heading or a rule."""
    text = text.strip()
    text = re.sub(r"^(\d+)([.)])(?=\s|$)", r"\1\\\2", text)
    return re.sub(r"^([-+=])", r"\\\1", text)
