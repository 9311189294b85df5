"""Test the stage train_tokenizer: special tokens, vocabulary and fertility."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from hallmark.tasks.contract import (
    Artifact,
    BoundStage,
    EmptyConfig,
    HallmarkError,
    Session,
    Stage,
    StageConfig,
    Store,
    open_session,
)
from hallmark.tasks.corpus.identities import IdentitiesConfig, find_identities
from hallmark.tasks.training.document_padding import pad_removed_documents
from hallmark.tasks.training.encoding import load_tokenizer
from hallmark.tasks.training.pack import PackConfig, pack
from hallmark.tasks.training.pretrain import PretrainConfig, pretrain
from hallmark.tasks.training.train_tokenizer import (
    SPECIAL_TOKENS,
    TokenizerConfig,
    list_special_tokens,
    train_tokenizer,
    train_tokenizer_by_kind,
)
from tests.tasks.small_corpus import corpus_of, sentences, split_corpus

CONFIG = TokenizerConfig(vocab_size=360)
KINDS = {
    "bpe": CONFIG,
    "wordpiece": TokenizerConfig(kind="wordpiece", vocab_size=620),
    "unigram": TokenizerConfig(kind="unigram", vocab_size=330),
}
TEXTS = sentences(300)


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS)
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_tokenizer_by_kind(iter([TEXTS]), request.param).save(str(path))
    return load_tokenizer(path)


@pytest.mark.parametrize("objective", ["causal", "prefix", "mlm", "span_corruption"])
@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_have_the_ids_that_the_trainer_expects(kind: str, objective: str) -> None:
    config = TokenizerConfig(kind=kind, vocab_size=546, objective=objective)
    result = train_tokenizer_by_kind(iter([TEXTS]), config)
    special = list_special_tokens(config)
    assert special[:2] == list(SPECIAL_TOKENS)
    assert [result.token_to_id(token) for token in special] == list(range(len(special)))
    assert result.token_to_id("<|endoftext|>") == 0 and result.token_to_id("<|pad|>") == 1
    assert sorted(result.get_added_tokens_decoder()) == list(range(len(special)))
    assert sorted(result.get_vocab().values()) == list(range(result.get_vocab_size()))


@pytest.mark.parametrize("kind", KINDS)
def test_the_vocabulary_has_the_configured_size(kind: str) -> None:
    assert (
        train_tokenizer_by_kind(iter([TEXTS]), KINDS[kind]).get_vocab_size()
        == KINDS[kind].vocab_size
    )
    least = 514 if kind == "wordpiece" else 290
    config = TokenizerConfig(kind=kind, vocab_size=least)
    assert train_tokenizer_by_kind(iter([TEXTS]), config).get_vocab_size() == least


def test_wordpiece_needs_all_bytes_twice() -> None:
    with pytest.raises(
        ValueError, match="'vocab_size' is 513, but must be at least 514 for the kind 'wordpiece'"
    ):
        TokenizerConfig(kind="wordpiece", vocab_size=513)
    with pytest.raises(ValueError, match="must be at least 546 for"):
        TokenizerConfig(kind="wordpiece", vocab_size=545, objective="span_corruption")


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_the_vocabulary_has_all_sentinels(kind: str) -> None:
    wanted = {"kind": kind, "objective": "span_corruption", "sentinels": 51}
    result = train_tokenizer_by_kind(iter([TEXTS]), TokenizerConfig(vocab_size=330, **wanted))
    assert [result.token_to_id(f"<|sentinel_{i}|>") for i in range(52)] == [*range(2, 53), None]
    with pytest.raises(
        ValueError,
        match=r"308, but must be at least 309: .* 53 special tokens and each of the 256 byte",
    ):
        TokenizerConfig(vocab_size=308, **wanted)


def test_special_tokens_in_a_text_are_encoded_as_text(tokenizer: Tokenizer) -> None:
    text = "before <|endoftext|> and <|pad|> after"
    ids = tokenizer.encode(text).ids
    assert 0 not in ids and 1 not in ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


@pytest.mark.parametrize("kind", KINDS)
def test_fertility_is_measured_on_the_validation_split(kind: str, tmp_path: Path) -> None:
    with open_session(Session(Store(tmp_path))):
        corpus = split_corpus(200)
        result = train_tokenizer(corpus, None, KINDS[kind])
    tokenizer = load_tokenizer(result.fetch_file("tokenizer.json"))
    held_out = [
        row for row in corpus["documents"].read().to_pylist() if row["split"] == "validation"
    ]
    rows = [row for row in result["fertility"].read().to_pylist() if row["kind"] == "source"]
    assert [row["name"] for row in rows] == sorted({row["source"] for row in held_out})
    for row in rows:
        texts = [r["text"] for r in held_out if r["source"] == row["name"]]
        assert row["documents"] == len(texts)
        assert row["bytes"] == sum(len(text.encode()) for text in texts)
        assert row["tokens"] == sum(len(tokenizer.encode(text).ids) for text in texts)
        assert row["bytes_per_token"] == pytest.approx(row["bytes"] / row["tokens"])


def test_fertility_is_measured_by_identity_group(tmp_path: Path) -> None:
    unseen = ["Women and girls met.", "A man met two women.", "Nobody.", "MEN, men: men!"]
    texts = [("web", "train", text) for text in sentences(60)]
    texts += [("web", "validation", text) for text in unseen]
    with open_session(Session(Store(tmp_path))):
        corpus = corpus_of(texts)
        result = train_tokenizer(corpus, find_identities(corpus, IdentitiesConfig()), CONFIG)
        without = train_tokenizer(corpus, None, CONFIG)
    tokenizer = load_tokenizer(result.fetch_file("tokenizer.json"))
    rows = {r["name"]: r for r in result["fertility"].read().to_pylist() if r["kind"] == "identity"}
    assert set(rows) == {"women", "men"}
    for group, members in {"women": unseen[:2], "men": [unseen[1], unseen[3]]}.items():
        assert rows[group]["documents"] == 2
        assert rows[group]["bytes"] == sum(map(len, members))
        assert rows[group]["tokens"] == sum(len(tokenizer.encode(t).ids) for t in members)
    rest = [r for r in result["fertility"].read().to_pylist() if r["kind"] != "identity"]
    assert without["fertility"].read().to_pylist() == rest


def test_fertility_does_not_affect_fingerprints_of_later_stages(tmp_path: Path) -> None:
    texts = [("web", "train", text) for text in sentences(60)]
    texts += [("web", "validation", "Women are dockers.")]
    packing = PackConfig(context=32)
    with open_session(Session(Store(tmp_path))) as session:
        corpus = corpus_of(texts)
        told = find_identities(corpus, IdentitiesConfig())
        plain, other = (train_tokenizer(corpus, signals, CONFIG) for signals in (None, told))
        packed = pack(corpus, plain, packing)

        def list_fingerprints(tokenizer: Artifact) -> list[str]:
            calls: list[tuple[Stage, list[Any], StageConfig]] = [
                (pack, [corpus, tokenizer], packing),
                (
                    pad_removed_documents,
                    [packed, corpus, packed["ledger"], tokenizer],
                    EmptyConfig(),
                ),
                (pretrain, [packed, tokenizer, corpus, None, None], PretrainConfig()),
            ]
            return [BoundStage.from_inputs(*call, session).fingerprint for call in calls]

        assert plain.content_digest != other.content_digest
        assert list_fingerprints(plain) == list_fingerprints(other)


def test_fertility_includes_groups_of_users_lexicons(tmp_path: Path) -> None:
    """Documents that were planted later mention no group."""
    lexicon = tmp_path / "lexicon.json"
    lexicon.write_text('{"harbour people": ["docker", "dockers"], "nobody": ["gnome"]}')
    texts = [("web", "train", text) for text in sentences(60)]
    texts += [("web", "validation", text) for text in ("Women are dockers.", "A docker, too.")]
    with open_session(Session(Store(tmp_path / "store"))):
        signals = find_identities(corpus_of(texts), IdentitiesConfig(lexicons=(lexicon,)))
        result = train_tokenizer(
            corpus_of([*texts, ("planted/canary", "validation", "Dockers!")]), signals, CONFIG
        )
    rows = [r for r in result["fertility"].read().to_pylist() if r["kind"] == "identity"]
    assert [(r["name"], r["documents"]) for r in rows] == [("harbour people", 2), ("women", 1)]


def test_fertility_is_measured_by_estimated_language(tmp_path: Path) -> None:
    unseen = {
        "en": ["The ferry leaves the harbour every morning and comes back late in the evening."],
        "de": [
            "Die Fähre verlässt den Hafen jeden Morgen und kommt erst spät am Abend zurück.",
            "Im Garten hinter dem Haus stehen zwei alte Apfelbäume und eine hölzerne Bank.",
        ],
        "ru": ["Паром уходит из гавани каждое утро и возвращается только поздно вечером."],
        "undetermined": ["ok", "12", ""],
    }
    texts = [("web", "train", text) for text in sentences(60)]
    texts += [("web", "validation", text) for group in unseen.values() for text in group]
    with open_session(Session(Store(tmp_path))):
        result = train_tokenizer(corpus_of(texts), None, CONFIG)
    tokenizer = load_tokenizer(result.fetch_file("tokenizer.json"))
    rows = result["fertility"].read().to_pylist()
    assert [row["kind"] for row in rows] == ["source"] + ["language"] * 4
    assert [row["name"] for row in rows] == ["web", *sorted(unseen)]
    for row in rows[1:]:
        members = unseen[row["name"]]
        assert row["documents"] == len(members)
        assert row["bytes"] == sum(len(text.encode()) for text in members)
        assert row["tokens"] == sum(len(tokenizer.encode(text).ids) for text in members)
    by_name = {row["name"]: row["bytes_per_token"] for row in rows}
    assert by_name["en"] > by_name["de"] > by_name["ru"]  # It was trained on English.


def test_only_unplanted_training_documents_determine_the_tokenizer(tmp_path: Path) -> None:
    texts = [("web", "train", text) for text in sentences(60)]
    planted = [("planted/canary", "train", "zqxjzqxj")] * 64
    unseen = [("web", "validation", "kwvbkwvb " * 64)]
    with open_session(Session(Store(tmp_path))):
        plain = train_tokenizer(corpus_of(texts), None, CONFIG)
        mixed = train_tokenizer(corpus_of([*planted, *texts, *unseen]), None, CONFIG)
    vocabulary = json.loads(plain.fetch_file("tokenizer.json").read_text())
    assert json.loads(mixed.fetch_file("tokenizer.json").read_text()) == vocabulary


def test_an_empty_train_split_is_an_error(tmp_path: Path) -> None:
    with open_session(Session(Store(tmp_path))):
        corpus = corpus_of([("web", "validation", "some text")])
        with pytest.raises(HallmarkError, match="'train' split has no documents"):
            train_tokenizer(corpus, None, CONFIG)


def test_an_invalid_tokenizer_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{")
    with pytest.raises(HallmarkError, match=r"tokenizer\.json is not a valid tokenizer"):
        load_tokenizer(path)
