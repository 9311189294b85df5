"""Answers to the questions of a card, each with its basis: the ``answers`` table.

An answer is measured where figures of the card support it. Otherwise it is what a person wrote: in
the answers file, or as a statement in the config.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import pyarrow as pa

from hallmark.reports.forms.questions import FormName, Question, load_questions
from hallmark.reports.page.document import Code, InlineContent, InlineElement, Link, ShortFigure
from hallmark.reports.page.figures import Figure
from hallmark.reports.page.redaction import RedactFunction
from hallmark.tasks.contract import column, table_schema

#: What an answer rests on. measured: figures or dates of the card. declared: statements in the
#: config. human: the answers file. unanswered: nothing.
Basis = Literal["measured", "declared", "human", "unanswered"]
BASES: tuple[Basis, ...] = ("measured", "declared", "human", "unanswered")

ANSWERS = table_schema(
    "Answers to all questions on the card's form, in the order of the form.",
    column("question_id", pa.string(), "id", "question id, as used in answers files"),
    column(
        "question", pa.string(), "project text", "question text, as worded by the form's authors"
    ),
    column(
        "form", pa.string(), "label", "form that contains the question: datasheet or model_card"
    ),
    column("section", pa.string(), "label", "form section"),
    # A purge empties it if it quotes a purged document.
    column(
        "answer",
        pa.large_string(),
        "model text",
        "answer (redacted if measured); if there is none, the reason or an empty string",
    ),
    column(
        "basis",
        pa.string(),
        "label",
        "basis of the answer: measured (card figures or dates), declared (config), human (answers "
        "file) or unanswered",
    ),
    column(
        "statement",
        pa.large_string(),
        "project text",
        "statement by a person that supplements a measured answer",
    ),
    column("figure_ids", pa.list_(pa.string()), "id", "ids of the supporting figures"),
)


@dataclass(frozen=True)
class AnswerRow:
    """A row of the ``answers`` table; its columns describe the attributes."""

    question_id: str
    question: str
    form: str
    section: str
    answer: str
    basis: Basis
    statement: str
    figure_ids: Sequence[str]


@dataclass(frozen=True)
class Answer:
    """An answer with the figures that support it.

    Attributes:
        question: The question.
        basis: What the answer rests on.
        content: The answer; without one, nothing or the reason.
        statement: What a person states in addition to a measured answer.
        evidence: Figures that support the answer and that its text does not name.
    """

    question: Question
    basis: Basis
    content: InlineContent
    statement: str = ""
    evidence: Sequence[Figure] = ()

    def list_figures(self) -> list[Figure]:
        """Return the figures that support the answer, without repetition."""
        figures = [*_iterate_figures(self.content), *self.evidence]
        return list({figure.id: figure for figure in figures}.values())

    def to_row(self) -> AnswerRow:
        question = self.question
        return AnswerRow(
            question.id,
            question.text,
            question.form,
            question.section,
            content_to_text(self.content),
            self.basis,
            self.statement,
            [figure.id for figure in self.list_figures()],
        )


def _iterate_figures(content: InlineContent) -> Iterator[Figure]:
    for element in content:
        if isinstance(element, ShortFigure):
            yield element.figure
        elif isinstance(element, Figure):
            yield element


def content_to_text(content: InlineContent) -> str:
    """Return content as plain text, with the full text of figures."""
    return "".join(map(_element_to_text, content))


def _element_to_text(element: InlineElement) -> str:
    match element:
        case Figure():
            return element.full_text
        case ShortFigure(figure):
            return figure.short_text
        case Code(text) | Link(text):
            return text
        case str():
            return element


@dataclass(frozen=True)
class MeasuredAnswer:
    """What the figures of a card answer.

    Attributes:
        content: The answer; without figures it is the reason why nothing was measured.
        evidence: Figures that support the answer and that its text does not name.
        refers_to_card: Whether the content names a place on the card that gives the answer, which
            is no figure.
    """

    content: InlineContent
    evidence: Sequence[Figure] = ()
    refers_to_card: bool = False


def combine_answers(
    form: FormName,
    measured: Mapping[str, MeasuredAnswer],
    declared: Mapping[str, str | None],
    human: Mapping[str, str],
) -> list[Answer]:
    """Return one answer to each question of a form.

    A person's answer replaces a declared one. Next to a measured answer both kinds are shown as a
    statement, so that nobody overrules a measurement silently.

    Args:
        form: The form.
        measured: What the figures of the card answer, by question id.
        declared: The statements in the config, by question id.
        human: The answers of a person, by question id.
    """
    answers = []
    for question in load_questions(form):
        statement = human.get(question.id) or (declared.get(question.id) or "").strip()
        measured_answer = measured.get(question.id, MeasuredAnswer([]))
        answer = Answer(
            question, "measured", measured_answer.content, statement, measured_answer.evidence
        )
        if not answer.list_figures() and not measured_answer.refers_to_card:
            basis: Basis = "human" if question.id in human else "declared"
            answer = (
                Answer(question, basis, [statement])
                if statement
                else Answer(question, "unanswered", measured_answer.content)
            )
        answers.append(answer)
    return answers


def redact_answer_row(row: AnswerRow, redact: RedactFunction) -> AnswerRow:
    """Redact a measured answer; what a person stated is shown as it is, as on the pages."""
    if row.basis in ("declared", "human"):
        return row
    return AnswerRow(**{**asdict(row), "answer": redact(row.answer)})


def build_answers_table(rows: Sequence[AnswerRow]) -> pa.Table:
    return pa.Table.from_pylist([asdict(row) for row in rows], schema=ANSWERS)


def read_answer_rows(
    rows: Sequence[Mapping[str, Any]], figure_ids: Collection[str]
) -> list[AnswerRow]:
    """Read the rows of the ``answers`` table; a purge may have emptied an answer.

    Args:
        rows: The rows.
        figure_ids: The ids of the figures of the card.

    Raises:
        ValueError: An answer has an unknown basis, or cites a figure that the card does not have.
    """
    answers = [AnswerRow(**{**row, "answer": row["answer"] or ""}) for row in rows]
    for answer in answers:
        if answer.basis not in BASES:
            raise ValueError(
                f"the answer to {answer.question_id} has the unknown basis {answer.basis}"
            )
        for figure_id in answer.figure_ids:
            if figure_id not in figure_ids:
                raise ValueError(
                    f"the answer to {answer.question_id} cites the unknown figure {figure_id}"
                )
    return answers
