"""Web archives that are made to take long, or to be held in memory."""

import gzip
import time
import tracemalloc

import pytest

from hallmark.tasks.corpus.reading import web_pages
from hallmark.tasks.corpus.reading.readers import TOO_LONG
from hallmark.tasks.corpus.reading.warc import NO_HEADER, NOT_WARC
from tests.tasks.corpus.reading import PACK, read, texts
from tests.tasks.corpus.test_warc import archive, html, page, record

MANY = " ".join(f"a{n}=1" for n in range(40_000))
BOMBS = {
    "div": "<div>" * 60_000,
    "attributes": f"<a {MANY}>",
    "attributes in quotes": "<a " + " ".join(f'a{n}="<b c>"' for n in range(20_000)) + ">",
    "reopened": "<p>" + "".join(f"<b id={n}>" for n in range(3000)) + "</p>" + "<p>x</p>" * 30_000,
    "false ends": "<div></b>" * 60_000,
    "attributes of an end": "</a " + MANY + ">",
    "attributes without spaces": "<a " + "".join(f"a{n}=''" for n in range(40_000)) + ">",
    "attributes behind a comment": f'<!-- <a b="--><a {MANY} b="">',
    "attributes behind a script": f'<script><a b="</script><a {MANY} b="">',
    "attributes of many bodies": "".join(
        "<body " + " ".join(f"a{m}x{n}" for n in range(4000)) + ">" for m in range(20)
    ),
    "ends in comments": "<div><!--</div>-->" * 60_000,
    "ends in attributes": "<div><img alt='</div>'>" * 60_000,
    "ends in scripts": "<div><script></div></script>" * 60_000,
    "ends in a script in a comment": "<div><script><!--<script></script>--></div></script>"
    * 60_000,
    "ends in a script of a longer name": "<div><script></scripts></div></script>" * 60_000,
    "ends in CDATA": "<svg><g><![CDATA[</g>]]>" * 60_000,
    "ends in the title of an image": "<svg><title><div><title></div></title></title>" * 60_000,
    "no ends": "<svg>" + "<path d=x/>" * 60_000,
    "no ends outside": "<svg></p>" + "<path/>" * 60_000,
    "ends of an image that ended": ("<svg><g><p><b>" + "<g/>" * 20 + "</g></svg>") * 3000,
    "ends of what is not open": "<span><p></span></p>" * 60_000,
    "ends under another": "<span><div></span></div>" * 60_000,
    "ends out of reach": ("<div>" * 100 + "<object>" + "</div>" * 100 + "</object>") * 600,
    "ends of other names": "<x\u212a></xk><y\xa0></y><z></z\x1f>" * 20_000,
    "ends of long names": f"<{'x' * 99}a></{'x' * 99}b>" * 20_000,
    "half of it closed": "<div><div></div>" * 30_000,
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
def test_html_bombs_are_refused_in_little_time(write, name):
    data = page(BOMBS[name].encode(), kind="text/html; charset=utf-8") + page(html("next"))
    start = time.process_time()
    good, bad, _ = archive(write, data, limit=10**7)
    assert texts(good) == ["next"]
    assert [error for _, error in bad] in ([web_pages.TOO_NESTED], [web_pages.TOO_MANY_ATTRIBUTES])
    assert time.process_time() - start < 20


@pytest.mark.parametrize("name", HEAVY)
def test_heavy_html_is_read(write, name):
    data = page(HEAVY[name].encode()) + page(html("next"))
    start = time.process_time()
    good, bad, _ = archive(write, data, limit=10**7)
    assert (texts(good)[-1], len(good), bad) == ("next", 2, [])
    assert time.process_time() - start < 20


def test_a_response_that_swells_is_not_held(write):
    bomb = gzip.compress(bytes(300_000_000))
    tracemalloc.start()
    good, bad, _ = archive(
        write, page(bomb, Content_Encoding="gzip") + page(html("next")), limit=10**6
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (texts(good), bad) == (["next"], [("record 1", TOO_LONG)])
    assert peak < 20_000_000


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_record_of_100_megabytes_is_not_held(tmp_path, ending):
    long, video = page(b"<p>" + b"x" * 100_000_000), page(bytes(30_000_000), kind="video/mp4")
    pieces = [record(b"first"), long, video, record(b"last")]
    path = tmp_path / f"a.warc{ending}"
    path.write_bytes(b"".join(PACK[ending](p) if ending else p for p in pieces))
    del pieces, long, video
    tracemalloc.start()
    good, bad, meter = read(path, "warc", limit=10**6)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (texts(good), bad) == (["first", "last"], [("record 2", TOO_LONG)])
    assert meter.skipped_by_kind["response that is no text"][0] == 1
    assert peak < 20_000_000


@pytest.mark.parametrize("size", [900, 1100, 4000, 5000, 17_000])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_long_headers_are_read(write, size, ending):
    rows = [record(b"first"), record(b"long", WARC_Target_URI="x" * size), record(b"last")]
    data = b"".join(PACK[ending](row) if ending else row for row in rows)
    good, bad, _ = archive(write, data, f"a.warc{ending}", limit=10**5)
    assert (texts(good), bad) == (["first", "long", "last"], [])
    assert good[1].raw_bytes == len(rows[1])


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("size", [32_000, 33_000, 60_000, 65_000])
def test_a_header_that_is_too_long_is_told_as_that(write, size, ending):
    """And costs no more than its record, whatever kind of record it is of."""
    rows = [
        record(b"first"),
        record(b"long", WARC_Target_URI="x" * size),
        page(html("page")),
        record(b"noted", "metadata", WARC_Target_URI="x" * size),
        record(b"last"),
    ]
    data = b"".join(PACK[ending](row) if ending else row for row in rows)
    good, bad, meter = archive(write, data, f"a.warc{ending}", limit=10**6)
    assert meter.byte_count == sum(map(len, rows))
    if size < 32_768:
        assert (texts(good), bad) == (["first", "long", "page", "last"], [])
    else:
        assert texts(good) == ["first", "page", "last"]
        assert bad == [("record 2", NOT_WARC), ("record 4", NOT_WARC)]


def test_a_header_of_a_version_that_nobody_knows_is_told_as_that(write):
    two = page(html("two")).replace(b"WARC/1.0", b"WARC/7.0")
    rows = [page(html("one")), two, record(b"three")]
    good, bad, _ = archive(write, b"".join(rows))
    assert (texts(good), bad) == (["one", "three"], [("record 2", NOT_WARC)])


def test_many_members_without_a_whole_header_take_little_time(write):
    start = time.process_time()
    member = gzip.compress(b"WARC/1.0\n" + b"name: value\n" * 90)
    good, bad, _ = archive(write, member * 1500, "a.warc.gz")
    assert (good, {error for _, error in bad}, len(bad)) == ([], {NO_HEADER}, 1500)
    assert time.process_time() - start < 1


@pytest.mark.parametrize("left", [10, 40, 1500])
def test_an_archive_that_ends_within_a_header(write, left):
    data = record(b"first") + record(b"cut off", WARC_Target_URI="x" * 2000)[:left]
    good, bad, meter = archive(write, data)
    assert (texts(good), bad) == (["first"], [("record 2", NO_HEADER)])
    assert meter.byte_count == len(data)
