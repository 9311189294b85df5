"""What a training had read of its corpus when it left a checkpoint."""

from __future__ import annotations

from typing import Any

from reports.page.document import Code, Grid, Inline, Paragraph, Parts
from reports.page.figures import Aggregate, Book, Figure
from reports.sections.training import EARLIER
from tasks.contract import Artifact

COVERAGE = ("pretrain", "coverage")


def step_of(pretrained: Artifact | None, audited: str) -> int | None:
    """The step at which a training left the checkpoint with this content; None where not known."""
    if pretrained is None or "coverage" not in pretrained.tables:  # an older training
        return None
    rows = pretrained["checkpoints"].read(["step", "content"]).to_pylist()
    return max((row["step"] for row in rows if row["content"] == audited), default=None)


def read_until(book: Book, step: int, start: str | None) -> Parts:
    """What training had read at ``step``: tokens, epochs, and documents touched and read whole.
    ``start``: the name of the checkpoint that it continued from."""
    documents = _figure(book, "documents", "documents", "documents packed for training", step)
    touched = _figure(book, "touched", "documents", "documents of which any was read", step)
    tokens, packed, epochs, whole = (
        _figure(book, column, unit, label, step)
        for column, unit, label in (
            ("tokens", "tokens", "tokens of documents read"),
            ("packed", "tokens", "tokens packed for training"),
            ("tokens/packed", "epochs", "tokens read over tokens packed"),
            ("whole", "documents", "documents of which all was read"),
        )
    )
    more: Parts = []
    if start is not None:
        more = [" Training continued from ", Code(start), f". {EARLIER}"]
    elif touched.value != documents.value:
        more = [" It has learnt nothing from those it did not touch."]
    return [
        "Until step ", f"{step:,}", " it read ", tokens, " of ", packed,
        " packed, each as often as it was read: ", epochs,
        ". Of ", documents, " it touched ", touched, " and read ", whole, " whole.",
        *more,
    ]  # fmt: skip


def _figure(book: Book, column: str, unit: str, label: str, step: int, **where: Any) -> Figure:
    name = "-".join(["read", column.replace("/", "-"), *map(str, where.values())])
    aggregate: Aggregate = "ratio" if "/" in column else "sum"
    conditions = {"step": step, **where}
    return book.figure(name, label, unit, COVERAGE, conditions, aggregate=aggregate, column=column)


def coverage(book: Book, pretrained: Artifact, step: int, lines_shown: int) -> Grid:
    """Documents touched and read whole, and epochs, by source."""
    rows = pretrained["coverage"].read(["step", "source", "packed"]).to_pylist()
    sources = sorted((-row["packed"], row["source"]) for row in rows if row["step"] == step)
    lines: list[list[Inline]] = []
    for _, source in sources[:lines_shown]:
        cells = [
            _figure(book, column, unit, f"{label}, {source}", step, source=source)
            for column, unit, label in (
                ("documents", "documents", "documents packed for training"),
                ("touched", "documents", "documents of which any was read"),
                ("whole", "documents", "documents of which all was read"),
                ("tokens", "tokens", "tokens read"),
                ("tokens/packed", "epochs", "tokens read over tokens packed"),
            )
        ]
        lines.append([source, *cells])
    note = "By document, with its first and last step: the table seen."
    if len(sources) > lines_shown:
        note = f"The {lines_shown} largest of {len(sources):,} sources; all: table coverage. {note}"
    columns = ["source", "documents", "touched", "read whole", "tokens read", "epochs"]
    return Grid("What was read", columns, lines, frozenset(range(1, 6)), note)


def left_out(book: Book, ledger: Artifact) -> Paragraph:
    """Say how many documents of the corpus were not packed, and why."""
    rows = ledger["ledger"].read(["action", "reason"]).to_pylist()
    reasons = dict.fromkeys(row["reason"] for row in rows if row["action"] == "removed")
    if not reasons:
        return Paragraph(["No document was left out of training."])
    gone = book.figure(
        "left-out",
        "documents left out of training",
        "documents",
        ("leave_out", "ledger"),
        {"action": "removed"},
        aggregate="count",
    )
    return Paragraph(["Of the corpus ", gone, f" were not packed: {', '.join(reasons)}."])
