"""Test the filters of evidence rows and their order."""

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from hallmark.tasks.audits.judging.evidence_filters import (
    build_row_filter,
    select_rows,
    sort_worst_first,
)
from hallmark.tasks.audits.judging.findings import choose_evidence_order, select_evidence
from hallmark.tasks.contract import ID_TYPE

ROWS = pa.table(
    {
        "kind": ["a", "b", None, "a"],
        "score": pa.array([0.5, 0.25, None, 0.75], pa.float32()),
        "doc_id": pa.array([bytes([n]) * 16 for n in range(4)], ID_TYPE),
        "flag": [True, False, None, True],
    }
)


@pytest.mark.parametrize(
    ("conditions", "expected_ids"),
    [
        ({}, [0, 1, 2, 3]),
        ({"kind": "a"}, [0, 3]),
        ({"kind": None}, [2]),
        ({"kind": ["a", "b"]}, [0, 1, 3]),
        ({"kind": []}, []),
        ({"flag": False}, [1]),
        ({"score": {"ge": 0.5}}, [0, 3]),
        ({"score": {"lt": 0.5}}, [1]),
        ({"score": {"ge": 0.25, "lt": 0.75}}, [0, 1]),
        ({"kind": "a", "score": {"lt": 0.6}}, [0]),
        ({"doc_id": "01" * 16}, [1]),
        ({"doc_id": ["02" * 16, "03" * 16]}, [2, 3]),
    ],
)
def test_conditions_select_rows(conditions, expected_ids):
    expression = build_row_filter(ROWS.schema, conditions)
    for rows in (select_evidence(ROWS, conditions), ds.dataset(ROWS).to_table(filter=expression)):
        assert [i[0] for i in rows["doc_id"].to_pylist()] == expected_ids


def test_an_unknown_column_is_an_error():
    assert build_row_filter(ROWS.schema, {}) is None
    for select in (lambda c: build_row_filter(ROWS.schema, c), lambda c: select_rows(ROWS, c)):
        with pytest.raises(KeyError, match="nobody"):
            select({"nobody": 1})


def test_rows_without_a_value_are_sorted_last():
    def sorted_ids(evidence_order):
        return [i[0] for i in sort_worst_first(ROWS, evidence_order)["doc_id"].to_pylist()]

    assert len(sort_worst_first(ROWS, "", 3)) == 3
    assert sort_worst_first(ROWS, "score", 2) == sort_worst_first(ROWS, "score")[:2]
    assert (sorted_ids(""), sorted_ids("score"), sorted_ids("-score")) == (
        [0, 1, 2, 3],
        [1, 0, 3, 2],
        [3, 0, 1, 2],
    )
    assert (
        choose_evidence_order(0.4, 0.5, "x"),
        choose_evidence_order(0.6, 0.5, "x"),
        choose_evidence_order(0.6, float("nan"), "x"),
    ) == (
        "x",
        "-x",
        "-x",
    )
