"""Show a stage's progress and a summary of its artifact in Prefect's pages.

``stages.py`` uses the reporter when a stage runs inside a Prefect flow.
"""

from __future__ import annotations

import re
import time

from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    update_progress_artifact,
)

from hallmark.tasks.contract.artifact import Artifact
from hallmark.tasks.contract.session import Event


def _to_artifact_key(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


class PrefectStageReporter:
    """Listener that publishes a stage's progress once per second, and finally its artifact.

    Prefect's server may be slow or unreachable, so call this through a ``BackgroundListener``.
    """

    def __init__(self, label: str) -> None:
        self.label, self.progress_id = label, None
        self.last_update = time.monotonic()

    def __call__(self, event: Event) -> None:
        if (
            event.kind == "progress"
            and event.total > 0
            and time.monotonic() - self.last_update >= 1.0
        ):
            self._publish_progress(100.0 * event.completed / event.total, event.description)
            self.last_update = time.monotonic()
        elif event.kind == "done" and event.artifact:
            if self.progress_id is not None:
                self._publish_progress(100.0, "")
            markdown = artifact_to_markdown(self.label, event.artifact)
            create_markdown_artifact(markdown, key=f"stage-{_to_artifact_key(self.label)}")

    def _publish_progress(self, percent: float, description: str) -> None:
        if self.progress_id is None:
            self.progress_id = create_progress_artifact(  # type: ignore[assignment]
                percent, key=_to_artifact_key(self.label), description=description or self.label
            )
        else:
            update_progress_artifact(
                self.progress_id, percent, description=description or self.label
            )


def artifact_to_markdown(label: str, artifact: Artifact) -> str:
    """Summarize an artifact in Markdown: its name, tables, files and accounts."""
    lines = [
        f"# {label}",
        "",
        f"artifact `{artifact.name}`, content `{artifact.content_digest[:16]}`",
        "",
    ]
    lines += ["| table | rows | bytes | SHA-256 |", "|---|--:|--:|---|"]
    for name, entry in artifact.manifest["tables"].items():
        byte_size = sum(part["size"] for part in entry["parts"])
        lines.append(f"| {name} | {entry['rows']:,} | {byte_size:,} | {entry['sha256'][:16]} |")
    for name, entry in artifact.manifest["files"].items():
        lines.append(f"| {name} | (file) | {entry['size']:,} | {entry['sha256'][:16]} |")
    if "accounts" in artifact.tables:
        rows = artifact["accounts"].read().to_pylist()
        if rows:
            lines += ["", "| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
            lines += [
                "| " + " | ".join(str(value) for value in row.values()) + " |" for row in rows
            ]
    return "\n".join(lines)
