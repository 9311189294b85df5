"""Write a commented config and a file for a person's answers."""

from __future__ import annotations

from pathlib import Path

from hallmark.flows.commands.options import JsonOption, print_result
from hallmark.flows.project_files import write_project_files


def init(folder: Path = Path(), *, as_json: JsonOption = False) -> None:
    """Write a commented config and a file for your answers to the card questions.

    The config runs as it is. Existing files are not overwritten.

    Parameters
    ----------
    folder
        The folder of both files; by default the working directory. It is created if it is missing.
    """
    files = write_project_files(folder)
    report = {"config": str(files.config), "answers": str(files.answers)}
    print_result(report, as_json, _render_files)


def _render_files(report: dict[str, str]) -> str:
    return "\n".join(
        [
            f"config: {report['config']}",
            f"answers to the card questions: {report['answers']}",
            f"run this config with: hallmark run {report['config']}",
        ]
    )
