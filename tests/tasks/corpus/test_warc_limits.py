"""Test web archives that are made to take much time or memory."""

import gzip
import time
import tracemalloc

import pytest

from hallmark.tasks.corpus.reading import web_pages
from hallmark.tasks.corpus.reading.readers import TOO_LONG
from hallmark.tasks.corpus.reading.warc import NO_HEADER, NOT_WARC
from tests.tasks.corpus.reader_helpers import COMPRESS_BY_ENDING, get_texts, read_checked
from tests.tasks.corpus.test_warc import make_html, make_page, make_record, read_archive

MANY_ATTRIBUTES = " ".join(f"a{n}=1" for n in range(40_000))
BOMBS = {
    "div": "<div>" * 60_000,
    "attributes": f"<a {MANY_ATTRIBUTES}>",
    "attributes in quotes": "<a " + " ".join(f'a{n}="<b c>"' for n in range(20_000)) + ">",
    "reopened": "<p>" + "".join(f"<b id={n}>" for n in range(3000)) + "</p>" + "<p>x</p>" * 30_000,
    "false end tags": "<div></b>" * 60_000,
    "attributes of an end tag": "</a " + MANY_ATTRIBUTES + ">",
    "attributes without spaces": "<a " + "".join(f"a{n}=''" for n in range(40_000)) + ">",
    "attributes after a comment": f'<!-- <a b="--><a {MANY_ATTRIBUTES} b="">',
    "attributes after a script": f'<script><a b="</script><a {MANY_ATTRIBUTES} b="">',
    "attributes of many bodies": "".join(
        "<body " + " ".join(f"a{m}x{n}" for n in range(4000)) + ">" for m in range(20)
    ),
    "end tags in comments": "<div><!--</div>-->" * 60_000,
    "end tags in attributes": "<div><img alt='</div>'>" * 60_000,
    "end tags in scripts": "<div><script></div></script>" * 60_000,
    "end tags in a script in a comment": "<div><script><!--<script></script>--></div></script>"
    * 60_000,
    "end tags in a script with a longer name": "<div><script></scripts></div></script>" * 60_000,
    "end tags in CDATA": "<svg><g><![CDATA[</g>]]>" * 60_000,
    "end tags in the title of an image": "<svg><title><div><title></div></title></title>" * 60_000,
    "no end tags": "<svg>" + "<path d=x/>" * 60_000,
    "no end tags outside": "<svg></p>" + "<path/>" * 60_000,
    "end tags of a closed image": ("<svg><g><p><b>" + "<g/>" * 20 + "</g></svg>") * 3000,
    "end tags of elements that are not open": "<span><p></span></p>" * 60_000,
    "end tags under another element": "<span><div></span></div>" * 60_000,
    "end tags out of scope": ("<div>" * 100 + "<object>" + "</div>" * 100 + "</object>") * 600,
    "end tags with other names": "<x\u212a></xk><y\xa0></y><z></z\x1f>" * 20_000,
    "end tags with long names": f"<{'x' * 99}a></{'x' * 99}b>" * 20_000,
    "text in nested lists": "<ul><li>" * 3000 + "x" * 5_000_000,
    "text in nested elements": "<div>" * 1500 + "x " * 1_000_000 + "</div>" * 1500,
    "half of the elements closed": "<div><div></div>" * 30_000,
}
HEAVY = {
    "div": "<div>" * 5000,
    "table": "<table><tr><td>" * 2000,
    "wide": "<div>x</div>" * 100_000,
    "font": "<font><p>" * 1000,
    "attributes": "<a " + " ".join(f"a{n}=1" for n in range(4000)) + ">",
    "quotes": "<a b='\"" * 5_000,
    "images": "<div><svg><title>x</title><g><path d=''/><path/></g></svg></div>" * 20_000,
    "scripts": "<div><script>'<div>' + '<b>' + (a<b)</script><!-- <div> --></div>" * 20_000,
    "lists": "<ul><li><p>x<li><b>x</b></ul>" * 20_000,
    "tables": "<table>" + "<tr><td><a>x</a><td><i>x</i>" * 20_000 + "</table>",
    "lone": "<" * 500_000,
    "entities": "&amp;" * 200_000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_html_bombs_are_refused_quickly(write, name):
    data = make_page(BOMBS[name].encode(), kind="text/html; charset=utf-8") + make_page(
        make_html("next")
    )
    start = time.process_time()
    documents, errors, _ = read_archive(write, data, limit=10**7)
    assert get_texts(documents) == ["next"]
    assert [error for _, error in errors] in (
        [web_pages.TOO_NESTED],
        [web_pages.TOO_MANY_ATTRIBUTES],
    )
    assert time.process_time() - start < 20


@pytest.mark.parametrize("name", HEAVY)
def test_heavy_html_is_read(write, name):
    data = make_page(HEAVY[name].encode()) + make_page(make_html("next"))
    start = time.process_time()
    documents, errors, _ = read_archive(write, data, limit=10**7)
    assert (get_texts(documents)[-1], len(documents), errors) == ("next", 2, [])
    assert time.process_time() - start < 20


@pytest.mark.parametrize("markup", ["<ul>x", "<ul><li>x", "<ol><li>x"])
def test_the_indentation_of_deeply_nested_lists_is_limited(markup):
    """Without a limit, the length of the text grows with the square of the number of lists."""
    text = web_pages.extract_page_text(f"<body>{markup * 3000}", main_content=False)
    assert text.count("x") == 3000
    assert max(len(line) for line in text.splitlines()) <= 110


def test_the_indentation_of_nested_lists_is_kept():
    text = web_pages.extract_page_text(f"<body>{'<ul>x' * 40}", main_content=False)
    indentations = [len(line) - len(line.lstrip()) for line in text.splitlines()]
    assert indentations == sorted({*indentations}) and len(indentations) == 40


def test_a_highly_compressed_response_is_not_kept_in_memory(write):
    bomb = gzip.compress(bytes(300_000_000))
    tracemalloc.start()
    documents, errors, _ = read_archive(
        write, make_page(bomb, Content_Encoding="gzip") + make_page(make_html("next")), limit=10**6
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (get_texts(documents), errors) == (["next"], [("record 1", TOO_LONG)])
    assert peak < 20_000_000


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_record_of_100_megabytes_is_not_kept_in_memory(tmp_path, ending):
    long_page = make_page(b"<p>" + b"x" * 100_000_000)
    video = make_page(bytes(30_000_000), kind="video/mp4")
    pieces = [make_record(b"first"), long_page, video, make_record(b"last")]
    path = tmp_path / f"a.warc{ending}"
    path.write_bytes(b"".join(COMPRESS_BY_ENDING[ending](p) if ending else p for p in pieces))
    del pieces, long_page, video
    tracemalloc.start()
    documents, errors, counts = read_checked(path, "warc", limit=10**6)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (get_texts(documents), errors) == (["first", "last"], [("record 2", TOO_LONG)])
    assert counts.skipped_by_kind["response that is not text"][0] == 1
    assert peak < 20_000_000


@pytest.mark.parametrize("size", [900, 1100, 4000, 5000, 17_000])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_long_headers_are_read(write, size, ending):
    rows = [
        make_record(b"first"),
        make_record(b"long", WARC_Target_URI="x" * size),
        make_record(b"last"),
    ]
    data = b"".join(COMPRESS_BY_ENDING[ending](row) if ending else row for row in rows)
    documents, errors, _ = read_archive(write, data, f"a.warc{ending}", limit=10**5)
    assert (get_texts(documents), errors) == (["first", "long", "last"], [])
    assert documents[1].raw_bytes == len(rows[1])


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("size", [32_000, 33_000, 60_000, 65_000])
def test_a_header_that_is_too_long_is_an_error_of_its_record(write, size, ending):
    """This holds for any kind of record."""
    rows = [
        make_record(b"first"),
        make_record(b"long", WARC_Target_URI="x" * size),
        make_page(make_html("page")),
        make_record(b"noted", "metadata", WARC_Target_URI="x" * size),
        make_record(b"last"),
    ]
    data = b"".join(COMPRESS_BY_ENDING[ending](row) if ending else row for row in rows)
    documents, errors, counts = read_archive(write, data, f"a.warc{ending}", limit=10**6)
    assert counts.byte_count == sum(map(len, rows))
    if size < 32_768:
        assert (get_texts(documents), errors) == (["first", "long", "page", "last"], [])
    else:
        assert get_texts(documents) == ["first", "page", "last"]
        assert errors == [("record 2", NOT_WARC), ("record 4", NOT_WARC)]


def test_a_header_with_an_unknown_version_is_an_error(write):
    unknown_version = make_page(make_html("two")).replace(b"WARC/1.0", b"WARC/7.0")
    rows = [make_page(make_html("one")), unknown_version, make_record(b"three")]
    documents, errors, _ = read_archive(write, b"".join(rows))
    assert (get_texts(documents), errors) == (["one", "three"], [("record 2", NOT_WARC)])


def test_many_members_without_a_complete_header_are_read_quickly(write):
    start = time.process_time()
    member = gzip.compress(b"WARC/1.0\n" + b"name: value\n" * 90)
    documents, errors, _ = read_archive(write, member * 1500, "a.warc.gz")
    assert (documents, {error for _, error in errors}, len(errors)) == ([], {NO_HEADER}, 1500)
    assert time.process_time() - start < 1


@pytest.mark.parametrize("kept_bytes", [10, 40, 1500])
def test_an_archive_may_end_within_a_header(write, kept_bytes):
    data = make_record(b"first") + make_record(b"cut off", WARC_Target_URI="x" * 2000)[:kept_bytes]
    documents, errors, counts = read_archive(write, data)
    assert (get_texts(documents), errors) == (["first"], [("record 2", NO_HEADER)])
    assert counts.byte_count == len(data)
