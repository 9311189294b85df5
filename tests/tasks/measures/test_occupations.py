"""Test counts of gendered words near occupations: a text by hand, and a plain Python version."""

import json
import random
import re

import pyarrow as pa
import pytest

from hallmark.tasks.measures.identities import DATA_FOLDER, pluralise
from hallmark.tasks.measures.occupations import (
    count_gendered_words_by_mention,
    list_occupations,
)

LISTS = json.loads((DATA_FOLDER / "occupations.json").read_text(encoding="utf-8"))


def count_in_texts(texts, window=10):
    """Return (occupation, text index, words for women, words for men) of each mention, in order."""
    number, owner, words = count_gendered_words_by_mention(
        pa.array(texts, pa.large_string()), window
    )
    rows = zip(number.tolist(), owner.tolist(), words.tolist(), strict=True)
    return [(list_occupations()[n], text, *counts) for n, text, counts in rows]


def count_in_text(text, window=10):
    """Return (occupation, words for women, words for men) of each mention."""
    return [(job, women, men) for job, _, women, men in count_in_texts([text], window)]


def test_counts_of_a_text_equal_those_by_hand():
    text = (
        "Our blacksmith hurt his hand, and he swore. The nurses came; she, the first of them, "
        "dressed it. A woman (Mrs. Oll, the chimney sweep) told Mr. Reed, a Surveyor, of it!\n"
        "The plumber stayed at home"
    )
    assert count_in_text(text) == [
        ("blacksmith", 0, 2),
        ("nurse", 1, 0),
        ("chimney sweep", 2, 1),
        ("surveyor", 2, 1),
        ("plumber", 0, 0),
    ]


@pytest.mark.parametrize("end", [". ", "! ", "?) ", "... ", '." ', "\n\n", "\r\n \t\r\n", "."])
def test_a_window_ends_at_the_end_of_a_sentence(end):
    assert count_in_text(f"She slept{end}The plumber came{end}His dog barked") == [
        ("plumber", 0, 0)
    ]


@pytest.mark.parametrize(
    "on", [" ", ", ", "; ", ": ", " 3.5 ", " Dr. Oak ", " – ", "\n", " (10:30) "]
)
def test_other_punctuation_does_not_end_a_window(on):
    assert count_in_text(f"She slept{on}and the plumber came{on}his dog barked") == [
        ("plumber", 1, 1)
    ]


def test_the_window_counts_words_on_both_sides():
    text = "she one two three plumber four five six he"
    assert count_in_text(text, 3) == [("plumber", 0, 0)]
    assert count_in_text(text, 4) == [("plumber", 1, 1)]
    assert count_in_text("she one chimney sweep two he", 2) == [("chimney sweep", 1, 1)]
    assert count_in_text("she one two chimney sweep two he", 2) == [("chimney sweep", 0, 1)]


def test_a_window_ends_at_the_end_of_a_text():
    assert count_in_texts(["she her", "plumber", "", "he his"]) == [("plumber", 1, 0, 0)]
    assert count_in_texts([]) == []
    assert count_in_texts(["", "nobody", "."]) == []


def test_ambiguous_words_count_only_after_an_article():
    assert count_in_text("she can cook and judge") == []
    assert count_in_text("she sees Jimmy Carter and Ms Baker") == []
    assert count_in_text("she became cook") == [("cook", 1, 0)]
    assert count_in_text("she sees the judges and a potter") == [("judge", 1, 0), ("potter", 1, 0)]
    assert count_in_text("I miss the plumber") == [("plumber", 0, 0)]
    assert count_in_text("It was Miss Oll, a plumber") == [("plumber", 1, 0)]


def test_only_whole_words_count():
    assert count_in_text("sheer nurseries, hers: nursed theses") == []
    assert count_in_text("the nurse's hat, she-wolf") == [("nurse", 1, 0)]


def test_the_lexicon_is_unambiguous():
    jobs = [*LISTS["occupations"], *LISTS["ambiguous"]]
    forms = [form for job in jobs for form in (job, pluralise(job))]
    gendered = [*LISTS["women"], *LISTS["men"], "miss"]
    assert len(set(forms)) == len(forms) == 2 * len(list_occupations())
    assert len(set(gendered)) == len(gendered)
    for word in [*forms, *gendered, *LISTS["after"]]:
        assert re.fullmatch(r"[a-z]+( [a-z]+)*", word)
    parts = {part for form in forms if " " in form for part in form.split()}
    assert not parts & {*forms, *gendered}, "one mention would count as two"
    assert not {*forms} & {*gendered}
    assert not {*LISTS["after"]} & {*gendered} - {"her", "his"}


# Brute force -------------------------------------------------------------------------------------


def count_in_plain_python(text, window):
    """Apply the rules sentence by sentence and word by word."""
    text = re.sub(r"\b(Mrs?|Ms|Mx|Dr|Prof|Rev|St)\.", r"\1 ", text)
    text = re.sub(r"(?<=\d)[.:](?=\d)", " ", text)
    words = {"women": {*LISTS["women"]}, "men": {*LISTS["men"]}}
    singular = {form: job for job in list_occupations() for form in (job, pluralise(job))}
    rows = []
    for sentence in re.split(r"[.!?]+|\n[ \t\r]*\n", text):
        original_words = re.findall(r"[^\W_]+", sentence)
        lower = [word.lower() for word in original_words]
        for start in range(len(lower)):
            for length in (1, 2):
                job = singular.get(" ".join(lower[start : start + length]))
                if job is None or start + length > len(lower):
                    continue
                if job in LISTS["ambiguous"] and not {*lower[start - 1 : start]} & {
                    *LISTS["after"]
                }:
                    continue
                near = [*range(max(0, start - window), start)]
                near += range(start + length, min(len(lower), start + length + window))
                women = sum(lower[i] in words["women"] or original_words[i] == "Miss" for i in near)
                rows.append((job, women, sum(lower[i] in words["men"] for i in near)))
    return rows


@pytest.mark.parametrize("window", [1, 3, 10])
def test_counts_are_those_of_plain_python(window):
    rng = random.Random(window)
    vocabulary = [
        "nurse",
        "Nurses",
        "chimney sweep",
        "chimney",
        "sweeps",
        "police officers",
        "the cook",
        "judge",
        "BAKER",
        "a baker",
        "she",
        "Her",
        "he",
        "his",
        "Mr.",
        "Mrs.",
        "Miss",
        "miss",
        "women",
        "man",
        "tree",
        "Größe",
        "漢字",
        "3.5",
        "10:30",
        ",",
        ";",
        ":",
        ".",
        "...",
        "!",
        "?",
        "\n",
        "\n\n",
        "-",
        "l'",
        "\n \t\n",
        "_",
    ]
    texts = [" ".join(rng.choices(vocabulary, k=rng.randrange(60))) for _ in range(800)]
    expected = [
        (job, i, *counts)
        for i, text in enumerate(texts)
        for job, *counts in count_in_plain_python(text, window)
    ]
    assert count_in_texts(texts, window) == expected
    assert sum(women > 0 for *_, women, _ in expected) > 200
