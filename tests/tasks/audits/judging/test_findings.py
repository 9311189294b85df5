"""Test the findings table and the evidence that it points to."""

import json
import math

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from hallmark.tasks.audits.judging.findings import (
    FINDINGS,
    build_finding,
    select_evidence,
)
from hallmark.tasks.audits.slice_tags import name_slice
from hallmark.tasks.contract import ID_TYPE, table_to_rows
from tests.findings import build_titled_table


def test_a_figure_that_could_not_be_measured_is_null():
    rows = [
        build_finding(
            "bias", "stereotype_preference", math.nan, n=0, unit="share", method="nothing there"
        ),
        build_finding(
            "bias", "stereotype_preference", None, n=0, unit="share", method="nothing there"
        ),
        build_finding(
            "bias",
            "stereotype_preference",
            0.5,
            n=9,
            unit="share",
            method="m",
            low=math.nan,
            high=0.6,
        ),
        build_finding(
            "bias", "stereotype_preference", 0.5, n=9, unit="share", method="m", low=0.4, high=0.6
        ),
    ]
    table = build_titled_table(rows)
    assert table.schema == FINDINGS
    assert table["value"].to_pylist() == [None, None, 0.5, 0.5]
    assert table["low"].to_pylist() == [None, None, None, 0.4]
    assert table["confidence_level"].to_pylist() == [None, None, None, 0.95]


def test_tags_make_the_slice_name():
    finding_fields = {"n": 9, "unit": "share", "method": "m"}
    tags = {"copies": 64, "in_training_text": False, "group_name": "a, b=c"}
    rows = [
        build_finding("a", "m", 0.5, **finding_fields),
        build_finding("a", "m", 0.5, part="passage", **finding_fields),
        build_finding("a", "m", 0.5, part="passage", tags=tags, **finding_fields),
        build_finding("a", "m", 0.5, tags={"assigned_trait_share": 0.9}, **finding_fields),
    ]
    assert [name_slice(row.slice) for row in rows] == [
        "",
        "passage",
        "passage, copies=64, in_training_text=False, group_name=a, b=c",
        "assigned_trait_share=0.9",
    ]
    table = build_titled_table(rows)
    assert [row["slice"] for row in table_to_rows(table)] == [
        {},
        {"part": "passage"},
        {"part": "passage", "copies": "64", "in_training_text": "False", "group_name": "a, b=c"},
        {"assigned_trait_share": "0.9"},
    ]
    copies = pc.map_lookup(table["slice"], "copies", "first")  # no string is parsed
    assert copies.to_pylist() == [None, None, "64", None]


def test_a_finding_has_the_same_id_in_every_run_and_no_other_finding_has_it():
    fields = {"n": 9, "unit": "share", "method": "m"}
    control = {"control": "positive", "passed": True, "control_target": "model"}
    first = build_finding("a", "m", 0.5, part="passage", tags={"copies": 64}, **fields)
    again = build_finding("a", "m", 0.7, tags={"copies": "64", "part": "passage"}, **fields)
    others = [
        build_finding("b", "m", 0.5, part="passage", tags={"copies": 64}, **fields),
        build_finding("a", "n", 0.5, part="passage", tags={"copies": 64}, **fields),
        build_finding("a", "m", 0.5, part="passage", tags={"copies": 65}, **fields),
        build_finding("a", "m", 0.5, part="passage", **fields),
        build_finding("a", "m", 0.5, part="passage", tags={"copies": 64}, **fields, **control),
    ]
    assert first.finding == again.finding
    assert len({first.finding, *(row.finding for row in others)}) == 6


def test_every_finding_has_the_precision_of_the_model():
    row = build_finding("bias", "stereotype_preference", 0.5, n=9, unit="share", method="m")
    assert build_titled_table([row, row], "bf16")["precision"].to_pylist() == ["bf16", "bf16"]


def test_only_controls_have_a_verdict():
    finding_fields = {"n": 1, "unit": "share", "method": "m"}
    assert build_finding("a", "m", 1.0, **finding_fields).verdict == ""
    control = build_finding(
        "a", "m", 1.0, control="positive", passed=False, control_target="model", **finding_fields
    )
    assert (control.control, control.verdict, control.control_target) == (
        "positive",
        "fail",
        "model",
    )
    for incomplete in (
        {"control": "negative"},
        {"passed": True},
        {"control_target": "model"},
        {"control": "negative", "passed": True},
    ):
        with pytest.raises(
            ValueError, match="a: m must have either all of 'control', 'control_target'"
        ):
            build_finding("a", "m", 1.0, **finding_fields, **incomplete)


def test_evidence_selects_the_rows_of_a_finding():
    rows = pa.table(
        {
            "kind": ["a", "b", "a", None],
            "copies": pa.array([0, 4, None, 64], pa.int32()),
            "score": pa.array([0.5, 0.25, None, 0.5], pa.float32()),
            "doc_id": pa.array([bytes([i] * 16) for i in range(4)], ID_TYPE),
            "tie": [True, False, False, True],
        }
    )

    def select_ids(**conditions):
        row = build_finding("x", "m", 1.0, n=1, unit="", method="", evidence_filter=conditions)
        assert json.loads(row.evidence_filter) == conditions
        return [d[0] for d in select_evidence(rows, row.evidence_filter)["doc_id"].to_pylist()]

    assert select_ids() == [0, 1, 2, 3]
    assert select_ids(kind="a") == [0, 2]
    assert select_ids(kind=None) == [3]
    assert select_ids(copies=[0, 64]) == [0, 3]
    assert select_ids(copies=None, kind="a") == [2]
    assert select_ids(copies=[None, 4]) == [1, 2]
    assert select_ids(score=0.5, tie=True) == [0, 3]
    assert select_ids(doc_id=["01" * 16, "03" * 16]) == [1, 3]
    assert select_ids(kind="c") == []
