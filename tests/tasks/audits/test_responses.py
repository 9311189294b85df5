"""Answers: what was said, scored and missing stands beside its items."""

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
from tests.tasks.audits.test_inference import requests_of


def test_responses_stand_beside_their_items():
    """Against going through them one by one: requests are shared, draws may be none."""
    questions = RequestBuilder()
    names = [questions.add_item(f"item {number}") for number in range(5)]
    for number in (3, 0, 4, 1):  # of item 2 nothing is asked
        questions.request_continuations(
            names[number], [1 + number % 2], max_new_tokens=3, draws=1 + number % 2
        )
    questions.request_continuations(names[0], [9], max_new_tokens=3, part="second")
    requests = requests_of(questions)
    distinct = {row["request"]: row for row in questions.requests}
    rows = [
        {"request": r, "draw": d, "text": f"{row['context_ids']} {d}"}
        for r, row in sorted(distinct.items())
        for d in range(row["draws"])
    ]
    items = pa.Table.from_pylist([*questions.items.values()], schema=build_items_schema())
    answers = Responses(items, requests, pa.Table.from_pylist(rows, schema=RESPONSES))
    found = [(r["row"], r["draw"], r["text"]) for r in answers.select_part().to_pylist()]
    expected = [
        (number, draw, f"[{1 + number % 2}] {draw}")
        for number in (0, 1, 3, 4)
        for draw in range(1 + number % 2)
    ]
    assert found == expected
    assert [r["text"] for r in answers.select_part("second").to_pylist()] == ["[9] 0"]
    assert len(answers.select_part("none")) == 0
    assert np.isnan(answers.look_up_scores(pa.array(["a"], pa.large_string()))).all()


def test_what_nobody_answered_or_scored_is_missing():
    questions = RequestBuilder()
    names = [questions.add_item(text, cluster) for text, cluster in (("a", ""), ("b", "both"))]
    first, second = (row["cluster"] for row in questions.items.values())
    assert second == "both" and first == hash_json_values("a").hex()  # a page shows it: no text
    for number, item in enumerate(names):
        questions.request_log_probs(item, [1], [[2 + number], [7, 8]])
    read = {"request": questions.requests[1]["request"]}
    responses = [
        read | {"draw": 1, "log_probs": [-1.5, -0.5]},
        read | {"draw": 0, "log_probs": [-3.0]},
    ]
    scores = {
        "text_hash": hash_texts(pa.array(["b"], pa.large_string())),
        "scorer": ["s"],
        "head": ["toxicity"],
        "score": [0.75],
    }
    answers = Responses(
        pa.Table.from_pylist([*questions.items.values()], schema=build_items_schema()),
        requests_of(questions),
        pa.Table.from_pylist(responses, schema=RESPONSES),
        pa.table(scores, schema=SCORES),
    )
    assert answers.select_part()["row"].to_pylist() == [1, 1]
    values, tokens = answers.compute_log_likelihoods()
    np.testing.assert_array_equal(values, [[np.nan, np.nan], [-3.0, -2.0]])
    assert tokens.tolist() == [[0, 0], [1, 2]]
    found = answers.look_up_scores(pa.array(["a", "b", "c", "b"], pa.large_string()))
    np.testing.assert_array_equal(found, np.array([np.nan, 0.75, np.nan, 0.75], np.float32))
    assert np.isnan(answers.look_up_scores(pa.array(["b"], pa.large_string()), "insult")).all()
