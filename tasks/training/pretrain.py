"""Pretrain a model on packed sequences in a separate process.

The trainer (`python -m hallmark.model.training.run`) keeps its state in the work area and reports
its progress in JSON lines. This stage starts it, restarts it if it is killed, commits each
checkpoint as soon as it is complete, and sends each state to a store that is no local folder. The
trainer ends with this process: its standard input is a pipe that only this process holds open. With
several hosts, the trainers of the others join that of this stage; see ``training.hosts``.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field, field_serializer, field_validator

from hallmark.model.config import (
    ARCHITECTURE_BY_OBJECTIVE,
    ModelConfig,
    TrainConfig,
    config_to_dict,
)
from hallmark.tasks.contract import (
    Artifact,
    HallmarkError,
    Row,
    StageConfig,
    StageContext,
    Table,
    UsageError,
    column,
    hash_file,
    sha256_hex,
    stage,
    table_schema,
    to_canonical_json,
)
from hallmark.tasks.training.document_reads import COVERAGE, DOCUMENT_READS, write_read_tables
from hallmark.tasks.training.trainer_process import (
    MAX_RESTARTS,
    TrainerEvent,
    iter_trainer_events,
)
from hallmark.tasks.training.training_resumption import (
    JOB_FILE,
    SETTINGS,
    SettingsSegment,
    build_settings_table,
    choose_training_folder,
    preserve_resumable_states,
    select_past_step_settings,
    send_state,
)
from hallmark.tasks.training.validation_groups import build_validation_groups

log = logging.getLogger("hallmark")

#: Settings that follow from the tokenizer, the packed sequences and, for `finetune`, its data.
DERIVED_MODEL_SETTINGS = ("vocab_size", "context", "labels")


class PretrainConfig(StageConfig):
    """Settings of the model and of its training."""

    model: ModelConfig = Field(
        ModelConfig(),
        description="model settings; `vocab_size` and `context` must not be set here, because "
        "they are taken from the tokenizer and from the `pack.context` setting",
    )
    train: TrainConfig = Field(TrainConfig(), description="training settings")

    @field_validator("model", mode="before")
    @classmethod
    def _reject_derived_settings(cls, value: Any) -> Any:
        for name in DERIVED_MODEL_SETTINGS if isinstance(value, dict) else ():
            if name in value:
                source_setting = {
                    "vocab_size": "train_tokenizer.vocab_size",
                    "context": "pack.context",
                    "labels": "finetune.data",
                }[name]
                raise ValueError(
                    f"'{name}' cannot be set here because it is determined by {source_setting}; "
                    "remove the setting"
                )
        return value

    @field_validator("train")
    @classmethod
    def _reject_pair_objective(cls, value: TrainConfig) -> TrainConfig:
        if value.objective == "seq2seq":
            raise ValueError(
                "the objective 'seq2seq' needs text pairs; use the 'hallmark finetune' command "
                "instead"
            )
        return value

    @field_serializer("model")
    def _serialize_without_derived(self, model_config: ModelConfig) -> dict[str, Any]:
        return {
            name: value
            for name, value in config_to_dict(model_config).items()
            if name not in DERIVED_MODEL_SETTINGS
        }


LOG = table_schema(
    "Training log with one row per step; losses are means over tokens.",
    column("step", pa.int64(), "figure", "optimizer step, starting at 1"),
    column("loss", pa.float64(), "figure", "training loss at the step", unit="nats per token"),
    column("grad_norm", pa.float64(), "figure", "gradient norm before clipping"),
    column(
        "skipped",
        pa.bool_(),
        "figure",
        "whether the update in this step was skipped because training diverged",
    ),
    column("learning_rate", pa.float64(), "figure", "learning rate at the step"),
    column("tokens_seen", pa.int64(), "figure", "tokens seen so far", unit="tokens"),
    column(
        "validation_loss",
        pa.float64(),
        "figure",
        "mean loss on the validation split; null if it was not measured at this step",
        unit="nats per token",
    ),
)

CHECKPOINTS = table_schema(
    "Checkpoints of the training run, one per row; step 0 is the model before training, for which "
    "no losses are recorded.",
    column("step", pa.int64(), "figure", "optimizer step"),
    column("tokens_seen", pa.int64(), "figure", "tokens seen so far", unit="tokens"),
    column("artifact", pa.string(), "id", "name of the checkpoint's artifact"),
    column("content_digest", pa.string(), "id", "digest of the checkpoint's files"),
    column("loss", pa.float64(), "figure", "training loss at the step", unit="nats per token"),
    column(
        "validation_loss",
        pa.float64(),
        "figure",
        "loss on the validation split",
        unit="nats per token",
    ),
)

VALIDATION = table_schema(
    "Number of bits per byte that the model needs to encode the validation split, at each step "
    "for which the validation loss was measured.",
    column("step", pa.int64(), "figure", "optimizer step"),
    column("kind", pa.string(), "label", "all, source or identity"),
    column(
        "name",
        pa.string(),
        "label",
        "name of the source, or of the identity group that the documents mention",
    ),
    column("tokens", pa.int64(), "figure", "number of predicted tokens", unit="tokens"),
    column("bytes", pa.int64(), "figure", "number of bytes in the predicted tokens", unit="bytes"),
    column(
        "bits_per_byte",
        pa.float64(),
        "figure",
        "mean number of bits that the model needs to encode one byte of text; null if no token "
        "was predicted",
        unit="bits per byte",
    ),
)

#: Unscored texts, so no page shows them; see the stage score_samples.
SAMPLES = table_schema(
    "Texts generated by the model, with the same random seed, at each step for which the "
    "validation loss was measured.",
    column("step", pa.int64(), "figure", "optimizer step"),
    column("sample_id", pa.int64(), "id", "index of the sample within its step"),
    column(
        "prompt",
        pa.string(),
        "corpus text",
        "encoder input text if the model is an encoder-decoder; empty for other models",
    ),
    column("text", pa.string(), "model text", "text generated by the model"),
    column(
        "precision",
        pa.string(),
        "label",
        "number format used in the model's computations: fp32, or bf16 on a GPU",
    ),
)

SPEED = table_schema(
    "Training speed and memory use on the machine where the stage ran.",
    column("step", pa.int64(), "figure", "optimizer step"),
    column(
        "seconds",
        pa.float64(),
        "figure",
        "time elapsed since the step in the previous row",
        unit="s",
    ),
    column("tokens_per_second", pa.float64(), "figure", "throughput", unit="tokens a second"),
    column(
        "mfu",
        pa.float64(),
        "figure",
        "model FLOPs utilisation: training speed as a share of the device's matrix-multiplication "
        "speed, which is measured when training starts",
        unit="share",
    ),
    column("memory_mb", pa.float64(), "figure", "peak memory", unit="MB"),
)


# Job file ------------------------------------------------------------------------------------


def write_trainer_job(
    packed_corpus: Artifact,
    tokenizer: Artifact,
    documents: Table,
    identity_signals: Table | None,
    start_checkpoint: Artifact | None,
    config: PretrainConfig,
    work_area: Path,
    training_folder: Path,
) -> Path:
    """Write the trainer's job file; vocabulary size and context length come from the inputs.

    Args:
        packed_corpus: Output of `pack`.
        tokenizer: Output of `train_tokenizer`.
        documents: The packed documents.
        identity_signals: Output of `identities`, or None.
        start_checkpoint: Checkpoint to continue from, or None to train from scratch.
        config: Settings of the model and the training.
        work_area: Folder of the job file.
        training_folder: Folder in which the trainer works.

    Raises:
        HallmarkError: There are no sequences, a document was purged from them, or the start
            checkpoint does not match the settings.
    """
    from tokenizers import Tokenizer

    if packed_corpus.purge_time_by_doc_id:
        raise HallmarkError(
            f"document {min(packed_corpus.purge_time_by_doc_id)} was purged from the sequences in "
            f"{packed_corpus.name}, so training on these sequences cannot start or continue; run "
            "the config again to build a corpus without the document"
        )
    tokenizer_path = tokenizer.fetch_file("tokenizer.json")
    train_paths, validation_paths = (
        [str(part.path) for part in packed_corpus[split].parts] for split in ("train", "validation")
    )
    if not packed_corpus["train"].row_count:
        raise HallmarkError(
            "there are no sequences to train on because the 'train' split is empty; ingest more "
            "text, relax the rules in select_scored.rules, or lower split.validation_share or "
            "split.holdout_share"
        )
    derived_settings = {
        "vocab_size": Tokenizer.from_file(str(tokenizer_path)).get_vocab_size(),
        "context": pq.read_schema(train_paths[0]).field("token_ids").type.list_size,
    }
    work_area.mkdir(parents=True, exist_ok=True)
    data_paths: dict[str, Any] = {"train": train_paths, "validation": None, "groups": None}
    if packed_corpus["validation"].row_count:
        groups_path = work_area / "groups.parquet"
        pq.write_table(
            build_validation_groups(documents, identity_signals, packed_corpus["spans"]),
            groups_path,
        )
        data_paths |= {"validation": validation_paths, "groups": str(groups_path)}
    model_settings = config_to_dict(config.model) | derived_settings
    job: dict[str, Any] = {
        "model": model_settings
        if start_checkpoint is None
        else read_start_model_settings(start_checkpoint, config, derived_settings),
        "train": config_to_dict(config.train),
        "data": data_paths,
        "tokenizer": str(tokenizer_path),
        "work": str(training_folder),
        "start": None if start_checkpoint is None else str(start_checkpoint.fetch_directory()),
    }
    if config.train.hosts > 1:
        job["versions"] = read_training_versions()
    job_path = work_area / JOB_FILE
    job_path.write_text(json.dumps(job, indent=1))
    return job_path


def read_start_model_settings(
    start_checkpoint: Artifact, config: PretrainConfig, derived_settings: dict[str, Any]
) -> dict[str, Any]:
    """Read the model settings of the start checkpoint and check them.

    Settings with default values are not checked: a recorded config contains all settings, whether
    the user set them or not.

    Args:
        start_checkpoint: The checkpoint to continue from.
        config: Settings of the model and the training.
        derived_settings: Context length and vocabulary size, or one of them.

    Raises:
        HallmarkError: The checkpoint cannot be read, predicts labels, or has other settings.
    """
    from hallmark.model.interchange.checkpoint import CheckpointError, read_model_config

    try:
        model_settings = config_to_dict(read_model_config(start_checkpoint.fetch_directory()))
    except CheckpointError as error:
        raise HallmarkError(
            f"training cannot continue from the given checkpoint: {str(error).rstrip('.')}"
        ) from error
    if model_settings["labels"]:
        raise HallmarkError(
            "training cannot continue from the given checkpoint: the model predicts labels and "
            "cannot generate text"
        )
    default_settings = config_to_dict(ModelConfig())
    required_settings = {
        name: value
        for name, value in config_to_dict(config.model).items()
        if value != default_settings[name] and name not in DERIVED_MODEL_SETTINGS
    }
    required_settings["architecture"] = ARCHITECTURE_BY_OBJECTIVE[config.train.objective]
    for name, value in (required_settings | derived_settings).items():
        if model_settings[name] != value:
            setting_names = {
                "context": "pack.context",
                "vocab_size": "the tokenizer's vocabulary",
                "architecture": f"the architecture for pretrain.train.objective "
                f"{config.train.objective}",
            }
            raise HallmarkError(
                f"{setting_names.get(name, f'pretrain.model.{name}')} is {value}, but is "
                f"{model_settings[name]} in the checkpoint from which training starts; use the "
                "value from the checkpoint"
            )
    return model_settings


def read_training_versions() -> dict[str, str]:
    """Return the versions that all hosts of a training must have: of code and libraries."""
    code_digest = sha256_hex(to_canonical_json(pretrain.compute_code_digests()))
    return {"the code of Hallmark": code_digest, **pretrain.read_library_versions()}


def check_hosts_share_store(train_config: TrainConfig, *, is_folder: bool) -> None:
    """Raise UsageError if several hosts train together, but the store is no folder."""
    if train_config.hosts > 1 and not is_folder:
        raise UsageError(
            f"pretrain.train.hosts is {train_config.hosts}, but the store is not a folder; hosts "
            "that train together read data and states from the store's folder, so use a store in "
            "a shared folder, or set pretrain.train.hosts to 1"
        )


# Checkpoints and the log ---------------------------------------------------------------------


def commit_checkpoint(context: StageContext, folder: Path, step: int) -> Artifact:
    """Commit a checkpoint as an artifact, once; the trainer's own folder stays unchanged.

    The trainer reports all its checkpoints again when it resumes, so none is lost if a process is
    killed at any moment. The key includes the hash of the weights, because on a GPU repeating a
    step may give other weights.
    """
    assert context.commit_child_artifact is not None, (
        "the pretrain stage needs a session to commit checkpoints"
    )
    copy_folder = context.work_area / "commit" / folder.name
    shutil.rmtree(copy_folder, ignore_errors=True)
    copy_folder.mkdir(parents=True)
    for path in folder.iterdir():
        try:
            os.link(path, copy_folder / path.name)  # Checkpoint files are never modified.
        except OSError:
            shutil.copyfile(path, copy_folder / path.name)
    key = {"step": step, "weights": hash_file(folder / "model.safetensors")}
    return context.commit_child_artifact("checkpoint", key, copy_folder)


def read_parquet_parts(folder: Path, schema: pa.Schema | None = None) -> pa.Table:
    """Read a table that the trainer wrote in parts."""
    part_tables = [pq.read_table(path) for path in sorted(folder.glob("part-*.parquet"))]
    return pa.concat_tables(part_tables) if part_tables or schema is None else schema.empty_table()


def read_training_log(folder: Path) -> pa.Table:
    """Read the trainer's log, one row per step."""
    log_table = read_parquet_parts(folder)
    validation_loss = pc.multiply(log_table["validation_bits_per_token"], math.log(2))
    return log_table.append_column("validation_loss", validation_loss)


def build_checkpoint_rows(
    log_table: pa.Table, checkpoint_by_step: dict[int, Artifact]
) -> list[Row]:
    """Build the rows of CHECKPOINTS."""
    log_rows = {row["step"]: row for row in log_table.select(LOG.names).to_pylist()}
    untrained_row = {"tokens_seen": 0, "loss": None, "validation_loss": None}
    return [
        {
            "step": step,
            "artifact": artifact.name,
            "content_digest": artifact.content_digest,
            **{name: log_rows.get(step, untrained_row)[name] for name in untrained_row},
        }
        for step, artifact in sorted(checkpoint_by_step.items())
    ]


#: Metrics of a step that are reported while training runs.
LIVE_METRICS = ("loss", "learning_rate", "grad_norm", "tokens_per_second", "mfu")


def format_step_progress(step_event: TrainerEvent, validation: tuple[int, float] | None) -> str:
    """Format the metrics of a step for the terminal's progress line and Prefect's page.

    Args:
        step_event: The metrics of the step.
        validation: The step and the loss of the last validation, in nats per token, as the
            training loss; None if there is none yet.
    """
    validation_text = (
        "" if validation is None else f" validation {validation[1]:.3f} (step {validation[0]:,}),"
    )
    return (
        f"loss {step_event['loss']:.3f},{validation_text} {step_event['tokens_per_second']:,.0f} "
        f"tokens/s, MFU {step_event['mfu']:.0%}, learning rate {step_event['learning_rate']:.2g}, "
        f"gradient norm {step_event['grad_norm']:.2g}"
    )


class TrainingResult(NamedTuple):
    """Hold what a training produced.

    Attributes:
        checkpoint_by_step: The committed checkpoints.
        settings_history: The settings under which the steps ran.
    """

    checkpoint_by_step: dict[int, Artifact]
    settings_history: list[SettingsSegment]


def handle_trainer_events(
    trainer_events: Iterable[TrainerEvent],
    context: StageContext,
    training_folder: Path,
    total_steps: int,
) -> TrainingResult:
    """Report and log the trainer's events, commit its checkpoints, and send its states.

    Raises:
        HallmarkError: The trainer reports an error.
        PolicyViolationError: The audit of a checkpoint requested to stop the training.
        LeaseLostError: Another process has taken the training over.
    """
    checkpoint_by_step: dict[int, Artifact] = {}
    settings_history: list[SettingsSegment] = []
    validation: tuple[int, float] | None = None
    for event in trainer_events:
        match event["event"]:
            case "waiting":
                log.info("trainer: waiting for an earlier training process to end")
            case "hosts":
                joined = f"{event['joined']} of {event['hosts']} hosts have joined"
                context.report_progress(0, 0, joined)
                log.warning(
                    "trainer: %s the training run at %s%s",
                    joined,
                    event["rendezvous"],
                    "; on each of the other hosts, run: hallmark join-training"
                    if event["joined"] < event["hosts"]
                    else "",
                )
            case "start":
                start_values = (
                    event[name]
                    for name in (
                        "parameters",
                        "device",
                        "precision",
                        "processes",
                        "threads",
                        "step",
                    )
                )
                log.info(
                    "trainer: training %d parameters on %s in %s (processes: %d, threads: %d), "
                    "from step %d of %d",
                    *start_values,
                    total_steps,
                )
                if event["stretches"] > 1:
                    log.info(
                        "trainer: earlier steps used different settings; see the 'settings' table"
                    )
                if event["stretches"] > 1 or event["device"] != "cpu":
                    context.determinism = "statistical"
            case "step":
                context.check_not_stopped()
                description = format_step_progress(event, validation)
                context.report_progress(event["step"], total_steps, description)
                context.report_metrics(
                    event["step"],
                    {name: value for name, value in event.items() if name in LIVE_METRICS},
                )
            case "validation":
                bits_per_token = event["bits_per_token"]
                validation = event["step"], bits_per_token * math.log(2)
                log.info(
                    "trainer: step %d, %.4f bits per validation token",
                    event["step"],
                    bits_per_token,
                )
                context.report_metrics(event["step"], {"validation_bits_per_token": bits_per_token})
            case "skipped":
                log.warning("trainer: step %d: %s", event["step"], event["message"])
            case "state":
                send_state(context, training_folder, event["step"])
            case "checkpoint":
                step = event["step"]
                checkpoint_by_step[step] = commit_checkpoint(context, Path(event["path"]), step)
                log.info(
                    "trainer: the checkpoint of step %d is %s",
                    step,
                    checkpoint_by_step[step].name,
                )
            case "done":
                settings_history = event["history"]
            case "error":
                raise HallmarkError(event["message"].rstrip("."))
    return TrainingResult(checkpoint_by_step, settings_history)


@stage(
    name="pretrain",
    tables={
        "log": LOG,
        "validation": VALIDATION,
        "samples": SAMPLES,
        "checkpoints": CHECKPOINTS,
        "document_reads": DOCUMENT_READS,
        "coverage": COVERAGE,
        "settings": SETTINGS,
    },
    telemetry_tables={"speed": SPEED},
    extra_code=["hallmark.model.training.run"],
    libraries=["numpy", "safetensors", "tokenizers", "torch"],
    determinism="machine",
    reads={"packed_corpus": ("train", "validation", "spans"), "tokenizer": ("tokenizer.json",)},
    resume_key=lambda config: select_past_step_settings(config.model_dump(mode="json")),
)
def pretrain(
    packed_corpus: Artifact,
    tokenizer: Artifact,
    documents: Table,
    signals: Table | None,
    start_checkpoint: Artifact | None,
    config: PretrainConfig,
    context: StageContext,
) -> None:
    """Train a model on packed sequences.

    Args:
        packed_corpus: Output of `pack`.
        tokenizer: Output of `train_tokenizer`.
        documents: The packed documents.
        signals: Output of the `identities` stage; None gives no losses by group.
        start_checkpoint: Checkpoint to continue from, or None to train from scratch.
        config: Settings of the model and the training.
        context: Context of the stage.
    """
    train_config, work_area = config.train, context.work_area
    check_hosts_share_store(train_config, is_folder=context.stored_states is None)
    training_folder = choose_training_folder(context, train_config)
    job_path = write_trainer_job(
        packed_corpus,
        tokenizer,
        documents,
        signals,
        start_checkpoint,
        config,
        work_area,
        training_folder,
    )
    trainer_events = iter_trainer_events(
        job_path,
        work_area / "trainer.stderr",
        # After a restart the others would have to join again.
        max_restarts=0 if train_config.hosts > 1 else MAX_RESTARTS,
    )
    with closing(trainer_events):
        training = handle_trainer_events(
            trainer_events, context, training_folder, train_config.steps
        )
    context.get_table_writer("settings").write(
        build_settings_table(training.settings_history, train_config.steps)
    )
    log_table = read_training_log(training_folder / "log")
    for table_name, schema in (("validation", VALIDATION), ("samples", SAMPLES)):
        context.get_table_writer(table_name).write(
            read_parquet_parts(training_folder / table_name, schema)
        )
    context.get_table_writer("log").write(log_table.select(LOG.names))
    context.get_table_writer("checkpoints").write(
        pa.Table.from_pylist(
            build_checkpoint_rows(log_table, training.checkpoint_by_step), schema=CHECKPOINTS
        )
    )
    write_read_tables(
        packed_corpus["train"],
        packed_corpus["spans"],
        documents,
        train_config.seed,
        train_config.batch_size,
        sorted(training.checkpoint_by_step),
        context,
    )
    context.get_table_writer("speed").write(log_table.select(SPEED.names))
    context.record_measurement(
        "tokens_per_second", pc.approximate_median(log_table["tokens_per_second"]).as_py(), "1/s"
    )
    context.preserved_names = preserve_resumable_states(work_area, training_folder, train_config)
