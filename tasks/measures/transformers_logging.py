"""Keeping other libraries quiet where our own words are enough."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def silence_transformers_output() -> Iterator[None]:
    """Keep transformers' own progress bar and advice off the terminal."""
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
