"""Show the answers to the questions of a form as the last section of a card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from hallmark.reports.forms.questions import FORM_TITLES, FormName
from hallmark.reports.page.answers import BASES, Answer
from hallmark.reports.page.document import (
    DefinitionEntry,
    DefinitionList,
    InlineElement,
    Paragraph,
    Section,
    UserStatement,
)
from hallmark.tasks.contract import format_count

#: The titles of the sections on cards.
SECTION_TITLES: dict[FormName, str] = {
    "datasheet": "Datasheet questions (Gebru et al.)",
    "model_card": "Model card questions (Mitchell et al.)",
}

#: What is shown before an answer, by its basis.
BASIS_LABELS = {
    "measured": "Measured: ",
    "declared": "Declared in the config: ",
    "human": "Answered by a person: ",
    "unanswered": "Unanswered",
}

#: The page of a card that holds the questions.
QUESTIONS_PAGE = "questions"

#: Largest number of figures that follow an answer whose text does not name them.
MAX_SHOWN_EVIDENCE = 12


def build_form_section(form: FormName, answers: Sequence[Answer]) -> Section:
    """Build the section with every question, in the words of its authors, and its answer."""
    counts = Counter(answer.basis for answer in answers)
    count_list = ", ".join(f"{counts[basis]} {basis}" for basis in BASES)
    summary = (
        f"This page contains the {len(answers)} questions from {FORM_TITLES[form]}, in the "
        f"original wording. Answers by basis: {count_list}. Measured answers come from this card's "
        "figures, declared answers from the config, and human answers from the answers file."
    )
    return Section(
        SECTION_TITLES[form],
        [Paragraph([summary])],
        [
            Section(title, [DefinitionList([build_answer_entry(answer) for answer in group])])
            for title, group in groupby(answers, key=lambda answer: answer.question.section)
        ],
        page=QUESTIONS_PAGE,
        answer=[f"{len(answers) - counts['unanswered']} of {len(answers)} questions are answered."],
    )


def build_answer_entry(answer: Answer) -> DefinitionEntry:
    """Return a question with the basis of its answer, the answer, and its evidence."""
    label = BASIS_LABELS[answer.basis]
    if answer.basis == "unanswered":
        return answer.question.text, [
            f"{label}: " if answer.content else f"{label}.",
            *answer.content,
        ]
    content: list[InlineElement] = [label, *answer.content]
    if answer.basis in ("declared", "human"):
        content[1:] = [UserStatement("".join(map(str, answer.content)))]
    shown_evidence = answer.evidence[:MAX_SHOWN_EVIDENCE]
    for number, figure in enumerate(shown_evidence):
        content += ["; " if number else " ", f"{figure.label}: ", figure]
    if hidden_count := len(answer.evidence) - len(shown_evidence):
        content.append(f"; {format_count(hidden_count, 'further figure')} on this card")
    if answer.evidence:
        content.append(".")
    if answer.statement:
        content += [" Statement by a person: ", UserStatement(answer.statement)]
    return answer.question.text, content
