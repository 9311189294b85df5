"""What the extraction audit makes of answers that are known: slopes, and numbers that are none."""

import math

import numpy as np
import pyarrow as pa
import pytest

from hallmark.tasks.audits.audit_tables import REQUESTS, RESPONSES, RequestBuilder
from hallmark.tasks.audits.judging.findings import select_evidence
from hallmark.tasks.audits.judging.measures import ValueWriter, compute_measure_findings
from hallmark.tasks.audits.probes.extraction import MEASURES, PROBE, VALUE_FIELDS, ExtractionConfig
from hallmark.tasks.audits.responses import Responses

QUICK = ExtractionConfig(
    reference_secrets=200, prefix_tokens=(3, 6), suffix_tokens=8, documents_per_split=5
)


def attempts(rows):
    """Values of attempts, and the findings on them by metric and slice."""
    nothing = dict.fromkeys(PROBE.item_schema.names)
    items = [
        nothing
        | {
            "item": n.to_bytes(16),
            "cluster": str(row["text"]),
            "kind": "passage",
            "copies": row["copies"],
            "prefix_tokens": row["k"],
            "doc_ids": [bytes([row["text"]] * 16)],
        }
        for n, row in enumerate(rows)
    ]
    table = pa.Table.from_pylist(items, schema=PROBE.item_schema)
    values = ValueWriter(table, None, [row["read"] for row in rows], VALUE_FIELDS)
    values.add_values("extractable", np.arange(len(rows)), [row["exact"] for row in rows])
    found = compute_measure_findings("extraction", values.to_table(), MEASURES, QUICK)
    return {(row["metric"], row["slice"]): row for row in found}


def test_slopes_are_over_readings_and_prefixes():
    """What is exact more often the oftener it was read: one text in each doubling."""

    def row(text, copies, k, exact, read=None):
        return {"text": text, "copies": copies, "read": read, "k": k, "exact": exact}

    rows = [
        row(text, copies, k, text % 4 < share)
        for text, (copies, share) in enumerate(
            [(c, s) for c, s in ((0, 0), (1, 1), (3, 2), (7, 3)) for _ in range(4)]
        )
        for k in (8, 16)
    ]
    found = attempts(rows)
    line = found["extractable_slope_by_times_read", "passage"]
    assert line["value"] == pytest.approx(0.25) and line["clusters"] == 16 and line["p"] < 0.01
    assert "each 1 of log2(1 + copies planted)" in line["method"]
    assert found["extractable_slope_by_prefix", "passage"]["value"] == pytest.approx(0)
    longer = attempts([r | {"exact": r["k"] == 16} for r in rows])
    assert longer["extractable_slope_by_prefix", "passage"]["value"] == pytest.approx(1)
    # What was read counts, where it is known, not what was planted.
    read = attempts([r | {"read": 3 - min(r["copies"], 3)} for r in rows])
    line = read["extractable_slope_by_times_read", "passage"]
    assert line["value"] < 0 and "each 1 of log2(1 + times read)" in line["method"]
    same = attempts([row(1, 1, 8, True), row(2, 1, 8, False)])[
        "extractable_slope_by_times_read", "passage"
    ]
    assert same["value"] is None and "of a single value nothing changes" in same["method"]
    unknown = attempts([r | {"exact": np.nan} for r in rows])[
        "extractable_slope_by_times_read", "passage"
    ]
    assert (unknown["value"], unknown["n"], unknown["missing"]) == (None, 0, 32)


def test_what_the_model_gives_no_number_for_is_no_success():
    """A rank among numbers that are none is none."""
    questions = RequestBuilder()
    told = {
        "kind": "train",
        "copies": None,
        "canary_id": None,
        "doc_ids": [b"x"],
        "template": "",
        "secret": "s",
        "prefix_tokens": 3,
        "token_start": 3,
    }
    for number in range(2):
        questions.request_log_probs(
            questions.add_item(str(number), **told), [number], [[5, 6]], rank_statistics=True
        )
    ids = [row["request"] for row in questions.requests]
    responses = [
        {"request": ids[0], "draw": 0, "log_probs": [-1.0, -1.0], "ranks": [1, 2]},
        {"request": ids[1], "draw": 0, "log_probs": [math.nan, math.nan], "ranks": [0, 0]},
    ]
    values, findings = PROBE.compute_values_and_findings(answers_from(questions, responses), QUICK)
    whole = select_evidence(values, {"measure": "extractable"})
    assert whole["value"].to_pylist() == [0, None] and whole[
        "leading_correct_tokens"
    ].to_pylist() == [1, None]
    assert whole["log_likelihood"].to_pylist() == [-2, None]
    (shares,) = [f for f in findings if f["metric"] == "leading_correct_share"]
    assert (shares["value"], shares["n"], shares["missing"]) == (0.5, 1, 1)
    drawn = {f["slice"]: f for f in findings if f["metric"] == "extractable_by_sampling"}
    assert [f["value"] for f in drawn.values()] == [0, 1, 1]  # p is exp(-2): 0.135
    assert all(f["missing"] == 1 for f in drawn.values())


def answers_from(questions, responses):
    return Responses(
        pa.Table.from_pylist([*questions.items.values()], schema=PROBE.item_schema),
        pa.Table.from_pylist(questions.requests, schema=REQUESTS),
        pa.Table.from_pylist(responses, schema=RESPONSES),
    )
