"""Compute and check a stage's accounts: everything that enters a stage leaves it or is recorded.

    input + added = kept + removed_rows + removed_spans + quarantined + replaced

This holds in rows and in UTF-8 bytes of text (raw bytes at ingest), for every source. ``replaced``
is the number of bytes by which redaction shortened the text (negative if the text became longer).

Checksums must balance in the same way. For each term, they sum BLAKE2b(doc_id ‖ text) over its
documents, modulo 2^128, from the texts as they were written. So they also detect two documents that
swap their texts, or one document that is duplicated while another is lost. A document whose text
changed has a ledger row; its original hash counts in ``replaced`` or ``removed_spans``, not in
``kept``.
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
    "input": "number or total size of documents received by the stage",
    "added": "number or total size of documents added by the stage",
    "kept": "number or total size of documents in the stage's output",
    "removed_rows": "number or total size of documents removed entirely",
    "removed_spans": (
        "total size of spans removed from documents, in bytes; 0 if the unit is rows"
    ),
    "quarantined": "number or total size of documents that could not be processed",
    "replaced": (
        "net decrease in text size caused by replacements inside documents, in bytes; negative if "
        "the text grew; 0 if the unit is rows"
    ),
}

_SOURCE_COLUMN = column("source", pa.string(), "label", "source name")

ACCOUNTS = table_schema(
    "Number and total size of documents received, added, kept, removed, quarantined or changed "
    "by the stage, per source. In each row, input + added = kept + removed + quarantined + "
    "replaced.",
    _SOURCE_COLUMN,
    column(
        "unit",
        pa.string(),
        "label",
        "unit of the values in this row: rows (documents) or bytes of text (for ingest, bytes of "
        "the raw files)",
    ),
    *(
        column(term, pa.int64(), "figure", _TERM_MEANINGS[term], unit="rows or bytes")
        for term in ACCOUNT_TERMS
    ),
)

CHECKSUMS = table_schema(
    "Checksums per source, computed as the sum of BLAKE2b(doc_id ‖ text) over the source's "
    "documents, modulo 2^128. The checksums satisfy the same equation as the counts in the "
    "`accounts` table.",
    _SOURCE_COLUMN,
    *(
        column(
            term,
            pa.binary(16),
            "id",
            f"checksum of the documents counted as {term} in the `accounts` table",
        )
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

#: Ledger actions that change a document's text and keep the document.
TEXT_CHANGING_ACTIONS = ("removed_span", "replaced")

#: Rows of [source, action, rows, bytes before, bytes after, sum of document hashes in hexadecimal].
SourceCounts = list[list[Any]]

CHECKSUM_MODULUS = 2**128


def merge_counts(part_counts: Iterable[SourceCounts]) -> SourceCounts:
    """Sum the counts of several parts by source and action."""
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for counts in part_counts:
        for source, action, *amounts, hash_sum in counts:
            totals = sums[(source, action)]
            for index, amount in enumerate([*amounts, int(hash_sum, 16)]):
                totals[index] += amount
    return [[*key, *n[:3], f"{n[3] % CHECKSUM_MODULUS:032x}"] for key, n in sorted(sums.items())]


def compute_account_rows(
    input_counts: SourceCounts, output_counts: SourceCounts, ledger_counts: SourceCounts
) -> list[dict[str, Any]]:
    """Compute the rows of ACCOUNTS for a stage that reads documents and writes a ledger.

    Each argument was counted independently; no term is derived as the remainder of the others.

    Args:
        input_counts: Counts of the input documents, taken when they were committed.
        output_counts: Counts of the output documents, taken while they were written.
        ledger_counts: Counts of the ledger, taken while it was written. Rows with the action
            ``additional_reason`` are ignored.
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
        if action != "removed_span":  # the document keeps its row
            accounts[(source, "rows")][term] += rows
        accounts[(source, "bytes")][term] += bytes_after if action == "added" else bytes_before
    return [
        {"source": source_name, "unit": unit, **terms}
        for (source_name, unit), terms in sorted(accounts.items())
    ]


def compute_checksum_rows(
    input_counts: SourceCounts, output_counts: SourceCounts, ledger_counts: SourceCounts
) -> list[dict[str, Any]]:
    """Compute the rows of CHECKSUMS from the arguments of ``compute_account_rows``."""
    sums_by_source: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(ACCOUNT_TERMS, 0))
    for term, counts in (("input", input_counts), ("kept", output_counts)):
        for source, action, *_, hash_sum in counts:
            if action == "document":
                sums_by_source[source][term] += int(hash_sum, 16)
            elif term == "kept":
                sums_by_source[source][term] -= int(hash_sum, 16)  # the text differs from the input
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


def check_accounts_balance(stage_label: str, account_rows: list[dict[str, Any]]) -> None:
    """Raise HallmarkError if the accounts of any source do not balance."""
    for account in account_rows:
        inflow = account["input"] + account["added"]
        outflow = sum(account[term] for term in ACCOUNT_TERMS[2:])
        if inflow != outflow:
            formatted_terms = ", ".join(f"{term} {account[term]}" for term in ACCOUNT_TERMS)
            raise HallmarkError(
                f"stage {stage_label}: the {account['unit']} for source {account['source']!r} do "
                f"not add up ({formatted_terms}; {inflow - outflow:+d} unaccounted for); nothing "
                "was committed; this is a bug in the stage, so please report it"
            )


def check_checksums_balance(stage_label: str, checksum_rows: list[dict[str, Any]]) -> None:
    """Raise HallmarkError if the checksums of any source do not balance."""
    for checksum_row in checksum_rows:
        checksum_by_term = {
            term: int.from_bytes(checksum_row[term], "big") for term in ACCOUNT_TERMS
        }
        inflow = checksum_by_term["input"] + checksum_by_term["added"]
        if (inflow - sum(checksum_by_term[term] for term in ACCOUNT_TERMS[2:])) % CHECKSUM_MODULUS:
            raise HallmarkError(
                f"stage {stage_label}: the checksums for source {checksum_row['source']!r} do not "
                "add up: the number of documents is correct, but some document ids or texts "
                "changed, although no ledger row records the change; nothing was committed; this "
                "is a bug in the stage, so please report it"
            )
