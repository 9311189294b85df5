"""Order the runs of a store by numbers, which do not depend on the clock of any host.

A run that begins creates the empty object ``run-order/<number>-<run id>``. Its number is one more
than the largest in the store. So a run that begins after another one has begun has a larger number.
Two runs that begin at the same moment may get the same number; then their ids decide.
"""

from __future__ import annotations

import re

from hallmark.tasks.contract import Store

#: The keys below this prefix contain the numbers and ids of runs.
ORDER_PREFIX = "run-order"

_ORDER_KEY = re.compile(rf"{ORDER_PREFIX}/([0-9]{{1,12}})-(.+)")


def assign_run_number(store: Store, run_id: str) -> int:
    """Make a run the newest of its store, and return its number."""
    number = max(_read_run_numbers(store).values(), default=0) + 1
    store.put(f"{ORDER_PREFIX}/{number:08d}-{run_id}", b"")
    return number


def list_run_ids(store: Store) -> list[str]:
    """List the ids of all runs, oldest first.

    Runs without a number, such as those that were copied from another store, come first.
    """
    numbers = _read_run_numbers(store)
    return sorted(
        store.list_folder_names("runs"), key=lambda run_id: (numbers.get(run_id, 0), run_id)
    )


def _read_run_numbers(store: Store) -> dict[str, int]:
    """Read the numbers of runs by their ids; a run that was started again has its last number."""
    numbers: dict[str, int] = {}
    for key in store.list_keys(ORDER_PREFIX):
        if match := _ORDER_KEY.fullmatch(key):
            numbers[match[2]] = max(int(match[1]), numbers.get(match[2], 0))
    return numbers
