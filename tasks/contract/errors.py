"""Define the errors whose messages are shown to the user.

Each message says what happened, where, and what to do next. The command line prints the message and
exits with the error's ``exit_code``.
"""

from collections.abc import Iterable
from difflib import get_close_matches

#: Number of fields of a table that an error lists, and of characters of each.
MAX_LISTED_FIELDS, MAX_FIELD_CHARACTERS = 20, 60


class HallmarkError(Exception):
    """An error that its message explains completely; the command line exits with 1."""

    exit_code = 1


class FileChangedError(HallmarkError):
    """A file outside the store changed while a stage read it; the stage's output is discarded."""


class TemporaryError(HallmarkError):
    """An error that may disappear without a change, such as a store that does not answer."""


class PolicyViolationError(HallmarkError):
    """The findings violate the policy; the command line exits with 3."""

    exit_code = 3


class UsageError(HallmarkError):
    """The command or its config is wrong; the command line exits with 2."""

    exit_code = 2


def get_first_error_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its type."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def get_short_error_line(error: BaseException) -> str:
    """Return ``get_first_error_line``, cut to at most 200 characters."""
    line = get_first_error_line(error)
    return line if len(line) <= 200 else f"{line[:197]}..."


def format_closest_name_hint(unknown_name: str, known_names: Iterable[str]) -> str:
    """Return a hint with the most similar known name, or "" if none is similar."""
    matches = get_close_matches(unknown_name, [*known_names], n=1)
    return f" (did you mean {matches[0]:.{MAX_FIELD_CHARACTERS}}?)" if matches else ""


def format_existing_fields_suffix(
    missing_field: str, existing_fields: Iterable[str], noun: str
) -> str:
    """Describe which fields a table or record has, for an error about one that is missing.

    Args:
        missing_field: The missing field.
        existing_fields: The fields that exist.
        noun: What the fields are called: columns or fields.

    Returns:
        The continuation of a sentence, such as "; its columns are 'body', 'id' (did you mean id?)".
    """
    names = [*existing_fields]
    listed = ", ".join(repr(name)[:MAX_FIELD_CHARACTERS] for name in names[:MAX_LISTED_FIELDS])
    hint = "" if missing_field in names else format_closest_name_hint(missing_field, names)
    return f"; its {noun} are {listed or 'none'}{hint}"
