"""Unmasked pages of a run, and the note of them in its run.json."""

from __future__ import annotations

import getpass
import json
from datetime import UTC, datetime
from pathlib import Path

from flows.runs import Run
from tasks.contract import UsageError


def reveal_run(run: Run, out: Path | None = None) -> Path:
    """Write the run's unmasked site, by default beside the masked one; returns the run's page.

    The run says when, by whom and where before anything is written: no unmasked page without it.
    """
    from reports.reveal import make_private, reveal

    if run.status == "running":
        raise UsageError(f"run {run.id} is still running; reveal it when it has ended")
    folder = (out or (run.store.root or Path()) / "site-revealed").resolve()
    make_private(folder)
    note = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "by": getpass.getuser(),
        "folder": str(folder),
    }
    run.record["revealed"] = [*run.record.get("revealed", []), note]
    run.store.put(f"runs/{run.id}/run.json", json.dumps(run.record, indent=1).encode())
    return reveal(run.store, run.record | {"status": run.status}, folder)
