"""Print Prefect's warnings on the terminal as one line each, without those that repeat an error.

Commands print each error themselves, as one sentence, and ``hallmark serve`` prints how each run
ended. Prefect also logs it, with a traceback. All other warnings and errors of Prefect stay
visible: a lost connection to the server, or a cancellation that does not work. Prefect's server
receives all messages, also those that are not printed.
"""

from __future__ import annotations

import logging
import time

from hallmark.flows.json_logging import JsonLogHandler, install_json_log, is_json_log
from hallmark.tasks.contract import PolicyViolationError

#: Beginnings of the messages about a failed or interrupted flow or task, by logger.
REPEATED_MESSAGES = {
    "prefect.flow_runs": (
        "Encountered exception during execution",
        "Finished in state",
        "Crash detected!",
    ),
    "prefect.task_runs": (
        "Task run failed with exception",
        "Finished in state",
        "Crash detected!",
    ),
    # Hallmark itself says that a run waits for a slot, or that no slot can be acquired.
    "prefect._internal.concurrency": (
        "Service 'ConcurrencySlotAcquisitionWithLeaseService' failed to process item",
    ),
}

#: Beginning of the message about the error that ended a flow. It is the only one about a request
#: that is refused before the run starts, but repeats the outcome of a run with a failed policy.
ENGINE_MESSAGE = "Engine execution exited with unexpected exception"

#: Seconds within which a message is printed once.
REPETITION_SECONDS = 60.0

#: Characters at the beginning of a message, before its arguments are filled in, that identify it.
IDENTIFYING_CHARACTERS = 50

#: Characters of a message that are printed; Prefect adds whole events to some.
MAX_CHARACTERS = 400


class RepeatedMessageFilter(logging.Filter):
    """Drop messages that repeat what Hallmark prints, and the same message within a minute.

    Prefect repeats its message about a lost connection for every event that it cannot send.

    Args:
        with_hallmark: Whether to keep the messages of Hallmark's own logger.
    """

    def __init__(self, *, with_hallmark: bool) -> None:
        super().__init__()
        self.with_hallmark = with_hallmark
        self.print_times: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.partition(".")[0] == "hallmark":
            return self.with_hallmark
        if any(
            record.name.startswith(logger) and record.getMessage().startswith(beginnings)
            for logger, beginnings in REPEATED_MESSAGES.items()
        ):
            return False
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, PolicyViolationError) and str(record.msg).startswith(ENGINE_MESSAGE):
            return False
        message = (record.name, str(record.msg)[:IDENTIFYING_CHARACTERS])
        now = time.monotonic()
        if now - self.print_times.get(message, -REPETITION_SECONDS) < REPETITION_SECONDS:
            return False
        self.print_times[message] = now
        return True


class OneLineFormatter(logging.Formatter):
    """Format a message as one line, with the message of an error instead of its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        from hallmark.reports.page.redaction import escape_invisible

        text = " ".join(record.getMessage().split())[:MAX_CHARACTERS]
        if record.exc_info and (error := record.exc_info[1]):
            text += f" ({type(error).__name__}: {' '.join(str(error).split())[:MAX_CHARACTERS]})"
        return escape_invisible(f"{record.name.partition('.')[0]}: {text}")


def print_prefect_warnings_as_lines(*, with_hallmark: bool = False) -> None:
    """Attach the filter and the formatter to the handlers that Prefect attached when imported.

    Args:
        with_hallmark: Whether they also print the messages of Hallmark's own logger, because this
            process has no ``main`` that prints them.
    """
    for logger in (logging.getLogger(), logging.getLogger("prefect._internal")):
        for handler in [*logger.handlers]:
            if type(handler).__module__ == "prefect.logging.handlers":
                if is_json_log():
                    logger.removeHandler(handler)
                    handler = JsonLogHandler(install_json_log(), handler.level)
                    logger.addHandler(handler)
                handler.setFormatter(OneLineFormatter())
                handler.filters = [RepeatedMessageFilter(with_hallmark=with_hallmark)]
