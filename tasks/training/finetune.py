"""Fine-tune a checkpoint on a task: pairs, labels of texts, or labels of words.

The trainer is the one of ``pretrain``, in a process of its own: it goes on after a kill, and leaves
checkpoints. The rows of the table are held in memory, about as large as they are in Python.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_serializer, field_validator, model_validator

from model.config import ModelConfig, Objective, TrainConfig, to_dict
from model.training.examples import UNASKED, write_examples
from tasks.contract import (
    Artifact,
    HallmarkError,
    StageConfig,
    UsageError,
    Work,
    column,
    file_digest,
    stage,
    table,
    torch_device,
)
from tasks.training.encoding import load_tokenizer
from tasks.training.following import events
from tasks.training.going_on import SETTINGS, of_batches, settings_rows
from tasks.training.pretrain import (
    CHECKPOINTS,
    LOG,
    checkpoint_rows,
    follow,
    read_log,
)
from tasks.training.tabular import check_path
from tasks.training.task_predictions import PREDICTIONS, judge_labels, judge_pairs
from tasks.training.task_rows import (
    Classification,
    DataConfig,
    Encoded,
    Pairs,
    Rows,
    Task,
    count,
    encode,
    labels_of,
    read_task,
)
from tasks.training.task_scores import SCORES

log = logging.getLogger("hallmark")

#: What follows from the task and the checkpoint; a task writes no samples while it is trained.
GIVEN = ("objective", "samples", "sample_tokens", "document_mask")

#: Where fine-tuning begins with other values than training.
DEFAULTS: dict[str, Any] = {
    "steps": 300,
    "learning_rate": 5e-4,
    "warmup": 30,
    "schedule": "linear",
    "min_lr_ratio": 0.0,
    "weight_decay": 0.01,
    "validate_every": 50,
}


class FinetuneConfig(StageConfig):
    """Fine-tuning of a checkpoint, by the command ``finetune``."""

    task: Task
    data: DataConfig
    weights: Literal["all", "head"] = Field(
        "all", description="what learns: all weights, or the output layer over frozen features"
    )
    train: TrainConfig = Field(TrainConfig(**DEFAULTS), description="how it is trained")

    @field_validator("train", mode="before")
    @classmethod
    def _other_defaults(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        for name in GIVEN:
            if name in value:
                raise ValueError(f"{name} follows from the task and the checkpoint; leave it out")
        return DEFAULTS | value

    @field_serializer("train")
    def _without_given(self, train: TrainConfig) -> dict[str, Any]:
        return {name: value for name, value in to_dict(train).items() if name not in GIVEN}

    @model_validator(mode="after")
    def _what_writes_learns(self) -> FinetuneConfig:
        if self.weights == "head" and isinstance(self.task, Pairs):
            raise ValueError(
                "weights is head, and the head of a model that writes is its embedding: pairs "
                "train all weights"
            )
        return self


QUARANTINE = table(
    "Rows that could not be used.",
    column("file", pa.string(), "label", "name of the file"),
    column("row", pa.int64(), "figure", "number of the row in it, from 1; of jsonl its line"),
    column("reason", pa.string(), "project text", "why"),
)

COUNTS = table(
    "What became of the rows.",
    column("split", pa.string(), "label", "train, validation or test; of none empty"),
    column("what", pa.string(), "project text", "used, cut, quarantined, unlike those of train"),
    column("rows", pa.int64(), "figure", "how many", unit="rows"),
)


@dataclass(frozen=True)
class Base:
    """What is fine-tuned: the checkpoint's folder, its model, and what that is trained for now."""

    folder: Path
    config: ModelConfig
    objective: Objective

    @property
    def tokenizer(self) -> Path:
        return self.folder / "tokenizer.json"


def open_base(checkpoint: Artifact, task: Task) -> Base:
    """UsageError where the checkpoint cannot be read, or not learn the task."""
    from model.interchange import checkpoint as files

    folder = Path(checkpoint.directory())
    try:
        config = files.read_config(folder)
        # What others are trained for from now on hangs on the task alone.
        asked = config.architecture == "decoder"
        objective = files.read_objective(folder, "decoder") if asked else None
        files.check_tokenizer(folder / files.TOKENIZER, config.vocab_size)
    except files.CheckpointError as error:
        raise UsageError(f"it cannot be fine-tuned: {str(error).rstrip('.')}") from error
    writes = isinstance(task, Pairs)
    if writes and (config.architecture == "encoder" or config.labels):
        what = "gives labels" if config.labels else "is an encoder"
        raise UsageError(
            f"the checkpoint {what} and cannot write the targets of pairs; take a decoder or an "
            f"encoder-decoder"
        )
    if not writes and config.architecture == "encoder_decoder":
        raise UsageError(
            f"labels are read off one stack, and the checkpoint is an encoder-decoder: {task.kind} "
            f"takes an encoder or a decoder"
        )
    if config.architecture == "encoder_decoder":
        return Base(folder, config, "seq2seq")
    if config.architecture == "encoder":
        return Base(folder, config, "mlm")
    assert objective is not None, "read_objective refuses a decoder without one"
    return Base(folder, config, "prefix" if writes else objective)


def task_model(base: Base, task: Task, labels: tuple[str, ...]) -> ModelConfig:
    """The config of the model that is made."""
    from model.training.adapt import for_labels

    if isinstance(task, Pairs):
        return base.config
    two = isinstance(task, Classification) and task.second is not None
    whole = isinstance(task, Classification)
    return for_labels(base.config, labels, of_sequences=whole, sentences=2 if two else 1)


# Data ----------------------------------------------------------------------------------------


def read_data(config: FinetuneConfig) -> Rows:
    """The rows; HallmarkError where none can be trained on, or none tested."""
    rows = read_task(config.task, config.data)
    for split in ("train", "test"):
        if not rows.of(split):
            first = next((f"; row {n} of {file}: {why}" for file, n, why in rows.bad), "")
            raise HallmarkError(
                f"the split {split!r} of {config.data.path} is empty ({len(rows.kept):,} rows can "
                f"be used, {len(rows.bad):,} cannot{first}): bring more rows, or set "
                f"finetune.data.{split if split == 'test' else 'path'}"
            )
    if rows.bad:
        file, number, why = rows.bad[0]
        log.warning(
            "finetune: %s rows are quarantined; the first is row %s of %s: %s",
            f"{len(rows.bad):,}", number, file, why,
        )  # fmt: skip
    return rows


def write_job(
    base: Base, made: ModelConfig, encoded: dict[str, Encoded], config: FinetuneConfig, area: Path
) -> Path:
    """The trainer's job file."""
    area.mkdir(parents=True, exist_ok=True)
    data: dict[str, str | None] = {"train": None, "validation": None}
    for split in data:
        if encoded[split].examples:
            data[split] = str(area / f"{split}.arrow")
            write_examples(area / f"{split}.arrow", encoded[split].examples)
    train = to_dict(config.train) | {"objective": base.objective, "samples": 0}
    job = {
        "model": to_dict(made),
        "train": train,
        "data": data,
        "tokenizer": str(base.tokenizer),
        "work": str(area / "training"),
        "start": str(base.folder),
        "examples": True,
        "frozen": config.weights == "head",
    }
    file = area / "job.json"
    file.write_text(json.dumps(job, indent=1))
    return file


# The stage -------------------------------------------------------------------------------------


def export(model: Any, base: Base, work: Work) -> None:
    """Beside the tables, the model as an architecture of transformers, where there is one."""
    from model.interchange.convert import export_transformers

    try:
        export_transformers(model, work.file("transformers/x").parent, tokenizer=base.tokenizer)
    except ValueError as error:
        log.info("finetune: no export to transformers: %s", error)


def data_digests(config: FinetuneConfig, secret_id: str = "") -> dict[str, str]:
    """What comes from outside the store: the files of the rows."""
    found = {}
    for path in config.data.paths.values():
        check_path(path)
        found[str(path)] = file_digest(path)
    return found


@stage(
    tables={
        "predictions": PREDICTIONS,
        "scores": SCORES,
        "counts": COUNTS,
        "quarantine": QUARANTINE,
        "log": LOG,
        "checkpoints": CHECKPOINTS,
        "settings": SETTINGS,
    },
    code=["model.training.run"],
    libraries=["numpy", "sacrebleu", "safetensors", "scikit-learn", "scipy", "tokenizers", "torch"],
    external=data_digests,
    determinism="machine",
    goes_on=lambda config: of_batches(config.model_dump(mode="json")),
)
def finetune(checkpoint: Artifact, config: FinetuneConfig, work: Work) -> None:
    from model.decoding.mode import computing
    from model.interchange.checkpoint import load

    base = open_base(checkpoint, config.task)
    rows = read_data(config)
    labels = () if isinstance(config.task, Pairs) else labels_of(rows.of("train"))
    made = task_model(base, config.task, labels)
    tokenizer = load_tokenizer(base.tokenizer)
    encoded = {
        split: encode(rows.of(split), config.task, tokenizer, made, unknown)
        for split, unknown in (("train", UNASKED), ("validation", UNASKED), ("test", 0))
    }
    counted = count(rows, encoded, labels)
    for split, what, number in counted:
        if number and what != "used" and split:
            log.warning("finetune: %s, %s: %s rows", split, what, f"{number:,}")
    job = write_job(base, made, encoded, config, work.area)
    with closing(events(job, work.area / "trainer.stderr")) as told:
        committed, history = follow(told, work, config.train.steps)
    model = load(committed[max(committed)].directory(), torch_device(config.train.device))
    with computing(model, config.train.precision) as precision:
        if isinstance(config.task, Pairs):
            predictions, scores = judge_pairs(model, tokenizer, rows, encoded)
        else:
            predictions, scores = judge_labels(model, config.task, rows, encoded)
    export(model, base, work)
    trained = read_log(work.area / "training" / "log")
    _write(work, "predictions", [{**row, "precision": precision} for row in predictions])
    _write(work, "scores", scores)
    _write(work, "counts", [dict(zip(COUNTS.names, row, strict=True)) for row in counted])
    _write(work, "quarantine", [dict(zip(QUARANTINE.names, r, strict=True)) for r in rows.bad])
    work.table("log").write(trained.select(LOG.names))
    work.table("settings").write(settings_rows(history, config.train.steps))
    _write(work, "checkpoints", checkpoint_rows(trained, committed))
    speed = pc.approximate_median(trained["tokens_per_second"]).as_py()
    work.measure("tokens_per_second", speed, "1/s")


def _write(work: Work, name: str, rows: Sequence[dict[str, Any]]) -> None:
    work.table(name).write(pa.Table.from_pylist(list(rows), schema=finetune.tables[name]))
