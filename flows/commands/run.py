"""Run a config from end to end, or forecast such a run."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from hallmark.flows.commands.flow_execution import run_request_and_print_result
from hallmark.flows.commands.options import (
    JsonOption,
    OnlyOption,
    OverridesOption,
    SkipOption,
    StoreOption,
    print_result,
)


def run(
    config: str = "demo",
    *,
    overrides: OverridesOption = None,
    store: StoreOption = None,
    until: str | None = None,
    start_checkpoint: str | None = None,
    only: OnlyOption = None,
    skip: SkipOption = None,
    hash_sources: Annotated[bool, Parameter(negative="")] = False,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a config from end to end: curate the text, train, audit and report.

    Parameters
    ----------
    config
        A .toml file, or the name of a config that comes with Hallmark.
    until
        Stop after this stage.
    start_checkpoint
        Continue training from this Hallmark checkpoint (RUN@STEP, "checkpoint/…" or a folder), with
        its tokenizer, on the corpus of the config.
    hash_sources
        Read and hash every source file, even if its size, its times and its inode show no change
        since the previous run.
    dry_run
        Run and write nothing; print which stages would run, the expected size of corpus and model,
        epochs, memory and time, and any expected failure.
    """
    from hallmark.flows.audit_selection import parse_audit_names, select_audits

    audit_names = select_audits(parse_audit_names(only), parse_audit_names(skip))
    if dry_run:
        from hallmark.flows.commands.forecast_text import render_forecast
        from hallmark.flows.forecast.run_forecast import forecast_run

        report = forecast_run(
            config, overrides or [], until, start_checkpoint, store, only=audit_names
        )
        print_result(report, as_json, render_forecast)
        if report["will_fail"]:
            raise SystemExit(1)
        return
    from hallmark.flows.run_request import RunRequest

    parameters = {
        "config": config,
        "overrides": overrides or [],
        "until": until,
        "start": start_checkpoint,
        "store": store,
        "audits": audit_names,
        "hash_sources": hash_sources,
    }
    run_request_and_print_result(RunRequest.parse("pipeline", parameters), as_json)
