"""Test the measures of the probe extraction on given values and responses."""

import math

import numpy as np
import pyarrow as pa
import pytest

from hallmark.tasks.audits.audit_tables import RESPONSES, RequestBuilder
from hallmark.tasks.audits.judging.findings import select_evidence
from hallmark.tasks.audits.judging.measures import ValueWriter, compute_measure_findings
from hallmark.tasks.audits.probes.extraction import MEASURES, PROBE, VALUE_FIELDS, ExtractionConfig
from hallmark.tasks.audits.responses import Responses
from hallmark.tasks.audits.slice_tags import name_slice
from tests.builders import row_dicts
from tests.findings import findings_to_rows

QUICK = ExtractionConfig(
    reference_secrets=200, prefix_tokens=(3, 6), suffix_tokens=8, documents_per_split=5
)


def compute_findings(rows):
    """Compute the findings about attempts with given results, by metric and slice."""
    empty_item = dict.fromkeys(PROBE.item_schema.names)
    items = [
        empty_item
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
    findings = findings_to_rows(
        compute_measure_findings("extraction", values.to_table(), MEASURES, QUICK)
    )
    return {(row["metric"], name_slice(row["slice"])): row for row in findings}


def test_slopes_are_over_reads_and_prefix_lengths():
    """For each doubling of the copies, one more of four texts is exact."""

    def row(text, copies, k, exact, read=None):
        return {"text": text, "copies": copies, "read": read, "k": k, "exact": exact}

    rows = [
        row(text, copies, k, text % 4 < share)
        for text, (copies, share) in enumerate(
            [(c, s) for c, s in ((0, 0), (1, 1), (3, 2), (7, 3)) for _ in range(4)]
        )
        for k in (8, 16)
    ]
    by_reads, by_prefix = (
        (f"extractable_slope_by_{x}", "passage") for x in ("times_read", "prefix")
    )
    slope = compute_findings(rows)[by_reads]
    assert slope["value"] == pytest.approx(0.25) and slope["clusters"] == 16 and slope["p"] < 0.01
    assert (
        "texts that greedy decoding reproduces exactly, per unit increase in "
        "log2(1 + copies planted)"
    ) in slope["method"]
    assert compute_findings(rows)[by_prefix]["value"] == pytest.approx(0)
    longer = compute_findings([r | {"exact": r["k"] == 16} for r in rows])
    assert longer[by_prefix]["value"] == pytest.approx(1)
    # If the number of reads is known, it is used in place of the copies.
    slope = compute_findings([r | {"read": 3 - min(r["copies"], 3)} for r in rows])[by_reads]
    assert slope["value"] < 0 and "per unit increase in log2(1 + times read)" in slope["method"]
    same = compute_findings([row(1, 1, 8, True), row(2, 1, 8, False)])[by_reads]
    assert same["value"] is None and "the predictor has the same value everywhere" in same["method"]
    unknown = compute_findings([r | {"exact": np.nan} for r in rows])[by_reads]
    assert (unknown["value"], unknown["n"], unknown["missing"]) == (None, 0, 32)


def test_attempts_without_a_score_are_missing():
    builder = RequestBuilder()
    fields = {
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
        builder.request_log_probs(
            builder.add_item(str(number), **fields), [number], [[5, 6]], rank_statistics=True
        )
    ids = [row["request"] for row in row_dicts(builder.requests)]
    responses = [
        {"request": ids[0], "draw": 0, "log_probs": [-1.0, -1.0], "ranks": [1, 2]},
        {"request": ids[1], "draw": 0, "log_probs": [math.nan, math.nan], "ranks": [0, 0]},
    ]
    values, found = PROBE.compute_values_and_findings(build_responses(builder, responses), QUICK)
    findings = findings_to_rows(found)
    attempts = select_evidence(values, {"measure": "extractable"})
    assert attempts["value"].to_pylist() == [0, None]
    assert attempts["leading_correct_tokens"].to_pylist() == [1, None]
    assert attempts["log_likelihood"].to_pylist() == [-2, None]
    (shares,) = [f for f in findings if f["metric"] == "leading_correct_share"]
    assert (shares["value"], shares["n"], shares["missing"]) == (0.5, 1, 1)
    by_draws = [f for f in findings if f["metric"] == "extractable_by_sampling"]
    assert [f["value"] for f in by_draws] == [0, 1, 1]  # p is exp(-2): 0.135
    assert all(f["missing"] == 1 for f in by_draws)


def build_responses(builder, responses):
    return Responses(
        builder.build_items_table(PROBE.item_schema),
        builder.build_requests_table(),
        pa.Table.from_pylist(responses, schema=RESPONSES),
    )
