"""Test the stage finetune: results, resumption and errors."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError
from tokenizers import Tokenizer

from benchmarks import toy_language
from benchmarks.finetuning import draw_cross_attention
from hallmark.model.decoding.inference_mode import autocast_to_precision
from hallmark.model.interchange import checkpoint
from hallmark.tasks.contract import PROJECT_ROOT, HallmarkError, UsageError
from hallmark.tasks.training.encoding import load_tokenizer
from hallmark.tasks.training.finetune import FinetuneConfig, load_task_rows
from hallmark.tasks.training.task_predictions import evaluate_labels
from hallmark.tasks.training.task_rows import encode_rows
from tests.tasks.training.finetuning import TRAIN, tune, write_base_checkpoint
from tests.tasks.training.test_training_resumption import list_setting_segments

pytestmark = pytest.mark.usefixtures("forked_trainers")


def read_scores(result, system="model"):
    rows = result["scores"].read().to_pylist()
    return {row["metric"]: row for row in rows if row["system"] == system and not row["slice"]}


def read_counts(result):
    rows = result["outcome_counts"].read().to_pylist()
    return {(row["split"], row["outcome"]): row["row_count"] for row in rows}


@pytest.fixture
def labelled_words(tmp_path):
    """Write sentences whose words are labelled with their part of speech."""
    rows = [s.tag_words() for s in toy_language.generate_sentences(300, 1)]
    table = pa.table(
        {
            "words": [[w for w, _ in row] for row in rows],
            "labels": [[tag for _, tag in row] for row in rows],
        }
    )
    pq.write_table(table, tmp_path / "words.parquet")
    return tmp_path / "words.parquet"


@pytest.mark.parametrize("architecture", ["encoder", "decoder"])
def test_word_labels_are_learnt(tmp_path, labelled_words, architecture):
    start = write_base_checkpoint(tmp_path / "base", architecture=architecture)
    train = TRAIN | {"steps": 120, "checkpoint_every": 120}
    result = tune(
        tmp_path / "store",
        start,
        task={"kind": "labelling"},
        data={"path": str(labelled_words)},
        train=train,
    )
    model_scores, simple = (
        read_scores(result),
        read_scores(result, "most frequent label of the word"),
    )
    assert model_scores["accuracy"]["value"] > 0.95 > simple["accuracy"]["value"]
    assert model_scores["macro-F1"]["value"] > simple["macro-F1"]["value"]
    predictions = result["predictions"].read().to_pylist()
    right = [row["gold"] == row["predicted"] for row in predictions]
    assert [row["is_correct"] for row in predictions] == right
    assert np.mean(right) == pytest.approx(model_scores["accuracy"]["value"])
    assert all(row["log_prob"] <= 0 for row in predictions)
    rows = pq.read_table(labelled_words).to_pylist()
    for row in predictions[:20]:  # The row number finds the row.
        assert rows[row["row_number"] - 1]["labels"][row["word_index"]] == row["gold"]
    low, high = model_scores["accuracy"]["low"], model_scores["accuracy"]["high"]
    assert low < model_scores["accuracy"]["value"] <= high and model_scores["accuracy"]["n"] == len(
        right
    )
    splits = read_counts(result)
    assert sum(splits[split, "used"] for split in ("train", "validation", "test")) == 300
    [last] = [r for r in result["checkpoints"].read().to_pylist() if r["step"] == 120]
    folder = result.store.find_artifact(*last["artifact"].split("/")).fetch_directory()
    assert checkpoint.load_checkpoint(folder).config.labels == ("ADJ", "ADP", "DET", "NOUN", "VERB")
    assert {row["gold"]: row["label_id"] for row in predictions}["VERB"] == 4


@pytest.mark.parametrize("architecture", ["encoder", "decoder"])
def test_word_order_is_learnt_but_not_by_a_bag_of_words(tmp_path, architecture):
    """Which of two animals, of three kinds, is the agent; frozen random features are worse."""
    path = tmp_path / "who.jsonl"
    animals = {"cat", "fox", "bear"}
    sentences = [
        s
        for s in toy_language.generate_sentences(6000, 3)
        if {s.agent.noun, s.patient.noun} <= animals
    ]
    path.write_text(
        "".join(json.dumps({"text": s.to_text(), "label": s.agent.noun}) + "\n" for s in sentences)
    )
    start = write_base_checkpoint(tmp_path / "base", architecture=architecture)
    train = TRAIN | {"steps": 150, "checkpoint_every": 150}
    config = {"task": {"kind": "classification"}, "data": {"path": str(path)}, "train": train}
    result = tune(tmp_path / "store", start, **config)
    model_scores, bag = read_scores(result), read_scores(result, "bag of words")
    assert model_scores["accuracy"]["value"] > 0.8
    assert bag["accuracy"]["high"] < model_scores["accuracy"]["low"]
    assert "scikit-learn" in bag["accuracy"]["scorer"]
    frozen = read_scores(tune(tmp_path / "store", start, **config, trained_weights="head"))
    assert frozen["accuracy"]["high"] < model_scores["accuracy"]["low"]


def test_pairs_of_sentences_are_classified(tmp_path):
    """Predict whether the second sentence translates the first."""
    sentences = toy_language.generate_sentences(60, 4)
    path = tmp_path / "pairs.tsv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t")
        writer.writerow(["english", "toy", "same"])
        next_sentences = [*sentences[1:], sentences[0]]
        for sentence, other_sentence in zip(sentences, next_sentences, strict=True):
            writer.writerow([sentence.to_text(), sentence.translate(), "yes"])
            writer.writerow([sentence.to_text(), other_sentence.translate(), "no"])
    start = write_base_checkpoint(tmp_path / "base", architecture="encoder")
    task = {
        "kind": "classification",
        "text_column": "english",
        "second_text_column": "toy",
        "label_column": "same",
    }
    result = tune(
        tmp_path / "store", start, task=task, data={"path": str(path), "group_column": "english"}
    )
    row = result["checkpoints"].read().to_pylist()[-1]
    model = checkpoint.load_checkpoint(
        result.store.find_artifact(*row["artifact"].split("/")).fetch_directory()
    )
    assert model.config.token_types == 2
    assert float(model.type_embedding.weight.detach().abs().min(1).values.max()) > 0  # learnt
    rows = result["predictions"].read().to_pylist()
    groups = {row["row_number"] // 2 for row in rows if row["row_number"] % 2 == 0}
    assert read_counts(result)["test", "text also in train"] == 0 < len(groups)


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder"])
def test_targets_of_pairs_are_generated_and_scored(tmp_path, architecture):
    path = tmp_path / "pairs.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["source", "target"])
        writer.writerows(
            (s.to_text(), s.translate()) for s in toy_language.generate_sentences(300, 5)
        )
    start = write_base_checkpoint(tmp_path / "base", architecture=architecture)
    train = TRAIN | {"steps": 150, "checkpoint_every": 150, "batch_size": 32}
    result = tune(
        tmp_path / "store", start, task={"kind": "pairs"}, data={"path": str(path)}, train=train
    )
    model_scores, source = read_scores(result), read_scores(result, "the source itself")
    assert set(model_scores) == {"exact match", "chrF2", "BLEU"}
    assert model_scores["chrF2"]["low"] > source["chrF2"]["high"]
    assert re.match(r"sacrebleu nrefs:1\|.*version:\d", model_scores["BLEU"]["scorer"])
    rows = result["predictions"].read().to_pylist()
    exact = np.mean([row["gold"] == row["predicted"] for row in rows])
    assert exact == pytest.approx(model_scores["exact match"]["value"])
    log = result["log"].read().to_pylist()
    assert log[-1]["validation_loss"] < 0.7 * log[19]["validation_loss"]
    row = result["checkpoints"].read().to_pylist()[-1]
    model = checkpoint.load_checkpoint(
        result.store.find_artifact(*row["artifact"].split("/")).fetch_directory()
    )
    assert model.objective == {"encoder_decoder": "seq2seq", "decoder": "prefix"}[architecture]
    assert model.is_trained_on_pairs
    if architecture == "encoder_decoder":
        picture = tmp_path / "attention.svg"
        draw_cross_attention(tmp_path / "store", result, picture)
        drawn = picture.read_text()  # matplotlib also writes its text as comments.
        assert drawn.count("<image") == 2 and "<!-- layer 2, mean of 4 heads -->" in drawn
        first = result["predictions"].read().to_pylist()[0]
        with path.open(newline="") as file:
            source_text = [*csv.DictReader(file)][first["row_number"] - 1]["source"]
        comments = "".join(re.findall("<!-- (.*?) -->", drawn))  # piece by piece
        assert "".join(source_text.split()) in comments
        assert "".join(first["predicted"].split()) + "(end)" in comments


@pytest.mark.parametrize("precision", ["auto", "bf16"])
def test_predictions_record_their_precision(tmp_path, labelled_words, precision):
    start = write_base_checkpoint(tmp_path / "base", architecture="encoder")
    train = TRAIN | {"precision": precision, "device": "cpu"}
    tree = {"task": {"kind": "labelling"}, "data": {"path": str(labelled_words)}, "train": train}
    result = tune(tmp_path / "store", start, **tree)
    model_scores = result["predictions"].read()
    used = "bf16" if precision == "bf16" else "fp32"  # Regardless of the precision in training.
    assert set(model_scores["precision"].to_pylist()) == {used}
    row = result["checkpoints"].read().to_pylist()[-1]
    folder = result.store.find_artifact(*row["artifact"].split("/")).fetch_directory()
    model, config = checkpoint.load_checkpoint(folder), FinetuneConfig.model_validate(tree)
    rows, tokenizer = load_task_rows(config), load_tokenizer(folder / "tokenizer.json")
    encoded = {
        split: encode_rows(rows.select_split(split), config.task, tokenizer, model.config, 0)
        for split in ("train", "test")
    }
    for requested in ("fp32", "bf16"):
        with autocast_to_precision(model, requested):
            expected, _ = evaluate_labels(model, config.task, rows, encoded)
        same = [prediction.log_prob for prediction in expected] == model_scores[
            "log_prob"
        ].to_pylist()
        assert same == (requested == used)


@pytest.mark.slow
def test_a_killed_stage_resumes_with_the_same_bytes(tmp_path, labelled_words):
    start = write_base_checkpoint(tmp_path / "base", architecture="encoder")
    whole = tune(
        tmp_path / "one", start, task={"kind": "labelling"}, data={"path": str(labelled_words)}
    )
    command = [
        sys.executable,
        "-m",
        "tests.tasks.training.finetuning",
        *map(str, (tmp_path / "two", start, labelled_words)),
    ]
    killed = subprocess.Popen(
        command, cwd=PROJECT_ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    for line in killed.stdout:
        if "checkpoint of step 20 " in line:
            os.killpg(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    killed.stdout.close()
    again = subprocess.run(command, cwd=PROJECT_ROOT, stdout=subprocess.PIPE, text=True, check=True)
    assert re.search(r"from step [24]0 of 40", again.stdout)
    assert again.stdout.strip().splitlines()[-1] == whole.content_digest


def test_finetuning_resumes_with_more_accumulation_steps(tmp_path, labelled_words):
    start = write_base_checkpoint(tmp_path / "base", architecture="encoder")
    how = {"task": {"kind": "labelling"}, "data": {"path": str(labelled_words)}}

    def stop(event):
        if event.kind == "child" and event.artifact.manifest["parts"]["key"]["step"] == 20:
            raise HallmarkError("given up")

    with pytest.raises(HallmarkError, match="given up"):
        tune(tmp_path / "store", start, **how, listener=stop)
    result = tune(tmp_path / "store", start, **how, train=TRAIN | {"accumulation_steps": 2})
    (_, step, one), other = list_setting_segments(result, "accumulation_steps")
    assert step >= 20 and (one, other) == (1, (step + 1, 40, 2))
    assert result.manifest["determinism"] == "statistical"
    assert result["log"].read()["step"].to_pylist() == list(range(1, 41))
    alone = tune(tmp_path / "alone", start, **how)
    assert list_setting_segments(alone, "accumulation_steps") == [(1, 40, 1)]
    assert alone.manifest["determinism"] == "machine"


def test_unusable_rows_are_quarantined_with_their_location(tmp_path):
    path = tmp_path / "p.jsonl"
    good = [{"source": f"a {i}", "target": f"b {i}"} for i in range(30)]
    bad = ['{"source": "x"}', '{"source": "", "target": "y"}', "no json", '{"source": 3}']
    lines = [json.dumps(row) for row in good[:10]] + bad + [json.dumps(row) for row in good[10:]]
    path.write_text("\n".join(lines))
    start = write_base_checkpoint(tmp_path / "base", architecture="encoder_decoder")
    result = tune(tmp_path / "store", start, task={"kind": "pairs"}, data={"path": str(path)})
    rows = result["quarantine"].read().to_pylist()
    assert [(row["row_number"], row["reason"]) for row in rows] == [
        (11, "no target"),
        (12, "no source"),
        (13, "not a JSON object"),
        (14, "no target"),
    ]
    assert {row["file_name"] for row in rows} == {"p.jsonl"}
    assert read_counts(result)["", "quarantined: no target"] == 2
    assert sum(n for (_, what), n in read_counts(result).items() if what == "used") == 30


def test_long_pairs_and_unseen_labels_are_counted(tmp_path, caplog):
    (tmp_path / "train.csv").write_text(
        "source,target\n" + "".join(f"the cat {i},miru {i}\n" for i in range(20))
    )
    (tmp_path / "test.csv").write_text(f"source,target\nthe cat 3,miru\n{'the cat ' * 90},miru\n")
    start = write_base_checkpoint(tmp_path / "base", architecture="decoder")
    data = {"path": str(tmp_path / "train.csv"), "test_path": str(tmp_path / "test.csv")}
    result = tune(tmp_path / "store", start, task={"kind": "pairs"}, data=data)
    assert read_counts(result)["test", "cut to the context"] == 1
    assert read_counts(result)["test", "used"] == 2
    assert read_counts(result)["test", "text also in train"] == 1
    assert "finetune: test, cut to the context: 1 row\n" in caplog.text

    (tmp_path / "train.csv").write_text(
        "text,label\n" + "".join(f"the cat {i},{'ab'[i % 2]}\n" for i in range(40))
    )
    (tmp_path / "test.csv").write_text("text,label\nthe cat,a\nthe dog,c\n")
    result = tune(
        tmp_path / "store",
        write_base_checkpoint(tmp_path / "encoder", architecture="encoder"),
        task={"kind": "classification"},
        data=data,
    )
    assert read_counts(result)["test", "a label never seen in train"] == 1
    rows = result["predictions"].read().to_pylist()
    assert [row["gold"] for row in rows] == ["a", "c"]
    assert (
        read_scores(result)["accuracy"]["n"] == 2
        and read_scores(result)["accuracy"]["value"] <= 0.5
    )
    assert "a label never seen in train: 1 row\n" in caplog.text


@pytest.mark.parametrize(
    ("text", "task", "architecture", "message", "code"),
    [
        ("source,target\n", {"kind": "pairs"}, "decoder", "the 'train' split .* is empty", 1),
        ("source,target\na,\n", {"kind": "pairs"}, "decoder", r"row 1 of d\.csv: no target", 1),
        (
            "source\na\n",
            {"kind": "pairs"},
            "decoder",
            "has no column 'target'; its columns are 'source'",
            2,
        ),
        (
            "source,target\na,b\n",
            {"kind": "pairs"},
            "encoder",
            "is an encoder and cannot generate",
            2,
        ),
        (
            "text,label\na,b\n",
            {"kind": "classification"},
            "encoder_decoder",
            "which cannot predict labels",
            2,
        ),
        (
            "text,label\n" + "".join(f"a {i},x\n" for i in range(60)),
            {"kind": "classification"},
            "encoder",
            "all training rows have the label 'x'",
            1,
        ),
    ],
)
def test_data_that_cannot_be_learnt_are_rejected_in_one_sentence(
    tmp_path, text, task, architecture, message, code
):
    (tmp_path / "d.csv").write_text(text)
    start = write_base_checkpoint(tmp_path / "base", architecture=architecture)
    data = {"path": str(tmp_path / "d.csv")}
    with pytest.raises(HallmarkError, match=message) as error:
        tune(tmp_path / "store", start, task=task, data=data)
    assert "\n" not in str(error.value) and error.value.exit_code == code


def test_a_decoder_without_a_training_objective_is_rejected(tmp_path, labelled_words):
    start = write_base_checkpoint(tmp_path / "base")
    config = json.loads((start / "config.json").read_text())
    del config["objective"]
    (start / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match="does not specify the model's training objective"):
        tune(
            tmp_path / "store",
            start,
            task={"kind": "labelling"},
            data={"path": str(labelled_words)},
        )
    both = write_base_checkpoint(
        tmp_path / "both", architecture="encoder_decoder"
    )  # Always learns seq2seq.
    config = json.loads((both / "config.json").read_text())
    (both / "config.json").write_text(json.dumps(config | {"objective": None}))
    with pytest.raises(UsageError, match=r"nothing\.csv does not exist"):
        tune(
            tmp_path / "store",
            both,
            task={"kind": "pairs"},
            data={"path": str(tmp_path / "nothing.csv")},
        )
    start = write_base_checkpoint(tmp_path / "another")
    tokenizer = Tokenizer.from_file(str(start / "tokenizer.json"))
    tokenizer.add_tokens(["one more"])
    tokenizer.save(str(start / "tokenizer.json"))
    with pytest.raises(UsageError, match="The two numbers must be equal"):
        tune(
            tmp_path / "store",
            start,
            task={"kind": "labelling"},
            data={"path": str(labelled_words)},
        )
    with pytest.raises(UsageError, match=r"nowhere\.csv does not exist"):
        tune(
            tmp_path / "store",
            start,
            task={"kind": "pairs"},
            data={"path": str(tmp_path / "nowhere.csv")},
        )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"train": {"objective": "causal"}}, "'objective' is determined by the task"),
        ({"train": {"sample_count": 3}}, "'sample_count' is determined by the task"),
        ({"train": {"hosts": 2, "rendezvous": "a:1"}}, "fine-tuning runs on one host; remove"),
        ({"trained_weights": "head"}, "set 'trained_weights' to 'all' for the 'pairs' task"),
        (
            {"data": {"path": "x", "test_share": 0.6, "validation_share": 0.4}},
            "no rows remain for training",
        ),
        ({"task": {"kind": "poetry"}}, "poetry"),
    ],
)
def test_invalid_settings_are_rejected(config, message):
    with pytest.raises(ValidationError, match=message):
        FinetuneConfig.model_validate({"task": {"kind": "pairs"}, "data": {"path": "x"}, **config})


def test_omitted_settings_have_the_defaults_of_finetuning():
    tree = {"task": {"kind": "pairs"}, "data": {"path": "x"}, "train": {"steps": 100}}
    train = FinetuneConfig.model_validate(tree).train
    assert (train.steps, train.learning_rate, train.schedule) == (100, 5e-4, "linear")
