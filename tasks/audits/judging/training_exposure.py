"""How often training had read documents when it left a checkpoint: what a model can know of them.

A document that is in the corpus, even many times, may not have been read yet; and one that is not
may have been read by the training whose checkpoint it went on from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow.compute as pc

from hallmark.tasks.contract import Artifact

#: The tables of ``pretrain`` that tell.
EXPOSURE_TABLES = ("document_reads", "checkpoints")


@dataclass(frozen=True)
class TrainingExposure:
    """How often the whole of each document was read, and the first step that read any of it: of the
    training that first did."""

    passes: Mapping[bytes, int]
    first_steps: Mapping[bytes, int] = field(default_factory=dict)

    @classmethod
    def from_checkpoints(
        cls,
        training_runs: Mapping[str, Artifact] | None,
        checkpoints: Mapping[str, Artifact] | None,
        doc_ids: Iterable[bytes],
    ) -> TrainingExposure | None:
        """Of these documents, by the step of a checkpoint: by its training, and those that it went
        on from, each until the checkpoint that it left; the newest first. None where they are not
        known, or told nothing of it."""
        if not training_runs or not checkpoints:
            return None
        passes: Counter[bytes] = Counter()
        first_steps: dict[bytes, int] = {}
        sorted_ids = sorted({*doc_ids})
        for name in reversed([*training_runs]):
            step = find_checkpoint_step(training_runs[name], checkpoints[name])
            if step is None or not {*EXPOSURE_TABLES} <= {*training_runs[name].tables}:
                return None
            columns = ["doc_id", "step", "times_read", "first_step"]
            rows = training_runs[name]["document_reads"].find_document_rows(sorted_ids, columns)
            rows = rows.filter(pc.less_equal(rows["step"], step))
            last_rows = rows.sort_by(
                "step"
            ).to_pylist()  # of a document the last says it for all steps
            passes.update({row["doc_id"]: row["times_read"] for row in last_rows})
            for row in last_rows:
                first_steps.setdefault(row["doc_id"], row["first_step"])
        return cls(passes, first_steps)

    def count_reads(self, doc_ids: Sequence[bytes]) -> int:
        """How often any of these was read whole."""
        return sum(self.passes.get(doc_id, 0) for doc_id in doc_ids)


def find_checkpoint_step(training_run: Artifact, checkpoint: Artifact) -> int | None:
    """The step at which a training left a checkpoint, the last one; None where it left none."""
    checkpoint_rows = training_run["checkpoints"].read(["step", "content_digest"]).to_pylist()
    steps = [
        row["step"] for row in checkpoint_rows if row["content_digest"] == checkpoint.content_digest
    ]
    return max(steps) if steps else None


def describe_times_read(times_read: Iterable[int | None]) -> str:
    """What a finding says of how often its texts were read; nothing where that is not known."""
    known_counts = [count for count in times_read if count is not None]
    if not known_counts:
        return ""
    smallest, largest, mean = (
        min(known_counts),
        max(known_counts),
        sum(known_counts) / len(known_counts),
    )
    count_text = (
        f"{smallest}" if smallest == largest else f"{smallest} to {largest}, on average {mean:.1f}"
    )
    return f"read whole {count_text} times by this checkpoint's step"
