"""Run a config end to end."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from flows.commands.shared import InStore, Json, Set, execute, show


def run(
    config: str = "demo",
    *,
    set_: Set = None,
    store: InStore = None,
    until: str | None = None,
    start: str | None = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    json_: Json = False,
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
        from flows.commands.dry_run import render
        from flows.forecast.forecast import forecast

        report = forecast(config, set_ or [], until, start, store)
        show(report, json_, render)
        if report["will_fail"]:
            raise SystemExit(1)
        return
    execute(
        "pipeline",
        json_,
        config=config,
        overrides=set_ or [],
        until=until,
        start=start,
        store=store,
    )
