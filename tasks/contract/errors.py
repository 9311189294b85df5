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
