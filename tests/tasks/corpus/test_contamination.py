"""Contamination: overlaps with evaluation sets are found, counted and removed by a rule."""

import gzip
import json
import random

import pytest

from hallmark.tasks.contract import UsageError
from hallmark.tasks.corpus import contamination as module
from hallmark.tasks.corpus.contamination import ContaminationConfig, find_contamination
from hallmark.tasks.corpus.select import SelectConfig, select_documents
from tests.tasks.corpora import given

RNG = random.Random(4)
ITEMS = [" ".join(f"w{RNG.randrange(10**6)}" for _ in range(20)) for _ in range(5)]


@pytest.fixture
def sets(tmp_path):
    """A compressed set with two text fields, and a set of short sentences."""
    long_path = tmp_path / "long.jsonl.gz"
    rows = [{"prompt": {"text": i}, "rest": f"{i[::-1]} more words here"} for i in ITEMS]
    long_path.write_bytes(gzip.compress("".join(json.dumps(r) + "\n" for r in rows).encode()))
    short_path = tmp_path / "short.tsv"
    short_path.write_text("id\tsent\n1\tThe cat sat on it.\n2\tNo.\n")
    return (
        {"name": "long", "path": long_path, "text_fields": ["prompt.text", "rest"]},
        {"name": "short", "path": short_path, "text_fields": ["sent"]},
    )


def test_overlaps_are_counted_named_and_removed(session, sets):
    passage = " ".join(ITEMS[2].split()[3:16])
    texts = [f"before {passage} after", f"He wrote: the CAT sat on it! {ITEMS[0]}", "nothing", ""]
    documents = given(texts, parts=2)
    result = find_contamination(documents, ContaminationConfig(evaluation_sets=sets))
    document_rows = documents["documents"].read().to_pylist()
    text_by_id = {row["doc_id"]: row["text"] for row in document_rows}
    signals = result["signals"].read().to_pylist()
    assert [text_by_id[r["doc_id"]] for r in signals] == [row["text"] for row in document_rows]
    assert {text_by_id[r["doc_id"]]: r["contamination"] for r in signals} == dict(
        zip(texts, (1, 2, 0, 0), strict=True)
    )
    overlaps = {
        (text_by_id[r["doc_id"]], r["evaluation_set"], r["item_index"])
        for r in result["item_overlaps"].read().to_pylist()
    }
    assert overlaps == {(texts[0], "long", 4), (texts[1], "long", 0), (texts[1], "short", 0)}
    assert result["evaluation_sets"].read().to_pylist() == [
        {"evaluation_set": "long", "items": 10, "skipped_items": 0, "overlapping_documents": 2},
        {"evaluation_set": "short", "items": 2, "skipped_items": 1, "overlapping_documents": 1},
    ]
    selection = select_documents(
        documents, {"contamination": result}, SelectConfig(rules={"contamination": {"lt": 1}})
    )
    assert sorted(selection["documents"].read()["text"].to_pylist()) == ["", "nothing"]
    ledger = selection["ledger"].read().to_pylist()
    assert {(r["reason"], r["score"]) for r in ledger} == {
        ("contamination", 1),
        ("contamination", 2),
    }


def test_an_edited_set_is_searched_for_again(session, sets):
    documents = given(["the cat sat on it", "the dog sat on it"])
    config = ContaminationConfig(evaluation_sets=sets[1:])
    before = find_contamination(documents, config)
    sets[1]["path"].write_text("id\tsent\n1\tThe dog sat on it.\n")
    after = find_contamination(documents, config)
    assert before.fingerprint != after.fingerprint
    counts = [result["signals"].read()["contamination"].to_pylist() for result in (before, after)]
    assert counts in ([[1, 0], [0, 1]], [[0, 1], [1, 0]])


def test_settings_determine_how_many_words_are_an_overlap(session, sets):
    documents = given(["the cat", "the cat sat on", "sat", "no dog"])

    def count_overlaps(**settings):
        result = find_contamination(
            documents, ContaminationConfig(evaluation_sets=sets[1:], **settings)
        )
        (row,) = result["evaluation_sets"].read().to_pylist()
        return result["signals"].read()["contamination"].to_pylist(), row["skipped_items"]

    assert count_overlaps() == ([0, 0, 0, 0], 1)
    assert count_overlaps(ngram_size=4) == ([0, 1, 0, 0], 1)
    assert count_overlaps(ngram_size=2, min_item_words=2) == ([1, 1, 0, 0], 1)
    assert count_overlaps(ngram_size=1, min_item_words=1) == ([1, 1, 1, 1], 0)


def test_items_of_four_words_are_searched_for_and_items_of_three_are_not(session, sets):
    sets[1]["path"].write_text("id\tsent\n1\tA red fox ran.\n2\tA red fox.\n")
    result = find_contamination(
        given(["so a red fox ran"]), ContaminationConfig(evaluation_sets=sets[1:])
    )
    assert result["item_overlaps"].read()["item_index"].to_pylist() == [0]
    assert result["evaluation_sets"].read()["skipped_items"].to_pylist() == [1]


def test_a_config_survives_a_round_trip_through_json(sets):
    config = ContaminationConfig(evaluation_sets=sets, ngram_size=5, min_item_words=5)
    assert ContaminationConfig.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    "settings",
    [
        {"ngram_size": 3},
        {"ngram_size": 5, "min_item_words": 6},
        {"min_item_words": 0},
        {"ngram_size": 101},
        {"ngram_size": 101, "min_item_words": 101},
    ],
)
def test_word_counts_out_of_range_are_rejected(settings):
    with pytest.raises(
        ValueError,
        match=r"'min_item_words' must not be greater than 'ngram_size'|greater than|less than",
    ):
        ContaminationConfig(**settings)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("id\tsent\n1\t\n", "line 2 must have text in 'sent'"),
        (
            "id\tother\n1\tx\n",
            r"line 2 must have text in 'sent', not None; its fields are 'id', 'other'; correct the "
            r"file, or correct 'text_fields' of 'short' in contamination\.evaluation_sets$",
        ),
        ("", "has no items of short"),
        (None, "there is no file"),
    ],
)
def test_an_unreadable_set_is_named_in_the_error(session, sets, content, message):
    path = sets[1]["path"]
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=message):
        find_contamination(given(["a"]), ContaminationConfig(evaluation_sets=sets[1:]))


def test_two_sets_with_the_same_name_are_rejected(sets):
    with pytest.raises(ValueError, match="two evaluation sets have the same name"):
        ContaminationConfig(evaluation_sets=[sets[0], {**sets[1], "name": "long"}])


def test_each_of_many_sets_is_read_once_for_all_partitions(session, tmp_path, monkeypatch):
    """Every partition searches for all sets, one after another."""
    paths = [tmp_path / f"{number:03}.jsonl" for number in range(70)]
    for path in paths:
        path.write_text(json.dumps({"text": f"an item of the set {path.stem}"}) + "\n")
    read_paths = []
    read_items = module.read_items

    def record_path(path, content_name):
        read_paths.append(path)
        return read_items(path, content_name)

    monkeypatch.setattr(module, "read_items", record_path)
    config = ContaminationConfig(
        evaluation_sets=[{"name": path.stem, "path": path} for path in paths]
    )
    result = find_contamination(given(["here is an item of the set 069"] * 4, parts=4), config)
    assert result["evaluation_sets"].read()["overlapping_documents"].to_pylist() == [0] * 69 + [4]
    assert read_paths == paths
