"""Define the errors whose messages are shown to the user.

Each message says what happened, where, and what to do next. The command line prints the message and
exits with the error's ``exit_code``.
"""


class HallmarkError(Exception):
    """An error that its message explains completely; the command line exits with 1."""

    exit_code = 1


class FileChangedError(HallmarkError):
    """A file outside the store changed while a stage read it; the stage's output is discarded."""


class PolicyViolationError(HallmarkError):
    """The findings violate the policy; the command line exits with 3."""

    exit_code = 3


class UsageError(HallmarkError):
    """The command or its config is wrong; the command line exits with 2."""

    exit_code = 2


def summarize_error(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its type."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def shorten_error(error: BaseException) -> str:
    """Return ``summarize_error``, cut to at most 200 characters."""
    line = summarize_error(error)
    return line if len(line) <= 200 else f"{line[:197]}..."
