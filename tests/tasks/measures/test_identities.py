"""The lexicon: it misses neither plurals nor spellings, and counts no white walls."""

import json
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hallmark.tasks.contract import HallmarkError
from hallmark.tasks.measures.identities import (
    CONDITION_FIELDS,
    Lexicon,
    LexiconEntry,
    _get_matcher,
    find_groups_in_texts,
    find_term_mentions,
    is_outermost_span,
    load_builtin_lexicon,
    pluralise,
    read_user_lexicon,
)
from hallmark.tasks.measures.lexicon_evaluation import evaluate_lexicon, read_labelled_sentences


def groups_in(text: str, name: str = "identities") -> set[str]:
    return set(
        find_groups_in_texts(pa.array([text], pa.large_string()), load_builtin_lexicon(name))[
            0
        ].to_pylist()
    )


def test_labelled_sentences_of_every_group_are_told_apart():
    rows = {row["group_name"]: row for row in evaluate_lexicon(read_labelled_sentences())}
    assert rows.keys() == {*load_builtin_lexicon().groups, ""}
    assert all(row["mentions"] >= 6 for row in rows.values())
    for row in rows.values():
        assert row["recall"] >= 0.85 and row["precision"] >= 0.85, row["group_name"]
        assert row["recall_low"] < row["recall"] or row["recall"] == 0
    assert rows[""]["recall_low"] > 0.95 and rows[""]["precision_low"] > 0.95
    traps = sum(not mentioned for _, mentioned, _ in read_labelled_sentences())
    assert traps > 100


def test_measures_count_what_is_missed_and_what_is_wrongly_found():
    sentences = [
        ("women", True, "a woman"),
        ("women", True, "a heron"),
        ("women", False, "the women came"),
        ("men", True, "the men came"),
    ]
    women, men, every = evaluate_lexicon(sentences)
    assert (women["recall"], women["precision"]) == (0.5, 0.5)
    assert (men["recall"], men["true_positives"], every["true_positives"], every["mentions"]) == (
        1.0,
        1,
        2,
        3,
    )


@pytest.mark.parametrize(
    ("company", "group"),
    [
        ("women", "{} people"),
        ("women and men", "{} people"),
        ("or Asian drivers", "{} people"),
        ("walls", None),
        ("", None),
        (". Women came", None),
        ("paint", None),
    ],
)
def test_an_ambiguous_word_counts_only_in_company(company, group):
    for colour, name in (("white", "white people"), ("Black", "Black people")):
        assert (name in groups_in(f"We saw {colour} {company}")) == (group is not None)


def test_a_context_does_not_reach_into_another_text():
    found = find_groups_in_texts(pa.array(["they are black", "people", "it is"], pa.large_string()))
    assert (found[0].to_pylist(), found[1].to_pylist()) == (["Black people"], [0])


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_class_with_a_star_stands_up_to_three_times(side):
    pattern = ["end", "between*"] if side == "left" else ["between*", "end"]
    entries = (("people", LexiconEntry(("folk",), needs=("near",))),)
    classes = {"end": ["town"], "between": ["of", "the"]}
    made = Lexicon(entries, classes, {"near": {side: pattern}})
    for count in range(6):
        words = ["folk", *["of", "the", "of", "the", "of"][:count], "town"]
        text = " ".join(words if side == "right" else words[::-1])
        number, _ = find_term_mentions(pa.array([text], pa.large_string()), made)
        assert len(number) == (count <= 3), text


def test_plurals_and_spellings():
    nouns = {
        "woman": "women",
        "lady": "ladies",
        "actress": "actresses",
        "boy": "boys",
        "housewife": "housewives",
        "guest person": "guest people",
    }
    assert {noun: pluralise(noun) for noun in nouns} == nouns
    for text in ("Māori elders", "the Maori", "a MAORI pilot", "Maori-speaking"):
        assert "indigenous people" in groups_in(text)
    for text in ("asylum seekers", "Asylum-seekers", "asylum\nseeker", "ASYLUM SEEKER’S"):
        assert "migrants and refugees" in groups_in(text)


def by_hand(text: str, made: Lexicon) -> set[tuple[str, int]]:
    """One text, one term and one place at a time: the same conditions in plain Python."""
    words = re.sub(r"[.!?;:]+", " . ", text).lower().split()
    at = lambda i: words[i] if 0 <= i < len(words) else "."  # noqa: E731
    inside = lambda names, word: any(word in made.classes[n] for n in names.split("|"))  # noqa: E731

    def walks(pattern, place, step):
        for element in pattern:
            if element.endswith("*"):
                for _ in range(3):
                    place += step * inside(element[:-1], at(place))
            elif inside(element, at(place)):
                place += step
            else:
                return False
        return True

    found = set()
    for group, entry in made.entries:
        for term in entry.terms:
            n = len(term.split())
            for i in range(len(words)):
                if words[i : i + n] != term.split():
                    continue
                behind = lambda p, i=i, n=n: [at(i + n + k) for k in range(len(p))] == p  # noqa: E731
                before = lambda p, i=i: [at(i - len(p) + k) for k in range(len(p))] == p  # noqa: E731
                held = [made.contexts[name] for name in entry.needs]
                good = not held or any(
                    walks(c.get("left", ())[::-1], i - 1, -1)
                    and walks(c.get("right", ()), i + n, 1)
                    for c in held
                )
                split = {
                    name: [p.split() for p in getattr(entry, name)] for name in CONDITION_FIELDS[1:]
                }
                good &= not entry.before or any(map(behind, split["before"]))
                good &= not entry.after or any(map(before, split["after"]))
                good &= not any(map(behind, split["not_before"]))
                good &= not any(map(before, split["not_after"]))
                if good:
                    found.add((group, term, i))
    inside = lambda one, other: (  # noqa: E731
        one != other
        and one[0] == other[0]
        and other[2] <= one[2]
        and one[2] + len(one[1].split()) <= other[2] + len(other[1].split())
    )
    return {
        (f"{group}: {term}", i)
        for group, term, i in found
        if not any(inside((group, term, i), other) for other in found)
    }


WORDS = [
    "white",
    "black",
    "blacks",
    "poor",
    "people",
    "women",
    "is",
    "are",
    "the",
    "many",
    "and",
    "she",
    "not",
    "paid",
    "walls",
    "egg",
    "whites",
    ".",
    "young",
    "roma",
    "been",
    "deaf",
    "to",
    "mother",
    "of",
    "invention",
]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.sampled_from(WORDS), max_size=14), min_size=1, max_size=4))
def test_mentions_equal_those_found_word_by_word(texts):
    made = load_builtin_lexicon()
    plain = Lexicon(
        tuple((g, e) for g, e in made.entries if not e.requires_capital),
        made.classes,
        made.contexts,
    )
    lines = [" ".join(words) for words in texts]
    number, owner = find_term_mentions(pa.array(lines, pa.large_string()), plain)
    found = sorted((int(o), ": ".join(plain.terms[n])) for n, o in zip(number, owner, strict=True))
    expected = sorted((i, name) for i, line in enumerate(lines) for name, _ in by_hand(line, plain))
    assert found == expected


def test_of_terms_within_each_other_the_longest_counts():
    def terms(text):
        number, _ = find_term_mentions(pa.array([text], pa.large_string()))
        return [load_builtin_lexicon().terms[n] for n in number]

    assert terms("Many young people leave.") == [("younger people", "young people")]
    assert terms("A young woman and young men.") == [
        ("younger people", "young woman"),
        ("women", "woman"),
        ("younger people", "young men"),
        ("men", "men"),
    ]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(1, 4)), max_size=8, unique=True
    )
)
@example([(0, 5, 4), (1, 0, 1)])
def test_of_stretches_the_outermost_of_each_group_stay(rows):
    """As brute force has it: of one group none lies within another."""
    columns = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    assert is_outermost_span(*columns).tolist() == [
        not any(
            (g, s, n) != (group, start, length)
            and g == group
            and s <= start
            and start + length <= s + n
            for g, s, n in rows
        )
        for group, start, length in rows
    ]


def test_dialect_markers():
    assert groups_in("They be talking all night", "dialects") == {"African-American English"}
    assert groups_in("Will they be talking all night?", "dialects") == set()
    assert groups_in("I dinnae ken", "dialects") == {"Scottish English"}
    assert groups_in("y'all come back, do the needful", "dialects") == {
        "Southern American English",
        "Indian English",
    }
    assert groups_in("We have done what was asked; it will be done.", "dialects") == set()


def test_a_lexicon_of_a_user(tmp_path):
    path = tmp_path / "town.json"
    path.write_text(json.dumps({"Lowbridgers": ["lowbridger", "low bridge folk"]}))
    made = load_builtin_lexicon().with_groups(read_user_lexicon(path))
    texts = pa.array(["Two women, one a Lowbridger", "low-bridge folk"], pa.large_string())
    found = find_groups_in_texts(texts, made)
    assert sorted(zip(*(c.to_pylist() for c in found), strict=True)) == [
        ("Lowbridgers", 0),
        ("Lowbridgers", 1),
        ("women", 0),
    ]


def test_equal_lexicons_are_prepared_once():
    """Each part of a corpus makes its own of the same terms."""
    made = [
        _get_matcher(load_builtin_lexicon().with_groups({"Marsh folk": [term]}))
        for term in ("a", "a", "b")
    ]
    assert made[0] is made[1] and made[0] is not made[2]


def test_the_name_of_a_group_has_200_characters_at_most(tmp_path):
    path = tmp_path / "town.json"
    path.write_text(json.dumps({"é" * 200: ["b"]}))
    assert read_user_lexicon(path) == {"é" * 200: ["b"]}
    path.write_text(json.dumps({"é" * 201: ["b"]}))
    with pytest.raises(HallmarkError, match="of at most 200 characters"):
        read_user_lexicon(path)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("[1]", "must be a JSON object of groups"),
        ("{", "is no JSON"),
        ('{"a": "b"}', "a list of"),
        ('{"a": ["B c"]}', "can never be found"),
        ('{"a": [""]}', "can never be found"),
        ('{"a": ["b-c"]}', "can never be found"),
        ('{"a": [1]}', "a list of terms"),
        ('{"a": ["b", "c", "\\ud800"]}', "can never be found"),
        ("[" * 100_000, "is no JSON"),
        ('{"a": ["u.s"]}', "can never be found"),
        ('{"a": ["b  c"]}', "can never be found"),
        ('{"a": ["b\\n"]}', "can never be found"),
        ('{"a": ["."]}', "can never be found"),
        ('{"a": []}', "has no terms"),
        ('{"\\u001b[31m": ["b"]}', "cannot name a group"),
        ('{"\\ud800": ["b"]}', "cannot name a group"),
    ],
)
def test_a_bad_lexicon_is_named_with_its_remedy(tmp_path, said, why):
    path = tmp_path / "bad.json"
    path.write_text(said)
    with pytest.raises(HallmarkError, match=why):
        read_user_lexicon(path)
    with pytest.raises(HallmarkError, match="cannot be read"):
        read_user_lexicon(tmp_path / "none.json")


def test_entries_know_whether_they_have_conditions():
    assert (
        not LexiconEntry(("a",)).is_conditional
        and LexiconEntry(("a",), requires_capital=True).is_conditional
    )
    assert LexiconEntry(("a",), not_before=("b",)).is_conditional


@pytest.mark.parametrize("name", ["identities", "dialects"])
def test_the_terms_can_be_found_and_the_contexts_are_there(name):
    made = load_builtin_lexicon(name)
    for group, entry in made.entries:
        assert all(context in made.contexts for context in entry.needs), group
        for term in entry.terms:
            assert re.fullmatch(r"[a-zà-ÿā-ſ]+( [a-zà-ÿā-ſ]+){0,3}", term), term
    for context in made.contexts.values():
        for element in (*context.get("left", ()), *context.get("right", ())):
            assert set(element.removesuffix("*").split("|")) <= made.classes.keys()
    plain = [term for _, e in made.entries if not e.is_conditional for term in e.terms]
    number, _ = find_term_mentions(pa.array(plain, pa.large_string()), made)
    assert {made.terms[n][1] for n in number} >= set(plain)
