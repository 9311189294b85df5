"""Packing, against a plain-Python packer and the tokenizers library's own offsets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from tasks.contract import (
    Artifact,
    HallmarkError,
    InProcess,
    Mapper,
    Processes,
    Session,
    Store,
    Table,
    ids,
    open_session,
)
from tasks.training.encoding import load_tokenizer
from tasks.training.pack import PackConfig, encode, pack, shuffle_keys, token_lengths
from tasks.training.train_tokenizer import TokenizerConfig, train, train_tokenizer
from tests.tasks.small_corpus import corpus_of, sentences, split_corpus

VOCABULARY = TokenizerConfig(vocab_size=320)
KINDS = {
    "bpe": VOCABULARY,
    "wordpiece": TokenizerConfig(kind="wordpiece", vocab_size=600),
    "unigram": TokenizerConfig(kind="unigram", vocab_size=320),
}


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS)
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train(iter([sentences(100)]), request.param).save(str(path))
    return load_tokenizer(path)


def packed(
    folder: Path, mapper: Mapper | None = None, kind: str = "bpe", **config: int
) -> tuple[Artifact, ...]:
    with open_session(Session(Store(folder), mapper or InProcess())):
        corpus = split_corpus()
        tokenizer = train_tokenizer(corpus, KINDS[kind])
        return corpus, tokenizer, pack(corpus, tokenizer, PackConfig(**config))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=40), max_size=6))
def test_tokens_and_characters_are_those_of_the_library(
    tokenizer: Tokenizer, texts: list[str]
) -> None:
    column = pa.array(["left out", *texts], pa.large_string())[1:]  # a slice has an offset
    rows = encode(column, tokenizer, token_lengths(tokenizer)).to_pylist()
    for text, row in zip(texts, rows, strict=True):
        expected = tokenizer.encode(text)
        assert row["ids"] == [0, *expected.ids]
        spans = list(zip(row["char_start"], row["char_end"], strict=True))
        assert spans == [(0, 0), *expected.offsets]


def test_a_token_is_as_long_as_the_bytes_it_stands_for(tokenizer: Tokenizer) -> None:
    lengths = token_lengths(tokenizer)
    assert lengths.shape == (tokenizer.get_vocab_size(),)
    assert lengths[:2].tolist() == [0, 0] and lengths[2:].min() == 1
    whole = {number: tokenizer.decode([number]) for number in range(2, len(lengths))}
    for number, text in whole.items():
        if "\ufffd" not in text:  # else it is a part of a character
            assert lengths[number] == len(text.encode())
    assert lengths.max() == max(len(text.encode()) for text in whole.values()) > 3


@pytest.mark.parametrize("kind", KINDS)
def test_every_position_names_its_document_and_characters(kind: str, tmp_path: Path) -> None:
    corpus, tokenizer, artifact = packed(tmp_path, kind=kind, context=32, seed=5)
    library = load_tokenizer(tokenizer.path("tokenizer.json"))
    documents = corpus["documents"].read().to_pylist()
    for split in ("train", "validation"):
        chosen = [row for row in documents if row["split"] == split]
        keys = shuffle_keys(pa.array([r["doc_id"] for r in chosen], pa.binary(16)), 5)
        order = [chosen[i] for i in np.argsort(keys)]
        stream = []  # (id, document, char_start, char_end) by the plainest means
        for row in order:
            encoding = library.encode(row["text"])
            stream.append((0, row["doc_id"], 0, 0))
            for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
                stream.append((token, row["doc_id"], start, end))
        padding = -len(stream) % 32
        table = artifact[split].read()
        flat = [table[name].combine_chunks().flatten().to_pylist()
                for name in ("ids", "char_start", "char_end")]  # fmt: skip
        assert flat[0] == [token for token, *_ in stream] + [1] * padding
        assert flat[1] == [start for *_, start, _ in stream] + [-1] * padding
        assert flat[2] == [end for *_, end in stream] + [-1] * padding

        spans = [row for row in artifact["spans"].read().to_pylist() if row["split"] == split]
        covered = []
        for span in spans:
            first = span["sequence"] * 32
            assert 0 <= span["start"] < span["end"] <= 32
            inside = stream[first + span["start"] : first + span["end"]]
            assert {document for _, document, *_ in inside} == {span["doc_id"]}
            assert inside[0][2] == span["char_start"] and inside[-1][3] == span["char_end"]
            covered += range(first + span["start"], first + span["end"])
        assert covered == list(range(len(stream)))


def test_accounts_show_the_holdout_and_add_up(tmp_path: Path) -> None:
    corpus, _, artifact = packed(tmp_path, context=16)
    documents = corpus["documents"].read().to_pylist()
    books = {(b["source"], b["unit"]): b for b in artifact["accounts"].read().to_pylist()}
    for source in ("source-0", "source-1"):
        inside = [r for r in documents if r["source"] == source]
        out = [r for r in inside if r["split"] == "holdout"]
        size = sum(len(r["text"].encode()) for r in inside)
        gone = sum(len(r["text"].encode()) for r in out)
        rows, sizes = books[(source, "rows")], books[(source, "bytes")]
        assert (rows["in"], rows["kept"], rows["removed_rows"]) == (
            len(inside), len(inside) - len(out), len(out))  # fmt: skip
        assert (sizes["in"], sizes["kept"], sizes["removed_rows"]) == (size, size - gone, gone)
    holdout = {row["doc_id"] for row in documents if row["split"] == "holdout"}
    assert set(artifact["ledger"].read()["doc_id"].to_pylist()) == holdout
    assert not holdout & set(artifact["spans"].read()["doc_id"].to_pylist())


def test_shards_workers_and_buckets_do_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = packed(tmp_path / "a", context=24)[-1].content

    def one_row_group_a_shard(self: Table, rows: int = 1) -> list:
        return whole(self, 1)

    whole = Table.shards
    monkeypatch.setattr("tasks.contract.tables.ROW_GROUP", 16)
    monkeypatch.setattr(Table, "shards", one_row_group_a_shard)
    in_shards = packed(tmp_path / "b", context=24)
    assert len(in_shards[0]["documents"].shards()) == 8
    monkeypatch.setattr("tasks.training.pack.BUCKET_BYTES", 500)
    in_buckets = packed(tmp_path / "c", context=24)[-1]
    in_processes = packed(tmp_path / "d", Processes(2), context=24)[-1]
    rows = [a.read().to_pylist() for a in (in_shards[-1]["train"], in_buckets["train"])]
    assert rows[0] == rows[1]
    # Row groups of another size are other bytes, so the digests are compared among themselves.
    assert in_shards[-1].content == in_buckets.content
    monkeypatch.undo()
    assert packed(tmp_path / "e", Processes(2), context=24)[-1].content == expected
    assert in_processes["spans"].rows == in_buckets["spans"].rows


def test_the_seed_decides_the_order_and_nothing_else(tmp_path: Path) -> None:
    one = packed(tmp_path, context=16, seed=1)[-1]
    two = packed(tmp_path, context=16, seed=2)[-1]
    orders = [a["spans"].read()["doc_id"].to_pylist() for a in (one, two)]
    assert orders[0] != orders[1] and set(orders[0]) == set(orders[1])
    tokens = [np.sort(a["train"].read()["ids"].combine_chunks().flatten()) for a in (one, two)]
    assert np.array_equal(*tokens)


def test_copies_and_sources_are_spread_over_the_stream(tmp_path: Path) -> None:
    rows = [("web", "train", text) for text in sentences(300)]
    rows += [("planted/canary", "train", "the code is 123")] * 64
    with open_session(Session(Store(tmp_path))):
        corpus = corpus_of(rows)
        artifact = pack(corpus, train_tokenizer(corpus, VOCABULARY), PackConfig(context=16))
    canaries = corpus["documents"].read().filter(pa.compute.field("source") == "planted/canary")
    spans = artifact["spans"].read()
    planted = set(canaries["doc_id"].to_pylist())
    place = [s for s, d in zip(spans["sequence"].to_pylist(), spans["doc_id"].to_pylist(),
                               strict=True) if d in planted]  # fmt: skip
    quarters = np.histogram(place, bins=4, range=(0, artifact["train"].rows))[0]
    assert quarters.min() >= 6  # 16 expected in each; 64 laid in one block would leave zeros


def test_special_tokens_in_a_document_and_empty_documents(tmp_path: Path) -> None:
    texts = ["an <|endoftext|> inside and a <|pad|> too", "", "plain"]
    with open_session(Session(Store(tmp_path))):
        corpus = corpus_of([("web", "train", text) for text in texts])
        tokenizer = train_tokenizer(corpus, VOCABULARY)
        artifact = pack(corpus, tokenizer, PackConfig(context=8))
    flat = artifact["train"].read()["ids"].combine_chunks().flatten().to_numpy()
    assert (flat == 0).sum() == len(texts)  # one begin a document, none from its text
    end = np.flatnonzero(flat != 1).max()
    assert not (flat[: end + 1] == 1).any()
    library = load_tokenizer(tokenizer.path("tokenizer.json"))
    pieces = np.split(flat[: end + 1], np.flatnonzero(flat == 0))[1:]
    assert sorted(library.decode(piece[1:], skip_special_tokens=False) for piece in pieces) == (
        sorted(texts)
    )


def test_no_validation_text_leaves_an_empty_table(tmp_path: Path) -> None:
    with open_session(Session(Store(tmp_path))):
        corpus = corpus_of([("web", "train", "some text")])
        artifact = pack(corpus, train_tokenizer(corpus, VOCABULARY), PackConfig(context=8))
    assert artifact["validation"].rows == 0 and artifact["train"].rows > 0


def test_a_tokenizer_that_loses_text_is_refused() -> None:
    lossy = Tokenizer(models.BPE())
    lossy.normalizer = normalizers.Lowercase()
    lossy.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    with pytest.raises(HallmarkError, match="loses text"):
        encode(pa.array(["Ab"], pa.large_string()), lossy, token_lengths(lossy))


def test_shuffle_keys_spread_evenly() -> None:
    keys = shuffle_keys(ids(str(n) for n in range(4000)), seed=3)
    counts = np.histogram(keys.astype(float), bins=16, range=(0, 2.0**64))[0]
    assert abs(counts - 250).max() < 5 * np.sqrt(250)
