"""Read how often training had read documents by the step of a checkpoint.

A document of the corpus may not have been read yet, and a document that is not in the corpus may
have been read by an earlier training that this one continued.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow.compute as pc

from hallmark.tasks.contract import Artifact, format_count

#: The tables of ``pretrain`` that hold the reads.
EXPOSURE_TABLES = ("document_reads", "checkpoints")


@dataclass(frozen=True)
class TrainingExposure:
    """Hold how often training had read documents.

    Attributes:
        passes: How often each whole document was read, over all trainings.
        first_steps: First step that read any of it, in the earliest training that did.
    """

    passes: Mapping[bytes, int]
    first_steps: Mapping[bytes, int] = field(default_factory=dict)

    @classmethod
    def from_checkpoints(
        cls,
        training_run_by_name: Mapping[str, Artifact] | None,
        checkpoint_by_name: Mapping[str, Artifact] | None,
        doc_ids: Iterable[bytes],
    ) -> TrainingExposure | None:
        """Read the exposure of documents by the step of a checkpoint.

        Args:
            training_run_by_name: The training and those that it continued, by name, newest first.
            checkpoint_by_name: The checkpoint that each of them wrote, by the same names.
            doc_ids: The documents.

        Returns:
            The exposure; None if a training is unknown or did not record its reads.
        """
        if not training_run_by_name or not checkpoint_by_name:
            return None
        passes: Counter[bytes] = Counter()
        first_steps: dict[bytes, int] = {}
        sorted_ids = sorted({*doc_ids})
        for name in reversed([*training_run_by_name]):
            step = find_last_checkpoint_step(training_run_by_name[name], checkpoint_by_name[name])
            if step is None or not {*EXPOSURE_TABLES} <= {*training_run_by_name[name].tables}:
                return None
            columns = ["doc_id", "step", "times_read", "first_step"]
            rows = training_run_by_name[name]["document_reads"].find_document_rows(
                sorted_ids, columns
            )
            rows = rows.filter(pc.less_equal(rows["step"], step))
            # The last row of a document counts all steps up to it.
            last_rows = rows.sort_by("step").to_pylist()
            passes.update({row["doc_id"]: row["times_read"] for row in last_rows})
            for row in last_rows:
                first_steps.setdefault(row["doc_id"], row["first_step"])
        return cls(passes, first_steps)

    def count_reads(self, doc_ids: Sequence[bytes]) -> int:
        """Sum how often these documents were read whole."""
        return sum(self.passes.get(doc_id, 0) for doc_id in doc_ids)


def find_last_checkpoint_step(training_run: Artifact | None, checkpoint: Artifact) -> int | None:
    """Return the last step at which a training wrote a checkpoint; None if that is not known."""
    if training_run is None:
        return None
    checkpoint_rows = training_run["checkpoints"].read(["step", "content_digest"]).to_pylist()
    steps = [
        row["step"] for row in checkpoint_rows if row["content_digest"] == checkpoint.content_digest
    ]
    return max(steps) if steps else None


def parse_mean_times_read(method: str) -> float | None:
    """Return the mean that ``describe_times_read`` states in a method; None without one."""
    match = re.search(
        r"read completely (?:\S+ to \S+ times \(mean ([\d.]+)\)|([\d,]+) time)", method
    )
    return None if match is None else float((match[1] or match[2]).replace(",", ""))


def describe_times_read(times_read: Iterable[int | None]) -> str:
    """Describe for a finding how often its texts were read; empty if that is unknown."""
    known_counts = [count for count in times_read if count is not None]
    if not known_counts:
        return ""
    smallest, largest, mean = (
        min(known_counts),
        max(known_counts),
        sum(known_counts) / len(known_counts),
    )
    count_text = (
        format_count(smallest, "time")
        if smallest == largest
        else f"{smallest} to {largest} times (mean {mean:.1f})"
    )
    return (
        "the text of each item, which can be part of a document, was read completely "
        f"{count_text} up to this checkpoint's step"
    )
