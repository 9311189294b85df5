"""The libraries of each format read and validate the machine-readable forms of the cards."""

import json
import math
import re
from dataclasses import replace

import mlcroissant
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from huggingface_hub import DatasetCard, DatasetCardData, ModelCard, ModelCardData
from markdown_it import MarkdownIt

from hallmark.reports.datasheet import DatasheetConfig, build_datasheet
from hallmark.reports.exports.croissant import (
    CONTEXT,
    QUESTIONS_BY_LIST_FIELD,
    QUESTIONS_BY_TEXT_FIELD,
)
from hallmark.reports.exports.export_files import build_export_files
from hallmark.reports.exports.exported_card import load_exported_card
from hallmark.reports.exports.hugging_face import (
    SIZE_CATEGORIES,
    build_dataset_metadata,
    build_dataset_readme,
    build_model_metadata,
    choose_size_category,
    describe_licence,
)
from hallmark.reports.forms.answers_file import FORMS
from hallmark.reports.forms.questions import list_question_ids, load_questions
from hallmark.reports.model_card import ModelCardConfig, build_model_card
from hallmark.tasks.contract import PROJECT_ROOT, HallmarkError, get_artifact_store
from tests.reports import artifacts
from tests.reports.pages import render

HOSTILE = (
    "---\nlicense: mit\n--- <script>alert(1)</script> \u202edetrever \0 {{ 7*7 }} # & *a: [x] "
    "'\"%@` | > - ? ![x](http://evil.example/x.png) " + "w" * 10_000
)


def load(card):
    return load_exported_card(get_artifact_store(card), card)


def validate_croissant(text, folder):
    path = folder / "croissant.json"
    path.write_text(text)
    metadata = mlcroissant.Dataset(jsonld=path).metadata
    assert not metadata.ctx.issues.errors
    return metadata


def validate_bom(text):
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    assert error is None, error
    return json.loads(text)


@pytest.fixture(scope="module")
def exported(cards):
    """The cards as exports need them, and all files."""
    loaded = load(cards["model_card"]), load(cards["datasheet"])
    return (*loaded, build_export_files(*loaded))


@pytest.fixture(scope="module")
def hostile(session, made):
    """A datasheet and a model card whose every statement is hostile."""

    def fill(config_class, form, **settings):
        texts = {
            name: HOSTILE
            for name, field in config_class.model_fields.items()
            if field.annotation == (str | None)
        }
        answers = dict.fromkeys(list_question_ids(form), HOSTILE)
        return config_class(**texts, **settings, answers=answers)

    datasheet_config = fill(DatasheetConfig, "datasheet", redistribution="no")
    sheet = build_datasheet(made.profile, made.corpus, datasheet_config)
    card = build_model_card(
        made.checkpoint,
        *(made.pretrained, made.tokenizer, made.audits),
        made.corpus | {"profile": made.profile, "datasheet": sheet},
        *(None, None, None, None, {}, None),
        fill(ModelCardConfig, "model_card"),
    )
    return load(card), load(sheet)


# Hugging Face ------------------------------------------------------------------------------------


def test_the_model_card_is_parsed_back(exported):
    card, datasheet, files = exported
    parsed = ModelCard(files["model/README.md"])
    expected = build_model_metadata(card, datasheet)
    assert isinstance(parsed.data, ModelCardData)
    assert parsed.data.to_dict() == expected.to_dict()
    assert parsed.data.eval_results
    for result in parsed.data.eval_results:
        figure = card.figures[result.metric_type]
        assert result.metric_value == pytest.approx(figure.value)
        assert result.metric_args["low"] == figure.low and result.metric_args["unit"] == figure.unit
        assert result.dataset_name.startswith("audit_")
    text = render(parsed.text).text
    for question in load_questions("model_card"):
        assert " ".join(question.text.split()) in " ".join(text.split())
    assert card.evidence_hash in text


def test_the_dataset_card_is_parsed_back(exported):
    _, datasheet, files = exported
    parsed = DatasetCard(files["dataset/README.md"])
    expected = build_dataset_metadata(datasheet)
    assert isinstance(parsed.data, DatasetCardData)
    assert parsed.data.to_dict() == expected.to_dict()
    assert parsed.data.size_categories == ["n<1K"]
    page = render(parsed.text)
    assert not page.links and "script" not in page.tags
    text = " ".join(page.text.split())
    for question in load_questions("datasheet"):
        assert " ".join(question.text.split()) in text


def test_an_answer_keeps_its_lines_and_paragraphs(exported):
    _, datasheet, _ = exported
    answer = (
        "First line\nsecond *line*\n\n- no list\n1. no number\n===\r\n \n# no heading\n    code"
    )
    row = replace(datasheet.answers["motivation_purpose"], basis="human", answer=answer)
    text = build_dataset_readme(
        replace(datasheet, answers=datasheet.answers | {"motivation_purpose": row})
    )
    page = MarkdownIt("commonmark").render(text.partition("\n---\n")[2])
    assert (
        "<p>Answer: First line<br />\nsecond *line*</p>\n"
        "<p>- no list<br />\n1. no number<br />\n===</p>\n"
        "<p># no heading<br />\ncode (answered by a person)</p>\n"
    ) in page


@pytest.mark.parametrize(
    ("licence", "metadata"),
    [
        ("", {}),
        ("Apache-2.0", {"license": "apache-2.0"}),
        ("CC BY 4.0", {"license": "cc-by-4.0"}),
        ("MIT, and mine", {"license": "other", "license_name": "MIT, and mine"}),
    ],
)
def test_known_licences_have_the_id_of_the_hub(licence, metadata):
    assert describe_licence(licence) == metadata


def test_size_categories_have_the_bounds_of_their_names():
    counts = [0, 999, 1000, 9999, 10_000, 10**5, 10**6, 10**12 - 1, 10**12]
    numbers = [0, 0, 1, 1, 2, 3, 4, 9, 10]
    assert [choose_size_category(count) for count in counts] == [
        SIZE_CATEGORIES[number] for number in numbers
    ]


# Croissant ---------------------------------------------------------------------------------------


def test_croissant_is_valid_and_has_the_answers(exported, tmp_path):
    _, datasheet, files = exported
    metadata = validate_croissant(files["dataset/croissant.json"], tmp_path)
    assert metadata.name == datasheet.title
    assert metadata.ctx.conforms_to.value.endswith("/1.1")
    assert metadata.data_biases == datasheet.list_answers(
        "uses_impact", "composition_subpopulations"
    )
    assert metadata.personal_sensitive_information
    written = json.loads(files["dataset/croissant.json"])
    # No field is lost: the library knows all of them.
    assert {name for name in written if ":" in name} <= metadata.to_json().keys()
    assert written["@context"] == CONTEXT == metadata.to_json()["@context"]
    assert written["conformsTo"][1] == "http://mlcommons.org/croissant/RAI/1.0"


def test_croissant_names_questions_that_exist():
    fields = (QUESTIONS_BY_TEXT_FIELD | QUESTIONS_BY_LIST_FIELD).values()
    assert {name for names in fields for name in names} <= {*list_question_ids("datasheet")}


# CycloneDX ---------------------------------------------------------------------------------------


def test_the_ml_bom_is_valid_and_has_the_metrics(exported):
    card, datasheet, files = exported
    bom = validate_bom(files["model/ml-bom.cdx.json"])
    model = bom["metadata"]["component"]
    assert (model["type"], model["name"]) == ("machine-learning-model", card.title)
    metrics = model["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]
    figures = card.list_cited_figures(
        "metrics_measures", "analyses_unitary", "analyses_intersectional"
    )
    assert [float(metric["value"]) for metric in metrics] == [figure.value for figure in figures]
    assert [metric["type"] for metric in metrics] == [figure.label for figure in figures]
    assert {each["name"]: each["value"] for each in model["properties"]} == {
        "hallmark:artifact": card.artifact_name,
        "hallmark:evidence-hash": card.evidence_hash,
        "hallmark:checkpoint-content-digest": card.checkpoint,
    }
    (corpus,) = bom["components"]
    assert corpus["name"] == datasheet.title and corpus["data"][0]["sensitiveData"]
    again = build_export_files(card, datasheet)
    assert again == files  # the same cards give the same bytes


def test_the_ml_bom_of_a_foreign_checkpoint_is_valid(session, tmp_path):
    checkpoint = artifacts.checkpoint(tmp_path / "foreign", "gpt2")
    inputs = (checkpoint, None, None, {}, {}, None, None, None, None, {}, None)
    files = build_export_files(load(build_model_card(*inputs, ModelCardConfig())), None)
    assert [*files] == ["model/README.md", "model/ml-bom.cdx.json", "figures.json"]
    bom = validate_bom(files["model/ml-bom.cdx.json"])
    assert "components" not in bom
    assert "quantitativeAnalysis" not in bom["metadata"]["component"]["modelCard"]
    assert ModelCard(files["model/README.md"]).data.eval_results is None


# figures.json ------------------------------------------------------------------------------------


def test_figures_json_has_all_answers_and_figures(exported, cards):
    *_, files = exported
    written = json.loads(files["figures.json"])
    for kind in ("model_card", "datasheet"):
        figures = cards[kind]["figures"].read().to_pylist()
        assert [figure["id"] for figure in written[kind]["figures"]] == [
            row["id"] for row in figures
        ]
        for figure, row in zip(written[kind]["figures"], figures, strict=True):
            assert figure["value"] == row["value"] or math.isclose(figure["value"], row["value"])
        evidence_ids = {row["id"] for row in written[kind]["evidence"]}
        assert {figure["evidence_id"] for figure in written[kind]["figures"]} <= evidence_ids
        answer_ids = [row["question_id"] for row in written[kind]["answers"]]
        assert answer_ids == list_question_ids(kind)


# Hostile input -----------------------------------------------------------------------------------


def test_hostile_statements_stay_text(hostile, tmp_path):
    files = build_export_files(*hostile)
    # A page that embeds one of these files cannot be left by a tag.
    assert not any("<" in text for name, text in files.items() if name.endswith(".json"))
    for text in files.values():
        assert "\0" not in text and "\u202e" not in text
    model, dataset = ModelCard(files["model/README.md"]), DatasetCard(files["dataset/README.md"])
    for parsed in (model, dataset):
        assert parsed.data.license == "other"
        assert parsed.data.license_name.startswith("--- license: mit --- <script>")
        page = render(parsed.text)
        assert not page.links and not page.sources and "script" not in page.tags
        assert "<script>alert(1)</script>" in page.text
    assert model.data.model_name.startswith("--- license: mit ---")
    metadata = validate_croissant(files["dataset/croissant.json"], tmp_path)
    assert "<script>" in metadata.creators[0].name
    bom = validate_bom(files["model/ml-bom.cdx.json"])
    assert "‹U+202E›" in bom["metadata"]["component"]["publisher"]


def test_an_answer_keeps_its_basis(hostile):
    _, datasheet = hostile
    assert datasheet.get_answer("motivation_purpose").endswith("(answered by a person)")
    measured = datasheet.get_answer("composition_count")
    assert "(measured) Statement by a person: ---" in measured


def test_an_old_card_is_refused(cards):
    task_card = cards["task_card"]
    with pytest.raises(HallmarkError, match="has no answers table; rerun the pipeline"):
        load(task_card)


# Documentation -----------------------------------------------------------------------------------


def test_the_documentation_names_the_questions_of_every_field():
    page = (PROJECT_ROOT / "docs" / "cards.md").read_text()
    table = page[page.index("| file | field |") :]
    rows = {
        fields[1].strip().strip("`"): tuple(re.findall(r"`(\w+)`", fields[2]))
        for line in table.splitlines()[2:]
        if line.startswith("|") and (fields := line.strip("|").split("|"))
    }
    for field, question_ids in (QUESTIONS_BY_TEXT_FIELD | QUESTIONS_BY_LIST_FIELD).items():
        assert rows[field] == question_ids
    known = {question_id for form in FORMS for question_id in list_question_ids(form)}
    assert {name for names in rows.values() for name in names} <= known
