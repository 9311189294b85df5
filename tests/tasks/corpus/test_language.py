"""The language of documents, and whom a scorer is asked about."""

import pytest
from pydantic import ValidationError

from hallmark.tasks.contract import HallmarkError
from hallmark.tasks.corpus.language import LanguageConfig, identify_languages
from hallmark.tasks.corpus.score_toxicity import ScoreToxicityConfig, score_toxicity
from hallmark.tasks.corpus.select import SelectConfig, select_documents
from tests.tasks.corpora import given
from tests.tasks.measures.test_languages import TEXTS

LONG = {name: " ".join([text] * 5) for name, text in TEXTS.items()}
#: Article 1 of the Universal Declaration of Human Rights in Hawaiian: nothing rude is in it.
HAWAIIAN = (
    "Hānau kūʻokoʻa ʻia nā kānaka apau loa, a ua kau like ka hanohano a me nā pono kīvila "
    "maluna o kākou pākahi. Ua hāʻawi ʻia mai iā kākou ka noʻonoʻo pono a me ka ʻike pono, no "
    "laila, e aloha kākou kekahi i kekahi."
)


def test_each_document_has_a_language_or_none(session):
    made = identify_languages(given([*TEXTS.values(), "ok", ""]), LanguageConfig())
    rows = made["signals"].read()
    assert rows["language"].to_pylist() == [*TEXTS, None, None]
    assert all(p >= 0.5 for p in rows["language_probability"].to_pylist()[: len(TEXTS)])
    assert all(p < 0.5 for p in rows["language_probability"].to_pylist()[len(TEXTS) :])


def test_settings_decide_how_sure_and_from_how_much(session):
    texts = [TEXTS["fr"] + " " + LONG["ru"], TEXTS["en"]]
    made = identify_languages(given(texts), LanguageConfig(max_characters=80))
    assert made["signals"].read()["language"].to_pylist() == ["fr", "en"]
    made = identify_languages(given(texts), LanguageConfig(max_characters=1000))
    assert made["signals"].read()["language"].to_pylist() == ["ru", "en"]
    made = identify_languages(given(["ok"]), LanguageConfig(min_probability=0))
    assert made["signals"].read()["language"].null_count == 0


def test_how_sure_and_from_how_much_have_bounds(session):
    made = identify_languages(
        given(["ok", LONG["fr"]]), LanguageConfig(min_probability=1, max_characters=1)
    )
    assert made["signals"].read()["language"].to_pylist() == [None, None]
    for setting in ({"min_probability": 1.01}, {"min_probability": -0.01}, {"max_characters": 0}):
        with pytest.raises(ValidationError):
            LanguageConfig(**setting)


def scored(texts, **config):
    documents = given(texts)
    spoken = identify_languages(documents, LanguageConfig())
    made = score_toxicity(documents, spoken, ScoreToxicityConfig(**config))
    return made, made["signals"].read()["toxicity"].to_pylist()


def test_a_scorer_is_asked_about_its_own_languages_and_what_is_too_short_to_tell(session):
    texts = [LONG["en"], LONG["de"], HAWAIIAN, "you idiot", "x = y"]
    made, (english, german, hawaiian, short, code) = scored(texts)
    assert german is None and hawaiian is None
    assert None not in (english, short, code) and short > 0.5 > english
    told = {row["metric"]: row["value"] for row in made.read_telemetry().to_pylist()}
    assert told["other_language_documents"] == 2
    rows = made["windows"].read().to_pylist()
    assert [(r["char_start"], r["char_end"]) for r in rows] == [(0, len(text)) for text in texts]


def test_whom_a_scorer_is_asked_about_is_a_setting(session):
    texts = [LONG["en"], LONG["de"], "ok"]
    known = [score is not None for score in scored(texts, scored_languages=("de",))[1]]
    assert known == [False, True, True]
    assert scored(texts, max_undetermined_characters=0)[1][2] is None


def test_what_the_scorer_does_not_know_is_kept_and_said(session):
    """Asked all the same, the embedded scorer finds it ten times as toxic as English prose."""
    documents = given([HAWAIIAN, TEXTS["en"]])
    rules = SelectConfig(rules={"toxicity": {"lt": 0.2}})
    spoken = identify_languages(documents, LanguageConfig())
    for languages, rows, status in ((spoken, 2, "other language"), (None, 1, "scored")):
        scores = score_toxicity(documents, languages, ScoreToxicityConfig())
        assert scores["signals"].read()["toxicity_status"].to_pylist() == [status, "scored"]
        made = select_documents(documents, {"toxicity": scores}, rules)
        assert made["documents"].row_count == rows
        told = {row["metric"]: row["value"] for row in made.read_telemetry().to_pylist()}
        assert told["unknown_toxicity"] == rows - 1
        strict = SelectConfig(rules={"toxicity": {"lt": 0.2, "on_missing": "remove"}})
        gone = select_documents(documents, {"toxicity": scores}, strict)["ledger"].read()
        assert gone["reason"].to_pylist() == ["toxicity unknown" if rows == 2 else "toxicity"]


def test_languages_follow_documents_that_others_have_left(session):
    texts = [LONG["en"], LONG["de"], LONG["fr"]]
    documents = given(texts, parts=2)
    spoken = identify_languages(documents, LanguageConfig())
    some = select_documents(
        documents, {"language": spoken}, SelectConfig(rules={"language": {"none_of": ["de"]}})
    )
    made = score_toxicity(some, spoken, ScoreToxicityConfig(scored_languages=("fr",)))
    texts = some["documents"].read().to_pylist()
    scores = made["signals"].read().to_pylist()
    assert [(r["doc_id"], r["toxicity"] is not None) for r in scores] == [
        (r["doc_id"], r["text"] == LONG["fr"]) for r in texts
    ]
    with pytest.raises(HallmarkError, match=r"signals of .* says nothing of 1 of documents of"):
        fewer = identify_languages(given(texts=[LONG["en"]], parts=1), LanguageConfig())
        score_toxicity(given([LONG["de"], LONG["en"]]), fewer, ScoreToxicityConfig())
