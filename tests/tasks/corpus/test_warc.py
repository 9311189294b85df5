"""Web archives: pages to text, and damage that costs no more than its record."""

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
from hallmark.tasks.corpus.reading.readers import NOT_UTF8
from tests.tasks.corpus.reading import PACK, read, read_all, texts, zst

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "corpus"
LIMIT = 100_000


def record(content, kind="conversion", length=None, line=b"\r\n", **headers):
    """A WARC record; ``length`` instead of the true one."""
    named = {"WARC-Type": kind, **{k.replace("_", "-"): v for k, v in headers.items()}}
    named["Content-Length"] = len(content) if length is None else length
    lines = [b"WARC/1.0", *(f"{name}: {value}".encode() for name, value in named.items()), b"", b""]
    return line.join(lines) + content + line * 2


def page(body, status="200 OK", kind="text/html; charset=utf-8", **headers):
    head = [f"HTTP/1.1 {status}", *([f"Content-Type: {kind}"] if kind else [])]
    head += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    content = "\r\n".join([*head, "", ""]).encode() + body
    return record(content, "response", Content_Type="application/http; msgtype=response")


def html(text):
    return f"<!DOCTYPE html><html><body><p>{text}</p></body></html>".encode()


def archive(write, data, name="a.warc", **more):
    return read(write(name, data), "warc", limit=more.pop("limit", LIMIT), **more)


# What is a document ------------------------------------------------------------------------------


def test_pages_and_conversions_are_documents_and_others_are_counted(write):
    pieces = [
        record(b"software: x", "warcinfo"),
        record(b"GET / HTTP/1.1\r\n\r\n", "request", Content_Type="application/http"),
        page(html("one"), WARC_Target_URI="x"),
        page(html("moved"), status="301 Moved"),
        page(html("gone"), status="404 Not Found"),
        page(b"{}", kind="application/json"),
        page(b"two", kind="text/plain"),
        page(html("three"), kind=""),
        page(html("four"), kind="application/xhtml+xml"),
        record(b"20240101 1.2.3.4", "response", Content_Type="text/dns"),
        record("fünf".encode()),
        record(b"key: value", "metadata"),
        record(b"x", "made up"),
    ]
    good, bad, meter = archive(write, b"".join(pieces))
    assert texts(good) == ["one", "two", "three", "four", "fünf"]
    assert (bad, meter.record_count) == ([], 5)
    assert {what: records for what, (records, _) in meter.skipped_by_kind.items()} == {
        "warcinfo record": 1,
        "request record": 1,
        "response of status 301": 1,
        "response of status 404": 1,
        "response that is no text": 1,
        "response that is not HTTP": 1,
        "metadata record": 1,
        "unknown record": 1,
    }
    sizes = {record.location: record.raw_bytes for record in good}
    assert sizes["record 3"] == len(pieces[2])
    assert meter.skipped_by_kind["request record"] == [1, len(pieces[1])]


def test_where_and_when(write):
    data = record(
        b"one",
        WARC_Target_URI="<http://www.a.example/x>",
        WARC_Record_ID="<urn:1>",
        WARC_Date="2024-02-03T04:05:06.5Z",
    )
    data += record(b"two")
    (one,), bad, _ = archive(write, data, key_field="warc-record-id")
    assert (one.url, one.date) == ("http://www.a.example/x", "2024-02-03T04:05:06Z")
    assert one.key == "<urn:1>"
    assert bad == [("record 2", "header warc-record-id is missing")]


@pytest.mark.parametrize("spelled", [str.lower, str.upper])
def test_names_of_fields_are_of_any_case(write, spelled):
    data = record(b"one") + page(html("two")) + record(b"three")
    names = (b"WARC-Type", b"Content-Length", b"Content-Type", b"WARC-Date", b"WARC-Target-URI")
    for name in names:
        data = data.replace(name, spelled(name.decode()).encode())
    good, bad, _ = archive(write, data)
    assert (texts(good), bad) == (["one", "two", "three"], [])


@pytest.mark.parametrize("body", [b"", b"   ", b"\0\0", b"<", b"<!--", b"<html", b"&#xD800;"])
def test_pages_with_next_to_nothing_in_them(write, body):
    good, bad, _ = archive(write, page(body) + page(html("next")))
    assert (texts(good)[-1], len(good), bad) == ("next", 2, [])


# Encodings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "encoding", "kind", "meta"),
    [
        ("Füße", "utf-8", "text/html", ""),
        ("Füße", "latin-1", "text/html; charset=ISO-8859-1", ""),
        ("“quoted”", "cp1252", "text/html; charset=iso-8859-1", ""),  # as browsers read it
        ("Привет", "cp1251", 'text/html; charset="windows-1251"', ""),
        ("Привет", "koi8-r", "text/html", '<meta charset="koi8-r">'),
        ("日本語", "shift_jis", "text/html", '<META http-equiv=x content="a; charset=Shift_JIS">'),
        ("똠방각하", "cp949", "text/html; charset=euc-kr", ""),
        ("Füße", "utf-8-sig", "text/html; charset=latin1", ""),
        ("Füße", "utf-16", "text/html; charset=latin1", ""),
        ("Füße", "utf-8", "text/html", '<meta charset="utf-16">'),  # else it could not be read
        ("Привет", "cp1251", "text/html; charset=utf-8", '<meta charset="cp1251">'),
        ("Füße", "utf-8", "text/html; charset=rot13", ""),  # is none
    ],
)
def test_the_encoding_that_a_page_declares(write, text, encoding, kind, meta):
    body = f"<html><head>{meta}</head><body><p>{text}</p></body></html>".encode(encoding)
    good, bad, _ = archive(write, page(body, kind=kind))
    assert (texts(good), bad) == ([text], [])


def test_the_encoding_of_a_page_that_declares_none(write):
    text = "Съешь же ещё этих мягких французских булок, да выпей чаю. " * 20
    body = f"<p>{text}</p>".encode("cp1251")
    good, _, _ = archive(write, page(body, kind="text/html"))
    assert texts(good) == [text.strip()]


@pytest.mark.parametrize("charset", ["", "ü", "\ud800", "no-such", "x" * 1000, "utf_8\0"])
def test_a_name_that_is_no_encoding_says_nothing(charset):
    assert web_pages.decode_page("Füße".encode(), charset, is_html=True) == "Füße"


def test_a_page_that_is_not_in_its_encoding_is_an_error(write):
    """A guess would make nonsense of its other characters."""
    body = b"<p>" + "Füße ".encode() * 50 + b"\xff</p>"
    good, bad, _ = archive(write, page(body) + record(b"caf\xe9") + page(html("next")))
    assert texts(good) == ["next"]
    assert bad == [("record 1", web_pages.UNDECODABLE), ("record 2", NOT_UTF8)]


def test_transfer_and_content_encodings(write):
    def chunked(body):
        return b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)

    packed = gzip.compress(html("packed"))
    pieces = [
        page(packed, Content_Encoding="gzip"),
        page(chunked(packed), Content_Encoding="gzip", Transfer_Encoding="chunked"),
        page(html("undone"), Content_Encoding="gzip"),  # by the crawler, which left the header
        page(packed[:12] + b"\xff" * 20 + packed[32:], Content_Encoding="gzip"),
    ]
    good, bad, _ = archive(write, b"".join(pieces))
    assert texts(good) == ["packed", "packed", "undone"]
    assert bad == [("record 4", warc.NOT_HTTP)]


# Damage ------------------------------------------------------------------------------------------


def conversions(numbers, size=40):
    return [record(f"{n} {random.Random(n).randbytes(size).hex()}".encode()) for n in numbers]


def found_numbers(records):
    return [int(r.text.split()[0]) for r in records]


FALSE = ["0", "17", "83", "400", "100000", "9" * 17, "9" * 30, "-1", "x", ""]


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@pytest.mark.parametrize("length", FALSE)
def test_a_false_length_costs_its_record(write, length, ending):
    rows = conversions(range(9))
    rows[4] = re.sub(rb"Content-Length: \d+", b"Content-Length: " + length.encode(), rows[4])
    data = b"".join(PACK[ending](row) if ending else row for row in rows)
    good, bad, meter = archive(write, data, f"a.warc{ending}", limit=1000)
    assert found_numbers(good) == [0, 1, 2, 3, 5, 6, 7, 8]
    assert [place for place, _ in bad] == ["record 5"]
    assert meter.byte_count == sum(map(len, rows))


def test_headers_that_are_broken(write):
    pieces = [
        (record(b"one"), None),
        (record(b"two").replace(b"WARC/1.0", b"W"), warc.NO_HEADER),
        (record(b"three"), None),
        (b"WARC/1.0\r\nX: " + b"x" * 70_000, warc.NO_HEADER),
        (b"\r\n\r\n" + record(b"four"), None),
        (record(b"five").replace(b"Content-Length: 4\r\n", b""), warc.NO_LENGTH),
        (record(b"six", Content_length="4"), warc.NO_LENGTH),
        (record(b"seven", line=b"\n"), None),
        (record(b"eight")[:-4] + b"\r\n" * 5, None),
        (b"rest", warc.NO_HEADER),
    ]
    good, bad, _ = archive(write, b"".join(piece for piece, _ in pieces))
    assert texts(good) == ["one", "three", "four", "seven", "eight"]
    assert [error for _, error in bad] == [error for _, error in pieces if error]


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
    """A header that tells nothing costs its record, and no minutes."""
    bad = record(b"one").replace(b"Content-Length: 3", line)
    start = time.process_time()
    good, errors, _ = archive(write, bad + record(b"next"))
    assert (texts(good), errors) == (["next"], [("record 1", warc.NO_LENGTH)])
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    "line",
    [b"Content-Length \t:\t 3 \t", b"Content-Length:3", b"Content-Length: 3\r\nContent-Length: 3"],
)
def test_a_length_that_is_written_in_another_way(write, line):
    data = record(b"one").replace(b"Content-Length: 3", line) + record(b"next")
    good, bad, _ = archive(write, data)
    assert (texts(good), bad) == (["one", "next"], [])


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_damaged_member_costs_its_record(tmp_path, ending):
    """Anywhere in it, its checksum too."""
    rows = conversions(range(6))
    packed = [PACK[ending](row) for row in rows]
    for where in (0, 3, len(packed[2]) // 2, len(packed[2]) - 2):
        hurt = bytearray(packed[2])
        hurt[where] ^= 0xFF
        path = tmp_path / f"a.warc{ending}"
        path.write_bytes(b"".join([*packed[:2], hurt, *packed[3:]]))
        good, bad, _ = read(path, "warc", limit=LIMIT)
        assert found_numbers(good) == [0, 1, 3, 4, 5]
        assert bad == [("record 3", DAMAGED_DATA)]


@pytest.mark.parametrize("block", [1, 1 << 20])
def test_a_member_that_goes_on_behind_its_record_costs_it(tmp_path, monkeypatch, block):
    """Its last block does not end where it did: some bytes more, and no checksum."""
    (row,) = conversions(range(1), 2)
    packed = PACK[".gz"](row)
    hurt = packed[:71] + random.Random(129).randbytes(1) + packed[72:]
    path = tmp_path / "a.warc.gz"
    monkeypatch.setattr(byte_streams, "BLOCK_BYTES", block)
    monkeypatch.setattr(warc, "BLOCK_BYTES", block)
    for others, numbers in (([], []), (conversions(range(1, 3)), [1, 2])):
        path.write_bytes(b"".join([hurt, *map(PACK[".gz"], others)]))
        good, bad, _ = read(path, "warc", limit=LIMIT)
        assert found_numbers(good) == numbers
        assert [place for place, _ in bad] == ["record 1"]


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_of_a_bad_record_no_more_than_itself_is_kept(write, ending):
    """Those behind it may be documents, or blocked."""
    rows = [record(b"bad", length=1), record(b"good"), b"no header\r\n\r\n", record(b"last")]
    data = b"".join(PACK[ending](row) if ending else row for row in rows)
    found = read_all(write(f"a.warc{ending}", data), "warc", LIMIT)
    assert [r.text for r in found if not r.error] == ["good", "last"]
    assert [r.raw for r in found if r.error] == [rows[0], rows[2]]


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_an_archive_that_is_cut_off(write, ending):
    rows = conversions(range(30))
    data = b"".join(PACK[ending](row) if ending else row for row in rows)
    good, bad, _ = archive(write, data[:-30], f"a.warc{ending}")
    assert found_numbers(good) == list(range(29))
    assert bad == [("record 30", TRUNCATED_DATA if ending else warc.FALSE_LENGTH)]


def test_one_member_for_all_records(write):
    rows = conversions(range(50))
    good, bad, _ = archive(write, gzip.compress(b"".join(rows)), "a.warc.gz")
    assert (found_numbers(good), bad) == (list(range(50)), [])
    rows[7] = rows[7].replace(b"Content-Length: ", b"Content-Length: 9")
    good, bad, _ = archive(write, gzip.compress(b"".join(rows)), "a.warc.gz")
    assert found_numbers(good) == [n for n in range(50) if n != 7]


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_an_archive_within_a_record_is_one_document(write, ending):
    inner = b"".join(conversions(range(5)))
    rows = [record(b"a"), record(inner), record(b"b")]
    data = b"".join(PACK[ending](row) if ending else row for row in rows)
    good, bad, _ = archive(write, data, f"a.warc{ending}")
    assert (texts(good), bad) == (["a", inner.decode(), "b"], [])


def test_empty_archives_are_told(write):
    for name, data in (("a.warc", b""), ("a.warc.gz", gzip.compress(b"")), ("a.wet.zst", zst(b""))):
        assert archive(write, data, name)[1] == [("whole file", "the file is empty")]


@settings(deadline=None, max_examples=150)
@given(data=st.data(), ending=st.sampled_from(["", ".gz", ".zst"]), block=st.integers(1, 3000))
def test_every_record_that_is_not_hurt_comes_out_once(tmp_path_factory, data, ending, block):
    """For any noise within one record and any size of blocks."""
    rows = conversions(range(data.draw(st.integers(1, 8))), data.draw(st.sampled_from([2, 300])))
    packed = [PACK[ending](row) if ending else row for row in rows]
    hurt = data.draw(st.integers(0, len(rows) - 1))
    start = data.draw(st.integers(0, len(packed[hurt]) - 5))
    end = data.draw(st.integers(start + 1, len(packed[hurt]) - 4))
    noise = random.Random(data.draw(st.integers(0, 1 << 30))).randbytes(end - start)
    packed[hurt] = packed[hurt][:start] + noise + packed[hurt][end:]
    path = tmp_path_factory.mktemp("warc") / f"a.warc{ending}"
    path.write_bytes(b"".join(packed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(byte_streams, "BLOCK_BYTES", block)
        patch.setattr(warc, "BLOCK_BYTES", block)
        good, bad, meter = read(path, "warc", limit=LIMIT)
    expected = {row.split(b"\r\n\r\n")[1].decode() for n, row in enumerate(rows) if n != hurt}
    assert [r.text for r in good if r.text in expected] == sorted(expected)
    others = sum(
        records for records, _ in meter.skipped_by_kind.values()
    )  # of a kind that nobody knows
    assert len(good) + len(bad) + others == len(rows)


# Through the stage -------------------------------------------------------------------------------


def test_the_accounts_of_an_archive_balance(tmp_path, session):
    pieces = [
        record(b"", "warcinfo"),
        page(html("one")),
        page(html("")),
        record(b"x", length=9),
        page(html("no"), status="404 Not Found"),
        record(b"y", "metadata"),
        page(html("two")),
    ]
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.warc.gz").write_bytes(b"".join(map(gzip.compress, pieces)))
    (folder / "b.warc.wet").write_bytes(record(b"three", WARC_Target_URI="http://A.example:80/"))
    made = ingest(IngestConfig(sources=[{"kind": "warc", "name": "w", "path": str(folder)}]))
    found = {r["text"]: r["domain"] for r in made["documents"].read().to_pylist()}
    assert found == {"one": None, "two": None, "three": "a.example"}
    book = {b["unit"]: b for b in made["accounts"].read().to_pylist()}
    sizes = list(map(len, pieces))
    assert book["bytes"]["input"] == sum(sizes) + (folder / "b.warc.wet").stat().st_size
    assert book["bytes"]["removed_spans"] == sizes[0] + sizes[4] + sizes[5]
    assert (book["bytes"]["removed_rows"], book["bytes"]["quarantined"]) == (sizes[2], sizes[3])
    assert (book["rows"]["input"], book["rows"]["kept"]) == (5, 3)
    assert made["skipped"].read().to_pylist() == [
        {"source": "w", "kind": what, "records": 1, "raw_bytes": size}
        for what, size in (
            ("metadata record", sizes[5]),
            ("response of status 404", sizes[4]),
            ("warcinfo record", sizes[0]),
        )
    ]


@pytest.mark.skipif(not SHARED.is_dir(), reason="shared data folder is absent")
def test_real_archives(session):
    """Records and pages as fastwarc and resiliparse find them by themselves."""
    expected, others = Counter(), 0
    for path in sorted(SHARED.glob("*.warc.gz")):
        with path.open("rb") as file:
            for found in ArchiveIterator(file, parse_http=True, auto_decode="all"):
                if str(found.record_type) != "response" or found.http_headers.status_code != 200:
                    others += 1
                    continue
                text = found.reader.read().decode("utf-8")
                expected[
                    extract_plain_text(
                        text, preserve_formatting=True, main_content=True, alt_texts=False
                    )
                ] += 1
    where = {"kind": "warc", "name": "web", "path": str(SHARED)}
    made = ingest(IngestConfig(sources=[where]))
    rows = made["documents"].read().to_pylist()
    for text in [text for text in expected if not text.strip()]:
        del expected[text]
    assert Counter(row["text"] for row in rows) == expected
    assert len(rows) >= 30 and all(row["domain"] and row["date"][:7] == "2024-04" for row in rows)
    assert made["quarantine"].row_count == 0
    assert sum(made["skipped"].read()["records"].to_pylist()) == others
