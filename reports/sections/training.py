"""The training run on a model card: its log, its checkpoints, what the model wrote meanwhile."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from reports.page import charts
from reports.page.document import (
    Block,
    Chart,
    Code,
    Facts,
    Grid,
    Inline,
    Paragraph,
    Parts,
    Section,
)
from reports.page.figures import Book, Figure
from reports.page.masking import Masker, Say, neighbours_of, prompts_of
from reports.sections.findings import words
from reports.sections.groups import held_out
from tasks.contract import Artifact, Table

SAMPLES, CHARACTERS = 2, 300  # of a step, and how much of each is shown

EARLIER = "What the earlier checkpoint was trained on is not described by this card."


def continued_from(pretrained: Artifact | None) -> str | None:
    """Name of the checkpoint that training continued from; None where it began anew."""
    return None if pretrained is None else pretrained.manifest["lineage"].get("start")


def training(book: Book, pretrained: Artifact | None, audited: str, lines_shown: int) -> Section:
    """``audited``: content digest of the checkpoint that the card is about."""
    section = Section("Training run")
    if pretrained is None:
        section.add(Paragraph(["The checkpoint came without a log of its training."]))
        return section
    pairs = steps_taken(book, "pretrain")
    start = continued_from(pretrained)
    if start is None:
        section.add(Facts(pairs))
    else:
        section.add(Facts([("Continued from", [Code(start)]), *pairs]), Paragraph([EARLIER]))
    first = "the untrained model" if start is None else "the checkpoint continued from"
    marks = {audited: "audited here"}
    section.add(*loss_curve(pretrained))
    section.add(*checkpoints(book, "pretrain", marks, first, lines_shown))
    section.add(*held_out(book, pretrained, lines_shown))
    return section


def steps_taken(book: Book, stage: str) -> list[tuple[str, Parts]]:
    """What the log of a stage that trains says of all steps together."""
    make = functools.partial(_log_figure, book, stage)
    skipped = book.figure(
        "training-skipped", "skipped steps", "steps", (stage, "log"), {"skipped": True},
        aggregate="count",
    )  # fmt: skip
    return [
        ("Steps", [make("step", "steps", "max", "steps trained")]),
        ("Tokens seen", [make("tokens", "tokens", "max", "tokens seen")]),
        ("Last training loss", [make("loss", "nats a token", "last", "last loss")]),
        ("Last validation loss",
         [make("validation_loss", "nats a token", "last", "last validation loss")]),
        ("Highest learning rate", [make("learning_rate", "", "max", "highest learning rate")]),
        ("Steps skipped because they diverged", [skipped]),
    ]  # fmt: skip


def _log_figure(book: Book, stage: str, column: str, unit: str, how: Any, label: str) -> Figure:
    return book.figure(
        f"training-{column}", label, unit, (stage, "log"), aggregate=how, column=column
    )


def loss_curve(pretrained: Artifact) -> list[Block]:
    log = pretrained["log"].read(["step", "loss", "validation_loss"])
    steps, losses, validated = (log[name].to_pylist() for name in log.column_names)
    every = max(1, -(-len(steps) // 200))  # at most 200 points
    means = []
    for start in range(0, len(steps), every):
        part = [loss for loss in losses[start : start + every] if loss is not None]
        if part:
            means.append((steps[min(start + every, len(steps)) - 1], sum(part) / len(part)))
    if not means:
        return []
    points = [(s, v) for s, v in zip(steps, validated, strict=True) if v is not None]
    series = [("training", [s for s, _ in means], [v for _, v in means])]
    if points:
        series.append(("validation", [s for s, _ in points], [v for _, v in points]))
    first, last = f"{means[0][1]:.2f}", f"{means[-1][1]:.2f}"
    way = "falls" if float(last) < float(first) else "goes"
    alt = f"The training loss {way} from {first} to {last} nats a token in {steps[-1]:,} steps."
    smooth = f"Each point of training is the mean of up to {every} steps. " if every > 1 else ""
    caption = f"Loss during training. {smooth}".strip()
    if pretrained["checkpoints"].rows:
        caption += " Losses at the checkpoints are in the table."

    def draw(say: Say) -> str:
        return charts.line(series, "step", "loss (nats a token)", say)

    return [Chart("loss", draw, alt, caption)]


def checkpoints(
    book: Book, stage: str, marks: Mapping[str, str], first: str, lines_shown: int
) -> list[Block]:
    """``marks``: what is said of a checkpoint, by its content; ``first``: what step 0 is."""
    table = book.artifacts[stage]["checkpoints"].read().to_pylist()
    every = max(1, -(-len(table) // lines_shown))
    rows: list[list[Inline]] = []
    shown = table[::-1][::every][::-1]  # the last one always
    for row in shown:
        where = {"step": row["step"]}
        cells = [
            book.figure(
                f"checkpoint-{row['step']}-{column}", f"step {row['step']}: {words(column)}",
                unit, (stage, "checkpoints"), where, aggregate="last", column=column,
            )
            for column, unit in (("tokens", "tokens"), ("loss", "nats a token"),
                                 ("validation_loss", "nats a token"))
        ]  # fmt: skip
        rows.append([f"{row['step']:,}", *cells, marks.get(row["content"], "")])
    if not rows:
        return []
    columns = ["step", "tokens", "loss", "validation loss", ""]
    note = "Losses in nats a token."
    if any(row["step"] == 0 and row["loss"] is row["validation_loss"] is None for row in shown):
        note += f" Step 0, {first}, has none."
    return [Grid("Checkpoints", columns, rows, frozenset({1, 2, 3}), note)]


def samples(book: Book, scored: Artifact | None, masker: Masker) -> Section:
    """A few texts of the first and the last step at which the model wrote any, where the stage
    score_samples found them harmless."""
    section = Section("Samples during training")
    written = scored["samples"].read().to_pylist() if scored else []
    if scored is None or not written:
        section.add(Paragraph(["No scored text that the model wrote during training is known."]))
        return section
    steps = [row["step"] for row in written]
    ends = dict.fromkeys([min(steps), max(steps)])
    chosen = [row for step in ends for row in [r for r in written if r["step"] == step][:SAMPLES]]
    has_prompt = any(row["prompt"] for row in chosen)
    lines: list[list[Inline]] = []
    for row in chosen:
        step, sample = row["step"], row["sample"]
        place = book.figure(
            f"sample-{step}-{sample}", f"step at which sample {sample} was written", "steps",
            ("score_samples", "samples"), {"step": step, "sample": sample}, aggregate="last",
            column="step",
        )  # fmt: skip
        texts = ["prompt", "text"] if has_prompt else ["text"]
        lines.append([place, *(_shown(name, scored["samples"], row, masker) for name in texts)])
    every = book.figure(
        "samples", "texts written during training", "texts", ("score_samples", "samples"),
        aggregate="count",
    )  # fmt: skip
    scorer = scored.manifest["parts"]["external"]["scorer"]
    hidden = ""
    if not masker.notice:
        hidden = (
            ", and what it found offensive or could not score is not shown; it misses some. "
            "Personal data and planted secrets are masked; other codes and numbers the model made "
            "up, or has from its text"
        )
    note = "From the first and the last step, with the same random draws."
    if len(ends) == 1:
        note = "From the only step at which it wrote any."
    section.add(
        Paragraph(
            [
                "While it was trained the model wrote ",
                every,
                f". {scorer} has read them{hidden}.",
            ]
        ),
        Grid(
            "What the model wrote",
            ["step", *(["read"] if has_prompt else []), "wrote"],
            lines,
            note=note,
        ),
    )
    return section


def _shown(name: str, table: Table, row: dict[str, Any], masker: Masker) -> str:
    column = table.columns[name]
    text = row[name]
    score = row[column.judged_by]
    if not text.strip():
        return "nothing"
    beside = neighbours_of(name, row, prompts_of(table.columns.values()))
    return masker.shown(text, column.kind, score, CHARACTERS, beside=beside)
