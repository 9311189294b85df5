"""Write the unredacted pages of a run, and record in its run.json that they exist."""

from __future__ import annotations

import getpass
from pathlib import Path

from hallmark.flows.runs import Run
from hallmark.tasks.contract import (
    Store,
    UsageError,
    format_current_time,
)

#: The folder of unredacted pages in a local store, or in the cache of an object store.
DEFAULT_FOLDER_NAME = "site-unredacted"


def _check_folder_is_not_shared(folder: Path, store: Store) -> None:
    """Raise UsageError for a folder inside the store or a site, which others may read."""
    store_folders = [store.local_folder.resolve()]
    enclosing_sites = [
        parent
        for parent in folder.parents
        if (parent / "index.html").exists() and (parent / "runs").is_dir()
    ]
    for shared_folder in (*store_folders, *enclosing_sites):
        if shared_folder in folder.parents and folder != shared_folder / DEFAULT_FOLDER_NAME:
            raise UsageError(
                f"{folder} is inside {shared_folder}, which other people may be able to read; "
                "choose a folder outside it"
            )


def write_unredacted_site(run: Run, output_folder: Path | None = None) -> Path:
    """Write the unredacted pages of a run, by default next to the redacted site.

    Before any page is written, run.json records the time, the user and the folder.

    Returns:
        The page of the run.

    Raises:
        UsageError: If the run is still running or others may read the folder.
    """
    from hallmark.reports.unredacted_site import create_private_folder, write_unredacted_site

    if run.status == "running":
        raise UsageError(
            f"run {run.id} is still running; wait until it has finished before writing its "
            "unredacted pages"
        )
    folder = (output_folder or run.store.local_folder / DEFAULT_FOLDER_NAME).resolve()
    _check_folder_is_not_shared(folder, run.store)
    create_private_folder(folder)
    site_record = {
        "written_at": format_current_time(),
        "written_by": getpass.getuser(),
        "folder": str(folder),
    }
    run.record["unredacted_sites"] = [*run.record.get("unredacted_sites", []), site_record]
    run.save()
    return write_unredacted_site(run.store, run.current_record, folder)
