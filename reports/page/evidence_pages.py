"""Render the evidence of a card as static pages: one for each stage, with all of its selections.

A selection is the rows that support one or more figures. Its place on the page has the figures, how
each is computed, the condition, the Python lines that read all rows, and the first few rows: as
cases if they have a text or a document (``hallmark.reports.page.cases``), otherwise as a table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from markupsafe import Markup

from hallmark.reports.page.card_tables import CardContent
from hallmark.reports.page.cases import Case, SelectedRows, build_cases, has_cases
from hallmark.reports.page.figures import Evidence, Figure, get_evidence_anchor
from hallmark.reports.page.redaction import Redactor
from hallmark.reports.page.rendering import get_template_environment
from hallmark.reports.page.table_cells import is_numeric_type, render_table_rows
from hallmark.tasks.contract import HallmarkError

#: Number of cases of a selection, of documents of each, and of rows of a table on a static page.
STATIC_CASES, STATIC_DOCUMENTS, STATIC_ROWS = 3, 1, 2

#: Number of values of a condition that its heading names.
_MAX_LISTED_VALUES = 8

#: About how many cases a page has; each selection has at least one.
_CASES_PER_PAGE = 40


@dataclass(frozen=True)
class ShownSelection:
    """A selection as a page shows it.

    Attributes:
        evidence: The rows; None if they are not available.
        figures: The figures computed from them.
        rows: The first rows, rendered as cases or as a table.
        shown_count: How many rows are shown.
    """

    evidence: Evidence | None
    figures: Sequence[Figure]
    rows: Markup | None = None
    shown_count: int = 0


class EvidencePage(NamedTuple):
    """A static page of evidence.

    Attributes:
        path: Its path in the folder of the card.
        text: Its HTML.
        problems: Why some of its rows that are in the store could not be read, each reason once.
    """

    path: str
    text: str
    problems: Sequence[str]


def iterate_evidence_pages(content: CardContent) -> Iterator[EvidencePage]:
    """Yield the page of each stage that the card has figures of."""
    selections_by_path: dict[str, list[ShownSelection]] = {}
    figures_by_evidence = content.book.group_figures_by_evidence_id()
    problems_by_evidence: dict[str, str] = {}
    shown_rows = _render_first_rows(content, figures_by_evidence, problems_by_evidence)
    for evidence_id, figures in figures_by_evidence.items():
        selection = ShownSelection(None, figures)
        if evidence_id in shown_rows:
            rows, shown_count = shown_rows[evidence_id]
            evidence = content.book.evidence_by_id[evidence_id]
            selection = ShownSelection(evidence, figures, rows, shown_count)
        path = figures[0].page_path.partition("#")[0]
        selections_by_path.setdefault(path, []).append(selection)
    for path, selections in selections_by_path.items():
        ids = [selection.figures[0].evidence_id for selection in selections]
        problems = dict.fromkeys(problems_by_evidence[i] for i in ids if i in problems_by_evidence)
        yield EvidencePage(path, render_evidence_page(content, selections), [*problems])


def find_unreadable_rows(content: CardContent) -> dict[str, str]:
    """Return why rows that are in the store cannot be shown on a page, by the id of the selection.

    All files that the page of a stage is read from are compared with their manifests.
    """
    problems: dict[str, str] = {}
    _read_first_rows(content, content.book.group_figures_by_evidence_id(), problems)
    return problems


def _render_first_rows(
    content: CardContent, evidence_ids: Iterable[str], problems: dict[str, str]
) -> dict[str, tuple[Markup, int]]:
    """Render the first rows of each selection that can be read, with how many they are."""
    tables, cases_by_id = _read_first_rows(content, evidence_ids, problems)
    rendered = {
        evidence_id: (
            render_plain_rows(content.book.evidence_by_id[evidence_id], rows, content.redactor),
            len(rows),
        )
        for evidence_id, rows in tables.items()
    }
    for evidence_id, cases in cases_by_id.items():
        rendered[evidence_id] = render_cases(cases, shows_ids=False), len(cases)
    return rendered


def _read_first_rows(
    content: CardContent, evidence_ids: Iterable[str], problems: dict[str, str]
) -> tuple[dict[str, pa.Table], dict[str, list[Case]]]:
    """Read the first rows of each selection that is in the store: as a table, or as cases.

    Args:
        content: The card.
        evidence_ids: The ids of the selections.
        problems: Receives the ids of selections that cannot be read, with the reason.
    """
    known = [i for i in evidence_ids if i in content.book.evidence_by_id]
    selections = [content.book.evidence_by_id[evidence_id] for evidence_id in known]
    case_selection_counts = Counter(
        evidence.stage for evidence in selections if has_cases(evidence.columns_by_name)
    )
    case_selections: dict[str, SelectedRows] = {}
    tables: dict[str, pa.Table] = {}
    for evidence_id, evidence in zip(known, selections, strict=True):
        try:
            if has_cases(evidence.columns_by_name):
                share = _CASES_PER_PAGE // case_selection_counts[evidence.stage]
                first_rows = evidence.read_first_rows(max(1, min(STATIC_CASES, share)))
                case_selections[evidence_id] = SelectedRows(evidence, first_rows)
            else:
                tables[evidence_id] = evidence.read_first_rows(STATIC_ROWS)
        except HallmarkError as error:  # the page then says that the rows are not available
            problems[evidence_id] = str(error)
    return tables, _build_readable_cases(content, case_selections, problems)


def _build_readable_cases(
    content: CardContent, selections: Mapping[str, SelectedRows], problems: dict[str, str]
) -> dict[str, list[Case]]:
    """Build the cases of selections by id; omit those that need a damaged file.

    Args:
        content: The card.
        selections: The first rows of each selection.
        problems: Receives the ids of the omitted selections, with the reason.
    """
    if not selections:
        return {}
    try:
        cases = build_cases(content, [*selections.values()], STATIC_DOCUMENTS)
        return dict(zip(selections, cases, strict=True))
    except HallmarkError as error:
        if len(selections) == 1:
            problems[next(iter(selections))] = str(error)
            return {}
    # All are read together, which is faster; the damage may concern only some of them.
    cases_by_id: dict[str, list[Case]] = {}
    for evidence_id, selection in selections.items():
        cases_by_id |= _build_readable_cases(content, {evidence_id: selection}, problems)
    return cases_by_id


def render_cases(cases: Sequence[Case], *, shows_ids: bool = True) -> Markup:
    """Render cases as HTML; ``cases.css`` has their style."""
    module: Any = get_template_environment().get_template("cases.html").module
    return Markup("\n").join(module.case(case, shows_ids) for case in cases)


def render_plain_rows(evidence: Evidence, rows: pa.Table, redactor: Redactor) -> Markup:
    """Render rows as an HTML table with the columns that have a value."""
    names = [name for name in rows.column_names if rows[name].null_count < len(rows)]
    rows = rows.select(names)
    columns = [evidence.get_column_description(name) for name in names]
    module: Any = get_template_environment().get_template("plain_rows.html").module
    numeric_columns = {field.name for field in rows.schema if is_numeric_type(field.type)}
    rendered: Markup = module.plain_rows(
        columns, numeric_columns, render_table_rows(columns, rows, redactor)
    )
    return rendered


def render_evidence_page(content: CardContent, selections: Sequence[ShownSelection]) -> str:
    """Render the page of selections of one stage."""
    content.redactor.search_full_texts(_iterate_page_texts(selections))
    redact = content.redactor.redact_full_text
    tables: dict[str, list[ShownSelection]] = {}
    missing: list[ShownSelection] = []
    for selection in selections:
        if selection.evidence is None:
            missing.append(selection)
        else:
            tables.setdefault(selection.evidence.table, []).append(selection)
    known = [selection.evidence for selection in selections if selection.evidence is not None]
    return (
        get_template_environment()
        .get_template("rows.html")
        .render(
            stage=known[0].stage if known else "",
            tables=tables,
            missing=missing,
            missing_inputs=", ".join(content.missing_inputs),
            redact=redact,
            describe_computation=describe_computation,
            get_anchor=get_evidence_anchor,
            describe_conditions=lambda evidence: redact(describe_conditions(evidence.conditions)),
            notice=content.redactor.notice,
            shows_cases=any(has_cases(evidence.columns_by_name) for evidence in known),
            card=f"{content.name}.html",
            kind=content.document.kind,
        )
    )


def _iterate_page_texts(selections: Sequence[ShownSelection]) -> Iterator[str]:
    """Yield the texts of a page that its template redacts, apart from those of the rows."""
    for selection in selections:
        for figure in selection.figures:
            yield from (figure.label, figure.full_text, describe_computation(figure))
        if selection.evidence is not None:
            yield describe_conditions(selection.evidence.conditions)
            if selection.evidence.file_rows is None:
                yield selection.evidence.format_python_filter_code()


def describe_conditions(conditions: Mapping[str, Any]) -> str:
    """Return the condition of a selection in words."""
    terms = []
    for name, value in conditions.items():
        column = name.replace("_", " ")
        if isinstance(value, Mapping):
            words = {"ge": "at least", "lt": "less than"}
            terms += [
                f"{column}: {words[comparison]} {bound}" for comparison, bound in value.items()
            ]
        elif isinstance(value, list):
            values = " or ".join(map(str, value[:_MAX_LISTED_VALUES]))
            rest = f" … ({len(value):,} in total)" if len(value) > _MAX_LISTED_VALUES else ""
            terms.append(f"{column}: {values}{rest}")
        elif value in (None, ""):
            terms.append(f"no {column}")
        elif isinstance(value, bool):
            terms.append(f"{column}: {'yes' if value else 'no'}")
        elif name == "measure":
            terms.append(f"{column}: {value}".replace("_", " "))
        else:
            terms.append(f"{column}: {value}")
    return "; ".join(terms) or "all rows"


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
        "distinct": f"the number of distinct values of {column}",
        "finding": figure.method or "computed by the audit",
    }[figure.aggregate]
    return (
        f"{description}; {figure.method}"
        if figure.method and figure.aggregate != "finding"
        else description
    )
