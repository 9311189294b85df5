"""Test web archives: their pages become text, and damage affects only its record."""

import gzip
import random
import re
import time
from collections import Counter
from pathlib import Path

import pytest
from fastwarc.warc import ArchiveIterator
from hypothesis import given, settings
from hypothesis import strategies as st
from resiliparse.extract.html2text import extract_plain_text

from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading import byte_streams, warc, web_pages
from hallmark.tasks.corpus.reading.compressed_members import DAMAGED_DATA, TRUNCATED_DATA
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from tests.tasks.corpus.reader_helpers import (
    COMPRESS_BY_ENDING,
    compress_zstd,
    get_texts,
    read_all,
    read_checked,
)

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "corpus"
LIMIT = 100_000


def make_record(content, kind="conversion", length=None, line_end=b"\r\n", **headers):
    """Return a WARC record; ``length`` replaces the true Content-Length."""
    headers_by_name = {"WARC-Type": kind, **{k.replace("_", "-"): v for k, v in headers.items()}}
    headers_by_name["Content-Length"] = len(content) if length is None else length
    lines = [
        b"WARC/1.0",
        *(f"{name}: {value}".encode() for name, value in headers_by_name.items()),
        b"",
        b"",
    ]
    return line_end.join(lines) + content + line_end * 2


def make_page(body, status="200 OK", kind="text/html; charset=utf-8", **headers):
    header_lines = [f"HTTP/1.1 {status}", *([f"Content-Type: {kind}"] if kind else [])]
    header_lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    content = "\r\n".join([*header_lines, "", ""]).encode() + body
    return make_record(content, "response", Content_Type="application/http; msgtype=response")


def make_html(text):
    return f"<!DOCTYPE html><html><body><p>{text}</p></body></html>".encode()


def read_archive(write, data, name="a.warc", **more):
    return read_checked(write(name, data), "warc", limit=more.pop("limit", LIMIT), **more)


# Documents ---------------------------------------------------------------------------------------


def test_pages_and_conversions_are_documents_and_others_are_counted(write):
    pieces = [
        make_record(b"software: x", "warcinfo"),
        make_record(b"GET / HTTP/1.1\r\n\r\n", "request", Content_Type="application/http"),
        make_page(make_html("one"), WARC_Target_URI="x"),
        make_page(make_html("moved"), status="301 Moved"),
        make_page(make_html("gone"), status="404 Not Found"),
        make_page(b"{}", kind="application/json"),
        make_page(b"two", kind="text/plain"),
        make_page(make_html("three"), kind=""),
        make_page(make_html("four"), kind="application/xhtml+xml"),
        make_record(b"20240101 1.2.3.4", "response", Content_Type="text/dns"),
        make_record("fünf".encode()),
        make_record(b"key: value", "metadata"),
        make_record(b"x", "made up"),
    ]
    documents, errors, counts = read_archive(write, b"".join(pieces))
    assert get_texts(documents) == ["one", "two", "three", "four", "fünf"]
    assert (errors, counts.record_count) == ([], 5)
    assert {kind: record_count for kind, (record_count, _) in counts.skipped_by_kind.items()} == {
        "warcinfo record": 1,
        "request record": 1,
        "HTTP response with status 301": 1,
        "HTTP response with status 404": 1,
        "response that is not text": 1,
        "response that is not HTTP": 1,
        "metadata record": 1,
        "unknown record": 1,
    }
    sizes = {record.location: record.raw_bytes for record in documents}
    assert sizes["record 3"] == len(pieces[2])
    assert counts.skipped_by_kind["request record"] == [1, len(pieces[1])]


def test_url_key_and_date_come_from_headers(write):
    data = make_record(
        b"one",
        WARC_Target_URI="<http://www.a.example/x>",
        WARC_Record_ID="<urn:1>",
        WARC_Date="2024-02-03T04:05:06.5Z",
    )
    data += make_record(b"two")
    (one,), errors, _ = read_archive(write, data, key_field="warc-record-id")
    assert (one.url, one.date) == ("http://www.a.example/x", "2024-02-03T04:05:06Z")
    assert one.key == "<urn:1>"
    assert errors == [("record 2", "header warc-record-id is missing")]


@pytest.mark.parametrize("spelled", [str.lower, str.upper])
def test_field_names_may_have_any_case(write, spelled):
    data = make_record(b"one") + make_page(make_html("two")) + make_record(b"three")
    names = (b"WARC-Type", b"Content-Length", b"Content-Type", b"WARC-Date", b"WARC-Target-URI")
    for name in names:
        data = data.replace(name, spelled(name.decode()).encode())
    documents, errors, _ = read_archive(write, data)
    assert (get_texts(documents), errors) == (["one", "two", "three"], [])


@pytest.mark.parametrize("body", [b"", b"   ", b"\0\0", b"<", b"<!--", b"<html", b"&#xD800;"])
def test_nearly_empty_pages_are_documents(write, body):
    documents, errors, _ = read_archive(write, make_page(body) + make_page(make_html("next")))
    assert (get_texts(documents)[-1], len(documents), errors) == ("next", 2, [])


# Encodings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "encoding", "kind", "meta"),
    [
        ("Füße", "utf-8", "text/html", ""),
        ("Füße", "latin-1", "text/html; charset=ISO-8859-1", ""),
        ("“quoted”", "cp1252", "text/html; charset=iso-8859-1", ""),  # as browsers decode it
        ("Привет", "cp1251", 'text/html; charset="windows-1251"', ""),
        ("Привет", "koi8-r", "text/html", '<meta charset="koi8-r">'),
        ("日本語", "shift_jis", "text/html", '<META http-equiv=x content="a; charset=Shift_JIS">'),
        ("똠방각하", "cp949", "text/html; charset=euc-kr", ""),
        ("Füße", "utf-8-sig", "text/html; charset=latin1", ""),
        ("Füße", "utf-16", "text/html; charset=latin1", ""),
        # A readable meta element excludes UTF-16.
        (
            "Füße",
            "utf-8",
            "text/html",
            '<meta charset="utf-16">',
        ),
        ("Привет", "cp1251", "text/html; charset=utf-8", '<meta charset="cp1251">'),
        ("Füße", "utf-8", "text/html; charset=rot13", ""),  # not a text encoding
    ],
)
def test_a_page_is_decoded_as_it_declares(write, text, encoding, kind, meta):
    body = f"<html><head>{meta}</head><body><p>{text}</p></body></html>".encode(encoding)
    documents, errors, _ = read_archive(write, make_page(body, kind=kind))
    assert (get_texts(documents), errors) == ([text], [])


def test_the_encoding_of_a_page_without_declaration_is_detected(write):
    text = "Съешь же ещё этих мягких французских булок, да выпей чаю. " * 20
    body = f"<p>{text}</p>".encode("cp1251")
    documents, _, _ = read_archive(write, make_page(body, kind="text/html"))
    assert get_texts(documents) == [text.strip()]


@pytest.mark.parametrize("charset", ["", "ü", "\ud800", "no-such", "x" * 1000, "utf_8\0"])
def test_an_unknown_encoding_name_is_ignored(charset):
    assert web_pages.decode_page("Füße".encode(), charset, is_html=True).text == "Füße"


# Damage ------------------------------------------------------------------------------------------


def make_conversions(numbers, size=40):
    return [make_record(f"{n} {random.Random(n).randbytes(size).hex()}".encode()) for n in numbers]


def read_numbers(records):
    return [int(r.text.split()[0]) for r in records]


FALSE_LENGTHS = ["0", "17", "83", "400", "100000", "9" * 17, "9" * 30, "-1", "x", ""]


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@pytest.mark.parametrize("length", FALSE_LENGTHS)
def test_a_false_length_affects_only_its_record(write, length, ending):
    rows = make_conversions(range(9))
    rows[4] = re.sub(rb"Content-Length: \d+", b"Content-Length: " + length.encode(), rows[4])
    data = b"".join(COMPRESS_BY_ENDING[ending](row) if ending else row for row in rows)
    documents, errors, counts = read_archive(write, data, f"a.warc{ending}", limit=1000)
    assert read_numbers(documents) == [0, 1, 2, 3, 5, 6, 7, 8]
    assert [place for place, _ in errors] == ["record 5"]
    assert counts.byte_count == sum(map(len, rows))


def test_broken_headers_affect_only_their_records(write):
    pieces = [
        (make_record(b"one"), None),
        (make_record(b"two").replace(b"WARC/1.0", b"W"), warc.NO_HEADER),
        (make_record(b"three"), None),
        (b"WARC/1.0\r\nX: " + b"x" * 70_000, warc.NO_HEADER),
        (b"\r\n\r\n" + make_record(b"four"), None),
        (make_record(b"five").replace(b"Content-Length: 4\r\n", b""), warc.NO_LENGTH),
        (make_record(b"six", Content_length="4"), warc.NO_LENGTH),
        (make_record(b"seven", line_end=b"\n"), None),
        (make_record(b"eight")[:-4] + b"\r\n" * 5, None),
        (b"rest", warc.NO_HEADER),
    ]
    documents, errors, _ = read_archive(write, b"".join(piece for piece, _ in pieces))
    assert get_texts(documents) == ["one", "three", "four", "seven", "eight"]
    assert [error for _, error in errors] == [error for _, error in pieces if error]


@pytest.mark.parametrize(
    "line",
    [
        b"Content-Length:" + b" " * 60_000 + b"\r4",
        b"Content-Length: x" + b" \t" * 30_000 + b"y",
        b"Content-Length" + b" " * 60_000,
        b"Content-Length: 4\r" + b" " * 60_000,
    ],
)
def test_blanks_around_a_length_take_linear_time(write, line):
    """Such a header is an error of its record."""
    bad_record = make_record(b"one").replace(b"Content-Length: 3", line)
    start = time.process_time()
    documents, errors, _ = read_archive(write, bad_record + make_record(b"next"))
    assert (get_texts(documents), errors) == (["next"], [("record 1", warc.NO_LENGTH)])
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    "line",
    [b"Content-Length \t:\t 3 \t", b"Content-Length:3", b"Content-Length: 3\r\nContent-Length: 3"],
)
def test_a_length_may_be_written_in_other_ways(write, line):
    data = make_record(b"one").replace(b"Content-Length: 3", line) + make_record(b"next")
    documents, errors, _ = read_archive(write, data)
    assert (get_texts(documents), errors) == (["one", "next"], [])


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@pytest.mark.parametrize("line_end", [b"\r\n", b"\n"])
@pytest.mark.parametrize("end_count", [0, 1, 2, 3, 50])
def test_records_may_end_with_any_number_of_line_ends(write, line_end, end_count, ending):
    rows = [
        row.removesuffix(b"\r\n\r\n") + line_end * end_count for row in make_conversions(range(5))
    ]
    data = b"".join(COMPRESS_BY_ENDING[ending](row) if ending else row for row in rows)
    documents, errors, counts = read_archive(write, data, f"a.warc{ending}")
    assert (read_numbers(documents), errors) == (list(range(5)), [])
    assert counts.byte_count == sum(map(len, rows))


def test_a_bad_record_between_records_with_one_line_end_is_one_error(write):
    rows = [row.removesuffix(b"\r\n") for row in make_conversions(range(5))]
    rows[2] = rows[2].replace(b"Content-Length: ", b"Content-Length: 1")
    documents, errors, _ = read_archive(write, b"".join(rows))
    assert read_numbers(documents) == [0, 1, 3, 4]
    assert errors == [("record 3", warc.FALSE_LENGTH)]


@pytest.mark.parametrize("kept_bytes", [1, 3, 5])
def test_a_record_without_its_end_is_an_error_also_at_the_end_of_the_file(write, kept_bytes):
    data = make_record(b"one") + make_record(b"two two")[: kept_bytes - 12]
    documents, errors, _ = read_archive(write, data)
    assert get_texts(documents) == ["one"] and errors == [("record 2", warc.FALSE_LENGTH)]


@pytest.mark.parametrize("beginning", [b"\xef\xbb\xbf", b"\r\n\r\n", b"\xef\xbb\xbf\n", b"\n" * 99])
def test_blank_lines_and_a_mark_before_the_first_record_are_skipped(write, beginning):
    documents, errors, counts = read_archive(write, beginning + make_record(b"one"))
    assert (get_texts(documents), errors) == (["one"], [])
    assert counts.skipped_bytes == len(beginning)
    documents, errors, counts = read_archive(write, beginning)
    assert (documents, errors, counts.skipped_bytes) == ([], [], len(beginning))


@pytest.mark.parametrize("content_type", [None, "text/html", "application/https;msgtype=response"])
def test_a_response_is_http_if_it_begins_so(write, content_type):
    headers = {"Content_Type": content_type} if content_type else {}
    http = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=latin1\r\n\r\n<p>F\xfc\xdfe"
    documents, errors, _ = read_archive(write, make_record(http, "response", **headers))
    assert (get_texts(documents), errors) == (["Füße"], [])
    for content in (b"HTTP is a protocol", b" HTTP/1.1 200 OK\r\n\r\n"):
        data = make_record(content, "response", **headers) + make_record(b"next")
        documents, errors, counts = read_archive(write, data)
        if content_type is None or "https" not in content_type:
            assert (get_texts(documents), errors) == (["next"], [])
            assert counts.skipped_by_kind["response that is not HTTP"][0] == 1
    documents, _, _ = read_archive(write, make_record(http, **headers))
    assert "HTTP/1.1" in "".join(get_texts(documents)) or documents == []


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_damaged_member_affects_only_its_record(tmp_path, ending):
    """The damage may be anywhere in the member, including its checksum."""
    rows = make_conversions(range(6))
    packed = [COMPRESS_BY_ENDING[ending](row) for row in rows]
    for position in (0, 3, len(packed[2]) // 2, len(packed[2]) - 2):
        damaged_member = bytearray(packed[2])
        damaged_member[position] ^= 0xFF
        path = tmp_path / f"a.warc{ending}"
        path.write_bytes(b"".join([*packed[:2], damaged_member, *packed[3:]]))
        documents, errors, _ = read_checked(path, "warc", limit=LIMIT)
        assert read_numbers(documents) == [0, 1, 3, 4, 5]
        assert errors == [("record 3", DAMAGED_DATA)]


@pytest.mark.parametrize("block", [1, 1 << 20])
def test_a_member_that_continues_after_its_record_is_an_error(tmp_path, monkeypatch, block):
    """Its last block has a few bytes more, and no checksum follows."""
    (row,) = make_conversions(range(1), 2)
    packed = COMPRESS_BY_ENDING[".gz"](row)
    damaged_member = packed[:71] + random.Random(129).randbytes(1) + packed[72:]
    path = tmp_path / "a.warc.gz"
    monkeypatch.setattr(byte_streams, "BLOCK_BYTES", block)
    monkeypatch.setattr(warc, "BLOCK_BYTES", block)
    for other_rows, numbers in (([], []), (make_conversions(range(1, 3)), [1, 2])):
        path.write_bytes(b"".join([damaged_member, *map(COMPRESS_BY_ENDING[".gz"], other_rows)]))
        documents, errors, _ = read_checked(path, "warc", limit=LIMIT)
        assert read_numbers(documents) == numbers
        assert [place for place, _ in errors] == ["record 1"]


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_the_bytes_of_a_bad_record_do_not_include_the_next_one(write, ending):
    """The next one may be a document, or blocked."""
    rows = [
        make_record(b"bad", length=1),
        make_record(b"good"),
        b"no header\r\n\r\n",
        make_record(b"last"),
    ]
    data = b"".join(COMPRESS_BY_ENDING[ending](row) if ending else row for row in rows)
    records = read_all(write(f"a.warc{ending}", data), "warc", LIMIT)
    assert [r.text for r in records if not r.error] == ["good", "last"]
    assert [r.raw for r in records if r.error] == [rows[0], rows[2]]


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_a_truncated_archive_loses_its_last_record(write, ending):
    rows = make_conversions(range(30))
    data = b"".join(COMPRESS_BY_ENDING[ending](row) if ending else row for row in rows)
    documents, errors, _ = read_archive(write, data[:-30], f"a.warc{ending}")
    assert read_numbers(documents) == list(range(29))
    assert errors == [("record 30", TRUNCATED_DATA if ending else warc.FALSE_LENGTH)]


def test_one_member_may_hold_all_records(write):
    rows = make_conversions(range(50))
    documents, errors, _ = read_archive(write, gzip.compress(b"".join(rows)), "a.warc.gz")
    assert (read_numbers(documents), errors) == (list(range(50)), [])
    rows[7] = rows[7].replace(b"Content-Length: ", b"Content-Length: 9")
    documents, errors, _ = read_archive(write, gzip.compress(b"".join(rows)), "a.warc.gz")
    assert read_numbers(documents) == [n for n in range(50) if n != 7]


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_an_archive_within_a_record_is_one_document(write, ending):
    inner = b"".join(make_conversions(range(5)))
    rows = [make_record(b"a"), make_record(inner), make_record(b"b")]
    data = b"".join(COMPRESS_BY_ENDING[ending](row) if ending else row for row in rows)
    documents, errors, _ = read_archive(write, data, f"a.warc{ending}")
    assert (get_texts(documents), errors) == (["a", inner.decode(), "b"], [])


@pytest.mark.parametrize("size", [70_000, byte_streams.BLOCK_BYTES, 3 * byte_streams.BLOCK_BYTES])
def test_a_long_record_is_one_error(write, size):
    """The next record is in the same block of the file, or in a later one."""
    rows = [make_record(b"a"), make_record(b"x" * size), make_record(b"b"), make_record(b"c")]
    documents, errors, _ = read_archive(write, b"".join(rows), limit=1000)
    assert (get_texts(documents), errors) == (["a", "b", "c"], [("record 2", warc.TOO_LONG)])


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_an_archive_within_a_bad_record_has_no_records(write, ending):
    """The record before it shows that each member holds one record."""
    inner = b"".join(make_conversions(range(3)))
    rows = [make_record(b"a"), make_record(inner, length=1), make_record(b"b")]
    data = b"".join(map(COMPRESS_BY_ENDING[ending], rows))
    documents, errors, _ = read_archive(write, data, f"a.warc{ending}")
    assert get_texts(documents) == ["a", "b"]
    assert errors == [("record 2", warc.FALSE_LENGTH)]


def test_a_text_may_have_as_many_bytes_as_a_record(write):
    """The letters take one byte in the archive and two in the text; one is not valid."""
    page = make_page(b"\xe9" * 199 + b"\x81\xe9", kind="text/plain; charset=windows-1252")
    path = write("a.warc", page)
    (record,) = read_all(path, "warc", 400)
    assert (record.text, record.error, record.lost_characters) == ("é" * 200, "", 1)
    (record,) = read_all(path, "warc", 399)
    assert (record.text, record.error, record.lost_characters) == ("", warc.TOO_LONG, 0)


def test_an_empty_archive_is_an_error(write):
    for name, data in (
        ("a.warc", b""),
        ("a.warc.gz", gzip.compress(b"")),
        ("a.wet.zst", compress_zstd(b"")),
    ):
        assert read_archive(write, data, name)[1] == [("whole file", "the file is empty")]


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_a_false_length_may_end_at_the_empty_line_of_a_later_header(write, ending):
    rows = make_conversions(range(4), size=2)
    header_size = rows[2].index(b"\r\n\r\n")
    length = len(rows[1]) - rows[1].index(b"\r\n\r\n") - 4 + header_size
    rows[1] = rows[1].replace(b"Content-Length: 6", f"Content-Length: {length}".encode())
    data = b"".join(rows)
    if ending:
        data = COMPRESS_BY_ENDING[ending](data)
    documents, errors, _ = read_archive(write, data, f"a.warc{ending}")
    assert read_numbers(documents) == [0, 2, 3]
    assert errors == [("record 2", warc.FALSE_LENGTH)]


@settings(deadline=None, max_examples=150)
@given(data=st.data(), ending=st.sampled_from(["", ".gz", ".zst"]), block=st.integers(1, 3000))
def test_every_undamaged_record_is_read_once(tmp_path_factory, data, ending, block):
    """For any noise within one record and any block size."""
    rows = make_conversions(
        range(data.draw(st.integers(1, 8))), data.draw(st.sampled_from([2, 300]))
    )
    packed = [COMPRESS_BY_ENDING[ending](row) if ending else row for row in rows]
    damaged_index = data.draw(st.integers(0, len(rows) - 1))
    start = data.draw(st.integers(0, len(packed[damaged_index]) - 5))
    end = data.draw(st.integers(start + 1, len(packed[damaged_index]) - 4))
    noise = random.Random(data.draw(st.integers(0, 1 << 30))).randbytes(end - start)
    packed[damaged_index] = packed[damaged_index][:start] + noise + packed[damaged_index][end:]
    path = tmp_path_factory.mktemp("warc") / f"a.warc{ending}"
    path.write_bytes(b"".join(packed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(byte_streams, "BLOCK_BYTES", block)
        patch.setattr(warc, "BLOCK_BYTES", block)
        documents, errors, counts = read_checked(path, "warc", limit=LIMIT)
    expected = {
        row.split(b"\r\n\r\n")[1].decode() for n, row in enumerate(rows) if n != damaged_index
    }
    assert [r.text for r in documents if r.text in expected] == sorted(expected)
    # Of an unknown kind.
    skipped_count = sum(records for records, _ in counts.skipped_by_kind.values())
    assert len(documents) + len(errors) + skipped_count == len(rows)


# Through the stage -------------------------------------------------------------------------------


def test_the_accounts_of_an_archive_balance(tmp_path, session):
    pieces = [
        make_record(b"", "warcinfo"),
        make_page(make_html("one")),
        make_page(make_html("")),
        make_record(b"x", length=9),
        make_page(make_html("no"), status="404 Not Found"),
        make_record(b"y", "metadata"),
        make_page(make_html("two")),
    ]
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.warc.gz").write_bytes(b"".join(map(gzip.compress, pieces)))
    (folder / "b.warc.wet").write_bytes(
        make_record(b"three", WARC_Target_URI="http://A.example:80/")
    )
    artifact = ingest(IngestConfig(sources=[{"kind": "warc", "name": "w", "path": str(folder)}]))
    domain_by_text = {r["text"]: r["domain"] for r in artifact["documents"].read().to_pylist()}
    assert domain_by_text == {"one": None, "two": None, "three": "a.example"}
    accounts_by_unit = {b["unit"]: b for b in artifact["accounts"].read().to_pylist()}
    sizes = list(map(len, pieces))
    assert accounts_by_unit["bytes"]["input"] == sum(sizes) + (folder / "b.warc.wet").stat().st_size
    assert accounts_by_unit["bytes"]["removed_spans"] == sizes[0] + sizes[4] + sizes[5]
    assert (
        accounts_by_unit["bytes"]["removed_rows"],
        accounts_by_unit["bytes"]["quarantined"],
    ) == (sizes[2], sizes[3])
    assert (accounts_by_unit["rows"]["input"], accounts_by_unit["rows"]["kept"]) == (5, 3)
    assert artifact["skipped"].read().to_pylist() == [
        {"source": "w", "kind": kind, "records": 1, "raw_bytes": size}
        for kind, size in (
            ("HTTP response with status 404", sizes[4]),
            ("metadata record", sizes[5]),
            ("warcinfo record", sizes[0]),
        )
    ]


@pytest.mark.skipif(not SHARED.is_dir(), reason="shared data folder is absent")
def test_real_archives_give_the_texts_of_fastwarc_and_resiliparse(session):
    """A page has the words of Resiliparse's main content, and perhaps those of its lists."""
    expected, skipped_count = {}, 0
    for path in sorted(SHARED.glob("*.warc.gz")):
        with path.open("rb") as file:
            for warc_record in ArchiveIterator(file, parse_http=True, auto_decode="all"):
                if (
                    str(warc_record.record_type) != "response"
                    or warc_record.http_headers.status_code != 200
                ):
                    skipped_count += 1
                    continue
                html = warc_record.reader.read().decode("utf-8")
                url = warc_record.headers["WARC-Target-URI"].strip("<>")
                main_content = extract_plain_text(
                    html, preserve_formatting=True, main_content=True, alt_texts=False
                )
                expected[url] = Counter(main_content.split())
    source = {"kind": "warc", "name": "web", "path": str(SHARED)}
    artifact = ingest(IngestConfig(sources=[source]))
    rows = artifact["documents"].read().to_pylist()
    assert {row["url"] for row in rows} >= {url for url, words in expected.items() if words}
    for row in rows:
        assert expected[row["url"]] <= Counter(row["text"].split())
    assert len(rows) >= 30 and all(row["domain"] and row["date"][:7] == "2024-04" for row in rows)
    assert artifact["quarantine"].row_count == 0
    assert sum(artifact["skipped"].read()["records"].to_pylist()) == skipped_count
