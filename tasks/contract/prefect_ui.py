"""What the stages show in Prefect's pages: progress bars and a summary of each artifact."""

from __future__ import annotations

import re
import time
from contextvars import copy_context
from typing import Any

from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    update_progress_artifact,
)

from tasks.contract.store import Artifact


def _key(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


class UiProgress:
    """A progress artifact, made once a stage has run for a second, then updated each second."""

    def __init__(self, label: str) -> None:
        self.label, self.id = label, None
        #: Libraries call back from threads of their own, which know of no task run.
        self.context = copy_context()
        self.last = time.monotonic()

    def __call__(self, done: int, total: int, what: str) -> None:
        now = time.monotonic()
        if total <= 0 or now - self.last < 1.0:
            return
        self.last = now
        self.context.run(self._show, 100.0 * done / total, what)

    def _show(self, percent: float, what: str) -> None:
        if self.id is None:
            self.id = create_progress_artifact(  # type: ignore[assignment]
                percent, key=_key(self.label), description=what or self.label
            )
        else:
            update_progress_artifact(self.id, percent, description=what or self.label)

    def __enter__(self) -> UiProgress:
        return self

    def __exit__(self, *error: Any) -> None:
        if self.id is not None and error[0] is None:
            update_progress_artifact(self.id, 100.0)


def publish(label: str, artifact: Artifact) -> None:
    """A page with the artifact's tables and its accounts."""
    create_markdown_artifact(summary(label, artifact), key=f"stage-{_key(label)}")


def summary(label: str, artifact: Artifact) -> str:
    """Markdown: which artifact, its tables with rows and digests, its accounts."""
    lines = [f"# {label}", "", f"artifact `{artifact.name}`, content `{artifact.content[:16]}`", ""]
    lines += ["| table | rows | bytes | SHA-256 |", "|---|--:|--:|---|"]
    for name, entry in artifact.manifest["tables"].items():
        size = sum(part["size"] for part in entry["parts"])
        lines.append(f"| {name} | {entry['rows']:,} | {size:,} | {entry['sha256'][:16]} |")
    for name, entry in artifact.manifest["files"].items():
        lines.append(f"| {name} | (file) | {entry['size']:,} | {entry['sha256'][:16]} |")
    if "accounts" in artifact.tables:
        rows = artifact["accounts"].read().to_pylist()
        if rows:
            lines += ["", "| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
            lines += ["| " + " | ".join(str(v) for v in row.values()) + " |" for row in rows]
    return "\n".join(lines)
