"""Build findings of any audit, and read the text of blocks about them, for tests of sentences."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from hallmark.reports.page.document import (
    Block,
    BulletList,
    Callout,
    Code,
    DataTable,
    DefinitionList,
    Details,
    Paragraph,
    ShortFigure,
)
from hallmark.reports.page.document import Section as DocumentSection
from hallmark.reports.page.figures import Figure, FigureBook
from hallmark.reports.sections.findings import Findings
from hallmark.tasks.audits.judging.findings import FINDINGS, build_finding
from hallmark.tasks.contract import Artifact, StageConfig, StageContext, stage
from tests.findings import build_titled_table
from tests.reports.artifacts import PARTS

#: Of tests that make an artifact for each example.
quick = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

#: Probabilities on both sides of 0.05, and the limit itself.
probabilities = st.one_of(
    st.none(), st.sampled_from([1e-12, 0.004, 0.0499, 0.05, 0.0501, 0.21, 1.0]), st.floats(0, 1)
)


@st.composite
def estimates(draw: Any, least: float = -3.0, most: float = 3.0) -> dict[str, float | None]:
    """Draw a value with or without an interval, and a p that need not agree with it."""
    if draw(st.integers(0, 6)) == 0:
        return {"value": None, "low": None, "high": None, "p": None}
    low, value, high = sorted(
        draw(st.tuples(*[st.floats(least, most).map(lambda x: round(x, 3))] * 3))
    )
    ends = draw(st.sampled_from(["both", "none", "touching"]))
    if ends == "none":
        return {"value": value, "low": None, "high": None, "p": draw(probabilities)}
    if ends == "touching":
        low = min(value, 0.0)
    return {"value": value, "low": low, "high": high, "p": draw(probabilities)}


class FoundConfig(StageConfig):
    """``rows``: arguments of ``build_finding``, and the verdict of a control, a JSON array.

    The other fields are settings of audits that sentences name.
    """

    rows: str
    min_verbatim_tokens: int = 16
    suffix_tokens: int = 32


@stage(name="found", tables={"values": PARTS, "findings": FINDINGS})
def found(config: FoundConfig, context: StageContext) -> None:
    """Write findings whose rows are those of one table."""
    context.get_table_writer("values").write({"sample": [0], "part": ["pair"]})
    rows = []
    for row in json.loads(config.rows):
        verdict = row.pop("verdict", None)
        finding = build_finding(**{"evidence_filter": {"part": "pair"}, **row})
        rows.append(finding if verdict is None else replace(finding, verdict=verdict))
    context.get_table_writer("findings").write(build_titled_table(rows))


def audit_of(audit: str, *rows: Mapping[str, Any]) -> Artifact:
    """Build an audit with these findings; fields that a finding lacks have usual values."""
    usual = {"audit": audit, "unit": "share", "method": "m", "n": 9}
    return found(FoundConfig(rows=json.dumps([{**usual, **row} for row in rows])))


def findings_of(**audits: Sequence[Mapping[str, Any]]) -> Findings:
    made = {name: audit_of(name, *rows) for name, rows in audits.items()}
    return Findings(FigureBook({f"audit_{name}": each for name, each in made.items()}), made)


def text_of_parts(parts: Iterable[Any]) -> str:
    """Return the visible text of inline parts."""
    said = []
    for part in parts:
        if isinstance(part, Figure):
            said.append(part.full_text)
        elif isinstance(part, ShortFigure):
            said.append(part.figure.short_text)
        elif isinstance(part, Code):
            said.append(part.text)
        else:
            said.append(part if isinstance(part, str) else part.text)
    return "".join(said)


def text_of_blocks(blocks: Iterable[Block]) -> str:
    """Return the text of blocks, including the cells of tables."""
    said: list[str] = []
    for block in blocks:
        if isinstance(block, Callout | Paragraph):
            said.append(text_of_parts(block.content))
        elif isinstance(block, BulletList):
            said += [text_of_parts(item) for item in block.items]
        elif isinstance(block, DefinitionList):
            said += [f"{term}: {text_of_parts(answer)}" for term, answer in block.entries]
        elif isinstance(block, DataTable):
            said += [block.caption, block.note]
            said += [text_of_parts([cell]) for row in block.rows for cell in row]
        elif isinstance(block, Details):
            said += [block.summary, text_of_blocks(block.blocks)]
    return "\n".join(said)


def text_of_section(section: DocumentSection) -> str:
    """Return the text of a section and of its subsections."""
    parts = [text_of_section(each) for each in section.sections]
    return "\n".join([section.title, text_of_blocks(section.blocks), *parts])
