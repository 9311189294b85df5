"""Test URLs, domains and dates: they are read from any source, or null and counted."""

import csv
import datetime
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from hallmark.tasks.corpus.deduplicate import DeduplicateConfig, deduplicate
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.language import LanguageConfig, identify_languages
from hallmark.tasks.corpus.plant_canaries import PlantCanariesConfig, plant_canaries
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.corpus.reading.metadata import extract_domains, normalise_date
from hallmark.tasks.corpus.select import SelectConfig, select_documents
from hallmark.tasks.corpus.split import SplitConfig, split_corpus
from tests.tasks.corpora import scrubbed
from tests.tasks.corpus.reader_helpers import read_all, read_checked
from tests.tasks.corpus.test_columns import make_parquet
from tests.tasks.corpus.test_datasets import read_hub_dataset


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://www.Example.COM:80/x", "example.com"),
        ("https://user:p@ss@sub.example.org?x", "sub.example.org"),
        ("https://www.example.co.uk.", "example.co.uk"),
        ("HTTP://WWW.WWW.X.DE#f", "www.x.de"),
        ("http://bücher.de/", "xn--bcher-kva.de"),
        ("http://xn--bcher-kva.de", "xn--bcher-kva.de"),
        ("http://good.com\\@evil.com/", "good.com"),  # as browsers read it
        ("http://[2001:DB8::1]:8/", "[2001:db8::1]"),
        ("http://192.0.2.1:5", "192.0.2.1"),
        ("http:///x", "x"),  # as browsers read it
        ("//x.y/", "x.y"),
        *(
            (none, None)
            for none in (
                None,
                "",
                "no url",
                "http://",
                "http://a b/",
                "http://h..x/",
                "http://x.y:port/",
                "javascript:alert(1)",
                "http://" + "a" * 300,
                "mailto:a@b.c",
                "http://ü" + "x" * 10**6,
            )
        ),
    ],
)
def test_domains_of_urls(url, host):
    assert extract_domains(pa.array([url], pa.string())).to_pylist() == [host]


def test_hosts_and_urls_have_a_maximum_length(write):
    """RFC 1035: 253 characters as written; URLs over 8,192 characters are ignored."""
    label = "a" * 63 + "."
    hosts = [label * 3 + "a" * n for n in (61, 62)]
    assert extract_domains(pa.array([f"http://{host}/" for host in hosts])).to_pylist() == [
        hosts[0],
        None,
    ]
    rows = [{"text": "x", "u": "u" * size} for size in (8192, 8193)]
    path = write("a.jsonl", "\n".join(map(json.dumps, rows)).encode())
    documents, errors, _ = read_checked(path, "jsonl", limit=10_000, url_field="u")
    assert [(r.url, r.unreadable_labels) for r in documents] == [
        ("u" * 8192, 0),
        (None, 1),
    ] and not errors


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("2020-02-29", "2020-02-29"),
        (" 2020-01-01T10:11:12Z ", "2020-01-01T10:11:12Z"),
        ("2020-01-01T00:30:00+02:00", "2019-12-31T22:30:00Z"),
        ("2020-01-01t00:30:00.999999999-0330", "2020-01-01T04:00:00Z"),
        ("2020-01-01T00:30+02", "2019-12-31T22:30:00Z"),
        ("2020-01-01 10:11", "2020-01-01"),  # without a zone only the day is known
        (datetime.date(1999, 12, 31), "1999-12-31"),
        (datetime.datetime(1999, 12, 31, 23, tzinfo=datetime.UTC), "1999-12-31T23:00:00Z"),
        *(
            (none, None)
            for none in (
                "2020-02-30",
                "0001-01-01T00:00:00+05:00",
                "9999-12-31T23:59:59-01:00",
                "2020",
                "x",
                "",
                "20200101",
                "01.02.2020",
                1577836800,
                1.5,
                ["2020-01-01"],
                "2020-01-01T25:00:00Z",
            )
        ),
    ],
)
def test_dates_are_normalised(given, expected):
    assert normalise_date(given) == expected


ROWS = [
    ("one", "https://www.a.example/x?y", "2020-01-01"),
    ("two", "nowhere", "2021-02-03T04:05:06+01:00"),
    ("three", "", "yesterday"),
    ("four", "http://b.a.example:8080", ""),
]
EXPECTED = {
    "one": ("https://www.a.example/x?y", "a.example", "2020-01-01"),
    "two": ("nowhere", None, "2021-02-03T03:05:06Z"),
    "three": (None, None, None),
    "four": ("http://b.a.example:8080", "b.a.example", None),
}


def write_source(folder, kind):
    """Write ROWS to a container with other field names."""
    path = folder / f"a.{kind}"
    names = ("text", "link", "when")
    if kind == "jsonl":
        rows = [{k: v for k, v in zip(names, row, strict=True) if v} for row in ROWS]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([names, *ROWS])
    else:
        path = path / "train.parquet" if kind == "datasets" else path
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table(list(map(list, zip(*ROWS, strict=True))), names), path)
        path = path.parent if kind == "datasets" else path
    return {"kind": kind, "name": "s", "path": str(path), "url_field": "link", "date_field": "when"}


def get_labels(artifact):
    rows = artifact["documents"].read().to_pylist()
    return {row["text"]: (row["url"], row["domain"], row["date"]) for row in rows}


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "datasets"])
def test_every_container_gives_urls_domains_and_dates(tmp_path, session, kind):
    declared = {"licence": "CC0-1.0", "origin": "a letter box", "collected_from": "2020-01-01"}
    artifact = ingest(IngestConfig(sources=[write_source(tmp_path, kind) | declared]))
    assert get_labels(artifact) == EXPECTED
    (row,) = artifact["sources"].read().to_pylist()
    assert row == declared | {
        "source": "s",
        "kind": kind,
        "collected_to": None,
        "unreadable_values": 2,  # "nowhere" has no host, and "yesterday" is no date
        "unread_files": 0,
        "truncated_documents": 0,
        "lost_characters": 0,
        "whole_pages": 0,
    }


def test_parquet_times_become_dates(tmp_path, session):
    moment = datetime.datetime(1969, 7, 20, 20, 17, 40, 999_999)
    columns = {
        "naive": pa.array([moment], pa.timestamp("ns")),
        "zoned": pa.array([moment], pa.timestamp("ms", "Europe/Berlin")),
        "day": pa.array([moment.date()], pa.date32()),
    }
    pq.write_table(pa.table({"text": ["x"], **columns}), tmp_path / "a.parquet")
    dates = []
    for name in columns:
        settings = {"kind": "parquet", "name": "s", "path": str(tmp_path), "date_field": name}
        dates.append(get_labels(ingest(IngestConfig(sources=[settings])))["x"][2])
    assert dates == ["1969-07-20", "1969-07-20T20:17:40Z", "1969-07-20"]


def test_urls_that_are_not_text_are_counted(tmp_path, session):
    rows = [
        {"text": "a", "u": 7},
        {"text": "b", "u": "\ud800"},
        {"text": "c", "u": "x" * 10_000},
        {"text": "d", "u": None},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"kind": "jsonl", "name": "s", "path": str(tmp_path), "url_field": "u"}
    artifact = ingest(IngestConfig(sources=[settings]))
    assert set(get_labels(artifact).values()) == {(None, None, None)}
    assert artifact["sources"].read()["unreadable_values"].to_pylist() == [3]
    assert artifact["quarantine"].row_count == 0


def test_copies_of_a_text_keep_their_urls_in_any_order(tmp_path, session):
    rows = [{"text": "same", "u": f"http://{n}.example/"} for n in range(9)]
    artifacts = []
    for name, order in (("there", rows), ("back", rows[::-1])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in order))
        settings = {"kind": "jsonl", "name": "s", "path": str(tmp_path / f"{name}.jsonl")}
        artifacts.append(ingest(IngestConfig(sources=[settings | {"url_field": "u"}])))
    assert artifacts[0]["documents"].digest == artifacts[1]["documents"].digest
    assert sorted(artifacts[0]["documents"].read()["url"].to_pylist()) == [row["u"] for row in rows]


def test_urls_domains_and_dates_reach_the_final_corpus(tmp_path, session):
    artifact = ingest(IngestConfig(sources=[write_source(tmp_path, "jsonl")]))
    unique_documents = deduplicate(artifact, {}, DeduplicateConfig())
    selected = select_documents(
        unique_documents,
        {"language": identify_languages(unique_documents, LanguageConfig())},
        SelectConfig(),
    )
    split_documents = split_corpus(
        scrubbed(selected), SplitConfig(validation_share=1e-9, holdout_share=0)
    )
    planting = PlantCanariesConfig(
        enabled=True,
        copy_counts=(0, 2),
        secrets_per_count=1,
        passages_per_count=0,
        records_per_count=0,
        associations_per_share=0,
    )
    final_labels = get_labels(plant_canaries(split_documents, planting))
    assert {text: final_labels[text] for text in EXPECTED} == EXPECTED
    assert {final_labels[text] for text in final_labels.keys() - EXPECTED} == {(None, None, None)}


def test_a_collection_that_ends_before_it_begins_is_refused():
    days = {"collected_from": "2020-01-02", "collected_to": "2020-01-01"}
    with pytest.raises(ValidationError, match="later than"):
        IngestConfig(sources=[{"kind": "text", "name": "s", "path": "a", **days}])


# Values that Python cannot represent -------------------------------------------------------------


def make_unchecked_text(values):
    """Make a text column with bytes that may not be UTF-8."""
    raw = pa.array(values, pa.binary())
    return pa.StringArray.from_buffers(len(raw), *raw.buffers()[1:3])


UNREPRESENTABLE_DATES = {  # beyond the years 1 to 9999
    "days": pa.array([0, 10**7, -(10**6), None], pa.int32()).cast(pa.date32()),
    "milliseconds": pa.array([0, 10**15, -(2**60), None]).cast(pa.timestamp("ms", "UTC")),
    "microseconds": pa.array([0, 2**62, -(2**62), None]).cast(pa.timestamp("us")),
}


@pytest.mark.parametrize("kind", ["parquet", "datasets"])
@pytest.mark.parametrize("when", UNREPRESENTABLE_DATES)
def test_keys_urls_and_dates_that_python_cannot_represent(tmp_path, when, kind):
    """A bad key is an error of its row; a bad URL or date is null and counted."""
    rows = {
        "text": ["a", "b", "c", "d"],
        "id": make_unchecked_text([b"k0", b"k1", b"k2", b"k\xff"]),
        "url": make_unchecked_text([b"http://a.example/", b"", b"http://\xff/", b""]),
        "when": UNREPRESENTABLE_DATES[when],
    }
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(rows), path)
    names = {"key_field": "id", "url_field": "url", "date_field": "when"}
    if kind == "parquet":
        read_checked(path, kind, **names)
        records = read_all(path, kind, **names)
    else:
        records, counts = read_hub_dataset(tmp_path, **names)
        assert (counts.record_count, counts.byte_count) == (4, 4)
    assert [(r.text, r.key, r.url, (r.date or "")[:10], r.unreadable_labels) for r in records] == [
        ("a", "k0", "http://a.example/", "1970-01-01", 0),
        ("b", "k1", None, "", 1),
        ("c", "k2", None, "", 2),
        ("", None, None, "", 0),
    ]
    assert (records[3].error, records[3].raw) == (
        "field 'id' is neither text nor a whole number",
        b"d",
    )


@pytest.mark.parametrize(
    "value",
    [
        ["x"],
        {"y": 1},
        1.5,
        True,
        b"x",
        b"\xff",
        datetime.timedelta(microseconds=1),
        datetime.time(1, 2),
    ],
)
def test_columns_of_unusable_types_are_counted_or_errors(write, value):
    path = write("a.parquet", make_parquet({"text": ["a", "b"], "odd": [value, value]}))
    documents, errors, _ = read_checked(path, "parquet", url_field="odd")
    assert [(r.text, r.url, r.unreadable_labels) for r in documents] == [
        ("a", None, 1),
        ("b", None, 1),
    ]
    documents, errors, _ = read_checked(path, "parquet", date_field="odd")
    assert [(r.text, r.date, r.unreadable_labels) for r in documents] == [
        ("a", None, 1),
        ("b", None, 1),
    ]
    _, errors, _ = read_checked(path, "parquet", key_field="odd")
    assert errors == [
        (f"row {n}", "field 'odd' is neither text nor a whole number") for n in (1, 2)
    ]


def test_parquet_times_are_rounded_down(write):
    ticks = pa.array([-(2**63), -1, 0, 10**9 - 1, None]).cast(pa.timestamp("ns", "Europe/Berlin"))
    path = write("a.parquet", make_parquet({"text": list("abcde"), "when": ticks}))
    assert [r.date for r in read_checked(path, "parquet", date_field="when")[0]] == [
        "1677-09-21T00:12:43Z",
        "1969-12-31T23:59:59Z",
        "1970-01-01T00:00:00Z",
        "1970-01-01T00:00:00Z",
        None,
    ]
