"""Fine-tune a checkpoint."""

from __future__ import annotations

from typing import Any

from flows.commands.shared import InStore, Json, Set, execute


def finetune(
    checkpoint: str,
    *,
    config: str,
    set_: Set = None,
    store: InStore = None,
    json_: Json = False,
) -> None:
    """Train a checkpoint on pairs, or on texts or words with labels, score it and write its task
    card.

    Parameters
    ----------
    checkpoint
        RUN, RUN@STEP ("latest@0": the untrained model), an artifact ("checkpoint/…"), or a folder
        with a checkpoint of ours.
    config
        A TOML file with a section finetune: the task, its data, how it is trained. What else it
        leaves out is as in the checkpoint's run.
    """
    done = execute(
        "finetune", json_, checkpoint=checkpoint, config=config, overrides=set_ or [], store=store
    )
    if done is not None:
        stage = done["finetune"]
        print(render(stage["scores"].read().to_pylist()))
        print(f"model: {stage['checkpoints'].read(['artifact'])['artifact'][-1]}")


def render(scores: list[dict[str, Any]]) -> str:
    """The scores of all test rows together, for a terminal."""
    rows = [score for score in scores if not score["slice"]]
    width = max(len(row["system"]) for row in rows)
    lines = []
    for row in rows:
        value = "unknown" if row["value"] is None else f"{row['value']:.3f}"
        if row["low"] is not None:
            value += f" ({row['low']:.3f} to {row['high']:.3f})"
        value += " points" if row["unit"] == "points" else ""
        lines.append(f"{row['metric']:<12} {row['system']:<{width}} {value}, n = {row['n']:,}")
    return "\n".join(lines)
