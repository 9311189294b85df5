"""The flow that fine-tunes a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prefect import flow

from hallmark.flows.checkpoint_resolution import get_permanent_name, resolve_checkpoint
from hallmark.flows.run_recording import generate_flow_run_name, start_run
from hallmark.reports.task_card import build_task_card
from hallmark.tasks.contract import UsageError
from hallmark.tasks.training.finetune import finetune as finetune_model


@flow(name="finetune", flow_run_name=generate_flow_run_name)
def finetune(
    checkpoint: str,
    config: str | dict[str, Any],
    overrides: Sequence[str] = (),
    store: str | None = None,
) -> str:
    """Fine-tune a checkpoint on pairs, labelled texts or labelled words, and build a task card.

    Args:
        checkpoint: RUN, RUN@STEP, the name of a checkpoint artifact, or its folder.
        config: A config file with a section ``finetune``, or the config itself.
        overrides: Settings that replace those of the config.
        store: The store to use instead of the config's.

    Returns:
        The id of the run.
    """
    with start_run("finetune", config, overrides, checkpoint=checkpoint, store=store) as run:
        if run.config.finetune is None:
            raise UsageError(
                "the config has no section [finetune]; add one that specifies the task and its data"
            )
        resolved = resolve_checkpoint(run.store, checkpoint)
        run.update_record(checkpoint=get_permanent_name(run.store, resolved, checkpoint))
        finetuning_run = finetune_model(resolved.checkpoint, run.config.finetune)
        build_task_card(
            finetuning_run=finetuning_run,
            checkpoint=run.find_last_checkpoint(finetuning_run),
            # A folder outside of any store is no artifact that a card can name.
            base_checkpoint=resolved.checkpoint if resolved.checkpoint.store else None,
            config=run.config.task_card,
        )
    return run.id
