"""What a mapper is, and what an item of work needs of the machine it runs on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True)
class Resources:
    """What one item of a stage's work needs, for mappers that can choose where it runs."""

    cpus: int = 1
    memory_bytes: int = 0  # bytes; 0: not said
    gpus: float = 0


DEFAULT_RESOURCES = Resources()


class Mapper(Protocol):
    """Runs a function over argument tuples and yields the results in their order.

    The function and its arguments must be importable and picklable by a fresh process.
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
    """Works on them here, one after the other."""

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
