"""Test the names of slices at the command line and on pages."""

import pytest

from hallmark.tasks.audits.slice_tags import label_part, name_slice


@pytest.mark.parametrize(
    ("tags", "name", "label"),
    [
        ({}, "", ""),
        ({"kind": "passage", "copies": "64"}, "passage, copies=64", "passage, copies 64"),
        ({"copies": "64-0"}, "copies=64-0", "copies 64 compared with 0"),
        (
            {"assigned_trait_share": "0.59375"},
            "assigned_trait_share=0.59375",
            "assigned trait share 0.59375",
        ),
        (
            {"domain": "lexicon town", "group_name": "Tamskers"},
            "domain=lexicon town, group_name=Tamskers",
            "lexicon town, Tamskers",
        ),
        ({"score": "min_k_plus_plus"}, "score=min_k_plus_plus", "min k plus plus"),
        ({"gotcha": "yes"}, "gotcha=yes", "gotcha: yes"),
        ({"equal_token_counts": "False"}, "equal_token_counts=False", "equal token counts: no"),
        ({"sentence_kind": "other"}, "sentence_kind=other", "sentence kind other"),
        ({"source": "2026-11"}, "source=2026-11", "2026-11"),
    ],
)
def test_a_page_shows_the_tags_of_a_slice_in_words(tags, name, label):
    assert (name_slice(tags), label_part(tags)) == (name, label)
