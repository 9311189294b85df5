"""Write the static site of all runs of a store, or the unredacted pages of one run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from hallmark.flows.commands.options import JsonOption, StoreOption, print_result
from hallmark.flows.notices import log_which_run_is_latest
from hallmark.flows.output_folders import check_can_be_created, resolve_output_folder
from hallmark.flows.runs import get_site_folder, open_run, open_store, read_runs_and_problems
from hallmark.flows.site import build_store_site
from hallmark.flows.unredacted_site import DEFAULT_FOLDER_NAME, write_unredacted_site
from hallmark.tasks.contract import Store


def export_site(
    run: str = "latest",
    *,
    output: str | None = None,
    unredacted: Annotated[bool, Parameter(negative="")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a static website of all runs and print the path of RUN's page, which links to its
    cards.

    Each card has its pages, and one page of evidence for each stage, with the first few cases of
    each selection. The pages need no server.

    A run or card that is damaged is left out, and a sentence names it; the command then ends with
    exit code 1.

    Parameters
    ----------
    run
        A run id, the start of one, or "latest": the newest run.
    output
        The folder of the site; by default "site" in a local store, or in this machine's cache
        folder for an object store.
    unredacted
        Write only the pages of RUN, without any redaction, into the folder "site-unredacted", which
        only you can open; run.json records that they were written.
    """
    opened_store = open_store(store, create=False)
    folder = None if output is None else _resolve_site_folder(opened_store, output)
    if unredacted:
        unredacted_page = write_unredacted_site(open_run(run, opened_store), folder)
        return print_result({"unredacted": str(unredacted_page)}, as_json, _render_page_paths)
    run_id = _find_shown_run_id(opened_store, run)
    site = build_store_site(opened_store, folder, rebuild_all=False)
    pages = {
        "index": str(site.index_page),
        "run": str(site.index_page.parent / "runs" / run_id / "index.html"),
    }
    print_result(pages, as_json, _render_page_paths)
    if site.problems:
        raise SystemExit(1)


def _resolve_site_folder(store: Store, name: str) -> Path:
    """Return the absolute path of the folder that a person named for a site.

    Raises:
        UsageError: It cannot be the folder of a site. The only sites in a store are those of the
            default folders.
    """
    default_folders = (get_site_folder(store), store.local_folder / DEFAULT_FOLDER_NAME)
    if name and os.path.realpath(name) in map(os.path.realpath, default_folders):
        return Path(name)
    folder = resolve_output_folder(name, "site")
    check_can_be_created(folder, "site")
    return folder


def _find_shown_run_id(store: Store, run_name: str) -> str:
    """Find the run whose page is printed.

    With "latest", this is the newest run that is not damaged: ``build_store_site`` names the
    damaged ones.
    """
    candidates = [run.id for run in read_runs_and_problems(store)[0] if run.may_be_latest]
    if run_name != "latest" or not candidates:
        return open_run(run_name, store).id
    log_which_run_is_latest(candidates[-1], "the newest run")
    return candidates[-1]


def _render_page_paths(path_by_page: dict[str, str]) -> str:
    return "\n".join(f"{name}: {page}" for name, page in path_by_page.items())
