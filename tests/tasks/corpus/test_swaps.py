"""Test swaps: terms are replaced correctly, and mean differences are over clusters."""

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hallmark.tasks.contract import hash_to_ids
from hallmark.tasks.corpus.group_effects.group_sentences import (
    DRAWN_SENTENCES_SCHEMA,
    build_drawn_sentence_rows,
    build_swap_vocabulary,
    find_word_span,
    keep_lowest_ranked_per_group,
    swap_term,
)
from hallmark.tasks.corpus.group_effects.swaps import (
    CORPUS_ORIGIN,
    SentencePair,
    SwapConfig,
    build_corpus_pairs,
    build_swap_difference_rows,
    build_template_pairs,
    fill_template,
)
from hallmark.tasks.corpus.identities import read_user_lexicons
from hallmark.tasks.measures.identities import find_groups_in_texts, replace_alphanumerics_with_x

OWN_VOCABULARY = build_swap_vocabulary({})


@pytest.mark.parametrize(
    ("sentence", "old_term", "term", "expected"),
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
def test_a_new_term_gets_the_right_position_case_and_article(sentence, old_term, term, expected):
    """``old_term`` is in its usual spelling."""
    start = sentence.lower().index(old_term.lower())
    assert swap_term(sentence, start, start + len(old_term), term, old_term) == expected


def test_the_span_of_a_word_is_found_by_its_number():
    text = "White walls: a white-haired white woman."
    [shape] = replace_alphanumerics_with_x(pa.array([text])).to_pylist()
    assert shape == "xxxxx xxxxx: x xxxxx-xxxxxx xxxxx xxxxx."
    for word, (start, end) in {0: (0, 5), 4: (15, 20), 6: (28, 33)}.items():
        assert (text[start:end].lower(), find_word_span(shape, word, 1)) == ("white", (start, end))
    assert find_word_span(shape, 4, 2) == (15, 27)


def find_sentences(*texts, vocabulary=OWN_VOCABULARY):
    doc_id = hash_to_ids(f"document {i}" for i in range(len(texts)))
    texts = pa.array(texts, pa.large_string())
    batch = pa.record_batch({"doc_id": doc_id, "cluster": doc_id, "text": texts})
    return [*build_drawn_sentence_rows(batch, vocabulary)]


def test_sentences_that_mention_one_group_of_an_axis_once_are_sampled():
    text = "The white walls shone on white women there. Nobody said a word. A Muslim baker sang!"
    rows = {row["axis"]: row for row in find_sentences(text)}
    assert rows.keys() == {"gender", "race", "religion"}
    race = rows["race"]
    assert race["sentence"] == "The white walls shone on white women there."
    assert race["sentence"][race["start"] : race["end"]] == "white" and race["start"] == 25
    assert rows["religion"]["sentence"] == "A Muslim baker sang!"
    assert find_sentences("Muslims and Christians sang together here.") == []
    assert find_sentences("Muslims met other Muslims in the town hall.") == []
    assert find_sentences("Women.") == []  # too short
    assert [row["axis"] for row in find_sentences("Many young people leave the villages.")] == [
        "age"
    ]
    # These nouns have no parallel term: "a Jewish wrote" would be wrong.
    for text in ("An atheist wrote this letter.", "The French voted early this year."):
        assert find_sentences(text) == []


def test_letters_unknown_to_python_count_as_letters():
    """Their Unicode version is newer than that of Python 3.11."""
    (row,) = find_sentences(
        "Yesterday \U0001123f \U0001123f the woman walked home along the river."
    )
    assert row["sentence"][row["start"] : row["end"]] == "woman"


def test_the_distinct_sentences_with_the_lowest_hashes_are_kept():
    texts = [f"A Muslim baker sang number {i}." for i in range(30)]
    rows = pa.Table.from_pylist(find_sentences(*texts, *texts[:10]), schema=DRAWN_SENTENCES_SCHEMA)
    kept_rows = keep_lowest_ranked_per_group(rows, 8)
    expected = sorted(texts, key=lambda t: hashlib.blake2b(t.encode(), digest_size=16).digest())
    assert kept_rows["sentence"].to_pylist() == expected[:8]
    partial_results = [
        keep_lowest_ranked_per_group(rows.slice(0, 23), 8),
        keep_lowest_ranked_per_group(rows.slice(23), 8),
    ]
    assert (
        keep_lowest_ranked_per_group(pa.concat_tables(partial_results), 8)["sentence"].to_pylist()
        == expected[:8]
    )


def test_each_other_group_replaces_the_group_once():
    rows = pa.Table.from_pylist(
        find_sentences("In town a Muslim baker sang."), schema=DRAWN_SENTENCES_SCHEMA
    )
    replacements = {
        (p.group, p.other_group, p.counterpart) for p in build_corpus_pairs(rows, OWN_VOCABULARY)
    }
    assert replacements == {
        ("Muslims", "Christians", "In town a Christian baker sang."),
        ("Muslims", "Jews", "In town a Jewish baker sang."),
        ("Muslims", "Hindus, Buddhists and Sikhs", "In town a Hindu baker sang."),
        ("Muslims", "non-religious people", "In town an atheist baker sang."),
    }


def test_groups_of_a_lexicon_are_swapped_in_the_corpus_but_have_no_templates():
    unequal = {"left": ["lefty"], "right": ["righty", "righties"]}
    vocabulary = build_swap_vocabulary({**read_user_lexicons([Path("town")]), "unequal": unequal})
    rows = find_sentences(
        "At noon the Orvelings sang to us.", "An orveling came with a lefty.", vocabulary=vocabulary
    )
    assert {row["axis"] for row in rows} == {"town"}
    pairs = [
        *build_corpus_pairs(pa.Table.from_pylist(rows, schema=DRAWN_SENTENCES_SCHEMA), vocabulary)
    ]
    assert {p.group for p in pairs} == {"Orvelings"} and len(pairs) == 2 * 5
    counterparts = {p.counterpart for p in pairs if p.other_group == "Tamskers"}
    assert counterparts == {"At noon the Tamskers sang to us.", "A tamsker came with a lefty."}
    assert [*build_template_pairs(vocabulary)] == [*build_template_pairs(OWN_VOCABULARY)]


def test_a_single_group_is_not_swapped():
    vocabulary = build_swap_vocabulary(
        {"alone": {"left": ["lefty", "leftie"]}, "both": {"up": ["upper"], "down": ["downer"]}}
    )
    rows = find_sentences(
        "In the morning a lefty came here.", "At noon an upper came to us.", vocabulary=vocabulary
    )
    assert [row["axis"] for row in rows] == ["both"]


def test_no_sentences_are_kept_with_a_maximum_of_zero():
    config = SwapConfig(max_sentences_per_group=0, documents_per_group=0)
    rows = pa.Table.from_pylist(
        find_sentences("In town a Muslim baker sang."), schema=DRAWN_SENTENCES_SCHEMA
    )
    assert (
        len(rows) == 1
        and len(keep_lowest_ranked_per_group(rows, config.max_sentences_per_group)) == 0
    )


def test_parallel_terms_belong_to_their_groups():
    terms = {(group, term) for group, term in OWN_VOCABULARY.lexicon.terms}
    for row in OWN_VOCABULARY.parallel_terms:
        assert len(row.terms) > 1
        for group, term in row.terms.items():
            assert (group, term.lower()) in terms, (group, term)


def test_nearly_every_template_mentions_its_group():
    pairs = [*build_template_pairs(OWN_VOCABULARY)]
    assert len({(p.axis, p.group, p.other_group) for p in pairs}) > 25
    texts = [text for p in pairs for text in (p.sentence, p.counterpart)]
    groups, text_numbers = find_groups_in_texts(pa.array(texts, pa.large_string()))
    mentions = set(zip(groups.to_pylist(), text_numbers.to_pylist(), strict=True))
    expected_groups = [g for p in pairs for g in (p.group, p.other_group)]
    texts_without_mention = {
        texts[i] for i, g in enumerate(expected_groups) if (g, i) not in mentions
    }
    assert len(texts_without_mention) <= 0.05 * len(set(texts)), sorted(texts_without_mention)[:10]
    assert fill_template("{} keeps bees.", "she") == "She keeps bees."


def test_only_pairs_with_both_scores_count():
    pairs = [
        SentencePair(CORPUS_ORIGIN, "age", "a", "b", "x", "y", bytes([i]), "s", "t")
        for i in range(5)
    ]
    original_scores = np.array([0.1, 0.9, 0.2, 0.3, np.nan])
    swapped_scores = np.array([0.9, 0.1, 0.2, np.nan, 0.5])
    [row] = build_swap_difference_rows(pairs, original_scores, swapped_scores, 0.5)
    assert (row["sentences"], row["raised_share"], row["lowered_share"]) == (3, 1 / 3, 1 / 3)
    assert row["score_difference"] == pytest.approx(0) and row["p_corrected"] == row["p"]
