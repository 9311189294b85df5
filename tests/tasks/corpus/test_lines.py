"""Test line ends and blank lines: every reader has the same rules."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hallmark.tasks.corpus.reading import byte_streams
from hallmark.tasks.corpus.reading.byte_streams import (
    LINE_BREAK,
    Line,
    is_blank,
    split_at_line_breaks,
)
from hallmark.tasks.corpus.reading.compressed_members import DAMAGED_DATA
from hallmark.tasks.corpus.reading.readers import BROKEN_JSON, NOT_UTF8
from tests.tasks.corpus.reader_helpers import COMPRESS_BY_ENDING, get_texts, read_checked

TEXTS = ["One, two.", "Drei, vier.", "\u4e94\u516d"]
BLANKS = ["", " ", "\t ", "\x0c", "\x0b", "\x85", "\xa0", "\u2003", "\u2028", "\u2029", "\u3000"]
BLANKS += ["\u200b", "\ufeff", "\u2060", "\u1680", "\u202f", "\u205f", "\x1c", "\xa0\x0c \u2028"]

line_ends = pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\r\r\n"])


def make_lines(kind, end, blank=None):
    """Return the file of the texts, with a blank line after each row if one is given."""
    if kind == "jsonl":
        rows = [json.dumps({"text": text}, ensure_ascii=False) for text in TEXTS]
    else:
        rows = [f'{number},"{text}"' for number, text in enumerate(TEXTS)]
        rows = ["id,text", *rows]
    if kind == "tsv":
        rows = [row.replace(",", "\t", 1).replace('"', "") for row in rows]
    if kind == "text":
        rows, blank = TEXTS, blank or ""
    blank_line = "" if blank is None else blank + end
    return "".join(row + end + blank_line for row in rows).encode()


@line_ends
@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv", "text"])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_lines_end_with_any_line_end(write, kind, end, ending):
    settings = {"document_boundary": "blank_lines"} if kind == "text" else {}
    data = make_lines(kind, end)
    for content in (data, data.removesuffix(end.encode())):
        content = COMPRESS_BY_ENDING[ending](content) if ending else content
        documents, errors, _ = read_checked(write(f"a.{kind}{ending}", content), kind, **settings)
        assert (get_texts(documents), errors) == (TEXTS, [])


@line_ends
@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv", "text"])
@pytest.mark.parametrize("blank", BLANKS)
def test_lines_of_white_space_are_blank(write, kind, end, blank):
    if kind == "tsv":
        blank = blank.replace("\t", "")  # a tab separates two empty fields
    settings = {"document_boundary": "blank_lines"} if kind == "text" else {}
    documents, errors, counts = read_checked(
        write(f"a.{kind}", make_lines(kind, end, blank)), kind, **settings
    )
    assert (get_texts(documents), errors) == (TEXTS, [])
    assert counts.skipped_bytes >= len(TEXTS) * len((blank + end).encode())


def test_a_row_of_empty_fields_is_not_blank(write):
    documents, errors, _ = read_checked(write("a.tsv", b"id\ttext\n\t\n"), "tsv")
    assert (get_texts(documents), errors) == ([""], [])
    documents, errors, _ = read_checked(write("a.csv", b"id,text\n,\n , \n"), "csv")
    assert (get_texts(documents), errors) == (["", " "], [])


@pytest.mark.parametrize(
    "text", ["\u2020", "\u2010", "\xa1", "\u4e00", "\u2063", "\ufeffa", "\xa0.", "-"]
)
def test_a_line_with_a_visible_character_is_not_blank(text):
    assert not is_blank(text.encode())


def test_bytes_that_are_not_utf8_are_not_blank():
    assert not any(is_blank(data) for data in (b"\xc2", b"\xa0", b"\xe2\x80", b"\xff"))


@given(st.text(max_size=5))
def test_white_space_is_blank(text):
    invisible = "\u200b\u2060\ufeff"
    assert is_blank(text.encode()) == (not "".join(c for c in text if c not in invisible).strip())


BREAKS = ["\r", "\x0b", "\x0c", "\x85", "\u2028", "\u2029", "\u2028\r\n", "\xa0\u2028\ufeff"]


@pytest.mark.parametrize("line_break", BREAKS)
def test_any_line_break_separates_objects(write, line_break):
    """Also in a file in which other lines end with LF."""
    objects = [json.dumps({"text": f"{text}\u2028."}, ensure_ascii=False) for text in TEXTS]
    for data in (line_break.join(objects), '{"text": "first"}\n' + line_break.join(objects) + "\n"):
        documents, errors, _ = read_checked(write("a.jsonl", data.encode()), "jsonl")
        assert get_texts(documents)[-3:] == [f"{text}\u2028." for text in TEXTS]
        assert len(documents) == 3 + data.startswith('{"text": "first') and errors == []


@pytest.mark.parametrize(
    "line",
    [
        '{"text": "a"} {"text": "b"}',
        '{"text": "a"}{"text": "b"}',
        '{"text": "a"}\u2028{"text": "b"',
        '{"text": "a"}\u2028{"text": "b"} x',
        '{"text": "a"}\u2028[]',
        '{"text": "a\x0cb"}',
    ],
)
def test_a_line_with_anything_between_objects_is_one_error(write, line):
    data = f'{line}\n{{"text": "last"}}\n'
    documents, errors, _ = read_checked(write("a.jsonl", data.encode()), "jsonl")
    assert get_texts(documents) == ["last"]
    assert [error for _, error in errors] == [BROKEN_JSON]


def test_a_byte_order_mark_within_a_file_is_no_error(write):
    """Files that begin with one may have been concatenated."""
    line = b'\xef\xbb\xbf{"text": "a"}\n'
    documents, errors, _ = read_checked(write("a.jsonl", line * 3), "jsonl")
    assert (get_texts(documents), errors) == (["a"] * 3, [])


@pytest.mark.parametrize("line_break", ["\n", "\r\n", *BREAKS])
def test_two_line_breaks_separate_texts(write, line_break):
    data = f"one{line_break}more{line_break * 2}two{line_break}".encode()
    documents, errors, _ = read_checked(
        write("a.txt", data), "text", document_boundary="blank_lines"
    )
    if line_break in ("\u2028\r\n", "\xa0\u2028\ufeff"):  # two line breaks; no white space only
        return
    assert (get_texts(documents), errors) == ([f"one{line_break}more", "two"], [])


def test_a_text_file_is_one_document_with_any_line_break(write):
    text = "a\rb\r\rc\u2028\u2028d\x0c\n\n e\r"
    documents, errors, _ = read_checked(write("a.txt", text.encode()), "text")
    assert (get_texts(documents), errors) == ([text], [])
    documents, errors, _ = read_checked(write("a.txt", b"a\rb\r\rc\r"), "text")
    assert (get_texts(documents), errors) == (["a\rb\r\rc\r"], [])


def test_the_place_of_a_text_is_the_line_of_its_beginning(write):
    data = "\n\none\u2028\u2028two\n\nthree".encode()
    documents, _, _ = read_checked(write("a.txt", data), "text", document_boundary="blank_lines")
    assert [(r.text, r.location) for r in documents] == [
        ("one", "line 3"),
        ("two", "line 3"),
        ("three", "line 5"),
    ]


@settings(deadline=None)
@example("a\r\r\na")
@given(st.text("ab \n\r\x0b\x0c\x85\xa0\u2028\u2029", max_size=40))
def test_texts_are_the_passages_between_blank_lines(tmp_path_factory, text):
    """Every character outside blank lines and line ends is in a document, in order."""
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_bytes(text.encode())
    documents, errors, _ = read_checked(path, "text", document_boundary="blank_lines")
    assert errors == ([] if text else [("whole file", "the file is empty")])
    joined = "".join(get_texts(documents))
    assert "".join(joined.split()) == "".join(text.split())
    for document in get_texts(documents):
        # CR CR LF ends one line; splitlines takes it for two ends.
        assert all(line.strip() for line in document.replace("\r\r\n", "\n").splitlines())


@given(
    st.text("ab\r\x0b\x0c\x85\u2028\u2029\xa0", max_size=8).map(str.encode),
    st.sampled_from([b"", b"\n", b"\r"]),
)
def test_the_parts_of_a_line_are_its_bytes(data, end):
    data = data.replace(end or b"\n", b"")
    line = Line(7, data, len(data) + len(end), end=end)
    parts = split_at_line_breaks(line)
    assert b"".join(part.data + part.end for part in parts) == data + end
    breaks = [match[0] for match in LINE_BREAK.finditer(data + end)]
    assert len(parts) == len(breaks) + (not (data + end).endswith(tuple(breaks) or b"\0"))
    assert sum(part.size for part in parts) == line.size
    assert {part.number for part in parts} == {7}


def test_a_line_with_missing_bytes_is_not_split():
    for line in (Line(1, b"a\x0cb", 3, end=b"", error="damage"), Line(1, b"a\x0cb", 9)):
        assert split_at_line_breaks(line) == [line]


# UTF-16 and UTF-32 --------------------------------------------------------------------------------

wide_encodings = pytest.mark.parametrize(
    "encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"]
)


@line_ends
@wide_encodings
@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv", "text"])
@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
def test_wide_encodings_are_read_by_their_mark(
    write, monkeypatch, kind, end, ending, encoding, block_bytes
):
    if end != "\r\r\n":  # known from a block with both characters
        monkeypatch.setattr(byte_streams, "BLOCK_BYTES", block_bytes)
    settings = {"document_boundary": "blank_lines"} if kind == "text" else {}
    text = "\ufeff" + make_lines(kind, end).decode()
    data = COMPRESS_BY_ENDING.get(ending, bytes)(text.encode(encoding))
    documents, errors, counts = read_checked(write(f"a.{kind}{ending}", data), kind, **settings)
    assert (get_texts(documents), errors) == (TEXTS, [])
    assert counts.byte_count == len(text.encode())
    assert counts.storage_format == encoding[:6].upper()


@wide_encodings
def test_a_json_list_in_a_wide_encoding_is_read(write, encoding):
    text = "\ufeff" + json.dumps([{"text": text} for text in TEXTS], indent=1)
    documents, errors, _ = read_checked(write("a.json", text.encode(encoding)), "jsonl")
    assert (get_texts(documents), errors) == (TEXTS, [])


@pytest.mark.parametrize(
    "unit", [b"\x00\xd8", b"\x00\xdc", b"\x00\xdc\x00\xd8", b"\x00\xd8\x00\x00"]
)
def test_half_a_character_costs_its_record(write, unit):
    def encode(text):
        return text.encode("utf-16-le")

    data = encode("\ufefftext\na\n") + unit + encode("b\n\U0001f600\n")
    documents, errors, _ = read_checked(write("a.csv", data), "csv")
    assert get_texts(documents) == ["a", "\U0001f600"] and errors == [("line 3", NOT_UTF8)]
    data = encode("\ufefftext\na\nb") + b"c"
    documents, errors, _ = read_checked(write("b.csv", data), "csv")
    assert get_texts(documents) == ["a"] and errors == [("line 3", NOT_UTF8)]


def test_the_rest_of_a_damaged_file_in_a_wide_encoding_is_an_error(write):
    """After damage, it is unknown where a character begins."""
    pack, text = COMPRESS_BY_ENDING[".gz"], "\ufefftext\na\n".encode("utf-16-le")
    data = pack(text) + b"x" * 9 + pack("b\nc\n".encode("utf-16-le"))
    documents, errors, counts = read_checked(write("a.csv.gz", data), "csv")
    assert get_texts(documents) == ["a"] and {error for _, error in errors} == {DAMAGED_DATA}
    assert counts.lost_bytes == 9 + 8
    data = "\ufefftext\na\n".encode("utf-32-le") + b"\0\0\0\xff" + b"b\0\0\0" * 3
    documents, errors, counts = read_checked(write("b.csv", data), "csv")
    assert documents == [] and errors == [("line 1", DAMAGED_DATA)]
    assert counts.lost_bytes == len(data)


@settings(deadline=None)
@given(text=st.text(max_size=30), encoding=st.sampled_from(["utf-16-le", "utf-16-be", "utf-32-le"]))
def test_any_text_in_a_wide_encoding_comes_back(tmp_path_factory, text, encoding):
    path = tmp_path_factory.mktemp("wide") / "a.txt"
    path.write_bytes(("\ufeffx" + text).encode(encoding))
    documents, errors, _ = read_checked(path, "text")
    assert (get_texts(documents), errors) == (["x" + text], [])
