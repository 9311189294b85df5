"""Sessions: where stages find their store and their mapper, and who hears of what they do."""

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

from hallmark.tasks.contract.artifact import Artifact
from hallmark.tasks.contract.errors import HallmarkError
from hallmark.tasks.contract.resources import Mapper, SerialMapper
from hallmark.tasks.contract.store import Store

log = logging.getLogger("hallmark")


EventKind = Literal["start", "progress", "figures", "done", "cached", "child", "silence"]


@dataclass(frozen=True)
class Event:
    """What happens in a session, for progress bars, run.json and logs.

    ``step``: what the stage is part of, where several do it one behind the other. ``figures``:
    measured while a stage works, at step ``done``. ``silence`` is what a watcher hears
    where nothing has happened for a while.
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


#: Figures that come while a watcher has so many events to hear are lost to it.
MAX_PENDING_METRIC_EVENTS = 10_000


class BackgroundListener:
    """Tells somebody of events who only watches, from a thread of its own.

    So neither their errors nor their waiting reach the stage: the first error is logged, the
    others are not, and whoever leaves this context gives them ``patience`` seconds to catch up.
    Of a stage's progress that they have not heard only the newest is kept, and of figures no more
    than MOST_UNHEARD. Where nothing happens they hear of silence every ``silence`` seconds.
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
        #: By stage, in place of the progress that stands among the unheard.
        self.latest_progress: dict[str, Event] = {}
        self.condition = threading.Condition()
        self.is_closed = self.has_failed = False
        #: In the context of whoever made it: their flow and task run are those of what is said.
        deliver_in_context = functools.partial(copy_context().run, self._deliver_events)
        self.thread = threading.Thread(
            target=deliver_in_context, name=f"watcher: {listener_name}", daemon=True
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
                        "%s: %s: %s; the run goes on without",
                        self.listener_name,
                        type(error).__name__,
                        str(error).split("\n")[0],
                    )
                self.has_failed = True

    def __enter__(self) -> BackgroundListener:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self.condition:
            self.is_closed = True
            self.condition.notify()
        self.thread.join(self.drain_timeout)


@dataclass
class Session:
    """Where stages find their store and their mapper while a flow runs.

    What ``listener`` raises fails the stage: it keeps the run's records. Who only watches is told
    by a ``Watcher``.
    """

    store: Store
    mapper: Mapper = field(default_factory=SerialMapper)
    listener: Callable[[Event], None] = lambda event: None
    last_stage: str | None = None  # the label of the stage to stop behind
    #: Called with (stage, inputs, config) in place of running a stage; what it returns is handed on
    #: as the stage's artifact. A forecast sees each call this way.
    plan_stage: Callable[[Any, Sequence[Any], Any], Any] | None = None
    #: Store, artifact and path of the files whose presence and size were checked.
    checked_files: set[tuple[str, str, str]] = field(default_factory=set, repr=False)

    def check_artifact_files(self, artifacts: Iterable[Artifact]) -> None:
        """Raise HallmarkError unless all files of stored artifacts are there with their size.

        A manifest may outlive its files, and what is served from the store is not read. Each file
        is looked at once in a session.
        """
        for artifact in artifacts:
            if artifact.store is None:  # a folder of the user, which has no manifest
                continue
            store_and_folder = artifact.store.uri, artifact.folder
            entries = [
                e
                for e in artifact.iter_file_entries()
                if (*store_and_folder, e["path"]) not in self.checked_files
            ]
            artifact.location.check_file_sizes(entries)
            self.checked_files.update((*store_and_folder, entry["path"]) for entry in entries)


class LastStageReached(Exception):
    """Raised behind the stage that a session runs until; ``hallmark.flows.runs.begin`` ends
    there."""


_session: ContextVar[Session | None] = ContextVar("hallmark_session", default=None)


@contextmanager
def open_session(session: Session) -> Iterator[Session]:
    token = _session.set(session)
    try:
        # A plan runs nothing, and leaves nothing behind.
        with nullcontext() if session.plan_stage else session.store.shared_lock(), session.mapper:
            yield session
    finally:
        _session.reset(token)


def get_current_session() -> Session:
    session = _session.get()
    if session is None:
        raise HallmarkError("a stage was called outside a session; use open_session(Session(...))")
    return session
