"""A table's bytes depend on its rows alone."""

import hashlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.contract import DOCUMENTS, LEDGER, ids, ledger_rows, text_hashes
from tasks.contract.accounts import balance
from tasks.contract.tables import ROW_GROUP, TableWriter

N = 3 * ROW_GROUP + 17
KEYS = ids(str(i) for i in range(N))
TEXTS = pa.array([f"tëxt {i % 97}" * (i % 5) for i in range(N)], pa.large_string())
ROWS = pa.table(
    [KEYS, pa.array([f"s{i % 3}" for i in range(N)]), KEYS, TEXTS, text_hashes(TEXTS)],
    schema=DOCUMENTS,
)


def written(path, cuts):
    with TableWriter(path, DOCUMENTS) as writer:
        for start, end in zip([0, *cuts], [*cuts, N], strict=True):
            writer.write(ROWS.slice(start, end - start))
    return hashlib.sha256(path.read_bytes()).hexdigest(), writer


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, N), max_size=12).map(sorted))
def test_bytes_do_not_depend_on_the_batches_written(tmp_path_factory, cuts):
    path = tmp_path_factory.mktemp("t") / "documents.parquet"
    digest, writer = written(path, cuts)
    whole, _ = written(path.with_name("whole.parquet"), [])
    assert digest == whole
    assert writer.rows == N
    assert pq.read_table(path).equals(ROWS)
    sizes = [pq.ParquetFile(path).metadata.row_group(g).num_rows for g in range(4)]
    assert sizes == [ROW_GROUP] * 3 + [17]


def test_counts_by_source(tmp_path):
    _, writer = written(tmp_path / "d.parquet", [5, 5000])
    texts = TEXTS.to_pylist()
    expected = [
        [f"s{k}", "document", len(texts[k::3]), *[sum(len(t.encode()) for t in texts[k::3])] * 2]
        for k in range(3)
    ]
    assert writer.counts.to_json() == expected


def test_every_kind_of_ledger_row_goes_to_its_term(tmp_path):
    doc = ids(["a"])
    with TableWriter(tmp_path / "l.parquet", LEDGER) as writer:
        for action, before, after in (
            ("removed", 10, 0),
            ("removed_span", 4, 0),
            ("replaced", 7, 9),
            ("quarantined", 3, 0),
            ("added", 0, 20),
        ):
            writer.write(ledger_rows(action, "why", doc, ["s"], [before], [after]))
    rows, size = sorted(
        balance([["s", "document", 5, 100, 100]], [["s", "document", 4, 101, 101]],
                writer.counts.to_json()),
        key=lambda book: book["unit"] == "bytes",
    )  # fmt: skip
    assert (rows["in"], rows["added"], rows["kept"], rows["removed_rows"]) == (5, 1, 4, 1)
    assert (rows["removed_spans"], rows["quarantined"], rows["replaced"]) == (0, 1, 0)
    assert (size["in"], size["added"], size["kept"], size["removed_rows"]) == (100, 20, 101, 10)
    assert (size["removed_spans"], size["quarantined"], size["replaced"]) == (4, 3, -2)


def test_an_unknown_action_is_refused():
    with pytest.raises(ValueError, match="no ledger action"):
        ledger_rows("vanished", "why", ids(["a"]), ["s"], [1])
