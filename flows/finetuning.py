"""The flow that fine-tunes a checkpoint."""

from __future__ import annotations

from hallmark.flows.checkpoint_resolution import get_permanent_name, resolve_checkpoint
from hallmark.flows.request_flows import request_flow
from hallmark.flows.run_recording import start_run
from hallmark.flows.run_request import RunRequest
from hallmark.reports.task_card import build_task_card
from hallmark.tasks.contract import UsageError
from hallmark.tasks.training.finetune import finetune as finetune_model


@request_flow
def finetune(request: RunRequest) -> str:
    """Fine-tune a checkpoint on pairs, labelled texts or labelled words, and build a task card."""
    assert request.checkpoint is not None
    with start_run(request) as run:
        if run.config.finetune is None:
            raise UsageError(
                "the config has no [finetune] section; add one that specifies the task and its data"
            )
        resolved = resolve_checkpoint(run.store, request.checkpoint)
        run.update_record(checkpoint=get_permanent_name(run.store, resolved, request.checkpoint))
        finetuning_run = finetune_model(resolved.checkpoint, run.config.finetune)
        build_task_card(
            finetuning_run=finetuning_run,
            checkpoint=run.find_last_checkpoint(finetuning_run),
            # A folder outside of any store is no artifact that a card can name.
            base_checkpoint=resolved.checkpoint if resolved.checkpoint.store else None,
            config=run.config.task_card,
        )
    return run.id
