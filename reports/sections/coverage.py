"""What a training had read of its corpus when it left a checkpoint."""

from __future__ import annotations

from typing import Any

from reports.page.document import Block, Grid, Inline, Paragraph
from reports.page.figures import Aggregate, Book, Figure
from tasks.contract import Artifact

COVERAGE = ("pretrain", "coverage")


def step_of(pretrained: Artifact | None, audited: str) -> int | None:
    """The step at which a training left the checkpoint with this content; None where not known."""
    if pretrained is None or "coverage" not in pretrained.tables:  # an older training
        return None
    rows = pretrained["checkpoints"].read(["step", "content"]).to_pylist()
    return max((row["step"] for row in rows if row["content"] == audited), default=None)


def coverage(book: Book, pretrained: Artifact, step: int, lines_shown: int) -> list[Block]:
    """Documents touched and read whole, and epochs: of all, and by source."""

    def figure(
        column: str, unit: str, label: str, aggregate: Aggregate = "sum", **where: Any
    ) -> Figure:
        name = "-".join(["read", column.replace("/", "-"), *map(str, where.values())])
        conditions = {"step": step, **where}
        return book.figure(
            name, label, unit, COVERAGE, conditions, aggregate=aggregate, column=column
        )

    documents = figure("documents", "documents", "documents packed for training")
    touched = figure("touched", "documents", "documents of which any was read")
    unread = touched.value != documents.value
    told = Paragraph(
        [
            "Until this checkpoint, at step ", f"{step:,}", ", training read ",
            figure("tokens", "tokens", "tokens of documents read"), " of ",
            figure("packed", "tokens", "tokens packed for training"), ", each as often as it was "
            "read: ", figure("tokens/packed", "epochs", "tokens read over tokens packed", "ratio"),
            ". Of ", documents, " it touched ", touched, " and read ",
            figure("whole", "documents", "documents of which all was read"), " whole.",
            *([" The model has learnt nothing from those it did not touch."] if unread else []),
        ]
    )  # fmt: skip
    rows = pretrained["coverage"].read(["step", "source", "packed"]).to_pylist()
    sources = sorted((-row["packed"], row["source"]) for row in rows if row["step"] == step)
    lines: list[list[Inline]] = []
    for _, source in sources[:lines_shown]:
        cells = [
            figure(column, unit, f"{label}, {source}", "ratio" if "/" in column else "sum",
                   source=source)
            for column, unit, label in (
                ("documents", "documents", "documents packed for training"),
                ("touched", "documents", "documents of which any was read"),
                ("whole", "documents", "documents of which all was read"),
                ("tokens", "tokens", "tokens read"),
                ("tokens/packed", "epochs", "tokens read over tokens packed"),
            )
        ]  # fmt: skip
        lines.append([source, *cells])
    note = "By document, with its first and last step: the table seen."
    if len(sources) > lines_shown:
        note = f"The {lines_shown} largest of {len(sources):,} sources. {note}"
    columns = ["source", "documents", "touched", "read whole", "tokens read", "epochs"]
    return [told, Grid("What was read", columns, lines, frozenset(range(1, 6)), note)]
