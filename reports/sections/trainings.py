"""The trainings of a proof: which there are, what each lacks, and what held-out text costs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.page.document import Brief, Code, Grid, Inline, Section
from reports.page.figures import Book
from reports.page.masking import Masker
from tasks.audits.proofs.arms import BASE, RANDOM, REMOVED, SEED

#: What an arm is called in a chart and a table, and what it lacks.
ARM = {BASE: "everything", REMOVED: "without the documents", RANDOM: "without random ones"}


#: Kinds of held-out text to which no limit on rows applies.
WHOLE_KINDS = ("all", "identity")

#: What a page says of other seeds, where any was trained.
SEEDS = (
    "Other seeds are trained on everything: a change counts where its interval lies further from 0 "
    "than any of them from the base."
)


def seeds(book: Book) -> str:
    """What other seeds are for; nothing where none was trained."""
    return SEEDS if _has_seeds(book) else ""


def unknown_noise(book: Book) -> str:
    """Say why it is not known by what trainings differ."""
    why = "No other seed was trained"
    if _has_seeds(book):
        why = "Of the other seeds none could be compared with the base"
    return f"{why}, so what trainings differ by is not known."


def _has_seeds(book: Book) -> bool:
    return any(row["arm"].startswith(SEED) for row in _rows(book, "arms"))


def _rows(book: Book, table: str) -> list[dict[str, Any]]:
    return book.artifacts["proof"][table].read().to_pylist()


def control(book: Book) -> str:
    """What the random arm lacks, and how much of it stands for documents of the same source;
    nothing where there is no such arm."""
    left: dict[str, dict[str, int]] = {REMOVED: {}, RANDOM: {}}
    for row in _rows(book, "sources"):
        left[row["arm"]][row["source"]] = row["documents"]
    every = sum(left[RANDOM].values())
    same = sum(min(n, left[REMOVED].get(source, 0)) for source, n in left[RANDOM].items())
    if not every:
        return ""
    said = f"The random arm lacks {every:,} other documents of like lengths: "
    if left[REMOVED] == left[RANDOM]:
        return f"{said}as many of each source. "
    lacking = sum(left[REMOVED].values()) - every
    fewer = f"; that is {lacking:,} fewer than were removed" if lacking > 0 else ""
    return (
        f"{said}{same:,} stand for one of the same source, {every - same:,} for one of another, "
        f"which had no more{fewer}. "
    )


def _largest_change(known: Mapping[tuple[str, str, str], dict[str, Any]], text: Any) -> float:
    """Return by how much the cost of a text changes, in the arm in which it changes most."""
    rows = [known.get((*text, arm), {}) for arm in (REMOVED, RANDOM)]
    return max((abs(row["more"]) for row in rows if row.get("more") is not None), default=0.0)


def _rest(shown: int, every: int, order: str, table: str) -> str:
    """Say how many rows are shown of how many, by which order, and where all of them are."""
    return f" {shown} of {every:,}, {order}; all are in the table {table}." * (every > shown)


def arms(book: Book, masker: Masker, limit: int) -> Section:
    """Which trainings there are, and what each lacks, by source."""
    section = Section("The arms")
    rows: list[list[Inline]] = []
    for row in _rows(book, "arms"):
        documents, size = (
            book.figure(f"arm {row['arm']} {what}", f"{what} left out, {row['arm']}", what,
                             ("proof", "arms"), {"arm": row["arm"]}, column=what)
            for what in ("documents", "bytes")
        )  # fmt: skip
        seed = f", {row['arm']}" if row["arm"].startswith(SEED) else ""
        rows.append([ARM.get(row["arm"], ARM[BASE]) + seed, Brief(documents), Brief(size),
                     f"{row['step']:,}", Code(row["checkpoint"][:16])])  # fmt: skip
    columns = ["arm", "documents left out", "bytes", "steps", "checkpoint"]
    section.add(Grid("The trainings", columns, rows, frozenset({1, 2, 3})))
    left = _rows(book, "sources")
    sides = {(r["arm"], r["source"]): r for r in left}
    lines: list[list[Inline]] = []
    lost: dict[str, int] = {}
    for row in left:
        lost[row["source"]] = max(lost.get(row["source"], 0), row["documents"])
    sources = sorted(lost, key=lambda source: (-lost[source], source))
    for source in sources[:limit]:
        cells: list[Inline] = [masker.shown(source, "label")]
        for arm in (REMOVED, RANDOM):
            row = sides.get((arm, source), {"documents": 0, "bytes": 0})
            cells += [f"{row['documents']:,}", f"{row['bytes']:,}"]
        lines.append(cells)
    columns = ["source", "removed: documents", "bytes", "random: documents", "bytes"]
    note = "The random arm takes of each source and length as many, as far as it has any left."
    note += _rest(len(lines), len(sources), "those that lack most", "sources")
    section.add(Grid("What was left out", columns, lines, frozenset({1, 2, 3, 4}), note))
    return section


def price(book: Book, masker: Masker, limit: int) -> Section:
    """What held-out text costs each, by source and group."""
    section = Section("The price")
    rows: list[list[Inline]] = []
    known = {(r["kind"], r["name"], r["arm"]): r for r in _rows(book, "price")}
    arms = list(dict.fromkeys(arm for _, _, arm in known))
    texts = list(dict.fromkeys(key[:2] for key in known))
    changes = {text: _largest_change(known, text) for text in texts}
    others = sorted((t for t in texts if t[0] not in WHOLE_KINDS), key=lambda t: -changes[t])
    shown = [text for text in texts if text[0] in WHOLE_KINDS or text in others[:limit]]
    for kind, name in shown:
        cells: list[Inline] = [masker.shown("all text" if kind == "all" else (
            f"{kind} {name}"), "label")]  # fmt: skip
        sizes = (known[kind, name, arm]["bytes"] for arm in arms if (kind, name, arm) in known)
        cells.append(f"{max(sizes):,}")
        for arm in arms:
            figure = book.figure(
                f"price {kind} {name} {arm}", f"bits per byte of {kind} {name}, {arm}",
                "bits per byte", ("proof", "price"), {"kind": kind, "name": name, "arm": arm},
                aggregate="last", column="bits_per_byte", missing="–",
            )  # fmt: skip
            cells.append(Brief(figure))
        for arm in (REMOVED, RANDOM):
            more = known.get((kind, name, arm), {}).get("more")
            cells.append("–" if more is None else f"{more:+.4f}".replace("-", "−"))
        rows.append(cells)
    names = (arm if arm.startswith(SEED) else ARM[arm] for arm in arms)
    columns = ["held-out text", "bytes", *names, "change by removal", "by random"]
    note = (
        "Bits per byte of rows of the validation split at the last step, without intervals: less "
        "is better. What the removal costs beyond the random arm, and beyond what seeds differ "
        "by, is its price."
    )
    note += _rest(len(shown), len(texts), "all groups and those that change most", "price")
    section.add(Grid("Bits per byte", columns, rows, frozenset(range(1, len(columns))), note))
    return section
