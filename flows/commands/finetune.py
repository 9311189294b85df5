"""Fine-tune a checkpoint and print its scores."""

from __future__ import annotations

from typing import Any

from hallmark.flows.commands.flow_execution import run_request_and_print_result
from hallmark.flows.commands.options import JsonOption, OverridesOption, StoreOption


def finetune(
    checkpoint: str,
    *,
    config: str,
    overrides: OverridesOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fine-tune a checkpoint on labelled data or text pairs, score it and write its task card.

    Parameters
    ----------
    checkpoint
        RUN, RUN@STEP ("latest@0": the untrained model), an artifact ("checkpoint/…"), or a folder
        with a Hallmark checkpoint.
    config
        A TOML file with a section finetune: the task, its data and its training; all other settings
        default to those of the checkpoint's run.
    """
    from hallmark.flows.run_request import RunRequest

    parameters = {
        "checkpoint": checkpoint,
        "config": config,
        "overrides": overrides or [],
        "store": store,
    }
    run = run_request_and_print_result(RunRequest.parse("finetune", parameters), as_json)
    if run is not None:
        finetuned = run["finetune"]
        print(render_scores(finetuned["scores"].read().to_pylist()))
        print(f"model: {finetuned['checkpoints'].read(['artifact'])['artifact'][-1]}")


def render_scores(scores: list[dict[str, Any]]) -> str:
    """Format the scores over all test rows (those without a slice) for a terminal."""
    overall_scores = [score for score in scores if not score["slice"]]
    width = max(len(overall_score["system"]) for overall_score in overall_scores)
    lines = []
    for overall_score in overall_scores:
        value_text = (
            "unknown" if overall_score["value"] is None else f"{overall_score['value']:.3f}"
        )
        if overall_score["low"] is not None:
            value_text += f" ({overall_score['low']:.3f} to {overall_score['high']:.3f})"
        value_text += " points" if overall_score["unit"] == "points" else ""
        lines.append(
            f"{overall_score['title']:<18} {overall_score['system']:<{width}} {value_text}, "
            f"n = {overall_score['n']:,}"
        )
    return "\n".join(lines)
