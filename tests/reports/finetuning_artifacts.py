"""Write what fine-tuning writes, with hostile text in it, and build the card."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
from pydantic import Field
from safetensors.numpy import save_file

from hallmark.reports.task_card import TaskCardConfig, build_task_card
from hallmark.tasks.contract import Artifact, StageContext, stage
from hallmark.tasks.training.finetune import COUNTS, QUARANTINE, FinetuneConfig, hash_data_files
from hallmark.tasks.training.pretrain import CHECKPOINTS, LOG
from hallmark.tasks.training.task_predictions import PREDICTIONS
from hallmark.tasks.training.task_scores import (
    SCORES,
    assign_label_ids,
    compute_label_differences,
    compute_label_scores,
    compute_text_differences,
    compute_text_scores,
)
from hallmark.tasks.training.training_resumption import SETTINGS
from tests.reports.artifacts import EMAIL, OFFENSIVE, SCRIPT, UNJUDGED, checkpoint

#: Labels of the model, of which the last has no test row; and one that only the test rows have.
LABELS = (EMAIL, OFFENSIVE, UNJUDGED, "an idle label")
UNKNOWN = "an unknown label"


class TunedConfig(FinetuneConfig):
    """``right``: the share of test rows that the model, and that the simple method gets right."""

    right: tuple[float, float] = (0.9, 0.5)
    rows: int = 60
    counted: dict[str, int] = Field({}, description="of the test split")
    bad: int = 2
    paired: bool = Field(True, description="with differences on the same rows")


def answers(gold: list[str], share: float) -> list[str]:
    """As many right as the share says; in place of the others what is gold elsewhere."""
    many = round(share * len(gold))
    return [g if i < many else gold[i - 1] for i, g in enumerate(gold)]


@stage(
    name="tuned",
    tables={
        "predictions": PREDICTIONS,
        "scores": SCORES,
        "outcome_counts": COUNTS,
        "quarantine": QUARANTINE,
        "log": LOG,
        "checkpoints": CHECKPOINTS,
        "settings": SETTINGS,
    },
    external_digests=hash_data_files,
)
def tuned(checkpoint: Artifact, config: TunedConfig, context: StageContext) -> None:
    """As ``finetune`` does, with answers that are made up."""
    n, pairs = config.rows, config.task.kind == "pairs"
    names = [f"{UNJUDGED} {i} and {EMAIL}" for i in range(n)] if pairs else [*LABELS[:3], UNKNOWN]
    gold = [names[i % len(names)] for i in range(n)]
    given, simple = (answers(gold, share) for share in config.right)
    number = assign_label_ids(LABELS, gold)
    write(
        context,
        "predictions",
        [
            {
                "file_name": f"{SCRIPT}.jsonl",
                "row_number": i + 1,
                "word_index": None,
                "gold": g,
                "predicted": p,
                "label_id": None if pairs else number[g],
                "is_correct": g == p,
                "log_prob": -0.1 * (i % 7 + 1),
                "precision": "fp32",
            }
            for i, (g, p) in enumerate(zip(gold, given, strict=True))
        ],
    )
    other = "the source itself" if pairs else "bag of words"
    scores = [
        row
        for system, told in {"model": given, other: simple}.items()
        for row in (
            compute_text_scores(system, told, gold)
            if pairs
            else compute_label_scores(system, told, gold, range(n), LABELS, "sklearn 1")
        )
    ]
    scores += (
        compute_text_differences(other, given, simple, gold)
        if pairs
        else compute_label_differences(other, given, simple, gold, range(n), LABELS)
    )
    write(
        context,
        "scores",
        [asdict(score) for score in scores if config.paired or "minus" not in score.system],
    )
    counted = {"used": n, "cut to the context": 0, "text also in train": 0, **config.counted}
    write(
        context,
        "outcome_counts",
        [
            *(
                {"split": s, "outcome": "used", "row_count": r}
                for s, r in (("train", 200), ("validation", 30))
            ),
            *(
                {"split": "test", "outcome": what, "row_count": rows}
                for what, rows in counted.items()
            ),
            *(
                {"split": "", "outcome": f"quarantined: no {SCRIPT} {i}", "row_count": 1}
                for i in range(config.bad)
            ),
        ],
    )
    write(
        context,
        "quarantine",
        [
            {"file_name": "x", "row_number": i, "reason": f"no {SCRIPT} {i}"}
            for i in range(config.bad)
        ],
    )
    write(
        context,
        "log",
        [
            {
                "step": i,
                "loss": 3 - i / 10,
                "grad_norm": 1.0,
                "skipped": False,
                "learning_rate": 0.01 / i,
                "tokens_seen": 100 * i,
                "validation_loss": 3.1 - i / 10 if i % 5 == 0 else None,
            }
            for i in range(1, 21)
        ],
    )
    write(
        context,
        "settings",
        [
            {"first_step": first, "last_step": last, "setting": key, "value": value}
            for first, last, several in ((1, 8, 1), (9, 20, 2))
            for key, value in (
                ("accumulation_steps", f"{several}"),
                ("device", '"cpu"'),
                ("precision", '"fp32"'),
            )
        ],
    )
    found = {step: left(context, step) for step in (0, 20)}
    write(
        context,
        "checkpoints",
        [
            {
                "step": step,
                "tokens_seen": 100 * step,
                "artifact": made.name,
                "content_digest": made.content_digest,
                "loss": 1.0 if step else None,
                "validation_loss": 1.1 if step else None,
            }
            for step, made in found.items()
        ],
    )


def write(context: StageContext, name: str, rows: list[dict[str, object]]) -> None:
    fields = tuned.tables[name].names
    context.get_table_writer(name).write({key: [row[key] for row in rows] for key in fields})


def left(context: StageContext, step: int) -> Artifact:
    folder = context.work_area / f"checkpoint-{step}"
    folder.mkdir(parents=True, exist_ok=True)
    weights = {"head.weight": np.full((4, 5), step, np.float32)}
    save_file(weights, folder / "model.safetensors")
    model = {"architecture": "encoder", "d_model": 5, "labels": list(LABELS)}
    (folder / "config.json").write_text(json.dumps({"step": step, "model": model}))
    return context.commit_child_artifact("checkpoint", {"step": step}, folder)


def tune(folder: Path, kind: str = "classification", **config: object) -> Artifact:
    """Build the artifact of a fine-tuning of a base model with rows from the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.jsonl").write_text("{}\n")
    data = {"path": str(folder / "rows.jsonl")}
    base = checkpoint(folder / "base")
    return tuned(base, TunedConfig.model_validate({"task": {"kind": kind}, "data": data, **config}))


def last_of(made: Artifact) -> Artifact:
    """Return the last checkpoint of a fine-tuning."""
    name = made["checkpoints"].read(["artifact"])["artifact"][-1].as_py()
    return made.store.find_artifact(*name.split("/"))


def card_of(made: Artifact, base: Artifact | None = None, **settings: object) -> Artifact:
    config = TaskCardConfig.model_validate(settings)
    return build_task_card(made, last_of(made), base, config)
