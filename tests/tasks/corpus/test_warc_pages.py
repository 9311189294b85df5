"""Test pages whose encoding, end, charset or format is not what their headers declare."""

import gzip
import zlib
from pathlib import Path

import brotli
import pytest
import zstandard
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading import page_content, web_pages
from hallmark.tasks.corpus.reading.byte_streams import is_text
from hallmark.tasks.corpus.reading.http_bodies import (
    BodyError,
    BodyTooLongError,
    HttpBody,
    decode_http_body,
)
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.corpus.reading.readers import NOT_UTF8, TOO_LONG
from hallmark.tasks.corpus.reading.warc import NOT_HTTP, NOT_TEXT
from tests.tasks.corpus.reader_helpers import get_texts, read_checked
from tests.tasks.corpus.test_warc import make_html, make_page, make_record, read_archive

CASES = Path(__file__).resolve().parents[2] / "cases" / "corpus" / "warc"
LIMIT = 1_000_000
SENTENCE = (
    "The council met on Tuesday evening to discuss the new bridge over the river. Several "
    "residents spoke against the plan."
)
GERMAN = "Der Stadtrat traf sich am Dienstagabend, um über die neue Brücke zu sprechen."


def join_chunks(body, sizes=(100,), line_end=b"\r\n", extension=b"", trailer=b""):
    """Return a body in chunks of these sizes, which are used in turn."""
    pieces, position = [], 0
    while position < len(body):
        chunk = body[position : position + sizes[len(pieces) % len(sizes)]]
        pieces.append(b"%x%s%s%s%s" % (len(chunk), extension, line_end, chunk, line_end))
        position += len(chunk)
    return b"".join(pieces) + b"0" + line_end + trailer + line_end


def deflate_raw(data):
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


COMPRESS_BY_ENCODING = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "deflate, raw": deflate_raw,
    "br": brotli.compress,
    "zstd": zstandard.compress,
}
ENCODING_HEADERS = [("Content-Encoding", name) for name in ("gzip", "x-gzip", "deflate", "br")]
ENCODING_HEADERS += [("Transfer-Encoding", "chunked"), ("Content-Encoding", "zstd")]


def decode(data, *headers, is_html=True, max_bytes=LIMIT):
    return decode_http_body(data, headers, max_bytes, is_html=is_html)


# Cases -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "is_truncated", "lost_characters"),
    [
        ("02-cut-chunked", f"{SENTENCE} {SENTENCE} The council met o", True, 0),
        ("05-xhtml-dechunked", SENTENCE, False, 0),
        ("08-english-no-doctype-ungzipped", SENTENCE, False, 0),
        ("09-plain-zero", f"Zero is a number. {SENTENCE} ", False, 0),
        ("11-utf8-one-bad-byte", f"{GERMAN} {GERMAN}", False, 1),
        (
            "13-ul-in-main",
            f"Bread\n\n{SENTENCE}\n\n  • Five hundred grams of flour\n  • Two eggs\n\n{SENTENCE}",
            False,
            0,
        ),
    ],
)
def test_reported_archives_are_read(name, text, is_truncated, lost_characters):
    (document,), errors, _ = read_checked(CASES / f"{name}.warc", "warc", limit=LIMIT)
    assert (document.text, errors) == (text, [])
    assert (document.is_truncated, document.lost_characters) == (is_truncated, lost_characters)


def test_truncated_documents_and_lost_characters_are_counted(session):
    source = {"kind": "warc", "name": "web", "path": str(CASES)}
    artifact = ingest(IngestConfig(sources=[source]))
    (row,) = artifact["sources"].read().to_pylist()
    assert (row["truncated_documents"], row["lost_characters"]) == (1, 1)
    origins = {row["file_name"]: row for row in artifact["origins"].read().to_pylist()}
    assert {name for name, row in origins.items() if row["is_truncated"]} == {"02-cut-chunked.warc"}
    assert {name: row["lost_characters"] for name, row in origins.items()} == {
        name: int(name == "11-utf8-one-bad-byte.warc") for name in origins
    }


# Chunks ------------------------------------------------------------------------------------------

CHUNKED = ("Transfer-Encoding", "chunked")


@pytest.mark.parametrize("line_end", [b"\r\n", b"\n"])
@pytest.mark.parametrize("extension", [b"", b" ", b";a=1", b'; name="v;w"', b"\t;x"])
@pytest.mark.parametrize("trailer", [b"", b"Expires: never\r\nX-Sum: 1\r\n"])
def test_chunks_may_have_extensions_and_bare_line_feeds(line_end, extension, trailer):
    data = join_chunks(make_html(SENTENCE), (7, 30), line_end, extension, trailer)
    assert decode(data, CHUNKED).data == make_html(SENTENCE)
    assert not decode(data, CHUNKED).is_cut


@pytest.mark.parametrize("prefix", [b"\r\n", b"\n\n"])
@pytest.mark.parametrize("is_html", [True, False])
def test_empty_lines_may_precede_the_chunks(prefix, is_html):
    page = make_html(SENTENCE)
    assert decode(prefix + join_chunks(page), CHUNKED, is_html=is_html).data == page


def test_lines_of_chunks_may_end_in_carriage_returns():
    page = make_html(SENTENCE)
    data = join_chunks(page, (30,), b"\r")
    assert decode(data, CHUNKED).data == page
    assert decode(data[:60], CHUNKED).data == page[:53]
    assert decode(b"64\rA text", CHUNKED, is_html=False).data == b"A text"


def test_sizes_of_chunks_may_have_zeros_and_any_case():
    body = b"<p>" + b"x" * 168
    assert decode(b"00AB\r\n" + body + b"\r\n0000\r\n\r\n", CHUNKED).data == body


@pytest.mark.parametrize("is_html", [True, False])
def test_an_empty_chunk_may_be_followed_by_others(is_html):
    data = b"0\r\n\r\n" + join_chunks(make_html("one")) + join_chunks(make_html("two"))
    body = decode(data, CHUNKED, is_html=is_html)
    assert body.data == make_html("one") + make_html("two")
    assert not body.is_cut


def test_data_after_the_last_chunk_count_as_missing():
    body = decode(join_chunks(b"<p>one") + b"<p>two", CHUNKED)
    assert (body.data, body.is_cut) == (b"<p>one", True)


def test_a_page_may_be_in_chunks_although_no_header_says_so():
    page = make_html(SENTENCE)
    assert decode(join_chunks(page)).data == page
    assert decode(join_chunks(page)[:80]).data == page[:76]
    assert decode(b"7\r\nis a number\r\n").data == b"7\r\nis a number\r\n"
    assert decode(b"3\r\n<p>is a number").data == b"3\r\n<p>is a number"


UNDECLARED_BODIES = {
    "byte order mark in the first chunk": b"\xef\xbb\xbf" + make_html(SENTENCE),
    "text": SENTENCE.encode(),
    "gzip": gzip.compress(make_html(SENTENCE)),
    "short text": b"a",
}


@pytest.mark.parametrize("kind", ["text/html", "text/plain", ""])
@pytest.mark.parametrize("sizes", [(100,), (1000,), (2, 7, 40), (1,)])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("body", UNDECLARED_BODIES.values(), ids=UNDECLARED_BODIES)
def test_chunks_that_no_header_declares_are_joined(write, kind, sizes, mark, body):
    data = mark + join_chunks(body, sizes)
    assert decode(data, is_html=kind == "text/html") == HttpBody(
        gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body, is_cut=False
    )
    (document,), errors, _ = read_archive(write, make_page(data, kind=kind))
    assert document.text.strip() in (SENTENCE, "\ufeff" + SENTENCE, "a") or kind == "text/plain"
    assert errors == [] and not document.is_truncated


def test_chunks_that_no_header_declares_may_be_cut():
    plain = join_chunks(b"an example of chunks", (9,))
    assert decode(plain[:-5], is_html=False) == HttpBody(b"an example of chunks", is_cut=True)
    assert decode(plain[:20], is_html=False) == HttpBody(b"an example o", is_cut=True)
    assert decode(plain[:12], is_html=False).data == plain[:12]
    packed = join_chunks(gzip.compress(make_html(SENTENCE)), (20,))[:60]
    assert make_html(SENTENCE).startswith(decode(packed, is_html=False).data)
    assert decode(packed[:15], is_html=False) == HttpBody(b"", is_cut=True)


@pytest.mark.parametrize(
    "text",
    [
        b"0\r\n\r\n",
        b"0\r\nZero",
        b"3\r\nabc\r\n",
        b"3\r\nabc\r\n4\r\nabc\r\n5\r\nabc\r\n0\r\n\r\n",
        b"1\n2\n3\n4\n",
        b"1\r\n2\r\n1\r\n5\r\n0\r\n\r\n",
        b"1\r\n0\r\n" * 9,
        b"5\nhello\n5\nworld\n",
        b"3\r\nabc\r\n0\r\nand the rest",
        b"64\r\n<p>short",
    ],
)
def test_numbers_that_are_no_sizes_of_chunks_are_text(text):
    assert decode(text, is_html=False) == HttpBody(text, is_cut=False)
    assert decode(gzip.compress(text), ("Content-Encoding", "gzip"), is_html=False).data == text


def test_chunks_within_compressed_data_are_joined():
    page = make_html(SENTENCE)
    assert decode(gzip.compress(join_chunks(page)), ("Content-Encoding", "gzip")).data == page
    headers = [("Content-Encoding", "gzip"), CHUNKED]
    assert decode(gzip.compress(join_chunks(page)), *headers).data == page


@pytest.mark.parametrize("size", [b"0x41", b"0X41 ", b"041"])
def test_a_size_of_a_chunk_may_have_a_prefix(size):
    data = size + b"\r\n" + b"a" * 65 + b"\r\n0x0\r\n\r\n"
    assert decode(data, CHUNKED) == HttpBody(b"a" * 65, is_cut=False)


@pytest.mark.parametrize(
    ("data", "is_html"),
    [
        (b"64\r\n<p>short\r\n0\r\n\r\nand so on" + b"x" * 100, True),
        (b"3\r\n<p>a\r\n" + b"x" * 100, True),
        (b"3\r\nabc\r\n3\r\ndefg\r\nhi", False),
        (b"3\r\nabcd\r\n0\r\n\r\n", False),
        (b"3\r\nabcd\r\n0\r\n", False),
    ],
)
def test_a_false_size_of_a_chunk_is_an_error(write, data, is_html):
    with pytest.raises(BodyError):
        decode(data, CHUNKED, is_html=is_html)
    kind = "text/html" if is_html else "text/plain"
    page = make_page(data, kind=kind, Transfer_Encoding="chunked")
    documents, errors, _ = read_archive(write, page + make_page(make_html("next")))
    assert (get_texts(documents), errors) == (["next"], [("record 1", NOT_HTTP)])


@pytest.mark.parametrize(
    "text", ["3 cows", "Add\nmore of it", "12\nis a number", "abc def\r\n", "10:30\r\nArrival", ""]
)
def test_plain_text_that_is_not_in_chunks_is_kept(text):
    assert decode(text.encode(), CHUNKED, is_html=False).data == text.encode()


def test_plain_text_in_one_cut_chunk_is_read():
    def join(data, **hints):
        return decode_http_body(data, [CHUNKED], LIMIT, is_html=False, **hints).data

    assert join(b"64\r\nA text") == b"A text"
    assert join(b"64\nA text", is_truncated=True) == b"A text"
    assert join(b"64\nA text") == b"64\nA text"
    assert join(b"64;a\r") == join(b"6") == b""


# Compression -------------------------------------------------------------------------------------

PAGES_BY_LANGUAGE = {
    "English": make_html(SENTENCE),
    "German": f"<p>{GERMAN}</p>".encode("latin-1"),
    "Russian": "<p>Совет собрался во вторник вечером.</p>".encode("cp1251"),
    "Japanese": "<p>議会は火曜日の夜に新しい橋について話し合った。</p>".encode("shift_jis"),
    "Chinese": "<p>市议会周二晚上开会讨论新桥。</p>".encode("gb18030"),
    "Greek": "<p>Το συμβούλιο συνεδρίασε την Τρίτη.</p>".encode("utf-8-sig"),
    "Arabic": "<p>اجتمع المجلس مساء الثلاثاء لمناقشة الجسر.</p>".encode(),
    "wide": "<p>Der Rat traf sich.</p>".encode("utf-16"),
    "XHTML": b'<?xml version="1.0"?>\n<html xmlns="http://www.w3.org/1999/xhtml"/>',
    "long, without tags": ("Совет собрался во вторник вечером. " * 9).encode("koi8-r"),
    "short, without tags": "Rat für Brücken".encode(),
}


@pytest.mark.parametrize("header", ENCODING_HEADERS)
@pytest.mark.parametrize("language", PAGES_BY_LANGUAGE)
def test_headers_of_an_encoding_that_was_undone_are_ignored(header, language):
    body = decode(PAGES_BY_LANGUAGE[language], header)
    assert (body.data, body.is_cut) == (PAGES_BY_LANGUAGE[language], False)


@pytest.mark.parametrize("encoding", COMPRESS_BY_ENCODING)
@pytest.mark.parametrize("language", PAGES_BY_LANGUAGE)
def test_every_compression_is_undone(encoding, language):
    page = PAGES_BY_LANGUAGE[language]
    compressed = COMPRESS_BY_ENCODING[encoding](page)
    header = ("content-encoding", f" {encoding.split(',')[0].upper()} ")
    assert decode(compressed, header).data == page
    assert decode(join_chunks(compressed), header, CHUNKED).data == page
    assert (
        decode(join_chunks(compressed), ("Transfer-Encoding", header[1] + ",chunked")).data == page
    )
    with pytest.raises(BodyTooLongError):
        decode(compressed, header, max_bytes=len(page) - 1)
    assert not decode(compressed, header, max_bytes=len(page)).is_cut


def test_stacked_and_undeclared_compressions_are_undone():
    page = make_html(SENTENCE)
    twice = gzip.compress(gzip.compress(page))
    assert decode(twice, ("Content-Encoding", "gzip, gzip")).data == page
    assert decode(twice).data == page
    assert decode(zstandard.compress(page)).data == page
    assert decode(gzip.compress(page[:40]) + gzip.compress(page[40:])).data == page
    assert decode(gzip.compress(page) + b"\r\n").data == page
    for names in ("gzip", "zstd"):
        body = COMPRESS_BY_ENCODING[names](zlib.compress(page))
        assert decode(body, ("Content-Encoding", f"deflate, {names}")).data == page
    mixed = brotli.compress(zlib.compress(page))
    assert decode(mixed, ("Content-Encoding", "deflate"), ("Content-Encoding", "br")).data == page


@pytest.mark.parametrize("is_in_chunks", [False, True])
@pytest.mark.parametrize("declared", ["gzip", "x-gzip", "deflate", "br", "zstd"])
@pytest.mark.parametrize("used", ["gzip", "deflate", "br", "zstd"])
@pytest.mark.parametrize("language", PAGES_BY_LANGUAGE)
def test_another_compression_than_the_declared_one_is_undone(
    declared, used, language, is_in_chunks
):
    page = PAGES_BY_LANGUAGE[language]
    compressed = COMPRESS_BY_ENCODING[used](page)
    data = join_chunks(compressed, (30,)) if is_in_chunks else compressed
    header = ("Content-Encoding", declared)
    if is_text(page):
        assert decode(data, header) == HttpBody(page, is_cut=False)
    with pytest.raises(BodyTooLongError):
        decode(data, header, max_bytes=len(page) - 1)


@pytest.mark.parametrize("declared", ["gzip", "zstd"])
def test_data_that_are_no_compressed_text_are_unchanged(declared):
    header = ("Content-Encoding", declared)
    image = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
    for data in (image, brotli.compress(image), zlib.compress(image), brotli.compress(b"")):
        assert decode(data, header) == HttpBody(data, is_cut=False)
    cut = brotli.compress(make_html(SENTENCE))[:-20]
    assert decode(cut, header).data == cut
    body = decode_http_body(cut, [header], LIMIT, is_html=True, is_truncated=True)
    assert len(body.data) > 50 and make_html(SENTENCE).startswith(body.data) and body.is_cut


def test_frames_of_zstd_follow_each_other():
    page = make_html(SENTENCE)
    body = decode(zstandard.compress(page[:40]) + zstandard.compress(page[40:]))
    assert (body.data, body.is_cut) == (page, False)


@pytest.mark.parametrize(
    ("data", "header", "content"),
    [
        (b"\x1f\x8b", ("Content-Encoding", "gzip"), b""),
        (b"\x28\xb5\x2f", ("Content-Encoding", "zstd"), b""),
        (b"3\r\n<p>\r\n5", CHUNKED, b"<p>"),
        (b"3\r\n<p>\r\n5;x\r", CHUNKED, b"<p>"),
        (b"3\r\n<p>\r\n", CHUNKED, b"<p>"),
        (b"3\r\n<p>\r", CHUNKED, b"<p>"),
        (b"3\r\n<p>", CHUNKED, b"<p>"),
        (b"3\r\n<p", CHUNKED, b"<p"),
        (b"3\r\n", CHUNKED, b""),
        (b"3", CHUNKED, b""),
    ],
)
def test_bodies_that_end_too_early_are_cut(data, header, content):
    body = decode(data, header)
    assert (body.data, body.is_cut) == (content, True)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
def test_damaged_compressed_data_are_an_error(encoding):
    compressed = bytearray(COMPRESS_BY_ENCODING[encoding](bytes(range(256)) * 20))
    compressed[5:60] = b"\xff" * 55
    with pytest.raises(BodyError):
        decode(bytes(compressed), ("Content-Encoding", encoding))


@pytest.mark.parametrize("encoding", COMPRESS_BY_ENCODING)
def test_cut_compressed_pages_are_read_up_to_the_cut(write, encoding):
    text = " ".join(f"line {number}" for number in range(3000))
    compressed = COMPRESS_BY_ENCODING[encoding](f"<p>{text}".encode())
    page = make_page(compressed[:-40], Content_Encoding=encoding.split(",")[0])
    (document,), errors, _ = read_archive(write, page)
    assert document.is_truncated and not errors
    assert text.startswith(document.text)


def test_a_large_zstd_window_is_refused():
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = compressor.compress(make_html(SENTENCE)) + compressor.flush()
    with pytest.raises(BodyError):
        decode(data, ("Content-Encoding", "zstd"))


def test_a_body_that_is_longer_than_allowed_is_an_error(write):
    for headers in ({}, {"Content_Encoding": "gzip"}):
        body = gzip.compress(bytes(b"x" * 5000)) if headers else b"x" * 900
        page = make_page(body, kind="text/plain", **headers)
        limit = 1000 if headers else 800
        assert read_archive(write, page, limit=limit)[1] == [("record 1", TOO_LONG)]


# Truncation --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "is_truncated"),
    [
        (make_page(make_html("one")), False),
        (make_record(b"one", WARC_Truncated="length"), True),
        (make_record(b"one"), False),
        (make_page(b"<p>one", Content_Length=7), True),
        (make_page(b"<p>one", Content_Length=6), False),
        (make_page(b"<p>one", Content_Length=5), False),
        (make_page(b"<p>one", Content_Length="many"), False),
        (make_page(b"<p>one", Content_Length=7, content_length=8), False),
        (make_page(b"<p>one", Content_Length=70, Content_Encoding="gzip"), False),
        (make_page(b"<p>one", Content_Length=70, Transfer_Encoding="chunked"), False),
    ],
)
def test_truncated_records_are_marked(write, record, is_truncated):
    (document,), errors, _ = read_archive(write, record)
    assert (document.text, document.is_truncated, errors) == ("one", is_truncated, [])


@pytest.mark.parametrize("cut_markup", ["", "<", "<b", "<b title='", "&", "&nbs", "&#x20"])
def test_tags_and_entities_that_were_cut_are_left_out(write, cut_markup):
    page = make_page(f"<p>one & two{cut_markup}".encode(), Content_Length=10_000)
    (document,), _, _ = read_archive(write, page)
    assert document.text == "one & two"
    page = make_page(b"<p>one & two &amp")
    assert get_texts(read_archive(write, page)[0]) == ["one & two &"]


# Charsets ----------------------------------------------------------------------------------------

RUSSIAN = "Совет собрался во вторник вечером, чтобы обсудить новый мост через реку."
JAPANESE = "議会は火曜日の夜に新しい橋について話し合った。"
CHINESE = "市议会周二晚上开会讨论新桥。"
KOREAN = "시의회는 화요일 저녁에 새 다리에 대해 논의했다."


@pytest.mark.parametrize(
    "text", [GERMAN, RUSSIAN, JAPANESE, CHINESE, KOREAN, "“Yes”", "5 €", "中文"]
)
@pytest.mark.parametrize(
    "charset", ["iso-8859-1", "windows-1251", "gbk", "shift_jis", "euc-kr", "koi8-r", "utf-16"]
)
@pytest.mark.parametrize("place", ["header", "meta", "xml"])
def test_utf8_that_is_declared_as_something_else_is_utf8(text, charset, place):
    html = f"<html><body><p>{text}</p></body></html>"
    if place == "meta":
        html = f'<meta charset="{charset}">{html}'
    if place == "xml":
        html = f"<?xml version='1.0' encoding='{charset}'?>{html}"
    charset = charset if place == "header" else ""
    decoded = web_pages.decode_page(html.encode(), charset, is_html=True)
    assert decoded == web_pages.DecodedText(html, 0)


@pytest.mark.parametrize(
    ("text", "charset", "encoding"),
    [
        (RUSSIAN, "windows-1251", "cp1251"),
        (RUSSIAN, "", "koi8-r"),
        (RUSSIAN, "utf-8", "cp1251"),
        (GERMAN, "utf-8", "latin-1"),
        ("It’s the council’s plan – “never again”, he said.", "utf-8", "cp1252"),
        (JAPANESE, "shift_jis", "shift_jis"),
        (JAPANESE, "", "euc_jp"),
        (JAPANESE, "", "iso2022_jp"),
        (JAPANESE, "iso-2022-jp", "iso2022_jp"),
        (CHINESE, "gb2312", "gbk"),
        (CHINESE, "utf-8", "gbk"),
        (KOREAN, "", "euc_kr"),
        (KOREAN, "utf-8", "euc_kr"),
        ("“สวัสดี”", "windows-874", "cp874"),
        (GERMAN, "utf-16", "utf-16-le"),
        (RUSSIAN, "utf-16be", "utf-16-be"),
        (GERMAN, "", "utf-16-le"),
        (GERMAN, "utf-8", "utf-16-be"),
    ],
)
def test_other_encodings_are_declared_or_detected(text, charset, encoding):
    html = f"<html><body><p>{text}</p></body></html>"
    decoded = web_pages.decode_page(html.encode(encoding), charset, is_html=True)
    assert decoded == web_pages.DecodedText(html, 0)


def test_the_encoding_of_an_xml_declaration_is_used():
    html = f"<?xml version='1.0' encoding='windows-1251'?><html><body>{RUSSIAN}</body></html>"
    decoded = web_pages.decode_page(html.encode("cp1251"), "", is_html=True)
    assert decoded.text == html


@pytest.mark.parametrize(
    ("text", "charset", "encoding"),
    [
        (GERMAN, "utf-8", "utf-8"),
        (GERMAN, "iso-8859-1", "utf-8"),
        (GERMAN, "", "utf-8-sig"),
        (SENTENCE, "utf-8", "utf-8"),
        (JAPANESE, "utf-8", "utf-8"),
        (JAPANESE, "euc-jp", "utf-8"),
        (JAPANESE * 9, "euc-jp", "euc_jp"),
        (KOREAN * 9, "", "euc_kr"),
        (RUSSIAN * 9, "windows-1253", "cp1253"),
    ],
)
def test_one_bad_byte_costs_one_character(text, charset, encoding):
    if encoding == "cp1253":
        text = "Το συμβούλιο συνεδρίασε την Τρίτη το βράδυ για τη νέα γέφυρα."
    page = f"<p>{text}</p>".encode(encoding)
    bad_byte = b"\xaa" if encoding == "cp1253" else b"\xff"
    decoded = web_pages.decode_page(page[:-4] + bad_byte + page[-4:], charset, is_html=True)
    assert decoded == web_pages.DecodedText(f"<p>{text}</p>", 1)


def test_characters_that_the_page_itself_replaced_are_not_counted():
    decoded = web_pages.decode_page("<p>f\ufffdr \ufffd ".encode() + b"\xff", "utf-8", is_html=True)
    assert decoded == web_pages.DecodedText("<p>f\ufffdr \ufffd ", 1)


def test_a_page_with_many_bad_bytes_is_an_error(write):
    bad_pages = [
        make_page(b"\xef\xbb\xbf<p>" + b"\xff \xfe " * 50),
        make_page(b"<p>" + b"\xff\x81\x8d\x8f " * 50),
    ]
    documents, errors, _ = read_archive(write, b"".join(bad_pages) + make_page(make_html("next")))
    assert get_texts(documents) == ["next"]
    assert [error for _, error in errors] == [web_pages.UNDECODABLE] * 2


def test_conversions_lose_single_characters_only(write):
    records = [
        make_record(b"caf\xe9"),
        make_record(GERMAN.encode()[:-1] + b"\xc3"),
        make_record(b"\xe9t\xe9"),
    ]
    documents, errors, _ = read_archive(write, b"".join(records))
    assert get_texts(documents) == ["caf", GERMAN[:-1]]
    assert [record.lost_characters for record in documents] == [1, 1]
    assert errors == [("record 3", NOT_UTF8)]


@pytest.mark.parametrize(
    ("text", "encoding", "charset"),
    [
        (GERMAN, "utf-8", "utf-8"),
        (RUSSIAN, "utf-8", "windows-1251"),
        (CHINESE, "utf-8", ""),
        (CHINESE, "gb18030", "gbk"),
        (JAPANESE, "cp932", "shift_jis"),
        (RUSSIAN, "utf-16", ""),
        ("cafés", "utf-8", "iso-8859-1"),
    ],
)
def test_a_page_cut_inside_a_character_loses_that_character(text, encoding, charset):
    page = f"<p>{text}".encode(encoding)
    for size in range(len(f"<p>{text[:3]}".encode(encoding)), len(page) + 1):
        decoded = web_pages.decode_page(page[:size], charset, is_html=True, is_truncated=True)
        assert f"<p>{text}".startswith(decoded.text)
        kept_bytes = len(decoded.text.encode(encoding))
        assert decoded.lost_characters == (kept_bytes < size)


# Files of other kinds ----------------------------------------------------------------------------

OTHER_FILES = {
    "pdf": b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog >>\nendobj\n",
    "pdf after a line": b"\r\n%PDF-1.7\n%\xe2\xe3\xcf\xd3\n",
    "postscript": b"%!PS-Adobe-3.0\n/Helvetica findfont\n",
    "rtf": b"{\\rtf1\\ansi Hello}",
    "png": b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR\0\0\0\1",
    "jpeg": b"\xff\xd8\xff\xe0" + bytes(range(200, 256)) * 9,
    "gif": b"GIF89a\x01\0\x01\0\x80",
    "webp": b"RIFF\x24abcWEBPVP8 ",
    "zip": b"PK\x03\x04\x14\0\x08",
    "mp4": b"\0\0\0\x20ftypisom\0\0\2\0isomiso2",
    "zeros": bytes(5000),
    "lzw": b"\x1f\x9d\x90" + bytes(range(256)) * 3,
    "svg": b'<?xml version="1.0"?><!-- x --><svg a="b" xmlns="http://www.w3.org/2000/svg">x</svg>\n',
}


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "text/html", "text/plain", ""])
@pytest.mark.parametrize("name", OTHER_FILES)
def test_files_of_other_kinds_are_no_documents(write, name, kind):
    for data in (OTHER_FILES[name], gzip.compress(OTHER_FILES[name])):
        page = make_page(data, kind=kind)
        documents, errors, counts = read_archive(write, page + make_page(make_html("next")))
        assert (get_texts(documents), errors) == (["next"], [])
        assert counts.skipped_by_kind[NOT_TEXT] == [1, len(page)]


@pytest.mark.parametrize(
    "body",
    [
        b"<p>%PDF-1.4 is a version",
        b"<svg><path/></svg><p>BMW built it</p>",
        b'<svg xmlns="http://www.w3.org/2000/svg"><path/></svg><p>PK and GIF</p>',
        b"BM and MZ and II*",
        b"a\x00b\x01c\x02",
        b"<p>" + (b"text " * 9 + b"\x0b") * 20,
    ],
)
def test_texts_like_files_of_other_kinds_are_documents(write, body):
    documents, errors, _ = read_archive(write, make_page(body))
    assert (len(documents), errors) == (1, [])


# Lists -------------------------------------------------------------------------------------------

ITEMS = "<li>Five hundred grams of flour</li><li>Two eggs</li>"
ITEM_LINES = ["• Five hundred grams of flour", "• Two eggs"]
LINKS = "<li><a href=a>Home</a></li><li><a href=b>News</a></li>"
LINK_LINES = ["• Home", "• News"]


def extract_lines(html, main_content=True):
    text = web_pages.extract_page_text(html, main_content)
    return [line.strip() for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize(
    "html",
    [
        "<main><p>x</p><ul>{}</ul></main>",
        "<article><p>x</p><ul>{}</ul></article>",
        "<div role=main><p>x</p><div><ul>{}</ul></div></div>",
        "<p>x</p><ul>{}</ul>",
        "<div><p>x</p><ul>{}</ul></div>",
        "<div><div><p>x</p><ul>{}</ul></div></div>",
        "<div><div><div><p>x</p><ul>{}</ul></div></div></div>",
        "<main><p>x</p><ul class='menu big' id=nav-menu>{}</ul></main>",
        "<article><div><div><div><p>x</p><ul class=navigation>{}</ul></div></div></div></article>",
        "<p>x</p><UL>{}</UL>",
        "<header><article><p>x</p><ul>{}</ul></article></header>",
        "<section><h2>x</h2><ul class='list menu-list'>{}</ul></section>",
        "<div><div><div><div><p>x</p><ul>{}<ul></div></div></div></div>",
    ],
)
def test_lists_of_content_survive(html):
    assert extract_lines(html.format(ITEMS)) == ["x", *ITEM_LINES]


@pytest.mark.parametrize(
    "wrap",
    [
        "<main>{}</main>",
        "<article><div>{}</div></article>",
        "<div><div><div><div>{}</div></div></div></div>",
        "{}",
    ],
)
def test_lists_of_links_survive_in_content_and_after_text(wrap):
    html = wrap.format(f"<h2>See also</h2><ul>{LINKS}</ul>") + "<p>x"
    assert extract_lines(html) == ["See also", *LINK_LINES, "x"]


@pytest.mark.parametrize(
    "html",
    [
        "<ul>{}</ul><p>x</p>",
        "<div><ul>{}</ul></div><p>x</p>",
        "<nav><ul>{}</ul></nav><p>x</p>",
        "<nav><h2>Pages</h2><ul>{}</ul></nav><p>x</p>",
        "<header><div><ul>{}</ul></div></header><p>x</p>",
        "<div><img><ul>{}<li>and more</ul></div><p>x</p>",
        "<main><ul class=menu>{}</ul><p>x</p></main>",
        "<p>x</p><ul class=menu>{}</ul>",
        "<p>x</p><div id=y><ul id=nav>{}</ul></div>",
        "<p>x</p><footer><ul>{}</ul></footer>",
        "<div><div><div><div><ul>{}</ul><p>x</p></div></div></div></div>",
        "<p>x</p><ul><li><h3><a href=a>Home</a></h3>and why<li><a href=b><h3>News</h3></a></ul>",
        "<p>x</p><ul hidden>{}</ul>",
        "<p>x</p><ul class='menu hidden'>{}</ul>",
    ],
)
def test_lists_of_navigation_are_left_out(html):
    assert extract_lines(html.format(LINKS)) == ["x"]
    assert extract_lines(html.format(LINKS), main_content=False) != ["x"]


def test_a_page_of_lists_is_not_empty():
    assert extract_lines(f"<ul>{ITEMS}</ul>") == ITEM_LINES
    assert extract_lines(f"<ul>{LINKS}</ul>") == LINK_LINES
    assert extract_lines(f"<div><h1>Links</h1></div><div><ul>{LINKS}</ul></div>") == [
        "Links",
        *LINK_LINES,
    ]
    nested = f"<ul><li>Cake<ul>{ITEMS}</ul><li>Links<ul>{LINKS}</ul></ul>"
    assert extract_lines(nested) == ["• Cake", *ITEM_LINES, "• Links", *LINK_LINES]
    assert extract_lines(f"<h1>{'long ' * 300}</h1><div><ul>{LINKS}</ul></div>") == [
        "long " * 299 + "long"
    ]


def test_the_format_of_lists_is_kept():
    html = "<p>before<ul><li>a<ul><li>b</ul><li>c</ul><p>after"
    near = web_pages.extract_page_text(html, main_content=True)
    assert near == "before\n\n  • a\n    • b\n  • c\n\nafter"
    assert near == web_pages.extract_page_text(html, main_content=False)


def test_only_some_of_many_lists_are_measured(monkeypatch):
    html = f"<div>{'<img><ul><li>item</ul>' * 50}</div><p>x"
    assert extract_lines(html) == ["• item"] * 50 + ["x"]
    monkeypatch.setattr(page_content, "MAX_READS", 0)
    assert extract_lines(html) == ["x"]


# Any text ----------------------------------------------------------------------------------------

CHARSETS = {
    "utf-8": "utf-8",
    "utf-8-sig": "iso-8859-1",
    "utf-16": "",
    "cp1251": "windows-1251",
    "koi8-r": "koi8-r",
    "cp932": "shift_jis",
    "gb18030": "gb2312",
    "euc_jp": "euc-jp",
    "cp949": "euc-kr",
    "big5hkscs": "big5",
}
PLAIN_TEXTS = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Cn", "Co"], exclude_characters="\ufeff\ufffd"),
    min_size=1,
)
CHUNK_SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=5)
EXTENSIONS = st.sampled_from([b"", b" ", b";a=b", b'; q="x;y"'])


def encode_body(data, text, charset, compression, is_chunked):
    """Compress and chunk a body; return it with its headers."""
    headers = {"kind": f"text/plain; charset={charset}"}
    if compression:
        text = COMPRESS_BY_ENCODING[compression](text)
        headers["Content_Encoding"] = compression.split(",")[0]
    if is_chunked:
        line_end = data.draw(st.sampled_from([b"\r\n", b"\n"]))
        text = join_chunks(text, data.draw(CHUNK_SIZES), line_end, data.draw(EXTENSIONS))
        headers["Transfer_Encoding"] = "chunked"
    return text, headers


@settings(deadline=None, max_examples=300)
@given(
    data=st.data(),
    text=PLAIN_TEXTS,
    encoding=st.sampled_from(sorted(CHARSETS)),
    compression=st.sampled_from(["", *COMPRESS_BY_ENCODING]),
    is_chunked=st.booleans(),
)
def test_any_text_comes_back_however_it_was_encoded(
    tmp_path_factory, data, text, encoding, compression, is_chunked
):
    encoded = text.encode(encoding, "ignore")
    text = encoded.decode(encoding)
    is_utf8 = encoding.startswith("utf-8") or not is_valid_utf8_with_letters(encoded)
    assume(text and is_utf8)  # known limit: another encoding may be valid UTF-8 by chance
    body, headers = encode_body(data, encoded, CHARSETS[encoding], compression, is_chunked)
    path = tmp_path_factory.mktemp("warc") / "a.warc"
    path.write_bytes(make_page(body, **headers))
    (document,), errors, _ = read_checked(path, "warc", limit=LIMIT)
    assert (document.text, errors) == (text, [])
    assert (document.is_truncated, document.lost_characters) == (False, 0)


def is_valid_utf8_with_letters(data):
    """Return whether data that are not ASCII are mostly valid UTF-8."""
    text = data.decode("utf-8", "replace")
    lost_count = text.count("\ufffd")
    return sum(character > "\x7f" for character in text) - lost_count >= max(1, lost_count)


@settings(deadline=None, max_examples=300)
@given(
    data=st.data(),
    text=PLAIN_TEXTS,
    compression=st.sampled_from(["", *COMPRESS_BY_ENCODING]),
    line=st.sampled_from(["", "A line without size.\n"]),
)
def test_any_cut_gives_the_beginning_of_the_text(tmp_path_factory, data, text, compression, line):
    """No document contains the size of a chunk, and every byte is accounted for."""
    text = f"Zürich, übermäßig groß: {line}{text}"
    body, headers = encode_body(data, text.encode(), "iso-8859-1", compression, True)
    body = body[: data.draw(st.integers(0, len(body)))]
    path = tmp_path_factory.mktemp("warc") / "a.warc"
    page = make_page(body, **headers)
    page = page.replace(b"WARC-Type", b"WARC-Truncated: length\r\nWARC-Type", 1)
    path.write_bytes(page + make_record(b"next"))
    documents, errors, _ = read_checked(path, "warc", limit=LIMIT)
    assert documents[-1].text == "next" and len(documents) + len(errors) == 2
    for document in documents[:-1]:
        assert text.startswith(document.text) and document.is_truncated
        assert document.lost_characters <= 1


@settings(deadline=None, max_examples=300)
@given(body=st.binary(max_size=300), data=st.data())
def test_any_body_with_any_headers_is_read(tmp_path_factory, body, data):
    headers = dict(data.draw(st.lists(st.sampled_from(ENCODING_HEADERS), max_size=3)))
    body = data.draw(st.sampled_from([b"", b"5\r\n", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"])) + body
    kind = data.draw(st.sampled_from(["text/html", "text/plain; charset=shift_jis", ""]))
    path = tmp_path_factory.mktemp("warc") / "a.warc"
    path.write_bytes(make_page(body, kind=kind, **headers) + make_record(b"next"))
    documents, errors, counts = read_checked(path, "warc", limit=LIMIT)
    skipped_count = sum(records for records, _ in counts.skipped_by_kind.values())
    assert documents[-1].text == "next"
    assert len(documents) + len(errors) + skipped_count == 2
