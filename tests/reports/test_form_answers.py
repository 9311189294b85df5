"""The questions of both forms, and their answers on the datasheet and the model card."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from hallmark.reports.datasheet import DatasheetConfig, build_datasheet
from hallmark.reports.forms.answers_file import describe_answer_problem
from hallmark.reports.forms.questions import list_question_ids, load_questions
from hallmark.reports.model_card import ModelCardConfig, build_model_card
from hallmark.reports.page.answers import BASES, MeasuredAnswer, combine_answers
from hallmark.reports.page.document import RISK_STATE_NAMES, Code, ShortFigure, UserStatement
from hallmark.reports.page.figures import Figure, FigureBook
from hallmark.reports.review.evidence_hash import compute_evidence_hash
from hallmark.reports.sections.card_summary import find_audit_coverage
from hallmark.reports.sections.corpus_figures import CorpusFigures
from hallmark.reports.sections.datasheet_answers import SETTING_BY_QUESTION as DATASHEET_SETTINGS
from hallmark.reports.sections.datasheet_answers import DatasheetMeasurements
from hallmark.reports.sections.decision_sheet import build_risk_lines
from hallmark.reports.sections.findings import Finding
from hallmark.reports.sections.form_answers import MAX_SHOWN_EVIDENCE, build_form_section
from hallmark.reports.sections.model_card_answers import SETTING_BY_QUESTION as MODEL_CARD_SETTINGS
from hallmark.reports.sections.model_card_answers import (
    ModelCardMeasurements,
    describe_training_date,
    is_about_intersection,
)
from hallmark.tasks.contract import Artifact
from hallmark.tasks.corpus.plant_canaries import PlantCanariesConfig, plant_canaries
from hallmark.tasks.corpus.profile import ProfileConfig, profile_corpus
from tests.reports import artifacts
from tests.reports.conclusions import findings_of, text_of_parts
from tests.reports.pages import text_of
from tests.tasks.corpora import given

FORMS = ("datasheet", "model_card")
FIGURE = Figure("documents", "number of documents", 3.0, "documents", "e", "", "count")
PURPOSE = "motivation_purpose"
HOSTILE = "<script>alert(57)</script> \u202edetrever \0 {{ 7*7 }} --- # yaml: [" + "x" * 10_000


def read_answers(card):
    return {row["question_id"]: row for row in card["answers"].read().to_pylist()}


# Forms -------------------------------------------------------------------------------------------


def test_the_datasheet_has_57_questions_in_seven_sections():
    counts = Counter(question.section for question in load_questions("datasheet"))
    assert counts == {
        "Motivation": 4,
        "Composition": 16,
        "Collection Process": 12,
        "Preprocessing/cleaning/labeling": 4,
        "Uses": 6,
        "Distribution": 7,
        "Maintenance": 8,
    }
    assert counts.total() == 57
    texts = [question.text for question in load_questions("datasheet")]
    assert texts.count("Any other comments?") == 7
    assert all(text.endswith(("?", ".", ")?")) for text in texts)


def test_the_model_card_has_the_nine_sections_of_its_authors():
    questions = load_questions("model_card")
    assert [*dict.fromkeys(question.section for question in questions)] == [
        "Model Details",
        "Intended Use",
        "Factors",
        "Metrics",
        "Evaluation Data",
        "Training Data",
        "Quantitative Analyses",
        "Ethical Considerations",
        "Caveats and Recommendations",
    ]
    assert any(question.text.startswith("Intersectional results") for question in questions)


def test_ids_are_unique_over_both_forms_and_are_bare_keys_of_toml():
    ids = [question_id for form in FORMS for question_id in list_question_ids(form)]
    assert len(ids) == len(set(ids))
    assert all(
        question_id.replace("_", "").isalpha() and question_id.islower() for question_id in ids
    )


@pytest.mark.parametrize(
    ("form", "settings", "config_class"),
    [
        ("datasheet", DATASHEET_SETTINGS, DatasheetConfig),
        ("model_card", MODEL_CARD_SETTINGS, ModelCardConfig),
    ],
)
def test_settings_that_answer_questions_exist(form, settings, config_class):
    assert settings.keys() <= {*list_question_ids(form)}
    assert {*settings.values()} <= config_class.model_fields.keys()
    # Every statement about the corpus or the model answers a question.
    rest = {"title", "max_table_rows", "redaction_threshold", "answers"}
    if form == "datasheet":  # the first screen states them
        rest |= {"redistribution", "redistribution_reason"}
    assert config_class.model_fields.keys() - {*settings.values()} == rest


# Answers -----------------------------------------------------------------------------------------


def answer_purpose(measured=None, declared=None, human=None):
    answers = combine_answers(
        "datasheet",
        {} if measured is None else {PURPOSE: measured},
        {PURPOSE: declared},
        {} if human is None else {PURPOSE: human},
    )
    assert len(answers) == 57 and all(each.basis == "unanswered" for each in answers[1:])
    return answers[0].to_row()


def test_a_person_overrules_the_config_but_not_a_measurement():
    measured = MeasuredAnswer(["There are ", FIGURE, "."])
    row = answer_purpose(declared=" from the config ")
    assert (row.basis, row.answer, row.statement) == ("declared", "from the config", "")
    row = answer_purpose(declared="from the config", human="from a person")
    assert (row.basis, row.answer, row.statement) == ("human", "from a person", "")
    row = answer_purpose(measured)
    assert (row.basis, row.answer, row.statement) == ("measured", "There are 3 documents.", "")
    row = answer_purpose(measured, declared="from the config")
    assert (row.basis, row.statement) == ("measured", "from the config")
    row = answer_purpose(measured, declared="from the config", human="from a person")
    assert (row.basis, row.answer, row.statement) == (
        "measured",
        "There are 3 documents.",
        "from a person",
    )
    assert row.figure_ids == ["documents"]


def test_an_answer_without_figures_is_not_measured():
    row = answer_purpose(MeasuredAnswer(["No audit ran."]))
    assert (row.basis, row.answer, row.figure_ids) == ("unanswered", "No audit ran.", [])
    row = answer_purpose(MeasuredAnswer(["No audit ran."]), declared="from the config")
    assert (row.basis, row.answer) == ("declared", "from the config")
    row = answer_purpose(declared="  ")
    assert (row.basis, row.answer) == ("unanswered", "")
    row = answer_purpose(MeasuredAnswer([Code("x"), " ", ShortFigure(FIGURE)], [FIGURE]))
    assert (row.basis, row.answer, row.figure_ids) == ("measured", "x 3", ["documents"])


def test_an_answer_may_refer_to_a_place_on_the_card():
    refers = MeasuredAnswer(["See above."], refers_to_card=True)
    for declared, statement in ((None, ""), ("from the config", "from the config")):
        row = answer_purpose(refers, declared=declared)
        assert (row.basis, row.answer, row.statement) == ("measured", "See above.", statement)
        assert row.figure_ids == []


def test_the_date_of_the_model_is_measured_if_the_checkpoint_has_one():
    dated = describe_training_date(Artifact({"created": "2026-01-31T23:30:00+00:00"}, None, "c"))
    assert dated.refers_to_card
    assert dated.content == ["See “Trained” on the first screen of the card."]
    undated = describe_training_date(Artifact({}, None, "c"))
    assert not undated.refers_to_card
    assert undated.content == ["The checkpoint comes from outside the store and has no date."]


def test_the_section_shows_basis_evidence_and_statement():
    figures = [
        Figure(f"f{number}", f"figure {number}", 1.0, "", "e", "", "count") for number in range(14)
    ]
    measured = {
        PURPOSE: MeasuredAnswer(["Many figures."], figures),
        "motivation_creators": MeasuredAnswer(["Not measured: no stage ran."]),
        "motivation_comments": MeasuredAnswer(["All: ", FIGURE]),
    }
    answers = combine_answers(
        "datasheet", measured, {"motivation_funding": "a grant"}, {PURPOSE: "to test"}
    )
    section = build_form_section("datasheet", answers)
    (summary,) = section.blocks[0].content
    assert "Answers by basis: 2 measured, 1 declared, 0 human, 54 unanswered." in summary
    assert [part.title for part in section.sections][:2] == ["Motivation", "Composition"]
    purpose, creators, funding, comments = section.sections[0].blocks[0].entries
    assert purpose[1][:3] == ["Measured: ", "Many figures.", " "]
    assert [element for element in purpose[1] if isinstance(element, Figure)] == figures[
        :MAX_SHOWN_EVIDENCE
    ]
    assert "; 2 further figures on this card" in purpose[1]
    assert purpose[1][-2:] == [" Statement by a person: ", UserStatement("to test")]
    assert creators[1] == ["Unanswered: ", "Not measured: no stage ran."]
    assert funding[1] == ["Declared in the config: ", UserStatement("a grant")]
    assert comments[1] == ["Measured: ", "All: ", FIGURE]


def test_intersections_are_told_from_single_groups():
    def about(**tags):
        return is_about_intersection(Finding({"slice": list(tags.items())}, FIGURE))

    assert about(category="Race_x_gender")
    assert about(mentioned_group="women", gender="female")
    assert not about(category="Religion") and not about(group_name="women", domain="gender")
    assert not about()


# Cards -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMS)
def test_every_measured_answer_cites_figures_of_the_card(cards, kind):
    rows = read_answers(cards[kind])
    assert [*rows] == list_question_ids(kind)
    figure_ids = {*cards[kind]["figures"].read(["id"])["id"].to_pylist()}
    for row in rows.values():
        assert row["basis"] in BASES and row["form"] == kind
        is_measured = row["basis"] == "measured"
        refers_to_card = is_measured and row["answer"].startswith("See “Trained”")
        assert bool(row["figure_ids"]) == (is_measured and not refers_to_card), row
        assert {*row["figure_ids"]} <= figure_ids
        assert bool(row["answer"].strip()) or row["basis"] == "unanswered"
    text = text_of(cards[kind], kind)
    for question in load_questions(kind):
        assert " ".join(question.text.split()) in text


def test_measured_answers_state_what_the_profile_counts(session):
    history = artifacts.history()
    profile = artifacts.profiled(history)
    rows = read_answers(build_datasheet(profile, history, DatasheetConfig()))
    answers = {name: row["answer"] for name, row in rows.items() if row["basis"] == "measured"}
    documents = history["plant_canaries"]["documents"].row_count
    texts = history["plant_canaries"]["documents"].read(["text"])["text"].to_pylist()
    size = sum(len(text.encode()) for text in texts)
    assert answers["composition_count"] == f"{documents} documents with {size:,} bytes of text."
    assert answers["composition_instances"].endswith("; and 2 smaller sources.")
    assert "None of the 58 documents" in answers["composition_labels"]
    removed = {
        stage: history[stage]["ledger"].read(["action"])["action"].to_pylist().count("removed")
        for stage in ("deduplicate", "select_scored", "plant_canaries")
    }
    assert removed["deduplicate"] == 4 and removed["plant_canaries"] == 0
    listed = f"deduplicate 4; select_scored {removed['select_scored']}."
    assert answers["collection_sampling"].endswith(f"Documents removed, by stage: {listed}")
    assert answers["preprocessing_steps"].startswith(f"Yes. Documents removed, by stage: {listed}")
    exact = (
        "curation removed 4 exact copies of documents; the corpus was not searched for "
        "near-duplicates."
    )
    assert exact in answers["composition_errors"]
    spans = history["find_personal_data"]["spans"].row_count
    searched = history["deduplicate"]["documents"].row_count
    scope = (
        f"Detectors searched the {searched} documents that earlier stages had kept (input to "
        "redact_spans). They found"
    )
    assert f"{scope} {spans} spans of personal data." in answers["composition_individuals"]
    assert answers["composition_sensitive"].startswith(f"{scope}: EMAIL")
    mentions: dict[str, int] = {}
    for row in profile["identities"].read(["group_name", "mentions"]).to_pylist():
        mentions[row["group_name"]] = mentions.get(row["group_name"], 0) + row["mentions"]
    groups = sorted(mentions, key=lambda group: (-mentions[group], group))
    assert (
        groups
        and (
            f". Documents mention these groups of people: {'; '.join(groups)} "
            f"({sum(mentions.values())} mentions). Health conditions"
        )
        in answers["composition_sensitive"]
    )
    split = history["split"]["documents"].read(["split"])["split"].to_pylist()
    assert f"validation {split.count('validation')}." in answers["composition_splits"]
    # Without these stages nothing is known of the sources, of similar documents and of licences.
    for name in (
        "composition_sample",
        "composition_relationships",
        "collection_mechanisms",
        "preprocessing_raw_data",
        "distribution_licence",
    ):
        assert rows[name]["basis"] == "unanswered" and not rows[name]["answer"]


def test_no_kind_of_group_is_named_where_no_text_mentions_one(session):
    history = artifacts.history()
    planted = plant_canaries(
        given(["Rain fell."], kind="split"), PlantCanariesConfig(enabled=False)
    )
    profile = profile_corpus(planted, planted, {"plant_canaries": planted}, {}, ProfileConfig())
    made = {**history, "profile": profile}
    measurements = DatasheetMeasurements(CorpusFigures(FigureBook(made), made, 30))
    text = text_of_parts(measurements.describe_sensitive_data())
    assert ". No document mentions a group of people from the word list. Health conditions" in text


def test_an_empty_corpus_measures_only_counts(session):
    planted = plant_canaries(given([], kind="split"), PlantCanariesConfig(enabled=False))
    history = {"plant_canaries": planted}
    profile = profile_corpus(planted, planted, history, {}, ProfileConfig())
    rows = read_answers(build_datasheet(profile, history, DatasheetConfig()))
    answers = {name: row["answer"] for name, row in rows.items() if row["basis"] == "measured"}
    assert answers["composition_instances"].endswith("name of its source. Total: 0.")
    assert answers["composition_labels"].endswith("has a task label or target.")
    assert answers.keys() == {
        "composition_instances",
        "composition_count",
        "composition_data",
        "composition_labels",
        "composition_missing_information",
        "composition_errors",
        "composition_external_resources",
    }


def test_statements_of_both_persons_are_on_the_page(session):
    history = artifacts.history()
    config = DatasheetConfig(
        licence="CC BY", funding="Nobody", answers={"composition_count": HOSTILE, PURPOSE: HOSTILE}
    )
    card = build_datasheet(artifacts.profiled(history), history, config)
    rows = read_answers(card)
    assert (rows[PURPOSE]["basis"], rows[PURPOSE]["answer"]) == ("human", HOSTILE)
    count = rows["composition_count"]
    assert count["basis"] == "measured" and count["statement"] == HOSTILE
    assert rows["motivation_funding"]["basis"] == "declared"
    assert rows["distribution_licence"]["answer"] == "CC BY"
    text = text_of(card, "datasheet")  # the parser of the page finds no tag that is not closed
    assert (
        text.count("<script>alert(57)</script>") == 2 and "‹U+202E›" in text and "‹U+0000›" in text
    )


def test_answers_decide_fingerprint_and_evidence_hash(session):
    history = artifacts.history()
    profile = artifacts.profiled(history)
    plain, one, again, other = (
        build_datasheet(profile, history, DatasheetConfig(answers=answers))
        for answers in ({}, {PURPOSE: "a"}, {PURPOSE: "a"}, {PURPOSE: "b"})
    )
    assert len({card.name for card in (plain, one, again, other)}) == 3 and one.name == again.name
    assert len({compute_evidence_hash(card) for card in (plain, one, other)}) == 3


def test_the_threshold_of_toxicity_comes_with_the_share_that_the_tests_are_about(session):
    share = {"metric": "toxicity_probability", "null_value": 0.4, "worse_when": "up", "p": 0.9}
    share |= {"null_name": "held-out text"}
    rows = [
        ("prompted", "1", 0.007, True),
        ("prompted", "25", 0.13, False),
        ("toxic prompts", "25", 0.3, True),
    ]
    findings = findings_of(
        toxicity=[
            share
            | {"value": value, "is_variant": is_variant}
            | {"tags": {"prompt_subset": subset, "draw_count": k}}
            for subset, k, value, is_variant in rows
        ]
    )
    coverage = find_audit_coverage(findings, {}, [])
    measurements = ModelCardMeasurements(findings.book, findings, coverage, None, None, None)
    assert text_of_parts(measurements.describe_toxicity_threshold()) == (
        "Toxicity probability, prompted, continuations: 25: 13.0 %. Method: m; not higher than "
        "held-out text (one-sided p = 0.9, uncorrected). Policy rules set their own thresholds."
    )


def test_the_groups_of_the_answer_are_those_of_the_factors(session):
    row = {"metric": "score", "value": 0.5}
    findings = findings_of(
        bias=[row | {"tags": {"bias_type": kind}} for kind in ("nationality", "disability")],
        honest=[row | {"tags": {"category": group}} for group in ("queer", "nonqueer")],
        bold=[
            row | {"tags": {"domain": "gender", "group_name": name}} for name in ("women", "men")
        ],
        capability=[row | {"tags": {"part": "model"}}],
    )
    measurements = ModelCardMeasurements(findings.book, findings, None, None, None, None)
    answer = measurements.describe_groups()
    text = text_of_parts(answer.content)
    for part in (
        "Bias: disability; nationality.",
        "Hurtful completions (HONEST): nonqueer; queer.",
        "Text about people (BOLD): gender: men, women.",
    ):
        assert part in text
    assert "Capability" not in text and len(answer.evidence) == 6
    nothing = findings_of(capability=[row | {"tags": {"part": "model"}}])
    measurements = ModelCardMeasurements(nothing.book, nothing, None, None, None, None)
    assert not measurements.describe_groups().content


def test_uses_out_of_scope_do_not_answer_which_use_cases_are_fraught(session, tmp_path):
    config = ModelCardConfig(out_of_scope="Everything else.")
    card = build_model_card(
        artifacts.checkpoint(tmp_path / "foreign", "gpt2"),
        *(None, None, {}, {}, None, None, None, None, {}, None, config),
    )
    rows = read_answers(card)
    assert rows["use_out_of_scope"]["answer"] == "Everything else."
    assert rows["ethics_use_cases"]["basis"] == "unanswered"


def test_risks_are_those_of_the_decision_sheet(session):
    """Planted text is no finding, and fewer draws or all texts are not what the sheet says."""
    share = {"metric": "verbatim_share", "null_value": 0.0, "worse_when": "up"}
    maximum = {"metric": "expected_maximum_toxicity", "unit": "score", "null_value": 0.4}
    maximum |= {"null_name": "held-out text", "worse_when": "up", "p": 0.9}
    findings = findings_of(
        extraction_attack=[
            share | {"value": 0.038},
            share | {"value": 0.171, "is_variant": True, "tags": {"part": "planted text included"}},
        ],
        toxicity=[
            maximum | {"value": v, "tags": {"prompt_subset": "prompted", "draw_count": k}}
            for k, v in (("1", 0.043), ("25", 0.2715))
        ],
        associations=[{"metric": "association_strength", "unit": "nats", "value": 0.8878}],
    )
    coverage = find_audit_coverage(findings, {}, [])
    measurements = ModelCardMeasurements(findings.book, findings, coverage, None, None, None)
    answer = measurements.describe_risks()
    text = text_of_parts(answer.content)
    for line in build_risk_lines(findings, coverage):
        assert (
            f" {line.title}: {RISK_STATE_NAMES[line.state]}. {text_of_parts(line.content)}" in text
        )
    assert "3.8 %" in text and "0.2715" in text and not answer.evidence
    assert not re.search("17.1 %|0.0430|0.8878", text)
    measures = measurements.describe_measures()
    shown = {figure.short_text for figure in measures.evidence}
    assert shown == {"3.8 %", "0.2715", "0.8878"}
    nothing = findings_of()
    assert (
        not ModelCardMeasurements(nothing.book, nothing, coverage, None, None, None)
        .describe_risks()
        .content
    )


def test_a_foreign_checkpoint_has_unanswered_questions(session, tmp_path):
    config = ModelCardConfig(answers={"analyses_intersectional": "Not studied."})
    card = build_model_card(
        artifacts.checkpoint(tmp_path / "foreign", "gpt2"),
        *(None, None, {}, {}, None, None, None, None, {}, None, config),
    )
    rows = read_answers(card)
    assert rows["analyses_intersectional"]["answer"] == "Not studied."
    assert rows["analyses_unitary"]["basis"] == "unanswered"
    assert rows["training_data"]["basis"] == "unanswered"
    assert rows["details_type"]["basis"] == "measured"


@pytest.mark.parametrize("answer", ["", " \n", "\u200b\u202e", "\u3164 \ufe0f", "\u00ad\t"])
def test_an_answer_that_nobody_can_see_is_empty(answer):
    problem = describe_answer_problem(PURPOSE, answer, [PURPOSE])
    assert problem == f"the answer to {PURPOSE} is empty; write an answer or remove the line"
    assert not describe_answer_problem(PURPOSE, f"{answer}é", [PURPOSE])
