"""The datasheet of a corpus and the model cards of the models trained on it link to each other."""

from __future__ import annotations

import os

import pytest

from hallmark.reports.card_links import (
    CardLink,
    find_related_cards,
    identify_corpus,
    insert_related_links,
)
from tests.reports.artifacts import SCRIPT

#: The corpus of each card.
CORPUS_BY_CARD = {
    "model_card/1": "a",
    "model_card/2": "a",
    "datasheet/a": "a",
    "datasheet/again": "a",
    "datasheet/b": "b",
}

TWO_CARDS = {"datasheet": "datasheet/a", "model_card": "model_card/1"}


@pytest.mark.parametrize(
    ("run", "card", "names_by_run", "expected"),
    [
        (
            "r1",
            "model_card",
            {"r2": {"datasheet": "datasheet/a"}, "r1": TWO_CARDS},
            [("Datasheet for the training corpus", "r1")],
        ),
        (
            "r1",
            "model_card",
            {
                "r3": {"datasheet": "datasheet/a"},
                "r2": {"datasheet": "datasheet/a"},
                "r1": {"model_card": "model_card/1"},
            },
            [("Datasheet for the training corpus", "r3")],
        ),
        ("r1", "model_card", {"r1": TWO_CARDS | {"datasheet": "datasheet/b"}}, []),
        ("r1", "model_card", {"r1": TWO_CARDS | {"model_card": "model_card/9"}}, []),
        (
            "r1",
            "datasheet",
            {"r2": TWO_CARDS, "r1": TWO_CARDS},
            [("Model card for the trained model", "r1")],
        ),
        (
            "r1",
            "datasheet",
            {"r2": {"model_card": "model_card/2"}, "r1": TWO_CARDS},
            [("Model card for run r1", "r1"), ("Model card for run r2", "r2")],
        ),
        (
            "r2",
            "datasheet",
            {"r2": TWO_CARDS | {"datasheet": "datasheet/again"}, "r1": TWO_CARDS},
            [("Model card for the trained model", "r2")],
        ),
        ("r1", "datasheet", {"r1": {"datasheet": "datasheet/b"}, "r2": TWO_CARDS}, []),
        ("r1", "datasheet", {"r1": {"datasheet": "datasheet/9"}, "r2": TWO_CARDS}, []),
        ("r1", "datasheet", {"r1": {}}, []),
        ("r1", "task_card", {"r1": TWO_CARDS | {"task_card": "task_card/1"}}, []),
        ("r9", "datasheet", {"r1": TWO_CARDS}, []),
    ],
)
def test_a_card_is_linked_with_those_of_the_same_corpus(run, card, names_by_run, expected):
    links = find_related_cards(run, card, names_by_run, CORPUS_BY_CARD.get)
    assert [(link.text, link.run_id) for link in links] == expected
    assert {link.card for link in links} <= {"datasheet", "model_card"} - {card}


def test_a_datasheet_names_at_most_five_model_cards():
    names = {f"r{n}": {"model_card": f"model_card/{n}"} for n in range(9)}
    names["r0"]["datasheet"] = "datasheet/a"
    links = find_related_cards("r0", "datasheet", names, lambda name: "a")
    assert [link.run_id for link in links] == ["r0", "r1", "r2", "r3", "r4"]


def test_a_corpus_is_identified_by_the_content_of_its_profile(session, cards, made):
    digest = made.profile.content_digest
    for card in ("datasheet", "model_card"):
        assert identify_corpus(session.store, cards[card].name) == digest
    assert identify_corpus(session.store, cards["task_card"].name) is None
    assert identify_corpus(session.store, made.profile.name) is None
    assert identify_corpus(session.store, "model_card/0000000000000000") is None


def test_links_replace_those_of_an_earlier_site_and_no_hard_link_changes(tmp_path):
    page, earlier = tmp_path / "card.html", tmp_path / "earlier.html"
    earlier.write_text('<p class="kind">Runs · Datasheet</p><p class="kind">b</p>')
    os.link(earlier, page)
    insert_related_links(page, [CardLink(SCRIPT, "r 1", "model_card")])
    assert page.read_text() == (
        '<p class="kind">Runs · Datasheet<span class="related"> · '
        '<a href="../../r%201/model_card/model_card.html">&lt;script&gt;alert(1)&lt;/script&gt;'
        '</a></span></p><p class="kind">b</p>'
    )
    assert "related" not in earlier.read_text()
    insert_related_links(page, [CardLink("new", "r2", "model_card")])
    assert page.read_text().count("<a ") == 1 and ">new</a>" in page.read_text()
    insert_related_links(page, [])
    assert page.read_text() == earlier.read_text()
