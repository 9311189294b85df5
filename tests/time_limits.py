"""Fail a test that hangs, such as one that waits for the writer of a named pipe."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TimeLimitError(Exception):
    """The work took longer than its time limit."""


@contextmanager
def limit_time(seconds: float = 5.0) -> Iterator[None]:
    """Raise TimeLimitError in the main thread if the work takes longer."""

    def stop(signal_number: int, frame: FrameType | None) -> None:
        raise TimeLimitError(f"not done after {seconds} s")

    previous_handler = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous_handler)
