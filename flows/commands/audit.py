"""Audit one checkpoint, or every checkpoint of a training."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from hallmark.flows.commands.flow_execution import (
    run_request_and_print_result,
    run_requests_and_print_results,
)
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
            help="Override an audit setting, e.g. respond.batch_size=8; can be repeated.",
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
        run for each), an artifact ("checkpoint/…"), a folder with a Hallmark checkpoint or a
        Hugging Face causal or masked language model, or a version of a watched checkpoint as
        "hallmark runs" lists it (FOLDER@DIGEST).
    config
        The config with the settings of the audits; by default that of the checkpoint's run, or
        "demo" for a checkpoint that no run of the store produced.
    """
    from hallmark.flows.audit_selection import parse_audit_names, select_audits
    from hallmark.flows.checkpoint_comparison import ALL_CHECKPOINTS_SUFFIX, list_checkpoint_names
    from hallmark.flows.checkpoint_resolution import check_corpus_known
    from hallmark.flows.run_recording import resolve_request
    from hallmark.flows.run_request import RunRequest

    only_names = parse_audit_names(only)
    parameters = {
        "checkpoint": checkpoint.removesuffix(ALL_CHECKPOINTS_SUFFIX),
        "config": config,
        "overrides": overrides or [],
        "audits": select_audits(only_names, parse_audit_names(skip)),
        "store": store,
    }
    request = RunRequest.parse("audit", parameters)
    if not checkpoint.endswith(ALL_CHECKPOINTS_SUFFIX):
        if only_names:
            check_corpus_known(resolve_request(request).store, checkpoint, only_names)
        run_request_and_print_result(request, as_json)
        return
    checkpoint_names = list_checkpoint_names(resolve_request(request).store, checkpoint)
    requests_by_name = {name: request.with_changes(checkpoint=name) for name in checkpoint_names}
    run_requests_and_print_results(requests_by_name, as_json)
