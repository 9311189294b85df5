"""Share helpers between tests of readers: read files, check their counts, and compress data."""

import bz2
import gzip
import json
import lzma
import random
from functools import partial

import zstandard

from hallmark.tasks.corpus.reading.byte_streams import ReadCounts
from hallmark.tasks.corpus.reading.columnar import ParquetSource, read_parquet
from hallmark.tasks.corpus.reading.delimited import CsvSource, TsvSource, read_csv, read_tsv
from hallmark.tasks.corpus.reading.readers import (
    JsonlSource,
    TextSource,
    read_jsonl,
    read_text_file,
)
from hallmark.tasks.corpus.reading.warc import WarcSource, read_warc

LIMIT = 1000
READERS = {
    "jsonl": (read_jsonl, JsonlSource),
    "csv": (read_csv, CsvSource),
    "tsv": (read_tsv, TsvSource),
    "text": (read_text_file, TextSource),
    "parquet": (read_parquet, ParquetSource),
    "warc": (read_warc, WarcSource),
}


def read_all(path, kind, limit=LIMIT, counts=None, **settings):
    reader, source = READERS[kind]
    source = source(kind=kind, name="s", path=str(path), **settings)
    return list(reader(path, source, limit, counts or ReadCounts()))


def read_checked(path, kind, limit=LIMIT, **settings):
    """Return documents, errors and counts of a file; check that counts and records agree."""
    counts = ReadCounts()
    records = read_all(path, kind, limit, counts, **settings)
    assert counts.record_count == sum(r.record_count for r in records)
    assert counts.byte_count == counts.skipped_bytes + sum(r.raw_bytes for r in records)
    documents = [r for r in records if not r.error]
    assert all(r.text == "" for r in records if r.error)
    return documents, [(r.location, r.error) for r in records if r.error], counts


def get_texts(records):
    return [record.text for record in records]


def compress_zstd(data, checksum=True):
    return zstandard.ZstdCompressor(write_checksum=checksum).compress(data)


def make_skippable_frame(data, number=0):
    return bytes([0x50 + number]) + b"\x2a\x4d\x18" + len(data).to_bytes(4, "little") + data


COMPRESS_BY_ENDING = {
    ".gz": partial(gzip.compress, mtime=0),
    ".zst": compress_zstd,
    ".bz2": bz2.compress,
    ".xz": partial(lzma.compress, preset=0),
}


def make_json_lines(numbers, size=40):
    """Return JSON lines that compress badly and are the same at every call."""
    lines = []
    for number in numbers:
        words = random.Random(number).randbytes(size).hex()
        lines.append(json.dumps({"text": f"{number} {words}"}).encode() + b"\n")
    return lines


def get_numbers(records):
    """Return the numbers with which the texts of the documents begin."""
    return [int(r.text.split()[0]) for r in records if not r.error]
