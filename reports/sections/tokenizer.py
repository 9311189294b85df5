"""Describe the tokenizer on a model card: its kind, its size, and its bytes per token by group."""

from __future__ import annotations

from hallmark.reports.page.document import DefinitionList, InlineElement, Paragraph, Section
from hallmark.reports.page.figures import FigureBook
from hallmark.reports.sections.checkpoint import read_vocabulary
from hallmark.reports.sections.group_metrics import build_bytes_per_token_blocks
from hallmark.tasks.contract import Artifact


def build_tokenizer_section(
    book: FigureBook,
    checkpoint: Artifact,
    tokenizer_artifact: Artifact | None,
    is_inherited: bool,
    max_rows: int,
) -> Section:
    """Build the section on the tokenizer.

    Args:
        book: The figures of the card.
        checkpoint: The checkpoint, with its tokenizer.json.
        tokenizer_artifact: The output of ``train_tokenizer``; None where it did not run or its
            output is not known.
        is_inherited: Whether training continued from a checkpoint and used its tokenizer.
        max_rows: The largest number of rows of a table.
    """
    section = Section("Tokenizer")
    stored_vocabulary = read_vocabulary(checkpoint)
    if stored_vocabulary is None:
        section.add_blocks(
            Paragraph(["The checkpoint has no tokenizer.json, so the tokenizer type is not known."])
        )
    else:
        vocabulary_size: InlineElement = book.add_computed_figure(
            "vocabulary",
            "number of tokens in the vocabulary",
            "tokens",
            ("checkpoint", "tokenizer.json"),
            aggregate="count",
            file_rows=stored_vocabulary.tokens,
        )
        section.add_blocks(
            DefinitionList(
                [("Kind", [stored_vocabulary.tokenizer_kind]), ("Vocabulary", [vocabulary_size])]
            )
        )
    if tokenizer_artifact is not None:
        section.add_blocks(*build_bytes_per_token_blocks(book, tokenizer_artifact, max_rows))
    elif is_inherited:
        section.add_blocks(
            Paragraph(
                [
                    "The tokenizer is from the checkpoint that training continued from; bytes per "
                    "token by group were not measured again."
                ]
            )
        )
    else:
        section.add_blocks(
            Paragraph(
                [
                    "Bytes per token by group are not known, because this store has no record of "
                    "how the tokenizer was trained."
                ]
            )
        )
    return section
