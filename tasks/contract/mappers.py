"""Run the partitions of a stage in processes of this machine.

``resources.py`` has the mapper that runs them one after the other, ``ray_mapper.py`` the one for a
Ray cluster. All give the same results in the same order, so the choice decides no artifact.
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
from hallmark.tasks.contract.resources import Mapper, Resources, Result, SerialMapper

#: Workers are forks of a process that does nothing but that, and has imported what all need: to
#: fork a process that runs Prefect's threads hangs, and to import it all takes two seconds each
#: time. (pandas is what pyarrow imports as soon as it makes an array.)
FORK_CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED_MODULES = ["hallmark.tasks.contract", "pandas"]
FORK_CONTEXT.set_forkserver_preload(PRELOADED_MODULES)


class ProcessMapper:
    """Works on them in ``workers`` local processes, started when first needed.

    They end with this process, however it ends: each watches its parent.
    """

    def __init__(self, worker_count: int) -> None:
        self.worker_count = worker_count
        self._pool: ProcessPoolExecutor | None = None
        self._worker_died = (
            False  # a worker, of something that would have ended this process as well
        )

    def __call__(
        self,
        function: Callable[..., Result],
        argument_tuples: Sequence[tuple[Any, ...]],
        resources: Resources,
    ) -> Iterator[Result]:
        if (
            len(argument_tuples) <= 1 and not self._worker_died
        ):  # one item gains nothing from another process
            yield from SerialMapper()(function, argument_tuples, resources)
            return
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self.worker_count,
                mp_context=FORK_CONTEXT,
                initializer=_initialize_worker,
                initargs=(dict(os.environ),),
            )
        futures: list[Future[Result]] = []
        try:
            # Ctrl-C is for this process alone: workers are born with it blocked, also while they
            # start.
            previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                futures.extend(
                    self._pool.submit(function, *arguments) for arguments in argument_tuples
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
            for future in futures:
                yield future.result()
        except BrokenExecutor:  # a worker was killed, now or since: the next call starts new ones
            self._pool, self._worker_died = None, True
            raise  # the pool tells it to all that wait, and chokes on what is cancelled meanwhile
        except BaseException:
            for future in futures:
                future.cancel()
            raise

    def __enter__(self) -> ProcessMapper:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if self._pool is None:
            return
        # Who stops waits for nobody: what is worked on may take minutes, and can be killed. (From
        # Python 3.14 the pool's kill_workers does it.)
        is_interrupted = error_type is not None and not issubclass(error_type, Exception)
        workers = list(self._pool._processes.values()) if is_interrupted else []
        manager: Any = self._pool._executor_manager_thread
        # First of all it drops what was cancelled: it tells all that it has of a worker that is
        # killed, and chokes on what cannot be told any more.
        self._pool.shutdown(wait=not is_interrupted, cancel_futures=True)
        for worker in workers:
            worker.kill()
        if is_interrupted and manager is not None:
            manager.join()
        self._pool = None


def _initialize_worker(environment: dict[str, str]) -> None:
    """In a worker: take over the parent's environment, which may have changed since the process
    that it is a fork of was started, and watch the parent: a pool's workers hold both ends of their
    queue and see no end of file."""
    os.environ.clear()
    os.environ.update(environment)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def exit_with_parent() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()


def make_mapper(kind: str, worker_count: int) -> Mapper:
    """The mapper that a config names: "processes" or "ray"."""
    if kind == "ray":
        return RayMapper(worker_count)
    return ProcessMapper(worker_count) if worker_count > 1 else SerialMapper()
