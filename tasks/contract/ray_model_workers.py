"""Run items that share a model on Ray actors.

An actor keeps its process, and with it the model that an item opened and its GPU, until it is
released. (Ray gives a remote function that needs a GPU a new process each time, because a process
cannot exchange its GPU.)
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

from hallmark.tasks.contract.resources import Resources, Result

#: Number of times that an item whose worker died is restarted.
MAX_RETRIES = 3


class ModelWorker:
    """An actor; it runs one item after the other.

    It needs the number of threads of the main process, because with another number some sums have
    other last bits.
    """

    def __init__(self, thread_count: int) -> None:
        import hallmark.model  # noqa: F401  what it sets only counts before torch is loaded

        # isort: split
        import torch

        torch.set_num_threads(thread_count)

    def run_item(self, function: Callable[..., Result], arguments: tuple[Any, ...]) -> Result:
        return function(*arguments)


class ModelWorkers:
    """The actors of a session, which start on first use.

    Attributes:
        resources: The resources of each actor.
    """

    def __init__(self, ray: ModuleType, resources: Resources) -> None:
        self.resources = resources
        self._ray: Any = ray
        self._workers: list[Any] = []

    def run_items(
        self, function: Callable[..., Any], argument_tuples: Sequence[tuple[Any, ...]]
    ) -> Iterator[Any]:
        """Run each item on the next actor that is free, and yield Ray's references in order.

        A dead actor is replaced, and its item runs on the next free one. (If Ray restarted the
        actor, the item would have to wait until the resources of a lost machine are back.) If
        actors died more than ``MAX_RETRIES`` times for one item, or at their start, the next
        reference is one with Ray's error.
        """
        # All actors of the call before may have died since; only further deaths at a start count.
        death_counts: Counter[int | None] = Counter({None: -len(self._workers)})
        for _ in range(len(self._workers), self._count_useful_workers(len(argument_tuples))):
            self._start_worker()
        # What each actor does: an item by its index, or None until the actor has started.
        jobs: dict[Any, tuple[Any, int | None]] = {
            worker.__ray_ready__.remote(): (worker, None) for worker in self._workers
        }
        free_workers: list[Any] = []
        pending_indices = deque(range(len(argument_tuples)))
        finished_references: dict[int, Any] = {}
        for next_index in range(len(argument_tuples)):
            while next_index not in finished_references:
                while pending_indices and free_workers:
                    worker, index = free_workers.pop(), pending_indices.popleft()
                    reference = worker.run_item.remote(function, argument_tuples[index])
                    jobs[reference] = worker, index
                (reference,), _ = self._ray.wait([*jobs], num_returns=1)
                worker, finished_index = jobs.pop(reference)
                has_died = self._has_actor_died(reference)
                death_counts[finished_index] += has_died
                if death_counts[finished_index] > MAX_RETRIES:
                    finished_references[next_index] = reference
                elif has_died:
                    self._kill_worker(worker)
                    new_worker = self._start_worker()
                    jobs[new_worker.__ray_ready__.remote()] = new_worker, None
                    pending_indices.extendleft([] if finished_index is None else [finished_index])
                else:
                    free_workers.append(worker)
                    if finished_index is not None:
                        finished_references[finished_index] = reference
            yield finished_references.pop(next_index)

    def release(self) -> None:
        """Kill the actors, which frees their models and resources."""
        for worker in [*self._workers]:
            self._kill_worker(worker)

    def _start_worker(self) -> Any:
        """Start an actor and return it."""
        import torch

        actor_class = self._ray.remote(ModelWorker)
        options = build_resource_options(self.resources)
        worker = actor_class.options(**options).remote(torch.get_num_threads())
        self._workers.append(worker)
        return worker

    def _kill_worker(self, worker: Any) -> None:
        """Kill an actor; it may still run if only the connection to it was lost."""
        self._ray.kill(worker)
        self._workers.remove(worker)

    def _has_actor_died(self, reference: Any) -> bool:
        """Return whether a job ended because its actor died."""
        try:
            self._ray.get(reference)
        except list_worker_death_errors(self._ray):
            return True
        except self._ray.exceptions.RayTaskError:  # raised by the item; for the caller
            return False
        return False

    def _count_useful_workers(self, item_count: int) -> int:
        """Count the actors that have resources on the present machines, at most one per item."""
        needs = {"CPU": self.resources.cpus, "GPU": self.resources.gpus}
        possible_count = sum(
            min(int(machine.get(name, 0) // need) for name, need in needs.items() if need)
            for machine in list_machine_resources(self._ray)
        )
        return min(item_count, max(1, possible_count))


def list_worker_death_errors(ray: Any) -> tuple[type[Exception], ...]:
    """List the errors with which Ray reports that the process of a task or actor died."""
    errors = ray.exceptions
    return (
        errors.WorkerCrashedError,
        errors.NodeDiedError,
        errors.OutOfMemoryError,
        errors.RayActorError,
    )


def list_machine_resources(ray: Any) -> list[dict[str, float]]:
    """List the resources of each machine of the cluster by Ray's names, such as CPU and GPU."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def build_resource_options(resources: Resources) -> dict[str, Any]:
    """Build the options with which Ray assigns resources to a remote function or an actor."""
    options = {"num_cpus": resources.cpus, "num_gpus": resources.gpus}
    return options | ({"memory": resources.memory_bytes} if resources.memory_bytes else {})
