"""Test the lexicon: plurals, spellings, contexts and users' lexicons."""

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
    load_builtin_lexicon,
    mark_outermost_spans,
    pluralise,
    read_user_terms_by_group,
)
from hallmark.tasks.measures.lexicon_evaluation import (
    build_lexicon_accuracy_rows,
    read_labelled_sentences,
)


def list_groups(text: str, name: str = "identities") -> set[str]:
    return set(
        find_groups_in_texts(
            pa.array([text], pa.large_string()), load_builtin_lexicon(name)
        ).group_names.to_pylist()
    )


def test_recall_and_precision_are_high_for_every_group():
    rows = {
        row["group_name"]: row for row in build_lexicon_accuracy_rows(read_labelled_sentences())
    }
    assert rows.keys() == {*load_builtin_lexicon().groups, ""}
    assert all(row["mentions"] >= 6 for row in rows.values())
    for row in rows.values():
        assert row["recall"] >= 0.85 and row["precision"] >= 0.85, row["group_name"]
        assert row["recall_low"] < row["recall"] or row["recall"] == 0
    assert rows[""]["recall_low"] > 0.95 and rows[""]["precision_low"] > 0.95
    traps = sum(not mentioned for _, mentioned, _ in read_labelled_sentences())
    assert traps > 100


def test_recall_and_precision_count_misses_and_false_positives():
    sentences = [
        ("women", True, "a woman"),
        ("women", True, "a heron"),
        ("women", False, "the women came"),
        ("men", True, "the men came"),
    ]
    women, men, every = build_lexicon_accuracy_rows(sentences)
    assert (women["recall"], women["precision"]) == (0.5, 0.5)
    assert (men["recall"], men["true_positives"], every["true_positives"], every["mentions"]) == (
        1.0,
        1,
        2,
        3,
    )


@pytest.mark.parametrize(
    ("following_text", "group"),
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
def test_an_ambiguous_word_counts_only_in_a_context(following_text, group):
    for colour, name in (("white", "white people"), ("Black", "Black people")):
        assert (name in list_groups(f"We saw {colour} {following_text}")) == (group is not None)


def test_a_context_does_not_cross_texts():
    mentions = find_groups_in_texts(
        pa.array(["they are black", "people", "it is"], pa.large_string())
    )
    assert mentions.group_names.to_pylist() == ["Black people"]
    assert mentions.text_indices.to_pylist() == [0]


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_class_with_a_star_matches_up_to_three_words(side):
    pattern = ["end", "between*"] if side == "left" else ["between*", "end"]
    entries = (("people", LexiconEntry(("folk",), needs=("near",))),)
    classes = {"end": ["town"], "between": ["of", "the"]}
    lexicon = Lexicon(entries, classes, {"near": {side: pattern}})
    for count in range(6):
        words = ["folk", *["of", "the", "of", "the", "of"][:count], "town"]
        text = " ".join(words if side == "right" else words[::-1])
        mentions = find_term_mentions(pa.array([text], pa.large_string()), lexicon)
        assert len(mentions.term_indices) == (count <= 3), text


def test_plurals_and_spellings_are_found():
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
        assert "indigenous people" in list_groups(text)
    for text in ("asylum seekers", "Asylum-seekers", "asylum\nseeker", "ASYLUM SEEKER’S"):
        assert "migrants and refugees" in list_groups(text)


def find_mentions_in_plain_python(text: str, lexicon: Lexicon) -> set[tuple[str, int]]:
    """Find the mentions of one text, term and position at a time."""
    words = re.sub(r"[.!?;:]+", " . ", text).lower().split()
    word_at = lambda i: words[i] if 0 <= i < len(words) else "."  # noqa: E731
    has_class = lambda names, word: any(word in lexicon.classes[n] for n in names.split("|"))  # noqa: E731

    def matches_pattern(pattern, place, step):
        for element in pattern:
            if element.endswith("*"):
                for _ in range(3):
                    place += step * has_class(element[:-1], word_at(place))
            elif has_class(element, word_at(place)):
                place += step
            else:
                return False
        return True

    mentions = set()
    for group, entry in lexicon.entries:
        for term in entry.terms:
            n = len(term.split())
            for i in range(len(words)):
                if words[i : i + n] != term.split():
                    continue
                follows = lambda p, i=i, n=n: [word_at(i + n + k) for k in range(len(p))] == p  # noqa: E731
                precedes = lambda p, i=i: [word_at(i - len(p) + k) for k in range(len(p))] == p  # noqa: E731
                needed_contexts = [lexicon.contexts[name] for name in entry.needs]
                good = not needed_contexts or any(
                    matches_pattern(c.get("left", ())[::-1], i - 1, -1)
                    and matches_pattern(c.get("right", ()), i + n, 1)
                    for c in needed_contexts
                )
                split = {
                    name: [p.split() for p in getattr(entry, name)] for name in CONDITION_FIELDS[1:]
                }
                good &= not entry.before or any(map(follows, split["before"]))
                good &= not entry.after or any(map(precedes, split["after"]))
                good &= not any(map(follows, split["not_before"]))
                good &= not any(map(precedes, split["not_after"]))
                if good:
                    mentions.add((group, term, i))
    is_nested = lambda one, other: (  # noqa: E731
        one != other
        and one[0] == other[0]
        and other[2] <= one[2]
        and one[2] + len(one[1].split()) <= other[2] + len(other[1].split())
    )
    return {
        (f"{group}: {term}", i)
        for group, term, i in mentions
        if not any(is_nested((group, term, i), other) for other in mentions)
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
def test_mentions_equal_those_of_plain_python(texts):
    lexicon = load_builtin_lexicon()
    plain = Lexicon(
        tuple((g, e) for g, e in lexicon.entries if not e.requires_capital),
        lexicon.classes,
        lexicon.contexts,
    )
    lines = [" ".join(words) for words in texts]
    number, owner, _ = find_term_mentions(pa.array(lines, pa.large_string()), plain)
    mentions = sorted(
        (int(o), ": ".join(plain.terms[n])) for n, o in zip(number, owner, strict=True)
    )
    expected = sorted(
        (i, name)
        for i, line in enumerate(lines)
        for name, _ in find_mentions_in_plain_python(line, plain)
    )
    assert mentions == expected


def test_only_the_longest_of_nested_terms_counts():
    def terms(text):
        mentions = find_term_mentions(pa.array([text], pa.large_string()))
        return [load_builtin_lexicon().terms[n] for n in mentions.term_indices]

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
def test_only_outermost_spans_of_a_group_are_kept(rows):
    """Compare with brute force: no kept span is inside another of its group."""
    columns = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    assert mark_outermost_spans(*columns).tolist() == [
        not any(
            (g, s, n) != (group, start, length)
            and g == group
            and s <= start
            and start + length <= s + n
            for g, s, n in rows
        )
        for group, start, length in rows
    ]


def test_dialect_markers_are_found():
    assert list_groups("They be talking all night", "dialects") == {"African-American English"}
    assert list_groups("Will they be talking all night?", "dialects") == set()
    assert list_groups("I dinnae ken", "dialects") == {"Scottish English"}
    assert list_groups("y'all come back, do the needful", "dialects") == {
        "Southern American English",
        "Indian English",
    }
    assert list_groups("We have done what was asked; it will be done.", "dialects") == set()


def test_a_users_lexicon_adds_groups(tmp_path):
    path = tmp_path / "town.json"
    path.write_text(json.dumps({"Lowbridgers": ["lowbridger", "low bridge folk"]}))
    lexicon = load_builtin_lexicon().with_groups(read_user_terms_by_group(path))
    texts = pa.array(["Two women, one a Lowbridger", "low-bridge folk"], pa.large_string())
    mentions = find_groups_in_texts(texts, lexicon)
    assert sorted(zip(*(c.to_pylist() for c in mentions), strict=True)) == [
        ("Lowbridgers", 0),
        ("Lowbridgers", 1),
        ("women", 0),
    ]


def test_equal_lexicons_share_a_matcher():
    """Each partition of a corpus builds its own lexicon of the same terms."""
    matchers = [
        _get_matcher(load_builtin_lexicon().with_groups({"Marsh folk": [term]}))
        for term in ("a", "a", "b")
    ]
    assert matchers[0] is matchers[1] and matchers[0] is not matchers[2]


def test_a_group_name_has_at_most_200_characters(tmp_path):
    path = tmp_path / "town.json"
    path.write_text(json.dumps({"é" * 200: ["b"]}))
    assert read_user_terms_by_group(path) == {"é" * 200: ["b"]}
    path.write_text(json.dumps({"é" * 201: ["b"]}))
    with pytest.raises(HallmarkError, match="with at most 200 printable characters"):
        read_user_terms_by_group(path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("[1]", "must be a JSON object that maps each group"),
        ("{", "is not valid JSON"),
        ('{"a": "b"}', "a list of"),
        ('{"a": ["B c"]}', "can never match"),
        ('{"a": [""]}', "can never match"),
        ('{"a": ["b-c"]}', "can never match"),
        ('{"a": [1]}', "a list of terms"),
        ('{"a": ["b", "c", "\\ud800"]}', "can never match"),
        ("[" * 100_000, "is not valid JSON"),
        ('{"a": ["u.s"]}', "can never match"),
        ('{"a": ["b  c"]}', "can never match"),
        ('{"a": ["b\\n"]}', "can never match"),
        ('{"a": ["."]}', "can never match"),
        ('{"a": []}', "has no terms"),
        ('{"\\u001b[31m": ["b"]}', "is not a valid group name"),
        ('{"\\ud800": ["b"]}', "is not a valid group name"),
    ],
)
def test_an_invalid_lexicon_is_reported_with_a_remedy(tmp_path, content, why):
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(HallmarkError, match=why):
        read_user_terms_by_group(path)
    with pytest.raises(HallmarkError, match="cannot be read"):
        read_user_terms_by_group(tmp_path / "none.json")


def test_entries_with_conditions_are_conditional():
    assert (
        not LexiconEntry(("a",)).is_conditional
        and LexiconEntry(("a",), requires_capital=True).is_conditional
    )
    assert LexiconEntry(("a",), not_before=("b",)).is_conditional


@pytest.mark.parametrize("name", ["identities", "dialects"])
def test_all_terms_can_match_and_all_contexts_exist(name):
    lexicon = load_builtin_lexicon(name)
    for group, entry in lexicon.entries:
        assert all(context in lexicon.contexts for context in entry.needs), group
        for term in entry.terms:
            assert re.fullmatch(r"[a-zà-ÿā-ſ]+( [a-zà-ÿā-ſ]+){0,3}", term), term
    for context in lexicon.contexts.values():
        for element in (*context.get("left", ()), *context.get("right", ())):
            assert set(element.removesuffix("*").split("|")) <= lexicon.classes.keys()
    plain = [term for _, e in lexicon.entries if not e.is_conditional for term in e.terms]
    mentions = find_term_mentions(pa.array(plain, pa.large_string()), lexicon)
    assert {lexicon.terms[n].term for n in mentions.term_indices} >= set(plain)
