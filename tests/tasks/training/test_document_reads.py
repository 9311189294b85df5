"""Compare how often each document was read with a simulation of every step."""

import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from hallmark.model.training.packed_rows import (
    compute_read_steps,
    count_reads_per_row,
    select_batch_rows,
)
from hallmark.tasks.contract import (
    Artifact,
    Session,
    StageContext,
    Store,
    Table,
    TablePart,
    open_session,
)
from hallmark.tasks.contract.artifact import ArtifactLocation
from hallmark.tasks.training.document_reads import (
    COVERAGE,
    DOCUMENT_READS,
    DocumentSpans,
    build_read_tables,
    iter_row_reads,
    write_read_tables,
)
from hallmark.tasks.training.pack import PackConfig, pack
from hallmark.tasks.training.train_tokenizer import TokenizerConfig, train_tokenizer
from tests.tasks.small_corpus import corpus_of, sentences, split_corpus


def simulate_reads(seed, step, batch, rows):
    """Return the steps that read each row, by running through all batches."""
    read_steps = [[] for _ in range(rows)]
    for number in range(1, step + 1):
        for row in select_batch_rows(seed, number, batch, rows):
            read_steps[row].append(number)
    return read_steps


@pytest.mark.parametrize(("rows", "batch"), [(1, 1), (1, 4), (7, 3), (12, 4), (30, 8), (5, 12)])
def test_reads_of_rows_equal_the_simulation(rows, batch):
    for step in (0, 1, 2, 3, 5, 11):
        expected = simulate_reads(6, step, batch, rows)
        times = count_reads_per_row(6, step, batch, rows)
        assert times.tolist() == [len(steps) for steps in expected]
        if times.min() > 0:
            for reading in (np.zeros(rows, np.int64), times - 1):
                read_steps = compute_read_steps(reading, 6, batch)
                expected_steps = [steps[k] for steps, k in zip(expected, reading, strict=True)]
                assert read_steps.tolist() == expected_steps


def lay_out_documents(sizes, context):
    """Lay documents of the given sizes end to end; return (document, row, tokens) of each span."""
    begin, document_spans = 0, []
    for document, size in enumerate(sizes):
        place = begin
        while place < begin + size:
            stop = min(begin + size, (place // context + 1) * context)
            document_spans.append((document, place // context, stop - place))
            place = stop
        begin += size
    return document_spans, -(-begin // context)


def test_reads_of_documents_equal_the_simulation():
    random = np.random.default_rng(3)
    sizes = random.integers(1, 40, 23).tolist()
    document_spans, rows = lay_out_documents(sizes, 8)
    sources = [f"source {document % 3}" for document in range(len(sizes))]
    ids = [bytes([document] * 16) for document in range(len(sizes))]
    owner, row, tokens = (np.array(column) for column in zip(*document_spans, strict=True))
    begin = np.searchsorted(owner, np.arange(len(sizes)))
    part = TablePart(ArtifactLocation("corpus/1", None, ""), "documents", 0, 1, {})
    places = DocumentSpans(
        part, pa.array(ids, pa.binary(16)), pa.array(sources), begin, row, tokens
    )
    steps, batch, seed = [0, 1, 2, 9, 40], 5, 11
    seen, coverage = build_read_tables(places, iter_row_reads(rows, seed, batch, steps), steps)
    order = [(row["doc_id"], row["step"]) for row in seen.to_pylist()]
    assert order == sorted(order) and len(order) > len(sizes)
    for before, step in zip([0, *steps], steps, strict=False):
        reads = simulate_reads(seed, step, batch, rows)
        expected, sums = [], {}
        for document, size in enumerate(sizes):
            own_spans = [(r, n) for owner, r, n in document_spans if owner == document]
            new = [s for r, _ in own_spans for s in reads[r] if s > before]
            passes = min(len(reads[r]) for r, _ in own_spans)
            read = sum(n for r, n in own_spans for _ in reads[r])
            if new:
                expected.append(
                    {
                        "doc_id": ids[document],
                        "step": step,
                        "source": sources[document],
                        "document_tokens": size,
                        "tokens_read": sum(n for r, n in own_spans for s in reads[r] if s > before),
                        "first_step": min(new),
                        "last_step": max(new),
                        "times_read": passes,
                    }
                )
            total = sums.setdefault(sources[document], [0] * 5)
            row = (1, read > 0, passes > 0, size, read)
            sums[sources[document]] = [a + b for a, b in zip(total, row, strict=True)]
        assert seen.filter(pc.field("step") == step).to_pylist() == expected
        of_step = coverage.filter(pc.field("step") == step).to_pylist()
        assert [list(r.values())[1:] for r in of_step] == [
            [source, *sums[source]] for source in sorted(sums)
        ]


def test_tables_have_the_partitions_of_an_extended_corpus(tmp_path):
    with open_session(Session(Store(tmp_path / "store"))):
        more = corpus_of([("more", "train", text) for text in sentences(20, seed=1)], parts=2)
        grown = [split_corpus(40, parts=4), more]
        tokenizer = train_tokenizer(grown, None, TokenizerConfig(vocab_size=300))
        packed = pack(grown, tokenizer, PackConfig(context=32))
    work = StageContext(tmp_path / "work", {"document_reads": DOCUMENT_READS, "coverage": COVERAGE})
    documents = Table(tuple(grown), "documents")
    write_read_tables(packed["train"], packed["spans"], documents, 0, 4, [0, 5, 1000], work)
    manifest = {"stage": "made", "fingerprint": "0" * 64, "content": "", "files": {}}
    manifest["tables"] = work.assemble_tables(["document_reads", "coverage"])
    seen = Artifact(manifest, None, str(work.output_folder))["document_reads"]
    assert seen.parts_per_segment == documents.parts_per_segment == [4, 2]
    rows = seen.read().to_pylist()
    assert len({row["doc_id"] for row in rows}) == 32 + 20
    for doc_id in {row["doc_id"] for row in rows}:
        own_spans = [row for row in rows if row["doc_id"] == doc_id]
        assert seen.find_document_rows([doc_id]).to_pylist() == own_spans
    coverage = Artifact(manifest, None, str(work.output_folder))["coverage"].read().to_pylist()
    assert [(row["step"], row["source"], row["documents"]) for row in coverage] == [
        (step, source, many)
        for step in (0, 5, 1000)
        for source, many in (("more", 20), ("source-0", 16), ("source-1", 16))
    ]


def test_memory_does_not_grow_with_the_number_of_checkpoints():
    rows = 8_000
    tracemalloc.start()
    for _ in iter_row_reads(rows, 0, 64, range(0, 1000, 10)):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200 * rows
