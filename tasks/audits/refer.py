"""Refer: how likely another model finds what the one under audit wrote.

What is likely to a model that was trained on other text is likely to everybody, and tells nothing
of this training. The reference has a tokenizer of its own, so it is asked about texts: each behind
the text of its item, from which the other went on.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.audits.exchange import REFERRED
from tasks.audits.respond import RespondConfig, opened
from tasks.contract import Artifact, InProcess, Tables, UsageError, Work, stage

#: Texts between two moments from which a killed stage goes on.
STEP = 1024


@dataclass(frozen=True)
class Stretch:
    """Responses that are read together; their places are all that a message may say."""

    first: int
    responses: pa.Table

    def __str__(self) -> str:
        return f"texts {self.first + 1:,} to {self.first + len(self.responses):,}"


def read_again(item: Stretch, reference: Artifact, device: str, out: Tables) -> None:
    """Rows of REFERRED to responses with their ``prompt``."""
    subject, rows = opened(reference, device), item.responses
    totals, counts = subject.log_likelihoods(
        *(rows[name].to_pylist() for name in ("text", "prompt"))
    )
    known = np.where((counts > 0) & np.isfinite(totals), totals, np.nan)
    told = {"request": rows["request"], "draw": rows["draw"],
            "reference": pa.array(known, from_pandas=True)}  # fmt: skip
    out.table("referred").write(pa.table(told, schema=REFERRED))


@stage(
    tables={"referred": REFERRED},
    libraries=["numpy", "tokenizers", "torch", "transformers"],
    determinism="machine",
    reads={"asked": ("items", "requests"), "answered": ("responses",)},
)
def refer(
    reference: Artifact, asked: Artifact, answered: Artifact, config: RespondConfig, work: Work
) -> None:
    """``reference``: a causal model; ``asked`` and ``answered``: of ``ask`` and ``respond``. What
    was written is read behind the text of its item; what was read for its sake alone, no other
    part, from its beginning, where the request says what of the corpus stands in it. Other texts
    have no row."""
    work.mapper = InProcess()
    names = ["request", "item", "part", "text"]
    requests, items = asked["requests"].read(names), asked["items"].read()
    written = answered["responses"].read(["request", "draw", "text"])
    was = pc.is_valid(written["text"])
    texts = pc.if_else(pc.equal(requests["part"], ""), requests["text"], None)
    held = _beside(written["request"], requests["request"], texts)
    place = written.schema.get_field_index("text")
    texts = pc.if_else(was, written["text"], held)
    written = written.set_column(place, written.schema.field(place), texts)
    written = written.append_column("was", was).filter(pc.is_valid(texts))
    if len(written) and opened(reference, config.device).kind == "masked":
        raise UsageError(f"{reference.name} is a masked language model, and is no reference for "
                         f"what another writes; name a causal one")  # fmt: skip
    item = _beside(written["request"], requests["request"], requests["item"])
    before = pc.if_else(written["was"], _beside(item, items["item"], items["text"]), "")
    written = written.append_column("prompt", before)
    cuts = [*range(0, len(written), STEP), len(written)]
    parts = [Stretch(begin, written.slice(begin, end - begin)) for begin, end in pairwise(cuts)]
    work.map(read_again, parts, reference, config.device)


def _beside(keys: Any, among: Any, values: Any) -> Any:
    """The value beside each key, where that first stands among others."""
    return values.take(pc.index_in(keys, value_set=among.combine_chunks()))
