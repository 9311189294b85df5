"""Provide stages with a store, a mapper and a listener for events while a flow runs.

A flow opens a ``Session``; each stage called inside it reports events to the session's listener.
``BackgroundListener`` protects stages from slow or failing observers.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any, Literal

from hallmark.tasks.contract.artifact import Artifact, Table
from hallmark.tasks.contract.equivalent_versions import EquivalentVersions
from hallmark.tasks.contract.errors import HallmarkError
from hallmark.tasks.contract.resources import Mapper, SerialMapper
from hallmark.tasks.contract.store import Store

log = logging.getLogger("hallmark")


EventKind = Literal[
    "start",
    "progress",
    "figures",
    "done",
    "cached",
    "failed",
    "child",
    "silence",
    "run_started",
    "run_ended",
]


@dataclass(frozen=True)
class Event:
    """An event of a session, for progress bars, run.json and logs.

    Attributes:
        kind: ``figures`` reports metrics of a running stage, ``child`` an artifact that it
            committed, ``failed`` that a stage ended with an error; ``run_started`` and
            ``run_ended`` are no events of a stage. A ``BackgroundListener`` sends ``silence`` if no
            event came for a while.
        label: Name of the stage in the run.
        artifact: The artifact of ``done``, ``cached`` and ``child``.
        inputs: The inputs of the stage, for ``start`` and ``cached``.
        was_stored: Whether the store had the artifact of ``child`` before, as a stage that is
            resumed commits it again.
        seconds: Wall time of a stage that is done.
        completed: Completed units of ``progress``, or the step of ``figures``.
        total: All units of ``progress``; 0 if unknown.
        description: Description of the progress; the name of the class of the error of ``failed``;
            the status of the run of ``run_ended``.
        metrics: The metrics of ``figures``, by name.
        phase: Name of a group of consecutive stages that the stage belongs to, if any.
    """

    kind: EventKind
    label: str
    artifact: Artifact | None = None
    seconds: float = 0.0
    completed: int = 0
    total: int = 0
    description: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    phase: str = ""
    was_stored: bool = False
    inputs: Sequence[Artifact | Table] = ()


#: While this many events are pending, a background listener drops new events with metrics.
MAX_PENDING_METRIC_EVENTS = 10_000


class BackgroundListener:
    """Pass events to a listener in a separate thread, so that it cannot fail or delay a stage.

    Only the listener's first error is logged. Only the newest pending progress event of a stage
    is kept; events with metrics are dropped from MAX_PENDING_METRIC_EVENTS on.

    Args:
        listener: Function that receives the events.
        listener_name: Name of the listener in the log.
        drain_timeout: Seconds that the listener gets for pending events when the context ends.
        idle_interval: Seconds without an event after which the listener receives an event of kind
            ``silence``; None disables them.
    """

    def __init__(
        self,
        listener: Callable[[Event], None],
        listener_name: str,
        drain_timeout: float = 1.0,
        idle_interval: float | None = None,
    ) -> None:
        self.listener, self.listener_name, self.drain_timeout, self.idle_interval = (
            listener,
            listener_name,
            drain_timeout,
            idle_interval,
        )
        self.pending_events: deque[Event] = deque()
        #: Newest progress by stage; it replaces the stage's event in ``pending_events``.
        self.latest_progress: dict[str, Event] = {}
        self.condition = threading.Condition()
        self.is_closed = self.has_failed = False
        # In the creator's context, so that Prefect assigns output to the creator's task run.
        deliver_in_context = functools.partial(copy_context().run, self._deliver_events)
        self.thread = threading.Thread(
            target=deliver_in_context, name=f"listener: {listener_name}", daemon=True
        )

    def __call__(self, event: Event) -> None:
        with self.condition:
            is_pending = event.label in self.latest_progress
            if event.kind == "progress":
                self.latest_progress[event.label] = event
                if is_pending:
                    return
            if event.kind == "figures" and len(self.pending_events) >= MAX_PENDING_METRIC_EVENTS:
                return
            self.pending_events.append(event)
            self.condition.notify()

    def _deliver_events(self) -> None:
        while True:
            with self.condition:
                self.condition.wait_for(
                    lambda: self.pending_events or self.is_closed, self.idle_interval
                )
                if self.pending_events:
                    event = self.pending_events.popleft()
                elif self.is_closed:
                    return
                else:
                    event = Event("silence", "")
                if event.kind == "progress":
                    event = self.latest_progress.pop(event.label)
            try:
                self.listener(event)
            except Exception as error:
                if not self.has_failed:
                    log.warning(
                        "%s failed: %s: %s; the run continues without it",
                        self.listener_name,
                        type(error).__name__,
                        str(error).split("\n")[0],
                    )
                self.has_failed = True

    def __enter__(self) -> BackgroundListener:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close(self.drain_timeout)

    def close(self, drain_timeout: float) -> bool:
        """Wait until the listener has received all pending events, or for some seconds.

        Returns:
            Whether it has received them.
        """
        with self.condition:
            self.is_closed = True
            self.condition.notify()
        self.thread.join(drain_timeout)
        return not self.thread.is_alive()


@dataclass(frozen=True)
class RetryPolicy:
    """How often a stage that failed is executed again in a Prefect flow.

    Attributes:
        count: Number of further executions.
        delay_seconds: Seconds between a failure and the next execution.
    """

    count: int = 1
    delay_seconds: float = 0.0


@dataclass
class Session:
    """The store, the mapper and the listener of the stages of a running flow.

    An error of ``listener`` fails the stage, since it writes the run's records. Call other
    observers through a ``BackgroundListener``.
    """

    store: Store
    mapper: Mapper = field(default_factory=SerialMapper)
    listener: Callable[[Event], None] = lambda event: None
    last_stage: str | None = None  # label of the stage after which to stop
    #: Called with (stage, inputs, config) instead of running a stage; its result is used as the
    #: stage's artifact. A forecast plans each call this way.
    plan_stage: Callable[[Any, Sequence[Any], Any], Any] | None = None
    #: Returns why a training must stop at its next step, or None.
    find_stop_reason: Callable[[], str | None] = lambda: None
    #: Returns the retry policy from the label and the name of a stage.
    get_retry_policy: Callable[[str, str], RetryPolicy] = lambda label, stage_name: RetryPolicy()
    #: Store, artifact and path of the files whose existence and size were checked.
    checked_files: set[tuple[str, str, str]] = field(default_factory=set, repr=False)

    @functools.cached_property
    def equivalent_versions(self) -> EquivalentVersions:
        """The versions of libraries that the store treats as equivalent."""
        return EquivalentVersions(self.store)

    def check_artifact_file_sizes(self, artifacts: Iterable[Artifact]) -> None:
        """Raise HallmarkError unless all files of stored artifacts exist with their sizes.

        Files may be missing although the manifest exists, and a cached artifact would not be read.
        Each file is checked once per session.
        """
        for artifact in artifacts:
            if artifact.store is None:  # a folder of the user, outside any store
                continue
            store_and_folder = artifact.store.uri, artifact.folder
            entries = [
                entry
                for entry in artifact.iter_file_entries()
                if (*store_and_folder, entry["path"]) not in self.checked_files
            ]
            artifact.location.check_file_sizes(entries)
            self.checked_files.update((*store_and_folder, entry["path"]) for entry in entries)


class LastStageReached(Exception):
    """Raised after the last stage of a session; the run ends there without an error."""


_session: ContextVar[Session | None] = ContextVar("hallmark_session", default=None)


@contextmanager
def open_session(session: Session) -> Iterator[Session]:
    """Make a session current, start its mapper, and hold the store's shared lock."""
    token = _session.set(session)
    try:
        # A plan runs nothing and must not write to the store, so it takes no lock.
        with nullcontext() if session.plan_stage else session.store.shared_lock(), session.mapper:
            yield session
    finally:
        _session.reset(token)


def get_current_session() -> Session:
    """Return the current session.

    Raises:
        HallmarkError: No session is open.
    """
    session = _session.get()
    if session is None:
        raise HallmarkError("a stage was called outside a session; use open_session(Session(...))")
    return session
