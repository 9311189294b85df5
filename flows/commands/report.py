"""The site over all runs of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from hallmark.flows.commands.options import JsonOption, StoreOption, print_result
from hallmark.flows.runs import open_run
from hallmark.flows.site import build_store_site
from hallmark.flows.unredacted_site import write_unredacted_site


def report(
    run: str = "latest",
    *,
    out: Path | None = None,
    reveal: Annotated[bool, Parameter(negative="")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
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
    opened_run = open_run(run, store)
    if reveal:
        return print_result(
            {"unredacted": str(write_unredacted_site(opened_run, out))}, as_json, _render_page_paths
        )
    index_page = build_store_site(opened_run.store, out)
    pages = {
        "index": str(index_page),
        "run": str(index_page.parent / "runs" / opened_run.id / "index.html"),
    }
    print_result(pages, as_json, _render_page_paths)


def _render_page_paths(pages: dict[str, str]) -> str:
    return "\n".join(f"{name}: {page}" for name, page in pages.items())
