"""Report how much of its training text a model had seen at a checkpoint.

The figures come from the ``coverage`` table of ``pretrain``, which has one row per step and source.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from hallmark.reports.page.document import (
    Block,
    Callout,
    Code,
    DataTable,
    InlineContent,
    InlineElement,
    Paragraph,
    ShortFigure,
)
from hallmark.reports.page.figures import AggregateKind, Figure, FigureBook
from hallmark.reports.sections.training import EARLIER_TRAINING_NOTE
from hallmark.tasks.contract import Artifact, format_count
from hallmark.tasks.corpus.leave_out import CONTROL_REASON

COVERAGE_TABLE = ("pretrain", "coverage")


def describe_training_coverage(
    book: FigureBook, step: int, start_checkpoint_name: str | None
) -> InlineContent:
    """Return a sentence on the tokens, epochs and documents read until ``step``.

    Args:
        book: The figures of the card.
        step: The training step of the checkpoint.
        start_checkpoint_name: The name of the checkpoint that training continued from, if any.
    """
    packed_documents = _add_coverage_figure(
        book, "documents", "documents", "number of documents packed for training", step
    )
    partly_read = _add_coverage_figure(
        book, "read_documents", "documents", "number of documents read at least in part", step
    )
    read_tokens, packed_tokens, epochs, fully_read = (
        _add_coverage_figure(book, column, unit, label, step)
        for column, unit, label in (
            ("tokens_read", "tokens", "number of tokens read"),
            ("packed_tokens", "tokens", "number of tokens packed for training"),
            (
                "tokens_read/packed_tokens",
                "epochs",
                "number of tokens read divided by number of tokens packed",
            ),
            ("fully_read_documents", "documents", "number of documents read completely"),
        )
    )
    closing_parts: InlineContent = []
    if start_checkpoint_name is not None:
        closing_parts = [
            " Training continued from ",
            Code(start_checkpoint_name),
            f". {EARLIER_TRAINING_NOTE}",
        ]
    elif partly_read.value != packed_documents.value:
        closing_parts = [
            " The model was trained on no documents other than these ",
            ShortFigure(partly_read),
            ".",
        ]
    return [
        "By step ",
        f"{step:,}",
        ", the model had read ",
        read_tokens,
        ". The text packed for training has ",
        packed_tokens,
        ", so training covered ",
        epochs,
        "; tokens read twice are counted twice. Of ",
        packed_documents,
        ", the model had read at least part of ",
        ShortFigure(partly_read),
        " and all of ",
        ShortFigure(fully_read),
        ".",
        *closing_parts,
    ]


def _add_coverage_figure(
    book: FigureBook, column: str, unit: str, label: str, step: int, **extra_conditions: Any
) -> Figure:
    figure_id = "-".join(["read", column.replace("/", "-"), *map(str, extra_conditions.values())])
    aggregate: AggregateKind = "ratio" if "/" in column else "sum"
    conditions = {"step": step, **extra_conditions}
    return book.add_computed_figure(
        figure_id, label, unit, COVERAGE_TABLE, conditions, aggregate=aggregate, value_column=column
    )


def build_coverage_table(
    book: FigureBook, training_run: Artifact, step: int, max_rows: int
) -> DataTable:
    """Build the table of documents partly and fully read, tokens and epochs, by source."""
    rows = training_run["coverage"].read(["step", "source", "packed_tokens"]).to_pylist()
    sources = sorted((-row["packed_tokens"], row["source"]) for row in rows if row["step"] == step)
    table_rows: list[list[InlineElement]] = []
    for _, source in sources[:max_rows]:
        cells = [
            _add_coverage_figure(book, column, unit, f"{label}, {source}", step, source=source)
            for column, unit, label in (
                ("documents", "documents", "documents packed for training"),
                ("read_documents", "documents", "number of documents read at least in part"),
                ("fully_read_documents", "documents", "number of documents read completely"),
                ("tokens_read", "tokens", "number of tokens read"),
                (
                    "tokens_read/packed_tokens",
                    "epochs",
                    "number of tokens read divided by number of tokens packed",
                ),
            )
        ]
        table_rows.append([source, *cells])
    note = "The document_reads table lists the first and last step at which each document was read."
    if len(sources) > max_rows:
        note = (
            f"The table shows {max_rows} of {len(sources):,} sources, largest first; the coverage "
            f"table lists all of them. {note}"
        )
    columns = [
        "source",
        "documents",
        "read at least in part",
        "read completely",
        "tokens read",
        "epochs",
    ]
    return DataTable("Training text read", columns, table_rows, frozenset(range(1, 6)), note)


def describe_training_arm(exclusion_config: Mapping[str, Any]) -> str:
    """Return which documents a model was trained without; empty if none were selected.

    The two arms of an experiment name the same list of documents or the same toxicity score.

    Args:
        exclusion_config: The settings of the ``leave_out`` stage.
    """
    file, toxicity = (exclusion_config.get(name) for name in ("doc_ids_file", "toxicity_threshold"))
    selections = [f"on the list {PurePath(file).name}"] if file is not None else []
    selections += (
        [f"with a toxicity score of {toxicity:g} or higher"] if toxicity is not None else []
    )
    if not selections:
        return ""
    selected_documents = f"the documents {' or '.join(selections)}"
    if exclusion_config.get("random_control"):
        return f"control arm: random documents were excluded instead of {selected_documents}"
    return f"trained without {selected_documents}"


def build_training_arm_callout(exclusion_artifact: Artifact) -> list[Block]:
    """Build the note on which arm of a removal experiment a model is; none if it is not one.

    The ledger says which arm it is: cards depend on the tables of a stage, not on its settings.
    """
    rows = exclusion_artifact["ledger"].read(["action", "reason"]).to_pylist()
    reasons = [row["reason"] for row in rows if row["action"] == "removed"]
    if not reasons:
        return []
    is_control = CONTROL_REASON in reasons
    arm = "Control arm of a removal experiment" if is_control else "Documents removed"
    documents = format_count(len(reasons), f"{'random' if is_control else 'selected'} document")
    return [
        Callout(
            "note",
            [
                f"{arm}: this model was trained without {documents}. Compare a model trained "
                "without selected documents with its control arm, not with the original model, "
                "which may have been trained for more steps."
            ],
        )
    ]


def describe_excluded_documents(book: FigureBook, exclusion_artifact: Artifact) -> Paragraph:
    """Return how many documents of the corpus were excluded from training, and why."""
    rows = exclusion_artifact["ledger"].read(["action", "reason"]).to_pylist()
    reasons = dict.fromkeys(row["reason"] for row in rows if row["action"] == "removed")
    if not reasons:
        return Paragraph(["No documents were excluded from training."])
    excluded_count = book.add_computed_figure(
        "left-out",
        "number of documents excluded from training",
        "documents",
        ("leave_out", "ledger"),
        {"action": "removed"},
        aggregate="count",
    )
    return Paragraph(
        ["Excluded from training: ", excluded_count, f". Reasons: {', '.join(reasons)}."]
    )
