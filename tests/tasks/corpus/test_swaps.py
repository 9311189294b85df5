"""Swaps: the right words are put in the right places, and means are those of clusters."""

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hallmark.tasks.contract import hash_to_ids
from hallmark.tasks.corpus.group_effects.swaps import (
    CORPUS_ORIGIN,
    DRAWN_SENTENCES_SCHEMA,
    SentencePair,
    SwapConfig,
    build_corpus_pairs,
    build_swap_vocabulary,
    build_template_pairs,
    compute_swap_differences,
    fill_template,
    find_swappable_sentences,
    find_word_span,
    keep_lowest_ranked,
    swap_term,
)
from hallmark.tasks.corpus.identities import read_user_lexicons
from hallmark.tasks.measures.identities import find_groups_in_texts, replace_alphanumerics_with_x

OWN = build_swap_vocabulary({})


@pytest.mark.parametrize(
    ("sentence", "own", "term", "made"),
    [
        ("A Muslim family came.", "Muslim", "atheist", "An atheist family came."),
        ("an Asian driver", "Asian", "Black", "a Black driver"),
        ("She met an Iranian man.", "Iranian", "German", "She met a German man."),
        ("A German town", "German", "European", "A European town"),
        ("muslims came", "Muslims", "Christians", "christians came"),
        ("We met white women.", "white", "Asian", "We met Asian women."),
        ("We met asian women.", "Asian", "Black", "We met black women."),
        ("The Women and Men met.", "women", "men", "The Men and Men met."),
        ("MUSLIMS CAME", "MUSLIMS", "Jews", "JEWS CAME"),
        ("Black people came.", "Black", "white", "White people came."),
        ("We saw Black people.", "Black", "white", "We saw white people."),
        ("An  old man", "old man", "young man", "A  young man"),
    ],
)
def test_a_term_takes_the_place_the_case_and_the_article(sentence, own, term, made):
    """``own``: how what stands there is usually written."""
    start = sentence.lower().index(own.lower())
    assert swap_term(sentence, start, start + len(own), term, own) == made


def test_a_place_is_found_by_its_number_of_words():
    text = "White walls: a white-haired white woman."
    [shape] = replace_alphanumerics_with_x(pa.array([text])).to_pylist()
    assert shape == "xxxxx xxxxx: x xxxxx-xxxxxx xxxxx xxxxx."
    for word, (start, end) in {0: (0, 5), 4: (15, 20), 6: (28, 33)}.items():
        assert (text[start:end].lower(), find_word_span(shape, word, 1)) == ("white", (start, end))
    assert find_word_span(shape, 4, 2) == (15, 27)


def drawn(*texts, known=OWN):
    doc_id = hash_to_ids(f"document {i}" for i in range(len(texts)))
    texts = pa.array(texts, pa.large_string())
    batch = pa.record_batch({"doc_id": doc_id, "text": texts})
    return [*find_swappable_sentences(batch, known)]


def test_sentences_that_mention_one_group_of_an_axis_once_are_drawn():
    text = "The white walls shone on white women there. Nobody said a word. A Muslim baker sang!"
    rows = {row["axis"]: row for row in drawn(text)}
    assert rows.keys() == {"gender", "race", "religion"}
    race = rows["race"]
    assert race["sentence"] == "The white walls shone on white women there."
    assert race["sentence"][race["start"] : race["end"]] == "white" and race["start"] == 25
    assert rows["religion"]["sentence"] == "A Muslim baker sang!"
    assert drawn("Muslims and Christians sang together here.") == []
    assert drawn("Muslims met other Muslims in the town hall.") == []
    assert drawn("Women.") == []  # too short to say anything
    assert [row["axis"] for row in drawn("Many young people leave the villages.")] == ["age"]
    # Of nouns no parallel is known: "a Jewish wrote" says something else.
    for text in ("An atheist wrote this letter.", "The French voted early this year."):
        assert drawn(text) == []


def test_letters_that_python_does_not_know_are_letters():
    """Of a Unicode that is newer than that of Python 3.11."""
    (row,) = drawn("Yesterday \U0001123f \U0001123f the woman walked home along the river.")
    assert row["sentence"][row["start"] : row["end"]] == "woman"


def test_the_sentences_with_the_lowest_hashes_are_drawn_once_each():
    texts = [f"A Muslim baker sang number {i}." for i in range(30)]
    rows = pa.Table.from_pylist(drawn(*texts, *texts[:10]), schema=DRAWN_SENTENCES_SCHEMA)
    chosen = keep_lowest_ranked(rows, 8)
    wanted = sorted(texts, key=lambda t: hashlib.blake2b(t.encode(), digest_size=16).digest())
    assert chosen["sentence"].to_pylist() == wanted[:8]
    half = [keep_lowest_ranked(rows.slice(0, 23), 8), keep_lowest_ranked(rows.slice(23), 8)]
    assert keep_lowest_ranked(pa.concat_tables(half), 8)["sentence"].to_pylist() == wanted[:8]


def test_each_other_group_stands_in_once():
    rows = pa.Table.from_pylist(
        drawn("In town a Muslim baker sang."), schema=DRAWN_SENTENCES_SCHEMA
    )
    found = {(p.group, p.other_group, p.counterpart) for p in build_corpus_pairs(rows, OWN)}
    assert found == {
        ("Muslims", "Christians", "In town a Christian baker sang."),
        ("Muslims", "Jews", "In town a Jewish baker sang."),
        ("Muslims", "Hindus, Buddhists and Sikhs", "In town a Hindu baker sang."),
        ("Muslims", "non-religious people", "In town an atheist baker sang."),
    }


def test_the_groups_of_a_lexicon_are_swapped_in_the_corpus_and_no_templates_made_of_them():
    unequal = {"left": ["lefty"], "right": ["righty", "righties"]}
    known = build_swap_vocabulary({**read_user_lexicons([Path("town")]), "unequal": unequal})
    rows = drawn("At noon the Orvelings sang to us.", "An orveling came with a lefty.", known=known)
    assert {row["axis"] for row in rows} == {"town"}
    pairs = [*build_corpus_pairs(pa.Table.from_pylist(rows, schema=DRAWN_SENTENCES_SCHEMA), known)]
    assert {p.group for p in pairs} == {"Orvelings"} and len(pairs) == 2 * 5
    made = {p.counterpart for p in pairs if p.other_group == "Tamskers"}
    assert made == {"At noon the Tamskers sang to us.", "A tamsker came with a lefty."}
    assert [*build_template_pairs(known)] == [*build_template_pairs(OWN)]


def test_a_group_without_another_is_swapped_with_nobody():
    known = build_swap_vocabulary(
        {"alone": {"left": ["lefty", "leftie"]}, "both": {"up": ["upper"], "down": ["downer"]}}
    )
    rows = drawn("In the morning a lefty came here.", "At noon an upper came to us.", known=known)
    assert [row["axis"] for row in rows] == ["both"]


def test_no_sentences_are_drawn_where_none_are_asked_for():
    config = SwapConfig(max_sentences_per_group=0, documents_per_group=0)
    rows = pa.Table.from_pylist(
        drawn("In town a Muslim baker sang."), schema=DRAWN_SENTENCES_SCHEMA
    )
    assert len(rows) == 1 and len(keep_lowest_ranked(rows, config.max_sentences_per_group)) == 0


def test_parallel_terms_are_terms_of_their_groups():
    terms = {(group, term) for group, term in OWN.lexicon.terms}
    for row in OWN.parallel_terms:
        assert len(row.terms) > 1
        for group, term in row.terms.items():
            assert (group, term.lower()) in terms, (group, term)


def test_every_template_mentions_the_group_that_is_put_in():
    pairs = [*build_template_pairs(OWN)]
    assert len({(p.axis, p.group, p.other_group) for p in pairs}) > 25
    texts = [text for p in pairs for text in (p.sentence, p.counterpart)]
    group, owner = find_groups_in_texts(pa.array(texts, pa.large_string()))
    found = set(zip(group.to_pylist(), owner.to_pylist(), strict=True))
    wanted = [g for p in pairs for g in (p.group, p.other_group)]
    missed = {texts[i] for i, g in enumerate(wanted) if (g, i) not in found}
    assert len(missed) <= 0.05 * len(set(texts)), sorted(missed)[:10]
    assert fill_template("{} keeps bees.", "she") == "She keeps bees."


def test_differences_are_of_pairs_that_both_could_be_scored():
    pairs = [
        SentencePair(CORPUS_ORIGIN, "age", "a", "b", "x", "y", bytes([i]), "s", "t")
        for i in range(5)
    ]
    before = np.array([0.1, 0.9, 0.2, 0.3, np.nan])
    after = np.array([0.9, 0.1, 0.2, np.nan, 0.5])
    [row] = compute_swap_differences(pairs, before, after, 0.5)
    assert (row["sentences"], row["raised_share"], row["lowered_share"]) == (3, 1 / 3, 1 / 3)
    assert row["score_difference"] == pytest.approx(0) and row["p_corrected"] == row["p"]
