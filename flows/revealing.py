"""Unmasked pages of a run, and the note of them in its run.json."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime
from pathlib import Path

from flows.runs import Run
from tasks.contract import Store, UsageError

#: The folder of unmasked pages in a local store, or in the cache of another.
USUAL = "site-revealed"


def _check_place(folder: Path, store: Store) -> None:
    """UsageError for a folder inside the store or inside a site, which are read by others."""
    usual = [store.local.resolve()]
    sites = [p for p in folder.parents if (p / "index.html").exists() and (p / "runs").is_dir()]
    for place in (*usual, *sites):
        if place in folder.parents and folder != place / USUAL:
            raise UsageError(
                f"{folder}: lies in {place}, among what is not for your eyes alone; give a folder "
                f"outside of it"
            )


def reveal_run(run: Run, out: Path | None = None) -> Path:
    """Write the run's unmasked site, by default beside the masked one; returns the run's page.

    The run says when, by whom and where before anything is written: no unmasked page without it.
    """
    from reports.reveal import make_private, reveal

    if run.status == "running":
        raise UsageError(f"run {run.id} is still running; reveal it when it has ended")
    folder = (out or run.store.local / USUAL).resolve()
    _check_place(folder, run.store)
    make_private(folder)
    note = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "by": getpass.getuser(),
        "folder": str(folder),
    }
    run.record["revealed"] = [*run.record.get("revealed", []), note]
    run.save()
    return reveal(run.store, run.record | {"status": run.status}, folder)
