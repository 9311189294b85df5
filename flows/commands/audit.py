"""Audit a checkpoint."""

from __future__ import annotations

from flows.commands.shared import Json, Set, execute
from tasks.contract import UsageError


def audit(
    checkpoint: str,
    *,
    only: str = "capability,toxicity,bias,extraction",
    config: str | None = None,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Audit a checkpoint and write its model card, without touching the corpus.

    Parameters
    ----------
    checkpoint
        RUN, RUN@STEP ("latest@0"), an artifact ("checkpoint/…"), or a folder: one of ours or a
        Hugging Face causal or masked language model.
    only
        Which audits, separated by commas.
    config
        Where the audits' settings come from; by default the config of the checkpoint's run.
    """
    from flows.pipeline import AUDITS

    chosen = [name.strip() for name in only.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in AUDITS]
    if unknown or not chosen:
        raise UsageError(f"--only {only!r}: choose from {', '.join(AUDITS)}")
    execute("audit", json_, checkpoint=checkpoint, config=config, overrides=set_ or [], only=chosen)
