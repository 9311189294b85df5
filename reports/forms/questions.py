"""The questions of the published forms for cards, in the words of their authors.

The datasheet answers the 57 questions of Gebru et al., "Datasheets for Datasets" (Communications of
the ACM, 2021), and the model card the prompts of Mitchell et al., "Model Cards for Model Reporting"
(FAT* 2019). Each question has an id, which an answers file names.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

#: The form of a card, by the name of the stage that writes the card.
FormName = Literal["datasheet", "model_card"]

#: Data files of the stages, for ``@stage(extra_code=...)``.
QUESTION_FILES: dict[FormName, str] = {
    "datasheet": "reports/forms/data/datasheet_questions.json",
    "model_card": "reports/forms/data/model_card_questions.json",
}

#: The publication of each form.
FORM_TITLES: dict[FormName, str] = {
    "datasheet": "Gebru et al., “Datasheets for Datasets” (2021)",
    "model_card": "Mitchell et al., “Model Cards for Model Reporting” (2019)",
}


@dataclass(frozen=True)
class Question:
    """A question of a form.

    Attributes:
        id: The id of the question, unique over both forms.
        form: The form that asks it.
        section: The section of the form, as its authors call it.
        text: The question in the words of the authors.
    """

    id: str
    form: FormName
    section: str
    text: str


@functools.cache
def load_questions(form: FormName) -> tuple[Question, ...]:
    """Load the questions of a form, in the order of the form."""
    path = Path(__file__).parent / "data" / f"{form}_questions.json"
    return tuple(
        Question(entry["id"], form, entry["section"], entry["question"])
        for entry in json.loads(path.read_text(encoding="utf-8"))
    )


def list_question_ids(form: FormName) -> list[str]:
    """Return the ids of the questions of a form, in the order of the form."""
    return [question.id for question in load_questions(form)]
