"""Conservation: what enters a stage leaves it, or is accounted for.

    in + added = kept + removed_rows + removed_spans + quarantined + replaced

in rows and in UTF-8 bytes of text (raw bytes at ingest), for every source. ``replaced`` is
what masking made shorter (negative where it made text longer).

Beside them stand checksums: for each term the sum of BLAKE2b(doc_id ‖ text) over its documents,
modulo 2^128, from the texts as they were written. So what balances is the same documents with the
same texts: two that swap their texts do not, nor one that is doubled where another is lost. A
document whose text was changed, which a ledger row says, counts as it entered, in ``replaced`` or
``removed_spans``, and not in ``kept``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from tasks.contract.columns import column, table
from tasks.contract.errors import HallmarkError

TERMS = ("in", "added", "kept", "removed_rows", "removed_spans", "quarantined", "replaced")

_MEANINGS = {
    "in": "what entered the stage",
    "added": "what the stage put in",
    "kept": "what it passed on",
    "removed_rows": "documents that left whole",
    "removed_spans": "parts of documents that left",
    "quarantined": "what could not be processed",
    "replaced": "what masking made shorter; negative where it made text longer",
}

_SOURCE = column("source", pa.string(), "label", "the source of the documents")

ACCOUNTS = table(
    "The stage's accounts: in + added = kept + removed + quarantined + replaced.",
    _SOURCE,
    column("unit", pa.string(), "label", "rows, or bytes of text (raw bytes at ingest)"),
    *(column(term, pa.int64(), "figure", _MEANINGS[term], unit="rows or bytes") for term in TERMS),
)

CHECKSUMS = table(
    "The accounts by identity: sums of BLAKE2b(doc_id ‖ text) modulo 2^128, which balance too.",
    _SOURCE,
    *(column(term, pa.binary(16), "id", f"over {_MEANINGS[term].split(';')[0]}") for term in TERMS),
)

_TERM_OF = {
    "removed": "removed_rows",
    "removed_span": "removed_spans",
    "quarantined": "quarantined",
    "added": "added",
    "replaced": "replaced",
}

#: Ledger actions that leave a document with another text.
CHANGED = ("removed_span", "replaced")

#: [source, action, rows, bytes before, bytes after, sum of identities in hexadecimal]
Counts = list[list[Any]]

WHOLE = 2**128


def merged(counts: Iterable[Counts]) -> Counts:
    """The counts of several parts as those of one."""
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for rows in counts:
        for source, action, *numbers, identity in rows:
            total = sums[(source, action)]
            for place, number in enumerate([*numbers, int(identity, 16)]):
                total[place] += number
    return [[*key, *n[:3], f"{n[3] % WHOLE:032x}"] for key, n in sorted(sums.items())]


def balance(entered: Counts, documents: Counts, ledger: Counts) -> list[dict[str, Any]]:
    """Accounts of a stage that reads documents and writes documents and a ledger, whose rows of
    further reasons (``also``) count nothing.

    Every argument is measured by itself: the input when it was committed, the output and the
    ledger while they were written. Nothing is derived as a remainder.
    """
    books: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: dict.fromkeys(TERMS, 0))
    for term, counts in (("in", entered), ("kept", documents)):
        for source, action, rows, size, *_ in counts:
            if action != "changed":
                books[(source, "rows")][term] += rows
                books[(source, "bytes")][term] += size
    for source, action, rows, before, after, *_ in ledger:
        if action == "also":
            continue
        if action == "replaced":
            books[(source, "bytes")]["replaced"] += before - after
            continue
        term = _TERM_OF[action]
        if action != "removed_span":  # a span leaves its row where it is
            books[(source, "rows")][term] += rows
        books[(source, "bytes")][term] += after if action == "added" else before
    return [{"source": s, "unit": u, **terms} for (s, u), terms in sorted(books.items())]


def checksums(entered: Counts, documents: Counts, ledger: Counts) -> list[dict[str, Any]]:
    """Rows of CHECKSUMS from the same counts."""
    books: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(TERMS, 0))
    for term, counts in (("in", entered), ("kept", documents)):
        for source, action, *_, identity in counts:
            if action == "document":
                books[source][term] += int(identity, 16)
            elif term == "kept":
                books[source][term] -= int(identity, 16)  # changed: not what entered
    for source, action, *_, identity in ledger:
        if action != "also":
            books[source][_TERM_OF[action]] += int(identity, 16)
    return [
        {"source": source, **{t: (n % WHOLE).to_bytes(16, "big") for t, n in terms.items()}}
        for source, terms in sorted(books.items())
    ]


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


def check_sums(stage: str, sums: list[dict[str, Any]]) -> None:
    """Raise HallmarkError where what left is not what entered, document by document."""
    for book in sums:
        number = {term: int.from_bytes(book[term], "big") for term in TERMS}
        left = number["in"] + number["added"]
        if (left - sum(number[term] for term in TERMS[2:])) % WHOLE:
            raise HallmarkError(
                f"stage {stage}: the checksums of source {book['source']!r} do not add up: its "
                f"documents are as many as they must be, but not the same with the same texts, and "
                f"no ledger row says why; this is a defect of the stage, nothing was committed"
            )
