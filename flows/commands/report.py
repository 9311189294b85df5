"""The site over all runs of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from flows.commands.shared import InStore, Json, show
from flows.revealing import reveal_run
from flows.runs import open_run
from flows.site import build


def report(
    run: str = "latest",
    *,
    out: Path | None = None,
    reveal: Annotated[bool, Parameter(negative="")] = False,
    store: InStore = None,
    json_: Json = False,
) -> None:
    """Build the site of all runs anew and print where RUN's cards are.

    Parameters
    ----------
    out
        The folder of the site; by default "site" inside a local store, and of an object store in
        its folder of this machine's cache.
    reveal
        Write RUN's pages with nothing masked instead, for local eyes, into a folder of their own
        ("site-revealed", beside the site) that only you can enter. run.json notes it.
    """
    chosen = open_run(run, store)
    if reveal:
        return show({"unmasked": str(reveal_run(chosen, out))}, json_, _lines)
    index = build(chosen.store, out)
    pages = {"index": str(index), "run": str(index.parent / "runs" / chosen.id / "index.html")}
    show(pages, json_, _lines)


def _lines(pages: dict[str, str]) -> str:
    return "\n".join(f"{name}: {page}" for name, page in pages.items())
