"""Find the artifacts that the files of other artifacts name."""

from __future__ import annotations

import re

from hallmark.tasks.contract import Artifact, HallmarkError, Store, get_artifact_store


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


def find_training_trace(artifact: Artifact) -> Artifact | None:
    """Return what the search of the training text found for an audit; None if it is not known."""
    store = get_artifact_store(artifact)
    trace_name = artifact.lineage.get("training_overlap")
    if store is None or not isinstance(trace_name, str):
        return None
    trace = find_artifact_by_name(store, trace_name)
    return trace if trace is not None and "matched_spans" in trace.tables else None
