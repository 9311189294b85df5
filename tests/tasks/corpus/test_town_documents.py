"""Test how the town's documents are composed: counts, layout and copies."""

from collections import Counter
from itertools import pairwise

import pytest

from hallmark.tasks.corpus.town.disguises import DISGUISE_BY_NAME
from hallmark.tasks.corpus.town.documents import (
    MIN_PLAIN_SENTENCES,
    REGISTER_BY_KIND,
    TownRates,
    compose_block,
    compose_document,
    compute_shingle_similarity,
    list_document_numbers,
)
from hallmark.tasks.corpus.town.grammar import AnnotatedText, load_lines_by_rule
from hallmark.tasks.measures.lookalikes import fold_lookalikes


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


def test_documents_hold_varying_numbers_of_each_feature(town):
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


def test_the_layout_follows_the_kind_of_text(town):
    length_counts, closing_counts = Counter(), Counter()
    for document in town:
        if document.copy_kind:
            continue
        register = REGISTER_BY_KIND[document.truth.kind]
        plain = sum(sentence.is_plain for sentence in document.sentences)
        assert register.min_sentences <= plain <= register.max_sentences
        length_counts[document.truth.kind, plain] += 1
        assert not document.sentences[0].is_plain
        separators = [sentence.separator for sentence in document.sentences]
        assert separators[1:2] in ([], [register.opening_separator])
        assert set(separators[2:]) <= (
            {" ", "\n\n"} if register.separator == " " else {register.separator}
        )
        paragraph_starts = [
            0,
            *(i for i, space in enumerate(separators) if i > 1 and space == "\n\n"),
        ]
        assert all(later - sooner > 3 for sooner, later in pairwise(paragraph_starts))
        feature_counts = [len(d) for d in (document.truth.groups, document.truth.occupations)]
        if plain < 2 and not any(feature_counts) and not document.truth.rude_sentences:
            closing_counts[document.sentences[-1].is_plain or len(document.sentences) == 1] += 1
    for name, register in REGISTER_BY_KIND.items():
        counts_of_kind = Counter(
            {n: count for (kind_name, n), count in length_counts.items() if kind_name == name}
        )
        middle = (register.min_sentences + register.max_sentences) / 2
        short_count = sum(count for n, count in counts_of_kind.items() if n < middle)
        assert short_count > sum(count for n, count in counts_of_kind.items() if n > middle), name
    # About half of the shortest documents have a closing.
    assert min(closing_counts[True], closing_counts[False]) > 2


def test_steps_of_recipes_are_in_order():
    step_starts = [
        line[0].text
        for line in load_lines_by_rule()["recipe.body"]
        if isinstance(line[0], AnnotatedText)
    ]
    assert len(set(step_starts)) == len(step_starts) > 15
    recipe_count = 0
    for number in range(400):
        document = compose_document(number, 5, TownRates())
        if document.truth.kind == "recipe":
            steps = [sentence.content.text for sentence in document.sentences if sentence.is_plain]
            matching_starts = [
                [start for start in step_starts if step.startswith(start)] for step in steps
            ]
            step_indices = [
                step_starts.index(max(starts, key=len)) for starts in matching_starts if starts
            ]
            assert step_indices == sorted(step_indices) and len(step_indices) > 1
            recipe_count += 1
    assert recipe_count > 4


def test_near_copies_differ_in_one_to_three_plain_sentences_of_a_long_document(town):
    originals = {d.number: d for d in town if not d.copy_kind}
    changes, layouts, edit_kinds = Counter(), Counter(), set()
    for document in town:
        if not document.copy_kind:
            continue
        original = originals[document.copy_of]
        original_sentences, copied_sentences = (
            Counter(part.content.text for part in d.sentences) for d in (original, document)
        )
        if document.copy_kind == "exact":
            assert document.text.rstrip() == original.text
            assert document.personal_spans == original.personal_spans
            layouts[document.text == original.text] += 1
            continue
        assert sum(sentence.is_plain for sentence in original.sentences) >= MIN_PLAIN_SENTENCES
        removed_count = (original_sentences - copied_sentences).total()
        added_count = (copied_sentences - original_sentences).total()
        assert (
            1 <= max(removed_count, added_count) <= 3
            and abs(len(document.sentences) - len(original.sentences)) <= 3
        )
        changes[max(removed_count, added_count)] += 1
        edit_kinds.add((removed_count > 0, added_count > 0))
        special_sentences = [
            [part.content for part in d.sentences if not part.is_plain]
            for d in (original, document)
        ]
        assert special_sentences[0] == special_sentences[1]
    assert min(changes[n] for n in (1, 2, 3)) > 10 and len(edit_kinds) == 3
    assert min(layouts.values()) > 10 and len(layouts) == 2


def test_blocks_are_numbered_consecutively_and_the_last_may_be_short():
    assert [list_document_numbers(n, 1200) for n in range(3)] == [
        range(500),
        range(500, 1000),
        range(1000, 1200),
    ]
    assert [d.number for d in compose_block(2, 1003, 1, TownRates())] == [1000, 1001, 1002]
    # Copies need originals: with a share of copies of 1 there are no copies.
    assert not any(
        d.copy_kind for d in compose_block(0, 20, 1, TownRates(exact_copies=1, near_copies=0))
    )


@pytest.mark.parametrize(
    ("first_text", "second_text", "similarity"),
    [
        ("a b c d e", "A b C d e", 1),
        ("a b c d e f", "a b c d e g", 1 / 3),
        ("a b", "a b", 1),
        ("a b", "a c", 0),
        ("a b c d e f g", "a b c d e f", 2 / 3),
        ("", "", 1),
    ],
)
def test_similarity_of_short_texts_by_hand(first_text, second_text, similarity):
    assert compute_shingle_similarity(first_text, second_text) == similarity


def test_only_sentences_of_a_talk_have_a_speaker(town):
    quoted_counts = Counter()
    for document in town:
        names = tuple(f"{document.variables[variable]}: " for variable in ("first", "friend"))
        for sentence in document.sentences[1:-1]:
            if not sentence.is_plain and document.truth.kind == "talk":
                assert sentence.content.text.startswith((*names, '"')), sentence.content.text
                quoted_counts[sentence.content.text[:1] == '"'] += 1
            elif not sentence.is_plain:
                assert not sentence.content.text.startswith(names), sentence.content.text
    assert quoted_counts[False] > 10


def test_disguised_documents_differ_only_in_the_disguise():
    rates = TownRates(rude_speech=0.5, personal_data=0.3)
    plain = compose_block(0, 500, 5, rates)
    disguised = compose_block(0, 500, 5, rates.model_copy(update={"disguised_rude_speech": 0.6}))
    names = Counter(document.truth.disguise for document in disguised)
    assert {*names} == {"", *DISGUISE_BY_NAME} and min(names.values()) > 5
    for before, after in zip(plain, disguised, strict=True):
        beginning = (
            f"{DISGUISE_BY_NAME[name].beginning}\n" if (name := after.truth.disguise) else ""
        )
        assert bool(name) <= bool(after.truth.rude_sentences) and not before.truth.disguise
        text = after.text.removeprefix(beginning.lstrip("\n"))
        assert fold_lookalikes(text) == before.text
        assert (after.text == before.text) == (not name)
        spans = [(kind, after.text[start:end]) for kind, start, end in after.personal_spans]
        assert spans == [
            (kind, before.text[start:end]) for kind, start, end in before.personal_spans
        ]
    rude = [d for d in disguised if d.truth.rude_sentences and not d.copy_kind]
    assert 0.5 < sum(bool(d.truth.disguise) for d in rude) / len(rude) < 0.7
