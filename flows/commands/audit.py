"""Audit a checkpoint."""

from __future__ import annotations

from flows.commands.shared import InStore, Json, Set, execute


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
        Hugging Face causal or masked language model.
    only
        Which audits, separated by commas; by default all.
    config
        Where the audits' settings come from; by default the config of the checkpoint's run, and of
        a checkpoint from elsewhere that of the demo.
    """
    from flows.pipeline import check_audits
    from tasks.audits.about import AUDITS

    wanted = AUDITS if only is None else only.split(",")
    chosen = [name.strip() for name in wanted if name.strip()]
    check_audits(chosen)
    execute(
        "audit",
        json_,
        checkpoint=checkpoint,
        config=config,
        overrides=set_ or [],
        only=chosen,
        store=store,
    )
