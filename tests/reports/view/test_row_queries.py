"""Rows are filtered, sorted, searched and downloaded only as far as they may be shown."""

import csv
import io
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hallmark.reports.page.figures import FigureBook
from hallmark.reports.page.redaction import Redactor
from hallmark.reports.view.row_queries import (
    DOWNLOAD_BATCH_ROWS,
    MAX_FILTERS,
    MAX_REDACTED_ROWS,
    MAX_SEARCH_CHARACTERS,
    MAX_SEARCHED_ROWS,
    SEARCH_BATCH_ROWS,
    RowFilter,
    RowQuery,
    RowView,
    _defuse_column,
    count_pages,
    defuse_formula,
    parse_page_number,
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
from hallmark.tasks.measures import personal_data

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
ROWS_NUMBER = column("count", pa.int64(), "figure", "number")
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


LONG_ROWS = table_schema(
    "Rows with long values.",
    column("ids", pa.list_(pa.binary(16)), "id", "ids"),
    column("labels", pa.list_(pa.string()), "label", "labels"),
    column("copies", pa.int32(), "figure", "copies"),
    column("rate", pa.float32(), "figure", "rate"),
    column("prompt", pa.string(), "audit text", "prompt"),
    column("text", pa.string(), "model text", "text", judged_by="score"),
    column("score", pa.float64(), "figure", "score"),
    column("code", pa.string(), "project text", "code"),
    column("name", pa.string(), "personal", "name of a person"),
)
LONG_TEXT = "The lamp is lit. " * 600 + "Write to jane.roe@example.org now. " + "It is dark. " * 100
LONG_VALUES = {
    "ids": [hash_to_ids([str(number) for number in range(64)]).to_pylist(), [], None],
    "labels": [[f"label {number}" for number in range(900)], ["jane.roe@example.org"], None],
    "copies": [64, 0, None],
    "rate": [0.25, 1e-7, None],
    "prompt": ["Ask jane.", "Write to jane.roe@", None],
    "text": [LONG_TEXT, "example.org today", "not scored"],
    "score": [0.1, 0.2, None],
    "code": ["x = 1\n" * 1000, "john.roe@example.org", None],
    "name": ["Jane Roe", None, "John"],
}


@stage(name="long_rows", tables={"rows": LONG_ROWS})
def long_rows(config: EmptyConfig, context: StageContext) -> None:
    context.get_table_writer("rows").write(LONG_VALUES)


@stage(name="numbers_only", tables={"rows": table_schema("Rows.", ROWS_NUMBER)})
def numbers_only(config: EmptyConfig, context: StageContext) -> None:
    context.get_table_writer("rows").write({"count": [64, 7, None]})


@pytest.fixture(scope="module")
def long_view(session):
    book = FigureBook({"long": long_rows(EmptyConfig())})
    return RowView(book.get_evidence("long", "rows"), Redactor())


@pytest.fixture(scope="module")
def numbers_view(session):
    book = FigureBook({"numbers": numbers_only(EmptyConfig())})
    return RowView(book.get_evidence("numbers", "rows"), Redactor())


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


@pytest.mark.parametrize("name", ["text", "name", "words", "nothing", " count"])
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
    with pytest.raises(UsageError, match=f"the {terms[0]} column requires {expected}, not"):
        find(view, filters=[terms])


def test_a_search_finds_what_is_shown_in_any_case(view):
    assert find(view, search="LAMP") == [3]  # not the harmful text, nor the name
    assert find(view, search="write TO") == [-1]
    assert find(view, search=IDS[3].hex()[:8].upper()) == [None]
    assert find(view, search="books") == [3]


def test_a_search_does_not_tell_what_is_hidden(view):
    for hidden in ("jane", "example.org", "vile", "Roe"):
        assert find(view, search=hidden) == []


@pytest.mark.parametrize("sort", ["-", "--", "--count"])
def test_an_order_without_a_column_is_refused(view, sort):
    with pytest.raises(UsageError, match="rows cannot be sorted or filtered by"):
        find(view, sort=sort)


@pytest.mark.parametrize(
    ("name", "text", "limit"),
    [
        ("books", "books", MAX_SEARCHED_ROWS),
        ("texts", "lamp", MAX_REDACTED_ROWS),
    ],
)
def test_a_long_search_stops_early(view, name, text, limit):
    rows = pa.concat_tables([view.evidence.read_rows(None)[:1]] * (limit + 1))
    found = view._search(rows, text)
    assert found.is_cut and len(found.rows) == limit
    found = view._search(rows[:limit], text)
    assert not found.is_cut and len(found.rows) == limit


def test_a_search_that_stops_early_prefers_rows_that_have_the_text(view):
    rows = view.evidence.read_rows(None)
    rows = pa.concat_tables([*[rows[:1]] * MAX_SEARCHED_ROWS, rows[1:2]])
    found = view._search(rows, "to")  # a redaction may write it, too: "in total"
    assert found.is_cut and found.rows["count"].to_pylist() == [-1]
    found = view._search(rows, "email masked")
    assert found.is_cut and len(found.rows) == 0


@pytest.mark.parametrize("text", ["a", "64", "masked", "yes", "–", "0", IDS[0].hex(), "\0", "("])
@pytest.mark.parametrize("name", ["view", "long_view", "numbers_view"])
def test_no_rows_can_be_searched_and_downloaded(request, name, text):
    any_view = request.getfixturevalue(name)
    rows = any_view.evidence.read_rows(None)
    for empty in (rows[:0], rows.schema.empty_table()):
        found = any_view._search(empty, text)
        assert len(found.rows) == 0 and not found.is_cut
        assert "".join(any_view.iter_csv(found.rows)).count("\n") == 1
        table = pq.read_table(io.BytesIO(b"".join(any_view.iter_parquet(found.rows))))
        assert table.column_names == rows.column_names and len(table) == 0


def test_numbers_are_found_in_a_table_without_texts(numbers_view):
    assert find(numbers_view, search="64") == [64]
    assert find(numbers_view, search="–") == [None]
    assert find(numbers_view, search="x") == []


def test_a_search_finds_numbers_and_replaced_texts(view):
    assert find(view, search="0.9") == [2]
    assert find(view, search="-1") == [-1]
    assert find(view, search="yes") == [3, 2]
    assert find(view, search="EMAIL masked") == [-1]
    assert find(view, search="write to [email") == [-1]
    assert find(view, search="U+202E") == find(view, search="202e") == [None]
    assert find(view, search="not shown") == [3, -1, 2]  # the names
    assert find(view, search="personal data, 8 characters") == [3, -1, 2]
    assert find(view, search="–") == [None]


def test_a_search_finds_ends_of_lists_and_of_texts(long_view):
    def find_copies(text):
        rows = long_view.select_rows(RowQuery(search=text)).rows
        return rows["copies"].to_pylist()

    assert find_copies("(64 in total)") == [64]
    assert find_copies("… [11,435 characters") == [64]
    assert find_copies("no toxicity score, 10 ch") == [None]
    assert find_copies("1e-07") == [0]
    assert find_copies("dark") == []  # the page does not show the end


def shown_texts(any_view):
    rows = any_view.evidence.read_rows(None)
    cells = any_view.build_cells(rows)
    return [
        (row, " ".join([*cell.ids, cell.text]).strip())
        for column_cells in cells.values()
        for row, cell in enumerate(column_cells)
    ]


@given(data=st.data())
@pytest.mark.parametrize("name", ["view", "long_view"])
def test_every_part_of_a_shown_cell_is_found(request, name, data):
    any_view = request.getfixturevalue(name)
    row, text = data.draw(st.sampled_from([pair for pair in shown_texts(any_view) if pair[1]]))
    start = data.draw(st.integers(0, len(text) - 1))
    part = text[start : data.draw(st.integers(start + 1, len(text)))].strip()
    part = data.draw(st.sampled_from([part, part.upper(), part.casefold()]))
    rows = any_view.evidence.read_rows(None)
    found = any_view._search(rows, part).rows.to_pylist() if part else rows.to_pylist()
    assert rows.to_pylist()[row] in found, part


@given(text=st.text(min_size=1, max_size=20))
def test_a_search_finds_only_shown_cells(view, text):
    rows = view.evidence.read_rows(None)
    expected = {row for row, shown in shown_texts(view) if text.casefold() in shown.casefold()}
    found = view._search(rows, text).rows
    assert {*found["source"].to_pylist()} <= {rows["source"][row].as_py() for row in expected}


def test_a_csv_file_hides_the_same_and_has_no_formulas(view):
    text = "".join(view.iter_csv(view.select_rows(RowQuery()).rows))
    rows = [*csv.DictReader(io.StringIO(text))]
    assert [row["source"] for row in rows] == ["books", "'=HYPERLINK(1)", "web", ""]
    assert [row["count"] for row in rows] == ["3", "-1", "2", ""]  # a number is no formula
    assert rows[0]["score"] == "0.1" and rows[0]["row"] == IDS[0].hex()
    assert rows[3]["text"] == "'@SUM(A1)‹U+202E›"
    assert "jane" not in text and "vile" not in text and "Roe" not in text


def test_downloads_have_complete_values_without_what_is_hidden(long_view):
    rows = long_view.select_rows(RowQuery()).rows
    text = "".join(long_view.iter_csv(rows))
    from_csv = [*csv.DictReader(io.StringIO(text))]
    from_parquet = pq.read_table(io.BytesIO(b"".join(long_view.iter_parquet(rows)))).to_pylist()
    for downloaded in (from_csv, from_parquet):
        first, second, third = downloaded
        assert first["ids"].split() == [i.hex() for i in LONG_VALUES["ids"][0]]
        assert first["labels"] == ", ".join(LONG_VALUES["labels"][0])
        assert first["text"] == LONG_TEXT.replace("jane.roe@example.org", "[email masked]")
        assert first["code"] == LONG_VALUES["code"][0]
        assert first["name"] == "[not shown: may contain personal data, 8 characters]"
        assert second["labels"] == "[email masked]"
        assert second["code"] == "[email masked]"
        # An address that the prompt begins and the response ends.
        assert "jane.roe" not in second["prompt"] and "example.org" not in second["text"]
        assert third["text"] == "[not shown: no toxicity score, 10 characters]"
        assert not any(third[name] for name in ("ids", "labels", "copies", "rate", "code"))
    assert "in total" not in text


def test_a_download_redacts_each_distinct_value_once(long_view, monkeypatch):
    rows = long_view.select_rows(RowQuery()).rows
    calls = []
    redact_value = RowView._redact_complete_value

    def count(self, column, *values):
        calls.append(column.name)
        return redact_value(self, column, *values)

    many_rows = pa.concat_tables([rows] * (3 * DOWNLOAD_BATCH_ROWS))
    once = [*csv.reader(io.StringIO("".join(long_view.iter_csv(rows))))][1:]
    monkeypatch.setattr(RowView, "_redact_complete_value", count)
    parts = [*long_view.iter_csv(many_rows.select(["prompt", "text", "score", "code", "name"]))]
    assert len(parts) == 1 + 3 * len(rows)
    assert max(Counter(calls).values()) <= len(rows)
    downloaded = [*csv.reader(io.StringIO("".join(parts[1:])))]
    assert downloaded == [row[4:] for row in once] * (3 * DOWNLOAD_BATCH_ROWS)
    parquet = [*long_view.iter_parquet(many_rows.select(["copies", "code"]))]
    assert len(parquet) == 3 * len(rows) + 1 and all(parquet)
    table = pq.read_table(io.BytesIO(b"".join(parquet)))
    assert table["copies"].equals(many_rows["copies"]) and len(table) == len(many_rows)


def test_a_download_searches_the_texts_of_many_rows_at_once(long_view, monkeypatch):
    count = SEARCH_BATCH_ROWS + 1
    texts = [f"The lamp {number}. Write to me{number}@example.org now" for number in range(count)]
    texts[1] += "\u202e"
    rows = pa.table(
        {
            "prompt": [f"Ask for the lamp {number} @" for number in range(count)],
            "text": texts,
            "score": [0.1] * count,
            "code": [f"jane{number}@example.org" for number in range(count)],
        }
    )
    columns_searched, texts_searched = [], []
    search_column = personal_data.find_spans_by_row
    search_text = personal_data.find_personal_data_spans

    def find_in_column(column, **options):
        columns_searched.append(len(column))
        return search_column(column, **options)

    def find_in_text(text, **options):
        texts_searched.append(text)
        return search_text(text, **options)

    monkeypatch.setattr(personal_data, "find_spans_by_row", find_in_column)
    monkeypatch.setattr(personal_data, "find_personal_data_spans", find_in_text)
    at_once = [*RowView(long_view.evidence, Redactor()).iter_csv(rows)]
    assert len(columns_searched) == 2 and sum(columns_searched) <= 4 * count
    # A text with invisible characters is searched without them, also next to the prompt.
    assert 0 < len({text for text in texts_searched if "\u202e" not in text}) <= 4
    monkeypatch.setattr(Redactor, "search_texts", lambda *args, **options: None)
    few_rows = rows[:9]
    one_by_one = [*RowView(long_view.evidence, Redactor()).iter_csv(few_rows)]
    assert at_once[1].startswith(one_by_one[1]) and "[email masked]" in one_by_one[1]


@given(st.lists(st.none() | st.text("=+-@\uff1d;\t\r\n\x1c\x85\u3000 a'", max_size=6), max_size=20))
def test_formulas_are_found_among_many_texts(texts):
    expected = [None if text is None else defuse_formula(text) for text in texts]
    assert _defuse_column(pa.chunked_array([pa.array(texts, pa.large_string())])) == expected


def test_a_parquet_file_keeps_numbers_and_hides_the_same(view):
    rows = pq.read_table(io.BytesIO(b"".join(view.iter_parquet(view.select_rows(RowQuery()).rows))))
    assert rows["count"].to_pylist() == VALUES["count"] and rows["score"].to_pylist()[0] == 0.1
    assert rows["source"].to_pylist() == VALUES["source"]  # no spreadsheet executes it
    texts = " ".join(filter(None, rows["text"].to_pylist() + rows["name"].to_pylist()))
    assert "jane" not in texts and "vile" not in texts and "Roe" not in texts
    empty = view.select_rows(RowQuery(search="nowhere")).rows
    assert len(pq.read_table(io.BytesIO(b"".join(view.iter_parquet(empty))))) == 0


@pytest.mark.parametrize(
    "start",
    ["=", "+", "-", "@", "\t", "\r", "\n", " =", "\u00a0@", "\uff1d", "\uff0b", "\uff20"],
)
def test_formulas_are_defused(start):
    assert defuse_formula(f"{start}1") == f"'{start}1"
    assert defuse_formula(f"1{start}") == f"1{start}"


@pytest.mark.parametrize("separator", [";", "\t", "\r", "\n", ";;", ";\t", "\r\n"])
@pytest.mark.parametrize("formula", ["=1+1", " =1", "\u00a0-1", "+", "@A1", "\uff1d1"])
def test_formulas_after_a_separator_are_defused(separator, formula):
    """Some spreadsheets separate cells at semicolons or tabs, whatever the quotes are."""
    text = f"a{separator}{formula};b"
    assert defuse_formula(text) == f"a{separator}'{formula};b"
    assert defuse_formula(f"\n{formula}") == f"'\n'{formula}"
    assert defuse_formula(f'a{separator}"{formula};b') == f"a{separator}'\"{formula};b"


def test_every_text_of_a_csv_file_is_quoted(view):
    header, *lines = "".join(view.iter_csv(view.select_rows(RowQuery()).rows)).splitlines()
    assert header.startswith('"') and header.count('","') == len(view.columns) - 1
    assert any(",3," in line or line.endswith(",3") for line in lines)  # numbers are not quoted


@pytest.mark.parametrize("text", ["", " ", " 1", "a = b", "a; b\tc\nd", "1;2", "a;b=c", ";"])
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


@pytest.mark.parametrize(("text", "number"), [("1", 1), ("0", 1), ("12", 12), ("9" * 9, 10**9 - 1)])
def test_a_page_number_is_parsed(text, number):
    assert parse_page_number(text) == number


@pytest.mark.parametrize(
    "text", ["", "-1", "two", "1.0", "\u0663", "9" * 10, "9" * 5000, "\0", " 1"]
)
def test_what_is_no_page_number_is_refused(text):
    with pytest.raises(UsageError, match="is not a page number"):
        parse_page_number(text)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (
            [("column", "a"), ("operator", "at-least"), ("value", "")],
            "'a' column needs a value; only",
        ),
        (
            [("column", "a"), ("operator", "at-most"), ("value", "")],
            "'a' column needs a value; only",
        ),
        ([("search", "x" * (MAX_SEARCH_CHARACTERS + 1))], "501 characters, but at most 500"),
        (
            [("column", "a"), ("operator", "is"), ("value", "")] * (MAX_FILTERS + 1),
            "21 conditions, but at most 20",
        ),
        ([("page", "")], "is not a page number"),
    ],
)
def test_an_impossible_query_is_refused(parameters, words):
    with pytest.raises(UsageError, match=words):
        RowQuery.from_parameters(parameters)


def test_a_query_at_its_limits_is_possible():
    parameters = [("column", "a"), ("operator", "is"), ("value", "")] * MAX_FILTERS
    query = RowQuery.from_parameters([*parameters, ("search", "x" * MAX_SEARCH_CHARACTERS)])
    assert len(query.filters) == MAX_FILTERS and len(query.search) == MAX_SEARCH_CHARACTERS
