"""Synthetic corpora: the text has every effect level, and public tables do not reveal them."""

from collections import Counter
from itertools import combinations

import pytest
from pydantic import ValidationError

from hallmark.tasks.audits.scoring import ScoreConfig
from hallmark.tasks.contract import UsageError
from hallmark.tasks.corpus.synthetic_corpus import (
    ANSWER_KEY,
    SPEECH_KINDS,
    SyntheticCorpusConfig,
    compose_synthetic_corpus,
    derive_composition_seed,
    seal_answer_key,
    write_synthetic_corpus,
)
from hallmark.tasks.corpus.town.documents import compute_shingle_similarity
from hallmark.tasks.corpus.town.grammar import AnnotatedText, load_lines_by_rule
from hallmark.tasks.measures.scorers import open_scorer

CONFIG = SyntheticCorpusConfig(
    seed=3,
    documents=30,
    sentences_per_group=20,
    speech_sentences_per_group=20,
    copy_counts=(0, 2, 5),
    neutral_groups=4,
)
CONFIG_WITHOUT_EFFECTS = CONFIG.model_copy(update={"has_effects": False})


@pytest.fixture(scope="module")
def synthetic_corpus():
    return compose_synthetic_corpus(CONFIG, 3)


def longest_fixed_parts(*rules_):
    """Return the longest fixed part of each line of these rules of the grammar."""
    return {
        max((part.text for part in line if isinstance(part, AnnotatedText)), key=len)
        for rule in rules_
        for line in load_lines_by_rule()[rule]
    }


def count_documents_with(synthetic_corpus, text):
    return sum(text in document_text for document_text in synthetic_corpus.texts)


def test_each_effect_level_has_the_configured_number_of_candidates(synthetic_corpus):
    counts = Counter(
        (candidate.kind, candidate.effect_level) for candidate in synthetic_corpus.answer_key
    )
    for kind in ("canary", "passage", "record"):
        assert {
            level: n for (candidate_kind, level), n in counts.items() if candidate_kind == kind
        } == {0: 4, 2: 4, 5: 4}
    shares = {
        level: n for (candidate_kind, level), n in counts.items() if candidate_kind == "association"
    }
    assert shares == dict.fromkeys(CONFIG.trait_shares, 4)
    rude = {level: n for (candidate_kind, level), n in counts.items() if candidate_kind == "speech"}
    assert rude == {0.0: 8, 0.25: 4, 0.5: 4, 1.0: 4}
    negative = {
        level: n for (candidate_kind, level), n in counts.items() if candidate_kind == "sentiment"
    }
    assert negative == {0.0: 8, 0.5: 4, 1.0: 4}


def test_the_text_matches_the_answer_key(synthetic_corpus):
    canary_by_id = {canary["canary_id"].hex(): canary for canary in synthetic_corpus.canary_rows}
    for candidate in synthetic_corpus.answer_key:
        if candidate.kind in ("canary", "passage", "record"):
            assert (
                count_documents_with(synthetic_corpus, canary_by_id[candidate.candidate_id]["text"])
                == candidate.effect_level
            )
        if candidate.kind == "association":
            group_canaries = [
                canary
                for canary in synthetic_corpus.canary_rows
                if canary.get("association") == candidate.candidate_id
            ]
            for canary, other in (group_canaries, group_canaries[::-1]):
                texts = [
                    text for text in synthetic_corpus.texts if f" {canary['group_name']} " in text
                ]
                own_count = sum(text.endswith(f" {canary['trait']}.\n") for text in texts)
                other_count = sum(text.endswith(f" {other['trait']}.\n") for text in texts)
                assert (
                    own_count + other_count == len(texts) == 20
                    and own_count / 20 == candidate.effect_level
                )
        for speech_kind in SPEECH_KINDS:
            if candidate.kind != speech_kind.name:
                continue
            texts = [
                text for text in synthetic_corpus.texts if f" {candidate.candidate_id} " in text
            ]
            harmful_count, harmless_count = (
                sum(any(text.endswith(f" {phrase}.\n") for phrase in phrases) for text in texts)
                for phrases in (speech_kind.harmful_phrases, speech_kind.harmless_phrases)
            )
            assert (
                harmful_count + harmless_count == len(texts) == 20
                and harmful_count / 20 == candidate.effect_level
            )


def test_negative_phrases_are_clear_to_the_scorer_of_sentiment_and_not_rude():
    toxicity, sentiment = (open_scorer(config) for config in ScoreConfig().all_scorers)
    speech, sentiment_kind = SPEECH_KINDS

    def score(scorer, phrases):
        texts = [f"The Gorecks are {phrase}." for phrase in phrases]
        return scorer.score_by_head(texts)[:, 0]

    negative = score(sentiment, sentiment_kind.harmful_phrases)
    positive = score(sentiment, sentiment_kind.harmless_phrases)
    assert len(negative) == len(positive) == 8
    assert max(negative) < -0.4 and min(positive) > 0.4
    assert abs(negative.mean() + positive.mean()) < 0.1  # half of each is neutral
    assert min(score(toxicity, speech.harmful_phrases)) > 0.9
    for phrases in (
        speech.harmless_phrases,
        sentiment_kind.harmful_phrases,
        sentiment_kind.harmless_phrases,
    ):
        assert max(score(toxicity, phrases)) < 0.5


def test_the_answer_key_has_the_shares_that_were_written():
    """So few sentences cannot have exactly the configured shares."""
    synthetic_corpus = compose_synthetic_corpus(
        CONFIG.model_copy(update={"sentences_per_group": 6, "speech_sentences_per_group": 3}), 3
    )
    shares = {
        kind: {
            candidate.effect_level
            for candidate in synthetic_corpus.answer_key
            if candidate.kind == kind
        }
        for kind in ("association", "speech", "sentiment")
    }
    assert shares == {
        "association": {3 / 6, 4 / 6, 5 / 6, 1.0},
        "speech": {0, 1 / 3, 2 / 3, 1.0},
        "sentiment": {0, 2 / 3, 1.0},
    }


def test_impossible_numbers_of_sentences_are_rejected():
    """The grammar has a limited number of frames, and an odd number has no half."""
    assert SyntheticCorpusConfig(speech_sentences_per_group=240, sentences_per_group=2)
    for settings in ({"speech_sentences_per_group": 241}, {"sentences_per_group": 3}):
        with pytest.raises(ValidationError):
            SyntheticCorpusConfig(**settings)


def test_the_town_contains_no_effects_that_the_answer_key_lacks(synthetic_corpus):
    town = synthetic_corpus.texts[: synthetic_corpus.town_count]
    assert synthetic_corpus.town_count == len(town) == len({*town}) == 30  # no copies
    pairs = [compute_shingle_similarity(*pair) for pair in combinations(town, 2)]
    assert max(pairs) < 0.5  # no near copies either
    assert not any("@" in text or "555-01" in text for text in town)
    assert not any(phrase in text for phrase in longest_fixed_parts("rude") for text in town)


def test_passages_have_the_configured_length_and_half_of_it_is_the_prompt(synthetic_corpus):
    passages = [passage for passage in synthetic_corpus.canary_rows if passage["kind"] == "passage"]
    assert len({passage["text"] for passage in passages}) == len(passages) == 12
    for passage in passages:
        assert (
            CONFIG.min_passage_characters <= len(passage["text"]) <= CONFIG.max_passage_characters
        )
        assert passage["text"].startswith(passage["prompt"])
        assert len(passage["prompt"]) == len(passage["text"]) // 2
        assert not any(
            phrase in passage["text"] for phrase in longest_fixed_parts("rude", "unsafe")
        )
    other_trial = compose_synthetic_corpus(
        CONFIG.model_copy(update={"min_passage_characters": 400, "max_passage_characters": 420}), 3
    )
    lengths = [
        len(passage["text"]) for passage in other_trial.canary_rows if passage["kind"] == "passage"
    ]
    assert min(lengths) >= 400 and max(lengths) <= 420


def test_a_passage_length_that_no_document_has_is_rejected(monkeypatch):
    monkeypatch.setattr("hallmark.tasks.corpus.synthetic_corpus.MAX_PASSAGE_ATTEMPTS", 20)
    with pytest.raises(UsageError, match=r"none of 20 generated documents has 90,000 to 90,001 "):
        compose_synthetic_corpus(
            CONFIG.model_copy(
                update={"min_passage_characters": 90_000, "max_passage_characters": 90_001}
            ),
            3,
        )


def test_an_association_is_public_with_both_groups_and_their_traits(synthetic_corpus):
    associations = [
        canary for canary in synthetic_corpus.canary_rows if canary["kind"] == "association"
    ]
    assert all(canary["is_assigned_trait"] for canary in associations)
    counts = Counter(canary["association"] for canary in associations)
    assert {*counts.values()} == {2}


def test_a_trial_without_effects_has_the_same_candidates_at_null_levels():
    synthetic_corpus = compose_synthetic_corpus(CONFIG_WITHOUT_EFFECTS, 3)
    levels = Counter(
        (candidate.kind, candidate.effect_level) for candidate in synthetic_corpus.answer_key
    )
    assert {level for kind, level in levels if kind in ("canary", "passage", "record")} == {0.0}
    assert {level for kind, level in levels if kind == "association"} == {0.5}
    ((_, rude_mean),) = {key for key in levels if key[0] == "speech"}
    assert rude_mean == pytest.approx(4 * 1.75 / 20)
    ((_, negative_mean),) = {key for key in levels if key[0] == "sentiment"}
    assert negative_mean == round(20 * 4 * 1.5 / 16) / 20 == 0.4
    assert len(synthetic_corpus.answer_key) == len(compose_synthetic_corpus(CONFIG, 3).answer_key)


def test_public_tables_do_not_reveal_effect_levels(session):
    synthetic_corpus = write_synthetic_corpus(CONFIG)
    canaries = synthetic_corpus["canaries"].read()
    assert canaries["copies"].null_count == len(canaries)
    rows_with_share = [
        row for row in canaries.to_pylist() if row["assigned_trait_share"] is not None
    ]
    sealed_ids = {*seal_answer_key(CONFIG)["answer_key"].read()["candidate_id"].to_pylist()}
    # Only controls have a public share; each has two groups.
    control_count = CONFIG.control_associations_factor * CONFIG.associations_per_share
    assert {row["assigned_trait_share"] for row in rows_with_share} == {0.5}
    assert len(rows_with_share) == 2 * control_count
    assert not {row["association"] for row in rows_with_share} & sealed_ids
    assert set(map(tuple, canaries["doc_ids"].to_pylist())) == {()}
    documents = synthetic_corpus["documents"].read()
    assert {*documents["source"].to_pylist()} == {"synthetic"}
    assert len({*documents["doc_id"].to_pylist()}) == len(documents)
    groups = synthetic_corpus["lexicons"].read().to_pylist()
    assert Counter(row["lexicon"] for row in groups) == {"speech": 20, "sentiment": 16}
    for speech_kind in SPEECH_KINDS:
        names = [row["group_name"] for row in groups if row["lexicon"] == speech_kind.name]
        assert names == sorted(names)  # not the order of the shares
        counts = {
            sum(f" {name} " in text for text in documents["text"].to_pylist()) for name in names
        }
        assert counts == {CONFIG.speech_sentences_per_group}
    # The cluster does not tell how often a text was planted.
    assert len({*documents["cluster"].to_pylist()}) == len(documents)
    assert not {*documents["cluster"].to_pylist()} & {*canaries["canary_id"].to_pylist()}
    assert "answer_key" not in synthetic_corpus.tables and not synthetic_corpus.manifest["files"]
    answer_key = seal_answer_key(CONFIG)["answer_key"].read()
    assert answer_key.schema.names == ANSWER_KEY.names
    order = [(row["kind"], row["candidate_id"]) for row in answer_key.to_pylist()]
    assert order == sorted(order)  # not the order of the effect levels


def test_candidate_documents_match_the_text_and_are_sealed(session):
    texts = {
        row["doc_id"]: row["text"]
        for row in write_synthetic_corpus(CONFIG)["documents"].read().to_pylist()
    }
    canaries = write_synthetic_corpus(CONFIG)["canaries"].read().to_pylist()
    text_by_candidate = {canary["canary_id"].hex(): canary["text"] for canary in canaries}
    traits = {canary["group_name"]: canary["trait"] for canary in canaries if canary["group_name"]}
    rows = seal_answer_key(CONFIG)["candidate_documents"].read().to_pylist()
    for row in rows:
        text = texts[row["doc_id"]]
        if row["kind"] == "association":
            assert f" {row['group_name']} " in text
            assert row["is_supporting"] == text.endswith(f" {traits[row['group_name']]}.\n")
        else:
            assert text == text_by_candidate[row["candidate_id"]] and row["is_supporting"]
    copies = Counter(row["candidate_id"] for row in rows if row["kind"] == "canary")
    sealed_levels = {
        row["candidate_id"]: row["effect_level"]
        for row in seal_answer_key(CONFIG)["answer_key"].read().to_pylist()
        if row["kind"] == "canary"
    }
    assert copies == {candidate_id: level for candidate_id, level in sealed_levels.items() if level}


def test_only_the_town_is_held_out(session):
    # Of 30 documents none would be held out with 4 % of the seeds.
    config = CONFIG.model_copy(update={"documents": 150})
    documents = write_synthetic_corpus(config)["documents"].read()
    held_out = [row for row in documents.to_pylist() if row["split"] != "train"]
    sealed = compose_synthetic_corpus(config, read_composition_seed(config))
    assert held_out and all(row["text"] in sealed.texts[:150] for row in held_out)


def read_composition_seed(config=CONFIG):
    (row,) = seal_answer_key(config)["composition_seed"].read().to_pylist()
    return row["composition_seed"]


def test_only_the_answer_key_tells_how_to_compose_the_corpus_again(session):
    """The settings, which every run records, are not enough."""
    documents = write_synthetic_corpus(CONFIG)["documents"].read()
    texts = Counter(documents["text"].to_pylist())
    assert texts == Counter(compose_synthetic_corpus(CONFIG, read_composition_seed()).texts)
    assert texts != Counter(compose_synthetic_corpus(CONFIG, CONFIG.seed).texts)
    secret = session.store.secret
    assert read_composition_seed() == derive_composition_seed(CONFIG, secret)
    assert derive_composition_seed(CONFIG, b"other secret") != read_composition_seed()


def test_another_seed_gives_another_corpus():
    seeds = {
        derive_composition_seed(CONFIG.model_copy(update={"seed": seed}), b"secret")
        for seed in (3, 4)
    }
    first, second = (compose_synthetic_corpus(CONFIG, seed) for seed in sorted(seeds))
    assert len({*first.texts} & {*second.texts}) < 3
    assert first.texts == compose_synthetic_corpus(CONFIG, min(seeds)).texts
