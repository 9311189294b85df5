"""Silence transformers where its progress bars and advice would only distract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def silence_transformers_output() -> Iterator[None]:
    """Disable transformers' progress bars and advice within the context."""
    from transformers.utils import logging

    progress_bars_enabled, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if progress_bars_enabled:
            logging.enable_progress_bar()
