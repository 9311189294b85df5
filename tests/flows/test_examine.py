"""What the examination of a checkpoint finds of its making."""

import shutil

import pytest

from flows.pipeline import made_of, told
from tasks.contract import (
    Artifact,
    HallmarkError,
    NoConfig,
    Session,
    Store,
    UsageError,
    Work,
    external,
    open_session,
    stage,
)
from tasks.training.train_tokenizer import TokenizerConfig, train_tokenizer
from tests.tasks.small_corpus import split_corpus


@stage()
def learned(tokenizer: Artifact, config: NoConfig, work: Work) -> None:
    """Like ``pretrain``, it has its tokenizer among its inputs."""


@pytest.fixture
def store(tmp_path):
    with open_session(Session(Store(tmp_path / "store"))) as session:
        yield session.store


def test_the_tokenizer_is_the_one_made_for_the_training(store, tmp_path):
    made = train_tokenizer(split_corpus(40), None, TokenizerConfig(vocab_size=300))
    pretrained = learned(made, NoConfig())
    found = made_of(pretrained, "tokenizer", "train_tokenizer")
    assert found is not None and found.name == made.name
    shutil.rmtree(store.root / "artifacts" / "train_tokenizer")
    # The rest can be audited without it.
    assert made_of(pretrained, "tokenizer", "train_tokenizer") is None


def test_what_goes_wrong_is_told_but_not_what_is_wrong_with_the_command(caplog):
    failed = {}
    with told(failed, "bias"):
        raise HallmarkError("the model gives no number")
    assert failed == {"bias": "the model gives no number"}
    assert "bias failed: " in caplog.text
    with pytest.raises(UsageError), told(failed, "toxicity"):
        raise UsageError("prompts.jsonl, line 2 has no text in 'prompt'")
    with pytest.raises(ValueError, match="a mistake of ours"), told(failed, "toxicity"):
        raise ValueError("a mistake of ours")
    assert [*failed] == ["bias"]


def test_a_checkpoint_gone_on_from_or_of_somebody_else_has_none(store, tmp_path):
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "tokenizer.json").write_text("{}")
    begun = learned(external(tmp_path / "start", "checkpoint"))
    assert made_of(begun, "tokenizer", "train_tokenizer") is None
    assert made_of(None, "tokenizer", "train_tokenizer") is None
