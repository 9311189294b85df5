"""Bad input in every container: the same records, the same documents, errors and accounts."""

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
from hallmark.tasks.corpus.ingest import ingest
from hallmark.tasks.corpus.reading.byte_streams import ReadCounts, read_blocks
from hallmark.tasks.corpus.reading.compressed_members import DAMAGED_DATA, TRUNCATED_DATA
from hallmark.tasks.corpus.reading.inputs import IngestConfig
from hallmark.tasks.corpus.reading.readers import NOT_UTF8, TOO_LONG
from tests.tasks.corpora import given
from tests.tasks.corpus.reading import LIMIT, PACK, READERS, documents, read, texts
from tests.tasks.corpus.test_warc import page, record

# One record list, in every container -------------------------------------------------------------


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
    """Arrow writes bytes that are no text as if they were."""
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
    "warc": lambda rows: [page(t, kind="text/plain; charset=utf-8") for _, t in rows],
    "wet": lambda rows: [record(b"Software: x", "warcinfo"), *(record(t) for _, t in rows)],
    "datasets": as_parquet,
}
ENDINGS = {"text": ".txt", "wet": ".warc.wet", "datasets": ".parquet"}
KEYED = ("jsonl", "csv", "tsv", "parquet", "datasets")
STREAMS = ("jsonl", "csv", "tsv", "text", "warc", "wet")

every = pytest.mark.parametrize("kind", CONTAINERS)
streams = pytest.mark.parametrize("kind", STREAMS)
packed = pytest.mark.parametrize("ending", [".gz", ".zst"])


def put(folder, kind, rows, name="a", ending=""):
    """A file of the records, each a member of its own where it is packed."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}{ENDINGS.get(kind, f'.{kind}')}{ending}"
    pieces = CONTAINERS[kind](rows)
    path.write_bytes(b"".join(PACK[ending](p) if ending else p for p in pieces))
    return path


def source(kind, path, **more):
    more |= {"split": "blank_lines"} if kind == "text" else {}
    return {"kind": "warc" if kind == "wet" else kind, "name": "s", "path": str(path), **more}


def ingested(kind, path, keyed=False, **more):
    more = {"max_document_bytes": LIMIT, "min_document_bytes": 3, **more}
    named = source(kind, path, **({"key_field": "id"} if keyed else {}))
    return ingest(IngestConfig(sources=[named], **more))


def rows_of(artifact, table):
    return artifact[table].read().to_pylist()


def errors(artifact):
    return Counter(r["error"] for r in rows_of(artifact, "quarantine"))


def book(artifact, unit="rows"):
    (found,) = (r for r in rows_of(artifact, "accounts") if r["unit"] == unit)
    return found


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


@every
def test_hostile_records_cost_themselves_in_every_container(tmp_path, session, kind):
    records = [(b"k%d" % n, text) for n, text in enumerate(HOSTILE)]
    path = put(tmp_path / "in", kind, records)
    made = ingested(kind, path.parent)
    good = [HOSTILE[0], HOSTILE[0], HOSTILE[-1]]
    assert sorted(r["text"] for r in rows_of(made, "documents")) == sorted(t.decode() for t in good)
    bad = errors(made)
    assert bad.pop(TOO_LONG) == 1 and sum(bad.values()) == 1
    assert kind == "warc" or bad == {NOT_UTF8: 1}  # a page has an encoding that it is not in
    reasons = Counter(r["reason"] for r in rows_of(made, "ledger") if r["action"] == "removed")
    assert reasons == {"empty": 1 if kind == "text" else 2, "too short": 1}  # an empty line is none
    counts = book(made)
    assert (counts["kept"], counts["quarantined"]) == (3, 2)
    sizes = book(made, "bytes")
    whole = sum(map(len, HOSTILE)) if kind in ("parquet", "datasets") else path.stat().st_size
    assert sizes["input"] == whole


@streams
@packed
@pytest.mark.parametrize("cut", [0.95, 1.0])
def test_a_stream_that_breaks_near_its_end_keeps_what_was_read(
    tmp_path, session, kind, ending, cut
):
    """At 95 % of the bytes, and within the last member."""
    records = [(b"k%d" % n, b"Text %d of the long file." % n) for n in range(60)]
    path = put(tmp_path / "in", kind, records, ending=ending)
    data = path.read_bytes()
    size = int(cut * len(data)) - 5
    path.write_bytes(data[:size])
    made = ingested(kind, path.parent)
    found = sorted(int(r["text"].split()[1]) for r in rows_of(made, "documents"))
    assert found == list(range(len(found)))
    assert 54 <= len(found) <= 58 if cut < 1 else len(found) >= 59  # of all bytes but the checksum
    assert errors(made) == {TRUNCATED_DATA: 1}
    sizes = book(made, "bytes")
    assert sizes["quarantined"] < 600
    assert sizes["input"] == sizes["kept"] + sizes["removed_spans"] + sizes["quarantined"]


@streams
@packed
def test_a_damaged_member_costs_itself_in_every_container(tmp_path, session, kind, ending):
    records = [(b"k%d" % n, b"Text %d of the long file." % n) for n in range(40)]
    path = put(tmp_path / "in", kind, records, ending=ending)
    members = [PACK[ending](piece) for piece in CONTAINERS[kind](records)]
    lost = len(members) - 20
    members[lost] = members[lost][:12] + b"\xff" * 20 + members[lost][32:]
    path.write_bytes(b"".join(members))
    made = ingested(kind, path.parent)
    found = {int(r["text"].split()[1]) for r in rows_of(made, "documents")}
    assert found == set(range(40)) - {20}
    assert errors(made) == {DAMAGED_DATA: 1}


@every
@pytest.mark.parametrize("content", [b"", b"\0" * 50, b"\xff" * 50])
def test_a_file_of_nothing_beside_a_good_one(tmp_path, session, kind, content):
    """Whatever it is taken for, it costs no document of the other file."""
    put(tmp_path / "in", kind, [(b"k", b"A good text.")])
    if kind == "datasets":  # the library reads all files together: it is named, and nothing lost
        (tmp_path / "in" / "b.parquet").write_bytes(content)
        with pytest.raises(HallmarkError, match=r"could not read .* or read its files with kind"):
            ingested(kind, tmp_path / "in")
        return
    (tmp_path / "in" / f"b{ENDINGS.get(kind, f'.{kind}')}").write_bytes(content)
    made = ingested(kind, tmp_path / "in")
    assert "A good text." in [r["text"] for r in rows_of(made, "documents")]
    empty_text = kind == "text" and not content
    assert sum(errors(made).values()) + book(made)["kept"] >= 1 + (not empty_text)


@pytest.mark.parametrize("kind", KEYED)
def test_of_records_with_one_key_in_several_files_content_decides(tmp_path, session, kind):
    made = []
    for folder, order in (("one", 1), ("other", -1)):
        rows = [(b"k%d" % (n % 3), b"Text number %d." % n) for n in range(8)][::order]
        for name, some in (("a", rows[:4]), ("b", rows[4:])):
            put(tmp_path / folder, kind, some, name)
        made.append(ingested(kind, tmp_path / folder, keyed=True))
    assert made[0]["documents"].digest == made[1]["documents"].digest
    assert [errors(a) for a in made] == [{"duplicate key": 5}] * 2


@pytest.mark.parametrize("kind", [k for k in CONTAINERS if k not in ("datasets", "wet")])
@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_that_changes_while_it_is_read_is_an_error_in_every_reader(
    tmp_path, monkeypatch, kind, change
):
    monkeypatch.setattr("hallmark.tasks.corpus.reading.byte_streams.BLOCK_BYTES", 512)
    records = [(b"k%d" % n, b"Text %d of the long file." % n) for n in range(9000)]
    path = put(tmp_path / "in", kind, records)
    reader, settings = READERS[kind]
    found = reader(path, settings.model_validate(source(kind, path)), LIMIT, ReadCounts())
    next(found)
    if change > 0:
        with path.open("ab") as file:
            file.write(b"and more")
    else:
        os.truncate(path, path.stat().st_size + change)
    with pytest.raises(HallmarkError, match=r"a\.\w+ changed while it was read.*run again"):
        list(found)


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@pytest.mark.parametrize("change", [-1, -150_000, -300_000, 1])
def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path, ending, change, monkeypatch):
    """Also where it shrinks to a whole number of lines and members."""
    monkeypatch.setattr("hallmark.tasks.corpus.reading.byte_streams.BLOCK_BYTES", 4096)
    rows = documents(range(10_000), size=15)
    pack = PACK.get(ending, bytes)
    path = tmp_path / f"a.jsonl{ending}"
    data = b"".join(pack(row) for row in rows)
    path.write_bytes(data)
    found = read_blocks(path, ReadCounts())
    next(found)
    if change > 0:
        with path.open("ab") as file:
            file.write(pack(rows[0]))
    else:
        os.truncate(path, len(data) + change)
    with pytest.raises(HallmarkError, match=r"a\.jsonl.* changed while it was read.*; run again"):
        list(found)


# Encodings ---------------------------------------------------------------------------------------


def test_pages_of_many_encodings_in_one_archive(tmp_path, session):
    """Each is read as what it declares itself to be, whatever stood before it."""
    said = {
        "utf-8": "Füße",
        "iso-8859-1": "naïve",
        "windows-1251": "Привет",
        "shift_jis": "日本語",
        "gbk": "汉字",
        "koi8-r": "Москва",
        "utf-16": "καλημέρα",
    }
    pages = [
        page(f"<p>{text} number {n}</p>".encode(name), kind=f"text/html; charset={name}")
        for n in range(3)
        for name, text in said.items()
    ]
    pages.insert(9, page(b"<p>\xff\xff caf\xe9 \x81</p>", kind="text/html; charset=utf-8"))
    (tmp_path / "a.warc.gz").write_bytes(b"".join(map(gzip.compress, pages)))
    made = ingested("warc", tmp_path / "a.warc.gz")
    assert sorted(r["text"] for r in rows_of(made, "documents")) == sorted(
        f"{text} number {n}" for n in range(3) for text in said.values()
    )
    assert sum(errors(made).values()) == 1


# Letters -----------------------------------------------------------------------------------------


def test_texts_whose_lower_case_composes_anew_are_copies_at_the_first_look(session):
    """NFKC composes "h" with the line below, and no "H": folded once, these three differ."""
    forms = ["H\u0331ouse", "h\u0331ouse", "\u1e96ouse", "house"]
    once = deduplicate(given(forms), {}, DeduplicateConfig())
    assert once["documents"].row_count == 2
    assert deduplicate(once, {}, DeduplicateConfig())["documents"].row_count == 2


# The other writers -------------------------------------------------------------------------------


def test_the_containers_here_are_what_libraries_write(tmp_path):
    """Else these tests would be about files that nobody has."""
    rows = [(b"k0", b'One "quoted" text.'), (b"k1", "Füße\u3000漢字".encode())]
    plain = [(k.decode(), t.decode()) for k, t in rows]
    assert [json.loads(line) for line in as_jsonl(rows)] == [
        {"id": key, "text": text} for key, text in plain
    ]
    lines = b"".join(as_rows(rows[1:], b",")).decode()
    assert list(csv.DictReader(io.StringIO(lines))) == [{"id": "k1", "text": plain[1][1]}]
    path = put(tmp_path / "in", "parquet", rows)
    assert pq.read_table(path)["text"].to_pylist() == [text for _, text in plain]
    reader, settings = READERS["text"]
    path = put(tmp_path / "in", "text", rows)
    found = reader(path, settings.model_validate(source("text", path)), LIMIT, ReadCounts())
    assert texts(found) == [text for _, text in plain]


def test_a_number_of_thousands_of_digits_is_said_to_be_one(write):
    """No other reader of JSON would call it broken; Python makes no number of it."""
    line = b'{"text": "x", "n": ' + b"9" * 5000 + b"}"
    good, bad, _ = read(write("a.jsonl", line + b'\n{"text": "y"}'), "jsonl", limit=10**6)
    assert texts(good) == ["y"]
    assert bad == [("line 1", "a number of more than 4,300 digits")]
