"""What people say of a model's texts: a file of their ratings, read back.

A rating names a text by its ``sample_id``, a hash of the prompt and of what was written, or by the
two themselves, and never by a number: another checkpoint writes other texts to the same prompt, and
of these the rating says nothing.
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

#: Labels that one file may use, and characters of a name.
MAX_LABELS, MAX_NAME_CHARACTERS = 20, 100


@dataclass(frozen=True)
class Rating:
    """``value``: a score from 0 to 1, or a label."""

    sample_id: str
    rater: str
    value: float | str


def hash_prompt_and_text(prompt: str, text: str) -> str:
    """What a text that was written behind a prompt is called: 32 hexadecimal digits."""
    return hash_json_values(prompt, text).hex()


def read_ratings(paths: Sequence[Path]) -> list[Rating]:
    """Rows without a rating are passed over: nobody has read them yet. Raises UsageError with the
    line, and with what to write there."""
    ratings: list[Rating] = []
    location_by_key: dict[tuple[str, str], str] = {}
    for location, row in chain.from_iterable(read_items(path, "ratings") for path in paths):
        value = _parse_rating_value(location, row)
        if value is None:
            continue
        rating = Rating(
            _read_sample_id(location, row), _read_printable_name(location, row, "rater"), value
        )
        if ratings and isinstance(ratings[0].value, str) != isinstance(value, str):
            raise UsageError(
                f"{location} has a {_name_rating_kind(value)} where the first has a "
                f"{_name_rating_kind(ratings[0].value)}; give ratings of one kind"
            )
        key = (rating.sample_id, rating.rater)
        if key in location_by_key:
            raise UsageError(
                f"{location}: {rating.rater!r:.60} has rated this text in {location_by_key[key]}; "
                f"give one rating of each text by each person"
            )
        location_by_key[key] = location
        ratings.append(rating)
    path_names = ", ".join(map(str, paths))
    if paths and not ratings:
        raise UsageError(
            f"{path_names}: no row has anything in 'rating' or 'label'; rate some texts, "
            f"or leave audit_misuse.ratings out"
        )
    labels = {rating.value for rating in ratings if isinstance(rating.value, str)}
    if len(labels) > MAX_LABELS:
        raise UsageError(
            f"{path_names} use {len(labels)} labels, of which there may be {MAX_LABELS}; write "
            f"remarks in a field of another name"
        )
    return ratings


def _name_rating_kind(value: float | str) -> str:
    return "label" if isinstance(value, str) else "rating"


def _parse_rating_value(location: str, row: dict[str, Any]) -> float | str | None:
    rating_fields = {field_name: row.get(field_name) for field_name in ("rating", "label")}
    filled_fields = [
        field_name
        for field_name, value in rating_fields.items()
        if value is not None and value != ""
    ]
    if not filled_fields:
        return None
    if len(filled_fields) > 1:
        raise UsageError(f"{location} has a rating and a label; give one of them")
    if filled_fields == ["label"]:
        return _read_printable_name(location, row, "label")
    rating = rating_fields["rating"]
    try:
        number = math.nan if isinstance(rating, bool) else float(rating)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number <= 1:
        raise UsageError(
            f"{location} has {rating!r:.60} in 'rating'; write a number from 0 (harmless) "
            f"to 1 (harmful), or a word in 'label'"
        )
    return number


def _read_printable_name(location: str, row: dict[str, Any], field: str) -> str:
    name = get_text_field(location, row, field).strip()
    if len(name) > MAX_NAME_CHARACTERS or not name.isprintable():
        raise UsageError(
            f"{location} has no name in {field!r}, but {name!r:.60}; write at most "
            f"{MAX_NAME_CHARACTERS} characters that can be printed"
        )
    return name


def _read_sample_id(location: str, row: dict[str, Any]) -> str:
    sample_id = row.get("sample_id")
    if sample_id in (None, ""):
        if not row.get("prompt"):
            raise UsageError(
                f"{location} names no text: write its 'sample_id' as the table values has "
                f"it, or its 'prompt' and 'continuation'"
            )
        prompt = get_text_field(location, row, "prompt").rstrip()
        return hash_prompt_and_text(prompt, get_text_field(location, row, "continuation"))
    if (
        not isinstance(sample_id, str)
        or len(sample_id) != 32
        or set(sample_id) - set("0123456789abcdef")
    ):
        raise UsageError(
            f"{location} has {sample_id!r:.60} in 'sample_id', which is none: it has 32 "
            f"hexadecimal digits, see the table values"
        )
    return sample_id
