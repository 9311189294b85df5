"""Write the static site of all runs of a store, or the unredacted pages of one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from hallmark.flows.commands.options import JsonOption, StoreOption, print_result
from hallmark.flows.runs import open_run
from hallmark.flows.site import build_store_site
from hallmark.flows.unredacted_site import write_unredacted_site


def export_site(
    run: str = "latest",
    *,
    out: Path | None = None,
    unredacted: Annotated[bool, Parameter(negative="")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the static website of all runs and print the path of the page for RUN, which links to
    the cards of that run.

    Each card has its pages, and one page of evidence for each stage, with the first few cases of
    each selection. The pages need no server.

    Parameters
    ----------
    run
        A run id, the start of one, or "latest": the newest run.
    out
        The folder of the site; by default "site" in a local store, or in this machine's cache
        folder for an object store.
    unredacted
        Write only the pages of RUN, without any redaction, into the folder "site-unredacted", which
        only you can open; run.json records that they were written.
    """
    opened_run = open_run(run, store)
    if unredacted:
        return print_result(
            {"unredacted": str(write_unredacted_site(opened_run, out))}, as_json, _render_page_paths
        )
    index_page = build_store_site(opened_run.store, out, rebuild_all=False)
    pages = {
        "index": str(index_page),
        "run": str(index_page.parent / "runs" / opened_run.id / "index.html"),
    }
    print_result(pages, as_json, _render_page_paths)


def _render_page_paths(path_by_page: dict[str, str]) -> str:
    return "\n".join(f"{name}: {page}" for name, page in path_by_page.items())
