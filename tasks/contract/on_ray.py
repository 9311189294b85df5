"""Parts on a Ray cluster: every one is a plain remote function, so a lost worker costs its part.

The cluster is the one that RAY_ADDRESS names, else one of this machine that ends with the session.
All its machines must see the work area: a store that several hosts share is not served yet.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from typing import Any

from tasks.contract.errors import UsageError
from tasks.contract.mappers import InProcess, Needs, Result

#: Parts sent ahead of the one that is waited for, for each worker: their arguments take memory.
AHEAD = 4

#: How often a part whose worker died is begun again.
RETRIES = 3


class OnRay:
    """Works on parts wherever the cluster has what they need; ``workers`` of them here, if the
    cluster is this machine."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._ray: Any = None

    def __call__(
        self, function: Callable[..., Result], calls: Sequence[tuple[Any, ...]], needs: Needs
    ) -> Iterator[Result]:
        if len(calls) <= 1:  # one item gains nothing from another process
            yield from InProcess()(function, calls, needs)
            return
        ray = self._start()
        wants = {"num_cpus": needs.processors, "num_gpus": needs.gpus, "max_retries": RETRIES}
        wants |= {"memory": needs.memory} if needs.memory else {}
        remote = ray.remote(function).options(**wants)
        todo = deque(calls)
        sent: deque[Any] = deque()
        most = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
        try:
            while todo or sent:
                while todo and len(sent) < most:
                    sent.append(remote.remote(*todo.popleft()))
                yield self._get(sent.popleft())
        finally:
            for reference in sent:
                ray.cancel(reference, force=True)

    def _get(self, reference: Any) -> Any:
        """The result, or the error as the function raised it."""
        exceptions = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except exceptions.RayTaskError as error:
            raise error.cause from error
        except (exceptions.WorkerCrashedError, exceptions.NodeDiedError) as error:
            raise BrokenExecutor(f"a Ray worker died {RETRIES + 1} times") from error

    def _start(self) -> Any:
        if self._ray is None:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            try:
                import ray
            except ImportError as error:
                raise UsageError(
                    "mapper is ray, and Ray is not installed; install hallmark[ray] or set mapper "
                    "to processes"
                ) from error
            here = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": self.workers}
            path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            ray.init(include_dashboard=False, log_to_driver=False, logging_level="error",
                     runtime_env={"env_vars": path}, **here)  # fmt: skip
            self._ray = ray
        return self._ray

    def __enter__(self) -> OnRay:
        return self

    def __exit__(self, *_: object) -> None:
        if self._ray is not None:
            self._ray.shutdown()
            self._ray = None
