"""Tags: which part of what was asked a finding is about, and how its slice is spelled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def spelled(tags: Mapping[str, Any]) -> str:
    """The slice of a finding: "passage, copies=64". The tag ``part`` has no name there."""
    return ", ".join(v if k == "part" else f"{k}={v}" for k, v in tags.items())


def tags_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Which part a row of FINDINGS, or of SKIPPED, is about, tag by tag."""
    return dict(json.loads(row["tags"]))
