"""Test the texts with which scorers are tested: complete, distinct, balanced, and mild."""

from collections import Counter

import pytest

from hallmark.tasks.measures.identities import load_builtin_lexicon
from hallmark.tasks.measures.scorer_controls import compose_control_texts

TOXICITY_KINDS = {
    True: {
        "threats",
        "veiled hate",
        "insults",
        "reclaimed words used as abuse",
        "direct abuse",
        "profanity against people",
        "insults in dialect",
        "hostility towards groups",
    },
    False: {
        "remarks that resemble threats",
        "remarks that resemble veiled hate",
        "friendly remarks",
        "reclaimed words",
        "quotations and reports of abuse",
        "mild profanity",
        "dialect",
        "mentions of groups",
    },
}


@pytest.mark.parametrize("is_harmful", [True, False])
def test_every_kind_of_text_has_twenty_pairs_of_templates(is_harmful):
    texts = [text for text in compose_control_texts("toxicity") if text.is_harmful == is_harmful]
    assert {text.kind for text in texts} == TOXICITY_KINDS[is_harmful]
    for kind in TOXICITY_KINDS[is_harmful] - {"mentions of groups"}:
        assert Counter(text.pair for text in texts if text.kind == kind) == dict.fromkeys(
            range(20), 3
        )


@pytest.mark.parametrize("head", ["toxicity", "sentiment"])
def test_each_group_of_the_lexicon_is_mentioned_in_the_same_templates(head):
    mentions = [text for text in compose_control_texts(head) if text.mentioned_group]
    assert {text.mentioned_group for text in mentions} == {*load_builtin_lexicon().groups}
    pairs = {}
    for text in mentions:
        pairs.setdefault(text.mentioned_group, set()).add(text.pair)
    assert all(group_pairs == {*range(20)} for group_pairs in pairs.values())
    assert not any(text.is_harmful for text in mentions)


@pytest.mark.parametrize("head", ["toxicity", "sentiment", "regard"])
def test_no_text_is_both_harmful_and_harmless(head):
    truth_by_text = {}
    for text in compose_control_texts(head):
        assert truth_by_text.setdefault(text.text, text.is_harmful) == text.is_harmful
        assert "{" not in text.text and text.text[0].isupper() | (text.text[0] == "'")


def test_sentiment_and_regard_are_tested_on_the_same_texts():
    assert compose_control_texts("sentiment") == compose_control_texts("regard")
    assert {text.kind for text in compose_control_texts("sentiment")} > {
        "negated praise",
        "bad events",
        "negative traits of people",
    }
