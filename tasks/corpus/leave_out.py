"""Leave documents out of training: those of a list, or those that a scorer found toxic.

The corpus stays what it is, and so do tokenizer and audits: a model without these documents is
asked what the one with them was. As a control as many others leave, drawn by a hash of their ids
from the same sources, as far as these have enough: what then changes in both is not due to the
documents.

Memory: about 80 bytes a training document (id, source, draw).
"""

from __future__ import annotations

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
        description="leave out as many others of the same sources instead, drawn by lot",
    )
    seed: Seed = Field(default=0, description="of the lot")

    @property
    def enabled(self) -> bool:
        return self.documents is not None or self.toxicity is not None

    @model_validator(mode="after")
    def _of_something(self) -> LeaveOutConfig:
        if self.control and not self.enabled:
            raise ValueError("control needs to know what it is a control of: set documents or "
                             "toxicity, too")  # fmt: skip
        return self


CANDIDATES = pa.schema(
    [("doc_id", ID), ("source", pa.string()), ("wanted", pa.bool_()), ("draw", pa.float64())]
)


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


def look(part: Part, config: LeaveOutConfig, named: pa.Array, out: Tables) -> None:
    """The training documents of a part, and whether they are to be left out."""
    for batch in part.batches(["doc_id", "source", "split", "toxicity"]):
        train = batch.filter(pc.equal(batch["split"], "train"))
        wanted = pc.is_in(train["doc_id"], value_set=named)
        if config.toxicity is not None:
            toxic = pc.greater_equal(train["toxicity"], config.toxicity)
            wanted = pc.or_(wanted, pc.fill_null(toxic, False))
        draw = uniform(train["doc_id"], config.seed, "left out")
        out.spill("candidates", CANDIDATES).write(
            {"doc_id": train["doc_id"], "source": train["source"], "wanted": wanted, "draw": draw}
        )


def drawn(candidates: pa.Table) -> pa.Array:
    """As many that are not wanted, by lot: of each source as many as are wanted of it; where it has
    too few, of any."""
    wanted = candidates.filter(candidates["wanted"])
    others = candidates.filter(pc.invert(candidates["wanted"])).sort_by(
        [("draw", "ascending"), ("doc_id", "ascending")]
    )
    need = Counter(wanted["source"].to_pylist())
    sources = others["source"].to_pylist()
    chosen = np.zeros(len(sources), bool)
    for place, source in enumerate(sources):
        if need[source] > 0:
            need[source] -= 1
            chosen[place] = True
    rest = np.flatnonzero(~chosen)[: sum(need.values())]
    chosen[rest] = True
    return others["doc_id"].filter(pa.array(chosen)).combine_chunks()


def take_out(part: Part, gone: pa.Array, reason: str, out: Tables) -> None:
    for batch in part.batches():
        leaves = pc.is_in(batch["doc_id"], value_set=gone)
        out.table("documents").write(batch.filter(pc.invert(leaves)))
        out.table("ledger").write(ledger_table(removals(reason, batch.filter(leaves))))


@stage(
    tables={"documents": DOCUMENTS, "ledger": LEDGER},
    libraries=["numpy"],
    external=lambda config, secret_id: digest_of(config.documents, "ids of documents"),
)
def leave_out(documents: Table, config: LeaveOutConfig, work: Work) -> None:
    named = pa.array(read_ids(config.documents), ID)
    looked = work.map(look, documents.parts, config, named)
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
