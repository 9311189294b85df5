"""Pretraining goes on from what a run with other settings left, where they decided nothing yet."""

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
from tests.tasks.training.test_pretrain import OnLine, kill, resumed_at

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


def changed(**train: object) -> PretrainConfig:
    return CONFIG.model_copy(update={"train": replace(CONFIG.train, **train)})  # type: ignore[arg-type]


def trained(
    store: Path, config: PretrainConfig, fails_at: int | None = None, documents: int = 60
) -> tuple[Artifact, list[str]]:
    """What pretraining leaves, and what was logged; ``fails_at``: with the checkpoint of a step."""

    def listen(event: Event) -> None:
        key = event.artifact.manifest["parts"]["key"] if event.kind == "child" else {}  # type: ignore[union-attr]
        if key and key["step"] == fails_at:
            raise HallmarkError("given up")

    with OnLine([], kill) as seen, open_session(Session(Store(store), listener=listen)):
        corpus = split_corpus(documents)
        tokenizer = train_tokenizer(corpus, None, TokenizerConfig(vocab_size=300))
        packed = pack(corpus, tokenizer, PackConfig(context=32))
        return pretrain(packed, tokenizer, corpus, None, None, config), seen.lines


def interrupted(store: Path, config: PretrainConfig, step: int = 10) -> None:
    with pytest.raises(HallmarkError, match="given up"):
        trained(store, config, fails_at=step)


def stretches(made: Artifact, setting: str) -> list[tuple[int, int, object]]:
    rows = made["settings"].read().to_pylist()
    return [
        (r["first_step"], r["last_step"], json.loads(r["value"]))
        for r in rows
        if r["setting"] == setting
    ]


def last_weights(made: Artifact) -> bytes:
    last = made["checkpoints"].read().to_pylist()[-1]
    found = made.store.find_artifact(*last["artifact"].split("/"))
    return found.fetch_file("model.safetensors").read_bytes()


def test_after_running_out_of_memory_a_higher_accumulation_goes_on(tmp_path: Path) -> None:
    interrupted(tmp_path, CONFIG)
    made, lines = trained(tmp_path, changed(accumulation_steps=4, checkpoint_every=10))
    (step,) = resumed_at(lines)
    assert step >= 10 and any("with other settings" in line for line in lines)
    assert stretches(made, "accumulation_steps") == [(1, step, 1), (step + 1, 20, 4)]
    assert made.manifest["determinism"] == "statistical"
    assert made.manifest["parts"]["config"]["train"]["accumulation_steps"] == 4
    checkpoints = made["checkpoints"].read().to_pylist()
    kinds = [
        made.store.find_artifact(*row["artifact"].split("/")).manifest["determinism"]
        for row in checkpoints
    ]
    assert set(kinds) == {"statistical"} and checkpoints[-1]["step"] == 20
    assert made["log"].read()["step"].to_pylist() == list(range(1, 21))


def test_a_training_of_one_kind_is_of_one_stretch_and_of_its_machine(tmp_path: Path) -> None:
    interrupted(tmp_path, CONFIG)
    made, lines = trained(tmp_path, CONFIG)
    assert resumed_at(lines)[0] >= 10
    assert stretches(made, "accumulation_steps") == [(1, 20, 1)]
    assert made.manifest["determinism"] == "machine"
    assert not [*Store(tmp_path).work_folder.glob("pretrain-*")]


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"batch_size": 4},
        {"optimizer": "muon"},
        {"learning_rate": 1e-3},
        {"steps": 30},  # of the cosine: every rate so far would have been another
        {"schedule": "linear"},
        {"precision": "bf16"},
        {"model": ModelConfig(d_model=32, n_layers=2, n_heads=2)},
        {"documents": 80},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_decided_the_steps_so_far_begins_anew(left: Path, change: dict[str, object]) -> None:
    train = {name: value for name, value in change.items() if name not in ("documents", "model")}
    documents = int(str(change.get("documents", 60)))
    model = change.get("model", CONFIG.model)
    config = changed(**train).model_copy(update={"model": model})
    made, lines = trained(left, config, documents=documents)
    assert resumed_at(lines) == [0]
    assert made.manifest["determinism"] == "machine"


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory, forked_trainers: None) -> Path:
    """A store with a training that was interrupted."""
    store = tmp_path_factory.mktemp("left")
    interrupted(store, CONFIG)
    return store


@pytest.mark.parametrize(("schedule", "branch"), [("constant", 20), ("wsd", 16)])
def test_a_longer_training_goes_on_from_a_shorter_one_that_is_done(
    tmp_path: Path, schedule: str, branch: int
) -> None:
    short, longer = (changed(schedule=schedule, steps=steps) for steps in (20, 30))
    trained(tmp_path / "store", short)
    (area,) = Store(tmp_path / "store").work_folder.glob("pretrain-*")
    (kept,) = area.glob("kept-*")
    assert [path.name for path in (kept / "state").iterdir()] == [f"step-{branch:08d}"]
    made, lines = trained(tmp_path / "store", longer)
    assert resumed_at(lines) == [branch]
    assert stretches(made, "steps") == [(1, branch, 20), (branch + 1, 30, 30)]
    assert made.manifest["determinism"] == "statistical"
    alone, _ = trained(tmp_path / "alone", longer)
    assert last_weights(made) == last_weights(alone)
    losses = [m["log"].read()["loss"].to_pylist() for m in (made, alone)]
    assert losses[0] == losses[1]
    again, lines = trained(tmp_path / "store", short)  # nothing of it was taken away
    assert not resumed_at(lines) and len(again["checkpoints"].read()) == 5


def test_a_training_whose_rate_decays_already_is_not_gone_on_with_nor_lost(tmp_path: Path) -> None:
    """Of the longer one the steps up to the decay are those of the shorter one, no more."""
    short, longer = (changed(schedule="wsd", steps=steps, checkpoint_every=6) for steps in (20, 40))
    interrupted(tmp_path, short, step=18)
    _, lines = trained(tmp_path, longer)
    assert resumed_at(lines) == [16]
    _, lines = trained(tmp_path, short)
    assert resumed_at(lines)[0] >= 18


def test_fewer_steps_than_are_done_begin_anew_and_take_nothing_away(tmp_path: Path) -> None:
    long, short = (changed(schedule="constant", steps=steps) for steps in (20, 4))
    interrupted(tmp_path, long)
    _, lines = trained(tmp_path, short)
    assert resumed_at(lines) == [0]
    _, lines = trained(tmp_path, long)
    assert resumed_at(lines)[0] >= 10


def test_what_was_read_is_told_of_this_run_and_of_none_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shorter one came to all of it, and then to no commit."""
    short, longer = (changed(schedule="constant", steps=steps) for steps in (10, 20))
    with monkeypatch.context() as fault, pytest.raises(HallmarkError, match="given up"):
        fault.setattr(
            "hallmark.tasks.training.pretrain.preserve_resumable_states",
            Mock(side_effect=HallmarkError("given up")),
        )
        trained(tmp_path, short)
    (area,) = Store(tmp_path).work_folder.glob("pretrain-*")
    assert list(area.glob("parts/*/*/document_reads.parquet"))
    made, _ = trained(tmp_path, longer)
    checkpoints = made["checkpoints"].read()["step"].to_pylist()
    assert {*made["coverage"].read()["step"].to_pylist()} == {*checkpoints} == {*range(0, 21, 5)}
    assert {*made["document_reads"].read()["step"].to_pylist()} == {*checkpoints} - {0}
