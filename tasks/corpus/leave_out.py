"""Leave documents out of training: those of a list, or those that a scorer found toxic.

The corpus stays what it is, and so do tokenizer and audits: a model without these documents is
asked what the one with them was. As a control as many others leave, drawn by a hash of their ids
from the same sources and lengths, as far as these have enough: what then changes in both is not due
to the documents.

Memory: about 120 bytes a training document (id, source, size, draw, and two places by length).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from tasks.contract import (
    DOCUMENTS,
    ID,
    LEDGER,
    Part,
    Seed,
    StageConfig,
    Table,
    Tables,
    UsageError,
    Work,
    ledger_table,
    removals,
    stage,
    together,
    utf8_bytes,
)
from tasks.corpus.split import uniform
from tasks.measures.items import digest_of, read_lines


class LeaveOutConfig(StageConfig):
    """Settings of what is left out of training."""

    documents: Path | None = Field(
        default=None,
        description="text file with a doc_id (32 hexadecimal digits) a line: these are left out",
    )
    toxicity: float | None = Field(
        default=None, ge=0, le=1, description="documents scored at least that toxic are left out"
    )
    control: bool = Field(
        default=False,
        description="leave out as many others of the same sources and lengths instead, by lot",
    )
    spared: Path | None = Field(
        default=None,
        description="text file of the same form: documents that a control does not take, either",
    )
    padding: bool = Field(
        default=False,
        description="padding stands in training where they stood, so that every other row, batch "
        "and step stays as it was; else what is left is packed anew",
    )
    seed: Seed = Field(default=0, description="of the lot")

    @property
    def enabled(self) -> bool:
        return self.documents is not None or self.toxicity is not None

    @model_validator(mode="after")
    def _of_something(self) -> LeaveOutConfig:
        if (self.control or self.padding) and not self.enabled:
            raise ValueError("control needs to know what it is a control of, and padding in whose "
                             "place it stands: set documents or toxicity, too")  # fmt: skip
        if self.spared is not None and not self.control:
            raise ValueError("spared says what a control does not take: set control, too")
        return self


CANDIDATES = pa.schema(
    [("doc_id", ID), ("source", pa.string()), ("size", pa.int64()), ("wanted", pa.bool_()),
     ("draw", pa.float64())]
)  # fmt: skip

#: Bands of length in which a document is drawn for another: so many a doubling.
BANDS = 4


def read_ids(path: Path | None) -> list[bytes]:
    """The documents of a list. Raises UsageError with the line."""
    found: dict[bytes, None] = {}
    for place, line in read_lines(path, "ids of documents") if path else ():
        try:
            doc_id = bytes.fromhex(line)
        except ValueError:
            doc_id = b""
        if len(doc_id) != ID.byte_width:
            raise UsageError(f"{place} is no doc_id: {line[:60]!r}; it has 32 hexadecimal digits")
        found[doc_id] = None
    return list(found)


def look(
    part: Part, config: LeaveOutConfig, named: pa.Array, spared: pa.Array, out: Tables
) -> None:
    """The training documents of a part, and whether they are to be left out."""
    for batch in part.batches(["doc_id", "source", "split", "toxicity", "text"]):
        train = batch.filter(pc.equal(batch["split"], "train"))
        wanted = pc.is_in(train["doc_id"], value_set=named)
        if config.toxicity is not None:
            toxic = pc.greater_equal(train["toxicity"], config.toxicity)
            wanted = pc.or_(wanted, pc.fill_null(toxic, False))
        draw = uniform(train["doc_id"], config.seed, "left out")
        found = pa.table(
            {"doc_id": train["doc_id"], "source": train["source"], "wanted": wanted, "draw": draw,
             "size": utf8_bytes(train["text"])}
        )  # fmt: skip
        free = pc.invert(pc.is_in(train["doc_id"], value_set=spared))
        found = found.select(CANDIDATES.names).filter(pc.or_(wanted, free))
        out.spill("candidates", CANDIDATES).write(found)


def drawn(candidates: pa.Table) -> pa.Array:
    """As many that are not wanted, by lot: of each source and band of lengths as many as are wanted
    of it. Where it has too few, the nearest in length: of that source, as long as it has any."""
    wanted = candidates.filter(candidates["wanted"]).sort_by("doc_id")
    others = candidates.filter(pc.invert(candidates["wanted"])).sort_by(
        [("draw", "ascending"), ("doc_id", "ascending")]
    )
    lengths = [np.log2(1 + side["size"].to_numpy()) for side in (wanted, others)]
    keys = [
        list(zip(side["source"].to_pylist(), (BANDS * length).astype(int).tolist(), strict=True))
        for side, length in zip((wanted, others), lengths, strict=True)
    ]
    need = Counter(keys[0])
    chosen = np.zeros(len(others), bool)
    for place, key in enumerate(keys[1]):
        if need[key] > 0:
            need[key] -= 1
            chosen[place] = True
    order = np.argsort(lengths[1], kind="stable")
    free = Pool(order[~chosen[order]], lengths[1])
    pools: dict[str, Pool] = {}
    for key, length in zip(keys[0], lengths[0], strict=True):
        if need[key] > 0:
            need[key] -= 1
            if (source := key[0]) not in pools:
                own = pc.equal(others["source"], source).to_numpy()
                pools[source] = Pool(order[(own & ~chosen)[order]], lengths[1])
            if not pools[source].take(length, chosen):
                free.take(length, chosen)
    return others["doc_id"].filter(pa.array(chosen)).combine_chunks()


class Pool:
    """Places of documents in the order of their lengths, of equal ones in that of the lot."""

    def __init__(self, places: np.ndarray, lengths: np.ndarray) -> None:
        self.places = array("q", places.astype(np.int64).tobytes())
        self.lengths = array("d", lengths[places].tobytes())

    def take(self, length: float, chosen: np.ndarray) -> bool:
        """Choose the nearest in length that is not yet chosen; whether there was one."""
        while self.places:
            behind = bisect_left(self.lengths, length)
            before = bisect_left(self.lengths, self.lengths[max(0, behind - 1)])
            _, place, at = min(
                (abs(self.lengths[at] - length), self.places[at], at)
                for at in (before, behind)
                if at < len(self.places)
            )
            del self.places[at], self.lengths[at]
            if not chosen[place]:  # through another pool
                chosen[place] = True
                return True
        return False


def take_out(part: Part, gone: pa.Array, reason: str, out: Tables) -> None:
    for batch in part.batches():
        leaves = pc.is_in(batch["doc_id"], value_set=gone)
        out.table("documents").write(batch.filter(pc.invert(leaves)))
        out.table("ledger").write(ledger_table(removals(reason, batch.filter(leaves))))


@stage(
    tables={"documents": DOCUMENTS, "ledger": LEDGER},
    libraries=["numpy"],
    external=lambda config, secret_id: {
        name: digest
        for path in (config.documents, config.spared)
        for name, digest in digest_of(path, "ids of documents").items()
    },
)
def leave_out(documents: Table, config: LeaveOutConfig, work: Work) -> None:
    named, spared = (pa.array(read_ids(path), ID) for path in (config.documents, config.spared))
    looked = work.map(look, documents.parts, config, named, spared)
    candidates = together(looked, "candidates", CANDIDATES)
    gone = candidates.filter(candidates["wanted"])["doc_id"].combine_chunks()
    if not len(gone):
        raise UsageError(
            "leave_out: none of its documents is a training document of this corpus, so nothing "
            "would be left out; correct leave_out.documents or leave_out.toxicity"
        )
    reason = "left out of training"
    if config.control:
        gone, reason = drawn(candidates), "left out of training by lot, as a control"
    work.parts(take_out, documents.parts, gone, reason)
