"""Unmasked pages of a run, and the note of them in its run.json."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime
from pathlib import Path

from hallmark.flows.runs import Run
from hallmark.tasks.contract import Store, UsageError

#: The folder of unmasked pages in a local store, or in the cache of another.
DEFAULT_FOLDER_NAME = "site-revealed"


def _check_reveal_folder(folder: Path, store: Store) -> None:
    """UsageError for a folder inside the store or inside a site, which are read by others."""
    store_folders = [store.local_folder.resolve()]
    enclosing_sites = [
        parent
        for parent in folder.parents
        if (parent / "index.html").exists() and (parent / "runs").is_dir()
    ]
    for shared_folder in (*store_folders, *enclosing_sites):
        if shared_folder in folder.parents and folder != shared_folder / DEFAULT_FOLDER_NAME:
            raise UsageError(
                f"{folder}: lies in {shared_folder}, among what is not for your eyes alone; "
                f"give a folder "
                f"outside of it"
            )


def write_unredacted_site(run: Run, output_folder: Path | None = None) -> Path:
    """Write the run's unmasked site, by default beside the masked one; returns the run's page.

    The run says when, by whom and where before anything is written: no unmasked page without it.
    """
    from hallmark.reports.unredacted_site import create_private_folder, write_unredacted_site

    if run.status == "running":
        raise UsageError(f"run {run.id} is still running; reveal it when it has ended")
    folder = (output_folder or run.store.local_folder / DEFAULT_FOLDER_NAME).resolve()
    _check_reveal_folder(folder, run.store)
    create_private_folder(folder)
    reveal_record = {
        "revealed_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "revealed_by": getpass.getuser(),
        "folder": str(folder),
    }
    run.record["reveals"] = [*run.record.get("reveals", []), reveal_record]
    run.save()
    return write_unredacted_site(run.store, run.record | {"status": run.status}, folder)
