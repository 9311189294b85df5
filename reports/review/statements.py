"""Define the statement that a reviewer signs, and its one canonical JSON text."""

from __future__ import annotations

import secrets
import unicodedata
from datetime import date, datetime
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from hallmark.tasks.contract import HallmarkError, sha256_hex, to_canonical_json

Decision = Literal["approve", "approve-with-conditions", "reject"]
DECISIONS: tuple[Decision, ...] = get_args(Decision)

#: The name of a stage that writes cards; ``CARD_KINDS`` in reports/cards.py has the same names.
CardStage = Literal["model_card", "datasheet", "task_card", "study_card", "removal_experiment_card"]
CARD_STAGES: tuple[CardStage, ...] = get_args(CardStage)

STATEMENT_FORMAT: Literal["hallmark-review-1"] = "hallmark-review-1"

#: Limits of a statement: characters of a name and of a text, number of notes, and bytes in total.
MAX_NAME_CHARACTERS = 200
MAX_TEXT_CHARACTERS = 10_000
MAX_NOTES = 200
MAX_STATEMENT_BYTES = 1 << 20

#: Invisible characters that join letters in some scripts and symbols in emoji; names cannot have
#: them, so that two names that look alike are alike.
_JOINERS = "\u200c\u200d"


class StatementError(HallmarkError):
    """A statement is not valid; the message is a clause that says why."""

    exit_code = 2


def _check_visible(text: str, allowed_characters: str) -> str:
    """Refuse characters that change how a text is displayed, such as a right-to-left override."""
    for character in text:
        is_invisible = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
        if is_invisible and character not in allowed_characters:
            raise ValueError(f"contains the invisible character U+{ord(character):04X}; remove it")
    return text


def _check_name(text: str) -> str:
    if not text or text != text.strip():
        raise ValueError("must not be empty, and must not begin or end with a space")
    return _check_visible(text, "")


def _check_text(text: str) -> str:
    return _check_visible(text, "\n\t" + _JOINERS)


def _check_date(text: str) -> str:
    try:
        parsed = date.fromisoformat(text)
    except ValueError:
        parsed = None
    if parsed is None or parsed.isoformat() != text:
        raise ValueError("must be a date such as 2027-12-31")
    return text


def _check_time(text: str) -> str:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    offset = None if time is None else time.utcoffset()
    if time is None or offset is None or offset or time.isoformat(timespec="seconds") != text:
        raise ValueError("must be a time in UTC such as 2026-12-31T12:00:00+00:00")
    return text


Name = Annotated[str, Field(max_length=MAX_NAME_CHARACTERS), AfterValidator(_check_name)]
Text = Annotated[str, Field(max_length=MAX_TEXT_CHARACTERS), AfterValidator(_check_text)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Note(BaseModel):
    """A remark on one figure or finding of a card."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    about: Annotated[str, Field(max_length=1000), AfterValidator(_check_name)]
    """Id of a figure of the card, or name of a finding, such as "bias.stereotype_preference"."""
    text: Text


class ReviewedCard(BaseModel):
    """The card that a decision is about."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    kind: CardStage
    run: Name
    """The run whose card was reviewed."""
    checkpoint: Digest | None
    """Content digest of the checkpoint that the card is about; None for a datasheet."""
    evidence_hash: Digest


class Review(BaseModel):
    """What a reviewer decided about a card."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal["hallmark-review-1"] = STATEMENT_FORMAT
    reviewer: Name
    """Name as the reviewer writes it; who signed is known only from the signature."""
    decision: Decision
    comment: Text = ""
    """Conditions of an approval, or reasons."""
    notes: Annotated[tuple[Note, ...], Field(max_length=MAX_NOTES)] = ()
    date: Annotated[str, AfterValidator(_check_time)]
    """When the statement was written, in UTC."""
    expires: Annotated[str, AfterValidator(_check_date)] | None = None
    """Last day, in UTC, on which an approval is valid; None without an end."""
    nonce: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    """Random digits, so that two reviewers never sign the same text."""
    card: ReviewedCard

    @model_validator(mode="after")
    def _check_decision(self) -> Review:
        if self.decision != "approve" and not self.comment.strip():
            raise ValueError(
                "comment: must state the conditions"
                if self.decision == "approve-with-conditions"
                else "comment: must state why the card is rejected"
            )
        if self.decision == "reject" and self.expires is not None:
            raise ValueError("expires: only an approval can expire, not a rejection")
        if self.expires is not None and self.expires < self.date[:10]:
            raise ValueError("expires: must not be before the review date")
        return self

    def to_statement(self) -> bytes:
        """Return the canonical JSON text that is signed."""
        return to_canonical_json(self.model_dump(mode="json")) + b"\n"


def compute_review_id(statement: bytes) -> str:
    """Return the id of a review: 32 hexadecimal digits of the SHA-256 of its statement."""
    return sha256_hex(statement)[:32]


def format_card_kind(kind: CardStage) -> str:
    """Return the kind of a card in words, such as "model card"."""
    return kind.replace("_", " ")


def make_review(**fields: object) -> Review:
    """Create a review from its fields, except for the nonce.

    Raises:
        StatementError: A field is not valid.
    """
    try:
        review = Review.model_validate({"nonce": secrets.token_hex(16)} | fields)
    except ValidationError as error:
        raise StatementError(_describe_first_error(error)) from error
    if len(review.to_statement()) > MAX_STATEMENT_BYTES:
        raise StatementError(f"the review has more than {MAX_STATEMENT_BYTES:,} bytes")
    return review


def parse_statement(statement: bytes) -> Review:
    """Parse a statement, which must be exactly the canonical text of a review.

    Raises:
        StatementError: It is not.
    """
    if len(statement) > MAX_STATEMENT_BYTES:
        raise StatementError(f"has more than {MAX_STATEMENT_BYTES:,} bytes")
    try:
        review = Review.model_validate_json(statement)
    except ValidationError as error:
        raise StatementError(_describe_first_error(error)) from error
    if review.to_statement() != statement:
        raise StatementError("is not in the canonical form of a review")
    return review


def _describe_first_error(error: ValidationError) -> str:
    details = error.errors(include_url=False, include_input=False)[0]
    message = details["msg"].removeprefix("Value error, ")
    message = f"{message[:1].lower()}{message[1:]}"
    # A name that somebody else wrote may be the key of an unknown field.
    place = ".".join(str(part) for part in details["loc"] if str(part).isidentifier())
    return f"{place}: {message}" if place else message
