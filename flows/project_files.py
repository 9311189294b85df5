"""Write the files of a new project: a commented config, and a file for a person's answers."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from hallmark.reports.datasheet import DatasheetConfig
from hallmark.reports.forms.answers_file import FORMS
from hallmark.reports.forms.questions import FORM_TITLES, load_questions
from hallmark.reports.model_card import ModelCardConfig
from hallmark.tasks.contract import UsageError

CONFIG_NAME, ANSWERS_NAME = "config.toml", "answers.toml"

#: The first part of a new config. The statements of its author follow.
CONFIG_START = f"""\
# Hallmark config. Run it with: hallmark run {CONFIG_NAME}
# Keys that are not set keep their defaults; `hallmark settings` lists all of them.
name = "mine" # name of the runs and title of the cards

[answers]
file = "{ANSWERS_NAME}" # your answers to the card questions

# The text sources. This source is an invented town, so the config runs as is. Replace it with your
# own text, for example files with one JSON object per line and the text in its "text" field.
[[ingest.sources]]
kind = "town"
name = "town"

# [[ingest.sources]]
# kind = "jsonl"
# name = "letters"
# path = "letters/*.jsonl.gz"
# licence = "CC BY 4.0"

# Plant canaries to measure memorisation; enable this only for models that nobody will use.
[plant_canaries]
enabled = false

[pretrain.train]
steps = 500
"""

STATEMENTS_START = """
# Facts that only a person knows. To state a fact, remove the "# " in front of its key and enter
# the value. Questions without a statement or an answer are shown as unanswered on the card.
"""

ANSWERS_START = f"""\
# Your answers to the questions in the datasheet and the model card, keyed by question id.
# {CONFIG_NAME} refers to this file. To answer a question, remove the "# " in front of its id and
# write the answer between the quotes; use \"\"\" for multi-line answers. An answer replaces the
# value in the config. What Hallmark measured is always shown, with your answer next to it.
"""

#: Fields of cards that are no statements of a person.
OTHER_FIELDS = ("max_table_rows", "redaction_threshold", "answers")


@dataclass(frozen=True)
class ProjectFiles:
    """The files of a new project."""

    config: Path
    answers: Path


def write_project_files(folder: Path) -> ProjectFiles:
    """Write the config and the answers file of a new project.

    Raises:
        UsageError: One of the files exists, or the folder is a file.
    """
    files = ProjectFiles(folder / CONFIG_NAME, folder / ANSWERS_NAME)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; choose a folder")
    for path in (files.config, files.answers):
        if path.exists() or path.is_symlink():
            raise UsageError(
                f"{path} already exists and was not overwritten; choose another folder or move the "
                "file"
            )
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in ((files.config, format_config()), (files.answers, format_answers_file())):
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    return files


def format_config() -> str:
    """Format a config that runs as it is; statements about corpus and model are comments."""
    sections = [
        f"[{section}]\n{_format_statements(config_class)}"
        for section, config_class in (
            ("datasheet", DatasheetConfig),
            ("model_card", ModelCardConfig),
        )
    ]
    return CONFIG_START + STATEMENTS_START + "\n".join(sections)


def _format_statements(config_class: type[BaseModel]) -> str:
    return "".join(
        f'# {name} = "" # {field.description}\n'
        for name, field in config_class.model_fields.items()
        if name not in OTHER_FIELDS
    )


def format_answers_file() -> str:
    """Format an answers file with all questions of both forms as comments."""
    lines = [ANSWERS_START]
    for form in FORMS:
        lines += ["", f"# {'=' * 97}", f"# {FORM_TITLES[form]}", f"# {'=' * 97}"]
        section = ""
        for question in load_questions(form):
            if question.section != section:
                section = question.section
                lines += ["", f"# {section} {'-' * (96 - len(section))}"]
            lines += [
                "",
                *textwrap.wrap(question.text, 98, initial_indent="# ", subsequent_indent="# "),
            ]
            lines.append(f'# {question.id} = ""')
    return "\n".join(lines) + "\n"
