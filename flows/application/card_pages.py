"""Show the pages of a card, and the rows that support its figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from hallmark.flows.application.requests import InvalidRequestError
from hallmark.flows.application.store_reader import CardView, RecentValues, StoreReader
from hallmark.reports.card_links import CardLink
from hallmark.reports.page.card_pages import redact_card_page
from hallmark.reports.page.cases import SelectedRows as CaseRows
from hallmark.reports.page.cases import build_cases, has_cases
from hallmark.reports.page.document import Callout
from hallmark.reports.page.evidence_pages import (
    describe_computation,
    describe_conditions,
    render_cases,
)
from hallmark.reports.page.figures import Figure, slugify
from hallmark.reports.view.row_queries import (
    OPERATORS,
    RowQuery,
    RowView,
    SelectedRows,
    count_pages,
    list_query_fields,
)
from hallmark.reports.view.templating import render_view_page
from hallmark.tasks.contract import HallmarkError, UsageError

#: How many rendered pages of cards are kept in memory.
MAX_PAGES = 64

#: Rows on a page: of cases, which need more space, and of a table.
CASES_PER_PAGE, ROWS_PER_PAGE = 10, 50


class CardPages:
    """The pages about cards."""

    def __init__(self, reader: StoreReader) -> None:
        self.reader = reader
        self._pages: RecentValues[str] = RecentValues(MAX_PAGES)

    def open_card(self, run: str, card: str, *, reads_rows: bool = False) -> CardView:
        """Open a card of a run that is named by its whole id."""
        opened_run = self.reader.open_run(run)
        if opened_run.id != run:
            raise UsageError(f"there is no run {run!r:.80}; the closest match is {opened_run.id}")
        return self.reader.open_card(opened_run, card, reads_rows=reads_rows)

    def redirect_to_card(self, run: str, card: str) -> Response:
        """Redirect from the folder of a card to its page."""
        opened_run = self.reader.open_run(run)
        self.reader.check_card(opened_run, card)
        return RedirectResponse(f"/runs/{quote(opened_run.id)}/{quote(card)}/{quote(card)}.html")

    def show_card(self, run: str, card: str, page: str) -> Response:
        """Show the page of a card, or of one of its sections."""
        page_name, _, suffix = page.rpartition(".")
        view = self.open_card(run, card)
        section_name = "" if page_name == card else page_name
        names = {section.page for section in view.content.document.list_pages()}
        if suffix != "html" or section_name not in {"", *names}:
            raise HTTPException(404)
        related = [] if section_name else self.reader.find_related_cards(view)
        key = (view.run.id, section_name, view.key, *related)
        return HTMLResponse(self._pages.get(key, lambda: _render_card(view, section_name, related)))

    def show_rows(self, request: Request, run: str, card: str, page: str) -> Response:
        """Show the rows of figures as a page, or write them as CSV or parquet."""
        evidence_id, _, suffix = page.rpartition(".")
        view = self.open_card(run, card, reads_rows=True)
        figures = view.content.book.group_figures_by_evidence_id().get(evidence_id)
        if figures is None or suffix not in ("html", "csv", "parquet"):
            raise HTTPException(404)
        evidence = view.content.book.evidence_by_id.get(evidence_id)
        redact = view.content.redactor.redact_full_text
        values: dict[str, Any] = {
            "run": view.run,
            "card": card,
            "kind": view.content.document.kind,
            "purge_notice": view.purge_notice,
            "inputs": ", ".join(view.content.missing_inputs),
            "figures": figures,
            "redact": redact,
            "describe_computation": describe_computation,
        }
        if evidence is None:
            damage = view.content.damaged_evidence.get(evidence_id, "")
            return _show_missing_rows(values, redact(damage))
        row_view = RowView(evidence, view.content.redactor)
        try:
            query = RowQuery.from_parameters(request.query_params.multi_items())
            selected = row_view.select_rows(query)
        except UsageError as error:
            raise InvalidRequestError(str(error), 400) from error
        if suffix != "html":
            return _build_download(row_view, selected, evidence_id, suffix)
        shows_cases = has_cases(evidence.columns_by_name)
        page_rows = CASES_PER_PAGE if shows_cases else ROWS_PER_PAGE
        page_count = count_pages(len(selected.rows), page_rows)
        offset = (min(query.page, page_count) - 1) * page_rows
        rows = selected.rows[offset : offset + page_rows]
        if shows_cases:
            try:
                cases = build_cases(view.content, [CaseRows(evidence, rows, offset)])[0]
            except HallmarkError as error:
                return _show_missing_rows(values, redact(str(error)))
            values["cases"] = render_cases(cases)
        else:
            values["rows"] = [*zip(*row_view.build_cells(rows).values(), strict=True)]
        return HTMLResponse(
            render_view_page(
                "view_rows.html",
                **values,
                evidence=evidence,
                evidence_id=evidence_id,
                title=redact(describe_conditions(evidence.conditions)),
                python=redact(evidence.format_python_code()),
                shows_cases=shows_cases,
                columns=row_view.columns.values(),
                selectable=row_view.selectable_columns,
                query=query,
                query_fields=list_query_fields(query, "search", "sort", "page"),
                operators=OPERATORS,
                selected_count=len(selected.rows),
                is_cut=selected.is_cut,
                page=offset // page_rows + 1,
                page_count=page_count,
            )
        )


def _show_missing_rows(values: Mapping[str, Any], damage: str) -> Response:
    """Return the page that says why rows are not shown; the damage is redacted, maybe empty."""
    page = render_view_page("view_rows_missing.html", **values, damage=damage)
    return HTMLResponse(page, 500 if damage else 404)


def link_figure(figure: Figure) -> str:
    """Return the path of the rows of a figure, from a page of its card."""
    return f"rows/{figure.evidence_id}.html"


def _render_card(view: CardView, section_name: str, related: list[CardLink]) -> str:
    document = redact_card_page(view.content, section_name)
    if view.purge_notice:
        document.lead = [Callout("note", [view.purge_notice]), *document.lead]
    return render_view_page(
        "view_section.html" if section_name else "view_card.html",
        document=document,
        section=document.sections[0] if section_name else None,
        card_path=f"{view.content.name}.html",
        link_figure=link_figure,
        run=view.run,
        card=view.content.name,
        related=related,
    )


def _build_download(row_view: RowView, selected: SelectedRows, name: str, suffix: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{slugify(name)}.{suffix}"'}
    if suffix == "csv":
        return StreamingResponse(
            row_view.iter_csv(selected.rows), headers=headers, media_type="text/csv; charset=utf-8"
        )
    return StreamingResponse(
        row_view.iter_parquet(selected.rows),
        headers=headers,
        media_type="application/vnd.apache.parquet",
    )
