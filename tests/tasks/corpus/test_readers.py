"""Test readers with bad files: nothing is lost or invented, and every byte is counted."""

import codecs
import csv
import gzip
import io
import json
import time
import tracemalloc

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hallmark.tasks.corpus.reading.byte_streams import (
    ReadCounts,
    detect_line_separator,
    find_file_error,
    read_blocks,
    read_lines_marking_damage,
)
from hallmark.tasks.corpus.reading.compressed_members import find_codec
from hallmark.tasks.corpus.reading.readers import NOT_UTF8, TOO_LONG
from tests.tasks.corpus.reader_helpers import LIMIT, compress_zstd, get_texts, read_checked

# Lines --------------------------------------------------------------------------------------------


separators = st.sampled_from([b"\n", b"\r"])
line_ends = st.sampled_from([b"\n", b"\r", b"\r\n"])
pieces_with_line_ends = st.lists(st.one_of(line_ends, st.binary(max_size=20)), max_size=20)


def begins_like_another_file(data):
    """Return whether data begin like compressed data, a ZIP archive or UTF-16 or UTF-32."""
    wide_marks = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)
    return bool(find_file_error(data) or find_codec(data) or data.startswith(wide_marks))


@settings(deadline=None, max_examples=300)
@given(pieces_with_line_ends, separators, st.integers(1, 20), st.integers(1, 40))
def test_lines_are_those_of_bytes_split(tmp_path_factory, pieces, separator, block, limit):
    """For any block size; a long line is cut, but its whole size is counted."""
    path = tmp_path_factory.mktemp("lines") / "f"
    data = b"".join(pieces)
    assume(not begins_like_another_file(data))
    path.write_bytes(data)
    counts = ReadCounts()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hallmark.tasks.corpus.reading.byte_streams.BLOCK_BYTES", block)
        lines = list(read_lines_marking_damage(path, limit, counts, separator))
    mark_bytes = 3 * data.startswith(b"\xef\xbb\xbf")
    assert counts.skipped_bytes == mark_bytes
    expected = data[mark_bytes:].split(separator)
    remainder = expected.pop()
    assert sum(line.size for line in lines) == len(data) - mark_bytes
    assert counts.byte_count == len(data)
    if remainder:
        expected.append(remainder)
    elif mark_bytes and data[3:] == b"":
        lines = lines[:-1]  # no data after the mark
    assert [line.number for line in lines] == list(range(1, len(expected) + 1))
    assert {line.end for line in lines[:-1]} <= {separator}
    for line, expected_data in zip(lines, expected, strict=True):
        if len(expected_data) <= limit:
            assert line.data == expected_data
            assert line.size == len(line.data) + len(line.end)
        else:
            assert expected_data.startswith(line.data) and line.size >= len(expected_data)


@pytest.mark.parametrize(
    ("data", "separator"),
    [
        (b"a\nb", b"\n"),
        (b"a\r\nb", b"\n"),
        (b"a\rb", b"\r"),
        (b"\ra", b"\r"),
        (b"a\r\r", b"\r"),
        (b"a\rb\nc", b"\n"),
        (b"a\r", b""),
        (b"a", b""),
        (b"", b""),
    ],
)
def test_the_separator_of_lines_is_detected(data, separator):
    assert detect_line_separator(data) == separator


@settings(deadline=None)
@given(
    st.lists(st.text("ab\u00e9\u3000", max_size=5), min_size=1, max_size=10),
    st.sampled_from(["\n", "\r", "\r\n"]),
    st.integers(1, 9),
)
def test_any_line_end_gives_the_same_lines(tmp_path_factory, texts, end, block):
    path = tmp_path_factory.mktemp("ends") / "f"
    path.write_bytes("".join(text + end for text in texts).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hallmark.tasks.corpus.reading.byte_streams.BLOCK_BYTES", block)
        lines = list(read_lines_marking_damage(path, 1000, ReadCounts()))
    assert [line.data.removesuffix(b"\r").decode() for line in lines] == texts


def test_a_long_line_is_not_kept_in_memory(write):
    """Of a line of 50 MB, only the limit and a block are in memory."""
    path = write("big.jsonl", b'{"text": "' + b"x" * 50_000_000 + b'"}\n{"text": "next"}\n')
    tracemalloc.start()
    documents, errors, _ = read_checked(path, "jsonl", limit=1_000_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert get_texts(documents) == ["next"]
    assert errors == [("line 1", TOO_LONG)]
    assert peak < 12_000_000


def test_a_block_of_line_ends_is_not_split_at_once(write):
    """32 MB of line ends are decompressed at once from a few bytes of zstd."""
    path = write("a.jsonl.zst", compress_zstd(b"\n" * 32_000_000))
    tracemalloc.start()
    line_stream = read_lines_marking_damage(path, LIMIT, ReadCounts())
    numbers = [next(line_stream).number for _ in range(9)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert numbers == list(range(1, 10))
    assert peak < 80_000_000  # the block, and a part of it as lines


# JSON lines --------------------------------------------------------------------------------------


def test_bad_json_lines_affect_no_others(write):
    rows = [
        (b'{"text": "one"}', None),
        (b'{"text": "tw', ("line 2, character 10", "broken JSON")),
        (b'{"text": "caf\xe9"}', ("line 3, byte 14", NOT_UTF8)),
        (b"[1, 2]", ("line 4", "not a JSON object")),
        (b'"text"', ("line 5", "not a JSON object")),
        (b'{"text": null}', ("line 6", "field 'text' is null")),
        (b'{"text": 7}', ("line 7", "field 'text' is not text")),
        (b'{"body": "x"}', ("line 8", "field 'text' is missing")),
        (
            b'{"text": "\\ud800"}',
            (
                "line 9",
                "the text or the key contains a lone surrogate, which cannot be encoded as UTF-8",
            ),
        ),
        (b'{"text": "' + b"x" * LIMIT + b'"}', ("line 10", TOO_LONG)),
        (b"[" * 900, ("line 11", "broken JSON")),
        (b'{"text": ' + b"9" * 900 + b"}", ("line 12", "field 'text' is not text")),
        (b'{"text": "last"}', None),
    ]
    documents, errors, _ = read_checked(
        write("a.jsonl", b"\n".join(line for line, _ in rows)), "jsonl"
    )
    assert get_texts(documents) == ["one", "last"]
    assert [(p, e) for p, e in errors if not p.startswith("line 11")] == [
        error for _, error in rows if error and error[0] != "line 11"
    ]
    assert [e for p, e in errors if p.startswith("line 11")] == ["broken JSON"]


def test_json_nested_too_deeply_is_broken_json(write):
    documents, errors, _ = read_checked(
        write("a.jsonl", b"[" * 200_000 + b'\n{"text": "x"}'), "jsonl", limit=10**6
    )
    assert get_texts(documents) == ["x"]
    assert [error for _, error in errors] == ["broken JSON"]


def test_text_is_not_changed(write):
    r"""Only \n ends a line; NUL, carriage returns and unusual separators are text."""
    unusual_texts = [
        "a\u2028b",
        "a\x0bb\x0c\x1c\x85c",
        "nul\0nul",
        "win\r\nmac\r",
        "\ufeffinner",
        "😀 e\u0301",
    ]
    plain = "\r\n".join(json.dumps({"text": t}, ensure_ascii=False) for t in unusual_texts)
    escaped = "\n\n".join(json.dumps({"text": t}) for t in unusual_texts)
    documents, errors, _ = read_checked(
        write("a.jsonl", b"\xef\xbb\xbf" + plain.encode() + b"\r\n"), "jsonl"
    )
    assert (get_texts(documents), errors) == (unusual_texts, [])
    documents, errors, counts = read_checked(write("b.jsonl", escaped.encode()), "jsonl")
    assert (get_texts(documents), errors) == (unusual_texts, [])
    assert counts.skipped_bytes == len(unusual_texts) - 1  # the blank lines


def test_keys_must_be_text_or_whole_numbers(write):
    path = write(
        "a.jsonl",
        b'{"text": "a", "id": "k1"}\n{"text": "b", "id": 2}\n{"text": "c", "id": 2.5}\n'
        b'{"text": "d", "id": true}\n{"text": "e", "id": null}\n{"text": "f"}\n',
    )
    documents, errors, _ = read_checked(path, "jsonl", key_field="id")
    assert [r.key for r in documents] == ["k1", "2"]
    assert [error for _, error in errors] == [
        "field 'id' is neither text nor a whole number",
        "field 'id' is neither text nor a whole number",
        "field 'id' is null",
        "field 'id' is missing",
    ]


FILES_WITH_EMPTY_NAME = {
    "jsonl": b'{"": "0", "text": "a"}\n{"": "1", "text": "b"}\n',
    "csv": b",text\n0,a\n1,b\n",  # as written by pandas
    "tsv": b"\ttext\n0\ta\n1\tb\n",
}


@pytest.mark.parametrize("kind", FILES_WITH_EMPTY_NAME)
def test_a_field_with_an_empty_name_can_be_read(write, kind):
    path = write(f"a.{kind}", FILES_WITH_EMPTY_NAME[kind])
    documents, errors, _ = read_checked(path, kind)
    assert [(r.text, r.key, r.url, r.date, r.unreadable_labels) for r in documents] == [
        ("a", None, None, None, 0),
        ("b", None, None, None, 0),
    ]
    documents, errors, _ = read_checked(path, kind, key_field="", url_field="", date_field="")
    assert [(r.key, r.url, r.unreadable_labels) for r in documents] == [
        ("0", "0", 1),
        ("1", "1", 1),
    ]
    assert errors == []


def test_an_empty_file_is_an_error(write):
    for name in ("a.jsonl", "b.csv", "c.parquet", "e.tsv", "f.warc"):
        documents, errors, _ = read_checked(write(name, b""), name[2:])
        assert (documents, errors) == ([], [("whole file", "the file is empty")])
    documents, errors, _ = read_checked(write("d.txt", b""), "text")
    assert (get_texts(documents), errors) == ([""], [])  # an empty document


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"\n", b" ")), max_size=12))
def test_bad_lines_do_not_affect_other_lines(tmp_path_factory, bad_lines):
    """A good line after each bad line is read."""
    data = b"\n".join(line + b'\n{"text": "good"}' for line in bad_lines)
    assume(not begins_like_another_file(data) and not data.startswith(b"["))  # a JSON list
    path = tmp_path_factory.mktemp("junk") / "a.jsonl"
    path.write_bytes(data)
    documents, _, _ = read_checked(path, "jsonl")
    assert get_texts(documents).count("good") == len(bad_lines)


# Compression -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ending", "pack"), [(".gz", gzip.compress), (".zst", compress_zstd)])
def test_compressed_files(write, ending, pack):
    rows = [
        json.dumps({"text": f"row {i} " + "é" * (i % 50)}).encode() + b"\n" for i in range(3000)
    ]
    data = b"".join(rows)
    documents, errors, counts = read_checked(write(f"a.jsonl{ending}", pack(data)), "jsonl")
    assert (len(documents), errors, counts.byte_count) == (3000, [], len(data))
    # several members with padding between them
    documents, errors, counts = read_checked(
        write(f"b.jsonl{ending}", pack(rows[0]) + pack(rows[1]) + b"\0" * 100 + pack(rows[2])),
        "jsonl",
    )
    assert (len(documents), errors) == (3, [])


@pytest.mark.parametrize(("ending", "pack"), [(".gz", gzip.compress), (".zst", compress_zstd)])
def test_a_truncated_stream_keeps_the_rows_before_its_end(write, ending, pack):
    import random

    rng = random.Random(1)
    rows = [json.dumps({"text": rng.randbytes(40).hex()}).encode() + b"\n" for _ in range(20000)]
    packed = pack(b"".join(rows))
    for cut in (len(packed) // 2, len(packed) - 3):
        path = write(f"a.jsonl{ending}", packed[:cut])
        documents, errors, counts = read_checked(path, "jsonl")
        assert get_texts(documents) == [json.loads(row)["text"] for row in rows[: len(documents)]]
        assert len(documents) > 20000 * 0.5 * cut / len(packed)
        assert errors == [
            (f"line {len(documents) + 1}", "the compressed data are incomplete: the end is missing")
        ]
        assert counts.byte_count > 0
    path = write(f"b.jsonl{ending}", pack(rows[0]) + b"not compressed at all")
    documents, errors, _ = read_checked(path, "jsonl")
    assert len(documents) == 1
    assert errors == [("line 2", "the compressed data are damaged")]
    damaged = bytearray(packed)
    damaged[len(packed) // 2 : len(packed) // 2 + 50] = bytes(50)
    documents, errors, _ = read_checked(write(f"c.jsonl{ending}", bytes(damaged)), "jsonl")
    assert errors[-1][1] == "the compressed data are damaged"


def test_a_highly_compressed_stream_is_read_in_small_blocks(write):
    path = write("a.gz", gzip.compress(bytes(200_000_000)))
    assert max(map(len, read_blocks(path, ReadCounts()))) < 8_000_000


# Text --------------------------------------------------------------------------------------------


def test_each_file_is_a_document(write):
    body = "One.\r\n\r\nTwo\u2028 \0 three.\n"
    documents, errors, _ = read_checked(write("a.txt", b"\xef\xbb\xbf" + body.encode()), "text")
    assert (get_texts(documents), errors) == ([body], [])
    documents, errors, _ = read_checked(write("b.txt", b"no end"), "text")
    assert get_texts(documents) == ["no end"]
    _, errors, _ = read_checked(write("c.txt", b"fine\nbad \xff byte"), "text")
    assert errors == [("whole file, byte 10", NOT_UTF8)]
    _, errors, _ = read_checked(write("d.txt", b"x\n" * LIMIT), "text")
    assert errors == [("whole file", TOO_LONG)]
    _, errors, _ = read_checked(write("e.txt.gz", gzip.compress(b"half a file" * 50)[:-20]), "text")
    assert errors == [("whole file", "the compressed data are incomplete: the end is missing")]


def test_blank_lines_separate_documents(write):
    data = b"\n\none\nmore\n\n \t\r\ntwo\n\nbad \xff\n\n" + b"x" * (LIMIT + 1) + b"\n\nlast"
    documents, errors, counts = read_checked(
        write("a.txt", data), "text", document_boundary="blank_lines"
    )
    assert get_texts(documents) == ["one\nmore", "two", "last"]
    assert errors == [("line 9, byte 5", NOT_UTF8), ("line 11", TOO_LONG)]
    assert counts.skipped_bytes == 10


# CSV ---------------------------------------------------------------------------------------------


def test_bad_csv_rows_affect_no_others(write):
    data = (
        b"\xef\xbb\xbfid,text\r\n"
        b'1,"quoted, with ""quotes"" and\r\na second line"\r\n'
        b"2\n"
        b"3,a,b\n"
        b"\n"
        b"4,caf\xe9\n"
        b'5,"closed" badly\n'
        b"6," + b"x" * LIMIT + b"\n"
        b"7,nul\0 and it's 5\" wide\n"
    )
    documents, errors, _ = read_checked(write("a.csv", data), "csv", key_field="id")
    assert [(r.key, r.text, r.location) for r in documents] == [
        ("1", 'quoted, with "quotes" and\r\na second line', "line 2"),
        ("7", "nul\0 and it's 5\" wide", "line 10"),
    ]
    wrong_count = "the row and the header have different numbers of fields"
    assert errors == [
        ("line 4", wrong_count),
        ("line 5", wrong_count),
        ("line 7", NOT_UTF8),
        ("line 8", "broken CSV"),
        ("line 9", TOO_LONG),
    ]


def test_an_unclosed_quote_affects_only_its_line(write):
    rows = [f"{i},row {i}" for i in range(500)]
    rows[3] = '3,"never closed'
    rows[400] = '400,"nor this'
    path = write("a.csv", ("id,text\n" + "\n".join(rows) + "\n").encode())
    # The search ends at the limit, before the second quote.
    documents, errors, _ = read_checked(path, "csv")
    assert [location for location, _ in errors] == ["line 5", "line 402"]
    assert {error for _, error in errors} == {"a quote is not closed"}
    assert get_texts(documents) == [f"row {i}" for i in range(500) if i not in (3, 400)]


def test_a_csv_file_with_wrong_columns_is_one_error(write):
    path = write("a.csv", b"id,body\n1,x\n2,y\n")
    assert read_checked(path, "csv")[1] == [("line 1", "column 'text' is missing")]
    assert read_checked(path, "csv", text_field="body", key_field="no")[1] == [
        ("line 1", "column 'no' is missing")
    ]
    path = write("b.csv", b"text,text\n1,x\n")
    assert read_checked(path, "csv")[1] == [("line 1", "column 'text' occurs more than once")]
    path = write("c.csv.gz", gzip.compress(b"text\nx\n" * 9)[:-9])
    assert (
        read_checked(path, "csv")[1][-1][1]
        == "the compressed data are incomplete: the end is missing"
    )


#: Without lone carriage returns, which the csv module takes for line ends outside quotes.
fields = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=20)


def test_a_stray_quote_affects_only_its_line(write):
    """There may be a thousand rows before the next quote."""
    rows = [f"{i},row {i},x" for i in range(1000)]
    rows[3] = '3,"stray,x'
    rows[700] = '700,"quoted, and fine",x'
    rows[800] = '800,"stray again,x'
    rows[801] = '801,"fine","too"'
    rows[900] = '900,x,"stray in the last'
    rows[950] = '950,"an inch",5"'
    path = write("a.csv", ("id,text,more\n" + "\n".join(rows) + "\n").encode())
    documents, errors, _ = read_checked(path, "csv", limit=10**6, key_field="id")
    assert errors == [(f"line {n}", "a quote is not closed") for n in (5, 802, 902)]
    assert [int(r.key) for r in documents] == [i for i in range(1000) if i not in (3, 800, 900)]


def test_fields_over_many_lines_are_not_taken_for_stray_quotes(write):
    """Even if their lines look like rows, or the row has too many fields."""
    poem = "one, two\nthree, four\nfive, six\n\nseven, eight"
    prose = "It was said.\nMore, and more, and more.\nThe end"
    rows = [["1", poem], ["2", prose], ["3", prose, "too many"], ["4", 'a "quoted"\nword']]
    buffer = io.StringIO()
    csv.writer(buffer).writerows([["id", "text"], *rows])
    documents, errors, _ = read_checked(write("a.csv", buffer.getvalue().encode()), "csv")
    assert get_texts(documents) == [poem, prose, 'a "quoted"\nword']
    assert [error for _, error in errors] == [
        "the row and the header have different numbers of fields"
    ]


def test_an_open_quote_keeps_few_lines_in_memory(write):
    """A line takes 180 bytes in addition to its data: 16 MB of line ends would take 3 GB."""
    path = write("a.csv", b'id,text\n1,"open' + b"\n" * 50_000 + b'2,"x"\n3,y\n')
    tracemalloc.start()
    try:
        documents, errors, _ = read_checked(path, "csv", limit=60_000)
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()
    assert errors == [("line 2", "a quote is not closed")]
    assert get_texts(documents) == ["x", "y"]
    path = write("b.csv", b'id,text\n1,"' + b"\n" * 900 + b'x"\n')
    assert get_texts(read_checked(path, "csv", limit=1000)[0]) == ["\n" * 900 + "x"]


def test_unclosed_quotes_take_linear_time(write):
    """Every other line ends with an open quote, no matter how the line before it ended."""
    times = []
    for count in (15_000, 30_000):
        path = write("a.csv", b"id,text\n" + b'a","b\n1,c\n' * count)
        start = time.process_time()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("hallmark.tasks.corpus.reading.delimited.MAX_REREAD_BYTES", 1 << 18)
            documents, errors, _ = read_checked(path, "csv", limit=2 * 10**5)
        times.append(time.process_time() - start)
        assert (len(documents), len(errors)) == (count, count)
    assert times[1] < 4 * times[0] + 1


# TSV ---------------------------------------------------------------------------------------------


def test_tsv_has_no_quotes(write):
    data = (
        b'\xef\xbb\xbfid\ttext\r\n1\t"one\r\n\r\n2\ttwo" \\n\n3\n4\ta\tb\n5\tcaf\xe9\n6\t\n'
        b"7\t" + b"x" * LIMIT + b"\n8\tlast"
    )
    documents, errors, counts = read_checked(write("a.tsv", data), "tsv", key_field="id")
    assert [(r.key, r.text, r.location) for r in documents] == [
        ("1", '"one', "line 2"),
        ("2", 'two" \\n', "line 4"),
        ("6", "", "line 8"),
        ("8", "last", "line 10"),
    ]
    wrong_count = "the row and the header have different numbers of fields"
    assert errors == [
        ("line 5", wrong_count),
        ("line 6", wrong_count),
        ("line 7, byte 6", NOT_UTF8),
        ("line 9", TOO_LONG),
    ]
    assert counts.skipped_bytes == 3 + len(b"id\ttext\r\n") + 2
    assert read_checked(write("b.tsv", b"id\tbody\n1\tx\n"), "tsv")[1] == [
        ("line 1", "column 'text' is missing")
    ]


@settings(deadline=None)
@given(st.lists(st.tuples(fields, fields), min_size=1, max_size=10), st.sampled_from(",;\t|"))
def test_csv_rows_are_those_that_the_csv_module_wrote(tmp_path_factory, rows, delimiter):
    buffer = io.StringIO()
    csv.writer(buffer, delimiter=delimiter).writerows([("text", "more"), *rows])
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_bytes(buffer.getvalue().encode())
    # Without the quote character, fields that begin with the other one are refused as ambiguous.
    settings = {"delimiter": delimiter, "quote": '"'}
    documents, errors, _ = read_checked(path, "csv", limit=10**6, **settings)
    assert (get_texts(documents), errors) == ([text for text, _ in rows], [])
