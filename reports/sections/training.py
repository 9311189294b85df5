"""Report the training run on a model card: its log, its checkpoints and its text samples."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from hallmark.reports.page import charts
from hallmark.reports.page.document import (
    Block,
    Chart,
    Code,
    DataTable,
    DefinitionEntry,
    DefinitionList,
    InlineElement,
    Paragraph,
    Section,
)
from hallmark.reports.page.figures import AggregateKind, Figure, FigureBook
from hallmark.reports.page.redaction import (
    Redactor,
    find_prompt_column_by_response_column,
    get_shown_neighbours,
)
from hallmark.reports.sections.group_metrics import build_heldout_bits_per_byte_blocks
from hallmark.tasks.contract import Artifact, Table, format_count

MAX_SAMPLES_PER_STEP, MAX_SAMPLE_CHARACTERS = 2, 300

EARLIER_TRAINING_NOTE = "This card does not describe the training data of the earlier checkpoint."

TRAINING_NOT_ENDED_NOTE = (
    "The training run had not ended when this checkpoint was audited, so the training log and the "
    "text generated during training are not available."
)


def get_start_checkpoint_name(checkpoint: Artifact) -> str | None:
    """Return the name of the checkpoint from which training continued, if any."""
    return checkpoint.find_input_name("start_checkpoint")


def build_training_section(
    book: FigureBook, training_run: Artifact | None, checkpoint: Artifact, max_rows: int
) -> Section:
    """Build the section on the training run.

    Args:
        book: The figures of the card.
        training_run: The output of ``pretrain``, or of ``reconstruct_reads`` while the training has
            not ended; None if it is not known.
        checkpoint: The checkpoint that the card is about.
        max_rows: The largest number of rows of a table.
    """
    section = Section("Training run")
    if training_run is None:
        section.add_blocks(Paragraph(["The checkpoint has no training log."]))
        return section
    if "log" not in training_run.tables:
        section.add_blocks(Paragraph([TRAINING_NOT_ENDED_NOTE]))
        return section
    log_facts = summarize_training_log(book, "pretrain")
    start_checkpoint = get_start_checkpoint_name(checkpoint)
    if start_checkpoint is None:
        section.add_blocks(DefinitionList(log_facts))
    else:
        section.add_blocks(
            DefinitionList([("Continued from", [Code(start_checkpoint)]), *log_facts]),
            Paragraph([EARLIER_TRAINING_NOTE]),
        )
    initial_model_description = (
        "the untrained model"
        if start_checkpoint is None
        else "the checkpoint that training continued from"
    )
    remark_by_content_digest = {checkpoint.content_digest: "audited here"}
    section.add_blocks(*build_loss_chart(training_run))
    section.add_blocks(
        *build_checkpoint_table(
            book, "pretrain", remark_by_content_digest, initial_model_description, max_rows
        )
    )
    section.add_blocks(*build_heldout_bits_per_byte_blocks(book, training_run, max_rows))
    return section


def summarize_training_log(book: FigureBook, stage: str) -> list[DefinitionEntry]:
    """Return figures over all steps from the log of a training stage, each with its term."""
    add_figure = functools.partial(_add_log_figure, book, stage)
    skipped_steps = book.add_computed_figure(
        "training-skipped",
        "number of skipped steps",
        "steps",
        (stage, "log"),
        {"skipped": True},
        aggregate="count",
    )
    return [
        ("Steps", [add_figure("step", "steps", "max", "steps trained")]),
        (
            "Tokens seen, including padding",
            [add_figure("tokens_seen", "tokens", "max", "tokens seen")],
        ),
        ("Last training loss", [add_figure("loss", "nats per token", "last", "last loss")]),
        (
            "Last validation loss",
            [add_figure("validation_loss", "nats per token", "last", "last validation loss")],
        ),
        (
            "Highest learning rate",
            [add_figure("learning_rate", "", "max", "highest learning rate")],
        ),
        ("Steps skipped because of divergence", [skipped_steps]),
    ]


def _add_log_figure(
    book: FigureBook, stage: str, column: str, unit: str, aggregate: AggregateKind, label: str
) -> Figure:
    return book.add_computed_figure(
        f"training-{column}", label, unit, (stage, "log"), aggregate=aggregate, value_column=column
    )


def build_loss_chart(training_run: Artifact) -> list[Block]:
    """Build the chart of the losses, averaged so that it has at most 200 points."""
    log_rows = training_run["log"].read(["step", "loss", "validation_loss"])
    steps, losses, validation_losses = (
        log_rows[name].to_pylist() for name in log_rows.column_names
    )
    steps_per_point = max(1, -(-len(steps) // 200))  # at most 200 points
    mean_losses = []
    for start in range(0, len(steps), steps_per_point):
        window_losses = [
            loss for loss in losses[start : start + steps_per_point] if loss is not None
        ]
        if window_losses:
            mean_losses.append(
                (
                    steps[min(start + steps_per_point, len(steps)) - 1],
                    sum(window_losses) / len(window_losses),
                )
            )
    if not mean_losses:
        return []
    validation_points = [
        (step, loss_value)
        for step, loss_value in zip(steps, validation_losses, strict=True)
        if loss_value is not None
    ]
    curves = [
        charts.Curve(
            "training",
            [step for step, _ in mean_losses],
            [loss_value for _, loss_value in mean_losses],
        )
    ]
    if validation_points:
        curves.append(
            charts.Curve(
                "validation",
                [step for step, _ in validation_points],
                [loss_value for _, loss_value in validation_points],
            )
        )
    first_loss, last_loss = f"{mean_losses[0][1]:.2f}", f"{mean_losses[-1][1]:.2f}"
    trend = "falls" if float(last_loss) < float(first_loss) else "goes"
    alt = (
        f"The training loss {trend} from {first_loss} to {last_loss} nats per token in "
        f"{format_count(steps[-1], 'step')}."
    )
    smoothing_note = (
        f"Each point on the training curve is the mean of up to {steps_per_point} steps. "
        if steps_per_point > 1
        else ""
    )
    caption = f"Loss during training. {smoothing_note}".strip()
    if training_run["checkpoints"].row_count:
        caption += " The table lists the losses at the checkpoints."

    drawing = charts.LineChart(curves, "step", "loss (nats per token)")
    return [Chart("loss", drawing, alt, caption)]


def build_checkpoint_table(
    book: FigureBook,
    stage: str,
    remark_by_content_digest: Mapping[str, str],
    initial_model_description: str,
    max_rows: int,
) -> list[Block]:
    """Build the table of checkpoints; the last one is always shown.

    Args:
        book: The figures of the card.
        stage: The label of the training stage.
        remark_by_content_digest: Remarks on checkpoints, by content digest.
        initial_model_description: A description of the model at step 0.
        max_rows: The largest number of rows.
    """
    checkpoint_rows = book.artifacts[stage]["checkpoints"].read().to_pylist()
    row_stride = max(1, -(-len(checkpoint_rows) // max_rows))
    rows: list[list[InlineElement]] = []
    shown_rows = checkpoint_rows[::-1][::row_stride][::-1]
    for row in shown_rows:
        conditions = {"step": row["step"]}
        cells = [
            book.add_computed_figure(
                f"checkpoint-{row['step']}-{column}",
                f"step {row['step']}: {column.replace('_', ' ')}",
                unit,
                (stage, "checkpoints"),
                conditions,
                aggregate="last",
                value_column=column,
            )
            for column, unit in (
                ("tokens_seen", "tokens"),
                ("loss", "nats per token"),
                ("validation_loss", "nats per token"),
            )
        ]
        rows.append(
            [f"{row['step']:,}", *cells, remark_by_content_digest.get(row["content_digest"], "")]
        )
    if not rows:
        return []
    columns = ["step", "tokens", "loss", "validation loss", ""]
    note = "Losses are shown in nats per token."
    if any(
        row["step"] == 0 and row["loss"] is row["validation_loss"] is None for row in shown_rows
    ):
        note += f" At step 0 ({initial_model_description}), training had not computed a loss yet."
    return [DataTable("Checkpoints", columns, rows, frozenset({1, 2, 3}), note)]


def build_samples_section(
    book: FigureBook, scored_samples: Artifact | None, redactor: Redactor
) -> Section:
    """Build the section with texts that the model wrote at the first and the last sampled step.

    The redactor hides texts that ``score_samples`` found offensive or could not score.
    """
    section = Section("Samples during training")
    sample_rows = scored_samples["samples"].read().to_pylist() if scored_samples else []
    if scored_samples is None or not sample_rows:
        section.add_blocks(Paragraph(["No text generated during training was scored."]))
        return section
    steps = [row["step"] for row in sample_rows]
    shown_steps = dict.fromkeys([min(steps), max(steps)])
    selected_rows = [
        row
        for step in shown_steps
        for row in [sample_row for sample_row in sample_rows if sample_row["step"] == step][
            :MAX_SAMPLES_PER_STEP
        ]
    ]
    has_prompt = any(row["prompt"] for row in selected_rows)
    table_rows: list[list[InlineElement]] = []
    for row in selected_rows:
        step, sample = row["step"], row["sample_id"]
        step_figure = book.add_computed_figure(
            f"sample-{step}-{sample}",
            f"step at which sample {sample} was generated",
            "steps",
            ("score_samples", "samples"),
            {"step": step, "sample_id": sample},
            aggregate="last",
            value_column="step",
        )
        text_columns = ["prompt", "text"] if has_prompt else ["text"]
        table_rows.append(
            [
                step_figure,
                *(
                    _redact_sample_text(column_name, scored_samples["samples"], row, redactor)
                    for column_name in text_columns
                ),
            ]
        )
    sample_count = book.add_computed_figure(
        "samples",
        "number of texts generated during training",
        "texts",
        ("score_samples", "samples"),
        aggregate="count",
    )
    scorer = scored_samples.manifest["parts"]["external"]["scorer"]
    redaction_note = ""
    if not redactor.notice:
        redaction_note = (
            ". Texts that the scorer found offensive or could not score are not shown; the scorer "
            "misses some offensive texts. Personal data and planted secrets are masked; other "
            "codes and numbers are invented by the model or come from its training text"
        )
    note = (
        "The texts were generated at the first and last sampling steps, using the same random "
        "numbers."
    )
    if len(shown_steps) == 1:
        note = "The texts were generated at the only sampling step."
    section.add_blocks(
        Paragraph(
            [
                "During training, the model wrote ",
                sample_count,
                f", which {scorer} scored{redaction_note}.",
            ]
        ),
        DataTable(
            "Text generated during training",
            ["step", *(["read"] if has_prompt else []), "generated text"],
            table_rows,
            note=note,
        ),
    )
    return section


def _redact_sample_text(
    column_name: str, table: Table, row: dict[str, Any], redactor: Redactor
) -> str:
    column = table.columns[column_name]
    text = row[column_name]
    score = row[column.judged_by]
    if not text.strip():
        return "nothing"
    neighbours = get_shown_neighbours(
        column_name, row, find_prompt_column_by_response_column(table.columns.values())
    )
    return redactor.redact_by_kind(
        text, column.kind, score, MAX_SAMPLE_CHARACTERS, shown_neighbours=neighbours
    )
