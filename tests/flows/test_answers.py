"""The answers of a person: from the file into the settings of the cards."""

import os

import pytest

from hallmark.flows.config import load_config, read_answers
from hallmark.reports.forms.answers_file import read_answers_file
from hallmark.tasks.contract import UsageError
from tests.run_requests import resolve

ANSWERS = '''
motivation_purpose = "  To test answers. "
details_date = """
Written on
two lines."""
'''


@pytest.fixture
def config_file(tmp_path):
    """A config in a folder of its own, with an answers file next to it."""
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "answers.toml").write_text(ANSWERS, encoding="utf-8-sig")
    (folder / "mine.toml").write_text(
        'name = "mine"\n[answers]\nfile = "answers.toml"\n'
        '[[ingest.sources]]\nkind = "text"\nname = "a"\npath = "letters"\n'
    )
    return folder / "mine.toml"


def test_answers_are_divided_among_the_cards(config_file):
    assert read_answers_file(config_file.with_name("answers.toml")) == {
        "datasheet": {"motivation_purpose": "To test answers."},
        "model_card": {"details_date": "Written on\ntwo lines."},
    }


def test_a_run_reads_the_file_next_to_the_config_once(config_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = resolve(str(config_file), [f"store={tmp_path / 'store'}"]).config
    assert settings.datasheet.answers == {"motivation_purpose": "To test answers."}
    assert settings.model_card.answers == {"details_date": "Written on\ntwo lines."}
    # The record of the run repeats it, also if the file changes or disappears.
    recorded = load_config(settings.model_dump(mode="json"))
    config_file.with_name("answers.toml").unlink()
    assert recorded == settings == read_answers(recorded) and recorded.answers.file is None


def test_a_file_replaces_recorded_answers(config_file):
    recorded = load_config("smoke", ["model_card.answers.details_date=earlier"])
    assert read_answers(recorded).model_card.answers == {"details_date": "earlier"}
    answers_file = config_file.with_name("answers.toml")
    settings = load_config(recorded.model_dump(mode="json"), [f"answers.file={answers_file}"])
    assert read_answers(settings).model_card.answers == {"details_date": "Written on\ntwo lines."}


@pytest.mark.parametrize("number", ["9" * 10_000, "0x" + "f" * 10_000])
def test_a_number_that_is_too_large_is_a_sentence(tmp_path, number):
    answers_file = tmp_path / "answers.toml"
    answers_file.write_text(f"motivation_purpose = {number}\n")
    with pytest.raises(UsageError, match=r"TOML \(an integer has more than 64 bits\); correct it$"):
        read_answers_file(answers_file)


def test_a_folder_or_pipe_is_not_called_missing(tmp_path):
    with pytest.raises(UsageError, match="is a folder; specify the path"):
        read_answers_file(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="is not a regular file; specify the path"):
        read_answers_file(tmp_path / "pipe")
