"""Audit a checkpoint."""

from __future__ import annotations

from typing import Any

from flows.commands.shared import InStore, Json, Set, execute, execute_each


def audit(
    checkpoint: str,
    *,
    only: str | None = None,
    config: str | None = None,
    set_: Set = None,
    store: InStore = None,
    json_: Json = False,
) -> None:
    """Audit a checkpoint and write its model card, without touching the corpus.

    Parameters
    ----------
    checkpoint
        RUN, RUN@STEP ("latest@0"), an artifact ("checkpoint/…"), or a folder: one of ours or a
        Hugging Face causal or masked language model. RUN@all: every checkpoint of a training, one
        run each; what they are asked alike is written once.
    only
        Which audits, separated by commas; by default all.
    config
        Where the audits' settings come from; by default the config of the checkpoint's run, and of
        a checkpoint from elsewhere that of the demo.
    """
    from flows.comparing import ALL, checkpoints
    from flows.pipeline import check_audits
    from flows.recording import settle
    from tasks.audits.about import AUDITS

    wanted = AUDITS if only is None else only.split(",")
    chosen = [name.strip() for name in wanted if name.strip()]
    check_audits(chosen)
    shared: dict[str, Any] = {"config": config, "overrides": set_ or [], "store": store}
    if not checkpoint.endswith(ALL):
        execute("audit", json_, checkpoint=checkpoint, only=chosen, **shared)
        return
    place = settle(checkpoint=checkpoint.removesuffix(ALL), **shared).store
    each = {
        name: {"checkpoint": name, "only": chosen, **shared}
        for name in checkpoints(place, checkpoint)
    }
    execute_each("audit", json_, each)
