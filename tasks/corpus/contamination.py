"""Contamination: which documents hold text of the sets that models are measured with.

The sets are named in the config, so that a corpus and what was kept out of it are pinned together;
a rule over the signal ``contamination`` removes what holds any of it. Sets that come later can be
compared with the same function (``tasks/measures/overlap.py``), which changes no corpus; no audit
does so by itself.

Memory: 16 bytes for each word of the sets, in every worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from tasks.contract import (
    ID,
    FileStamp,
    Part,
    PlainName,
    StageConfig,
    Table,
    Tables,
    UsageError,
    Work,
    column,
    file_stamp,
    stage,
    table,
)
from tasks.corpus.signals import signals
from tasks.measures.faults import Noted, careful, noted, tell
from tasks.measures.items import check_file, digest_of, read_items, text_field
from tasks.measures.overlap import Index, index, overlaps


class HeldOut(StageConfig):
    """A set of items that the corpus shall not hold."""

    name: PlainName = Field(description="names the set in tables")
    path: Path = Field(description="a file of items: jsonl, csv or tsv, plain or packed by gzip")
    fields: tuple[str, ...] = Field(
        ("text",), min_length=1, description="the fields that hold text, each an item of its own"
    )


class ContaminationConfig(StageConfig):
    sets: tuple[HeldOut, ...] = Field(default=(), description="what the corpus shall not hold")
    words: int = Field(
        13, ge=1, le=100, description="so many words in a row are an overlap; of an item that is "
        "shorter all of them"
    )  # fmt: skip
    least: int = Field(
        4, ge=1, le=100, description="items of fewer words are not looked for, and are counted"
    )

    @model_validator(mode="after")
    def _named_apart(self) -> ContaminationConfig:
        names = [held.name for held in self.sets]
        if len(set(names)) < len(names):
            raise ValueError("two sets have one name")
        if self.least > self.words:
            raise ValueError("least must not be above words")
        return self


SIGNALS = signals(
    "How much of the sets to keep apart each document holds.",
    column("contamination", pa.int32(), "figure", "items of the sets that it overlaps",
           unit="items"),
)  # fmt: skip

HITS = table(
    "Which item of which set overlaps which document.",
    column("doc_id", ID, "id", "the document"),
    column("set", pa.string(), "label", "the set"),
    column("item", pa.int64(), "figure", "number of the item in its set, from 0"),
    cut=True,
)

SETS = table(
    "The sets that were looked for.",
    column("set", pa.string(), "label", "the set"),
    column("items", pa.int64(), "figure", "its items", unit="items"),
    column("short", pa.int64(), "figure", "of these too short to be looked for", unit="items"),
    column("documents", pa.int64(), "figure", "documents that overlap any of it",
           unit="documents"),
)  # fmt: skip


def load_sets(config: ContaminationConfig) -> dict[str, Index]:
    """The items of each set, by its name. Raises UsageError with the place of what cannot be
    read."""
    for held in config.sets:
        check_file(held.path, f"items of {held.name}")
    return _load_sets(config, tuple(file_stamp(held.path.stat()) for held in config.sets))


@lru_cache(maxsize=1)  # of all sets together, however many: each part looks for all of them
def _load_sets(config: ContaminationConfig, stamps: tuple[FileStamp, ...]) -> dict[str, Index]:
    """Read once in a process for as long as the files stay as they are."""
    return {held.name: _load(held, config.words, config.least) for held in config.sets}


def _load(held: HeldOut, words: int, least: int) -> Index:
    items = [
        _text(held, place, item, field)
        for place, item in read_items(held.path, f"items of {held.name}")
        for field in held.fields
    ]
    return index(items, words, least)


def _text(held: HeldOut, place: str, item: dict[str, Any], field: str) -> str:
    try:
        return text_field(place, item, field)
    except UsageError as error:
        raise UsageError(
            f"{error}; correct the file, or the fields of {held.name!r} in contamination.sets"
        ) from error


def mark_part(part: Part, config: ContaminationConfig, out: Tables) -> dict[str, Any]:
    """Returns how many documents of the part overlap each set, and those on which it failed."""
    known = load_sets(config)
    documents = dict.fromkeys(known, 0)
    failed: Noted = []
    for batch in part.batches(["doc_id", "text"]):
        found, faults = careful(partial(overlaps_of, known=known), batch)
        count = np.zeros(len(batch), np.int32)
        pieces = [pa.schema(HITS).empty_table()]
        for name, (owner, item) in found.items():
            count += np.bincount(owner, minlength=len(batch)).astype(np.int32)
            documents[name] += len(np.unique(owner))
            doc_ids = batch["doc_id"].take(pa.array(owner))
            names = pa.array([name] * len(owner), pa.string())
            pieces.append(pa.table({"doc_id": doc_ids, "set": names, "item": item}))
        hits = pa.concat_tables(pieces)
        out.table("hits").write(hits.sort_by([("doc_id", "ascending"), ("set", "ascending"),
                                              ("item", "ascending")]))  # fmt: skip
        told = pa.array(count, mask=np.isin(np.arange(len(batch)), faults.rows))
        out.table("signals").write({"doc_id": batch["doc_id"], "contamination": told})
        failed += noted(batch, faults)
    return {"documents": documents, "failed": failed}


def overlaps_of(
    batch: pa.RecordBatch, known: Mapping[str, Index]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {name: overlaps(batch["text"], looked_for) for name, looked_for in known.items()}


def _external(config: ContaminationConfig, secret_id: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for held in config.sets:
        found |= digest_of(held.path, f"items of {held.name}")
    return found


@stage(
    tables={"signals": SIGNALS, "hits": HITS, "sets": SETS},
    libraries=["numpy"],
    external=_external,
    determinism="exact",
)
def contamination(documents: Table, config: ContaminationConfig, work: Work) -> None:
    done = work.parts(mark_part, documents.parts, config)
    tell(work, [part.value["failed"] for part in done], documents.rows, "the search for overlaps")
    for name, known in load_sets(config).items():
        work.table("sets").write(
            {
                "set": [name],
                "items": [known.items],
                "short": [known.short],
                "documents": [sum(part.value["documents"][name] for part in done)],
            }
        )
