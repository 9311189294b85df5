"""Write counts with their nouns, for the messages, findings and pages of the project."""

from __future__ import annotations


def format_count(count: int, singular: str, plural: str = "") -> str:
    """Return a count with its noun, such as "1 row" or "1,234 rows"."""
    return f"{count:,} {singular if count == 1 else plural or f'{singular}s'}"


def format_all(count: int, singular: str) -> str:
    """Return a count of all with its noun, such as "the only row" or "all 1,234 rows"."""
    return f"the only {singular}" if count == 1 else f"all {format_count(count, singular)}"


def to_singular(unit: str) -> str:
    """Return the singular of a unit such as "rows", "copies" or "people named"."""
    noun, space, rest = unit.partition(" ")
    if noun == "people":
        noun = "person"
    elif noun.endswith("ies"):
        noun = f"{noun[:-3]}y"
    elif len(noun) > 1:  # "s" is the unit of time
        noun = noun.removesuffix("s")
    return f"{noun}{space}{rest}"
