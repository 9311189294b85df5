"""The embedded people: an invented town's documents, composed while they are read.

Nobody wrote them and nothing in them happened. What each holds is known, see ``tasks.corpus.town``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from pydantic import Field

from tasks.contract import PlainName, Seed, canonical, sha256
from tasks.corpus.reading.readers import TOO_LONG, Record
from tasks.corpus.reading.sources import Source
from tasks.corpus.reading.streams import Meter
from tasks.corpus.town.compose import BLOCK, Document, Rates, block, numbers
from tasks.corpus.town.grammar import FILES

#: The grammar and its words decide what a stage reads of a town.
TOWN = tuple(f"tasks/corpus/data/town/{name}" for name in FILES)


#: Bytes of a document, roughly, for who must know before it is composed.
TYPICAL = 850


class TownSource(Source):
    """Documents of an invented town, with a known truth."""

    kind: Literal["town"]
    name: PlainName = Field("town", description="names the source; enters the doc_ids")
    documents: int = Field(5000, ge=1, le=10_000_000, description="how many, copies among them")
    seed: Seed = Field(0, description="another seed, other documents")
    rates: Rates = Field(Rates(), description="how much of what is in them")


def town_blocks(source: TownSource) -> Mapping[str, str]:
    """What is read at a time: the number of each block, and what tables call it."""
    count = -(-source.documents // BLOCK)
    return {str(n): f"documents {r.start + 1} to {r.stop}" for n in range(count)
            for r in [numbers(n, source.documents)]}  # fmt: skip


def documents_of(source: TownSource, number: str) -> list[Document]:
    """The documents of a block, with their truth."""
    return block(int(number), source.documents, source.seed, source.rates)


def key_of(number: int) -> str:
    """The declared key of a document, of which its ``doc_id`` is made."""
    return str(number)


def town_digest(source: TownSource) -> str:
    """Of the settings that the documents depend on. The grammar counts as code of the stage."""
    return sha256(canonical(source.model_dump(mode="json", exclude={"name"})))


def read_town(source: TownSource, number: str, limit: int, meter: Meter) -> Iterator[Record]:
    """The documents of a block; their raw bytes are those of their text."""
    for document in documents_of(source, number):
        text = document.text
        record = Record(
            f"document {document.number + 1}", len(text.encode()), text, key_of(document.number)
        )
        if record.raw_bytes > limit:
            record.error, record.raw, record.text = TOO_LONG, text.encode(), ""
        meter.rows += 1
        meter.bytes += record.raw_bytes
        yield record
