"""Read a sample of the sources of a config, and estimate which share of each source it is.

The real readers read the first records of the inputs up to a budget of bytes and seconds. Small
inputs are read first and completely; the rest of the budget goes to larger ones. Of a source with
many inputs, or of an installed package with many files, evenly spaced ones are read.
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

from hallmark.tasks.contract import HallmarkError
from hallmark.tasks.corpus.reading.byte_streams import ReadCounts, read_blocks
from hallmark.tasks.corpus.reading.columnar import ParquetSource
from hallmark.tasks.corpus.reading.compressed_members import CODEC_BY_SUFFIX
from hallmark.tasks.corpus.reading.documentation import (
    DocumentationSource,
    find_paths_by_document_name,
    read_prose_files,
)
from hallmark.tasks.corpus.reading.inputs import (
    IngestConfig,
    list_inputs,
    read_input_records,
)
from hallmark.tasks.corpus.reading.metadata import MAX_METADATA_FIELDS
from hallmark.tasks.corpus.reading.object_storage import is_remote_uri
from hallmark.tasks.corpus.reading.readers import JsonlSource
from hallmark.tasks.corpus.reading.sources import CustomSource, FileSource, Input, Record, Source
from hallmark.tasks.corpus.reading.town_source import TYPICAL_DOCUMENT_BYTES, TownSource
from hallmark.tasks.corpus.town.documents import list_document_numbers

#: Maximum bytes of text in a sample, and maximum seconds for reading it.
MAX_SAMPLE_BYTES, MAX_SAMPLE_SECONDS = 2_000_000, 5.0
#: Minimum and maximum number of inputs that are sampled of a source with more bytes than a sample.
MIN_SAMPLED_INPUTS, MAX_SAMPLED_INPUTS = 64, 4096
#: Records per source with which the fixed time of a stage is measured.
MINIMAL_SAMPLE_RECORDS = 4
#: Bytes at the beginning of a compressed file from which its expansion is estimated.
COMPRESSED_HEAD_BYTES = 256 << 10


@dataclass
class SourceSample:
    """The sample of one source."""

    source_name: str
    file: Path  # the records as JSON lines
    source_config: Source
    has_keys: bool = False
    metadata_names: set[str] = field(default_factory=set)
    document_count: int = 0
    text_bytes: int = 0  # UTF-8 bytes
    raw_bytes: int = 0  # bytes of the source that were read
    source_bytes: float | None = None  # bytes of the source; estimated unless is_complete
    is_complete: bool = True
    problem: str = ""  # why reading stopped with an error
    unreadable_count: int = 0  # records that go to quarantine
    first_read_error: str = ""  # place and reason of the first of them

    @property
    def source_to_sample_ratio(self) -> float | None:
        """Size of the source divided by that of the sample; None if unknown."""
        if self.is_complete:
            return 1.0
        return (
            None
            if self.source_bytes is None or not self.raw_bytes
            else max(1.0, self.source_bytes / self.raw_bytes)
        )


@dataclass
class CorpusSample:
    """The samples of all sources, by name, and the seconds that reading them took."""

    source_samples: dict[str, SourceSample] = field(default_factory=dict)
    reading_seconds: float = 0.0

    @property
    def is_complete(self) -> bool:
        """Whether the sample contains all records of all sources."""
        return all(source_sample.is_complete for source_sample in self.source_samples.values())

    @property
    def document_count(self) -> int:
        return sum(source_sample.document_count for source_sample in self.source_samples.values())

    @property
    def text_bytes(self) -> int:
        return sum(source_sample.text_bytes for source_sample in self.source_samples.values())

    def get_source_ratio(self, source_name: str) -> float | None:
        return (
            self.source_samples[source_name].source_to_sample_ratio
            if source_name in self.source_samples
            else None
        )

    @property
    def corpus_to_sample_ratio(self) -> float | None:
        """Size of the text of the corpus divided by that of the sample; None if unknown."""
        source_ratios = [
            source_sample.source_to_sample_ratio for source_sample in self.source_samples.values()
        ]
        if not self.text_bytes or any(source_ratio is None for source_ratio in source_ratios):
            return None
        return (
            sum(
                source_sample.text_bytes * (source_sample.source_to_sample_ratio or 0)
                for source_sample in self.source_samples.values()
            )
            / self.text_bytes
        )

    def write_minimal_sample(self, folder: Path) -> CorpusSample:
        """Write only the first records of each source to files in ``folder``."""
        folder.mkdir()
        minimal_samples = {}
        for source_name, source_sample in self.source_samples.items():
            file = folder / source_sample.file.name
            if source_sample.document_count:
                with source_sample.file.open(encoding="utf-8") as record_lines:
                    file.write_text(
                        "".join(islice(record_lines, MINIMAL_SAMPLE_RECORDS)), encoding="utf-8"
                    )
            minimal_samples[source_name] = replace(source_sample, file=file)
        return CorpusSample(minimal_samples)

    def build_ingest_config(self, ingest_config: IngestConfig) -> IngestConfig:
        """Return a config that ingests the sample instead of the sources."""
        source_configs = [
            JsonlSource(
                kind="jsonl",
                name=source_sample.source_name,
                path=str(source_sample.file),
                text_field="text",
                key_field="key" if source_sample.has_keys else None,
                url_field="url",
                date_field="date",
                metadata_fields={
                    name: f"metadata.{name}"
                    for name in sorted(source_sample.metadata_names)[:MAX_METADATA_FIELDS]
                },
                document_share=source_sample.source_config.document_share,
                # For an incomplete source, it is unknown which documents the cap would keep.
                max_documents=source_sample.source_config.max_documents
                if source_sample.is_complete
                else None,
            )
            for source_sample in self.source_samples.values()
            if source_sample.document_count
        ]
        return ingest_config.model_copy(update={"sources": source_configs})


def sample_sources(
    ingest_config: IngestConfig,
    folder: Path,
    max_bytes: int = MAX_SAMPLE_BYTES,
    max_seconds: float = MAX_SAMPLE_SECONDS,
) -> CorpusSample:
    """Read a sample of all sources into files in ``folder``.

    Raises:
        UsageError: If a source does not exist.
    """
    start_time = time.monotonic()
    deadline = start_time + max_seconds
    sample = CorpusSample()
    input_sizes: dict[Input, float | None] = {}
    for index, (source_name, source_inputs) in enumerate(
        _group_inputs_by_source(ingest_config).items()
    ):
        source_config = ingest_config.sources[source_inputs[0].source_index]
        sample.source_samples[source_name] = SourceSample(
            source_name, folder / f"{index:05d}.jsonl", source_config
        )
        input_sizes |= {
            source_input: _estimate_input_bytes(source_input, ingest_config)
            for source_input in source_inputs
        }
    selected_inputs = _select_inputs(input_sizes, max_bytes)
    selected_inputs.sort(key=lambda source_input: input_sizes[source_input] or float("inf"))
    raw_sizes: dict[Input, float | None] = {}
    for index, source_input in enumerate(selected_inputs):
        remaining_bytes = max_bytes - sample.text_bytes
        if time.monotonic() > deadline or remaining_bytes <= 0:
            break
        input_budget = remaining_bytes / (len(selected_inputs) - index)
        source_sample = sample.source_samples[source_input.source]
        try:
            raw_sizes[source_input] = _read_and_estimate_input_bytes(
                source_input, ingest_config, source_sample, input_budget, deadline, folder
            )
        except HallmarkError as error:
            source_sample.problem, source_sample.is_complete, raw_sizes[source_input] = (
                str(error),
                False,
                None,
            )
    for source_sample in sample.source_samples.values():
        _update_source_bytes(
            source_sample,
            {
                other_input: input_size
                for other_input, input_size in input_sizes.items()
                if other_input.source == source_sample.source_name
            },
            raw_sizes,
        )
    sample.reading_seconds = time.monotonic() - start_time
    return sample


def _group_inputs_by_source(ingest_config: IngestConfig) -> dict[str, list[Input]]:
    inputs_by_source: dict[str, list[Input]] = defaultdict(list)
    for source_input in list_inputs(ingest_config):
        inputs_by_source[source_input.source].append(source_input)
    return inputs_by_source


def _select_inputs(input_sizes: dict[Input, float | None], max_bytes: int) -> list[Input]:
    """Select the inputs to read: all of a small source, evenly spaced ones of a large source."""
    inputs_by_source: dict[str, list[Input]] = defaultdict(list)
    for source_input in input_sizes:
        inputs_by_source[source_input.source].append(source_input)
    selected_inputs: list[Input] = []
    for source_inputs in inputs_by_source.values():
        total_bytes = sum(input_sizes[source_input] or 0 for source_input in source_inputs)
        input_limit = len(source_inputs)
        if total_bytes > max_bytes:
            input_limit = min(
                max(MIN_SAMPLED_INPUTS, int(input_limit * max_bytes / total_bytes)),
                MAX_SAMPLED_INPUTS,
            )
        selected_inputs += source_inputs[:: -(-len(source_inputs) // input_limit)]
    return selected_inputs


def _estimate_input_bytes(source_input: Input, ingest_config: IngestConfig) -> float | None:
    """Return the bytes of an input on disk, estimated for a town; None if they are unknown."""
    source_config = ingest_config.sources[source_input.source_index]
    if isinstance(source_config, TownSource):
        return float(
            TYPICAL_DOCUMENT_BYTES
            * len(list_document_numbers(int(source_input.locator), source_config.documents))
        )
    if isinstance(source_config, DocumentationSource):
        return float(
            sum(
                path.stat().st_size
                for path in find_paths_by_document_name(source_input.locator).values()
            )
        )
    return None if isinstance(source_config, CustomSource) else float(source_input.size_bytes)


def _read_and_estimate_input_bytes(
    source_input: Input,
    ingest_config: IngestConfig,
    source_sample: SourceSample,
    input_budget: float,
    deadline: float,
    folder: Path,
) -> float | None:
    """Read an input up to its budget, and return the raw bytes of the whole input, if known."""
    raw_bytes = text_bytes = record_count = 0
    last_record, is_complete = Record("", 0), True
    with source_sample.file.open("a", encoding="utf-8") as output_file:
        for record in _iter_input_records(source_input, ingest_config):
            is_over_budget = text_bytes >= input_budget or time.monotonic() > deadline
            # Files of a package are read completely.
            if is_over_budget and not (
                record.file_name and record.file_name == last_record.file_name
            ):
                is_complete = False
                break
            last_record, record_count, raw_bytes = (
                record,
                record_count + 1,
                raw_bytes + record.raw_bytes,
            )
            if record.error:
                error_text = (
                    f"{record.file_name or source_input.file_name}, "
                    f"{record.location}: {record.error}"
                )
                source_sample.first_read_error = source_sample.first_read_error or error_text
                source_sample.unreadable_count += record.record_count
            else:
                text_bytes += len(record.text.encode())
                source_sample.has_keys = record.key is not None
                source_sample.document_count += 1
                source_sample.metadata_names.update(record.metadata or ())
                fields = {"key": record.key, "url": record.url, "date": record.date}
                for name, value in (record.metadata or {}).items():
                    fields[f"metadata.{name}"] = value
                output_file.write(json.dumps({"text": record.text, **fields}) + "\n")
    source_sample.text_bytes, source_sample.raw_bytes = (
        source_sample.text_bytes + text_bytes,
        source_sample.raw_bytes + raw_bytes,
    )
    if is_complete:
        return float(raw_bytes)
    source_sample.is_complete = False
    share_read = _estimate_share_read(
        source_input, ingest_config, last_record, raw_bytes, record_count, folder
    )
    return None if not share_read else raw_bytes / min(1.0, share_read)


def _iter_input_records(source_input: Input, ingest_config: IngestConfig) -> Iterator[Record]:
    """Read the records of an input in order; of a package, evenly spaced files first."""
    if isinstance(ingest_config.sources[source_input.source_index], DocumentationSource):
        return read_prose_files(
            _order_package_files_evenly(source_input.locator),
            ingest_config.max_document_bytes,
            ReadCounts(),
        )
    return read_input_records(source_input, ingest_config, ReadCounts())


def _order_package_files_evenly(package: str) -> dict[str, Path]:
    """Order the files of a package so that any number of the first ones is evenly spaced.

    This is the bit-reversal permutation of their positions.
    """
    files = list(find_paths_by_document_name(package).items())
    bit_count = len(files).bit_length()
    file_order = sorted(range(len(files)), key=lambda index: f"{index:0{bit_count}b}"[::-1])
    return dict(files[index] for index in file_order)


def _estimate_share_read(
    source_input: Input,
    ingest_config: IngestConfig,
    last_record: Record,
    raw_bytes: int,
    record_count: int,
    folder: Path,
) -> float | None:
    """Estimate the share of an input that was read; None if unknown."""
    source_config, path = (
        ingest_config.sources[source_input.source_index],
        Path(source_input.locator),
    )
    if isinstance(source_config, DocumentationSource):
        file_sizes = {
            file_name: file_path.stat().st_size
            for file_name, file_path in _order_package_files_evenly(source_input.locator).items()
        }
        files_read = list(file_sizes)[: list(file_sizes).index(last_record.file_name) + 1]
        return sum(file_sizes[file_name] for file_name in files_read) / sum(file_sizes.values())
    if is_remote_uri(source_input.locator):
        return (
            None
            if path.suffix.lower() in (*CODEC_BY_SUFFIX, ".parquet")
            else raw_bytes / source_input.size_bytes
        )
    if isinstance(source_config, TownSource):
        return record_count / len(
            list_document_numbers(int(source_input.locator), source_config.documents)
        )
    if isinstance(source_config, ParquetSource):
        share: float = record_count / pq.read_metadata(path).num_rows
        return share
    if isinstance(source_config, FileSource):
        return raw_bytes / (source_input.size_bytes * _estimate_expansion_factor(path, folder))
    return None


def _estimate_expansion_factor(path: Path, folder: Path) -> float:
    """Estimate the bytes per byte on disk, from the beginning of a compressed file."""
    if path.suffix.lower() not in CODEC_BY_SUFFIX:
        return 1.0
    head_file, read_counts = folder / f"head{path.suffix}", ReadCounts()
    with path.open("rb") as file:
        head_file.write_bytes(file.read(COMPRESSED_HEAD_BYTES))
    expanded_bytes = sum(
        len(block) for block in read_blocks(head_file, read_counts) if isinstance(block, bytes)
    )
    return max(
        1.0, expanded_bytes / head_file.stat().st_size
    )  # a cut-off block may expand to nothing


def _update_source_bytes(
    source_sample: SourceSample,
    input_sizes: dict[Input, float | None],
    raw_sizes: dict[Input, float | None],
) -> None:
    """Estimate the size of a source from the inputs that were read, assuming others are alike."""
    unread_inputs = [source_input for source_input in input_sizes if source_input not in raw_sizes]
    source_sample.is_complete = source_sample.is_complete and not unread_inputs
    read_sizes = {
        source_input: raw_size
        for source_input, raw_size in raw_sizes.items()
        if source_input in input_sizes
    }
    if any(raw_size is None for raw_size in read_sizes.values()) or not read_sizes:
        source_sample.source_bytes = None
        return
    known_sizes = [raw_size for raw_size in read_sizes.values() if raw_size is not None]
    read_disk_bytes = sum(input_sizes[source_input] or 0 for source_input in read_sizes)
    unread_disk_bytes = sum(input_sizes[source_input] or 0 for source_input in unread_inputs)
    source_sample.source_bytes = sum(known_sizes) * (
        1 + unread_disk_bytes / read_disk_bytes if read_disk_bytes else 1
    )
