"""The site over all runs of a store."""

from __future__ import annotations

from pathlib import Path

from flows.commands.shared import Json, show, site
from flows.runs import open_run


def report(run: str = "latest", *, out: Path | None = None, json_: Json = False) -> None:
    """Build the site of all runs and print where RUN's cards are.

    Parameters
    ----------
    out
        The folder of the site; by default "site" inside a local store.
    """
    chosen = open_run(run)
    index = site(chosen.store, out)
    pages = {"index": str(index), "run": str(index.parent / "runs" / chosen.id / "index.html")}
    show(pages, json_, lambda pages: "\n".join(f"{k}: {v}" for k, v in pages.items()))
