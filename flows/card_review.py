"""Review the cards of runs: state what is reviewed, write decisions, and list them.

The command ``hallmark review`` and pages of an application call the same functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from hallmark.flows.finding_trace import find_finding
from hallmark.flows.runs import Run, open_run
from hallmark.reports.forms.answers_file import has_visible_character
from hallmark.reports.review.approval import (
    Approval,
    is_dated_before,
    is_dated_in_future,
    judge_card,
)
from hallmark.reports.review.evidence_hash import compute_evidence_hash
from hallmark.reports.review.review_store import StoredReview, read_reviews, write_review
from hallmark.reports.review.signatures import SignerFiles, is_signature_of
from hallmark.reports.review.statements import (
    CARD_STAGES,
    MAX_NOTES,
    CardStage,
    Decision,
    Review,
    ReviewedCard,
    StatementError,
    format_card_kind,
    make_review,
    parse_statement,
)
from hallmark.tasks.audits.registry import AUDIT_DESCRIPTIONS
from hallmark.tasks.contract import (
    Artifact,
    HallmarkError,
    Store,
    UsageError,
    format_closest_name_hint,
    format_current_time,
)


def list_card_kinds(run: Run) -> list[CardStage]:
    """List the kinds of cards that a run has."""
    return [kind for kind in CARD_STAGES if kind in run.stages]


def describe_run_card(run: Run, kind: CardStage) -> ReviewedCard:
    """Describe the card of a run as it is now.

    Raises:
        UsageError: The run has no such card.
        HallmarkError: A table of the card is missing or damaged.
    """
    if kind not in run.stages:
        kinds = ", ".join(list_card_kinds(run)) or "none"
        raise UsageError(f"run {run.id} has no {kind}; its cards: {kinds}")
    return describe_card_artifact(run[kind], kind, run.id)


def describe_card_artifact(card: Artifact, kind: CardStage, run_id: str) -> ReviewedCard:
    """Describe the artifact of a card as it is now."""
    return ReviewedCard(
        kind=kind,
        run=run_id,
        checkpoint=card.get_input_digest("checkpoint"),
        evidence_hash=compute_evidence_hash(card),
    )


def judge_run_cards(run: Run, signer_files: SignerFiles) -> list[Approval]:
    """Decide for each card of a run whether it is approved.

    Raises:
        HallmarkError: A card is damaged, or ssh-keygen is needed and missing.
    """
    signer_files.check_readable()
    reviews = read_reviews(run.store)
    return [
        judge_card(describe_run_card(run, kind), reviews, signer_files)
        for kind in list_card_kinds(run)
    ]


def create_review(
    run: Run,
    kind: CardStage,
    *,
    reviewer: str,
    decision: Decision,
    comment: str = "",
    notes: Sequence[tuple[str, str]] = (),
    expires: str | None = None,
) -> Review:
    """Create the statement about a card of a run that a reviewer will sign.

    Args:
        run: The run.
        kind: The kind of its card.
        reviewer: The name of the reviewer.
        decision: The decision.
        comment: Conditions of an approval, or reasons.
        notes: Pairs of a figure id or the name of a finding, and the remark on it.
        expires: Last day of an approval, such as "2027-12-31"; None without an end.

    Raises:
        UsageError: There are too many notes, or one is empty, or about a figure or finding that
            the card does not have.
        StatementError: A text is not valid or has no visible character.
    """
    if len(notes) > MAX_NOTES:
        raise UsageError(
            f"the review has {len(notes):,} notes, but the maximum is {MAX_NOTES}; write fewer "
            "notes"
        )
    card = describe_run_card(run, kind)
    reviewer = reviewer.strip()
    _check_texts(reviewer, comment, notes)
    _check_note_subjects(run, run[kind], dict.fromkeys(about for about, _ in notes))
    return make_review(
        reviewer=reviewer,
        decision=decision,
        comment=comment,
        notes=tuple({"about": about, "text": text} for about, text in notes),
        date=format_current_time(),
        expires=expires,
        card=card,
    )


def store_review(store: Store, statement: bytes, signature: bytes) -> StoredReview:
    """Store a signed statement about a card whose evidence has not changed since.

    Somebody may have changed the statement between its creation and its signature, so that its
    texts are checked again.

    Raises:
        StatementError: The statement is not valid, a text has no visible character, or the date is
            in the future or before the card was created.
        UsageError: A note is empty, or about a figure or finding that the card does not have.
        HallmarkError: The signature does not belong to it, or the evidence has changed.
    """
    review = parse_statement(statement)
    if is_dated_in_future(review, datetime.now(UTC)):
        raise StatementError(
            f"the statement is dated in the future ({review.date[:10]}), so no later decision "
            "could replace it; check the clock and write a new review"
        )
    if not is_signature_of(signature, statement):
        raise HallmarkError(
            "the signature does not match this statement; sign the statement again without "
            "changing it"
        )
    run = open_run(review.card.run, store)
    if describe_run_card(run, review.card.kind) != review.card:
        raise HallmarkError(
            f"the {format_card_kind(review.card.kind)} of run {run.id} has changed since the "
            "statement was written; read it again and write a new review"
        )
    card, notes = run[review.card.kind], [(note.about, note.text) for note in review.notes]
    _check_not_older_than_card(review, card)
    _check_texts(review.reviewer, review.comment, notes)
    _check_note_subjects(run, card, dict.fromkeys(about for about, _ in notes))
    return write_review(store, statement, signature)


def _check_not_older_than_card(review: Review, card: Artifact) -> None:
    """Raise StatementError if a statement is dated before its card existed."""
    created: str | None = card.manifest.get("created")
    if created and is_dated_before(review, datetime.fromisoformat(created).astimezone(UTC)):
        raise StatementError(
            f"the statement is dated {review.date[:10]}, before the card was created "
            f"({created[:10]}); check the clock and write a new review"
        )


def _check_texts(reviewer: str, comment: str, notes: Iterable[tuple[str, str]]) -> None:
    """Check that a reader sees something of each text of a review."""
    for name, text in (("reviewer", reviewer), ("comment", comment)):
        if text and not has_visible_character(text):
            raise StatementError(f"{name}: contains no visible characters; enter some text")
    for about, text in notes:
        if not has_visible_character(text):
            raise UsageError(f"the note about {about!r:.120} is empty; enter some text")


def _check_note_subjects(run: Run, card: Artifact, subjects: Iterable[str]) -> None:
    """Check that notes are about figures of the card or findings of its audits."""
    figure_ids = card["figures"].read(["id"])["id"].to_pylist() if "figures" in card.tables else []
    for about in subjects:
        if about in figure_ids:
            continue
        audit, separator, _ = about.partition(".")
        if not separator or audit not in AUDIT_DESCRIPTIONS:
            hint = format_closest_name_hint(about, figure_ids)
            raise UsageError(
                f"the card has no figure {about!r:.120}{hint}; specify a figure id, as in the "
                f"links on the page, or a finding, as listed by: hallmark findings {run.id}"
            )
        find_finding(run, about)
