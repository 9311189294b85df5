"""Sealed worlds: every dose is in the text, and in nothing that anybody but the last may read."""

from collections import Counter
from itertools import combinations

import pytest
from pydantic import ValidationError

from hallmark.tasks.contract import UsageError
from hallmark.tasks.corpus.synthetic_world import (
    ANSWER_KEY,
    NEUTRAL_PHRASES,
    RUDE_PHRASES,
    SyntheticWorldConfig,
    compose_synthetic_world,
    seal_answer_key,
    write_synthetic_world,
)
from hallmark.tasks.corpus.town.documents import compute_shingle_similarity
from hallmark.tasks.corpus.town.grammar import AnnotatedText, load_rules

CONFIG = SyntheticWorldConfig(
    seed=3,
    documents=30,
    sentences_per_group=20,
    speech_sentences_per_group=20,
    copy_counts=(0, 2, 5),
    neutral_groups=4,
)
WITHOUT = CONFIG.model_copy(update={"has_effects": False})


@pytest.fixture(scope="module")
def made():
    return compose_synthetic_world(CONFIG)


def lines_of(*rules_):
    """The longest run that is the same each time a line of these rules is said."""
    return {
        max((part.text for part in line if isinstance(part, AnnotatedText)), key=len)
        for rule in rules_
        for line in load_rules()[rule]
    }


def said(made, text):
    return sum(text in each for _, each in made.clustered_texts)


def test_each_dose_has_as_many_candidates_as_the_settings_say(made):
    doses = Counter((c.kind, c.effect_level) for c in made.answer_key)
    for kind in ("canary", "passage", "record"):
        assert {dose: n for (k, dose), n in doses.items() if k == kind} == {0: 4, 2: 4, 5: 4}
    shares = {dose: n for (k, dose), n in doses.items() if k == "association"}
    assert shares == dict.fromkeys(CONFIG.trait_shares, 4)
    rude = {dose: n for (k, dose), n in doses.items() if k == "speech"}
    assert rude == {0.0: 8, 0.25: 4, 0.5: 4, 1.0: 4}


def test_what_the_envelope_says_is_in_the_text(made):
    plants = {plant["canary_id"].hex(): plant for plant in made.canary_rows}
    for c in made.answer_key:
        if c.kind in ("canary", "passage", "record"):
            assert said(made, plants[c.candidate_id]["text"]) == c.effect_level
        if c.kind == "association":
            mine = [
                plant for plant in made.canary_rows if plant.get("association") == c.candidate_id
            ]
            for plant, other in (mine, mine[::-1]):
                about = [
                    text for _, text in made.clustered_texts if f" {plant['group_name']} " in text
                ]
                own = sum(text.endswith(f" {plant['trait']}.\n") for text in about)
                rest = sum(text.endswith(f" {other['trait']}.\n") for text in about)
                assert own + rest == len(about) == 20 and own / 20 == c.effect_level
        if c.kind == "speech":
            about = [text for _, text in made.clustered_texts if f" {c.candidate_id} " in text]
            rude = sum(any(text.endswith(f"{word}.\n") for word in RUDE_PHRASES) for text in about)
            calm = sum(
                any(text.endswith(f"{word}.\n") for word in NEUTRAL_PHRASES) for text in about
            )
            assert rude + calm == len(about) == 20 and rude / 20 == c.effect_level


def test_the_envelope_says_the_shares_that_were_written():
    """Not those that were asked for, which so few sentences cannot have."""
    made = compose_synthetic_world(
        CONFIG.model_copy(update={"sentences_per_group": 6, "speech_sentences_per_group": 3})
    )
    shares = {
        kind: {c.effect_level for c in made.answer_key if c.kind == kind}
        for kind in ("association", "speech")
    }
    assert shares == {"association": {3 / 6, 4 / 6, 5 / 6, 1.0}, "speech": {0, 1 / 3, 2 / 3, 1.0}}


def test_sentences_that_there_are_not_are_refused():
    """Rude speech has those of the grammar; an odd number has no half."""
    assert SyntheticWorldConfig(speech_sentences_per_group=240, sentences_per_group=2)
    for wrong in ({"speech_sentences_per_group": 241}, {"sentences_per_group": 3}):
        with pytest.raises(ValidationError):
            SyntheticWorldConfig(**wrong)


def test_the_town_of_a_world_holds_nothing_that_is_not_in_the_envelope(made):
    town = [text for _, text in made.clustered_texts[: made.town_count]]
    assert made.town_count == len(town) == len({*town}) == 30  # no copies
    pairs = [compute_shingle_similarity(*pair) for pair in combinations(town, 2)]
    assert max(pairs) < 0.5  # not even near ones
    assert not any("@" in text or "555-01" in text for text in town)
    assert not any(line in text for line in lines_of("rude") for text in town)


def test_a_passage_is_a_document_of_its_length_and_its_prompt_the_first_half(made):
    passages = [plant for plant in made.canary_rows if plant["kind"] == "passage"]
    assert len({plant["text"] for plant in passages}) == len(passages) == 12
    for plant in passages:
        assert CONFIG.min_passage_characters <= len(plant["text"]) <= CONFIG.max_passage_characters
        assert plant["text"].startswith(plant["prompt"])
        assert len(plant["prompt"]) == len(plant["text"]) // 2
        assert not any(line in plant["text"] for line in lines_of("rude", "unsafe"))
    short = compose_synthetic_world(
        CONFIG.model_copy(update={"min_passage_characters": 400, "max_passage_characters": 420})
    )
    lengths = [len(plant["text"]) for plant in short.canary_rows if plant["kind"] == "passage"]
    assert min(lengths) >= 400 and max(lengths) <= 420


def test_a_length_that_no_document_has_is_said(monkeypatch):
    monkeypatch.setattr("hallmark.tasks.corpus.synthetic_world.MAX_PASSAGE_ATTEMPTS", 20)
    with pytest.raises(UsageError, match=r"of 20 documents .* none has from 90,000 to 90,001 char"):
        compose_synthetic_world(
            CONFIG.model_copy(
                update={"min_passage_characters": 90_000, "max_passage_characters": 90_001}
            )
        )


def test_the_public_knows_of_a_pair_whom_it_is_about_and_its_own_trait(made):
    pairs = [plant for plant in made.canary_rows if plant["kind"] == "association"]
    assert all(plant["is_assigned_trait"] for plant in pairs)
    by_pair = Counter(plant["association"] for plant in pairs)
    assert {*by_pair.values()} == {2}


def test_a_world_without_effects_has_the_same_candidates_and_none_of_them_any():
    made = compose_synthetic_world(WITHOUT)
    doses = Counter((c.kind, c.effect_level) for c in made.answer_key)
    assert {dose for kind, dose in doses if kind in ("canary", "passage", "record")} == {0.0}
    assert {dose for kind, dose in doses if kind == "association"} == {0.5}
    ((_, mean),) = {key for key in doses if key[0] == "speech"}
    assert mean == pytest.approx(4 * 1.75 / 20)
    assert len(made.answer_key) == len(compose_synthetic_world(CONFIG).answer_key)


def test_the_public_is_not_told_how_often_or_how_strongly(session):
    text = write_synthetic_world(CONFIG)
    plants = text["canaries"].read()
    assert plants["copies"].null_count == len(plants)
    told = [row for row in plants.to_pylist() if row["assigned_trait_share"] is not None]
    sealed = {c.candidate_id for c in compose_synthetic_world(CONFIG).answer_key}
    assert {row["assigned_trait_share"] for row in told} == {0.5}  # controls, two groups of each
    assert len(told) == 2 * CONFIG.control_associations_factor * CONFIG.associations_per_share
    assert not {row["association"] for row in told} & sealed
    assert set(map(tuple, plants["doc_ids"].to_pylist())) == {()}
    documents = text["documents"].read()
    assert {*documents["source"].to_pylist()} == {"world"}
    assert len({*documents["doc_id"].to_pylist()}) == len(documents)
    assert "answer_key" not in text.tables and not text.manifest["files"]
    envelope = seal_answer_key(CONFIG)["answer_key"].read()
    assert envelope.schema.names == ANSWER_KEY.names
    order = [(row["kind"], row["candidate_id"]) for row in envelope.to_pylist()]
    assert order == sorted(order)  # not that of the doses


def test_which_documents_were_written_for_a_candidate_is_sealed_with_it(session):
    texts = {
        row["doc_id"]: row["text"]
        for row in write_synthetic_world(CONFIG)["documents"].read().to_pylist()
    }
    plants = write_synthetic_world(CONFIG)["canaries"].read().to_pylist()
    known = {plant["canary_id"].hex(): plant["text"] for plant in plants}
    traits = {plant["group_name"]: plant["trait"] for plant in plants if plant["group_name"]}
    rows = seal_answer_key(CONFIG)["candidate_documents"].read().to_pylist()
    for row in rows:
        text = texts[row["doc_id"]]
        if row["kind"] == "association":
            assert f" {row['group_name']} " in text
            assert row["is_supporting"] == text.endswith(f" {traits[row['group_name']]}.\n")
        else:
            assert text == known[row["candidate_id"]] and row["is_supporting"]
    copies = Counter(row["candidate_id"] for row in rows if row["kind"] == "canary")
    sealed = {
        c.candidate_id: c.effect_level
        for c in compose_synthetic_world(CONFIG).answer_key
        if c.kind == "canary"
    }
    assert copies == {unit: dose for unit, dose in sealed.items() if dose}


def test_only_the_town_is_held_out(session):
    documents = write_synthetic_world(CONFIG)["documents"].read()
    out = [row for row in documents.to_pylist() if row["split"] != "train"]
    lines = {text for _, text in compose_synthetic_world(CONFIG).clustered_texts[:30]}
    assert out and all(row["text"] in lines for row in out)


def test_another_seed_another_world():
    one, other = (
        compose_synthetic_world(CONFIG.model_copy(update={"seed": seed})) for seed in (3, 4)
    )
    assert [*one.clustered_texts] == [*compose_synthetic_world(CONFIG).clustered_texts]
    texts = [{text for _, text in w.clustered_texts} for w in (one, other)]
    assert len(texts[0] & texts[1]) < 3
