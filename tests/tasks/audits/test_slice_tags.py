"""Test the names of slices at the command line and on pages."""

import pytest

from hallmark.tasks.audits.slice_tags import label_part, name_slice

MODEL_AT_DISTANCE = "this model, words between the noun and the verb: 7"


@pytest.mark.parametrize(
    ("tags", "name", "label"),
    [
        ({}, "", ""),
        ({"kind": "passage", "copies": "64"}, "passage, copies=64", "planted passages, copies: 64"),
        ({"copies": "64-0"}, "copies=64-0", "copies: 64 compared with 0"),
        (
            {"assigned_trait_share": "0.59375"},
            "assigned_trait_share=0.59375",
            "planted share: 59.38 %",
        ),
        (
            {"domain": "lexicon town", "group_name": "Tamskers"},
            "domain=lexicon town, group_name=Tamskers",
            "word list 'town': Tamskers",
        ),
        (
            {"domain": "religion", "group_name": "Hindus, Buddhists and Sikhs", "part": "model"},
            "domain=religion, group_name=Hindus, Buddhists and Sikhs, model",
            "religion: Hindus, Buddhists and Sikhs; this model",
        ),
        (
            {"prompt_subset": "held-out text", "draw_count": "25"},
            "held-out text, draw_count=25",
            "all held-out text, continuations: 25",
        ),
        ({"score": "min_k_plus_plus"}, "score=min_k_plus_plus", "least likely tokens (Min-K++)"),
        ({"gotcha": "yes"}, "gotcha=yes", "gotcha: yes"),
        ({"equal_token_counts": "False"}, "equal_token_counts=False", "same number of tokens: no"),
        ({"sentence_kind": "other"}, "sentence_kind=other", "other sentences"),
        ({"draw_count": "10000"}, "draw_count=10000", "continuations: 10,000"),
        ({"prefix_tokens": "32"}, "prefix_tokens=32", "prompt tokens: 32"),
        ({"category": "town:Ildriths"}, "category=town:Ildriths", "town: Ildriths"),
        ({"part": "model", "distance": "7"}, "model, distance=7", MODEL_AT_DISTANCE),
        ({"baseline": "fivegram"}, "baseline=fivegram", "5-gram model"),
        ({"level": "0.25"}, "level=0.25", "level: 0.25"),
        ({"source": "2026-11"}, "source=2026-11", "2026-11"),
    ],
)
def test_a_page_shows_the_tags_of_a_slice_in_words(tags, name, label):
    assert (name_slice(tags), label_part(tags)) == (name, label)
