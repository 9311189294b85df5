"""The tokenizer: the same bytes every time, and no text it cannot spell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tasks.encoding import load_tokenizer
from tasks.errors import HallmarkError
from tasks.stage import Session, open_session
from tasks.store import Store
from tasks.train_tokenizer import (
    SPECIAL_TOKENS,
    TokenizerConfig,
    train,
    train_tokenizer,
)
from tests.tasks.small_corpus import corpus_of, sentences, split_corpus

CONFIG = TokenizerConfig(vocab_size=360)
TEXTS = sentences(300)


def batches(texts: list[str], size: int) -> list[list[str]]:
    return [texts[start : start + size] for start in range(0, len(texts), size)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train(iter(batches(TEXTS, 50)), CONFIG).save(str(path))
    return load_tokenizer(path)


@pytest.mark.parametrize("parallel", ["true", "false"])
@pytest.mark.parametrize("size", [1, 7, 300])
def test_batches_order_and_threads_do_not_matter(
    parallel: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = train(iter([TEXTS]), CONFIG).to_str()
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", parallel)
    assert train(iter(batches(TEXTS[::-1], size)), CONFIG).to_str() == expected


def test_special_tokens_have_the_ids_that_the_trainer_expects(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_to_id("<|endoftext|>") == 0
    assert tokenizer.token_to_id("<|pad|>") == 1
    assert tokenizer.get_vocab_size() == 360


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(codec="utf-8")))
def test_every_text_decodes_to_itself(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert not set(ids) & set(SPECIAL_TOKENS.values())


def test_special_tokens_written_in_a_text_are_text(tokenizer: Tokenizer) -> None:
    text = "before <|endoftext|> and <|pad|> after"
    ids = tokenizer.encode(text).ids
    assert 0 not in ids and 1 not in ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_the_stage_leaves_a_tokenizer_and_its_fertility_on_unseen_text(tmp_path: Path) -> None:
    with open_session(Session(Store(tmp_path))):
        corpus = split_corpus(200)
        made = train_tokenizer(corpus, CONFIG)
    tokenizer = load_tokenizer(made.path("tokenizer.json"))
    held_out = [
        row for row in corpus["documents"].read().to_pylist() if row["split"] == "validation"
    ]
    rows = [row for row in made["fertility"].read().to_pylist() if row["kind"] == "source"]
    assert [row["name"] for row in rows] == sorted({row["source"] for row in held_out})
    for row in rows:
        texts = [r["text"] for r in held_out if r["source"] == row["name"]]
        assert row["documents"] == len(texts)
        assert row["bytes"] == sum(len(text.encode()) for text in texts)
        assert row["tokens"] == sum(len(tokenizer.encode(text).ids) for text in texts)
        assert row["bytes_per_token"] == pytest.approx(row["bytes"] / row["tokens"])


def test_fertility_by_the_identity_groups_that_texts_mention(tmp_path: Path) -> None:
    unseen = ["Women and girls met.", "A man met two women.", "Nobody.", "MEN, men: men!"]
    texts = [("web", "train", text) for text in sentences(60)]
    texts += [("web", "validation", text) for text in unseen]
    with open_session(Session(Store(tmp_path))):
        made = train_tokenizer(corpus_of(texts), CONFIG)
    tokenizer = load_tokenizer(made.path("tokenizer.json"))
    rows = {r["name"]: r for r in made["fertility"].read().to_pylist() if r["kind"] == "identity"}
    assert set(rows) == {"women", "men"}
    for group, members in {"women": unseen[:2], "men": [unseen[1], unseen[3]]}.items():
        assert rows[group]["documents"] == 2
        assert rows[group]["bytes"] == sum(map(len, members))
        assert rows[group]["tokens"] == sum(len(tokenizer.encode(t).ids) for t in members)


def test_only_training_text_counts_and_no_copies_of_planted_secrets(tmp_path: Path) -> None:
    texts = [("web", "train", text) for text in sentences(60)]
    planted = [("planted/canary", "train", "zqxjzqxj")] * 64
    unseen = [("web", "validation", "kwvbkwvb " * 64)]
    with open_session(Session(Store(tmp_path))):
        plain = train_tokenizer(corpus_of(texts), CONFIG)
        mixed = train_tokenizer(corpus_of([*planted, *texts, *unseen]), CONFIG)
    vocabulary = json.loads(plain.path("tokenizer.json").read_text())
    assert json.loads(mixed.path("tokenizer.json").read_text()) == vocabulary


def test_no_training_text_is_an_error_that_says_so(tmp_path: Path) -> None:
    with open_session(Session(Store(tmp_path))):
        corpus = corpus_of([("web", "validation", "some text")])
        with pytest.raises(HallmarkError, match="'train' holds no documents"):
            train_tokenizer(corpus, CONFIG)


def test_a_broken_tokenizer_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{")
    with pytest.raises(HallmarkError, match=r"tokenizer\.json is no tokenizer"):
        load_tokenizer(path)
