"""Build the application: its routes, its error pages and its checks of requests."""

from __future__ import annotations

import importlib
import threading
from contextlib import suppress

import pyarrow as pa
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException

from hallmark.flows.application.card_pages import CardPages
from hallmark.flows.application.comparison_pages import ComparisonPages
from hallmark.flows.application.requests import InvalidRequestError, RequestGuard, handle_form
from hallmark.flows.application.review_pages import ReviewPages
from hallmark.flows.application.run_pages import RUNS_PER_PAGE, RunPages
from hallmark.flows.application.store_reader import StoreReader
from hallmark.flows.application.trace_pages import TracePages
from hallmark.reports.page.redaction import Redactor
from hallmark.reports.review.signatures import SignerFiles
from hallmark.reports.review.statements import StatementError
from hallmark.reports.view.templating import STATIC_FILES, read_static_file, render_view_page
from hallmark.tasks.contract import HallmarkError, Store, UsageError, get_short_error_line

#: The application listens only on this machine.
HOST = "127.0.0.1"

#: Seconds after which requests are answered although the first pages are not prepared.
MAX_PREPARATION_SECONDS = 3.0


def create_application(
    store: Store, port: int, signer_files: SignerFiles, *, prepares_pages: bool = False
) -> RequestGuard:
    """Create the application.

    Args:
        store: The store whose runs it shows.
        port: The port on which it listens.
        signer_files: Whose signatures count.
        prepares_pages: Whether a thread reads what is probably opened first: the newest runs, and
            the cards of the newest. It has MAX_PREPARATION_SECONDS before the first request, which
            would otherwise compete with it.
    """
    application = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    reader = StoreReader(store)
    card_pages = CardPages(reader)
    trace_pages, review_pages = TracePages(reader), ReviewPages(reader, signer_files)
    comparison_pages = ComparisonPages(reader)
    run_pages = RunPages(reader, comparison_pages.find_training)
    shown_pages = {
        "/static/{name}": show_static_file,
        "/": run_pages.show_runs,
        "/compare": comparison_pages.show_comparison,
        "/trace": trace_pages.show_form,
        "/statements/{statement}/": review_pages.show_statement,
        "/statements/{statement}/{file}": review_pages.download_statement,
        "/runs/{run}/": run_pages.show_run,
        "/runs/{run}/progress": run_pages.show_progress,
        "/runs/{run}/trajectory/trajectory.html": comparison_pages.show_trajectory,
        "/runs/{run}/trajectory/rows/{page}": comparison_pages.show_pairs,
        "/runs/{run}/{card}/reviews/": review_pages.show_reviews,
        "/runs/{run}/{card}/": card_pages.redirect_to_card,
        "/runs/{run}/{card}/rows/{page}": card_pages.show_rows,
        "/runs/{run}/{card}/{page}": card_pages.show_card,
    }
    forms = {
        "/trace": trace_pages.trace_text,
        "/statements/{statement}/": review_pages.store_signature,
        "/runs/{run}/{card}/reviews/": review_pages.compose_statement,
    }
    for path, handler in shown_pages.items():
        application.add_api_route(path, handler, methods=["GET", "HEAD"], response_model=None)
    for path, form_handler in forms.items():
        application.add_api_route(
            path, handle_form(form_handler), methods=["POST"], response_model=None
        )
    for error_class in (HallmarkError, pa.ArrowException, OSError, HTTPException, Exception):
        application.add_exception_handler(error_class, show_error)
    if prepares_pages:
        preparation = threading.Thread(target=prepare_pages, args=(reader, card_pages), daemon=True)
        preparation.start()
        preparation.join(MAX_PREPARATION_SECONDS)
    # Outside of everything, so that also the page of an unexpected error gets its headers.
    return RequestGuard(application, {f"{HOST}:{port}", f"localhost:{port}"})


def prepare_pages(reader: StoreReader, card_pages: CardPages) -> None:
    """Read the summaries of the newest runs and the cards of the newest into memory.

    The cards are read twice, because pages of rows keep their own copies.
    The libraries of comparisons are also imported, which takes about a second.
    """
    # Whatever fails here, the page that shows it says so.
    with suppress(Exception):
        runs, _ = reader.read_runs()
        for listed in reader.list_runs(runs[:RUNS_PER_PAGE])[:1]:
            for card in listed.cards:
                card_pages.show_card(listed.run.id, card, f"{card}.html")
                card_pages.open_card(listed.run.id, card, reads_rows=True)
        importlib.import_module("scipy.stats")


def show_static_file(name: str) -> Response:
    """Return the style sheet or the script."""
    if name not in STATIC_FILES:
        raise HTTPException(404)
    return Response(read_static_file(name), media_type=STATIC_FILES[name])


def show_error(request: Request, error: Exception) -> Response:
    """Return the page of an error: one sentence."""
    status_code, sentence = 500, ""
    match error:
        case InvalidRequestError():
            status_code, sentence = error.status_code, str(error)
        case StatementError():
            status_code, sentence = 400, f"the review is not valid: {error}"
        case UsageError():
            status_code, sentence = 404, str(error)
        case HallmarkError():
            sentence = str(error)
        case HTTPException():
            status_code = error.status_code
            sentence = (
                "there is no such page"
                if status_code == 404
                else f"the request was refused ({error.detail})"
            )
        case pa.ArrowException() | OSError():
            sentence = (
                f"a table in the store cannot be read ({get_short_error_line(error)}); find the "
                "damaged file with: hallmark verify"
            )
        case _:
            sentence = (
                f"the page could not be built ({type(error).__name__}: {error!s:.200}); look for "
                "damaged files in the store with: hallmark verify"
            )
    shown = Redactor().redact_full_text(f"{sentence[:1].upper()}{sentence[1:]}.")
    return HTMLResponse(render_view_page("error.html", sentence=shown), status_code)
