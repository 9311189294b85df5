"""The site over a store's runs, in its place: built beside it and exchanged at once."""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.runs import all_runs
from tasks.contract import Store, UsageError

log = logging.getLogger("hallmark")

#: All that stands at the top of a site.
CONTENT = {"index.html", "tables.html", "runs"}


def home(store: Store) -> Path:
    """The folder of a store's site: inside a local store, else in its cache on this machine."""
    return store.local / "site"


def build(store: Store, out: Path | None = None, anew: bool = True) -> Path:
    """Build the site of all runs that can be read, by default in its ``home``; returns its index
    page. Not ``anew``: cards and trajectories that the site there holds already are taken over."""
    from flows.commands.tables import list_tables
    from flows.comparing import trainings
    from reports.site import build_site

    out = out or home(store)
    with replaced(out) as new:
        runs = all_runs(store)
        records = [run.record | {"status": run.status} for run in runs]
        build_site(store, records, new, list_tables(), trainings(runs), None if anew else out)
    return out / "index.html"


def build_quietly(store: Store) -> Path | None:
    """As ``build`` at the end of a run, whose pages are all that is new; an error is only logged,
    for no run fails for its site, and None returned."""
    try:
        return build(store, anew=False)
    except Exception as error:
        why = str(error).split("\n")[0] or type(error).__name__
        log.warning("the site could not be built: %s; once that is right: hallmark report", why)
        return None


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """A new folder that takes the place of ``folder`` when this context is left without an error.

    Readers find the old one or the new one, never a part. One process builds at a time, so that
    what was read last stands. UsageError where the folder holds something else than a site.
    """
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    _check(folder)
    with _alone(folder.parent):
        for left in folder.parent.glob(f".{folder.name}-new-*"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        new = folder.with_name(f".{folder.name}-new-{secrets.token_hex(4)}")
        new.mkdir()
        try:
            yield new
            _put(new, folder)
        finally:
            shutil.rmtree(new, ignore_errors=True)  # by now the old one, or what failed


def _check(folder: Path) -> None:
    found = {path.name for path in folder.iterdir()} if folder.exists() else set()
    runs_of_a_store = next(folder.glob("runs/*/run.json"), None)
    if found and (not found <= CONTENT or "index.html" not in found or runs_of_a_store):
        raise UsageError(
            f"{folder}: holds other things than a site, which would be lost; give a folder that is "
            f"new, empty or the site's"
        )


@contextmanager
def _alone(parent: Path) -> Iterator[None]:
    lock = os.open(parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _put(new: Path, folder: Path) -> None:
    if not folder.exists():
        new.rename(folder)
    elif not exchanged(new, folder):
        aside = new.with_name(f"{new.name}-old")
        folder.rename(aside)
        try:
            new.rename(folder)
        except OSError:
            aside.rename(folder)
            raise
        aside.rename(new)


def exchanged(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; False where the system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(one), os.fsencode(other)
    if hasattr(libc, "renameat2"):  # Linux: from the current folder, RENAME_EXCHANGE
        return libc.renameat2(-100, names[0], -100, names[1], 2) == 0
    if hasattr(libc, "renamex_np"):  # macOS: RENAME_SWAP
        return libc.renamex_np(*names, 2) == 0
    return False
