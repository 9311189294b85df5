"""What people say of a model's texts: a file of their ratings, read back.

A rating names a text by its ``sample``, a hash of the prompt and of what was written, or by the two
themselves, and never by a number: another checkpoint writes other texts to the same prompt, and of
these the rating says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from tasks.audits.exchange import hash_of
from tasks.contract import UsageError
from tasks.measures.items import read_items, text_field

#: Labels that one file may use, and characters of a name.
LABELS, LONGEST = 20, 100


@dataclass(frozen=True)
class Rating:
    """``value``: a score from 0 to 1, or a label."""

    sample: str
    rater: str
    value: float | str


def sample_of(prompt: str, text: str) -> str:
    """What a text that was written behind a prompt is called: 32 hexadecimal digits."""
    return hash_of(prompt, text).hex()


def read_ratings(paths: Sequence[Path]) -> list[Rating]:
    """Rows without a rating are passed over: nobody has read them yet. Raises UsageError with the
    line, and with what to write there."""
    found: list[Rating] = []
    seen: dict[tuple[str, str], str] = {}
    for place, row in chain.from_iterable(read_items(path, "ratings") for path in paths):
        value = _value(place, row)
        if value is None:
            continue
        rating = Rating(_sample(place, row), _name(place, row, "rater"), value)
        if found and isinstance(found[0].value, str) != isinstance(value, str):
            raise UsageError(f"{place} has a {_kind(value)} where the first has a "
                             f"{_kind(found[0].value)}; give ratings of one kind")  # fmt: skip
        key = (rating.sample, rating.rater)
        if key in seen:
            raise UsageError(f"{place}: {rating.rater!r:.60} has rated this text in {seen[key]}; "
                             f"give one rating of each text by each person")  # fmt: skip
        seen[key] = place
        found.append(rating)
    names = ", ".join(map(str, paths))
    if paths and not found:
        raise UsageError(f"{names}: no row has anything in 'rating' or 'label'; rate some texts, "
                         f"or leave audit_misuse.ratings out")  # fmt: skip
    labels = {rating.value for rating in found if isinstance(rating.value, str)}
    if len(labels) > LABELS:
        raise UsageError(f"{names} use {len(labels)} labels, of which there may be {LABELS}; write "
                         f"remarks in a field of another name")  # fmt: skip
    return found


def _kind(value: float | str) -> str:
    return "label" if isinstance(value, str) else "rating"


def _value(place: str, row: dict[str, Any]) -> float | str | None:
    given = {name: row.get(name) for name in ("rating", "label")}
    some = [name for name, value in given.items() if value is not None and value != ""]
    if not some:
        return None
    if len(some) > 1:
        raise UsageError(f"{place} has a rating and a label; give one of them")
    if some == ["label"]:
        return _name(place, row, "label")
    said = given["rating"]
    try:
        number = math.nan if isinstance(said, bool) else float(said)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number <= 1:
        raise UsageError(f"{place} has {said!r:.60} in 'rating'; write a number from 0 (harmless) "
                         f"to 1 (harmful), or a word in 'label'")  # fmt: skip
    return number


def _name(place: str, row: dict[str, Any], field: str) -> str:
    name = text_field(place, row, field).strip()
    if len(name) > LONGEST or not name.isprintable():
        raise UsageError(f"{place} has no name in {field!r}, but {name!r:.60}; write at most "
                         f"{LONGEST} characters that can be printed")  # fmt: skip
    return name


def _sample(place: str, row: dict[str, Any]) -> str:
    named = row.get("sample")
    if named in (None, ""):
        if not row.get("prompt"):
            raise UsageError(f"{place} names no text: write its 'sample' as the table values has "
                             f"it, or its 'prompt' and 'continuation'")  # fmt: skip
        prompt = text_field(place, row, "prompt").rstrip()
        return sample_of(prompt, text_field(place, row, "continuation"))
    if not isinstance(named, str) or len(named) != 32 or set(named) - set("0123456789abcdef"):
        raise UsageError(f"{place} has {named!r:.60} in 'sample', which is none: it has 32 "
                         f"hexadecimal digits, see the table values")  # fmt: skip
    return named
