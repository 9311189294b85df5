"""A table's bytes depend on its rows alone."""

import hashlib
from contextlib import closing

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hallmark.tasks.contract import (
    DOCUMENTS,
    LEDGER,
    build_ledger_columns,
    column,
    fill_document_columns,
    hash_texts,
    hash_to_ids,
    table_schema,
)
from hallmark.tasks.contract.accounts import compute_account_rows
from hallmark.tasks.contract.columns import strip_metadata
from hallmark.tasks.contract.table_writers import (
    MAX_ROW_GROUP_BYTES,
    MAX_ROW_GROUP_ROWS,
    TableWriter,
    TableWriters,
    estimate_row_bytes,
)

N = 3 * MAX_ROW_GROUP_ROWS + 17
KEYS = hash_to_ids(str(i) for i in range(N))
TEXTS = pa.array([f"tëxt {i % 97}" * (i % 5) for i in range(N)], pa.large_string())
ROWS = pa.table(
    fill_document_columns(
        {
            "doc_id": KEYS,
            "source": pa.array([f"s{i % 3}" for i in range(N)]),
            "cluster": KEYS,
            "text": TEXTS,
            "text_hash": hash_texts(TEXTS),
        }
    ),
    schema=strip_metadata(DOCUMENTS),
)


def written(path, cuts, rows=ROWS, schema=DOCUMENTS):
    with closing(TableWriter(path, schema)) as writer:
        for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
            writer.write(rows.slice(start, end - start))
    return hashlib.sha256(path.read_bytes()).hexdigest(), writer


def groups(path):
    metadata = pq.ParquetFile(path).metadata
    return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, N), max_size=12).map(sorted))
def test_bytes_do_not_depend_on_the_batches_written(tmp_path_factory, cuts):
    path = tmp_path_factory.mktemp("t") / "documents.parquet"
    digest, writer = written(path, cuts)
    whole, _ = written(path.with_name("whole.parquet"), [])
    assert digest == whole
    assert writer.row_count == N
    assert pq.read_table(path).equals(ROWS)
    assert groups(path) == [MAX_ROW_GROUP_ROWS] * 3 + [17]


def test_no_more_rows_wait_than_a_group_holds(tmp_path):
    with closing(TableWriter(tmp_path / "d.parquet", DOCUMENTS)) as writer:
        for start in range(0, N, 1000):
            writer.write(ROWS.slice(start, 1000))
            assert min(start + 1000, N) - writer.row_count < MAX_ROW_GROUP_ROWS
        huge = {
            "doc_id": [bytes(16)],
            "source": ["s"],
            "cluster": [bytes(16)],
            "text": ["x" * (MAX_ROW_GROUP_BYTES + 1)],
            "text_hash": [bytes(16)],
        }
        for _ in range(3):
            writer.write(fill_document_columns(huge))
        assert writer.row_count >= N + 2


#: Columns of every kind that a stage writes, and rows whose sizes differ by orders of magnitude.
MIXED = table_schema(
    "Rows of all sizes.",
    column("name", pa.string(), "label", "a name"),
    column("data", pa.large_binary(), "personal", "bytes, null here and there"),
    column("numbers", pa.list_(pa.int32()), "figure", "a list"),
    column("pair", pa.list_(pa.float32(), 2), "figure", "a list of one length"),
    column("flag", pa.bool_(), "figure", "yes, no or null"),
    column("ids", pa.list_(pa.binary()), "id", "ids"),
)


def expected_groups(sizes, most_rows, most_bytes):
    """The rule, in the plainest words."""
    found, rows, held = [], 0, 0
    for size in sizes:
        if rows and (rows == most_rows or held + size > most_bytes):
            found.append(rows)
            rows = held = 0
        rows, held = rows + 1, held + size
    return [*found, rows] if rows else found


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.text(max_size=8), st.none() | st.integers(0, 900), st.integers(0, 60)),
        max_size=60,
    ),
    cuts=st.lists(st.integers(0, 60), max_size=8).map(sorted),
)
def test_groups_follow_rows_and_bytes_whatever_the_batches_are(tmp_path_factory, rows, cuts):
    """Groups of at most 7 rows and 1,000 bytes, so that both bounds are met again and again."""
    content = pa.table(
        {
            "name": [name for name, *_ in rows],
            "data": [None if size is None else b"x" * size for _, size, _ in rows],
            "numbers": [list(range(count)) for *_, count in rows],
            "pair": [[0.5, 1.5]] * len(rows),
            "flag": [count % 3 == 0 if count else None for *_, count in rows],
            "ids": [[b"0" * 16] * (count % 4) for *_, count in rows],
        },
        schema=strip_metadata(MIXED),
    )
    folder = tmp_path_factory.mktemp("t")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hallmark.tasks.contract.table_writers.MAX_ROW_GROUP_ROWS", 7)
        patch.setattr("hallmark.tasks.contract.table_writers.MAX_ROW_GROUP_BYTES", 1000)
        whole, _ = written(folder / "whole.parquet", [], content, MIXED)
        cuts = [min(cut, len(rows)) for cut in cuts]
        in_batches, _ = written(folder / "batches.parquet", cuts, content, MIXED)
    assert whole == in_batches
    assert pq.read_table(folder / "batches.parquet").equals(content)
    assert groups(folder / "whole.parquet") == expected_groups(estimate_row_bytes(content), 7, 1000)


def test_row_groups_are_bounded_in_bytes_and_one_huge_row_stands_alone(tmp_path):
    big = [MAX_ROW_GROUP_BYTES // 3] * 7 + [3 * MAX_ROW_GROUP_BYTES] + [10] * 5
    texts = pa.array(["x" * size for size in big], pa.large_string())
    keys = KEYS.slice(0, len(big))
    known = {"doc_id": keys, "source": ["s"] * len(big), "cluster": keys, "text": texts}
    rows = pa.table(
        fill_document_columns(known | {"text_hash": keys}), schema=strip_metadata(DOCUMENTS)
    )
    written(tmp_path / "d.parquet", [], rows)
    sizes = estimate_row_bytes(rows)
    assert groups(tmp_path / "d.parquet") == expected_groups(
        sizes, MAX_ROW_GROUP_ROWS, MAX_ROW_GROUP_BYTES
    )
    assert groups(tmp_path / "d.parquet") == [2, 2, 2, 1, 1, 5]
    assert np.array_equal(sizes, [size + 16 * 3 + 1 + 4 for size in big])
    one_by_one, _ = written(tmp_path / "e.parquet", range(1, len(big)), rows)
    assert one_by_one == hashlib.sha256((tmp_path / "d.parquet").read_bytes()).hexdigest()


def test_counts_by_source(tmp_path):
    _, writer = written(tmp_path / "d.parquet", [5, 5000])
    texts, keys = TEXTS.to_pylist(), KEYS.to_pylist()
    expected = []
    for k in range(3):
        size = sum(len(t.encode()) for t in texts[k::3])
        total = 0
        for key, text in zip(keys[k::3], texts[k::3], strict=True):
            digest = hashlib.blake2b(key + text.encode(), digest_size=16).digest()
            total = (total + int.from_bytes(digest, "big")) % 2**128
        expected.append([f"s{k}", "document", len(texts[k::3]), size, size, f"{total:032x}"])
    assert writer.compute_source_counts() == expected


def test_every_kind_of_ledger_row_goes_to_its_term(tmp_path):
    doc = hash_to_ids(["a"])
    with closing(TableWriter(tmp_path / "l.parquet", LEDGER)) as writer:
        for action, before, after in (
            ("removed", 10, 0),
            ("removed_span", 4, 0),
            ("replaced", 7, 9),
            ("quarantined", 3, 0),
            ("added", 0, 20),
        ):
            writer.write(
                build_ledger_columns(
                    action, "why", doc, ["s"], [before], [after], document_hash=doc
                )
            )
    number = f"{int.from_bytes(doc[0].as_py(), 'big'):032x}"
    assert {count[5] for count in writer.compute_source_counts()} == {number}
    assert writer.changed_ids == {doc[0].as_py()}
    rows, size = sorted(
        compute_account_rows(
            [["s", "document", 5, 100, 100, "0"]],
            [["s", "document", 4, 101, 101, "0"]],
            writer.compute_source_counts(),
        ),
        key=lambda book: book["unit"] == "bytes",
    )
    assert (rows["input"], rows["added"], rows["kept"], rows["removed_rows"]) == (5, 1, 4, 1)
    assert (rows["removed_spans"], rows["quarantined"], rows["replaced"]) == (0, 1, 0)
    assert (size["input"], size["added"], size["kept"], size["removed_rows"]) == (100, 20, 101, 10)
    assert (size["removed_spans"], size["quarantined"], size["replaced"]) == (4, 3, -2)


def test_documents_that_a_ledger_says_were_changed_are_counted_apart(tmp_path):
    out = TableWriters(tmp_path, {"documents": DOCUMENTS, "ledger": LEDGER})
    out.get_table_writer("documents").write(ROWS.slice(0, 3))
    changed = KEYS.slice(1, 1)
    out.get_table_writer("ledger").write(
        build_ledger_columns("replaced", "why", changed, ["s1"], [1], document_hash=changed)
    )
    out.close()
    counts = {(s, a): n for s, a, *n in out.get_table_writer("documents").compute_source_counts()}
    assert counts.keys() == {(f"s{k}", "document") for k in range(3)} | {("s1", "changed")}
    assert counts["s1", "changed"] == [0, 0, 0, counts["s1", "document"][3]]


def test_an_unknown_action_is_refused():
    with pytest.raises(ValueError, match="unknown ledger action"):
        build_ledger_columns("vanished", "why", hash_to_ids(["a"]), ["s"], [1])
