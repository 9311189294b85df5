"""Pretrain a model on packed sequences, in a process of its own.

The trainer (``python -m model.training.run``) keeps its state in the work area and tells of its
progress in JSON lines. This stage starts it, starts it again if it is killed, and commits each
checkpoint the moment it is whole. The trainer dies with this process: its standard input is a pipe
that only this process holds open.
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
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field, field_serializer, field_validator

from model.config import OBJECTIVES, ModelConfig, TrainConfig, to_dict
from tasks.contract import (
    Artifact,
    HallmarkError,
    StageConfig,
    Table,
    Work,
    column,
    file_digest,
    stage,
    table,
)
from tasks.training.following import events
from tasks.training.going_on import SETTINGS, keep, of_past_steps, settings_rows, training_folder
from tasks.training.held_out import validation_groups
from tasks.training.seen import COVERAGE, SEEN, write_seen

log = logging.getLogger("hallmark")

#: Set by the inputs: the tokenizer's vocabulary, the length of the packed sequences; a model of
#: labels is what ``finetune`` makes.
GIVEN = ("vocab_size", "context", "labels")


class PretrainConfig(StageConfig):
    model: ModelConfig = Field(
        ModelConfig(),
        description="the model; vocab_size and context are those of the tokenizer and of pack",
    )
    train: TrainConfig = Field(TrainConfig(), description="how it is trained")

    @field_validator("model", mode="before")
    @classmethod
    def _not_given_twice(cls, value: Any) -> Any:
        for name in GIVEN if isinstance(value, dict) else ():
            if name in value:
                place = {"vocab_size": "train_tokenizer.vocab_size", "context": "pack.context",
                         "labels": "the data of finetune"}[name]  # fmt: skip
                raise ValueError(f"{name} follows from {place}; set it there")
        return value

    @field_validator("train")
    @classmethod
    def _of_packed_text(cls, value: TrainConfig) -> TrainConfig:
        if value.objective == "seq2seq":
            raise ValueError("objective seq2seq learns from pairs: see hallmark finetune")
        return value

    @field_serializer("model")
    def _without_given(self, model: ModelConfig) -> dict[str, Any]:
        return {name: value for name, value in to_dict(model).items() if name not in GIVEN}


LOG = table(
    "The training, one row a step; losses are means.",
    column("step", pa.int64(), "figure", "optimizer step, from 1"),
    column("loss", pa.float64(), "figure", "training loss of the step", unit="nats a token"),
    column("grad_norm", pa.float64(), "figure", "norm of the gradient before clipping"),
    column("skipped", pa.bool_(), "figure", "whether the step diverged, and changed nothing"),
    column("learning_rate", pa.float64(), "figure", "learning rate of the step"),
    column("tokens", pa.int64(), "figure", "tokens seen so far", unit="tokens"),
    column("validation_loss", pa.float64(), "figure",
           "loss on the validation split; null where this step was not validated",
           unit="nats a token"),
)  # fmt: skip

CHECKPOINTS = table(
    "The checkpoints; step 0 is the model before training and has no losses.",
    column("step", pa.int64(), "figure", "optimizer step"),
    column("tokens", pa.int64(), "figure", "tokens seen so far", unit="tokens"),
    column("artifact", pa.string(), "id", "name of the checkpoint's artifact"),
    column("content", pa.string(), "id", "digest of the checkpoint's files"),
    column("loss", pa.float64(), "figure", "training loss of the step", unit="nats a token"),
    column("validation_loss", pa.float64(), "figure", "loss on the validation split",
           unit="nats a token"),
)  # fmt: skip

VALIDATION = table(
    "What the rows of the validation split cost the model, whenever they were measured.",
    column("step", pa.int64(), "figure", "optimizer step"),
    column("kind", pa.string(), "label", "all, source or identity"),
    column("name", pa.string(), "label", "the source, or the identity group a document mentions"),
    column("tokens", pa.int64(), "figure", "tokens predicted", unit="tokens"),
    column("bytes", pa.int64(), "figure", "bytes that they spell", unit="bytes"),
    column("bits_per_byte", pa.float64(), "figure",
           "what it costs to spell a byte; null where nothing was predicted",
           unit="bits per byte"),
)  # fmt: skip

#: Nobody has judged them, so no page shows them; see score_samples.
SAMPLES = table(
    "What the model wrote at the same steps, drawn with the same numbers each time.",
    column("step", pa.int64(), "figure", "optimizer step"),
    column("sample", pa.int64(), "id", "number of the sample at its step"),
    column("prompt", pa.string(), "corpus text",
           "what the encoder of an encoder-decoder read, else empty"),
    column("text", pa.string(), "model text", "what the model wrote"),
    column("precision", pa.string(), "label", "what it computed in: fp32, or bf16 on a GPU"),
)  # fmt: skip

SPEED = table(
    "Speed and memory of the training on this machine.",
    column("step", pa.int64(), "figure", "optimizer step"),
    column("seconds", pa.float64(), "figure", "time since the row before", unit="s"),
    column("tokens_per_second", pa.float64(), "figure", "throughput", unit="tokens a second"),
    column("mfu", pa.float64(), "figure",
           "share of the matrix-product speed measured at the start", unit="share"),
    column("memory_mb", pa.float64(), "figure", "peak memory", unit="MB"),
)  # fmt: skip


# The job -------------------------------------------------------------------------------------


def write_job(
    packed: Artifact,
    tokenizer: Artifact,
    documents: Table,
    signals: Table | None,
    start: Artifact | None,
    config: PretrainConfig,
    area: Path,
    folder: Path,
) -> Path:
    """The trainer's job file, to work in ``folder``; vocabulary and context are read from the
    inputs."""
    from tokenizers import Tokenizer

    if packed.purged:
        raise HallmarkError(
            f"the sequences in {packed.name} lost the document {min(packed.purged)}, which was "
            f"purged: a training on them can be neither begun nor gone on with; run the config "
            f"again: that makes a corpus without it"
        )
    path = tokenizer.path("tokenizer.json")
    train, validation = (
        [str(part.path) for part in packed[split].parts] for split in ("train", "validation")
    )
    if not packed["train"].rows:
        raise HallmarkError("there are no sequences to train on: the split 'train' is empty")
    given = {
        "vocab_size": Tokenizer.from_file(str(path)).get_vocab_size(),
        "context": pq.read_schema(train[0]).field("ids").type.list_size,
    }
    area.mkdir(parents=True, exist_ok=True)
    data: dict[str, Any] = {"train": train, "validation": None, "groups": None}
    if packed["validation"].rows:
        groups = area / "groups.parquet"
        pq.write_table(validation_groups(documents, signals, packed["spans"]), groups)
        data |= {"validation": validation, "groups": str(groups)}
    model = to_dict(config.model) | given
    job = {
        "model": model if start is None else going_on(start, config, given),
        "train": to_dict(config.train),
        "data": data,
        "tokenizer": str(path),
        "work": str(folder),
        "start": None if start is None else str(start.directory()),
    }
    file = area / "job.json"
    file.write_text(json.dumps(job, indent=1))
    return file


def going_on(start: Artifact, config: PretrainConfig, given: dict[str, Any]) -> dict[str, Any]:
    """The model of the checkpoint ``start``; HallmarkError where the settings want another. Those
    that are the default want none: what a run recorded names them all, asked for or not.

    ``given``: the context and the vocabulary, or one of them.
    """
    from model.interchange.checkpoint import CheckpointError, read_config

    try:
        found = to_dict(read_config(start.directory()))
    except CheckpointError as error:
        raise HallmarkError(f"training cannot go on from it: {str(error).rstrip('.')}") from error
    if found["labels"]:
        raise HallmarkError("training cannot go on from it: it gives labels and writes no text")
    default = to_dict(ModelConfig())
    chosen = {k: v for k, v in to_dict(config.model).items() if v != default[k] and k not in GIVEN}
    chosen["architecture"] = OBJECTIVES[config.train.objective]
    for name, value in (chosen | given).items():
        if found[name] != value:
            place = {
                "context": "pack.context",
                "vocab_size": "the tokenizer's vocabulary",
                "architecture": f"pretrain.train.objective is {config.train.objective}: its model",
            }
            raise HallmarkError(
                f"{place.get(name, f'pretrain.model.{name}')} is {value}, and training is to go "
                f"on from a checkpoint with {found[name]}: set it to that"
            )
    return found


# Checkpoints and the log ---------------------------------------------------------------------


def commit_checkpoint(work: Work, folder: Path, step: int) -> Artifact:
    """Make an artifact of a checkpoint, once; the trainer's own folder stays where it is.

    The trainer announces all its checkpoints again when it resumes, so that a kill at any moment,
    also between the commit and a note of it, leaves none out. The weights belong to the key: on a
    GPU the same step made again may differ.
    """
    assert work.commit_child is not None, "pretrain needs a session to commit checkpoints in"
    copy = work.area / "commit" / folder.name
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(parents=True)
    for path in folder.iterdir():
        try:
            os.link(path, copy / path.name)  # files of a checkpoint are never changed
        except OSError:
            shutil.copyfile(path, copy / path.name)
    key = {"step": step, "weights": file_digest(folder / "model.safetensors")}
    return work.commit_child("checkpoint", key, copy)


def read_parts(folder: Path, schema: pa.Schema | None = None) -> pa.Table:
    """A table that the trainer left in parts."""
    parts = [pq.read_table(path) for path in sorted(folder.glob("part-*.parquet"))]
    return pa.concat_tables(parts) if parts or schema is None else schema.empty_table()


def read_log(folder: Path) -> pa.Table:
    """The trainer's log, one row a step."""
    table = read_parts(folder)
    nats = pc.multiply(table["validation_bits_per_token"], math.log(2))
    return table.append_column("validation_loss", nats)


def checkpoint_rows(log_table: pa.Table, committed: dict[int, Artifact]) -> list[dict[str, Any]]:
    rows = {row["step"]: row for row in log_table.select(LOG.names).to_pylist()}
    untrained = {"tokens": 0, "loss": None, "validation_loss": None}
    return [
        {
            "step": step,
            "artifact": artifact.name,
            "content": artifact.content,
            **{name: rows.get(step, untrained)[name] for name in untrained},
        }
        for step, artifact in sorted(committed.items())
    ]


#: Figures of a step that are seen while training runs.
SHOWN = ("loss", "learning_rate", "grad_norm", "tokens_per_second", "mfu")


def so_far(event: dict[str, Any]) -> str:
    """A step in words: for the terminal's line and Prefect's page."""
    return (
        f"loss {event['loss']:.3f}, rate {event['learning_rate']:.2g}, norm "
        f"{event['grad_norm']:.2g}, {event['tokens_per_second']:,.0f} tokens/s, MFU "
        f"{event['mfu']:.0%}"
    )


def follow(
    told: Iterable[dict[str, Any]], work: Work, steps: int
) -> tuple[dict[int, Artifact], list[dict[str, Any]]]:
    """Pass on what the trainer tells; returns its checkpoints, committed, by step, and under which
    settings its steps ran."""
    committed: dict[int, Artifact] = {}
    history: list[dict[str, Any]] = []
    for event in told:
        match event["event"]:
            case "waiting":
                log.info("trainer: waiting for an earlier one to end")
            case "start":
                what = (event[k] for k in ("parameters", "device", "precision", "processes",
                                           "threads", "step"))  # fmt: skip
                line = "trainer: %d parameters on %s in %s, processes: %d, threads: %d, "
                line += "from step %d of %d"
                log.info(line, *what, steps)
                if event["stretches"] > 1:
                    log.info("trainer: earlier steps ran under other settings; see the table "
                             "settings")  # fmt: skip
                if event["stretches"] > 1 or event["device"] != "cpu":
                    work.determinism = "statistical"
            case "step":
                work.progress(event["step"], steps, so_far(event))
                work.show(event["step"], {k: v for k, v in event.items() if k in SHOWN})
            case "validation":
                bits = event["bits_per_token"]
                log.info("trainer: step %d, %.4f bits per validation token", event["step"], bits)
                work.show(event["step"], {"validation_bits_per_token": bits})
            case "skipped":
                log.warning("trainer: step %d: %s", event["step"], event["message"])
            case "checkpoint":
                step = event["step"]
                committed[step] = commit_checkpoint(work, Path(event["path"]), step)
                log.info("trainer: checkpoint of step %d is %s", step, committed[step].name)
            case "done":
                history = event["history"]
            case "error":
                raise HallmarkError(event["message"].rstrip("."))
    return committed, history


@stage(
    tables={
        "log": LOG,
        "validation": VALIDATION,
        "samples": SAMPLES,
        "checkpoints": CHECKPOINTS,
        "seen": SEEN,
        "coverage": COVERAGE,
        "settings": SETTINGS,
    },
    telemetry={"speed": SPEED},
    code=["model.training.run"],
    libraries=["numpy", "safetensors", "tokenizers", "torch"],
    determinism="machine",
    reads={"packed": ("train", "validation", "spans"), "tokenizer": ("tokenizer.json",)},
    goes_on=lambda config: of_past_steps(config.model_dump(mode="json")),
)
def pretrain(
    packed: Artifact,
    tokenizer: Artifact,
    documents: Table,
    signals: Table | None,
    start: Artifact | None,
    config: PretrainConfig,
    work: Work,
) -> None:
    """``documents`` were packed; ``signals`` are those of the stage ``identities``: without them no
    loss is by group; ``start`` is the checkpoint to go on from, or None."""
    train, area = config.train, work.area
    training = training_folder(area, train)
    job = write_job(packed, tokenizer, documents, signals, start, config, area, training)
    with closing(events(job, area / "trainer.stderr")) as told:
        committed, history = follow(told, work, train.steps)
    work.table("settings").write(settings_rows(history, train.steps))
    table = read_log(training / "log")
    for name, schema in (("validation", VALIDATION), ("samples", SAMPLES)):
        work.table(name).write(read_parts(training / name, schema))
    work.table("log").write(table.select(LOG.names))
    work.table("checkpoints").write(
        pa.Table.from_pylist(checkpoint_rows(table, committed), schema=CHECKPOINTS)
    )
    write_seen(packed["train"], packed["spans"], documents, train.seed, train.batch_size,
               sorted(committed), work)  # fmt: skip
    work.table("speed").write(table.select(SPEED.names))
    work.measure(
        "tokens_per_second", pc.approximate_median(table["tokens_per_second"]).as_py(), "1/s"
    )
    work.kept = keep(area, training, train)
