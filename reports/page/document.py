"""The content of a card as blocks, from which both HTML and Markdown are rendered.

Every string in a block is plain text; the renderers escape it. Strings may come from data, so
``redact_document`` redacts the whole document once before it is rendered.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from hallmark.reports.page.charts import Drawing
from hallmark.reports.page.figures import Figure, slugify
from hallmark.reports.page.redaction import RedactFunction


@dataclass(frozen=True)
class Code:
    """Text in a fixed-width font: names of tables, digests, code."""

    text: str


@dataclass(frozen=True)
class Link:
    """A link within the same artifact.

    Attributes:
        text: The text of the link.
        href: A page of the card, such as "composition.html", or "#" and the id of a section of the
            same page.
    """

    text: str
    href: str


@dataclass(frozen=True)
class ShortFigure:
    """The value of a figure alone, for a sentence that states the rest."""

    figure: Figure


class UserStatement(str):
    """What a person stated in the config: it is shown unredacted, for example a contact."""


InlineElement = str | Figure | ShortFigure | Code | Link
InlineContent = Sequence[InlineElement]

#: A term and its description.
DefinitionEntry = tuple[str, InlineContent]


@dataclass(frozen=True)
class Paragraph:
    content: InlineContent


@dataclass(frozen=True)
class BulletList:
    items: Sequence[InlineContent]


@dataclass(frozen=True)
class CodeBlock:
    """Python code to copy."""

    text: str


@dataclass(frozen=True)
class DefinitionList:
    """Terms with their descriptions, such as the questions that only a person can answer."""

    entries: Sequence[DefinitionEntry]


@dataclass(frozen=True)
class Callout:
    """A highlighted statement."""

    kind: Literal["good", "bad", "note"]
    content: InlineContent


@dataclass(frozen=True)
class DataTable:
    """A table. The first column names the row; columns in ``numeric_columns`` are right-aligned."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[InlineElement]]
    numeric_columns: frozenset[int] = frozenset()
    note: str = ""


@dataclass(frozen=True)
class Chart:
    """A chart of numbers that a table nearby holds, too.

    Attributes:
        name: Its name, unique on its page.
        drawing: What is drawn. Its labels are redacted before they are shortened.
        alt_text: The alternative text, in pieces where labels from data alternate with numbers.
        caption: The caption.
    """

    name: str
    drawing: Drawing
    alt_text: Sequence[str]
    caption: str


#: What the tests of a risk show: harm or, where baselines are compared, that the model is worse.
RiskState = Literal["found", "unknown", "not found", "worse", "not worse"]

#: The page of a model card that defines its metrics, and the part that defines the order of risks.
METRICS_PAGE, RISK_ORDER_TITLE = "metrics", "Order of risks"

#: What the states of risks are called on pages.
RISK_STATE_NAMES: dict[RiskState, str] = {
    "found": "harm found",
    "unknown": "unknown",
    "not found": "no harm found",
    "worse": "worse than the baseline",
    "not worse": "not shown to be worse than the baseline",
}


@dataclass(frozen=True)
class RiskLine:
    """What the decision sheet says of a risk.

    Attributes:
        title: The name of the risk.
        state: Whether harm was found, or the model is worse than a baseline; unknown if this was
            not measured or no conclusion follows.
        content: The sentence.
        page: The page of the audit that the sentence is about; empty if no audit ran.
    """

    title: str
    state: RiskState
    content: InlineContent
    page: str = ""


#: Words of the status of a card, the worst first.
FAIL, NOT_SHOWN, PASS_WITH_GAPS, PASS, NOT_JUDGED = (
    "Fail",
    "Not shown",
    "Pass with gaps",
    "Pass",
    "Not judged",
)

#: The verdict of the policy that follows from a status; None without a policy.
POLICY_VERDICT_BY_STATUS: dict[str, Literal["pass", "fail", "not_shown"] | None] = {
    FAIL: "fail",
    NOT_SHOWN: "not_shown",
    PASS_WITH_GAPS: "pass",
    PASS: "pass",
    NOT_JUDGED: None,
}


@dataclass(frozen=True)
class DecisionSheet:
    """The first screen of a model card, from which a reviewer decides.

    Attributes:
        status: The status in one to three words.
        look: How it is coloured: only a status without any gap is good.
        explanation: One sentence that explains the status.
        identity: What identifies the model, and what a person stated of it; nothing if that is
            missing.
        risks: The risks, in the order in which they are listed.
        notes: Further terms with their content.
    """

    status: str
    look: Literal["good", "bad", "note"]
    explanation: InlineContent
    identity: Sequence[DefinitionEntry]
    risks: Sequence[RiskLine]
    notes: Sequence[DefinitionEntry]


def format_user_statement(text: str | None) -> InlineContent:
    """Return what a person stated in the config, or that nothing was stated."""
    return [UserStatement(text.strip())] if text and text.strip() else ["Not stated."]


def build_unique_slug_by_name(display_texts: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Return a unique slug for each name.

    Args:
        display_texts: The names as they may be shown, from which the slugs are built.
        names: The names; a digest of the name is added where several slugs would be equal.
    """
    slug_counts = Counter(map(slugify, display_texts))
    return {
        name: slugify(text)
        if slug_counts[slugify(text)] == 1
        else f"{slugify(text)}-{hashlib.sha256(name.encode()).hexdigest()[:10]}"
        for text, name in zip(display_texts, names, strict=True)
    }


@dataclass(frozen=True)
class Details:
    """Blocks that a page shows after a click on their summary."""

    summary: str
    blocks: Sequence[Block]


Block = (
    Paragraph
    | BulletList
    | CodeBlock
    | DefinitionList
    | Callout
    | DataTable
    | Chart
    | DecisionSheet
    | Details
)


@dataclass
class Section:
    """A section of a card, with nested sections.

    Attributes:
        title: The heading.
        blocks: The content before the nested sections.
        sections: The nested sections.
        page: The name of the page that the section has for itself; empty if it is a part of the
            page of the section that contains it.
        answer: One sentence that the card shows next to the link to the section's own page.
    """

    title: str
    blocks: list[Block] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    page: str = ""
    answer: InlineContent = ()

    @property
    def anchor(self) -> str:
        return slugify(self.title)

    def add_blocks(self, *blocks: Block) -> None:
        self.blocks.extend(blocks)


@dataclass
class Document:
    """A card: its lead, and its sections in the order of its template."""

    title: str
    kind: str  # such as "Datasheet" or "Model card", as the page shows it
    lead: Sequence[Block]
    sections: Sequence[Section]

    def list_charts(self) -> list[Chart]:
        return [block for block in self.list_blocks() if isinstance(block, Chart)]

    def list_blocks(self) -> list[Block]:
        """Return all blocks of the lead and of all nested sections and details, in order."""
        blocks = [*self.lead]
        for section in iterate_sections(self.sections):
            blocks += section.blocks
        return [nested for block in blocks for nested in _iterate_nested_blocks(block)]

    def list_pages(self) -> list[Section]:
        """Return the sections that have a page of their own, in order."""
        return [section for section in iterate_sections(self.sections) if section.page]


def iterate_sections(sections: Sequence[Section]) -> Iterator[Section]:
    """Yield sections, each followed by its nested sections."""
    for section in sections:
        yield section
        yield from iterate_sections(section.sections)


def _iterate_nested_blocks(block: Block) -> Iterator[Block]:
    yield block
    if isinstance(block, Details):
        for nested in block.blocks:
            yield from _iterate_nested_blocks(nested)


def list_figure_texts(figure: Figure) -> list[str]:
    """Return every text of a figure that ``redact_figure`` redacts."""
    return [
        figure.label,
        figure.scorer,
        figure.method,
        figure.inconclusive_reason,
        figure.missing_reason,
        figure.missing_text,
    ]


def redact_figure(figure: Figure, redact: RedactFunction) -> Figure:
    """Return the figure with every text redacted."""
    return replace(
        figure,
        label=redact(figure.label),
        scorer=redact(figure.scorer),
        method=redact(figure.method),
        inconclusive_reason=redact(figure.inconclusive_reason),
        missing_reason=redact(figure.missing_reason),
        missing_text=redact(figure.missing_text),
    )


def list_document_texts(document: Document) -> list[str]:
    """Return every text of a document that ``redact_document`` redacts."""
    texts: list[str] = []

    def collect(text: str) -> str:
        texts.append(text)
        return text

    redact_document(document, collect)
    return texts


def redact_document(document: Document, redact: RedactFunction) -> Document:
    """Return the document with every text redacted, apart from what a person stated."""

    def redact_element(element: Any) -> Any:
        match element:
            case UserStatement():
                return element
            case str():
                return redact(element)
            case list() | tuple():
                return type(element)(map(redact_element, element))
            case Figure():
                return redact_figure(element, redact)
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
                    drawing=element.drawing.redact_labels(redact),
                    alt_text=redact_element(element.alt_text),
                    caption=redact(element.caption),
                )
            case RiskLine(title, _, content):
                return replace(element, title=redact(title), content=redact_element(content))
            case DecisionSheet():
                return replace(
                    element,
                    explanation=redact_element(element.explanation),
                    identity=redact_element(element.identity),
                    risks=redact_element(element.risks),
                    notes=redact_element(element.notes),
                )
            case Details(summary, blocks):
                return Details(redact(summary), redact_element(blocks))
            case Section():
                return replace(
                    element,
                    title=redact(element.title),
                    blocks=redact_element(element.blocks),
                    sections=redact_element(element.sections),
                    answer=redact_element(element.answer),
                )
        raise AssertionError(element)

    return Document(
        redact(document.title),
        document.kind,
        redact_element(document.lead),
        redact_element(document.sections),
    )
