"""Readers against hostile files: nothing is lost, nothing is invented, every byte is counted."""

import csv
import gzip
import io
import json
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hallmark.tasks.corpus.reading.byte_streams import ReadCounts, read_blocks, read_lines
from hallmark.tasks.corpus.reading.readers import NOT_UTF8, TOO_LONG
from tests.tasks.corpus.reading import LIMIT, read, texts, zst

# Lines --------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.binary(max_size=300), st.integers(1, 20), st.integers(1, 40))
def test_lines_are_those_of_split(tmp_path_factory, data, block, limit):
    """Against bytes.split, for any block size; long lines are cut but measured whole."""
    path = tmp_path_factory.mktemp("lines") / "f"
    path.write_bytes(data)
    meter = ReadCounts()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hallmark.tasks.corpus.reading.byte_streams.BLOCK_BYTES", block)
        found = list(read_lines(path, limit, meter))
    skipped = 3 * data.startswith(b"\xef\xbb\xbf")
    # A mark that the limit cuts through is no mark.
    if skipped and meter.skipped_bytes == 0:
        assert limit < 3
        skipped = 0
    expected = data[skipped:].split(b"\n")
    last = expected.pop()
    assert sum(line.size for line in found) == len(data) - skipped
    assert meter.byte_count == len(data)
    if last:
        expected.append(last)
    elif skipped and data[3:] == b"":
        found = found[:-1]  # nothing behind the mark
    assert [line.number for line in found] == list(range(1, len(expected) + 1))
    for line, whole in zip(found, expected, strict=True):
        if len(whole) <= limit:
            assert line.data == whole
        else:
            assert whole.startswith(line.data) and line.size >= len(whole)


def test_a_long_line_is_not_held(write):
    """50 MB in one line: the reader holds no more than the limit and a block."""
    path = write("big.jsonl", b'{"text": "' + b"x" * 50_000_000 + b'"}\n{"text": "next"}\n')
    tracemalloc.start()
    good, bad, _ = read(path, "jsonl", limit=1_000_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert texts(good) == ["next"]
    assert bad == [("line 1", TOO_LONG)]
    assert peak < 12_000_000


def test_a_block_of_line_ends_is_not_held_as_lines(write):
    """32 MB of line ends come out of a few bytes of zstd at once."""
    path = write("a.jsonl.zst", zst(b"\n" * 32_000_000))
    tracemalloc.start()
    found = read_lines(path, LIMIT, ReadCounts())
    numbers = [next(found).number for _ in range(9)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert numbers == list(range(1, 10))
    assert peak < 80_000_000  # the block, and a piece of it as lines


# JSON lines --------------------------------------------------------------------------------------


def test_bad_json_lines_cost_only_themselves(write):
    rows = [
        (b'{"text": "one"}', None),
        (b'{"text": "tw', ("line 2, character 10", "broken JSON")),
        (b'{"text": "caf\xe9"}', ("line 3, byte 14", NOT_UTF8)),
        (b"[1, 2]", ("line 4", "not a JSON object")),
        (b'"text"', ("line 5", "not a JSON object")),
        (b'{"text": null}', ("line 6", "field 'text' is null")),
        (b'{"text": 7}', ("line 7", "field 'text' is not text")),
        (b'{"body": "x"}', ("line 8", "field 'text' is missing")),
        (b'{"text": "\\ud800"}', ("line 9", "a lone surrogate has no UTF-8 form")),
        (b'{"text": "' + b"x" * LIMIT + b'"}', ("line 10", TOO_LONG)),
        (b"[" * 900, ("line 11", "broken JSON")),
        (b'{"text": ' + b"9" * 900 + b"}", ("line 12", "field 'text' is not text")),
        (b'{"text": "last"}', None),
    ]
    good, bad, _ = read(write("a.jsonl", b"\n".join(line for line, _ in rows)), "jsonl")
    assert texts(good) == ["one", "last"]
    assert [(p, e) for p, e in bad if not p.startswith("line 11")] == [
        error for _, error in rows if error and error[0] != "line 11"
    ]
    assert [e for p, e in bad if p.startswith("line 11")] == ["broken JSON"]


def test_nesting_without_end_is_broken_json(write):
    good, bad, _ = read(write("a.jsonl", b"[" * 200_000 + b'\n{"text": "x"}'), "jsonl", limit=10**6)
    assert texts(good) == ["x"]
    assert [error for _, error in bad] == ["broken JSON"]


def test_text_is_taken_as_it_stands(write):
    """Only \\n ends a line; NUL, carriage returns and odd separators are text."""
    odd = [
        "a\u2028b",
        "a\x0bb\x0c\x1c\x85c",
        "nul\0nul",
        "win\r\nmac\r",
        "\ufeffinner",
        "😀 e\u0301",
    ]
    plain = "\r\n".join(json.dumps({"text": t}, ensure_ascii=False) for t in odd)
    escaped = "\n\n".join(json.dumps({"text": t}) for t in odd)
    good, bad, _ = read(write("a.jsonl", b"\xef\xbb\xbf" + plain.encode() + b"\r\n"), "jsonl")
    assert (texts(good), bad) == (odd, [])
    good, bad, meter = read(write("b.jsonl", escaped.encode()), "jsonl")
    assert (texts(good), bad) == (odd, [])
    assert meter.skipped_bytes == len(odd) - 1  # the blank lines


def test_keys_must_be_text_or_whole_numbers(write):
    path = write(
        "a.jsonl",
        b'{"text": "a", "id": "k1"}\n{"text": "b", "id": 2}\n{"text": "c", "id": 2.5}\n'
        b'{"text": "d", "id": true}\n{"text": "e", "id": null}\n{"text": "f"}\n',
    )
    good, bad, _ = read(path, "jsonl", key_field="id")
    assert [r.key for r in good] == ["k1", "2"]
    assert [error for _, error in bad] == [
        "field 'id' is neither text nor a whole number",
        "field 'id' is neither text nor a whole number",
        "field 'id' is null",
        "field 'id' is missing",
    ]


NAMELESS = {
    "jsonl": b'{"": "0", "text": "a"}\n{"": "1", "text": "b"}\n',
    "csv": b",text\n0,a\n1,b\n",  # as pandas writes it
    "tsv": b"\ttext\n0\ta\n1\tb\n",
}


@pytest.mark.parametrize("kind", NAMELESS)
def test_a_field_without_a_name_is_read_where_it_is_asked_for(write, kind):
    path = write(f"a.{kind}", NAMELESS[kind])
    good, bad, _ = read(path, kind)
    assert [(r.text, r.key, r.url, r.date, r.unreadable_labels) for r in good] == [
        ("a", None, None, None, 0),
        ("b", None, None, None, 0),
    ]
    good, bad, _ = read(path, kind, key_field="", url_field="", date_field="")
    assert [(r.key, r.url, r.unreadable_labels) for r in good] == [("0", "0", 1), ("1", "1", 1)]
    assert bad == []


def test_empty_files_are_told(write):
    for name in ("a.jsonl", "b.csv", "c.parquet", "e.tsv", "f.warc"):
        good, bad, _ = read(write(name, b""), name[2:])
        assert (good, bad) == ([], [("whole file", "the file is empty")])
    good, bad, _ = read(write("d.txt", b""), "text")
    assert (texts(good), bad) == ([""], [])  # an empty document


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"\n", b" ")), max_size=12))
def test_damage_never_reaches_other_lines(tmp_path_factory, junk):
    """Between any two lines of junk a good line is read."""
    path = tmp_path_factory.mktemp("junk") / "a.jsonl"
    path.write_bytes(b"\n".join(line + b'\n{"text": "good"}' for line in junk))
    good, _, _ = read(path, "jsonl")
    assert texts(good).count("good") == len(junk)


# Compression -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ending", "pack"), [(".gz", gzip.compress), (".zst", zst)])
def test_compressed_files(write, ending, pack):
    rows = [
        json.dumps({"text": f"row {i} " + "é" * (i % 50)}).encode() + b"\n" for i in range(3000)
    ]
    whole = b"".join(rows)
    good, bad, meter = read(write(f"a.jsonl{ending}", pack(whole)), "jsonl")
    assert (len(good), bad, meter.byte_count) == (3000, [], len(whole))
    # Several members behind each other, with padding.
    good, bad, meter = read(
        write(f"b.jsonl{ending}", pack(rows[0]) + pack(rows[1]) + b"\0" * 100 + pack(rows[2])),
        "jsonl",
    )
    assert (len(good), bad) == (3, [])


@pytest.mark.parametrize(("ending", "pack"), [(".gz", gzip.compress), (".zst", zst)])
def test_a_truncated_stream_keeps_what_was_read_before(write, ending, pack):
    import random

    chance = random.Random(1)
    rows = [json.dumps({"text": chance.randbytes(40).hex()}).encode() + b"\n" for _ in range(20000)]
    packed = pack(b"".join(rows))
    for cut in (len(packed) // 2, len(packed) - 3):
        path = write(f"a.jsonl{ending}", packed[:cut])
        good, bad, meter = read(path, "jsonl")
        assert texts(good) == [json.loads(row)["text"] for row in rows[: len(good)]]
        assert len(good) > 20000 * 0.5 * cut / len(packed)
        assert bad == [(f"line {len(good) + 1}", "the compressed data end too early")]
        assert meter.byte_count > 0
    path = write(f"b.jsonl{ending}", pack(rows[0]) + b"not compressed at all")
    good, bad, _ = read(path, "jsonl")
    assert len(good) == 1
    assert bad == [("line 2", "the compressed data are damaged")]
    damaged = bytearray(packed)
    damaged[len(packed) // 2 : len(packed) // 2 + 50] = bytes(50)
    good, bad, _ = read(write(f"c.jsonl{ending}", bytes(damaged)), "jsonl")
    assert bad[-1][1] == "the compressed data are damaged"


def test_a_stream_that_swells_is_read_in_small_pieces(write):
    path = write("a.gz", gzip.compress(bytes(200_000_000)))
    assert max(map(len, read_blocks(path, ReadCounts()))) < 8_000_000


# Text --------------------------------------------------------------------------------------------


def test_a_document_a_file(write):
    body = "One.\r\n\r\nTwo\u2028 \0 three.\n"
    good, bad, _ = read(write("a.txt", b"\xef\xbb\xbf" + body.encode()), "text")
    assert (texts(good), bad) == ([body], [])
    good, bad, _ = read(write("b.txt", b"no end"), "text")
    assert texts(good) == ["no end"]
    _, bad, _ = read(write("c.txt", b"fine\nbad \xff byte"), "text")
    assert bad == [("whole file, byte 10", NOT_UTF8)]
    _, bad, _ = read(write("d.txt", b"x\n" * LIMIT), "text")
    assert bad == [("whole file", TOO_LONG)]
    _, bad, _ = read(write("e.txt.gz", gzip.compress(b"half a file" * 50)[:-20]), "text")
    assert bad == [("whole file", "the compressed data end too early")]


def test_documents_between_blank_lines(write):
    data = b"\n\none\nmore\n\n \t\r\ntwo\n\nbad \xff\n\n" + b"x" * (LIMIT + 1) + b"\n\nlast"
    good, bad, meter = read(write("a.txt", data), "text", document_boundary="blank_lines")
    assert texts(good) == ["one\nmore", "two", "last"]
    assert bad == [("line 9, byte 5", NOT_UTF8), ("line 11", TOO_LONG)]
    assert meter.skipped_bytes == 10


# CSV ---------------------------------------------------------------------------------------------


def test_csv_rows_that_do_not_fit(write):
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
    good, bad, _ = read(write("a.csv", data), "csv", key_field="id")
    assert [(r.key, r.text, r.location) for r in good] == [
        ("1", 'quoted, with "quotes" and\r\na second line', "line 2"),
        ("7", "nul\0 and it's 5\" wide", "line 10"),
    ]
    ragged = "the row has another number of fields than the header"
    assert bad == [
        ("line 4", ragged),
        ("line 5", ragged),
        ("line 7", NOT_UTF8),
        ("line 8", "broken CSV"),
        ("line 9", TOO_LONG),
    ]


def test_a_quote_that_is_never_closed_costs_one_line(write):
    rows = [f"{i},row {i}" for i in range(500)]
    rows[3] = '3,"never closed'
    rows[400] = '400,"nor this'
    path = write("a.csv", ("id,text\n" + "\n".join(rows) + "\n").encode())
    good, bad, _ = read(path, "csv")  # the limit ends the search before the second quote
    assert [place for place, _ in bad] == ["line 5", "line 402"]
    assert {error for _, error in bad} == {"a quote is not closed"}
    assert texts(good) == [f"row {i}" for i in range(500) if i not in (3, 400)]


def test_a_csv_file_whose_columns_are_wrong_is_one_error(write):
    path = write("a.csv", b"id,body\n1,x\n2,y\n")
    assert read(path, "csv")[1] == [("line 1", "column 'text' is missing")]
    assert read(path, "csv", text_field="body", key_field="no")[1] == [
        ("line 1", "column 'no' is missing")
    ]
    path = write("b.csv", b"text,text\n1,x\n")
    assert read(path, "csv")[1] == [("line 1", "column 'text' is there more than once")]
    path = write("c.csv.gz", gzip.compress(b"text\nx\n" * 9)[:-9])
    assert read(path, "csv")[1][-1][1] == "the compressed data end too early"


#: No lone carriage return: outside of quotes the csv module takes it for an end of line.
fields = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=20)


def test_a_stray_quote_costs_its_line_whatever_stands_behind_it(write):
    """Up to the next quote there may be a thousand rows."""
    rows = [f"{i},row {i},x" for i in range(1000)]
    rows[3] = '3,"stray,x'
    rows[700] = '700,"quoted, and fine",x'
    rows[800] = '800,"stray again,x'
    rows[801] = '801,"fine","too"'
    rows[900] = '900,x,"stray in the last'
    rows[950] = '950,"an inch",5"'
    path = write("a.csv", ("id,text,more\n" + "\n".join(rows) + "\n").encode())
    good, bad, _ = read(path, "csv", limit=10**6, key_field="id")
    assert bad == [(f"line {n}", "a quote is not closed") for n in (5, 802, 902)]
    assert [int(r.key) for r in good] == [i for i in range(1000) if i not in (3, 800, 900)]


def test_fields_over_many_lines_are_no_stray_quotes(write):
    """Even where their lines look like rows, or where the row has too many fields."""
    poem = "one, two\nthree, four\nfive, six\n\nseven, eight"
    prose = "It was said.\nMore, and more, and more.\nThe end"
    rows = [["1", poem], ["2", prose], ["3", prose, "too many"], ["4", 'a "quoted"\nword']]
    buffer = io.StringIO()
    csv.writer(buffer).writerows([["id", "text"], *rows])
    good, bad, _ = read(write("a.csv", buffer.getvalue().encode()), "csv")
    assert texts(good) == [poem, prose, 'a "quoted"\nword']
    assert [error for _, error in bad] == ["the row has another number of fields than the header"]


def test_an_open_quote_before_very_many_lines_holds_few_of_them(write):
    """Each line is held with 180 bytes of its own: 16 MB of line ends would take 3 GB."""
    path = write("a.csv", b'id,text\n1,"open' + b"\n" * 50_000 + b'2,"x"\n3,y\n')
    tracemalloc.start()
    try:
        good, bad, _ = read(path, "csv", limit=60_000)
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()
    assert bad == [("line 2", "a quote is not closed")]
    assert texts(good) == ["x", "y"]
    path = write("b.csv", b'id,text\n1,"' + b"\n" * 900 + b'x"\n')
    assert texts(read(path, "csv", limit=1000)[0]) == ["\n" * 900 + "x"]


def test_quotes_that_never_close_take_linear_time(write):
    """Each other line is open at its end, whether or not the one before it was."""
    times = []
    for count in (15_000, 30_000):
        path = write("a.csv", b"id,text\n" + b'a","b\n1,c\n' * count)
        start = time.process_time()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("hallmark.tasks.corpus.reading.delimited.MAX_REREAD_BYTES", 1 << 18)
            good, bad, _ = read(path, "csv", limit=2 * 10**5)
        times.append(time.process_time() - start)
        assert (len(good), len(bad)) == (count, count)
    assert times[1] < 4 * times[0] + 1


# TSV ---------------------------------------------------------------------------------------------


def test_tsv_knows_no_quotes(write):
    data = (
        b'\xef\xbb\xbfid\ttext\r\n1\t"one\r\n\r\n2\ttwo" \\n\n3\n4\ta\tb\n5\tcaf\xe9\n6\t\n'
        b"7\t" + b"x" * LIMIT + b"\n8\tlast"
    )
    good, bad, meter = read(write("a.tsv", data), "tsv", key_field="id")
    assert [(r.key, r.text, r.location) for r in good] == [
        ("1", '"one', "line 2"),
        ("2", 'two" \\n', "line 4"),
        ("6", "", "line 8"),
        ("8", "last", "line 10"),
    ]
    ragged = "the row has another number of fields than the header"
    assert bad == [
        ("line 5", ragged),
        ("line 6", ragged),
        ("line 7, byte 6", NOT_UTF8),
        ("line 9", TOO_LONG),
    ]
    assert meter.skipped_bytes == 3 + len(b"id\ttext\r\n") + 2
    assert read(write("b.tsv", b"id\tbody\n1\tx\n"), "tsv")[1] == [
        ("line 1", "column 'text' is missing")
    ]


@settings(deadline=None)
@given(st.lists(st.tuples(fields, fields), min_size=1, max_size=10), st.sampled_from(",;\t|"))
def test_csv_as_the_csv_module_writes_it(tmp_path_factory, rows, delimiter):
    buffer = io.StringIO()
    csv.writer(buffer, delimiter=delimiter).writerows([("text", "more"), *rows])
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_bytes(buffer.getvalue().encode())
    good, bad, _ = read(path, "csv", limit=10**6, delimiter=delimiter)
    assert (texts(good), bad) == ([text for text, _ in rows], [])
