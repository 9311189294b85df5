"""The findings table and the evidence it points to."""

import json
import math

import pyarrow as pa
import pytest

from hallmark.tasks.audits.judging.findings import (
    FINDINGS,
    build_finding,
    build_findings_table,
    select_evidence,
)
from hallmark.tasks.audits.judging.tags import parse_tags
from hallmark.tasks.contract import ID_TYPE


def test_what_could_not_be_measured_is_null_and_not_zero():
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
    table = build_findings_table(rows)
    assert table.schema == FINDINGS
    assert table["value"].to_pylist() == [None, None, 0.5, 0.5]
    assert table["low"].to_pylist() == [None, None, None, 0.4]
    assert table["confidence_level"].to_pylist() == [None, None, None, 0.95]


def test_tags_say_which_part_a_finding_is_about_and_spell_its_slice():
    given = {"n": 9, "unit": "share", "method": "m"}
    tags = {"copies": 64, "in_training_text": False, "group_name": "a, b=c"}
    rows = [
        build_finding("a", "m", 0.5, **given),
        build_finding("a", "m", 0.5, part="passage", **given),
        build_finding("a", "m", 0.5, part="passage", tags=tags, **given),
        build_finding("a", "m", 0.5, tags={"assigned_trait_share": 0.9}, **given),
    ]
    assert [row["slice"] for row in rows] == [
        "",
        "passage",
        "passage, copies=64, in_training_text=False, group_name=a, b=c",
        "assigned_trait_share=0.9",
    ]
    told = [parse_tags(row) for row in build_findings_table(rows).to_pylist()]
    assert told == [
        {},
        {"part": "passage"},
        {"part": "passage"} | tags,
        {"assigned_trait_share": 0.9},
    ]


def test_every_finding_says_what_the_model_computed_in():
    row = build_finding("bias", "stereotype_preference", 0.5, n=9, unit="share", method="m")
    assert build_findings_table([row, row], "bf16")["precision"].to_pylist() == ["bf16", "bf16"]


def test_a_control_has_a_verdict_and_nothing_else_has():
    given = {"n": 1, "unit": "share", "method": "m"}
    assert build_finding("a", "m", 1.0, **given)["verdict"] == ""
    made = build_finding(
        "a", "m", 1.0, control="positive", passed=False, control_target="model", **given
    )
    assert (made["control"], made["verdict"], made["control_target"]) == (
        "positive",
        "fail",
        "model",
    )
    for wrong in (
        {"control": "negative"},
        {"passed": True},
        {"control_target": "model"},
        {"control": "negative", "passed": True},
    ):
        with pytest.raises(ValueError, match="needs a verdict, and what it tests, if, and only"):
            build_finding("a", "m", 1.0, **given, **wrong)


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

    def chosen(**where):
        row = build_finding("x", "m", 1.0, n=1, unit="", method="", evidence_filter=where)
        assert json.loads(row["evidence_filter"]) == where
        return [d[0] for d in select_evidence(rows, row["evidence_filter"])["doc_id"].to_pylist()]

    assert chosen() == [0, 1, 2, 3]
    assert chosen(kind="a") == [0, 2]
    assert chosen(kind=None) == [3]
    assert chosen(copies=[0, 64]) == [0, 3]
    assert chosen(copies=None, kind="a") == [2]
    assert chosen(copies=[None, 4]) == [1, 2]
    assert chosen(score=0.5, tie=True) == [0, 3]
    assert chosen(doc_id=["01" * 16, "03" * 16]) == [1, 3]
    assert chosen(kind="c") == []
