"""Audit one checkpoint, or every checkpoint of a training."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from hallmark.flows.commands.flow_execution import run_flow_and_print_result, run_flow_for_each
from hallmark.flows.commands.options import (
    JsonOption,
    OnlyOption,
    SkipOption,
    StoreOption,
)


def audit(
    checkpoint: str,
    *,
    only: OnlyOption = None,
    skip: SkipOption = None,
    config: str | None = None,
    overrides: Annotated[
        list[str] | None,
        Parameter(
            name="--set",
            negative="",
            help="Override a setting of the audits, e.g. respond.batch_size=8; can be repeated.",
        ),
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Audit a checkpoint and write its model card, without rebuilding the corpus.

    Parameters
    ----------
    checkpoint
        RUN, RUN@STEP ("latest@0"), RUN@all (every checkpoint of a training run, in a separate audit
        run for each), an artifact ("checkpoint/…"), or a folder with a Hallmark checkpoint or a
        Hugging Face causal or masked language model.
    config
        The config with the settings of the audits; by default that of the checkpoint's run, or
        "demo" for a checkpoint that no run of the store produced.
    """
    from hallmark.flows.audit_selection import (
        check_corpus_known,
        parse_audit_names,
        select_audits,
    )
    from hallmark.flows.checkpoint_comparison import ALL_CHECKPOINTS_SUFFIX, list_checkpoint_names
    from hallmark.flows.run_recording import resolve_flow_arguments

    only_names = parse_audit_names(only)
    audit_names = select_audits(only_names, parse_audit_names(skip))
    shared_parameters: dict[str, Any] = {
        "config": config,
        "overrides": overrides or [],
        "store": store,
    }
    if not checkpoint.endswith(ALL_CHECKPOINTS_SUFFIX):
        if only_names:
            opened_store = resolve_flow_arguments(checkpoint=checkpoint, **shared_parameters).store
            check_corpus_known(opened_store, checkpoint, only_names)
        run_flow_and_print_result(
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
