"""Order the runs of a store by numbers, which do not depend on the clock of any host.

A run that begins creates the empty object ``run-order/<number>-<run id>`` as soon as it has written
its run.json. Its number is one more than the largest in the store. So a run that begins after
another one has begun has a larger number. Two runs that begin at the same moment may get the same
number; then their ids decide. A run that was copied from another store has the number 0.
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
    _put_run_number(store, run_id, number)
    return number


def assign_number_of_copied_run(store: Store, run_id: str) -> None:
    """Make a copied run one of the oldest of its store, unless it has a number there."""
    _put_run_number(store, run_id, 0)


def list_run_ids(store: Store) -> list[str]:
    """List the ids of all runs, oldest first.

    A folder without a number is a run if it has a run.json: another program may have copied it. If
    it has none, its run has not begun yet, or was killed before that. Runs without a number come
    first.
    """
    numbers = _read_run_numbers(store)
    run_ids = [
        run_id
        for run_id in store.list_folder_names("runs")
        if run_id in numbers or f"runs/{run_id}/run.json" in store.list_keys(f"runs/{run_id}")
    ]
    return sorted(run_ids, key=lambda run_id: (numbers.get(run_id, 0), run_id))


def _put_run_number(store: Store, run_id: str, number: int) -> None:
    store.put(f"{ORDER_PREFIX}/{number:08d}-{run_id}", b"")


def _read_run_numbers(store: Store) -> dict[str, int]:
    """Read the numbers of runs by their ids; a run that was started again has its last number."""
    numbers: dict[str, int] = {}
    for key in store.list_keys(ORDER_PREFIX):
        if match := _ORDER_KEY.fullmatch(key):
            numbers[match[2]] = max(int(match[1]), numbers.get(match[2], 0))
    return numbers
