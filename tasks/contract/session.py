"""Sessions: where stages find their store and their mapper while a flow runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

from tasks.contract.errors import HallmarkError
from tasks.contract.mappers import InProcess, Mapper
from tasks.contract.store import Artifact, Store


@dataclass(frozen=True)
class Event:
    """What happens in a session, for progress bars, run.json and logs."""

    kind: Literal["start", "progress", "done", "cached", "child"]
    label: str
    artifact: Artifact | None = None
    seconds: float = 0.0
    done: int = 0
    total: int = 0
    what: str = ""


@dataclass
class Session:
    """Where stages find their store and their mapper while a flow runs."""

    store: Store
    mapper: Mapper = field(default_factory=InProcess)
    listener: Callable[[Event], None] = lambda event: None
    until: str | None = None  # the label of the stage to stop behind
    #: Called with (stage, inputs, config) in place of running a stage; what it returns is handed on
    #: as the stage's artifact. A forecast sees each call this way.
    plan: Callable[[Any, Sequence[Any], Any], Any] | None = None


class Finished(Exception):
    """Raised behind the stage that a session runs until; ``flows.runs.begin`` ends there."""


_session: ContextVar[Session | None] = ContextVar("hallmark_session", default=None)


@contextmanager
def open_session(session: Session) -> Iterator[Session]:
    token = _session.set(session)
    try:
        with session.mapper:
            yield session
    finally:
        _session.reset(token)


def current_session() -> Session:
    session = _session.get()
    if session is None:
        raise HallmarkError("a stage was called outside a session; use open_session(Session(...))")
    return session
