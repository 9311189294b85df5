"""Describe the arms of a removal experiment: what each leaves out, and its held-out loss."""

from __future__ import annotations

from collections.abc import Mapping

from hallmark.reports.page.document import Code, DataTable, InlineElement, Section, ShortFigure
from hallmark.reports.page.figures import FigureBook
from hallmark.reports.page.redaction import Redactor
from hallmark.tasks.audits.experiments.arm_comparison import BASE, RANDOM, REMOVED, SEED
from hallmark.tasks.contract import Row

#: Kind and name of a part of the held-out text, such as ("source", "town").
HeldoutText = tuple[str, str]

#: Names of the arms in charts and tables.
ARM_NAMES = {
    BASE: "all documents",
    REMOVED: "without the documents",
    RANDOM: "without random documents",
}


#: Kinds of held-out text to which no row limit applies.
UNLIMITED_KINDS = ("all", "identity")

#: Explains the arms with other seeds, where there are any.
SEED_ARM_NOTE = (
    "The arms with other seeds use all documents. A change is attributed to the removal only if "
    "its interval is further from 0 than the difference between any of these arms and the base."
)


def describe_seed_arms(book: FigureBook) -> str:
    """Return what the arms with other seeds are for; empty where there are none."""
    return SEED_ARM_NOTE if _has_seed_arms(book) else ""


def explain_unknown_noise(book: FigureBook) -> str:
    """Return why the difference between training runs with different seeds is not known."""
    reason = "No arm was trained with another seed"
    if _has_seed_arms(book):
        reason = "No arm with another seed could be compared with the base"
    return f"{reason}, so the difference between training runs is not known."


def _has_seed_arms(book: FigureBook) -> bool:
    return any(row["arm"].startswith(SEED) for row in _read_arm_comparison_rows(book, "arms"))


def _read_arm_comparison_rows(book: FigureBook, table: str) -> list[Row]:
    """Return the rows of a table of ``compare_arms``."""
    rows: list[Row] = book.artifacts["compare_arms"][table].read().to_pylist()
    return rows


def describe_random_arm(book: FigureBook) -> str:
    """Return how many random documents the random arm leaves out, and from which sources.

    The text is empty where there is no random arm.
    """
    document_counts: dict[str, dict[str, int]] = {REMOVED: {}, RANDOM: {}}
    for row in _read_arm_comparison_rows(book, "sources"):
        document_counts[row["arm"]][row["source"]] = row["documents"]
    random_count = sum(document_counts[RANDOM].values())
    matched_count = sum(
        min(random_documents, document_counts[REMOVED].get(source, 0))
        for source, random_documents in document_counts[RANDOM].items()
    )
    if not random_count:
        return ""
    lead = f"The random arm omits {random_count:,} other documents of similar lengths: "
    if document_counts[REMOVED] == document_counts[RANDOM]:
        return f"{lead}the same number from each source. "
    shortfall = sum(document_counts[REMOVED].values()) - random_count
    shortfall_text = f"; this is {shortfall:,} fewer than were removed" if shortfall > 0 else ""
    return (
        f"{lead}{matched_count:,} come from the same source as the documents they replace, and "
        f"{random_count - matched_count:,} from other sources, because the original sources had "
        f"no more documents{shortfall_text}. "
    )


def _find_largest_loss_change(
    loss_row_by_text_and_arm: Mapping[tuple[HeldoutText, str], Row], heldout_text: HeldoutText
) -> float:
    """Return the largest absolute change of the held-out loss of a text over the arms."""
    rows = [loss_row_by_text_and_arm.get((heldout_text, arm), {}) for arm in (REMOVED, RANDOM)]
    return max(
        (
            abs(row["difference_from_base"])
            for row in rows
            if row.get("difference_from_base") is not None
        ),
        default=0.0,
    )


def _format_row_limit_note(
    shown_count: int, total_count: int, order_label: str, table_name: str
) -> str:
    """Return how many rows are shown, in which order, and where all of them are."""
    return (
        f" The table shows {shown_count} of {total_count:,} {order_label}; the {table_name} table "
        "lists all of them." * (total_count > shown_count)
    )


def build_training_arms_section(book: FigureBook, redactor: Redactor, max_rows: int) -> Section:
    """Build the tables of the training runs, and of what each leaves out by source."""
    section = Section("Arms")
    rows: list[list[InlineElement]] = []
    for row in _read_arm_comparison_rows(book, "arms"):
        document_count, removed_bytes = (
            book.add_computed_figure(
                f"arm {row['arm']} {column}",
                f"{column} omitted, {row['arm']}",
                column,
                ("compare_arms", "arms"),
                {"arm": row["arm"]},
                value_column=column,
            )
            for column in ("documents", "bytes")
        )
        seed = f", {row['arm']}" if row["arm"].startswith(SEED) else ""
        rows.append(
            [
                ARM_NAMES.get(row["arm"], ARM_NAMES[BASE]) + seed,
                ShortFigure(document_count),
                ShortFigure(removed_bytes),
                f"{row['step']:,}",
                Code(row["checkpoint"][:16]),
            ]
        )
    columns = ["arm", "documents omitted", "bytes", "steps", "checkpoint"]
    section.add_blocks(DataTable("Trainings", columns, rows, frozenset({1, 2, 3})))
    source_rows = _read_arm_comparison_rows(book, "sources")
    row_by_arm_source = {
        (source_row["arm"], source_row["source"]): source_row for source_row in source_rows
    }
    table_rows: list[list[InlineElement]] = []
    largest_removal: dict[str, int] = {}
    for row in source_rows:
        largest_removal[row["source"]] = max(
            largest_removal.get(row["source"], 0), row["documents"]
        )
    sources = sorted(largest_removal, key=lambda source: (-largest_removal[source], source))
    for source in sources[:max_rows]:
        cells: list[InlineElement] = [redactor.redact_by_kind(source, "label")]
        for arm in (REMOVED, RANDOM):
            row = row_by_arm_source.get((arm, source), {"documents": 0, "bytes": 0})
            cells += [f"{row['documents']:,}", f"{row['bytes']:,}"]
        table_rows.append(cells)
    columns = ["source", "removed: documents", "bytes", "random: documents", "bytes"]
    note = (
        "For each source and length, the random arm omits as many documents as were removed, if "
        "the source has enough of them."
    )
    note += _format_row_limit_note(
        len(table_rows), len(sources), "sources with the most omitted documents", "sources"
    )
    section.add_blocks(
        DataTable("Omitted documents by source", columns, table_rows, frozenset({1, 2, 3, 4}), note)
    )
    return section


def build_heldout_loss_section(book: FigureBook, redactor: Redactor, max_rows: int) -> Section:
    """Build the table of held-out bits per byte of each arm, by source and group."""
    section = Section("Cost of the removal")
    rows: list[list[InlineElement]] = []
    loss_row_by_text_and_arm: dict[tuple[HeldoutText, str], Row] = {
        ((loss_row["kind"], loss_row["name"]), loss_row["arm"]): loss_row
        for loss_row in _read_arm_comparison_rows(book, "heldout_loss")
    }
    arms = list(dict.fromkeys(arm for _, arm in loss_row_by_text_and_arm))
    texts = list(dict.fromkeys(text for text, _ in loss_row_by_text_and_arm))
    change_by_text = {
        text: _find_largest_loss_change(loss_row_by_text_and_arm, text) for text in texts
    }
    limited_texts = sorted(
        ((kind, name) for kind, name in texts if kind not in UNLIMITED_KINDS),
        key=lambda text: -change_by_text[text],
    )
    shown_texts = [
        (kind, name)
        for kind, name in texts
        if kind in UNLIMITED_KINDS or (kind, name) in limited_texts[:max_rows]
    ]
    for kind, name in shown_texts:
        loss_row_by_arm = {
            arm: loss_row_by_text_and_arm[(kind, name), arm]
            for arm in arms
            if ((kind, name), arm) in loss_row_by_text_and_arm
        }
        cells: list[InlineElement] = [
            redactor.redact_by_kind("all text" if kind == "all" else (f"{kind} {name}"), "label")
        ]
        byte_count = max(row["bytes"] for row in loss_row_by_arm.values())
        cells.append(f"{byte_count:,}")
        for arm in arms:
            figure = book.add_computed_figure(
                f"price {kind} {name} {arm}",
                f"bits per byte of {kind} {name}, {arm}",
                "bits per byte",
                ("compare_arms", "heldout_loss"),
                {"kind": kind, "name": name, "arm": arm},
                aggregate="last",
                value_column="bits_per_byte",
                missing_text="–",
            )
            cells.append(ShortFigure(figure))
        for arm in (REMOVED, RANDOM):
            difference = loss_row_by_arm.get(arm, {}).get("difference_from_base")
            cells.append("–" if difference is None else f"{difference:+.4f}".replace("-", "−"))
        rows.append(cells)
    arm_names = (arm if arm.startswith(SEED) else ARM_NAMES[arm] for arm in arms)
    columns = ["held-out text", "bytes", *arm_names, "change, removal", "change, random"]
    note = (
        "Values are bits per byte on rows of the validation split at the last step, without "
        "intervals; lower is better. The cost of the removal is the part of the change in the "
        "removal arm that exceeds both the change in the random arm and the difference between "
        "seeds."
    )
    note += _format_row_limit_note(
        len(shown_texts),
        len(texts),
        "rows: those for all groups and those with the largest changes",
        "heldout_loss",
    )
    section.add_blocks(
        DataTable("Bits per byte", columns, rows, frozenset(range(1, len(columns))), note)
    )
    return section
