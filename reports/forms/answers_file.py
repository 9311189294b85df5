"""Read the file in which a person answers questions of the cards.

It is a TOML file whose keys are ids of questions and whose values are answers. A run reads it once,
when it starts, and gives each card its answers as settings, so that they are part of the
fingerprint of the card and of the record of the run.
"""

from __future__ import annotations

import tomllib
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from hallmark.reports.forms.questions import FormName, list_question_ids
from hallmark.tasks.contract import (
    ExternalMarker,
    OversizedIntegerError,
    StageConfig,
    UsageError,
    explain_relative_path,
    format_closest_name_hint,
    open_external_file,
    parse_toml,
)

FORMS: tuple[FormName, ...] = ("datasheet", "model_card")


#: Letters and symbols that are displayed as nothing: fillers of Hangul and an empty Braille cell.
INVISIBLE_LETTERS = "\u115f\u1160\u3164\uffa0\u2800"


class AnswersConfig(StageConfig):
    """Where the answers of a person are."""

    file: Annotated[Path, ExternalMarker(recursive=False)] | None = Field(
        None,
        description=(
            "path to a TOML file with answers to datasheet and model card questions, keyed by "
            "question id; hallmark init writes a file with all questions"
        ),
    )


def _check_answer_texts(form: FormName, answers: Mapping[str, str]) -> Mapping[str, str]:
    for question_id, answer in answers.items():
        if problem := describe_answer_problem(question_id, answer, list_question_ids(form)):
            raise ValueError(problem)
    return answers


DatasheetAnswers = Annotated[
    dict[str, str], AfterValidator(lambda answers: _check_answer_texts("datasheet", answers))
]
ModelCardAnswers = Annotated[
    dict[str, str], AfterValidator(lambda answers: _check_answer_texts("model_card", answers))
]


def describe_answer_problem(question_id: str, answer: Any, known_ids: list[str]) -> str:
    """Describe in a sentence why an entry is no answer to a known question; empty if it is one."""
    if question_id not in known_ids:
        hint = format_closest_name_hint(question_id, known_ids)
        return (
            f"there is no question {question_id[:80]!r}{hint}; hallmark init writes a file with "
            "all question ids"
        )
    if not isinstance(answer, str):
        return (
            f"the answer to {question_id} must be quoted text, but its type is "
            f"{type(answer).__name__}"
        )
    if not has_visible_character(answer):
        return f"the answer to {question_id} is empty; write an answer or remove the line"
    return ""


def has_visible_character(text: str) -> bool:
    """Whether a reader sees anything of a text; answers and reviews without are refused."""
    return any(map(_is_visible, text))


def _is_visible(character: str) -> bool:
    """Whether a reader sees a character that stands alone."""
    return unicodedata.category(character)[0] not in "CMZ" and character not in INVISIBLE_LETTERS


def read_answers_file(path: Path) -> dict[FormName, dict[str, str]]:
    """Read the answers of a person, by form and by question id.

    Raises:
        UsageError: The file is missing or not valid TOML, names an unknown question, or has an
            answer that is empty or no text.
    """
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "not a regular file"
        raise UsageError(
            f"answers.file: {str(path)!r} is {kind}; specify the path to the answers file"
        )
    if not path.is_file():
        raise UsageError(
            f"answers.file: there is no file {str(path)!r}{explain_relative_path(path)}; correct "
            "the path or remove the setting"
        )
    try:
        with open_external_file(path, "answers") as file:
            entries = parse_toml(file.read().decode("utf-8-sig"))
    except OSError as error:
        raise UsageError(
            f"answers.file: {path} cannot be read ({error.strerror}); correct its permissions"
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"answers.file: {path} is not UTF-8 text (invalid at byte {error.start + 1}); save "
            "it as UTF-8"
        ) from error
    except (tomllib.TOMLDecodeError, OversizedIntegerError) as error:
        reason = str(error)
        if reason.startswith("Cannot overwrite a value"):
            reason = reason.replace("Cannot overwrite a value", "a question is answered twice")
        raise UsageError(
            f"answers.file: {path} is not valid TOML ({reason}); correct it"
        ) from error
    except RecursionError as error:
        raise UsageError(f"answers.file: the content of {path} is nested too deeply") from error
    known_ids = [question_id for form in FORMS for question_id in list_question_ids(form)]
    for question_id, answer in entries.items():
        if problem := describe_answer_problem(question_id, answer, known_ids):
            raise UsageError(f"answers.file: in {path}, {problem}")
    return {
        form: {name: entries[name].strip() for name in list_question_ids(form) if name in entries}
        for form in FORMS
    }
