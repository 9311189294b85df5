"""Test how delimiters, quotes, escapes, line ends and headers of delimited files are detected."""

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from hallmark.tasks.corpus.reading import delimited, dialects
from hallmark.tasks.corpus.reading.delimited import (
    AMBIGUOUS_FORMAT,
    BROKEN_CSV,
    UNCLOSED_QUOTE,
    WRONG_FIELD_COUNT,
    CsvSource,
    TsvSource,
)
from hallmark.tasks.corpus.reading.dialects import (
    DELIMITERS,
    DRAWN_TABLE,
    HEAD_BYTES,
    Dialect,
    FileHead,
    detect_dialect,
    is_drawn_table,
    read_head,
)
from hallmark.tasks.corpus.reading.readers import NOT_UTF8
from tests.tasks.corpus.reader_helpers import COMPRESS_BY_ENDING, get_texts, read_checked

CASES = Path(__file__).parents[2] / "cases" / "corpus" / "csv"


def write_rows(rows, **settings):
    buffer = io.StringIO()
    csv.writer(buffer, **{"lineterminator": "\n", **settings}).writerows(rows)
    return buffer.getvalue().encode()


# The files that failed ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "file_format"),
    [
        ("semi", "delimiter ';', quotes '\"' doubled, line endings LF, with header"),
        ("cr", "delimiter ',', quotes '\"' doubled, line endings CR, with header"),
        (
            "sep",
            "delimiter ',', quotes '\"' doubled, line endings LF, first line specifies the "
            "delimiter, with header",
        ),
        (
            "bslash",
            "delimiter ',', quotes '\"' escaped with a backslash, line endings LF, with header",
        ),
    ],
)
def test_the_format_of_a_file_is_detected(name, file_format):
    documents, errors, counts = read_checked(CASES / f"{name}.csv", "csv")
    assert len(documents) == 5 and errors == []
    assert all("etter" in text and "oats" in text for text in get_texts(documents))
    assert "\\" not in "".join(get_texts(documents))
    assert counts.file_format == file_format


def test_a_file_without_header_is_read_with_the_names_of_its_columns():
    path = CASES / "nohead.csv"
    documents, errors, counts = read_checked(path, "csv")
    assert (documents, errors) == ([], [("line 1", "column 'text' is missing")])
    documents, errors, counts = read_checked(
        path, "csv", column_names=["id", "text"], key_field="id"
    )
    assert [record.key for record in documents] == ["0", "1", "2", "3", "4"] and errors == []
    assert counts.file_format.endswith("line endings LF, without header")


# What the csv module writes -----------------------------------------------------------------------

#: What decides about quotes, next to text.
CHARACTERS = "ab1 ,;|\t:'\"\\\n\r\u2028\xa0\u00e9-"
fields = st.text(CHARACTERS, max_size=8)


def remove_other_line_ends(text, line_end):
    """Remove the line ends that the csv module of some versions writes without quotes."""
    return "".join(c for c in text if c not in "\r\n" or c in line_end)


QUOTING = [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]
#: A text that needs quotes, and escapes if quotes are not doubled, in every dialect.
TELLING = 'a "quote", it\'s; \t|:^~#/\x1f\x01\nand more'
ERRORS = {BROKEN_CSV, UNCLOSED_QUOTE, WRONG_FIELD_COUNT, AMBIGUOUS_FORMAT}
ERRORS |= {"column 'text' is missing"}


@settings(deadline=None, max_examples=400)
@given(
    rows=st.lists(st.tuples(fields, fields), max_size=6),
    delimiter=st.sampled_from(DELIMITERS),
    quote=st.sampled_from(['"', "'"]),
    is_doubled=st.booleans(),
    quoting=st.sampled_from(QUOTING),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
    header=st.sampled_from([["id", "text"], ["text", "id"]]),
)
def test_what_the_csv_module_wrote_is_read_back_or_refused(
    tmp_path_factory, rows, delimiter, quote, is_doubled, quoting, line_end, header
):
    """Where one text shows how quotes are written, nothing is silently wrong."""
    rows = [tuple(remove_other_line_ends(value, line_end) for value in row) for row in rows]
    rows = [(TELLING, TELLING), *rows]
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_bytes(
        write_rows(
            [header, *rows],
            delimiter=delimiter,
            quotechar=quote,
            doublequote=is_doubled,
            escapechar=None if is_doubled else "\\",
            quoting=quoting,
            lineterminator=line_end,
        )
    )
    documents, errors, counts = read_checked(path, "csv", limit=10**6)
    expected = [row[header.index("text")] for row in rows]
    assert {error for _, error in errors} <= ERRORS
    if not errors:
        assert get_texts(documents) == expected, counts.file_format
    else:
        assert {*get_texts(documents)} <= {*expected}, counts.file_format


@settings(deadline=None, max_examples=200)
@given(
    texts=st.lists(fields, min_size=1, max_size=6),
    delimiter=st.sampled_from(DELIMITERS[:5]),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_the_usual_quotes_need_no_telling_text(tmp_path_factory, texts, delimiter, line_end):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    texts = [remove_other_line_ends(text, line_end) for text in texts]
    rows = [["id", "text"], *enumerate(texts)]
    path.write_bytes(write_rows(rows, delimiter=delimiter, lineterminator=line_end))
    documents, errors, _ = read_checked(path, "csv", limit=10**6)
    assert (get_texts(documents), errors) in ((texts, []), ([], [("whole file", AMBIGUOUS_FORMAT)]))
    documents, errors, _ = read_checked(path, "csv", limit=10**6, quote='"', escape="doubled")
    assert (get_texts(documents), errors) == (texts, [])


line_texts = st.text(CHARACTERS.replace("\n", "").replace("\r", ""), max_size=8)


@settings(deadline=None, max_examples=200)
@given(texts=st.lists(line_texts, max_size=6), delimiter=st.sampled_from(DELIMITERS[:4]))
def test_text_without_quotes_and_with_escapes_is_read(tmp_path_factory, texts, delimiter):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    texts = ['an "inch", a \t tab | a; b', *texts]
    rows = [["id", "text"], *enumerate(texts)]
    path.write_bytes(write_rows(rows, delimiter=delimiter, quoting=csv.QUOTE_NONE, escapechar="\\"))
    documents, errors, _ = read_checked(path, "csv", limit=10**6)
    assert (get_texts(documents), errors) == (texts, [])


@pytest.mark.parametrize("delimiter", DELIMITERS)
def test_a_file_of_one_column_needs_no_delimiter(write, delimiter):
    texts = ["one", f"two{delimiter}three", 'a "b" c', "it's"]
    data = write_rows([["text"], *([text] for text in texts)], delimiter=delimiter)
    documents, errors, _ = read_checked(write("a.csv", data), "csv")
    assert (get_texts(documents), errors) == (texts, [])


# Single decisions ---------------------------------------------------------------------------------


def detect(text, **source_settings):
    source = CsvSource(kind="csv", name="s", path="a", **source_settings)
    return detect_dialect(FileHead(text, True), source)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id,text\n1,a\n", {}),
        ("text\n", {}),
        ("text", {}),
        ("", {}),
        ("id;text\r\n1;a\r\n", {"delimiter": ";", "line_end": "\r\n"}),
        ("id\ttext\r1\ta\r", {"delimiter": "\t", "line_end": "\r"}),
        ("id, text\n1, a\n", {"skips_initial_space": True}),
        ('id,text\n1, "a, b"\n', {"skips_initial_space": True}),
        ('id,text\n1, "a b"\n', {"skips_initial_space": True}),
        ('id,text\n1, "a" b\n', {}),
        ("id,text\n1, a\n", {}),
        ("'id','text'\n'1','a'\n", {"quote": "'"}),
        ("id,text\n1,'a, b'\n", {"quote": "'"}),
        ("id,text\n1,'hello'\n", {}),
        ("id,text\n1,'tis it's\n", {}),
        ('id,text\n1,"a \\"b\\" c"\n', {"escape": "backslash"}),
        ('id,text\n1,a \\"b\\" c\n', {"escape": "backslash"}),
        ("id,text\n1,a\\, b\n", {"escape": "backslash"}),
        ("id,text\n1,'it\\'s, and'\n", {"escape": "backslash", "quote": "'"}),
        ("id,text\n'a, b',it\\'s\n", {"escape": "backslash", "quote": "'"}),
        ("id,text\n1,C:\\dir\\\n", {}),
        ('id,text\n1,"C:\\dir\\"\n', {}),
        ('id,text\n1,"a \\""b\\"" c"\n', {}),
        ('id,text\n1,"\\alpha \\"x"\n', {"escape": "backslash", "escapes_only_quotes": True}),
        ('id,text\n1,"\\alpha"\n2,a \\"b\\" c\n', {}),
        ("id,text\n1,C:\\dir\\, and\n", {}),
        ("id,text\r\r\n1,a\r\r\n", {"line_end": "\r\r\n"}),
        ("id,text\n1,a\\\\b\n", {}),
        ('id,text\n1,"stray\n2,b\n', {}),
        ("sep=;\nid;text\n1;a\n", {"delimiter": ";", "has_delimiter_line": True}),
        ('"sep=|"\nid|text\n1|a\n', {"delimiter": "|", "has_delimiter_line": True}),
        ("SEP=,\nid;text\n", {"has_delimiter_line": True}),
        ("sep=ab\nid;text\n", {}),
        ("a;b\n1;2\n", {"delimiter": ";"}),
        ("a b c\n1;2\n", {}),
        ("text;a\n1\n", {"delimiter": ";"}),
    ],
)
def test_the_dialect_of_text_is_detected(text, expected):
    assert detect(text) == Dialect(**expected)


@pytest.mark.parametrize("rows", ["1,'a\nb,c'\n", "1,'it''s'\n", "1,'\n2,'\n", "1,'a\n2,b'\n3,c\n"])
def test_rows_with_two_meanings_are_refused(rows):
    """Two texts with an apostrophe each may be one text within single quotes."""
    assert detect(f"id,text\n{rows}") is None
    assert detect(f"id,text\n{rows}", quote='"') == Dialect()
    assert detect(f"id,text\n{rows}", quote="'") == Dialect(quote="'")


def test_settings_are_not_detected():
    text = "'id';'text'\n1;'a \\'b\\''\n"
    assert detect(text) == Dialect(";", "'", "backslash")
    assert detect(text, quote='"').quote == '"'
    assert detect(text, escape="doubled").escape == "doubled"
    assert detect(text, delimiter=",").delimiter == ","
    assert detect("sep=|\nid|text\n", delimiter=";").delimiter == ";"
    assert detect('id,text\n1,"a\n', quote="") == Dialect(quote="")


def test_text_in_quotes_stays_if_quotes_are_text(write):
    data = b'id,text\n1,"a"\n2,"b\n3,\\"c\\"\n'
    documents, errors, counts = read_checked(write("a.csv", data), "csv", quote="")
    assert (get_texts(documents), errors) == (['"a"', '"b', '\\"c\\"'], [])
    assert counts.file_format == "delimiter ',', no quotes, line endings LF, with header"


def test_two_delimiters_that_give_different_rows_are_refused(write):
    path = write("a.csv", b"a;b,c\nd;e,f\n")
    documents, errors, counts = read_checked(path, "csv", column_names=["id", "text"])
    assert (documents, errors) == ([], [("whole file", AMBIGUOUS_FORMAT)])
    assert counts.file_format == ""
    documents, _, _ = read_checked(path, "csv", column_names=["id", "text"], delimiter=";")
    assert get_texts(documents) == ["b,c", "e,f"]


def test_the_delimiter_of_a_file_without_header_is_detected(write):
    data = write_rows([["1", "a, b"], ["2", "c"], ["3", "d"]], delimiter="|")
    documents, errors, _ = read_checked(write("a.csv", data), "csv", column_names=["id", "text"])
    assert (get_texts(documents), errors) == (["a, b", "c", "d"], [])
    documents, errors, _ = read_checked(write("b.csv", b"a, b\nc\n"), "csv", column_names=["text"])
    assert (get_texts(documents), errors) == (["a, b", "c"], [])


def test_the_rows_of_a_tsv_file_without_header_are_read(write):
    path = write("a.tsv", b"1\ta\r\n2\tb\r\n3\n")
    documents, errors, counts = read_checked(path, "tsv", column_names=["id", "text"])
    assert get_texts(documents) == ["a", "b"] and errors == [("line 3", WRONG_FIELD_COUNT)]
    assert counts.file_format == "delimiter tab, no quotes, line endings CRLF, without header"
    _, _, counts = read_checked(write("b.tsv", b"text\ta\nx\ty"), "tsv")
    assert counts.file_format == "delimiter tab, no quotes, line endings LF, with header"


def test_the_delimiter_of_a_line_without_its_end_is_detected(write):
    path = write("a.csv", b"1;one. Two")
    documents, errors, counts = read_checked(path, "csv", column_names=["id", "text"])
    assert (get_texts(documents), errors) == (["one. Two"], [])
    assert counts.file_format.startswith("delimiter ';'")


@pytest.mark.parametrize("kept_bytes", [1, 10, 19])
def test_a_row_that_is_cut_at_the_end_of_the_examined_text_does_not_count(write, kept_bytes):
    """It would be a row of one or two fields."""
    row = b'1,"say \\"hi\\" now",x\n'
    padding = b" " * ((HEAD_BYTES - len(b"id,text,z\n") - kept_bytes) % len(row))
    data = b"id,text,z" + padding + b"\n" + row * (HEAD_BYTES // len(row) + 10)
    assert data[:HEAD_BYTES].endswith(b"\n" + row[:kept_bytes])
    documents, errors, counts = read_checked(write("a.csv", data), "csv")
    assert ({*get_texts(documents)}, errors) == ({'say "hi" now'}, [])
    assert "escaped with a backslash" in counts.file_format


@pytest.mark.parametrize(
    ("source_class", "kind"), [(CsvSource, "csv"), (TsvSource, "tsv")], ids=["csv", "tsv"]
)
def test_column_names_must_contain_the_fields(source_class, kind):
    fixed = {"kind": kind, "name": "s", "path": "a"}
    assert source_class(**fixed, column_names=["text", "", ""]).column_names == ["text", "", ""]
    for names, field in ((["id", "body"], "text"), (["text", "text"], "text"), (["text"], "id")):
        more = {"key_field": "id"} if field == "id" else {}
        with pytest.raises(
            ValidationError, match=f"must contain the field '{field}' exactly once; corr"
        ):
            source_class(**fixed, column_names=names, **more)
    with pytest.raises(ValidationError, match="at least 1 item"):
        source_class(**fixed, column_names=[])


# Backslashes that escape nothing ------------------------------------------------------------------


def write_row_with_escaped_quotes(texts):
    """Write texts as a program does that escapes quotes and leaves backslashes as they are."""
    fields = (text.replace('"', '\\"') for text in texts)
    return ",".join(f'"{field}"' for field in fields) + "\n"


@pytest.mark.parametrize(
    "text",
    [
        'The "alpha" is $\\alpha$, see C:\\dir',
        'a "share", \\\\server\\share and \\n',
        'one\nline: \\"two\\"',
        "\\N",
    ],
)
@pytest.mark.parametrize("escape", [None, "backslash"])
def test_backslashes_of_a_text_with_escaped_quotes_stay(write, text, escape):
    telling = 'He said "\\d", and left'
    data = "id,text\n" + "".join(map(write_row_with_escaped_quotes, (["1", telling], ["2", text])))
    documents, errors, counts = read_checked(write("a.csv", data.encode()), "csv", escape=escape)
    assert (get_texts(documents), errors) == ([telling, text], [])
    assert "escaped with a backslash, other backslashes are text, " in counts.file_format


def test_a_backslash_that_escapes_nothing_in_the_beginning_is_text(write, monkeypatch):
    """Where the beginning escapes backslashes, two are one in the whole file."""
    monkeypatch.setattr(dialects, "HEAD_BYTES", 30)
    data = b'id,text\n1,"a \\"b\\" c\\\\d, e"\n2,"C:\\dir \\\\ \\, \\\' \\\n"\n'
    documents, errors, _ = read_checked(write("a.csv", data), "csv")
    assert (get_texts(documents), errors) == (['a "b" c\\d, e', "C:\\dir \\ , ' \n"], [])


def test_escaped_quotes_that_do_not_read_all_rows_are_errors(write):
    data = b'id,text\n1,"a \\"b\\", \\d"\n2,"C:\\dir\\"\n3,"c"\n'
    documents, errors, counts = read_checked(write("a.csv", data), "csv")
    assert get_texts(documents) == ["C:\\dir\\", "c"] and errors == [("line 2", BROKEN_CSV)]
    assert "doubled" in counts.file_format


# Line ends within fields without quotes -----------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "texts", "error_lines"),
    [
        (b"id,text\r\n1,a\nb\r\n2,c\r\n", ["a\nb", "c"], []),
        (b"id,text\r\n1,a\n\nb\nc\r\n2,d\r\n", ["a\n\nb\nc", "d"], []),
        (b"id,text\r\r\n1,a\nb\r\r\n2,c\r\r\n", ["a\nb", "c"], []),
        (b"text,id\r\na\nb,1\r\nc,2\r\n", ["a\nb", "c"], []),
        (b'id,text,x\r\n1,a\nb,"c\nd"\r\n2,e,f\r\n', ["a\nb", "e"], []),
        (b"id,text\n1,a\rb\n2,c\n", ["a\rb", "c"], []),
        (b"id,text\r\n1,a\rb\r\n2,c\r\n", ["a\rb", "c"], []),
        (b"id,text\r\n1,a\rb\nc\r\n2,d\r\n", ["a\rb\nc", "d"], []),
        (b"id,text\r1,a\nb\r2,c\r", ["a\nb", "c"], []),
        (b"id,text\r\n1,a\nb", ["a\nb"], []),
        # Two files with different line ends, one after the other.
        (b"id,text\r\n1,a\r\n2,b\n3,c\n\n4,d\n", ["a", "b", "c", "d"], []),
        (b'id,text\r\n1,a\n2,"b\nc"\n3,d\r\n', ["a", "b\nc", "d"], []),
        (b"id,text\r\n1,a\n2,b,x\r\n3,c\r\n", ["a", "c"], ["line 3"]),
        (b"id,text\r\n1,a\n2\n3,c,x\r\n4,d\r\n", ["a", "d"], ["line 3", "line 4"]),
        (b"text\r\na\nb\r\n", ["a", "b"], []),
    ],
)
def test_other_line_ends_in_fields_without_quotes_are_text(write, data, texts, error_lines):
    documents, errors, _ = read_checked(write("a.csv", data), "csv")
    assert get_texts(documents) == texts
    assert [line for line, _ in errors] == error_lines


def test_a_text_in_a_file_of_crlf_has_few_lines_without_quotes(write, monkeypatch):
    monkeypatch.setattr(delimited, "MAX_UNQUOTED_LINES", 3)
    data = b"id,text\r\n1,a\nb\nc\r\n2,a\nb\nc\nd\r\n3,e\r\n"
    documents, errors, _ = read_checked(write("a.csv", data), "csv")
    assert get_texts(documents) == ["a\nb\nc", "a", "e"] and len(errors) == 3
    data = b"id,text\r\n1,a\n" + b"b" * 30 + b"\r\n2,c\r\n"
    documents, errors, _ = read_checked(write("b.csv", data), "csv", limit=40)
    assert len(documents) == 2 and errors == []
    documents, errors, _ = read_checked(write("b.csv", data), "csv", limit=35)
    assert get_texts(documents) == ["a", "c"] and [line for line, _ in errors] == ["line 3"]


def test_lines_are_not_joined_again_and_again(write, monkeypatch):
    """Two files with different line ends, the second of which has rows of another length."""
    monkeypatch.setattr(delimited, "MAX_REREAD_BYTES", 1000)
    rows = b"1,a\n" + b"1\n" * 5000
    documents, errors, _ = read_checked(write("a.csv", b"id,text\r\n" + rows), "csv", limit=10**6)
    assert len(documents) == 1 and {error for _, error in errors} == {WRONG_FIELD_COUNT}
    data = b"id,text\r\n" + rows + b'2,"b\nc"\n3,d\ne\r\n'
    documents, _, _ = read_checked(write("b.csv", data), "csv", limit=10**6)
    assert get_texts(documents) == ["a", "b\nc", "d"]


unquoted_texts = st.text("ab \xe9\n\r\t'", min_size=1, max_size=8)


@settings(deadline=None, max_examples=200)
@given(
    texts=st.lists(unquoted_texts, min_size=1, max_size=5),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_texts_with_line_ends_of_another_kind_come_back(tmp_path_factory, texts, line_end):
    """Programs that put fields into quotes only where their own line end or a comma is in them."""
    texts = [f"x{remove_line_end(text, line_end)}x" for text in texts]
    rows = (f"{number},{text},z" for number, text in enumerate(texts))
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_bytes(line_end.join(["id,text,z", *rows, ""]).encode())
    documents, errors, _ = read_checked(path, "csv", limit=10**6)
    assert (get_texts(documents), errors) == (texts, [])


def remove_line_end(text, line_end):
    """Remove what a reader of lines with this end would take for the end of a line."""
    return text.replace("\n" if line_end == "\n" else "\r", "")


# Tables that are drawn for readers ----------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        " id | text  \n----+-------\n  1 | hello you\n(1 row)\n",
        "+----+-------+\n| id | text  |\n+----+-------+\n|  1 | hello |\n",
        "| id | text |\n|---|:-:|\n| 1 | hello |\n",
        "id | text\r\n-- | --\r\n1 | hello\r\n",
        "\n| text |\n|------|\n| hello |\n",
        "id   text\n---- -----\n1    hello\n",
        "-[ RECORD 1 ]-----\nid   | 1\ntext | hello\n",
        f"{'*' * 27} 1. row {'*' * 27}\nid: 1\ntext: hello\n",
    ],
)
def test_a_table_that_is_drawn_for_readers_is_refused(write, text):
    path = write("a.csv", text.encode())
    documents, errors, _ = read_checked(path, "csv")
    assert (documents, errors) == ([], [("whole file", DRAWN_TABLE)])
    _, errors, _ = read_checked(path, "csv", delimiter="|")
    assert DRAWN_TABLE not in dict(errors).values()


@pytest.mark.parametrize(
    "text",
    ["text\n-----\n", "id|text\n-|-\n", "id,text\n---,---\n", "text\na\n--- ---\n", "text\n- -\n"],
)
def test_rows_of_dashes_are_no_rule_of_a_table(text):
    assert not is_drawn_table(FileHead(text, True))


# Quotes in TSV ------------------------------------------------------------------------------------


def read_tsv_texts(write, text, **settings):
    documents, errors, counts = read_checked(write("a.tsv", text.encode()), "tsv", **settings)
    return get_texts(documents), errors, "'\"' doubled" in counts.file_format


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ('id\ttext\n1\t"a\tb"\n2\t"c"\n', ["a\tb", "c"]),
        ('id\ttext\r\n1\t"a\r\nb"\r\n2\tc\r\n', ["a\r\nb", "c"]),
        ('id\ttext\n1\t"say ""hi"" now"\n2\t"c"\n', ['say "hi" now', "c"]),
        ('"id"\t"text"\n"1"\t"a"\n', ["a"]),
        ('text\tid\n"a\nb"\t1\n\n"c\t"\t2\t3\n', ["a\nb"]),
        ('\ufefftext\tid\n""""\t1\n', ['"']),
    ],
)
def test_fields_in_quotes_of_a_tsv_file_are_read(write, text, texts):
    found, errors, has_quotes = read_tsv_texts(write, text)
    assert found == texts and has_quotes
    assert [error for _, error in errors] == [WRONG_FIELD_COUNT] * text.count("\t3")


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ('id\ttext\n1\t"a"\n2\tb\n', ['"a"', "b"]),
        ('id\ttext\n1\t"a" she said\n2\t"b ""c"""\n', ['"a" she said', '"b ""c"""']),
        ('id\ttext\n1\t"a\n2\tb"\n', ['"a', 'b"']),
        ('id\ttext\n1\t""\n2\t"\n3\ta "b"\n', ['""', '"', 'a "b"']),
        ('id\ttext\n1\t5"\n2\t"x\ty\n', ['5"']),
        ('id\ttext\n1\t"a\n2\tb\tc"\n3\td\n4\t"e" f\n', ['"a', "d", '"e" f']),
    ],
)
def test_other_quotes_of_a_tsv_file_are_text(write, text, texts):
    found, _, has_quotes = read_tsv_texts(write, text)
    assert found == texts and not has_quotes


def test_quotes_of_a_tsv_file_can_be_set(write):
    text = 'id\ttext\n1\t"a"\n'
    assert read_tsv_texts(write, text, quote='"') == (["a"], [], True)
    assert read_tsv_texts(write, text.replace("a", "a\tb"), quote="")[2] is False
    with pytest.raises(ValidationError, match="Input should be"):
        TsvSource(kind="tsv", name="s", path="a", quote="'")
    with pytest.raises(ValidationError, match="delimiter"):
        TsvSource(kind="tsv", name="s", path="a", delimiter=";")


@settings(deadline=None, max_examples=200)
@given(
    texts=st.lists(fields, min_size=1, max_size=6),
    line_end=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from(QUOTING),
)
def test_what_the_csv_module_wrote_with_tabs_is_read(tmp_path_factory, texts, line_end, quoting):
    path = tmp_path_factory.mktemp("tsv") / "a.tsv"
    texts = [remove_other_line_ends(text, line_end) for text in ['a "b"\tc', *texts]]
    rows = [["id", "text"], *enumerate(texts)]
    path.write_bytes(write_rows(rows, delimiter="\t", lineterminator=line_end, quoting=quoting))
    documents, errors, _ = read_checked(path, "tsv", limit=10**6)
    assert (get_texts(documents), errors) == (texts, [])


# The beginning of a file --------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["", *COMPRESS_BY_ENDING])
def test_the_beginning_of_a_file_is_read(write, monkeypatch, ending):
    monkeypatch.setattr(dialects, "HEAD_BYTES", 10)
    compress = COMPRESS_BY_ENDING.get(ending, bytes)
    for data, text, is_whole in (
        (b"\xef\xbb\xbfabc", "abc", True),
        (b"0123456789", "0123456789", True),
        (b"0123456789a", "0123456789", False),
        (b"a\xff", "a\udcff", True),
        (b"", "", True),
    ):
        assert read_head(write(f"a.csv{ending}", compress(data))) == FileHead(text, is_whole)


def test_the_beginning_ends_at_damage(write):
    data = COMPRESS_BY_ENDING[".gz"](b"id;text\n1;a\n")
    path = write("a.csv.gz", data + b"x" * 20)
    assert read_head(path) == FileHead("id;text\n1;a\n", False)


def test_a_row_that_continues_after_the_beginning_is_not_bad(write, monkeypatch):
    """The delimiter is detected from the rows before it, or from the header alone."""
    monkeypatch.setattr(dialects, "HEAD_BYTES", 40)
    for rows in ([["1", "a"], ["2", "x;\n" * 50]], [["2", "x;\n" * 50]]):
        data = write_rows([["id", "text"], *rows], delimiter=";")
        documents, errors, _ = read_checked(write("a.csv", data), "csv")
        assert (get_texts(documents), errors) == ([text for _, text in rows], [])


def test_a_damaged_row_does_not_change_the_dialect(write):
    data = b'id;text\n1;a, b\n2;"c\n3;d, \xff\n4;e;f\n5;g\n'
    documents, errors, counts = read_checked(write("a.csv", data), "csv")
    assert get_texts(documents) == ["a, b", "g"]
    assert [error for _, error in errors] == [UNCLOSED_QUOTE, NOT_UTF8, WRONG_FIELD_COUNT]
    assert counts.file_format.startswith("delimiter ';', quotes '\"' doubled")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_line_that_names_the_delimiter_is_no_row(write, end):
    data = f"sep=;{end}id;text{end}1;a{end}".encode()
    documents, errors, counts = read_checked(write("a.csv", data), "csv")
    assert (get_texts(documents), errors) == (["a"], [])
    assert counts.skipped_bytes == len(f"sep=;{end}id;text{end}")
