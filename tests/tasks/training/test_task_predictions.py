"""Test predictions of fine-tuned models and the clusters of their intervals."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer

from hallmark.model.decoding.generation import generate
from hallmark.model.special_tokens import END_OF_TEXT_ID
from hallmark.model.training.examples import Example, build_pair_prompt
from hallmark.tasks.training.task_predictions import evaluate_labels, evaluate_pairs, predict_texts
from hallmark.tasks.training.task_rows import (
    ClassificationTask,
    EncodedRows,
    PairsTask,
    TaskRow,
    TaskRows,
    encode_rows,
)
from tests.model.oracles import tiny, write_tokenizer


def test_a_decoder_that_does_not_stop_fills_the_context(tmp_path):
    """Beyond that, the source would be out of sight."""
    tokenizer = Tokenizer.from_file(str(write_tokenizer(tmp_path / "tokenizer.json", 61)))
    model = tiny(context=32, head_bias=True)
    model.objective = "prefix"
    model.head.bias.data[END_OF_TEXT_ID] = -100
    sources = [np.random.default_rng(i).integers(2, 61, n).tolist() for i, n in enumerate((21, 5))]
    encoded = EncodedRows([Example(ids, []) for ids in sources], [False] * 2, [0] * 2)
    predictions = predict_texts(model, tokenizer, encoded, 56)
    for source, (text, log_prob), room in zip(sources, predictions, (9, 25), strict=True):
        how = {"max_new_tokens": room, "temperature": 0.0}
        ((alone,),) = generate(model, [build_pair_prompt(source)], **how)
        assert not alone.stopped and text.split() == [f"t{i}" for i in alone.ids]
        assert log_prob == pytest.approx(alone.log_probs.sum(dtype="float64"), abs=1e-4)
    assert predict_texts(model, tokenizer, EncodedRows([], [], []), 56) == []  # no test split
    short = predict_texts(model, tokenizer, encoded, 4)
    assert [len(text.split()) for text, _ in short] == [4, 4]


@pytest.mark.parametrize(("group", "units"), [("author {}", "3 groups"), ("", "12 texts")])
def test_intervals_are_over_groups_if_rows_have_groups(tmp_path, group, units):
    tokenizer = Tokenizer.from_file(str(write_tokenizer(tmp_path / "tokenizer.json", 61)))

    def rows(gold):
        return TaskRows(
            [
                TaskRow(
                    "", i, split, [f"t{i + 2} t{i % 5 + 2}"], [gold[i % 2]], group.format(i // 4)
                )
                for split in ("train", "test")
                for i in range(12)
            ]
        )

    labels, pairs = rows(["a", "b"]), rows(["t5 t6 t7", "t8"])
    classifier, writer = tiny(labels=["a", "b"], tie_embeddings=False), tiny(context=32)
    writer.objective = "prefix"
    scores = []
    for model, task, data in (
        (classifier, ClassificationTask(), labels),
        (writer, PairsTask(), pairs),
    ):
        encoded = {
            s: encode_rows(data.select_split(s), task, tokenizer, model.config, 0)
            for s in ("train", "test")
        }
        evaluated = (
            evaluate_pairs(model, tokenizer, data, encoded)
            if task.kind == "pairs"
            else evaluate_labels(model, task, data, encoded)
        )
        scores += evaluated[1]
    methods = {(score.system, score.metric): score.method for score in scores}
    assert len(methods) > 12
    for what, method in methods.items():
        assert units in method, what
