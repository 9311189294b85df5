"""Run the items of a stage on a Ray cluster.

RAY_ADDRESS names the cluster; without it, a cluster of this machine is started for the session. If
a worker is lost, only its item runs again. All machines of the cluster must see the work area;
stores shared by several hosts are not supported yet.

An item is a remote function; items that share a model run on ``ray_model_workers.py``.
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
from hallmark.tasks.contract.ray_model_workers import (
    MAX_RETRIES,
    ModelWorkers,
    build_resource_options,
    list_machine_resources,
    list_worker_death_errors,
)
from hallmark.tasks.contract.resources import (
    WORKER_ENVIRONMENT,
    Resources,
    Result,
    SerialMapper,
)
from hallmark.tasks.contract.settings import DeviceName

#: Items per worker that are submitted in advance. Limited, since their arguments take memory.
QUEUED_ITEMS_PER_WORKER = 4

#: Seconds within which a cluster must answer.
ANSWER_TIMEOUT_SECONDS = 12.0

#: What Ray's health check prints if it has no token for a cluster, which Ray protects by default.
AUTHENTICATION_ERROR = b"AuthenticationError"


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
                f"the Ray cluster at {address!r} (the address in RAY_ADDRESS) requires a token; "
                "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH unless the token is in "
                "~/.ray/auth_token"
            ) from error
        raise HallmarkError(
            f"no Ray cluster responds at {address!r} (the address in RAY_ADDRESS); correct the "
            "address, unset RAY_ADDRESS (the run then starts a cluster on this machine), or "
            "start a cluster with: ray start --head"
        ) from error


class RayMapper:
    """Run items on a Ray cluster, wherever their resources are available.

    ``worker_count`` limits the processors of a cluster that is started on this machine.
    """

    def __init__(self, worker_count: int) -> None:
        self.worker_count = worker_count
        self._ray: Any = None
        # They last until items with other resources run, so that several stages can use one model.
        self._model_workers: ModelWorkers | None = None

    def __call__(
        self,
        function: Callable[..., Result],
        argument_tuples: Sequence[tuple[Any, ...]],
        resources: Resources,
    ) -> Iterator[Result]:
        if resources.shares_model:
            yield from self._run_on_model_workers(function, argument_tuples, resources)
            return
        if len(argument_tuples) <= 1:  # one item gains nothing from another process
            yield from SerialMapper()(function, argument_tuples, resources)
            return
        ray = self._start_ray()
        self._release_model_workers()  # otherwise, items could wait for their processors forever
        remote_function = ray.remote(function).options(
            max_retries=MAX_RETRIES, **build_resource_options(resources)
        )
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

    def choose_model_resources(self, device: DeviceName) -> Resources:
        """Choose the resources of items that share a model.

        On CPUs, an item uses as many processors as torch has threads in this process, or all of the
        largest machine if it has fewer.

        Args:
            device: The device that the config names; "auto" is a GPU if the cluster has one.

        Raises:
            UsageError: The device is a GPU, but the cluster has none.
        """
        import torch

        machines = list_machine_resources(self._start_ray())
        has_gpu = any(machine.get("GPU", 0) >= 1 for machine in machines)
        if device == "cpu" or (device == "auto" and not has_gpu):
            max_processors = max(int(machine.get("CPU", 0)) for machine in machines)
            cpus = max(1, min(torch.get_num_threads(), max_processors))
            return Resources(cpus=cpus, shares_model=True)
        if not has_gpu:
            raise UsageError(
                f"device {device} does not exist: no machine of the Ray cluster has a GPU; set "
                "device to auto or cpu"
            )
        return Resources(gpus=1, shares_model=True)

    def _run_on_model_workers(
        self,
        function: Callable[..., Result],
        argument_tuples: Sequence[tuple[Any, ...]],
        resources: Resources,
    ) -> Iterator[Result]:
        """Run items that share a model, on the workers of the call before if they fit.

        Raises:
            BrokenExecutor: An item's worker died each time, or none could start.
        """
        ray = self._start_ray()
        if self._model_workers is None or self._model_workers.resources != resources:
            self._release_model_workers()
            self._model_workers = ModelWorkers(ray, resources)
        is_complete = False
        try:
            for reference in self._model_workers.run_items(function, argument_tuples):
                yield self._get_result(reference)
            is_complete = True
        finally:
            if not is_complete:  # an item that an actor works on cannot be cancelled
                self._release_model_workers()

    def _release_model_workers(self) -> None:
        if self._model_workers is not None:
            self._model_workers.release()
            self._model_workers = None

    def _get_result(self, object_reference: Any) -> Any:
        """Return the result of an item, or raise the error that its function raised.

        Raises:
            BrokenExecutor: The item's worker died each time.
        """
        try:
            return self._ray.get(object_reference)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except list_worker_death_errors(self._ray) as error:
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
            environment = {
                name: os.environ.get(name, value) for name, value in WORKER_ENVIRONMENT.items()
            }
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
            address = os.environ.get("RAY_ADDRESS")
            ray.init(
                # Without an address, Ray would connect to any cluster that ``ray start`` began.
                address=address or "local",
                num_cpus=None if address else self.worker_count,
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
            self._ray.shutdown()  # also ends the actors
            self._ray, self._model_workers = None, None
