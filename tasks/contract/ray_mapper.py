"""Run the items of a stage on a Ray cluster, each as a remote function.

RAY_ADDRESS names the cluster; without it, a cluster of this machine is started for the session. If
a worker is lost, only its item runs again. All machines of the cluster must see the work area;
stores shared by several hosts are not supported yet.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from types import ModuleType
from typing import Any

from hallmark.tasks.contract.errors import HallmarkError, UsageError
from hallmark.tasks.contract.resources import Resources, Result, SerialMapper

#: Items per worker that are submitted in advance. Limited, since their arguments take memory.
QUEUED_ITEMS_PER_WORKER = 4

#: Seconds within which a cluster must answer.
ANSWER_TIMEOUT_SECONDS = 12.0

#: What Ray's health check prints if it has no token for a cluster, which Ray protects by default.
AUTHENTICATION_ERROR = b"AuthenticationError"

#: Number of times that an item whose worker died is restarted.
MAX_RETRIES = 3


def check_ray_cluster_answers(address: str) -> None:
    """Check that a Ray cluster answers at an address, before the first stage of a run.

    ``ray.init`` would wait for more than five minutes and then end the process.

    Args:
        address: HOST:PORT or ray://HOST:PORT. Other values, such as "auto", are left to Ray, which
            looks for a cluster on this machine and fails at once.

    Raises:
        HallmarkError: No cluster answers within ``ANSWER_TIMEOUT_SECONDS``, or the cluster requires
            a token.
    """
    match = re.fullmatch(r"(ray://)?(\[?[^/\[\]]+\]?:\d+)", address)
    if match is None:
        return
    is_client_address, host_and_port = bool(match[1]), match[2]
    host, _, port = host_and_port.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWER_TIMEOUT_SECONDS):
            pass
        if not is_client_address:
            # In a process of its own, because Ray's client cannot be stopped while it waits.
            subprocess.run(
                [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address],
                check=True,
                capture_output=True,
                timeout=ANSWER_TIMEOUT_SECONDS,
            )
    except (OSError, OverflowError, subprocess.SubprocessError) as error:
        if AUTHENTICATION_ERROR in (getattr(error, "stderr", None) or b""):
            raise HallmarkError(
                f"the Ray cluster at {address!r}, the address in RAY_ADDRESS, requires a token; "
                "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH unless the token is in "
                "~/.ray/auth_token"
            ) from error
        raise HallmarkError(
            f"no Ray cluster answers at {address!r}, the address in RAY_ADDRESS; correct the "
            "address, unset RAY_ADDRESS (the run then starts a cluster on this machine), or start "
            "a cluster with: ray start --head"
        ) from error


class RayMapper:
    """Run items on a Ray cluster, wherever their resources are available.

    ``worker_count`` limits the processors of a cluster that is started on this machine.
    """

    def __init__(self, worker_count: int) -> None:
        self.worker_count = worker_count
        self._ray: Any = None

    def __call__(
        self,
        function: Callable[..., Result],
        argument_tuples: Sequence[tuple[Any, ...]],
        resources: Resources,
    ) -> Iterator[Result]:
        if len(argument_tuples) <= 1:  # one item gains nothing from another process
            yield from SerialMapper()(function, argument_tuples, resources)
            return
        ray = self._start_ray()
        options = {
            "num_cpus": resources.cpus,
            "num_gpus": resources.gpus,
            "max_retries": MAX_RETRIES,
        }
        options |= {"memory": resources.memory_bytes} if resources.memory_bytes else {}
        remote_function = ray.remote(function).options(**options)
        pending_arguments = deque(argument_tuples)
        running_references: deque[Any] = deque()
        max_running = QUEUED_ITEMS_PER_WORKER * max(1, int(ray.cluster_resources().get("CPU", 1)))
        try:
            while pending_arguments or running_references:
                while pending_arguments and len(running_references) < max_running:
                    running_references.append(remote_function.remote(*pending_arguments.popleft()))
                yield self._get_result(running_references.popleft())
        finally:
            for reference in running_references:
                ray.cancel(reference, force=True)

    def _get_result(self, object_reference: Any) -> Any:
        """Return the result of an item, or raise the error that its function raised.

        Raises:
            BrokenExecutor: The item's worker died each time.
        """
        exceptions = self._ray.exceptions
        try:
            return self._ray.get(object_reference)
        except exceptions.RayTaskError as error:
            raise error.cause from error
        except (exceptions.WorkerCrashedError, exceptions.NodeDiedError) as error:
            raise BrokenExecutor(f"a Ray worker died {MAX_RETRIES + 1} times") from error

    def _start_ray(self) -> ModuleType:
        """Connect to the cluster, or start one, and return the module ``ray``."""
        if self._ray is None:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            try:
                import ray
            except ImportError as error:
                raise UsageError(
                    "mapper is set to ray, but Ray is not installed; install hallmark[ray] or "
                    "set mapper to processes"
                ) from error
            environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            ray.init(
                num_cpus=None if os.environ.get("RAY_ADDRESS") else self.worker_count,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"env_vars": environment},
            )
            self._ray = ray
        ray_module: ModuleType = self._ray
        return ray_module

    def __enter__(self) -> RayMapper:
        if address := os.environ.get("RAY_ADDRESS"):
            check_ray_cluster_answers(address)
        return self

    def __exit__(self, *_: object) -> None:
        if self._ray is not None:
            self._ray.shutdown()
            self._ray = None
