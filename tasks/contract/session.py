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

from tasks.contract.artifact import Artifact
from tasks.contract.errors import HallmarkError
from tasks.contract.mappers import InProcess, Mapper
from tasks.contract.store import Store

log = logging.getLogger("hallmark")


Kind = Literal["start", "progress", "figures", "done", "cached", "child", "silence"]


@dataclass(frozen=True)
class Event:
    """What happens in a session, for progress bars, run.json and logs.

    ``step``: what the stage is part of, where several do it one behind the other. ``figures``:
    measured while a stage works, at step ``done``. ``silence`` is what a watcher hears
    where nothing has happened for a while.
    """

    kind: Kind
    label: str
    artifact: Artifact | None = None
    seconds: float = 0.0
    done: int = 0
    total: int = 0
    what: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    step: str = ""


#: Figures that come while a watcher has so many events to hear are lost to it.
MOST_UNHEARD = 10_000


class Watcher:
    """Tells somebody of events who only watches, from a thread of its own.

    So neither their errors nor their waiting reach the stage: the first error is logged, the
    others are not, and whoever leaves this context gives them ``patience`` seconds to catch up.
    Of a stage's progress that they have not heard only the newest is kept, and of figures no more
    than MOST_UNHEARD. Where nothing happens they hear of silence every ``silence`` seconds.
    """

    def __init__(
        self,
        hear: Callable[[Event], None],
        who: str,
        patience: float = 1.0,
        silence: float | None = None,
    ) -> None:
        self.hear, self.who, self.patience, self.silence = hear, who, patience, silence
        self.unheard: deque[Event] = deque()
        #: By stage, in place of the progress that stands among the unheard.
        self.newest: dict[str, Event] = {}
        self.changed = threading.Condition()
        self.over = self.failed = False
        #: In the context of whoever made it: their flow and task run are those of what is said.
        tell = functools.partial(copy_context().run, self._tell)
        self.thread = threading.Thread(target=tell, name=f"watcher: {who}", daemon=True)

    def __call__(self, event: Event) -> None:
        with self.changed:
            waits = event.label in self.newest
            if event.kind == "progress":
                self.newest[event.label] = event
                if waits:
                    return
            if event.kind == "figures" and len(self.unheard) >= MOST_UNHEARD:
                return
            self.unheard.append(event)
            self.changed.notify()

    def _tell(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.unheard or self.over, self.silence)
                if self.unheard:
                    event = self.unheard.popleft()
                elif self.over:
                    return
                else:
                    event = Event("silence", "")
                if event.kind == "progress":
                    event = self.newest.pop(event.label)
            try:
                self.hear(event)
            except Exception as error:
                if not self.failed:
                    log.warning("%s: %s: %s; the run goes on without", self.who,
                                type(error).__name__, str(error).split("\n")[0])  # fmt: skip
                self.failed = True

    def __enter__(self) -> Watcher:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self.changed:
            self.over = True
            self.changed.notify()
        self.thread.join(self.patience)


@dataclass
class Session:
    """Where stages find their store and their mapper while a flow runs.

    What ``listener`` raises fails the stage: it keeps the run's records. Who only watches is told
    by a ``Watcher``.
    """

    store: Store
    mapper: Mapper = field(default_factory=InProcess)
    listener: Callable[[Event], None] = lambda event: None
    until: str | None = None  # the label of the stage to stop behind
    #: Called with (stage, inputs, config) in place of running a stage; what it returns is handed on
    #: as the stage's artifact. A forecast sees each call this way.
    plan: Callable[[Any, Sequence[Any], Any], Any] | None = None
    #: Store, artifact and path of the files whose presence and size were checked.
    checked: set[tuple[str, str, str]] = field(default_factory=set, repr=False)

    def check_files(self, artifacts: Iterable[Artifact]) -> None:
        """Raise HallmarkError unless all files of stored artifacts are there with their size.

        A manifest may outlive its files, and what is served from the store is not read. Each file
        is looked at once in a session.
        """
        for artifact in artifacts:
            if artifact.store is None:  # a folder of the user, which has no manifest
                continue
            place = artifact.store.uri, artifact.folder
            entries = [e for e in artifact.entries() if (*place, e["path"]) not in self.checked]
            artifact.place.check_sizes(entries)
            self.checked.update((*place, entry["path"]) for entry in entries)


class Finished(Exception):
    """Raised behind the stage that a session runs until; ``flows.runs.begin`` ends there."""


_session: ContextVar[Session | None] = ContextVar("hallmark_session", default=None)


@contextmanager
def open_session(session: Session) -> Iterator[Session]:
    token = _session.set(session)
    try:
        # A plan runs nothing, and leaves nothing behind.
        with nullcontext() if session.plan else session.store.in_use(), session.mapper:
            yield session
    finally:
        _session.reset(token)


def current_session() -> Session:
    session = _session.get()
    if session is None:
        raise HallmarkError("a stage was called outside a session; use open_session(Session(...))")
    return session
