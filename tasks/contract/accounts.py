"""Conservation: what enters a stage leaves it, or is accounted for.

    in + added = kept + removed_rows + removed_spans + quarantined + replaced

in rows and in UTF-8 bytes of text (raw bytes at ingest), for every source. ``replaced`` is
what masking made shorter (negative where it made text longer).
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa

from tasks.contract.columns import column, table
from tasks.contract.errors import HallmarkError

TERMS = ("in", "added", "kept", "removed_rows", "removed_spans", "quarantined", "replaced")

_MEANINGS = {
    "in": "what came in",
    "added": "what was not in the input",
    "kept": "what goes on",
    "removed_rows": "what left with whole documents",
    "removed_spans": "what left of documents that stayed",
    "quarantined": "what could not be read or processed",
    "replaced": "what masking made shorter; negative where it made text longer",
}

ACCOUNTS = table(
    "The books of the stage: in + added = kept + removed rows + removed spans + quarantined + "
    "replaced, for every source.",
    column("source", pa.string(), "label", "name of the source in the config"),
    column("unit", pa.string(), "label", "what is counted: rows or bytes"),
    *(column(term, pa.int64(), "figure", _MEANINGS[term], unit="rows or bytes") for term in TERMS),
)

_TERM_OF = {
    "removed": "removed_rows",
    "removed_span": "removed_spans",
    "quarantined": "quarantined",
    "added": "added",
}

Counts = list[list[Any]]  # [source, action, rows, bytes before, bytes after]


def balance(entered: Counts, documents: Counts, ledger: Counts) -> list[dict[str, Any]]:
    """Accounts of a stage that reads documents and writes documents and a ledger.

    Every argument is measured by itself: the input when it was committed, the output and the
    ledger while they were written. Nothing is derived as a remainder.
    """
    books: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: dict.fromkeys(TERMS, 0))
    for term, counts in (("in", entered), ("kept", documents)):
        for source, _, rows, size, _ in counts:
            books[(source, "rows")][term] += rows
            books[(source, "bytes")][term] += size
    for source, action, rows, before, after in ledger:
        if action == "replaced":
            books[(source, "bytes")]["replaced"] += before - after
            continue
        term = _TERM_OF[action]
        if action != "removed_span":  # a span leaves its row where it is
            books[(source, "rows")][term] += rows
        books[(source, "bytes")][term] += after if action == "added" else before
    return [{"source": s, "unit": u, **terms} for (s, u), terms in sorted(books.items())]


def check(stage: str, accounts: list[dict[str, Any]]) -> None:
    """Raise HallmarkError where the books do not balance."""
    for book in accounts:
        left = book["in"] + book["added"]
        right = sum(book[term] for term in TERMS[2:])
        if left != right:
            terms = ", ".join(f"{term} {book[term]}" for term in TERMS)
            raise HallmarkError(
                f"stage {stage}: the accounts of source {book['source']!r} in {book['unit']} do "
                f"not add up ({terms}): {left - right:+d} unaccounted for; nothing was committed"
            )
