"""The audit of a checkpoint finds the artifacts of its training."""

import shutil

import pytest

from hallmark.flows.audit_execution import record_failure
from hallmark.flows.auditing import find_lineage_input
from hallmark.tasks.contract import (
    Artifact,
    EmptyConfig,
    HallmarkError,
    Session,
    StageContext,
    Store,
    UsageError,
    folder_to_artifact,
    open_session,
    stage,
)
from hallmark.tasks.training.train_tokenizer import TokenizerConfig, train_tokenizer
from tests.tasks.small_corpus import split_corpus


@stage(name="learned")
def learned(tokenizer: Artifact, config: EmptyConfig, context: StageContext) -> None:
    """Like ``pretrain``, it has a tokenizer among its inputs."""


@pytest.fixture
def store(tmp_path):
    with open_session(Session(Store(tmp_path / "store"))) as session:
        yield session.store


def test_the_tokenizer_is_the_one_of_the_training(store, tmp_path):
    made = train_tokenizer(split_corpus(40), None, TokenizerConfig(vocab_size=300))
    pretrained = learned(made, EmptyConfig())
    found = find_lineage_input(pretrained, "tokenizer", "train_tokenizer")
    assert found is not None and found.name == made.name
    shutil.rmtree(store.root_folder / "artifacts" / "train_tokenizer")
    # All other audits work without it.
    assert find_lineage_input(pretrained, "tokenizer", "train_tokenizer") is None


def test_failures_are_recorded_but_usage_errors_are_raised(caplog):
    failed = {}
    with record_failure(failed, "bias"):
        raise HallmarkError("the model gives no number")
    assert failed == {"bias": "the model gives no number"}
    assert "bias failed: " in caplog.text
    with pytest.raises(UsageError), record_failure(failed, "toxicity"):
        raise UsageError("prompts.jsonl, line 2 must have text in 'prompt', not 7")
    with pytest.raises(ValueError, match="a mistake of ours"), record_failure(failed, "toxicity"):
        raise ValueError("a mistake of ours")
    assert [*failed] == ["bias"]


def test_continued_and_external_checkpoints_have_no_tokenizer_artifact(store, tmp_path):
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "tokenizer.json").write_text("{}")
    begun = learned(folder_to_artifact(tmp_path / "start", "checkpoint"))
    assert find_lineage_input(begun, "tokenizer", "train_tokenizer") is None
