"""The language of documents, and which languages a scorer scores."""

import pytest
from pydantic import ValidationError

from hallmark.tasks.contract import HallmarkError
from hallmark.tasks.corpus.language import LanguageConfig, identify_languages
from hallmark.tasks.corpus.score_toxicity import ScoreToxicityConfig, score_toxicity
from hallmark.tasks.corpus.select import SelectConfig, select_documents
from tests.tasks.corpora import given
from tests.tasks.measures.test_languages import TEXTS

LONG = {name: " ".join([text] * 5) for name, text in TEXTS.items()}
#: Article 1 of the Universal Declaration of Human Rights in Hawaiian, a harmless text.
HAWAIIAN = (
    "Hānau kūʻokoʻa ʻia nā kānaka apau loa, a ua kau like ka hanohano a me nā pono kīvila "
    "maluna o kākou pākahi. Ua hāʻawi ʻia mai iā kākou ka noʻonoʻo pono a me ka ʻike pono, no "
    "laila, e aloha kākou kekahi i kekahi."
)


def test_each_document_has_a_language_or_null(session):
    result = identify_languages(given([*TEXTS.values(), "ok", ""]), LanguageConfig())
    rows = result["signals"].read()
    assert rows["language"].to_pylist() == [*TEXTS, None, None]
    assert all(p >= 0.5 for p in rows["language_probability"].to_pylist()[: len(TEXTS)])
    assert all(p < 0.5 for p in rows["language_probability"].to_pylist()[len(TEXTS) :])


def test_settings_determine_probability_and_length_of_the_text(session):
    texts = [TEXTS["fr"] + " " + LONG["ru"], TEXTS["en"]]
    result = identify_languages(given(texts), LanguageConfig(max_characters=80))
    assert result["signals"].read()["language"].to_pylist() == ["fr", "en"]
    result = identify_languages(given(texts), LanguageConfig(max_characters=1000))
    assert result["signals"].read()["language"].to_pylist() == ["ru", "en"]
    result = identify_languages(given(["ok"]), LanguageConfig(min_probability=0))
    assert result["signals"].read()["language"].null_count == 0


def test_settings_out_of_range_are_rejected(session):
    result = identify_languages(
        given(["ok", LONG["fr"]]), LanguageConfig(min_probability=1, max_characters=1)
    )
    assert result["signals"].read()["language"].to_pylist() == [None, None]
    for setting in ({"min_probability": 1.01}, {"min_probability": -0.01}, {"max_characters": 0}):
        with pytest.raises(ValidationError):
            LanguageConfig(**setting)


def score_texts(texts, **config):
    documents = given(texts)
    languages = identify_languages(documents, LanguageConfig())
    result = score_toxicity(documents, languages, ScoreToxicityConfig(**config))
    return result, result["signals"].read()["toxicity"].to_pylist()


def test_a_scorer_scores_its_languages_and_short_texts_of_unknown_language(session):
    texts = [LONG["en"], LONG["de"], HAWAIIAN, "you idiot", "x = y"]
    result, (english, german, hawaiian, short, code) = score_texts(texts)
    assert german is None and hawaiian is None
    assert None not in (english, short, code) and short > 0.5 > english
    metrics = {row["metric"]: row["value"] for row in result.read_telemetry().to_pylist()}
    assert metrics["other_language_documents"] == 2
    rows = result["windows"].read().to_pylist()
    assert [(r["char_start"], r["char_end"]) for r in rows] == [(0, len(text)) for text in texts]


def test_scored_languages_and_the_limit_of_short_texts_are_settings(session):
    texts = [LONG["en"], LONG["de"], "ok"]
    is_scored = [score is not None for score in score_texts(texts, scored_languages=("de",))[1]]
    assert is_scored == [False, True, True]
    assert score_texts(texts, max_undetermined_characters=0)[1][2] is None


def test_documents_in_other_languages_have_no_score_and_are_kept(session):
    """Without languages, Hawaiian gets ten times the toxicity score of English prose."""
    documents = given([HAWAIIAN, TEXTS["en"]])
    rules = SelectConfig(rules={"toxicity": {"lt": 0.2}})
    identified = identify_languages(documents, LanguageConfig())
    for languages, rows, status in ((identified, 2, "other language"), (None, 1, "scored")):
        scores = score_toxicity(documents, languages, ScoreToxicityConfig())
        assert scores["signals"].read()["toxicity_status"].to_pylist() == [status, "scored"]
        selected = select_documents(documents, {"toxicity": scores}, rules)
        assert selected["documents"].row_count == rows
        metrics = {row["metric"]: row["value"] for row in selected.read_telemetry().to_pylist()}
        assert metrics["unknown_toxicity"] == rows - 1
        strict_rules = SelectConfig(rules={"toxicity": {"lt": 0.2, "on_missing": "remove"}})
        ledger = select_documents(documents, {"toxicity": scores}, strict_rules)["ledger"].read()
        assert ledger["reason"].to_pylist() == ["toxicity unknown" if rows == 2 else "toxicity"]


def test_languages_are_matched_by_id_after_documents_were_removed(session):
    texts = [LONG["en"], LONG["de"], LONG["fr"]]
    documents = given(texts, parts=2)
    languages = identify_languages(documents, LanguageConfig())
    selected = select_documents(
        documents, {"language": languages}, SelectConfig(rules={"language": {"none_of": ["de"]}})
    )
    result = score_toxicity(selected, languages, ScoreToxicityConfig(scored_languages=("fr",)))
    texts = selected["documents"].read().to_pylist()
    scores = result["signals"].read().to_pylist()
    assert [(r["doc_id"], r["toxicity"] is not None) for r in scores] == [
        (r["doc_id"], r["text"] == LONG["fr"]) for r in texts
    ]
    with pytest.raises(
        HallmarkError, match=r"signals of .* has no rows for 1 of the documents in documents of"
    ):
        fewer = identify_languages(given(texts=[LONG["en"]], parts=1), LanguageConfig())
        score_toxicity(given([LONG["de"], LONG["en"]]), fewer, ScoreToxicityConfig())
