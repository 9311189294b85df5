"""The accounts as arithmetic: small books by hand."""

import pytest

from hallmark.tasks.contract import HallmarkError
from hallmark.tasks.contract.accounts import (
    ACCOUNT_TERMS,
    check_accounts_balance,
    check_checksums_balance,
    compute_account_rows,
    compute_checksum_rows,
    merge_counts,
)

WHOLE = 2**128


def hexed(number):
    return f"{number % WHOLE:032x}"


#: A document of 10 bytes stays, one of 7 leaves whole for two reasons, one loses 4 of its 9 bytes,
#: one grows from 3 to 5, one of 6 goes to quarantine, one of 8 is put in.
ENTERED = [["s", "document", 5, 35, 35, hexed(1 + 20 + 300 + 4_000 + 50_000)]]
DOCUMENTS = [
    ["s", "changed", 0, 0, 0, hexed(700 + 8_000)],
    ["s", "document", 4, 10 + 5 + 5 + 8, 10 + 5 + 5 + 8, hexed(1 + 700 + 8_000 + 600_000)],
]
LEDGER = [
    ["s", "added", 1, 0, 8, hexed(600_000)],
    ["s", "additional_reason", 1, 7, 0, hexed(0)],
    ["s", "quarantined", 1, 6, 0, hexed(50_000)],
    ["s", "removed", 1, 7, 0, hexed(20)],
    ["s", "removed_span", 1, 4, 0, hexed(300)],
    ["s", "replaced", 1, 3, 5, hexed(4_000)],
]


def test_a_book_by_hand():
    size, rows = compute_account_rows(ENTERED, DOCUMENTS, LEDGER)
    assert size == {
        "source": "s",
        "unit": "bytes",
        "input": 35,
        "added": 8,
        "kept": 28,
        "removed_rows": 7,
        "removed_spans": 4,
        "quarantined": 6,
        "replaced": -2,
    }
    assert rows == {
        "source": "s",
        "unit": "rows",
        "input": 5,
        "added": 1,
        "kept": 4,
        "removed_rows": 1,
        "removed_spans": 0,
        "quarantined": 1,
        "replaced": 0,
    }
    check_accounts_balance("x", [size, rows])
    for term in ACCOUNT_TERMS:
        with pytest.raises(HallmarkError, match=r"bytes for source 's' do not add up .*[+-]1 un"):
            check_accounts_balance("x", [rows, size | {term: size[term] + 1}])


def test_the_checksums_of_the_same_documents_by_hand():
    [book] = compute_checksum_rows(ENTERED, DOCUMENTS, LEDGER)
    found = {term: int.from_bytes(book[term], "big") for term in ACCOUNT_TERMS}
    assert found == {
        "input": 54_321,
        "added": 600_000,
        "kept": 600_001,
        "removed_rows": 20,
        "removed_spans": 300,
        "quarantined": 50_000,
        "replaced": 4_000,
    }
    check_checksums_balance("x", [book])
    for term in ACCOUNT_TERMS:
        with pytest.raises(HallmarkError, match="the checksums for source 's' do not add up"):
            check_checksums_balance("x", [book | {term: (found[term] + 1).to_bytes(16, "big")}])


def test_what_was_changed_before_this_stage_enters_as_it_is():
    """An input's own note of what its stage changed is none of this one's."""
    entered = [*ENTERED, ["s", "changed", 0, 0, 0, hexed(77)]]
    assert compute_checksum_rows(entered, DOCUMENTS, LEDGER) == compute_checksum_rows(
        ENTERED, DOCUMENTS, LEDGER
    )
    assert compute_account_rows(entered, DOCUMENTS, LEDGER) == compute_account_rows(
        ENTERED, DOCUMENTS, LEDGER
    )


def test_sums_go_round_at_two_to_the_128():
    large = WHOLE - 1
    entered = merge_counts(
        [[["s", "document", 1, 2, 2, hexed(large)]], [["s", "document", 1, 3, 4, hexed(5)]]]
    )
    assert entered == [["s", "document", 2, 5, 6, hexed(4)]]
    [book] = compute_checksum_rows(
        entered, [["s", "document", 1, 2, 2, hexed(large)]], [["s", "removed", 1, 3, 0, hexed(5)]]
    )
    assert (book["input"], book["kept"]) == ((4).to_bytes(16, "big"), large.to_bytes(16, "big"))
    check_checksums_balance("x", [book])


def test_parts_are_merged_by_source_and_action_in_order():
    parts = [
        [["b", "document", 1, 10, 10, hexed(1)], ["b", "changed", 0, 0, 0, hexed(9)]],
        [["a", "document", 2, 20, 20, hexed(2)], ["b", "document", 3, 30, 31, hexed(4)]],
    ]
    assert merge_counts(parts) == [
        ["a", "document", 2, 20, 20, hexed(2)],
        ["b", "changed", 0, 0, 0, hexed(9)],
        ["b", "document", 4, 40, 41, hexed(5)],
    ]
    assert merge_counts([]) == []


def test_each_source_has_books_of_its_own():
    entered = [["a", "document", 1, 2, 2, hexed(1)], ["b", "document", 1, 5, 5, hexed(2)]]
    kept = [["a", "document", 1, 2, 2, hexed(1)]]
    gone = [["b", "removed", 1, 5, 0, hexed(2)]]
    books = compute_account_rows(entered, kept, gone)
    assert [(b["source"], b["unit"], b["kept"], b["removed_rows"]) for b in books] == [
        ("a", "bytes", 2, 0),
        ("a", "rows", 1, 0),
        ("b", "bytes", 0, 5),
        ("b", "rows", 0, 1),
    ]
    assert [book["source"] for book in compute_checksum_rows(entered, kept, gone)] == ["a", "b"]
    gone[0][0] = "a"  # as much as is missing, but of the other source
    with pytest.raises(HallmarkError, match="bytes for source 'a'"):
        check_accounts_balance("x", compute_account_rows(entered, kept, gone))
