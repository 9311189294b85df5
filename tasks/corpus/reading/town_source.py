"""The embedded people: an invented town's documents, composed while they are read.

Nobody wrote them and nothing in them happened. What each holds is known, see
``hallmark.tasks.corpus.town``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from pydantic import Field

from hallmark.tasks.contract import PathSafeName, Seed, sha256_hex, to_canonical_json
from hallmark.tasks.corpus.reading.byte_streams import ReadCounts
from hallmark.tasks.corpus.reading.readers import TOO_LONG, Record
from hallmark.tasks.corpus.reading.sources import Source
from hallmark.tasks.corpus.town.documents import (
    BLOCK_DOCUMENTS,
    TownDocument,
    TownRates,
    compose_block,
    list_document_numbers,
)
from hallmark.tasks.corpus.town.grammar import DATA_FILES

#: The grammar and its words decide what a stage reads of a town.
TOWN_DATA_FILES = tuple(f"tasks/corpus/data/town/{name}" for name in DATA_FILES)


#: Bytes of a document, roughly, for who must know before it is composed.
TYPICAL_DOCUMENT_BYTES = 850


class TownSource(Source):
    """Documents of an invented town, with a known truth."""

    kind: Literal["town"]
    name: PathSafeName = Field("town", description="names the source; enters the doc_ids")
    documents: int = Field(5000, ge=1, le=10_000_000, description="how many, copies among them")
    seed: Seed = Field(0, description="another seed, other documents")
    rates: TownRates = Field(TownRates(), description="how much of what is in them")


def label_town_blocks(source: TownSource) -> Mapping[str, str]:
    """What is read at a time: the number of each block, and what tables call it."""
    block_count = -(-source.documents // BLOCK_DOCUMENTS)
    return {
        str(n): f"documents {r.start + 1} to {r.stop}"
        for n in range(block_count)
        for r in [list_document_numbers(n, source.documents)]
    }


def compose_town_block(source: TownSource, block_number: str) -> list[TownDocument]:
    """The documents of a block, with their truth."""
    return compose_block(int(block_number), source.documents, source.seed, source.rates)


def format_document_key(document_number: int) -> str:
    """The declared key of a document, of which its ``doc_id`` is made."""
    return str(document_number)


def compute_town_digest(source: TownSource) -> str:
    """Of the settings that the documents depend on. The grammar counts as code of the stage."""
    return sha256_hex(to_canonical_json(source.model_dump(mode="json", exclude={"name"})))


def read_town_documents(
    source: TownSource, block_number: str, max_bytes: int, counts: ReadCounts
) -> Iterator[Record]:
    """The documents of a block; their raw bytes are those of their text."""
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
