"""The trainer on examples: it learns tasks, resumes after a kill, and can freeze the body."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from pyarrow.parquet import read_table

from hallmark.model.architecture import Transformer
from hallmark.model.config import ModelConfig, config_to_dict
from hallmark.model.decoding.generation import generate
from hallmark.model.interchange.checkpoint import load_checkpoint, save_checkpoint
from hallmark.model.probing.label_scores import compute_log_probs_at_labelled_tokens
from hallmark.model.training.adaptation import make_classifier_config
from hallmark.model.training.examples import NO_LABEL, Example, write_examples
from tests.model.oracles import write_tokenizer
from tests.model.training.training import CONTENT, TRAIN, finish, follow, log, run, start

SIZES = {"vocab_size": 40, "context": 16, "d_model": 32, "n_layers": 2, "n_heads": 2}


def write_start_checkpoint(folder, **changes):
    torch.manual_seed(1)
    model = Transformer(ModelConfig(**{**SIZES, **changes}))
    save_checkpoint(
        model, folder, tokenizer_path=write_tokenizer(folder.parent / "tokenizer.json", 40)
    )
    return model.config


def write_job(work, start, config, objective, examples, *, frozen=False, **train):
    folder = work.parent
    for split, rows in examples.items():
        write_examples(folder / f"{split}.arrow", rows)
    job = {
        "model": config_to_dict(config),
        "train": {**TRAIN, "objective": objective, "sample_count": 0, **train},
        "data": {split: str(folder / f"{split}.arrow") for split in examples},
        "tokenizer": str(folder / "tokenizer.json"),
        "work": str(work),
        "start": str(start),
        "examples": True,
        "frozen": frozen,
    }
    path = folder / f"{work.name}.json"
    path.write_text(json.dumps(job))
    return path


def make_reversed_pairs(count, seed):
    """Make pairs of two tokens out of five, and their images in reversed order."""
    random = np.random.default_rng(seed)
    pairs = random.integers(2, 7, (count, 2))
    return [Example(pair.tolist(), (pair[::-1] + 10).tolist()) for pair in pairs]


@pytest.mark.parametrize("objective", ["seq2seq", "prefix"])
def test_pairs_are_learned_from_scratch(tmp_path, objective):
    architecture = "encoder_decoder" if objective == "seq2seq" else "decoder"
    config = write_start_checkpoint(tmp_path / "start", architecture=architecture)
    examples = {"train": make_reversed_pairs(200, 1), "validation": make_reversed_pairs(20, 2)}
    job = write_job(
        tmp_path / "work",
        tmp_path / "start",
        config,
        objective,
        examples,
        steps=150,
        learning_rate=5e-3,
        batch_size=16,
        validate_every=50,
        checkpoint_every=150,
        sample_count=2,
    )
    code, events = run(job)
    assert code == 0, events
    samples = read_table(tmp_path / "work" / "samples").to_pylist()
    assert [row["step"] for row in samples] == [50, 50, 100, 100, 150, 150]
    bits = log(tmp_path / "work", ["validation_bits_per_token"]).to_pylist()
    bits_by_step = [row["validation_bits_per_token"] for row in bits]
    assert [i + 1 for i, value in enumerate(bits_by_step) if value is not None] == [50, 100, 150]
    assert bits_by_step[149] < 0.1
    rows = log(tmp_path / "work", ["step", "tokens_seen"]).to_pylist()
    assert [row["tokens_seen"] for row in rows] == [row["step"] * 16 * 4 for row in rows]
    model = load_checkpoint(tmp_path / "work" / "checkpoints" / "step-00000150")
    assert model.objective == objective
    test = make_reversed_pairs(30, 3)
    sources = [list(e.ids) for e in test] if objective == "seq2seq" else None
    prompts = [[0] if sources else [0, *e.ids, 0] for e in test]
    continuations = generate(model, prompts, max_new_tokens=5, temperature=0.0, sources=sources)
    is_correct = [
        text.ids == [*e.targets, 0] for (text,), e in zip(continuations, test, strict=True)
    ]
    assert np.mean(is_correct) > 0.9


def make_labelled_texts(count, seed):
    """Make texts of tokens 2 to 9, each labelled by whether the token before it is greater."""
    random = np.random.default_rng(seed)
    examples = []
    for _ in range(count):
        row = random.integers(2, 10, random.integers(3, 9)).tolist()
        greater = [int(a > b) for a, b in itertools.pairwise(row)]
        examples.append(Example([0, *row], [NO_LABEL, NO_LABEL, *greater]))
    return examples


@pytest.mark.parametrize("architecture", ["encoder", "decoder"])
def test_token_labels_are_learned(tmp_path, architecture):
    base = write_start_checkpoint(tmp_path / "start", architecture=architecture)
    config = make_classifier_config(base, ("no", "yes"), per_sequence=False, sentence_count=1)
    objective = "mlm" if architecture == "encoder" else "causal"
    examples = {"train": make_labelled_texts(300, 1), "validation": make_labelled_texts(30, 2)}
    job = write_job(
        tmp_path / "work",
        tmp_path / "start",
        config,
        objective,
        examples,
        steps=400,
        batch_size=16,
        checkpoint_every=400,
    )
    code, events = run(job)
    assert code == 0, events
    model = load_checkpoint(tmp_path / "work" / "checkpoints" / "step-00000400")
    test = make_labelled_texts(50, 3)
    predicted = np.concatenate(
        [p.argmax(1) for p in compute_log_probs_at_labelled_tokens(model, test)]
    )
    gold = np.concatenate([[a for a in e.targets if a != NO_LABEL] for e in test])
    assert (predicted == gold).mean() > 0.9


def test_a_killed_training_resumes_and_writes_the_same_bytes(tmp_path):
    base = write_start_checkpoint(tmp_path / "start", architecture="encoder", dropout=0.1)
    config = make_classifier_config(base, ("no", "yes"), per_sequence=False, sentence_count=1)
    examples = {"train": make_labelled_texts(60, 1), "validation": make_labelled_texts(9, 2)}
    arguments = (tmp_path / "start", config, "mlm", examples)
    undisturbed = write_job(tmp_path / "one", *arguments)
    assert run(undisturbed)[0] == 0
    job = write_job(tmp_path / "other", *arguments)
    process = start(job)
    follow(process, lambda event: event["event"] == "checkpoint" and event["step"] == 20)
    process.kill()
    process.wait()
    code, events = finish(start(job))
    assert code == 0 and events[0]["resumed"]
    one, other = tmp_path / "one", tmp_path / "other"
    assert log(one, CONTENT).equals(log(other, CONTENT))
    for step in (0, 10, 20, 30, 40):
        weights = Path("checkpoints") / f"step-{step:08d}" / "model.safetensors"
        assert (one / weights).read_bytes() == (other / weights).read_bytes()


def test_only_the_output_layer_of_a_frozen_model_changes(tmp_path):
    base = write_start_checkpoint(tmp_path / "start", architecture="encoder")
    config = make_classifier_config(base, ("no", "yes"), per_sequence=True, sentence_count=1)
    texts = [Example([0, 5, 6], [i % 2, NO_LABEL, NO_LABEL]) for i in range(20)]
    job = write_job(
        tmp_path / "work", tmp_path / "start", config, "mlm", {"train": texts}, frozen=True
    )
    code, events = run(job)
    assert code == 0, events
    first, last = (
        load_checkpoint(tmp_path / "work" / "checkpoints" / f"step-{n:08d}").state_dict()
        for n in (0, 40)
    )
    changed = {name for name in first if not torch.equal(first[name], last[name])}
    assert changed == {"transform.0.weight", "transform.0.bias", "head.weight", "head.bias"}
    job = write_job(tmp_path / "work", tmp_path / "start", config, "mlm", {"train": texts})
    code, events = run(job)  # the work folder belongs to a frozen training
    assert code == 1 and "a different value of 'frozen'" in events[-1]["message"]


def test_frozen_features_are_computed_without_dropout(tmp_path):
    weights = []
    for dropout in (0.0, 0.5):
        folder = tmp_path / str(dropout)
        folder.mkdir()
        base = write_start_checkpoint(folder / "start", architecture="encoder", dropout=dropout)
        config = make_classifier_config(base, ("no", "yes"), per_sequence=False, sentence_count=1)
        examples = {"train": make_labelled_texts(20, 1)}
        job = write_job(folder / "work", folder / "start", config, "mlm", examples, frozen=True)
        assert run(job)[0] == 0
        weights.append(
            load_checkpoint(folder / "work" / "checkpoints" / "step-00000040").state_dict()
        )
    one, other = weights
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_start_checkpoint_of_another_size_is_refused(tmp_path):
    write_start_checkpoint(tmp_path / "start")
    config = ModelConfig(**{**SIZES, "d_model": 64})
    job = write_job(
        tmp_path / "work",
        tmp_path / "start",
        config,
        "prefix",
        {"train": make_reversed_pairs(5, 1)},
    )
    code, events = run(job)
    assert code == 1
    assert "has d_model = 32, but the job has d_model = 64" in events[-1]["message"]
    shutil.rmtree(tmp_path / "start")
    code, events = run(job)
    assert code == 1 and "is not a folder" in events[-1]["message"]
