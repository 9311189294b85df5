"""Test that bad input in any container gives the same records, documents, errors and accounts."""

import csv
import gzip
import io
import json
import os
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hallmark.tasks.contract import HallmarkError
from hallmark.tasks.corpus.deduplicate import DeduplicateConfig, deduplicate
from hallmark.tasks.corpus.deduplicate_near import DeduplicateNearConfig, deduplicate_near
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading.byte_streams import ReadCounts, read_blocks
from hallmark.tasks.corpus.reading.compressed_members import DAMAGED_DATA, TRUNCATED_DATA
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.corpus.reading.readers import NOT_UTF8, TOO_LONG
from tests.tasks.corpora import given
from tests.tasks.corpus.reader_helpers import (
    COMPRESS_BY_ENDING,
    LIMIT,
    READERS,
    get_texts,
    make_json_lines,
    read_checked,
)
from tests.tasks.corpus.test_warc import make_page, make_record

# The same records in every container -------------------------------------------------------------


def as_jsonl(rows):
    quoted = [
        t.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\t", b"\\t") for _, t in rows
    ]
    return [
        b'{"id": "%s", "text": "%s"}\n' % (k, t) for (k, _), t in zip(rows, quoted, strict=True)
    ]


def as_rows(rows, comma):
    quote = b'"' if comma == b"," else b""
    return [b"id" + comma + b"text\n", *(k + comma + quote + t + quote + b"\n" for k, t in rows)]


def as_parquet(rows):
    """Write text that is not UTF-8, as Arrow does without an error."""
    raw = pa.array([t for _, t in rows], pa.large_binary())
    column = pa.LargeStringArray.from_buffers(len(raw), *raw.buffers()[1:3])
    sink = io.BytesIO()
    keys = [k.decode() for k, _ in rows]
    pq.write_table(pa.table({"id": keys, "text": column}), sink, row_group_size=3)
    return [sink.getvalue()]


CONTAINERS = {
    "jsonl": as_jsonl,
    "csv": lambda rows: as_rows(rows, b","),
    "tsv": lambda rows: as_rows(rows, b"\t"),
    "text": lambda rows: [t + b"\n\n" for _, t in rows],
    "parquet": as_parquet,
    "warc": lambda rows: [make_page(t, kind="text/plain; charset=utf-8") for _, t in rows],
    "wet": lambda rows: [
        make_record(b"Software: x", "warcinfo"),
        *(make_record(t) for _, t in rows),
    ],
    "datasets": as_parquet,
}
ENDINGS = {"text": ".txt", "wet": ".warc.wet", "datasets": ".parquet"}
KEYED = ("jsonl", "csv", "tsv", "parquet", "datasets")
STREAMS = ("jsonl", "csv", "tsv", "text", "warc", "wet")

all_containers = pytest.mark.parametrize("kind", CONTAINERS)
stream_containers = pytest.mark.parametrize("kind", STREAMS)
compressed_endings = pytest.mark.parametrize("ending", COMPRESS_BY_ENDING)


def write_container(folder, kind, rows, name="a", ending=""):
    """Write a file of the records, each in a member of its own if compressed."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}{ENDINGS.get(kind, f'.{kind}')}{ending}"
    members = CONTAINERS[kind](rows)
    path.write_bytes(b"".join(COMPRESS_BY_ENDING[ending](p) if ending else p for p in members))
    return path


def source_settings(kind, path, **settings):
    settings |= {"document_boundary": "blank_lines"} if kind == "text" else {}
    return {"kind": "warc" if kind == "wet" else kind, "name": "s", "path": str(path), **settings}


def ingest_container(kind, path, keyed=False, **more):
    more = {"max_document_bytes": LIMIT, "min_document_bytes": 3, **more}
    settings = source_settings(kind, path, **({"key_field": "id"} if keyed else {}))
    return ingest(IngestConfig(sources=[settings], **more))


def read_rows(artifact, table):
    return artifact[table].read().to_pylist()


def count_errors(artifact):
    return Counter(r["error"] for r in read_rows(artifact, "quarantine"))


def read_accounts(artifact, unit="rows"):
    (row,) = (r for r in read_rows(artifact, "accounts") if r["unit"] == unit)
    return row


HOSTILE = [
    b"The first good text.",
    b"The caf\xe9 is no UTF-8.",
    b"",
    b" \xe3\x80\x80 ",
    b"ab",
    b"x" * (LIMIT + 1),
    b"The first good text.",
    "Zwei Füße, 漢字 and a \u2028 break.".encode(),
]


@all_containers
def test_bad_records_affect_no_others_in_every_container(tmp_path, session, kind):
    records = [(b"k%d" % n, text) for n, text in enumerate(HOSTILE)]
    path = write_container(tmp_path / "in", kind, records)
    artifact = ingest_container(kind, path.parent)
    good_texts = [HOSTILE[0], HOSTILE[0], HOSTILE[-1]]
    is_archive = kind in ("warc", "wet")  # a page loses the character whose bytes are not valid
    good_texts += [HOSTILE[1].replace(b"\xe9", b"")] if is_archive else []
    assert sorted(r["text"] for r in read_rows(artifact, "documents")) == sorted(
        t.decode() for t in good_texts
    )
    (source,) = read_rows(artifact, "sources")
    assert source["lost_characters"] == (1 if is_archive else 0)
    assert count_errors(artifact) == {TOO_LONG: 1} | ({} if is_archive else {NOT_UTF8: 1})
    reasons = Counter(
        r["reason"] for r in read_rows(artifact, "ledger") if r["action"] == "removed"
    )
    blank_documents = 0 if kind == "text" else 2  # a blank line of a text file is no document
    assert reasons == Counter({"empty": blank_documents, "too short": 1})
    counts = read_accounts(artifact)
    assert (counts["kept"], counts["quarantined"]) == ((4, 1) if is_archive else (3, 2))
    sizes = read_accounts(artifact, "bytes")
    input_bytes = sum(map(len, HOSTILE)) if kind in ("parquet", "datasets") else path.stat().st_size
    assert sizes["input"] == input_bytes


@stream_containers
@pytest.mark.parametrize("ending", [".gz", ".zst"])  # the others give whole members
@pytest.mark.parametrize("cut", [0.95, 1.0])
def test_a_truncated_stream_keeps_the_records_before_its_end(tmp_path, session, kind, ending, cut):
    """Truncated at 95 % of the bytes, and in the last member."""
    records = [(b"k%d" % n, b"Text %d of the long file." % n) for n in range(60)]
    path = write_container(tmp_path / "in", kind, records, ending=ending)
    data = path.read_bytes()
    size = int(cut * len(data)) - 5
    path.write_bytes(data[:size])
    artifact = ingest_container(kind, path.parent)
    document_numbers = sorted(int(r["text"].split()[1]) for r in read_rows(artifact, "documents"))
    assert document_numbers == list(range(len(document_numbers)))
    if cut < 1:
        assert 54 <= len(document_numbers) <= 58
    else:  # little more than the checksum is missing
        assert len(document_numbers) >= 59
    assert count_errors(artifact) == {TRUNCATED_DATA: 1}
    sizes = read_accounts(artifact, "bytes")
    assert sizes["quarantined"] < 600
    assert sizes["input"] == sizes["kept"] + sizes["removed_spans"] + sizes["quarantined"]


@stream_containers
@compressed_endings
def test_a_damaged_member_affects_no_others_in_every_container(tmp_path, session, kind, ending):
    records = [(b"k%d" % n, b"Text %d of the long file." % n) for n in range(40)]
    path = write_container(tmp_path / "in", kind, records, ending=ending)
    members = [COMPRESS_BY_ENDING[ending](piece) for piece in CONTAINERS[kind](records)]
    lost = len(members) - 20
    members[lost] = members[lost][:12] + b"\xff" * 20 + members[lost][32:]
    path.write_bytes(b"".join(members))
    artifact = ingest_container(kind, path.parent)
    document_numbers = {int(r["text"].split()[1]) for r in read_rows(artifact, "documents")}
    assert document_numbers == set(range(40)) - {20}
    assert count_errors(artifact) == {DAMAGED_DATA: 1}


@all_containers
@pytest.mark.parametrize("content", [b"", b"\0" * 50, b"\xff" * 50])
def test_a_file_without_content_does_not_affect_a_good_one(tmp_path, session, kind, content):
    write_container(tmp_path / "in", kind, [(b"k", b"A good text.")])
    if kind == "datasets":  # the library reads all files together, so the stage fails
        (tmp_path / "in" / "b.parquet").write_bytes(content)
        with pytest.raises(
            HallmarkError, match=r"could not read .* or read the files of the data set"
        ):
            ingest_container(kind, tmp_path / "in")
        return
    (tmp_path / "in" / f"b{ENDINGS.get(kind, f'.{kind}')}").write_bytes(content)
    artifact = ingest_container(kind, tmp_path / "in")
    assert "A good text." in [r["text"] for r in read_rows(artifact, "documents")]
    empty_text = kind == "text" and not content
    assert sum(count_errors(artifact).values()) + read_accounts(artifact)["kept"] >= 1 + (
        not empty_text
    )


@pytest.mark.parametrize("kind", KEYED)
def test_content_decides_which_record_of_a_key_is_kept(tmp_path, session, kind):
    artifacts = []
    for folder, order in (("one", 1), ("other", -1)):
        rows = [(b"k%d" % (n % 3), b"Text number %d." % n) for n in range(8)][::order]
        for name, file_rows in (("a", rows[:4]), ("b", rows[4:])):
            write_container(tmp_path / folder, kind, file_rows, name)
        artifacts.append(ingest_container(kind, tmp_path / folder, keyed=True))
    assert artifacts[0]["documents"].digest == artifacts[1]["documents"].digest
    assert [count_errors(a) for a in artifacts] == [{"duplicate key": 5}] * 2


@pytest.mark.parametrize("kind", [k for k in CONTAINERS if k not in ("datasets", "wet")])
@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_that_changes_while_it_is_read_is_an_error_in_every_reader(
    tmp_path, monkeypatch, kind, change
):
    monkeypatch.setattr("hallmark.tasks.corpus.reading.byte_streams.BLOCK_BYTES", 512)
    records = [(b"k%d" % n, b"Text %d of the long file." % n) for n in range(9000)]
    path = write_container(tmp_path / "in", kind, records)
    reader, settings = READERS[kind]
    record_stream = reader(
        path, settings.model_validate(source_settings(kind, path)), LIMIT, ReadCounts()
    )
    next(record_stream)
    if change > 0:
        with path.open("ab") as file:
            file.write(b"and more")
    else:
        os.truncate(path, path.stat().st_size + change)
    with pytest.raises(HallmarkError, match=r"a\.\w+ changed while it was being read.*run again"):
        list(record_stream)


@pytest.mark.parametrize("ending", ["", *COMPRESS_BY_ENDING])
@pytest.mark.parametrize("change", [-1, -150_000, -300_000, 1])
def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path, ending, change, monkeypatch):
    """The error also occurs if whole lines or members are removed."""
    monkeypatch.setattr("hallmark.tasks.corpus.reading.byte_streams.BLOCK_BYTES", 4096)
    rows = make_json_lines(range(10_000), size=15)
    pack = COMPRESS_BY_ENDING.get(ending, bytes)
    path = tmp_path / f"a.jsonl{ending}"
    data = b"".join(pack(row) for row in rows)
    path.write_bytes(data)
    blocks = read_blocks(path, ReadCounts())
    next(blocks)
    if change > 0:
        with path.open("ab") as file:
            file.write(pack(rows[0]))
    else:
        os.truncate(path, len(data) + change)
    with pytest.raises(
        HallmarkError, match=r"a\.jsonl.* changed while it was being read.*; run again"
    ):
        list(blocks)


# Encodings ---------------------------------------------------------------------------------------


def test_pages_of_many_encodings_in_one_archive(tmp_path, session):
    """Each page is decoded as it declares, whatever came before it."""
    text_by_encoding = {
        "utf-8": "Füße",
        "iso-8859-1": "naïve",
        "windows-1251": "Привет",
        "shift_jis": "日本語",
        "gbk": "汉字",
        "koi8-r": "Москва",
        "utf-16": "καλημέρα",
    }
    pages = [
        make_page(f"<p>{text} number {n}</p>".encode(name), kind=f"text/html; charset={name}")
        for n in range(3)
        for name, text in text_by_encoding.items()
    ]
    pages.insert(9, make_page(b"<p>\xff\xff caf\xe9 \x81</p>", kind="text/html; charset=utf-8"))
    (tmp_path / "a.warc.gz").write_bytes(b"".join(map(gzip.compress, pages)))
    artifact = ingest_container("warc", tmp_path / "a.warc.gz")
    assert sorted(r["text"] for r in read_rows(artifact, "documents")) == sorted(
        f"{text} number {n}" for n in range(3) for text in text_by_encoding.values()
    )
    assert sum(count_errors(artifact).values()) == 1


# Letters -----------------------------------------------------------------------------------------


def test_texts_whose_lower_case_is_recomposed_are_copies(session):
    """NFKC composes "h" with the line below but not "H"; case-folded once, these three differ."""
    forms = ["H\u0331ouse", "h\u0331ouse", "\u1e96ouse", "house"]
    once = deduplicate_near(given(forms), {}, DeduplicateNearConfig())
    assert once["documents"].row_count == 2
    assert deduplicate_near(once, {}, DeduplicateNearConfig())["documents"].row_count == 2
    exact = deduplicate(given(forms), {}, DeduplicateConfig())
    assert exact["documents"].row_count == 3  # all but the second form of "h" and the line


# Containers --------------------------------------------------------------------------------------


def test_the_containers_of_these_tests_are_valid(tmp_path):
    """Libraries read them, or write the same."""
    rows = [(b"k0", b'One "quoted" text.'), (b"k1", "Füße\u3000漢字".encode())]
    plain = [(k.decode(), t.decode()) for k, t in rows]
    assert [json.loads(line) for line in as_jsonl(rows)] == [
        {"id": key, "text": text} for key, text in plain
    ]
    lines = b"".join(as_rows(rows[1:], b",")).decode()
    assert list(csv.DictReader(io.StringIO(lines))) == [{"id": "k1", "text": plain[1][1]}]
    path = write_container(tmp_path / "in", "parquet", rows)
    assert pq.read_table(path)["text"].to_pylist() == [text for _, text in plain]
    reader, settings = READERS["text"]
    path = write_container(tmp_path / "in", "text", rows)
    records = reader(
        path, settings.model_validate(source_settings("text", path)), LIMIT, ReadCounts()
    )
    assert get_texts(records) == [text for _, text in plain]


def test_a_number_with_too_many_digits_is_reported_as_such(write):
    """It is valid JSON, but Python does not convert it."""
    line = b'{"text": "x", "n": ' + b"9" * 5000 + b"}"
    documents, errors, _ = read_checked(
        write("a.jsonl", line + b'\n{"text": "y"}'), "jsonl", limit=10**6
    )
    assert get_texts(documents) == ["y"]
    assert errors == [("line 1", "a number has more than 4,300 digits")]
