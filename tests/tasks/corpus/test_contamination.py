"""Contamination: overlaps with evaluation sets are found, counted and removed by a rule."""

import gzip
import json
import random
import tomllib
from pathlib import Path

import pytest

from hallmark.tasks.contract import UsageError
from hallmark.tasks.corpus import contamination as module
from hallmark.tasks.corpus.contamination import (
    ContaminationConfig,
    check_evaluation_sets,
    find_contamination,
)
from hallmark.tasks.corpus.select import SelectConfig, select_documents
from tests.tasks.corpora import given

RNG = random.Random(4)
SENTENCE = "The cat sat on it, and the old dog slept under the table."  # 13 words
ITEMS = [" ".join(f"w{RNG.randrange(10**6)}" for _ in range(20)) for _ in range(5)]


@pytest.fixture
def sets(tmp_path):
    """A compressed set with two text fields, and a set of sentences."""
    long_path = tmp_path / "long.jsonl.gz"
    rows = [{"prompt": {"text": i}, "rest": f"{i[::-1]} more words here"} for i in ITEMS]
    long_path.write_bytes(gzip.compress("".join(json.dumps(r) + "\n" for r in rows).encode()))
    short_path = tmp_path / "short.tsv"
    short_path.write_text(f"id\tsent\n1\t{SENTENCE}\n2\tNo.\n")
    return (
        {"name": "long", "path": long_path, "text_fields": ["prompt.text", "rest"]},
        {"name": "short", "path": short_path, "text_fields": ["sent"]},
    )


def test_overlaps_are_counted_named_and_removed(session, sets):
    passage = " ".join(ITEMS[2].split()[3:16])
    texts = [f"before {passage} after", f"He wrote: {SENTENCE.upper()} {ITEMS[0]}", "nothing", ""]
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
    assert overlaps == {(texts[0], "long", 2), (texts[1], "long", 0), (texts[1], "short", 0)}
    assert result["evaluation_sets"].read().to_pylist() == [
        {
            "evaluation_set": "long",
            "items": 5,
            "skipped_items": 0,
            "short_texts": 0,
            "empty_fields": 0,
            "overlapping_documents": 2,
        },
        {
            "evaluation_set": "short",
            "items": 2,
            "skipped_items": 1,
            "short_texts": 1,
            "empty_fields": 0,
            "overlapping_documents": 1,
        },
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


@pytest.mark.parametrize("other_count", [0, 9])
def test_overlaps_are_divided_like_the_documents(session, sets, other_count):
    """Most parts have no overlaps or no documents, and a part has those of its documents."""
    documents = given([SENTENCE, *(f"nothing {number}" for number in range(other_count))], parts=4)
    result = find_contamination(documents, ContaminationConfig(evaluation_sets=sets))
    assert len(documents["documents"].parts) == len(result["item_overlaps"].parts) > 1
    for documents_part, overlaps_part in zip(
        documents["documents"].parts, result["item_overlaps"].parts, strict=True
    ):
        part_ids = {row["doc_id"] for row in documents_part.read().to_pylist()}
        assert {row["doc_id"] for row in overlaps_part.read().to_pylist()} <= part_ids


def test_an_edited_set_is_searched_for_again(session, sets):
    documents = given([SENTENCE, SENTENCE.replace("cat", "fox")])
    config = ContaminationConfig(evaluation_sets=sets[1:])
    before = find_contamination(documents, config)
    sets[1]["path"].write_text(f"id\tsent\n1\t{SENTENCE.replace('cat', 'fox')}\n")
    after = find_contamination(documents, config)
    assert before.fingerprint != after.fingerprint
    counts = [result["signals"].read()["contamination"].to_pylist() for result in (before, after)]
    assert counts in ([[1, 0], [0, 1]], [[0, 1], [1, 0]])


def test_the_ngram_size_determines_what_is_an_overlap(session, sets):
    documents = given(["the cat", "the cat sat on", "sat", "no dog"])

    def count_overlaps(ngram_size):
        result = find_contamination(
            documents, ContaminationConfig(evaluation_sets=sets[1:], ngram_size=ngram_size)
        )
        (row,) = result["evaluation_sets"].read().to_pylist()
        return result["signals"].read()["contamination"].to_pylist(), row["skipped_items"]

    assert count_overlaps(13) == ([0, 0, 0, 0], 1)
    assert count_overlaps(14) == ([0, 0, 0, 0], 2)
    assert count_overlaps(4) == ([0, 1, 0, 0], 1)
    assert count_overlaps(2) == ([1, 1, 0, 0], 1)
    assert count_overlaps(1) == ([1, 1, 1, 2], 0)


#: Small inputs on which other tools, or earlier versions, failed.
CASES = Path(__file__).parents[2] / "cases" / "corpus" / "contamination"


def find_case_overlaps(name):
    """Return the keys of the documents that overlap, and the counts of each set."""
    config = tomllib.loads((CASES / f"{name}.toml").read_text())["contamination"]
    for evaluation_set in config["evaluation_sets"]:
        evaluation_set["path"] = CASES / evaluation_set["path"]
    rows = [json.loads(line) for line in (CASES / "a.jsonl").read_text().splitlines()]
    keys_by_text = {row["text"]: row["id"] for row in rows}
    documents = given([*keys_by_text])
    result = find_contamination(documents, ContaminationConfig(**config))
    texts = documents["documents"].read()["text"].to_pylist()
    counts = result["signals"].read()["contamination"].to_pylist()
    overlapping = {keys_by_text[t] for t, count in zip(texts, counts, strict=True) if count}
    columns = ("items", "skipped_items", "short_texts", "empty_fields")
    return overlapping, {
        row["evaluation_set"]: tuple(row[column] for column in columns)
        for row in result["evaluation_sets"].read().to_pylist()
    }


def test_short_answers_remove_no_document(session):
    overlapping, counts = find_case_overlaps("mc")
    assert not {"noneabove", "zh", "zh2", "math", "notcase", "digits", "good"} & overlapping
    assert overlapping == {"soft", "coop2"}
    assert counts == {"mc": (6, 6, 6, 0), "he": (4, 1, 1, 0)}


def test_an_empty_field_is_skipped_and_counted(session):
    assert find_case_overlaps("hs") == (set(), {"hs": (2, 1, 2, 1)})


def test_choices_in_a_list_are_compared_with_their_question(session):
    assert find_case_overlaps("list") == (set(), {"l": (1, 0, 2, 0)})


@pytest.mark.parametrize(("name", "is_overlap"), [("stock_choices", 0), ("leaked_choices", 1)])
def test_leaked_items_remove_documents_and_stock_choices_do_not(session, name, is_overlap):
    rows = [json.loads(line) for line in (CASES / f"{name}.jsonl").read_text().splitlines()]
    evaluation_set = {
        "name": name,
        "path": CASES / f"{name}.jsonl",
        "text_fields": ("question", "choices"),
    }
    result = find_contamination(
        given([row["text"] for row in rows]), ContaminationConfig(evaluation_sets=[evaluation_set])
    )
    counts = result["signals"].read()["contamination"].to_pylist()
    assert [count > 0 for count in counts] == [bool(is_overlap)] * len(rows) and len(rows) >= 10


def write_set(path, items):
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


def read_set_counts(path, **settings):
    """Return the row of a set in the table, and the documents that overlap with it."""
    texts = settings.pop("texts", ["nothing"])
    config = ContaminationConfig(evaluation_sets=[{"name": "s", "path": path, **settings}])
    documents = given(texts)
    result = find_contamination(documents, config)
    (row,) = result["evaluation_sets"].read().to_pylist()
    return row, result["signals"].read()["contamination"].to_pylist()


def test_choices_in_objects_and_numbers_are_compared_with_the_question(session, tmp_path):
    question = "How many miles is it from the mill to the old bridge?"  # 12 words
    choices = [{"label": "A", "text": 12}, {"label": "B", "text": "thirteen and a half"}]
    items = [{"q": question, "c": choices}, {"q": "Why?", "c": [{"label": "A", "text": None}]}]
    path = write_set(tmp_path / "s.jsonl", [*items, {"q": "Why?", "c": []}])
    texts = [question, f"{question} 12", f"{question} Thirteen, and a half.", f"{question} 13"]
    row, counts = read_set_counts(path, texts=texts, text_fields=("q", "c.text"))
    assert counts == [0, 1, 1, 0]
    assert (row["items"], row["skipped_items"]) == (3, 2)
    assert (row["short_texts"], row["empty_fields"]) == (5, 2)


def test_a_list_as_the_first_field_is_no_question(session, tmp_path):
    choices = ["All of the above are true", "None of the above are true", "It is not the case"]
    question = "Choose the right answer."
    path = write_set(tmp_path / "s.jsonl", [{"c": choices, "q": question}])
    texts = [" ".join(choices), f"{' '.join(choices)} {question}"]
    row, counts = read_set_counts(path, texts=texts, text_fields=("c", "q"))
    assert counts == [0, 0] and row["skipped_items"] == 1
    row, counts = read_set_counts(path, texts=texts, text_fields=("q", "c"))
    assert counts == [0, 0] and row["skipped_items"] == 0  # the question comes first


#: Records of public evaluation sets in their layout, with invented texts: the fields to compare,
#: a text with the item, and one with its answers only.
QUESTION = "Which animal of the old mill sleeps under the table all day?"  # 12 words
LAYOUTS = {
    "mmlu": (
        {"question": QUESTION, "choices": ["The cat", "The dog"], "answer": 1},
        ("question", "choices"),
    ),
    "arc": (
        {"question": QUESTION, "choices": {"text": ["The cat", "The dog"], "label": ["A", "B"]}},
        ("question", "choices.text"),
    ),
    "hellaswag": (
        {"ctx_a": QUESTION, "ctx_b": "", "endings": ["The cat", "The dog"]},
        ("ctx_a", "ctx_b", "endings"),
    ),
    "openbookqa": (
        {"question": {"stem": QUESTION, "choices": [{"text": "The cat"}, {"text": "The dog"}]}},
        ("question.stem", "question.choices.text"),
    ),
    "triviaqa": (
        {"question": QUESTION, "answer": {"value": "The cat", "aliases": ["The dog", None]}},
        ("question", "answer.value", "answer.aliases"),
    ),
    "squad": (
        {"question": QUESTION, "answers": {"text": ["The cat", "The dog"], "answer_start": [3, 9]}},
        ("question", "answers.text"),
    ),
    "piqa": ({"goal": QUESTION, "sol1": "The cat", "sol2": "The dog"}, ("goal", "sol1", "sol2")),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_public_sets_are_compared(session, tmp_path, layout):
    item, text_fields = LAYOUTS[layout]
    other_items = [{"ctx_a": "Why?", "ctx_b": "It is"}] if layout == "hellaswag" else []
    path = write_set(tmp_path / "s.jsonl", [item, *other_items])
    texts = [f"{QUESTION} {answer}" for answer in ("The cat", "the dog!", "A. The cat. B. The dog")]
    others = ["The cat. The dog.", QUESTION, f"{QUESTION} Neither of them."]
    _, counts = read_set_counts(path, texts=[*texts, *others], text_fields=text_fields)
    assert counts == [1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize("empty", ["", "  ", None, [], [""], [None, " "]])
def test_empty_fields_are_skipped_and_counted(session, tmp_path, empty):
    items = [{"a": SENTENCE, "b": empty}, {"a": empty, "b": SENTENCE}, {"a": "x", "b": "y"}, {}]
    path = write_set(tmp_path / "s.jsonl", items)
    row, counts = read_set_counts(path, texts=[SENTENCE, "x y"], text_fields=("a", "b"))
    assert counts == [2, 0]
    assert (row["items"], row["skipped_items"], row["empty_fields"]) == (4, 2, 4)


def test_a_set_of_short_items_is_warned_of(tmp_path, caplog):
    path = write_set(tmp_path / "s.jsonl", [{"text": "None of the above"}] * 2)
    config = ContaminationConfig(evaluation_sets=[{"name": "mc", "path": path}])
    check_evaluation_sets(config)
    assert caplog.messages == [
        "contamination: none of the 2 items in the evaluation set 'mc' can be searched for, "
        "because each has fewer than 13 words, or has only short choices and a question with fewer "
        "than four words; add the question field to 'text_fields', or lower "
        "contamination.ngram_size"
    ]
    caplog.clear()
    check_evaluation_sets(config.model_copy(update={"ngram_size": 4}))
    check_evaluation_sets(ContaminationConfig())
    assert not caplog.messages


def test_a_config_survives_a_round_trip_through_json(sets):
    config = ContaminationConfig(evaluation_sets=sets, ngram_size=5)
    assert ContaminationConfig.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    "settings",
    [
        {"ngram_size": 0},
        {"ngram_size": 101},
        {"min_item_words": 4},
    ],
)
def test_word_counts_out_of_range_are_rejected(settings):
    with pytest.raises(ValueError, match=r"greater than|less than|Extra inputs"):
        ContaminationConfig(**settings)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("id\tsent\n1\t\n", "has no text in 'sent'; its fields are 'id', 'sent'; correct"),
        (
            "id\tother\n1\tx\n",
            r"short\.tsv has no text in 'sent'; its fields are 'id', 'other'; correct the "
            r"file, or the 'text_fields' setting of 'short' in contamination\.evaluation_sets$",
        ),
        ("id\tsent\n1\ta\0b\n", "line 2 has a NUL character in 'sent'"),
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
    with pytest.raises(UsageError, match=message):
        check_evaluation_sets(ContaminationConfig(evaluation_sets=sets[1:]))


def test_two_sets_with_the_same_name_are_rejected(sets):
    with pytest.raises(ValueError, match="two evaluation sets have the same name"):
        ContaminationConfig(evaluation_sets=[sets[0], {**sets[1], "name": "long"}])


def test_each_of_many_sets_is_read_once_for_all_partitions(session, tmp_path, monkeypatch):
    """Every partition searches for all sets, one after another."""
    paths = [tmp_path / f"{number:03}.jsonl" for number in range(70)]
    for path in paths:
        path.write_text(json.dumps({"text": f"{SENTENCE} This is set {path.stem}."}) + "\n")
    read_paths = []
    read_items = module.read_items

    def record_path(path, content_name):
        read_paths.append(path)
        return read_items(path, content_name)

    monkeypatch.setattr(module, "read_items", record_path)
    config = ContaminationConfig(
        evaluation_sets=[{"name": path.stem, "path": path} for path in paths]
    )
    result = find_contamination(
        given(["it, and the old dog slept under the table. This is set 069."] * 4, parts=4), config
    )
    assert result["evaluation_sets"].read()["overlapping_documents"].to_pylist() == [0] * 69 + [4]
    assert read_paths == paths
