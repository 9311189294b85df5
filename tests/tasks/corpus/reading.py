"""What tests of readers share: files read whole, their accounts checked, and packed documents."""

import gzip
import json
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


def read_all(path, kind, limit=LIMIT, meter=None, **settings):
    reader, source = READERS[kind]
    source = source(kind=kind, name="s", path=str(path), **settings)
    return list(reader(path, source, limit, meter or ReadCounts()))


def read(path, kind, limit=LIMIT, **settings):
    """Documents and errors of a file, after checking that the meter agrees with the records."""
    meter = ReadCounts()
    found = read_all(path, kind, limit, meter, **settings)
    assert meter.record_count == sum(r.record_count for r in found)
    assert meter.byte_count == meter.skipped_bytes + sum(r.raw_bytes for r in found)
    good = [r for r in found if not r.error]
    assert all(r.text == "" for r in found if r.error)
    return good, [(r.location, r.error) for r in found if r.error], meter


def texts(records):
    return [record.text for record in records]


def zst(data, checksum=True):
    return zstandard.ZstdCompressor(write_checksum=checksum).compress(data)


def skippable(data, number=0):
    return bytes([0x50 + number]) + b"\x2a\x4d\x18" + len(data).to_bytes(4, "little") + data


PACK = {".gz": partial(gzip.compress, mtime=0), ".zst": zst}


def documents(numbers, size=40):
    """Lines of documents that hardly shrink; the same ones at every call."""
    made = []
    for number in numbers:
        words = random.Random(number).randbytes(size).hex()
        made.append(json.dumps({"text": f"{number} {words}"}).encode() + b"\n")
    return made


def numbers(records):
    """Of the documents among the records, as the text itself says."""
    return [int(r.text.split()[0]) for r in records if not r.error]
