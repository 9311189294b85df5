"""Fine-tuning as a stage: what is learnt, what it leaves, and what it refuses."""

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
from tests.tasks.training.test_training_resumption import stretches
from tests.tasks.training.tuning import TRAIN, base, tune

pytestmark = pytest.mark.usefixtures("forked_trainers")


def scores(made, system="model"):
    rows = made["scores"].read().to_pylist()
    return {row["metric"]: row for row in rows if row["system"] == system and not row["slice"]}


def counts(made):
    rows = made["outcome_counts"].read().to_pylist()
    return {(row["split"], row["outcome"]): row["row_count"] for row in rows}


@pytest.fixture
def words(tmp_path):
    """Sentences whose words have their part of speech."""
    rows = [s.words() for s in toy_language.sentences(300, 1)]
    table = pa.table(
        {
            "words": [[w for w, _ in row] for row in rows],
            "labels": [[tag for _, tag in row] for row in rows],
        }
    )
    pq.write_table(table, tmp_path / "words.parquet")
    return tmp_path / "words.parquet"


@pytest.mark.parametrize("architecture", ["encoder", "decoder"])
def test_words_get_their_labels(tmp_path, words, architecture):
    start = base(tmp_path / "base", architecture=architecture)
    train = TRAIN | {"steps": 120, "checkpoint_every": 120}
    made = tune(
        tmp_path / "store",
        start,
        task={"kind": "labelling"},
        data={"path": str(words)},
        train=train,
    )
    found, simple = scores(made), scores(made, "most frequent label of the word")
    assert found["accuracy"]["value"] > 0.95 > simple["accuracy"]["value"]
    assert found["macro-F1"]["value"] > simple["macro-F1"]["value"]
    predictions = made["predictions"].read().to_pylist()
    right = [row["gold"] == row["predicted"] for row in predictions]
    assert [row["is_correct"] for row in predictions] == right
    assert np.mean(right) == pytest.approx(found["accuracy"]["value"])
    assert all(row["log_prob"] <= 0 for row in predictions)
    rows = pq.read_table(words).to_pylist()
    for row in predictions[:20]:  # its place leads to it
        assert rows[row["row_number"] - 1]["labels"][row["word_index"]] == row["gold"]
    low, high = found["accuracy"]["low"], found["accuracy"]["high"]
    assert low < found["accuracy"]["value"] <= high and found["accuracy"]["n"] == len(right)
    splits = counts(made)
    assert sum(splits[split, "used"] for split in ("train", "validation", "test")) == 300
    [last] = [r for r in made["checkpoints"].read().to_pylist() if r["step"] == 120]
    folder = made.store.find_artifact(*last["artifact"].split("/")).fetch_directory()
    assert checkpoint.load_checkpoint(folder).config.labels == ("ADJ", "ADP", "DET", "NOUN", "VERB")
    assert {row["gold"]: row["label_id"] for row in predictions}["VERB"] == 4


@pytest.mark.parametrize("architecture", ["encoder", "decoder"])
def test_what_the_order_says_is_learnt_where_a_bag_of_words_learns_nothing(tmp_path, architecture):
    """Which of two animals it is that does something, of three. Of a model that has read nothing,
    frozen features tell less."""
    path = tmp_path / "who.jsonl"
    animals = {"cat", "fox", "bear"}
    toy = [s for s in toy_language.sentences(6000, 3) if {s.agent.noun, s.patient.noun} <= animals]
    path.write_text(
        "".join(json.dumps({"text": s.text(), "label": s.agent.noun}) + "\n" for s in toy)
    )
    start = base(tmp_path / "base", architecture=architecture)
    train = TRAIN | {"steps": 150, "checkpoint_every": 150}
    config = {"task": {"kind": "classification"}, "data": {"path": str(path)}, "train": train}
    made = tune(tmp_path / "store", start, **config)
    found, bag = scores(made), scores(made, "bag of words")
    assert found["accuracy"]["value"] > 0.8
    assert bag["accuracy"]["high"] < found["accuracy"]["low"]
    assert "scikit-learn" in bag["accuracy"]["scorer"]
    frozen = scores(tune(tmp_path / "store", start, **config, trained_weights="head"))
    assert frozen["accuracy"]["high"] < found["accuracy"]["low"]


def test_pairs_of_sentences_are_told_apart(tmp_path):
    """Whether the second sentence translates the first."""
    toy = toy_language.sentences(60, 4)
    path = tmp_path / "pairs.tsv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t")
        writer.writerow(["english", "toy", "same"])
        for one, other in zip(toy, [*toy[1:], toy[0]], strict=True):
            writer.writerow([one.text(), one.toy(), "yes"])
            writer.writerow([one.text(), other.toy(), "no"])
    start = base(tmp_path / "base", architecture="encoder")
    task = {
        "kind": "classification",
        "text_column": "english",
        "second_text_column": "toy",
        "label_column": "same",
    }
    made = tune(
        tmp_path / "store", start, task=task, data={"path": str(path), "group_column": "english"}
    )
    row = made["checkpoints"].read().to_pylist()[-1]
    model = checkpoint.load_checkpoint(
        made.store.find_artifact(*row["artifact"].split("/")).fetch_directory()
    )
    assert model.config.token_types == 2
    assert float(model.type_embedding.weight.detach().abs().min(1).values.max()) > 0  # learnt
    rows = made["predictions"].read().to_pylist()
    groups = {row["row_number"] // 2 for row in rows if row["row_number"] % 2 == 0}
    assert counts(made)["test", "text also in train"] == 0 < len(groups)


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder"])
def test_pairs_are_written_and_scored(tmp_path, architecture):
    path = tmp_path / "pairs.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["source", "target"])
        writer.writerows((s.text(), s.toy()) for s in toy_language.sentences(300, 5))
    start = base(tmp_path / "base", architecture=architecture)
    train = TRAIN | {"steps": 150, "checkpoint_every": 150, "batch_size": 32}
    made = tune(
        tmp_path / "store", start, task={"kind": "pairs"}, data={"path": str(path)}, train=train
    )
    found, source = scores(made), scores(made, "the source itself")
    assert set(found) == {"exact match", "chrF2", "BLEU"}
    assert found["chrF2"]["low"] > source["chrF2"]["high"]
    assert re.match(r"sacrebleu nrefs:1\|.*version:\d", found["BLEU"]["scorer"])
    rows = made["predictions"].read().to_pylist()
    exact = np.mean([row["gold"] == row["predicted"] for row in rows])
    assert exact == pytest.approx(found["exact match"]["value"])
    log = made["log"].read().to_pylist()
    assert log[-1]["validation_loss"] < 0.7 * log[19]["validation_loss"]
    row = made["checkpoints"].read().to_pylist()[-1]
    model = checkpoint.load_checkpoint(
        made.store.find_artifact(*row["artifact"].split("/")).fetch_directory()
    )
    assert model.objective == {"encoder_decoder": "seq2seq", "decoder": "prefix"}[architecture]
    assert model.is_trained_on_pairs
    if architecture == "encoder_decoder":
        picture = tmp_path / "attention.svg"
        draw_cross_attention(tmp_path / "store", made, picture)
        drawn = picture.read_text()  # matplotlib leaves what it draws as comments, too
        assert drawn.count("<image") == 2 and "<!-- layer 2, mean of 4 heads -->" in drawn
        first = made["predictions"].read().to_pylist()[0]
        with path.open(newline="") as file:
            asked = [*csv.DictReader(file)][first["row_number"] - 1]["source"]
        said = "".join(re.findall("<!-- (.*?) -->", drawn))  # piece by piece
        assert "".join(asked.split()) in said
        assert "".join(first["predicted"].split()) + "(end)" in said


@pytest.mark.parametrize("precision", ["auto", "bf16"])
def test_predictions_say_in_which_precision_they_were_made(tmp_path, words, precision):
    start = base(tmp_path / "base", architecture="encoder")
    train = TRAIN | {"precision": precision, "device": "cpu"}
    tree = {"task": {"kind": "labelling"}, "data": {"path": str(words)}, "train": train}
    made = tune(tmp_path / "store", start, **tree)
    found = made["predictions"].read()
    used = "bf16" if precision == "bf16" else "fp32"  # whatever it was trained in
    assert set(found["precision"].to_pylist()) == {used}
    row = made["checkpoints"].read().to_pylist()[-1]
    folder = made.store.find_artifact(*row["artifact"].split("/")).fetch_directory()
    model, config = checkpoint.load_checkpoint(folder), FinetuneConfig.model_validate(tree)
    rows, tokenizer = load_task_rows(config), load_tokenizer(folder / "tokenizer.json")
    encoded = {
        split: encode_rows(rows.select_split(split), config.task, tokenizer, model.config, 0)
        for split in ("train", "test")
    }
    for asked in ("fp32", "bf16"):
        with autocast_to_precision(model, asked):
            expected, _ = evaluate_labels(model, config.task, rows, encoded)
        same = [row["log_prob"] for row in expected] == found["log_prob"].to_pylist()
        assert same == (asked == used)


def test_a_killed_stage_goes_on_and_leaves_the_same_bytes(tmp_path, words):
    start = base(tmp_path / "base", architecture="encoder")
    whole = tune(tmp_path / "one", start, task={"kind": "labelling"}, data={"path": str(words)})
    command = [
        sys.executable,
        "-m",
        "tests.tasks.training.tuning",
        *map(str, (tmp_path / "two", start, words)),
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


def test_after_running_out_of_memory_a_higher_accumulation_goes_on(tmp_path, words):
    start = base(tmp_path / "base", architecture="encoder")
    how = {"task": {"kind": "labelling"}, "data": {"path": str(words)}}

    def stop(event):
        if event.kind == "child" and event.artifact.manifest["parts"]["key"]["step"] == 20:
            raise HallmarkError("given up")

    with pytest.raises(HallmarkError, match="given up"):
        tune(tmp_path / "store", start, **how, listener=stop)
    made = tune(tmp_path / "store", start, **how, train=TRAIN | {"accumulation_steps": 2})
    (_, step, one), other = stretches(made, "accumulation_steps")
    assert step >= 20 and (one, other) == (1, (step + 1, 40, 2))
    assert made.manifest["determinism"] == "statistical"
    assert made["log"].read()["step"].to_pylist() == list(range(1, 41))
    alone = tune(tmp_path / "alone", start, **how)
    assert stretches(alone, "accumulation_steps") == [(1, 40, 1)]
    assert alone.manifest["determinism"] == "machine"


def test_rows_that_cannot_be_used_are_told_with_their_place(tmp_path):
    path = tmp_path / "p.jsonl"
    good = [{"source": f"a {i}", "target": f"b {i}"} for i in range(30)]
    bad = ['{"source": "x"}', '{"source": "", "target": "y"}', "no json", '{"source": 3}']
    lines = [json.dumps(row) for row in good[:10]] + bad + [json.dumps(row) for row in good[10:]]
    path.write_text("\n".join(lines))
    start = base(tmp_path / "base", architecture="encoder_decoder")
    made = tune(tmp_path / "store", start, task={"kind": "pairs"}, data={"path": str(path)})
    rows = made["quarantine"].read().to_pylist()
    assert [(row["row_number"], row["reason"]) for row in rows] == [
        (11, "no target"),
        (12, "no source"),
        (13, "not a JSON object"),
        (14, "no target"),
    ]
    assert {row["file_name"] for row in rows} == {"p.jsonl"}
    assert counts(made)["", "quarantined: no target"] == 2
    assert sum(n for (_, what), n in counts(made).items() if what == "used") == 30


def test_long_pairs_and_unseen_labels_are_counted(tmp_path, caplog):
    (tmp_path / "train.csv").write_text(
        "source,target\n" + "".join(f"the cat {i},miru {i}\n" for i in range(20))
    )
    (tmp_path / "test.csv").write_text(f"source,target\nthe cat 3,miru\n{'the cat ' * 90},miru\n")
    start = base(tmp_path / "base", architecture="decoder")
    data = {"path": str(tmp_path / "train.csv"), "test_path": str(tmp_path / "test.csv")}
    made = tune(tmp_path / "store", start, task={"kind": "pairs"}, data=data)
    assert counts(made)["test", "cut to the context"] == 1
    assert counts(made)["test", "used"] == 2
    assert counts(made)["test", "text also in train"] == 1
    assert "finetune: test, cut to the context: 1 rows" in caplog.text

    (tmp_path / "train.csv").write_text(
        "text,label\n" + "".join(f"the cat {i},{'ab'[i % 2]}\n" for i in range(40))
    )
    (tmp_path / "test.csv").write_text("text,label\nthe cat,a\nthe dog,c\n")
    made = tune(
        tmp_path / "store",
        base(tmp_path / "encoder", architecture="encoder"),
        task={"kind": "classification"},
        data=data,
    )
    assert counts(made)["test", "a label never seen in train"] == 1
    rows = made["predictions"].read().to_pylist()
    assert [row["gold"] for row in rows] == ["a", "c"]
    assert scores(made)["accuracy"]["n"] == 2 and scores(made)["accuracy"]["value"] <= 0.5
    assert "a label never seen in train: 1 rows" in caplog.text


@pytest.mark.parametrize(
    ("text", "task", "architecture", "words", "code"),
    [
        ("source,target\n", {"kind": "pairs"}, "decoder", "the split 'train' .* is empty", 1),
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
def test_what_cannot_be_learnt_is_refused_in_a_sentence(
    tmp_path, text, task, architecture, words, code
):
    (tmp_path / "d.csv").write_text(text)
    start = base(tmp_path / "base", architecture=architecture)
    data = {"path": str(tmp_path / "d.csv")}
    with pytest.raises(HallmarkError, match=words) as error:
        tune(tmp_path / "store", start, task=task, data=data)
    assert "\n" not in str(error.value) and error.value.exit_code == code


def test_a_checkpoint_that_does_not_say_what_it_was_trained_for_is_asked_for_it(tmp_path, words):
    start = base(tmp_path / "base")
    config = json.loads((start / "config.json").read_text())
    del config["objective"]
    (start / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match="does not name the training objective"):
        tune(tmp_path / "store", start, task={"kind": "labelling"}, data={"path": str(words)})
    both = base(tmp_path / "both", architecture="encoder_decoder")  # learns seq2seq in any case
    config = json.loads((both / "config.json").read_text())
    (both / "config.json").write_text(json.dumps(config | {"objective": None}))
    with pytest.raises(UsageError, match=r"nothing\.csv does not exist"):
        tune(
            tmp_path / "store",
            both,
            task={"kind": "pairs"},
            data={"path": str(tmp_path / "nothing.csv")},
        )
    start = base(tmp_path / "another")
    tokenizer = Tokenizer.from_file(str(start / "tokenizer.json"))
    tokenizer.add_tokens(["one more"])
    tokenizer.save(str(start / "tokenizer.json"))
    with pytest.raises(UsageError, match="they must be equal"):
        tune(tmp_path / "store", start, task={"kind": "labelling"}, data={"path": str(words)})
    with pytest.raises(UsageError, match=r"nowhere\.csv does not exist"):
        tune(
            tmp_path / "store",
            start,
            task={"kind": "pairs"},
            data={"path": str(tmp_path / "nowhere.csv")},
        )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"train": {"objective": "causal"}}, "objective follows from the task"),
        ({"train": {"sample_count": 3}}, "sample_count follows from the task"),
        ({"trained_weights": "head"}, "set trained_weights to all for pairs"),
        (
            {"data": {"path": "x", "test_share": 0.6, "validation_share": 0.4}},
            "leave nothing to train on",
        ),
        ({"task": {"kind": "poetry"}}, "poetry"),
    ],
)
def test_settings_that_cannot_be_are_refused(config, words):
    with pytest.raises(ValidationError, match=words):
        FinetuneConfig.model_validate({"task": {"kind": "pairs"}, "data": {"path": "x"}, **config})


def test_what_a_config_leaves_out_is_as_fine_tuning_does_it():
    tree = {"task": {"kind": "pairs"}, "data": {"path": "x"}, "train": {"steps": 100}}
    train = FinetuneConfig.model_validate(tree).train
    assert (train.steps, train.learning_rate, train.schedule) == (100, 5e-4, "linear")
