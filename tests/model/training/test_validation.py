"""Bits per byte by group, against a loop over documents and tokens."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from hallmark.model.objectives import build_causal_batch, build_mlm_batch
from hallmark.model.training.packed_rows import open_packed_rows
from hallmark.model.training.parallel import DistributedWorld
from hallmark.model.training.validation import GROUPS_SCHEMA, Validator, read_group_spans
from tests.model.oracles import tiny, toy_rows, write_rows

BYTE_LENGTHS = np.array([0, 0, *[1 + i % 3 for i in range(59)]], np.int32)  # bytes of 61 tokens
CONTEXT = 16


@pytest.fixture
def rows(tmp_path):
    path = write_rows(tmp_path / "rows.parquet", toy_rows(9, CONTEXT, 61))
    return open_packed_rows(str(path), tmp_path / "rows.bin", CONTEXT, 61)


def write_groups(tmp_path, spans):
    path = tmp_path / "groups.parquet"
    pq.write_table(pa.Table.from_pylist(spans, GROUPS_SCHEMA), path)
    return str(path)


def make_spans(rows):
    """Alternate two sources between the documents, and add a group to some rows."""
    spans, source = [], 0
    for number, row in enumerate(rows.ids):
        cuts = [0, *(i for i in range(1, CONTEXT) if row[i] == 0), CONTEXT]
        for start, end in pairwise(cuts):
            source += row[start] == 0
            where = {"sequence": number, "row_start": start, "row_end": end}
            spans.append({**where, "kind": "source", "name": f"web/{source % 2}"})
            if number % 3 == 0:
                spans.append({**where, "kind": "identity", "name": "women"})
    return spans[::-1]  # in any order


def sum_by_group_naively(model, rows, spans, chosen, shift, batch_of):
    """Sum tokens, bytes and nats by group, one token at a time."""
    sums = {}
    for number in chosen:
        batch = batch_of(number)
        with torch.no_grad():
            log_p = model.compute_logits(model(batch))[0].log_softmax(-1)
        for span in spans:
            if span["sequence"] != number:
                continue
            cell = sums.setdefault((span["kind"], span["name"]), [0, 0, 0.0])
            for position in range(span["row_start"], span["row_end"]):
                predicting = position - shift
                if predicting < 0 or not batch.weights[0, predicting]:
                    continue
                token = int(batch.targets[0, predicting])
                if BYTE_LENGTHS[token]:
                    cell[0] += 1
                    cell[1] += int(BYTE_LENGTHS[token])
                    cell[2] -= float(log_p[predicting, token])
    return sums


def test_bits_per_byte_by_group_equal_a_loop(rows, tmp_path):
    model, spans = tiny(context=CONTEXT), make_spans(rows)
    validator = Validator(
        rows,
        lambda r, key, first: build_causal_batch(r),
        BYTE_LENGTHS,
        sequence_count=5,
        target_offset=1,
        groups_path=write_groups(tmp_path, spans),
        world=DistributedWorld(),
    )
    measured = validator.measure_loss(model)
    chosen = [0, 2, 4, 6, 8]
    assert validator.row_indices.tolist() == chosen

    def batch_of(number):
        return build_causal_batch(rows.read_rows(np.array([number])))

    rows_by_group = {(r["kind"], r["name"]): r for r in measured.table_rows}
    expected_sums = sum_by_group_naively(model, rows, spans, chosen, 1, batch_of)
    assert set(rows_by_group) == {("all", "all"), *expected_sums} and len(expected_sums) == 3
    for key, (tokens, size, nats) in expected_sums.items():
        assert (rows_by_group[key]["tokens"], rows_by_group[key]["bytes"]) == (tokens, size)
        assert rows_by_group[key]["bits_per_byte"] == pytest.approx(
            nats / size / math.log(2), rel=1e-5
        )
    sources = [rows_by_group[key] for key in expected_sums if key[0] == "source"]
    assert sum(r["tokens"] for r in sources) == rows_by_group["all", "all"]["tokens"]
    batches = [batch_of(n) for n in chosen]
    with torch.no_grad():
        nats = sum(float(model.compute_loss_sum(b)) for b in batches)
    tokens = sum(float(b.weights.sum()) for b in batches)
    assert measured.bits_per_token == pytest.approx(nats / tokens / math.log(2), rel=1e-5)


def test_masked_tokens_are_counted_at_their_positions(rows, tmp_path):
    model, spans = tiny(context=CONTEXT, architecture="encoder"), make_spans(rows)

    def objective(index, key, first):
        return build_mlm_batch(index, key, first, mask_id=60, vocab_size=61, mask_rate=0.5)

    validator = Validator(
        rows,
        objective,
        BYTE_LENGTHS,
        sequence_count=0,
        target_offset=0,
        groups_path=write_groups(tmp_path, spans),
        world=DistributedWorld(),
    )
    rows_by_group = {(r["kind"], r["name"]): r for r in validator.measure_loss(model).table_rows}
    # The validator draws for all nine rows together.
    batches = objective(rows.read_rows(np.arange(9)), 0, 0).split_into_micro_batches(9)
    expected_sums = sum_by_group_naively(model, rows, spans, range(9), 0, lambda n: batches[n])
    for key, (tokens, size, nats) in expected_sums.items():
        assert (rows_by_group[key]["tokens"], rows_by_group[key]["bytes"]) == (tokens, size)
        assert rows_by_group[key]["bits_per_byte"] == pytest.approx(
            nats / size / math.log(2), rel=1e-5
        )


def test_objectives_that_move_tokens_have_no_groups(rows, tmp_path):
    validator = Validator(
        rows,
        lambda r, key, first: build_causal_batch(r),
        BYTE_LENGTHS,
        sequence_count=0,
        target_offset=None,
        groups_path=write_groups(tmp_path, make_spans(rows)),
        world=DistributedWorld(),
    )
    (total,) = validator.measure_loss(tiny(context=16)).table_rows
    assert total["kind"] == "all" and total["tokens"] and total["bits_per_byte"]


@pytest.mark.parametrize(
    "span",
    [
        {"sequence": 9, "row_start": 0, "row_end": 4},
        {"sequence": -1, "row_start": 0, "row_end": 4},
        {"sequence": 0, "row_start": 5, "row_end": 4},
        {"sequence": 0, "row_start": 0, "row_end": CONTEXT + 1},
        {"sequence": None, "row_start": 0, "row_end": 1},
    ],
)
def test_groups_outside_the_rows_are_refused(rows, tmp_path, span):
    path = write_groups(tmp_path, [{**span, "kind": "source", "name": "web"}])
    with pytest.raises(ValueError, match=r"group table .*groups\.parquet"):
        read_group_spans(path, rows)


def test_an_unreadable_groups_table_is_refused(rows, tmp_path):
    (tmp_path / "groups.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match="cannot be read"):
        read_group_spans(str(tmp_path / "groups.parquet"), rows)
