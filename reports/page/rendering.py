"""Render a ``Document`` as HTML, with Jinja2 and autoescaping, or as Markdown."""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

from hallmark.reports.page.document import (
    METRICS_PAGE,
    RISK_ORDER_TITLE,
    RISK_STATE_NAMES,
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
    InlineContent,
    InlineElement,
    Link,
    Paragraph,
    Section,
    ShortFigure,
)
from hallmark.reports.page.drawing import draw_chart
from hallmark.reports.page.figures import Figure, slugify
from hallmark.reports.page.glossary import explain_terms
from hallmark.reports.page.redaction import REDACTION_LIBRARIES, escape_invisible

RENDERING_LIBRARIES = ("jinja2", *REDACTION_LIBRARIES)

#: Shown where a person stated nothing.
NOT_STATED = "not stated"

#: Where a model card defines the order of its risks.
RISK_ORDER_HREF = f"{METRICS_PAGE}.html#{METRICS_PAGE}-{slugify(RISK_ORDER_TITLE)}"

_TEMPLATE_TESTS = {
    "figure": Figure,
    "alone": ShortFigure,
    "code": Code,
    "paragraph": Paragraph,
    "bullets": BulletList,
    "lines": CodeBlock,
    "facts": DefinitionList,
    "callout": Callout,
    "grid": DataTable,
    "chart": Chart,
    "decision_sheet": DecisionSheet,
    "details": Details,
}

#: Returns where the link of a figure leads, from the page that shows it.
FigureLinker = Callable[[Figure], str]


def get_evidence_path(figure: Figure) -> str:
    """Return the path of the page of the rows of a figure, from a page of its card."""
    return figure.page_path


@functools.cache
def get_template_environment() -> jinja2.Environment:
    """Return the Jinja2 environment of all templates, with autoescaping."""
    jinja_environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        auto_reload=False,
    )
    jinja_environment.filters["visible"] = escape_invisible
    jinja_environment.filters["draw"] = _draw_safely
    jinja_environment.filters["explained"] = _explain_visible_terms
    jinja_environment.filters["compact_css"] = _compact_css
    jinja_environment.filters["escaped_content"] = _escape_content
    jinja_environment.globals["link_figure"] = get_evidence_path
    jinja_environment.globals["NOT_STATED"] = NOT_STATED
    jinja_environment.globals["RISK_STATE_NAMES"] = RISK_STATE_NAMES
    jinja_environment.globals["RISK_ORDER_HREF"] = RISK_ORDER_HREF
    tests: dict[str, Any] = {
        test_name: functools.partial(_is_instance, kind=element_type)
        for test_name, element_type in _TEMPLATE_TESTS.items()
    }
    jinja_environment.tests.update(tests)
    return jinja_environment


def _compact_css(style: str) -> str:
    """Remove comments and needless white space from a style sheet, which every page repeats."""
    compact_style = re.sub(r"/\*.*?\*/|\n\s*", "", style, flags=re.DOTALL)
    compact_style = re.sub(r"\s*([{};])\s*|([:,])\s+", r"\1\2", compact_style)
    return markupsafe.Markup(compact_style)  # noqa: S704 - a file of the package


def _escape_content(text: str) -> markupsafe.Markup:
    """Escape the text of an element, in which quotation marks are no markup, unlike in attributes.

    Code has many of them, and each of their escapes has five bytes.
    """
    return markupsafe.Markup(html.escape(text, quote=False))  # noqa: S704


@jinja2.pass_context
def _explain_visible_terms(context: jinja2.runtime.Context, text: str) -> str:
    """Explain the terms of a text on a page of a card; elsewhere it is only escaped."""
    explained_terms = context.get("explained_terms")
    visible_text = escape_invisible(text)
    return visible_text if explained_terms is None else explain_terms(visible_text, explained_terms)


def _is_instance(value: object, kind: type) -> bool:
    return isinstance(value, kind)


def _draw_safely(chart: Chart) -> markupsafe.Markup:
    """Draw a chart as SVG that needs no escaping."""
    svg = draw_chart(chart.drawing)
    return markupsafe.Markup(svg)  # noqa: S704  # the labels are escaped


def render_html(document: Document, link_figure: FigureLinker = get_evidence_path) -> str:
    """Render a redacted document as an HTML page, without the pages of its sections."""
    template = get_template_environment().get_template("card.html")
    return template.render(document=document, link_figure=link_figure, explained_terms=set())


def render_section_html(
    document: Document,
    section: Section,
    card_path: str,
    link_figure: FigureLinker = get_evidence_path,
) -> str:
    """Render a redacted section as an HTML page of its own.

    Args:
        document: The card of the section; only its title, its kind and its lead are shown.
        section: The section.
        card_path: Where the link to the card leads.
        link_figure: Returns where the link of a figure leads.
    """
    template = get_template_environment().get_template("card_page.html")
    return template.render(
        document=document,
        section=section,
        card_path=card_path,
        link_figure=link_figure,
        explained_terms=set(),
    )


# Markdown ------------------------------------------------------------------------------------


def render_markdown(document: Document) -> str:
    """Render a redacted document as Markdown, without the pages of its sections."""
    lines = [f"# {escape_markdown(document.title)}", escape_markdown(document.kind)]
    lines += [_render_block(block) for block in document.lead]
    lines += _render_sections(document.sections, 2)
    return "\n\n".join(part for part in lines if part) + "\n"


def render_section_markdown(document: Document, section: Section, card_path: str) -> str:
    """Render a redacted section as Markdown; the arguments are those of the HTML page."""
    lines = [
        f"# {escape_markdown(section.title)}",
        f"[{escape_markdown(document.title)}]({card_path}): {escape_markdown(document.kind)}",
        *(_render_block(block) for block in document.lead),
        *(_render_block(block) for block in section.blocks),
        *_render_sections(section.sections, 2),
    ]
    return "\n\n".join(part for part in lines if part) + "\n"


def _render_sections(sections: Sequence[Section], heading_level: int) -> list[str]:
    lines: list[str] = []
    for section in sections:
        title, heading = escape_markdown(section.title), "#" * heading_level
        if section.page:
            answer = _render_inline_content(section.answer)
            lines += [f"{heading} [{title}]({section.page}.md)", answer]
            continue
        lines += [f"{heading} {title}", *(_render_block(block) for block in section.blocks)]
        lines += _render_sections(section.sections, heading_level + 1)
    return lines


def _render_block(block: Block) -> str:
    match block:
        case Details(summary, blocks):
            lines = [f"**{escape_markdown(summary)}**", *map(_render_block, blocks)]
            return "\n\n".join(lines)
        case Paragraph(content):
            return _escape_block_start(_render_inline_content(content))
        case Callout(_, content):
            return f"> {_escape_block_start(_render_inline_content(content))}"
        case BulletList(items):
            return "\n".join(
                f"- {_escape_block_start(_render_inline_content(item))}" for item in items
            )
        case CodeBlock(text):
            return _format_code_block(text)
        case DefinitionList(entries):
            return "\n".join(
                f"- **{escape_markdown(term)}:** {_render_inline_content(answer)}"
                for term, answer in entries
            )
        case Chart():
            alt_text = escape_markdown("".join(block.alt_text))
            caption = escape_markdown(block.caption)
            return f"Chart: {alt_text}\n\n{_escape_block_start(caption)}"
        case DataTable():
            return _render_table(block)
        case DecisionSheet():
            return _render_decision_sheet(block)


def _render_decision_sheet(sheet: DecisionSheet) -> str:
    explanation = _render_inline_content(sheet.explanation)
    parts = [f"**{escape_markdown(sheet.status)}.** {explanation}"]
    for entries in (sheet.identity, sheet.notes):
        lines = [
            f"- **{escape_markdown(term)}:** {_render_inline_content(content) or NOT_STATED}"
            for term, content in entries
        ]
        parts.append("\n".join(lines))
    risk_lines = []
    for number, risk in enumerate(sheet.risks, 1):
        title = escape_markdown(risk.title)
        if risk.page:
            title = f"[{title}]({risk.page}.md)"
        content = _render_inline_content(risk.content)
        risk_lines.append(f"{number}. **{title}** ({RISK_STATE_NAMES[risk.state]}): {content}")
    return "\n\n".join([*parts[:2], "\n".join(risk_lines), *parts[2:]])


def _render_table(data_table: DataTable) -> str:
    alignment_row = [
        "---:" if index in data_table.numeric_columns else "---"
        for index in range(len(data_table.columns))
    ]
    rows = [
        [_render_inline_element(cell, is_brief=True) for cell in row] for row in data_table.rows
    ]
    table_lines = [[escape_markdown(column) for column in data_table.columns], alignment_row, *rows]
    markdown_table = "\n".join(f"| {' | '.join(cells)} |" for cells in table_lines)
    note = f"\n\n{_escape_block_start(escape_markdown(data_table.note))}" if data_table.note else ""
    return f"**{escape_markdown(data_table.caption)}**\n\n{markdown_table}{note}"


def _render_inline_content(content: InlineContent) -> str:
    return "".join(_render_inline_element(element) for element in content)


def _render_inline_element(element: InlineElement, is_brief: bool = False) -> str:
    match element:
        case Figure():
            text = element.short_text if is_brief else element.full_text
            return f"[{escape_markdown(text)}]({element.page_path})"
        case ShortFigure(figure):
            return _render_inline_element(figure, is_brief=True)
        case Code(text):
            return format_code_span(text)
        case Link(text, href):
            if href.startswith("#"):  # Markdown does not define the ids of headings
                return escape_markdown(text)
            # A link without a folder leads to another page of the card.
            path = f"{href.removesuffix('.html')}.md" if "/" not in href else href
            return f"[{escape_markdown(text)}]({path})"
        case _:
            return escape_markdown(element)


def escape_markdown(text: str) -> str:
    """Escape a text so that Markdown shows it as it is: no markup, no HTML, no automatic links."""
    text = re.sub(r"\s+", " ", escape_invisible(text))
    text = re.sub(r"([\\`*_{}\[\]<>#|~!&$@])", r"\\\1", text)
    return re.sub(r"(?i):(?=//)", r"\\:", re.sub(r"(?i)\b(www)\.", r"\1\\.", text))


def format_code_span(text: str) -> str:
    """Format a code span with a fence longer than any in the text; it is valid in a table."""
    text = re.sub(r"\s+", " ", escape_invisible(text)).replace("|", "\\|")
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    padding = " " if text[:1] in "` " or text[-1:] in "` " else ""
    return f"{fence}{padding}{text}{padding}{fence}"


def _format_code_block(text: str) -> str:
    """Format a block of Python with a fence longer than any in the text."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}python\n{escape_invisible(text)}\n{fence}"


def _escape_block_start(text: str) -> str:
    """Escape the start of a block so that it is not read as a list, a heading or a rule."""
    text = text.strip()
    text = re.sub(r"^(\d+)([.)])(?=\s|$)", r"\1\\\2", text)
    return re.sub(r"^([-+=])", r"\\\1", text)
