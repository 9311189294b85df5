"""What held-out text costs by group: bits per byte during training, and in tokens."""

from __future__ import annotations

from typing import Any

from reports.page.document import Block, Grid, Inline, Paragraph
from reports.page.figures import Book, Figure
from tasks.contract import Artifact

#: What the groups of a kind are called, in the order of the card.
KINDS = {"source": "source", "language": "estimated language", "identity": "identity group"}

#: Groups with fewer are marked.
FEW, FEW_DOCUMENTS = 1000, 20

ABOUT_LANGUAGES = (
    "py3langid estimates the language; a text too short or too mixed to tell is “undetermined”, "
    "and “zxx” is no language, as code. "
)

Row = dict[str, Any]


def heaviest(rows: list[Row], kind: str, table: str, limit: int) -> tuple[list[Row], str]:
    """Return the groups of a kind with the most tokens, and a note on how many are not shown.

    Of identity groups all are returned.
    """
    if kind == "identity":
        limit = len(rows)
    found = sorted((r for r in rows if r["kind"] == kind), key=lambda r: (-r["tokens"], r["name"]))
    left = len(found) - limit
    note = f"The {limit} with the most tokens; {left:,} more are in the table {table}. "
    return found[:limit], note if left > 0 else ""


# While the model learned -----------------------------------------------------------------------


def held_out(book: Book, pretrained: Artifact, lines_shown: int) -> list[Block]:
    """Bits per byte of the validation rows at the first and the last step that was measured."""
    # A log of a time before groups were measured has no such table.
    known = pretrained.tables.get("validation")
    rows: list[Row] = known.read().to_pylist() if known else []
    if not rows:
        return [Paragraph(["No held-out text was measured by group during training."])]
    steps = sorted({row["step"] for row in rows})
    ends = list(dict.fromkeys([steps[0], steps[-1]]))
    last = [row for row in rows if row["step"] == ends[-1]]
    whole = [_held_out_line(book, row, ends) for row in last if row["kind"] == "all"]
    blocks: list[Block] = [
        Paragraph(
            [
                "Held-out text by group, in bits per byte: packed rows of the validation split, "
                "the same at every measurement; lower is better. n is the number of tokens "
                "predicted that spell text; a document counts in every identity group that it "
                "mentions. It is not the figure of the capability audit, which reads documents one "
                "by one, and not all the same ones. No interval is given, because tokens of one "
                "document are not independent. A difference between groups may lie in their texts, "
                "not in what the model learned of them."
            ]
        )
    ]
    for kind, title in KINDS.items():
        found, note = heaviest(last, kind, "validation", lines_shown)
        if found:
            lines = whole + [_held_out_line(book, row, ends) for row in found]
            blocks.append(_held_out_grid(title, ends, lines, note))
    if len(blocks) == 1:
        blocks.append(_held_out_grid("group", ends, whole, "Groups were not measured apart. "))
    return blocks


def _held_out_line(book: Book, row: Row, steps: list[int]) -> list[Inline]:
    kind, name = row["kind"], row["name"]
    cells = [
        book.figure(
            f"held-out-{kind}-{name}-{step}", f"{name}, step {step}: bits per byte",
            "bits per byte", ("pretrain", "validation"),
            {"step": step, "kind": kind, "name": name},
            aggregate="last", column="bits_per_byte", n=row["tokens"],
        )
        for step in steps
    ]  # fmt: skip
    count = f"{row['tokens']:,}"
    return [name, f"{count} (few)" if row["tokens"] < FEW else count, *cells]


def _held_out_grid(title: str, steps: list[int], lines: list[list[Inline]], note: str) -> Grid:
    columns = [title, "n", *(f"step {step:,}" for step in steps)]
    if any(str(line[1]).endswith("(few)") for line in lines):
        note += f"Few: under {FEW:,} tokens; chance alone can move such a figure far."
    caption = f"Held-out bits per byte by {title}"
    return Grid(caption, columns, lines, frozenset(range(1, len(columns))), note.strip())


# What the tokenizer makes of it ----------------------------------------------------------------


def fertility(book: Book, tokenizer: Artifact, lines_shown: int) -> list[Block]:
    """Bytes a token of the validation split, beside that of all of it."""
    rows: list[Row] = tokenizer["fertility"].read().to_pylist()
    if not rows:
        return [Paragraph(["No held-out text shows how many bytes its tokens spell."])]
    of_all = {"kind": "source"}  # every document has one source
    documents = sum(row["documents"] for row in rows if row["kind"] == "source")
    whole = book.figure(
        "fertility-all", "bytes a token of all held-out text", "bytes a token",
        ("train_tokenizer", "fertility"), of_all, aggregate="ratio", column="bytes/tokens",
        n=documents,
    )  # fmt: skip
    blocks: list[Block] = [
        Paragraph(
            [
                "Bytes of held-out text that a token spells; n is the number of documents, each of "
                "which counts in every identity group that it mentions. Tokenizers can tax groups "
                "differently: with fewer bytes a token, the same text costs more tokens, takes "
                "longer and fills more of the context."
            ]
        )
    ]
    for kind, title in KINDS.items():
        found, note = heaviest(rows, kind, "fertility", lines_shown)
        if not found:
            continue
        lines: list[list[Inline]] = [["all", f"{documents:,}", whole, "1.00"]]
        lines += [_fertility_line(book, row, whole) for row in found]
        columns = [title, "n", "bytes a token", "against all"]
        note += ABOUT_LANGUAGES if kind == "language" else ""
        note += "Against all: divided by the figure of all held-out text. "
        if any(row["documents"] < FEW_DOCUMENTS for row in found):
            note += f"Few: under {FEW_DOCUMENTS} documents; one of them can move such a figure far."
        caption = f"Bytes a token by {title}"
        blocks.append(Grid(caption, columns, lines, frozenset({1, 2, 3}), note.strip()))
    return blocks


def _fertility_line(book: Book, row: Row, whole: Figure) -> list[Inline]:
    kind, name = row["kind"], row["name"]
    figure = book.figure(
        f"fertility-{kind}-{name}", f"bytes a token, {kind} {name}", "bytes a token",
        ("train_tokenizer", "fertility"), {"kind": kind, "name": name}, aggregate="last",
        column="bytes_per_token", n=row["documents"],
    )  # fmt: skip
    against = f"{figure.value / whole.value:.2f}" if figure.value and whole.value else "–"
    count = f"{row['documents']:,}"
    return [name, f"{count} (few)" if row["documents"] < FEW_DOCUMENTS else count, figure, against]
