"""Test the stage pretrain: its results, and that killed processes do not change them."""

from __future__ import annotations

import logging
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from pydantic import ValidationError

from hallmark.model.batch import Batch
from hallmark.model.config import ModelConfig, TrainConfig
from hallmark.model.interchange import checkpoint
from hallmark.tasks.contract import (
    PROJECT_ROOT,
    Artifact,
    Event,
    HallmarkError,
    Session,
    Store,
    doc_id_to_part_index,
    open_session,
)
from hallmark.tasks.training.pretrain import PretrainConfig, pretrain
from tests.tasks.small_corpus import corpus_of, split_corpus
from tests.tasks.training.pretraining import CONFIG, prepare_inputs, run

#: Except for the killed stage, which has its own process and starts a real trainer.
pytestmark = pytest.mark.usefixtures("forked_trainers")


@pytest.fixture(scope="module")
def reference_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifact, Artifact]:
    return run(tmp_path_factory.mktemp("undisturbed"))


class LogWatcher(logging.Handler):
    """Collect log lines and trainers' process ids, and act when the next pattern matches."""

    def __init__(self, patterns: list[str], action: Callable[[int], None]) -> None:
        super().__init__()
        self.patterns, self.action = list(patterns), action
        self.lines: list[str] = []
        self.trainers: list[int] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        self.lines.append(line)
        if started := re.match(r"trainer: process (\d+) started", line):
            self.trainers.append(int(started[1]))
        if self.patterns and re.search(self.patterns[0], line):
            self.patterns.pop(0)
            self.action(self.trainers[-1])

    def __enter__(self) -> LogWatcher:
        logger = logging.getLogger("hallmark")
        self.level_before = logger.level
        logger.setLevel(logging.INFO)
        logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logger = logging.getLogger("hallmark")
        logger.removeHandler(self)
        logger.setLevel(self.level_before)


def kill_process(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until_gone(pid: int, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while is_running(pid):
        assert time.monotonic() < deadline, f"trainer {pid} outlived its stage"
        time.sleep(0.01)


def find_start_steps(lines: list[str]) -> list[int]:
    """Return the steps from which trainers started."""
    return [int(m[1]) for line in lines if (m := re.search(r"from step (\d+) of", line))]


def test_log_and_checkpoints_describe_the_training(
    reference_run: tuple[Artifact, Artifact],
) -> None:
    _, result = reference_run
    log = result["log"].read().to_pylist()
    assert [row["step"] for row in log] == list(range(1, 301))
    assert [row["tokens_seen"] for row in log] == [step * 8 * 32 for step in range(1, 301)]
    assert log[-1]["loss"] < 0.5 * log[0]["loss"]
    assert abs(log[0]["loss"] - math.log(300)) < 0.5  # An untrained model is about uniform.
    validated = [row["step"] for row in log if row["validation_loss"] is not None]
    assert validated == [100, 200, 300]

    rows = result["checkpoints"].read().to_pylist()
    assert [row["step"] for row in rows] == list(range(0, 301, 50))
    by_step = {row["step"]: row for row in log}
    for row in rows[1:]:
        expected = by_step[row["step"]]
        assert (row["tokens_seen"], row["loss"]) == (expected["tokens_seen"], expected["loss"])
        assert row["validation_loss"] == expected["validation_loss"]
    speed = result.read_telemetry("speed").to_pylist()
    assert len(speed) == 300 and all(row["tokens_per_second"] > 0 for row in speed)
    assert speed[9]["tokens_per_second"] == pytest.approx(8 * 32 / speed[9]["seconds"])


def test_document_reads_add_up_to_the_tokens_seen(
    reference_run: tuple[Artifact, Artifact],
) -> None:
    packed, result = reference_run
    spans = packed["spans"].read().to_pylist()
    inside = [s["row_end"] - s["row_start"] for s in spans if s["split"] == "train"]
    padding = packed["train"].row_count * 32 - sum(inside)
    assert 0 <= padding < 32
    coverage = result["coverage"].read().to_pylist()
    assert {row["step"] for row in coverage} == set(range(0, 301, 50))
    for step in range(0, 301, 50):
        rows = [row for row in coverage if row["step"] == step]
        assert sum(row["packed_tokens"] for row in rows) == sum(inside)
        unread = step * 8 * 32 - sum(row["tokens_read"] for row in rows)
        assert 0 <= unread <= padding * -(-step * 8 // packed["train"].row_count)
    seen = result["document_reads"].read().to_pylist()
    assert sum(row["tokens_read"] for row in seen) == sum(
        row["tokens_read"] for row in coverage if row["step"] == 300
    )
    assert all(0 < row["first_step"] <= row["last_step"] <= row["step"] for row in seen)
    assert [(part.index, part.part_count) for part in result["document_reads"].parts] == [
        (n, 4) for n in range(4)
    ]
    for part in result["document_reads"].parts:
        keys = [(row["doc_id"], row["step"]) for row in part.read().to_pylist()]
        assert keys == sorted(keys) != []
        assert {doc_id_to_part_index(doc_id, 4) for doc_id, _ in keys} == {part.index}


def test_checkpoints_are_artifacts_that_can_be_loaded(
    reference_run: tuple[Artifact, Artifact],
) -> None:
    _, result = reference_run
    for row in result["checkpoints"].read().to_pylist():
        stage, digest = row["artifact"].split("/")
        artifact = Store(result.store.root_folder).find_artifact(stage, digest)
        artifact.verify_files()
        assert artifact.content_digest == row["content_digest"]
        model = checkpoint.load_checkpoint(artifact.fetch_directory())
        assert (model.config.vocab_size, model.config.context) == (300, 32)
        assert artifact.manifest["parts"]["key"]["step"] == row["step"]


def test_the_validation_loss_belongs_to_the_committed_weights(
    reference_run: tuple[Artifact, Artifact],
) -> None:
    """Compute it again with torch's own cross-entropy on the packed rows."""
    import torch

    packed, result = reference_run
    last = result["checkpoints"].read().to_pylist()[-1]
    model = checkpoint.load_checkpoint(
        result.store.find_artifact(*last["artifact"].split("/")).fetch_directory()
    )
    ids = packed["validation"].read()["token_ids"].combine_chunks()
    rows = torch.tensor(ids.flatten().to_numpy().reshape(-1, 32)).long()
    with torch.inference_mode():
        logits = model.compute_logits(model(Batch(rows[:, :-1]))).flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, rows[:, 1:].flatten(), ignore_index=1)
    # The trainer may have measured in bf16, which keeps about three digits.
    assert last["validation_loss"] == pytest.approx(loss.item(), rel=0.02)


def test_a_killed_trainer_resumes_with_the_same_bytes(
    reference_run: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    with LogWatcher(["checkpoint of step 50 ", "checkpoint of step 150 "], kill_process) as seen:
        _, result = run(tmp_path)
    assert sum("killed by SIGKILL" in line for line in seen.lines) == 2
    first, second, third = find_start_steps(seen.lines)
    assert first == 0 and 50 <= second < third < 300
    assert result.content_digest == reference_run[1].content_digest
    assert not any(is_running(pid) for pid in seen.trainers)


@pytest.mark.slow
def test_a_killed_stage_ends_its_trainer_and_resumes(
    reference_run: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.tasks.training.pretraining", str(tmp_path)]
    stage = subprocess.Popen(command, cwd=PROJECT_ROOT, stdout=subprocess.PIPE, text=True)
    assert stage.stdout is not None
    trainer = 0
    for line in stage.stdout:
        if started := re.match(r"trainer: process (\d+) started", line):
            trainer = int(started[1])
        if "checkpoint of step 100 " in line:
            assert is_running(trainer)
            stage.kill()
            break
    stage.communicate()
    assert stage.returncode == -signal.SIGKILL
    wait_until_gone(trainer)
    assert not (tmp_path / "artifacts" / "pretrain").exists()  # Nothing incomplete is in the store.

    continued = subprocess.run(
        command, cwd=PROJECT_ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    lines = continued.stdout.splitlines()
    assert 100 <= find_start_steps(lines)[0] < 300
    assert lines[-1] == reference_run[1].content_digest
    assert len(Store(tmp_path).list_artifacts("checkpoint")) == 7


def test_a_failing_stage_ends_its_trainer(tmp_path: Path) -> None:
    def give_up(event: Event) -> None:
        if event.kind == "child":
            raise RuntimeError("given up")

    inputs = prepare_inputs(tmp_path)
    with (
        LogWatcher([], kill_process) as seen,
        open_session(Session(Store(tmp_path), listener=give_up)),
    ):
        try:
            pretrain(*inputs, CONFIG)
        except RuntimeError as error:  # The error keeps the frames of the stage alive.
            assert str(error) == "given up"
            (pid,) = seen.trainers
            assert not is_running(pid)
        else:
            pytest.fail("the listener's error was swallowed")


def test_a_trainer_that_is_always_killed_is_not_restarted_forever(tmp_path: Path) -> None:
    inputs = prepare_inputs(tmp_path)
    with (
        LogWatcher(["process .* started"] * 9, kill_process) as seen,
        open_session(Session(Store(tmp_path))),
        pytest.raises(HallmarkError, match=r"killed 4 times, the last time by SIGKILL"),
    ):
        pretrain(*inputs, CONFIG)
    assert len(seen.trainers) == 4


def test_an_error_of_the_trainer_is_raised_by_the_stage(tmp_path: Path) -> None:
    inputs = prepare_inputs(tmp_path)
    config = PretrainConfig(
        model=CONFIG.model,
        # Eventually a gradient is larger than the mean of the previous ones.
        train=TrainConfig(
            steps=300, warmup_steps=0, learning_rate=0.01, batch_size=8, spike_factor=1.0
        ),
    )
    with (
        open_session(Session(Store(tmp_path))),
        pytest.raises(
            HallmarkError,
            match=r"stage pretrain: Training diverged at step \d+: .*Reduce learning_rate",
        ),
    ):
        pretrain(*inputs, config)


def test_training_needs_sequences_but_no_validation_split(tmp_path: Path) -> None:
    from hallmark.tasks.training.pack import PackConfig, pack

    _, tokenizer, *_ = prepare_inputs(tmp_path)
    with open_session(Session(Store(tmp_path))):
        nothing = corpus_of([("web", "holdout", "text")])
        empty = pack(nothing, tokenizer, PackConfig(context=32))
        with pytest.raises(HallmarkError, match="no sequences to train on"):
            pretrain(empty, tokenizer, nothing, None, None, CONFIG)
        text = corpus_of([("web", "train", "text " * 99)])
        only = pack(text, tokenizer, PackConfig(context=32))
        short = PretrainConfig(model=CONFIG.model, train=TrainConfig(steps=2, warmup_steps=0))
        result = pretrain(only, tokenizer, text, None, None, short)
    assert result["log"].read()["validation_loss"].to_pylist() == [None, None]
    assert result["validation"].row_count == 0 and result["samples"].read()["step"].to_pylist() == [
        2,
        2,
    ]


def test_validation_and_samples_are_recorded(
    reference_run: tuple[Artifact, Artifact],
) -> None:
    _, result = reference_run
    rows = result["validation"].read().to_pylist()
    assert {(r["step"], r["kind"], r["name"]) for r in rows} == {
        (step, kind, name)
        for step in (0, 100, 200, 300)
        for kind, name in (
            ("all", "all"),
            ("source", "source-0"),
        )  # Every tenth document is of source-0.
    }
    by_step = {row["step"]: row for row in rows if row["kind"] == "all"}
    assert (
        by_step[300]["bits_per_byte"] < by_step[100]["bits_per_byte"] < by_step[0]["bits_per_byte"]
    )
    samples = result["samples"].read().to_pylist()
    assert [(r["step"], r["sample_id"]) for r in samples] == [
        (step, i) for step in (100, 200, 300) for i in (0, 1)
    ]
    assert all(row["text"] and not row["prompt"] for row in samples)
    assert samples[-1]["text"] != samples[1]["text"]


def test_validation_groups_are_those_of_the_documents(tmp_path: Path) -> None:
    from hallmark.tasks.corpus.identities import IdentitiesConfig, find_identities
    from hallmark.tasks.training.pack import PackConfig, pack
    from hallmark.tasks.training.train_tokenizer import TokenizerConfig, train_tokenizer
    from hallmark.tasks.training.validation_groups import build_validation_groups

    texts = {
        "a": "The women and the men met at the mosque. " * 3,
        "b": "Nothing to see here but rain. " * 4,
    }
    with open_session(Session(Store(tmp_path))):
        corpus = corpus_of(
            [(name, "validation", text) for name, text in texts.items()]
            + [("a", "train", "Muslims and women. " * 30)]
        )
        tokenizer = train_tokenizer(corpus, None, TokenizerConfig(vocab_size=300))
        packed = pack(corpus, tokenizer, PackConfig(context=32))
        signals = find_identities(corpus, IdentitiesConfig())["signals"]
        table = build_validation_groups(corpus["documents"], signals, packed["spans"])
    spans = packed["spans"].read().to_pylist()
    source_of = dict(
        zip(*corpus["documents"].read(["doc_id", "source"]).to_pydict().values(), strict=True)
    )
    expected = set()
    for span in spans:
        if span["split"] != "validation":
            continue
        where = (span["sequence"], span["row_start"], span["row_end"])
        source = source_of[span["doc_id"]]
        expected.add((*where, "source", source))
        if source == "a":
            expected |= {(*where, "identity", name) for name in ("women", "men")}
    groups = {tuple(row.values()) for row in table.to_pylist()}
    assert expected <= groups and len(groups) == table.num_rows
    assert {row[4] for row in groups - expected} <= {"Muslims"}


def test_training_continues_from_a_checkpoint_with_its_tokenizer(
    reference_run: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    from hallmark.tasks.training.pack import PackConfig, pack

    _, result = reference_run
    rows = result["checkpoints"].read().to_pylist()
    start = result.store.find_artifact(*rows[-1]["artifact"].split("/"))
    continued_config = PretrainConfig(
        model=CONFIG.model,
        train=TrainConfig(
            steps=20, batch_size=8, warmup_steps=0, learning_rate=1e-4, validate_every=10, threads=1
        ),
    )
    with open_session(Session(Store(tmp_path))):
        corpus = split_corpus(200, seed=1)
        packed = pack(corpus, start, PackConfig(context=32))
        continued = pretrain(packed, start, corpus, None, start, continued_config)
        with pytest.raises(
            HallmarkError,
            match=r"pack\.context is 16, but is 32 in the checkpoint from which training starts",
        ):
            pretrain(
                pack(corpus, start, PackConfig(context=16)),
                start,
                corpus,
                None,
                start,
                continued_config,
            )
        other = PretrainConfig(model=ModelConfig(d_model=64), train=continued_config.train)
        with pytest.raises(
            HallmarkError,
            match=r"model\.d_model is 64, but is 32 in the checkpoint from which training starts",
        ):
            pretrain(packed, start, corpus, None, start, other)
    first = continued["log"].read()["loss"].to_pylist()[0]
    assert first < rows[-1]["loss"] + 0.3 < result["log"].read()["loss"].to_pylist()[0]
    first_checkpoint = continued["checkpoints"].read().to_pylist()[0]
    weights = [
        (
            store.find_artifact(*row["artifact"].split("/")).fetch_file("model.safetensors")
        ).read_bytes()
        for store, row in ((Store(tmp_path), first_checkpoint), (result.store, rows[-1]))
    ]
    assert weights[0] == weights[1]


def test_vocabulary_and_context_cannot_be_set() -> None:
    with pytest.raises(
        ValidationError, match=r"'context' cannot be set .* determined by pack\.context"
    ):
        PretrainConfig.model_validate({"model": {"context": 64}})
    with pytest.raises(ValidationError, match="Unexpected keyword"):
        PretrainConfig.model_validate({"model": {"d_modell": 64}})
    config = PretrainConfig(model=ModelConfig(d_model=64))
    recorded = config.model_dump(mode="json")
    assert not {"vocab_size", "context"} & set(recorded["model"])
    assert PretrainConfig.model_validate(recorded) == config
