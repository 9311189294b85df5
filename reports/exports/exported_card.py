"""Read what the machine-readable forms of a card are made from.

Texts are redacted as on the pages, and invisible characters are written out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

from hallmark.reports.cards import make_contradiction_error, read_card
from hallmark.reports.forms.questions import FormName, list_question_ids
from hallmark.reports.page.answers import AnswerRow
from hallmark.reports.page.card_tables import CardContent
from hallmark.reports.page.document import DecisionSheet, redact_figure
from hallmark.reports.page.figures import Figure
from hallmark.reports.page.redaction import RedactFunction, escape_invisible
from hallmark.reports.review.evidence_hash import compute_evidence_hash
from hallmark.tasks.contract import Artifact, HallmarkError, Row, Store

#: What the basis of an answer is called behind it.
BASIS_NAMES = {
    "measured": "measured",
    "declared": "declared in the config",
    "human": "answered by a person",
}


@dataclass(frozen=True)
class ExportedCard:
    """A card as the machine-readable forms need it.

    Attributes:
        title: The title of the card.
        artifact_name: The name of its artifact in the store.
        evidence_hash: The hash that signed reviews are bound to.
        checkpoint: The content digest of the checkpoint; empty for a datasheet.
        answers: The answers by question id.
        figures: The figures by id.
        evidence: The rows of the ``evidence`` table by id, with their conditions as an object.
        decision_sheet: The first screen of a model card; None for a datasheet.
    """

    title: str
    artifact_name: str
    evidence_hash: str
    checkpoint: str
    answers: dict[str, AnswerRow]
    figures: dict[str, Figure]
    evidence: dict[str, Row]
    decision_sheet: DecisionSheet | None

    def get_answer(self, *question_ids: str) -> str:
        """Return the answers to questions with their bases, in one text; empty without any."""
        parts = [format_answer(self.answers[question_id]) for question_id in question_ids]
        return " ".join(filter(None, dict.fromkeys(parts)))  # questions may have the same answer

    def list_answers(self, *question_ids: str) -> list[str]:
        """Return the answers to questions with their bases; unanswered ones are omitted."""
        return [answer for name in question_ids if (answer := self.get_answer(name))]

    def get_statement(self, question_id: str) -> str:
        """Return what a person stated on a question, on one line; empty if nothing."""
        row = self.answers[question_id]
        text = row.answer if row.basis in ("declared", "human") else row.statement
        return " ".join(text.split())

    def list_cited_figures(self, *question_ids: str) -> list[Figure]:
        """Return the figures with a value that support the answers to questions."""
        cited = {
            figure_id: self.figures[figure_id]
            for question_id in question_ids
            for figure_id in self.answers[question_id].figure_ids
        }
        return [figure for figure in cited.values() if figure.value is not None]


def format_answer(row: AnswerRow) -> str:
    """Return an answer with its basis in brackets, and a statement next to a measured one."""
    if row.basis == "unanswered" or not row.answer.strip():
        return ""
    text = f"{row.answer.strip()} ({BASIS_NAMES[row.basis]})"
    return f"{text} Statement by a person: {row.statement}" if row.statement else text


def load_exported_card(store: Store, card: Artifact) -> ExportedCard:
    """Read a model card or a datasheet.

    Raises:
        HallmarkError: If the card is damaged, or an earlier version of the code wrote it.
    """
    if "answers" not in card.tables:
        raise HallmarkError(
            f"{card.name} was created by an earlier version of the code and has no answers table; "
            "rerun the pipeline to recreate it"
        )
    content = read_card(store, card)
    try:
        _check_exportable(card, content)
        return _build_exported_card(card, content)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise make_contradiction_error(card, error) from error


def _check_exportable(card: Artifact, content: CardContent) -> None:
    """Check what the formats need and pages do not.

    Raises:
        ValueError: A number is infinite or NaN, which JSON does not have, or a question of the
            form has no answer.
    """
    for figure in content.book.figures.values():
        for number in (figure.value, figure.low, figure.high, figure.confidence_level):
            if number is not None and not math.isfinite(number):
                raise ValueError(f"figure {figure.id} has the value {number}")
    answered = {row.question_id for row in content.answers}
    for question_id in list_question_ids(cast(FormName, card.stage)):
        if question_id not in answered:
            raise ValueError(f"the card has no answer to {question_id}")


def _build_exported_card(card: Artifact, content: CardContent) -> ExportedCard:
    redact = content.redactor.redact_full_text
    sheets = [block for block in content.document.lead if isinstance(block, DecisionSheet)]
    return ExportedCard(
        title=escape_invisible(content.document.title),
        artifact_name=card.name,
        evidence_hash=compute_evidence_hash(card),
        checkpoint=card.get_input_digest("checkpoint") or "",
        answers={
            row.question_id: _escape_texts(row, ("answer", "statement")) for row in content.answers
        },
        figures={
            figure.id: _escape_texts(
                redact_figure(figure, redact),
                (
                    "label",
                    "scorer",
                    "method",
                    "inconclusive_reason",
                    "missing_reason",
                    "missing_text",
                ),
            )
            for figure in content.book.figures.values()
        },
        evidence={
            row["id"]: row | {"conditions": _read_conditions(row.pop("evidence_filter"), redact)}
            for row in card["evidence"].read().to_pylist()
        },
        decision_sheet=sheets[0] if sheets else None,
    )


def _read_conditions(conditions_json: str, redact: RedactFunction) -> Any:
    """Read the conditions of rows; a number that JSON does not have is a ValueError."""
    conditions = json.loads(conditions_json)
    json.dumps(conditions, allow_nan=False)
    return _redact_json(conditions, redact)


def _escape_texts(record: Any, names: Sequence[str]) -> Any:
    """Write out the invisible characters of fields of a dataclass."""
    return replace(record, **{name: escape_invisible(getattr(record, name)) for name in names})


def _redact_json(value: Any, redact: RedactFunction) -> Any:
    """Redact every text of a JSON value and write out its invisible characters."""
    match value:
        case str():
            return escape_invisible(redact(value))
        case list():
            return [_redact_json(item, redact) for item in value]
        case dict():
            return {name: _redact_json(item, redact) for name, item in value.items()}
    return value


def build_figures_json(cards: dict[str, ExportedCard]) -> dict[str, Any]:
    """Return all answers and figures of cards, with the rows that support them, as JSON values."""
    return {
        kind: {
            "title": card.title,
            "artifact": card.artifact_name,
            "evidence_hash": card.evidence_hash,
            "answers": [asdict(row) for row in card.answers.values()],
            "figures": [asdict(figure) for figure in card.figures.values()],
            "evidence": list(card.evidence.values()),
        }
        for kind, card in cards.items()
    }
