"""The command export-cards writes one new folder, for runs with one card or both."""

import json
from collections import Counter

from hallmark.flows.card_export import find_run_cards
from hallmark.flows.config import load_config
from hallmark.flows.runs import open_run
from hallmark.reports.cards import CARD_KINDS, load_card_inputs

ALL_FILES = [
    "model/README.md",
    "model/ml-bom.cdx.json",
    "dataset/README.md",
    "dataset/croissant.json",
    "figures.json",
]


def list_files(folder):
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


def test_the_cards_of_a_run_are_exported(smoke, tmp_path):
    folder = tmp_path / "new" / "export"
    report = smoke.json("export-cards", smoke.first, "--output", str(folder))
    assert report == {"run": smoke.first, "folder": str(folder), "files": ALL_FILES}
    assert list_files(folder) == sorted(ALL_FILES)
    answers = json.loads((folder / "figures.json").read_text())["datasheet"]["answers"]
    assert len(answers) == 57
    error = smoke("export-cards", smoke.first, "--output", str(folder), code=2).stderr
    assert f"{folder} exists and is not empty; choose a new folder for the export" in error
    error = smoke("export-cards", "--output", str(folder / "figures.json"), code=2).stderr
    assert "figures.json is not a folder; choose a new folder for the export" in error


def test_an_audit_has_the_datasheet_of_its_corpus(smoke):
    run = open_run(smoke.first, str(smoke.store))
    run.record["stages"] = [
        stage for stage in run.record["stages"] if stage["label"] != "datasheet"
    ]
    model_card, datasheet = find_run_cards(run)
    assert model_card.stage == "model_card" and datasheet.stage == "datasheet"


def test_the_settings_of_the_demo_answer_most_questions(smoke):
    """The corpus of the smoke run has the stages of the demo's."""
    run = open_run(smoke.first, str(smoke.store))
    kind, inputs = CARD_KINDS["datasheet"], load_card_inputs(run.store, run["datasheet"])
    config = load_config("demo").datasheet
    content = kind.compose(inputs, config, kind.build_redactor(inputs, config))
    counts = Counter(row.basis for row in content.answers)
    assert counts["measured"] >= 22 and counts["measured"] + counts["declared"] >= 35
