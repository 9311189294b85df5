"""Fine-tune a checkpoint on a task: pairs, labels of texts, or labels of words.

The trainer is that of `pretrain`, in a separate process: it resumes after it is killed, and writes
checkpoints. All rows of the user's table are held in memory as Python objects.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_serializer, field_validator, model_validator

from hallmark.model.config import ModelConfig, Objective, TrainConfig, config_to_dict
from hallmark.model.training.examples import NO_LABEL, write_examples
from hallmark.tasks.contract import (
    Artifact,
    HallmarkError,
    Row,
    StageConfig,
    StageContext,
    UsageError,
    column,
    format_count,
    hash_file,
    resolve_torch_device,
    rows_to_table,
    stage,
    table_schema,
)
from hallmark.tasks.training.encoding import load_tokenizer
from hallmark.tasks.training.pretrain import (
    CHECKPOINTS,
    LOG,
    build_checkpoint_rows,
    handle_trainer_events,
    read_training_log,
)
from hallmark.tasks.training.table_files import check_table_path
from hallmark.tasks.training.task_predictions import PREDICTIONS, evaluate_labels, evaluate_pairs
from hallmark.tasks.training.task_rows import (
    ClassificationTask,
    EncodedRows,
    PairsTask,
    Task,
    TaskDataConfig,
    TaskRows,
    collect_labels,
    count_rows_by_outcome,
    encode_rows,
    read_task_rows,
)
from hallmark.tasks.training.task_scores import SCORES
from hallmark.tasks.training.trainer_process import iter_trainer_events
from hallmark.tasks.training.training_resumption import (
    SETTINGS,
    build_settings_table,
    fetch_stored_state,
    select_batch_settings,
)

if TYPE_CHECKING:
    from hallmark.model.architecture import Transformer

log = logging.getLogger("hallmark")

#: Settings that follow from the task and the checkpoint; no samples are generated in training.
DERIVED_SETTINGS = ("objective", "sample_count", "sample_tokens", "document_mask")

#: Defaults of training settings that differ from pretraining.
FINETUNING_DEFAULTS: dict[str, Any] = {
    "steps": 300,
    "learning_rate": 5e-4,
    "warmup_steps": 30,
    "schedule": "linear",
    "min_lr_ratio": 0.0,
    "weight_decay": 0.01,
    "validate_every": 50,
}


class FinetuneConfig(StageConfig):
    """Settings of the command `finetune`."""

    task: Task
    data: TaskDataConfig
    trained_weights: Literal["all", "head"] = Field(
        "all",
        description="weights to train: all weights, or only the output layer (head), with all "
        "other weights frozen",
    )
    train: TrainConfig = Field(TrainConfig(**FINETUNING_DEFAULTS), description="training settings")

    @field_validator("train", mode="before")
    @classmethod
    def _apply_finetuning_defaults(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        for name in DERIVED_SETTINGS:
            if name in value:
                raise ValueError(
                    f"'{name}' is determined by the task and the checkpoint; remove the setting"
                )
        return FINETUNING_DEFAULTS | value

    @field_validator("train")
    @classmethod
    def _reject_several_hosts(cls, value: TrainConfig) -> TrainConfig:
        if value.hosts > 1:
            raise ValueError("fine-tuning runs on one host; remove 'hosts' and 'rendezvous'")
        return value

    @field_serializer("train")
    def _serialize_without_derived(self, train_config: TrainConfig) -> dict[str, Any]:
        return {
            name: value
            for name, value in config_to_dict(train_config).items()
            if name not in DERIVED_SETTINGS
        }

    @model_validator(mode="after")
    def _check_weights_suit_task(self) -> FinetuneConfig:
        if self.trained_weights == "head" and isinstance(self.task, PairsTask):
            raise ValueError(
                "'trained_weights' is 'head', but the output layer of a model that generates text "
                "shares its weights with the embedding table, so it cannot be trained alone; set "
                "'trained_weights' to 'all' for the 'pairs' task"
            )
        return self


QUARANTINE = table_schema(
    "Rows of the data files that could not be used for fine-tuning.",
    column("file_name", pa.string(), "label", "name of the file"),
    column(
        "row_number",
        pa.int64(),
        "figure",
        "row number in the file, starting at 1; for jsonl files, the line number",
    ),
    column("reason", pa.string(), "project text", "reason why the row cannot be used"),
)

COUNTS = table_schema(
    "Number of rows in the data files for each split and outcome.",
    column(
        "split",
        pa.string(),
        "label",
        "split name: train, validation or test; empty for quarantined rows",
    ),
    column(
        "outcome",
        pa.string(),
        "project text",
        "how the rows were processed (used, cut to the context length, or quarantined), or how "
        "the validation or test rows relate to the train split",
    ),
    column("row_count", pa.int64(), "figure", "number of rows", unit="rows"),
)


@dataclass(frozen=True)
class BaseCheckpoint:
    """The checkpoint to fine-tune.

    Attributes:
        folder: Folder of the checkpoint.
        config: Its model settings.
        objective: Objective for fine-tuning.
    """

    folder: Path
    config: ModelConfig
    objective: Objective

    @property
    def tokenizer_path(self) -> Path:
        return self.folder / "tokenizer.json"


def open_base_checkpoint(checkpoint: Artifact, task: Task) -> BaseCheckpoint:
    """Open the checkpoint and choose the objective for the task.

    Raises:
        UsageError: The checkpoint cannot be read or cannot learn the task.
    """
    from hallmark.model.interchange import checkpoint as checkpoint_files

    folder = Path(checkpoint.fetch_directory())
    try:
        config = checkpoint_files.read_model_config(folder)
        # For other architectures the objective depends only on the task.
        is_decoder = config.architecture == "decoder"
        objective = (
            checkpoint_files.read_training_objective(folder, "decoder") if is_decoder else None
        )
        checkpoint_files.load_matching_tokenizer(
            folder / checkpoint_files.TOKENIZER_FILE, config.vocab_size
        )
    except checkpoint_files.CheckpointError as error:
        raise UsageError(
            f"the checkpoint cannot be fine-tuned: {str(error).rstrip('.')}"
        ) from error
    generates_text = isinstance(task, PairsTask)
    if generates_text and (config.architecture == "encoder" or config.labels):
        obstacle = "predicts labels" if config.labels else "is an encoder"
        raise UsageError(
            f"the checkpoint's model {obstacle} and cannot generate the target texts of the "
            "'pairs' task; use a decoder or encoder-decoder checkpoint"
        )
    if not generates_text and config.architecture == "encoder_decoder":
        raise UsageError(
            "the checkpoint's model is an encoder-decoder, which cannot predict labels; use an "
            f"encoder or decoder checkpoint for the '{task.kind}' task"
        )
    if config.architecture == "encoder_decoder":
        return BaseCheckpoint(folder, config, "seq2seq")
    if config.architecture == "encoder":
        return BaseCheckpoint(folder, config, "mlm")
    assert objective is not None, "read_training_objective requires a decoder objective"
    return BaseCheckpoint(folder, config, "prefix" if generates_text else objective)


def build_task_model_config(
    base: BaseCheckpoint, task: Task, labels: tuple[str, ...]
) -> ModelConfig:
    """Return the settings of the fine-tuned model."""
    from hallmark.model.training.adaptation import make_classifier_config

    if isinstance(task, PairsTask):
        return base.config
    has_second_sentence = (
        isinstance(task, ClassificationTask) and task.second_text_column is not None
    )
    labels_whole_text = isinstance(task, ClassificationTask)
    return make_classifier_config(
        base.config,
        labels,
        per_sequence=labels_whole_text,
        sentence_count=2 if has_second_sentence else 1,
    )


# Data ----------------------------------------------------------------------------------------


def load_task_rows(config: FinetuneConfig) -> TaskRows:
    """Load the rows of the user's files, and log how many are quarantined.

    Raises:
        HallmarkError: There are no usable rows to train on, or none to test on.
    """
    rows = read_task_rows(config.task, config.data)
    for split in ("train", "test"):
        if not rows.select_split(split):
            first_rejection = next(
                (f"; row {n} of {file}: {reason}" for file, n, reason in rows.rejected_rows), ""
            )
            path_setting = "test_path" if split == "test" else "path"
            raise HallmarkError(
                f"the {split!r} split of {config.data.path} is empty "
                f"({format_count(len(rows.usable_rows), 'row')} can be used, "
                f"{len(rows.rejected_rows):,} cannot{first_rejection}); add rows, or set "
                f"finetune.data.{path_setting} to another file"
            )
    if rows.rejected_rows:
        file, row_number, reason = rows.rejected_rows[0]
        log.warning(
            "finetune: quarantined %s because of errors; the first is row %s of %s: %s",
            format_count(len(rows.rejected_rows), "row"),
            row_number,
            file,
            reason,
        )
    return rows


def write_trainer_job(
    base: BaseCheckpoint,
    model_config: ModelConfig,
    encoded_by_split: dict[str, EncodedRows],
    config: FinetuneConfig,
    work_area: Path,
    training_folder: Path,
) -> Path:
    """Write the trainer's job file and its examples."""
    work_area.mkdir(parents=True, exist_ok=True)
    data_paths: dict[str, str | None] = {"train": None, "validation": None}
    for split in data_paths:
        if encoded_by_split[split].examples:
            data_paths[split] = str(work_area / f"{split}.arrow")
            write_examples(work_area / f"{split}.arrow", encoded_by_split[split].examples)
    train_settings = config_to_dict(config.train) | {"objective": base.objective, "sample_count": 0}
    job = {
        "model": config_to_dict(model_config),
        "train": train_settings,
        "data": data_paths,
        "tokenizer": str(base.tokenizer_path),
        "work": str(training_folder),
        "start": str(base.folder),
        "examples": True,
        "frozen": config.trained_weights == "head",
    }
    job_path = work_area / "job.json"
    job_path.write_text(json.dumps(job, indent=1))
    return job_path


# The stage -------------------------------------------------------------------------------------


def export_to_transformers(model: Transformer, base: BaseCheckpoint, context: StageContext) -> None:
    """Also export the model for transformers, if that has its architecture."""
    from hallmark.model.interchange.transformers_checkpoint import export_transformers

    try:
        export_transformers(
            model,
            context.prepare_output_path("transformers/x").parent,
            tokenizer_path=base.tokenizer_path,
        )
    except ValueError as error:
        log.info("finetune: the model was not exported in the transformers format: %s", error)


def hash_data_files(config: FinetuneConfig, _secret_id: str = "") -> dict[str, str]:
    """Hash the user's files, which are inputs from outside the store."""
    digests = {}
    for path in config.data.path_by_split.values():
        check_table_path(path)
        digests[str(path)] = hash_file(path)
    return digests


@stage(
    name="finetune",
    tables={
        "predictions": PREDICTIONS,
        "scores": SCORES,
        "outcome_counts": COUNTS,
        "quarantine": QUARANTINE,
        "log": LOG,
        "checkpoints": CHECKPOINTS,
        "settings": SETTINGS,
    },
    extra_code=["hallmark.model.training.run"],
    libraries=["numpy", "sacrebleu", "safetensors", "scikit-learn", "scipy", "tokenizers", "torch"],
    external_digests=hash_data_files,
    determinism="machine",
    resume_key=lambda config: select_batch_settings(config.model_dump(mode="json")),
)
def finetune(checkpoint: Artifact, config: FinetuneConfig, context: StageContext) -> None:
    """Train a checkpoint on the user's rows and score it on the test split."""
    from hallmark.model.decoding.inference_mode import autocast_to_precision
    from hallmark.model.interchange.checkpoint import load_checkpoint

    base = open_base_checkpoint(checkpoint, config.task)
    rows = load_task_rows(config)
    labels = (
        () if isinstance(config.task, PairsTask) else collect_labels(rows.select_split("train"))
    )
    model_config = build_task_model_config(base, config.task, labels)
    tokenizer = load_tokenizer(base.tokenizer_path)
    encoded_by_split = {
        split: encode_rows(
            rows.select_split(split), config.task, tokenizer, model_config, unknown_label
        )
        for split, unknown_label in (("train", NO_LABEL), ("validation", NO_LABEL), ("test", 0))
    }
    outcome_counts = count_rows_by_outcome(rows, encoded_by_split, labels)
    for split, outcome, row_count in outcome_counts:
        if row_count and outcome != "used" and split:
            log.warning("finetune: %s, %s: %s", split, outcome, format_count(row_count, "row"))
    training_folder = context.work_area / "training"
    fetch_stored_state(context, training_folder)
    job_path = write_trainer_job(
        base, model_config, encoded_by_split, config, context.work_area, training_folder
    )
    with closing(
        iter_trainer_events(job_path, context.work_area / "trainer.stderr")
    ) as trainer_events:
        training = handle_trainer_events(
            trainer_events, context, training_folder, config.train.steps
        )
    last_checkpoint = training.checkpoint_by_step[max(training.checkpoint_by_step)]
    model = load_checkpoint(
        last_checkpoint.fetch_directory(), resolve_torch_device(config.train.device)
    )
    with autocast_to_precision(model, config.train.precision) as precision:
        if isinstance(config.task, PairsTask):
            evaluation = evaluate_pairs(model, tokenizer, rows, encoded_by_split)
        else:
            evaluation = evaluate_labels(model, config.task, rows, encoded_by_split)
    export_to_transformers(model, base, context)
    training_log = read_training_log(training_folder / "log")
    context.get_table_writer("predictions").write(
        rows_to_table(
            [replace(prediction, precision=precision) for prediction in evaluation.predictions],
            PREDICTIONS,
        )
    )
    context.get_table_writer("scores").write(rows_to_table(evaluation.scores, SCORES))
    _write_table(
        context,
        "outcome_counts",
        [outcome_count._asdict() for outcome_count in outcome_counts],
    )
    _write_table(
        context,
        "quarantine",
        [rejected_row._asdict() for rejected_row in rows.rejected_rows],
    )
    context.get_table_writer("log").write(training_log.select(LOG.names))
    context.get_table_writer("settings").write(
        build_settings_table(training.settings_history, config.train.steps)
    )
    checkpoint_rows = build_checkpoint_rows(training_log, training.checkpoint_by_step)
    _write_table(context, "checkpoints", checkpoint_rows)
    tokens_per_second = pc.approximate_median(training_log["tokens_per_second"]).as_py()
    context.record_measurement("tokens_per_second", tokens_per_second, "1/s")


def _write_table(context: StageContext, table_name: str, rows: Sequence[Row]) -> None:
    context.get_table_writer(table_name).write(
        pa.Table.from_pylist(list(rows), schema=finetune.tables[table_name])
    )
