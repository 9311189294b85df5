"""Rows of delimited text at the bounds of what one row may be."""

import csv
import io

import pytest

from hallmark.tasks.corpus.reading.delimited import UNCLOSED_QUOTE, WRONG_FIELD_COUNT
from hallmark.tasks.corpus.reading.readers import TOO_LONG
from tests.tasks.corpus.reading import read, texts


def row_of(lines, end=b'x"\n'):
    """A row that goes over so many lines."""
    return b'id,text\n1,"' + b"\n" * (lines - 1) + end


def test_a_row_has_a_thousand_lines_and_one_for_each_sixteen_bytes_of_the_limit(write):
    good, bad, _ = read(write("a.csv", row_of(1100)), "csv", limit=1600)
    assert (texts(good), bad) == (["\n" * 1099 + "x"], [])
    good, bad, _ = read(write("b.csv", row_of(1101)), "csv", limit=1600)
    assert (good, bad) == ([], [("line 2", TOO_LONG)])


def test_a_row_has_as_many_bytes_as_the_limit_says(write):
    for lines in (1, 2, 40):
        path = write("a.csv", row_of(lines, b'some words"\n'))
        size = path.stat().st_size - len(b"id,text\n")
        assert len(read(path, "csv", limit=size)[0]) == 1
        good, bad, _ = read(path, "csv", limit=size - 1)
        assert (good, bad) == ([], [("line 2", TOO_LONG)])


LONG = "\n".join(f"line {n} of a long text, which has one comma" for n in range(40))


@pytest.mark.parametrize("header", ["text", "id,text"])
def test_a_row_that_is_too_long_is_one_error(write, header):
    """Though each of its lines would be a row."""
    first = "1," if "," in header else ""
    text = LONG if first else LONG.replace(",", "")
    data = f'{header}\n{first}"short"\n{first}"{text}"\n{first}"short too"\n'.encode()
    good, bad, _ = read(write("a.csv", data), "csv", limit=1000)
    assert (texts(good), bad) == (["short", "short too"], [("line 3", TOO_LONG)])


def test_a_long_way_behind_a_stray_quote_lines_are_rows(write):
    """The next quote does not end a field there, or in a row of another width."""
    rows = b"".join(b"%d,row %d\n" % (n, n) for n in range(200))
    for last in (b'200,"row 200"\n', b'200,row 200",x\n'):
        good, bad, _ = read(write("a.csv", b'id,text\n9,"stray\n' + rows + last), "csv", limit=1000)
        assert texts(good)[:200] == [f"row {n}" for n in range(200)]
        assert bad[0] == ("line 2", UNCLOSED_QUOTE)


@pytest.mark.parametrize("limit", [50, 100_000])
def test_a_stray_quote_costs_its_line_in_a_file_of_one_column(write, limit):
    """Whose rows have no quotes."""
    rows = [f"row {n}" for n in range(1000)]
    data = "\n".join(["text", *rows[:500], '"stray', *rows[500:]]).encode()
    good, bad, _ = read(write("a.csv", data), "csv", limit=limit)
    assert (texts(good), bad) == (rows, [("line 502", UNCLOSED_QUOTE)])


@pytest.mark.parametrize("limit", [50, 1000])
def test_the_last_row_of_a_file_that_was_cut_off_is_one_error(write, limit):
    data = b'text\n"page one"\n"First paragraph of a page.\nSecond paragraph.\nThird para'
    good, bad, _ = read(write("a.csv", data), "csv", limit=limit)
    assert (texts(good), bad) == (["page one"], [("line 3", UNCLOSED_QUOTE)])
    prose = (
        b'id,text\n1,"page one"\n2,"First paragraph of a page.\nSecond paragraph.\nAnd a, third.\n'
    )
    good, bad, _ = read(write("b.csv", prose + b"More of it.\nCut o"), "csv")
    assert (texts(good), bad) == (["page one"], [("line 3", UNCLOSED_QUOTE)])


def test_lines_within_quotes_are_rows_only_if_they_are_strict_csv(write):
    """Else a row of too many fields would be taken apart, and its lines for rows."""
    wide = b'1,"It began:\nsaid,""yes""\nsaid,""no""\nand ended",too,many\n'
    good, bad, _ = read(write("a.csv", b"id,text\n" + wide + b"2,next\n"), "csv")
    assert (texts(good), bad) == (["next"], [("line 2", WRONG_FIELD_COUNT)])
    rows = b"5,yes\n6,no\n"
    good, bad, _ = read(write("b.csv", b'id,text\n4,"open\n' + rows + b'7,"x",y\n'), "csv")
    assert (texts(good), bad[0]) == (["yes", "no"], ("line 2", UNCLOSED_QUOTE))


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_rows_are_those_that_the_csv_module_wrote(write, delimiter):
    """With delimiters, quotes and line ends in them, and what is asked for in any order."""
    rows = [["a;b", "c,d", "1"], ['"', "x\ny", "2"], ["", " | ", "3"], ["\t", 'a""b', "4"]]
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter=delimiter, lineterminator="\n")
    writer.writerows([["more", "text", "id"], *rows])
    path = write("a.csv", buffer.getvalue().encode())
    good, bad, _ = read(path, "csv", delimiter=delimiter, key_field="id")
    assert [(r.text, r.key) for r in good] == [(text, key) for _, text, key in rows]
    assert bad == []
