"""Run a config end to end."""

from __future__ import annotations

from flows.commands.shared import Json, Set, execute


def run(
    config: str = "demo",
    *,
    set_: Set = None,
    until: str | None = None,
    start: str | None = None,
    json_: Json = False,
) -> None:
    """Run a config end to end: curate, train, audit, report.

    Parameters
    ----------
    config
        A .toml file or the name of a config that comes with Hallmark.
    until
        Stop behind this stage.
    start
        Go on from this checkpoint of ours (RUN@STEP, "checkpoint/…" or a folder) on the config's
        corpus, with the checkpoint's tokenizer.
    """
    execute("pipeline", json_, config=config, overrides=set_ or [], until=until, start=start)
