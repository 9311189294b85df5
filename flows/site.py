"""Build the site of all runs of a store, and replace the old site in one step."""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hallmark.flows.checkpoint_comparison import find_trainings_with_several_audits
from hallmark.flows.runs import TRIAL_FLOW, get_site_folder, read_runs_and_problems
from hallmark.tasks.contract import Store, UsageError

log = logging.getLogger("hallmark")

#: The entries of the top folder of a site; earlier versions wrote tables.html.
SITE_CONTENT = {"index.html", "runs", "tables.html"}


@dataclass(frozen=True)
class StoreSite:
    """The site of a store.

    Attributes:
        index_page: The page that lists the runs.
        problems: One sentence about each run, card and artifact that the site does not show.
    """

    index_page: Path
    problems: Sequence[str]


def build_store_site(
    store: Store, output_folder: Path | None = None, rebuild_all: bool = True
) -> StoreSite:
    """Build the site of all readable runs, and log what it does not show.

    Args:
        store: The store.
        output_folder: The folder of the site; by default that of ``get_site_folder``.
        rebuild_all: Whether to render all pages again, instead of reusing the unchanged cards and
            trajectories of the store's site.
    """
    from hallmark.reports.site import build_site

    output_folder = output_folder or get_site_folder(store)
    with replace_site_folder(output_folder) as new_folder:
        all_runs, problems = read_runs_and_problems(store)
        runs = [run for run in all_runs if run.flow != TRIAL_FLOW]
        build_site(
            store,
            [run.current_record for run in runs],
            new_folder,
            find_trainings_with_several_audits(runs),
            None if rebuild_all else get_site_folder(store),
            problems.append,
        )
    for problem in problems:
        log.warning(problem)
    return StoreSite(output_folder / "index.html", problems)


def try_build_site(store: Store) -> Path | None:
    """Build the site at the end of a run, reusing its existing pages.

    Returns:
        The index page, or None if building failed; the error is logged, so that the run succeeds.
    """
    try:
        return build_store_site(store, rebuild_all=False).index_page
    except Exception as error:
        reason = str(error).split("\n")[0] or type(error).__name__
        log.warning(
            "the site could not be built: %s; correct the problem and run: hallmark export-site",
            reason,
        )
        return None


@contextmanager
def replace_site_folder(folder: Path) -> Iterator[Path]:
    """Provide a new folder that replaces ``folder`` if the context ends without an error.

    Readers see either the old or the new folder, never a partial one. Only one process builds at a
    time, so that the latest state wins.

    Raises:
        UsageError: If the folder contains something other than a site.
    """
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    _check_replaceable(folder)
    with _exclusive_lock(folder.parent):
        for stale_folder in folder.parent.glob(f".{folder.name}-new-*"):  # of killed processes
            shutil.rmtree(stale_folder, ignore_errors=True)
        new_folder = folder.with_name(f".{folder.name}-new-{secrets.token_hex(4)}")
        new_folder.mkdir()
        try:
            yield new_folder
            _move_into_place(new_folder, folder)
        finally:
            shutil.rmtree(new_folder, ignore_errors=True)  # the old site, or a failed new one


def _check_replaceable(folder: Path) -> None:
    entry_names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    store_run = next(folder.glob("runs/*/run.json"), None)
    if entry_names and (
        not entry_names <= SITE_CONTENT or "index.html" not in entry_names or store_run
    ):
        raise UsageError(
            f"{folder} contains files that are not part of a site and would be lost; specify a new "
            "or empty folder, or the folder of an earlier site"
        )


@contextmanager
def _exclusive_lock(folder: Path) -> Iterator[None]:
    lock_fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock_fd)


def _move_into_place(new_folder: Path, folder: Path) -> None:
    if not folder.exists():
        new_folder.rename(folder)
    elif not try_exchange_folders(new_folder, folder):
        old_folder = new_folder.with_name(f"{new_folder.name}-old")
        folder.rename(old_folder)
        try:
            new_folder.rename(folder)
        except OSError:
            old_folder.rename(folder)
            raise
        old_folder.rename(new_folder)


def try_exchange_folders(first: Path, second: Path) -> bool:
    """Exchange two folders atomically; return False if the system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    encoded_paths = os.fsencode(first), os.fsencode(second)
    if hasattr(libc, "renameat2"):  # Linux: from the current folder, RENAME_EXCHANGE
        return bool(libc.renameat2(-100, encoded_paths[0], -100, encoded_paths[1], 2) == 0)
    if hasattr(libc, "renamex_np"):  # macOS: RENAME_SWAP
        return bool(libc.renamex_np(*encoded_paths, 2) == 0)
    return False
