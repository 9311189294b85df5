"""Test that padding removes documents from packed sequences and changes nothing else."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pytest

from hallmark.model.objectives import build_causal_batch
from hallmark.model.special_tokens import PAD_ID
from hallmark.model.training.packed_rows import select_batch_rows
from hallmark.tasks.audits.judging.training_exposure import TrainingExposure
from hallmark.tasks.contract import (
    Artifact,
    HallmarkError,
    SerialMapper,
    Session,
    Store,
    Table,
    open_session,
)
from hallmark.tasks.corpus.leave_out import LeaveOutConfig, leave_out_documents
from hallmark.tasks.training import document_padding as blanking
from hallmark.tasks.training.document_padding import (
    pad_removed_documents,
    replace_spans_with_padding,
)
from hallmark.tasks.training.document_reads import (
    build_read_tables,
    iter_row_reads,
    load_document_spans,
)
from hallmark.tasks.training.pack import PackConfig, pack
from hallmark.tasks.training.train_tokenizer import TokenizerConfig, train_tokenizer
from tests.tasks.small_corpus import corpus_of, split_corpus

CONTEXT = 32


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    """Pack a corpus and remove every fifth training document."""
    folder = tmp_path_factory.mktemp("blank")
    session = open_session(Session(Store(folder / "store"), SerialMapper()))
    with session, pytest.MonkeyPatch.context() as m:
        m.setattr(
            "hallmark.tasks.training.pack.TOKENS_PER_RANGE", 10 * CONTEXT
        )  # Several partitions.
        corpus = split_corpus(parts=4)
        ids = [r["doc_id"] for r in corpus["documents"].read().to_pylist() if r["split"] == "train"]
        listed = folder / "ids.txt"
        listed.write_text("".join(f"{i.hex()}\n" for i in ids[::5]))
        tokenizer = train_tokenizer(corpus, None, TokenizerConfig(vocab_size=320))
        packed = pack(corpus, tokenizer, PackConfig(context=CONTEXT))
        remaining = leave_out_documents(
            corpus, LeaveOutConfig(doc_ids_file=listed, replace_with_padding=True)
        )
        assert len(packed["train"].parts) > 2
        return {
            "corpus": corpus,
            "tokenizer": tokenizer,
            "packed": packed,
            "left": remaining,
            "blank": pad_removed_documents(packed, remaining, remaining, tokenizer),
        }


def list_removed_ids(artifacts: dict[str, Artifact]) -> set[bytes]:
    return set(artifacts["left"]["ledger"].read(["doc_id"])["doc_id"].to_pylist())


def mark_removed_tokens(artifacts: dict[str, Artifact]) -> np.ndarray:
    """Return which tokens of the training rows belong to a removed document, by plain loops."""
    is_removed = np.zeros((artifacts["packed"]["train"].row_count, CONTEXT), bool)
    for span in artifacts["packed"]["spans"].read().to_pylist():
        if span["split"] == "train" and span["doc_id"] in list_removed_ids(artifacts):
            is_removed[span["sequence"], span["row_start"] : span["row_end"]] = True
    return is_removed


def read_token_array(artifact: Artifact, split: str, name: str = "token_ids") -> np.ndarray:
    rows = artifact[split].read()[name].combine_chunks()
    return rows.flatten().to_numpy().reshape(-1, CONTEXT).astype(np.int64)


def test_batches_differ_only_at_removed_tokens(artifacts) -> None:
    is_removed = mark_removed_tokens(artifacts)
    assert 0.1 < is_removed.mean() < 0.3
    before, after = (read_token_array(artifacts[name], "train") for name in ("packed", "blank"))
    for step in range(1, 12):
        rows = select_batch_rows(7, step, 4, len(before))
        batches = [build_causal_batch(side[rows]) for side in (before, after)]
        same = ~is_removed[rows]
        ids = [batch.ids.numpy() for batch in batches]
        assert (
            np.array_equal(ids[0][same], ids[1][same])
            and (ids[1][is_removed[rows]] == PAD_ID).all()
        )
        weights = [batch.require_targets_and_weights()[1].numpy() for batch in batches]
        targets = [batch.require_targets_and_weights()[0].numpy() for batch in batches]
        predicts_removed = np.zeros_like(same)
        predicts_removed[:, :-1] = is_removed[rows][:, 1:]
        assert (weights[1][predicts_removed | is_removed[rows]] == 0).all()
        kept = same & ~predicts_removed
        assert np.array_equal(weights[0][kept], weights[1][kept])
        assert np.array_equal(targets[0][~predicts_removed], targets[1][~predicts_removed])


def test_characters_are_removed_and_validation_rows_are_unchanged(artifacts) -> None:
    is_removed = mark_removed_tokens(artifacts)
    for name in ("char_start", "char_end"):
        before, after = (
            read_token_array(artifacts[label], "train", name) for label in ("packed", "blank")
        )
        assert (after[is_removed] == -1).all() and np.array_equal(
            before[~is_removed], after[~is_removed]
        )
    assert artifacts["blank"]["validation"].digest == artifacts["packed"]["validation"].digest
    before = artifacts["packed"]["spans"].read().to_pylist()
    after = artifacts["blank"]["spans"].read().to_pylist()
    assert after == [span for span in before if span["doc_id"] not in list_removed_ids(artifacts)]
    parts = [
        [part.row_count for part in artifacts[name]["train"].parts] for name in ("packed", "blank")
    ]
    assert parts[0] == parts[1]


def test_accounts_add_up(artifacts) -> None:
    documents = artifacts["corpus"]["documents"].read().to_pylist()
    books = {(b["source"], b["unit"]): b for b in artifacts["blank"]["accounts"].read().to_pylist()}
    for source in ("source-0", "source-1"):
        inside = [r for r in documents if r["source"] == source and r["split"] != "holdout"]
        out = [r for r in inside if r["doc_id"] in list_removed_ids(artifacts)]
        size, less = (sum(len(r["text"].encode()) for r in side) for side in (inside, out))
        rows, sizes = books[source, "rows"], books[source, "bytes"]
        assert (rows["input"], rows["removed_rows"]) == (len(inside), len(out)) and out
        assert (sizes["input"], sizes["kept"], sizes["removed_rows"]) == (size, size - less, less)


def test_checksums_are_those_of_the_remaining_documents(artifacts) -> None:
    """Including documents that cross partitions."""
    documents = artifacts["corpus"]["documents"].read().to_pylist()
    sums = {row["source"]: row for row in artifacts["blank"]["checksums"].read().to_pylist()}
    for source in ("source-0", "source-1"):
        expected = dict.fromkeys(("kept", "removed_rows"), 0)
        for row in documents:
            if row["source"] == source and row["split"] != "holdout":
                text = row["doc_id"] + row["text"].encode()
                digest = hashlib.blake2b(text, digest_size=16).digest()
                term = "removed_rows" if row["doc_id"] in list_removed_ids(artifacts) else "kept"
                expected[term] += int.from_bytes(digest, "big")
        for term, total in expected.items():
            assert int.from_bytes(sums[source][term], "big") == total % 2**128 != 0
    spans = artifacts["blank"]["spans"].read().to_pylist()
    ends = np.cumsum([part.row_count for part in artifacts["blank"]["train"].parts])
    across = {s["doc_id"] for s in spans if s["split"] == "train" and s["sequence"] in ends - 1}
    assert across & {s["doc_id"] for s in spans if s["sequence"] in ends}


def inject_fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a fault into the stage that keeps the number of documents correct."""
    if name == "two documents swap their texts":
        sources = blanking.append_source_column

        def swapped(spans: pa.Table, documents: Table) -> pa.Table:
            table = sources(spans, documents)
            at = table.schema.get_field_index("doc_id")
            return table.set_column(at, table.field(at), table["doc_id"].take([1, 0]))

        monkeypatch.setattr(blanking, "append_source_column", swapped)
    elif name == "what goes stays":
        monkeypatch.setattr(
            blanking, "replace_spans_with_padding", lambda packed, first, spans: None
        )
    else:
        rows = blanking.replace_spans_with_padding

        def other(packed: pa.Table, first: int, spans: pa.Table) -> pa.Table | None:
            table = rows(packed, first, spans)
            if table is None or first:
                return table
            ids = table["token_ids"].combine_chunks()
            flat = ids.flatten().to_numpy().copy()
            here = np.flatnonzero(flat > 1)
            flat[here[[0, 1]]] = flat[here[[1, 0]]]
            array = pa.FixedSizeListArray.from_arrays(pa.array(flat), type=ids.type)
            return table.set_column(0, table.field(0), array)

        monkeypatch.setattr(blanking, "replace_spans_with_padding", other)


@pytest.mark.parametrize(
    "name", ["two documents swap their texts", "two tokens change places", "what goes stays"]
)
def test_wrong_remaining_texts_are_rejected(tmp_path, monkeypatch, name) -> None:
    with open_session(Session(Store(tmp_path / "store"), SerialMapper())):
        corpus = corpus_of(
            [("web", "train", text) for text in ("a red fox", "red a fox", "what goes")]
        )
        rows = corpus["documents"].read().to_pylist()
        goes = next(row["doc_id"] for row in rows if row["text"] == "what goes")
        (tmp_path / "ids.txt").write_text(f"{goes.hex()}\n")
        tokenizer = train_tokenizer(corpus, None, TokenizerConfig(vocab_size=320))
        remaining = leave_out_documents(
            corpus, LeaveOutConfig(doc_ids_file=tmp_path / "ids.txt", replace_with_padding=True)
        )
        pad_removed_documents(
            pack(corpus, tokenizer, PackConfig(context=64)), remaining, remaining, tokenizer
        )
        inject_fault(name, monkeypatch)
        packed = pack(corpus, tokenizer, PackConfig(context=65))
        what = "bytes for source 'web'" if name == "what goes stays" else "checksums"
        with pytest.raises(HallmarkError, match=rf"{what} .*do not add up"):
            pad_removed_documents(packed, remaining, remaining, tokenizer)


def test_removed_documents_count_as_never_read(artifacts) -> None:
    places = load_document_spans(artifacts["blank"]["spans"], artifacts["corpus"]["documents"])
    rows = artifacts["blank"]["train"].row_count
    readings = [*iter_row_reads(rows, 0, 4, [2 * rows])]
    tables = [build_read_tables(part, readings, [2 * rows]) for part in places]
    seen, coverage = map(pa.concat_tables, zip(*tables, strict=True))
    passes = dict(zip(*(seen[n].to_pylist() for n in ("doc_id", "times_read")), strict=True))
    assert not list_removed_ids(artifacts) & passes.keys() and min(passes.values()) >= 7
    assert TrainingExposure(passes).count_reads(sorted(list_removed_ids(artifacts))) == 0
    removed = len(list_removed_ids(artifacts))
    whole = artifacts["corpus"]["documents"].read(["split"])["split"].to_pylist().count("train")
    assert sum(coverage["documents"].to_pylist()) == whole - removed


def test_a_document_that_was_not_packed_is_rejected(artifacts, tmp_path) -> None:
    with open_session(Session(Store(tmp_path), SerialMapper())):
        other = split_corpus(count=10, seed=5)
        ids = other["documents"].read(["doc_id"])["doc_id"].to_pylist()
        listed = tmp_path / "ids.txt"
        listed.write_text(f"{ids[0].hex()}\n")
        remaining = leave_out_documents(
            other, LeaveOutConfig(doc_ids_file=listed, replace_with_padding=True)
        )
        expected = (
            f"1 document to remove cannot be found in the packed sequences of "
            f"{artifacts['packed'].name}, for example {ids[0].hex()}"
        )
        with pytest.raises(HallmarkError, match=expected):
            pad_removed_documents(
                artifacts["packed"], artifacts["corpus"], remaining, artifacts["tokenizer"]
            )


def test_rows_without_removed_spans_are_unchanged(artifacts) -> None:
    spans = artifacts["packed"]["spans"].read()
    rows = artifacts["packed"]["train"].read()
    assert replace_spans_with_padding(rows, len(rows), spans.slice(0, 3)) is None
    none = pa.table(
        {name: pa.array([], pa.int64()) for name in ("sequence", "row_start", "row_end")}
    )
    assert replace_spans_with_padding(rows, 0, none) is None
