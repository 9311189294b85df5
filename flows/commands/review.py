"""List the reviews of a run's cards, write a decision, and store it with its signature."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from hallmark.flows.card_review import create_review, judge_run_cards, store_review
from hallmark.flows.commands.options import (
    AllowedSignersOption,
    JsonOption,
    RevokedKeysOption,
    StoreOption,
    print_result,
)
from hallmark.flows.runs import Run, open_run, open_store
from hallmark.reports.page.redaction import escape_invisible
from hallmark.reports.review.approval import STATE_NAMES
from hallmark.reports.review.review_store import SIGNATURE_SUFFIX
from hallmark.reports.review.signatures import (
    MAX_SIGNATURE_BYTES,
    SignerFiles,
    format_signing_command,
    sign_with_agent,
)
from hallmark.reports.review.statements import (
    MAX_STATEMENT_BYTES,
    CardStage,
    Decision,
    StatementError,
    compute_review_id,
    format_card_kind,
    parse_statement,
)
from hallmark.tasks.contract import UsageError

Report = dict[str, Any]

#: Maximum number of characters of a comment or note on a terminal.
MAX_SHOWN_CHARACTERS = 400


def review(
    run: str = "latest",
    *,
    card: CardStage = "model_card",
    decision: Decision | None = None,
    reviewer: str | None = None,
    comment: str = "",
    note: Annotated[list[tuple[str, str]] | None, Parameter(negative="")] = None,
    expires: str | None = None,
    key: Path | None = None,
    signature: Path | None = None,
    allowed_signers: AllowedSignersOption = None,
    revoked_keys: RevokedKeysOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the reviews of RUN's cards and whether each card is approved, or write a review.

    With --decision, the command writes a statement for you to sign with your SSH key. With --key,
    your SSH agent signs it and the review is stored. Without --key, the command prints what to run.

    Parameters
    ----------
    run
        A run id, the start of one, or "latest": the newest run with the card.
    card
        The card that the decision is about.
    decision
        Your decision; without one, the reviews are listed.
    reviewer
        Your name.
    comment
        The conditions of an approval, or the reasons for a rejection; required in both cases.
    note
        A figure id or the name of a finding, and your remark on it; can be repeated.
    expires
        The last day (in UTC) on which the approval is valid, such as 2027-12-31.
    key
        Your public SSH key, a file that ends with .pub; the SSH agent must hold the private key.
    signature
        The signature of a statement that this command wrote, as ssh-keygen wrote it: FILE.json.sig;
        the statement FILE.json must be next to it.
    """
    signer_files = SignerFiles(allowed_signers, revoked_keys)
    signer_files.check_readable()
    opened_store = open_store(store, create=False)
    if decision is None:
        if reviewer or comment or note or expires or key:
            raise UsageError(
                "a review requires a decision; add --decision approve, approve-with-conditions or "
                "reject"
            )
        if signature is not None:
            statement = _read_statement_of(signature)
            stored = store_review(
                opened_store, statement, _read_file(signature, MAX_SIGNATURE_BYTES)
            )
            run = parse_statement(stored.statement).card.run
        opened_run = open_run(run, opened_store, stage=card)
        return print_result(_build_report(opened_run, signer_files), as_json, render_reviews)
    if signature is not None:
        raise UsageError(
            "--signature stores an existing statement; do not combine it with --decision"
        )
    if not reviewer:
        raise UsageError("a review requires your name; add --reviewer NAME")
    opened_run = open_run(run, opened_store, stage=card)
    statement = create_review(
        opened_run,
        card,
        reviewer=reviewer,
        decision=decision,
        comment=comment,
        notes=note or (),
        expires=expires,
    ).to_statement()
    if key is not None:
        store_review(opened_store, statement, sign_with_agent(statement, key.expanduser()))
        return print_result(_build_report(opened_run, signer_files), as_json, render_reviews)
    print_result(_write_statement_file(statement, store), as_json, _render_signing_steps)


def _build_report(run: Run, signer_files: SignerFiles) -> Report:
    approvals = judge_run_cards(run, signer_files)
    return {
        "store": run.store.uri,
        "run": run.id,
        "allowed_signers": signer_files.allowed_signers and str(signer_files.allowed_signers),
        "cards": [approval.to_json_fields() for approval in approvals],
    }


def _read_statement_of(signature: Path) -> bytes:
    if signature.suffix != SIGNATURE_SUFFIX:
        raise UsageError(
            f"{signature}: --signature accepts only a file written by ssh-keygen, such as "
            f"review-0123456789ab.json{SIGNATURE_SUFFIX}"
        )
    statement_file = signature.with_suffix("")
    _check_is_file(signature, "specify the file written by ssh-keygen")
    _check_is_file(
        statement_file,
        f"copy the statement into the folder that contains its signature {signature.name}",
    )
    statement = _read_file(statement_file, MAX_STATEMENT_BYTES)
    try:
        parse_statement(statement)
    except StatementError as error:
        raise UsageError(
            f"{statement_file}: not a statement written by hallmark review: {error}"
        ) from error
    return statement


def _check_is_file(path: Path, remedy: str) -> None:
    if not path.is_file():
        problem = "not a file" if path.exists() else "there is no such file"
        raise UsageError(f"{path}: {problem}; {remedy}")


def _read_file(path: Path, max_bytes: int) -> bytes:
    with path.open("rb") as file:
        return file.read(max_bytes + 1)


def _write_statement_file(statement: bytes, store: str | None) -> Report:
    """Write a statement into the current folder, and return it with the next steps."""
    statement_file = Path(f"review-{compute_review_id(statement)[:12]}.json")
    statement_file.write_bytes(statement)
    store_arguments = ["--store", store] if store else []
    store_command = ["hallmark", "review", "--signature", f"{statement_file}{SIGNATURE_SUFFIX}"]
    return {
        "statement": str(statement_file),
        "sign": format_signing_command(statement_file),
        "then": shlex.join([*store_command, *store_arguments]),
    }


def _render_signing_steps(report: Report) -> str:
    return "\n".join(
        [
            f"statement: {report['statement']}",
            "read the statement, sign it with your SSH key, and store the signature:",
            f"    {report['sign']}",
            f"    {report['then']}",
        ]
    )


def render_reviews(report: Report) -> str:
    """Format the states of cards and their reviews for a terminal."""
    lines = [f"run {report['run']}"]
    for card in report["cards"]:
        lines.append(f"{format_card_kind(card['card']['kind'])}: {card['description']}")
        lines += _render_reviews_of_card(card["reviews"])
    if not report["cards"]:
        lines.append("the run has no cards")
    return "\n".join(lines)


def _render_reviews_of_card(reviews: Sequence[Report]) -> list[str]:
    lines = []
    for judged in reviews:
        state = "superseded" if judged["is_superseded"] else STATE_NAMES[judged["state"]]
        reason = f" ({judged['reason']})" if judged["reason"] else ""
        if judged["statement"] is None:
            lines.append(f"    {judged['id'][:12]}  {state}{reason}")
            continue
        statement = judged["statement"]
        signer = f" ({judged['signer']})" if judged["signer"] else ""
        until = f", until {statement['expires']}" if statement["expires"] else ""
        lines.append(
            escape_invisible(
                f"    {judged['id'][:12]}  {statement['date'][:10]}  {statement['reviewer']}"
                f"{signer}: {statement['decision']}{until}  [{state}{reason}]"
            )
        )
        lines += [f"        {text}" for text in _shorten(statement["comment"])]
        for note in statement["notes"]:
            lines += [f"        {text}" for text in _shorten(f"{note['about']}: {note['text']}")]
    return lines


def _shorten(text: str) -> list[str]:
    """Return the lines of a text, cut to what a terminal shows."""
    is_long = len(text) > MAX_SHOWN_CHARACTERS
    text = f"{text[:MAX_SHOWN_CHARACTERS]}… (--json shows all)" if is_long else text
    return escape_invisible(text).replace("\t", " ").splitlines()
