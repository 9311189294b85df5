"""The tokenizer on a model card: its kind, its size, and whose text it cuts how finely."""

from __future__ import annotations

from reports.page.document import Facts, Inline, Paragraph, Section
from reports.page.figures import Book
from reports.sections.checkpoint import vocabulary
from reports.sections.groups import fertility
from tasks.contract import Artifact


def tokenization(
    book: Book, checkpoint: Artifact, trained: Artifact | None, kept: bool, lines_shown: int
) -> Section:
    """``trained``: what train_tokenizer left, None where it did not run or is not known;
    ``kept``: training continued from a checkpoint with that checkpoint's tokenizer."""
    section = Section("Tokenizer")
    known = vocabulary(checkpoint)
    if known is None:
        section.add(Paragraph(["The checkpoint has no tokenizer.json: the kind is not known."]))
    else:
        kind, tokens = known
        size: Inline = book.figure(
            "vocabulary", "tokens of the vocabulary", "tokens", ("checkpoint", "tokenizer.json"),
            aggregate="count", data=tokens,
        )  # fmt: skip
        section.add(Facts([("Kind", [kind]), ("Vocabulary", [size])]))
    if trained is not None:
        section.add(*fertility(book, trained, lines_shown))
    elif kept:
        section.add(
            Paragraph(
                ["It is that of the checkpoint that training continued from; how many tokens it "
                 "spends on each group's text was not measured again."]
            )
        )  # fmt: skip
    else:
        section.add(
            Paragraph(
                ["How many tokens it spends on each group's text is not known: the making of the "
                 "tokenizer is not in this store."]
            )
        )  # fmt: skip
    return section
