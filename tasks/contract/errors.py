"""Errors a person reads: one sentence that says what, where and what to do."""


class HallmarkError(Exception):
    """Something went wrong that the message explains; the command line exits with 1."""

    exit_code = 1


class FileChangedError(HallmarkError):
    """A file outside the store changed while a stage read it; what the stage made is not kept."""


class PolicyViolationError(HallmarkError):
    """What was found breaks the policy; the command line exits with 3."""

    exit_code = 3


class UsageError(HallmarkError):
    """The command or its config is wrong; the command line exits with 2."""

    exit_code = 2
