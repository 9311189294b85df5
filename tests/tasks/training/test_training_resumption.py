"""Test that pretraining resumes from runs whose other settings did not affect past steps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from hallmark.model.config import ModelConfig, TrainConfig
from hallmark.tasks.contract import Artifact, Event, HallmarkError, Session, Store, open_session
from hallmark.tasks.training.pack import PackConfig, pack
from hallmark.tasks.training.pretrain import PretrainConfig, pretrain
from hallmark.tasks.training.train_tokenizer import TokenizerConfig, train_tokenizer
from tests.tasks.small_corpus import split_corpus
from tests.tasks.training.test_pretrain import LogWatcher, find_start_steps, kill_process

pytestmark = pytest.mark.usefixtures("forked_trainers")

CONFIG = PretrainConfig(
    model=ModelConfig(d_model=32, n_layers=1, n_heads=2),
    train=TrainConfig(
        steps=20,
        batch_size=8,
        warmup_steps=2,
        checkpoint_every=5,
        validate_every=20,
        threads=1,
        precision="fp32",
        device="cpu",
    ),
)


def change_training(**train: object) -> PretrainConfig:
    return CONFIG.model_copy(update={"train": replace(CONFIG.train, **train)})  # type: ignore[arg-type]


def run_training(
    store: Path, config: PretrainConfig, fails_at: int | None = None, documents: int = 60
) -> tuple[Artifact, list[str]]:
    """What pretraining leaves, and what was logged; ``fails_at``: with the checkpoint of a step."""

    def listen(event: Event) -> None:
        key = event.artifact.manifest["parts"]["key"] if event.kind == "child" else {}  # type: ignore[union-attr]
        if key and key["step"] == fails_at:
            raise HallmarkError("given up")

    with LogWatcher([], kill_process) as seen, open_session(Session(Store(store), listener=listen)):
        corpus = split_corpus(documents)
        tokenizer = train_tokenizer(corpus, None, TokenizerConfig(vocab_size=300))
        packed = pack(corpus, tokenizer, PackConfig(context=32))
        return pretrain(packed, tokenizer, corpus, None, None, config), seen.lines


def interrupt_training(store: Path, config: PretrainConfig, step: int = 10) -> None:
    with pytest.raises(HallmarkError, match="given up"):
        run_training(store, config, fails_at=step)


def list_setting_segments(result: Artifact, setting: str) -> list[tuple[int, int, object]]:
    rows = result["settings"].read().to_pylist()
    return [
        (r["first_step"], r["last_step"], json.loads(r["value"]))
        for r in rows
        if r["setting"] == setting
    ]


def read_last_weights(result: Artifact) -> bytes:
    last = result["checkpoints"].read().to_pylist()[-1]
    found = result.store.find_artifact(*last["artifact"].split("/"))
    return found.fetch_file("model.safetensors").read_bytes()


def test_training_resumes_with_more_accumulation_steps(tmp_path: Path) -> None:
    interrupt_training(tmp_path, CONFIG)
    result, lines = run_training(
        tmp_path, change_training(accumulation_steps=4, checkpoint_every=10)
    )
    (step,) = find_start_steps(lines)
    assert step >= 10 and any("used different settings" in line for line in lines)
    assert list_setting_segments(result, "accumulation_steps") == [(1, step, 1), (step + 1, 20, 4)]
    assert result.manifest["determinism"] == "statistical"
    assert result.manifest["parts"]["config"]["train"]["accumulation_steps"] == 4
    checkpoints = result["checkpoints"].read().to_pylist()
    kinds = [
        result.store.find_artifact(*row["artifact"].split("/")).manifest["determinism"]
        for row in checkpoints
    ]
    assert set(kinds) == {"statistical"} and checkpoints[-1]["step"] == 20
    assert result["log"].read()["step"].to_pylist() == list(range(1, 21))


def test_a_resumed_training_with_equal_settings_has_one_segment(tmp_path: Path) -> None:
    interrupt_training(tmp_path, CONFIG)
    result, lines = run_training(tmp_path, CONFIG)
    assert find_start_steps(lines)[0] >= 10
    assert list_setting_segments(result, "accumulation_steps") == [(1, 20, 1)]
    assert result.manifest["determinism"] == "machine"
    assert not [*Store(tmp_path).work_folder.glob("pretrain-*")]


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"batch_size": 4},
        {"optimizer": "muon"},
        {"learning_rate": 1e-3},
        {"steps": 30},  # With the cosine schedule all learning rates would differ.
        {"schedule": "linear"},
        {"precision": "bf16"},
        {"model": ModelConfig(d_model=32, n_layers=2, n_heads=2)},
        {"documents": 80},
    ],
    ids=lambda change: next(iter(change)),
)
def test_settings_that_affect_past_steps_restart_training(
    interrupted_store: Path, change: dict[str, object]
) -> None:
    train = {name: value for name, value in change.items() if name not in ("documents", "model")}
    documents = int(str(change.get("documents", 60)))
    model = change.get("model", CONFIG.model)
    config = change_training(**train).model_copy(update={"model": model})
    result, lines = run_training(interrupted_store, config, documents=documents)
    assert find_start_steps(lines) == [0]
    assert result.manifest["determinism"] == "machine"


@pytest.fixture(scope="module")
def interrupted_store(tmp_path_factory: pytest.TempPathFactory, forked_trainers: None) -> Path:
    """Return a store with an interrupted training."""
    store = tmp_path_factory.mktemp("left")
    interrupt_training(store, CONFIG)
    return store


@pytest.mark.parametrize(("schedule", "branch"), [("constant", 20), ("wsd", 16)])
def test_a_longer_training_continues_from_a_finished_shorter_one(
    tmp_path: Path, schedule: str, branch: int
) -> None:
    short, longer = (change_training(schedule=schedule, steps=steps) for steps in (20, 30))
    run_training(tmp_path / "store", short)
    (area,) = Store(tmp_path / "store").work_folder.glob("pretrain-*")
    (kept,) = area.glob("kept-*")
    assert [path.name for path in (kept / "state").iterdir()] == [f"step-{branch:08d}"]
    result, lines = run_training(tmp_path / "store", longer)
    assert find_start_steps(lines) == [branch]
    assert list_setting_segments(result, "steps") == [(1, branch, 20), (branch + 1, 30, 30)]
    assert result.manifest["determinism"] == "statistical"
    alone, _ = run_training(tmp_path / "alone", longer)
    assert read_last_weights(result) == read_last_weights(alone)
    losses = [m["log"].read()["loss"].to_pylist() for m in (result, alone)]
    assert losses[0] == losses[1]
    again, lines = run_training(tmp_path / "store", short)  # Its states were not deleted.
    assert not find_start_steps(lines) and len(again["checkpoints"].read()) == 5


def test_states_after_the_decay_began_are_kept_but_not_reused(tmp_path: Path) -> None:
    """The longer training only shares the steps before the decay of the shorter one."""
    short, longer = (
        change_training(schedule="wsd", steps=steps, checkpoint_every=6) for steps in (20, 40)
    )
    interrupt_training(tmp_path, short, step=18)
    _, lines = run_training(tmp_path, longer)
    assert find_start_steps(lines) == [16]
    _, lines = run_training(tmp_path, short)
    assert find_start_steps(lines)[0] >= 18


def test_a_shorter_training_restarts_and_deletes_nothing(tmp_path: Path) -> None:
    long, short = (change_training(schedule="constant", steps=steps) for steps in (20, 4))
    interrupt_training(tmp_path, long)
    _, lines = run_training(tmp_path, short)
    assert find_start_steps(lines) == [0]
    _, lines = run_training(tmp_path, long)
    assert find_start_steps(lines)[0] >= 10


def test_document_reads_are_those_of_this_run_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shorter training computed its document reads, but failed before the commit."""
    short, longer = (change_training(schedule="constant", steps=steps) for steps in (10, 20))
    with monkeypatch.context() as fault, pytest.raises(HallmarkError, match="given up"):
        fault.setattr(
            "hallmark.tasks.training.pretrain.preserve_resumable_states",
            Mock(side_effect=HallmarkError("given up")),
        )
        run_training(tmp_path, short)
    (area,) = Store(tmp_path).work_folder.glob("pretrain-*")
    assert list(area.glob("parts/*/*/document_reads.parquet"))
    result, _ = run_training(tmp_path, longer)
    checkpoints = result["checkpoints"].read()["step"].to_pylist()
    assert {*result["coverage"].read()["step"].to_pylist()} == {*checkpoints} == {*range(0, 21, 5)}
    assert {*result["document_reads"].read()["step"].to_pylist()} == {*checkpoints} - {0}
