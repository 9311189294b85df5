"""The first records of a config's inputs, read by the real readers up to a budget, and how much of
each source that was. What a forecast says of a corpus that nobody has read yet rests on it.

Small inputs are read first and whole; what they leave of the budget goes to larger ones. Of a
source with many inputs some are read, evenly spaced, and so are files of an installed package: as
many as fill the budget, be they small.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import pyarrow.parquet as pq

from tasks.contract import HallmarkError
from tasks.corpus.reading.documentation import (
    DocumentationSource,
    package_files,
    read_prose,
)
from tasks.corpus.reading.inputs import IngestConfig, Input, inputs, records_of
from tasks.corpus.reading.readers import JsonlSource, Record
from tasks.corpus.reading.remote import is_remote
from tasks.corpus.reading.sources import FileSource, Source
from tasks.corpus.reading.streaming import DatasetsSource
from tasks.corpus.reading.streams import Meter, blocks
from tasks.corpus.reading.town import TYPICAL, TownSource
from tasks.corpus.town.compose import numbers

#: Bytes of text and seconds that a sample takes at most.
BUDGET, SECONDS = 2_000_000, 5.0
#: Inputs of a source that a sample takes where it has more than that: of large ones, of small ones.
LARGE, SMALL = 64, 4096
#: Records of a source that show what a stage takes with next to nothing to do.
FEW = 4
#: Bytes of a compressed file from which it is estimated how far the rest will swell.
HEAD = 256 << 10


@dataclass
class Reading:
    """What was read of one source."""

    source: str
    file: Path  # the records as JSON lines
    declared: Source  # as the config has it
    keyed: bool = False
    documents: int = 0
    text: int = 0  # UTF-8 bytes
    raw: int = 0  # bytes of the source that were read
    size: float | None = None  # bytes of the source, an estimate unless it is whole
    whole: bool = True
    problem: str = ""  # why it could not be read on
    unreadable: int = 0  # records that go to quarantine
    first_unreadable: str = ""  # where it is, and why

    @property
    def scale(self) -> float | None:
        """How many times the source is what was read of it; None where nobody knows."""
        if self.whole:
            return 1.0
        return None if self.size is None or not self.raw else max(1.0, self.size / self.raw)


@dataclass
class Sample:
    readings: dict[str, Reading] = field(default_factory=dict)
    seconds: float = 0.0  # that reading it took

    @property
    def whole(self) -> bool:
        """Whether it is all that there is to read."""
        return all(reading.whole for reading in self.readings.values())

    @property
    def documents(self) -> int:
        return sum(reading.documents for reading in self.readings.values())

    @property
    def text(self) -> int:
        return sum(reading.text for reading in self.readings.values())

    def scale(self, source: str) -> float | None:
        return self.readings[source].scale if source in self.readings else None

    @property
    def growth(self) -> float | None:
        """How many times the text of the corpus is that of the sample."""
        scales = [reading.scale for reading in self.readings.values()]
        if not self.text or any(scale is None for scale in scales):
            return None
        return sum(r.text * (r.scale or 0) for r in self.readings.values()) / self.text

    def few(self, folder: Path) -> Sample:
        """The first records of each source alone, in files of ``folder``."""
        folder.mkdir()
        made = {}
        for name, reading in self.readings.items():
            file = folder / reading.file.name
            if reading.documents:
                with reading.file.open(encoding="utf-8") as lines:
                    file.write_text("".join(islice(lines, FEW)), encoding="utf-8")
            made[name] = replace(reading, file=file)
        return Sample(made)

    def config(self, config: IngestConfig) -> IngestConfig:
        """The config that ingests the sample in place of the sources."""
        sources = [
            JsonlSource(
                kind="jsonl",
                name=reading.source,
                path=str(reading.file),
                text_field="text",
                key_field="key" if reading.keyed else None,
                url_field="url",
                date_field="date",
                weight=reading.declared.weight,
                # Of a part of a source nobody knows which of its documents a cap would leave.
                cap=reading.declared.cap if reading.whole else None,
            )
            for reading in self.readings.values()
            if reading.documents
        ]
        return config.model_copy(update={"sources": sources})


def take_sample(
    config: IngestConfig, folder: Path, budget: int = BUDGET, seconds: float = SECONDS
) -> Sample:
    """Read a sample into files of ``folder``. Raises UsageError for what is not there."""
    begun = time.monotonic()
    end = begun + seconds
    sample = Sample()
    sizes: dict[Input, float | None] = {}
    for number, (source, parts) in enumerate(_by_source(config).items()):
        declared = config.sources[parts[0].index]
        sample.readings[source] = Reading(source, folder / f"{number:05d}.jsonl", declared)
        sizes |= {part: _size(part, config) for part in parts}
    chosen = _chosen(sizes, budget)
    chosen.sort(key=lambda part: sizes[part] or float("inf"))
    totals: dict[Input, float | None] = {}
    for number, part in enumerate(chosen):
        left = budget - sample.text
        if time.monotonic() > end or left <= 0:
            break
        share = left / (len(chosen) - number)
        reading = sample.readings[part.source]
        try:
            totals[part] = _read(part, config, reading, share, end, folder)
        except HallmarkError as error:
            reading.problem, reading.whole, totals[part] = str(error), False, None
    for reading in sample.readings.values():
        _extend(reading, {p: s for p, s in sizes.items() if p.source == reading.source}, totals)
    sample.seconds = time.monotonic() - begun
    return sample


def _by_source(config: IngestConfig) -> dict[str, list[Input]]:
    found: dict[str, list[Input]] = defaultdict(list)
    for part in inputs(config):
        found[part.source].append(part)
    return found


def _chosen(sizes: dict[Input, float | None], budget: int) -> list[Input]:
    """The inputs to read: all of a source that is small or has few."""
    sources: dict[str, list[Input]] = defaultdict(list)
    for part in sizes:
        sources[part.source].append(part)
    chosen: list[Input] = []
    for parts in sources.values():
        total = sum(sizes[part] or 0 for part in parts)
        most = len(parts)
        if total > budget:
            most = min(max(LARGE, int(most * budget / total)), SMALL)
        chosen += parts[:: -(-len(parts) // most)]
    return chosen


def _size(part: Input, config: IngestConfig) -> float | None:
    """Bytes on the disk; None of a data set, which may be anywhere."""
    source = config.sources[part.index]
    if isinstance(source, DatasetsSource):
        return None
    if isinstance(source, TownSource):
        return float(TYPICAL * len(numbers(int(part.item), source.documents)))
    if isinstance(source, DocumentationSource):
        return float(sum(path.stat().st_size for path in package_files(part.item).values()))
    return float(part.size)


def _read(
    part: Input, config: IngestConfig, reading: Reading, share: float, end: float, folder: Path
) -> float | None:
    """Read an input up to its share of the budget; the raw bytes of all of it, if known."""
    raw = text = rows = 0
    last, whole = Record("", 0), True
    with reading.file.open("a", encoding="utf-8") as out:
        for record in _records(part, config):
            full = text >= share or time.monotonic() > end
            if full and not (record.file and record.file == last.file):  # files of a package whole
                whole = False
                break
            last, rows, raw = record, rows + 1, raw + record.raw_bytes
            if record.error:
                place = f"{record.file or part.file}, {record.place}: {record.error}"
                reading.first_unreadable = reading.first_unreadable or place
                reading.unreadable += record.records
            else:
                text += len(record.text.encode())
                reading.keyed = record.key is not None
                reading.documents += 1
                known = {"key": record.key, "url": record.url, "date": record.date}
                out.write(json.dumps({"text": record.text, **known}) + "\n")
    reading.text, reading.raw = reading.text + text, reading.raw + raw
    if whole:
        return float(raw)
    reading.whole = False
    done = _share_read(part, config, last, raw, rows, folder)
    return None if not done else raw / min(1.0, done)


def _records(part: Input, config: IngestConfig) -> Iterator[Record]:
    """The records of an input in its order, but of a package those of files from all over it."""
    if isinstance(config.sources[part.index], DocumentationSource):
        return read_prose(_spread(part.item), config.max_document_bytes, Meter())
    return records_of(part, config, Meter())


def _spread(package: str) -> dict[str, Path]:
    """The files of a package so that however many are taken, they are from all over it: in the
    order of the bits of their numbers, read backwards."""
    files = list(package_files(package).items())
    bits = len(files).bit_length()
    order = sorted(range(len(files)), key=lambda n: f"{n:0{bits}b}"[::-1])
    return dict(files[n] for n in order)


def _share_read(
    part: Input, config: IngestConfig, last: Record, raw: int, rows: int, folder: Path
) -> float | None:
    """Which share of an input the first ``rows`` records of ``raw`` bytes are."""
    source, path = config.sources[part.index], Path(part.item)
    if isinstance(source, DocumentationSource):
        files = {name: p.stat().st_size for name, p in _spread(part.item).items()}
        read = list(files)[: list(files).index(last.file) + 1]
        return sum(files[name] for name in read) / sum(files.values())
    if is_remote(part.item):
        return None if path.suffix in (".gz", ".zst", ".parquet") else raw / part.size
    if isinstance(source, TownSource):
        return rows / len(numbers(int(part.item), source.documents))
    if source.kind == "parquet":
        return rows / pq.read_metadata(path).num_rows
    if isinstance(source, FileSource):
        return raw / (part.size * _swelling(path, folder))
    return None


def _swelling(path: Path, folder: Path) -> float:
    """Bytes that come of each byte on the disk: measured at the head of a compressed file."""
    if path.suffix not in (".gz", ".zst"):
        return 1.0
    head, meter = folder / f"head{path.suffix}", Meter()
    with path.open("rb") as file:
        head.write_bytes(file.read(HEAD))
    came = sum(len(block) for block in blocks(head, meter) if isinstance(block, bytes))
    return max(1.0, came / head.stat().st_size)  # what was cut off gives nothing


def _extend(
    reading: Reading, sizes: dict[Input, float | None], totals: dict[Input, float | None]
) -> None:
    """The size of a source from that of the inputs that were read: others are taken to be alike."""
    unread = [part for part in sizes if part not in totals]
    reading.whole = reading.whole and not unread
    read = {part: total for part, total in totals.items() if part in sizes}
    if any(total is None for total in read.values()) or not read:
        reading.size = None
        return
    known = [total for total in read.values() if total is not None]
    disk = sum(sizes[part] or 0 for part in read)
    more = sum(sizes[part] or 0 for part in unread)
    reading.size = sum(known) * (1 + more / disk if disk else 1)
