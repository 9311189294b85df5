"""The signals of whom a document mentions."""

import json

import pytest

from hallmark.tasks.contract import HallmarkError
from hallmark.tasks.corpus.identities import (
    IdentitiesConfig,
    find_identities,
    load_user_lexicons,
    read_user_lexicons,
)
from tests.tasks.corpora import given

TEXTS = [
    "Two women and a Muslim baker met. The women left.",
    "The walls are white.",
    "",
    "They be talking, y'all. " + "x" * 300,
]


def signals(config=None, parts=1, texts=TEXTS):
    made = find_identities(given(texts, parts=parts), config or IdentitiesConfig())
    return made["signals"].read()


def test_each_document_has_its_groups_mentions_dialects_and_length(session):
    rows = signals().to_pylist()
    assert [row["identities"] for row in rows] == [["women", "Muslims"], [], [], []]
    assert [row["identity_mentions"] for row in rows] == [3, 0, 0, 0]
    assert rows[3]["dialects"] == ["African-American English", "Southern American English"]
    assert [row["dialect_markers"] for row in rows] == [0, 0, 0, 2]
    lengths = [row["length_class"] for row in rows]
    assert lengths == ["under 200 bytes"] * 3 + ["200 to 999 bytes"]


@pytest.mark.parametrize(
    ("size", "name"),
    [
        (9, "under 10 bytes"),
        (10, "10 to 19 bytes"),
        (19, "10 to 19 bytes"),
        (20, "20 bytes or more"),
    ],
)
def test_classes_of_length_begin_where_the_config_says(session, size, name):
    rows = signals(
        IdentitiesConfig(length_bounds_bytes=(10, 20)), texts=["é" * (size // 2) + "x" * (size % 2)]
    )
    assert rows["length_class"].to_pylist() == [name]


def test_signals_do_not_depend_on_the_parts(session):
    texts = [f"{TEXTS[i % 4]} {i}" for i in range(40)]
    one, four = (signals(parts=parts, texts=texts).sort_by("doc_id") for parts in (1, 4))
    assert one.equals(four)


def test_a_lexicon_of_the_config_counts_beside_our_own(session, tmp_path):
    path = tmp_path / "town.json"
    path.write_text(json.dumps({"Lowbridgers": ["lowbridger", "lowbridgers"]}))
    config = IdentitiesConfig(lexicons=(path,))
    made = find_identities(given(["A woman and two Lowbridgers."]), config)
    rows = made["signals"].read().to_pylist()
    assert rows[0]["identities"] == ["women", "Lowbridgers"] and rows[0]["identity_mentions"] == 2
    path.write_text(json.dumps({"Lowbridgers": ["bridge"]}))
    again = find_identities(given(["A woman and two Lowbridgers."]), config)
    assert again["signals"].read()["identities"].to_pylist() == [["women"]]
    with pytest.raises(HallmarkError, match=r"lexicon .*none\.json: cannot be read"):
        find_identities(given(TEXTS), IdentitiesConfig(lexicons=(tmp_path / "none.json",)))


def test_the_peoples_of_the_town_are_groups_where_its_lexicon_is_named(session):
    texts = ["Two Orvelings and a tamsker met.", "Nobody met."]
    for lexicons, found in (((), [[], []]), (("town",), [["Orvelings", "Tamskers"], []])):
        documents = given(texts)
        made = find_identities(documents, IdentitiesConfig(lexicons=lexicons))
        by_id = {r["doc_id"]: r["identities"] for r in made["signals"].read().to_pylist()}
        entered = documents["documents"].read(["doc_id", "text"]).to_pylist()
        assert {r["text"]: by_id[r["doc_id"]] for r in entered} == dict(
            zip(texts, found, strict=True)
        )


def test_the_lexicons_that_a_corpus_brought_are_read_from_what_the_stage_left(session, tmp_path):
    left, up = tmp_path / "left.json", tmp_path / "up.json"
    left.write_text(json.dumps({"Righties": ["righty", "right one"], "Lefties": ["lefty"]}))
    up.write_text(json.dumps({"Lefties": ["upper"]}))
    raw = given(["A lefty met an upper."])
    made = find_identities(raw, IdentitiesConfig(lexicons=(up, left)))
    found = load_user_lexicons({"raw": raw, "who": made})
    assert found == read_user_lexicons((up, left)) and [*found] == ["up", "left"]
    assert [*found["left"].items()] == [
        ("Righties", ["righty", "right one"]),
        ("Lefties", ["lefty"]),
    ]
    assert load_user_lexicons({"raw": raw}) == {}
