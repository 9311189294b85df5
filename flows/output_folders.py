"""Check the folder that a person names for a release, an export or a site, before it is written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hallmark.reports.review.release_folder import MANIFEST_NAME
from hallmark.tasks.contract import UsageError, escape_name, is_store_folder


def resolve_new_folder(name: str, content: str) -> Path:
    """Return the absolute path of a folder that does not exist yet or is empty.

    Args:
        name: The folder, as a person named it.
        content: What the folder is for, such as "release", for errors.

    Raises:
        UsageError: It cannot be such a folder, or is inside of a store or a release.
    """
    folder = resolve_output_folder(name, content)
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} exists and is not empty; choose a new folder for the {content}")
    return folder


def resolve_output_folder(name: str, content: str) -> Path:
    """Return the absolute path of a folder that may exist already.

    Links in the path are followed once, so that the folder is renamed where it is written.

    Args:
        name: The folder, as a person named it.
        content: What the folder is for, such as "release", for errors.

    Raises:
        UsageError: It is no folder, or is inside of a store or a release.
    """
    folder = Path(os.path.realpath(name))
    if not name:
        problem = "the folder name is empty"
    elif not name.isprintable():
        problem = f"the folder name {escape_name(name)} contains invisible characters"
    else:
        problem = _find_location_problem(folder)
    if problem:
        raise UsageError(f"{problem}; choose a new folder for the {content}")
    return folder


def _find_location_problem(folder: Path) -> str:
    for parent in (folder, *folder.parents):
        if parent.is_symlink():  # links that lead elsewhere were followed
            return f"{parent} is a link to itself"
        if is_store_folder(parent):
            return f"{folder} is inside the store {parent}"
    for parent in folder.parents:
        if os.path.exists(parent) and not parent.is_dir():
            return f"{folder} cannot be created, because {parent} is not a folder"
        if os.path.lexists(parent / MANIFEST_NAME):
            return f"{folder} is inside the release {parent}"
    if folder.exists() and not folder.is_dir():
        return f"{folder} is not a folder"
    return ""


def check_can_be_created(folder: Path, content: str) -> None:
    """Check that a folder can be created, by creating and removing one next to it.

    Args:
        folder: The folder.
        content: What the folder is for, such as "release", for errors.

    Raises:
        UsageError: It cannot.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent).cleanup()
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be created ({error.strerror}); choose another folder for the "
            f"{content}"
        ) from error
