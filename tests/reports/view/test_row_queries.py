"""Rows are filtered, sorted, searched and downloaded only as far as they may be shown."""

import csv
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hallmark.reports.page.figures import FigureBook
from hallmark.reports.page.redaction import Redactor
from hallmark.reports.view.row_queries import (
    MAX_SEARCHED_ROWS,
    RowFilter,
    RowQuery,
    RowView,
    count_pages,
    defuse_formula,
)
from hallmark.tasks.contract import (
    EmptyConfig,
    StageContext,
    UsageError,
    column,
    hash_to_ids,
    stage,
    table_schema,
)

ROWS = table_schema(
    "Rows with one column of each kind.",
    column("row", pa.binary(16), "id", "id"),
    column(
        "source",
        pa.string(),
        "label",
        "source",
    ),
    column("count", pa.int64(), "figure", "number"),
    column("score", pa.float64(), "figure", "score"),
    column("is_good", pa.bool_(), "figure", "whether it is good"),
    column("text", pa.string(), "model text", "text", judged_by="score"),
    column("name", pa.string(), "personal", "name of a person"),
    column("words", pa.list_(pa.string()), "label", "words"),
)
IDS = hash_to_ids(["a", "b", "c", "d"]).to_pylist()
VALUES = {
    "row": IDS,
    "source": ["books", "=HYPERLINK(1)", "web", None],
    "count": [3, -1, 2, None],
    "score": [0.1, 0.2, 0.9, 0.3],
    "is_good": [True, False, True, None],
    "text": ["The Lamp.", "Write to jane.roe@example.org", "a vile lamp", "@SUM(A1)\u202e"],
    "name": ["Jane Roe", "John Roe", "Lamp Roe", None],
    "words": [["one"], ["two", "three"], [], None],
}


@stage(name="kinds_of_rows", tables={"rows": ROWS})
def kinds_of_rows(config: EmptyConfig, context: StageContext) -> None:
    context.get_table_writer("rows").write(VALUES)


@pytest.fixture(scope="module")
def view(session):
    book = FigureBook({"kinds": kinds_of_rows(EmptyConfig())})
    return RowView(book.get_evidence("kinds", "rows"), Redactor())


def find(view, **query):
    query["filters"] = tuple(RowFilter(*terms) for terms in query.get("filters", ()))
    return view.select_rows(RowQuery(**query)).rows["count"].to_pylist()


@pytest.mark.parametrize(
    ("terms", "counts"),
    [
        (("source", "is", "web"), [2]),
        (("source", "is-not", "web"), [3, -1, None]),
        (("source", "is", ""), [None]),
        (("source", "is-not", ""), [3, -1, 2]),
        (("count", "at-least", "2"), [3, 2]),
        (("count", "at-most", "2.5"), [-1, 2]),
        (("score", "is", "0.9"), [2]),
        (("is_good", "is", "yes"), [3, 2]),
        (("is_good", "is", "no"), [-1]),
        (("row", "is", IDS[1].hex()), [-1]),
    ],
)
def test_rows_are_filtered_by_each_type(view, terms, counts):
    assert find(view, filters=[terms]) == counts


def test_all_filters_hold(view):
    filters = [("count", "at-least", "2"), ("score", "at-most", "0.5")]
    assert find(view, filters=filters) == [3]


def test_rows_are_sorted_and_missing_values_come_last(view):
    assert find(view, sort="count") == [-1, 2, 3, None]
    assert find(view, sort="-count") == [3, 2, -1, None]
    assert find(view, sort="source") == [-1, 3, 2, None]


@pytest.mark.parametrize("name", ["text", "name", "words", "nothing"])
def test_rows_are_not_selected_by_what_may_be_hidden(view, name):
    for query in ({"sort": name}, {"filters": [(name, "is", "x")]}):
        with pytest.raises(UsageError, match=f"cannot be sorted or filtered by '{name}'.*choose"):
            find(view, **query)


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        (("count", "is", "many"), "a number"),
        (("count", "is", "9" * 30), "a number"),
        (("is_good", "is", "maybe"), "the value yes or no"),
        (("row", "is", "xyz"), "an id in hexadecimal digits"),
        (("row", "is", "ab"), "an id in hexadecimal digits"),
    ],
)
def test_a_value_of_another_type_is_named(view, terms, expected):
    with pytest.raises(UsageError, match=f"the column {terms[0]} needs {expected}, and"):
        find(view, filters=[terms])


def test_a_search_finds_what_is_shown_in_any_case(view):
    assert find(view, search="LAMP") == [3]  # not the harmful text, nor the name
    assert find(view, search="write TO") == [-1]
    assert find(view, search=IDS[3].hex()[:8].upper()) == [None]
    assert find(view, search="books") == [3]


def test_a_search_does_not_tell_what_is_hidden(view):
    for hidden in ("jane", "example.org", "vile", "Roe"):
        assert find(view, search=hidden) == []


def test_a_long_search_stops_early(view):
    rows = pa.concat_tables([view.evidence.read_rows(None)[:1]] * (MAX_SEARCHED_ROWS + 1))
    found = view._search(rows, "books")
    assert found.is_cut and len(found.rows) == MAX_SEARCHED_ROWS
    assert not view._search(rows[:3], "books").is_cut


def test_a_csv_file_hides_the_same_and_has_no_formulas(view):
    text = "".join(view.iter_csv(view.select_rows(RowQuery()).rows))
    rows = [*csv.DictReader(io.StringIO(text))]
    assert [row["source"] for row in rows] == ["books", "'=HYPERLINK(1)", "web", ""]
    assert [row["count"] for row in rows] == ["3", "-1", "2", ""]  # a number is no formula
    assert rows[0]["score"] == "0.1" and rows[0]["row"] == IDS[0].hex()
    assert rows[3]["text"] == "'@SUM(A1)‹U+202E›"
    assert "jane" not in text and "vile" not in text and "Roe" not in text


def test_a_parquet_file_keeps_numbers_and_hides_the_same(view):
    rows = pq.read_table(io.BytesIO(view.to_parquet(view.select_rows(RowQuery()).rows)))
    assert rows["count"].to_pylist() == VALUES["count"] and rows["score"].to_pylist()[0] == 0.1
    assert rows["source"].to_pylist() == VALUES["source"]  # no spreadsheet executes it
    texts = " ".join(filter(None, rows["text"].to_pylist() + rows["name"].to_pylist()))
    assert "jane" not in texts and "vile" not in texts and "Roe" not in texts
    empty = view.select_rows(RowQuery(search="nowhere")).rows
    assert len(pq.read_table(io.BytesIO(view.to_parquet(empty)))) == 0


@pytest.mark.parametrize(
    "start",
    ["=", "+", "-", "@", "\t", "\r", "\n", " =", "\n \u00a0@", "\uff1d", "\uff0b", "\uff20"],
)
def test_formulas_are_defused(start):
    assert defuse_formula(f"{start}1") == f"'{start}1"
    assert defuse_formula(f"1{start}") == f"1{start}"


@pytest.mark.parametrize("text", ["", " ", " 1", "a = b"])
def test_other_texts_are_not_changed(text):
    assert defuse_formula(text) == text


def test_a_link_repeats_its_query():
    query = RowQuery(
        (RowFilter("a b", "at-least", "1&2"), RowFilter("c", "is", "")), "é <x>", "-score", 3
    )
    assert RowQuery.from_parameters(query.to_parameters()) == query
    assert query.remove_filter(query.filters[0]) == (query.filters[1],)
    assert query.format_link("x", filters=(), search="", sort="", page=1) == "x?"
    assert "page=" not in query.format_link(page=1) and "page=3" in query.format_link()


@pytest.mark.parametrize(("rows", "pages"), [(0, 1), (1, 1), (50, 1), (51, 2)])
def test_pages_are_counted(rows, pages):
    assert count_pages(rows, 50) == pages
