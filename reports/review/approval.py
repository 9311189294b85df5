"""Decide whether a card is approved, from all its reviews.

Commands, pages and releases take the state of a card from ``judge_card``. In doubt a card is not
approved: a rejection outweighs every approval, and a rejection whose signature cannot be verified
still prevents the approval.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from hallmark.reports.page.redaction import escape_invisible
from hallmark.reports.review.review_store import StoredReview, parse_stored_review
from hallmark.reports.review.signatures import SignatureCheck, SignerFiles, check_signatures
from hallmark.reports.review.statements import (
    Review,
    ReviewedCard,
)

#: The state of a review, and of a card with all its reviews.
ApprovalState = Literal[
    "approved",
    "approved_with_conditions",
    "rejected",
    "expired",
    "void",
    "signer_unknown",
    "signature_invalid",
    "unsigned",
]

#: The states in words.
STATE_NAMES: dict[ApprovalState, str] = {
    "approved": "approved",
    "approved_with_conditions": "approved with conditions",
    "rejected": "rejected",
    "expired": "expired",
    "void": "void",
    "signer_unknown": "signer unknown",
    "signature_invalid": "signature invalid",
    "unsigned": "unsigned",
}

#: States of reviews whose signature does not count, the worst first.
UNVERIFIED_STATES: tuple[ApprovalState, ...] = ("signature_invalid", "signer_unknown", "unsigned")

#: The state of a card without rejections is the first of these that one of its reviews has.
STATE_ORDER: tuple[ApprovalState, ...] = (
    "approved_with_conditions",
    "approved",
    "expired",
    "void",
    "signer_unknown",
    "signature_invalid",
)

#: A statement that is dated later than this is not yet valid: the reviewer's clock is wrong, and a
#: later decision of theirs would count as the earlier one.
MAX_CLOCK_DIFFERENCE = timedelta(days=1)


@dataclass(frozen=True)
class JudgedReview:
    """A review and what it counts for."""

    id: str
    state: ApprovalState
    reason: str
    """Why it is not in force, as a clause; empty if it is."""
    review: Review | None
    """The statement; None if it is damaged."""
    signer: str = ""
    """Principal that the allowed signers give for the key; empty if unknown."""
    key: str = ""
    """Fingerprint of the key; empty if the signature is missing or broken."""
    is_superseded: bool = False
    """Whether a later review with the same key replaces it."""

    def to_json_fields(self) -> dict[str, Any]:
        """Return the review as the fields of a JSON object."""
        return {
            "id": self.id,
            "state": self.state,
            "reason": self.reason,
            "signer": self.signer,
            "key": self.key,
            "is_superseded": self.is_superseded,
            "statement": self.review and self.review.model_dump(mode="json"),
        }


@dataclass(frozen=True)
class Approval:
    """The state of a card and the reviews that it follows from."""

    card: ReviewedCard
    state: ApprovalState
    reviews: tuple[JudgedReview, ...]

    @property
    def is_approved(self) -> bool:
        return self.state in ("approved", "approved_with_conditions")

    def list_reviewed_runs(self) -> list[str]:
        """List the runs that the valid approvals name, sorted."""
        return sorted(
            {
                judged.review.card.run
                for judged in self.reviews
                if judged.review is not None
                and judged.state in ("approved", "approved_with_conditions")
                and not judged.is_superseded
            }
        )

    def count_unchecked_signatures(self) -> int:
        """Count the signatures of strangers, which were not compared with their statements."""
        return sum(review.state == "signer_unknown" and not review.key for review in self.reviews)

    def list_shown_reviews(self, max_unverified: int) -> list[JudgedReview]:
        """List the reviews of a page: all verified ones and a limited number of the others.

        Of the others, those that may be rejections of this evidence come first.
        """
        unverified = [review for review in self.reviews if review.state in UNVERIFIED_STATES]
        unverified.sort(key=lambda review: not _may_reject(review, self.card))
        omitted_ids = {review.id for review in unverified[max_unverified:]}
        return [review for review in self.reviews if review.id not in omitted_ids]

    def describe(self) -> str:
        """Say the state, and by whom or why, in one clause."""
        deciding_reviews = [
            review
            for review in self.reviews
            if review.state == self.state and not review.is_superseded
        ]
        if not deciding_reviews:
            return "unsigned: not yet reviewed"
        if deciding_reviews[0].reason:
            return f"{STATE_NAMES[self.state]}: {deciding_reviews[0].reason}"
        signers = ", ".join(dict.fromkeys(review.signer for review in deciding_reviews))
        return f"{STATE_NAMES[self.state]} by {escape_invisible(signers)}"

    def to_json_fields(self) -> dict[str, Any]:
        """Return the state and all reviews as the fields of a JSON object."""
        return {
            "card": self.card.model_dump(mode="json"),
            "state": self.state,
            "is_approved": self.is_approved,
            "description": self.describe(),
            "reviews": [review.to_json_fields() for review in self.reviews],
        }


def judge_card(
    card: ReviewedCard,
    stored_reviews: Iterable[StoredReview],
    signer_files: SignerFiles,
    now: datetime | None = None,
) -> Approval:
    """Decide whether a card is approved.

    Args:
        card: The card as it is now.
        stored_reviews: All reviews of the store or of the release.
        signer_files: Whose signatures count.
        now: The time; by default the present.

    Raises:
        HallmarkError: A signature must be checked, and ssh-keygen is missing.
    """
    now = now or datetime.now(UTC)
    reviews_of_card = [
        (stored, review)
        for stored in stored_reviews
        if is_about_card(review := parse_stored_review(stored), card)
    ]
    checks = check_signatures(
        [(stored.statement, stored.signature) for stored, _ in reviews_of_card], signer_files
    )
    judged_reviews = [
        _judge_review(card, stored, review, check, now)
        for (stored, review), check in zip(reviews_of_card, checks, strict=True)
    ]
    reviews = _mark_superseded(judged_reviews)
    return Approval(card, _combine_states(card, reviews), tuple(sorted(reviews, key=_get_sort_key)))


def is_about_card(review: Review | None, card: ReviewedCard) -> bool:
    """Whether a review is about this card or an earlier state of it.

    A damaged statement, None, counts as one about every card: it may be a rejection.
    """
    if review is None:
        return True
    reviewed = review.card
    return reviewed.kind == card.kind and (
        reviewed.evidence_hash == card.evidence_hash
        or reviewed.run == card.run
        or (card.checkpoint is not None and reviewed.checkpoint == card.checkpoint)
    )


def _judge_review(
    card: ReviewedCard,
    stored: StoredReview,
    review: Review | None,
    check: SignatureCheck,
    now: datetime,
) -> JudgedReview:
    """Decide what one review counts for, without regard to others; None is a damaged statement."""
    if review is None:
        reason = (
            f"the statement {stored.file_name} is damaged and may be a rejection; restore it from "
            "a backup, or remove it if it is not a review"
        )
        return JudgedReview(stored.id, "signature_invalid", reason, None)
    if check.outcome == "valid":
        state, reason = _judge_content(card, review, now)
    else:
        state, reason = check.outcome, check.reason
    return JudgedReview(stored.id, state, reason, review, check.signer, check.key)


def _judge_content(card: ReviewedCard, review: Review, now: datetime) -> tuple[ApprovalState, str]:
    """Return the state of a review with a valid signature, and the reason if it does not count."""
    if review.card.evidence_hash != card.evidence_hash:
        return "void", "the card's evidence has changed since the review"
    if review.card.checkpoint != card.checkpoint:
        return "void", "the review is for a different checkpoint"
    if review.decision == "reject":
        return "rejected", ""
    if is_dated_in_future(review, now):
        return "signature_invalid", f"the review is dated in the future ({review.date[:10]})"
    if review.expires is not None and review.expires < now.astimezone(UTC).date().isoformat():
        return "expired", f"the approval expired on {review.expires}"
    if review.decision == "approve-with-conditions":
        return "approved_with_conditions", ""
    return "approved", ""


def is_dated_in_future(review: Review, now: datetime) -> bool:
    """Whether a review is dated later than clocks may differ."""
    return datetime.fromisoformat(review.date) > now + MAX_CLOCK_DIFFERENCE


def is_dated_before(review: Review, time: datetime) -> bool:
    """Whether a review is dated earlier than a time, by more than clocks may differ."""
    return datetime.fromisoformat(review.date) < time - MAX_CLOCK_DIFFERENCE


def _mark_superseded(reviews: Sequence[JudgedReview]) -> list[JudgedReview]:
    """Mark the reviews in force whose signer decided again later, with the same key.

    Of two decisions with the same time both count, so that a rejection prevails.
    """
    latest_date_by_key: dict[str, str] = {}
    for judged in reviews:
        if judged.review is not None and _is_in_force(judged):
            latest_date = max(latest_date_by_key.get(judged.key, ""), judged.review.date)
            latest_date_by_key[judged.key] = latest_date
    return [
        replace(
            judged,
            is_superseded=judged.review is not None
            and _is_in_force(judged)
            and judged.review.date < latest_date_by_key[judged.key],
        )
        for judged in reviews
    ]


def _is_in_force(judged: JudgedReview) -> bool:
    return judged.state in ("rejected", "approved", "approved_with_conditions", "expired")


def _combine_states(card: ReviewedCard, reviews: Sequence[JudgedReview]) -> ApprovalState:
    """Return the state of a card from those of its reviews."""
    current_reviews = [review for review in reviews if not review.is_superseded]
    states = {review.state for review in current_reviews}
    if "rejected" in states:
        return "rejected"
    doubtful_states = {
        review.state
        for review in current_reviews
        if review.state in UNVERIFIED_STATES and _may_reject(review, card)
    }
    for state in UNVERIFIED_STATES:
        if state in doubtful_states:
            return state
    return next((state for state in STATE_ORDER if state in states), "unsigned")


def _may_reject(judged: JudgedReview, card: ReviewedCard) -> bool:
    """Whether a review that cannot be verified is, or may be, a rejection of this evidence."""
    review = judged.review
    return review is None or (
        review.decision == "reject" and review.card.evidence_hash == card.evidence_hash
    )


def _get_sort_key(judged: JudgedReview) -> tuple[str, str]:
    return (judged.review.date if judged.review else "", judged.id)
