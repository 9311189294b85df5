"""Which items the model had read: a text of theirs stands whole in its training text."""

import pyarrow as pa

from tasks.audits.answers import Answers
from tasks.audits.exchange import REQUESTS, RESPONSES, TRACED, Questions, items_table


def test_an_item_is_seen_where_a_text_of_it_stands_whole():
    questions = Questions()
    items = [questions.item(text) for text in ("both", "one", "part", "none", "written")]
    rows, told = [], []
    for number, found in enumerate(([4, 3], [4, 0], [3, 0], [0, 0])):
        questions.read(items[number], [number], [[1, 2, 3, 4], [5, 6, 7]])
        request = questions.requests[-1]["request"]
        for draw, size in enumerate((4, 3)):
            rows.append({"request": request, "draw": draw, "log_p": [-1.0] * size})
            told.append(found[draw])
    questions.write(items[4], [1], tokens=3, part="texts")
    request = questions.requests[-1]["request"]
    rows.append({"request": request, "draw": 0, "text": "abc", "ids": [1], "log_p": [-1.0]})
    told.append(3)  # what it wrote is no item
    traced = pa.table(
        {"request": [r["request"] for r in rows], "draw": [r["draw"] for r in rows],
         "longest": told, "verbatim": told, "planted": told}, schema=TRACED)  # fmt: skip

    def answers(of):
        return Answers(
            pa.Table.from_pylist([*questions.items.values()], schema=items_table()),
            pa.Table.from_pylist(questions.requests, schema=REQUESTS),
            pa.Table.from_pylist(rows, schema=RESPONSES), traced=of)  # fmt: skip

    assert answers(traced).seen().tolist() == [True, True, False, False, False]
    assert answers(None).seen() is None
