"""A run in the making: its settings, its session, and run.json while it works.

run.json is rewritten after every stage, so that a killed run says how far it came.
"""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from flows.growing import check_earlier, check_preferred
from flows.origin import resolve, resolve_folder
from flows.requests import check_checkpoint, check_settings, check_store
from flows.runs import Record, Run, check_whole, default_store, find_artifact, store_uri
from flows.site import build_quietly
from flows.tensorboard import EventFiles
from flows.tensorboard import check as check_tensorboard
from tasks.contract import Artifact, HallmarkError, Store, UsageError

if TYPE_CHECKING:
    from flows.config import Config
    from tasks.contract import Event


@dataclass
class Frontend:
    """How runs of this process show themselves; the command line puts its terminal here."""

    watcher: Callable[[Event], None] = lambda event: None
    #: Called with the name of a world of a study, and what became of it.
    say: Callable[[str, Any], None] = lambda world, outcome: None
    runs: dict[str, Run] = field(default_factory=dict)


frontend = Frontend()


def flow_run_name() -> str:
    """Name of the Prefect flow run, and id of the run: it sorts by time, behind the second by the
    65,536 parts of one."""
    now = datetime.now(UTC)
    return f"{now:%Y%m%d-%H%M%S}-{(now.microsecond << 16) // 1_000_000:04x}"


class Settings(Protocol):
    """What a session needs to know of a config."""

    @property
    def name(self) -> str: ...
    @property
    def mapper(self) -> str: ...
    @property
    def workers(self) -> int: ...
    @property
    def tensorboard(self) -> str | None: ...
    def model_dump(self, *, mode: str) -> Record: ...


class Settled(NamedTuple):
    """What a flow runs with."""

    config: Config
    file: str | None  # the config's, or its name, where one was given
    store: Store


def settle(
    config: str | dict[str, Any] | None,
    overrides: Sequence[str],
    until: str | None = None,
    checkpoint: str | None = None,
    start: str | None = None,
    store: str | None = None,
) -> Settled:
    """The config and the store that a flow runs with.

    Without a config, a checkpoint is audited as its own run did, one from elsewhere with the demo's
    settings but nothing of what the demo says about itself, and all else follows the demo. Of a
    config without a corpus, for a checkpoint, what it leaves out is as in the checkpoint's run. The
    store is ``store``, else the config's; a checkpoint's own config is sought where it is found.
    Raises UsageError for whatever is wrong with the arguments of a flow.
    """
    from flows.config import laid_over, load
    from flows.rules import check_policy
    from flows.trees import overridden, read

    if config is None and checkpoint is None:
        config = "demo"
    for setting, name in (("checkpoint", checkpoint), ("start", start)):
        if name is not None:
            check_checkpoint(name, setting)
    sought = [name for name in (checkpoint, start) if name is not None and not resolve_folder(name)]
    file = config if isinstance(config, str) else None
    if file and file.endswith(".toml"):
        file = os.path.abspath(file)  # for whoever reads run.json in another folder
    asked = (
        config.get("store") if isinstance(config, dict) else None,
        overridden("store", overrides),
    )
    for name in asked:
        if isinstance(name, str):
            check_store(name)
    recorded = None
    if checkpoint is not None:
        tree: dict[str, Any] = (read(config) if isinstance(config, str) else config) or {}
        if "ingest" not in tree:
            store = store or overridden("store", overrides) or tree.get("store") or store_uri()
            record = _of_its_run(_store(store, sought), checkpoint)
            recorded, config = load(record), laid_over(tree, record)
    assert config is not None
    settings = load(config, overrides, file)
    check_settings(settings, recorded)
    check_until(until, settings)
    check_policy(settings)
    if checkpoint is None and start is None:
        check_layer(settings)
    if settings.tensorboard:
        check_tensorboard()
    opened = _store(store or settings.store, sought)
    if checkpoint is not None:
        resolve(opened, checkpoint)
    else:  # not as given: "latest" is another one tomorrow
        settings = settings.model_copy(update={"earlier": check_earlier(opened, settings)})
        if file:  # a run that is made again has been what it was
            check_preferred(opened, settings)
    if start is not None:
        check_start(start, settings, until, opened)
    return Settled(settings, file, opened)


def _store(named: str | None, sought: Sequence[str]) -> Store:
    """The store of a flow, made where there is none; but one in which checkpoints are ``sought`` is
    there: another, empty one would stay behind a name typed wrongly."""
    check_store(named)
    try:
        return default_store(named, create=not sought)
    except UsageError as error:
        if not sought:
            raise
        raise UsageError(
            f"there is no checkpoint {sought[0]!r}: it is no folder, and {error}"
        ) from error


def check_until(until: str | None, settings: Config) -> None:
    """UsageError where there is no stage of that name to stop after, or the config leaves it
    out."""
    from flows.config import ROOT_KEYS, Config, left_out

    if until is not None and (why := left_out(settings).get(until)):
        raise UsageError(f"there is no stage {until!r} to stop after in this config: {why}")

    sections = [name for name in Config.model_fields if name not in ROOT_KEYS]
    if until is not None and until not in sections:
        raise UsageError(
            f"there is no stage {until!r} to stop after; choose one of: " + ", ".join(sections)
        )


def check_layer(settings: Config) -> None:
    """Refuse a config that asks for states of a layer that its model will not have."""
    layer: int | None = getattr(settings, "audit_weat").layer  # noqa: B009
    depth = settings.pretrain.model.n_layers
    if layer is not None and not -depth <= layer <= depth:
        raise UsageError(
            f"audit_weat.layer is {layer}, and pretrain.model.n_layers is {depth}: choose a layer "
            f"from 1 to {depth}, or from -1 to -{depth} backwards, or leave it out"
        )


def _of_its_run(store: Store, checkpoint: str) -> dict[str, Any]:
    """The config that a checkpoint is audited with where none is named."""
    from flows.config import load

    made_by = resolve(store, checkpoint).run
    if made_by is not None:
        return made_by.record["config"]
    config = load("demo").model_dump(mode="json")
    title = f"Audit of {Path(checkpoint).name or checkpoint}"
    return config | {"name": "audit", "datasheet": {}, "model_card": {"title": title}}


def check_start(start: str, settings: Config, until: str | None, store: Store) -> Artifact:
    """The checkpoint to go on from; UsageError where training cannot, before the corpus is made."""
    from tasks.training.pretrain import going_on

    if until == "train_tokenizer":
        raise UsageError(
            "a run that goes on from a checkpoint keeps its tokenizer and trains none; stop after "
            "another stage than train_tokenizer"
        )
    checkpoint = resolve(store, start).checkpoint
    check_whole(f"training cannot go on from {start}", _packed_for(store, checkpoint))
    try:
        going_on(checkpoint, settings.pretrain, {"context": settings.pack.context})
    except HallmarkError as error:
        raise UsageError(f"--start {start}: {error}") from error
    return checkpoint


def _packed_for(store: Store, checkpoint: Artifact) -> Iterator[Artifact]:
    """What a checkpoint was trained on, and that from which it went on, as far as it is known."""
    lineage: Any = checkpoint.manifest.get("lineage", {})
    while packed := lineage.get("packed"):
        yield find_artifact(store, packed)
        before = lineage.get("start")
        lineage = find_artifact(store, before).manifest["lineage"] if before else {}


@contextmanager
def begin(
    flow: str,
    config: str | dict[str, Any] | None,
    overrides: Sequence[str] = (),
    until: str | None = None,
    checkpoint: str | None = None,
    start: str | None = None,
    store: str | None = None,
) -> Iterator[Run]:
    """Open the store and a session for a flow, and keep run.json while it works.

    ``checkpoint`` is to be audited, from ``start`` training is to go on; run.json names either.
    """
    settings, file, opened = settle(config, overrides, until, checkpoint, start, store)
    told = {"config_file": file, "overrides": list(overrides), "checkpoint": checkpoint or start}
    with recorded(flow, settings, opened, told, until) as run:
        yield run
    run.site = build_quietly(opened)


@contextmanager
def recorded(
    flow: str,
    settings: Settings,
    opened: Store,
    told: Record | None = None,
    until: str | None = None,
) -> Iterator[Run]:
    """A session for a flow, and its run.json while it works."""
    from prefect.runtime import flow_run

    from tasks.contract import Finished, Session, Watcher, make_mapper, open_session

    record: Record = {
        "run": flow_run.name or flow_run_name(),
        "flow": flow,
        "config_name": settings.name,
        "config_file": None,
        "overrides": [],
        "config": settings.model_dump(mode="json"),
        "folder": os.getcwd(),  # relative paths start here
        "checkpoint": None,
        "status": "running",
        "started": _now(),
        "ended": None,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "python": platform.python_version(),
        "platform": this_machine(),
        "stages": [],
        "error": None,
        **(told or {}),
    }
    run = frontend.runs[record["run"]] = Run(opened, record)

    watchers = [Watcher(frontend.watcher, "the terminal", silence=5.0)]
    if settings.tensorboard:
        files = EventFiles(Path(settings.tensorboard) / run.id)
        watchers.append(Watcher(files, "TensorBoard's event files"))

    def listen(event: Event) -> None:
        if event.kind in ("done", "cached") and event.artifact:
            record["stages"].append(_entry(event, event.artifact))
            run.save()
        for watch in watchers:
            watch(event)

    run.save()
    mapper = make_mapper(settings.mapper, settings.workers)
    try:
        with ExitStack() as stack:
            for watch in watchers:
                stack.enter_context(watch)
            stack.enter_context(open_session(Session(opened, mapper, listen, until)))
            yield run
    except Finished:
        record["until"] = until
    except BaseException as error:
        what = "stopped" if isinstance(error, KeyboardInterrupt) else str(error).split("\n")[0]
        record |= {"status": "failed", "ended": _now(), "error": what}
        with suppress(HallmarkError, OSError):  # on a full disk the first error is the one to tell
            run.save()
        raise
    record |= {"status": "completed", "ended": _now()}
    run.save()


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
    """System, processor and usable cores, and threads where the environment allows fewer: what
    decides the last bits of floating-point results."""
    model = platform.processor()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = {line.partition(":")[2].strip() for line in lines if line.startswith("model name")}
        model = ", ".join(sorted(names)) or model
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    # OpenMP's may name a number for each level of nesting, of which the first counts here.
    asked = (os.environ.get(f"{name}_NUM_THREADS", "").partition(",")[0] for name in ("OMP", "MKL"))
    fewer = [n for n in map(int, filter(str.isdecimal, asked)) if 0 < n < (usable or 1)]
    threads = f", threads: {min(fewer)}" if fewer else ""
    return f"{platform.platform()}, {model}, {usable} cores{threads}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
