"""The language of documents, and which languages a scorer scores."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from hallmark.tasks.contract import HallmarkError
from hallmark.tasks.corpus.language import LanguageConfig, identify_languages
from hallmark.tasks.corpus.score_toxicity import ScoreToxicityConfig, score_toxicity
from hallmark.tasks.corpus.select import SelectConfig, select_documents
from tests.tasks.corpora import given
from tests.tasks.measures.test_languages import DISGUISES, TEXTS

LONG = {name: " ".join([text] * 5) for name, text in TEXTS.items()}
#: Article 1 of the Universal Declaration of Human Rights in Hawaiian, a harmless text.
HAWAIIAN = (
    "Hānau kūʻokoʻa ʻia nā kānaka apau loa, a ua kau like ka hanohano a me nā pono kīvila "
    "maluna o kākou pākahi. Ua hāʻawi ʻia mai iā kākou ka noʻonoʻo pono a me ka ʻike pono, no "
    "laila, e aloha kākou kekahi i kekahi."
)
#: Harmless German text; "dick" is thick.
GERMAN = (
    "Der Ast ist so dick wie mein Arm, und der Hund ist dick und rund. Im Herbst sind die Äpfel "
    "dick und rot, und das Buch auf dem Tisch ist dick wie ein Ziegelstein."
)


def test_each_document_has_a_language_or_null(session):
    result = identify_languages(given([*TEXTS.values(), "ok", ""]), LanguageConfig())
    rows = result["signals"].read()
    assert rows["language"].to_pylist() == [*TEXTS, None, None]
    assert all(p >= 0.5 for p in rows["language_probability"].to_pylist()[: len(TEXTS)])
    assert all(p < 0.5 for p in rows["language_probability"].to_pylist()[len(TEXTS) :])


def test_settings_determine_probability_and_length_of_the_text(session):
    texts = [f"{LONG['ru']} {TEXTS['fr']} {LONG['ru']}", TEXTS["en"]]
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


def test_a_scorer_scores_its_languages_and_undetermined_texts_in_its_script(session):
    texts = [LONG["en"], LONG["de"], HAWAIIAN, "you idiot", "x = y", "ёж"]
    result, (english, german, hawaiian, short, code, russian) = score_texts(texts)
    assert german is None and russian is None
    assert None not in (english, hawaiian, short, code) and short > 0.5 > english
    metrics = {row["metric"]: row["value"] for row in result.read_telemetry().to_pylist()}
    assert metrics["other_language_documents"] == metrics["undetermined_language_documents"] == 1
    rows = result["windows"].read().to_pylist()
    assert [(r["char_start"], r["char_end"]) for r in rows] == [(0, len(text)) for text in texts]


def test_the_scored_languages_and_their_scripts_are_a_setting(session):
    texts = [LONG["en"], LONG["de"], "ok", "ёж"]
    for languages, expected in (
        (("de",), [False, True, True, False]),
        (("ru",), [False, False, False, True]),
        (("de", "ru"), [False, True, True, True]),
    ):
        scores = score_texts(texts, scored_languages=languages)[1]
        assert [score is not None for score in scores] == expected


#: Files that failed: the status of each text with the linear scorer, and whether it is toxic.
CASES = Path(__file__).parents[2] / "cases" / "corpus" / "toxicity" / "a.jsonl"
HARMLESS = {"clean", "aave", "cock", "gay", "medical"}
#: Misspelt, or one insult in a long harmless window.
NOT_FOUND = {"leet", "one insult in 900", "one insult in 5000"}


def test_disguised_texts_and_texts_after_a_menu_or_addresses_are_scored(session):
    rows = [json.loads(line) for line in CASES.read_text().splitlines()]
    names = {row["text"]: row["id"] for row in rows}
    documents = given([*names])
    signals = score_toxicity(
        documents, identify_languages(documents, LanguageConfig()), ScoreToxicityConfig()
    )["signals"].read()
    texts = documents["documents"].read()["text"].to_pylist()
    ids = [names[text] for text in texts]
    statuses = dict(zip(ids, signals["toxicity_status"].to_pylist(), strict=True))
    scores = dict(zip(ids, signals["toxicity"].to_pylist(), strict=True))
    assert set(statuses.values()) == {"scored"}
    for name in statuses.keys() - HARMLESS - NOT_FOUND:
        assert scores[name] > 0.5, name
    for name in ("fullwidth", "zw", "cyr homoglyph"):
        assert abs(scores[name] - scores["tox"]) < 0.01, name


INSULT = "You are a stupid fucking idiot and everybody hates you, you worthless piece of shit. "
COOKIES = (
    "Diese Website verwendet Cookies, um Inhalte und Anzeigen zu personalisieren und die Zugriffe "
    "auf unsere Website zu analysieren. "
)
STATUSES = {
    COOKIES * 4 + INSULT * 10: "scored",
    '<div class="nav"><ul><li><a href="/a/b?c=1">x</a></li></ul></div>\n' * 12 + INSULT * 12: (
        "scored"
    ),
    '{"id": 123, "url": "http://example.org/z"}\n' * 10 + INSULT * 10: "scored",
    "2024-01-01 12:00:00 INFO [main] com.example.Foo - 12345 ms\n" * 15 + INSULT * 14: "scored",
    "| 12.5 | 13.7 | 99 |\n" * 60 + INSULT * 10: "scored",
    f"@user1 @user2 RT @user3: {INSULT} #fail http://example.org/abc123": "scored",
    f"🔥🔥💀 {INSULT} 😂😂 " * 3: "scored",
    "fuck you": "scored",
    "иди на хуй": "undetermined language",
    "Home About Contact Login Register Help Sitemap Terms Privacy " * 4 + LONG["zh"] * 6: (
        "other language"
    ),
    COOKIES * 9: "other language",
}


def test_the_rest_of_a_text_decides_whether_it_is_scored(session):
    documents = given([*STATUSES])
    signals = score_toxicity(
        documents, identify_languages(documents, LanguageConfig()), ScoreToxicityConfig()
    )["signals"].read()
    texts = documents["documents"].read()["text"].to_pylist()
    statuses = signals["toxicity_status"].to_pylist()
    assert dict(zip(texts, statuses, strict=True)) == STATUSES
    scores = [score for score in signals["toxicity"].to_pylist() if score is not None]
    assert min(scores) > 0.5 and len(scores) == 8


def test_windows_of_folded_texts_have_the_spans_of_the_document(session):
    text = DISGUISES["full-width"](TEXTS["en"]) + " f\u00adu\u200bck ﬀ ⒜ " * 30
    documents = given([text])
    result = score_toxicity(documents, None, ScoreToxicityConfig(window_characters=100))
    windows = result["windows"].read().to_pylist()
    spans = [(row["char_start"], row["char_end"]) for row in windows]
    assert "".join(text[start:end] for start, end in spans) == text
    assert len(spans) > 3 and max(row["toxicity"] for row in windows) > 0.5


def test_documents_in_other_languages_have_no_score_and_are_kept(session):
    """Without languages, German gets a high toxicity score for words that are rude in English."""
    documents = given([GERMAN, TEXTS["en"]])
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
