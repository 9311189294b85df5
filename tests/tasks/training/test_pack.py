"""Compare packing with a plain Python packer and the tokenizers library's own offsets."""

from __future__ import annotations

import hashlib
import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from hallmark.model.training.packed_rows import count_token_bytes, spell_tokens_as_bytes
from hallmark.tasks.contract import (
    Artifact,
    HallmarkError,
    Mapper,
    ProcessMapper,
    SerialMapper,
    Session,
    Store,
    folder_to_artifact,
    hash_to_ids,
    open_session,
)
from hallmark.tasks.training.encoding import load_tokenizer, split_long_text
from hallmark.tasks.training.pack import (
    PACKED_SPLITS,
    SPANS,
    PackConfig,
    RowRange,
    compute_shuffle_keys,
    encode_texts_with_char_positions,
    pack,
)
from hallmark.tasks.training.train_tokenizer import (
    TokenizerConfig,
    train_tokenizer,
    train_tokenizer_by_kind,
)
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
    train_tokenizer_by_kind(iter([sentences(100)]), request.param).save(str(path))
    return load_tokenizer(path)


def pack_corpus(
    folder: Path, mapper: Mapper | None = None, kind: str = "bpe", parts: int = 1, **config: int
) -> tuple[Artifact, ...]:
    with open_session(Session(Store(folder), mapper or SerialMapper())):
        corpus = split_corpus(parts=parts)
        tokenizer = train_tokenizer(corpus, None, KINDS[kind])
        return corpus, tokenizer, pack(corpus, tokenizer, PackConfig(**config))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=40), max_size=6))
def test_tokens_and_offsets_equal_those_of_the_library(
    tokenizer: Tokenizer, texts: list[str]
) -> None:
    column = pa.array(["skipped", *texts], pa.large_string())[1:]  # A slice has an offset.
    rows = encode_texts_with_char_positions(
        column, tokenizer, spell_tokens_as_bytes(tokenizer)
    ).to_pylist()
    for text, row in zip(texts, rows, strict=True):
        expected = tokenizer.encode(text)
        assert row["token_ids"] == [0, *expected.ids]
        spans = list(zip(row["char_start"], row["char_end"], strict=True))
        assert spans == [(0, 0), *expected.offsets]


def test_token_lengths_are_those_of_their_bytes(tokenizer: Tokenizer) -> None:
    lengths = count_token_bytes(tokenizer)
    assert lengths.shape == (tokenizer.get_vocab_size(),)
    assert lengths[:2].tolist() == [0, 0] and lengths[2:].min() == 1
    whole = {number: tokenizer.decode([number]) for number in range(2, len(lengths))}
    for number, text in whole.items():
        if "\ufffd" not in text:  # Otherwise it is part of a character.
            assert lengths[number] == len(text.encode())
    assert lengths.max() == max(len(text.encode()) for text in whole.values()) > 3


@given(st.text())
@settings(max_examples=100, deadline=None)
def test_tokens_spell_their_text(tokenizer: Tokenizer, text: str) -> None:
    known = spell_tokens_as_bytes(tokenizer).to_pylist()
    assert [len(letters) for letters in known] == count_token_bytes(tokenizer).tolist()
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert b"".join(known[number] for number in ids) == text.encode()


@pytest.mark.parametrize("kind", KINDS)
def test_every_position_has_its_document_and_characters(kind: str, tmp_path: Path) -> None:
    corpus, tokenizer, artifact = pack_corpus(tmp_path, kind=kind, context=32, seed=5)
    library = load_tokenizer(tokenizer.fetch_file("tokenizer.json"))
    documents = corpus["documents"].read().to_pylist()
    for split in ("train", "validation"):
        chosen = [row for row in documents if row["split"] == split]
        keys = compute_shuffle_keys(pa.array([r["doc_id"] for r in chosen], pa.binary(16)), 5)
        order = [chosen[i] for i in np.argsort(keys)]
        stream = []  # (id, document, char_start, char_end)
        for row in order:
            encoding = library.encode(row["text"])
            stream.append((0, row["doc_id"], 0, 0))
            for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
                stream.append((token, row["doc_id"], start, end))
        padding = -len(stream) % 32
        table = artifact[split].read()
        flat = [
            table[name].combine_chunks().flatten().to_pylist()
            for name in ("token_ids", "char_start", "char_end")
        ]
        assert flat[0] == [token for token, *_ in stream] + [1] * padding
        assert flat[1] == [start for *_, start, _ in stream] + [-1] * padding
        assert flat[2] == [end for *_, end in stream] + [-1] * padding

        spans = [row for row in artifact["spans"].read().to_pylist() if row["split"] == split]
        covered = []
        for span in spans:
            first = span["sequence"] * 32
            assert 0 <= span["row_start"] < span["row_end"] <= 32
            inside = stream[first + span["row_start"] : first + span["row_end"]]
            assert {document for _, document, *_ in inside} == {span["doc_id"]}
            assert inside[0][2] == span["char_start"] and inside[-1][3] == span["char_end"]
            covered += range(first + span["row_start"], first + span["row_end"])
        assert covered == list(range(len(stream)))


def test_accounts_show_the_holdout_and_add_up(tmp_path: Path) -> None:
    corpus, _, artifact = pack_corpus(tmp_path, context=16)
    documents = corpus["documents"].read().to_pylist()
    books = {(b["source"], b["unit"]): b for b in artifact["accounts"].read().to_pylist()}
    for source in ("source-0", "source-1"):
        inside = [r for r in documents if r["source"] == source]
        out = [r for r in inside if r["split"] == "holdout"]
        size = sum(len(r["text"].encode()) for r in inside)
        gone = sum(len(r["text"].encode()) for r in out)
        rows, sizes = books[(source, "rows")], books[(source, "bytes")]
        assert (rows["input"], rows["kept"], rows["removed_rows"]) == (
            len(inside),
            len(inside) - len(out),
            len(out),
        )
        assert (sizes["input"], sizes["kept"], sizes["removed_rows"]) == (size, size - gone, gone)
        (sums,) = [r for r in artifact["checksums"].read().to_pylist() if r["source"] == source]
        for term, those in (("input", inside), ("removed_rows", out)):
            assert int.from_bytes(sums[term], "big") == compute_checksum(those)
        kept = [r for r in inside if r["split"] != "holdout"]
        assert int.from_bytes(sums["kept"], "big") == compute_checksum(kept) > 0
    holdout = {row["doc_id"] for row in documents if row["split"] == "holdout"}
    assert set(artifact["ledger"].read()["doc_id"].to_pylist()) == holdout
    assert not holdout & set(artifact["spans"].read()["doc_id"].to_pylist())


def compute_checksum(rows: list[dict[str, Any]]) -> int:
    each = (hashlib.blake2b(r["doc_id"] + r["text"].encode(), digest_size=16) for r in rows)
    return sum(int.from_bytes(digest.digest(), "big") for digest in each) % 2**128


def test_swapped_texts_fail_the_checksums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both texts have the same length and source."""
    read_documents = RowRange.read_documents

    def read_swapped_documents(tokens_per_range: RowRange) -> pa.Table:
        table = read_documents(tokens_per_range)
        at = table.schema.get_field_index("doc_id")
        return table.set_column(at, table.field(at), table["doc_id"].take(pa.array([1, 0])))

    with open_session(Session(Store(tmp_path))):
        corpus = corpus_of([("web", "train", text) for text in ("a red fox", "red a fox")])
        tokenizer = train_tokenizer(corpus, None, VOCABULARY)
        pack(corpus, tokenizer, PackConfig(context=8))
        monkeypatch.setattr(RowRange, "read_documents", read_swapped_documents)
        with pytest.raises(HallmarkError, match="checksums for source 'web' do not add up"):
            pack(corpus, tokenizer, PackConfig(context=16))


def test_the_result_does_not_depend_on_partitions_and_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitions of the documents do not affect the rows; a range is a partition of the rows."""

    def rows(artifact: Artifact) -> list[list[dict[str, object]]]:
        return [artifact[name].read().to_pylist() for name in ("train", "validation", "spans")]

    whole = pack_corpus(tmp_path / "a", context=24)[-1]
    in_parts = pack_corpus(tmp_path / "b", context=24, parts=4)[-1]
    assert rows(in_parts) == rows(whole) and in_parts["train"].digest == whole["train"].digest
    assert len(in_parts["ledger"].parts) == 4
    in_processes = pack_corpus(tmp_path / "c", ProcessMapper(2), context=24, parts=4)[-1]
    assert in_processes.content_digest == in_parts.content_digest
    monkeypatch.setattr("hallmark.tasks.training.pack.TOKENS_PER_RANGE", 100)  # 4 rows per range.
    in_stretches = pack_corpus(tmp_path / "d", context=24, parts=4)[-1]
    assert rows(in_stretches) == rows(whole)
    train = in_stretches["train"]
    assert [part.row_count for part in train.parts[:-1]] == [4] * (len(train.parts) - 1)
    assert len(train.parts) > 10
    assert rows(in_stretches) == rows(pack_corpus(tmp_path / "e", context=24, parts=1)[-1])
    books = [a["accounts"].read().to_pylist() for a in (in_stretches, whole)]
    assert books[0] == books[1]


def pack_in_plain_python(
    documents: list[dict], library: Tokenizer, split: str, config: PackConfig
) -> dict:
    """Build rows and spans of a split with lists and loops."""
    chosen = [row for row in documents if row["split"] == split]
    keys = compute_shuffle_keys(pa.array([r["doc_id"] for r in chosen], pa.binary(16)), config.seed)
    pairs = sorted(
        zip(keys.tolist(), [r["doc_id"] for r in chosen], chosen, strict=True),
        key=lambda pair: pair[:2],
    )
    stream: list[tuple[int, int, int, bytes]] = []
    for _, doc_id, row in pairs:
        encoding = library.encode(row["text"])
        stream.append((0, 0, 0, doc_id))
        stream += [
            (t, a, b, doc_id) for t, (a, b) in zip(encoding.ids, encoding.offsets, strict=True)
        ]
    rows, spans = [], []
    for number, first in enumerate(range(0, len(stream), config.context)):
        inside = stream[first : first + config.context]
        full = inside + [(1, -1, -1, b"")] * (config.context - len(inside))
        ids, starts, ends, _ = zip(*full, strict=True)
        rows.append({"token_ids": list(ids), "char_start": list(starts), "char_end": list(ends)})
        place = 0
        for doc_id, run in itertools.groupby(inside, key=lambda token: token[3]):
            tokens = list(run)
            span = {"split": split, "sequence": number, "row_start": place, "doc_id": doc_id}
            place += len(tokens)
            spans.append(
                span | {"row_end": place, "char_start": tokens[0][1], "char_end": tokens[-1][2]}
            )
    return {"rows": rows, "spans": spans}


@pytest.fixture(scope="module")
def trained_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifact, Tokenizer]:
    with open_session(Session(Store(tmp_path_factory.mktemp("trained")))):
        made = train_tokenizer(split_corpus(), None, VOCABULARY)
    return made, load_tokenizer(made.fetch_file("tokenizer.json"))


@settings(max_examples=25, deadline=None)
@given(
    texts=st.lists(
        st.tuples(
            st.sampled_from(["train", "train", "validation", "holdout"]),
            st.text(st.characters(codec="utf-8"), max_size=30) | st.sampled_from(sentences(4)),
        ),
        min_size=1,
        max_size=14,
    ),
    context=st.integers(8, 40),
    tokens_per_range=st.integers(1, 200),
    parts=st.sampled_from([1, 2, 8]),
    seed=st.integers(0, 3),
)
def test_rows_and_spans_equal_those_of_plain_python(
    trained_tokenizer: tuple[Artifact, Tokenizer],
    texts: list[tuple[str, str]],
    context: int,
    tokens_per_range: int,
    parts: int,
    seed: int,
) -> None:
    tokenizer, library = trained_tokenizer
    config = PackConfig(context=context, seed=seed)
    rows = [(f"s{len(text) % 2}", split, text) for split, text in texts]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("hallmark.tasks.training.pack.TOKENS_PER_RANGE", tokens_per_range)
        with open_session(Session(Store(folder))):
            corpus = corpus_of(rows, parts)
            made = pack(corpus, tokenizer, config)
        documents = corpus["documents"].read().to_pylist()
        expected = {s: pack_in_plain_python(documents, library, s, config) for s in PACKED_SPLITS}
        for split in PACKED_SPLITS:
            assert made[split].read().to_pylist() == expected[split]["rows"]
        spans = [span for split in PACKED_SPLITS for span in expected[split]["spans"]]
        assert made["spans"].read().to_pylist() == [
            {name: span[name] for name in SPANS.names} for span in spans
        ]


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(st.sampled_from(" \n\t\u00a0\u3000ab1é漢.,'’\U0001f3f0<|>_"), max_size=60)
    | st.text(st.characters(codec="utf-8"), max_size=60)
    | st.lists(st.sampled_from(sentences(3)), max_size=3).map("  ".join),
    most=st.integers(1, 25),
)
def test_pieces_have_the_tokens_of_the_whole_text(
    tokenizer: Tokenizer, text: str, most: int
) -> None:
    pieces = split_long_text(text, most)
    assert "".join(pieces) == text
    ids = [token for piece in pieces for token in tokenizer.encode(piece).ids]
    assert ids == tokenizer.encode(text).ids


def test_long_texts_are_split(tokenizer: Tokenizer) -> None:
    text = " ".join(sentences(40))
    pieces = split_long_text(text, 100)
    assert len(pieces) > 10 and all(len(piece) < 120 for piece in pieces)
    assert split_long_text("x" * 500, 100) == ["x" * 500]  # There is no place to split.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "hallmark.tasks.training.pack.split_long_text", lambda text: split_long_text(text, 20)
        )
        column = pa.array([text, "", "short", text[:77]], pa.large_string())
        cut = encode_texts_with_char_positions(column, tokenizer, spell_tokens_as_bytes(tokenizer))
    assert cut.equals(
        encode_texts_with_char_positions(column, tokenizer, spell_tokens_as_bytes(tokenizer))
    )


def test_the_seed_determines_only_the_order(tmp_path: Path) -> None:
    one = pack_corpus(tmp_path, context=16, seed=1)[-1]
    two = pack_corpus(tmp_path, context=16, seed=2)[-1]
    orders = [a["spans"].read()["doc_id"].to_pylist() for a in (one, two)]
    assert orders[0] != orders[1] and set(orders[0]) == set(orders[1])
    tokens = [
        np.sort(a["train"].read()["token_ids"].combine_chunks().flatten()) for a in (one, two)
    ]
    assert np.array_equal(*tokens)


def test_copies_are_spread_over_the_sequences(tmp_path: Path) -> None:
    rows = [("web", "train", text) for text in sentences(300)]
    rows += [("planted/canary", "train", "the code is 123")] * 64
    with open_session(Session(Store(tmp_path))):
        corpus = corpus_of(rows)
        artifact = pack(corpus, train_tokenizer(corpus, None, VOCABULARY), PackConfig(context=16))
    canaries = corpus["documents"].read().filter(pa.compute.field("source") == "planted/canary")
    spans = artifact["spans"].read()
    planted = set(canaries["doc_id"].to_pylist())
    place = [
        s
        for s, d in zip(spans["sequence"].to_pylist(), spans["doc_id"].to_pylist(), strict=True)
        if d in planted
    ]
    quarters = np.histogram(place, bins=4, range=(0, artifact["train"].row_count))[0]
    assert quarters.min() >= 6  # 16 are expected in each; one block of 64 would give zeros.


def test_special_tokens_in_texts_and_empty_documents_are_packed(tmp_path: Path) -> None:
    texts = ["an <|endoftext|> inside and a <|pad|> too", "", "plain"]
    with open_session(Session(Store(tmp_path))):
        corpus = corpus_of([("web", "train", text) for text in texts])
        tokenizer = train_tokenizer(corpus, None, VOCABULARY)
        artifact = pack(corpus, tokenizer, PackConfig(context=8))
    flat = artifact["train"].read()["token_ids"].combine_chunks().flatten().to_numpy()
    assert (flat == 0).sum() == len(texts)  # One per document, none from its text.
    end = np.flatnonzero(flat != 1).max()
    assert not (flat[: end + 1] == 1).any()
    library = load_tokenizer(tokenizer.fetch_file("tokenizer.json"))
    pieces = np.split(flat[: end + 1], np.flatnonzero(flat == 0))[1:]
    assert sorted(library.decode(piece[1:], skip_special_tokens=False) for piece in pieces) == (
        sorted(texts)
    )


def test_without_validation_documents_the_table_is_empty(tmp_path: Path) -> None:
    with open_session(Session(Store(tmp_path))):
        corpus = corpus_of([("web", "train", "some text")])
        artifact = pack(corpus, train_tokenizer(corpus, None, VOCABULARY), PackConfig(context=8))
    assert artifact["validation"].row_count == 0 and artifact["train"].row_count > 0


def test_a_tokenizer_that_loses_text_is_rejected() -> None:
    lossy = Tokenizer(models.BPE())
    lossy.normalizer = normalizers.Lowercase()
    lossy.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    with pytest.raises(HallmarkError, match="does not preserve the text"):
        encode_texts_with_char_positions(
            pa.array(["Ab"], pa.large_string()), lossy, spell_tokens_as_bytes(lossy)
        )


def test_a_tokenizer_that_changes_text_is_rejected(tokenizer: Tokenizer) -> None:
    other = Tokenizer.from_str(tokenizer.to_str())
    other.normalizer = normalizers.Lowercase()
    texts = pa.array(["ab", "", "Ab", "AB"], pa.large_string())
    with pytest.raises(
        HallmarkError, match="the tokens of document 2 in a batch does not reproduce"
    ):
        encode_texts_with_char_positions(texts, other, spell_tokens_as_bytes(other))


def test_unused_tokens_without_bytes_are_allowed(
    trained_tokenizer: tuple[Artifact, Tokenizer], tmp_path: Path
) -> None:
    """Some vocabularies have reserved tokens."""
    tokenizer_json = json.loads(trained_tokenizer[0].fetch_file("tokenizer.json").read_text())
    known = trained_tokenizer[1].get_vocab_size()
    tokenizer_json["model"]["vocab"] |= {"\u2581odd": known, "<free 0>": known + 1}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json))
    foreign = folder_to_artifact(tmp_path, "checkpoint")
    with open_session(Session(Store(tmp_path / "store"))):
        made = pack(corpus_of([("web", "train", "Straße\u2581")]), foreign, PackConfig(context=32))
    assert made["train"].row_count == 1


def test_shuffle_keys_spread_evenly() -> None:
    keys = compute_shuffle_keys(hash_to_ids(str(n) for n in range(4000)), seed=3)
    counts = np.histogram(keys.astype(float), bins=16, range=(0, 2.0**64))[0]
    assert abs(counts - 250).max() < 5 * np.sqrt(250)
