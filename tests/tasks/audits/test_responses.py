"""Test the join of responses and scores with their items."""

import numpy as np
import pyarrow as pa

from hallmark.tasks.audits.audit_tables import (
    RESPONSES,
    SCORES,
    RequestBuilder,
    build_items_schema,
    hash_json_values,
)
from hallmark.tasks.audits.responses import Responses
from hallmark.tasks.contract import hash_texts
from tests.builders import item_rows, row_dicts
from tests.tasks.audits.test_inference import build_request_table


def test_select_part_joins_responses_with_their_items():
    """Compared with a loop over requests; requests are shared, and an item may have none."""
    builder = RequestBuilder()
    item_ids = [builder.add_item(f"item {number}") for number in range(5)]
    for number in (3, 0, 4, 1):  # nothing is requested for item 2
        builder.request_continuations(
            item_ids[number], [1 + number % 2], max_new_tokens=3, draws=1 + number % 2
        )
    builder.request_continuations(item_ids[0], [9], max_new_tokens=3, part="second")
    requests = build_request_table(builder)
    distinct = {row["request"]: row for row in row_dicts(builder.requests)}
    rows = [
        {"request": r, "draw": d, "text": f"{row['context_ids']} {d}"}
        for r, row in sorted(distinct.items())
        for d in range(row["draws"])
    ]
    items = builder.build_items_table(build_items_schema())
    responses = Responses(items, requests, pa.Table.from_pylist(rows, schema=RESPONSES))
    selected = [(r["row"], r["draw"], r["text"]) for r in responses.select_part().to_pylist()]
    expected = [
        (number, draw, f"[{1 + number % 2}] {draw}")
        for number in (0, 1, 3, 4)
        for draw in range(1 + number % 2)
    ]
    assert selected == expected
    assert [r["text"] for r in responses.select_part("second").to_pylist()] == ["[9] 0"]
    assert len(responses.select_part("none")) == 0
    assert np.isnan(responses.look_up_scores(pa.array(["a"], pa.large_string()))).all()


def test_unanswered_and_unscored_items_are_missing():
    builder = RequestBuilder()
    item_ids = [builder.add_item(text, cluster) for text, cluster in (("a", ""), ("b", "both"))]
    first, second = (row["cluster"] for row in item_rows(builder).values())
    assert second == "both" and first == hash_json_values("a").hex()  # pages show it, so no text
    for number, item in enumerate(item_ids):
        builder.request_log_probs(item, [1], [[2 + number], [7, 8]])
    target_row = {"request": row_dicts(builder.requests)[1]["request"]}
    responses = [
        target_row | {"draw": 1, "log_probs": [-1.5, -0.5]},
        target_row | {"draw": 0, "log_probs": [-3.0]},
    ]
    scores = {
        "text_hash": hash_texts(pa.array(["b"], pa.large_string())),
        "scorer": ["s"],
        "head": ["toxicity"],
        "score": [0.75],
    }
    joined = Responses(
        builder.build_items_table(build_items_schema()),
        build_request_table(builder),
        pa.Table.from_pylist(responses, schema=RESPONSES),
        scores=pa.table(scores, schema=SCORES),
    )
    assert joined.select_part()["row"].to_pylist() == [1, 1]
    values, tokens = joined.compute_target_log_likelihoods(), joined.count_target_tokens()
    np.testing.assert_array_equal(values, [[np.nan, np.nan], [-3.0, -2.0]])
    assert tokens.tolist() == [[0, 0], [1, 2]]
    text_scores = joined.look_up_scores(pa.array(["a", "b", "c", "b"], pa.large_string()))
    np.testing.assert_array_equal(text_scores, np.array([np.nan, 0.75, np.nan, 0.75], np.float32))
    assert np.isnan(joined.look_up_scores(pa.array(["b"], pa.large_string()), "insult")).all()
