"""Read documents of an invented town, which are composed during the read.

The documents are fiction with a known content; see ``hallmark.tasks.corpus.town``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field

from hallmark.tasks.contract import PathSafeName, Seed, sha256_hex, to_canonical_json
from hallmark.tasks.corpus.reading.byte_streams import ReadCounts
from hallmark.tasks.corpus.reading.readers import TOO_LONG
from hallmark.tasks.corpus.reading.sources import (
    CustomSource,
    DigestFunction,
    Input,
    Record,
    Source,
)
from hallmark.tasks.corpus.town.documents import (
    BLOCK_DOCUMENTS,
    TownDocument,
    TownRates,
    compose_block,
    list_document_numbers,
)
from hallmark.tasks.corpus.town.grammar import DATA_FILES

#: Files that a stage that reads a town depends on: the grammar and its words.
TOWN_DATA_FILES = tuple(f"tasks/corpus/data/town/{name}" for name in DATA_FILES)


#: Approximate bytes of a document, for estimates before it is composed.
TYPICAL_DOCUMENT_BYTES = 850


class TownSource(CustomSource):
    """Configure the documents of an invented town, whose content is known."""

    kind: Literal["town"]
    name: PathSafeName = Field(
        "town", description="source name; the document ids (doc_id) depend on the name"
    )
    documents: int = Field(
        5000, ge=1, le=10_000_000, description="number of documents, including copies"
    )
    seed: Seed = Field(0, description="random seed for the content of the documents")
    rates: TownRates = Field(TownRates(), description="share of documents with each feature")

    data_files = TOWN_DATA_FILES

    def list_inputs(self, source_index: int) -> Iterator[Input]:
        for block, name in list_labels_by_block_number(self).items():
            yield Input(self.name, source_index, block, name)

    def compute_input_digest(self, source_input: Input, digest_file: DigestFunction) -> str:
        return compute_town_settings_digest(self)

    def read_input(
        self, source_input: Input, max_bytes: int, counts: ReadCounts, resume_folder: Path | None
    ) -> Iterator[Record]:
        return read_town_documents(self, source_input.locator, max_bytes, counts)


def list_town_sources(sources: Iterable[Source]) -> tuple[TownSource, ...]:
    """Return the invented towns among sources."""
    return tuple(source for source in sources if isinstance(source, TownSource))


def list_labels_by_block_number(source: TownSource) -> Mapping[str, str]:
    """Return the number of each block, the unit of reading, with its name in the tables."""
    block_count = -(-source.documents // BLOCK_DOCUMENTS)
    return {
        str(n): f"documents {r.start + 1} to {r.stop}"
        for n in range(block_count)
        for r in [list_document_numbers(n, source.documents)]
    }


def compose_town_block(source: TownSource, block_number: str) -> list[TownDocument]:
    """Compose the documents of a block together with the truth about them."""
    return compose_block(int(block_number), source.documents, source.seed, source.rates)


def format_document_key(document_number: int) -> str:
    """Return the key of a document, from which its ``doc_id`` is computed."""
    return str(document_number)


def compute_town_settings_digest(source: TownSource) -> str:
    """Hash the settings that the documents depend on; the grammar counts as the stage's code."""
    return sha256_hex(to_canonical_json(source.model_dump(mode="json", exclude={"name"})))


def read_town_documents(
    source: TownSource, block_number: str, max_bytes: int, counts: ReadCounts
) -> Iterator[Record]:
    """Yield the documents of a block; ``raw_bytes`` counts the bytes of the text."""
    for document in compose_town_block(source, block_number):
        text = document.text
        record = Record(
            f"document {document.number + 1}",
            len(text.encode()),
            text,
            format_document_key(document.number),
        )
        if record.raw_bytes > max_bytes:
            record.error, record.raw, record.text = TOO_LONG, text.encode(), ""
        counts.record_count += 1
        counts.byte_count += record.raw_bytes
        yield record
