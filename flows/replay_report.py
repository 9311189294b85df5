"""Describe what a replay found, for ``hallmark replay`` and for declarations of equal versions."""

from __future__ import annotations

from typing import TypedDict


class ArtifactComparison(TypedDict):
    """Whether the output of a stage is as reproducible as its determinism class requires."""

    label: str
    determinism: str
    original_digest: str
    replayed_digest: str | None
    """None if the replay has no such output."""
    differences: list[str]
    """Tables and files that differ, and parts of the fingerprint that changed."""
    verdict: str


class ReplayReport(TypedDict):
    """The result of a replay."""

    run: str
    replay: str
    """Id of the new run."""
    store: str | None
    """Store of the new run; None if it was temporary."""
    stages: list[ArtifactComparison]
    passed: bool
