"""How often training had read documents when it left a checkpoint: what a model can know of them.

A document that is in the corpus, even many times, may not have been read yet; and one that is not
may have been read by the training whose checkpoint it went on from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow.compute as pc

from tasks.contract import Artifact

#: The tables of ``pretrain`` that tell.
TOLD = ("seen", "checkpoints")


@dataclass(frozen=True)
class Readings:
    """How often the whole of each document was read, and the first step that read any of it: of the
    training that first did."""

    passes: Mapping[bytes, int]
    first: Mapping[bytes, int] = field(default_factory=dict)

    @classmethod
    def until(
        cls,
        pretrained: Mapping[str, Artifact] | None,
        checkpoints: Mapping[str, Artifact] | None,
        documents: Iterable[bytes],
    ) -> Readings | None:
        """Of these documents, by the step of a checkpoint: by its training, and those that it went
        on from, each until the checkpoint that it left; the newest first. None where they are not
        known, or told nothing of it."""
        if not pretrained or not checkpoints:
            return None
        passes: Counter[bytes] = Counter()
        first: dict[bytes, int] = {}
        wanted = sorted({*documents})
        for name in reversed([*pretrained]):
            step = step_of(pretrained[name], checkpoints[name])
            if step is None or not {*TOLD} <= {*pretrained[name].tables}:
                return None
            names = ["doc_id", "step", "passes", "first_step"]
            rows = pretrained[name]["seen"].find(wanted, names)
            rows = rows.filter(pc.less_equal(rows["step"], step))
            last = rows.sort_by("step").to_pylist()  # of a document the last says it for all steps
            passes.update({row["doc_id"]: row["passes"] for row in last})
            for row in last:
                first.setdefault(row["doc_id"], row["first_step"])
        return cls(passes, first)

    def of(self, doc_ids: Sequence[bytes]) -> int:
        """How often any of these was read whole."""
        return sum(self.passes.get(doc_id, 0) for doc_id in doc_ids)


def step_of(pretrained: Artifact, checkpoint: Artifact) -> int | None:
    """The step at which a training left a checkpoint, the last one; None where it left none."""
    known = pretrained["checkpoints"].read(["step", "content"]).to_pylist()
    steps = [row["step"] for row in known if row["content"] == checkpoint.content]
    return max(steps) if steps else None


def read_by(times: Iterable[int | None]) -> str:
    """What a finding says of how often its texts were read; nothing where that is not known."""
    found = [many for many in times if many is not None]
    if not found:
        return ""
    least, most, mean = min(found), max(found), sum(found) / len(found)
    said = f"{least}" if least == most else f"{least} to {most}, on average {mean:.1f}"
    return f"read whole {said} times by this checkpoint's step"
