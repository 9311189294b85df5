"""Stages called by hand with what is not theirs: each says so in one sentence, and reads on nothing
that another corpus said."""

import pytest

from tasks.contract import HallmarkError
from tasks.corpus.deduplicate import DeduplicateConfig, deduplicate
from tasks.corpus.deduplicate_near import DeduplicateNearConfig, deduplicate_near
from tasks.corpus.effects import EffectsConfig, effects
from tasks.corpus.identities import IdentitiesConfig, identities
from tasks.corpus.language import LanguageConfig, language
from tasks.corpus.plant import PlantConfig, plant
from tasks.corpus.profile import ProfileConfig, profile
from tasks.corpus.score_toxicity import ScoreToxicityConfig, score_toxicity
from tasks.corpus.select import SelectConfig, select
from tasks.corpus.split import SplitConfig, split
from tasks.training.train_tokenizer import TokenizerConfig, train_tokenizer
from tests.tasks.corpora import given
from tests.tasks.small_corpus import corpus_of

TEXTS = [f"The woman of house {i} wrote to her brother." for i in range(8)]
ANOTHER = "says nothing of 4 of documents of .*: it must have been made of the same corpus"


def test_an_earlier_corpus_is_what_the_same_stage_left(session):
    documents = given(TEXTS)
    near = deduplicate_near(documents, {}, DeduplicateNearConfig())
    says = "deduplicate_near/.* was given as an earlier corpus, and is not what deduplicate left"
    with pytest.raises(HallmarkError, match=says):
        deduplicate(documents, {"x": near}, DeduplicateConfig())
    with pytest.raises(HallmarkError, match=r"given_documents/.* was given as an earlier corpus"):
        deduplicate(documents, {"x": documents}, DeduplicateConfig())
    exact = deduplicate(documents, {}, DeduplicateConfig())
    with pytest.raises(HallmarkError, match="and is not what deduplicate_near left of one"):
        deduplicate_near(documents, {"x": exact}, DeduplicateNearConfig())


def test_a_table_without_the_column_that_is_read_is_not_called_damaged(session, tmp_path):
    documents = given(TEXTS)
    told = language(documents, LanguageConfig())
    says = "signals of language/.* has no column 'cluster', for which it is read; its columns: doc_"
    with pytest.raises(HallmarkError, match=says):
        deduplicate(told["signals"], {}, DeduplicateConfig())
    for read in (told["signals"].read, told["signals"].parts[0].empty):
        with pytest.raises(HallmarkError, match="has no column 'text'"):
            read(["doc_id", "text"])
    path = told["signals"].parts[0].path
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(HallmarkError, match="is damaged"):
        told["signals"].read(["doc_id", "text"])


def planted(texts):
    return plant(split(given(texts), SplitConfig()), PlantConfig())


def test_a_profile_takes_nothing_that_another_corpus_said(session):
    whole = planted(TEXTS)
    history = {"language": language(given(TEXTS[:4]), LanguageConfig())}
    with pytest.raises(HallmarkError, match=ANOTHER):
        profile(whole, whole, history, {}, ProfileConfig())
    history = {"score_toxicity": score_toxicity(given(TEXTS[:4]), None, ScoreToxicityConfig())}
    with pytest.raises(HallmarkError, match=r"not select_scored, which says .*: give both"):
        profile(whole, whole, history, {}, ProfileConfig())
    history["select_scored"] = select(given(TEXTS), {}, SelectConfig())
    with pytest.raises(HallmarkError, match=r"score_toxicity/.* and select/.* are not about"):
        profile(whole, whole, history, {}, ProfileConfig())


def test_effects_take_nothing_that_another_corpus_said(session):
    documents, others = given(TEXTS), given(TEXTS[:4])
    own, foreign = (
        {"language": language(d, LanguageConfig()), "identities": identities(d, IdentitiesConfig())}
        for d in (documents, others)
    )
    with pytest.raises(HallmarkError, match=ANOTHER):
        effects(documents, {"ingest": others} | foreign, EffectsConfig())
    with pytest.raises(HallmarkError, match="about documents that the history does not begin with"):
        effects(others, {"ingest": others} | own, EffectsConfig())


def test_a_tokenizer_is_not_measured_by_what_another_corpus_said(session):
    rows = [("a", "train", text) for text in TEXTS] + [("a", "validation", "Women of the harbour.")]
    others = identities(corpus_of(rows[4:-1]), IdentitiesConfig())
    with pytest.raises(HallmarkError, match=r"says nothing of . of documents of"):
        train_tokenizer(corpus_of(rows), others, TokenizerConfig(vocab_size=600))
