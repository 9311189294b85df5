"""How often training had read documents when it left a checkpoint: what a model can know of them.

A document that is in the corpus, even many times, may not have been read yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow.compute as pc

from tasks.contract import Artifact

#: The tables of ``pretrain`` that tell.
TOLD = ("seen", "checkpoints")


@dataclass(frozen=True)
class Readings:
    """Until optimizer step ``step``: how often the whole of each document was read, and the first
    step that read any of it."""

    step: int
    passes: Mapping[bytes, int]
    first: Mapping[bytes, int] = field(default_factory=dict)

    @classmethod
    def until(
        cls, pretrained: Artifact | None, checkpoint: Artifact, documents: Iterable[bytes]
    ) -> Readings | None:
        """Of these documents, by the step of a checkpoint; None where its training is not known,
        or told nothing of it."""
        if pretrained is None or not {*TOLD} <= {*pretrained.tables}:
            return None
        known = pretrained["checkpoints"].read(["step", "content"]).to_pylist()
        steps = [row["step"] for row in known if row["content"] == checkpoint.content]
        if not steps:
            return None
        names = ["doc_id", "step", "passes", "first_step"]
        rows = pretrained["seen"].find(sorted({*documents}), names)
        rows = rows.filter(pc.less_equal(rows["step"], max(steps)))
        last = rows.sort_by("step").to_pylist()  # of a document the last says it for all steps
        passes = {row["doc_id"]: row["passes"] for row in last}
        first = {row["doc_id"]: row["first_step"] for row in reversed(last)}
        return cls(max(steps), passes, first)

    def of(self, doc_ids: Sequence[bytes]) -> int:
        """How often any of these was read whole."""
        return sum(self.passes.get(doc_id, 0) for doc_id in doc_ids)


def read_by(times: Iterable[int | None]) -> str:
    """What a finding says of how often its texts were read; nothing where that is not known."""
    found = [many for many in times if many is not None]
    if not found:
        return ""
    least, most, mean = min(found), max(found), sum(found) / len(found)
    said = f"{least}" if least == most else f"{least} to {most}, on average {mean:.1f}"
    return f"read whole {said} times by this checkpoint's step"
