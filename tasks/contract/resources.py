"""Define the interface of mappers, and the resources that one item of work needs.

A mapper runs the items of a stage, for example in local processes (``mappers.py``) or on a Ray
cluster (``ray_mapper.py``). The serial mapper is here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True)
class Resources:
    """Resources that one item of a stage needs, for mappers that can choose where it runs.

    Attributes:
        cpus: Number of processors.
        memory_bytes: Memory; 0 if it is not specified.
        gpus: Number of GPUs.
        shares_model: Whether items share a model, which the process that runs them keeps open.
    """

    cpus: int = 1
    memory_bytes: int = 0
    gpus: int = 0
    shares_model: bool = False


DEFAULT_RESOURCES = Resources()

#: Environment variables of worker processes, unless the user sets them. Together, workers use all
#: cores, so a tokenizer must not start a thread for each core in each of them.
WORKER_ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false"}


class Mapper(Protocol):
    """Run a function on each tuple of arguments and yield the results in the same order.

    A new process must be able to import the function and to unpickle the arguments.
    """

    def __call__(
        self,
        function: Callable[..., Result],
        argument_tuples: Sequence[tuple[Any, ...]],
        resources: Resources,
    ) -> Iterator[Result]: ...

    def __enter__(self) -> Mapper: ...

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class SerialMapper:
    """Run all items in this process, one after the other."""

    def __call__(
        self,
        function: Callable[..., Result],
        argument_tuples: Sequence[tuple[Any, ...]],
        resources: Resources,
    ) -> Iterator[Result]:
        for arguments in argument_tuples:
            yield function(*arguments)

    def __enter__(self) -> SerialMapper:
        return self

    def __exit__(self, *_: object) -> None:
        pass
