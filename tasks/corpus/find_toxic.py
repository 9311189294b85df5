"""Find toxic windows: what ``score_toxicity`` scored at or above a bound, as spans.

Nothing is scored here. What becomes of the spans ``scrub`` decides, so that an insult can leave a
long document which stays; a document that is one window leaves with it. Documents that a rule took
for their worst window are not looked at: a rule with another bound or action leaves them to this.

The column ``toxicity`` of a document stays that of its text as it was scored.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from tasks.contract import HallmarkError, Part, StageConfig, Table, Tables, Work, aligned, stage
from tasks.corpus.spans import SPANS, Utf8, span_rows

Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]


class FindToxicConfig(StageConfig):
    enabled: bool = Field(
        False,
        description="whether toxic windows are looked for, which cut_toxic then cuts; the embedded "
        "scorer (linear) also finds harmless mentions of minorities toxic",
    )
    least: float = Field(
        0.5, gt=0, le=1, description="score from which a window of score_toxicity is toxic"
    )


def find_part(parts: tuple[Part, Part], least: float, out: Tables) -> None:
    documents, scored = parts
    windows = scored.read(["doc_id", "start", "end", "toxicity"])
    known = pc.unique(windows["doc_id"])
    toxic = windows.filter(pc.greater_equal(windows["toxicity"].cast(pa.float64()), least))
    for batch in documents.batches(["doc_id", "text"]):
        unknown = pc.index_in(batch["doc_id"], value_set=known).null_count
        if unknown:
            raise HallmarkError(
                f"{scored} has no window of {unknown} of {len(batch)} documents in {documents}: "
                f"score these documents first"
            )
        owner = pc.index_in(toxic["doc_id"], value_set=batch["doc_id"])
        here = toxic.filter(owner.is_valid())
        out.table("spans").write(find_batch(batch, owner.drop_null().to_numpy(), here))


def find_batch(batch: pa.RecordBatch, owner: Int64, windows: pa.Table) -> dict[str, pa.Array]:
    """Columns of SPANS for toxic windows, in characters, of the rows ``owner`` (m,) of a batch."""
    start, end = (windows[name].to_numpy() for name in ("start", "end"))
    score = windows["toxicity"].to_numpy()
    order = np.lexsort((start, owner))
    owner, start, end, score = joined(owner[order], start[order], end[order], score[order])
    rows, place = np.unique(owner, return_inverse=True)
    texts = batch["text"].take(pa.array(rows, pa.int64()))
    size = pc.utf8_length(texts).to_numpy()[place]
    for i in np.flatnonzero(end > size)[:1]:
        raise HallmarkError(
            f"a window ends at character {end[i]} of document "
            f"{batch['doc_id'][int(owner[i])].as_py().hex()}, a text of {size[i]}: the windows are "
            f"of other texts; score these documents first"
        )
    utf8 = Utf8.of(texts)
    return span_rows(
        batch,
        owner,
        start=utf8.to_bytes(place, start),
        end=utf8.to_bytes(place, end),
        type=pa.array(["TOXIC"] * len(owner), pa.string()),
        score=pa.array(score, pa.float32()),
    )


def joined(
    owner: Int64, start: Int64, end: Int64, score: Float32
) -> tuple[Int64, Int64, Int64, Float32]:
    """Windows that overlap or touch as one, with the highest score; by owner and start, (m,)."""
    if not len(owner):
        return owner, start, end, score
    line = owner * (end.max() + 1)  # texts one behind the other, so that one maximum serves all
    reach = np.maximum.accumulate(line + end)
    first = np.flatnonzero(np.append(True, (line + start)[1:] > reach[:-1]))
    last = np.append(first[1:], len(owner)) - 1
    return owner[first], start[first], (reach - line)[last], np.maximum.reduceat(score, first)


@stage(tables={"spans": SPANS}, libraries=["numpy"])
def find_toxic(documents: Table, windows: Table, config: FindToxicConfig, work: Work) -> None:
    """``windows``: those of the stage ``score_toxicity``, of these documents and such as left
    since. HallmarkError where they are of other ones."""
    work.parts(find_part, aligned(documents, windows), config.least)
