"""Show a card, its charts, and the rows that support its figures."""

from __future__ import annotations

from collections.abc import Hashable
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from hallmark.flows.application.requests import InvalidRequestError
from hallmark.flows.application.store_reader import CardView, RecentValues, StoreReader
from hallmark.reports.page.document import Callout, Document, redact_document
from hallmark.reports.page.drawing import draw_chart
from hallmark.reports.page.evidence_pages import (
    DocumentExcerpt,
    DocumentLookup,
    collect_related_ids_by_id,
    describe_computation,
)
from hallmark.reports.page.figures import Evidence
from hallmark.reports.view.row_queries import (
    OPERATORS,
    PAGE_ROWS,
    RowQuery,
    RowView,
    SelectedRows,
    count_pages,
    list_query_fields,
)
from hallmark.reports.view.templating import render_view_page
from hallmark.tasks.contract import UsageError

#: How many documents and rendered pages are kept in memory.
MAX_DOCUMENTS = 16

#: Most documents on a page of rows.
MAX_SHOWN_DOCUMENTS = 20

#: An SVG file is shown as a picture and runs no script; it brings its own style.
CHART_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


class CardPages:
    """The pages about cards."""

    def __init__(self, reader: StoreReader) -> None:
        self.reader = reader
        self._documents: RecentValues[Document] = RecentValues(MAX_DOCUMENTS)
        self._pages: RecentValues[str] = RecentValues(MAX_DOCUMENTS)

    def open_card(self, run: str, card: str) -> CardView:
        """Open a card of a run that is named by its whole id."""
        opened_run = self.reader.open_run(run)
        if opened_run.id != run:
            raise UsageError(f"there is no run {run!r:.80}; the nearest is {opened_run.id}")
        return self.reader.open_card(opened_run, card)

    def redirect_to_card(self, run: str, card: str) -> Response:
        """Redirect from the folder of a card to its page."""
        opened_run = self.reader.open_run(run)
        if card not in opened_run.stages:
            raise HTTPException(404)
        return RedirectResponse(f"/runs/{quote(opened_run.id)}/{quote(card)}/{quote(card)}.html")

    def show_card(self, run: str, card: str, page: str) -> Response:
        """Show the page of a card."""
        if page != f"{card}.html":
            raise HTTPException(404)
        view = self.open_card(run, card)
        key = (view.run.id, view.key)
        return HTMLResponse(self._pages.get(key, lambda: self._render_card(view)))

    def _render_card(self, view: CardView) -> str:
        return render_view_page(
            "view_card.html",
            document=self._read_document(view),
            run=view.run,
            card=view.content.name,
        )

    def _read_document(self, view: CardView) -> Document:
        key: Hashable = view.key
        return self._documents.get(key, lambda: _redact_document(view))

    def show_chart(self, run: str, card: str, page: str) -> Response:
        """Show a chart of a card."""
        view = self.open_card(run, card)
        for chart in self._read_document(view).list_charts():
            if chart.path == f"charts/{page}":
                headers = {"Content-Security-Policy": CHART_POLICY}
                return Response(
                    draw_chart(chart.drawing), headers=headers, media_type="image/svg+xml"
                )
        raise HTTPException(404)

    def show_rows(self, request: Request, run: str, card: str, page: str) -> Response:
        """Show the rows of figures as a page, or write them as CSV or parquet."""
        evidence_id, _, suffix = page.rpartition(".")
        view = self.open_card(run, card)
        figures = view.content.book.group_figures_by_evidence_id().get(evidence_id)
        if figures is None or suffix not in ("html", "csv", "parquet"):
            raise HTTPException(404)
        evidence = view.content.book.evidence_by_id.get(evidence_id)
        redactor = view.content.redactor
        common = {
            "run": view.run,
            "card": card,
            "kind": view.content.document.kind,
            "figures": figures,
            "say": redactor.redact_full_text,
            "how": describe_computation,
        }
        if evidence is None:
            missing_inputs = ", ".join(view.content.missing_inputs)
            return HTMLResponse(
                render_view_page("view_rows_missing.html", inputs=missing_inputs, **common), 404
            )
        row_view = RowView(evidence, redactor)
        try:
            query = RowQuery.from_parameters(request.query_params.multi_items())
            selected = row_view.select_rows(query)
        except UsageError as error:
            raise InvalidRequestError(str(error), 400) from error
        if suffix != "html":
            return _build_download(row_view, selected, evidence_id, suffix)
        page_count = count_pages(len(selected.rows))
        page_index = min(query.page, page_count) - 1
        rows = selected.rows[page_index * PAGE_ROWS : (page_index + 1) * PAGE_ROWS]
        cells = row_view.build_cells(rows)
        documents = _find_documents(view, evidence, rows)
        return HTMLResponse(
            render_view_page(
                "view_rows.html",
                **common,
                evidence=evidence,
                evidence_id=evidence_id,
                condition=redactor.redact_full_text(evidence.conditions_json),
                python=redactor.redact_full_text(evidence.format_python_code()),
                purge_notice=view.purge_notice,
                columns=row_view.columns.values(),
                rows=[*zip(*cells.values(), strict=True)],
                selectable=row_view.selectable_columns,
                query=query,
                query_fields=list_query_fields(query, "search", "page"),
                operators=OPERATORS,
                selected_count=len(selected.rows),
                is_cut=selected.is_cut,
                page=page_index + 1,
                page_count=page_count,
                documents=documents,
                linked_ids={document.id for document in documents},
            )
        )


def _redact_document(view: CardView) -> Document:
    document = redact_document(view.content.document, view.content.redactor.redact_full_text)
    if view.purge_notice:
        document.lead = [Callout("note", [view.purge_notice]), *document.lead]
    return document


def _build_download(row_view: RowView, selected: SelectedRows, name: str, suffix: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}.{suffix}"'}
    if suffix == "csv":
        return StreamingResponse(
            row_view.iter_csv(selected.rows), headers=headers, media_type="text/csv; charset=utf-8"
        )
    return Response(
        row_view.to_parquet(selected.rows),
        headers=headers,
        media_type="application/vnd.apache.parquet",
    )


def _find_documents(view: CardView, evidence: Evidence, rows: object) -> list[DocumentExcerpt]:
    """Return the documents that rows name."""
    related_ids = collect_related_ids_by_id(evidence, rows)
    if not related_ids:
        return []
    lookup = DocumentLookup(view.content.corpus_artifacts, view.content.redactor)
    lookup.load_documents({*related_ids})
    found_ids = [i for i in related_ids if i in lookup.documents_by_id][:MAX_SHOWN_DOCUMENTS]
    return [lookup.build_excerpt(i, related_ids[i]) for i in found_ids]
