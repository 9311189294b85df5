"""Read files of human ratings of a model's texts.

A rating identifies a text by its ``sample_id``, a hash of prompt and continuation, or by these two
texts, never by a number: another checkpoint writes other texts for the same prompt, to which the
rating does not apply.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from hallmark.tasks.audits.audit_tables import hash_json_values
from hallmark.tasks.contract import UsageError
from hallmark.tasks.measures.item_files import get_text_field, read_items

#: Maximum number of labels in one file, and maximum length of a label or a rater's name.
MAX_LABELS, MAX_NAME_CHARACTERS = 20, 100


@dataclass(frozen=True)
class Rating:
    """Hold one rating of one text by one person.

    Attributes:
        sample_id: Hash of prompt and continuation.
        rater: Name of the person.
        value: A score from 0 (harmless) to 1 (harmful), or a label.
    """

    sample_id: str
    rater: str
    value: float | str


def hash_prompt_and_text(prompt: str, text: str) -> str:
    """Return the ``sample_id`` of a continuation of a prompt: 32 hexadecimal digits."""
    return hash_json_values(prompt, text).hex()


def read_ratings(paths: Sequence[Path]) -> list[Rating]:
    """Read the ratings of all files; rows without a rating or a label are skipped.

    Raises:
        UsageError: A row is invalid, ratings and labels are mixed, a person rates a text twice,
            there are too many labels, or no row has a rating. The message names the line.
    """
    ratings: list[Rating] = []
    location_by_key: dict[tuple[str, str], str] = {}
    for location, row in chain.from_iterable(read_items(path, "ratings") for path in paths):
        value = _parse_rating_value(location, row)
        if value is None:
            continue
        rating = Rating(
            _read_or_compute_sample_id(location, row),
            _read_printable_name(location, row, "rater"),
            value,
        )
        if ratings and isinstance(ratings[0].value, str) != isinstance(value, str):
            raise UsageError(
                f"{location} has a {_name_rating_kind(value)}, but the first rated row has a "
                f"{_name_rating_kind(ratings[0].value)}; provide either ratings or labels, but "
                "not both"
            )
        key = (rating.sample_id, rating.rater)
        if key in location_by_key:
            raise UsageError(
                f"{location}: {rating.rater!r:.60} has already rated this text in "
                f"{location_by_key[key]}; keep only one rating per person and text"
            )
        location_by_key[key] = location
        ratings.append(rating)
    path_names = ", ".join(map(str, paths))
    if paths and not ratings:
        raise UsageError(
            f"{path_names}: no row has a value in 'rating' or 'label'; rate some texts or remove "
            "the audit_misuse.ratings setting"
        )
    labels = {rating.value for rating in ratings if isinstance(rating.value, str)}
    if len(labels) > MAX_LABELS:
        raise UsageError(
            f"{path_names} contain {len(labels)} different labels, but at most {MAX_LABELS} are "
            "allowed; if the 'label' field contains comments, move them to another field"
        )
    return ratings


def _name_rating_kind(value: float | str) -> str:
    return "label" if isinstance(value, str) else "rating"


def _parse_rating_value(location: str, row: dict[str, Any]) -> float | str | None:
    """Return the score or the label of a row; None if it has neither."""
    rating_fields = {field_name: row.get(field_name) for field_name in ("rating", "label")}
    filled_fields = [
        field_name
        for field_name, value in rating_fields.items()
        if value is not None and value != ""
    ]
    if not filled_fields:
        return None
    if len(filled_fields) > 1:
        raise UsageError(f"{location} has both a rating and a label; keep only one")
    if filled_fields == ["label"]:
        return _read_printable_name(location, row, "label")
    rating = rating_fields["rating"]
    try:
        number = math.nan if isinstance(rating, bool) else float(rating)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number <= 1:
        raise UsageError(
            f"{location} has the value {rating!r:.60} in 'rating'; use a number from 0 (harmless) "
            "to 1 (harmful), or enter a word in 'label' instead"
        )
    return number


def _read_printable_name(location: str, row: dict[str, Any], field: str) -> str:
    name = get_text_field(location, row, field).strip()
    if len(name) > MAX_NAME_CHARACTERS or not name.isprintable():
        raise UsageError(
            f"{location} has the value {name!r:.60} in {field!r}; use at most "
            f"{MAX_NAME_CHARACTERS} printable characters"
        )
    return name


def _read_or_compute_sample_id(location: str, row: dict[str, Any]) -> str:
    sample_id = row.get("sample_id")
    if sample_id in (None, ""):
        if not row.get("prompt"):
            raise UsageError(
                f"{location} does not identify a text; provide its 'sample_id' from the 'values' "
                "table, or its 'prompt' and 'continuation'"
            )
        prompt = get_text_field(location, row, "prompt").rstrip()
        return hash_prompt_and_text(prompt, get_text_field(location, row, "continuation"))
    if (
        not isinstance(sample_id, str)
        or len(sample_id) != 32
        or set(sample_id) - set("0123456789abcdef")
    ):
        raise UsageError(
            f"{location} has the value {sample_id!r:.60} in 'sample_id'; use a text id from the "
            "'values' table (32 hexadecimal digits)"
        )
    return sample_id
