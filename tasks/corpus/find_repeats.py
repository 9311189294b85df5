"""Find repeats: stretches of so many bytes or more that stood in an earlier document, or earlier in
the same one (Lee et al. 2022). What becomes of the spans, ``scrub`` decides; the first occurrence
is none, so cutting them leaves each stretch once.

Documents are taken by source, length and doc_id, so that which occurrence is the first depends on
content alone; those of earlier corpora, where this one adds to them, before all others.

Memory: the text itself is held, that of earlier ones too, with its suffix array and two marks: 7
bytes for each byte of text (11 beyond 2 GB), however much of it repeats; 60 for each document; and
about 100 for each span, when 6 of the 7 are free again. Where the machine has less than the text
takes, the search does not begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from tasks.contract import Artifact, HallmarkError, Part, Table, Tables, Work, stage, together
from tasks.corpus.copies.duplicates import STANDING, KeeperConfig, by_rank, standing
from tasks.corpus.copies.earlier import tables
from tasks.corpus.copies.repeats import END, repeated, stretches
from tasks.corpus.spans import SPANS, Utf8
from tasks.measures.machine import memory

Int64 = NDArray[np.int64]


class RepeatsConfig(KeeperConfig):
    """What repeats; which of the documents that share a stretch keeps it."""

    enabled: bool = Field(
        False, description="whether repeats are looked for; that holds the whole text in memory"
    )
    least: int = Field(200, ge=16, description="bytes of the shortest stretch that counts")


def stand(part: Part, config: RepeatsConfig, out: Tables) -> None:
    for batch in part.batches(["doc_id", "cluster", "source", "text"]):
        out.spill("standing", STANDING).write(standing(batch, config.prefer))


def laid_out(parts: Sequence[Part], begins: Int64, size: int) -> NDArray[np.uint8]:
    """All texts, END behind each, where ``begins`` (n,) says that they begin."""
    text = np.full(size, END, np.uint8)
    place = 0
    for part in parts:
        for batch in part.batches(["text"]):
            utf8 = Utf8.of(batch["text"])
            ends = utf8.offsets.tolist()
            there = begins[place : place + len(batch)].tolist()
            for begin, start, stop in zip(there, ends, ends[1:], strict=False):
                text[begin : begin + stop - start] = utf8.bytes[start:stop]
            place += len(batch)
    return text


@dataclass(frozen=True)
class Found:
    """The spans of a part: their documents' rows in it, and where they begin and end."""

    part: Part
    row: Int64
    start: Int64
    end: Int64

    def __str__(self) -> str:
        return str(self.part)


def write_part(found: Found, out: Tables) -> None:
    doc_ids = found.part.read(["doc_id"])["doc_id"].combine_chunks()
    rows = len(found.row)
    out.table("spans").write(
        {
            "doc_id": doc_ids.take(pa.array(found.row)),
            "start": found.start,
            "end": found.end,
            "type": pa.array(["REPEAT"] * rows, pa.string()),
            "digest": pa.nulls(rows, SPANS.field("digest").type),
            "score": pa.nulls(rows, pa.float32()),
        }
    )


def check_memory(size: int, there: int) -> None:
    """HallmarkError where the search in ``size`` bytes of text takes more memory than is there."""
    needed = size * (7 if size < 1 << 31 else 11)
    if needed > there:
        raise HallmarkError(
            f"to find repeats in {size / 1e9:.1f} GB of text takes {needed / 1e9:.1f} GB of "
            f"memory, and this machine has {there / 1e9:.1f} GB: run on a larger one, or set "
            f"find_repeats.enabled = false"
        )


def spans(earlier: Sequence[Part], own: Sequence[Part], known: pa.Table, least: int) -> list[Found]:
    """The repeats of each part of its own. known: STANDING of all documents, earlier ones first."""
    parts = [*earlier, *own]
    before = sum(part.rows for part in earlier)
    order = np.concatenate([np.arange(before), before + by_rank(known.slice(before))])
    sizes = known["bytes"].to_numpy()
    ends = np.cumsum(sizes[order] + 1)  # in the order of rank
    begins = np.empty(len(order), np.int64)  # in the order of the input
    begins[order] = ends - sizes[order] - 1
    size = int(ends[-1]) if len(ends) else 0
    check_memory(size, memory())
    text = laid_out(parts, begins, size)
    start, stop = stretches(text, repeated(text, least), least)
    place = order[np.searchsorted(ends, start, side="right")]
    start, stop = start - begins[place], stop - begins[place]
    sort = np.lexsort((start, place))
    place, start, stop = place[sort], start[sort], stop[sort]
    bounds = np.concatenate([[0], np.cumsum([part.rows for part in parts])])
    cuts = np.searchsorted(place, bounds)
    return [
        Found(part, place[a:b] - first, start[a:b], stop[a:b])
        for part, first, a, b in zip(parts, bounds, cuts[:-1], cuts[1:], strict=False)
    ][len(earlier) :]


@stage(
    tables={"spans": SPANS},
    libraries=["numpy", "pydivsufsort"],
    determinism="exact",
    reads={"earlier": ("documents",)},
)
def find_repeats(
    documents: Table, earlier: dict[str, Artifact], config: RepeatsConfig, work: Work
) -> None:
    before, parts = tables(earlier, "documents").parts, documents.parts
    known = together(work.map(stand, [*before, *parts], config), "standing", STANDING)
    work.parts(write_part, spans(before, parts, known, config.least))
