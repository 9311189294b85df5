"""Reconstruct what a training had read by one of its checkpoints, before the training ends.

The `pretrain` stage writes its tables when the training ends. Until then, and for a training that
was interrupted, this stage computes from the packed corpus and the step which documents had been
read, with the functions that `pretrain` uses. The audits of a checkpoint then give the same
findings before and after the end of its training.
"""

from __future__ import annotations

import pyarrow as pa
from pydantic import Field

from hallmark.tasks.contract import (
    Artifact,
    StageConfig,
    StageContext,
    Table,
    column,
    stage,
    table_schema,
)
from hallmark.tasks.training.document_reads import COVERAGE, DOCUMENT_READS, write_read_tables


class ReadOrderConfig(StageConfig):
    """The settings of a training that determine which rows each step reads."""

    seed: int = Field(description="as in `pretrain.train`")
    batch_size: int = Field(description="as in `pretrain.train`", ge=1)


class ReconstructReadsConfig(StageConfig):
    """The step of a checkpoint and the settings of its training; the checkpoint has both."""

    step: int = Field(description="optimizer step of the checkpoint")
    train: ReadOrderConfig = Field(description="training settings")


AUDITED_CHECKPOINT = table_schema(
    "Checkpoint for which the stage reconstructed which documents the model had read (one row).",
    column("step", pa.int64(), "figure", "optimizer step"),
    column("content_digest", pa.string(), "id", "digest of the checkpoint's files"),
)


@stage(
    name="reconstruct_reads",
    tables={
        "checkpoints": AUDITED_CHECKPOINT,
        "document_reads": DOCUMENT_READS,
        "coverage": COVERAGE,
    },
    libraries=["numpy"],
    reads={"packed_corpus": ("train", "spans")},
)
def reconstruct_reads(
    checkpoint: Artifact,
    packed_corpus: Artifact,
    documents: Table,
    config: ReconstructReadsConfig,
    context: StageContext,
) -> None:
    """Reconstruct which documents a training had read by the step of a checkpoint.

    Args:
        checkpoint: The checkpoint.
        packed_corpus: The packed corpus that the training reads.
        documents: The packed documents.
        config: The step, and the settings of the training.
        context: Context of the stage.
    """
    context.get_table_writer("checkpoints").write(
        {"step": [config.step], "content_digest": [checkpoint.content_digest]}
    )
    write_read_tables(
        packed_corpus["train"],
        packed_corpus["spans"],
        documents,
        config.train.seed,
        config.train.batch_size,
        [config.step],
        context,
    )
