"""Run a config end to end."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from hallmark.flows.commands.flow_execution import run_flow_and_report
from hallmark.flows.commands.options import JsonOption, OverridesOption, StoreOption, print_result


def run(
    config: str = "demo",
    *,
    overrides: OverridesOption = None,
    store: StoreOption = None,
    until: str | None = None,
    start: str | None = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a config end to end: curate, train, audit, report.

    Parameters
    ----------
    config
        A .toml file or the name of a config that comes with Hallmark.
    until
        Stop after this stage.
    start
        Go on from this checkpoint of ours (RUN@STEP, "checkpoint/…" or a folder) on the config's
        corpus, with the checkpoint's tokenizer.
    dry_run
        Run nothing and write nothing: say what would run, what it would come to (size of corpus
        and model, epochs, memory, time) and what it would fail of.
    """
    if dry_run:
        from hallmark.flows.commands.forecast_text import render_forecast
        from hallmark.flows.forecast.run_forecast import forecast_run

        report = forecast_run(config, overrides or [], until, start, store)
        print_result(report, as_json, render_forecast)
        if report["will_fail"]:
            raise SystemExit(1)
        return
    run_flow_and_report(
        "pipeline",
        as_json,
        config=config,
        overrides=overrides or [],
        until=until,
        start=start,
        store=store,
    )
