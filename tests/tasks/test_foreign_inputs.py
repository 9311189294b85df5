"""Stages called by hand with what is not theirs: each says so in one sentence, and reads on nothing
that another corpus said."""

import pytest

from hallmark.tasks.contract import HallmarkError
from hallmark.tasks.corpus.deduplicate import DeduplicateConfig, deduplicate
from hallmark.tasks.corpus.deduplicate_near import DeduplicateNearConfig, deduplicate_near
from hallmark.tasks.corpus.identities import IdentitiesConfig, find_identities
from hallmark.tasks.corpus.language import LanguageConfig, identify_languages
from hallmark.tasks.corpus.plant_canaries import PlantCanariesConfig, plant_canaries
from hallmark.tasks.corpus.profile import ProfileConfig, profile_corpus
from hallmark.tasks.corpus.removal_effects import RemovalEffectsConfig, measure_removal_effects
from hallmark.tasks.corpus.score_toxicity import ScoreToxicityConfig, score_toxicity
from hallmark.tasks.corpus.select import SelectConfig, select_documents
from hallmark.tasks.corpus.split import SplitConfig, split_corpus
from hallmark.tasks.training.train_tokenizer import TokenizerConfig, train_tokenizer
from tests.tasks.corpora import given
from tests.tasks.small_corpus import corpus_of

TEXTS = [f"The woman of house {i} wrote to her brother." for i in range(8)]
ANOTHER = "has no rows for 4 of the documents in .*; use tables .* from the same corpus"


def test_an_earlier_corpus_is_what_the_same_stage_left(session):
    documents = given(TEXTS)
    near = deduplicate_near(documents, {}, DeduplicateNearConfig())
    says = (
        r"deduplicate_near/.* was given as an earlier .* not an artifact of the deduplicate stage;"
    )
    with pytest.raises(HallmarkError, match=says):
        deduplicate(documents, {"x": near}, DeduplicateConfig())
    with pytest.raises(HallmarkError, match=r"given_documents/.* was given as an earlier corpus"):
        deduplicate(documents, {"x": documents}, DeduplicateConfig())
    exact = deduplicate(documents, {}, DeduplicateConfig())
    with pytest.raises(
        HallmarkError, match="but is not an artifact of the deduplicate_near stage; use"
    ):
        deduplicate_near(documents, {"x": exact}, DeduplicateNearConfig())


def test_a_table_without_the_column_that_is_read_is_not_called_damaged(session, tmp_path):
    documents = given(TEXTS)
    told = identify_languages(documents, LanguageConfig())
    says = "signals of language/.* has no column 'cluster', which this stage reads; the table has "
    with pytest.raises(HallmarkError, match=says):
        deduplicate(told["signals"], {}, DeduplicateConfig())
    for read in (told["signals"].read, told["signals"].parts[0].read_empty_table):
        with pytest.raises(HallmarkError, match="has no column 'text'"):
            read(["doc_id", "text"])
    path = told["signals"].parts[0].path
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(HallmarkError, match="is damaged"):
        told["signals"].read(["doc_id", "text"])


def planted(texts):
    return plant_canaries(split_corpus(given(texts), SplitConfig()), PlantCanariesConfig())


def test_a_profile_takes_nothing_that_another_corpus_said(session):
    whole = planted(TEXTS)
    history = {"language": identify_languages(given(TEXTS[:4]), LanguageConfig())}
    with pytest.raises(HallmarkError, match=ANOTHER):
        profile_corpus(whole, whole, history, {}, ProfileConfig())
    history = {"score_toxicity": score_toxicity(given(TEXTS[:4]), None, ScoreToxicityConfig())}
    with pytest.raises(
        HallmarkError, match=r"not the select_scored stage, which applies .*; include both"
    ):
        profile_corpus(whole, whole, history, {}, ProfileConfig())
    history["select_scored"] = select_documents(given(TEXTS), {}, SelectConfig())
    with pytest.raises(HallmarkError, match=r"toxicity/.* and select/.* describe different"):
        profile_corpus(whole, whole, history, {}, ProfileConfig())


def test_effects_take_nothing_that_another_corpus_said(session):
    documents, others = given(TEXTS), given(TEXTS[:4])
    own, foreign = (
        {
            "language": identify_languages(d, LanguageConfig()),
            "identities": find_identities(d, IdentitiesConfig()),
        }
        for d in (documents, others)
    )
    with pytest.raises(HallmarkError, match=ANOTHER):
        measure_removal_effects(documents, {"ingest": others} | foreign, RemovalEffectsConfig())
    says = "has signals for documents that are not in the first stage of the history"
    with pytest.raises(HallmarkError, match=says):
        measure_removal_effects(others, {"ingest": others} | own, RemovalEffectsConfig())


def test_a_tokenizer_is_not_measured_by_what_another_corpus_said(session):
    rows = [("a", "train", text) for text in TEXTS] + [("a", "validation", "Women of the harbour.")]
    others = find_identities(corpus_of(rows[4:-1]), IdentitiesConfig())
    with pytest.raises(HallmarkError, match=r"has no rows for . of the documents in documents of"):
        train_tokenizer(corpus_of(rows), others, TokenizerConfig(vocab_size=600))
