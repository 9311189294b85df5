"""Test rows of delimited text at the limits of a row."""

import csv
import gzip
import io

import pytest

from hallmark.tasks.corpus.reading.delimited import UNCLOSED_QUOTE, WRONG_FIELD_COUNT
from hallmark.tasks.corpus.reading.readers import TOO_LONG
from tests.tasks.corpus.reader_helpers import get_texts, read_all, read_checked


def make_row(lines, end=b'x"\n'):
    """Return a header and a row with this many lines."""
    return b'id,text\n1,"' + b"\n" * (lines - 1) + end


def test_a_row_may_have_1000_lines_and_one_per_16_bytes_of_the_limit(write):
    documents, errors, _ = read_checked(write("a.csv", make_row(1100)), "csv", limit=1600)
    assert (get_texts(documents), errors) == (["\n" * 1099 + "x"], [])
    documents, errors, _ = read_checked(write("b.csv", make_row(1101)), "csv", limit=1600)
    assert (documents, errors) == ([], [("line 2", TOO_LONG)])


def test_a_row_may_have_as_many_bytes_as_the_limit(write):
    for lines, end in ((1, b"\n"), (1, b""), (2, b"\n"), (40, b"\n"), (40, b"")):
        path = write("a.csv", make_row(lines, b'some words"' + end))
        size = path.stat().st_size - len(b"id,text\n")
        assert len(read_checked(path, "csv", limit=size)[0]) == 1
        documents, errors, _ = read_checked(path, "csv", limit=size - 1)
        assert (documents, errors) == ([], [("line 2", TOO_LONG)])


LONG = "\n".join(f"line {n} of a long text, which has one comma" for n in range(40))


@pytest.mark.parametrize("header", ["text", "id,text"])
def test_a_row_that_is_too_long_is_one_error(write, header):
    """Each of its lines would be a row by itself."""
    first = "1," if "," in header else ""
    text = LONG if first else LONG.replace(",", "")
    data = f'{header}\n{first}"short"\n{first}"{text}"\n{first}"short too"\n'.encode()
    documents, errors, _ = read_checked(write("a.csv", data), "csv", limit=1000)
    assert (get_texts(documents), errors) == (["short", "short too"], [("line 3", TOO_LONG)])


def test_a_row_that_is_too_long_may_have_10000_more_lines_than_others(write):
    """Otherwise its quote is stray. Each of its lines would be a row by itself."""
    lines = 1000 + 1000 // 16 + 10_000
    data = b'id,text\n1,"' + b"x,y\n" * (lines - 1) + b'z"\n2,next\n'
    documents, errors, _ = read_checked(write("a.csv", data), "csv")
    assert (get_texts(documents), errors) == (["next"], [("line 2", TOO_LONG)])
    documents, errors, _ = read_checked(write("b.csv", data.replace(b"z", b"x,y\nz")), "csv")
    assert get_texts(documents) == ["y"] * (lines - 1) + ["next"]
    assert errors == [("line 2", UNCLOSED_QUOTE), (f"line {lines + 2}", WRONG_FIELD_COUNT)]


def test_a_row_that_is_too_long_is_kept_up_to_one_byte_more_than_the_limit(write):
    row = b'1,"' + b"some words\n" * 9 + b'"\n'
    [record] = read_all(write("a.csv", b"id,text\n" + row), "csv", limit=50)
    assert (record.error, record.raw) == (TOO_LONG, row[:51])


@pytest.mark.parametrize("row_count", [1, 2])
def test_rows_between_a_stray_quote_and_the_damaged_end_of_a_file_are_read(write, row_count):
    data = b'id,text\n1,"stray\n' + b"2,row\n" * row_count + b"3,cut"
    path = write("a.csv.gz", gzip.compress(data)[:-4])
    documents, errors, _ = read_checked(path, "csv")
    assert get_texts(documents) == ["row"] * row_count
    assert errors == [
        ("line 2", UNCLOSED_QUOTE),
        (f"line {row_count + 3}", "the compressed data are incomplete: the end is missing"),
    ]


def test_lines_long_after_a_stray_quote_are_rows(write):
    """The next quote does not end a field, or gives a wrong number of fields."""
    rows = b"".join(b"%d,row %d\n" % (n, n) for n in range(200))
    for last in (b'200,"row 200"\n', b'200,row 200",x\n'):
        documents, errors, _ = read_checked(
            write("a.csv", b'id,text\n9,"stray\n' + rows + last), "csv", limit=1000
        )
        assert get_texts(documents)[:200] == [f"row {n}" for n in range(200)]
        assert errors[0] == ("line 2", UNCLOSED_QUOTE)


@pytest.mark.parametrize("limit", [50, 100_000])
def test_a_stray_quote_affects_only_its_line_in_a_file_of_one_column(write, limit):
    """The rows of the file have no quotes."""
    rows = [f"row {n}" for n in range(1000)]
    data = "\n".join(["text", *rows[:500], '"stray', *rows[500:]]).encode()
    documents, errors, _ = read_checked(write("a.csv", data), "csv", limit=limit)
    assert (get_texts(documents), errors) == (rows, [("line 502", UNCLOSED_QUOTE)])


@pytest.mark.parametrize("limit", [50, 1000])
def test_the_last_row_of_a_truncated_file_is_one_error(write, limit):
    data = b'text\n"page one"\n"First paragraph of a page.\nSecond paragraph.\nThird para'
    documents, errors, _ = read_checked(write("a.csv", data), "csv", limit=limit)
    assert (get_texts(documents), errors) == (["page one"], [("line 3", UNCLOSED_QUOTE)])
    prose = (
        b'id,text\n1,"page one"\n2,"First paragraph of a page.\nSecond paragraph.\nAnd a, third.\n'
    )
    documents, errors, _ = read_checked(write("b.csv", prose + b"More of it.\nCut o"), "csv")
    assert (get_texts(documents), errors) == (["page one"], [("line 3", UNCLOSED_QUOTE)])


def test_lines_within_quotes_are_rows_only_if_they_are_strict_csv(write):
    """Otherwise a row with too many fields would be split, and its lines taken for rows."""
    wide = b'1,"It began:\nsaid,""yes""\nsaid,""no""\nand ended",too,many\n'
    documents, errors, _ = read_checked(write("a.csv", b"id,text\n" + wide + b"2,next\n"), "csv")
    assert (get_texts(documents), errors) == (["next"], [("line 2", WRONG_FIELD_COUNT)])
    rows = b"5,yes\n6,no\n"
    documents, errors, _ = read_checked(
        write("b.csv", b'id,text\n4,"open\n' + rows + b'7,"x",y\n'), "csv"
    )
    assert (get_texts(documents), errors[0]) == (["yes", "no"], ("line 2", UNCLOSED_QUOTE))


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_rows_are_those_that_the_csv_module_wrote(write, delimiter):
    """Fields contain delimiters, quotes and line ends; the columns are in another order."""
    rows = [["a;b", "c,d", "1"], ['"', "x\ny", "2"], ["", " | ", "3"], ["\t", 'a""b', "4"]]
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter=delimiter, lineterminator="\n")
    writer.writerows([["more", "text", "id"], *rows])
    path = write("a.csv", buffer.getvalue().encode())
    documents, errors, _ = read_checked(path, "csv", delimiter=delimiter, key_field="id")
    assert [(r.text, r.key) for r in documents] == [(text, key) for _, text, key in rows]
    assert errors == []


@pytest.mark.parametrize(("kind", "delimiter"), [("csv", ","), ("tsv", "\t")])
def test_the_header_of_a_concatenated_file_is_no_document(write, kind, delimiter):
    part = "\ufeffid,text\n1,a\n".replace(",", delimiter).encode()
    documents, errors, counts = read_checked(write(f"a.{kind}", part * 3), kind)
    assert (get_texts(documents), errors) == (["a"] * 3, [])
    assert counts.skipped_bytes == 3 * len("\ufeffid,text\n".encode())
    other = "id,text\n1,text\nid,a\nid2,text\n".replace(",", delimiter).encode()
    documents, _, _ = read_checked(write(f"b.{kind}", other), kind)
    assert get_texts(documents) == ["text", "a", "text"]
    documents, _, _ = read_checked(write(f"c.{kind}", b"text\ntext\n"), kind)
    assert get_texts(documents) == ["text"]
