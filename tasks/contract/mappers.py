"""Run the items of a stage in local processes, and create the mapper that a config names.

``resources.py`` has the serial mapper, ``ray_mapper.py`` the one for a Ray cluster. All mappers
give the same results in the same order, so the choice does not affect any artifact.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from multiprocessing.connection import wait
from typing import Any

from hallmark.tasks.contract.ray_mapper import RayMapper
from hallmark.tasks.contract.resources import (
    WORKER_ENVIRONMENT,
    Mapper,
    Resources,
    Result,
    SerialMapper,
)

#: Workers are forked from a server process that has imported the common modules. Forking this
#: process could hang because of Prefect's threads, and importing the modules in each worker takes
#: two seconds. (pyarrow imports pandas as soon as it creates an array.)
FORK_CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED_MODULES = ["hallmark.tasks.contract", "pandas"]
FORK_CONTEXT.set_forkserver_preload(PRELOADED_MODULES)


class ProcessMapper:
    """Run items in ``worker_count`` local processes, which start on first use.

    The workers watch this process and exit when it ends, even if it is killed.
    """

    def __init__(self, worker_count: int) -> None:
        self.worker_count = worker_count
        self._pool: ProcessPoolExecutor | None = None
        # Once a worker died, even a single item runs in a worker: here, it could kill this process.
        self._worker_died = False

    def __call__(
        self,
        function: Callable[..., Result],
        argument_tuples: Sequence[tuple[Any, ...]],
        resources: Resources,
    ) -> Iterator[Result]:
        # A single item gains nothing from another process.
        if len(argument_tuples) <= 1 and not self._worker_died:
            yield from SerialMapper()(function, argument_tuples, resources)
            return
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self.worker_count,
                mp_context=FORK_CONTEXT,
                initializer=_initialize_worker,
                initargs=(WORKER_ENVIRONMENT | os.environ,),
            )
        futures: list[Future[Result]] = []
        try:
            # Only this process handles Ctrl-C: workers inherit the blocked signal from the start.
            previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                futures.extend(
                    self._pool.submit(function, *arguments) for arguments in argument_tuples
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
            for future in futures:
                yield future.result()
        except BrokenExecutor:  # a worker was killed; the next call starts new ones
            self._pool, self._worker_died = None, True
            # No future is cancelled here: the pool sets this error on all of them, which would fail
            # for cancelled ones.
            raise
        except BaseException:
            for future in futures:
                future.cancel()
            raise

    def __enter__(self) -> ProcessMapper:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if self._pool is None:
            return
        # After an interrupt, kill the workers: their present items could take minutes. (From Python
        # 3.14, the pool's kill_workers does this.)
        is_interrupted = error_type is not None and not issubclass(error_type, Exception)
        workers = list(self._pool._processes.values()) if is_interrupted else []
        manager: Any = self._pool._executor_manager_thread
        # Let the pool drop cancelled futures before the kill: it sets an error on all remaining
        # futures when a worker dies, which would fail for cancelled ones.
        self._pool.shutdown(wait=not is_interrupted, cancel_futures=True)
        for worker in workers:
            worker.kill()
        if is_interrupted and manager is not None:
            manager.join()
        self._pool = None


def _initialize_worker(environment: dict[str, str]) -> None:
    """Copy the parent's environment into a worker, and let the worker exit with the parent.

    The environment may have changed since the fork server started. The worker must watch the parent
    since it holds both ends of its queue and would never see an end of file.
    """
    os.environ.clear()
    os.environ.update(environment)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def exit_with_parent() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()


def make_mapper(kind: str, worker_count: int) -> Mapper:
    """Create the mapper that a config names.

    Args:
        kind: "processes" or "ray".
        worker_count: Number of workers on this machine.
    """
    if kind == "ray":
        return RayMapper(worker_count)
    return ProcessMapper(worker_count) if worker_count > 1 else SerialMapper()
