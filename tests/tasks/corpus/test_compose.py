"""How the town's documents are put together: counts, layout and copies."""

from collections import Counter
from itertools import pairwise

import pytest

from hallmark.tasks.corpus.town.documents import (
    MIN_PLAIN_SENTENCES,
    REGISTER_BY_KIND,
    TownRates,
    compose_block,
    compose_document,
    compute_shingle_similarity,
    list_document_numbers,
)
from hallmark.tasks.corpus.town.grammar import AnnotatedText, load_rules


@pytest.fixture(scope="module")
def town():
    rates = TownRates(
        groups=0.6,
        occupations=0.6,
        rude_speech=0.3,
        personal_data=0.4,
        exact_copies=0.1,
        near_copies=0.2,
    )
    return [d for number in range(2) for d in compose_block(number, 1000, 21, rates)]


def test_documents_hold_one_or_more_of_what_they_hold(town):
    truths = [d.truth for d in town]
    assert {len(t.groups) for t in truths} == {0, 1, 2}
    assert {len(t.occupations) for t in truths} == {0, 1, 2}
    assert {t.rude_sentences for t in truths} == {0, 1, 2, 3, 4}
    assert {len(t.personal_types) for t in truths} == {0, 1, 2, 3}
    several = [t for t in truths if len(t.groups) == 2 or len(t.occupations) == 2]
    assert len(several) < sum(len(t.groups) == 1 or len(t.occupations) == 1 for t in truths)
    assert all(len(set(t.groups)) == len(t.groups) for t in truths)
    assert all(target == t.groups[0] for t in truths for target, _ in t.opinions)
    years = [int(d.variables["year"]) for d in town]
    assert 140 <= min(years) < 150 and 290 < max(years) < 300


def test_the_layout_is_that_of_the_kind_of_text(town):
    seen, closed = Counter(), Counter()
    for document in town:
        if document.copy_kind:
            continue
        kind = REGISTER_BY_KIND[document.truth.kind]
        plain = sum(piece.is_plain for piece in document.sentences)
        assert kind.min_sentences <= plain <= kind.max_sentences
        seen[document.truth.kind, plain] += 1
        assert not document.sentences[0].is_plain
        before = [piece.separator for piece in document.sentences]
        assert before[1:2] in ([], [kind.opening_separator])
        assert set(before[2:]) <= ({" ", "\n\n"} if kind.separator == " " else {kind.separator})
        ends = [0, *(i for i, space in enumerate(before) if i > 1 and space == "\n\n")]
        assert all(later - sooner > 3 for sooner, later in pairwise(ends))
        found = [len(d) for d in (document.truth.groups, document.truth.occupations)]
        if plain < 2 and not any(found) and not document.truth.rude_sentences:
            closed[document.sentences[-1].is_plain or len(document.sentences) == 1] += 1
    for name, kind in REGISTER_BY_KIND.items():
        own = Counter({n: count for (which, n), count in seen.items() if which == name})
        middle = (kind.min_sentences + kind.max_sentences) / 2
        short = sum(count for n, count in own.items() if n < middle)
        assert short > sum(count for n, count in own.items() if n > middle), name
    assert min(closed[True], closed[False]) > 2  # of the shortest about half have an end


def test_recipes_go_from_the_first_step_to_the_last():
    begins = [
        line[0].text for line in load_rules()["recipe.body"] if isinstance(line[0], AnnotatedText)
    ]
    assert len(set(begins)) == len(begins) > 15
    found = 0
    for number in range(400):
        document = compose_document(number, 5, TownRates())
        if document.truth.kind == "recipe":
            steps = [p.content.text for p in document.sentences if p.is_plain]
            places = [[begin for begin in begins if step.startswith(begin)] for step in steps]
            known = [begins.index(max(place, key=len)) for place in places if place]
            assert known == sorted(known) and len(known) > 1
            found += 1
    assert found > 4


def test_near_copies_differ_in_one_to_three_plain_sentences_of_a_long_document(town):
    originals = {d.number: d for d in town if not d.copy_kind}
    changes, layouts, kinds = Counter(), Counter(), set()
    for document in town:
        if not document.copy_kind:
            continue
        original = originals[document.copy_of]
        was, now = (Counter(p.content.text for p in d.sentences) for d in (original, document))
        if document.copy_kind == "exact":
            assert was == now and [p.content for p in document.sentences] == [
                p.content for p in original.sentences
            ]
            layouts[document.text == original.text] += 1
            continue
        assert sum(piece.is_plain for piece in original.sentences) >= MIN_PLAIN_SENTENCES
        gone, new = (was - now).total(), (now - was).total()
        assert (
            1 <= max(gone, new) <= 3 and abs(len(document.sentences) - len(original.sentences)) <= 3
        )
        changes[max(gone, new)] += 1
        kinds.add((gone > 0, new > 0))
        fixed = [[p.content for p in d.sentences if not p.is_plain] for d in (original, document)]
        assert fixed[0] == fixed[1]
    assert min(changes[n] for n in (1, 2, 3)) > 10 and len(kinds) == 3
    assert min(layouts.values()) > 10 and len(layouts) == 2


def test_blocks_are_numbered_through_and_the_last_is_what_is_left():
    assert [list_document_numbers(n, 1200) for n in range(3)] == [
        range(500),
        range(500, 1000),
        range(1000, 1200),
    ]
    assert [d.number for d in compose_block(2, 1003, 1, TownRates())] == [1000, 1001, 1002]
    # Nothing but copies: where there are no originals, there are none of them either.
    assert not any(
        d.copy_kind for d in compose_block(0, 20, 1, TownRates(exact_copies=1, near_copies=0))
    )


@pytest.mark.parametrize(
    ("left", "right", "share"),
    [
        ("a b c d e", "A b C d e", 1),
        ("a b c d e f", "a b c d e g", 1 / 3),
        ("a b", "a b", 1),
        ("a b", "a c", 0),
        ("a b c d e f g", "a b c d e f", 2 / 3),
        ("", "", 1),
    ],
)
def test_similarity_of_short_texts_by_hand(left, right, share):
    assert compute_shingle_similarity(left, right) == share


def test_in_talk_and_nowhere_else_what_is_said_has_a_speaker(town):
    spoken = Counter()
    for document in town:
        names = tuple(f"{document.variables[who]}: " for who in ("first", "friend"))
        for piece in document.sentences[1:-1]:
            if not piece.is_plain and document.truth.kind == "talk":
                assert piece.content.text.startswith((*names, '"')), piece.content.text
                spoken[piece.content.text[:1] == '"'] += 1
            elif not piece.is_plain:
                assert not piece.content.text.startswith(names), piece.content.text
    assert spoken[False] > 10
