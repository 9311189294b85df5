"""Keep reviews in a store: a statement and, next to it, its signature.

    <store>/reviews/<review id>.json        the statement; the id is the start of its SHA-256
    <store>/reviews/<review id>.json.sig    its signature, as written by ``ssh-keygen -Y sign``

A review is never overwritten. A reviewer who changes their mind signs another one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hallmark.reports.review.signatures import MAX_SIGNATURE_BYTES
from hallmark.reports.review.statements import (
    MAX_STATEMENT_BYTES,
    Review,
    StatementError,
    compute_review_id,
    parse_statement,
)
from hallmark.tasks.contract import HallmarkError, Store, map_store_reads

REVIEWS_FOLDER = "reviews"
SIGNATURE_SUFFIX = ".sig"

_STATEMENT_NAME_PATTERN = re.compile(r"([0-9a-f]{32})\.json")


@dataclass(frozen=True)
class StoredReview:
    """A review as it is stored, which may be damaged or forged."""

    id: str
    statement: bytes
    signature: bytes | None
    """None if the statement was stored, but not its signature."""

    @property
    def file_name(self) -> str:
        return f"{self.id}.json"


def write_review(store: Store, statement: bytes, signature: bytes) -> StoredReview:
    """Store a statement and its signature.

    Raises:
        StatementError: The statement is not valid.
        HallmarkError: The store has another signature of this statement, or is damaged.
    """
    parse_statement(statement)
    review = StoredReview(compute_review_id(statement), statement, signature)
    key = f"{REVIEWS_FOLDER}/{review.file_name}"
    for part_key, content in ((key, statement), (f"{key}{SIGNATURE_SUFFIX}", signature)):
        if not store.create_if_absent(part_key, content):
            raise HallmarkError(
                f"{store.uri}/{part_key} already exists with different content, and reviews are "
                "never overwritten; write and sign a new statement"
            )
    return review


def parse_stored_review(stored: StoredReview) -> Review | None:
    """Return the statement; None if it is invalid or was changed after it was stored."""
    if compute_review_id(stored.statement) != stored.id:
        return None
    try:
        return parse_statement(stored.statement)
    except StatementError:
        return None


def read_stored_review(
    review_id: str, size_by_key: Mapping[str, int], read_file: Callable[[str], bytes]
) -> StoredReview:
    """Read a review of a store or a release, whose files have the same names.

    A file that is longer than any review is not read, but counts as a damaged one, and so does a
    statement that is absent.

    Args:
        review_id: The id of the review.
        size_by_key: The sizes of the files of all reviews, by their path.
        read_file: Returns the content of a file.
    """

    def read_limited(key: str, max_bytes: int) -> bytes:
        return read_file(key) if size_by_key[key] <= max_bytes else b""

    key = f"{REVIEWS_FOLDER}/{review_id}.json"
    signature_key = f"{key}{SIGNATURE_SUFFIX}"
    return StoredReview(
        review_id,
        read_limited(key, MAX_STATEMENT_BYTES) if key in size_by_key else b"",
        read_limited(signature_key, MAX_SIGNATURE_BYTES) if signature_key in size_by_key else None,
    )


def read_reviews(store: Store) -> list[StoredReview]:
    """Read all reviews of a store, sorted by id; files with other names are ignored.

    A folder, link or pipe with the name of a statement counts as a damaged one: whoever put it
    there may have hidden a rejection.
    """
    size_by_key = store.list_object_sizes(REVIEWS_FOLDER)

    def read_review(review_id: str) -> StoredReview:
        return read_stored_review(review_id, size_by_key, lambda key: store.get(key) or b"")

    review_ids = [
        match[1]
        for name in store.list_entry_names(REVIEWS_FOLDER)
        if (match := _STATEMENT_NAME_PATTERN.fullmatch(name))
    ]
    return map_store_reads(store, read_review, review_ids)
