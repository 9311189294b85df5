"""Test rows of a task: reading, validation, splits and encoding."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hallmark.model.config import ModelConfig
from hallmark.model.training.examples import NO_LABEL
from hallmark.tasks.contract import HallmarkError, UsageError
from hallmark.tasks.training import table_files
from hallmark.tasks.training.table_files import RawRow, read_table_rows
from hallmark.tasks.training.task_rows import (
    ClassificationTask,
    PairsTask,
    TaskDataConfig,
    TaskRow,
    WordLabellingTask,
    encode_rows,
    join_sentences,
    read_task_rows,
)
from hallmark.tasks.training.train_tokenizer import TokenizerConfig, train_tokenizer_by_kind

ROWS = [["ein Hund, ja", "a dog"], ['"zwei"\nZeilen', "two lines"], ["drei", ""]]


def write_table(path, header, rows):
    if path.suffix == ".parquet":
        columns = zip(*rows, strict=True)
        pq.write_table(pa.table(dict(zip(header, map(list, columns), strict=True))), path)
    elif path.suffix == ".jsonl":
        lines = (json.dumps(dict(zip(header, row, strict=True))) for row in rows)
        path.write_text("\n".join(lines) + "\n")
    else:
        mark = "\t" if path.suffix == ".tsv" else ","
        quoted = [['"' + v.replace('"', '""') + '"' for v in row] for row in [header, *rows]]
        path.write_text("\n".join(mark.join(row) for row in quoted) + "\n")
    return path


@pytest.mark.parametrize(
    ("stray", "error"),
    [
        ('"red,colour', "a quote is not closed"),  # It extends over all that follows.
        (
            'red,"colour',
            "a quote is not closed",
        ),  # The result would be a row with the right number of fields.
        ('"red" wine,drink', "not a valid row"),
    ],
)
def test_a_stray_quote_affects_only_its_line(tmp_path, stray, error):
    lines = ["text,label", *(f"word {i},thing" for i in range(2000)), '"two\nlines",thing']
    lines[11] = stray
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    rows = list(read_table_rows(tmp_path / "t.csv", ["text", "label"]))
    assert [row.row_number for row in rows] == list(range(1, 2002))
    assert rows[10].error.startswith(error) and rows[10].values == []
    assert [row.values[0] for row in rows if row.row_number != 11] == [
        *(f"word {i}" for i in range(2000) if i != 10),
        "two\nlines",
    ]


def test_an_empty_file_is_rejected(tmp_path):
    (tmp_path / "t.csv").write_text("")
    with pytest.raises(HallmarkError, match=r"t\.csv is empty"):
        list(read_table_rows(tmp_path / "t.csv", ["text"]))


@pytest.mark.parametrize("ending", ["parquet", "csv", "tsv", "jsonl"])
def test_every_format_gives_the_same_rows(tmp_path, ending):
    path = write_table(tmp_path / f"t.{ending}", ["de", "en"], ROWS)
    assert list(read_table_rows(path, ["en", "de"])) == [
        RawRow(i, [en, de]) for i, (de, en) in enumerate(ROWS, 1)
    ]
    with pytest.raises(
        HallmarkError, match=r"has no column 'fr'; its columns are 'de', 'en'; correct"
    ):
        list(read_table_rows(path, ["de", "fr"]))
    with pytest.raises(
        HallmarkError, match=r"'enn'; its columns are .* \(did you mean en\?\); correct"
    ):
        list(read_table_rows(path, ["de", "enn"]))


def test_reading_continues_after_an_invalid_row(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "MAX_FIELD_CHARACTERS", 1_000)
    (tmp_path / "t.csv").write_bytes(
        b"a,b\n1,2\n1,2,3\n\xff,4\n5,6\n" + b"x" * 2_000 + b",7\n8,9\n" + b"y" * 1_000 + b",1"
    )
    rows_read = list(read_table_rows(tmp_path / "t.csv", ["a", "b"]))
    assert [(row.row_number, bool(row.error)) for row in rows_read] == [
        (1, False),
        (2, True),
        (3, False),
        (4, False),
        (5, True),
        (6, False),
        (7, False),
    ]
    assert rows_read[4].error == "the row has a field with more than 1,000 characters"
    assert rows_read[1].error == "the row has 3 fields, but the header has 2 fields"
    (tmp_path / "t.jsonl").write_bytes(b'{"a": 1}\n[1]\n{"a": \n' + b"[" * 5000 + b'\n\n{"a": 2}')
    rows_read = list(read_table_rows(tmp_path / "t.jsonl", ["a"]))
    assert [(row.row_number, row.error) for row in rows_read] == [
        (1, ""),
        (2, "not a JSON object"),
        (3, "not a JSON object"),
        (4, "not a JSON object"),
        (6, ""),
    ]
    (tmp_path / "t.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(HallmarkError, match="damaged at its beginning"):
        list(read_table_rows(tmp_path / "t.parquet", ["a"]))
    with pytest.raises(UsageError, match=r"ends with one of \.parquet"):
        list(read_table_rows(tmp_path / "t.xls", ["a"]))


@pytest.mark.parametrize(
    ("task", "row", "reason"),
    [
        (PairsTask(), ["x", None], "no target"),
        (PairsTask(), [" \n", "x"], "no source"),
        (PairsTask(), [["x"], "x"], "the source is not text"),
        (PairsTask(), ["x", "\ud800"], "the target cannot be encoded as UTF-8"),
        (
            PairsTask(),
            ["x" * (1 << 20) + "x", "x"],
            "the source has more than 1,048,576 characters",
        ),
        (ClassificationTask(), ["x", None], "no label"),
        (ClassificationTask(second_text_column="s"), ["x", "", "y"], "no second sentence"),
        (WordLabellingTask(), [["a", "b"], ["X"]], "the row has 2 words but 1 label"),
        (WordLabellingTask(), [["a", ""], ["X", "Y"]], "no word"),
        (WordLabellingTask(), [["a"], [None]], "no label"),
        (WordLabellingTask(), [{"a": 1}, "X"], "the words are not a list"),
    ],
)
def test_unusable_rows_are_rejected_with_a_reason(tmp_path, task, row, reason):
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(dict(zip(task.columns, row, strict=True))) + "\n")
    rows_read = read_task_rows(task, TaskDataConfig(path=str(path)))
    assert (rows_read.usable_rows, rows_read.rejected_rows) == ([], [("t.jsonl", 1, reason)])


def test_labels_can_be_numbers_and_words_are_split_at_spaces(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"text": "x", "label": 3}\n{"text": "y", "label": true}\n')
    rows = read_task_rows(
        ClassificationTask(), TaskDataConfig(path=str(tmp_path / "t.jsonl"))
    ).usable_rows
    assert [row.gold for row in rows] == [["3"], ["true"]]
    (tmp_path / "t.csv").write_text("words,labels\nthe cat,D N\n")
    [row] = read_task_rows(
        WordLabellingTask(), TaskDataConfig(path=str(tmp_path / "t.csv"))
    ).usable_rows
    assert (row.texts, row.gold) == (["the", "cat"], ["D", "N"])


def test_splits_keep_groups_together_and_have_the_given_shares(tmp_path):
    rows = [[f"text {i % 1000}", f"y{i}", f"g{i % 200}"] for i in range(3000)]
    path = write_table(tmp_path / "t.parquet", ["source", "target", "who"], rows)
    by_text = read_task_rows(PairsTask(), TaskDataConfig(path=str(path))).usable_rows
    splits = {row.texts[0]: row.split for row in by_text}
    assert all(splits[row.texts[0]] == row.split for row in by_text)
    share = [list(splits.values()).count(name) / 1000 for name in ("train", "validation", "test")]
    assert share == pytest.approx([0.7, 0.1, 0.2], abs=0.05)
    grouped = read_task_rows(
        PairsTask(), TaskDataConfig(path=str(path), group_column="who")
    ).usable_rows
    assert len({(rows[row.row_number - 1][2], row.split) for row in grouped}) == 200
    assert all(row.group == rows[row.row_number - 1][2] for row in grouped)
    assert not any(row.group for row in by_text)
    shuffled = random.Random(1).sample(rows, len(rows))
    again = write_table(tmp_path / "u.parquet", ["source", "target", "who"], shuffled)
    assert {
        row.texts[0]: row.split
        for row in read_task_rows(PairsTask(), TaskDataConfig(path=str(again))).usable_rows
    } == splits
    other = read_task_rows(PairsTask(), TaskDataConfig(path=str(path), seed=1)).usable_rows
    assert {row.texts[0]: row.split for row in other} != splits


def test_a_separate_file_is_a_whole_split(tmp_path):
    for name in ("train", "validation", "test"):
        rows = [[f"{name} {i}", "y"] for i in range(50)]
        write_table(tmp_path / f"{name}.csv", ["source", "target"], rows)
    files = {f"{name}_path": str(tmp_path / f"{name}.csv") for name in ("validation", "test")}
    rows_read = read_task_rows(
        PairsTask(), TaskDataConfig(path=str(tmp_path / "train.csv"), **files)
    ).usable_rows
    assert all(row.texts[0].startswith(row.split) for row in rows_read) and len(rows_read) == 150


# Encoding ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer():
    texts = ["the old cat sees a quiet duck", "a cat in the garden"] * 5
    return train_tokenizer_by_kind(iter([texts]), TokenizerConfig(vocab_size=320))


def build_model_config(tokenizer, architecture, context=24, **more):
    size = tokenizer.get_vocab_size()
    return ModelConfig(vocab_size=size, context=context, architecture=architecture, **more)


LABELS = {"labels": ("DET", "NOUN", "VERB"), "tie_embeddings": False}


def test_a_words_label_is_at_its_first_token_or_for_a_decoder_at_its_last(tokenizer):
    row = TaskRow("f", 1, "train", ["the", "qqq", "sees"], ["DET", "NOUN", "VERB"])
    sizes = [len(tokenizer.encode(f" {word}").ids) for word in row.texts]
    assert sizes[1] > 1
    starts = [1, 1 + sizes[0], 1 + sizes[0] + sizes[1]]
    for architecture, asked in (
        ("encoder", starts),
        ("decoder", [starts[1] - 1, starts[2] - 1, sum(sizes)]),
    ):
        model = build_model_config(tokenizer, architecture, **LABELS)
        [example] = encode_rows([row], WordLabellingTask(), tokenizer, model, NO_LABEL).examples
        assert tokenizer.decode(list(example.ids[1:])) == " the qqq sees"
        rows_read = {i: a for i, a in enumerate(example.targets) if a != NO_LABEL}
        assert rows_read == dict(zip(asked, [0, 1, 2], strict=True))
        assert len(example.ids) == len(example.targets)


def test_words_beyond_the_context_and_unknown_labels_are_ignored(tokenizer):
    row = TaskRow("f", 1, "train", ["the", "cat"] * 20, ["DET", "ODD"] * 20)
    model = build_model_config(tokenizer, "encoder", **LABELS)
    done = encode_rows([row], WordLabellingTask(), tokenizer, model, NO_LABEL)
    [example] = done.examples
    assert done.is_truncated == [True] and len(example.ids) <= 24
    assert sum(a == 0 for a in example.targets) == (done.read_word_counts[0] + 1) // 2
    assert set(example.targets) == {0, NO_LABEL}
    asked = encode_rows([row], WordLabellingTask(), tokenizer, model, 2).examples[0]
    assert sum(a != NO_LABEL for a in asked.targets) == done.read_word_counts[0]


def test_a_text_label_is_at_the_first_token_or_for_a_decoder_at_the_last(tokenizer):
    row = TaskRow("f", 1, "train", ["the cat", "a duck"], ["NOUN"])
    for architecture, at in (("encoder", 0), ("decoder", -1)):
        model = build_model_config(tokenizer, architecture, **LABELS)
        task = ClassificationTask(second_text_column="second")
        [example] = encode_rows([row], task, tokenizer, model, NO_LABEL).examples
        assert example.targets[at] == 1 and sum(a != NO_LABEL for a in example.targets) == 1
        first = [0, *tokenizer.encode("the cat").ids]
        assert example.ids == [*first, 0, *tokenizer.encode("a duck").ids]
        assert example.first_sentence_length == len(first)


def test_the_longer_sentence_is_truncated_first():
    assert join_sentences([[5] * 9, [6] * 3], 10) == ([0, *[5] * 5, 0, *[6] * 3], 6)
    assert join_sentences([[5] * 9, [6] * 9], 10) == ([0, *[5] * 4, 0, *[6] * 4], 5)
    assert join_sentences([[5] * 9], 10) == ([0, *[5] * 9], 10)
    assert join_sentences([[5] * 19], 10) == ([0, *[5] * 9], 10)
    for one in range(8):
        for other in range(8):
            whole, first = join_sentences([[5] * one, [6] * other], 8)
            assert len(whole) == min(8, one + other + 2) and whole[first] == 0
