"""Audit one checkpoint, or every checkpoint of a training."""

from __future__ import annotations

from typing import Any

from hallmark.flows.commands.flow_execution import run_flow_and_report, run_flow_for_each
from hallmark.flows.commands.options import (
    JsonOption,
    OnlyOption,
    OverridesOption,
    SkipOption,
    StoreOption,
)


def audit(
    checkpoint: str,
    *,
    only: OnlyOption = None,
    skip: SkipOption = None,
    config: str | None = None,
    overrides: OverridesOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Audit a checkpoint and write its model card, without rebuilding the corpus.

    Parameters
    ----------
    checkpoint
        RUN, RUN@STEP ("latest@0"), RUN@all (every checkpoint of a training, one run each), an
        artifact ("checkpoint/…"), or a folder with a Hallmark checkpoint or a Hugging Face causal
        or masked language model.
    config
        The config with the settings of the audits; by default that of the checkpoint's run, or
        "demo" for a checkpoint that no run of the store produced.
    """
    from hallmark.flows.audit_selection import parse_audit_names, select_audits
    from hallmark.flows.checkpoint_comparison import ALL_CHECKPOINTS_SUFFIX, list_checkpoint_names
    from hallmark.flows.run_recording import resolve_flow_arguments

    audit_names = select_audits(parse_audit_names(only), parse_audit_names(skip))
    shared_parameters: dict[str, Any] = {
        "config": config,
        "overrides": overrides or [],
        "store": store,
    }
    if not checkpoint.endswith(ALL_CHECKPOINTS_SUFFIX):
        run_flow_and_report(
            "audit", as_json, checkpoint=checkpoint, only=audit_names, **shared_parameters
        )
        return
    opened_store = resolve_flow_arguments(
        checkpoint=checkpoint.removesuffix(ALL_CHECKPOINTS_SUFFIX), **shared_parameters
    ).store
    parameters_by_checkpoint = {
        name: {"checkpoint": name, "only": audit_names, **shared_parameters}
        for name in list_checkpoint_names(opened_store, checkpoint)
    }
    run_flow_for_each("audit", as_json, parameters_by_checkpoint)
