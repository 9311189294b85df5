"""Show the reviews of a card, compose a statement, and store it with its signature.

The reviewer signs the statement outside of the application, which never reads a private key. Until
the signature comes, a statement is only in memory.
"""

from __future__ import annotations

import shlex
from collections import OrderedDict
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException

from hallmark.flows.application.requests import FormFields
from hallmark.flows.application.store_reader import StoreReader
from hallmark.flows.card_review import create_review, describe_run_card, store_review
from hallmark.flows.runs import Run
from hallmark.reports.cards import CARD_KINDS
from hallmark.reports.page.redaction import escape_invisible
from hallmark.reports.review.approval import STATE_NAMES, judge_card
from hallmark.reports.review.review_store import SIGNATURE_SUFFIX, read_reviews
from hallmark.reports.review.signatures import SignerFiles, format_signing_command
from hallmark.reports.review.statements import (
    CARD_STAGES,
    DECISIONS,
    MAX_NOTES,
    CardStage,
    Review,
    compute_review_id,
    format_card_kind,
)
from hallmark.reports.view.templating import render_view_page
from hallmark.tasks.contract import HallmarkError, UsageError

#: How many statements wait for their signature at most; the oldest is dropped first.
MAX_WAITING_STATEMENTS = 100

#: How many reviews without a verified signature a page shows.
MAX_UNVERIFIED_REVIEWS = 50

#: Rows for notes in the form.
NOTE_ROWS = 3


class WaitingStatement(NamedTuple):
    """A statement that nobody has signed yet."""

    review: Review
    statement: bytes


class ReviewPages:
    """The pages about reviews."""

    def __init__(self, reader: StoreReader, signer_files: SignerFiles) -> None:
        self.reader, self.signer_files = reader, signer_files
        self._waiting: OrderedDict[str, WaitingStatement] = OrderedDict()

    def show_reviews(self, run: str, card: str) -> Response:
        """Show the reviews of a card, and the form for another one."""
        return self._render_reviews(*self._open_card(run, card), {}, "", 200)

    def compose_statement(self, request: Request, fields: FormFields) -> Response:
        """Compose the statement of the form, and show how to sign it."""
        run, kind = self._open_card(request.path_params["run"], request.path_params["card"])

        def get_field(name: str) -> str:
            return fields.get(name, [""])[0].strip()

        subjects, texts = fields.get("about", []), fields.get("note", [])
        try:
            if get_field("decision") not in DECISIONS:
                raise UsageError("choose a decision")
            review = create_review(
                run,
                kind,
                reviewer=get_field("reviewer"),
                decision=get_field("decision"),  # type: ignore[arg-type]
                comment=get_field("comment"),
                notes=[
                    (about.strip(), text.strip())
                    for about, text in zip(subjects, texts, strict=False)
                    if about.strip() or text.strip()
                ],
                expires=get_field("expires") or None,
            )
        except HallmarkError as error:
            return self._render_reviews(run, kind, fields, str(error), 400)
        statement = review.to_statement()
        review_id = compute_review_id(statement)
        self._waiting[review_id] = WaitingStatement(review, statement)
        while len(self._waiting) > MAX_WAITING_STATEMENTS:
            self._waiting.popitem(last=False)
        return RedirectResponse(f"/statements/{review_id}/#statement", 303)

    def show_statement(self, statement: str) -> Response:
        """Show a statement, the command that signs it, and the form for the signature."""
        return self._render_statement(statement, "", 200)

    def download_statement(self, statement: str, file: str) -> Response:
        """Return the file that is signed."""
        waiting = self._find_statement(statement)
        if file != _name_statement_file(statement):
            raise HTTPException(404)
        headers = {"Content-Disposition": f'attachment; filename="{file}"'}
        return Response(waiting.statement, headers=headers, media_type="application/json")

    def store_signature(self, request: Request, fields: FormFields) -> Response:
        """Check the signature of the form, and store it with its statement."""
        statement_id = request.path_params["statement"]
        waiting = self._find_statement(statement_id)
        signature = fields.get("signature", [""])[0].strip()
        try:
            if not signature:
                raise UsageError(
                    "no signature was provided; choose the signature file or paste its text"
                )
            store_review(self.reader.store, waiting.statement, f"{signature}\n".encode())
        except HallmarkError as error:
            return self._render_statement(statement_id, str(error), 400)
        card = waiting.review.card
        self._waiting.pop(statement_id, None)
        return RedirectResponse(f"/runs/{quote(card.run)}/{card.kind}/reviews/#reviews", 303)

    def _open_card(self, run: str, card: str) -> tuple[Run, CardStage]:
        opened_run = self.reader.open_run(run)
        for kind in CARD_STAGES:
            if kind == card and kind in opened_run.stages and opened_run.id == run:
                return opened_run, kind
        raise HTTPException(404)

    def _find_statement(self, statement: str) -> WaitingStatement:
        if statement not in self._waiting:
            raise UsageError(
                "this statement is not waiting for a signature, because it is already stored or "
                "the application was restarted; write the review again"
            )
        return self._waiting[statement]

    def _render_reviews(
        self, run: Run, kind: CardStage, fields: FormFields, problem: str, status_code: int
    ) -> Response:
        try:
            self.signer_files.check_readable()
        except UsageError as error:  # a file was removed after the start
            raise HallmarkError(f"the reviews cannot be evaluated: {error}") from error
        approval = judge_card(
            describe_run_card(run, kind), read_reviews(self.reader.store), self.signer_files
        )
        subjects, texts = fields.get("about", []), fields.get("note", [])
        given_notes = islice(zip(subjects, texts, strict=False), MAX_NOTES)
        notes = [*given_notes] or [("", "")] * NOTE_ROWS
        figure_ids = run[kind]["figures"].read(["id"])["id"].to_pylist()
        return HTMLResponse(
            render_view_page(
                "reviews.html",
                run=run,
                card=kind,
                kind=CARD_KINDS[kind].title,
                kind_name=format_card_kind(kind),
                approval=approval,
                shown_reviews=approval.list_shown_reviews(MAX_UNVERIFIED_REVIEWS),
                unchecked_count=approval.count_unchecked_signatures(),
                has_signers=self.signer_files.allowed_signers is not None,
                state_names=STATE_NAMES,
                decisions=DECISIONS,
                fields={name: values[0] for name, values in fields.items()},
                notes=notes,
                figure_ids=figure_ids,
                problem=_format_sentence(problem),
            ),
            status_code,
        )

    def _render_statement(self, statement: str, problem: str, status_code: int) -> Response:
        waiting = self._find_statement(statement)
        file_name = _name_statement_file(statement)
        signature_file = f"{file_name}{SIGNATURE_SUFFIX}"
        store_command = ["hallmark", "review", "--signature", signature_file]
        return HTMLResponse(
            render_view_page(
                "statement.html",
                review=waiting.review,
                card_title=CARD_KINDS[waiting.review.card.kind].title,
                file_name=file_name,
                signature_file=signature_file,
                sign_command=format_signing_command(Path(file_name)),
                store_command=shlex.join([*store_command, "--store", self.reader.store.uri]),
                problem=_format_sentence(problem),
            ),
            status_code,
        )


def _name_statement_file(review_id: str) -> str:
    return f"review-{review_id[:12]}.json"


def _format_sentence(message: str) -> str:
    message = escape_invisible(message)
    return f"{message[:1].upper()}{message[1:]}." if message else ""
