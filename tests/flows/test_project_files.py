"""The files of a new project: the config is valid as it is, and the answers file has all ids."""

import re
import tomllib

import pytest

from hallmark.flows.config import load_config, read_answers
from hallmark.flows.project_files import format_answers_file, format_config, write_project_files
from hallmark.reports.forms.answers_file import FORMS, read_answers_file
from hallmark.reports.forms.questions import list_question_ids
from hallmark.tasks.contract import UsageError
from tests.flows.conftest import Hallmark

ALL_IDS = [question_id for form in FORMS for question_id in list_question_ids(form)]


def uncomment(text, value):
    """Remove the comment mark of every key, and give each key a value."""
    return re.sub(r'^# (\w+) = ""', rf'\1 = "{value}"', text, flags=re.MULTILINE)


def test_the_written_config_is_valid_and_names_the_answers(tmp_path, monkeypatch):
    files = write_project_files(tmp_path / "new")
    monkeypatch.chdir(tmp_path)
    config = load_config(str(files.config))
    assert config.answers.file.resolve() == files.answers
    assert read_answers(config).datasheet.answers == {}
    assert [source.kind for source in config.ingest.sources] == ["town"]
    # The commented source is an example that is valid, too.
    with_example = re.sub(
        r"^# (\[\[ingest.*|kind|name|path|licence)(?=[ \n])",
        r"\1",
        format_config(),
        flags=re.MULTILINE,
    )
    assert len(load_config(tomllib.loads(with_example)).ingest.sources) == 2


def test_every_commented_statement_is_a_setting():
    text = uncomment(format_config(), "stated")
    text = text.replace('redistribution = "stated"', 'redistribution = "no"')
    config = load_config(tomllib.loads(text))
    for section in (config.datasheet, config.model_card):
        assert {section.title, section.contact, section.licence} == {"stated"}
        assert None not in section.model_dump().values()


def test_the_answers_file_has_all_questions_as_comments(tmp_path):
    text = format_answers_file()
    assert tomllib.loads(text) == {}
    assert [*tomllib.loads(uncomment(text, "x"))] == ALL_IDS
    path = tmp_path / "answers.toml"
    path.write_text(uncomment(text, "x"))
    answers = read_answers_file(path)
    assert [len(answers[form]) for form in FORMS] == [57, 29]
    assert max(map(len, text.splitlines())) <= 100


def test_nothing_is_overwritten(tmp_path):
    hallmark = Hallmark(tmp_path / "store")
    folder = tmp_path / "new" / "project"
    report = hallmark.json("init", str(folder))
    assert report == {
        "config": str(folder / "config.toml"),
        "answers": str(folder / "answers.toml"),
    }
    (folder / "config.toml").unlink()
    (folder / "answers.toml").write_text("mine")
    error = hallmark("init", str(folder), code=2).stderr
    assert (
        f"{folder / 'answers.toml'} already exists and was not overwritten; choose another" in error
    )
    assert [path.name for path in folder.iterdir()] == ["answers.toml"]
    assert (folder / "answers.toml").read_text() == "mine"
    error = hallmark("init", str(folder / "answers.toml"), code=2).stderr
    assert "answers.toml is a file; choose a folder" in error


def test_a_broken_link_is_not_followed(tmp_path):
    (tmp_path / "config.toml").symlink_to(tmp_path / "elsewhere.toml")
    with pytest.raises(UsageError, match=r"config\.toml already exists"):
        write_project_files(tmp_path)
    assert not (tmp_path / "elsewhere.toml").exists()
