"""Signals of identities, dialects and lengths, and user-supplied lexicons."""

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


def compute_signals(config=None, parts=1, texts=TEXTS):
    result = find_identities(given(texts, parts=parts), config or IdentitiesConfig())
    return result["signals"].read()


def test_each_document_has_groups_mentions_dialects_and_a_length_class(session):
    rows = compute_signals().to_pylist()
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
def test_length_classes_begin_at_the_configured_bounds(session, size, name):
    rows = compute_signals(
        IdentitiesConfig(length_bounds_bytes=(10, 20)), texts=["é" * (size // 2) + "x" * (size % 2)]
    )
    assert rows["length_class"].to_pylist() == [name]


def test_signals_do_not_depend_on_partitions(session):
    texts = [f"{TEXTS[i % 4]} {i}" for i in range(40)]
    whole, partitioned = (
        compute_signals(parts=parts, texts=texts).sort_by("doc_id") for parts in (1, 4)
    )
    assert whole.equals(partitioned)


def test_user_lexicons_are_added_to_the_built_in_one(session, tmp_path):
    path = tmp_path / "town.json"
    path.write_text(json.dumps({"Lowbridgers": ["lowbridger", "lowbridgers"]}))
    config = IdentitiesConfig(lexicons=(path,))
    result = find_identities(given(["A woman and two Lowbridgers."]), config)
    rows = result["signals"].read().to_pylist()
    assert rows[0]["identities"] == ["women", "Lowbridgers"] and rows[0]["identity_mentions"] == 2
    path.write_text(json.dumps({"Lowbridgers": ["bridge"]}))
    changed = find_identities(given(["A woman and two Lowbridgers."]), config)
    assert changed["signals"].read()["identities"].to_pylist() == [["women"]]
    with pytest.raises(HallmarkError, match=r"lexicon .*none\.json cannot be read"):
        find_identities(given(TEXTS), IdentitiesConfig(lexicons=(tmp_path / "none.json",)))


def test_the_lexicon_of_the_town_is_used_only_if_configured(session):
    texts = ["Two Orvelings and a tamsker met.", "Nobody met."]
    for lexicons, expected in (((), [[], []]), (("town",), [["Orvelings", "Tamskers"], []])):
        documents = given(texts)
        result = find_identities(documents, IdentitiesConfig(lexicons=lexicons))
        groups_by_id = {r["doc_id"]: r["identities"] for r in result["signals"].read().to_pylist()}
        rows = documents["documents"].read(["doc_id", "text"]).to_pylist()
        assert {r["text"]: groups_by_id[r["doc_id"]] for r in rows} == dict(
            zip(texts, expected, strict=True)
        )


def test_user_lexicons_are_loaded_from_the_artifact_of_the_stage(session, tmp_path):
    first_path, second_path = tmp_path / "left.json", tmp_path / "up.json"
    first_path.write_text(json.dumps({"Righties": ["righty", "right one"], "Lefties": ["lefty"]}))
    second_path.write_text(json.dumps({"Lefties": ["upper"]}))
    documents = given(["A lefty met an upper."])
    result = find_identities(documents, IdentitiesConfig(lexicons=(second_path, first_path)))
    lexicons = load_user_lexicons({"raw": documents, "who": result})
    assert lexicons == read_user_lexicons((second_path, first_path)) and [*lexicons] == [
        "up",
        "left",
    ]
    assert [*lexicons["left"].items()] == [
        ("Righties", ["righty", "right one"]),
        ("Lefties", ["lefty"]),
    ]
    assert load_user_lexicons({"raw": documents}) == {}
