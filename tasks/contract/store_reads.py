"""Read many objects of a store, from object storage at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from hallmark.tasks.contract.store import Store

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Number of items that are read at the same time from object storage. Reading local files is mostly
#: work of the interpreter, which several threads would only slow down.
PARALLEL_READERS = 32


def map_store_reads(
    store: Store, function: Callable[[Item], Result], items: Iterable[Item]
) -> list[Result]:
    """Call a function that reads from a store for each item; from object storage in parallel."""
    if store.root_folder is not None:
        return [*map(function, items)]
    with ThreadPoolExecutor(PARALLEL_READERS, thread_name_prefix="store reader") as pool:
        return [*pool.map(function, items)]
