"""Conservation: what enters a stage leaves it, or is accounted for.

    input + added = kept + removed_rows + removed_spans + quarantined + replaced

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

from hallmark.tasks.contract.columns import column, table_schema
from hallmark.tasks.contract.errors import HallmarkError

ACCOUNT_TERMS = (
    "input",
    "added",
    "kept",
    "removed_rows",
    "removed_spans",
    "quarantined",
    "replaced",
)

_TERM_MEANINGS = {
    "input": "what entered the stage",
    "added": "what the stage put in",
    "kept": "what it passed on",
    "removed_rows": "documents that left whole",
    "removed_spans": "parts of documents that left",
    "quarantined": "what could not be processed",
    "replaced": "what masking made shorter; negative where it made text longer",
}

_SOURCE_COLUMN = column("source", pa.string(), "label", "the source of the documents")

ACCOUNTS = table_schema(
    "The stage's accounts: input + added = kept + removed + quarantined + replaced.",
    _SOURCE_COLUMN,
    column("unit", pa.string(), "label", "rows, or bytes of text (raw bytes at ingest)"),
    *(
        column(term, pa.int64(), "figure", _TERM_MEANINGS[term], unit="rows or bytes")
        for term in ACCOUNT_TERMS
    ),
)

CHECKSUMS = table_schema(
    "The accounts by identity: sums of BLAKE2b(doc_id ‖ text) modulo 2^128, which balance too.",
    _SOURCE_COLUMN,
    *(
        column(term, pa.binary(16), "id", f"over {_TERM_MEANINGS[term].split(';')[0]}")
        for term in ACCOUNT_TERMS
    ),
)

_TERM_BY_ACTION = {
    "removed": "removed_rows",
    "removed_span": "removed_spans",
    "quarantined": "quarantined",
    "added": "added",
    "replaced": "replaced",
}

#: Ledger actions that leave a document with another text.
TEXT_CHANGING_ACTIONS = ("removed_span", "replaced")

#: [source, action, rows, bytes before, bytes after, sum of identities in hexadecimal]
SourceCounts = list[list[Any]]

CHECKSUM_MODULUS = 2**128


def merge_counts(part_counts: Iterable[SourceCounts]) -> SourceCounts:
    """The counts of several parts as those of one."""
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for counts in part_counts:
        for source, action, *amounts, hash_sum in counts:
            totals = sums[(source, action)]
            for index, amount in enumerate([*amounts, int(hash_sum, 16)]):
                totals[index] += amount
    return [[*key, *n[:3], f"{n[3] % CHECKSUM_MODULUS:032x}"] for key, n in sorted(sums.items())]


def compute_accounts(
    input_counts: SourceCounts, output_counts: SourceCounts, ledger_counts: SourceCounts
) -> list[dict[str, Any]]:
    """Accounts of a stage that reads documents and writes documents and a ledger, whose rows of
    further reasons (``additional_reason``) count nothing.

    Every argument is measured by itself: the input when it was committed, the output and the
    ledger while they were written. Nothing is derived as a remainder.
    """
    accounts: dict[tuple[str, str], dict[str, int]] = defaultdict(
        lambda: dict.fromkeys(ACCOUNT_TERMS, 0)
    )
    for term, counts in (("input", input_counts), ("kept", output_counts)):
        for source, action, rows, byte_count, *_ in counts:
            if action != "changed":
                accounts[(source, "rows")][term] += rows
                accounts[(source, "bytes")][term] += byte_count
    for source, action, rows, bytes_before, bytes_after, *_ in ledger_counts:
        if action == "additional_reason":
            continue
        if action == "replaced":
            accounts[(source, "bytes")]["replaced"] += bytes_before - bytes_after
            continue
        term = _TERM_BY_ACTION[action]
        if action != "removed_span":  # a span leaves its row where it is
            accounts[(source, "rows")][term] += rows
        accounts[(source, "bytes")][term] += bytes_after if action == "added" else bytes_before
    return [
        {"source": source_name, "unit": unit, **terms}
        for (source_name, unit), terms in sorted(accounts.items())
    ]


def compute_checksums(
    input_counts: SourceCounts, output_counts: SourceCounts, ledger_counts: SourceCounts
) -> list[dict[str, Any]]:
    """Rows of CHECKSUMS from the same counts."""
    sums_by_source: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(ACCOUNT_TERMS, 0))
    for term, counts in (("input", input_counts), ("kept", output_counts)):
        for source, action, *_, hash_sum in counts:
            if action == "document":
                sums_by_source[source][term] += int(hash_sum, 16)
            elif term == "kept":
                sums_by_source[source][term] -= int(hash_sum, 16)  # changed: not what entered
    for source, action, *_, hash_sum in ledger_counts:
        if action != "additional_reason":
            sums_by_source[source][_TERM_BY_ACTION[action]] += int(hash_sum, 16)
    return [
        {
            "source": source,
            **{t: (n % CHECKSUM_MODULUS).to_bytes(16, "big") for t, n in terms.items()},
        }
        for source, terms in sorted(sums_by_source.items())
    ]


def check_accounts_balance(stage: str, accounts: list[dict[str, Any]]) -> None:
    """Raise HallmarkError where the books do not balance."""
    for account in accounts:
        inflow = account["input"] + account["added"]
        outflow = sum(account[term] for term in ACCOUNT_TERMS[2:])
        if inflow != outflow:
            formatted_terms = ", ".join(f"{term} {account[term]}" for term in ACCOUNT_TERMS)
            raise HallmarkError(
                f"stage {stage}: the accounts of source {account['source']!r} in "
                f"{account['unit']} do "
                f"not add up ({formatted_terms}): {inflow - outflow:+d} unaccounted for; "
                f"nothing was committed"
            )


def check_checksums_balance(stage: str, checksums: list[dict[str, Any]]) -> None:
    """Raise HallmarkError where what left is not what entered, document by document."""
    for checksum_row in checksums:
        checksum_by_term = {
            term: int.from_bytes(checksum_row[term], "big") for term in ACCOUNT_TERMS
        }
        inflow = checksum_by_term["input"] + checksum_by_term["added"]
        if (inflow - sum(checksum_by_term[term] for term in ACCOUNT_TERMS[2:])) % CHECKSUM_MODULUS:
            raise HallmarkError(
                f"stage {stage}: the checksums of source {checksum_row['source']!r} do not "
                f"add up: its "
                f"documents are as many as they must be, but not the same with the same texts, and "
                f"no ledger row says why; this is a defect of the stage, nothing was committed"
            )
