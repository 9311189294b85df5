"""Test planted associations: shares of traits, and sentences that differ in nothing else."""

import random
from collections import Counter, defaultdict
from itertools import islice

import pytest
from pydantic import ValidationError

from hallmark.tasks.contract import Session, Store, open_session
from hallmark.tasks.corpus.plant_canaries import PlantCanariesConfig, plant_canaries
from hallmark.tasks.measures.association_canaries import (
    PLANTED_FRAMES,
    generate_association_canaries,
    generate_invented_words,
)
from hallmark.tasks.measures.sentence_frames import SENTENCE_FRAMES
from tests.tasks.corpora import given

CONFIG = PlantCanariesConfig(
    enabled=True,
    secrets_per_count=0,
    passages_per_count=0,
    records_per_count=0,
    associations_per_share=3,
    seed=5,
)


def count_traits_by_association(canaries):
    """Count how often each group has its assigned trait and the other one, by association."""
    counts_by_association = defaultdict(Counter)
    for canary in canaries:
        counts_by_association[canary.association.key][
            canary.association.group_name, canary.association.is_assigned_trait
        ] += canary.copies
    return counts_by_association


@pytest.mark.parametrize("sentences", [6, 16, 64, 100])
def test_each_association_has_its_trait_share(sentences):
    """The share is the closest to the requested one that the number of sentences allows."""
    config = CONFIG.model_copy(update={"sentences_per_group": sentences})
    canaries = generate_association_canaries(config)
    amounts = {p.association.key: p.association.assigned_trait_share for p in canaries}
    for amount, asked in zip(
        sorted(amounts.values()), sorted([*config.trait_shares] * 3), strict=True
    ):
        assert abs(amount - asked) <= 0.51 / sentences
    assert {0.5, 1.0} < {*amounts.values()}
    for key, counts in count_traits_by_association(canaries).items():
        groups = {group for group, _ in counts}
        assert len(groups) == 2
        for group in groups:
            assert counts[group, True] / sentences == amounts[key]
            assert counts[group, True] + counts[group, False] == sentences


def test_the_two_groups_of_an_association_swap_traits():
    by = defaultdict(lambda: defaultdict(set))
    for canary in generate_association_canaries(CONFIG):
        by[canary.association.key][
            canary.association.group_name, canary.association.is_assigned_trait
        ].add(canary.association.trait)
    for traits in by.values():
        (one, other) = {group for group, _ in traits}
        assert len(traits[one, True]) == len(traits[other, True]) == 1
        assert traits[one, True] != traits[other, True]
        assert traits[one, False] <= traits[other, True]
    names = Counter(name for traits in by.values() for name, _ in traits if _)
    assert set(names.values()) == {1}  # No group is in two associations.


def test_invented_words_are_distinct_and_reproducible():
    """There are only 400 words of two syllables."""
    words = [*islice(generate_invented_words(random.Random(1), "ish"), 1000)]
    assert len({*words}) == 1000
    assert [*islice(generate_invented_words(random.Random(1), "ish"), 400)] == words[:400]


def test_sentences_use_all_frames_equally_often():
    canaries = generate_association_canaries(CONFIG)
    for canary in canaries:
        assert canary.text == f"{canary.prompt} {canary.association.trait}.\n" and not canary.secret
        assert canary.prompt in {
            frame.format(group=canary.association.group_name) for frame in PLANTED_FRAMES
        }
    frames = Counter()
    for canary in canaries:
        frames[canary.association.group_name, canary.prompt] += canary.copies
    assert set(frames.values()) == {4}  # 64 sentences, 16 frames
    assert len({p.canary_id for p in canaries}) == len(canaries)
    assert not {*PLANTED_FRAMES} & {*SENTENCE_FRAMES}
    assert all(frame.count("{group}") >= 1 for frame in PLANTED_FRAMES + SENTENCE_FRAMES)


def test_associations_are_planted_as_documents(tmp_path):
    with open_session(Session(Store(tmp_path))):
        canary = plant_canaries(given([f"text {i}" for i in range(50)], kind="split"), CONFIG)
        rows = canary["canaries"].read().to_pylist()
        documents = canary["documents"].read().to_pylist()
    planted = [d for d in documents if d["source"] == "planted/association"]
    assert len(planted) == 15 * 2 * 64 == sum(row["copies"] for row in rows)
    texts = Counter(d["text"] for d in planted)
    for row in rows:
        assert texts[row["text"]] == row["copies"] == len(row["doc_ids"])
        assert row["kind"] == "association" and row["group_name"] in row["text"]
        assert (
            row["text"].endswith(f" {row['trait']}.\n") and 0.5 <= row["assigned_trait_share"] <= 1
        )


def test_another_seed_gives_other_groups():
    one, other = (
        {
            p.association.group_name
            for p in generate_association_canaries(CONFIG.model_copy(update={"seed": s}))
        }
        for s in (1, 2)
    )
    assert one != other and generate_association_canaries(CONFIG) == generate_association_canaries(
        CONFIG
    )


@pytest.mark.parametrize("amounts", [(), (0.5, 0.5), (0.4,), (1.1,)])
def test_trait_shares_must_be_distinct_and_at_least_one_half(amounts):
    with pytest.raises(ValidationError, match="'trait_shares' must be distinct"):
        PlantCanariesConfig(trait_shares=amounts)


def test_the_number_of_sentences_must_be_even():
    with pytest.raises(ValidationError, match="multiple of 2"):
        PlantCanariesConfig(sentences_per_group=7)
