"""Find the artifacts that the files of other artifacts name."""

from __future__ import annotations

import re

from hallmark.tasks.contract import Artifact, HallmarkError, Store


def find_artifact_by_name(store: Store, artifact_name: str) -> Artifact | None:
    """Return an artifact by a name from a file, which is not trusted.

    Returns:
        None if there is none, or if it cannot be read.
    """
    stage, _, digest = artifact_name.partition("/")
    if not stage.isidentifier() or not re.fullmatch("[0-9a-f]+", digest):
        return None
    try:
        return store.find_artifact(stage, digest)
    except HallmarkError:
        return None
