"""A run in the making: its settings, its session, and run.json while it works.

run.json is rewritten after every stage, so that a killed run says how far it came.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.runs import Record, Run, default_store, resolve
from tasks.contract import Artifact, HallmarkError, Store, UsageError

if TYPE_CHECKING:
    from flows.config import Config
    from tasks.contract import Event


@dataclass
class Frontend:
    """How runs of this process show themselves; the command line puts its progress bars here."""

    listener: Callable[[Event], None] = lambda event: None
    store: Store | None = None  # instead of the config's: replay runs into a fresh one
    runs: dict[str, Run] = field(default_factory=dict)


frontend = Frontend()


def flow_run_name() -> str:
    """Name of the Prefect flow run, and id of the run: it sorts by time."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def settle(
    config: str | dict[str, Any] | None,
    overrides: Sequence[str],
    until: str | None = None,
    checkpoint: str | None = None,
    start: str | None = None,
) -> tuple[Config, str | None]:
    """The config that a flow runs with, and the file or name that it was given, if it was.

    Without one, a checkpoint is audited as its own run did, one from elsewhere with the demo's
    settings but nothing of what the demo says about itself, and all else follows the demo.
    Raises UsageError for whatever is wrong with the arguments of a flow.
    """
    from flows.config import ROOT_KEYS, load

    if config is None and checkpoint is None:
        config = "demo"
    file = config if isinstance(config, str) else None
    if checkpoint is not None:
        made_by = resolve(frontend.store or default_store(), checkpoint).run
        if config is None and made_by is not None:
            config = made_by.record["config"]
        elif config is None:
            title = f"Audit of {Path(checkpoint).name or checkpoint}"
            config = load("demo").model_dump(mode="json")
            config |= {"name": "audit", "datasheet": {}, "model_card": {"title": title}}
    assert config is not None
    settings = load(config, overrides)
    sections = [name for name in type(settings).model_fields if name not in ROOT_KEYS]
    if until is not None and until not in sections:
        raise UsageError(
            f"there is no stage {until!r} to stop behind; choose one of: " + ", ".join(sections)
        )
    if start is not None:
        check_start(start, settings, until, frontend.store or default_store(settings.store))
    return settings, file


def check_start(start: str, settings: Config, until: str | None, store: Store) -> Artifact:
    """The checkpoint to go on from; UsageError where training cannot, before the corpus is made."""
    from tasks.training.pretrain import going_on

    if until == "train_tokenizer":
        raise UsageError(
            "a run that goes on from a checkpoint keeps its tokenizer and trains none; stop behind "
            "another stage than train_tokenizer"
        )
    checkpoint = resolve(store, start).checkpoint
    try:
        going_on(checkpoint, settings.pretrain, {"context": settings.pack.context})
    except HallmarkError as error:
        raise UsageError(f"--start {start}: {error}") from error
    return checkpoint


@contextmanager
def begin(
    flow: str,
    config: str | dict[str, Any] | None,
    overrides: Sequence[str],
    until: str | None = None,
    checkpoint: str | None = None,
    start: str | None = None,
) -> Iterator[Run]:
    """Open the store and a session for a flow, and keep run.json while it works.

    ``checkpoint`` is to be audited, from ``start`` training is to go on; run.json names either.
    """
    from prefect.runtime import flow_run

    from tasks.contract import Finished, Session, make_mapper, open_session

    settings, file = settle(config, overrides, until, checkpoint, start)
    store = frontend.store or default_store(settings.store)
    record: Record = {
        "run": flow_run.name or flow_run_name(),
        "flow": flow,
        "config_name": settings.name,
        "config_file": file,
        "overrides": list(overrides),
        "config": settings.model_dump(mode="json"),
        "checkpoint": checkpoint or start,
        "status": "running",
        "started": _now(),
        "ended": None,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "python": platform.python_version(),
        "platform": this_machine(),
        "stages": [],
        "error": None,
    }
    run = frontend.runs[record["run"]] = Run(store, record)

    def save() -> None:
        store.put(f"runs/{run.id}/run.json", json.dumps(record, indent=1).encode())

    def listen(event: Event) -> None:
        if event.kind in ("done", "cached") and event.artifact:
            record["stages"].append(_entry(event, event.artifact))
            save()
        frontend.listener(event)

    save()
    mapper = make_mapper(settings.mapper, settings.workers)
    try:
        with open_session(Session(store, mapper, listen, until)):
            yield run
    except Finished:
        record["until"] = until
    except BaseException as error:
        what = "stopped" if isinstance(error, KeyboardInterrupt) else str(error).split("\n")[0]
        record |= {"status": "failed", "ended": _now(), "error": what}
        with suppress(HallmarkError, OSError):  # on a full disk the first error is the one to tell
            save()
        raise
    record |= {"status": "completed", "ended": _now()}
    save()


def _entry(event: Event, artifact: Artifact) -> Record:
    return {
        "label": event.label,
        "stage": artifact.stage,
        "fingerprint": artifact.fingerprint,
        "content": artifact.content,
        "artifact": artifact.name,
        "cached": event.kind == "cached",
        "seconds": round(event.seconds, 3),
    }


def this_machine() -> str:
    """System, processor and usable cores: what decides the last bits of floating-point results."""
    model = platform.processor()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = {line.partition(":")[2].strip() for line in lines if line.startswith("model name")}
        model = ", ".join(sorted(names)) or model
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{platform.platform()}, {model}, {usable} cores"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
