"""Report held-out bits per byte during training, and bytes per token of the tokenizer, by group."""

from __future__ import annotations

from hallmark.reports.page.document import Block, DataTable, InlineElement, Paragraph
from hallmark.reports.page.figures import Figure, FigureBook
from hallmark.reports.sections.row_selection import LimitedSelection
from hallmark.tasks.contract import Artifact, Row

#: Label of each kind of group, in the order of the card.
GROUP_KINDS = {"source": "source", "language": "estimated language", "identity": "identity group"}

#: Groups with fewer tokens or documents are marked "(few)".
MIN_TOKENS, MIN_DOCUMENTS = 1000, 20

LANGUAGE_NOTE = (
    "Languages are estimated with py3langid. “undetermined” means that the text is too short or "
    "too mixed for an estimate; “zxx” marks text without a language, such as code. "
)


def select_groups_with_most_tokens(
    rows: list[Row], kind: str, table_name: str, limit_unless_identity: int
) -> LimitedSelection[Row]:
    """Return the rows of the groups of a kind with the most tokens; all identity groups."""
    limit = len(rows) if kind == "identity" else limit_unless_identity
    groups = sorted(
        (row for row in rows if row["kind"] == kind), key=lambda row: (-row["tokens"], row["name"])
    )
    omitted_count = len(groups) - limit
    shown_groups = "The group" if limit == 1 else f"The {limit} groups"
    shown_verb = "is" if limit == 1 else "are"
    verb = "is" if omitted_count == 1 else "are"
    note = (
        f"{shown_groups} with the most tokens {shown_verb} shown; {omitted_count:,} more {verb} "
        f"in the {table_name} table. "
    )
    return LimitedSelection(groups[:limit], note if omitted_count > 0 else "")


# During training --------------------------------------------------------------------------------


def build_heldout_bits_per_byte_blocks(
    book: FigureBook, training_run: Artifact, max_rows: int
) -> list[Block]:
    """Build tables of validation bits per byte by group, at the first and last measured step."""
    # Training logs of older versions have no table of groups.
    validation_table = training_run.tables.get("validation")
    rows: list[Row] = validation_table.read().to_pylist() if validation_table else []
    if not rows:
        return [
            Paragraph(
                ["Bits per byte of held-out text were not measured by group during training."]
            )
        ]
    steps = sorted({row["step"] for row in rows})
    shown_steps = list(dict.fromkeys([steps[0], steps[-1]]))
    last_step_rows = [row for row in rows if row["step"] == shown_steps[-1]]
    overall_lines = [
        _build_heldout_bits_per_byte_row(book, row, shown_steps)
        for row in last_step_rows
        if row["kind"] == "all"
    ]
    blocks: list[Block] = [
        Paragraph(
            [
                "Values are bits per byte of held-out text for each group; lower is better. Every "
                "measurement uses the same packed rows of the validation split. n is the number "
                "of predicted tokens that represent text; a document is counted for every "
                "identity group that it mentions. The capability audit reports different values "
                "because it reads documents one at a time and some of its documents are "
                "different. No intervals are shown, because tokens in the same document are not "
                "independent. A difference between groups may be due to their texts rather than "
                "to the model."
            ]
        )
    ]
    for kind, kind_label in GROUP_KINDS.items():
        groups, note = select_groups_with_most_tokens(last_step_rows, kind, "validation", max_rows)
        if groups:
            table_rows = overall_lines + [
                _build_heldout_bits_per_byte_row(book, row, shown_steps) for row in groups
            ]
            blocks.append(
                _build_heldout_bits_per_byte_table(kind_label, shown_steps, table_rows, note)
            )
    if len(blocks) == 1:
        blocks.append(
            _build_heldout_bits_per_byte_table(
                "group", shown_steps, overall_lines, "Groups were not measured separately. "
            )
        )
    return blocks


def _build_heldout_bits_per_byte_row(
    book: FigureBook, row: Row, steps: list[int]
) -> list[InlineElement]:
    kind, name = row["kind"], row["name"]
    cells = [
        book.add_computed_figure(
            f"held-out-{kind}-{name}-{step}",
            f"{name}, step {step}: bits per byte",
            "bits per byte",
            ("pretrain", "validation"),
            {"step": step, "kind": kind, "name": name},
            aggregate="last",
            value_column="bits_per_byte",
            n=row["tokens"],
        )
        for step in steps
    ]
    token_count = f"{row['tokens']:,}"
    return [name, f"{token_count} (few)" if row["tokens"] < MIN_TOKENS else token_count, *cells]


def _build_heldout_bits_per_byte_table(
    kind_label: str, steps: list[int], table_rows: list[list[InlineElement]], note: str
) -> DataTable:
    columns = [kind_label, "n", *(f"step {step:,}" for step in steps)]
    if any(str(table_row[1]).endswith("(few)") for table_row in table_rows):
        note += (
            f"“Few” means fewer than {MIN_TOKENS:,} tokens; with so few tokens, a value can "
            "change considerably by chance."
        )
    caption = f"Bits per byte of held-out text, by {kind_label}"
    return DataTable(caption, columns, table_rows, frozenset(range(1, len(columns))), note.strip())


# Tokenizer ---------------------------------------------------------------------------------------


def build_bytes_per_token_blocks(
    book: FigureBook, tokenizer: Artifact, max_rows: int
) -> list[Block]:
    """Build tables of bytes per token of validation text, by group and relative to all of it."""
    rows: list[Row] = tokenizer["fertility"].read().to_pylist()
    if not rows:
        return [Paragraph(["Bytes per token are not known, because there is no held-out text."])]
    conditions = {"kind": "source"}  # every document has one source
    document_count = sum(row["documents"] for row in rows if row["kind"] == "source")
    overall_figure = book.add_computed_figure(
        "fertility-all",
        "bytes per token over all held-out text",
        "bytes per token",
        ("train_tokenizer", "fertility"),
        conditions,
        aggregate="ratio",
        value_column="bytes/tokens",
        n=document_count,
    )
    blocks: list[Block] = [
        Paragraph(
            [
                "Values are bytes of held-out text per token. n is the number of documents; a "
                "document is counted for every identity group that it mentions. A tokenizer can "
                "be less efficient for some groups. With fewer bytes per token, the same text "
                "requires more tokens, more time and a larger part of the context."
            ]
        )
    ]
    for kind, kind_label in GROUP_KINDS.items():
        groups, note = select_groups_with_most_tokens(rows, kind, "fertility", max_rows)
        if not groups:
            continue
        table_rows: list[list[InlineElement]] = [
            ["all", f"{document_count:,}", overall_figure, "1.00"]
        ]
        table_rows += [_build_bytes_per_token_row(book, row, overall_figure) for row in groups]
        columns = [kind_label, "n", "bytes per token", "relative to all"]
        note += LANGUAGE_NOTE if kind == "language" else ""
        note += (
            "“Relative to all” is the group's bytes per token divided by the bytes per token of "
            "all held-out text. "
        )
        if any(row["documents"] < MIN_DOCUMENTS for row in groups):
            note += (
                f"“Few” means fewer than {MIN_DOCUMENTS} documents; with so few documents, a "
                "single document can change the value considerably."
            )
        caption = f"Bytes per token by {kind_label}"
        blocks.append(DataTable(caption, columns, table_rows, frozenset({1, 2, 3}), note.strip()))
    return blocks


def _build_bytes_per_token_row(
    book: FigureBook, row: Row, overall_figure: Figure
) -> list[InlineElement]:
    kind, name = row["kind"], row["name"]
    figure = book.add_computed_figure(
        f"fertility-{kind}-{name}",
        f"bytes per token, {kind} {name}",
        "bytes per token",
        ("train_tokenizer", "fertility"),
        {"kind": kind, "name": name},
        aggregate="last",
        value_column="bytes_per_token",
        n=row["documents"],
    )
    relative_fertility = (
        f"{figure.value / overall_figure.value:.2f}"
        if figure.value and overall_figure.value
        else "–"
    )
    document_count = f"{row['documents']:,}"
    return [
        name,
        f"{document_count} (few)" if row["documents"] < MIN_DOCUMENTS else document_count,
        figure,
        relative_fertility,
    ]
